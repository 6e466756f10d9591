//! What `render` and `apply` share: the rules, the tree they are applied to, and the way from both to a plan.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::builder::PossibleValuesParser;

use super::flags::Given;
use super::source;
use crate::config;
use crate::configmap::{
    self, BadLink, Collisions, Contents, Dialect, IllegalKeys, Links, Overlaps, Oversize, Plan, Policies,
    RuleSet, Tree,
};
use crate::mirror::{self, Objects};
use crate::revision::Revision;

/// Rules and a tree.
#[derive(Clone, Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("which").args(["rules", "rules_in_tree"]).required(true))]
pub(super) struct Input {
    /// A directory with the tree; `.git` in it is passed over
    #[arg(long, value_name = "DIR")]
    pub(super) tree: Option<PathBuf>,

    /// The tree is from this repository: a URL, host:path, or a local path
    #[arg(long, value_name = "URL")]
    pub(super) repo: Option<String>,

    /// Branch, tag, full ref name or full commit id of --repo
    #[arg(long = "ref", value_name = "REF", default_value = "HEAD")]
    asked: String,

    /// Keep what was fetched from --repo in this directory [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    mirror: Option<PathBuf>,

    #[command(flatten)]
    pub(super) rules: RuleArgs,

    #[command(flatten)]
    credentials: config::Credentials,
}

/// Rules, and how they are read.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct RuleArgs {
    /// Prow's plugins.yaml, or a file with the same config_updater section at its top
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,

    /// The rules are this file of the tree: each revision by its own rules
    #[arg(long, value_name = "PATH", conflicts_with = "rules")]
    rules_in_tree: Option<String>,

    /// What an empty namespace stands for: Prow's prowjob_namespace
    #[arg(long, value_name = "NAME", default_value = "default")]
    default_namespace: String,

    /// The repository's ORGANISATION/NAME, for rules that ask
    #[arg(long, value_name = "NAME")]
    repository: Option<String>,

    /// How patterns are read, unless the rules name a dialect
    #[arg(long, hide_short_help = true, value_name = "NAME", default_value = Dialect::NAMES[0], value_parser = PossibleValuesParser::new(Dialect::NAMES))]
    dialect: String,

    #[command(flatten, next_help_heading = "Policies")]
    policies: Policy,
}

/// Whether to go on.
#[derive(Clone, Debug, clap::Args)]
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

/// Where the tree is.
pub(super) enum Place<'a> {
    Directory(&'a Path),
    Repository(&'a str),
}

/// The mirror of a repository that is read, and the directory that goes with it.
pub(super) struct Fetched {
    pub(super) options: mirror::Options,
    /// Removed with this.
    pub(super) _temporary: tempfile::TempDir,
}

impl Input {
    /// Where the tree is, for the command of this name.
    pub(super) fn place(&self, command: &str) -> Result<Place<'_>, config::Error> {
        match (&self.tree, &self.repo) {
            (Some(_), Some(_)) => {
                Err(config::Error::Conflict { one: "--tree".into(), other: "--repo".into() })
            }
            (None, None) => {
                Err(config::Error::Needs { one: command.to_owned(), other: "--tree or --repo".into() })
            }
            (Some(directory), None) => Ok(Place::Directory(directory)),
            (None, Some(repo)) => Ok(Place::Repository(repo)),
        }
    }

    /// How to reach a repository and where to keep what is fetched.
    pub(super) fn fetched(&self, given: &Given, command: &str, repo: &str) -> anyhow::Result<Fetched> {
        let temporary = tempfile::Builder::new()
            .prefix(&format!("treeswap-{command}-"))
            .tempdir()
            .context("cannot make a temporary directory")?;
        let kept = self.mirror.as_deref();
        let mirror = kept.map_or_else(|| temporary.path().join("mirror"), Path::to_owned);
        let reading = config::Args::reading(repo, &self.asked, self.credentials.clone(), &mirror);
        let options = given.settings(&reading)?.mirror;
        Ok(Fetched { options, _temporary: temporary })
    }
}

impl RuleArgs {
    /// Whether there are any.
    pub(super) fn are_given(&self) -> bool {
        self.rules.is_some() || self.rules_in_tree.is_some()
    }

    /// The rules, if they are a file of their own, read and warned of.
    pub(super) fn read(&self) -> anyhow::Result<Option<RuleSet>> {
        let Some(path) = &self.rules else { return Ok(None) };
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| config::Error::Value {
            name: "--rules".into(),
            value: file.clone(),
            why: error.to_string(),
        })?;
        let rules = self.parse(&file, &text)?;
        for warning in &rules.warnings {
            say!("treeswap: warning: {warning}");
        }
        Ok(Some(rules))
    }

    fn parse(&self, file: &str, text: &str) -> anyhow::Result<RuleSet> {
        let setting = configmap::Setting {
            file,
            default_namespace: &self.default_namespace,
            dialect: self.dialect.parse().unwrap_or_default(),
            ignore_unknown: self.policies.unknown_fields == "ignore",
        };
        Ok(RuleSet::read(text, &setting, &|name| std::env::var(name).ok())?)
    }

    fn options(&self, stamp: Option<String>) -> configmap::Options {
        configmap::Options { repository: self.repository.clone(), stamp, policies: self.policies.policies() }
    }

    /// What else decides what a payload is, besides the rules and the tree.
    pub(super) fn decides(&self) -> String {
        format!("{:?} {:?} {:?} {}", self.policies, self.repository, self.dialect, self.default_namespace)
    }

    /// The plan of a directory. `rules` are those of [`RuleArgs::read`].
    pub(super) fn local(
        &self,
        rules: Option<RuleSet>,
        directory: &Path,
        stamp: Option<String>,
    ) -> anyhow::Result<(RuleSet, Plan)> {
        let rules = match (rules, &self.rules_in_tree) {
            (Some(rules), _) => rules,
            (None, path) => {
                let path = directory.join(path.as_deref().unwrap_or_default());
                self.parse(&path.display().to_string(), &fs_err::read_to_string(&path)?)?
            }
        };
        let (tree, mut files) = source::walk(directory, &rules.patterns)?;
        let plan = configmap::plan(&rules, &tree, &mut files, &self.options(stamp))?;
        Ok((rules, plan))
    }

    /// The plan of a revision.
    pub(super) fn remote(
        &self,
        rules: Option<RuleSet>,
        objects: &Objects,
        revision: Revision,
        stamp: Option<String>,
    ) -> anyhow::Result<(RuleSet, Plan)> {
        let (tree, ids) = source::tree_of(objects, revision)?;
        let blobs = objects.blobs()?;
        let mut contents = source::Blobs::new(ids, blobs.as_ref())?;
        let rules = match (rules, self.rules_in_tree.as_deref()) {
            (Some(rules), _) => rules,
            (None, path) => self.parse(path.unwrap_or_default(), &text_of(&tree, &mut contents, path)?)?,
        };
        let plan = configmap::plan(&rules, &tree, &mut contents, &self.options(stamp))?;
        Ok((rules, plan))
    }
}

/// The rules' text in the tree.
fn text_of(tree: &Tree, contents: &mut dyn Contents, path: Option<&str>) -> anyhow::Result<String> {
    let path = path.unwrap_or_default();
    let unreadable =
        |why: String| config::Error::Value { name: "--rules-in-tree".into(), value: path.to_owned(), why };
    let file = tree.resolve(path.as_bytes()).map_err(|why| match why {
        BadLink::Dangling => unreadable("the tree has no such file".to_owned()),
        why => unreadable(format!("in the tree it is {why}")),
    })?;
    let bytes = contents.read(file).map_err(|error| unreadable(error.to_string()))?;
    Ok(String::from_utf8(bytes).map_err(|_| unreadable("it is no text".to_owned()))?)
}
