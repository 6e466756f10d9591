//! One poll of one repository of a set: asks what its refs name, and fetches what is new.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use super::stage::{Stage, StagedError};
use super::{AttemptLimit, SourceError};
use crate::mirror::{self, Mirror, Tip, TurnWait, wire};
use crate::retry::ErrorClass;
use crate::revision::{ObjectId, Ref, Revision};

/// The maximum number of ref advertisements that are requested until two agree. One request asks for all refs, but the
/// server reads them one after the other and a ref transaction may come in between. So if a ref has changed, the
/// request is repeated until two successive answers are equal.
const MAX_REQUESTS: usize = 6;

/// The time between two of them: git writes the refs of a transaction one after the other, within milliseconds.
const REQUEST_PAUSE: Duration = Duration::from_millis(25);

/// A poll's part of the time of an attempt, which then still has time to publish without this repository.
const TIME_PART: f64 = 0.9;

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
    pub(super) refused: BTreeMap<String, (ObjectId, StagedError)>,
    /// The refs of which the poll before got no commit.
    pub(super) failed: BTreeSet<String>,
    /// Revisions that the mirror must keep.
    pub(super) kept_revisions: Vec<Revision>,
    /// Revisions that are part of the published set.
    pub(super) published: Vec<Revision>,
    /// The time limit of the attempt. The time that the mirror waits for its turns does not count: other remotes use it
    /// up.
    pub(super) limit: AttemptLimit,
}

impl PollRequest {
    /// Returns the previous result if the ref still names the same object.
    fn previous_result(&self, ref_name: &str, object: ObjectId) -> Option<RefResult> {
        let known = self.known.get(ref_name).filter(|(named, _)| *named == object);
        let refused = self.refused.get(ref_name).filter(|(named, _)| *named == object);
        let known = known.map(|(_, revision)| RefResult::Named(object, *revision));
        known.or_else(|| refused.map(|(_, why)| RefResult::Refused(object, why.clone())))
    }
}

/// What a poll found for one ref.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum RefResult {
    /// The object the ref names, and its commit, which the mirror holds.
    Named(ObjectId, Revision),
    /// The object the ref names, and why its commit is refused.
    Refused(ObjectId, StagedError),
    /// Why it is not known what the ref names, or why the fetch failed.
    Failed(StagedError),
}

/// What a poll found.
#[derive(Default)]
pub(super) struct PollResult {
    pub(super) of_refs: Vec<(String, RefResult)>,
    /// Set if the volume was too full for a fetch.
    pub(super) full: Option<mirror::Error>,
    /// The remote's Retry-After.
    pub(super) retry_after: Option<Duration>,
    /// True if a ref names another commit than before, one that is refused included, or no longer names a refused one,
    /// or if a ref has failed and did not before, or the other way round.
    pub(super) is_new: bool,
    /// True if the remote advertised its refs and no connection failed after that.
    pub(super) is_reached: bool,
}

impl PollResult {
    /// The result of a poll that found nothing for any ref.
    fn of_failure(refs: &BTreeMap<String, Ref>, why: &StagedError) -> Self {
        let of_refs = refs.keys().map(|ref_name| (ref_name.clone(), RefResult::Failed(why.clone())));
        Self { of_refs: of_refs.collect(), ..Self::default() }
    }

    /// Returns true if the remote was not reached, or a fetch failed. Neither a refused commit nor a missing ref is a
    /// failure of the remote: its other refs are well.
    pub(super) fn has_failed(&self) -> bool {
        let is_failure = |why: &StagedError| !self.is_reached || why.stage == Stage::Fetch;
        self.of_refs.iter().any(|(_, of_ref)| matches!(of_ref, RefResult::Failed(why) if is_failure(why)))
    }

    /// Returns true if a fetch failed, or a commit was refused by an earlier poll already.
    fn has_failed_fetch(&self, request: &PollRequest) -> bool {
        self.of_refs.iter().any(|(ref_name, of_ref)| match of_ref {
            RefResult::Named(..) => false,
            RefResult::Refused(object, _) => request.previous_result(ref_name, *object).is_some(),
            RefResult::Failed(why) => why.stage == Stage::Fetch,
        })
    }

    /// Records a failed fetch, and returns the result for its ref.
    fn record_failed_fetch(&mut self, tip: &Tip, error: mirror::Error) -> RefResult {
        let why = StagedError::new(Stage::Fetch, SourceError::of_mirror(&error));
        self.is_reached &= !error.is_connection_loss();
        self.retry_after = self.retry_after.max(error.retry_after());
        if error.is_refusal() {
            return RefResult::Refused(tip.object, why);
        }
        self.full = self.full.take().or_else(|| error.is_full().then_some(error));
        RefResult::Failed(why)
    }

    /// Compares what was found with what was found before. The refs of a repository move together: after a failed
    /// connection none does.
    fn compare(&mut self, request: &PollRequest, connection_error: Option<&StagedError>) {
        for (ref_name, of_ref) in &mut self.of_refs {
            let had_failed = request.failed.contains(ref_name);
            let is_new = |object: &ObjectId| request.previous_result(ref_name, *object).is_none();
            match (connection_error, &*of_ref) {
                (Some(why), RefResult::Named(object, _)) if is_new(object) => {
                    *of_ref = RefResult::Failed(why.clone());
                }
                (_, RefResult::Named(object, _)) => {
                    self.is_new |= is_new(object) || request.refused.contains_key(ref_name) || had_failed;
                }
                (_, RefResult::Refused(object, _)) => self.is_new |= is_new(object),
                (_, RefResult::Failed(_)) => self.is_new |= !had_failed,
            }
        }
    }
}

/// Polls the repository within its part of the request's time limit.
pub(super) async fn poll(request: PollRequest) -> PollResult {
    let refs = request.refs.clone();
    let limit = request.limit;
    let time = limit.time.mul_f64(TIME_PART);
    let turn_wait = request.turn_wait.clone();
    let has_begun_to_fetch = AtomicBool::new(false);
    match turn_wait.within(time, ask(request, &has_begun_to_fetch)).await {
        Some(result) => result,
        None => {
            let is_fetch = has_begun_to_fetch.load(Ordering::Relaxed);
            let stage = if is_fetch { Stage::Fetch } else { Stage::Resolve };
            PollResult::of_failure(&refs, &StagedError::new(stage, timed_out(time, limit)))
        }
    }
}

/// The error of a poll that took longer than `time`, its part of the limit.
fn timed_out(time: Duration, AttemptLimit { part, flag, .. }: AttemptLimit) -> SourceError {
    SourceError {
        what: format!("it took longer than {}s, nine tenths of {part}{flag}", time.as_secs_f64()),
        hints: vec![format!("raise {flag} if the repository is large; otherwise check its remote")],
        class: ErrorClass::Timeout,
    }
}

/// Polls the repository, and sets `has_begun_to_fetch` when it fetches.
async fn ask(request: PollRequest, has_begun_to_fetch: &AtomicBool) -> PollResult {
    let began = Instant::now();
    let waited = request.turn_wait.total();
    let mut mirror = request.mirror.lock().await;
    let tips = match consistent_tips(&mut mirror, &request).await {
        Ok(tips) => tips,
        Err(error) => {
            let why = StagedError::new(Stage::Resolve, SourceError::of_mirror(&error));
            let retry_after = error.retry_after();
            return PollResult { retry_after, ..PollResult::of_failure(&request.refs, &why) };
        }
    };
    let mut result = PollResult { is_reached: true, ..PollResult::default() };
    let mut connection_error = None;
    for (ref_name, tip) in request.refs.keys().zip(tips) {
        let of_ref = match tip {
            Ok(tip) => match request.previous_result(ref_name, tip.object) {
                Some(of_ref) => of_ref,
                None => {
                    has_begun_to_fetch.store(true, Ordering::Relaxed);
                    match mirror.fetch(&tip, &request.kept_revisions).await {
                        Ok(revision) => RefResult::Named(tip.object, revision),
                        Err(error) => {
                            let is_lost = error.is_connection_loss();
                            let of_ref = result.record_failed_fetch(&tip, error);
                            if let RefResult::Failed(why) = &of_ref
                                && is_lost
                            {
                                connection_error.get_or_insert_with(|| why.clone());
                            }
                            of_ref
                        }
                    }
                }
            },
            Err(error) => RefResult::Failed(StagedError::new(Stage::Resolve, error)),
        };
        result.of_refs.push((ref_name.clone(), of_ref));
    }
    // Only a mirror that was rebuilt since the last poll can lack published commits; and if the ref's commit failed,
    // they would, too.
    if request.known.is_empty() && !result.has_failed_fetch(&request) {
        // Half of the time that is left, so that what the refs name is not lost by the limit of the whole poll.
        let waited = request.turn_wait.total().saturating_sub(waited);
        let used = began.elapsed().saturating_sub(waited);
        let limit = request.limit.time.mul_f64(TIME_PART).saturating_sub(used) / 2;
        request.turn_wait.within(limit, fetch_published(&mut mirror, &request)).await;
    }
    result.compare(&request, connection_error.as_ref());
    result
}

/// Fetches by their ids the published commits that a rebuilt mirror lacks, because its refs name newer ones: if those
/// are refused, the set stays at what is published. A remote may send no commit that no ref names.
async fn fetch_published(mirror: &mut Mirror, request: &PollRequest) {
    let objects = mirror.objects();
    let published = request.published.clone();
    let find_absent =
        move || published.into_iter().filter(|revision| !objects.holds(*revision)).collect::<Vec<_>>();
    let absent = tokio::task::spawn_blocking(find_absent).await.unwrap_or_default();
    for revision in absent {
        let tip = Tip { name: None, object: revision.0, peeled: None };
        if let Err(error) = mirror.fetch(&tip, &request.kept_revisions).await {
            tracing::debug!(%revision, %error, "a published commit that the mirror lacks is not fetched");
        }
    }
}

/// Returns what each ref names, all at one moment as far as the protocol allows. The outer error is about the
/// repository, an inner one about a single ref.
async fn consistent_tips(
    mirror: &mut Mirror,
    request: &PollRequest,
) -> Result<Vec<Result<Tip, SourceError>>, mirror::Error> {
    let refs = &request.refs;
    let wanted: Vec<Ref> = refs.values().cloned().collect();
    let mut before = tips(&mirror.resolve_refs(&wanted).await?, &wanted);
    let is_known = |(ref_name, tip): (&String, &Result<Tip, SourceError>)| {
        let known = request.known.get(ref_name);
        matches!((tip, known), (Ok(tip), Some((object, _))) if tip.object == *object)
    };
    if refs.len() < 2 || refs.keys().zip(&before).all(is_known) {
        return Ok(before);
    }
    for _ in 1..MAX_REQUESTS {
        tokio::time::sleep(REQUEST_PAUSE).await;
        let again = tips(&mirror.resolve_refs_again(&wanted).await?, &wanted);
        if again == before {
            return Ok(again);
        }
        before = again;
    }
    Ok(refs.values().map(|_| Err(unsteady_refs())).collect())
}

/// The error of refs that change between any two requests.
fn unsteady_refs() -> SourceError {
    SourceError {
        what: "its refs change faster than they can be read together".to_owned(),
        hints: vec!["they are read again at the next attempt".to_owned()],
        class: ErrorClass::Transient,
    }
}

/// What each of the refs names, by the answer to one request.
fn tips(found: &wire::FoundRefs, wanted: &[Ref]) -> Vec<Result<Tip, SourceError>> {
    let tip = |one| found.tip(one).map_err(|error| SourceError::of_mirror(&error.into()));
    wanted.iter().map(tip).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::net::TcpListener;

    use super::*;
    use crate::human::assert_message_style;

    fn object(number: u8) -> ObjectId {
        ObjectId([number; 20])
    }

    fn named(number: u8) -> RefResult {
        RefResult::Named(object(number), Revision(object(number)))
    }

    fn refused(number: u8) -> RefResult {
        RefResult::Refused(object(number), StagedError::new(Stage::Fetch, unsteady_refs()))
    }

    /// A request for two refs: `one` named object 1 before, and `two` object 2, which was refused. `again` named object
    /// 4 until it failed.
    fn request(dir: &Path, url: String) -> PollRequest {
        let options = mirror::Options::new(dir.join("mirror"), Ref::Head, wire::Options::new(url));
        let mirror = Mirror::open(options).unwrap();
        let refused = StagedError::new(Stage::Fetch, unsteady_refs());
        PollRequest {
            turn_wait: mirror.turn_wait(),
            mirror: Arc::new(Mutex::new(mirror)),
            refs: ["one", "two"].map(|ref_name| (ref_name.to_owned(), Ref::Head)).into(),
            known: [("one", 1), ("again", 4)]
                .map(|(ref_name, number)| (ref_name.to_owned(), (object(number), Revision(object(number)))))
                .into(),
            failed: ["two", "again"].map(str::to_owned).into(),
            refused: BTreeMap::from([("two".to_owned(), (object(2), refused))]),
            kept_revisions: Vec::new(),
            published: Vec::new(),
            limit: AttemptLimit {
                time: Duration::from_millis(100),
                part: "a quarter of ",
                flag: "--timeout",
            },
        }
    }

    fn unasked(dir: &Path) -> PollRequest {
        request(dir, "http://127.0.0.1:1/remote".to_owned())
    }

    #[test]
    fn the_same_object_has_the_same_result_and_a_refusal_its_stage() {
        let dir = tempfile::tempdir().unwrap();
        let request = unasked(dir.path());
        assert_eq!(request.previous_result("one", object(1)), Some(named(1)));
        assert_eq!(request.previous_result("two", object(2)), Some(refused(2)));
        for (ref_name, number) in [("one", 2), ("two", 1), ("three", 1)] {
            assert_eq!(request.previous_result(ref_name, object(number)), None, "{ref_name}");
        }
    }

    #[test]
    fn what_differs_from_the_poll_before_is_new_and_after_a_failed_connection_no_ref_moves() {
        let dir = tempfile::tempdir().unwrap();
        let request = unasked(dir.path());
        let why = StagedError::new(Stage::Fetch, unsteady_refs());
        let failed = || RefResult::Failed(why.clone());
        for (ref_name, found, connection_error, expected, is_new) in [
            ("one", named(1), None, named(1), false),
            ("one", named(3), None, named(3), true),
            ("one", refused(3), None, refused(3), true),
            ("one", failed(), None, failed(), true),
            ("again", failed(), None, failed(), false),
            ("again", named(4), None, named(4), true),
            ("two", refused(2), None, refused(2), false),
            ("two", named(3), None, named(3), true),
            ("one", named(1), Some(&why), named(1), false),
            ("one", named(3), Some(&why), failed(), false),
        ] {
            let of_refs = vec![(ref_name.to_owned(), found)];
            let mut result = PollResult { of_refs, ..PollResult::default() };
            result.compare(&request, connection_error);
            assert_eq!((&result.of_refs[0].1, result.is_new), (&expected, is_new), "{ref_name}");
        }
    }

    #[test]
    fn a_remote_that_answers_has_not_failed_though_it_lacks_a_ref() {
        for (stage, is_reached, has_failed) in [
            (Stage::Resolve, true, false),
            (Stage::Fetch, true, true),
            (Stage::Resolve, false, true),
            (Stage::Fetch, false, true),
        ] {
            let failed = RefResult::Failed(StagedError::new(stage, unsteady_refs()));
            let of_refs = vec![("one".to_owned(), named(1)), ("two".to_owned(), failed)];
            let result = PollResult { of_refs, is_reached, ..PollResult::default() };
            assert_eq!(result.has_failed(), has_failed, "{stage:?} {is_reached}");
        }
    }

    #[tokio::test]
    async fn a_remote_that_says_nothing_fails_in_the_first_stage_and_the_hint_names_what_sets_the_limit() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/remote", silent.local_addr().unwrap());
        let dir = tempfile::tempdir().unwrap();
        let result = poll(request(dir.path(), url)).await;
        assert_eq!((result.of_refs.len(), result.has_failed(), result.is_reached), (2, true, false));
        for (_, of_ref) in &result.of_refs {
            let RefResult::Failed(StagedError { stage, error }) = of_ref else { panic!("{of_ref:?}") };
            assert_eq!((*stage, error.class), (Stage::Resolve, ErrorClass::Timeout));
            assert_eq!(error.what, "it took longer than 0.09s, nine tenths of a quarter of --timeout");
            assert!(error.hints[0].starts_with("raise --timeout if "), "{:?}", error.hints);
            assert_message_style(error, &error.hints);
        }
        assert_message_style(&unsteady_refs(), &unsteady_refs().hints);
    }
}
