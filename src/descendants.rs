//! Starts a program so that it can be killed together with all its descendants.
//!
//! Killing the process group is not enough: a process that calls setsid(2), as daemons and some shells' jobs do, has
//! left the group, and after its parent has ended nothing connects it to the program. So the program also gets an
//! environment variable with a unique value, which every descendant inherits and which is visible in
//! `/proc/PID/environ` (proc_pid_environ(5)). Killed are the group, all processes with that variable, and all
//! descendants of these. Only a process that drops its environment *and* whose ancestors have all ended escapes.
//!
//! Orphans keep being reaped by PID 1: this process is no subreaper.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};
use tokio::process::{Child, Command};

/// The environment variable that marks all descendants.
const VARIABLE: &str = "TREESWAP_PROCESS";

/// How many times `/proc` is scanned for processes that were started during the previous scan. Bounded, so that a
/// program that forks faster than its children are killed cannot hold us up.
const MAX_SCANS: usize = 20;

/// Time limit for all scans together: reading `/proc` can be slow.
const SCAN_TIMEOUT: Duration = Duration::from_secs(2);

/// A program and all its descendants. Dropping this before the program's [`Child`] kills all of them.
#[derive(Debug)]
pub(crate) struct Descendants {
    /// The program's process id. `None` once the program was waited for, as the kernel may then reuse the id.
    leader: Option<Pid>,
    /// The marker as it stands in the environment: `VARIABLE=value`.
    mark: String,
}

impl Descendants {
    /// Starts the program with the marker in its environment.
    pub(crate) fn start(mut command: Command) -> std::io::Result<(Child, Self)> {
        let value = RandomState::new().hash_one(std::process::id());
        let value = format!("{}-{value:016x}", std::process::id());
        let child = command.env(VARIABLE, &value).kill_on_drop(true).spawn()?;
        let leader = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        Ok((child, Self { leader, mark: format!("{VARIABLE}={value}") }))
    }

    /// Sends a signal to the process group whose id is the program's. There is none if the caller did not put the
    /// program into a group of its own.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(leader) = self.leader {
            let _ = kill_process_group(leader, signal); // it may have ended by itself
        }
    }

    /// To be called after the program was waited for: processes that it left running are not killed.
    pub(crate) fn release(mut self) {
        self.leader = None;
    }

    /// Kills the program and all its descendants, and waits for the program.
    pub(crate) async fn end(mut self, child: &mut Child) {
        let leader = self.leader;
        let mark = self.mark.clone();
        let killed = tokio::task::spawn_blocking(move || kill(leader, &mark));
        let _ = tokio::time::timeout(SCAN_TIMEOUT, killed).await;
        self.signal(Signal::KILL); // kills at least the group if `/proc` is not mounted or too slow
        let _ = child.wait().await;
        self.leader = None;
    }
}

impl Drop for Descendants {
    fn drop(&mut self) {
        if self.leader.is_some() {
            kill(self.leader, &self.mark);
        }
    }
}

/// Kills the program and all its descendants. The program must not have been waited for. Blocking.
fn kill(leader: Option<Pid>, mark: &str) {
    for _ in 0..MAX_SCANS {
        // The scan is complete before the first process is killed: the kernel gives a dead process's children to
        // another parent, and they could no longer be found as descendants.
        let found = members(&processes(mark), leader.map(|pid| pid.as_raw_nonzero().get()));
        if let Some(leader) = leader {
            let _ = kill_process_group(leader, Signal::KILL); // its members may all have ended
        }
        if found.is_empty() {
            return;
        }
        found.iter().for_each(kill_one);
    }
}

/// A running process, as read from `/proc`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Process {
    pid: i32,
    parent: i32,
    /// Start time in clock ticks since boot. Together, process id and start time identify a process even if the id is
    /// reused.
    began: u64,
    /// Whether the marker is in its environment.
    marked: bool,
}

/// All running processes. Those that cannot be read are skipped: they have just ended.
fn processes(mark: &str) -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| read_process(pid, mark)).collect()
}

/// Reads one process; `None` if it has ended. The environment of another user's process cannot be read, and counts as
/// not marked.
fn read_process(pid: i32, mark: &str) -> Option<Process> {
    let (parent, began) = parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
    let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let marked = environ.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes());
    Some(Process { pid, parent, began, marked })
}

/// Parent and start time from the line of proc_pid_stat(5); `None` for a zombie. The command name in parentheses may
/// hold any character, parentheses included.
fn parse_stat(line: &str) -> Option<(i32, u64)> {
    let mut fields = line.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let began = fields.nth(17)?.parse().ok()?;
    (!matches!(state, "Z" | "X" | "x")).then_some((parent, began))
}

/// Selects the program, all marked processes, and all descendants of these. Pure.
fn members(all: &[Process], leader: Option<i32>) -> Vec<Process> {
    let mut children: HashMap<i32, Vec<&Process>> = HashMap::new();
    for process in all {
        children.entry(process.parent).or_default().push(process);
    }
    let mut queue: Vec<_> =
        all.iter().filter(|process| process.marked || Some(process.pid) == leader).collect();
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    while let Some(process) = queue.pop() {
        if seen.insert(process.pid) {
            found.push(*process);
            queue.extend(children.get(&process.pid).into_iter().flatten());
        }
    }
    found
}

/// Kills a process unless it has ended and its id is another process's now. The pidfd pins the process before its start
/// time is compared.
fn kill_one(process: &Process) {
    let Some(pid) = Pid::from_raw(process.pid) else { return };
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    let now = std::fs::read_to_string(format!("/proc/{}/stat", process.pid)).ok();
    if now.as_deref().and_then(parse_stat).is_some_and(|(_, began)| began == process.began) {
        let _ = pidfd_send_signal(&handle, Signal::KILL); // it may have ended, or be another user's
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32, marked: bool) -> Process {
        Process { pid, parent, began: 1, marked }
    }

    #[test]
    fn members_are_the_program_what_has_the_variable_and_their_children() {
        let all = [
            process(1, 0, false),
            process(7, 1, false),   // we
            process(10, 7, true),   // the program
            process(11, 10, false), // dropped its environment
            process(12, 11, false),
            process(20, 1, true), // an orphan
            process(21, 20, false),
            process(30, 7, false), // another of our children
            process(31, 30, false),
            process(40, 1, false),
        ];
        let pids = |leader| {
            let mut pids: Vec<_> = members(&all, leader).iter().map(|process| process.pid).collect();
            pids.sort_unstable();
            pids
        };
        assert_eq!(pids(Some(10)), [10, 11, 12, 20, 21]);
        assert_eq!(pids(None), [10, 11, 12, 20, 21]);
        assert_eq!(members(&all[..2], None), []);
        let circle = [process(10, 11, true), process(11, 10, false)];
        assert_eq!(members(&circle, None).len(), 2);
    }

    #[test]
    fn a_line_of_stat_is_read_whatever_the_name_is() {
        let rest = "1 2 3 0 -1 4194560 90 0 0 0 0 0 0 0 20 0 1 0 12345 9 9";
        assert_eq!(parse_stat(&format!("77 (a) Z (b) S {rest}")), Some((1, 12345)));
        assert_eq!(parse_stat(&format!("77 (sh) Z {rest}")), None);
        assert_eq!(parse_stat("77 (sh) S 1"), None);
        let own = read_process(std::process::id().cast_signed(), "X=y").unwrap();
        assert!(own.began > 0 && !own.marked);
    }
}
