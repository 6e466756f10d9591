//! Simulated power cuts: the root's file system is shut down before each change, unmounted, and mounted again. This is
//! a separate binary (`tests/nightly power`) that `cargo test` does not run, because it needs root, loop devices and a
//! mount namespace.
#![allow(unreachable_pub, dead_code)] // a test binary exports nothing; the tracer's self-tests are elsewhere

#[path = "../common/mod.rs"]
mod common;
mod decision;
mod filter;
mod points;
mod recycle;
mod scenario;
mod sources;
mod tracer;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use common::{Files, World};
use decision::run;
use points::{Disturbance, Place, Sample};

/// A file system in an image file, one for each worker.
struct Disk {
    kind: &'static str,
    worlds: Mutex<Vec<PathBuf>>,
}

impl Disk {
    fn new(kind: &'static str) -> Self {
        Self { kind, worlds: Mutex::default() }
    }

    fn make(&self, image: &Path, at: &Path) {
        let force = if self.kind == "xfs" { ["-q", "-f"] } else { ["-q", "-F"] };
        program(Command::new(format!("mkfs.{}", self.kind)).args(force).arg(image));
        mount(image, at);
    }
}

fn program(command: &mut Command) {
    let out = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
}

fn mount(image: &Path, at: &Path) {
    program(Command::new("mount").args(["-o", "loop"]).arg(image).arg(at));
}

/// Unmounts, with retries: a child that another worker is starting holds all descriptors of this process, and with them
/// the file system, until its exec.
fn unmount(at: &Path) {
    common::eventually(20, "the file system can be unmounted", || {
        Command::new("umount").arg("-q").arg(at).output().unwrap().status.success().then_some(())
    });
}

/// The paths of the image and of its mount point.
fn parts(world: &World) -> (PathBuf, PathBuf) {
    (world.dir().join("image"), world.dir().join("disk"))
}

impl Place for Disk {
    fn world(&self, _worker: usize) -> World {
        let mut world = World::new();
        let (image, at) = parts(&world);
        std::fs::create_dir(&at).unwrap();
        // xfs needs at least 300 MB; the file is sparse.
        std::fs::File::create(&image).unwrap().set_len(400 << 20).unwrap();
        self.make(&image, &at);
        world.root = at.join("root");
        self.worlds.lock().unwrap().push(world.dir().to_owned());
        world
    }

    fn remount(&self, world: &World) {
        let (image, at) = parts(world);
        unmount(&at);
        mount(&image, &at);
    }

    fn restore(&self, world: &World, saved: &Path) {
        let (image, at) = parts(world);
        unmount(&at);
        self.make(&image, &at);
        scenario::restore(saved, &world.root);
        program(Command::new("sync").arg("-f").arg(&at));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        for dir in self.worlds.lock().unwrap().drain(..) {
            let _ = Command::new("umount").arg(dir.join("disk")).status();
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

fn cut(kind: &'static str, scenario: &str, flag: u32) {
    let meaning = if flag == 1 { "journal kept, data lost" } else { "nothing more written" };
    let label = format!(" with the power cut on {kind} ({meaning})");
    run(scenario, &label, Disturbance::PowerCut(flag), Sample::ALL, &Disk::new(kind), 2);
}

#[test]
fn ext4_with_its_journal_but_without_its_data() {
    for scenario in ["update", "first", "reap", "rewind"] {
        cut("ext4", scenario, 1);
    }
}

#[test]
fn retired_generations_that_are_used_again() {
    cut("ext4", "recycle", 1);
    cut("ext4", "recycle-copies", 1);
    cut("xfs", "recycle", 1);
}

#[test]
fn several_sources_on_ext4() {
    for scenario in ["sources", "one-to-many"] {
        cut("ext4", scenario, 1);
    }
}

#[test]
fn several_sources_on_xfs() {
    for scenario in ["sources", "one-to-many"] {
        cut("xfs", scenario, 1);
    }
}

/// The control: the same power cut damages an update that was not made durable.
#[test]
fn without_durability_the_cut_is_seen() {
    for kind in ["ext4", "xfs"] {
        let scenario = scenario::SCENARIOS.iter().find(|scenario| scenario.name == "careless").unwrap();
        let report = points::sweep(scenario, Disturbance::PowerCut(1), Sample::ALL, &Disk::new(kind));
        let torn = report.failures.values().filter(|wrong| wrong.contains("a mixture")).count();
        println!("control on {kind}, --durability=none: {torn} of {} torn", report.points);
        assert!(torn > 0, "the cut loses nothing: the harness proves nothing");
    }
}

/// After a restart in the same boot, a spare that was prepared without a sync must not be the base of a generation that
/// counts as synced.
#[test]
fn a_spare_that_was_not_synced_tears_nothing_that_is() {
    for kind in ["ext4", "xfs"] {
        let disk = Disk::new(kind);
        let world = disk.world(0);
        let files = |word: &str| {
            let same = |all: Files, n: u32| all.file(format!("same/{n}"), format!("{n}\n").repeat(500));
            (0..40).fold(Files::new().file("word", word), same)
        };
        world.remote.commit(&files("old"));
        let args = ["--period=10ms", "--min-interval=0s", "--grace=0s", "--durability=none"];
        let log = world.dir().join("log");
        let mut careless = common::run::Background::start(&mut world.sync(&args), &log);
        let ready = world.root.join("..treeswap/spare/ready");
        common::eventually(60, "the spare is ready", || ready.exists().then_some(()));
        assert!(careless.terminate().success(), "{}", careless.log());
        let commit = world.remote.commit(&files("new"));
        world.sync_once(&["--grace=0s"]).expect_ok("the same root with --durability=syncfs");
        tracer::shutdown(&world.root, 1).unwrap();
        disk.remount(&world);
        world.assert_published(&commit);
        println!("an unsynced spare, then --durability=syncfs, on {kind}: whole");
    }
}

#[test]
fn ext4_without_its_journal() {
    cut("ext4", "update", 2);
}

#[test]
fn xfs_with_its_journal_but_without_its_data() {
    cut("xfs", "update", 1);
}

#[test]
fn xfs_without_its_journal() {
    cut("xfs", "update", 2);
}
