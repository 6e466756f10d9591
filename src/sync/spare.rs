//! Prepares the spare in the background: by recycling a retired generation, by hard links, or by a copy.
//!
//! A publication that comes meanwhile waits for a retired generation that is being carried forward, which it would
//! otherwise have to do itself, and for links, which cost less than writing the files. It does not wait for a copy:
//! that is cancelled, and the publication writes its generation in full. After a wait for links that was in vain,
//! publications do not wait for links until one finds them ready: a slow disk would delay every commit.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::bounds::Bounds;
use super::error::Error;
use super::staging::is_small;
use crate::generation::Name;
use crate::human::one_line;
use crate::mirror::{self, Objects, Selection};
use crate::payload::{BlobSource, Payload};
use crate::revision::Revision;
use crate::store::{SpareTask, Store};
use crate::telemetry::metrics::Metrics;

/// How long a publication waits for a preparation to finish, and for a cancelled one to end. Cancellation is checked
/// every few hundred files.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Makes the spare. Returns how it was made, or `None` if there is no room for one. A publication waits until `awaited`
/// is used or dropped.
fn prepare(
    task: &SpareTask,
    objects: &Objects,
    revision: Revision,
    wanted: &Selection,
    awaited: oneshot::Sender<()>,
    cancel: &CancellationToken,
) -> Result<Option<&'static str>, Error> {
    if recycle(task, objects, revision, wanted, cancel)? {
        return Ok(Some("a retired generation, carried forward"));
    }
    let payload = || Ok(objects.payload(revision, wanted)?);
    make_new(task, payload, objects.blobs().as_ref(), awaited, cancel)
}

/// Makes the spare of hard links or as a copy, and returns which. `awaited` is signalled once links are ready, and dropped
/// before a copy.
fn make_new(
    task: &SpareTask,
    payload: impl FnOnce() -> Result<Payload, Error>,
    blobs: &dyn BlobSource,
    awaited: oneshot::Sender<()>,
    cancel: &CancellationToken,
) -> Result<Option<&'static str>, Error> {
    if task.link(cancel)? {
        let _ = awaited.send(()); // no publication may be waiting
        return Ok(Some("links"));
    }
    drop(awaited);
    if !task.has_room_to_copy() {
        task.discard_retired()?;
        return Ok(None);
    }
    task.copy(&payload()?, blobs, cancel)?;
    Ok(Some("a copy"))
}

/// Makes the spare from a retired generation. Returns false if there is none, or if too much differs between it and
/// `revision`, which has the current generation's tree.
pub(super) fn recycle(
    task: &SpareTask,
    objects: &Objects,
    revision: Revision,
    wanted: &Selection,
    cancel: &CancellationToken,
) -> Result<bool, Error> {
    // If sources are placed differently, unchanged symbolic links may have other targets: a diff is not enough.
    let is_placed_alike = |other| objects.places(other) == objects.places(revision);
    let Some(retired) = task.retired().filter(|retired| is_placed_alike(retired.revision)) else {
        return Ok(false);
    };
    let base = mirror::Base { tree: retired.tree, entries: retired.entries, bytes: retired.bytes };
    match objects.delta(base, revision, wanted)?.filter(|delta| is_small(delta, base.entries)) {
        Some(delta) => Ok(task.recycle(&delta, objects.blobs().as_ref(), cancel)?),
        None => Ok(false),
    }
}

/// The running preparation, if any, and what earlier ones showed about the disk.
#[derive(Debug, Default)]
pub(super) struct SpareWork {
    running: Option<Preparation>,
    /// True after a publication waited for links in vain, until one finds them ready.
    is_slow: bool,
}

#[derive(Debug)]
struct Preparation {
    cancel: CancellationToken,
    /// The generation that the spare will be like.
    generation: Name,
    /// True if it makes hard links.
    links: bool,
    /// Yields a value once links are ready, and an error once there is nothing to wait for.
    awaited: oneshot::Receiver<()>,
    ended: JoinHandle<()>,
}

impl SpareWork {
    /// Starts a preparation for the current generation, whose tree `revision` has. One that is still running is for a
    /// generation that is no longer current, and is cancelled.
    pub(super) fn start(
        &mut self,
        task: SpareTask,
        objects: Objects,
        revision: Revision,
        wanted: Selection,
        metrics: Metrics,
    ) {
        self.spawn(task, revision, metrics, move |task, awaited, cancel| {
            prepare(task, &objects.until(cancel), revision, &wanted, awaited, cancel)
        });
    }

    /// Runs `work`, which prepares the spare, on a blocking thread, and logs the result.
    fn spawn<F>(&mut self, task: SpareTask, revision: Revision, metrics: Metrics, work: F)
    where
        F: FnOnce(&SpareTask, oneshot::Sender<()>, &CancellationToken) -> Result<Option<&'static str>, Error>
            + Send
            + 'static,
    {
        self.stop();
        let cancel = CancellationToken::new();
        task.begin(&cancel);
        let until = cancel.clone();
        let (generation, links) = (task.generation().name.clone(), task.links());
        let (ready, awaited) = oneshot::channel();
        let work = move || {
            let began = Instant::now();
            let how = work(&task, ready, &until)?;
            Ok::<_, Error>((how, began.elapsed()))
        };
        let ended = tokio::spawn(async move {
            match tokio::task::spawn_blocking(work).await {
                Ok(Ok((None, _))) => debug!("no spare: there is no room for a copy"),
                Ok(Ok((Some(how), took))) => {
                    debug!(duration_ms = took.as_millis() as u64, %revision, how, "the spare is ready");
                }
                Ok(Err(error)) if error.is_cancelled() => debug!("spare preparation cancelled"),
                Ok(Err(error)) => {
                    metrics.error("spare", error.class().label());
                    warn!(error = one_line(&error), "no spare: the next generation will be written in full");
                }
                Err(_) => metrics.error("spare", "permanent"),
            }
        });
        self.running = Some(Preparation { cancel, generation, links, awaited, ended });
    }

    /// Returns true if a spare of the store's current generation is being prepared.
    pub(super) fn is_preparing(&self, store: &Store) -> bool {
        let Some((running, current)) = self.running.as_ref().zip(store.current()) else { return false };
        running.generation == current.name
            && !running.ended.is_finished()
            && !store.preparation_is_cancelled()
    }

    /// Cancels a running preparation.
    pub(super) fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            running.cancel.cancel();
        }
    }

    /// Returns true if publications do not wait for links at present.
    pub(super) fn is_slow(&self) -> bool {
        self.is_slow
    }

    /// Waits while a retired generation is being carried forward or links are being made, within the bounds of the
    /// attempt and at most [`MAX_WAIT`].
    pub(super) async fn wait_until_ready(&mut self, bounds: &Bounds) {
        let Some(running) = &mut self.running else { return };
        if running.links && self.is_slow {
            self.is_slow = running.awaited.try_recv().is_err();
            return;
        }
        let in_vain = tokio::select! {
            biased;
            _ = &mut running.awaited => false,
            () = bounds.draining.cancelled() => false, // shutdown does not mean that the disk is slow
            () = tokio::time::sleep_until(bounds.deadline) => true,
            () = tokio::time::sleep(MAX_WAIT) => true,
        };
        if running.links && in_vain {
            debug!(
                "preparing hard links took too long: publications no longer wait for them until a spare is ready in time"
            );
            self.is_slow = true;
        }
    }

    /// Cancels a running preparation and waits for its end: two payloads at once would need twice the memory. A spare
    /// that is not ready is of no use to the publication.
    pub(super) async fn stop_and_wait(&mut self) {
        if let Some(Preparation { cancel, ended, .. }) = self.running.take() {
            cancel.cancel();
            // Its result is logged by its own task. If the disk hangs, the attempt's own deadline applies.
            let _ = tokio::time::timeout(MAX_WAIT, ended).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, mpsc};

    use tokio::sync::Notify;

    use super::*;
    use crate::clock;
    use crate::payload::testing::{Blobs, Tree, delta, payload, tree};
    use crate::payload::{BlobError, BlobReader, Kind, Rules};
    use crate::retention;
    use crate::store::{self, Durability, Spare, Style};

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
    struct Held {
        blobs: Blobs,
        requested: Arc<Notify>,
        release: Mutex<mpsc::Receiver<()>>,
    }

    impl Held {
        /// Returns the blobs of a tree, what they notify, and what releases readers when it is dropped.
        fn of(tree: &Tree) -> (Self, Arc<Notify>, mpsc::Sender<()>) {
            let (release, held) = mpsc::channel();
            let requested = Arc::new(Notify::new());
            let held = Self {
                blobs: Blobs::of(&[tree]),
                requested: Arc::clone(&requested),
                release: Mutex::new(held),
            };
            (held, requested, release)
        }
    }

    impl BlobSource for Held {
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
            style: Style::Kubelet,
            own: std::collections::BTreeSet::new(),
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
        let (blobs, requested, release) = Held::of(&first);
        let task = store.spare_task().unwrap();
        let revision = task.generation().revision;
        let all = payload(&first, Rules::default()).unwrap();
        let mut spare = SpareWork::default();
        spare.spawn(task, revision, Metrics::default(), move |task, awaited, cancel| {
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
        let (blobs, requested, release) = Held::of(&first);
        let revision = task.generation().revision;
        let all = payload(&first, Rules::default()).unwrap();
        spare.spawn(task, revision, Metrics::default(), move |task, awaited, cancel| {
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
        spare.spawn(store.spare_task().unwrap(), revision, Metrics::default(), |_, _, cancel| {
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
}
