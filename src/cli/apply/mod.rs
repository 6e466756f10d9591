//! `treeswap apply`: computes the desired state of all rules from one revision, applies it to all clusters once, and
//! exits.

mod clusters;
mod show;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::ValueEnum;
use clap::builder::PossibleValuesParser;
use tokio_util::sync::CancellationToken;

use super::flags::FlagOrigins;
use super::input::{self, Input, TreeLocation};
use super::{Exit, warn};
use crate::cluster::Clusters;
use crate::configmap::TimeLimit;
use crate::configmap::apply::{Adopt, Desired, ExtraKeys, Owner, Placement, PruneLimit, VersionKey};
use crate::deliver::{self, OnRewind, Report};
use crate::desired::{self, Directory, Planner};
use crate::revision::Revision;
use crate::sources::{AttemptLimit, Remote, SetOptions, SourceError, TreeInput, Upstream};
use crate::{config, shutdown, telemetry};

pub(super) use clusters::ClusterArgs;

/// Options of `treeswap apply`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    group = clap::ArgGroup::new("whose").args(["owner"]).required(true),
    after_help = super::exit::exit_codes()
)]
pub(super) struct Args {
    #[command(flatten, next_help_heading = "Source")]
    input: Input,

    #[command(flatten, next_help_heading = "Clusters")]
    clusters: ClusterArgs,

    #[command(flatten, next_help_heading = "What may be done")]
    rights: Rights,

    #[command(flatten, next_help_heading = "This run")]
    once: Once,

    #[command(flatten, next_help_heading = "Output")]
    output: Output,
}

/// What may be done.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Rights {
    /// Name of this installation, recorded on its ConfigMaps
    ///
    /// It must never change. Installations with different names never change each other's ConfigMaps. Use a different
    /// name for each repository (or file of --sources) with its rules.
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,

    /// Adopt ConfigMaps: prow (created by Prow's tools), all (without an owner)
    #[arg(long, value_name = "WHOSE", default_value = "nothing", value_parser = PossibleValuesParser::new(["nothing", "prow", "all"]))]
    adopt: String,

    /// Delete ConfigMaps of this owner that no rule names or no file matches any more
    ///
    /// Without it, those that no file matches are emptied, and those that no rule names are left unchanged.
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = config::boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    prune: bool,

    /// Most of our ConfigMaps in a cluster that a run may delete or empty
    ///
    /// A run that would delete or empty more changes nothing there, so that a wrong ref or directory does not delete
    /// everything. If it is more only together with the namespaces that no rule names, nothing is deleted in those, and
    /// the rest goes on. 100 turns the limit off. It also lets --prune delete what another rule set with the same owner
    /// wrote in namespaces that no rule here names.
    #[arg(long, value_name = "PERCENT", default_value = "50", value_parser = config::percent)]
    max_prune: u8,

    /// What to do if the ref was rewound or force-pushed since the applied revision: apply it, or hold
    ///
    /// `hold` writes nothing unless the new commit is known to be a descendant of the recorded one. A ref that was
    /// rewound is polled again for 30 seconds first, because a replica of the git server may lag.
    #[arg(long, hide_short_help = true, value_name = "WHAT", default_value = "apply", value_parser = PossibleValuesParser::new(["apply", "hold"]))]
    on_rewind: String,

    /// Delete and recreate an immutable ConfigMap when it has to change
    #[arg(long, hide_short_help = true, value_name = "BOOL", default_value = "false", value_parser = config::boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    recreate_immutable: bool,

    /// Add a key VERSION with a commit id: changed, every, or off
    ///
    /// `changed`: the commit that last changed the ConfigMap. `every`: the current commit, as in Prow, which writes
    /// every ConfigMap at every commit.
    #[arg(long, value_name = "WHEN", default_value = "off", value_parser = PossibleValuesParser::new(["off", "changed", "every"]))]
    version_key: String,

    /// Add a key with the digest of the data, for `treeswap watch --set`
    ///
    /// `{name}` is replaced by the ConfigMap's name, so that several ConfigMaps can share one projected volume.
    /// `treeswap watch --set` expects .{name}.stamp.
    #[arg(long, value_name = "KEY")]
    stamp_key: Option<String>,
}

/// What is of one run only.
#[derive(Clone, Debug, clap::Args)]
struct Once {
    /// Time limit of the whole run
    ///
    /// Targets that are not done by then are skipped and reported.
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = config::timeout)]
    timeout: Duration,

    /// Commit id of --tree
    #[arg(long, value_name = "ID")]
    revision: Option<String>,

    /// Apply --tree even where another revision is recorded
    #[arg(long)]
    force: bool,

    /// Write nothing; print the changes that would be made
    ///
    /// Each write is sent as a server-side dry run, as far as the permissions allow it.
    #[arg(long)]
    dry_run: bool,
}

/// How to report.
#[derive(Clone, Debug, clap::Args)]
struct Output {
    /// Format of the results [default: a table on a terminal, else lines]
    ///
    /// A table also lists unchanged ConfigMaps, lines do not.
    #[arg(short = 'o', long = "output", value_name = "FORMAT")]
    format: Option<Format>,

    /// Format of the log on stderr
    ///
    /// With `json`, the results are written to the log as well, and printed on stdout only with --output.
    #[arg(long, value_name = "FORMAT", default_value = "plain", hide_short_help = true)]
    log_format: LogFormat,
}

/// A form of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum LogFormat {
    /// For people.
    Plain,
    /// A line of JSON each, as `sync` writes them.
    Json,
}

/// A form of the results.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Format {
    /// For people.
    Table,
    /// For logs.
    Lines,
    /// For programs.
    Json,
}

/// Runs `treeswap apply`.
pub(super) fn run(args: &Args, given: &FlagOrigins) -> anyhow::Result<ExitCode> {
    let began = Instant::now();
    if args.output.is_log() {
        telemetry::start(&telemetry::Options::new(telemetry::Format::Json, "info")?);
    }
    given.warnings.iter().for_each(warn);
    let extra_keys = args.rights.extra_keys()?;
    let options = args.options(given)?;
    let planner = args.planner(extra_keys)?;
    let clusters = args.clusters.load()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2) // so that comparing the data of one cluster does not delay another cluster
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let cancel = shutdown::listen(Exit::Some as u8).context("cannot listen for signals")?;
    let limit = args.once.timeout;
    let time_left = || limit.saturating_sub(began.elapsed());
    let (ended, timed_out) = match args.input.tree_location("apply", given)? {
        TreeLocation::Directory(directory) => {
            let revision = input::revision(args.once.revision.as_deref(), "--tree")?;
            let delivery =
                deliver_tree(directory.to_owned(), revision, planner, &clusters, &options, &cancel);
            runtime.block_on(with_timeout(time_left(), &cancel, delivery))
        }
        TreeLocation::Remote(flag) => {
            if args.once.revision.is_some() {
                let one = "--revision".into();
                return Err(config::Error::Conflict { one, other: flag.into() }.into());
            }
            given.refuse_without("--tree", |flag, _| flag == "force")?;
            let fetch = args.input.fetch_options(given, "apply")?;
            let sources = fetch.sources.clone().map(|sources| {
                // A source that hangs leaves time for the others.
                let quarter = AttemptLimit { time: limit / 4, part: "a quarter of ", flag: "--timeout" };
                SetOptions { rules: true, root: false, limit: sources.limit.shorter(quarter), ..sources }
            });
            let upstream = Upstream::open(fetch.mirror.clone(), sources)?;
            let options = options.with_remote(upstream.repository().as_deref());
            let input = Remote::new(upstream, planner).context("cannot start a thread")?;
            let delivery = deliver::deliver(Arc::new(input), &clusters, &options, &cancel);
            let (ended, timed_out) = runtime.block_on(with_timeout(time_left(), &cancel, delivery));
            (ended.map_err(anyhow::Error::from), timed_out)
        }
    };
    runtime.shutdown_background();
    let report = if timed_out { report_timeout(ended, limit)? } else { ended? };
    args.output.show(&report, args.once.dry_run)?;
    Ok(exit(&report, args.once.dry_run).into())
}

/// Computes the desired state of a directory under the revision that the command line names, and delivers it.
async fn deliver_tree(
    directory: PathBuf,
    revision: Revision,
    planner: Planner,
    clusters: &Clusters,
    options: &deliver::Options,
    cancel: &CancellationToken,
) -> anyhow::Result<Report> {
    let plan = move || {
        let directory = fs_err::canonicalize(directory)?;
        let planned = planner.desired(&Directory(&directory), revision, &Placement::default(), None);
        planned.map(|(desired, _)| desired)
    };
    let input = TreeInput::new(planned(revision, plan, cancel).await?);
    let delivered = deliver::deliver(Arc::new(input), clusters, options, cancel).await;
    delivered.map_err(anyhow::Error::from)
}

/// Computes the desired state of a directory on a thread of its own, and gives that up when `cancel` comes: the thread
/// then ends with the process.
async fn planned(
    revision: Revision,
    plan: impl FnOnce() -> Result<Desired, desired::Error> + Send + 'static,
    cancel: &CancellationToken,
) -> anyhow::Result<Desired> {
    tokio::select! {
        biased;
        planned = tokio::task::spawn_blocking(plan) => match planned {
            Ok(planned) => planned.map_err(anyhow::Error::from),
            Err(error) => std::panic::resume_unwind(error.into_panic()), // it is never aborted: it is a panic
        },
        () = cancel.cancelled() => Err(SourceError::unplanned(revision).into()),
    }
}

fn exit(report: &Report, dry_run: bool) -> Exit {
    if !report.is_complete() {
        Exit::Some
    } else if dry_run && report.differs() {
        Exit::Differs
    } else {
        Exit::Done
    }
}

/// Awaits `act`, and cancels it after `limit`; it is expected to end soon after that. Returns its result, and whether
/// the limit was reached.
async fn with_timeout<T>(
    limit: Duration,
    cancel: &CancellationToken,
    act: impl Future<Output = T>,
) -> (T, bool) {
    let mut act = std::pin::pin!(act);
    tokio::select! {
        done = &mut act => return (done, false),
        () = tokio::time::sleep(limit) => cancel.cancel(),
    }
    (act.await, true)
}

/// Adds the timeout to the result of a run that it ended: to its failures, or as the context of its error.
fn report_timeout(ended: anyhow::Result<Report>, limit: Duration) -> anyhow::Result<Report> {
    let why = format!("--timeout={} was over before everything was done", config::print_duration(limit));
    let mut report = ended.with_context(|| why.clone())?;
    if !report.is_success() {
        report.failures.push(why);
    }
    Ok(report)
}

impl Args {
    /// Validates the values as a run does.
    #[cfg(test)]
    pub(super) fn valid(&self, given: &FlagOrigins) -> Result<(), config::Error> {
        self.rights.extra_keys()?;
        self.options(given)?;
        self.input.settings(given, std::path::Path::new("/mirror")).map(drop)
    }

    /// The planner of the run, which takes only a part of the run's time.
    fn planner(&self, extra_keys: ExtraKeys) -> anyhow::Result<Planner> {
        Ok(self.input.rules.planner(extra_keys, false)?.within(self.once.matching_limit()))
    }

    fn options(&self, given: &FlagOrigins) -> Result<deliver::Options, config::Error> {
        let Once { force, dry_run, timeout, .. } = self.once;
        let options = self.rights.options(&self.clusters)?;
        // Waiting for Leases may take a quarter of the time, so that most of it is left for the work.
        let leases = options.leases.clone().map(|leases| leases.with_max_wait(timeout / 4));
        let settles_rewinds = given.is_given("on-rewind");
        Ok(deliver::Options { force, dry_run, settles_rewinds, leases, ..options })
    }
}

impl Output {
    /// Whether the results are written to the log.
    fn is_log(&self) -> bool {
        self.log_format == LogFormat::Json
    }

    /// Writes the results to the log or, as notes, on stderr; and on stdout.
    fn show(&self, report: &Report, dry_run: bool) -> anyhow::Result<()> {
        if self.is_log() {
            show::log(report, dry_run);
        } else {
            show::notes(report);
        }
        if !self.is_log() || self.format.is_some() {
            show::print(report, self.format, dry_run)?;
        }
        Ok(())
    }
}

impl Rights {
    /// The options of a delivery.
    pub(super) fn options(&self, clusters: &ClusterArgs) -> Result<deliver::Options, config::Error> {
        let Some(name) = &self.owner else {
            let one = "what is applied to clusters".into();
            let other = "--owner".into();
            return Err(config::Error::Needs { one, other });
        };
        let owner = Owner::new(name).map_err(|why| config::Error::Value {
            name: "--owner".into(),
            value: name.clone(),
            why: why.to_string(),
        })?;
        Ok(deliver::Options {
            adopt: match self.adopt.as_str() {
                "prow" => Adopt::Prow,
                "all" => Adopt::All,
                _ => Adopt::Nothing,
            },
            prune: self.prune,
            prune_limit: PruneLimit { percent: self.max_prune },
            recreate: self.recreate_immutable,
            on_rewind: if self.on_rewind == "hold" { OnRewind::Hold } else { OnRewind::Apply },
            concurrency: clusters.concurrency.into(),
            leases: clusters.leases()?,
            ..deliver::Options::new(owner)
        })
    }

    /// The keys that each ConfigMap has besides its data.
    pub(super) fn extra_keys(&self) -> Result<ExtraKeys, config::Error> {
        let extra_keys = ExtraKeys {
            version_key: match self.version_key.as_str() {
                "changed" => VersionKey::Changed,
                "every" => VersionKey::Every,
                _ => VersionKey::Off,
            },
            stamp_key: self.stamp_key.clone(),
        };
        extra_keys.check().map_err(|why| config::Error::Value {
            name: "--stamp-key".into(),
            value: self.stamp_key.clone().unwrap_or_default(),
            why,
        })?;
        Ok(extra_keys)
    }
}

impl Once {
    /// The limit on matching the tree against the rules. It is shorter than that of the run, so that the plan ends with
    /// an error of its own, which says what took so long.
    fn matching_limit(&self) -> TimeLimit {
        TimeLimit { time: self.timeout / 10 * 9, set_by: Some("nine tenths of --timeout") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command, Help, parsed, tree};
    use crate::human::assert_message_style;
    use crate::mirror;
    use crate::mirror::wire::{Budget, Timeouts, Wait};
    use crate::revision::ObjectId;

    #[test]
    fn the_plan_takes_at_most_nine_tenths_of_the_time_of_a_short_run() {
        let limit = |timeout: &str| {
            let words = ["treeswap", "apply", "--owner=team", "--rules-in-tree=rules", "--tree=.", timeout];
            let (Command::Apply(args), _) = parsed(words) else { panic!("another command") };
            args.planner(ExtraKeys::default()).unwrap().matching_limit()
        };
        let short = TimeLimit { time: Duration::from_secs(27), set_by: Some("nine tenths of --timeout") };
        assert_eq!(limit("--timeout=30s"), short);
        assert_eq!(limit("--timeout=15m").set_by, None, "the plan's own limit is shorter");
    }

    #[test]
    fn the_limits_on_fetching_are_those_of_the_command_line() {
        let limits = |more: &[&str]| {
            let words = ["treeswap", "apply", "--owner=team", "--rules-in-tree=rules", "--repo=https://h/x"];
            let words = words.iter().chain(more).copied();
            let (Command::Apply(args), given) = parsed(words) else { panic!("another command") };
            let mirror = args.input.settings(&given, std::path::Path::new("/mirror")).unwrap().mirror;
            let Timeouts { connect, idle, overall } = mirror.wire.timeouts;
            let bytes = [mirror.wire.max_refs_bytes, mirror.wire.max_fetch_bytes, mirror.index_memory];
            ([connect, idle, overall].map(|limit| limit.as_secs()), bytes.map(|limit| limit >> 20))
        };
        assert_eq!(limits(&[]), ([10, 30, 120], [64, 4096, 64]));
        let times = ["--connect-timeout=1s", "--idle-timeout=2s", "--sync-timeout=3s"];
        let bytes = ["--max-refs-bytes=4Mi", "--max-fetch-bytes=5Mi", "--index-memory=6Mi"];
        assert_eq!(limits(&[times, bytes].concat()), ([1, 2, 3], [4, 5, 6]));
    }

    #[test]
    fn every_command_that_fetches_has_the_limits_that_hints_recommend_to_raise() {
        let memory = mirror::Error::IndexMemory { task: "indexing", limit: 1 }.hints().concat();
        let memory = memory.split(' ').find(|word| word.starts_with("--")).unwrap();
        let waits = [Wait::Connect, Wait::Idle, Wait::Overall].map(Wait::flag);
        let budgets = [Budget::Refs, Budget::Pack].map(Budget::flag);
        let commands = tree(Help::All);
        for command in ["sync", "apply", "render"].map(|name| commands.find_subcommand(name).unwrap()) {
            let names: Vec<&str> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
            for flag in waits.into_iter().chain(budgets).chain([memory]) {
                assert!(names.contains(&flag.trim_start_matches('-')), "{}: {flag}", command.get_name());
            }
        }
    }

    #[tokio::test]
    async fn a_plan_that_takes_too_long_ends_with_the_run() {
        let (end, hung) = std::sync::mpsc::channel::<()>();
        let plan = move || {
            let _ = hung.recv();
            Err(desired::Error::RulesHeld("it hung".to_owned()))
        };
        let cancel = CancellationToken::new();
        let planned = planned(Revision(ObjectId([0xab; 20])), plan, &cancel);
        let (ended, timed_out) = with_timeout(Duration::from_millis(20), &cancel, planned).await;
        assert!(timed_out);
        let error = ended.unwrap_err().downcast::<SourceError>().unwrap();
        assert!(error.what.ends_with(": the run ended while computing the plan"), "{error}");
        assert_message_style(&error, &error.hints);
        drop(end); // the runtime waits for the thread
    }
}
