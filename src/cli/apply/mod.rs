//! `treeswap apply`: computes the desired state of all rules from one revision, applies it to all clusters once, and
//! exits.

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
use crate::cluster::{self, Clusters};
use crate::configmap::TimeLimit;
use crate::configmap::apply::{Adopt, Desired, ExtraKeys, Owner, Placement, PruneLimit, VersionKey};
use crate::deliver::{self, Leases, OnRewind, PoolSpec, Report};
use crate::desired::{self, Directory, Planner};
use crate::revision::Revision;
use crate::sources::{AttemptLimit, Remote, SetOptions, SourceError, TreeInput, Upstream};
use crate::{config, detached_io, human, shutdown, telemetry};

/// Options of `treeswap apply`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    group = clap::ArgGroup::new("whose").args(["owner"]).required(true),
    after_help = "Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 some targets or sources are not done, \
                        4 a dry run found differences."
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

/// Where to.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ClusterArgs {
    /// Kubeconfig file; each of its contexts is a cluster of the rules
    ///
    /// Can be given several times. Without it, without --kubeconfig-dir and outside of a Pod: $KUBECONFIG, or
    /// ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Vec<PathBuf>,

    /// Directory of kubeconfig files, such as a mounted Secret
    #[arg(long, value_name = "DIR")]
    kubeconfig_dir: Option<PathBuf>,

    /// In a Pod, do not use the Pod's own cluster as `default`, but a kubeconfig's current context
    #[arg(long, hide_short_help = true, value_name = "BOOL", default_value = "false", value_parser = config::boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    no_in_cluster_config: bool,

    /// Most concurrent requests to one cluster
    #[arg(long, hide_short_help = true, value_name = "N", default_value = "8", value_parser = config::at_least_one)]
    concurrency: u16,

    /// Timeout of one request
    ///
    /// It includes reading the credentials and connecting, each of which may take half of it, and asking again after a
    /// 401. Waiting until fewer than --concurrency requests are under way does not count.
    #[arg(long, hide_short_help = true, value_name = "DURATION", default_value = "30s", value_parser = config::timeout)]
    request_timeout: Duration,

    /// Duration of a Lease that its holder does not renew, after which others take over; 0s for no Leases
    ///
    /// Instances with the same owner take turns by a Lease in each namespace, which is acquired only when there is
    /// something to write. Correctness does not depend on it: without permissions for Leases, more writes conflict and
    /// are retried.
    #[arg(long, hide_short_help = true, value_name = "DURATION", default_value = "15s", value_parser = config::duration)]
    lease_duration: Duration,

    /// Limit how many instances of a fleet write at once: each must hold one of COUNT Leases
    ///
    /// For many instances, of any owner, that one push triggers at the same moment. An instance with something to write
    /// acquires any of the Leases NAME-0, NAME-1 and so on in that namespace of the cluster `default`, and releases it
    /// afterwards. Correctness does not depend on it: without permissions for Leases, or if all are held by others for
    /// a quarter of the time limit, the instance continues without one and logs that once.
    #[arg(long, hide_short_help = true, value_name = "NAMESPACE/NAME:COUNT")]
    lease_pool: Option<PoolSpec>,
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
    /// A run that would delete or empty more changes nothing, so that a wrong ref or directory does not delete
    /// everything. 100 turns the limit off. It also lets --prune delete what another rule set with the same owner wrote
    /// in namespaces that no rule here names.
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
    let logs = args.output.log_format == LogFormat::Json;
    if logs {
        telemetry::start(&telemetry::Options::new(telemetry::Format::Json, "info")?);
    }
    given.warnings.iter().for_each(warn);
    let extra_keys = args.rights.extra_keys()?;
    let options = args.options()?;
    let planner = args.planner(extra_keys)?;
    let clusters = args.clusters.load()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2) // so that comparing the data of one cluster does not delay another cluster
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let cancel = {
        let _inside = runtime.enter();
        shutdown::listen(Exit::Some as u8).context("cannot listen for signals")?
    };
    let limit = args.once.timeout;
    let time_left = || limit.saturating_sub(began.elapsed());
    let (ended, timed_out) = match args.input.tree_location("apply", given)? {
        TreeLocation::Directory(directory) => {
            let revision = args.once.revision()?;
            let directory = directory.to_owned();
            let plan = move || {
                let planned = planner.desired(&Directory(&directory), revision, &Placement::default(), None);
                planned.map(|(desired, _)| desired)
            };
            let delivery = async {
                let input = TreeInput::new(planned(revision, plan, &cancel).await?);
                let delivered = deliver::deliver(Arc::new(input), &clusters, &options, &cancel).await;
                delivered.map_err(anyhow::Error::from)
            };
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
    if logs {
        show::log(&report, args.once.dry_run);
    } else {
        show::notes(&report);
    }
    if !logs || args.output.format.is_some() {
        show::print(&report, args.output.format, args.once.dry_run)?;
    }
    Ok(exit(&report, args.once.dry_run).into())
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
        self.options()?;
        self.input.settings(given, std::path::Path::new("/mirror")).map(drop)
    }

    /// The planner of the run, which takes only a part of the run's time.
    fn planner(&self, extra_keys: ExtraKeys) -> anyhow::Result<Planner> {
        Ok(self.input.rules.planner(extra_keys, false)?.within(self.once.matching_limit()))
    }

    fn options(&self) -> Result<deliver::Options, config::Error> {
        let Once { force, dry_run, timeout, .. } = self.once;
        let options = self.rights.options(&self.clusters)?;
        // Waiting for Leases may take a quarter of the time, so that most of it is left for the work.
        let leases = options.leases.clone().map(|leases| leases.with_max_wait(timeout / 4));
        Ok(deliver::Options { force, dry_run, leases, ..options })
    }
}

impl ClusterArgs {
    /// Loads the clusters, with a warning for each of [`Clusters::problems`].
    pub(super) fn load(&self) -> Result<Clusters, cluster::ConfigError> {
        let clusters = Clusters::load(&self.options())?;
        clusters.problems.iter().for_each(|problem| warn(human::one_line(problem)));
        Ok(clusters)
    }

    /// The Leases by which instances take turns; `None` if they are turned off.
    fn leases(&self) -> Result<Option<Leases>, config::Error> {
        match (self.lease_duration.is_zero(), &self.lease_pool) {
            (true, None) => Ok(None),
            (true, Some(_)) => {
                let one = "--lease-pool".into();
                let other = "--lease-duration=0s".into();
                Err(config::Error::Conflict { one, other })
            }
            (false, pool) => Ok(Some(Leases::new(self.lease_duration).pooled(pool.clone()))),
        }
    }

    fn options(&self) -> cluster::Options {
        let in_cluster = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() && !self.no_in_cluster_config;
        let none_given = self.kubeconfig.is_empty() && self.kubeconfig_dir.is_none() && !in_cluster;
        cluster::Options {
            kubeconfigs: if none_given { default_kubeconfigs() } else { self.kubeconfig.clone() },
            kubeconfig_dir: self.kubeconfig_dir.clone(),
            in_cluster,
            timeout: self.request_timeout,
            concurrency: self.concurrency.into(),
            ..cluster::Options::default()
        }
    }
}

/// The kubeconfigs that kubectl uses by default: those in `$KUBECONFIG`, or `~/.kube/config` if it exists.
fn default_kubeconfigs() -> Vec<PathBuf> {
    let named = std::env::var_os("KUBECONFIG").filter(|value| !value.is_empty());
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".kube/config"));
    match named {
        Some(paths) => std::env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty()).collect(),
        // A file whose check hangs or fails counts as existing: reading it reports the error.
        None => home()
            .filter(|path| detached_io::wait_for_io(path, |path| path.try_exists()).unwrap_or(true))
            .into_iter()
            .collect(),
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

    /// The revision of the directory `--tree`.
    fn revision(&self) -> Result<Revision, config::Error> {
        input::revision(self.revision.as_deref(), "--tree")
    }
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches as _;

    use super::*;
    use crate::cli::{Cli, Command, Help, tree};
    use crate::revision::ObjectId;

    #[test]
    fn the_plan_takes_at_most_nine_tenths_of_the_time_of_a_short_run() {
        let limit = |timeout: &str| {
            let words = ["treeswap", "apply", "--owner=team", "--rules-in-tree=rules", "--tree=.", timeout];
            let matches = tree(Help::All).try_get_matches_from(words).unwrap();
            let Command::Apply(args) = Cli::from_arg_matches(&matches).unwrap().command else {
                panic!("another command");
            };
            args.planner(ExtraKeys::default()).unwrap().matching_limit()
        };
        let short = TimeLimit { time: Duration::from_secs(27), set_by: Some("nine tenths of --timeout") };
        assert_eq!(limit("--timeout=30s"), short);
        assert_eq!(limit("--timeout=15m").set_by, None, "the plan's own limit is shorter");
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
        human::assert_message_style(&error, &error.hints);
        drop(end); // the runtime waits for the thread
    }
}
