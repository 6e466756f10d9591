//! `treeswap sync` with rules: every new revision's ConfigMaps, brought to their clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tracing::{error, info, warn};

use super::delayed_trigger::{requesting, spread};
use super::ledger::LedgerKeeper;
use super::listener::{registry, serve};
use super::signals::Signals;
use super::{Error, starting, system};
use crate::cluster::Clusters;
use crate::config::Settings;
use crate::deliver::{self, LoopEvent, Report, Rhythm};
use crate::desired::Planner;
use crate::phase::{Applied, Attempt, LastAnswer, Outcome, SourceStatus, Status, Trigger};
use crate::repeats::{Repeats, suppressed};
use crate::sources::{Remote, Requests, SetOptions, SourceError, Upstream};
use crate::telemetry::metrics::{Metrics, ResultLabel, Shown, SourceLabel};
use crate::{admin, clock, human, shutdown};

/// How long one delivery may take: what `treeswap apply` allows itself.
pub(super) const LIMIT: Duration = Duration::from_secs(15 * 60);

/// From one try to the next of what an operator has to repair in a cluster.
pub(super) const DENIED: Duration = Duration::from_secs(60);

/// Beyond what the loop promised, before it counts as hanging.
const SLACK: Duration = Duration::from_secs(60);

/// What the status lists of what is not right.
const MOST_OPEN: usize = 100;

/// What is delivered, to whom, and how.
pub struct Rules {
    /// The clusters.
    pub clusters: Clusters,
    /// What may be done there.
    pub options: deliver::Options,
    /// What a revision asks for.
    pub planner: Planner,
    /// From one look at everything to the next.
    pub resync: Duration,
}

/// Runs until the process drains, or once.
pub(super) fn run(runtime: &Runtime, settings: Settings, rules: &Rules) -> Result<Option<Report>, Error> {
    let once = settings.sync.one_time;
    let (draining, signals) = {
        let _inside = runtime.enter();
        let signals = Signals::listen(settings.signal).map_err(system("listen for signals"))?;
        (shutdown::listen(u8::from(once)).map_err(system("listen for signals"))?, signals)
    };
    let listener = settings.admin.clone().map(|options| runtime.block_on(admin::Listener::bind(options)));
    let listener = listener.transpose()?;
    let metrics = Metrics::default();
    metrics.sandbox(settings.mirror.sandbox.parts());
    let (status, shown) = watch::channel(starting("the first delivery is under way".to_owned()));
    let (send, mut asked) = mpsc::channel(1);
    let counted = metrics.clone();
    // One request that was not looked at yet stands for all that follow.
    let ask = move |trigger: Trigger| {
        counted.triggers.get_or_create(&SourceLabel { source: trigger.word() }).inc();
        let _ = send.try_send(trigger);
    };
    let again = ask.clone();
    let requests = Requests::default();
    let ask = spread(runtime.handle(), settings.trigger_spread, &metrics, Arc::new(ask));
    let ask = requesting(&requests, ask);
    if let Some(listener) = listener {
        info!("listening at {}", listener.address());
        let registry = registry(&metrics, settings.metrics);
        let state = admin::State { status: shown, registry, more: None, trigger: Arc::clone(&ask) };
        runtime.spawn(serve(listener, state, draining.clone()));
    }
    let sources = settings.sources.map(|sources| SetOptions { rules: true, root: false, ..sources });
    let mut upstream = Upstream::open(settings.mirror, sources)?;
    upstream.obeys(requests);
    upstream.on_answer(move || again(Trigger::Source));
    status.send_modify(|status| {
        status.remote = upstream.remote();
        status.heard = LastAnswer::not_yet();
        status.asked.clone_from(&settings.sync.asked);
    });
    let options = rules.options.clone().naming(upstream.repository().as_deref());
    let source = Arc::new(Remote::new(upstream, rules.planner.clone()).map_err(system("start a thread"))?);
    let pace = settings.sync.pace;
    let rhythm = Rhythm {
        period: Some(pace.period),
        min_interval: pace.min_interval,
        resync: rules.resync,
        denied: DENIED,
        backoff: pace.backoff,
        jitter: pace.jitter,
        limit: LIMIT,
        once,
    };
    let mut teller = DeliveryReporter {
        beside: false,
        ..DeliveryReporter::with_root(status, metrics, LedgerKeeper::default(), &rules.clusters)
    };
    runtime.block_on(async {
        signals.ask(move |trigger| ask(trigger, &[]));
        let clusters = &rules.clusters;
        let rows = Arc::clone(&source);
        let tell = |turn: LoopEvent<'_>| {
            teller.sources(rows.rows());
            teller.report(&turn);
        };
        let end = deliver::follow(source, clusters, &options, &rhythm, &mut asked, &draining, tell).await;
        match end {
            Some(Ok(report)) => Ok(Some(report)),
            Some(Err(error)) => Err(error.into()),
            None if once => Err(Error::Interrupted),
            None => {
                info!("drained");
                Ok(None)
            }
        }
    })
}

/// Tells the log, the status and the metrics.
pub(super) struct DeliveryReporter {
    /// There is a root, which has its own part of the status; what is delivered beside it has another.
    beside: bool,
    status: watch::Sender<Status>,
    metrics: Metrics,
    began: Option<(Trigger, Timestamp, std::time::Instant)>,
    failing: Repeats,
    /// What was noted of the delivery before.
    noted: Vec<String>,
    shown: Shown,
    ledger: LedgerKeeper,
}

impl DeliveryReporter {
    /// Of what is delivered beside a root.
    pub(super) fn with_root(
        status: watch::Sender<Status>,
        metrics: Metrics,
        ledger: LedgerKeeper,
        clusters: &Clusters,
    ) -> Self {
        metrics.expect_targets(clusters.names(), &deliver::Outcome::ALL.map(deliver::Outcome::word));
        Self {
            beside: true,
            status,
            metrics,
            began: None,
            failing: Repeats::default(),
            noted: Vec::new(),
            shown: Shown::default(),
            ledger,
        }
    }

    /// How each of several sources is.
    pub(super) fn sources(&self, rows: Vec<SourceStatus>) {
        self.metrics.sources(rows.iter().map(|source| (source.name.as_str(), source.error.is_some())));
        self.status.send_modify(|status| status.sources = rows);
    }

    pub(super) fn report(&mut self, turn: &LoopEvent<'_>) {
        if !self.beside && matches!(turn, LoopEvent::Unchanged { .. } | LoopEvent::Delivered(_)) {
            self.status.send_modify(|status| status.heard = LastAnswer::now());
        }
        match turn {
            LoopEvent::Begins(trigger) => {
                self.began = Some((*trigger, Timestamp::now(), std::time::Instant::now()));
                self.expect_report_within(LIMIT);
            }
            LoopEvent::Unchanged { success } => self.ended(Outcome::Unchanged, *success, None, Vec::new()),
            LoopEvent::Delivered(report) => self.delivered(report),
            LoopEvent::Failed(error) => self.failed(error),
            LoopEvent::Waits(_) if self.beside => {}
            LoopEvent::Waits(wait) => {
                self.expect_report_within(*wait);
                let next = Timestamp::now().checked_add(*wait).ok();
                self.status.send_modify(|status| status.next_attempt = next);
            }
            LoopEvent::Unanswered => warn!("a delivery was asked for and is not begun: the process ends"),
        }
    }

    /// The loop will be heard of again.
    fn expect_report_within(&self, within: Duration) {
        if self.beside {
            return;
        }
        let until = clock::now().boottime.saturating_add(within).saturating_add(SLACK);
        let until = u64::try_from(until.as_millis()).unwrap_or(u64::MAX);
        self.status.send_modify(|status| status.alive_until_ms = until);
    }

    fn delivered(&mut self, report: &Report) {
        let counts = report.counts();
        let words: Vec<String> = counts.iter().map(|(outcome, count)| format!("{count} {outcome}")).collect();
        let wrong = report.targets.iter().filter(|target| !target.outcome.is_success());
        let wrong: Vec<String> = wrong
            .map(|target| {
                let outcome = target.outcome.word();
                let why = &target.why;
                format!("{}/{}/{}: {outcome}: {why}", target.cluster, target.namespace, target.name)
            })
            .chain(report.failures.iter().cloned())
            .collect();
        for target in report.targets.iter().filter(|target| target.outcome.is_write()) {
            let changed_keys = target.added.len() + target.changed.len() + target.removed.len();
            let outcome = target.outcome.word();
            let place = format!("{}/{}", target.cluster, target.namespace);
            info!(changed_keys, "{place}/{}: {outcome}: {}", target.name, target.why);
        }
        for target in report.targets.iter().filter(|target| !target.outcome.is_success()) {
            self.metrics.error("apply", if target.transient { "transient" } else { "permanent" });
        }
        report.failures.iter().for_each(|_| self.metrics.error("apply", "transient"));
        let ended = report.targets.iter().map(|target| (target.cluster.as_str(), target.outcome.word()));
        self.metrics.delivered(ended, &mut self.shown);
        let hints = report.targets.iter().filter(|target| !target.outcome.is_success());
        let hints: BTreeSet<String> = hints.flat_map(|target| target.hints.clone()).collect();
        let hints: Vec<String> = hints.into_iter().collect();
        let revision = report.revision;
        let summary = format!("revision {}: {}", revision.short(), words.join(", "));
        match (wrong.first(), report.differs()) {
            (None, true) => info!(%revision, "{summary}"),
            (None, false) => tracing::debug!(%revision, "{summary}"),
            (Some(_), _) => {
                if let Some(times) = self.failing.should_log(&wrong.join("\n")) {
                    wrong.iter().take(MOST_OPEN).for_each(|line| error!("{line}"));
                    hints.iter().for_each(|hint| info!("hint: {hint}"));
                    warn!(%revision, "{summary}{}", suppressed(times));
                }
            }
        }
        report.notes.iter().filter(|note| !self.noted.contains(note)).for_each(|note| warn!("{note}"));
        self.noted.clone_from(&report.notes);
        // A file is written, and others of this thread need not wait for it.
        tokio::task::block_in_place(|| self.ledger.note(report));
        self.fill_status(report, &wrong);
        let outcome = match (wrong.is_empty(), report.differs()) {
            (false, _) => Outcome::Failed,
            (true, true) => Outcome::Published,
            (true, false) => Outcome::Unchanged,
        };
        self.ended(outcome, outcome != Outcome::Failed, wrong.first().cloned(), hints);
    }

    fn fill_status(&self, report: &Report, wrong: &[String]) {
        let at = Timestamp::now();
        let mut right: BTreeMap<&str, bool> = BTreeMap::new();
        for target in &report.targets {
            *right.entry(&target.cluster).or_insert(true) &= target.outcome.is_success();
        }
        self.status.send_modify(|status| {
            let (mut clusters, mut totals) =
                status.applied.take().map(|before| (before.clusters, before.totals)).unwrap_or_default();
            for (cluster, _) in right.iter().filter(|(_, right)| **right) {
                clusters.insert((*cluster).to_owned(), at);
            }
            let targets: BTreeMap<String, u64> =
                report.counts().into_iter().map(|(outcome, count)| (outcome.to_owned(), count)).collect();
            for (outcome, count) in &targets {
                *totals.entry(outcome.clone()).or_default() += count;
            }
            let open = wrong.iter().take(MOST_OPEN).cloned().collect();
            let revision = report.revision;
            status.targets = self.ledger.targets();
            status.applied = Some(Applied { revision, at, targets, totals, open, clusters });
            if self.beside {
                return;
            }
            // As with a root: once there is something to serve, an outage does not turn readiness.
            status.ready |= report.is_success();
            status.starting = None;
        });
    }

    fn failed(&mut self, error: &SourceError) {
        self.metrics.error("apply", if error.transient { "transient" } else { "permanent" });
        let what = human::one_line(error);
        if let Some(times) = self.failing.should_log(&what) {
            error!("{what}{}", suppressed(times));
            error.hints.iter().for_each(|hint| info!("hint: {hint}"));
        }
        self.ended(Outcome::Failed, false, Some(what), error.hints.clone());
    }

    /// An attempt ended. One that found nothing new is a success only if what it found settled was one.
    fn ended(&mut self, outcome: Outcome, success: bool, error: Option<String>, hints: Vec<String>) {
        let Some((trigger, at, since)) = self.began.take() else { return };
        if success {
            self.failing.forget();
        }
        let duration_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let attempt = Attempt { at, trigger, outcome, duration_ms, error, hints };
        if self.beside {
            // What stands failed is still to be seen.
            if success || outcome == Outcome::Failed {
                self.status.send_modify(|status| status.last_delivery = Some(attempt));
            }
            return;
        }
        let result = match outcome {
            Outcome::Published => "published",
            Outcome::Unchanged => "unchanged",
            Outcome::Failed => "failed",
        };
        self.metrics.syncs.get_or_create(&ResultLabel { result }).inc();
        let now = Timestamp::now();
        let seconds = now.as_millisecond() as f64 / 1_000.0; // exact for the next 285,000 years
        self.metrics.last_attempt.set(seconds);
        if success {
            self.metrics.succeeded(Some(seconds));
        }
        self.status.send_modify(|status| {
            if outcome == Outcome::Failed {
                status.consecutive_failures += 1;
                status.last_failure = Some(attempt.clone());
                status.failing_since.get_or_insert(now);
            } else if success {
                status.failing_since = None;
                status.consecutive_failures = 0;
                status.last_success = Some(now);
            }
            let failures = i64::try_from(status.consecutive_failures).unwrap_or(i64::MAX);
            self.metrics.consecutive_failures.set(failures);
            status.last_attempt = Some(attempt);
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::configmap::apply::{Desired, DesiredConfigMap, ExtraKeys, Owner, VersionKey};
    use crate::configmap::{ClusterNamespace, Payload};
    use crate::deliver::{Options, Relation};
    use crate::retry::Backoff;
    use crate::revision::{ObjectId, Revision};
    use crate::sources::{Named, Recorded, Source};

    /// A remote that always names the same revision, which has a ConfigMap for an unknown cluster.
    struct Elsewhere;

    impl Source for Elsewhere {
        async fn ask(&self) -> Result<Named, SourceError> {
            Ok(Revision(ObjectId([1; 20])).into())
        }

        async fn desired(&self, named: Named) -> Result<Arc<Desired>, SourceError> {
            let Named { revision, sources } = named;
            let wanted = DesiredConfigMap {
                payload: Payload::new(BTreeMap::new()),
                digest: String::new(),
                fed: true,
                versioned: false,
                stamp: None,
                held: None,
            };
            let place = ClusterNamespace { cluster: "nowhere".into(), namespace: "ci".into() };
            let config_maps = BTreeMap::from([(place, BTreeMap::from([("config".to_owned(), wanted)]))]);
            let shape = ExtraKeys { version_key: VersionKey::Changed, stamp_key: None };
            Ok(Arc::new(Desired { revision, sources, rules: "rules".into(), shape, config_maps }))
        }

        async fn relation(&self, _: Recorded, _: Revision) -> Result<Relation, SourceError> {
            Ok(Relation::Ahead)
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_failed_for_good_stays_a_failure_at_polls_that_find_nothing_new() {
        let hour = Duration::from_secs(3_600);
        let clusters = Clusters::default();
        let rhythm = Rhythm {
            period: Some(Duration::from_millis(10)),
            min_interval: Duration::ZERO,
            resync: hour,
            denied: hour,
            backoff: Backoff { first: hour, ceiling: hour },
            jitter: 0.0,
            limit: hour,
            once: false,
        };
        let (status, shown) = watch::channel(Status::default());
        let beside =
            DeliveryReporter::with_root(status, Metrics::default(), LedgerKeeper::default(), &clusters);
        let mut teller = DeliveryReporter { beside: false, ..beside };
        let ending = CancellationToken::new();
        let (_ask, mut asked) = mpsc::channel(1);
        let mut polls = 0;
        let mut failures = Vec::new();
        let tell = |turn: LoopEvent<'_>| {
            teller.report(&turn);
            polls += u32::from(matches!(turn, LoopEvent::Unchanged { .. }));
            if matches!(turn, LoopEvent::Waits(_)) {
                failures.push(shown.borrow().consecutive_failures);
            }
            if polls == 3 {
                ending.cancel();
            }
        };
        let options = Options::new(Owner::new("team").unwrap());
        deliver::follow(Arc::new(Elsewhere), &clusters, &options, &rhythm, &mut asked, &ending, tell).await;
        assert_eq!(failures, [1, 1, 1, 1]);
        let status = shown.borrow();
        assert!(status.last_success.is_none() && status.failing_since.is_some(), "{status:?}");
    }
}
