//! Scenarios with several sources in one root: three sources, two of them in the same repository.

use std::path::PathBuf;
use std::process::Command;

use crate::common::tree::Node;
use crate::common::{Files, Remote, Snapshot, World, run};
use crate::scenario::{ONCE, Stage, new, old};

/// The sources file, and the repositories besides the world's remote.
pub struct Sources {
    file: PathBuf,
    pub others: Vec<Remote>,
}

/// A listed source: name, the repository's number, `path`, `to`.
type Listed = (&'static str, usize, &'static str, &'static str);

const JOBS: Listed = ("jobs", 0, "ci/jobs", "jobs");
const STEPS: Listed = ("steps", 0, "ci/steps", "deep/down/steps");
const MOVED: Listed = ("steps", 0, "ci/steps", "elsewhere/steps");
const TEAM: Listed = ("team", 1, "", "");

impl Sources {
    fn new(world: &World) -> Self {
        let others = vec![Remote::create(&world.dir().join("other"))];
        Self { file: world.dir().join("sources.yaml"), others }
    }

    fn remote<'a>(&'a self, world: &'a World, number: usize) -> &'a Remote {
        if number == 0 { &world.remote } else { &self.others[number - 1] }
    }

    fn list(&self, world: &World, sources: &[Listed]) {
        let line = |(name, number, path, to): &Listed| {
            let repo = self.remote(world, *number).path.display();
            format!("  - {{name: {name}, repo: {repo}, ref: main, path: '{path}', to: '{to}'}}\n")
        };
        let lines: String = sources.iter().map(line).collect();
        std::fs::write(&self.file, format!("version: 1\nsources:\n{lines}end: true\n")).unwrap();
    }

    pub fn sync(&self, world: &World, args: &[&str]) -> Command {
        let mut command = world.treeswap(&["sync", "--sources"]);
        command.arg(&self.file).arg("--root").arg(&world.root).args(args);
        command
    }

    /// The tree composed of these sources, with each repository at the given commit.
    fn composed(&self, world: &World, sources: &[Listed], commits: [&str; 2]) -> Snapshot {
        let mut all = Snapshot::default();
        for (_, number, path, to) in sources {
            place(&self.remote(world, *number).snapshot(commits[*number]), path, to, &mut all);
        }
        all
    }
}

/// Copies what is below `path` to below `to`, and adds the directories above it.
fn place(from: &Snapshot, path: &str, to: &str, into: &mut Snapshot) {
    let above = to.match_indices('/').map(|(at, _)| &to[..at]);
    for dir in above.chain((!to.is_empty()).then_some(to)) {
        into.0.insert(dir.into(), Node::Directory);
    }
    let [path, to] = [path, to].map(|dir| if dir.is_empty() { String::new() } else { format!("{dir}/") });
    for (name, node) in &from.0 {
        if let Some(rest) = name.strip_prefix(path.as_bytes()) {
            into.0.insert([to.as_bytes(), rest].concat(), node.clone());
        }
    }
}

/// The files of the world's remote: two directories that are sources, and a file that is not.
fn release(jobs: &Files, steps: &str) -> Files {
    let jobs = jobs.0.iter().map(|(path, entry)| (format!("ci/jobs/{path}"), entry.clone()));
    Files(jobs.collect())
        .file("ci/steps/step.yaml", steps)
        .file("ci/steps/area/same", "same")
        .file("OWNERS", steps)
}

/// The files of the other repository, which are placed at the top.
fn team(word: &str) -> Files {
    Files::new().file("team.yaml", word).script("bin/tool", "#!/bin/sh\n").file(format!("dir/{word}"), word)
}

/// Commits to both repositories and publishes these sources.
fn published(world: &World, listed: &[Listed]) -> (Sources, [String; 2], Snapshot) {
    let sources = Sources::new(world);
    let commits = [world.remote.commit(&release(&old(), "old")), sources.others[0].commit(&team("old"))];
    sources.list(world, listed);
    run::to_end(&mut sources.sync(world, ONCE)).expect_ok("preparing");
    let before = sources.composed(world, listed, commits.each_ref().map(String::as_str));
    let wrong = crate::common::root::differences(&world.root, &before);
    assert!(wrong.is_empty(), "{wrong:#?}");
    (sources, commits, before)
}

/// Every source has a new commit.
pub fn update(world: &World) -> Stage {
    let listed = [JOBS, STEPS, TEAM];
    let (sources, olds, before) = published(world, &listed);
    let news = [world.remote.commit(&release(&new(), "new")), sources.others[0].commit(&team("new"))];
    let after = sources.composed(world, &listed, [&news[0], &news[1]]);
    let partial = vec![
        ("new of one repository", sources.composed(world, &listed, [&news[0], &olds[1]])),
        ("new of the other", sources.composed(world, &listed, [&olds[0], &news[1]])),
    ];
    let stage = Stage::of(vec![("old", before), ("new", after.clone())], after);
    Stage { partial, sources: Some(sources), ..stage }
}

/// Only the sources file changes.
fn relisted(world: &World, before: &[Listed], after: &[Listed]) -> Stage {
    let (sources, commits, old) = published(world, before);
    sources.list(world, after);
    let new = sources.composed(world, after, commits.each_ref().map(String::as_str));
    let stage = Stage::of(vec![("before", old), ("after", new.clone())], new);
    Stage { sources: Some(sources), ..stage }
}

/// A source in a new repository is added.
pub fn added(world: &World) -> Stage {
    relisted(world, &[JOBS, STEPS], &[JOBS, STEPS, TEAM])
}

/// A source and its repository are removed.
pub fn removed(world: &World) -> Stage {
    relisted(world, &[JOBS, STEPS, TEAM], &[JOBS, STEPS])
}

/// A source is placed elsewhere.
pub fn moved(world: &World) -> Stage {
    relisted(world, &[JOBS, STEPS, TEAM], &[JOBS, MOVED, TEAM])
}

/// A root of one repository becomes one of several sources.
pub fn one_to_many(world: &World) -> Stage {
    let sources = Sources::new(world);
    let listed = [JOBS, STEPS, TEAM];
    let commits = [world.remote.commit(&release(&old(), "old")), sources.others[0].commit(&team("old"))];
    run::to_end(&mut world.sync(ONCE)).expect_ok("preparing");
    world.assert_published(&commits[0]);
    sources.list(world, &listed);
    let one = world.remote.snapshot(&commits[0]);
    let many = sources.composed(world, &listed, commits.each_ref().map(String::as_str));
    let stage = Stage::of(vec![("one", one), ("many", many.clone())], many);
    Stage { sources: Some(sources), ..stage }
}

/// A root of several sources becomes one of a single repository.
pub fn many_to_one(world: &World) -> Stage {
    let (_, commits, many) = published(world, &[JOBS, STEPS, TEAM]);
    let one = world.remote.snapshot(&commits[0]);
    Stage::of(vec![("many", many), ("one", one.clone())], one)
}
