//! Which processes hold an flock on an inode, as far as the kernel shows it: processes in our pid namespace and, unless
//! we are root, of our user.
//!
//! An flock belongs to an open file description, not to a process: `flock -s 9` in a shell takes the lock and exits,
//! and the shell still holds it. `/proc/locks` only names the process that took the lock. Therefore the open files of
//! all live processes are inspected: `/proc/PID/fdinfo/N` lists the locks of each. If a process's files may not be
//! read, it is reported only if it took the lock itself.

use std::io;
use std::os::fd::AsFd;

use rustix::path::Arg;
use serde::{Deserialize, Serialize};

use super::{Lock, open_dir, try_lock, unlock};

/// A live process that holds a lock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Holder {
    /// Process id in our pid namespace.
    pub pid: u32,
    /// The command name (`/proc/PID/comm`), which the process chooses itself: escape it before printing.
    pub command: Option<String>,
}

/// Returns true if anybody holds an flock on the directory `name` in `at`, as a reader that pins a generation does.
/// Tries to take the exclusive lock and releases it at once, because the kernel does not tell of the locks of processes
/// in other pid namespaces; a reader that tries to pin at that moment tries again. `None` if the directory cannot be
/// opened or locked.
pub fn is_locked(at: impl AsFd, name: impl Arg) -> Option<bool> {
    let dir = match open_dir(at, name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(false),
        opened => opened.ok()?,
    };
    match try_lock(&dir).ok()? {
        Lock::Taken => {
            let _ = unlock(&dir); // cannot fail right after locking, and closing releases the lock anyway
            Some(false)
        }
        Lock::Contended => Some(true),
        Lock::Unsupported => None,
    }
}

/// Returns the live processes that hold an flock on this inode, sorted by pid.
pub fn lock_holders(dev: u64, ino: u64) -> Vec<Holder> {
    let wanted = inode_as_in_locks(dev, ino);
    let locks = fs_err::read_to_string("/proc/locks").unwrap_or_default();
    let takers: Vec<u32> = locks.lines().filter_map(|line| taker(line, &wanted)).collect();
    let Ok(processes) = fs_err::read_dir("/proc") else { return Vec::new() };
    let numbers = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut found: Vec<u32> =
        numbers.filter(|pid| has_locked(*pid, &wanted).unwrap_or_else(|| takers.contains(pid))).collect();
    found.sort_unstable();
    found.into_iter().filter_map(|pid| Some(Holder { pid, command: Some(command_of(pid)?) })).collect()
}

/// Returns true if a process in a visible pid namespace has an exclusive flock on that inode. It takes no lock to find
/// out, because that could keep the next writer out.
pub fn is_locked_exclusively(dev: u64, ino: u64) -> bool {
    let wanted = inode_as_in_locks(dev, ino);
    let locks = fs_err::read_to_string("/proc/locks").unwrap_or_default();
    locks.lines().any(|line| flock_on(line, &wanted).is_some_and(|(kind, _)| kind == "WRITE"))
}

/// How `/proc/locks` names an inode: device in hexadecimal.
fn inode_as_in_locks(dev: u64, ino: u64) -> String {
    format!("{:02x}:{:02x}:{ino}", rustix::fs::major(dev), rustix::fs::minor(dev))
}

/// Returns the kind (`READ`, `WRITE`) of an flock on the inode `wanted` and the pid of the process that took it, from
/// a line of `/proc/locks`: `1: FLOCK ADVISORY READ 4711 08:01:12345 0 EOF`. A waiting request (`->`) is not a lock.
fn flock_on<'l>(line: &'l str, wanted: &str) -> Option<(&'l str, &'l str)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, "FLOCK", _, kind, pid, inode, ..] = fields[..] else { return None };
    (inode == wanted).then_some((kind, pid))
}

/// The pid in such a line, if it is that of a visible process.
fn taker(line: &str, wanted: &str) -> Option<u32> {
    let (_, pid) = flock_on(line, wanted)?;
    pid.parse::<u32>().ok().filter(|pid| *pid > 0)
}

/// Returns whether an open file of the process holds an flock on that inode. `None` if its files may not be read.
fn has_locked(pid: u32, wanted: &str) -> Option<bool> {
    let files = fs_err::read_dir(format!("/proc/{pid}/fdinfo")).ok()?;
    let mut denied = false;
    for file in files {
        match file.and_then(|file| fs_err::read_to_string(file.path())) {
            Ok(text) if text.lines().any(|line| locks(line, wanted)) => return Some(true),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => denied = true,
            Ok(_) | Err(_) => {} // other locks, or the file was closed meanwhile
        }
    }
    (!denied).then_some(false)
}

fn locks(line: &str, wanted: &str) -> bool {
    // The pid in this line is that of the process that took the lock, or 0 if it is in another pid namespace.
    line.strip_prefix("lock:").is_some_and(|lock| flock_on(lock, wanted).is_some())
}

fn command_of(pid: u32) -> Option<String> {
    let name = fs_err::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takers_are_those_of_the_very_inode_and_not_who_waits() {
        let all = "1: FLOCK  ADVISORY  READ 4711 fd:101:42 0 EOF\n\
                   1: -> FLOCK  ADVISORY  WRITE 7 fd:101:42 0 EOF\n\
                   2: FLOCK  ADVISORY  READ 8 fd:101:43 0 EOF\n\
                   3: POSIX  ADVISORY  READ 9 fd:101:42 0 EOF\n\
                   4: FLOCK  ADVISORY  READ -1 fd:101:42 0 EOF\n";
        let takers: Vec<u32> = all.lines().filter_map(|line| taker(line, "fd:101:42")).collect();
        assert_eq!(takers, [4711]);
        let exclusive = "1: FLOCK  ADVISORY  WRITE 7 fd:101:42 0 EOF";
        assert_eq!(flock_on(exclusive, "fd:101:42"), Some(("WRITE", "7")));
        assert!(locks("lock:\t1: FLOCK  ADVISORY  READ 0 fd:101:42 0 EOF", "fd:101:42"));
        assert!(!locks("lock:\t1: FLOCK  ADVISORY  READ 0 fd:101:43 0 EOF", "fd:101:42"));
    }

    #[test]
    fn a_lock_is_found_with_the_process_that_has_the_file_open() {
        use std::os::unix::fs::MetadataExt as _;
        let dir = tempfile::tempdir().unwrap();
        let found = std::fs::metadata(dir.path()).unwrap();
        let holders = || lock_holders(found.dev(), found.ino());
        let fd = crate::fsx::open_dir_at_path(dir.path()).unwrap();
        assert_eq!(holders(), [], "open, but not locked");
        crate::fsx::try_lock_shared(&fd).unwrap();
        let pids: Vec<u32> = holders().into_iter().map(|holder| holder.pid).collect();
        assert_eq!(pids, [std::process::id()]);
    }

    #[test]
    fn a_process_whose_name_is_not_utf_8_has_a_name() {
        // A thread has such a file as well. A new process would have its parent's name for an instant.
        std::fs::write("/proc/thread-self/comm", b"sleep\xff").unwrap();
        let id = rustix::thread::gettid().as_raw_pid().unsigned_abs();
        assert_eq!(command_of(id).as_deref(), Some("sleep\u{fffd}"));
    }
}
