//! Lets deliveries next to a root ask which revision the ref names. A delivery needs an answer that the remote gave
//! after the query was asked.
//!
//! The answer is the result of an attempt of the root's sync that began after the query. So only the sync talks to
//! the remote, with one set of deadlines and backoffs, and no revision is delivered before it is published.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;

use super::{Named, Recorded, SourceError, Upstream};
use crate::retry::ErrorClass;
use crate::revision::{Relation, Revision};

type Answer = Result<Named, SourceError>;

/// The attempts so far.
#[derive(Clone, Debug, Default)]
struct AttemptHistory {
    /// The number of attempts that have started.
    started: u64,
    /// The number of the last attempt that gave an answer, and the answer.
    answered: Option<(u64, Answer)>,
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
    pub fn newest(&self, trigger: impl Fn() + Send + Sync + 'static) -> RevisionQuery {
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
    /// revision, which may take up to the minimum interval.
    ///
    /// # Errors
    /// When the attempt fails for any reason, or the sync has ended.
    pub async fn resolve(&self) -> Answer {
        let mut attempts = self.attempts.clone();
        let started = attempts.borrow().started;
        let _pending = WaitingDelivery::begin(&self.waiting_deliveries);
        (self.trigger)();
        let answer_in = |attempts: &AttemptHistory| {
            let is_newer = |(number, _): &&(u64, Answer)| attempts.parked || *number > started;
            attempts.answered.as_ref().filter(is_newer).map(|(_, answer)| answer.clone())
        };
        let answer = attempts
            .wait_for(|attempts| answer_in(attempts).is_some())
            .await
            .ok()
            .and_then(|found| answer_in(&found));
        answer.unwrap_or_else(|| {
            let what = "the sync of the root has ended".to_owned();
            Err(SourceError { what, hints: Vec::new(), class: ErrorClass::Transient })
        })
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

/// Compares revisions of the ref, to tell an advance from a rewind. It holds the mirror's lock while it asks, at most
/// for half the time limit of an attempt: an attempt that waits meanwhile has the other half. The time to get the lock
/// is not limited.
pub struct RevisionComparer {
    mirror: Arc<Mutex<Upstream>>,
    limit: Duration,
}

impl RevisionComparer {
    /// Uses the given mirror, with the time limit of an attempt.
    pub fn new(mirror: Arc<Mutex<Upstream>>, limit: Duration) -> Self {
        Self { mirror, limit: limit / 2 }
    }

    /// Returns the relation of the revision that the ref names to a recorded one, from the mirror or the remote.
    ///
    /// # Errors
    /// When the remote does not answer, or not within the time limit. If the future is dropped, the lock is released.
    pub(super) async fn relation(
        &self,
        recorded: Recorded,
        named: Revision,
    ) -> Result<Relation, SourceError> {
        let old = recorded.revision;
        let limit = self.limit;
        let cancel = CancellationToken::new();
        let _dropped = cancel.clone().drop_guard();
        let runtime = tokio::runtime::Handle::current();
        let mut mirror = Arc::clone(&self.mirror).lock_owned().await;
        // On a blocking thread, because a connection must stay on the thread that uses it.
        let task = tokio::task::spawn_blocking(move || {
            let asked = tokio::time::timeout(limit, mirror.relation(&recorded, named));
            runtime.block_on(cancel.run_until_cancelled(asked))
        });
        let answered = task.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
        match answered {
            Some(Ok(found)) => found.map_err(|error| SourceError::of_set(&error)),
            None => Err(SourceError::interrupted()), // unreachable: only the end of this future cancels it
            Some(Err(_)) => {
                let [old, new] = [old, named].map(|revision| revision.short().to_string());
                let what =
                    format!("the remote did not answer within {limit:?} how {old} and {new} are related");
                let hints =
                    vec!["it may take half of --sync-timeout: raise that to give it more time".to_owned()];
                Err(SourceError { what, hints, class: ErrorClass::Transient })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tokio::net::TcpListener;
    use tokio::sync::mpsc;

    use super::*;
    use crate::mirror::{self, wire};
    use crate::revision::{ObjectId, Ref};

    const A: Revision = Revision(ObjectId([1; 20]));
    const B: Revision = Revision(ObjectId([2; 20]));

    fn failed() -> Result<Option<Named>, SourceError> {
        Err(SourceError { what: "a test".to_owned(), hints: Vec::new(), class: ErrorClass::Transient })
    }

    fn begin() -> (AttemptReporter, RevisionQuery, mpsc::Receiver<()>) {
        let results = AttemptReporter::default();
        let (send, asked) = mpsc::channel(1);
        let newest = results.newest(move || {
            let _ = send.try_send(()); // the channel holds one
        });
        (results, newest, asked)
    }

    /// Returns the answer to a query if there is one by now.
    async fn answer(query: impl Future<Output = Answer>) -> Option<Answer> {
        tokio::time::timeout(Duration::from_secs(1), query).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn only_an_attempt_that_began_after_the_question_answers_it() {
        let (results, newest, mut asked) = begin();
        results.started();
        let mut query = std::pin::pin!(newest.resolve());
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
        let (results, newest, _asked) = begin();
        let mut query = std::pin::pin!(newest.resolve());
        assert!(answer(&mut query).await.is_none());
        results.started();
        results.ended(failed());
        assert!(answer(&mut query).await.unwrap().unwrap_err().what.contains("a test"));
        results.started();
        results.ended(Ok(Some(A.into())));
        results.parked();
        assert_eq!(answer(newest.resolve()).await, Some(Ok(A.into())));
        let (results, newest, _asked) = begin();
        drop(results);
        assert!(answer(newest.resolve()).await.unwrap().unwrap_err().what.contains("has ended"));
    }

    #[tokio::test(start_paused = true)]
    async fn changed_returns_each_new_revision_once_and_no_failures() {
        let (results, mut newest, _asked) = begin();
        for (result, told) in [
            (Ok(Some(A.into())), Some(A)),
            (Ok(Some(A.into())), None),
            (failed(), None),
            (Ok(Some(B.into())), Some(B)),
            (Ok(Some(A.into())), Some(A)),
        ] {
            results.started();
            results.ended(result);
            let changed = tokio::time::timeout(Duration::from_secs(1), newest.changed()).await;
            assert_eq!(changed.ok().flatten(), told);
        }
        drop(results);
        assert_eq!(newest.changed().await, None);
    }

    #[tokio::test]
    async fn a_delivery_that_ends_while_it_compares_releases_the_mirror() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/remote", silent.local_addr().unwrap());
        let dir = tempfile::tempdir().unwrap();
        let options = mirror::Options::new(dir.path().join("mirror"), Ref::Head, wire::Options::new(url));
        let upstream = Arc::new(Mutex::new(Upstream::open(options, None).unwrap()));
        let comparer = RevisionComparer::new(Arc::clone(&upstream), Duration::from_secs(120));
        let recorded = Recorded { revision: A, sources: BTreeMap::new() };
        let _connection = tokio::select! {
            answer = comparer.relation(recorded, B) => panic!("{answer:?}"),
            asked = silent.accept() => asked.unwrap(),
        };
        let free = tokio::time::timeout(Duration::from_secs(10), upstream.lock()).await;
        assert!(free.is_ok(), "an attempt would wait for an answer that nobody needs");
    }
}
