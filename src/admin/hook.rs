//! `POST /sync`: who may ask for a look at the remote.
//!
//! A request opens the route with any one of
//!
//! - GitHub's `X-Hub-Signature-256: sha256=<hex>`, HMAC-SHA256 over the raw body;
//! - Gitea's and Forgejo's `X-Gitea-Signature` / `X-Forgejo-Signature: <hex>`, the same without the prefix;
//! - GitLab's `X-Gitlab-Token: <secret>`;
//! - `Authorization: Bearer <secret>`, for a user or a script.
//!
//! Every active secret is tried, so that one can be rotated while senders still use the old one. Comparisons take the
//! same time wherever, and in whatever length, the two differ. The body passes through the HMAC as it arrives: nothing
//! of it is kept, so that large bodies cost no memory. What it says is never looked at, because anyone who could make
//! us act on it could choose what we do; a hook only means "look now", and a ping is a look, too.
//!
//! A delivery seen before is answered without a look. A replay under a new delivery id (ids are not signed) is known
//! by its signature; and past both, all that a replay can buy is one more question to the remote.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_lc_rs::hmac;
use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, StatusCode};
use futures_util::StreamExt;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use super::proof::{Claims, Key, read_keys};
use crate::repeats::{Repeats, suppressed};
use crate::{clock, detached_io};

/// A body may be so long. GitHub caps its payloads at 25 MB, but a push of twenty commits has some tens of kilobytes.
const MAX_BODY: u64 = 1 << 20;

/// A body must be complete after so long.
const BODY_DEADLINE: Duration = Duration::from_secs(10);

/// Bodies read at one time. When one more comes the oldest is cut: a genuine one is small and done in milliseconds, so
/// that slow ones cannot keep it out.
const MAX_BODIES: usize = 64;

/// Accepted requests per second, and how many may come at once.
const RATE: f64 = 5.0;
const BURST: f64 = 20.0;

/// Traces of deliveries remembered (an id and a signature each: 1,024 deliveries), and for how long: through a
/// sender's retries, yet so short that a user who presses "redeliver" later gets the look they want.
const REMEMBERED: usize = 2048;
const REMEMBERED_FOR: Duration = Duration::from_secs(600);

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WebhookOutcome {
    /// Genuine and new: look at the remote.
    Accepted,
    /// Genuine, but seen before.
    Replayed,
    /// Genuine, but too many.
    Limited,
    /// No valid signature or token. Says no more, to everybody the same.
    Refused,
    /// No secret is configured.
    Closed,
    /// The secrets could not be read.
    NoSecret,
    /// Over [`MAX_BODY`].
    TooLarge,
    /// Not complete in time, or cut to make room.
    Incomplete,
    /// Genuine, but for a source that there is not.
    Unknown,
}

impl WebhookOutcome {
    /// Status code and one line for the sender's log of deliveries.
    pub(super) fn answer(self) -> (StatusCode, &'static str) {
        match self {
            Self::Accepted => (StatusCode::ACCEPTED, "accepted: the remote will be looked at\n"),
            Self::Replayed => (StatusCode::OK, "this delivery was seen before; nothing to do\n"),
            Self::Limited => (StatusCode::TOO_MANY_REQUESTS, "too many requests; a look is already due\n"),
            Self::Refused => (StatusCode::FORBIDDEN, "forbidden: no valid signature or token\n"),
            Self::Closed => {
                (StatusCode::FORBIDDEN, "forbidden: this route is closed, no webhook secret is configured\n")
            }
            Self::NoSecret => {
                (StatusCode::SERVICE_UNAVAILABLE, "the webhook secret cannot be read; see the log\n")
            }
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "the body is larger than 1 MiB\n"),
            Self::Incomplete => (StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time\n"),
            Self::Unknown => (StatusCode::NOT_FOUND, "there is no such source\n"),
        }
    }

    /// All of them, for what counts them.
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
            Self::Refused | Self::Closed => "refused",
            Self::NoSecret => "no_secret",
            Self::TooLarge => "too_large",
            Self::Incomplete => "incomplete",
            Self::Unknown => "unknown_source",
        }
    }
}

/// The gate before `POST /sync`.
pub(super) struct Gate {
    secrets: Vec<PathBuf>,
    bodies: Bodies,
    memory: Mutex<Memory>,
    said: Mutex<RejectionLog>,
    answered: Answered,
}

type Answered = Family<[(&'static str, &'static str); 1], Counter>;

impl Gate {
    pub(super) fn new(secrets: Vec<PathBuf>, registry: &mut Registry) -> Self {
        let answered: Answered = Family::default();
        for decision in WebhookOutcome::ALL {
            drop(answered.get_or_create(&[("result", decision.label())]));
        }
        registry.register("webhooks", "Requests to POST /sync, by how they ended", answered.clone());
        let memory = Mutex::new(Memory::new(clock::now().boottime));
        Self { secrets, bodies: Bodies::default(), memory, said: Mutex::default(), answered }
    }

    /// Judges one request and counts it. `unknown` is why there is no source that it names.
    pub(super) async fn check_request(
        &self,
        headers: &HeaderMap,
        body: Body,
        unknown: Option<&str>,
    ) -> WebhookOutcome {
        let decision = self.try_check_request(headers, body, unknown.is_some()).await;
        let decision = decision.unwrap_or_else(|decision| decision);
        self.answered.get_or_create(&[("result", decision.label())]).inc();
        self.log_rejection(decision, unknown);
        decision
    }

    /// A refusal is logged as often as a failure that lasts, each kind by itself: who may connect can send as many as
    /// they like, of all kinds in turn.
    fn log_rejection(&self, decision: WebhookOutcome, unknown: Option<&str>) {
        if matches!(decision, WebhookOutcome::Accepted | WebhookOutcome::Replayed) {
            return;
        }
        let mut said = lock(&self.said);
        let why = match (decision, said.secrets.take()) {
            (WebhookOutcome::NoSecret, Some(why)) => why,
            (WebhookOutcome::Unknown, _) => unknown.unwrap_or_default().to_owned(),
            _ => decision.answer().1.trim_end().to_owned(),
        };
        if let Some(times) = said.refused.entry(decision.label()).or_default().should_log(decision.label()) {
            tracing::warn!(
                result = decision.label(),
                "a webhook was turned away: {why}{}",
                suppressed(times)
            );
        }
    }

    async fn try_check_request(
        &self,
        headers: &HeaderMap,
        body: Body,
        is_unknown: bool,
    ) -> Result<WebhookOutcome, WebhookOutcome> {
        if self.secrets.is_empty() {
            return Err(WebhookOutcome::Closed);
        }
        let claims = Claims::read(headers);
        if claims.is_empty() {
            return Err(WebhookOutcome::Refused);
        }
        if body.size_hint().lower() > MAX_BODY {
            return Err(WebhookOutcome::TooLarge);
        }
        let keys = self.keys().await?;
        if !claims.may_be_valid(&keys) {
            return Err(WebhookOutcome::Refused);
        }
        let place = self.bodies.enter();
        let tags = tokio::select! {
            tags = digest(&keys, body) => tags?,
            () = tokio::time::sleep(BODY_DEADLINE) => return Err(WebhookOutcome::Incomplete),
            () = place.cut.cancelled() => return Err(WebhookOutcome::Incomplete),
        };
        if !claims.valid(&keys, &tags) {
            return Err(WebhookOutcome::Refused);
        }
        if is_unknown {
            return Err(WebhookOutcome::Unknown);
        }
        Ok(lock(&self.memory).admit(claims.traces(), clock::now().boottime))
    }

    /// The active secrets, as they are in the files now.
    async fn keys(&self) -> Result<Vec<Key>, WebhookOutcome> {
        let files = self.secrets.clone();
        let first = files.first().cloned().unwrap_or_default();
        let read = detached_io::run(&first, move || read_keys(&files));
        let read = tokio::time::timeout(BODY_DEADLINE, read).await;
        let late = |_| self.no_secret("its secret could not be read in time".to_owned());
        let read = read.map_err(late)?;
        match read {
            Some(Ok(keys)) if !keys.is_empty() => Ok(keys),
            Some(Ok(_)) => Err(self.no_secret("the secret files hold no secret".to_owned())),
            Some(Err(error)) => Err(self.no_secret(format!("its secret cannot be read: {error}"))),
            None => Err(WebhookOutcome::NoSecret),
        }
    }
}

impl Gate {
    fn no_secret(&self, why: String) -> WebhookOutcome {
        lock(&self.said).secrets = Some(why);
        WebhookOutcome::NoSecret
    }
}

/// What the log holds of requests that were turned away.
#[derive(Default)]
struct RejectionLog {
    refused: HashMap<&'static str, Repeats>,
    /// What is wrong with the secrets, until it is said.
    secrets: Option<String>,
}

/// What the mutexes guard is whole after every step, so that a panic elsewhere spoils nothing.
fn lock<T>(guarded: &Mutex<T>) -> MutexGuard<'_, T> {
    guarded.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The bodies being read, oldest first.
#[derive(Default)]
struct Bodies(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    places: VecDeque<(u64, CancellationToken)>,
    next: u64,
}

/// A body's place among them; left when dropped.
struct BodySlot<'b> {
    bodies: &'b Bodies,
    number: u64,
    cut: CancellationToken,
}

impl Bodies {
    fn enter(&self) -> BodySlot<'_> {
        let mut queue = lock(&self.0);
        if queue.places.len() >= MAX_BODIES
            && let Some((_, oldest)) = queue.places.pop_front()
        {
            oldest.cancel();
        }
        let number = queue.next;
        let cut = CancellationToken::new();
        queue.next += 1;
        queue.places.push_back((number, cut.clone()));
        BodySlot { bodies: self, number, cut }
    }
}

impl Drop for BodySlot<'_> {
    fn drop(&mut self) {
        lock(&self.bodies.0).places.retain(|(number, _)| *number != self.number);
    }
}

/// The body's tag under every key.
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

/// Deliveries seen, and the token bucket. Time is an argument.
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

    /// Lets a genuine request in, unless it was seen before or there are too many.
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
    fn what_was_limited_is_not_remembered_as_seen() {
        let mut memory = Memory::new(at(0));
        for n in 0..20 {
            memory.admit(vec![n.to_string()], at(0));
        }
        assert_eq!(memory.admit(vec!["x".into()], at(0)), WebhookOutcome::Limited);
        assert_eq!(memory.admit(vec!["x".into()], at(1)), WebhookOutcome::Accepted, "its sender tries again");
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
