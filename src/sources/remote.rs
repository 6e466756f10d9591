//! A remote repository, or several, as the source of deliveries without a root. A dedicated thread owns the mirrors and
//! answers questions one after the other.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::plans::Plans;
use super::relations::Relations;
use super::{DeliveryInput, Named, Recorded, SetError, SourceError, Upstream};
use crate::configmap::apply::Desired;
use crate::desired::Planner;
use crate::human;
use crate::mirror::Selection;
use crate::phase::{LastAnswer, SourceStatus};
use crate::retry::ErrorClass;
use crate::revision::{Relation, Revision};

type Reply<T> = oneshot::Sender<Result<T, SourceError>>;

/// A question to the thread that owns the mirror.
enum Request {
    /// Asks which revision the ref names.
    Tip(Reply<Named>),
    /// Asks for the relation of the second revision, which the ref names, to the first.
    Relation(Recorded, Revision, Reply<Relation>),
}

/// What the polls found, for the status and the metrics.
#[derive(Clone, Debug)]
pub struct PollState {
    /// The status of each source if there are several.
    pub sources: Vec<SourceStatus>,
    /// The remote's last answer; of several remotes, the newest.
    pub last_answer: LastAnswer,
    /// Whether a remote was reached since the poll before; the error of the first source if every source fails.
    pub outcome: Result<bool, SourceError>,
    /// Failures of sources since the last [`Remote::take_state`]: stage and class.
    pub failures: Vec<(&'static str, ErrorClass)>,
    /// They were taken: what the next poll finds belongs to another attempt.
    failures_taken: bool,
}

impl PollState {
    /// The state before the first poll.
    pub(crate) fn new() -> Self {
        let last_answer = LastAnswer::not_yet();
        Self {
            sources: Vec::new(),
            last_answer,
            outcome: Ok(true),
            failures: Vec::new(),
            failures_taken: false,
        }
    }
}

/// A handle to the thread that owns the mirrors. The thread ends with the handle.
pub struct Remote {
    asks: mpsc::UnboundedSender<Request>,
    plans: Plans,
    state: Arc<Mutex<PollState>>,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote").finish_non_exhaustive()
    }
}

impl Remote {
    /// Starts the thread, which becomes the only user of the upstream.
    ///
    /// # Errors
    /// When no thread can be created.
    pub fn new(upstream: Upstream, planner: Planner) -> io::Result<Self> {
        let objects = upstream.objects();
        let state = Arc::new(Mutex::new(PollState::new()));
        let (asks, asked) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let owner = Owner::new(upstream, Arc::clone(&state));
        let serve = move || runtime.block_on(owner.serve(asked));
        // The thread is not joined: it holds nothing that would be damaged if the process ended first.
        std::thread::Builder::new().name("remote".into()).spawn(serve)?;
        Ok(Self { asks, plans: Plans::new(objects, planner), state })
    }

    /// Waits until the thread has ended, which only a panic does to it while there is this handle. No question is
    /// answered any more then.
    pub async fn ended(&self) -> SourceError {
        self.asks.closed().await;
        thread_ended()
    }

    /// The state after the last poll, with the failures since the last call.
    pub fn take_state(&self) -> PollState {
        let mut state = lock(&self.state);
        let failures = std::mem::take(&mut state.failures);
        state.failures_taken = true;
        PollState { failures, ..state.clone() }
    }

    /// The status of each source if there are several, and the last answer, as the polls have found them by now.
    pub fn answers(&self) -> (Vec<SourceStatus>, LastAnswer) {
        let state = lock(&self.state);
        (state.sources.clone(), state.last_answer)
    }

    /// Sends a question to the thread and waits for the answer.
    async fn put<T>(&self, question: impl FnOnce(Reply<T>) -> Request) -> Result<T, SourceError> {
        let (reply, answer) = oneshot::channel();
        self.asks.send(question(reply)).map_err(|_| thread_ended())?;
        answer.await.map_err(|_| thread_ended())?
    }
}

/// Locks the state. Poisoning is harmless: it is only copied in and out.
fn lock(state: &Mutex<PollState>) -> MutexGuard<'_, PollState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of revisions that the mirror keeps.
const KEPT_REVISIONS: usize = 3;

/// The state of the thread.
struct Owner {
    upstream: Upstream,
    state: Arc<Mutex<PollState>>,
    relations: Relations,
    /// True if the remote answered in the last poll what its ref names.
    is_resolved: bool,
    /// Until when the server of a single repository asked not to be asked again, and the answer until then.
    not_before: Option<(Instant, SourceError)>,
    /// The revisions that the mirror keeps, newest first.
    kept_revisions: Vec<Revision>,
    /// The counter of received bytes when garbage was last collected.
    collected_received: u64,
}

impl Owner {
    fn new(upstream: Upstream, state: Arc<Mutex<PollState>>) -> Self {
        Self {
            collected_received: upstream.received().bytes(),
            upstream,
            state,
            relations: Relations::default(),
            is_resolved: false,
            not_before: None,
            kept_revisions: Vec::new(),
        }
    }

    async fn serve(mut self, mut requests: mpsc::UnboundedReceiver<Request>) {
        while let Some(first) = requests.recv().await {
            // Questions that are queued by now share one request to the remote.
            let mut waiting = Vec::new();
            let mut pairs = Vec::new();
            for question in std::iter::once(first).chain(std::iter::from_fn(|| requests.try_recv().ok())) {
                match question {
                    Request::Tip(reply) => waiting.push(reply),
                    Request::Relation(recorded, revision, reply) => pairs.push((recorded, revision, reply)),
                }
            }
            if !waiting.is_empty() {
                let answer = self.answer().await;
                for reply in waiting {
                    let _ = reply.send(answer.clone()); // the caller may have been cancelled
                }
                self.housekeep(answer.ok().map(|named| named.revision));
            }
            for (recorded, revision, reply) in pairs {
                let _ = reply.send(self.relation(recorded, revision).await);
            }
        }
    }

    /// Polls, unless the server has asked for a pause: no trigger ends that.
    async fn answer(&mut self) -> Result<Named, SourceError> {
        if let Some((until, error)) = &self.not_before
            && Instant::now() < *until
        {
            return Err(error.clone());
        }
        // An attempt polls several times, and counts the failure of a source once.
        if std::mem::take(&mut lock(&self.state).failures_taken) {
            self.upstream.begin_attempt();
        }
        let answer = self.tip().await;
        self.record(&answer);
        answer.map_err(|error| SourceError::of_set(&error))
    }

    /// Records the end of a poll. A revision that cannot be planned was an answer, too.
    fn record(&mut self, answer: &Result<Named, SetError>) {
        let serves =
            answer.as_ref().map(|named| named.revision).ok().or(self.kept_revisions.first().copied());
        let sources = self.upstream.source_statuses(serves, answer.is_err());
        // The pauses of several servers are those of their repositories, and end if the file lists others.
        let error = answer.as_ref().err().filter(|error| matches!(error, SetError::Mirror(_)));
        let pause =
            |error: &SetError| Some((Instant::now() + error.retry_after()?, SourceError::of_set(error)));
        self.not_before = error.and_then(pause);
        let is_answered = self.is_resolved && !answer.as_ref().is_err_and(SetError::is_connection_failure);
        let mut state = lock(&self.state);
        state.last_answer.update(&sources, is_answered);
        state.sources = sources;
        state.outcome = self.upstream.poll_outcome().map_err(|error| SourceError::of_set(&error));
        // Extended, not replaced: failures of a poll that outlasted its attempt may still wait to be taken.
        state.failures.extend(self.upstream.take_failures());
    }

    /// Asks what the ref names, and fetches it unless the mirror holds it.
    async fn tip(&mut self) -> Result<Named, SetError> {
        let tip = self.upstream.resolve(self.kept_revisions.first().copied(), &self.kept_revisions).await;
        self.is_resolved = tip.as_ref().map_or_else(SetError::is_no_such_ref, |_| true);
        let tip = tip?;
        let revision = self.upstream.fetch(&tip, &[], &Selection::default()).await?;
        Ok(Named { revision, sources: self.upstream.placement() })
    }

    /// After a new revision, and after a fetch that led to none, such as that of a refused one, collects the mirror's
    /// garbage; also once the mirror of a source that was removed is not needed any more. The last [`KEPT_REVISIONS`]
    /// revisions are kept, as clusters may still have the earlier ones.
    fn housekeep(&mut self, named: Option<Revision>) {
        let is_answered = named.is_some();
        let new = named.filter(|named| self.kept_revisions.first() != Some(named));
        let received = self.upstream.received().bytes();
        let is_due = new.is_some() || received != self.collected_received;
        // After a failure the list of sources may be unread, and no revision known yet: every mirror would look unused.
        let may_remove = || is_answered && self.upstream.may_remove_mirrors(&self.kept_revisions);
        if !is_due && !may_remove() {
            return;
        }
        self.collected_received = received;
        if let Some(new) = new {
            self.kept_revisions.retain(|revision| *revision != new);
            self.kept_revisions.insert(0, new);
            self.kept_revisions.truncate(KEPT_REVISIONS);
        }
        // Nobody waits for this thread when the process ends. A process that hangs is killed (`mirror::gc_plan`).
        let never = CancellationToken::new();
        if let Err(error) = self.upstream.housekeep(&self.kept_revisions, &never) {
            tracing::warn!(error = human::one_line(&error), "the mirror cannot be made smaller");
        }
    }

    async fn relation(&mut self, recorded: Recorded, revision: Revision) -> Result<Relation, SourceError> {
        let found = self.upstream.relation(&recorded, revision);
        let answer = async { found.await.map_err(|error| SourceError::of_set(&error)) };
        self.relations.of(&recorded, revision, answer).await
    }
}

impl DeliveryInput for Remote {
    async fn resolve(&self) -> Result<Named, SourceError> {
        self.put(Request::Tip).await
    }

    async fn desired(&self, named: Named) -> Result<Arc<Desired>, SourceError> {
        self.plans.of(named).await
    }

    async fn relation(&self, recorded: Recorded, revision: Revision) -> Result<Relation, SourceError> {
        self.put(|reply| Request::Relation(recorded, revision, reply)).await
    }
}

pub(super) fn thread_ended() -> SourceError {
    SourceError {
        what: "the thread that speaks to the remote has ended".to_owned(),
        hints: vec!["this is a bug in treeswap: please report it with the lines above".to_owned()],
        class: ErrorClass::Permanent,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::configmap::apply::ExtraKeys;
    use crate::configmap::{Dialect, Policies};
    use crate::desired::{Options, Rules};
    use crate::mirror::{self, wire};
    use crate::revision::{ObjectId, Ref};
    use crate::sources::set::tests::{opened_sources, two_sources};

    fn upstream(dir: &Path) -> Upstream {
        let remote = wire::Options::new("http://127.0.0.1:1/remote".to_owned());
        Upstream::open(mirror::Options::new(dir.join("mirror"), Ref::Head, remote), None).unwrap()
    }

    #[tokio::test]
    async fn the_end_of_the_thread_is_noticed_though_nobody_asks_it() {
        let options = Options {
            default_namespace: "default".into(),
            dialect: Dialect::default(),
            ignore_unknown: false,
            repository: None,
            policies: Policies::default(),
            memory_limit: None,
            shape: ExtraKeys::default(),
            warn: |_| {},
        };
        let planner = Planner::new(options, Rules::InTree("rules.yaml".into()));
        let dir = tempfile::tempdir().unwrap();
        let plans = Plans::new(upstream(dir.path()).objects(), planner);
        let (asks, asked) = mpsc::unbounded_channel();
        let remote = Remote { asks, plans, state: Arc::new(Mutex::new(PollState::new())) };
        let mut ended = std::pin::pin!(remote.ended());
        assert!(tokio::time::timeout(Duration::from_millis(10), &mut ended).await.is_err());
        drop(asked); // as in a panic
        assert_eq!(ended.await, thread_ended());
    }

    #[tokio::test]
    async fn a_question_does_not_end_the_pause_that_the_server_has_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let mut owner = Owner::new(upstream(dir.path()), Arc::new(Mutex::new(PollState::new())));
        for (retry_after, is_paused) in [(Some(Duration::from_secs(60)), true), (None, false)] {
            let busy = wire::Error::Status {
                remote: "http://127.0.0.1:1/remote".to_owned(),
                status: 429,
                retry_after,
                said: "not so fast".to_owned(),
            };
            owner.record(&Err(mirror::Error::from(busy).into()));
            let error = owner.answer().await.unwrap_err();
            assert_eq!(error.what.contains("not so fast"), is_paused, "{error}");
        }
    }

    #[tokio::test]
    async fn no_mirror_is_removed_after_a_start_without_the_list_of_sources() {
        let (dir, set) = opened_sources().await;
        drop(set);
        let mirrors = || std::fs::read_dir(dir.path().join("mirrors")).unwrap().count();
        let before = mirrors();
        let set = two_sources(dir.path());
        std::fs::remove_file(dir.path().join("sources.yaml")).unwrap();
        let mut owner = Owner::new(Upstream::Set(Box::new(set)), Arc::new(Mutex::new(PollState::new())));
        assert!(owner.answer().await.is_err());
        owner.housekeep(None);
        assert_eq!(mirrors(), before);
    }

    #[test]
    fn what_a_remote_named_is_its_answer_whatever_becomes_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let state = Arc::new(Mutex::new(PollState::new()));
        let mut owner = Owner::new(upstream(dir.path()), Arc::clone(&state));
        let is_answered = || lock(&state).last_answer.at.is_some();
        let interrupted = || Err(SetError::from(mirror::Error::Cancelled));
        owner.record(&interrupted());
        assert!(!is_answered(), "the ref was not resolved");
        owner.is_resolved = true;
        owner.record(&interrupted());
        assert!(is_answered());
        lock(&state).last_answer = LastAnswer::not_yet();
        owner.record(&Ok(Revision(ObjectId([1; 20])).into()));
        assert!(is_answered(), "its rules may be invalid");
    }
}
