//! What publications wait for, and when a preparation begins.

use std::sync::mpsc;

use tokio::sync::Notify;

use super::*;
use crate::payload::testing::{Blobs, Tree, delta, payload, tree};
use crate::payload::{BlobError, BlobReader, Kind, Rules};
use crate::retention;
use crate::store::{self, Durability, Layout, Spare};

/// Starts a preparation that ends only when it is cancelled.
fn begin(spare: &mut SpareWork, links: bool) -> (oneshot::Sender<()>, CancellationToken) {
    let (ready, awaited) = oneshot::channel();
    let cancel = CancellationToken::new();
    let until = cancel.clone();
    let ended = tokio::spawn(async move { until.cancelled().await });
    let generation = Name::parse("..2026_01_01_00_00_00.000000001").unwrap();
    spare.running = Some(Preparation { cancel: cancel.clone(), generation, links, awaited, ended });
    (ready, cancel)
}

fn bounds() -> Bounds {
    Bounds::new(Duration::from_secs(60), CancellationToken::new())
}

/// Simulates a publication and returns how many seconds it waits.
async fn waits(spare: &mut SpareWork) -> u64 {
    let began = tokio::time::Instant::now();
    spare.wait_until_ready(&bounds()).await;
    spare.stop_and_wait().await;
    began.elapsed().as_secs()
}

/// Signals after so many seconds that links are ready.
fn ready_after(seconds: u64, ready: oneshot::Sender<()>) {
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        ready.send(())
    });
}

#[tokio::test(start_paused = true)]
async fn a_publication_waits_for_what_is_carried_forward_and_for_no_copy() {
    let mut spare = SpareWork::default();
    let (carrying, cancel) = begin(&mut spare, false);
    let began = tokio::time::Instant::now();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(3)).await;
        drop(carrying); // a copy begins
    });
    spare.wait_until_ready(&bounds()).await;
    assert_eq!(began.elapsed().as_secs(), 3);
    assert!(!cancel.is_cancelled());
    spare.stop_and_wait().await;
    assert!(cancel.is_cancelled());
    assert_eq!(began.elapsed().as_secs(), 3, "the copy gave way");
}

#[tokio::test(start_paused = true)]
async fn it_waits_within_bounds() {
    for links in [false, true] {
        // Returns how long a publication waits, and whether the next one would wait, too.
        let waited = async |limit: u64, is_draining: bool| {
            let mut spare = SpareWork::default();
            let (_ready, _) = begin(&mut spare, links);
            let draining = CancellationToken::new();
            if is_draining {
                draining.cancel();
            }
            let began = tokio::time::Instant::now();
            spare.wait_until_ready(&Bounds::new(Duration::from_secs(limit), draining)).await;
            (began.elapsed().as_secs(), !spare.is_slow)
        };
        assert_eq!(waited(60, false).await, (MAX_WAIT.as_secs(), !links), "links: {links}");
        assert_eq!(waited(4, false).await, (4, !links), "an attempt's own deadline; links: {links}");
        assert_eq!(waited(60, true).await, (0, true), "the process is to end; links: {links}");
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_wait_in_vain_links_are_not_waited_for_until_a_publication_finds_them_ready() {
    let mut spare = SpareWork::default();
    let (_never, _) = begin(&mut spare, true);
    assert_eq!(waits(&mut spare).await, MAX_WAIT.as_secs());
    let (_never, _) = begin(&mut spare, true);
    assert_eq!(waits(&mut spare).await, 0, "the last wait was in vain");
    let (fails, _) = begin(&mut spare, true);
    drop(fails);
    assert_eq!(waits(&mut spare).await, 0);
    let (late, _) = begin(&mut spare, true);
    ready_after(3, late);
    assert_eq!(waits(&mut spare).await, 0, "what failed was not ready");
    assert!(spare.is_slow);

    let (in_time, _) = begin(&mut spare, true);
    in_time.send(()).unwrap();
    assert_eq!(waits(&mut spare).await, 0, "they were ready");
    assert!(!spare.is_slow);
    let (late, _) = begin(&mut spare, true);
    ready_after(3, late);
    assert_eq!(waits(&mut spare).await, 3, "it waits again");
    let (_never, _) = begin(&mut spare, true);
    assert_eq!(waits(&mut spare).await, MAX_WAIT.as_secs(), "a wait that was worth it changes nothing");
}

#[tokio::test(start_paused = true)]
async fn what_is_carried_forward_is_waited_for_whatever_links_took() {
    let mut spare = SpareWork { is_slow: true, ..SpareWork::default() };
    let (_never, _) = begin(&mut spare, false);
    assert_eq!(waits(&mut spare).await, MAX_WAIT.as_secs());
}

/// Blobs that notify `requested` of a reader, and block it until the sender of `release` is dropped.
struct BlockedBlobs {
    blobs: Blobs,
    requested: Arc<Notify>,
    release: Mutex<mpsc::Receiver<()>>,
}

impl BlockedBlobs {
    /// Returns the blobs of a tree, what they notify, and what releases readers when it is dropped.
    fn of(tree: &Tree) -> (Self, Arc<Notify>, mpsc::Sender<()>) {
        let (release, blocked) = mpsc::channel();
        let requested = Arc::new(Notify::new());
        let blobs = Self {
            blobs: Blobs::of(&[tree]),
            requested: Arc::clone(&requested),
            release: Mutex::new(blocked),
        };
        (blobs, requested, release)
    }
}

impl BlobSource for BlockedBlobs {
    fn reader(&self) -> Result<Box<dyn BlobReader + '_>, BlobError> {
        self.requested.notify_one();
        let _ = self.release.lock().unwrap().recv(); // returns when the sender is dropped
        self.blobs.reader()
    }
}

/// Returns a store in a new directory that has published the tree.
fn published(dir: &tempfile::TempDir, spare: Spare, tree: &Tree) -> Store {
    let options = store::Options {
        root: dir.path().join("root"),
        layout: Layout::Kubelet,
        operator_names: std::collections::BTreeSet::new(),
        durability: Durability::None,
        spare,
        group_write: false,
        writers: 2,
        retention: retention::Options {
            grace: Duration::from_secs(30),
            max_pin: Duration::from_secs(600),
            max_generations: 5,
            max_bytes: None,
        },
    };
    let (mut store, _) = Store::open(options).unwrap();
    let all = payload(tree, Rules::default()).unwrap();
    let staged = store.stage(&all, "all", &Blobs::of(&[tree]), &CancellationToken::new()).unwrap();
    store.publish(staged, &clock::now()).unwrap();
    store
}

/// Returns true if a publication uses the spare that is being prepared when it comes.
async fn uses_what_is_in_work(mode: Spare) -> bool {
    let (first, second) = (tree(&[("a", Kind::File, "1")]), tree(&[("a", Kind::File, "2")]));
    let dir = tempfile::tempdir().unwrap();
    let mut store = published(&dir, mode, &first);
    let (blobs, requested, release) = BlockedBlobs::of(&first);
    let task = store.spare_task().unwrap();
    let revision = task.generation().revision;
    let all = payload(&first, Rules::default()).unwrap();
    let mut spare = SpareWork::default();
    spare.spawn(task, revision, Metrics::default(), false, move |task, awaited, cancel| {
        if task.links() {
            let _ = blobs.reader(); // links read no blob, which would hold them
        }
        make_new(task, || Ok(all), &blobs, awaited, cancel)
    });
    requested.notified().await; // the preparation is running

    let comes = async {
        spare.wait_until_ready(&bounds()).await;
        spare.stop_and_wait().await;
    };
    tokio::join!(biased; comes, async { drop(release) });
    let delta = delta(&first, &second, Rules::default()).unwrap();
    let blobs = Blobs::of(&[&second]);
    store.stage_delta(&delta, "all", &blobs, &CancellationToken::new()).unwrap().is_some()
}

#[tokio::test]
async fn a_preparation_is_known_by_its_generation_until_it_is_cancelled() {
    let (first, second) = (tree(&[("a", Kind::File, "1")]), tree(&[("a", Kind::File, "2")]));
    let dir = tempfile::tempdir().unwrap();
    let mut store = published(&dir, Spare::Copy, &first);
    let mut spare = SpareWork::default();
    let task = store.spare_task().unwrap();
    assert!(!spare.is_preparing(&store), "nothing is");
    let (blobs, requested, release) = BlockedBlobs::of(&first);
    let revision = task.generation().revision;
    let all = payload(&first, Rules::default()).unwrap();
    spare.spawn(task, revision, Metrics::default(), false, move |task, awaited, cancel| {
        make_new(task, || Ok(all), &blobs, awaited, cancel)
    });
    requested.notified().await; // the preparation is running
    assert!(spare.is_preparing(&store), "housekeeping need not begin again");
    let all = payload(&second, Rules::default()).unwrap();
    let staged = store.stage(&all, "all", &Blobs::of(&[&second]), &CancellationToken::new()).unwrap();
    let of_first = spare.running.as_ref().unwrap().generation.clone();
    std::thread::scope(|scope| {
        let dropping = scope.spawn(|| store.drop_spare(&CancellationToken::new()));
        let end = Instant::now() + Duration::from_secs(20);
        while spare.is_preparing(&store) {
            assert!(Instant::now() < end, "it was not cancelled");
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(release);
        dropping.join().unwrap().unwrap();
    });
    store.publish(staged, &clock::now()).unwrap();
    spare.spawn(store.spare_task().unwrap(), revision, Metrics::default(), false, |_, _, cancel| {
        while !cancel.is_cancelled() {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(None)
    });
    assert!(spare.is_preparing(&store), "before it has the slot");
    spare.running.as_mut().unwrap().generation = of_first;
    assert!(!spare.is_preparing(&store), "it is for the last generation");
    spare.stop();
}

#[tokio::test(start_paused = true)] // the clock stands still while the preparation is at work
async fn a_publication_is_made_from_links_that_are_in_work_when_it_comes_and_from_no_such_copy() {
    assert!(uses_what_is_in_work(Spare::Link).await, "the links were given up");
    assert!(!uses_what_is_in_work(Spare::Copy).await, "the copy was waited for");
}

type End = fn() -> Result<Option<&'static str>, Error>;

const SUCCEEDS: End = || Ok(Some("a copy"));
const NO_ROOM: End = || Ok(None);
const CANCELLED: End = || Err(Error::Store(store::Error::Cancelled));
const FAILS: End =
    || Err(Error::Store(store::Error::Miswritten { path: "a".into(), why: "as the test wants it".into() }));
const PANICS: End = || panic!("as the test wants it");

/// Begins a preparation that ends like this, and waits for it. Returns true if it was begun.
async fn begins(spare: &mut SpareWork, store: &Store, is_after_failure: bool, end: End) -> bool {
    let task = store.spare_task().unwrap();
    let revision = task.generation().revision;
    let (begun, was_begun) = mpsc::channel();
    spare.spawn(task, revision, Metrics::default(), is_after_failure, move |_, _, _| {
        begun.send(()).unwrap();
        end()
    });
    if let Some(running) = spare.running.take() {
        running.ended.await.unwrap();
    }
    was_begun.try_recv().is_ok()
}

#[tokio::test]
async fn a_preparation_that_failed_twice_is_not_begun_again_at_once() {
    let (first, second) = (tree(&[("a", Kind::File, "1")]), tree(&[("a", Kind::File, "2")]));
    let dir = tempfile::tempdir().unwrap();
    let mut store = published(&dir, Spare::Copy, &first);
    let mut spare = SpareWork::default();
    for _ in 0..3 {
        assert!(begins(&mut spare, &store, true, NO_ROOM).await, "there may be room now");
    }
    assert!(begins(&mut spare, &store, true, FAILS).await, "a lack of room was no failure");
    assert!(begins(&mut spare, &store, true, PANICS).await, "once more, at once");
    assert!(!begins(&mut spare, &store, true, FAILS).await, "it would fail again");
    assert!(begins(&mut spare, &store, false, FAILS).await, "an attempt has succeeded");
    let all = payload(&second, Rules::default()).unwrap();
    let staged = store.stage(&all, "all", &Blobs::of(&[&second]), &CancellationToken::new()).unwrap();
    store.publish(staged, &clock::now()).unwrap();
    assert!(begins(&mut spare, &store, true, FAILS).await, "it is another generation's");
}

#[tokio::test]
async fn a_preparation_that_succeeds_ends_the_count_of_those_that_failed() {
    let dir = tempfile::tempdir().unwrap();
    let store = published(&dir, Spare::Copy, &tree(&[("a", Kind::File, "1")]));
    let mut spare = SpareWork::default();
    for end in [FAILS, SUCCEEDS, FAILS, FAILS] {
        assert!(begins(&mut spare, &store, true, end).await);
    }
    assert!(!begins(&mut spare, &store, true, FAILS).await);
}

#[tokio::test]
async fn only_after_a_failed_attempt_a_preparation_that_is_cancelled_counts_as_failed() {
    let dir = tempfile::tempdir().unwrap();
    let store = published(&dir, Spare::Copy, &tree(&[("a", Kind::File, "1")]));
    let mut spare = SpareWork::default();
    for _ in 0..3 {
        assert!(begins(&mut spare, &store, false, CANCELLED).await, "a commit came early");
    }
    assert!(begins(&mut spare, &store, true, CANCELLED).await);
    assert!(begins(&mut spare, &store, true, CANCELLED).await, "once more, at once");
    assert!(!begins(&mut spare, &store, true, CANCELLED).await, "the next attempt would cancel it again");
}
