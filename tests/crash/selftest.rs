//! Tests of the tracer itself, on programs whose every system call is known.
#![allow(unsafe_code)] // system calls by their numbers

use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use libc::{c_char, c_long};

use super::common::{World, eventually, run};
use super::filter::{CALLS, FICLONE, Names};
use super::tracer::{Act, Trace};

const SCRIPT: &str = "
    mkdir \"$1/a\"
    printf hello >\"$1/a/file\"
    ln -s a \"$1/link\"
    mv \"$1/a/file\" \"$1/a/moved\"
    rm \"$1/link\"
";

fn script(world: &World) -> Command {
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

/// The variable that makes one of the functions `child_…` make its calls, in the directory that it names.
const CALLS_IN: &str = "TREESWAP_TEST_CALLS_IN";

/// This binary, to run nothing but the function `name` of this file.
fn child(name: &str, world: &World) -> Command {
    std::fs::create_dir(&world.root).unwrap();
    std::fs::write(world.root.join("held"), "").unwrap();
    let mut command = run::clean(std::env::current_exe().unwrap(), world.dir());
    command.args(["--exact", &format!("selftest::{name}")]).env(CALLS_IN, &world.root);
    command
}

#[test]
fn the_tracer_stops_at_every_call_of_the_list_and_finds_its_paths() {
    let world = World::new();
    let command = child("child_makes_every_call_of_the_list", &world);
    let traced = Trace::count(&world.root).run(command, world.dir()).unwrap();
    assert_eq!(traced.code, Some(0), "{traced:?}");
    let seen: Vec<_> = traced.seen.into_iter().map(|seen| (seen.call, seen.paths)).collect();
    let paths = |names| match names {
        Names::Fd | Names::Fd2 => vec![PathBuf::from("held")],
        Names::TwoAt | Names::TwoPaths => vec![PathBuf::from("one"), PathBuf::from("other")],
        _ => vec![PathBuf::from("one")],
    };
    let expected: Vec<_> = CALLS.iter().map(|(_, call, names)| (*call, paths(*names))).collect();
    assert_eq!(seen, expected);
}

/// A C library may replace a call of the list by one that is newer, and then nothing would stop there any more.
#[test]
fn a_program_that_makes_a_call_that_cannot_be_traced_fails_the_run() {
    let world = World::new();
    let command = child("child_makes_calls_that_cannot_be_traced", &world);
    let error = Trace::count(&world.root).run(command, world.dir()).unwrap_err().to_string();
    assert!(error.contains(&format!("{{{}, {NEW}}}", libc::SYS_io_submit)), "{error}");
}

/// A call that no kernel has yet.
const NEW: c_long = 999;

#[test]
fn child_makes_calls_that_cannot_be_traced() {
    if std::env::var_os(CALLS_IN).is_some() {
        // SAFETY: both fail: there is no context 0, and no kernel has the other call.
        unsafe {
            libc::syscall(libc::SYS_io_submit, 0_usize, 0_usize, 0_usize);
            libc::syscall(NEW);
        }
    }
}

#[test]
fn child_makes_every_call_of_the_list() {
    if let Some(dir) = std::env::var_os(CALLS_IN) {
        make_every_call(Path::new(&dir));
    }
}

/// Makes every call of the list, on the files that the test expects. Whether it succeeds does not matter: the tracer
/// stops before that.
fn make_every_call(dir: &Path) {
    let dir_fd = File::open(dir).unwrap();
    let held = File::open(dir.join("held")).unwrap();
    let text = |path: PathBuf| CString::new(path.as_os_str().as_bytes()).unwrap();
    let (one, other) = (text(dir.join("one")), text(dir.join("other")));
    let how = [libc::O_CREAT as u64, 0, 0]; // struct open_how
    let address = socket_address(&one);
    let at = c_long::from(dir_fd.as_raw_fd());
    let fd = c_long::from(held.as_raw_fd());
    let (one, other) = (one.as_ptr() as c_long, other.as_ptr() as c_long);
    // As a mode it lets the directory be removed afterwards.
    let mode = 0o700;
    for &(number, name, names) in CALLS {
        let a: [c_long; 4] = match (name, names) {
            ("ioctl", _) => [fd, c_long::from(FICLONE), -1, 0],
            ("fcntl", _) => [fd, libc::F_SETLK.into(), 0, 0],
            ("open", _) => [one, libc::O_CREAT.into(), mode, 0],
            ("openat", _) => [at, one, libc::O_CREAT.into(), mode],
            ("openat2", _) => [at, one, how.as_ptr() as c_long, size_of_val(&how) as c_long],
            (_, Names::Fd) => [fd, 0, 0, 0],
            (_, Names::Fd2) => [-1, 0, fd, 0],
            (_, Names::Path) => [one, mode, 0, 0],
            (_, Names::At) => [at, one, mode, 0],
            (_, Names::TwoAt) => [at, one, at, other],
            (_, Names::TwoPaths) => [one, other, 0, 0],
            (_, Names::TextPath) => [other, one, 0, 0],
            (_, Names::TextAt) => [other, at, one, 0],
            (_, Names::Socket) => [fd, &raw const address as c_long, size_of_val(&address) as c_long, 0],
        };
        // SAFETY: what the pointers lead to outlives the loop, and no call writes to it.
        unsafe { libc::syscall(number, a[0], a[1], a[2], a[3], 0_usize, 0_usize) };
    }
}

fn socket_address(path: &CString) -> libc::sockaddr_un {
    let sun_family = libc::AF_UNIX as libc::sa_family_t;
    let mut address = libc::sockaddr_un { sun_family, sun_path: [0; 108] };
    for (to, byte) in address.sun_path.iter_mut().zip(path.as_bytes()) {
        *to = *byte as c_char;
    }
    address
}
