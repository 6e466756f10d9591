//! Which repositories an attempt polls, and how long it waits for their answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::answer_sender::wake_at;
use super::{Followed, Repository, SourceSet};
use crate::revision::{Ref, Revision};
use crate::sources::poll::{PollRequest, PollResult, poll};
use crate::sources::requests::Requested;

/// How long an attempt waits for answers once something is published. A later answer requests another attempt.
const ANSWERS_WAIT: Duration = Duration::from_secs(1);

/// The least time that an attempt waits if a delivery needs the answers.
const RULES_WAIT: Duration = Duration::from_secs(10);

impl SourceSet {
    /// Marks the repositories of requested sources. The mark stays until the repository is polled. If it is paused, an
    /// attempt is requested for when the pause may end.
    fn mark_requested(&mut self, requested: &Requested) {
        let now = Instant::now();
        for (name, repository) in &mut self.repositories {
            let mut sources = self.sources.iter().filter(|source| source.mirror == *name);
            let is_requested = match requested {
                Requested::Unrestricted => false,
                Requested::All => true,
                Requested::Sources(named) => sources.any(|source| named.contains(&source.listed.name)),
            };
            if is_requested
                && !repository.requested.swap(true, Ordering::Relaxed)
                && let Some(until) = repository.paused_until(now)
            {
                wake_at(until, &self.answer_sender, &mut self.polls);
            }
        }
    }

    /// Starts polls of the repositories that are neither being polled nor paused: of all, or of those that are
    /// requested or due. In an outage of all repositories the attempts themselves back off, so only the pauses that
    /// servers ask for count. The same holds for a process that ends with the first publication.
    pub(super) fn start_polls(&mut self, requested: &Requested, kept: &[Revision], is_outage: bool) {
        self.mark_requested(requested);
        // A delivery needs the answers of all sources.
        let polls_all = !matches!(requested, Requested::Sources(_)) || self.delivery_waits();
        let kept_parts = self.parts_of(kept);
        let now = Instant::now();
        self.polled_at = Some(now);
        let is_shortened = is_outage || self.options.root && self.options.one_time;
        for (name, repository) in &mut self.repositories {
            let until =
                if is_shortened { repository.requestable_from(now) } else { repository.paused_until(now) };
            if repository.busy || until.is_some() {
                continue;
            }
            let sources = self.sources.iter().filter(|source| source.mirror == *name);
            let named = |source: &Followed| (source.listed.ref_text.clone(), source.listed.reference.clone());
            let refs: BTreeMap<String, Ref> = sources.map(named).collect();
            let is_wanted = polls_all || repository.is_due(&refs, now, self.options.period);
            if refs.is_empty() || !is_wanted {
                continue; // without refs, its last source was removed from the file while it was being polled
            }
            let kept_revisions =
                kept_parts.iter().filter(|part| part.mirror == *name).map(|part| part.revision);
            let published =
                self.published.iter().filter(|part| part.mirror == *name).map(|part| part.revision);
            let request = PollRequest {
                mirror: Arc::clone(&repository.mirror),
                turn_wait: repository.turn_wait.clone(),
                refs,
                known: repository.known.clone(),
                failed: repository.errors.keys().cloned().collect(),
                refused: repository.refused.clone(),
                kept_revisions: kept_revisions.collect(),
                published: published.collect(),
                limit: self.options.limit,
            };
            repository.busy = true;
            repository.polled_at = Some(now);
            let answer_sender = self.answer_sender.clone();
            let name = name.clone();
            repository.requested.store(false, Ordering::Relaxed);
            let was_failing = repository.failures > 0;
            let requested = Arc::clone(&repository.requested);
            self.polls.spawn(async move {
                let result = poll(request).await;
                answer_sender.deliver(name, result, was_failing, requested.load(Ordering::Relaxed));
            });
        }
    }

    /// Repositories that the attempt does not wait for: those with a poll of an earlier attempt still running, and,
    /// unless a delivery waits, those that fail.
    pub(super) fn not_awaited(&self) -> BTreeSet<String> {
        let is_late =
            |repository: &Repository| repository.busy || repository.failures > 0 && !self.delivery_waits();
        let late = self.repositories.iter().filter(|(_, repository)| is_late(repository));
        late.map(|(name, _)| name.clone()).collect()
    }

    /// Returns true if there is a commit to publish, as there always is once something is published.
    fn has_commit(&self) -> bool {
        let has_commit = |source: &Followed| {
            let repository = self.repositories.get(&source.mirror);
            repository.is_some_and(|repository| repository.known.contains_key(&source.listed.ref_text))
        };
        !self.is_first_publication() || self.sources.iter().any(has_commit)
    }

    /// How long an attempt waits for answers if the set can be published without some of them.
    fn answers_wait(&self) -> Duration {
        if !self.delivery_waits() {
            return ANSWERS_WAIT;
        }
        // Twice the duration of the slowest last poll, so that repositories that become slower still answer in time.
        let slowest = self.repositories.values().filter_map(|repository| repository.last_duration).max();
        RULES_WAIT.max(slowest.unwrap_or_default() * 2)
    }

    /// Until when an attempt that began at `start` waits for answers at most. A poll may take longer than the attempt
    /// if other remotes use up its time, and then the attempt must not end without an error that names the source. A
    /// poll that exceeds its own time has ended by then. A run that is a single attempt with no limit of its own waits
    /// longer, because first packs are indexed one after the other, and nobody would ask for the rest later.
    pub(super) fn answers_deadline(&self, start: Instant) -> Instant {
        let waits_longer = self.options.one_time && !self.options.attempt_is_bounded;
        let times = if waits_longer { 2.0 } else { 0.95 };
        start + self.options.limit.time.mul_f64(times)
    }

    /// Waits for answers: first for those without which the set cannot be published, then for a limited time for the
    /// others except those in `not_awaited`. That time begins once there is a commit to publish, and in an outage of
    /// all repositories not before the first answer.
    pub(super) async fn wait_for_answers(
        &mut self,
        not_awaited: &BTreeSet<String>,
        is_outage: bool,
        start: Instant,
    ) {
        let limit = self.answers_wait();
        let mut deadline = self.answers_deadline(start);
        let mut is_limited = false;
        let mut can_publish = !is_outage;
        loop {
            let busy = self.repositories.iter().filter(|(_, repository)| repository.busy);
            let busy: Vec<&String> = busy.map(|(name, _)| name).collect();
            let needs_more = busy.iter().any(|name| self.is_required(name, &self.sources, self.on_failure));
            if !needs_more && busy.iter().all(|name| not_awaited.contains(*name)) {
                break;
            }
            if !needs_more && can_publish && !is_limited && self.has_commit() {
                is_limited = true;
                deadline = deadline.min(Instant::now() + limit);
            }
            match tokio::time::timeout_at(deadline, self.answers.recv()).await {
                Ok(Some((name, result))) => {
                    let is_first = !self.any_reached;
                    self.accept(&name, result);
                    can_publish |= is_first && self.any_reached;
                }
                Ok(None) | Err(_) => break,
            }
        }
        while let Some(ended) = self.polls.try_join_next() {
            if let Err(error) = ended
                && error.is_panic()
            {
                std::panic::resume_unwind(error.into_panic()); // its repository would stay busy for good
            }
        }
    }

    pub(super) fn accept_answers(&mut self) {
        while let Ok((name, result)) = self.answers.try_recv() {
            self.accept(&name, result);
        }
    }

    pub(super) fn accept(&mut self, name: &str, result: PollResult) {
        let Some(repository) = self.repositories.get_mut(name) else { return };
        self.polled.insert(name.to_owned());
        self.any_reached |= result.is_reached;
        repository.accept(result, &self.options.backoff);
        let now = Instant::now();
        // If the pause ends before the next attempt is due, request one for that time.
        if let Some(until) = repository.paused_until(now).filter(|until| *until < now + self.options.period) {
            wake_at(until, &self.answer_sender, &mut self.polls);
        }
    }
}
