//! Where revisions come from, and which one is newest.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::sync::Arc;

use tokio::sync::{Mutex, mpsc, oneshot};

use crate::configmap::apply::Desired;
use crate::desired::{self, Commit, Planner};
use crate::human;
use crate::mirror::{self, Mirror, Objects};
use crate::revision::{Relation, Revision};

/// The remote, as a delivery needs it.
pub trait Source: Send + Sync + 'static {
    /// Which revision the ref names. The question is put after the call, never answered from memory.
    fn ask(&self) -> impl Future<Output = Result<Revision, SourceError>> + Send;

    /// What a revision asks for.
    fn desired(&self, revision: Revision) -> impl Future<Output = Result<Arc<Desired>, SourceError>> + Send;

    /// The relation of a revision that the ref names to another one, which a cluster has on record. An error is for a
    /// question that may be answered later.
    fn relation(
        &self,
        recorded: Revision,
        named: Revision,
    ) -> impl Future<Output = Result<Relation, SourceError>> + Send;

    /// Whether there is a ref at all. Where there is none, it is unknown which of two revisions is newer.
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
    /// What an operator can do.
    pub hints: Vec<String>,
    /// Whether it may pass by itself.
    pub transient: bool,
}

impl SourceError {
    fn of_mirror(error: &mirror::Error) -> Self {
        Self { what: human::one_line(error), hints: error.hints(), transient: error.is_transient() }
    }

    fn thread_ended() -> Self {
        Self {
            what: "the thread that speaks to the remote has ended".to_owned(),
            hints: vec!["this is a defect of treeswap: please report it with the lines above".to_owned()],
            transient: false,
        }
    }

    /// The process ends, or the run's time is over.
    pub(super) fn interrupted() -> Self {
        Self {
            what: "the run ended before the remote had answered".to_owned(),
            hints: vec!["the next run begins anew; `apply --timeout` gives one run more time".to_owned()],
            transient: true,
        }
    }

    fn of_plan(revision: Revision, error: &desired::Error) -> Self {
        let what = format!("revision {}: {}", revision.short(), human::one_line(error));
        Self { what, hints: error.hints(), transient: false }
    }
}

type Reply<T> = oneshot::Sender<Result<T, SourceError>>;

/// A question to the thread that owns the mirror.
enum Question {
    /// Which revision the ref names.
    Tip(Reply<Revision>),
    /// The relation of the second one, which the ref names, to the first.
    Relation(Revision, Revision, Reply<Relation>),
}

/// What revisions that a mirror holds ask for; that of the last one is kept.
pub struct Plans {
    objects: Objects,
    planner: Planner,
    planned: Mutex<Option<Arc<Desired>>>,
}

impl Plans {
    /// Of a mirror's objects.
    pub fn new(objects: Objects, planner: Planner) -> Self {
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
        let objects = self.objects.clone();
        let planner = self.planner.clone();
        let plan = move || planner.desired(&Commit::new(&objects, revision), revision);
        let made = tokio::task::spawn_blocking(plan).await;
        let desired = made.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
        let desired = Arc::new(desired.map_err(|error| SourceError::of_plan(revision, &error))?);
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
    /// Of a mirror that has no other user.
    pub fn new(mirror: Mirror, planner: Planner) -> io::Result<Self> {
        let objects = mirror.objects();
        let (asks, asked) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let serve = move || runtime.block_on(Remote::new(mirror).serve(asked));
        // It ends with the last handle, or with the process: it holds nothing that a kill could harm.
        std::thread::Builder::new().name("remote".into()).spawn(serve)?;
        Ok(Self { asks, plans: Plans::new(objects, planner) })
    }

    /// Puts a question to the remote.
    async fn put<T>(&self, question: impl FnOnce(Reply<T>) -> Question) -> Result<T, SourceError> {
        let (asker, answer) = oneshot::channel();
        self.asks.send(question(asker)).map_err(|_| SourceError::thread_ended())?;
        answer.await.map_err(|_| SourceError::thread_ended())?
    }
}

/// Revisions that the mirror keeps readable.
const HELD: usize = 3;

/// Pairs of revisions whose relation is remembered.
const MOST_RELATIONS: usize = 1_000;

/// Relations of revisions, as far as they were asked for: each cluster asks the same.
#[derive(Default, Debug)]
pub struct Relations(HashMap<(Revision, Revision), Relation>);

impl Relations {
    /// The relation of the second one to the first: remembered, or what `answer` says now.
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
        if relation != Relation::UnknownToRemote {
            if self.0.len() >= MOST_RELATIONS {
                self.0.clear();
            }
            self.0.insert(pair, relation);
        }
        Ok(relation)
    }
}

/// The thread that owns the mirror.
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
                let answer = self.tip().await.map_err(|error| SourceError::of_mirror(&error));
                for asker in askers {
                    let _ = asker.send(answer.clone()); // it may have been cancelled
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

    /// Keeps the mirror from growing with every revision, once a new one came. Clusters may still be at the ones
    /// before.
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

/// A local tree, of the revision that the command line names.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configmap::apply::Refusal;
    use crate::deliver::BadPlaces;
    use crate::deliver::write::NOT_ANSWERED;
    use crate::human::{one_line, reads_well};

    #[test]
    fn what_a_delivery_reports_is_one_line_with_a_hint() {
        let remote = mirror::wire::Error::BadRemote { remote: "https://".to_owned(), why: "it has no host" };
        for error in [
            SourceError::of_mirror(&mirror::Error::from(remote)),
            SourceError::thread_ended(),
            SourceError::interrupted(),
        ] {
            reads_well(&error, &error.hints);
        }
        for refusal in [
            Refusal::Other("team".to_owned()),
            Refusal::Prow,
            Refusal::Nobody,
            Refusal::Immutable,
            Refusal::Deleting,
            Refusal::Contested(3),
            Refusal::TurnedBack(3),
        ] {
            let known = match refusal {
                Refusal::Other(_)
                | Refusal::Prow
                | Refusal::Nobody
                | Refusal::Immutable
                | Refusal::Deleting
                | Refusal::Contested(_)
                | Refusal::TurnedBack(_) => &refusal,
            };
            reads_well(known, &[known.hint().to_owned()]);
        }
        let (what, hint) = NOT_ANSWERED;
        let error = SourceError { what: what.to_owned(), hints: vec![hint.to_owned()], transient: true };
        reads_well(&error, &error.hints);
        // Of an option's value the line itself says what is right.
        for error in [BadPlaces::Form, BadPlaces::Name, BadPlaces::Count] {
            let line = one_line(&error);
            assert!(
                ["it is", "consists of", "a number from"].iter().any(|words| line.contains(words)),
                "{line}"
            );
        }
    }
}
