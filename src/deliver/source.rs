//! Where revisions come from, and who says which one is newest.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::sync::Arc;

use tokio::sync::{Mutex, mpsc, oneshot};

use crate::configmap::apply::Desired;
use crate::human;
use crate::mirror::{self, Mirror, Objects};
use crate::revision::{Relation, Revision};

/// The remote, as a delivery needs it.
pub trait Source: Send + Sync + 'static {
    /// Which revision the ref names. The question is put after the call, never answered from memory.
    fn ask(&self) -> impl Future<Output = Result<Revision, SourceError>> + Send;

    /// What a revision asks for.
    fn desired(&self, revision: Revision) -> impl Future<Output = Result<Arc<Desired>, SourceError>> + Send;

    /// How a revision that the ref names stands to another one, which a cluster has on record. An error is for a
    /// question that may be answered later.
    fn relation(
        &self,
        recorded: Revision,
        named: Revision,
    ) -> impl Future<Output = Result<Relation, SourceError>> + Send;

    /// Whether there is a ref at all. Where there is none, nobody can say which of two revisions is newer.
    fn follows(&self) -> bool {
        true
    }
}

/// The remote did not answer, or what it names cannot be planned.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what}")]
pub struct SourceError {
    /// One line.
    pub what: String,
    /// What a person can do.
    pub hints: Vec<String>,
    /// Whether it may pass by itself.
    pub transient: bool,
}

impl SourceError {
    fn of_mirror(error: &mirror::Error) -> Self {
        Self { what: human::one_line(error), hints: error.hints(), transient: error.is_transient() }
    }
}

/// Makes of a revision's objects what it asks for. Blocking.
pub type Planner = dyn Fn(&Objects, Revision) -> Result<Desired, SourceError> + Send + Sync;

type Answer<T> = oneshot::Sender<Result<T, SourceError>>;

/// What the thread that holds the mirror is asked.
enum Question {
    /// Which revision the ref names.
    Tip(Answer<Revision>),
    /// How the second one, which the ref names, stands to the first.
    Relation(Revision, Revision, Answer<Relation>),
}

/// What revisions that a mirror holds ask for; that of the last one is kept.
pub struct Plans {
    objects: Objects,
    planner: Arc<Planner>,
    planned: Mutex<Option<Arc<Desired>>>,
}

impl Plans {
    /// Of a mirror's objects.
    pub fn new(objects: Objects, planner: Arc<Planner>) -> Self {
        Self { objects, planner, planned: Mutex::new(None) }
    }

    /// What a revision asks for.
    ///
    /// # Errors
    /// When the mirror does not hold it, or it cannot be planned.
    pub async fn of(&self, revision: Revision) -> Result<Arc<Desired>, SourceError> {
        let mut planned = self.planned.lock().await;
        if let Some(desired) = planned.as_ref().filter(|desired| desired.revision == revision) {
            return Ok(Arc::clone(desired));
        }
        let (objects, planner) = (self.objects.clone(), Arc::clone(&self.planner));
        let made = tokio::task::spawn_blocking(move || planner(&objects, revision)).await;
        let desired = Arc::new(made.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?);
        *planned = Some(Arc::clone(&desired));
        Ok(desired)
    }
}

/// A remote repository, followed through a mirror that a thread of its own holds.
pub struct MirrorSource {
    asks: mpsc::UnboundedSender<Question>,
    plans: Plans,
}

impl std::fmt::Debug for MirrorSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MirrorSource").field("objects", &self.plans.objects).finish_non_exhaustive()
    }
}

impl MirrorSource {
    /// Of a mirror that nobody else uses.
    pub fn new(mirror: Mirror, planner: Arc<Planner>) -> io::Result<Self> {
        let objects = mirror.objects();
        let (asks, asked) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let serve = move || runtime.block_on(Remote::new(mirror).serve(asked));
        // It ends with the last handle, or with the process: it holds nothing that a kill could harm.
        std::thread::Builder::new().name("remote".into()).spawn(serve)?;
        Ok(Self { asks, plans: Plans::new(objects, planner) })
    }

    /// Puts a question to the remote.
    async fn put<T>(&self, question: impl FnOnce(Answer<T>) -> Question) -> Result<T, SourceError> {
        let (asker, answer) = oneshot::channel();
        let gone = || SourceError {
            what: "the thread that speaks to the remote has ended".to_owned(),
            hints: Vec::new(),
            transient: false,
        };
        self.asks.send(question(asker)).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

/// Revisions that the mirror keeps readable.
const HELD: usize = 3;

/// Pairs of revisions whose relation is remembered.
const MOST_RELATIONS: usize = 1_000;

/// How revisions stand to each other, as far as it was asked: each cluster asks the same.
#[derive(Default, Debug)]
pub struct Relations(HashMap<(Revision, Revision), Relation>);

impl Relations {
    /// How the second one stands to the first, from what `answer` said of them before, or says now.
    ///
    /// # Errors
    /// Those of the answer.
    pub async fn of(
        &mut self,
        pair: (Revision, Revision),
        answer: impl Future<Output = Result<Relation, SourceError>>,
    ) -> Result<Relation, SourceError> {
        if let Some(relation) = self.0.get(&pair) {
            return Ok(*relation);
        }
        let relation = answer.await?;
        // What a replica lacks now it may have in a moment.
        if relation != Relation::Gone {
            if self.0.len() >= MOST_RELATIONS {
                self.0.clear();
            }
            self.0.insert(pair, relation);
        }
        Ok(relation)
    }
}

/// Who holds the mirror.
struct Remote {
    mirror: Mirror,
    relations: Relations,
    /// What may still be read, newest first.
    held: Vec<Revision>,
}

impl Remote {
    fn new(mirror: Mirror) -> Self {
        Self { mirror, relations: Relations::default(), held: Vec::new() }
    }

    async fn serve(mut self, mut asked: mpsc::UnboundedReceiver<Question>) {
        while let Some(first) = asked.recv().await {
            // Whoever asked before the question goes out may have its answer.
            let (mut askers, mut pairs) = (Vec::new(), Vec::new());
            for question in std::iter::once(first).chain(std::iter::from_fn(|| asked.try_recv().ok())) {
                match question {
                    Question::Tip(asker) => askers.push(asker),
                    Question::Relation(recorded, named, asker) => pairs.push((recorded, named, asker)),
                }
            }
            if !askers.is_empty() {
                let answer = self.tip().await.map_err(|error| SourceError::of_mirror(&error));
                for asker in askers {
                    let _ = asker.send(answer.clone()); // one who left has no use for it
                }
                if let Ok(revision) = answer {
                    self.housekeep(revision);
                }
            }
            for (recorded, named, asker) in pairs {
                let _ = asker.send(self.relation(recorded, named).await);
            }
        }
    }

    /// The tip's commit, fetched unless the mirror holds it.
    async fn tip(&mut self) -> Result<Revision, mirror::Error> {
        let tip = self.mirror.resolve().await?;
        self.mirror.fetch(&tip, &[]).await
    }

    /// Keeps the mirror from growing with every revision, once a new one came. Clusters may still be at the ones before.
    fn housekeep(&mut self, newest: Revision) {
        if self.held.first() == Some(&newest) {
            return;
        }
        self.held.retain(|held| *held != newest);
        self.held.insert(0, newest);
        self.held.truncate(HELD);
        if let Err(error) = self.mirror.housekeep(&self.held) {
            tracing::warn!(error = human::one_line(&error), "the mirror cannot be made smaller");
        }
    }

    async fn relation(&mut self, recorded: Revision, named: Revision) -> Result<Relation, SourceError> {
        let found = self.mirror.relation(recorded, named);
        let answer = async { found.await.map_err(|error| SourceError::of_mirror(&error)) };
        self.relations.of((recorded, named), answer).await
    }
}

impl Source for MirrorSource {
    async fn ask(&self) -> Result<Revision, SourceError> {
        self.put(Question::Tip).await
    }

    async fn desired(&self, revision: Revision) -> Result<Arc<Desired>, SourceError> {
        self.plans.of(revision).await
    }

    async fn relation(&self, recorded: Revision, named: Revision) -> Result<Relation, SourceError> {
        self.put(|asker| Question::Relation(recorded, named, asker)).await
    }
}

/// A local tree, which stands for the revision that a person names.
#[derive(Debug)]
pub struct TreeSource(Arc<Desired>);

impl TreeSource {
    /// Of what the tree asks for.
    pub fn new(desired: Desired) -> Self {
        Self(Arc::new(desired))
    }
}

impl Source for TreeSource {
    async fn ask(&self) -> Result<Revision, SourceError> {
        Ok(self.0.revision)
    }

    async fn desired(&self, _: Revision) -> Result<Arc<Desired>, SourceError> {
        Ok(Arc::clone(&self.0))
    }

    async fn relation(&self, _: Revision, _: Revision) -> Result<Relation, SourceError> {
        Ok(Relation::Unknown)
    }

    fn follows(&self) -> bool {
        false
    }
}
