//! One poll of one repository of a set: asks what its refs name, and fetches what is new.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use super::SourceError;
use crate::mirror::{self, Mirror, Tip, TurnWait};
use crate::retry::ErrorClass;
use crate::revision::{ObjectId, Ref, Revision};

/// The maximum number of ref advertisements that are requested until two agree. One request asks for all refs, but the
/// server reads them one after the other and a ref transaction may come in between. So if a ref has changed, the
/// request is repeated until two successive answers are equal.
const MAX_REQUESTS: usize = 6;

/// The time between two of them: git writes the refs of a transaction one after the other, within milliseconds.
const TRANSACTION: Duration = Duration::from_millis(25);

/// The input of a poll.
pub(super) struct PollRequest {
    pub(super) mirror: Arc<Mutex<Mirror>>,
    /// How long the mirror has waited for its turns to index packs.
    pub(super) turn_wait: TurnWait,
    /// The refs as the file has them, each once, and parsed.
    pub(super) refs: BTreeMap<String, Ref>,
    /// By ref, the object it named before and that object's commit. The same object is not fetched again.
    pub(super) known: BTreeMap<String, (ObjectId, Revision)>,
    /// By ref, an object that was refused before: fetching it again would have the same result.
    pub(super) refused: BTreeMap<String, (ObjectId, SourceError)>,
    /// Revisions that the mirror must keep.
    pub(super) kept_revisions: Vec<Revision>,
    /// The time limit. The time that the mirror waits for its turns does not count: other remotes use it up.
    pub(super) timeout: Duration,
}

impl PollRequest {
    /// Returns the previous answer if the ref still names the same object.
    fn previous_answer(&self, ref_name: &str, object: ObjectId) -> Option<Answer> {
        let known = self.known.get(ref_name).filter(|(named, _)| *named == object);
        let refused = self.refused.get(ref_name).filter(|(named, _)| *named == object);
        let known = known.map(|(_, revision)| Answer::Named(object, *revision));
        known.or_else(|| refused.map(|(_, why)| Answer::Refused(object, why.clone())))
    }
}

/// The answer for one ref.
pub(super) enum Answer {
    /// The object the ref names, and its commit, which the mirror holds.
    Named(ObjectId, Revision),
    /// The object the ref names, and why its commit is refused.
    Refused(ObjectId, SourceError),
    /// Why it is not known what the ref names, or why the fetch failed.
    Failed(SourceError),
}

/// The answers of one repository.
pub(super) struct PollResult {
    pub(super) of_refs: Vec<(String, Answer)>,
    /// Set if the volume was too full for a fetch.
    pub(super) full: Option<mirror::Error>,
    /// The remote's Retry-After.
    pub(super) retry_after: Option<Duration>,
    /// True if a ref names another commit than before, one that is refused included, or no longer names a refused one.
    pub(super) is_new: bool,
    /// True if a fetch failed or its commit was refused.
    pub(super) has_fetched: bool,
    /// True if the remote advertised its refs and no connection failed after that.
    pub(super) is_answered: bool,
}

impl PollResult {
    /// Returns true if it is not known what a ref names, or a fetch failed. A refused commit is no failure of the remote.
    pub(super) fn has_failed(&self) -> bool {
        self.of_refs.iter().any(|(_, answer)| matches!(answer, Answer::Failed(..)))
    }

    /// Records a failed fetch and returns the answer for its ref.
    fn failed(&mut self, tip: &Tip, error: mirror::Error) -> Answer {
        let why = SourceError::of_mirror(&error);
        self.has_fetched = true;
        self.retry_after = self.retry_after.max(error.retry_after());
        if error.is_refusal() {
            return Answer::Refused(tip.object, why);
        }
        self.full = self.full.take().or_else(|| error.is_full().then_some(error));
        Answer::Failed(why)
    }
}

/// Polls the repository within the request's timeout.
pub(super) async fn poll(request: PollRequest) -> PollResult {
    let refs = request.refs.clone();
    let timeout = request.timeout;
    let turn_wait = request.turn_wait.clone();
    match turn_wait.within(timeout, ask(request)).await {
        Some(result) => result,
        None => {
            let seconds = timeout.as_secs_f64();
            let what = format!("it took longer than {seconds}s, nine tenths of --sync-timeout");
            let hints = vec![
                "raise --sync-timeout if the repository is large; otherwise check its remote".to_owned(),
            ];
            failed(&refs, &SourceError { what, hints, class: ErrorClass::Timeout })
        }
    }
}

fn failed(refs: &BTreeMap<String, Ref>, why: &SourceError) -> PollResult {
    let of_refs = refs.keys().map(|ref_name| (ref_name.clone(), Answer::Failed(why.clone()))).collect();
    PollResult {
        of_refs,
        full: None,
        retry_after: None,
        is_new: false,
        has_fetched: false,
        is_answered: false,
    }
}

async fn ask(request: PollRequest) -> PollResult {
    let mut mirror = request.mirror.lock().await;
    let tips = match consistent_tips(&mut mirror, &request).await {
        Ok(tips) => tips,
        Err(error) => {
            let retry_after = error.retry_after();
            return PollResult { retry_after, ..failed(&request.refs, &SourceError::of_mirror(&error)) };
        }
    };
    let mut result = PollResult {
        of_refs: Vec::new(),
        full: None,
        retry_after: None,
        is_new: false,
        has_fetched: false,
        is_answered: true,
    };
    let mut connection_error = None;
    for (ref_name, tip) in request.refs.keys().zip(tips) {
        let answer = match tip {
            Ok(tip) => match request.previous_answer(ref_name, tip.object) {
                Some(answer) => answer,
                None => match mirror.fetch(&tip, &request.kept_revisions).await {
                    Ok(revision) => Answer::Named(tip.object, revision),
                    Err(error) => {
                        if connection_error.is_none() && error.is_connection_loss() {
                            connection_error = Some(SourceError::of_mirror(&error));
                        }
                        result.failed(&tip, error)
                    }
                },
            },
            Err(why) => Answer::Failed(why),
        };
        result.of_refs.push((ref_name.clone(), answer));
    }
    result.is_answered = connection_error.is_none();
    for (ref_name, answer) in &mut result.of_refs {
        let is_new = |object: &ObjectId| request.previous_answer(ref_name, *object).is_none();
        match (&connection_error, &*answer) {
            // The refs of a repository move together: none does if a fetch of another one was cut off.
            (Some(why), Answer::Named(object, _)) if is_new(object) => *answer = Answer::Failed(why.clone()),
            (_, Answer::Named(object, _)) => {
                result.is_new |= is_new(object) || request.refused.contains_key(ref_name);
            }
            (_, Answer::Refused(object, _)) => result.is_new |= is_new(object),
            (_, Answer::Failed(_)) => {}
        }
    }
    result
}

/// Returns what each ref names, all at one moment as far as the protocol allows. The outer error is about the
/// repository, an inner one about a single ref.
async fn consistent_tips(
    mirror: &mut Mirror,
    request: &PollRequest,
) -> Result<Vec<Result<Tip, SourceError>>, mirror::Error> {
    let refs = &request.refs;
    let mut before = request_tips(mirror, refs).await?;
    let is_known = |(ref_name, tip): (&String, &Result<Tip, SourceError>)| {
        let known = request.known.get(ref_name);
        matches!((tip, known), (Ok(tip), Some((object, _))) if tip.object == *object)
    };
    if refs.len() < 2 || refs.keys().zip(&before).all(is_known) {
        return Ok(before);
    }
    for _ in 1..MAX_REQUESTS {
        tokio::time::sleep(TRANSACTION).await;
        let again = request_tips(mirror, refs).await?;
        if again == before {
            return Ok(again);
        }
        before = again;
    }
    let what = "its refs change faster than they can be read together".to_owned();
    let hints = vec!["they are read again at the next attempt".to_owned()];
    let why = SourceError { what, hints, class: ErrorClass::Transient };
    Ok(refs.values().map(|_| Err(why.clone())).collect())
}

/// Asks for all refs with one request.
async fn request_tips(
    mirror: &mut Mirror,
    refs: &BTreeMap<String, Ref>,
) -> Result<Vec<Result<Tip, SourceError>>, mirror::Error> {
    let refs: Vec<Ref> = refs.values().cloned().collect();
    let found = mirror.resolve_refs(&refs).await?;
    let tip = |ref_name| found.tip(ref_name).map_err(|error| SourceError::of_mirror(&error.into()));
    Ok(refs.iter().map(tip).collect())
}
