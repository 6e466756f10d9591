//! `treeswap render`: the ConfigMaps that rules make of a tree, as manifests.
//!
//! Nothing is asked of a cluster. What cannot become a ConfigMap is named before the first byte is written.

mod source;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::builder::PossibleValuesParser;

use super::Exit;
use super::flags::Given;
use crate::config;
use crate::configmap::{
    self, Collisions, Dialect, IllegalKeys, Links, Overlaps, Oversize, Place, Plan, Planned, Policies,
    RuleSet,
};

/// Options of `treeswap render`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Prow's plugins.yaml, or a file with the same config_updater section at its top
    #[arg(long, value_name = "FILE", required = true)]
    rules: PathBuf,

    /// A directory with the tree; `.git` in it is passed over
    #[arg(long, value_name = "DIR")]
    tree: Option<PathBuf>,

    /// The tree is from this repository instead: https, http, ssh or git URL, host:path, or a local path
    #[arg(long, value_name = "URL")]
    repo: Option<String>,

    /// Branch, tag, full ref name or full commit id of --repo
    #[arg(long = "ref", value_name = "REF", default_value = "HEAD")]
    asked: String,

    /// Keep what was fetched from --repo in this directory [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    mirror: Option<PathBuf>,

    /// Write a file per ConfigMap, DIR/CLUSTER/NAMESPACE/NAME.yaml, instead of one stream
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Only what is for this cluster
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,

    /// What an empty namespace stands for: Prow's prowjob_namespace
    #[arg(long, value_name = "NAME", default_value = "default")]
    default_namespace: String,

    /// The repository's ORGANISATION/NAME, for rules that ask
    #[arg(long, value_name = "NAME")]
    repository: Option<String>,

    /// Stamp every ConfigMap with a key VERSION: this text, or the commit id of --repo
    #[arg(long, value_name = "TEXT", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    version_key: Option<String>,

    /// How patterns are read, unless the rules name a dialect
    #[arg(long, value_name = "NAME", default_value = Dialect::NAMES[0], value_parser = PossibleValuesParser::new(Dialect::NAMES))]
    dialect: String,

    #[command(flatten, next_help_heading = "Policies")]
    policies: Policy,

    #[command(flatten)]
    credentials: config::Credentials,
}

/// Whether to go on.
#[derive(Debug, clap::Args)]
struct Policy {
    /// A file that several rules claim goes to none, to the first, or to the one that says most of its path
    #[arg(long, value_name = "POLICY", default_value = "refuse", value_parser = PossibleValuesParser::new(["refuse", "first", "specific"]))]
    overlaps: String,

    /// Of several files with one key, none or the last in the order of paths
    #[arg(long, value_name = "POLICY", default_value = "refuse", value_parser = PossibleValuesParser::new(["refuse", "last"]))]
    collisions: String,

    /// A file whose name is no legal key
    #[arg(long, value_name = "POLICY", default_value = "refuse", value_parser = PossibleValuesParser::new(["refuse", "skip"]))]
    illegal_keys: String,

    /// A link to nothing, to a directory, or out of the tree
    #[arg(long, value_name = "POLICY", default_value = "refuse", value_parser = PossibleValuesParser::new(["refuse", "skip"]))]
    links: String,

    /// A ConfigMap over 1 MiB: split it over more of them, or leave it out
    #[arg(long, value_name = "POLICY", default_value = "refuse", value_parser = PossibleValuesParser::new(["refuse", "grow", "skip"]))]
    oversize: String,

    /// Fields of the rules that Prow does not know, or no longer
    #[arg(long, value_name = "POLICY", default_value = "refuse", value_parser = PossibleValuesParser::new(["refuse", "ignore"]))]
    unknown_fields: String,
}

impl Policy {
    fn policies(&self) -> Policies {
        Policies {
            overlaps: match self.overlaps.as_str() {
                "first" => Overlaps::First,
                "specific" => Overlaps::Specific,
                _ => Overlaps::Refuse,
            },
            collisions: match self.collisions.as_str() {
                "last" => Collisions::Last,
                _ => Collisions::Refuse,
            },
            illegal_keys: match self.illegal_keys.as_str() {
                "skip" => IllegalKeys::Skip,
                _ => IllegalKeys::Refuse,
            },
            links: match self.links.as_str() {
                "skip" => Links::Skip,
                _ => Links::Refuse,
            },
            oversize: match self.oversize.as_str() {
                "grow" => Oversize::Grow,
                "skip" => Oversize::Skip,
                _ => Oversize::Refuse,
            },
        }
    }
}

/// Renders.
pub(super) fn run(args: &Args, given: &Given) -> anyhow::Result<ExitCode> {
    if let Some(directory) = &args.output {
        vacant(directory)?;
    }
    let rules = read_rules(args)?;
    for warning in &rules.warnings {
        eprintln!("treeswap: warning: {warning}");
    }
    let plan = match (&args.tree, &args.repo) {
        (Some(_), Some(_)) => {
            return Err(config::Error::Conflict { one: "--tree".into(), other: "--repo".into() }.into());
        }
        (None, None) => {
            return Err(
                config::Error::Needs { one: "render".into(), other: "--tree or --repo".into() }.into()
            );
        }
        (Some(directory), None) => local(args, &rules, directory)?,
        (None, Some(repo)) => remote(args, given, &rules, repo)?,
    };
    let plan = plan.accepted()?;
    for finding in &plan.noted {
        eprintln!("treeswap: warning: {finding}");
    }
    write(args, &chosen(args, &plan)?)?;
    Ok(Exit::Done.into())
}

fn read_rules(args: &Args) -> anyhow::Result<RuleSet> {
    let file = args.rules.display().to_string();
    let text = std::fs::read_to_string(&args.rules).map_err(|error| config::Error::Value {
        name: "--rules".into(),
        value: file.clone(),
        why: error.to_string(),
    })?;
    let setting = configmap::Setting {
        file: &file,
        default_namespace: &args.default_namespace,
        dialect: args.dialect.parse().unwrap_or_default(),
        ignore_unknown: args.policies.unknown_fields == "ignore",
    };
    Ok(RuleSet::read(&text, &setting, &|name| std::env::var(name).ok())?)
}

fn options(args: &Args, revision: Option<String>) -> anyhow::Result<configmap::Options> {
    let stamp = match (&args.version_key, revision) {
        (None, _) => None,
        (Some(text), Some(revision)) if text.is_empty() => Some(revision),
        (Some(text), _) if !text.is_empty() => Some(text.clone()),
        _ => {
            let (one, other) = ("--version-key without a text".into(), "--repo".into());
            return Err(config::Error::Needs { one, other }.into());
        }
    };
    Ok(configmap::Options { repository: args.repository.clone(), stamp, policies: args.policies.policies() })
}

fn local(args: &Args, rules: &RuleSet, directory: &Path) -> anyhow::Result<Plan> {
    let options = options(args, None)?;
    let (tree, mut files) = source::walk(directory, &rules.patterns)?;
    Ok(configmap::plan(rules, &tree, &mut files, &options)?)
}

fn remote(args: &Args, given: &Given, rules: &RuleSet, repo: &str) -> anyhow::Result<Plan> {
    let temporary = tempfile::Builder::new()
        .prefix("treeswap-render-")
        .tempdir()
        .context("cannot make a temporary directory")?;
    let kept = args.mirror.as_deref();
    let mirror = kept.map_or_else(|| temporary.path().join("mirror"), Path::to_owned);
    let reading = config::Args::reading(repo, &args.asked, args.credentials.clone(), &mirror);
    let settings = given.settings(&reading)?;
    let (objects, revision) = source::fetch(settings.mirror)?;
    let options = options(args, Some(revision.to_string()))?;
    let (tree, ids) = source::tree_of(&objects, revision)?;
    let blobs = objects.blobs()?;
    let mut contents = source::Blobs::new(ids, blobs.as_ref())?;
    Ok(configmap::plan(rules, &tree, &mut contents, &options)?)
}

/// What is asked for, in the order of cluster, namespace and name.
fn chosen<'p>(args: &Args, plan: &'p Plan) -> anyhow::Result<Vec<(&'p Place, &'p Planned)>> {
    let fed = plan.configmaps.iter().filter(|planned| planned.fed);
    let mut all: Vec<_> = fed.flat_map(|p| p.places.iter().map(move |place| (place, p))).collect();
    all.sort_by(|(place_a, a), (place_b, b)| (place_a, &a.name).cmp(&(place_b, &b.name)));
    let clusters: BTreeSet<&str> = all.iter().map(|(place, _)| place.cluster.as_str()).collect();
    let names = || clusters.iter().copied().collect::<Vec<_>>().join(", ");
    if let Some(cluster) = &args.cluster {
        if !clusters.contains(cluster.as_str()) {
            let why = match clusters.len() {
                0 => "nothing is for any cluster".to_owned(),
                _ => format!("nothing is for it; there is something for {}", names()),
            };
            return Err(config::Error::Value { name: "--cluster".into(), value: cluster.clone(), why }.into());
        }
        all.retain(|(place, _)| place.cluster == *cluster);
    } else if args.output.is_none() && clusters.len() > 1 {
        let one = format!("one stream of what is for {} clusters ({})", clusters.len(), names());
        return Err(config::Error::Needs { one, other: "--cluster, or --output for files".into() }.into());
    }
    Ok(all)
}

fn write(args: &Args, chosen: &[(&Place, &Planned)]) -> anyhow::Result<()> {
    let Some(directory) = &args.output else {
        let mut out = std::io::BufWriter::new(std::io::stdout().lock());
        for (place, planned) in chosen {
            out.write_all(configmap::manifest(&planned.name, place, &planned.payload).as_bytes())
                .context("cannot write to stdout")?;
        }
        return out.flush().context("cannot write to stdout");
    };
    // Beside it and then into its place, so that nobody applies half of them.
    let directory = std::path::absolute(directory).context("the working directory is gone")?;
    let parent = directory.parent().unwrap_or(&directory);
    fs_err::create_dir_all(parent)?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    let draft = tempfile::Builder::new()
        .prefix(".treeswap-render-")
        .permissions(mode)
        .tempdir_in(parent)
        .with_context(|| format!("cannot make a directory in {}", parent.display()))?;
    for (place, planned) in chosen {
        let at = draft.path().join(file_name(&place.cluster)).join(&place.namespace);
        fs_err::create_dir_all(&at)?;
        let text = configmap::manifest(&planned.name, place, &planned.payload);
        fs_err::write(at.join(format!("{}.yaml", planned.name)), text)?;
    }
    fs_err::rename(draft.path(), &directory)?; // takes the place of an empty directory, and of nothing else
    let _ = draft.keep(); // it is no longer there to be removed
    Ok(())
}

/// Old manifests beside new ones would be applied, too.
fn vacant(directory: &Path) -> anyhow::Result<()> {
    let why = match std::fs::read_dir(directory).map(|mut entries| entries.next().is_none()) {
        Ok(true) => return Ok(()),
        Ok(false) => "it is not empty".to_owned(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => error.to_string(),
    };
    let value = directory.display().to_string();
    Err(config::Error::Value { name: "--output".into(), value, why }.into())
}

/// A context's name, which may hold anything, as the name of a directory.
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
