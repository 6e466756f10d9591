//! `POST /sync`: authenticates webhooks, which trigger an attempt, and limits their rate.
//!
//! A request is genuine with any one of
//!
//! - GitHub's `X-Hub-Signature-256: sha256=<hex>`, HMAC-SHA256 over the raw body;
//! - Gitea's and Forgejo's `X-Gitea-Signature` / `X-Forgejo-Signature: <hex>`, the same without the prefix;
//! - GitLab's `X-Gitlab-Token: <secret>`;
//! - `Authorization: Bearer <secret>`, for a user or a script.
//!
//! Every active secret is tried, so that one can be rotated while senders still use the old one. Comparisons take
//! constant time, whatever the position or length of a difference. The body is fed to the HMAC as it arrives and not
//! kept, so large bodies cost no memory. Its content is never interpreted, so a sender cannot choose what we do: a
//! webhook, and a ping, too, only triggers an attempt.
//!
//! A delivery that was seen before triggers nothing. A replay under a new delivery id (ids are not signed) is
//! recognized by its signature. A replay that gets past both costs one more request to the remote.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_lc_rs::hmac;
use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, StatusCode};
use futures_util::StreamExt;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use super::TriggerFn;
use super::ceiling::Ceiling;
use super::proof::{Claims, Key, read_keys};
use crate::phase::Trigger;
use crate::repeats::{Repeats, suppressed};
use crate::{clock, detached_io};

/// The largest body, in bytes. GitHub caps its payloads at 25 MB, but a push of twenty commits has some tens of
/// kilobytes.
const MAX_BODY: u64 = 1 << 20;

/// How long a body may take to arrive, and the secrets to be read.
const BODY_DEADLINE: Duration = Duration::from_secs(10);

/// The most bodies that are read at one time. When one more comes, the oldest is dropped: a genuine body is small and
/// arrives within milliseconds, so slow ones cannot keep it out.
const MAX_BODIES: usize = 64;

/// The token bucket of accepted requests: tokens per second, and its size.
const RATE: f64 = 5.0;
const BURST: f64 = 20.0;

/// How many traces of deliveries are remembered (an id and a signature each: 1,024 deliveries), and for how long:
/// through a sender's retries, yet so short that a user who presses "redeliver" later gets an attempt.
const REMEMBERED: usize = 2048;
const REMEMBERED_FOR: Duration = Duration::from_secs(600);

/// The result of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WebhookOutcome {
    /// Genuine and new: triggers an attempt.
    Accepted,
    /// Genuine, but seen before.
    Replayed,
    /// Genuine, but over the rate limit.
    Limited,
    /// No valid signature or token. The answer does not say which, so that it helps no attacker.
    Refused,
    /// No secret is configured.
    Closed,
    /// The secrets could not be read.
    NoSecret,
    /// The body is larger than [`MAX_BODY`].
    TooLarge,
    /// The body was not complete in time, or was dropped to make room.
    Incomplete,
    /// Genuine, but for a source that does not exist.
    Unknown,
}

impl WebhookOutcome {
    /// Returns the status code, and a line for the sender's log of deliveries.
    pub(super) fn answer(self) -> (StatusCode, &'static str) {
        match self {
            Self::Accepted => (StatusCode::ACCEPTED, "accepted: the remote will be polled\n"),
            Self::Replayed => (StatusCode::OK, "this delivery was seen before; nothing to do\n"),
            Self::Limited => (StatusCode::TOO_MANY_REQUESTS, "too many requests; a sync is already due\n"),
            Self::Refused => (StatusCode::FORBIDDEN, "forbidden: no valid signature or token\n"),
            Self::Closed => {
                let text = "forbidden: this route is closed, no webhook secret is configured (--webhook-secret-file)\n";
                (StatusCode::FORBIDDEN, text)
            }
            Self::NoSecret => {
                (StatusCode::SERVICE_UNAVAILABLE, "the webhook secret cannot be read; see the log\n")
            }
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "the body is larger than 1 MiB\n"),
            Self::Incomplete => (StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time\n"),
            Self::Unknown => (StatusCode::NOT_FOUND, "there is no such source\n"),
        }
    }

    /// All results, for the metric.
    const ALL: [Self; 9] = [
        Self::Accepted,
        Self::Replayed,
        Self::Limited,
        Self::Refused,
        Self::Closed,
        Self::NoSecret,
        Self::TooLarge,
        Self::Incomplete,
        Self::Unknown,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Replayed => "replayed",
            Self::Limited => "limited",
            Self::Refused => "refused",
            Self::Closed | Self::NoSecret => "no_secret",
            Self::TooLarge => "too_large",
            Self::Incomplete => "incomplete",
            Self::Unknown => "unknown_source",
        }
    }
}

/// The result of a request, and why, if there is more to say than the result does.
pub(super) struct Decision {
    pub(super) outcome: WebhookOutcome,
    pub(super) why: Option<String>,
}

impl From<WebhookOutcome> for Decision {
    fn from(outcome: WebhookOutcome) -> Self {
        Self { outcome, why: None }
    }
}

/// Decides which requests to `POST /sync` are accepted, and counts and logs them.
pub(super) struct Gate {
    /// Files with the secrets.
    secrets: Vec<PathBuf>,
    /// The bodies being read.
    bodies: Ceiling<MAX_BODIES>,
    memory: Mutex<Memory>,
    /// Limits the log of rejected requests, by the label of the result.
    rejections: Mutex<HashMap<&'static str, Repeats>>,
    counts: ResultCounts,
}

type ResultCounts = Family<[(&'static str, &'static str); 1], Counter>;

impl Gate {
    pub(super) fn new(secrets: Vec<PathBuf>, registry: &mut Registry) -> Self {
        let counts: ResultCounts = Family::default();
        for decision in WebhookOutcome::ALL {
            drop(counts.get_or_create(&[("result", decision.label())]));
        }
        registry.register("webhooks", "Requests to POST /sync, by result", counts.clone());
        let memory = Mutex::new(Memory::new(clock::now().boottime));
        Self { secrets, bodies: Ceiling::default(), memory, rejections: Mutex::default(), counts }
    }

    /// Decides on one request, counts it, and logs a rejection. `unknown` says why a source that it names does not
    /// exist; `None` if all exist. It is called for genuine requests only.
    pub(super) async fn check_request(
        &self,
        headers: &HeaderMap,
        body: Body,
        unknown: impl FnOnce() -> Option<String>,
    ) -> Decision {
        let decision = self.try_check_request(headers, body, unknown).await;
        let decision = decision.map_or_else(|decision| decision, Decision::from);
        self.counts.get_or_create(&[("result", decision.outcome.label())]).inc();
        self.log_rejection(&decision);
        decision
    }

    /// Logs a rejection, limited as repeated failures are, for each kind by itself: a client can send as many requests
    /// as it likes, of all kinds in turn.
    fn log_rejection(&self, Decision { outcome, why }: &Decision) {
        if matches!(outcome, WebhookOutcome::Accepted | WebhookOutcome::Replayed) {
            return;
        }
        let label = outcome.label();
        let why = why.as_deref().unwrap_or_else(|| outcome.answer().1.trim_end());
        // What is wrong with the secrets is news when it changes. What is wrong with a request is chosen by its sender.
        let text = if *outcome == WebhookOutcome::NoSecret { why } else { label };
        if let Some(times) = lock(&self.rejections).entry(label).or_default().should_log(text) {
            tracing::warn!(result = label, "rejected a webhook request: {why}{}", suppressed(times));
        }
    }

    async fn try_check_request(
        &self,
        headers: &HeaderMap,
        body: Body,
        unknown: impl FnOnce() -> Option<String>,
    ) -> Result<WebhookOutcome, Decision> {
        if self.secrets.is_empty() {
            return Err(WebhookOutcome::Closed.into());
        }
        let claims = Claims::read(headers);
        if claims.is_empty() {
            return Err(WebhookOutcome::Refused.into());
        }
        if body.size_hint().lower() > MAX_BODY {
            return Err(WebhookOutcome::TooLarge.into());
        }
        let keys = self.keys().await?;
        if !claims.may_be_valid(&keys) {
            return Err(WebhookOutcome::Refused.into());
        }
        let dropped = CancellationToken::new(); // cancelled to make room
        let _ended = dropped.clone().drop_guard();
        self.bodies.enter(&dropped);
        let tags = tokio::select! {
            tags = digest(&keys, body) => tags?,
            () = tokio::time::sleep(BODY_DEADLINE) => return Err(WebhookOutcome::Incomplete.into()),
            () = dropped.cancelled() => return Err(WebhookOutcome::Incomplete.into()),
        };
        if !claims.valid(&keys, &tags) {
            return Err(WebhookOutcome::Refused.into());
        }
        if let Some(why) = unknown() {
            return Err(Decision { outcome: WebhookOutcome::Unknown, why: Some(why) });
        }
        Ok(lock(&self.memory).admit(claims.traces(), clock::now().boottime))
    }

    /// Reads the active secrets from their files.
    async fn keys(&self) -> Result<Vec<Key>, Decision> {
        let files = self.secrets.clone();
        let first = files.first().cloned().unwrap_or_default();
        let read = detached_io::run(&first, move || read_keys(&files));
        let read = tokio::time::timeout(BODY_DEADLINE, read).await;
        match read {
            Ok(Some(Ok(keys))) if !keys.is_empty() => Ok(keys),
            Ok(Some(Ok(_))) => Err(no_secret("the secret files hold no secret".to_owned())),
            Ok(Some(Err(error))) => Err(no_secret(format!("its secret cannot be read: {error}"))),
            Ok(None) => Err(no_secret("there was no thread to read its secret on".to_owned())),
            Err(_) => Err(no_secret("its secret could not be read in time".to_owned())),
        }
    }
}

fn no_secret(why: String) -> Decision {
    Decision { outcome: WebhookOutcome::NoSecret, why: Some(why) }
}

/// The sources of requests that were over the rate limit. They are triggered when the next token of the bucket is due,
/// so that the event is not lost if the sender does not try again.
#[derive(Clone, Default)]
pub(super) struct Deferred(Arc<Mutex<Option<BTreeSet<String>>>>);

impl Deferred {
    /// Adds the sources that a request names; all if it names none.
    pub(super) fn add(&self, sources: Vec<String>, trigger: &TriggerFn) {
        let mut pending = lock(&self.0);
        match &mut *pending {
            // All of them, by then.
            Some(names) if names.is_empty() || sources.is_empty() => names.clear(),
            Some(names) => names.extend(sources),
            None => {
                *pending = Some(sources.into_iter().collect());
                let pending = Arc::clone(&self.0);
                let trigger = Arc::clone(trigger);
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_secs_f64(1.0 / RATE)).await;
                    let names: Vec<String> = lock(&pending).take().into_iter().flatten().collect();
                    trigger(Trigger::Webhook, &names);
                });
            }
        }
    }
}

/// Locks a mutex. Poisoning is harmless: the guarded values are consistent after every step.
fn lock<T>(guarded: &Mutex<T>) -> MutexGuard<'_, T> {
    guarded.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads a body and returns its HMAC under each key.
async fn digest(keys: &[Key], body: Body) -> Result<Vec<hmac::Tag>, WebhookOutcome> {
    let mut contexts: Vec<_> = keys.iter().map(|key| key.context()).collect();
    let mut length = 0;
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| WebhookOutcome::Incomplete)?;
        length += chunk.len() as u64;
        if length > MAX_BODY {
            return Err(WebhookOutcome::TooLarge);
        }
        contexts.iter_mut().for_each(|context| context.update(&chunk));
    }
    Ok(contexts.into_iter().map(hmac::Context::sign).collect())
}

/// The deliveries that were seen, and the token bucket. The time is an argument.
struct Memory {
    seen: HashSet<String>,
    order: VecDeque<(Duration, String)>,
    tokens: f64,
    filled: Duration,
}

impl Memory {
    fn new(now: Duration) -> Self {
        Self { seen: HashSet::new(), order: VecDeque::new(), tokens: BURST, filled: now }
    }

    /// Accepts a genuine request unless it was seen before or is over the rate limit.
    fn admit(&mut self, traces: Vec<String>, now: Duration) -> WebhookOutcome {
        while self.order.front().is_some_and(|(at, _)| now.saturating_sub(*at) >= REMEMBERED_FOR) {
            self.forget_oldest();
        }
        if traces.iter().any(|trace| self.seen.contains(trace)) {
            return WebhookOutcome::Replayed;
        }
        self.tokens = (self.tokens + now.saturating_sub(self.filled).as_secs_f64() * RATE).min(BURST);
        self.filled = now;
        if self.tokens < 1.0 {
            return WebhookOutcome::Limited;
        }
        self.tokens -= 1.0;
        for trace in traces {
            if self.seen.insert(trace.clone()) {
                self.order.push_back((now, trace));
            }
        }
        while self.order.len() > REMEMBERED {
            self.forget_oldest();
        }
        WebhookOutcome::Accepted
    }

    fn forget_oldest(&mut self) {
        if let Some((_, oldest)) = self.order.pop_front() {
            self.seen.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_bucket_lets_a_burst_through_and_refills() {
        let mut memory = Memory::new(at(0));
        let admitted =
            (0..100).filter(|n| memory.admit(vec![n.to_string()], at(0)) == WebhookOutcome::Accepted).count();
        assert_eq!(admitted, 20);
        assert_eq!(memory.admit(vec!["late".into()], at(1)), WebhookOutcome::Accepted);
    }

    #[test]
    fn a_rate_limited_delivery_is_not_remembered_as_seen() {
        let mut memory = Memory::new(at(0));
        for n in 0..20 {
            memory.admit(vec![n.to_string()], at(0));
        }
        assert_eq!(memory.admit(vec!["x".into()], at(0)), WebhookOutcome::Limited);
        assert_eq!(memory.admit(vec!["x".into()], at(1)), WebhookOutcome::Accepted, "its sender tries again");
    }

    #[tokio::test(start_paused = true)]
    async fn what_limited_requests_were_for_is_triggered_together_with_the_next_token() {
        let triggered = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&triggered);
        let trigger: TriggerFn = Arc::new(move |_, names| noted.lock().unwrap().push(names.to_vec()));
        let deferred = Deferred::default();
        for rounds in [vec![vec!["b"], vec!["a"], vec!["b"]], vec![vec!["a"], vec![], vec!["b"]]] {
            for names in rounds {
                deferred.add(names.into_iter().map(str::to_owned).collect(), &trigger);
            }
            tokio::time::sleep(at(1)).await;
        }
        assert_eq!(*triggered.lock().unwrap(), [vec!["a".to_owned(), "b".to_owned()], vec![]]);
    }

    #[test]
    fn deliveries_are_forgotten_after_ten_minutes_or_when_there_are_too_many() {
        let mut memory = Memory::new(at(0));
        memory.admit(vec!["first".into()], at(0));
        assert_eq!(memory.admit(vec!["first".into()], at(599)), WebhookOutcome::Replayed);
        assert_eq!(memory.admit(vec!["first".into()], at(600)), WebhookOutcome::Accepted);
        for n in 0..REMEMBERED as u64 {
            memory.admit(vec![n.to_string()], at(601 + n / 5)); // as fast as the bucket fills
        }
        assert_eq!(memory.seen.len(), memory.order.len());
        assert!(memory.order.len() <= REMEMBERED);
        assert_eq!(memory.admit(vec!["first".into()], at(1000)), WebhookOutcome::Accepted);
    }
}
