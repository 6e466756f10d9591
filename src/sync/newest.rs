//! What the ref names, once the root has it: for a delivery beside the root, which needs an answer from the remote that
//! is newer than its question.
//!
//! A question is an attempt: one that begins after the question was put, and ends well. So there is one conversation
//! with the remote, under one set of deadlines and pauses, and no revision is delivered before it is published.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, watch};

use super::TriggerSender;
use super::error::Error;
use crate::human::one_line;
use crate::mirror::Mirror;
use crate::phase::Trigger;
use crate::revision::{Relation, Revision};

/// Why there is no answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what}")]
pub struct Unanswered {
    /// One line.
    pub what: String,
    /// What an operator can do.
    pub hints: Vec<String>,
    /// Whether it may pass by itself.
    pub transient: bool,
}

type Answer = Result<Revision, Unanswered>;

/// What is known of the attempts so far.
#[derive(Clone, Debug, Default)]
struct AttemptHistory {
    /// How many have begun.
    begun: u64,
    /// The last one that gave an answer, and that.
    answered: Option<(u64, Answer)>,
    /// None will follow: what is asked for cannot change.
    parked: bool,
}

/// The loop's side.
#[derive(Debug, Default)]
pub(super) struct AttemptResults(watch::Sender<AttemptHistory>);

impl AttemptResults {
    /// An attempt begins.
    pub(super) fn begun(&self) {
        self.0.send_modify(|rounds| rounds.begun += 1);
    }

    /// It ended; `named` is what the ref names, if the root has it.
    pub(super) fn ended<T>(&self, result: &Result<T, Error>, named: Option<Revision>) {
        let answer = match (result, named) {
            (Ok(_), Some(named)) => Ok(named),
            (Ok(_), None) => return, // something newer waits until it may be published
            (Err(error), _) => {
                let what = one_line(error);
                let hints = error.hints();
                Err(Unanswered { what, hints, transient: error.is_transient() })
            }
        };
        self.0.send_modify(|rounds| rounds.answered = Some((rounds.begun, answer)));
    }

    /// No attempt follows.
    pub(super) fn parked(&self) {
        self.0.send_modify(|rounds| rounds.parked = true);
    }

    /// A handle to ask with.
    pub(super) fn newest(&self, asker: TriggerSender) -> Newest {
        Newest { asker, rounds: self.0.subscribe(), last: None }
    }
}

/// Asks a sync.
#[derive(Clone)]
pub struct Newest {
    asker: TriggerSender,
    rounds: watch::Receiver<AttemptHistory>,
    last: Option<Revision>,
}

impl Newest {
    /// Which revision the ref names, asked after the call. It comes once the root has that revision: within the minimum
    /// interval, if there is one.
    ///
    /// # Errors
    /// When the attempt fails, whatever the reason; or the sync has ended.
    pub async fn ask(&self) -> Answer {
        let mut rounds = self.rounds.clone();
        let begun = rounds.borrow().begun;
        self.asker.ask(Trigger::Delivery);
        let newer = |rounds: &AttemptHistory| {
            let newer = |(number, _): &&(u64, Answer)| rounds.parked || *number > begun;
            rounds.answered.as_ref().filter(newer).map(|(_, answer)| answer.clone())
        };
        let answer =
            rounds.wait_for(|rounds| newer(rounds).is_some()).await.ok().and_then(|found| newer(&found));
        answer.unwrap_or_else(|| {
            let what = "the sync of the root has ended".to_owned();
            Err(Unanswered { what, hints: Vec::new(), transient: true })
        })
    }

    /// Waits until the root has another revision than the last time. `None`: the sync has ended.
    pub async fn changed(&mut self) -> Option<Revision> {
        let last = self.last;
        let named = |rounds: &AttemptHistory| match &rounds.answered {
            Some((_, Ok(named))) if last != Some(*named) => Some(*named),
            _ => None,
        };
        let found = self.rounds.wait_for(|rounds| named(rounds).is_some()).await.ok()?;
        let found = named(&found);
        self.last = found;
        found
    }
}

/// Tells an advance of the ref from a rewind. It has the mirror while it asks, and the root waits so long: no longer
/// than an attempt may take.
pub struct History {
    pub(super) mirror: Arc<Mutex<Mirror>>,
    pub(super) limit: Duration,
}

impl History {
    /// How a revision that the ref names stands to another one, from the mirror or the remote.
    ///
    /// # Errors
    /// When the remote does not answer, or not in the time of an attempt.
    pub async fn relation(&self, recorded: Revision, named: Revision) -> Result<Relation, Unanswered> {
        let limit = self.limit;
        let runtime = tokio::runtime::Handle::current();
        let mut mirror = Arc::clone(&self.mirror).lock_owned().await;
        // On a thread of its own: a connection stays on the thread that speaks through it.
        let asked = tokio::task::spawn_blocking(move || {
            runtime.block_on(async { tokio::time::timeout(limit, mirror.relation(recorded, named)).await })
        });
        match asked.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())) {
            Ok(found) => found.map_err(|error| Unanswered {
                what: one_line(&error),
                hints: error.hints(),
                transient: error.is_transient(),
            }),
            Err(_) => Err(Unanswered {
                what: format!(
                    "the remote did not answer within {:?} what lies between two commits",
                    self.limit
                ),
                hints: Vec::new(),
                transient: true,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::mirror;
    use crate::revision::ObjectId;
    use crate::telemetry::metrics::Metrics;

    const A: Revision = Revision(ObjectId([1; 20]));
    const B: Revision = Revision(ObjectId([2; 20]));

    fn failed() -> Result<(), Error> {
        Err(Error::Mirror(mirror::Error::BadPack { why: "a test".to_owned() }))
    }

    fn begin() -> (AttemptResults, Newest, mpsc::Receiver<Trigger>) {
        let tell = AttemptResults::default();
        let (send, asked) = mpsc::channel(1);
        let newest = tell.newest(TriggerSender { send, metrics: Metrics::default() });
        (tell, newest, asked)
    }

    /// Whether a question has its answer by now.
    async fn answer(question: impl Future<Output = Answer>) -> Option<Answer> {
        tokio::time::timeout(Duration::from_secs(1), question).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn only_an_attempt_that_began_after_the_question_answers_it() {
        let (tell, newest, mut asked) = begin();
        tell.begun();
        let mut question = std::pin::pin!(newest.ask());
        assert!(answer(&mut question).await.is_none());
        tell.ended(&Ok(()), Some(A));
        assert!(answer(&mut question).await.is_none(), "it had begun before");
        assert_eq!(asked.recv().await, Some(Trigger::Delivery));
        tell.begun();
        tell.ended(&Ok(()), None);
        assert!(answer(&mut question).await.is_none(), "what the ref names is not published yet");
        tell.begun();
        tell.ended(&Ok(()), Some(B));
        assert_eq!(answer(&mut question).await, Some(Ok(B)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_an_end_and_a_ref_that_cannot_change_answer_too() {
        let (tell, newest, _asked) = begin();
        let mut question = std::pin::pin!(newest.ask());
        assert!(answer(&mut question).await.is_none());
        tell.begun();
        tell.ended(&failed(), Some(A));
        assert!(answer(&mut question).await.unwrap().unwrap_err().what.contains("a test"));
        tell.begun();
        tell.ended(&Ok(()), Some(A));
        tell.parked();
        assert_eq!(answer(newest.ask()).await, Some(Ok(A)));
        let (tell, newest, _asked) = begin();
        drop(tell);
        assert!(answer(newest.ask()).await.unwrap().unwrap_err().what.contains("has ended"));
    }

    #[tokio::test(start_paused = true)]
    async fn another_revision_is_told_once() {
        let (tell, mut newest, _asked) = begin();
        for (result, named, told) in [
            (Ok(()), Some(A), Some(A)),
            (Ok(()), Some(A), None),
            (failed(), None, None),
            (Ok(()), Some(B), Some(B)),
            (Ok(()), Some(A), Some(A)),
        ] {
            tell.begun();
            tell.ended(&result, named);
            let changed = tokio::time::timeout(Duration::from_secs(1), newest.changed()).await;
            assert_eq!(changed.ok().flatten(), told);
        }
        drop(tell);
        assert_eq!(newest.changed().await, None);
    }
}
