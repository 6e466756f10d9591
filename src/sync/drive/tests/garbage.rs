//! What was fetched and not published: when the mirror's garbage is collected.

use super::*;
use crate::store;
use crate::sync::error::Stage;

fn refused() -> Error {
    Error::StillRefused { stage: Stage::Export, message: String::new(), hints: Vec::new() }
}

fn over_ceiling() -> Error {
    Error::Store(store::Error::OverCeiling { ceiling: 3, needed: 2, current: 2 })
}

fn late() -> Error {
    Error::Timeout { stage: Stage::Gate, limit: S(120) }
}

fn in_use() -> Error {
    Error::UpstreamInUse { limit: S(120) }
}

/// A mirror that stays large is not looked through again at each of the failures that follow.
#[tokio::test(start_paused = true)]
async fn garbage_is_collected_once_for_each_fetch_of_what_is_not_published() {
    type Case = (fn() -> Error, bool);
    let cases: [Case; 5] =
        [(refused, true), (over_ceiling, true), (late, true), (bad_pack, true), (in_use, false)];
    for (error, is_collected) in cases {
        let mut worker = FakeWorker::new(&[S(0)], 6);
        worker.fails = Box::new(|number| number > 0);
        worker.error = Box::new(move |_| error());
        worker.fetches = Box::new(|number| [1, 3].contains(&number));
        drive(&mut worker, options(), &[]).await;
        let fetched = [worker.attempts[1], worker.attempts[3]];
        let expected = if is_collected { seconds(&fetched) } else { Vec::new() };
        assert_eq!(seconds(&worker.collected), expected, "{}", error());
        assert_eq!(seconds(&worker.housekept), [0], "all of it only after a success");
    }
}

#[tokio::test(start_paused = true)]
async fn the_house_is_kept_after_a_fetch_that_changed_nothing_of_what_is_published() {
    let mut worker = FakeWorker::new(&[S(0)], 4);
    worker.fetches = Box::new(|number| number == 2);
    drive(&mut worker, options(), &[]).await;
    assert_eq!(seconds(&worker.housekept), [0, 20]);
}

#[tokio::test(start_paused = true)]
async fn the_house_is_kept_after_each_fetch_of_what_has_to_wait() {
    let mut worker = FakeWorker::new(&[S(0), S(1)], 4);
    worker.fetches = Box::new(|number| (1..=2).contains(&number));
    let pace = Timing { min_interval: S(60), ..options().pace };
    drive(&mut worker, Options { pace, ..options() }, &[]).await;
    assert_eq!(worker.published.len(), 1, "the second commit waits");
    assert_eq!(seconds(&worker.housekept), [0, 10, 20]);
}
