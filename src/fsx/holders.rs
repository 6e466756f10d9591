//! Who holds an flock, as far as the kernel lets us see it: processes of our pid namespace, and of our user unless we
//! are root.
//!
//! A lock belongs to an open file, not to a process: `flock -s 9` in a shell takes it and is gone, and the shell holds
//! it. `/proc/locks` names who took it. So the open files of living processes are asked: `/proc/PID/fdinfo/N` has the
//! locks of each. Where that may not be read, the process that took the lock is named if it still lives.

use serde::{Deserialize, Serialize};

/// A living process that holds a lock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Holder {
    /// Its number in our pid namespace.
    pub pid: u32,
    /// The name it gave itself, as it gave it: escape it before it is shown.
    pub command: Option<String>,
}

/// The living processes that hold an flock on this inode, by number.
pub fn lock_holders(dev: u64, ino: u64) -> Vec<Holder> {
    let wanted = format!("{:02x}:{:02x}:{ino}", rustix::fs::major(dev), rustix::fs::minor(dev));
    let locks = fs_err::read_to_string("/proc/locks").unwrap_or_default();
    let takers: Vec<u32> = locks.lines().filter_map(|line| taker(line, &wanted)).collect();
    let Ok(processes) = fs_err::read_dir("/proc") else { return Vec::new() };
    let numbers = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut found: Vec<u32> =
        numbers.filter(|pid| has_locked(*pid, &wanted).unwrap_or_else(|| takers.contains(pid))).collect();
    found.sort_unstable();
    found.into_iter().filter_map(|pid| Some(Holder { pid, command: Some(command_of(pid)?) })).collect()
}

/// Who took the flock that a line of /proc/locks is about, if it is on that inode: `1: FLOCK ADVISORY READ 4711
/// 08:01:12345 0 EOF`, device in hexadecimal. Waiting ones (`->`) hold nothing.
fn taker(line: &str, wanted: &str) -> Option<u32> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, "FLOCK", _, _, pid, inode, ..] = fields[..] else { return None };
    (inode == wanted).then(|| pid.parse().ok()).flatten().filter(|pid| *pid > 0)
}

/// Whether an open file of the process has an flock on that inode; none: that may not be read.
fn has_locked(pid: u32, wanted: &str) -> Option<bool> {
    let files = fs_err::read_dir(format!("/proc/{pid}/fdinfo")).ok()?;
    let mut unread = false;
    for file in files {
        match file.and_then(|file| fs_err::read_to_string(file.path())) {
            Ok(text) if text.lines().any(|line| locks(line, wanted)) => return Some(true),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => unread = true,
            Ok(_) | Err(_) => {} // closed meanwhile
        }
    }
    (!unread).then_some(false)
}

fn locks(line: &str, wanted: &str) -> bool {
    // The process number there is that of the taker, and 0 where it is in another pid namespace.
    line.strip_prefix("lock:").is_some_and(|lock| {
        let fields: Vec<&str> = lock.split_whitespace().collect();
        matches!(fields[..], [_, "FLOCK", _, _, _, inode, ..] if inode == wanted)
    })
}

fn command_of(pid: u32) -> Option<String> {
    fs_err::read_to_string(format!("/proc/{pid}/comm")).ok().map(|name| name.trim_end().to_owned())
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
}
