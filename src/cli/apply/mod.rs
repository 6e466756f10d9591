//! `treeswap apply`: computes the desired state of all rules from one revision, applies it to all clusters once, and
//! exits.

mod show;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use clap::builder::PossibleValuesParser;
use tokio_util::sync::CancellationToken;

use super::flags::FlagOrigins;
use super::input::{self, Input, TreeLocation};
use super::{Exit, warn};
use crate::cluster::{self, Clusters};
use crate::configmap::apply::{Adopt, ExtraKeys, Owner, Placement, PruneLimit, VersionKey};
use crate::deliver::{self, Leases, OnRewind, PoolSpec, Report};
use crate::desired::Directory;
use crate::revision::Revision;
use crate::sources::{Remote, SetOptions, SourceError, TreeSource, Upstream};
use crate::{config, detached_io, human, shutdown, telemetry};

/// Options of `treeswap apply`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    group = clap::ArgGroup::new("whose").args(["owner"]).required(true),
    after_help = "Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 some targets failed or were refused, \
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

    /// Directory of kubeconfig files, as a mounted Secret is
    #[arg(long, value_name = "DIR")]
    kubeconfig_dir: Option<PathBuf>,

    /// In a Pod, `default` is not the Pod's own cluster but a kubeconfig's current context
    #[arg(long, hide_short_help = true, value_name = "BOOL", default_value = "false", value_parser = config::boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    no_in_cluster_config: bool,

    /// Requests in flight to one cluster
    #[arg(long, hide_short_help = true, value_name = "N", default_value = "8", value_parser = config::at_least_one)]
    concurrency: u16,

    /// How long one request may take
    #[arg(long, hide_short_help = true, value_name = "DURATION", default_value = "30s", value_parser = config::duration)]
    request_timeout: Duration,

    /// How long a Lease lasts unless its holder renews it: others wait no longer for it; 0s for no Leases
    ///
    /// Instances with the same owner take turns by a Lease in each namespace, asked for only when there is something to
    /// write. Correctness does not depend on it: without the right to Leases more writes conflict and are tried again.
    #[arg(long, hide_short_help = true, value_name = "DURATION", default_value = "15s", value_parser = config::duration)]
    lease_duration: Duration,

    /// Write only while holding one of COUNT Leases: a cap on how many of a fleet write at once
    ///
    /// For many instances, whatever their owners, that one push sets to work at the same moment. Who has something to
    /// write takes any of NAME-0, NAME-1 and so on in that namespace of the cluster `default`, and releases it
    /// afterwards. Correctness does not depend on it: without the right to Leases, or when all stay taken for a quarter
    /// of the time, the work goes on without, which is logged once.
    #[arg(long, hide_short_help = true, value_name = "NAMESPACE/NAME:COUNT")]
    lease_pool: Option<PoolSpec>,
}

/// What may be done.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Rights {
    /// This installation's name, by which it knows what is its own
    ///
    /// It must never change. Two installations with different names never touch each other's ConfigMaps. Each
    /// repository, or file of --sources, and its rules have a name of their own.
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,

    /// Take over ConfigMaps: prow (those of Prow's tools), all (those of no owner)
    #[arg(long, value_name = "WHOSE", default_value = "nothing", value_parser = PossibleValuesParser::new(["nothing", "prow", "all"]))]
    adopt: String,

    /// Delete our ConfigMaps that no rule names or no file matches any more
    ///
    /// Without it those that no file matches are emptied, and those that no rule names are left.
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = config::boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    prune: bool,

    /// The most of our ConfigMaps in a cluster that a run may delete or empty
    ///
    /// A run that would take away more is refused as a whole: a wrong ref or directory must not delete everything.
    /// 100 allows that.
    #[arg(long, value_name = "PERCENT", default_value = "50", value_parser = config::percent)]
    max_prune: u8,

    /// When the ref goes back, or elsewhere, from what a cluster has: apply it, or hold
    ///
    /// `hold` writes nothing unless the history of the commit is known to contain the one that is recorded. A ref that
    /// goes back is asked again for 30 seconds before it is believed: it may be a replica that lags.
    #[arg(long, hide_short_help = true, value_name = "WHAT", default_value = "apply", value_parser = PossibleValuesParser::new(["apply", "hold"]))]
    on_rewind: String,

    /// Delete an immutable ConfigMap and make it again when its content has to change
    #[arg(long, hide_short_help = true, value_name = "BOOL", default_value = "false", value_parser = config::boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    recreate_immutable: bool,

    /// Add a key VERSION with a commit id: changed, every, or off
    ///
    /// `changed`: the commit that last changed the ConfigMap. `every`: each commit, as Prow's tools have it, which
    /// writes every ConfigMap at every commit.
    #[arg(long, value_name = "WHEN", default_value = "off", value_parser = PossibleValuesParser::new(["off", "changed", "every"]))]
    version_key: String,

    /// Add a key with the payload's digest, to be compared with the marker's
    ///
    /// {name} in it stands for the ConfigMap's name, so that several ConfigMaps fit into one volume: .{name}.stamp is
    /// what `treeswap watch --set` looks for.
    #[arg(long, value_name = "KEY")]
    stamp_key: Option<String>,
}

/// What is of one run only.
#[derive(Clone, Debug, clap::Args)]
struct Once {
    /// How long everything may take
    ///
    /// What is not done then is skipped, and reported.
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = config::duration)]
    timeout: Duration,

    /// The commit id that --tree is of
    #[arg(long, value_name = "ID")]
    revision: Option<String>,

    /// Overwrite with --tree what is recorded as another revision's
    #[arg(long)]
    force: bool,

    /// Write nothing; print what would be done
    ///
    /// The servers check each write where our rights allow it.
    #[arg(long)]
    dry_run: bool,
}

/// How to report.
#[derive(Clone, Debug, clap::Args)]
struct Output {
    /// How results are printed [default: a table on a terminal, else lines]
    ///
    /// A table shows also what is right, lines do not.
    #[arg(short = 'o', long = "output", value_name = "FORMAT")]
    format: Option<Format>,

    /// How the log on stderr is written
    ///
    /// In `json`, the results are lines of the log, too, and printed only where --output asks for it.
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
    let logs = args.output.log_format == LogFormat::Json;
    if logs {
        telemetry::start(&telemetry::Options::new(telemetry::Format::Json, "info")?);
    }
    let extra_keys = args.rights.extra_keys()?;
    let options = args.options()?;
    let planner = args.input.rules.planner(extra_keys)?;
    let clusters = args.clusters.load()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2) // so that comparing the payloads of one cluster does not delay another cluster
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let cancel = {
        let _inside = runtime.enter();
        shutdown::listen(Exit::Some as u8).context("cannot listen for signals")?
    };
    let limit = args.once.timeout;
    let (ended, timed_out) = match args.input.tree_location("apply", given)? {
        TreeLocation::Directory(directory) => {
            let revision = args.once.revision()?;
            let desired = planner.desired(&Directory(directory), revision, &Placement::default(), None)?.0;
            let source = Arc::new(TreeSource::new(desired));
            let delivery = deliver::deliver(source, &clusters, &options, &cancel);
            runtime.block_on(with_timeout(limit, &cancel, delivery))
        }
        TreeLocation::Remote(flag) => {
            if args.once.revision.is_some() {
                let one = "--revision".into();
                return Err(config::Error::Conflict { one, other: flag.into() }.into());
            }
            given.refuse_without("--tree", |flag, _| flag == "force")?;
            let fetch = args.input.fetch_options(given, "apply")?;
            let sources = fetch.sources.clone().map(|sources| {
                let timeout = sources.timeout.min(limit / 4); // a source that hangs leaves time for the others
                SetOptions { rules: true, root: false, timeout, ..sources }
            });
            let upstream = Upstream::open(fetch.mirror.clone(), sources)?;
            let options = options.with_remote(upstream.repository().as_deref());
            let source = Remote::new(upstream, planner).context("cannot start a thread")?;
            let delivery = deliver::deliver(Arc::new(source), &clusters, &options, &cancel);
            runtime.block_on(with_timeout(limit, &cancel, delivery))
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

fn exit(report: &Report, dry_run: bool) -> Exit {
    if !report.is_success() || !report.unanswered.is_empty() {
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
fn report_timeout(ended: Result<Report, SourceError>, limit: Duration) -> anyhow::Result<Report> {
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

    fn options(&self) -> Result<deliver::Options, config::Error> {
        let Once { force, dry_run, timeout, .. } = self.once;
        let options = self.rights.options(&self.clusters)?;
        // Waiting for Leases may take a quarter of the time, so that most of it is left for the work.
        let leases = options.leases.clone().map(|leases| leases.with_max_wait(timeout / 4));
        Ok(deliver::Options { force, dry_run, leases, ..options })
    }
}

impl ClusterArgs {
    /// Loads the clusters, with a warning for each that cannot be used.
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
            floor: PruneLimit { percent: self.max_prune },
            recreate: self.recreate_immutable,
            on_rewind: if self.on_rewind == "hold" { OnRewind::Hold } else { OnRewind::Apply },
            concurrency: clusters.concurrency.into(),
            leases: clusters.leases()?,
            ..deliver::Options::new(owner)
        })
    }

    /// The keys that each ConfigMap has besides its payload.
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
    /// The revision of the directory `--tree`.
    fn revision(&self) -> Result<Revision, config::Error> {
        input::revision(self.revision.as_deref(), "--tree")
    }
}
