//! What a poll does with its answers.

use std::sync::{Arc, MutexGuard, OnceLock, PoisonError};

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::SourceSet;
use crate::sources::Requests;
use crate::sources::poll::PollResult;

/// What a poll does with its answers: it passes them to the set, and requests an attempt if none is waiting for them.
#[derive(Clone)]
pub(super) struct AnswerSender {
    pub(super) send: mpsc::UnboundedSender<(String, PollResult)>,
    /// True while an attempt waits for answers. The lock is held while an answer is sent, so that each answer is either
    /// taken by the waiting attempt or requests another one.
    pub(super) awaited: Arc<std::sync::Mutex<bool>>,
    pub(super) trigger: Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>,
    pub(super) requests: Requests,
}

impl AnswerSender {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks answers as awaited until the guard is dropped.
    pub(super) fn begin_waiting(&self) -> WaitingGuard {
        *self.lock() = true;
        WaitingGuard(self.clone())
    }

    /// Passes on the result of a poll of the repository `name`. `was_failing` says whether its previous poll failed,
    /// `requested_again` whether it was requested since this poll began.
    pub(super) fn deliver(&self, name: String, result: PollResult, was_failing: bool, requested_again: bool) {
        let is_new = result.is_new || result.has_failed() || was_failing;
        let awaited = self.lock();
        let _ = self.send.send((name, result)); // fails only if the set was dropped, at shutdown
        if requested_again || is_new && !*awaited {
            self.trigger();
        }
    }

    /// Requests an attempt for the sources that are due.
    pub(super) fn trigger(&self) {
        self.requests.note_due();
        self.trigger.get().into_iter().for_each(|trigger| trigger());
    }
}

pub(super) struct WaitingGuard(AnswerSender);

impl Drop for WaitingGuard {
    fn drop(&mut self) {
        *self.0.lock() = false;
    }
}

impl SourceSet {
    /// Requests another attempt if a repository that was requested was not polled, although it is idle now. Its poll
    /// ended while this attempt looked which repositories are requested: too late to be polled again, and too early to
    /// know of the request.
    pub(super) fn request_overlooked(&self) {
        let now = Instant::now();
        if self.repositories.values().any(|repository| repository.is_overlooked(now)) {
            self.answer_sender.trigger();
        }
    }
}

/// Requests an attempt at the given time.
pub(super) fn wake_at(then: Instant, answer_sender: &AnswerSender, polls: &mut JoinSet<()>) {
    let answer_sender = answer_sender.clone();
    polls.spawn(async move {
        tokio::time::sleep_until(then).await;
        answer_sender.trigger();
    });
}
