//! `treeswap render`: writes the ConfigMaps that rules make of a tree as manifests.
//!
//! No cluster is accessed. A file or rule that cannot become a ConfigMap is an error before the first byte is written.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::builder::PossibleValuesParser;

use super::Exit;
use super::flags::FlagOrigins;
use super::input::{self, Input};
use super::temporary::{self, TempDir};
use crate::config;
use crate::configmap::apply::ExtraKeys;
use crate::configmap::{self, ClusterNamespace, Plan, Planned};
use crate::desired::{self, Commit, Directory};
use crate::store;

/// How the names of temporary directories for manifests begin.
const DRAFT: &str = ".treeswap-render-";

/// The file in such a directory that names, one per line, what is being moved from it into the output directory.
const MOVED: &str = "moved";

/// Options of `treeswap render`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    input: Input,

    /// Write one file per ConfigMap, DIR/CLUSTER/NAMESPACE/NAME.yaml, instead of one stream to stdout
    #[arg(help_heading = "Output", long, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Only ConfigMaps for this cluster
    #[arg(help_heading = "Output", long, value_name = "NAME")]
    cluster: Option<String>,

    /// Add a key VERSION with the commit id: every, or off
    ///
    /// Without a value: every. `changed`, as in `apply`, is not available: it depends on a cluster's state.
    #[arg(help_heading = "Output", long, value_name = "WHEN", default_value = "off", value_parser = PossibleValuesParser::new(["off", "every"]), num_args = 0..=1, require_equals = true, default_missing_value = "every")]
    version_key: String,

    /// Commit id of --tree, for --version-key
    #[arg(help_heading = "Output", long, value_name = "ID")]
    revision: Option<String>,
}

/// Runs `treeswap render`.
pub(super) fn run(args: &Args, given: &FlagOrigins) -> anyhow::Result<ExitCode> {
    given.warnings.iter().for_each(super::warn);
    if let Some(directory) = &args.output {
        check_empty(directory)?;
    }
    let planner = args.input.rules.planner(ExtraKeys::default(), false)?;
    let plan = match args.input.tree_location("render", given)? {
        input::TreeLocation::Directory(directory) => {
            let directory = fs_err::canonicalize(directory).map_err(desired::Error::from)?;
            planner.plan(&Directory(&directory), args.stamp()?)?
        }
        input::TreeLocation::Remote(flag) => {
            if args.revision.is_some() {
                let one = "--revision".into();
                return Err(config::Error::Conflict { one, other: flag.into() }.into());
            }
            let options = args.input.fetch_options(given, "render")?;
            let (objects, revision) = input::fetch(&options)?;
            let stamp = (args.version_key != "off").then(|| revision.to_string());
            let known = planner.known_values(&objects);
            planner.plan(&Commit::new(&objects, revision, &known), stamp)?
        }
    };
    write(args, &select(args, &plan)?)?;
    Ok(Exit::Done.into())
}

impl Args {
    /// The value of the key VERSION for a tree that is a directory; `None` without `--version-key`.
    fn stamp(&self) -> Result<Option<String>, config::Error> {
        match (self.version_key.as_str(), &self.revision) {
            ("off", None) => Ok(None),
            ("off", Some(_)) => {
                Err(config::Error::Needs { one: "--revision".into(), other: "--version-key".into() })
            }
            (_, text) => {
                input::revision(text.as_deref(), "--version-key with --tree").map(|id| Some(id.to_string()))
            }
        }
    }
}

/// The ConfigMaps to write, sorted by cluster, namespace and name. One stream can only be for one cluster.
fn select<'p>(args: &Args, plan: &'p Plan) -> anyhow::Result<Vec<(&'p ClusterNamespace, &'p Planned)>> {
    let fed = plan.configmaps.iter().filter(|planned| planned.fed);
    let mut all: Vec<_> = fed.flat_map(|p| p.places.iter().map(move |place| (place, &**p))).collect();
    all.sort_by(|(place_a, a), (place_b, b)| (place_a, &a.name).cmp(&(place_b, &b.name)));
    let clusters: BTreeSet<&str> = all.iter().map(|(place, _)| place.cluster.as_str()).collect();
    let names = || clusters.iter().copied().collect::<Vec<_>>().join(", ");
    if let Some(cluster) = &args.cluster {
        if !clusters.contains(cluster.as_str()) {
            let why = match clusters.len() {
                0 => "the rules produce no ConfigMap for any cluster".to_owned(),
                _ => format!("the rules produce no ConfigMap for it, but they do for {}", names()),
            };
            return Err(config::Error::Value { name: "--cluster".into(), value: cluster.clone(), why }.into());
        }
        all.retain(|(place, _)| place.cluster == *cluster);
    } else if args.output.is_none() && clusters.len() > 1 {
        let one = format!("one stream of the ConfigMaps for {} clusters ({})", clusters.len(), names());
        return Err(config::Error::Needs { one, other: "--cluster, or --output for files".into() }.into());
    }
    Ok(all)
}

/// Writes the manifests to stdout, or as files into a directory that does not exist or is empty.
fn write(args: &Args, selected: &[(&ClusterNamespace, &Planned)]) -> anyhow::Result<()> {
    let Some(directory) = &args.output else {
        let mut out = std::io::BufWriter::new(std::io::stdout().lock());
        for (place, planned) in selected {
            out.write_all(configmap::manifest(&planned.name, place, &planned.content()).as_bytes())
                .context("cannot write to stdout")?;
        }
        return out.flush().context("cannot write to stdout");
    };
    // The files are written into a temporary directory and then renamed, so that no half of a file can be applied. An
    // existing directory may be a mount point, which nothing can be renamed over: it gets one entry after the other.
    let directory = std::path::absolute(directory).context("the working directory is gone")?;
    let exists = directory.is_dir();
    let parent = if exists { &*directory } else { directory.parent().unwrap_or(&directory) };
    fs_err::create_dir_all(parent)?;
    let draft = TempDir::new_in(parent, DRAFT)
        .with_context(|| format!("cannot make a directory in {}", parent.display()))?;
    let top = draft.path().join("manifests");
    fs_err::create_dir(&top)?;
    for (place, planned) in selected {
        let at = top.join(file_name(&place.cluster)).join(&place.namespace);
        fs_err::create_dir_all(&at)?;
        let text = configmap::manifest(&planned.name, place, &planned.content());
        fs_err::write(at.join(format!("{}.yaml", planned.name)), text)?;
    }
    if !exists {
        fs_err::rename(&top, &directory)?; // rename(2) replaces an empty directory, and nothing else
        return Ok(());
    }
    let clusters: BTreeSet<String> = selected.iter().map(|(place, _)| file_name(&place.cluster)).collect();
    let names: Vec<&str> = clusters.iter().map(String::as_str).collect();
    fs_err::write(draft.path().join(MOVED), names.join("\n"))?;
    for name in names {
        fs_err::rename(top.join(name), directory.join(name))?;
    }
    Ok(())
}

/// Removes what a killed process left in the output directory: its temporary directory, and what it moved from there.
fn remove_abandoned(directory: &Path) {
    temporary::remove_abandoned(directory, DRAFT, |draft| {
        let moved = std::fs::read_to_string(draft.join(MOVED)).unwrap_or_default();
        for name in moved.lines().filter(|name| !name.is_empty()) {
            let _ = std::fs::remove_dir_all(directory.join(name)); // it may not have been moved yet
        }
    });
}

/// Refuses an output directory that is not empty, because old manifests in it would be applied together with the new
/// ones, and one in what the writer of a root keeps.
fn check_empty(directory: &Path) -> anyhow::Result<()> {
    let refused = |why, hint| {
        let (name, value) = ("--output".to_owned(), directory.display().to_string());
        Err(config::Error::Place { name, value, why, hint }.into())
    };
    if let Err(why) =
        std::path::absolute(directory).map_or(Ok(()), |path| store::check_nested(Path::new(""), &path))
    {
        return refused(why, "name a path outside of that root");
    }
    remove_abandoned(directory);
    let hint =
        "name a directory that does not exist yet, or empty it: old manifests in it would be applied, too";
    match std::fs::read_dir(directory).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => refused("it is not empty".to_owned(), hint),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(input::unread("--output", directory, error, hint).into()),
    }
}

/// Encodes the name of a kubeconfig's context, which may contain any character, as a directory name.
fn file_name(cluster: &str) -> String {
    let mut name = String::new();
    for (at, byte) in cluster.bytes().enumerate() {
        match byte {
            b'.' if at == 0 => name.push_str("%2e"),
            byte if byte.is_ascii_alphanumeric() || b"-_.".contains(&byte) => name.push(char::from(byte)),
            byte => name.push_str(&format!("%{byte:02x}")),
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_moved_is_no_reason_to_refuse_the_directory() {
        let output = tempfile::tempdir().unwrap();
        let draft = output.path().join(format!("{DRAFT}killed"));
        std::fs::create_dir_all(draft.join("manifests/b")).unwrap();
        std::fs::create_dir(output.path().join("a")).unwrap();
        std::fs::write(draft.join("treeswap.lock"), "").unwrap();
        assert!(check_empty(output.path()).is_err(), "nobody's entry without a record");

        std::fs::create_dir_all(draft.join("manifests/b")).unwrap();
        std::fs::write(draft.join("treeswap.lock"), "").unwrap();
        std::fs::write(draft.join(MOVED), "a\nb").unwrap();
        check_empty(output.path()).unwrap();
        assert_eq!(std::fs::read_dir(output.path()).unwrap().count(), 0);
    }
}
