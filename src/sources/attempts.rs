//! Lets deliveries next to a root ask which revision the ref names. A delivery needs an answer that the remote gave
//! after the query was asked.
//!
//! The answer is the result of an attempt of the root's sync that began after the query. So only the sync talks to
//! the remote, with one set of deadlines and backoffs, and no revision is delivered before it is published.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;

use super::{Named, SourceError};
use crate::retry::ErrorClass;
use crate::revision::Revision;

/// The attempts so far.
#[derive(Clone, Debug, Default)]
struct AttemptHistory {
    /// The number of attempts that have started.
    started: u64,
    /// The number of the last attempt that gave an answer, and the answer.
    answered: Option<(u64, Result<Named, SourceError>)>,
    /// True if no attempt will follow, because the ref is a commit id.
    parked: bool,
}

/// The sync's side: it reports the attempts.
#[derive(Debug, Default)]
pub struct AttemptReporter {
    attempts: watch::Sender<AttemptHistory>,
    /// The number of queries without an answer.
    waiting_deliveries: Arc<AtomicUsize>,
}

impl AttemptReporter {
    /// Reports that an attempt begins.
    pub fn started(&self) {
        self.attempts.send_modify(|attempts| attempts.started += 1);
    }

    /// Reports the end of the attempt: with the revision the ref names, if the root has it. `None`: that revision waits
    /// for the minimum interval, so there is no answer yet.
    pub fn ended(&self, result: Result<Option<Named>, SourceError>) {
        if let Some(answer) = result.transpose() {
            self.attempts.send_modify(|attempts| attempts.answered = Some((attempts.started, answer)));
        }
    }

    /// Reports that no attempt follows.
    pub fn parked(&self) {
        self.attempts.send_modify(|attempts| attempts.parked = true);
    }

    /// Returns a handle for queries. `trigger` requests an attempt.
    pub fn revision_query(&self, trigger: impl Fn() + Send + Sync + 'static) -> RevisionQuery {
        let attempts = self.attempts.subscribe();
        RevisionQuery {
            trigger: Arc::new(trigger),
            attempts,
            waiting_deliveries: self.waiting_deliveries(),
            last: None,
        }
    }

    /// The number of queries that wait for an answer.
    pub fn waiting_deliveries(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.waiting_deliveries)
    }
}

/// The delivery's side: it asks the root's sync.
#[derive(Clone)]
pub struct RevisionQuery {
    trigger: Arc<dyn Fn() + Send + Sync>,
    attempts: watch::Receiver<AttemptHistory>,
    waiting_deliveries: Arc<AtomicUsize>,
    last: Option<Revision>,
}

impl RevisionQuery {
    /// Returns the revision that the ref names, as asked of the remote after this call. Returns once the root has the
    /// revision, which may take up to the minimum interval. If no attempt follows, because the ref is a commit id, it
    /// returns the answer of the last one, at once.
    ///
    /// # Errors
    /// When the attempt fails for any reason, or the sync has ended.
    pub async fn resolve(&self) -> Result<Named, SourceError> {
        let mut attempts = self.attempts.clone();
        // Before the attempts are counted: one that begins after that polls for this query.
        let _pending = WaitingDelivery::begin(&self.waiting_deliveries);
        let started = attempts.borrow().started;
        (self.trigger)();
        let answer_in = |attempts: &AttemptHistory| {
            let (number, answer) = attempts.answered.as_ref()?;
            (attempts.parked || *number > started).then(|| answer.clone())
        };
        let answered = attempts.wait_for(|attempts| answer_in(attempts).is_some()).await;
        let answer = answered.ok().and_then(|attempts| answer_in(&attempts));
        answer.unwrap_or_else(|| Err(sync_ended()))
    }

    /// Waits until the root has another revision than at the last call, and returns it. `None`: the sync has ended.
    pub async fn changed(&mut self) -> Option<Revision> {
        let last = self.last;
        let named = |attempts: &AttemptHistory| match &attempts.answered {
            Some((_, Ok(named))) if last != Some(named.revision) => Some(named.revision),
            _ => None,
        };
        let found = self.attempts.wait_for(|attempts| named(attempts).is_some()).await.ok()?;
        let found = named(&found);
        self.last = found;
        found
    }
}

/// Counts a query as waiting for an answer until it is dropped.
struct WaitingDelivery(Arc<AtomicUsize>);

impl WaitingDelivery {
    fn begin(waiting_deliveries: &Arc<AtomicUsize>) -> Self {
        waiting_deliveries.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(waiting_deliveries))
    }
}

impl Drop for WaitingDelivery {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The error of a query after the end of the sync.
fn sync_ended() -> SourceError {
    SourceError {
        what: "the sync of the root has ended".to_owned(),
        hints: vec!["nothing to do: treeswap is about to end, and its log has the reason".to_owned()],
        class: ErrorClass::Transient,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::mpsc;

    use super::*;
    use crate::human::assert_message_style;
    use crate::revision::ObjectId;

    const A: Revision = Revision(ObjectId([1; 20]));
    const B: Revision = Revision(ObjectId([2; 20]));

    fn failed() -> Result<Option<Named>, SourceError> {
        Err(SourceError { what: "a test".to_owned(), hints: Vec::new(), class: ErrorClass::Transient })
    }

    fn begin() -> (AttemptReporter, RevisionQuery, mpsc::Receiver<()>) {
        let results = AttemptReporter::default();
        let (send, asked) = mpsc::channel(1);
        let revisions = results.revision_query(move || {
            let _ = send.try_send(()); // the channel holds one
        });
        (results, revisions, asked)
    }

    /// Returns the answer to a query if there is one by now.
    async fn answer<T>(query: impl Future<Output = T>) -> Option<T> {
        tokio::time::timeout(Duration::from_secs(1), query).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn only_an_attempt_that_began_after_the_question_answers_it() {
        let (results, revisions, mut asked) = begin();
        results.started();
        let mut query = std::pin::pin!(revisions.resolve());
        assert!(answer(&mut query).await.is_none());
        results.ended(Ok(Some(A.into())));
        assert!(answer(&mut query).await.is_none(), "it had started before");
        assert_eq!(asked.recv().await, Some(()));
        results.started();
        results.ended(Ok(None));
        assert!(answer(&mut query).await.is_none(), "what the ref names is not published yet");
        results.started();
        results.ended(Ok(Some(B.into())));
        assert_eq!(answer(&mut query).await, Some(Ok(B.into())));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_a_parked_sync_and_the_end_of_the_sync_answer() {
        let (results, revisions, _asked) = begin();
        let mut query = std::pin::pin!(revisions.resolve());
        assert!(answer(&mut query).await.is_none());
        results.started();
        results.ended(failed());
        assert!(answer(&mut query).await.unwrap().unwrap_err().what.contains("a test"));
        results.started();
        results.ended(Ok(Some(A.into())));
        results.parked();
        assert_eq!(answer(revisions.resolve()).await, Some(Ok(A.into())));
        let (results, revisions, _asked) = begin();
        drop(results);
        let error = answer(revisions.resolve()).await.unwrap().unwrap_err();
        assert!(error.what.contains("has ended"), "{error}");
        assert_message_style(&error, &error.hints);
    }

    #[tokio::test(start_paused = true)]
    async fn changed_returns_each_new_revision_once_and_no_failures() {
        let (results, mut revisions, _asked) = begin();
        for (result, expected) in [
            (Ok(Some(A.into())), Some(A)),
            (Ok(Some(A.into())), None),
            (failed(), None),
            (Ok(Some(B.into())), Some(B)),
            (Ok(Some(A.into())), Some(A)),
        ] {
            results.started();
            results.ended(result);
            let changed = tokio::time::timeout(Duration::from_secs(1), revisions.changed()).await;
            assert_eq!(changed.ok().flatten(), expected);
        }
        drop(results);
        assert_eq!(revisions.changed().await, None);
    }
}
