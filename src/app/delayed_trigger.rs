//! The functions that webhooks and signals call to trigger an attempt of the sync loop.
//!
//! A push triggers all instances of a fleet at one moment; `--trigger-spread` delays each instance's attempt by a
//! random time, so that they do not all ask the remote at one moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;

use crate::admin;
use crate::phase::Trigger;
use crate::retry::random_fraction;
use crate::sources::Requests;
use crate::telemetry::metrics::{Metrics, SourceLabel};

/// A function that triggers an attempt.
pub(super) type TriggerFn = Arc<dyn Fn(Trigger) + Send + Sync>;

/// Wraps `trigger_attempt` so that it is called after a random part of `within`. Triggers that arrive before that are
/// counted and join the pending one. With zero `within`, returns `trigger_attempt` itself.
pub(super) fn spread(
    runtime: &Handle,
    within: Duration,
    metrics: &Metrics,
    trigger_attempt: TriggerFn,
) -> TriggerFn {
    if within.is_zero() {
        return trigger_attempt;
    }
    let runtime = runtime.clone();
    let waiting = Arc::new(AtomicBool::new(false));
    let counted = metrics.triggers.clone();
    Arc::new(move |trigger: Trigger| {
        if waiting.swap(true, Ordering::SeqCst) {
            counted.get_or_create(&SourceLabel { source: trigger.label() }).inc();
            return;
        }
        let trigger_attempt = Arc::clone(&trigger_attempt);
        let waiting = Arc::clone(&waiting);
        runtime.spawn(async move {
            tokio::time::sleep(within.mul_f64(random_fraction())).await;
            // Before `trigger_attempt`, because a trigger from now on may be for a newer revision.
            waiting.store(false, Ordering::SeqCst);
            trigger_attempt(trigger);
        });
    })
}

/// Wraps `trigger_attempt` so that the sources a trigger is for (all of them, if it names none) are added to `requests`
/// before the attempt is triggered: one attempt may serve several triggers.
pub(super) fn requesting(requests: &Requests, trigger_attempt: TriggerFn) -> admin::TriggerFn {
    let requests = requests.clone();
    Arc::new(move |trigger, sources| {
        requests.request(sources);
        trigger_attempt(trigger);
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_instance_triggers_once_at_a_random_time_within_the_spread() {
        let began = Instant::now();
        let triggered = Arc::<Mutex<Vec<Duration>>>::default();
        let within = Duration::from_secs(10);
        let metrics = Metrics::default();
        for _ in 0..200 {
            let triggered = Arc::clone(&triggered);
            let note = move |_| triggered.lock().unwrap().push(began.elapsed());
            let trigger_attempt = spread(&Handle::current(), within, &metrics, Arc::new(note));
            (0..5).for_each(|_| trigger_attempt(Trigger::Webhook));
        }
        tokio::time::sleep(Duration::from_secs(11)).await;
        let triggered = triggered.lock().unwrap();
        assert_eq!(triggered.len(), 200, "five webhooks at one moment are one trigger");
        let counted = metrics.triggers.get_or_create(&SourceLabel { source: "webhook" }).get();
        assert_eq!(counted, 800, "those that joined a pending one; the first is counted by what it triggers");
        for second in 0..10 {
            let count = triggered.iter().filter(|at| at.as_secs() == second).count();
            assert!((4..=50).contains(&count), "{count} of 200 within second {second}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn with_zero_spread_it_triggers_at_once() {
        let triggered = Arc::new(AtomicBool::new(false));
        let note = Arc::clone(&triggered);
        let trigger_attempt = spread(
            &Handle::current(),
            Duration::ZERO,
            &Metrics::default(),
            Arc::new(move |_| note.store(true, Ordering::SeqCst)),
        );
        trigger_attempt(Trigger::Signal);
        assert!(triggered.load(Ordering::SeqCst));
    }
}
