//! Where revisions come from, and who says which one is newest.

use std::future::Future;
use std::io;
use std::sync::Arc;

use tokio::sync::{Mutex, mpsc, oneshot};

use crate::configmap::apply::Desired;
use crate::human;
use crate::mirror::{self, Mirror, Objects};
use crate::revision::Revision;

/// The remote, as a delivery needs it.
pub trait Source: Send + Sync + 'static {
    /// Which revision the ref names. The question is put after the call, never answered from memory.
    fn ask(&self) -> impl Future<Output = Result<Revision, SourceError>> + Send;

    /// What a revision asks for.
    fn desired(&self, revision: Revision) -> impl Future<Output = Result<Arc<Desired>, SourceError>> + Send;

    /// How a revision that the ref names stands to the one that a cluster has on record.
    fn relation(&self, recorded: Revision, named: Revision) -> impl Future<Output = Relation> + Send;

    /// Whether there is a ref at all. Where there is none, nobody can say which of two revisions is newer.
    fn follows(&self) -> bool {
        true
    }
}

/// How one revision stands to another, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relation {
    /// The recorded one is an ancestor: an advance.
    Ahead,
    /// It is an ancestor of the recorded one: the ref went back, or a replica lags.
    Behind,
    /// Neither: the ref was forced elsewhere.
    Aside,
    /// The history that would tell is not here. That never means that it is an advance.
    Unknown,
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

type Answer = Result<Revision, SourceError>;

/// A remote repository, followed through a mirror that a thread of its own holds.
pub struct MirrorSource {
    asks: mpsc::UnboundedSender<oneshot::Sender<Answer>>,
    objects: Objects,
    planner: Arc<Planner>,
    planned: Mutex<Option<Arc<Desired>>>,
}

impl std::fmt::Debug for MirrorSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MirrorSource").field("objects", &self.objects).finish_non_exhaustive()
    }
}

impl MirrorSource {
    /// Of a mirror that nobody else uses.
    pub fn new(mut mirror: Mirror, planner: Arc<Planner>) -> io::Result<Self> {
        let objects = mirror.objects();
        let (asks, mut asked) = mpsc::unbounded_channel::<oneshot::Sender<Answer>>();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let serve = move || {
            runtime.block_on(async {
                while let Some(first) = asked.recv().await {
                    // Whoever asked before the question goes out may have its answer.
                    let mut askers = vec![first];
                    askers.extend(std::iter::from_fn(|| asked.try_recv().ok()));
                    let answer = tip(&mut mirror).await.map_err(|error| SourceError::of_mirror(&error));
                    for asker in askers {
                        let _ = asker.send(answer.clone()); // one who left has no use for it
                    }
                }
            });
        };
        // It ends with the last handle, or with the process: it holds nothing that a kill could harm.
        std::thread::Builder::new().name("remote".into()).spawn(serve)?;
        Ok(Self { asks, objects, planner, planned: Mutex::new(None) })
    }
}

/// The tip's commit, fetched unless the mirror holds it.
async fn tip(mirror: &mut Mirror) -> Result<Revision, mirror::Error> {
    let tip = mirror.resolve().await?;
    mirror.fetch(&tip, &[]).await
}

impl Source for MirrorSource {
    async fn ask(&self) -> Result<Revision, SourceError> {
        let (asker, answer) = oneshot::channel();
        let gone = || SourceError {
            what: "the thread that speaks to the remote has ended".to_owned(),
            hints: Vec::new(),
            transient: false,
        };
        self.asks.send(asker).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    async fn desired(&self, revision: Revision) -> Result<Arc<Desired>, SourceError> {
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

    async fn relation(&self, _: Revision, _: Revision) -> Relation {
        Relation::Unknown // a mirror without history cannot tell
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

    async fn relation(&self, _: Revision, _: Revision) -> Relation {
        Relation::Unknown
    }

    fn follows(&self) -> bool {
        false
    }
}
