//! Files of a repository that a power cut left empty, short, or full of zeros: git, and so git-sync, syncs few of them.
//! libgit2 inflates a loose object that ends early for ever, which no deadline ends.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::common::root::GIT_SYNC;
use super::common::{Files, Ran, World, full, remote::noise, run};
use super::{ONCE, publish};

/// What may be left of a file.
fn remains(whole: &[u8]) -> Vec<(String, Vec<u8>)> {
    let length = whole.len();
    let mut ends = vec![0, length / 2, length - 1];
    if full() {
        ends.extend([1, 2, 20, 40, length / 4, length.saturating_sub(5), length.saturating_sub(21)]);
        ends.extend((0..16).map(|part| length * part / 16));
    }
    ends.retain(|end| *end < length);
    ends.sort_unstable();
    ends.dedup();
    let cut = ends.iter().map(|end| (format!("cut to {end} of {length} bytes"), whole[..*end].to_vec()));
    let zeros = [0, length / 2].map(|from| {
        let left = [&whole[..from], &vec![0; length - from]].concat();
        (format!("zeros from byte {from} of {length}"), left)
    });
    cut.chain(zeros).collect()
}

fn replace(path: &Path, raw: &[u8]) {
    std::fs::remove_file(path).unwrap();
    std::fs::write(path, raw).unwrap();
}

/// Ends a program that would never end.
fn bounded(command: &Command) -> Ran {
    let mut timed = run::clean("timeout", Path::new("/"));
    timed.args(["100", "env", "-i"]);
    for (name, value) in command.get_envs().filter_map(|(name, value)| Some((name, value?))) {
        timed.arg([name, "=".as_ref(), value].join("".as_ref()));
    }
    timed.arg(command.get_program()).args(command.get_args());
    run::to_end(&mut timed)
}

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    run::to_end(Command::new("cp").arg("-a").args([from, to])).expect_ok("cp");
}

fn git(at: &Path, args: &[&str]) -> String {
    let mut command = run::clean("git", at);
    command.arg("-C").arg(at).args(args);
    run::to_end(&mut command).expect_ok(&format!("git {args:?}")).stdout.trim_end().to_owned()
}

fn files(text: &str) -> Files {
    let large = noise(1, 20_000).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    Files::new().file("large", large).file("dir/file", text)
}

/// Objects are in files of their own.
fn unpack(repository: &Path) {
    let packs = repository.join("objects/pack");
    let aside = repository.join("aside");
    std::fs::rename(&packs, &aside).unwrap();
    std::fs::create_dir(&packs).unwrap();
    for entry in std::fs::read_dir(&aside).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().unwrap() == "pack" {
            let line = format!("git -C '{}' unpack-objects -q < '{}'", repository.display(), path.display());
            run::to_end(run::clean("sh", repository).args(["-c", &line])).expect_ok("unpack");
        }
    }
    std::fs::remove_dir_all(aside).unwrap();
}

fn loose(repository: &Path, name: &str) -> PathBuf {
    let id = git(repository, &["rev-parse", name]);
    Path::new("objects").join(&id[..2]).join(&id[2..])
}

fn only(dir: &Path, suffix: &str) -> PathBuf {
    let mut entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.find(|path| path.extension().is_some_and(|found| found == suffix)).unwrap()
}

/// For each file and each of its remains: the pass ends well, and so does the one after the next commit.
fn heals(world: &World, template: &Path, victims: &[PathBuf], commits: [&str; 2], args: &[&str]) {
    for victim in victims {
        let whole = std::fs::read(template.join(victim));
        let whole = whole.unwrap_or_else(|error| panic!("{}: {error}", victim.display()));
        for (what, left) in remains(&whole) {
            let what = format!("{}: {what}", victim.display());
            copy(template, &world.root);
            replace(&world.root.join(victim), &left);
            for commit in commits {
                world.remote.reset(commit);
                let ran = bounded(world.sync(&["--one-time", "--sync-timeout=20s"]).args(args));
                assert!(ran.ok(), "{what}: {}\n{}", ran.status, ran.stderr);
                assert_eq!(world.differences(commit), [""; 0], "{what}");
            }
        }
    }
}

/// Two commits of the remote, whose branch is at the first.
fn remote(world: &World) -> [String; 2] {
    let first = world.remote.commit(&files("1"));
    let second = world.remote.commit(&files("2"));
    world.remote.reset(&first);
    [first, second]
}

/// A root as git-sync makes it: a clone, and in it what it fetched later.
fn clone(world: &World, at: &Path) -> PathBuf {
    let url = format!("file://{}", world.remote.path.display());
    git(
        world.dir(),
        &[
            "clone",
            "-q",
            "--no-checkout",
            "--no-local",
            "--depth=1",
            "-b",
            "main",
            &url,
            at.to_str().unwrap(),
        ],
    );
    at.join(".git")
}

#[test]
fn a_loose_object_of_git_syncs_that_was_cut_is_fetched_again() {
    let world = World::new();
    let [first, second] = remote(&world);
    let template = world.dir().join("template");
    let repository = clone(&world, &template);
    // What git-sync fetched last, and did not come to publish.
    git(&repository, &["fetch", "-q", "origin", &second]);
    unpack(&repository);
    let names = [
        "HEAD:large",
        "HEAD:dir",
        "HEAD^{tree}",
        "HEAD",
        "FETCH_HEAD",
        "FETCH_HEAD:dir",
        "FETCH_HEAD:dir/file",
    ];
    let victims: Vec<_> = names.iter().map(|name| Path::new(".git").join(loose(&repository, name))).collect();
    heals(&world, &template, &victims, [&first, &second], GIT_SYNC);
}

#[test]
fn any_other_file_of_git_syncs_repository_that_was_cut_is_no_obstacle() {
    let world = World::new();
    let [first, second] = remote(&world);
    let repository = clone(&world, &world.root);
    let published = format!(".worktrees/{first}");
    git(&world.root, &["worktree", "add", "-q", "--detach", &published, "HEAD"]);
    std::os::unix::fs::symlink(&published, world.root.join("live")).unwrap();
    git(&repository, &["repack", "-q", "-a", "-d", "--write-midx"]);
    world.remote.git(&["commit-graph", "write", "--reachable"]); // git makes none where history is cut
    let graph = "objects/info/commit-graph";
    std::fs::copy(world.remote.path.join(graph), repository.join(graph)).unwrap();
    git(&repository, &["pack-refs", "--all"]);
    let packs = repository.join("objects/pack");
    let mut victims = vec![only(&packs, "pack"), only(&packs, "idx"), packs.join("multi-pack-index")];
    for name in [graph, "packed-refs", "HEAD", "config", "shallow", "logs/HEAD"] {
        victims.push(repository.join(name));
    }
    let admin = std::fs::read_dir(repository.join("worktrees")).unwrap().next().unwrap().unwrap().path();
    victims.extend(["index", "HEAD", "gitdir", "commondir"].map(|name| admin.join(name)));
    let victims: Vec<_> =
        victims.iter().map(|path| path.strip_prefix(&world.root).unwrap().to_owned()).collect();
    let template = world.dir().join("template");
    std::fs::rename(&world.root, &template).unwrap();
    heals(&world, &template, &victims, [&first, &second], GIT_SYNC);
}

#[test]
fn any_file_of_our_own_mirror_that_was_cut_is_no_obstacle() {
    let world = World::new();
    publish(&world, &files("-1"));
    publish(&world, &files("0")); // with a commit before it, so that history is cut
    let template = world.dir().join("template");
    std::fs::rename(&world.root, &template).unwrap();
    let [first, second] = remote(&world);
    let mirror = template.join("..treeswap/mirror");
    let fanned = std::fs::read_dir(mirror.join("objects")).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(fanned.filter(|name| name.len() == 2).count(), 0, "a mirror of ours has no loose objects");
    let packs = mirror.join("objects/pack");
    let mut victims = vec![only(&packs, "pack"), only(&packs, "idx")];
    victims
        .extend(["HEAD", "config", "shallow", "treeswap", "refs/treeswap/tip"].map(|name| mirror.join(name)));
    let victims: Vec<_> =
        victims.iter().map(|path| path.strip_prefix(&template).unwrap().to_owned()).collect();
    heals(&world, &template, &victims, [&first, &second], ONCE);
}

#[test]
fn a_damaged_object_of_a_repository_that_is_read_in_place_is_named_at_once() {
    let world = World::new();
    let commit = world.remote.commit(&files("1"));
    let whole = world.dir().join("whole");
    copy(&world.remote.path, &whole);
    for name in ["main:large", "main:dir", "main^{tree}", "main"] {
        let victim = loose(&whole, name);
        for (what, left) in remains(&std::fs::read(whole.join(&victim)).unwrap()) {
            copy(&whole, &world.remote.path);
            replace(&world.remote.path.join(&victim), &left);
            let ran = bounded(world.sync(&["--one-time", "--sync-timeout=20s"]).args(ONCE).env("PATH", ""));
            let file = victim.file_name().unwrap().to_str().unwrap();
            ran.expect_failure(&format!("{name}: {what}")).names(&[file, "damaged"]);
        }
    }
    copy(&whole, &world.remote.path);
    world.sync_once(ONCE).expect_ok("whole again");
    world.assert_published(&commit);
}
