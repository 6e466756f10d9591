//! Sends the writes of a batch, and retries each until its outcome is known: written, refused, or failed for good.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Mutex;

use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};

use super::pauses::{LAST_ANSWER_TIMEOUT, is_conflict, pause, retried_if};
use super::report::{Outcome, Target};
use super::survey::{Item, NamespaceSurvey, SurveyContext};
use crate::cluster::{Draft, Error, Failure, Meta, Mode};
use crate::configmap::apply::{Action, Decision, Desired, DesiredConfigMap, names};
use crate::human;
use crate::sources::{DeliveryInput, Named, SourceError};

/// The report and the hint for a write whose answer was not awaited because of a shutdown.
pub(super) const NOT_ANSWERED: (&str, &str) = (
    "the run ended before the server had answered; it may have been written",
    "the next run reads the current state first; `apply --timeout` gives one run more time",
);

/// Why no further write of a batch may be started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum StopReason {
    /// The ref names another revision, or the set of sources that answer has changed.
    Moved(Named),
    /// The remote did not say which revision its ref names.
    RefUnknown(SourceError),
    /// The run was cancelled, by a shutdown or its time limit.
    Cancelled,
}

/// Carries out the writes of one batch.
#[derive(Debug)]
pub(super) struct Writer<'a, S> {
    pub(super) reader: SurveyContext<'a>,
    pub(super) desired: &'a Desired,
    pub(super) input: &'a S,
    /// Why no further write may be started; set by whichever write learns it.
    stop: Mutex<Option<StopReason>>,
    /// Limits how many objects are in memory to be sent, however many namespaces are written at once.
    slots: Semaphore,
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
    /// Starts a batch.
    pub(super) fn new(reader: SurveyContext<'a>, desired: &'a Desired, input: &'a S) -> Self {
        let slots = Semaphore::new(reader.options.concurrency.max(1));
        Self { reader, desired, input, stop: Mutex::default(), slots }
    }

    /// Returns why no further write may be started; `None` if one may.
    pub(super) fn stopped(&self) -> Option<StopReason> {
        if self.reader.cancel.is_cancelled() {
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

    /// Asks the remote which revision its ref names now. Any answer but this batch's revision stops the batch.
    pub(super) async fn check_ref(&self) -> Result<(), StopReason> {
        let answer = tokio::select! {
            biased;
            answer = self.input.resolve() => answer,
            () = self.reader.cancel.cancelled() => return Err(StopReason::Cancelled),
        };
        let stop = match answer {
            Ok(named)
                if named.revision == self.desired.revision
                    && named.sources.has_same_answers(&self.desired.sources) =>
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
    pub(super) async fn write(&self, cluster: &str, survey: &NamespaceSurvey, item: &Item) -> Written {
        let mut item = item.clone();
        let mut failures = 0;
        loop {
            let target = || Target { attempts: failures, ..self.target(cluster, survey, &item) };
            // Before it is checked whether writing was stopped, as that may happen while this waits for a slot.
            let slot = self.slot().await;
            if let Some(stop) = self.stopped() {
                return written(target().ended(Outcome::Skipped, stop.to_string(), Vec::new()), &item);
            }
            if !item.decision.writes() {
                return written(target(), &item); // a peer has written it, or it is no longer ours to write
            }
            let attempted = Target { attempts: failures + 1, ..target() };
            let result = tokio::select! {
                biased;
                result = self.send(survey, &item) => result,
                () = self.reader.cancel.over(LAST_ANSWER_TIMEOUT) => {
                    let (why, hint) = NOT_ANSWERED;
                    let unknown = attempted.ended(Outcome::Failed, why, vec![hint.to_owned()]);
                    return written(Target { transient: true, ..unknown }, &item);
                }
            };
            drop(slot);
            let error = match result {
                Ok(meta) => {
                    let meta = meta.as_ref().map(Meta::identity);
                    return Written { meta, ..written(attempted, &item) };
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
        let SurveyContext { options, cancel, .. } = self.reader;
        let failures = attempted.attempts;
        let stale = is_conflict(&error.why);
        let is_outdated = stale || error.is_unknown();
        // A creation has no version to conflict with: a newer revision may have found nothing to delete meanwhile.
        let read_first = is_outdated || matches!(item.decision.action, Action::Create | Action::Recreate);
        let failed = |error: &Error| {
            let failed = attempted.clone().ended(Outcome::Failed, error_line(error, &item), error.hints());
            let failed = Target { transient: error.is_transient(), ..failed.caused_by(error) };
            ControlFlow::Break(written(failed, &item))
        };
        // After the last try an unknown outcome is still read, below.
        if !(error.is_transient() || is_outdated) || (failures >= options.tries && !error.is_unknown()) {
            return failed(&error);
        }
        // The object is read at once after the first conflict, and with backoff after later ones.
        if !stale || failures > 1 {
            pause(options, cancel, failures, error.pause()).await;
        }
        if !is_outdated && cancel.is_cancelled() {
            return failed(&error); // the error says more than that the run was cancelled
        }
        if !read_first {
            return ControlFlow::Continue(item); // the server stored nothing, and checks the version that was read
        }
        let again = tokio::select! {
            biased;
            again = self.reader.reread(survey, &item) => again,
            () = cancel.over(LAST_ANSWER_TIMEOUT) => return failed(&error),
        };
        let again = match again {
            Ok(again) => again,
            // A failure that stored nothing says more than the read's.
            Err(unread) => return failed(if is_outdated { &unread } else { &error }),
        };
        if error.is_unknown() && again.decision.action == Action::Nothing {
            // It took effect after all.
            let meta = again.meta.as_ref().map(Meta::identity);
            return ControlFlow::Break(Written { meta, ..written(attempted, &item) });
        }
        if failures >= options.tries {
            return failed(&error);
        }
        if again.decision.writes() {
            // A reason to stop is stored, and seen before the next try.
            let _ = self.check_ref().await;
        }
        ControlFlow::Continue(again)
    }

    /// Sends a write as a dry run; the options must ask for one. Without the right to write, the target is reported as
    /// unchecked rather than failed.
    pub(super) async fn check(&self, cluster: &str, survey: &NamespaceSurvey, item: &Item) -> Target {
        debug_assert!(self.reader.options.dry_run, "this would write");
        let target = self.target(cluster, survey, item);
        let SurveyContext { options, cancel, .. } = self.reader;
        let may_help = |error: &Error| error.is_transient() && !is_conflict(&error.why);
        let send = async || {
            let _slot = self.slot().await;
            self.send(survey, item).await
        };
        match retried_if(may_help, options, cancel, send).await {
            Ok(_) => target,
            Err(error) if matches!(error.why, Failure::Forbidden { .. }) => {
                let why = format!("{} (not checked by the server: {})", target.why, error.why);
                Target { why, ..target }
            }
            Err(error) => {
                let failed = target.ended(Outcome::Failed, error_line(&error, item), error.hints());
                Target { transient: error.is_transient(), ..failed.caused_by(&error) }
            }
        }
    }

    /// Returns the result of an item as decided, before it is written.
    pub(super) fn target(&self, cluster: &str, survey: &NamespaceSurvey, item: &Item) -> Target {
        let digest = item.wanted.as_ref().map(|wanted| wanted.digest.clone()).unwrap_or_default();
        Target { digest, ..Target::of(cluster, &survey.namespace, &item.name, &item.decision) }
    }

    /// Waits for a slot to send an object in.
    async fn slot(&self) -> Result<SemaphorePermit<'_>, AcquireError> {
        self.slots.acquire().await // it fails only if the semaphore was closed, which it never is
    }

    /// Sends one write, in a slot that the caller has: one request or, for an immutable object, a creation as a dry
    /// run, a deletion and a creation. Returns the metadata that the server stored; `None` after a deletion.
    async fn send(&self, survey: &NamespaceSurvey, item: &Item) -> Result<Option<Meta>, Error> {
        let cluster = self.reader.cluster;
        let mode = if self.reader.options.dry_run { Mode::DryRun } else { Mode::Write };
        let draft = || item.wanted.as_ref().map(|wanted| self.draft(survey, item, wanted));
        match (&item.decision.action, draft(), &item.meta) {
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
    fn draft(&self, survey: &NamespaceSurvey, item: &Item, wanted: &DesiredConfigMap) -> Draft {
        let kept = item.meta.as_ref().filter(|_| item.decision.action != Action::Create);
        let mut labels = kept.map(|meta| meta.labels.clone()).unwrap_or_default();
        let mut annotations = kept.map(|meta| meta.annotations.clone()).unwrap_or_default();
        let policy = self.reader.policy;
        let Decision { revision, .. } = &item.decision;
        labels.extend(policy.owner.labels().map(|(key, value)| (key.to_owned(), value.to_owned())));
        annotations.extend(wanted.annotations(&policy.owner, &self.desired.rules, revision));
        self.annotate_repository(&mut annotations);
        Draft {
            namespace: survey.namespace.clone(),
            name: item.name.clone(),
            labels,
            annotations,
            content: wanted.content(&policy.shape, revision),
        }
    }

    /// Sets the annotation that names the repository, or removes it if the repository is not to be named.
    fn annotate_repository(&self, annotations: &mut BTreeMap<String, String>) {
        match &self.reader.options.repository {
            Some(repository) => annotations.insert(names::REPOSITORY.to_owned(), repository.clone()),
            None => annotations.remove(names::REPOSITORY),
        };
    }

    /// Sets the annotation with the commit of each source. A source that did not answer keeps its recorded commit, as
    /// nothing of it was written.
    fn annotate_sources(&self, annotations: &mut BTreeMap<String, String>) {
        let recorded = annotations.get(names::SOURCES).and_then(|text| serde_json::from_str(text).ok());
        let sources = self.desired.sources.to_record(&recorded.unwrap_or_default());
        match serde_json::to_string(&sources) {
            Ok(text) if !sources.is_empty() => annotations.insert(names::SOURCES.to_owned(), text),
            _ => annotations.remove(names::SOURCES),
        };
    }

    /// Writes the ConfigMap of the inventory (`role` is `set`) or of the ledger (`role` is `ledger`). `meta` is its
    /// metadata as read; `None` creates it.
    pub(super) async fn record(
        &self,
        namespace: &str,
        role: &str,
        meta: Option<&Meta>,
        data: impl FnOnce() -> BTreeMap<String, String>,
    ) -> Result<Meta, Error> {
        let _slot = self.slot().await;
        let SurveyContext { cluster, policy, .. } = self.reader;
        let owner = &policy.owner;
        let mut labels = meta.map(|meta| meta.labels.clone()).unwrap_or_default();
        let mut annotations = meta.map(|meta| meta.annotations.clone()).unwrap_or_default();
        labels.extend(owner.labels().map(|(key, value)| (key.to_owned(), value.to_owned())));
        labels.insert(names::ROLE.to_owned(), role.to_owned());
        annotations.insert(names::OWNER_NAME.to_owned(), owner.name().to_owned());
        annotations.insert(names::CLUSTER.to_owned(), cluster.name().to_owned());
        self.annotate_sources(&mut annotations);
        self.annotate_repository(&mut annotations);
        let draft = Draft {
            namespace: namespace.to_owned(),
            name: if role == "set" { owner.marker() } else { owner.ledger() },
            labels,
            annotations,
            content: crate::configmap::ConfigMapData { data: data(), ..Default::default() },
        };
        match meta {
            Some(meta) => cluster.replace(meta, draft, Mode::Write).await,
            None => cluster.create(draft, Mode::Write).await,
        }
    }
}

/// Returns the error in one line; if the object is too large, with its largest keys.
fn error_line(error: &Error, item: &Item) -> String {
    let line = human::one_line(error);
    match (&error.why, &item.wanted) {
        (Failure::TooLarge { .. }, Some(wanted)) => {
            format!("{line}; the largest keys: {}", wanted.data.largest_keys())
        }
        _ => line,
    }
}

fn written(target: Target, item: &Item) -> Written {
    let meta = item.meta.as_ref().map(Meta::identity);
    Written { target, meta, revision: item.decision.revision.clone() }
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

    use super::super::pauses::Ending;
    use super::super::testing::{Remote, cluster, context, desired, options, revision, survey};
    use super::*;
    use crate::configmap::apply::Refusal;
    use crate::deliver::Options;
    use crate::human::assert_message_style;
    use crate::retry::Backoff;
    use crate::revision::Relation;

    #[tokio::test]
    async fn a_write_that_waits_for_a_slot_while_writing_is_stopped_is_not_sent() {
        let options = Options { concurrency: 1, ..options() };
        let (cluster, desired, cancel) = (cluster(), desired(), Ending::default());
        let policy = options.policy(&desired);
        let reader = context(&cluster, &options, &policy, &cancel);
        let remote = Remote(Relation::Ahead);
        let writer = Writer::new(reader, &desired, &remote);
        let replaced = Decision { action: Action::Replace, ..Decision::unchanged(String::new()) };
        let survey = survey("ci", replaced);
        let slot = writer.slot().await;
        let write = writer.write("test", &survey, &survey.items[0]);
        tokio::pin!(write);
        tokio::select! {
            biased;
            written = &mut write => panic!("there is no slot for it: {written:?}"),
            () = std::future::ready(()) => {}
        }
        writer.stop(StopReason::Moved(revision(3).into()));
        drop(slot);
        let written = write.await;
        assert_eq!((written.target.outcome, written.target.attempts), (Outcome::Skipped, 0));
    }

    #[tokio::test]
    async fn what_could_not_be_created_is_read_before_it_is_sent_again() {
        let backoff = Backoff { first: Duration::ZERO, ceiling: Duration::ZERO };
        let options = Options { tries: 2, backoff, ..options() };
        let (cluster, desired, cancel) = (cluster(), desired(), Ending::default());
        let policy = options.policy(&desired);
        let reader = context(&cluster, &options, &policy, &cancel);
        let remote = Remote(Relation::Ahead);
        let writer = Writer::new(reader, &desired, &remote);
        let busy = || Failure::Busy { status: 429, pause: None };
        // Whether it is read, and which failure is reported.
        for (action, why, is_read, is_told) in [
            (Action::Create, busy(), true, false),
            (Action::Recreate, busy(), true, false),
            (Action::Replace, busy(), false, false),
            (Action::Create, Failure::AlreadyExists, true, true),
        ] {
            let told = why.to_string();
            let survey = survey("ci", Decision { action, ..Decision::unchanged(String::new()) });
            let item = survey.items[0].clone();
            let attempted = Target { attempts: 1, ..writer.target("test", &survey, &item) };
            // Every request to this cluster fails in the same way, and is named by the error.
            let mut error = cluster.head("ci", "a").await.unwrap_err();
            error.why = why;
            match writer.after_failure(&survey, item, attempted, error).await {
                ControlFlow::Continue(again) => assert!(!is_read, "{again:?}"),
                ControlFlow::Break(Written { target, .. }) => {
                    assert!(is_read && target.why.contains(&told) != is_told, "{target:?}");
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
