//! Sends the writes of a pass, and retries each until its outcome is known: written, refused, or failed for good.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Mutex;

use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};

use super::pauses::{LAST_ANSWER_TIMEOUT, is_conflict, pause, retried_if};
use super::report::{Outcome, Target};
use super::survey::{Item, NamespaceSurvey, PassContext};
use crate::cluster::{ConfigMapDraft, Error, Failure, Meta, Mode};
use crate::configmap::apply::{Action, Decision, DesiredConfigMap, names};
use crate::human;
use crate::sources::{DeliveryInput, Named, SourceError};

/// The report and the hint for a write whose answer was not awaited because of a shutdown.
pub(super) const NOT_ANSWERED: (&str, &str) = (
    "the run ended before the server had answered; it may have been written",
    "the next run reads the current state first; `apply --timeout` gives one run more time",
);

/// Why no further write of a pass may be started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum StopReason {
    /// The ref names another revision, or the set of sources that answer has changed.
    Moved(Named),
    /// The remote did not say which revision its ref names.
    RefUnknown(SourceError),
    /// The run was cancelled, by a shutdown or its time limit.
    Cancelled,
}

/// Carries out the writes of one pass.
#[derive(Debug)]
pub(super) struct Writer<'a, S> {
    pub(super) pass: PassContext<'a>,
    pub(super) input: &'a S,
    /// Why no further write may be started; set by whichever write learns it.
    stop: Mutex<Option<StopReason>>,
    /// Limits how many objects are in memory to be sent, however many namespaces are written at once.
    permits: Semaphore,
}

/// The result of one write.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) target: Target,
    /// What identifies the object and its version, as last known; `None` if it is gone, or nothing is known.
    pub(super) meta: Option<Meta>,
    /// The revision in the object's annotation.
    pub(super) revision: String,
}

impl<'a, S: DeliveryInput> Writer<'a, S> {
    /// No write has been started.
    pub(super) fn new(pass: PassContext<'a>, input: &'a S) -> Self {
        let permits = Semaphore::new(pass.options.concurrency.max(1));
        Self { pass, input, stop: Mutex::default(), permits }
    }

    /// Returns why no further write may be started; `None` if one may.
    pub(super) fn stopped(&self) -> Option<StopReason> {
        if self.pass.cancel.is_cancelled() {
            return Some(StopReason::Cancelled);
        }
        // Poisoning is harmless: the value is only copied in and out.
        self.stop.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Lets no further write start.
    pub(super) fn stop(&self, why: StopReason) {
        *self.stop.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(why);
    }

    /// Lets writes start again, after the remote gave no usable answer.
    pub(super) fn clear_stop(&self) {
        *self.stop.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = None;
    }

    /// Asks the remote which revision its ref names now. Any answer but the pass's revision stops all writes.
    pub(super) async fn check_ref(&self) -> Result<(), StopReason> {
        let answer = tokio::select! {
            biased;
            answer = self.input.resolve() => answer,
            () = self.pass.cancel.cancelled() => return Err(StopReason::Cancelled),
        };
        let stop = match answer {
            Ok(named)
                if named.revision == self.pass.desired.revision
                    && named.sources.has_same_answers(&self.pass.desired.sources) =>
            {
                return Ok(());
            }
            Ok(named) => StopReason::Moved(named),
            Err(error) => StopReason::RefUnknown(error),
        };
        self.stop(stop.clone());
        Err(stop)
    }

    /// Makes one write, with retries, until its outcome is known. After a conflict, an unknown outcome or a creation
    /// that failed, the object is read again, and what to write is decided anew.
    pub(super) async fn write(&self, survey: &NamespaceSurvey, item: &Item) -> Written {
        let mut item = item.clone();
        let mut failures = 0;
        loop {
            let target = || Target { attempts: failures, ..self.pass.target(survey, &item) };
            // Before it is checked whether writing was stopped, as that may happen while this waits for a permit.
            let permit = self.permit().await;
            if let Some(stop) = self.stopped() {
                return Written::of(target().ended(Outcome::Skipped, stop.to_string(), Vec::new()), &item);
            }
            // Another instance has written it, or it is no longer ours to write.
            if !item.decision.writes() {
                return Written::of(target(), &item);
            }
            let attempted = Target { attempts: failures + 1, ..target() };
            let result = tokio::select! {
                biased;
                result = self.send(survey, &item) => result,
                () = self.pass.cancel.cancelled_for(LAST_ANSWER_TIMEOUT) => {
                    let (why, hint) = NOT_ANSWERED;
                    let unknown = attempted.ended(Outcome::Failed, why, vec![hint.to_owned()]);
                    return Written::of(Target { transient: true, ..unknown }, &item);
                }
            };
            drop(permit);
            let error = match result {
                Ok(meta) => {
                    let meta = meta.as_ref().map(Meta::identity);
                    return Written { meta, ..Written::of(attempted, &item) };
                }
                Err(error) => error,
            };
            failures += 1;
            match self.after_failure(survey, item, attempted, error).await {
                ControlFlow::Continue(again) => item = again,
                ControlFlow::Break(written) => return written,
            }
        }
    }

    /// Decides what follows the write of `item` that failed with `error`: a pause and another try of the item that is
    /// returned, or the outcome. `attempted` is the item's target, with the number of tries so far.
    async fn after_failure(
        &self,
        survey: &NamespaceSurvey,
        item: Item,
        attempted: Target,
        error: Error,
    ) -> ControlFlow<Written, Item> {
        let PassContext { options, cancel, .. } = self.pass;
        let failures = attempted.attempts;
        let is_stale = is_conflict(&error.why);
        let may_be_stale = is_stale || error.is_unknown();
        // A creation has no version to conflict with: a newer revision may have found nothing to delete meanwhile.
        let read_first = may_be_stale || matches!(item.decision.action, Action::Create | Action::Recreate);
        let fail = |target: Target, error: &Error| {
            ControlFlow::Break(Written::of(failed(target, error, &item), &item))
        };
        // After the last try an unknown outcome is still read, below.
        if !(error.is_transient() || may_be_stale) || (failures >= options.tries && !error.is_unknown()) {
            return fail(attempted, &error);
        }
        // The object is read at once after the first conflict, and with backoff after later ones.
        if !is_stale || failures > 1 {
            pause(options, cancel, failures, error.pause()).await;
        }
        if !may_be_stale && cancel.is_cancelled() {
            return fail(attempted, &error); // the error says more than that the run was cancelled
        }
        if !read_first {
            return ControlFlow::Continue(item); // the server stored nothing, and checks the version that was read
        }
        let again = tokio::select! {
            biased;
            again = self.pass.reread(survey, &item) => again,
            () = cancel.cancelled_for(LAST_ANSWER_TIMEOUT) => return fail(attempted, &error),
        };
        let again = match again {
            Ok(again) => again,
            // A failure that stored nothing says more than the read's.
            Err(unread) => return fail(attempted, if may_be_stale { &unread } else { &error }),
        };
        if error.is_unknown() && again.decision.action == Action::Nothing {
            // It took effect after all.
            let meta = again.meta.as_ref().map(Meta::identity);
            return ControlFlow::Break(Written { meta, ..Written::of(attempted, &item) });
        }
        if failures >= options.tries {
            return fail(attempted, &error);
        }
        if again.decision.writes() {
            // A reason to stop is stored, and seen before the next try.
            let _ = self.check_ref().await;
        }
        ControlFlow::Continue(again)
    }

    /// Sends a write as a dry run; the options must ask for one. Without the right to write, the target is reported as
    /// unchecked rather than failed.
    pub(super) async fn check(&self, survey: &NamespaceSurvey, item: &Item) -> Target {
        debug_assert!(self.pass.options.dry_run, "this would write");
        let target = self.pass.target(survey, item);
        let is_retryable = |error: &Error| error.is_transient() && !is_conflict(&error.why);
        let send = async || {
            let _permit = self.permit().await;
            self.send(survey, item).await
        };
        match retried_if(is_retryable, self.pass.options, self.pass.cancel, send).await {
            Ok(_) => target,
            Err(error) if matches!(error.why, Failure::Forbidden { .. }) => {
                let why = format!("{} (not checked by the server: {})", target.why, error.why);
                Target { why, ..target }
            }
            Err(error) => failed(target, &error, item),
        }
    }

    /// Waits for a permit to send an object.
    pub(super) async fn permit(&self) -> Result<SemaphorePermit<'_>, AcquireError> {
        self.permits.acquire().await // it fails only if the semaphore was closed, which it never is
    }

    /// Sends one write, with a permit of the caller: one request or, for an immutable object, a creation as a dry
    /// run, a deletion and a creation. Returns the metadata that the server stored; `None` after a deletion.
    async fn send(&self, survey: &NamespaceSurvey, item: &Item) -> Result<Option<Meta>, Error> {
        let cluster = self.pass.cluster;
        let mode = if self.pass.options.dry_run { Mode::DryRun } else { Mode::Write };
        let draft = item.wanted.as_ref().map(|wanted| self.draft(survey, item, wanted));
        match (&item.decision.action, draft, &item.meta) {
            (Action::Create, Some(draft), _) => cluster.create(draft, mode).await.map(Some),
            (Action::Replace, Some(draft), Some(meta)) => cluster.replace(meta, draft, mode).await.map(Some),
            (Action::Recreate, Some(draft), Some(meta)) => {
                // What the server would not create must not be deleted. It checks everything else before it finds that
                // there is an object of that name.
                let checked = cluster.create(draft.clone(), Mode::DryRun).await;
                if let Err(error) = checked
                    && !matches!(error.why, Failure::AlreadyExists)
                {
                    return Err(error);
                }
                cluster.delete(meta, mode).await?;
                match mode {
                    Mode::Write => cluster.create(draft, mode).await.map(Some),
                    Mode::DryRun => Ok(None), // the object still exists, so a creation would fail
                }
            }
            (Action::Delete, _, Some(meta)) => cluster.delete(meta, mode).await.map(|_| None),
            _ => Ok(item.meta.clone()), // there is nothing to send
        }
    }

    /// Returns the object to write. Labels and annotations that other writers set on it stay.
    fn draft(&self, survey: &NamespaceSurvey, item: &Item, wanted: &DesiredConfigMap) -> ConfigMapDraft {
        let kept = item.meta.as_ref().filter(|_| item.decision.action != Action::Create);
        let mut labels = kept.map(|meta| meta.labels.clone()).unwrap_or_default();
        let mut annotations = kept.map(|meta| meta.annotations.clone()).unwrap_or_default();
        let PassContext { policy, desired, .. } = self.pass;
        let Decision { revision, .. } = &item.decision;
        labels.extend(policy.owner.labels().map(|(key, value)| (key.to_owned(), value.to_owned())));
        annotations.extend(wanted.annotations(&policy.owner, &desired.rules, revision));
        self.annotate_repository(&mut annotations);
        ConfigMapDraft {
            namespace: survey.namespace.clone(),
            name: item.name.clone(),
            labels,
            annotations,
            content: wanted.content(&policy.shape, revision),
        }
    }

    /// Sets the annotation that names the repository, or removes it if the repository is not to be named.
    pub(super) fn annotate_repository(&self, annotations: &mut BTreeMap<String, String>) {
        match &self.pass.options.repository {
            Some(repository) => annotations.insert(names::REPOSITORY.to_owned(), repository.clone()),
            None => annotations.remove(names::REPOSITORY),
        };
    }
}

impl Written {
    /// The result of a write that left the object as it was.
    pub(super) fn of(target: Target, item: &Item) -> Self {
        let meta = item.meta.as_ref().map(Meta::identity);
        Self { target, meta, revision: item.decision.revision.clone() }
    }
}

/// Returns the target failed by an error; if the object is too large, with its largest keys.
fn failed(target: Target, error: &Error, item: &Item) -> Target {
    let mut why = human::one_line(error);
    if let (Failure::TooLarge { .. }, Some(wanted)) = (&error.why, &item.wanted) {
        why += &format!("; the largest keys: {}", wanted.data.largest_keys());
    }
    let failed = target.ended(Outcome::Failed, why, error.hints()).caused_by(error);
    Target { transient: error.is_transient(), ..failed }
}

impl std::fmt::Display for StopReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Moved(named) => match named.sources.hold_reason() {
                Some(why) => f.write_str(&why),
                None => write!(f, "the ref names {} now", named.revision.short()),
            },
            Self::RefUnknown(error) => write!(f, "the remote does not say which revision is newest: {error}"),
            Self::Cancelled => f.write_str("the run ended before it was written"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::testing::{PassFixture, Remote, desired, options, revision, survey};
    use super::*;
    use crate::configmap::apply::Refusal;
    use crate::deliver::Options;
    use crate::human::assert_message_style;
    use crate::retry::Backoff;
    use crate::revision::Relation;

    #[tokio::test]
    async fn a_write_that_waits_for_a_permit_while_writing_is_stopped_is_not_sent() {
        let fixture = PassFixture::new(desired(), Options { concurrency: 1, ..options() });
        let remote = Remote::new(Ok(Relation::Ahead));
        let writer = Writer::new(fixture.pass(), &remote);
        let replaced = Decision { action: Action::Replace, ..Decision::unchanged(String::new()) };
        let survey = survey("ci", replaced);
        let permit = writer.permit().await;
        let write = writer.write(&survey, &survey.items[0]);
        tokio::pin!(write);
        tokio::select! {
            biased;
            written = &mut write => panic!("there is no permit for it: {written:?}"),
            () = std::future::ready(()) => {}
        }
        writer.stop(StopReason::Moved(revision(3).into()));
        drop(permit);
        let written = write.await;
        assert_eq!((written.target.outcome, written.target.attempts), (Outcome::Skipped, 0));
    }

    #[tokio::test]
    async fn what_could_not_be_created_is_read_before_it_is_sent_again() {
        let backoff = Backoff { first: Duration::ZERO, ceiling: Duration::ZERO };
        let fixture = PassFixture::new(desired(), Options { tries: 2, backoff, ..options() });
        let remote = Remote::new(Ok(Relation::Ahead));
        let writer = Writer::new(fixture.pass(), &remote);
        let busy = || Failure::Busy { status: 429, pause: None };
        // Whether it is read, and whether the failure of that read is reported rather than the first one.
        for (action, why, is_read, reports_read) in [
            (Action::Create, busy(), true, false),
            (Action::Recreate, busy(), true, false),
            (Action::Replace, busy(), false, false),
            (Action::Create, Failure::AlreadyExists, true, true),
        ] {
            let failure = why.to_string();
            let survey = survey("ci", Decision { action, ..Decision::unchanged(String::new()) });
            let item = survey.items[0].clone();
            let attempted = Target { attempts: 1, ..writer.pass.target(&survey, &item) };
            // Every request to this cluster fails in the same way, and is named by the error.
            let mut error = writer.pass.cluster.head("ci", "a").await.unwrap_err();
            error.why = why;
            match writer.after_failure(&survey, item, attempted, error).await {
                ControlFlow::Continue(again) => assert!(!is_read, "{again:?}"),
                ControlFlow::Break(Written { target, .. }) => {
                    assert!(is_read && target.why.contains(&failure) != reports_read, "{target:?}");
                }
            }
        }
    }

    #[test]
    fn refusals_and_missing_answers_have_a_hint() {
        for refusal in [
            Refusal::Other("team".to_owned()),
            Refusal::Prow,
            Refusal::Nobody,
            Refusal::Immutable,
            Refusal::Deleting,
            Refusal::Contested(3),
            Refusal::TurnedBack(3),
        ] {
            // Lists every variant: a new one does not compile until it is added here, and should be added above, too.
            let known = match refusal {
                Refusal::Other(_)
                | Refusal::Prow
                | Refusal::Nobody
                | Refusal::Immutable
                | Refusal::Deleting
                | Refusal::Contested(_)
                | Refusal::TurnedBack(_) => &refusal,
            };
            assert_message_style(known, &[known.hint().to_owned()]);
        }
        let (what, hint) = NOT_ANSWERED;
        let error = SourceError {
            what: what.to_owned(),
            hints: vec![hint.to_owned()],
            class: crate::retry::ErrorClass::Transient,
        };
        assert_message_style(&error, &error.hints);
    }
}
