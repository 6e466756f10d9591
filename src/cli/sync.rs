//! `treeswap sync`: publishes into a root, delivers ConfigMaps by rules, or both.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;

use super::Exit;
use super::apply::{ClusterArgs, Rights};
use super::flags::FlagOrigins;
use super::input::RuleArgs;
use super::temporary::TempDir;
use crate::configmap::TimeLimit;
use crate::{app, config, human, telemetry};

/// Options of `treeswap sync`.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)] // it would have the name of the group of `config::Args`
pub(super) struct Args {
    #[command(flatten)]
    pub(super) sync: config::Args,

    #[command(flatten, next_help_heading = "ConfigMaps")]
    rules: RuleArgs,

    #[command(flatten, next_help_heading = "Clusters")]
    clusters: ClusterArgs,

    #[command(flatten, next_help_heading = "What may be done")]
    rights: Rights,

    /// How often all targets are compared with the desired state and drift is repaired, varied by up to a fifth; 0 for
    /// never
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = config::period_or_zero, help_heading = "ConfigMaps", hide_short_help = true)]
    resync_period: Duration,
}

/// A period that does not end while a process runs, and is short enough to be added to any point in time.
const NEVER: Duration = Duration::from_secs(100 * 366 * 86_400);

/// The help headings of flags that are about ConfigMaps and have no effect without rules.
pub(super) const RULE_HEADINGS: [&str; 4] = ["ConfigMaps", "Policies", "Clusters", "What may be done"];

/// Whether a flag is about the content of a root and has no effect without one; `heading` is its help heading.
pub(super) fn is_of_root(flag: &str, heading: &str) -> bool {
    const OTHERS: [&str; 11] = [
        "path",
        "sparse-checkout-file",
        "submodules",
        "init-period",
        "max-failures",
        "init-max-failures",
        "error-file",
        "max-tree-entries",
        "max-tree-bytes",
        "max-file-bytes",
        "max-path-depth",
    ];
    let by_heading = matches!(heading, "Root" | "Retention" | "Hooks") && !matches!(flag, "root" | "mirror");
    by_heading || OTHERS.contains(&flag)
}

/// Runs `treeswap sync`.
pub(super) fn run(args: &Args, given: &FlagOrigins) -> anyhow::Result<ExitCode> {
    // A job that has started writes the termination log itself.
    let job = args.job(given).inspect_err(|error| {
        let path = Path::new(&args.sync.logging.termination_log);
        let line = human::one_line(error.as_ref());
        app::write_termination_log(Path::new(&args.sync.root.root), path, &line, &super::hints(error));
    })?;
    match job {
        Job::Publish(settings, rules) => {
            app::sync(settings, rules, &given.lines, &given.warnings)?;
            Ok(Exit::Done.into())
        }
        Job::Follow(settings, rules, _temporary) => {
            let report = app::follow(settings, &rules, &given.lines, &given.warnings)?;
            Ok(if report.is_none_or(|report| report.is_complete()) { Exit::Done } else { Exit::Some }.into())
        }
    }
}

/// What there is to do, with every file read that it names.
enum Job {
    /// Publish into a root, and deliver ConfigMaps if there are rules.
    Publish(config::Settings, Option<app::Rules>),
    /// Deliver ConfigMaps only. A temporary directory that contains the mirror exists as long as this does.
    Follow(config::Settings, app::Rules, Option<TempDir>),
}

/// What is kept equal to the ref.
#[derive(PartialEq, Eq)]
enum Mode {
    /// A root.
    Root,
    /// ConfigMaps, and the directory of `--mirror`, if it is given.
    ConfigMaps(Option<PathBuf>),
    /// A root, and ConfigMaps after each publication.
    Both,
}

impl Args {
    /// Validates everything that can be validated without network access, rules and kubeconfigs included, but needs no
    /// cluster. Refuses files that a run only warns about, as it would never write them.
    pub(super) fn check(&self, given: &FlagOrigins) -> anyhow::Result<config::Settings> {
        let settings = self.valid(given)?;
        settings.refuse_misplaced_files(&self.sync, &given.origins)?;
        if self.rules.are_given() {
            self.rules.planner(self.rights.extra_keys()?, true)?;
            self.clusters.check()?;
        }
        Ok(settings)
    }

    /// Validates the values of the flags only.
    pub(super) fn valid(&self, given: &FlagOrigins) -> Result<config::Settings, config::Error> {
        let settings = match self.mode(given)? {
            Mode::ConfigMaps(mirror) => {
                given.settings(&self.without_root(mirror.as_deref().unwrap_or(Path::new("."))))?
            }
            Mode::Root | Mode::Both => self.with_root(given)?,
        };
        if self.rules.are_given() {
            self.rights.options(&self.clusters)?;
            self.rights.extra_keys()?;
        }
        Ok(settings)
    }

    /// Reads what the flags name, and starts the log.
    fn job(&self, given: &FlagOrigins) -> anyhow::Result<Job> {
        let mode = self.mode(given)?;
        let has_both = mode == Mode::Both;
        let limit = TimeLimit { time: self.sync.pace.sync_timeout, set_by: Some("--sync-timeout") };
        let rules = || -> anyhow::Result<app::Rules> {
            Ok(app::Rules {
                options: self.rights.options(&self.clusters)?,
                planner: self.rules.planner(self.rights.extra_keys()?, has_both)?.within(limit),
                clusters: self.clusters.load()?,
                resync: if self.resync_period.is_zero() { NEVER } else { self.resync_period },
            })
        };
        let Mode::ConfigMaps(mirror) = mode else {
            let settings = self.with_root(given)?;
            telemetry::start(&settings.telemetry); // before the rules, whose warnings go to the log
            let rules = if has_both { Some(rules()?) } else { None };
            return Ok(Job::Publish(settings, rules));
        };
        // Without a root there is no place for the mirror.
        let (mirror, temporary) = match mirror {
            Some(mirror) => (mirror, None),
            None => {
                let made = TempDir::new("treeswap-sync-");
                let made = made.context("cannot make a temporary directory; --mirror names one")?;
                (made.path().join("mirror"), Some(made))
            }
        };
        let settings = given.settings(&self.without_root(&mirror))?;
        telemetry::start(&settings.telemetry);
        Ok(Job::Follow(settings, rules()?, temporary))
    }

    /// What the flags ask for. Refuses flags that have no effect in that mode.
    fn mode(&self, given: &FlagOrigins) -> Result<Mode, config::Error> {
        given.refuse_refinements()?;
        let given_path = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
        if self.sync.source.repo.is_empty() && self.sync.source.sources.is_empty() {
            let hint = match std::env::var_os("GIT_SYNC_REPO") {
                Some(_) => "$GIT_SYNC_REPO is git-sync v3's and has no effect: use $TREESWAP_REPO",
                None => "give it, or $TREESWAP_REPO; --sources, or $TREESWAP_SOURCES, is for several",
            };
            return Err(config::Error::Required { name: "--repo".into(), hint: hint.into() });
        }
        let rules = self.rules.are_given();
        let root = given_path(&self.sync.root.root);
        match (rules, root) {
            // A rule may name any file, so no blobs can be left out of a fetch.
            (true, _) if !self.sync.source.filter.is_empty() => {
                Err(config::Error::Conflict { one: "--filter".into(), other: "rules for ConfigMaps".into() })
            }
            (true, None) => {
                given.refuse_without("--root", is_of_root)?;
                Ok(Mode::ConfigMaps(given_path(&self.sync.root.mirror)))
            }
            (false, Some(_)) => {
                let of_rules = |_: &str, heading: &str| RULE_HEADINGS.contains(&heading);
                given.refuse_without("--rules or --rules-in-tree", of_rules)?;
                Ok(Mode::Root)
            }
            // One exit code cannot tell the outcome of both; `treeswap apply` delivers once.
            (true, Some(_)) if self.sync.pace.one_time => Err(config::Error::Conflict {
                one: "--one-time with --root".into(),
                other: "rules for ConfigMaps".into(),
            }),
            (true, Some(_)) => Ok(Mode::Both),
            (false, None) => {
                let one = "sync".into();
                let other = "--root, or --rules for ConfigMaps".into();
                Err(config::Error::Needs { one, other })
            }
        }
    }

    /// The settings of a run with a root. Rules and kubeconfigs are read at every start, so no commit may choose them.
    fn with_root(&self, given: &FlagOrigins) -> Result<config::Settings, config::Error> {
        let settings = given.settings(&self.sync)?;
        if self.rules.are_given() {
            let rules = self.rules.file().map(|file| (given.origins.name("rules"), file.to_owned()));
            let files: Vec<_> = rules.into_iter().chain(self.clusters.files(&given.origins)).collect();
            given.refuse_published(&self.sync, &files)?;
        }
        Ok(settings)
    }

    /// The arguments for a run without a root, with this directory for the mirror.
    fn without_root(&self, mirror: &Path) -> config::Args {
        let mut args = self.sync.clone();
        args.root.mirror = mirror.display().to_string();
        args.root.root = args.root.mirror.clone(); // the settings need a root; nothing is created in it
        args
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command, parsed};

    #[test]
    fn the_plan_takes_no_longer_than_an_attempt_may() {
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = "contexts: [{name: test, context: {cluster: test, user: test}}]";
        std::fs::write(dir.path().join("config"), kubeconfig).unwrap();
        let path = |flag: &str, name: &str| format!("--{flag}={}", dir.path().join(name).display());
        for place in ["root", "mirror"] {
            let [place, kubeconfig] = [path(place, place), path("kubeconfig", "config")];
            let mut words = vec!["treeswap", "sync", "--sync-timeout=20s", &place, &kubeconfig];
            words.extend(["--repo=https://git.example.com/x", "--owner=team", "--rules-in-tree=rules"]);
            words.extend(["--log-format=plain", "--log-level=off"]); // the log is that of all tests
            let (Command::Sync(args), given) = parsed(words) else { panic!("another command") };
            let (Job::Publish(_, Some(rules)) | Job::Follow(_, rules, _)) = args.job(&given).unwrap() else {
                panic!("no rules");
            };
            let limit = TimeLimit { time: Duration::from_secs(20), set_by: Some("--sync-timeout") };
            assert_eq!(rules.planner.matching_limit(), limit);
        }
    }
}
