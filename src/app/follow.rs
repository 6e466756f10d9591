//! `treeswap sync` with rules: every new revision's ConfigMaps, brought to their clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tracing::{error, info, warn};

use super::ledger::Keeper;
use super::{Error, Signals, registry, serve, starting, system};
use crate::cluster::Clusters;
use crate::config::Settings;
use crate::deliver::{self, MirrorSource, Planner, Report, Rhythm, SourceError, Turn};
use crate::mirror::Mirror;
use crate::phase::{Applied, Attempt, Outcome, Status, Trigger};
use crate::repeats::{Repeats, unsaid};
use crate::telemetry::metrics::{Metrics, ResultLabel, Shown, SourceLabel};
use crate::{admin, clock, human, shutdown};

/// How long one delivery may take: what `treeswap apply` allows itself.
pub(super) const LIMIT: Duration = Duration::from_secs(15 * 60);

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
    pub planner: Arc<Planner>,
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
    let (status, shown) = watch::channel(starting("the first delivery is under way".to_owned()));
    let (send, mut asked) = mpsc::channel(1);
    let counted = metrics.clone();
    // One request that was not looked at yet stands for all that follow.
    let ask = move |trigger: Trigger| {
        counted.triggers.get_or_create(&SourceLabel { source: trigger.word() }).inc();
        let _ = send.try_send(trigger);
    };
    if let Some(listener) = listener {
        info!("listening at {}", listener.address());
        let registry = registry(&metrics, settings.metrics);
        let state = admin::State { status: shown, registry, more: None, trigger: Arc::new(ask.clone()) };
        runtime.spawn(serve(listener, state, draining.clone()));
    }
    let mirror = Mirror::open(settings.mirror)?;
    status.send_modify(|status| {
        status.remote = mirror.remote();
        status.asked.clone_from(&settings.sync.asked);
    });
    let source = MirrorSource::new(mirror, Arc::clone(&rules.planner)).map_err(system("start a thread"))?;
    let pace = settings.sync.pace;
    let rhythm = Rhythm {
        period: Some(pace.period),
        min_interval: pace.min_interval,
        resync: rules.resync,
        backoff: pace.backoff,
        jitter: pace.jitter,
        limit: LIMIT,
        once,
    };
    let mut teller = Teller { beside: false, ..Teller::beside(status, metrics, Keeper::default()) };
    runtime.block_on(async {
        signals.ask(ask);
        let (source, options, clusters) = (Arc::new(source), &rules.options, &rules.clusters);
        let tell = |turn: Turn<'_>| teller.tell(&turn);
        let end = deliver::follow(source, clusters, options, &rhythm, &mut asked, &draining, tell).await;
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
pub(super) struct Teller {
    /// There is a root, which tells of itself; what is delivered beside it has a place of its own.
    beside: bool,
    status: watch::Sender<Status>,
    metrics: Metrics,
    began: Option<(Trigger, Timestamp, std::time::Instant)>,
    failing: Repeats,
    shown: Shown,
    ledger: Keeper,
}

impl Teller {
    /// Of what is delivered beside a root.
    pub(super) fn beside(status: watch::Sender<Status>, metrics: Metrics, ledger: Keeper) -> Self {
        Self {
            beside: true,
            status,
            metrics,
            began: None,
            failing: Repeats::default(),
            shown: Shown::default(),
            ledger,
        }
    }

    pub(super) fn tell(&mut self, turn: &Turn<'_>) {
        match turn {
            Turn::Begins(trigger) => {
                self.began = Some((*trigger, Timestamp::now(), std::time::Instant::now()));
                self.promise(LIMIT);
            }
            Turn::Unchanged => self.ended(Outcome::Unchanged, None, Vec::new()),
            Turn::Delivered(report) => self.delivered(report),
            Turn::Failed(error) => self.failed(error),
            Turn::Waits(_) if self.beside => {}
            Turn::Waits(wait) => {
                self.promise(*wait);
                let next = Timestamp::now().checked_add(*wait).ok();
                self.status.send_modify(|status| status.next_attempt = next);
            }
            Turn::Unanswered => warn!("a delivery was asked for and is not begun: the process ends"),
        }
    }

    /// The loop will be heard of again.
    fn promise(&self, within: Duration) {
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
                let (outcome, why) = (target.outcome.word(), &target.why);
                format!("{}/{}/{}: {outcome}: {why}", target.cluster, target.namespace, target.name)
            })
            .chain(report.failures.iter().cloned())
            .collect();
        for target in report.targets.iter().filter(|target| target.outcome.is_write()) {
            let changed_keys = target.added.len() + target.changed.len() + target.removed.len();
            let (outcome, place) =
                (target.outcome.word(), format!("{}/{}", target.cluster, target.namespace));
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
                if let Some(times) = self.failing.say(&wrong.join("\n")) {
                    wrong.iter().take(MOST_OPEN).for_each(|line| error!("{line}"));
                    hints.iter().for_each(|hint| info!("hint: {hint}"));
                    warn!(%revision, "{summary}{}", unsaid(times));
                }
            }
        }
        report.notes.iter().for_each(|note| warn!("{note}"));
        // A file is written, and others of this thread need not wait for it.
        tokio::task::block_in_place(|| self.ledger.note(report));
        self.show(report, &wrong);
        let outcome = match (wrong.is_empty(), report.differs()) {
            (false, _) => Outcome::Failed,
            (true, true) => Outcome::Published,
            (true, false) => Outcome::Unchanged,
        };
        self.ended(outcome, wrong.first().cloned(), hints);
    }

    fn show(&self, report: &Report, wrong: &[String]) {
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
            // As with a root: once there is something to serve, an outage takes nobody out of service.
            status.ready |= report.is_success();
            status.starting = None;
        });
    }

    fn failed(&mut self, error: &SourceError) {
        self.metrics.error("apply", if error.transient { "transient" } else { "permanent" });
        let what = human::one_line(error);
        if let Some(times) = self.failing.say(&what) {
            error!("{what}{}", unsaid(times));
            error.hints.iter().for_each(|hint| info!("hint: {hint}"));
        }
        self.ended(Outcome::Failed, Some(what), error.hints.clone());
    }

    fn ended(&mut self, outcome: Outcome, error: Option<String>, hints: Vec<String>) {
        let Some((trigger, at, since)) = self.began.take() else { return };
        if outcome != Outcome::Failed {
            self.failing.forget();
        }
        let duration_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let attempt = Attempt { at, trigger, outcome, duration_ms, error, hints };
        if self.beside {
            self.status.send_modify(|status| status.last_delivery = Some(attempt));
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
        if outcome != Outcome::Failed {
            self.metrics.last_success.set(seconds);
        }
        self.status.send_modify(|status| {
            if outcome == Outcome::Failed {
                status.consecutive_failures += 1;
                status.last_failure = Some(attempt.clone());
            } else {
                status.consecutive_failures = 0;
                status.last_success = Some(now);
            }
            let failures = i64::try_from(status.consecutive_failures).unwrap_or(i64::MAX);
            self.metrics.consecutive_failures.set(failures);
            status.last_attempt = Some(attempt);
        });
    }
}
