//! A remote repository, or several, asked through mirrors that a thread of its own holds.

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
use crate::revision::{Relation, Revision};

type Reply<T> = oneshot::Sender<Result<T, SourceError>>;

/// A question to the thread that owns the mirror.
enum Question {
    /// Which revision the ref names.
    Tip(Reply<Named>),
    /// The relation of the second one, which the ref names, to the first.
    Relation(Recorded, Revision, Reply<Relation>),
}

/// What is followed; a handle to the thread that owns its mirrors.
pub struct Remote {
    asks: mpsc::UnboundedSender<Question>,
    plans: Plans,
    /// How each of several sources is.
    rows: watch::Receiver<Vec<SourceStatus>>,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote").finish_non_exhaustive()
    }
}

impl Remote {
    /// Starts the thread that owns the mirror, which has no other user.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn new(upstream: Upstream, planner: Planner) -> io::Result<Self> {
        let objects = upstream.objects();
        let (send, rows) = watch::channel(Vec::new());
        let (asks, asked) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let serve = move || runtime.block_on(Owner::new(upstream, send).serve(asked));
        // It ends with the last handle, or with the process: it holds nothing that a kill could harm.
        std::thread::Builder::new().name("remote".into()).spawn(serve)?;
        Ok(Self { asks, plans: Plans::new(objects, planner), rows })
    }

    /// How each of several sources was found at the last question.
    pub fn rows(&self) -> Vec<SourceStatus> {
        self.rows.borrow().clone()
    }

    /// Puts a question to the remote.
    async fn put<T>(&self, question: impl FnOnce(Reply<T>) -> Question) -> Result<T, SourceError> {
        let (asker, answer) = oneshot::channel();
        self.asks.send(question(asker)).map_err(|_| thread_ended())?;
        answer.await.map_err(|_| thread_ended())?
    }
}

/// Revisions that the mirror keeps readable.
const HELD: usize = 3;

/// The thread that owns the mirrors.
struct Owner {
    upstream: Upstream,
    rows: watch::Sender<Vec<SourceStatus>>,
    relations: Relations,
    /// What may still be read, newest first.
    held: Vec<Revision>,
}

impl Owner {
    fn new(upstream: Upstream, rows: watch::Sender<Vec<SourceStatus>>) -> Self {
        Self { upstream, rows, relations: Relations::default(), held: Vec::new() }
    }

    async fn serve(mut self, mut asked: mpsc::UnboundedReceiver<Question>) {
        while let Some(first) = asked.recv().await {
            // Questions that came before this one goes out share its answer.
            let mut askers = Vec::new();
            let mut pairs = Vec::new();
            for question in std::iter::once(first).chain(std::iter::from_fn(|| asked.try_recv().ok())) {
                match question {
                    Question::Tip(asker) => askers.push(asker),
                    Question::Relation(recorded, named, asker) => pairs.push((recorded, named, asker)),
                }
            }
            if !askers.is_empty() {
                let answer = self.tip().await.map_err(|error| SourceError::of_set(&error));
                self.rows.send_replace(self.upstream.rows());
                for asker in askers {
                    let _ = asker.send(answer.clone()); // it may have been cancelled
                }
                if let Ok(named) = answer {
                    self.housekeep(named.revision);
                }
            }
            for (recorded, named, asker) in pairs {
                let _ = asker.send(self.relation(recorded, named).await);
            }
        }
    }

    /// The tip's commit, fetched unless the mirror holds it.
    async fn tip(&mut self) -> Result<Named, SetError> {
        let tip = self.upstream.resolve(self.held.first().copied(), &self.held).await?;
        let revision = self.upstream.fetch(&tip, &[], &Selection::default()).await?;
        Ok(Named { revision, sources: self.upstream.placement() })
    }

    /// Keeps the mirror from growing with every revision, once a new one came. Clusters may still be at the ones
    /// before.
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
        let upstream = &mut self.upstream;
        let answer = async {
            let found = upstream.relation(&recorded, named).await;
            found.map_err(|error| SourceError::of_relation(&error, upstream))
        };
        self.relations.of((recorded.revision, named), answer).await
    }
}

impl Source for Remote {
    async fn ask(&self) -> Result<Named, SourceError> {
        self.put(Question::Tip).await
    }

    async fn desired(&self, named: Named) -> Result<Arc<Desired>, SourceError> {
        self.plans.of(named).await
    }

    async fn relation(&self, recorded: Recorded, named: Revision) -> Result<Relation, SourceError> {
        self.put(|asker| Question::Relation(recorded, named, asker)).await
    }
}

pub(super) fn thread_ended() -> SourceError {
    SourceError {
        what: "the thread that speaks to the remote has ended".to_owned(),
        hints: vec!["this is a defect of treeswap: please report it with the lines above".to_owned()],
        transient: false,
    }
}
