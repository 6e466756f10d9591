//! What is counted and touched.

use super::*;
use crate::store::{Layout, OperatorFile};
use crate::sync::error::Stage;
use crate::telemetry::metrics::ErrorLabel;

fn report(options: Options, metrics: &Metrics) -> Report {
    let (sender, _status) = tokio::sync::watch::channel(Status::default());
    let seen = InitialState { remote: "remote".to_owned(), before: None, received: Default::default() };
    Report::new(options.into(), seen, metrics.clone(), &View::default(), sender)
}

/// The view of a root with one generation.
fn view() -> View {
    let current = record(1);
    View { current: Some(current.name.clone()), generations: vec![current], ..View::default() }
}

#[tokio::test]
async fn a_revision_that_is_still_refused_fails_in_the_stage_in_which_it_was_refused() {
    let metrics = Metrics::default();
    let mut report = report(options(), &metrics);
    let errors = |stage| metrics.errors.get_or_create(&ErrorLabel { stage, class: "refused" }).get();
    let (stage, message, hints) = (Stage::Export, "a test".to_owned(), Vec::new());
    let refused = Err(Error::StillRefused { stage, message, hints });
    for failures in 1..=2 {
        let count = FailureCount { failures, ..FailureCount::default() };
        report.attempt_ended(&refused, Stage::Resolve, &view(), count).await;
    }
    assert_eq!((errors("export"), errors("resolve")), (2, 0));
}

#[tokio::test]
async fn a_generation_that_is_published_afresh_between_attempts_is_touched_as_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let touched = dir.path().join("..touched");
    let touch_file = OperatorFile::new(dir.path(), &Layout::Kubelet, std::path::Path::new("..touched"));
    let options = Options { touch_file: Some(touch_file.unwrap()), ..options() };
    let mut report = report(options, &Metrics::default());
    let view = view();
    let unchanged = Ok(Done::Unchanged);
    report.attempt_ended(&unchanged, Stage::Resolve, &view, FailureCount::default()).await;
    std::fs::remove_file(&touched).unwrap(); // the first success
    report.attempt_ended(&unchanged, Stage::Resolve, &view, FailureCount::default()).await;
    assert!(!touched.exists(), "nothing was published");
    let published = Published { current: record(1), previous: None, warnings: Vec::new() };
    report.report_current(&view, None).await;
    assert!(!touched.exists(), "it is served as it was found");
    report.report_current(&view, Some(&published)).await;
    assert!(touched.exists(), "no attempt may follow");
}

#[tokio::test(start_paused = true)]
async fn what_an_attempt_publishes_afresh_is_recorded_though_it_then_fails_or_waits() {
    for waits in [false, true] {
        let mut worker = FakeWorker::new(&[S(0), S(1)], 3);
        worker.fails = Box::new(move |number| number > 0 && !waits);
        worker.republishes_at = Some(2);
        let pace = Timing { min_interval: S(60), ..options().pace };
        drive(&mut worker, Options { pace, ..options() }, &[]).await;
        let recorded = worker.recorded.iter().map(|status| status.current.clone());
        let names: Vec<_> = recorded.map(|current| current.unwrap().name).collect();
        // The publication, the first failure if there is one, the republication, and the end.
        let [before @ .., republished, last] = &names[..] else { panic!("{names:?}") };
        assert_eq!(before.len(), if waits { 1 } else { 2 }, "{names:?}");
        assert!(before.iter().all(|name| *name == names[0]) && names[0] != *republished, "{names:?}");
        assert_eq!(republished, last);
        assert_eq!(worker.notified.get(), 2, "a hook may be trying again in the directory that is gone");
    }
}

#[test]
fn a_generation_that_is_gone_has_no_size() {
    let metrics = Metrics::default();
    let mut report = report(options(), &metrics);
    let size = || (metrics.generation_entries.get(), metrics.generation_bytes.get());
    report.root_repaired(&view(), Ok(()));
    assert_eq!(size(), (1, 1));
    report.root_repaired(&View::default(), Ok(()));
    assert_eq!(size(), (0, 0));
}
