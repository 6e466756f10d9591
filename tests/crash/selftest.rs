//! Tests of the tracer itself, on shell scripts whose every system call is known.

use std::path::Path;

use super::common::{World, eventually, run};
use super::tracer::{Act, Trace};

const SCRIPT: &str = "
    mkdir \"$1/a\"
    printf hello >\"$1/a/file\"
    ln -s a \"$1/link\"
    mv \"$1/a/file\" \"$1/a/moved\"
    rm \"$1/link\"
";

fn script(world: &World) -> std::process::Command {
    let mut command = run::clean("sh", world.dir());
    command.arg("-c").arg(SCRIPT).arg("sh").arg(&world.root);
    command
}

fn names_in(dir: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        names.push(entry.file_name().to_string_lossy().into_owned());
        let below = names_in(&entry.path());
        if !entry.file_type().unwrap().is_symlink() {
            names.extend(below.iter().map(|name| format!("{}/{name}", entry.file_name().to_string_lossy())));
        }
    }
    names.sort();
    names
}

#[test]
fn every_changing_call_of_every_child_is_seen_with_its_paths() {
    let world = World::new();
    std::fs::create_dir(&world.root).unwrap();
    let traced = Trace::count(&world.root).run(script(&world), world.dir()).unwrap();
    assert_eq!(traced.code, Some(0), "{traced:?}");
    let calls: Vec<String> = traced
        .seen
        .iter()
        .map(|seen| {
            format!(
                "{} {}",
                seen.call.trim_end_matches('2').trim_end_matches("at"),
                seen.paths.last().unwrap().display()
            )
        })
        .collect();
    assert_eq!(
        calls,
        ["mkdir a", "open a/file", "write a/file", "symlink link", "rename a/moved", "unlink link"]
    );
    let processes: std::collections::BTreeSet<usize> = traced.seen.iter().map(|seen| seen.process).collect();
    assert!(processes.len() >= 4, "mkdir, ln, mv and rm are processes of their own: {processes:?}");
}

#[test]
fn a_kill_comes_before_the_call_takes_effect() {
    let after: [&[&str]; 6] = [
        &[],
        &["a"],
        &["a", "a/file"],
        &["a", "a/file"],
        &["a", "a/file", "link"],
        &["a", "a/moved", "link"],
    ];
    for (index, expected) in after.iter().enumerate() {
        let world = World::new();
        std::fs::create_dir(&world.root).unwrap();
        let traced = Trace::at(&world.root, index + 1, Act::Kill).run(script(&world), world.dir()).unwrap();
        assert!(traced.acted && traced.code.is_none(), "{traced:?}");
        assert_eq!(names_in(&world.root), *expected, "killed before call {}", index + 1);
        let content = std::fs::read_to_string(world.root.join("a/file")).unwrap_or_default();
        assert_eq!(content, if index == 3 || index == 4 { "hello" } else { "" });
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn an_injected_error_reaches_the_program_and_the_call_is_not_made() {
    let world = World::new();
    std::fs::create_dir(&world.root).unwrap();
    let traced = Trace::at(&world.root, 1, Act::Fail(libc::ENOSPC)).run(script(&world), world.dir()).unwrap();
    assert!(traced.stderr.contains("No space left on device"), "{traced:?}");
    assert!(!world.root.join("a").exists());
}

#[test]
fn threads_and_grandchildren_die_with_the_tree() {
    let world = World::new();
    std::fs::create_dir(&world.root).unwrap();
    let mut command = run::clean("sh", world.dir());
    command
        .arg("-c")
        .arg("(sh -c 'sleep 60 & echo $! >\"$1/pid\"; mkdir \"$1/x\"; wait' sh \"$1\") & wait")
        .arg("sh")
        .arg(&world.root);
    let traced = Trace::at(&world.root, 3, Act::Kill).run(command, world.dir()).unwrap();
    assert_eq!(traced.seen.last().unwrap().call, "mkdir", "{traced:?}");
    let pid = std::fs::read_to_string(world.root.join("pid")).unwrap();
    // A killed process runs no further, but on a busy machine it may take a while until it is gone.
    eventually(30, "the grandchild, which sleeps for longer, is gone", || {
        let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        (state.is_empty() || state.contains(") Z ")).then_some(())
    });
}
