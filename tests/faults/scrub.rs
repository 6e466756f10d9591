//! What others change in the current generation is published afresh within one interval, whatever becomes of the remote.
//! Time passes as fast as there is nothing to do: an interval is ten minutes.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use treeswap::mirror::{self, wire};
use treeswap::phase::Status;
use treeswap::phase::machine::{FailureLimits, Timing};
use treeswap::retry::Backoff;
use treeswap::sources::Upstream;
use treeswap::store::{self, Durability, Layout, Spare, Store};
use treeswap::sync::{End, Options, Sync};
use treeswap::telemetry::metrics::Metrics;
use treeswap::{retention, sync};

use super::common::{Files, World};

const S: fn(u64) -> Duration = Duration::from_secs;

/// Lets a second pass. The clock does not wait for threads that are not tokio's, such as one that reads the refs of the
/// remote: without a moment of real time, their work would seem to take minutes.
async fn a_second() {
    std::thread::sleep(Duration::from_micros(300));
    tokio::time::sleep(S(1)).await;
}

fn options(root: &Path, period: Duration, spare: Spare) -> sync::Options {
    let backoff = Backoff { first: period, ceiling: period };
    Options {
        ref_name: "main".to_owned(),
        root: root.to_owned(),
        limits: Default::default(),
        symlinks: Default::default(),
        path: None,
        sparse_file: None,
        group_write: false,
        spare: spare != Spare::Off,
        pace: Timing {
            period,
            init_period: period,
            min_interval: S(0),
            backoff,
            init_backoff: backoff,
            jitter: 0.0,
        },
        failure_limits: FailureLimits { failures: None, init_failures: None },
        sync_timeout: S(120),
        one_time: false,
        park: false,
        every_failure: false,
        touch_file: None,
        error_file: None,
    }
}

fn open(root: &Path, spare: Spare) -> Store {
    let retention = retention::Options { grace: S(30), max_pin: S(600), max_generations: 5, max_bytes: None };
    let options = store::Options {
        root: root.to_owned(),
        layout: Layout::Kubelet,
        operator_names: Default::default(),
        durability: Durability::None,
        spare,
        group_write: spare == Spare::Copy, // then there is no scrub
        writers: 2,
        retention,
    };
    Store::open(options).unwrap().0
}

struct Scene {
    world: World,
    metrics: Metrics,
}

impl Scene {
    fn link(&self) -> Option<PathBuf> {
        std::fs::read_link(self.world.root.join("..data")).ok()
    }

    /// How long it takes until another generation is published, within an hour.
    async fn published_after(&self) -> Option<Duration> {
        let before = self.link();
        let began = tokio::time::Instant::now();
        while began.elapsed() < S(3_000) {
            a_second().await;
            if self.link() != before {
                return Some(began.elapsed());
            }
        }
        None
    }

    async fn play(&self, away: bool) {
        let file = self.world.root.join("..data/jobs/a");
        while !file.exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await; // the attempt ends
        let _away = away.then(|| self.world.remote.away());
        tokio::time::pause();
        assert_eq!(self.published_after().await, None, "nothing was changed");
        std::fs::write(&file, "2").unwrap(); // as long as before
        let took = self.published_after().await.expect("it is found");
        assert!(took <= S(620), "{took:?}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "1");
        assert_eq!(self.metrics.damaged.get(), 1);
        // Each time the next look comes later.
        std::fs::write(self.world.root.join("..data/jobs/__pycache__"), "").unwrap();
        let took = self.published_after().await.expect("it is found again");
        assert!(took > S(600) && took <= S(1_220), "{took:?}");
        assert_eq!(std::fs::read_dir(self.world.root.join("..data/jobs")).unwrap().count(), 1);
        assert_eq!(self.metrics.damaged.get(), 2);
        assert_eq!(self.published_after().await, None, "it is as it should be");
    }
}

/// Plays a scene while a sync runs that polls with this period.
fn run(period: Duration, spare: Spare, play: impl AsyncFn(&Scene)) {
    let world = World::new();
    world.remote.commit(&Files::new().file("jobs/a", "1"));
    let remote = wire::Options::new(world.remote.path.to_str().unwrap());
    let mut mirror = mirror::Options::new(world.dir().join("mirror"), "main".parse().unwrap(), remote);
    mirror.indexer = env!("CARGO_BIN_EXE_treeswap").into();
    let metrics = Metrics::default();
    let (status, _shown) = watch::channel(Status::default());
    let store = open(&world.root, spare);
    let draining = CancellationToken::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let scene = Scene { world, metrics: metrics.clone() };
    runtime.block_on(async {
        let upstream = Upstream::open(mirror, None).unwrap();
        let options = options(&scene.world.root, period, spare);
        let sync = Sync::new(options, store, upstream, metrics, status).run(draining.clone());
        let played = async {
            play(&scene).await;
            draining.cancel();
        };
        let (end, ()) = tokio::join!(sync, played);
        assert!(matches!(end, End::Drained));
    });
}

#[test]
fn damage_is_published_afresh_within_one_interval() {
    // Between attempts, where none is due for long; and by attempts that all fail.
    for (period, away) in [(S(100_000), false), (S(1), true), (S(3_000), true)] {
        run(period, Spare::Off, async |scene| scene.play(away).await);
    }
}

/// Runs until there is a spare, makes the change, and goes on until there is another spare.
async fn until_there_is_a_spare_again(scene: &Scene, change: impl FnOnce()) {
    let ready = scene.world.root.join("..treeswap/spare/ready");
    let spare = || std::fs::metadata(&ready).ok().map(|found| (found.ino(), found.ctime_nsec()));
    while spare().is_none() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await; // the attempt ends
    tokio::time::pause();
    let before = spare();
    change();
    let began = tokio::time::Instant::now();
    while spare().is_none_or(|found| Some(found) == before) {
        a_second().await;
        assert!(began.elapsed() < S(3_000), "there is none");
    }
}

#[test]
fn after_a_doubt_without_damage_there_is_a_spare_again() {
    // Between attempts, and by attempts that find nothing new.
    for period in [S(100_000), S(60)] {
        run(period, Spare::Link, async |scene| {
            // The same mode as before, which is a change all the same.
            let file = scene.world.root.join("..data/jobs/a");
            let set_mode =
                || std::fs::set_permissions(&file, std::fs::metadata(&file).unwrap().permissions()).unwrap();
            until_there_is_a_spare_again(scene, set_mode).await;
            assert_eq!(scene.metrics.damaged.get(), 0);
        });
    }
}

/// No scrub brings it back here, and nothing is published.
#[test]
fn after_the_root_was_opened_again_there_is_a_spare_again() {
    run(S(60), Spare::Copy, async |scene| {
        let lock = scene.world.root.join("..treeswap/lock");
        until_there_is_a_spare_again(scene, || std::fs::remove_file(&lock).unwrap()).await;
    });
}
