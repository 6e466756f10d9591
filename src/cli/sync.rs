//! `treeswap sync`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;

use super::Exit;
use super::apply::{ClusterArgs, Rights};
use super::flags::FlagOrigins;
use super::input::RuleArgs;
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

    /// How often every target is compared again although nothing changed, and drift repaired; varied by up to a fifth
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = config::duration, help_heading = "ConfigMaps", hide_short_help = true)]
    resync_period: Duration,
}

/// Headings of the flags that are about ConfigMaps, and so have no effect without rules.
pub(super) const OF_RULES: [&str; 4] = ["ConfigMaps", "Policies", "Clusters", "What may be done"];

/// Whether a flag, of this heading, is about what is published in a root, and so has no effect without one.
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
    let heading = matches!(heading, "Root" | "Retention" | "Hooks") && !matches!(flag, "root" | "mirror");
    heading || OTHERS.contains(&flag)
}

/// Runs it.
pub(super) fn run(args: &Args, given: &FlagOrigins) -> anyhow::Result<ExitCode> {
    let told = |error: &config::Error| {
        let path = Path::new(&args.sync.logging.termination_log);
        app::write_termination_log(
            Path::new(&args.sync.root.root),
            path,
            &human::one_line(error),
            &error.hints(),
        );
    };
    let rules = || -> anyhow::Result<app::Rules> {
        Ok(app::Rules {
            options: args.rights.options(&args.clusters).inspect_err(told)?,
            planner: args.rules.planner(args.rights.shape()?)?,
            clusters: args.clusters.load()?,
            resync: args.resync_period,
        })
    };
    let serve = args.serve(given).inspect_err(told)?;
    let Serve::ConfigMaps(mirror) = serve else {
        let settings = given.settings(&args.sync).inspect_err(told)?;
        telemetry::start(&settings.telemetry); // rules are warned of
        let rules = if serve == Serve::Both { Some(rules()?) } else { None };
        app::sync(settings, rules, &given.lines, &given.warnings)?;
        return Ok(Exit::Done.into());
    };
    // Nothing is published: what is fetched is all that is kept.
    let temporary = tempfile::Builder::new().prefix("treeswap-sync-").tempdir();
    let temporary = temporary.context("cannot make a temporary directory; --mirror names one")?;
    let mirror = mirror.unwrap_or_else(|| temporary.path().join("mirror"));
    let settings = given.settings(&args.reading(&mirror)).inspect_err(told)?;
    telemetry::start(&settings.telemetry);
    let report = app::follow(settings, &rules()?, &given.lines, &given.warnings)?;
    Ok(if report.is_none_or(|report| report.is_success()) { Exit::Done } else { Exit::Some }.into())
}

/// What is kept equal to the ref.
#[derive(PartialEq, Eq)]
enum Serve {
    /// A root.
    Root,
    /// ConfigMaps, and where to keep what is fetched for them, if that is said.
    ConfigMaps(Option<PathBuf>),
    /// A root, and after it ConfigMaps.
    Both,
}

impl Args {
    /// Checks what can be checked without a network.
    pub(super) fn check(&self, given: &FlagOrigins) -> anyhow::Result<config::Settings> {
        let settings = self.valid(given)?;
        if self.rules.are_given() {
            self.rules.planner(self.rights.shape()?)?;
            self.clusters.load()?;
        }
        Ok(settings)
    }

    /// Checks the values by themselves.
    pub(super) fn valid(&self, given: &FlagOrigins) -> Result<config::Settings, config::Error> {
        let settings = match self.serve(given)? {
            Serve::ConfigMaps(_) => given.settings(&self.reading(Path::new(".")))?,
            Serve::Root | Serve::Both => given.settings(&self.sync)?,
        };
        if self.rules.are_given() {
            self.rights.options(&self.clusters)?;
            self.rights.shape()?;
        }
        Ok(settings)
    }

    fn serve(&self, given: &FlagOrigins) -> Result<Serve, config::Error> {
        let named = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
        if self.sync.source.repo.is_empty() && self.sync.source.sources.is_empty() {
            return Err(config::Error::Required {
                name: "--repo".into(),
                hint: "give it, or $TREESWAP_REPO; --sources, or $TREESWAP_SOURCES, is for several".into(),
            });
        }
        let rules = self.rules.are_given();
        let root = named(&self.sync.root.root);
        match (rules, root) {
            // A rule may name any file, and what it reads has to be there.
            (true, _) if !self.sync.source.filter.is_empty() => {
                Err(config::Error::Conflict { one: "--filter".into(), other: "rules for ConfigMaps".into() })
            }
            (true, None) => {
                given.without("--root", is_of_root)?;
                Ok(Serve::ConfigMaps(named(&self.sync.root.mirror)))
            }
            (false, Some(_)) => {
                let of_rules = |_: &str, heading: &str| OF_RULES.contains(&heading);
                given.without("--rules or --rules-in-tree", of_rules)?;
                Ok(Serve::Root)
            }
            // Two ends, two exit codes: `treeswap apply` is for the other one.
            (true, Some(_)) if self.sync.pace.one_time => Err(config::Error::Conflict {
                one: "--one-time with --root".into(),
                other: "rules for ConfigMaps".into(),
            }),
            (true, Some(_)) => Ok(Serve::Both),
            (false, None) => {
                let one = "sync".into();
                let other = "--root, or --rules for ConfigMaps".into();
                Err(config::Error::Needs { one, other })
            }
        }
    }

    /// The same without a root.
    fn reading(&self, mirror: &Path) -> config::Args {
        let mut args = self.sync.clone();
        args.root.mirror = mirror.display().to_string();
        args.root.root = args.root.mirror.clone(); // it has to have one, and nothing is made there
        args
    }
}
