//! The scenarios: what treeswap is doing when it is killed, and what a reader may find afterwards.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common::remote::Away;
use crate::common::root::{self, GIT_SYNC};
use crate::common::{Files, Snapshot, World, run};
use crate::recycle::{copying, sharing};
use crate::sources::{self, Sources};

/// A situation, prepared for each worker and restored before each run.
pub struct Scenario {
    pub name: &'static str,
    pub prepare: fn(&World) -> Stage,
}

/// A prepared situation, and the acceptable results.
pub struct Stage {
    /// True if something is published already, so that `..data` must never be absent.
    pub published: bool,
    /// The trees that a reader may find at any instant, with their names.
    pub acceptable: Vec<(&'static str, Snapshot)>,
    /// The trees that a reader may find as well after a failed call: one source is held back, the others are updated.
    pub partial: Vec<(&'static str, Snapshot)>,
    /// The tree of the remote's tip.
    pub tip: Snapshot,
    /// The sources to sync instead of the remote.
    pub sources: Option<Sources>,
    /// Arguments of every run, after those for the remote and the root: the layout.
    pub layout: &'static [&'static str],
    /// Arguments of the disturbed run, after those for the remote and the root.
    pub run: &'static [&'static str],
    /// The commits that the ref names before and after the run, if it moves during the run.
    pub ref_moves: Option<(String, String)>,
    /// Text in the log of an undisturbed run, which shows that it does what the scenario is about.
    pub says: Option<&'static str>,
    /// If set, the run is a loop, which gets SIGTERM after it has made no change for this long.
    pub idle: Option<Duration>,
}

impl Stage {
    /// A stage with one repository and `--one-time`, in which something is published.
    pub fn of(acceptable: Vec<(&'static str, Snapshot)>, tip: Snapshot) -> Self {
        Self {
            published: true,
            acceptable,
            partial: Vec::new(),
            tip,
            sources: None,
            layout: &[],
            run: ONCE,
            idle: None,
            ref_moves: None,
            says: None,
        }
    }

    /// Returns the command of a run with these arguments.
    pub fn sync(&self, world: &World, args: &[&str]) -> Command {
        let mut command = match &self.sources {
            Some(sources) => sources.sync(world, args),
            None => world.sync(args),
        };
        command.args(self.layout);
        command
    }

    /// Makes all remotes unreachable until the guards are dropped.
    pub fn away<'a>(&'a self, world: &'a World) -> Vec<Away<'a>> {
        let others = self.sources.iter().flat_map(|sources| &sources.others);
        std::iter::once(&world.remote).chain(others).map(crate::common::Remote::away).collect()
    }
}

/// One sync without a grace period: retired generations are reaped.
pub const ONCE: &[&str] = &["--one-time", "--grace=0s"];
/// One sync that keeps retired generations.
const ONCE_WITH_GRACE: &[&str] = &["--one-time", "--grace=1h"];
/// The loop.
const LOOP: &[&str] = &["--period=10ms", "--min-interval=0s", "--grace=0s"];

pub const SCENARIOS: &[Scenario] = &[
    Scenario { name: "first", prepare: first },
    Scenario { name: "update", prepare: update },
    Scenario { name: "careless", prepare: careless },
    Scenario { name: "reap", prepare: reap },
    Scenario { name: "rewind", prepare: rewind },
    Scenario { name: "heal", prepare: heal },
    Scenario { name: "spare", prepare: spare },
    Scenario { name: "recycle", prepare: sharing },
    Scenario { name: "recycle-copies", prepare: copying },
    Scenario { name: "idle", prepare: idle },
    Scenario { name: "worktree", prepare: worktree },
    Scenario { name: "exchange", prepare: exchange },
    Scenario { name: "sources", prepare: sources::update },
    Scenario { name: "source-added", prepare: sources::added },
    Scenario { name: "source-removed", prepare: sources::removed },
    Scenario { name: "source-moved", prepare: sources::moved },
    Scenario { name: "one-to-many", prepare: sources::one_to_many },
    Scenario { name: "many-to-one", prepare: sources::many_to_one },
];

/// Every kind of entry, at the top and below.
pub fn old() -> Files {
    Files::new()
        .file("README", "old\n")
        .file("gone", "at the top, and not in the next\n")
        .file("same/deep/er/file", "never changes\n")
        .file("same/other", "never changes either\n")
        .script("bin/run", "#!/bin/sh\necho old\n")
        .link("bin/alias", "run")
        .file("file-to-directory", "a file")
        .file("directory-to-file/a", "a")
        .file("directory-to-file/b", "b")
        .file("file-to-link", "a file")
        .file("mode", "becomes executable")
        .link("latest", "same/other")
}

/// Paths added and removed, contents and modes changed, and every change of type.
pub fn new() -> Files {
    Files::new()
        .file("README", "new, and longer than before\n")
        .file("added", "at the top, and not in the one before\n")
        .file("same/deep/er/file", "never changes\n")
        .file("same/other", "never changes either\n")
        .file("same/new/file", "in a new directory")
        .script("bin/run", "#!/bin/sh\necho new\n")
        .link("bin/alias", "./run")
        .file("file-to-directory/inside", "now a directory")
        .file("directory-to-file", "now a file")
        .link("file-to-link", "README")
        .script("mode", "becomes executable")
        .link("latest", "same/new/file")
}

fn synced(world: &World, args: &[&str], files: &Files) -> (String, Snapshot) {
    synced_as(world, &[], args, files)
}

fn synced_as(world: &World, layout: &[&str], args: &[&str], files: &Files) -> (String, Snapshot) {
    let commit = world.remote.commit(files);
    run::to_end(world.sync(args).args(layout)).expect_ok("preparing");
    world.assert_published(&commit);
    let snapshot = world.remote.snapshot(&commit);
    (commit, snapshot)
}

fn first(world: &World) -> Stage {
    let tip = world.remote.commit(&old());
    let tip = world.remote.snapshot(&tip);
    Stage { published: false, ..Stage::of(vec![("the tip", tip.clone())], tip) }
}

fn update(world: &World) -> Stage {
    let (_, before) = synced(world, ONCE, &old());
    let tip = world.remote.commit(&new());
    let after = world.remote.snapshot(&tip);
    Stage::of(vec![("old", before), ("new", after.clone())], after)
}

/// An update without fsync: that a power cut damages it shows that the harness can detect damage.
fn careless(world: &World) -> Stage {
    Stage { run: &["--one-time", "--grace=0s", "--durability=none"], ..update(world) }
}

/// The grace period of a retired generation is over, and nothing else has to be done.
fn reap(world: &World) -> Stage {
    synced(world, ONCE_WITH_GRACE, &old());
    let (_, snapshot) = synced(world, ONCE_WITH_GRACE, &new());
    Stage::of(vec![("new", snapshot.clone())], snapshot)
}

/// The ref moves back to an older commit.
fn rewind(world: &World) -> Stage {
    let (tip, target) = synced(world, ONCE, &old());
    let (_, before) = synced(world, ONCE, &new());
    world.remote.reset(&tip);
    Stage::of(vec![("newer", before), ("older", target.clone())], target)
}

/// After a foreign write into the current generation, its commit is published afresh.
fn heal(world: &World) -> Stage {
    let (_, right) = synced(world, ONCE, &old());
    let published = root::current(&world.root).unwrap().unwrap();
    std::fs::write(published.join("README"), "evil").unwrap();
    std::fs::remove_file(published.join("same/other")).unwrap();
    let tampered = Snapshot::read(&published).unwrap();
    Stage::of(vec![("tampered", tampered), ("right", right.clone())], right)
}

/// The loop publishes, then prepares the spare.
fn spare(world: &World) -> Stage {
    let mut stage = update(world);
    stage.run = LOOP;
    stage.idle = Some(Duration::from_millis(120));
    stage
}

/// Nothing has to be done.
fn idle(world: &World) -> Stage {
    let (_, snapshot) = synced(world, ONCE, &old());
    Stage::of(vec![("the tip", snapshot.clone())], snapshot)
}

/// An update in git-sync's layout.
fn worktree(world: &World) -> Stage {
    let (_, before) = synced_as(world, GIT_SYNC, ONCE, &old());
    let tip = world.remote.commit(&new());
    let after = world.remote.snapshot(&tip);
    let acceptable = vec![("old", before), ("new", after.clone())];
    Stage { layout: GIT_SYNC, ..Stage::of(acceptable, after) }
}

/// In git-sync's layout, after a foreign write, a fresh generation of the same commit takes the old one's name.
fn exchange(world: &World) -> Stage {
    let (_, right) = synced_as(world, GIT_SYNC, ONCE, &old());
    let published = root::current(&world.root).unwrap().unwrap();
    std::fs::write(published.join("README"), "evil").unwrap();
    std::fs::remove_file(published.join("same/other")).unwrap();
    let mut tampered = Snapshot::read(&published).unwrap();
    tampered.0.remove(&b".git"[..]).unwrap();
    let acceptable = vec![("tampered", tampered), ("right", right.clone())];
    Stage { layout: GIT_SYNC, ..Stage::of(acceptable, right) }
}

/// Restores the directory from its saved copy.
pub fn restore(saved: &Path, root: &Path) {
    if root.exists() {
        std::fs::remove_dir_all(root).unwrap();
    }
    if saved.exists() {
        let copied = std::process::Command::new("cp").arg("-a").arg(saved).arg(root).status().unwrap();
        assert!(copied.success(), "cp -a {} {}", saved.display(), root.display());
    }
}
