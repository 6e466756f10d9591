//! Computes the desired state of revisions in a mirror, and keeps the last one.

use std::sync::{Arc, Mutex as BlockingMutex, MutexGuard, PoisonError};

use tokio::sync::Mutex;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;

use super::{Named, SourceError};
use crate::configmap::apply::Desired;
use crate::desired::{self, Commit, KnownValues, LastPlan, Planner};
use crate::mirror::{self, Objects};
use crate::revision::Revision;

/// Computes desired states, one at a time.
pub(super) struct Plans {
    objects: Objects,
    planner: Planner,
    planned: Arc<Mutex<Planned>>,
    /// The plan that nobody waits for any more, if it is the last one that began.
    abandoned: Abandoned,
    /// Values by blob, of the kept plan and of the previous process.
    known: Arc<KnownValues>,
}

/// What is kept of the last plan.
#[derive(Default)]
struct Planned {
    /// The last desired state.
    desired: Option<Arc<Desired>>,
    /// The plan that it was made of, from which the next one is computed. That uses it up: a plan takes much memory, so
    /// there is no copy. After a plan that fails, the next one is computed from the whole tree.
    last: Option<LastPlan>,
}

/// A plan's revision, and what ends it.
type Abandoned = BlockingMutex<Option<(Revision, CancellationToken)>>;

/// A caller that waits for a plan. If it is dropped before the plan has ended, the plan is abandoned.
struct Waiting<'p> {
    abandoned: &'p Abandoned,
    plan: Option<(Revision, CancellationToken)>,
}

impl Waiting<'_> {
    /// The plan has ended.
    fn ended(mut self) {
        self.plan = None;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(plan) = self.plan.take() {
            *locked(self.abandoned) = Some(plan);
        }
    }
}

fn locked(abandoned: &Abandoned) -> MutexGuard<'_, Option<(Revision, CancellationToken)>> {
    abandoned.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Plans {
    /// Reads revisions from `objects`.
    pub(super) fn new(objects: Objects, planner: Planner) -> Self {
        let known = Arc::new(planner.known_values(&objects));
        Self { objects, planner, planned: Arc::default(), abandoned: Abandoned::default(), known }
    }

    /// Returns the desired state of a revision. If the future is dropped, a plan that has begun goes on, and its result
    /// is kept: the next delivery of that revision needs it. If another revision is asked for, it ends before its next
    /// file. Until it has ended, no other one begins.
    ///
    /// # Errors
    /// When the mirror does not hold the revision, or its rules or files are invalid.
    pub(super) async fn of(&self, named: Named) -> Result<Arc<Desired>, SourceError> {
        let Named { revision, sources } = named;
        self.end_abandoned(revision);
        let mut planned = Arc::clone(&self.planned).lock_owned().await;
        let is_same = |desired: &&Arc<Desired>| {
            desired.revision == revision && desired.sources.has_same_answers(&sources)
        };
        if let Some(desired) = planned.desired.as_ref().filter(is_same) {
            return Ok(Arc::clone(desired));
        }
        let cancel = CancellationToken::new();
        let objects = self.objects.clone().until(&cancel);
        let planner = self.planner.clone();
        let known = Arc::clone(&self.known);
        let waiting = Waiting { abandoned: &self.abandoned, plan: Some((revision, cancel.clone())) };
        // The thread ends later than this future if that is dropped, so the lock is its own.
        let plan = move || -> Result<Arc<Desired>, desired::Error> {
            if cancel.is_cancelled() {
                return Err(mirror::Error::Cancelled.into()); // and the next plan still has the last one to start from
            }
            let tree = Commit::new(&objects, revision, &known).until(&cancel);
            let last = planned.last.take();
            let (desired, last) = planner.desired(&tree, revision, &sources, last)?;
            let desired = Arc::new(desired);
            *planned = Planned { desired: Some(Arc::clone(&desired)), last: Some(last) };
            Ok(desired)
        };
        let made = tokio::task::spawn_blocking(plan).await;
        waiting.ended();
        let made = made.map_err(|error| not_made(revision, &error))?;
        made.map_err(|error| SourceError::of_plan(revision, &error))
    }

    /// Ends the plan that nobody waits for any more, unless it is of this revision.
    fn end_abandoned(&self, revision: Revision) {
        if let Some((_, cancel)) = locked(&self.abandoned).take_if(|(planned, _)| *planned != revision) {
            cancel.cancel();
        }
    }
}

/// The error of a plan whose thread gave no result. If a commit's content makes a library panic, this revision fails,
/// but deliveries go on.
fn not_made(revision: Revision, error: &JoinError) -> SourceError {
    if error.is_panic() {
        SourceError::of_defect(revision)
    } else {
        SourceError::unplanned(revision) // at shutdown, before it began
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Display;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::configmap::apply::ExtraKeys;
    use crate::configmap::{Dialect, Policies};
    use crate::desired::{Options, Rules};
    use crate::mirror::fixture::{Fixture, Model};
    use crate::payload::Kind;

    /// Plans for the rules of each commit, one of which matches no file: each plan calls `warn`.
    fn plans(fixture: &Fixture, warn: fn(&dyn Display)) -> Plans {
        let options = Options {
            default_namespace: "default".into(),
            dialect: Dialect::default(),
            ignore_unknown: false,
            repository: None,
            policies: Policies::default(),
            memory_limit: None,
            shape: ExtraKeys::default(),
            warn,
        };
        Plans::new(fixture.objects(), Planner::new(options, Rules::InTree("rules.yaml".into())))
    }

    fn commit(fixture: &Fixture, content: &str) -> Revision {
        let rules = "maps:\n  jobs/*: {name: jobs}\n  none/*: {name: none}\n";
        let file = |text: &str| Some((Kind::File, text.as_bytes().to_vec()));
        let model = Model::from([("rules.yaml".into(), file(rules)), ("jobs/a".into(), file(content))]);
        fixture.commit_of(&model)
    }

    static WARNED: AtomicUsize = AtomicUsize::new(0);
    static MAY_GO_ON: AtomicBool = AtomicBool::new(false);

    /// Blocks the plan where the rules have been read, and nothing else.
    fn waits(_: &dyn Display) {
        WARNED.fetch_add(1, Ordering::Relaxed);
        let began = Instant::now();
        while !MAY_GO_ON.load(Ordering::Relaxed) && began.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[tokio::test]
    async fn a_plan_that_nobody_waits_for_ends_if_another_revision_is_asked_for_and_before_that_begins() {
        let fixture = Fixture::new();
        let both = plans(&fixture, waits);
        // A pattern that is warned of when the rules are read, and again because no file matches it.
        let rules = "maps:\n  jobs/*: {name: jobs}\n  none/**: {name: none}\n";
        let [first, second] = ["1", "2"].map(|content| {
            let file = |text: &str| Some((Kind::File, text.as_bytes().to_vec()));
            let files = [("rules.yaml".into(), file(rules)), ("jobs/a".into(), file(content))];
            fixture.commit_of(&Model::from(files))
        });
        let begun = async {
            while WARNED.load(Ordering::Relaxed) == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            made = both.of(first.into()) => panic!("{made:?}"),
            () = begun => {}
        }
        let mut next = std::pin::pin!(both.of(second.into()));
        let early = tokio::time::timeout(Duration::from_millis(100), &mut next).await;
        assert!(early.is_err());
        assert_eq!(WARNED.load(Ordering::Relaxed), 1, "one plan at a time");
        MAY_GO_ON.store(true, Ordering::Relaxed);
        assert_eq!(next.await.unwrap().revision, second);
        let by_both = WARNED.load(Ordering::Relaxed);
        plans(&fixture, waits).of(first.into()).await.unwrap();
        let by_one = WARNED.load(Ordering::Relaxed) - by_both;
        assert_eq!(by_both, 2 * by_one - 1, "the first one did not get as far as its files");
    }

    static PANICS: AtomicBool = AtomicBool::new(true);

    fn defect(_: &dyn Display) {
        assert!(!PANICS.swap(false, Ordering::Relaxed), "a defect");
    }

    #[tokio::test]
    async fn a_plan_that_panics_fails_its_revision_and_the_last_one_outlives_one_that_fails() {
        let fixture = Fixture::new();
        let plans = plans(&fixture, defect);
        let revision = commit(&fixture, "1");
        let error = plans.of(revision.into()).await.unwrap_err();
        assert!(error.what.contains("this is a bug in treeswap"), "{error}");
        let desired = plans.of(revision.into()).await.unwrap();
        let without_rules = fixture.commit_of(&Model::new());
        let error = plans.of(without_rules.into()).await.unwrap_err();
        assert!(error.what.contains("the tree has no such file"), "{error}");
        let again = plans.of(revision.into()).await.unwrap();
        assert!(Arc::ptr_eq(&desired, &again), "it is not computed again");
        let next = commit(&fixture, "2");
        assert_eq!(plans.of(next.into()).await.unwrap().revision, next, "from the whole tree");
    }

    #[tokio::test]
    async fn a_plan_that_the_shutdown_prevents_is_no_bug() {
        let task = tokio::spawn(std::future::pending::<()>());
        task.abort();
        let error = not_made(Revision(crate::revision::ObjectId([0xab; 20])), &task.await.unwrap_err());
        assert_eq!(error.what, "revision abababababab: the run ended while computing the plan");
    }
}
