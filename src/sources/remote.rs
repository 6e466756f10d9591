//! A remote repository, or several, as the source of deliveries without a root. A dedicated thread owns the mirrors and
//! answers questions one after the other.

use std::io;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};

use super::plans::Plans;
use super::relations::Relations;
use super::{Named, Recorded, SetError, Source, SourceError, Upstream};
use crate::configmap::apply::Desired;
use crate::desired::Planner;
use crate::human;
use crate::mirror::Selection;
use crate::phase::SourceStatus;
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

/// A handle to the thread that owns the mirrors. The thread ends with the handle.
pub struct Remote {
    asks: mpsc::UnboundedSender<Request>,
    plans: Plans,
    /// The status of each source if there are several.
    source_statuses: watch::Receiver<Vec<SourceStatus>>,
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
        let (send, source_statuses) = watch::channel(Vec::new());
        let (asks, asked) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let serve = move || runtime.block_on(Owner::new(upstream, send).serve(asked));
        // The thread is not joined: it holds nothing that would be damaged if the process ended first.
        std::thread::Builder::new().name("remote".into()).spawn(serve)?;
        Ok(Self { asks, plans: Plans::new(objects, planner), source_statuses })
    }

    /// The status of each of several sources after the last poll.
    pub fn source_statuses(&self) -> Vec<SourceStatus> {
        self.source_statuses.borrow().clone()
    }

    /// Sends a question to the thread and waits for the answer.
    async fn put<T>(&self, question: impl FnOnce(Reply<T>) -> Request) -> Result<T, SourceError> {
        let (reply, answer) = oneshot::channel();
        self.asks.send(question(reply)).map_err(|_| thread_ended())?;
        answer.await.map_err(|_| thread_ended())?
    }
}

/// The number of revisions that the mirror keeps.
const HELD: usize = 3;

/// The state of the thread.
struct Owner {
    upstream: Upstream,
    source_statuses: watch::Sender<Vec<SourceStatus>>,
    relations: Relations,
    /// The revisions that the mirror keeps, newest first.
    held: Vec<Revision>,
}

impl Owner {
    fn new(upstream: Upstream, source_statuses: watch::Sender<Vec<SourceStatus>>) -> Self {
        Self { upstream, source_statuses, relations: Relations::default(), held: Vec::new() }
    }

    async fn serve(mut self, mut requests: mpsc::UnboundedReceiver<Request>) {
        while let Some(first) = requests.recv().await {
            // Questions that are queued by now share one request to the remote.
            let mut waiting = Vec::new();
            let mut pairs = Vec::new();
            for question in std::iter::once(first).chain(std::iter::from_fn(|| requests.try_recv().ok())) {
                match question {
                    Request::Tip(reply) => waiting.push(reply),
                    Request::Relation(recorded, named, reply) => pairs.push((recorded, named, reply)),
                }
            }
            if !waiting.is_empty() {
                let answer = self.tip().await.map_err(|error| SourceError::of_set(&error));
                let serves = answer.as_ref().map(|named| named.revision).ok().or(self.held.first().copied());
                self.source_statuses.send_replace(self.upstream.source_statuses(serves, answer.is_err()));
                for reply in waiting {
                    let _ = reply.send(answer.clone()); // the caller may have been cancelled
                }
                if let Ok(named) = answer {
                    self.housekeep(named.revision);
                }
            }
            for (recorded, named, reply) in pairs {
                let _ = reply.send(self.relation(recorded, named).await);
            }
        }
    }

    /// Asks what the ref names, and fetches it unless the mirror holds it.
    async fn tip(&mut self) -> Result<Named, SetError> {
        let tip = self.upstream.resolve(self.held.first().copied(), &self.held).await?;
        let revision = self.upstream.fetch(&tip, &[], &Selection::default()).await?;
        Ok(Named { revision, sources: self.upstream.placement() })
    }

    /// After a new revision, collects the mirror's garbage. The last [`HELD`] revisions are kept, as clusters may still
    /// have the earlier ones.
    fn housekeep(&mut self, newest: Revision) {
        if self.held.first() == Some(&newest) {
            return;
        }
        self.held.retain(|held| *held != newest);
        self.held.insert(0, newest);
        self.held.truncate(HELD);
        if let Err(error) = self.upstream.housekeep(&self.held) {
            tracing::warn!(error = human::one_line(&error), "the mirror cannot be made smaller");
        }
    }

    async fn relation(&mut self, recorded: Recorded, named: Revision) -> Result<Relation, SourceError> {
        let found = self.upstream.relation(&recorded, named);
        let answer = async { found.await.map_err(|error| SourceError::of_set(&error)) };
        self.relations.of(&recorded, named, answer).await
    }
}

impl Source for Remote {
    async fn resolve(&self) -> Result<Named, SourceError> {
        self.put(Request::Tip).await
    }

    async fn desired(&self, named: Named) -> Result<Arc<Desired>, SourceError> {
        self.plans.of(named).await
    }

    async fn relation(&self, recorded: Recorded, named: Revision) -> Result<Relation, SourceError> {
        self.put(|reply| Request::Relation(recorded, named, reply)).await
    }
}

pub(super) fn thread_ended() -> SourceError {
    SourceError {
        what: "the thread that speaks to the remote has ended".to_owned(),
        hints: vec!["this is a bug in treeswap: please report it with the lines above".to_owned()],
        class: ErrorClass::Permanent,
    }
}
