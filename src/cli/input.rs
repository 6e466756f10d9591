//! The flags that `render` and `apply` share: the rules, and the tree that they are applied to.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::flags::FlagOrigins;
use super::temporary::TempDir;
use crate::configmap::apply::ExtraKeys;
use crate::configmap::{Collisions, Dialect, IllegalKeys, Links, Overlaps, Oversize, Policies, RuleSet};
use crate::desired::{self, Planner, Rules};
use crate::mirror::{self, Objects, Selection};
use crate::payload::escaped;
use crate::retry::ErrorClass;
use crate::revision::{ObjectId, Revision};
use crate::sources::{SetOptions, SourceError, Upstream};
use crate::{app, config, detached_io, fsx, secret};

/// The largest file of `--rules`, in bytes; the parser accepts no more. The file may be in a published tree, so that the
/// author of a commit decides its size.
const RULES_BYTES_MAX: u64 = 1 << 20;

/// The help heading of the limits on fetching, which have no effect on a directory.
const LIMITS: &str = "Limits";

/// The flag for several repositories.
const SOURCES: &str = "--sources";

/// Rules and a tree.
#[derive(Clone, clap::Args)]
#[command(group = clap::ArgGroup::new("which").args(["rules", "rules_in_tree"]).required(true))]
pub(super) struct Input {
    /// Directory with the tree; a `.git` in it is ignored
    #[arg(long, value_name = "DIR")]
    pub(super) tree: Option<PathBuf>,

    /// Repository of the tree: a URL, host:path, or a local path
    #[arg(long, value_name = "URL")]
    pub(super) repo: Option<String>,

    /// File that lists several repositories to combine into one tree, as in `sync`
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    sources: Option<String>,

    /// Branch, tag, full ref name or full commit id of --repo
    #[arg(long = "ref", value_name = "REF", default_value = "HEAD")]
    ref_name: String,

    /// Keep what was fetched from --repo in this directory [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    mirror: Option<PathBuf>,

    #[command(flatten)]
    pub(super) rules: RuleArgs,

    #[command(flatten)]
    credentials: config::CredentialArgs,

    /// Hard limit on fetching, as in `sync`
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = config::duration, help_heading = LIMITS, hide_short_help = true)]
    sync_timeout: Duration,

    #[command(flatten)]
    limits: config::FetchLimitArgs,
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let repo = self.repo.as_deref().map(secret::redact); // it may contain a password
        f.debug_struct("Input")
            .field("tree", &self.tree)
            .field("repo", &repo)
            .field("sources", &self.sources)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

/// Rules, and how they are read.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct RuleArgs {
    /// Prow's plugins.yaml, or a file with the same config_updater section at its top
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,

    /// Path of the rules in the tree: each revision has its own
    #[arg(long, value_name = "PATH", conflicts_with = "rules", value_parser = path_in_tree)]
    rules_in_tree: Option<String>,

    /// Namespace for rules without one, as Prow's prowjob_namespace
    #[arg(long, value_name = "NAME", default_value = "default")]
    default_namespace: String,

    /// ORGANISATION/NAME of the repository, for rules that list repositories
    #[arg(long, value_name = "NAME", value_parser = repository_name)]
    repository: Option<String>,

    /// Glob dialect of patterns, unless the rules name one
    #[arg(long, hide_short_help = true, value_name = "NAME", default_value = Dialect::NAMES[0], value_parser = PossibleValuesParser::new(Dialect::NAMES))]
    dialect: String,

    #[command(flatten, next_help_heading = "Policies")]
    policies: Policy,
}

/// What to do with files that cannot be delivered as they are.
#[derive(Clone, Debug, clap::Args)]
struct Policy {
    /// A file that several rules match: refuse it, or give it to the first rule or to the most specific one
    #[arg(long, value_name = "POLICY", default_value = "refuse", value_parser = word::<Overlaps>(Overlaps::WORDS))]
    overlaps: Overlaps,

    /// Several files with the same key: refuse them, or use the last one by path
    #[arg(long, value_name = "POLICY", default_value = "refuse", value_parser = word::<Collisions>(Collisions::WORDS))]
    collisions: Collisions,

    /// A file whose name is not a valid key: refuse, or skip it
    #[arg(long, value_name = "POLICY", default_value = "refuse", value_parser = word::<IllegalKeys>(IllegalKeys::WORDS))]
    illegal_keys: IllegalKeys,

    /// A symbolic link to nothing, a directory or out of the tree: refuse, or skip it
    #[arg(long, value_name = "POLICY", default_value = "refuse", value_parser = word::<Links>(Links::WORDS))]
    links: Links,

    /// A ConfigMap over 1 MiB: refuse it, split it (grow), or skip it
    #[arg(long, value_name = "POLICY", default_value = "refuse", value_parser = word::<Oversize>(Oversize::WORDS))]
    oversize: Oversize,

    /// Fields of the rules that Prow does not have: refuse, or ignore them
    #[arg(long, value_name = "POLICY", default_value = "refuse", value_parser = PossibleValuesParser::new(["refuse", "ignore"]))]
    unknown_fields: String,
}

/// Parses the path of `--rules-in-tree`. One that is not written from the top of the tree, or that leaves it, is a
/// mistake in the command line, whatever a revision contains.
fn path_in_tree(text: &str) -> Result<String, String> {
    let text = text.strip_prefix("./").unwrap_or(text);
    if text.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(
            "write a path below the top of the tree, as in `ci/plugins.yaml`: no `/` in front, no `..`"
                .to_owned(),
        );
    }
    Ok(text.to_owned())
}

/// Parses the value of `--repository`. Any other text is in no rule's list: it would be kept out of all rules with
/// `allowed_repos`, and out of none with `denied_repos`.
fn repository_name(text: &str) -> Result<String, String> {
    let is_name = |part: &str| {
        !part.is_empty() && !part.contains(|c: char| c.is_whitespace() || matches!(c, ':' | '@' | '/'))
    };
    match text.split_once('/') {
        Some((organisation, name)) if is_name(organisation) && is_name(name) => Ok(text.to_owned()),
        _ => Err("write ORGANISATION/NAME, as in acme/config".to_owned()),
    }
}

/// The parser of a policy's value.
fn word<T>(words: &'static [&'static str]) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err = String> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(words).try_map(|word| word.parse())
}

/// Where the tree is.
pub(super) enum TreeLocation<'a> {
    /// `--tree`.
    Directory(&'a Path),
    /// One repository or several: the flag that names it, `--repo` or `--sources`.
    Remote(&'static str),
}

/// How the repository or the sources are fetched, and the temporary directory for their mirrors.
pub(super) struct FetchOptions {
    pub(super) mirror: mirror::Options,
    pub(super) sources: Option<SetOptions>,
    /// Removed when this is dropped.
    pub(super) _temporary: TempDir,
}

impl Input {
    /// Where the tree is; exactly one of the flags for it must be given. `command` is the command's name, for messages.
    pub(super) fn tree_location(
        &self,
        command: &str,
        given: &FlagOrigins,
    ) -> Result<TreeLocation<'_>, config::Error> {
        let named = [
            ("--tree", self.tree.is_some()),
            ("--repo", self.repo.is_some()),
            (SOURCES, self.sources.is_some()),
        ];
        let named: Vec<&'static str> =
            named.into_iter().filter(|(_, given)| *given).map(|(flag, _)| flag).collect();
        match (named.as_slice(), &self.tree) {
            ([], _) => Err(config::Error::Needs {
                one: command.to_owned(),
                other: "--tree, --repo or --sources".into(),
            }),
            ([one, other, ..], _) => {
                Err(config::Error::Conflict { one: (*one).to_owned(), other: (*other).to_owned() })
            }
            ([_], Some(directory)) => {
                let of_repo = |flag: &str, heading: &str| {
                    matches!(flag, "ref" | "mirror") || matches!(heading, LIMITS | "Credentials")
                };
                given.refuse_without("--repo", of_repo)?;
                if let Err(error) =
                    detached_io::wait_for_io(directory, |path| std::fs::read_dir(path).map(drop))
                {
                    let hint = "name a directory that holds a checked-out tree; --repo reads a repository";
                    return Err(unread("--tree", directory, error, hint));
                }
                Ok(TreeLocation::Directory(directory))
            }
            ([flag], None) => Ok(TreeLocation::Remote(flag)),
        }
    }

    /// The settings with which `sync` would fetch the repository or the sources.
    pub(super) fn settings(
        &self,
        given: &FlagOrigins,
        mirror: &Path,
    ) -> Result<config::Settings, config::Error> {
        given.refuse_refinements()?;
        let repo = self.repo.as_deref().unwrap_or_default();
        let mut args = config::Args::for_fetching(repo, &self.ref_name, self.credentials.clone(), mirror);
        args.source.sources = self.sources.clone().unwrap_or_default();
        args.root.root = args.root.mirror.clone(); // the settings need a root; nothing is created in it
        args.limits.fetch = self.limits.clone();
        args.pace.sync_timeout = self.sync_timeout;
        args.pace.one_time = self.sources.is_some(); // waits for slow sources instead of leaving them for later
        given.settings(&args)
    }

    /// How to fetch the repository or the sources, into `--mirror` or a temporary directory.
    pub(super) fn fetch_options(&self, given: &FlagOrigins, command: &str) -> anyhow::Result<FetchOptions> {
        let temporary = TempDir::new(&format!("treeswap-{command}-"));
        let temporary = temporary.context("cannot make a temporary directory")?;
        let kept = self.mirror.as_deref();
        let mirror = kept.map_or_else(|| temporary.path().join("mirror"), Path::to_owned);
        let settings = self.settings(given, &mirror)?;
        settings.mirror.sandbox.check()?;
        if let Some(sources) = &settings.sources {
            config::listed(sources)?; // an invalid file is reported before any remote is asked
        }
        settings.warnings.iter().for_each(super::warn);
        Ok(FetchOptions { mirror: settings.mirror, sources: settings.sources, _temporary: temporary })
    }
}

impl RuleArgs {
    /// Whether rules are given.
    pub(super) fn are_given(&self) -> bool {
        self.rules.is_some() || self.rules_in_tree.is_some()
    }

    /// The file of `--rules`.
    pub(super) fn file(&self) -> Option<&Path> {
        self.rules.as_deref()
    }

    /// The planner for the rules. Reads them if they are in a file of their own; rules in the tree are read with each
    /// revision. `has_root`: plans share the container's memory with a root.
    pub(super) fn planner(&self, shape: ExtraKeys, has_root: bool) -> anyhow::Result<Planner> {
        let options = self.options(shape, has_root);
        let rules = match (&self.rules, &self.rules_in_tree) {
            (Some(path), _) => {
                let rules = options.read(&path.display().to_string(), &read_rules(path)?)?;
                self.check_repository(&rules)?;
                Rules::Given(rules.into())
            }
            (None, path) => Rules::InTree(path.clone().unwrap_or_default()),
        };
        Ok(Planner::new(options, rules))
    }

    /// Refuses the rules of `--rules` if they need `--repository` and it is not given. With rules in the tree, which
    /// are the author's, the plan is refused.
    fn check_repository(&self, rules: &RuleSet) -> Result<(), config::Error> {
        let restricted = rules.rules.iter().find(|rule| rule.is_restricted());
        match restricted.filter(|_| self.repository.is_none()) {
            Some(rule) => Err(config::Error::Needs {
                one: format!(
                    "the rule {}, which has allowed_repos or denied_repos,",
                    escaped(rule.pattern.as_bytes())
                ),
                other: "--repository=ORGANISATION/NAME".to_owned(),
            }),
            None => Ok(()),
        }
    }

    fn options(&self, shape: ExtraKeys, has_root: bool) -> desired::Options {
        let Policy { overlaps, collisions, illegal_keys, links, oversize, .. } = self.policies;
        desired::Options {
            default_namespace: self.default_namespace.clone(),
            dialect: self.dialect.parse().unwrap_or_default(),
            ignore_unknown: self.policies.unknown_fields == "ignore",
            repository: self.repository.clone(),
            policies: Policies { overlaps, collisions, illegal_keys, links, oversize },
            memory_limit: app::plan_memory_limit(has_root),
            shape,
            warn: |warning| super::warn(warning),
        }
    }
}

/// Parses the commit id of `--revision`, which the flag `one` needs.
pub(super) fn revision(text: Option<&str>, one: &str) -> Result<Revision, config::Error> {
    let Some(text) = text else {
        let one = one.to_owned();
        let other = "--revision, the commit id that it is of".into();
        return Err(config::Error::Needs { one, other });
    };
    let id = ObjectId::from_hex(text).ok_or_else(|| config::Error::Value {
        name: "--revision".into(),
        value: text.to_owned(),
        why: "a full commit id has 40 hexadecimal digits".into(),
    })?;
    Ok(Revision(id))
}

/// Reads the file of `--rules`.
fn read_rules(rules: &Path) -> Result<String, config::Error> {
    let hint = "name a file of rules; --rules-in-tree names one in the tree";
    let read = |path: &Path| fsx::read_text(std::fs::File::open(path)?, RULES_BYTES_MAX);
    detached_io::wait_for_io(rules, read).map_err(|error| unread("--rules", rules, error, hint))
}

/// The error for a file or directory that the flag `name` names and that cannot be read. `hint` is for a wrong name;
/// other causes may pass.
pub(super) fn unread(name: &str, path: &Path, error: io::Error, hint: &'static str) -> config::Error {
    config::Error::unread(name, path, error, |why| {
        let (name, value) = (name.to_owned(), path.display().to_string());
        config::Error::Place { name, value, why, hint }
    })
}

/// Fetches the revision that the ref, or the refs of all sources, name.
pub(super) fn fetch(options: &FetchOptions) -> anyhow::Result<(Objects, Revision)> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let mut upstream = Upstream::open(options.mirror.clone(), options.sources.clone())?;
    let revision = runtime.block_on(async {
        let tip = upstream.resolve(None, &[]).await?;
        upstream.fetch(&tip, &[], &Selection::default()).await
    });
    let revision = revision.map_err(|error| SourceError::of_set(&error))?;
    // Manifests that lack the files of one source would delete its ConfigMaps when they are applied.
    if let Some(what) = upstream.placement().hold_reason() {
        let hints = vec!["manifests are made of all sources, optional ones included".to_owned()];
        return Err(SourceError { what, hints, class: ErrorClass::Transient }.into());
    }
    Ok((upstream.objects(), revision))
}
