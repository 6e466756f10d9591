//! A program that we start, and all that it starts: killed together.
//!
//! A process group is not enough: what calls setsid(2), as daemons and some shells' jobs do, has left it, and once its
//! parent has ended nothing names the program that started it. So the program also gets a variable with a value of its
//! own, which every descendant inherits, and which `/proc/PID/environ` shows (proc_pid_environ(5)). What is killed is
//! the group, whatever has the variable, and all children of these. Only a process that drops its environment *and*
//! whose parents have all ended can hide from that.
//!
//! Nothing here changes who the parent of an orphan is: reaping stays with PID 1.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};
use tokio::process::{Child, Command};

/// The variable.
const VARIABLE: &str = "TREESWAP_PROCESS";

/// How often is looked again for what was started meanwhile: a program that starts others faster than they are killed
/// must not hold us.
const PASSES: usize = 20;

/// How long looking may take altogether: `/proc` is not always quick.
const PATIENCE: Duration = Duration::from_secs(2);

/// A program and everything below it. Dropped before the program's [`Child`] is, everything is killed.
#[derive(Debug)]
pub(crate) struct Descendants {
    /// The program itself, until it was waited for: then the number may be another process's.
    leader: Option<Pid>,
    /// `VARIABLE=value`.
    mark: String,
}

impl Descendants {
    /// Starts the program.
    pub(crate) fn start(mut command: Command) -> std::io::Result<(Child, Self)> {
        let value = RandomState::new().hash_one(std::process::id());
        let value = format!("{}-{value:016x}", std::process::id());
        let child = command.env(VARIABLE, &value).kill_on_drop(true).spawn()?;
        let leader = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        Ok((child, Self { leader, mark: format!("{VARIABLE}={value}") }))
    }

    /// Sends a signal to the group, if the program was given one of its own.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(leader) = self.leader {
            let _ = kill_process_group(leader, signal); // it may have ended by itself
        }
    }

    /// The program was waited for: what it left running is meant to run on.
    pub(crate) fn release(mut self) {
        self.leader = None;
    }

    /// Kills everything, and waits for the program.
    pub(crate) async fn end(mut self, child: &mut Child) {
        let leader = self.leader;
        let mark = self.mark.clone();
        let killed = tokio::task::spawn_blocking(move || kill(leader, &mark));
        let _ = tokio::time::timeout(PATIENCE, killed).await;
        self.signal(Signal::KILL); // at least these, where `/proc` shows nothing
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

/// Kills the program and all below it. The program must not have been waited for. Blocking.
fn kill(leader: Option<Pid>, mark: &str) {
    for _ in 0..PASSES {
        // All of them are looked for before the first is killed: children of what has ended are another's.
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

/// A process that has not ended, as `/proc` shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Process {
    pid: i32,
    parent: i32,
    /// In clock ticks since the boot: with the number it names one process for ever.
    began: u64,
    /// Whether it has our variable.
    marked: bool,
}

/// All that run. What cannot be looked at is another user's, or has just ended.
fn processes(mark: &str) -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| look(pid, mark)).collect()
}

fn look(pid: i32, mark: &str) -> Option<Process> {
    let (parent, began) = stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
    let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let marked = environ.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes());
    Some(Process { pid, parent, began, marked })
}

/// Parent and time of beginning from a line of proc_pid_stat(5); none of what has ended. The name in parentheses may
/// hold anything, parentheses, too.
fn stat(line: &str) -> Option<(i32, u64)> {
    let mut fields = line.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let began = fields.nth(17)?.parse().ok()?;
    (!matches!(state, "Z" | "X" | "x")).then_some((parent, began))
}

/// Which of them are below the program: it, whatever has the variable, and all children of these. Pure.
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

/// Kills it, and never one that has its number since.
fn kill_one(process: &Process) {
    let Some(pid) = Pid::from_raw(process.pid) else { return };
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    let now = std::fs::read_to_string(format!("/proc/{}/stat", process.pid)).ok();
    if now.as_deref().and_then(stat).is_some_and(|(_, began)| began == process.began) {
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
        assert_eq!(stat(&format!("77 (a) Z (b) S {rest}")), Some((1, 12345)));
        assert_eq!(stat(&format!("77 (sh) Z {rest}")), None);
        assert_eq!(stat("77 (sh) S 1"), None);
        let own = look(std::process::id().cast_signed(), "X=y").unwrap();
        assert!(own.began > 0 && !own.marked);
    }
}
