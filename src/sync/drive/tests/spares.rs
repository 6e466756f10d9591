//! The spare that a failed attempt used up: when it is prepared again.

use super::*;
use crate::store;
use crate::sync::error::Stage;

#[tokio::test(start_paused = true)]
async fn the_spare_that_a_failed_attempt_used_up_is_made_again_while_the_next_one_is_waited_for() {
    for uses_up_spare in [false, true] {
        let mut worker = FakeWorker::new(&[S(0)], 5);
        worker.fails = Box::new(|number| (1..3).contains(&number));
        worker.uses_up_spare = uses_up_spare;
        drive(&mut worker, options(), &[]).await;
        assert_eq!(seconds(&worker.attempts), [0, 10, 20, 40, 50]);
        let (spares, housekept) = if uses_up_spare {
            (vec![10, 13, 20, 23], vec![0, 40]) // a repair looks after it as well
        } else {
            (Vec::new(), vec![0])
        };
        assert_eq!(seconds(&worker.spares), spares);
        assert_eq!(seconds(&worker.housekept), housekept, "all of it only after a success");
    }
}

#[tokio::test(start_paused = true)]
async fn no_spare_is_made_after_the_last_attempt() {
    let mut worker = FakeWorker::new(&[S(0)], 100);
    worker.fails = Box::new(|_| true);
    worker.uses_up_spare = true;
    let failure_limits = FailureLimits { failures: None, init_failures: Some(2) };
    drive(&mut worker, Options { failure_limits, ..options() }, &[]).await;
    assert_eq!((seconds(&worker.attempts), seconds(&worker.spares)), (vec![0, 10], vec![0, 3]));
}

#[tokio::test(start_paused = true)]
async fn no_spare_takes_the_room_that_an_attempt_lacked_until_one_succeeds() {
    let errors: [fn() -> store::Error; 2] = [
        || store::Error::NoRoom { path: "/root".into(), needed: 2, free: 1, unit: store::Unit::Bytes },
        || store::Error::OverCeiling { ceiling: 3, needed: 2, current: 2 },
    ];
    for no_room in errors {
        let mut worker = FakeWorker::new(&[S(0)], 6);
        worker.fails = Box::new(|number| [1, 2, 4].contains(&number));
        worker.error = Box::new(move |number| if number == 1 { Error::Store(no_room()) } else { bad_pack() });
        worker.uses_up_spare = true;
        drive(&mut worker, options(), &[]).await;
        assert_eq!(seconds(&worker.attempts), [0, 10, 20, 40, 50, 60]);
        assert_eq!(seconds(&worker.repairs), [13, 23, 53]);
        assert_eq!(seconds(&worker.housekept), [0, 40, 60]);
        assert_eq!(seconds(&worker.spares), [50, 53], "no failure and no repair before led to one");
    }
}

/// A gate that runs again stops a commit that leaves no room for the spare.
#[tokio::test(start_paused = true)]
async fn no_spare_is_made_that_the_next_attempt_would_drop_again() {
    let refused = || Error::StillRefused { stage: Stage::Gate, message: String::new(), hints: Vec::new() };
    type Case = (fn() -> Error, &'static [u64]);
    let cases: [Case; 2] = [(bad_pack, &[]), (refused, &[10, 13, 20, 23])];
    for (error, spares) in cases {
        let mut worker = FakeWorker::new(&[S(0)], 5);
        worker.fails = Box::new(|number| (1..3).contains(&number));
        worker.error = Box::new(move |_| error());
        (worker.uses_up_spare, worker.drops_spare) = (true, true);
        drive(&mut worker, options(), &[]).await;
        assert_eq!(seconds(&worker.spares), spares, "what is refused is not staged again");
    }
}

#[tokio::test(start_paused = true)]
async fn no_spare_is_made_in_a_missing_root_before_it_is_repaired() {
    let mut worker = FakeWorker::new(&[S(0)], 5);
    worker.fails = Box::new(|number| (1..3).contains(&number));
    let replaced = || store::Error::Replaced { path: "/root".into(), why: "a test".into() };
    worker.error = Box::new(move |_| Error::Store(replaced()));
    worker.uses_up_spare = true;
    drive(&mut worker, options(), &[]).await;
    assert_eq!(seconds(&worker.attempts), [0, 10, 20, 40, 50]);
    assert_eq!(seconds(&worker.spares), [13, 23], "only the repairs found the root");
}

#[tokio::test(start_paused = true)]
async fn a_spare_that_cannot_be_begun_delays_no_report_and_the_next_attempt_little() {
    let mut worker = FakeWorker::new(&[S(0)], 4);
    worker.fails = Box::new(|number| number == 1);
    (worker.uses_up_spare, worker.spare_hangs) = (true, true);
    drive(&mut worker, options(), &[]).await;
    assert_eq!(seconds(&worker.spares), [10, 18], "the second three seconds after the end of the first");
    assert_eq!(seconds(&worker.attempts), [0, 10, 23, 33], "the second took five seconds as well");
    let told = (true, 2); // the publication and the failure were written
    assert_eq!(worker.told_before_spares, [told, told]);
}

#[tokio::test(start_paused = true)]
async fn housekeeping_after_a_repair_has_the_time_of_an_attempt() {
    let mut worker = FakeWorker::new(&[S(0)], 2);
    (worker.next_repair, worker.repair_takes) = (Some(S(3)), S(5));
    drive(&mut worker, options(), &[]).await;
    assert_eq!(seconds(&worker.housekept), [0, 8]);
    assert_eq!(worker.housekeeping_limits, [options().sync_timeout; 2], "the repair used up none of it");
}
