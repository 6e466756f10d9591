//! One question to one repository: what its refs name, with the objects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use super::SourceError;
use crate::mirror::{self, Mirror, Tip};
use crate::revision::{ObjectId, Ref, Revision};

/// One look asks for all refs at once, but the server reads them one after the other, and a ref transaction may come in
/// between: where something changed, it looks again until two looks agree, at most so often.
const LOOKS: usize = 6;

/// Between two looks: git writes the refs of a transaction one after the other, within milliseconds.
const TRANSACTION: Duration = Duration::from_millis(25);

/// A question.
pub(super) struct Question {
    pub(super) mirror: Arc<Mutex<Mirror>>,
    /// As the file has them, each once.
    pub(super) refs: Vec<String>,
    /// What they named before: nothing is fetched for the same object.
    pub(super) known: BTreeMap<String, (ObjectId, Revision)>,
    /// What they named before and cannot be had: the same would be fetched and thrown away again.
    pub(super) refused: BTreeMap<String, (ObjectId, SourceError)>,
    /// Revisions that must stay readable.
    pub(super) held: Vec<Revision>,
    pub(super) timeout: Duration,
}

impl Question {
    /// The answer, where the ref still names what it did.
    fn as_before(&self, asked: &str, object: ObjectId) -> Option<Answer> {
        let known = self.known.get(asked).filter(|(named, _)| *named == object);
        let refused = self.refused.get(asked).filter(|(named, _)| *named == object);
        let known = known.map(|(_, revision)| Answer::Named(object, *revision));
        known.or_else(|| refused.map(|(_, why)| Answer::Refused(object, why.clone())))
    }
}

/// What became of one ref.
pub(super) enum Answer {
    /// The object that it names, and the commit, which the mirror holds.
    Named(ObjectId, Revision),
    /// The object that it names, and why its commit cannot be had.
    Refused(ObjectId, SourceError),
    /// Why that is not known.
    Failed(SourceError),
}

/// The answers of one repository.
pub(super) struct Answers {
    pub(super) of_refs: Vec<(String, Answer)>,
    /// There was no room for what was fetched.
    pub(super) full: Option<mirror::Error>,
    /// The remote wants to be left alone so long.
    pub(super) retry_after: Option<Duration>,
    /// Something was named that was not before.
    pub(super) is_new: bool,
    /// It said what its refs name, and the way to it did not fail then.
    pub(super) heard: bool,
}

impl Answers {
    /// Whether something of what was asked for is not there.
    pub(super) fn has_failed(&self) -> bool {
        self.of_refs.iter().any(|(_, answer)| !matches!(answer, Answer::Named(..)))
    }

    /// A commit could not be had.
    fn failed(&mut self, tip: &Tip, error: mirror::Error) -> Answer {
        let why = SourceError::of_mirror(&error);
        self.retry_after = self.retry_after.max(error.retry_after());
        if error.is_refusal() {
            return Answer::Refused(tip.object, why);
        }
        self.full = self.full.take().or_else(|| error.is_full().then_some(error));
        Answer::Failed(why)
    }
}

/// Asks, and fetches what is new.
pub(super) async fn poll(question: Question) -> Answers {
    let refs = question.refs.clone();
    let timeout = question.timeout;
    match tokio::time::timeout(timeout, ask(question)).await {
        Ok(answers) => answers,
        Err(_) => {
            let seconds = timeout.as_secs_f64();
            let what = format!("it took longer than {seconds}s, nine tenths of --sync-timeout");
            let hints =
                vec!["raise --sync-timeout if the repository is large; else look at its remote".to_owned()];
            failed(&refs, &SourceError { what, hints, transient: true })
        }
    }
}

fn failed(refs: &[String], why: &SourceError) -> Answers {
    let of_refs = refs.iter().map(|asked| (asked.clone(), Answer::Failed(why.clone()))).collect();
    Answers { of_refs, full: None, retry_after: None, is_new: false, heard: false }
}

async fn ask(question: Question) -> Answers {
    let mut mirror = question.mirror.lock().await;
    let tips = match agreed(&mut mirror, &question).await {
        Ok(tips) => tips,
        Err(error) => {
            let retry_after = error.retry_after();
            return Answers { retry_after, ..failed(&question.refs, &SourceError::of_mirror(&error)) };
        }
    };
    let mut answers =
        Answers { of_refs: Vec::new(), full: None, retry_after: None, is_new: false, heard: true };
    let mut cut = None;
    for (asked, tip) in question.refs.iter().zip(tips) {
        let answer = match tip {
            Ok(tip) => match question.as_before(asked, tip.object) {
                Some(answer) => answer,
                None => match mirror.fetch(&tip, &question.held).await {
                    Ok(revision) => Answer::Named(tip.object, revision),
                    Err(error) => {
                        cut = cut.or_else(|| error.is_cut().then(|| SourceError::of_mirror(&error)));
                        answers.failed(&tip, error)
                    }
                },
            },
            Err(why) => Answer::Failed(why),
        };
        answers.of_refs.push((asked.clone(), answer));
    }
    answers.heard = cut.is_none();
    for (asked, answer) in &mut answers.of_refs {
        let is_new =
            matches!(answer, Answer::Named(object, _) if question.as_before(asked, *object).is_none());
        match &cut {
            // What the refs name belongs together: none moves before the rest has come.
            Some(why) if is_new => *answer = Answer::Failed(why.clone()),
            _ => answers.is_new |= is_new,
        }
    }
    answers
}

/// What each ref names, at one moment as far as that can be known. An error is about the repository; one ref's own is
/// among the tips.
async fn agreed(
    mirror: &mut Mirror,
    question: &Question,
) -> Result<Vec<Result<Tip, SourceError>>, mirror::Error> {
    let refs = &question.refs;
    let mut before = look(mirror, refs).await?;
    let is_known = |(asked, tip): (&String, &Result<Tip, SourceError>)| {
        let known = question.known.get(asked);
        matches!((tip, known), (Ok(tip), Some((object, _))) if tip.object == *object)
    };
    if refs.len() < 2 || refs.iter().zip(&before).all(is_known) {
        return Ok(before);
    }
    for _ in 1..LOOKS {
        tokio::time::sleep(TRANSACTION).await;
        let again = look(mirror, refs).await?;
        if again == before {
            return Ok(again);
        }
        before = again;
    }
    let what = "its refs change faster than they can be read together".to_owned();
    let hints = vec!["they are asked for again at the next attempt".to_owned()];
    let why = SourceError { what, hints, transient: true };
    Ok(refs.iter().map(|_| Err(why.clone())).collect())
}

/// One look at all of the refs, with one request.
async fn look(mirror: &mut Mirror, refs: &[String]) -> Result<Vec<Result<Tip, SourceError>>, mirror::Error> {
    let asked: Vec<Ref> = refs.iter().map(|asked| asked.parse().unwrap_or(Ref::Head)).collect(); // they were read before
    let found = mirror.resolve_refs(&asked).await?;
    let tip = |asked| found.tip(asked).map_err(|error| SourceError::of_mirror(&error.into()));
    Ok(asked.iter().map(tip).collect())
}
