//! `treeswap sync` with rules and without a root: every new revision's ConfigMaps are delivered to their clusters.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tracing::info;

use super::delivery_reporter::DeliveryReporter;
use super::startup::Startup;
use super::{Error, open_upstream, system};
use crate::cluster::Clusters;
use crate::config::Settings;
use crate::deliver::{self, LoopEvent, LoopTiming, Report};
use crate::desired::Planner;
use crate::phase::machine::Timing;
use crate::phase::{LastAnswer, Trigger};
use crate::sources::{Remote, SetOptions};
use crate::telemetry::metrics::{Metrics, SourceLabel};

/// The time limit of one delivery; also the default of `treeswap apply --timeout`.
const DELIVERY_LIMIT: Duration = Duration::from_secs(15 * 60);

/// Pause before a write is tried again that a cluster denied, which an operator has to repair.
const DENIED_RETRY: Duration = Duration::from_secs(60);

/// The rules of ConfigMaps and the clusters that they are applied to.
pub struct Rules {
    /// The clusters that the rules name.
    pub clusters: Clusters,
    /// What a delivery may do there.
    pub options: deliver::Options,
    /// Computes the desired state of a revision.
    pub planner: Planner,
    /// The period after which all targets are compared again although nothing changed.
    pub resync: Duration,
}

/// The timing of deliveries beside a root: without polling, and until the process drains.
pub(super) fn loop_timing(rules: &Rules, pace: Timing) -> LoopTiming {
    LoopTiming {
        period: None,
        min_interval: pace.min_interval,
        resync: rules.resync,
        denied: DENIED_RETRY,
        backoff: pace.backoff,
        jitter: pace.jitter,
        limit: DELIVERY_LIMIT,
        once: false,
    }
}

/// Delivers until the process drains, which returns `None`, or once with `--one-time`, which returns the report.
pub(super) fn run(runtime: &Runtime, mut settings: Settings, rules: &Rules) -> Result<Option<Report>, Error> {
    let once = settings.sync.one_time;
    let metrics = Metrics::default();
    let (send, mut triggers) = mpsc::channel(1);
    let counted = metrics.triggers.clone();
    // The channel holds one trigger: while it is pending, it covers all that follow.
    let ask = move |trigger: Trigger| {
        counted.get_or_create(&SourceLabel { source: trigger.label() }).inc();
        let _ = send.try_send(trigger);
    };
    let ask_for_source = ask.clone();
    let startup = Startup::begin(runtime, &settings, metrics, "the first delivery is under way", ask)?;
    let set_options = |sources: SetOptions| SetOptions { rules: true, root: false, ..sources };
    let Some(upstream) = open_upstream(&mut settings, &startup, set_options)? else { return Ok(None) };
    upstream.on_answer(move || ask_for_source(Trigger::Source));
    let Startup { draining, signals, metrics, status, ask, .. } = startup;
    status.send_modify(|status| {
        status.remote = upstream.shown_name();
        status.last_answer = LastAnswer::not_yet();
        status.ref_name.clone_from(&settings.sync.ref_name);
    });
    let options = rules.options.clone().with_remote(upstream.repository().as_deref());
    let received_bytes = upstream.received();
    let input = Arc::new(Remote::new(upstream, rules.planner.clone()).map_err(system("start a thread"))?);
    let pace = settings.sync.pace;
    let loop_timing = LoopTiming { period: Some(pace.period), once, ..loop_timing(rules, pace) };
    // The time limit of a delivery does not include the poll and the fetch before it.
    let limit = DELIVERY_LIMIT + 2 * settings.sync.sync_timeout;
    let mut reporter =
        DeliveryReporter::without_root(status, metrics, &rules.clusters, received_bytes, limit);
    runtime.block_on(async {
        signals.on_trigger(move |trigger| ask(trigger, &[]));
        let clusters = &rules.clusters;
        let remote = Arc::clone(&input);
        let on_event =
            |event: LoopEvent<'_>| reporter.record(&event, || remote.take_state(), || remote.answers());
        let deliveries =
            deliver::follow(input, clusters, &options, &loop_timing, &mut triggers, &draining, on_event);
        let end = tokio::select! {
            end = deliveries => end,
            // Every delivery would fail from now on, and the process look alive.
            error = remote.ended() => Some(Err(error)),
        };
        match end {
            Some(Ok(report)) => Ok(Some(report)),
            Some(Err(error)) => Err(error.into()),
            None if once => Err(Error::Interrupted),
            None => {
                info!("drained: no delivery is running any more");
                Ok(None)
            }
        }
    })
}
