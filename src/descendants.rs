//! Starts a program so that it can be killed together with all its descendants.
//!
//! Killing the process group is not enough: a process that calls setsid(2), as daemons and some shells' jobs do, has
//! left the group, and after its parent has ended nothing connects it to the program. So the program also gets an
//! environment variable with a unique value, which every descendant inherits and which is visible in
//! `/proc/PID/environ` (proc_pid_environ(5)). Killed are the group, all processes with that variable, and all
//! descendants of these. Only a process that drops its environment *and* whose ancestors have all ended escapes.
//!
//! The kernel may reuse the program's id once the program was waited for, so it is known here alone, and until then.
//!
//! Orphans keep being reaped by PID 1: this process is no subreaper.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open, pidfd_send_signal,
};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};

/// The environment variable that marks all descendants.
const VARIABLE: &str = "TREESWAP_PROCESS";

/// How many times `/proc` is scanned for processes that were started during the previous scan. Bounded, so that a
/// program that forks faster than its children are killed cannot hold us up.
const MAX_SCANS: usize = 20;

/// Time limit for all scans together: reading `/proc` can be slow.
const SCAN_TIMEOUT: Duration = Duration::from_secs(2);

/// A program and all its descendants. Dropping this kills all of them, unless it was [released](Self::release).
#[derive(Debug)]
pub(crate) struct Descendants {
    program: Child,
    /// The program's process id, for the scan, too. `None` once the program was waited for.
    leader: Arc<Mutex<Option<Pid>>>,
    /// The marker as it stands in the environment: `VARIABLE=value`. `None` if nothing is to be killed any more.
    mark: Option<String>,
}

impl Descendants {
    /// Starts the program with the marker in its environment.
    pub(crate) fn start(mut command: Command) -> std::io::Result<Self> {
        let value = RandomState::new().hash_one(std::process::id());
        let value = format!("{}-{value:016x}", std::process::id());
        let program = command.env(VARIABLE, &value).kill_on_drop(true).spawn()?;
        let leader = program.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        Ok(Self { program, leader: Arc::new(Mutex::new(leader)), mark: Some(format!("{VARIABLE}={value}")) })
    }

    /// The program's standard output, if it is a pipe and was not taken before.
    pub(crate) fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.program.stdout.take()
    }

    /// The program's standard error, if it is a pipe and was not taken before.
    pub(crate) fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.program.stderr.take()
    }

    /// Waits for the program. Its descendants may go on.
    pub(crate) async fn wait(&mut self) -> std::io::Result<ExitStatus> {
        let status = self.program.wait().await?;
        *lock(&self.leader) = None;
        Ok(status)
    }

    /// Sends a signal to the process group whose id is the program's. There is none if the caller did not put the
    /// program into a group of its own.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_group(&lock(&self.leader), signal);
    }

    /// To be called after the program was waited for: processes that it left running are not killed.
    pub(crate) fn release(mut self) {
        self.mark = None;
    }

    /// Kills the program and all its descendants, also if the program was waited for, and waits for the program.
    pub(crate) async fn end(mut self) {
        let Some(mark) = self.mark.clone() else { return };
        let leader = Arc::clone(&self.leader);
        let killed = tokio::task::spawn_blocking(move || kill(&leader, &mark));
        let _ = tokio::time::timeout(SCAN_TIMEOUT, killed).await;
        self.signal(Signal::KILL); // kills at least the group if `/proc` is not mounted or too slow
        *lock(&self.leader) = None; // a scan that has not ended goes on by the marker alone
        let _ = self.program.wait().await;
        self.mark = None;
    }
}

impl Drop for Descendants {
    /// Kills the group at once, and everything with the marker on a thread: reading `/proc` can be slow, and this may
    /// run on a thread of the runtime. Unlike [`Self::end`], it may miss what has left the group and the environment.
    fn drop(&mut self) {
        let Some(mark) = self.mark.take() else { return };
        self.signal(Signal::KILL);
        *lock(&self.leader) = None;
        let scan = move || kill(&Mutex::new(None), &mark);
        let _ = std::thread::Builder::new().name("kill".into()).spawn(scan); // fails if there is no thread left
    }
}

/// Kills the program and all its descendants. `leader` is the program's id, which the caller sets to `None` before it
/// waits for the program. Blocking.
fn kill(leader: &Mutex<Option<Pid>>, mark: &str) {
    for _ in 0..MAX_SCANS {
        let scanned = *lock(leader);
        // The scan is complete before the first process is killed: the kernel gives a dead process's children to
        // another parent, and they could no longer be found as descendants.
        let found = members(&processes(mark), scanned.map(|pid| pid.as_raw_nonzero().get()));
        let leader = lock(leader); // until the group is killed, the program is not waited for
        if *leader != scanned {
            continue; // the id that was scanned for may have been another process's
        }
        kill_group(&leader, Signal::KILL);
        drop(leader);
        if found.is_empty() {
            return;
        }
        found.iter().for_each(kill_one);
    }
}

/// The leader is locked, so that it is not waited for meanwhile.
fn kill_group(leader: &MutexGuard<'_, Option<Pid>>, signal: Signal) {
    if let Some(leader) = **leader {
        let _ = kill_process_group(leader, signal); // its members may all have ended
    }
}

fn lock(leader: &Mutex<Option<Pid>>) -> MutexGuard<'_, Option<Pid>> {
    leader.lock().unwrap_or_else(PoisonError::into_inner)
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
    let (parent, began) = parse_stat(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)?;
    let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let marked = environ.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes());
    Some(Process { pid, parent, began, marked })
}

/// Parent and start time from the line of proc_pid_stat(5); `None` for a zombie. The command name in parentheses may
/// hold any bytes, parentheses included.
fn parse_stat(line: &[u8]) -> Option<(i32, u64)> {
    let name_end = line.iter().rposition(|byte| *byte == b')')?;
    let mut fields = std::str::from_utf8(&line[name_end + 1..]).ok()?.split_ascii_whitespace();
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
/// time is compared. Where there are no pidfds (before Linux 5.3, or a seccomp filter), the id could be reused between
/// the comparison and the signal; the kernel gives out all other ids first.
fn kill_one(process: &Process) {
    let Some(pid) = Pid::from_raw(process.pid) else { return };
    let handle = pidfd_open(pid, PidfdFlags::empty());
    let now = std::fs::read(format!("/proc/{}/stat", process.pid)).ok();
    if now.as_deref().and_then(parse_stat).is_none_or(|(_, began)| began != process.began) {
        return;
    }
    let _ = match handle {
        Err(Errno::SRCH) => return, // it was another process that had ended
        Err(_) => kill_process(pid, Signal::KILL),
        Ok(handle) => pidfd_send_signal(&handle, Signal::KILL),
    }; // it may have ended, or be another user's
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use tokio::io::AsyncReadExt as _;

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
        let parsed = |name: &[u8], rest: &str| parse_stat(&[b"77 (", name, b") ", rest.as_bytes()].concat());
        assert_eq!(parsed(b"a) Z (b", &format!("S {rest}")), Some((1, 12345)));
        assert_eq!(parsed(b"\xff\xfe", &format!("S {rest}")), Some((1, 12345)));
        assert_eq!(parsed(b"sh", &format!("Z {rest}")), None);
        assert_eq!(parsed(b"sh", "S 1"), None);
        let own = read_process(std::process::id().cast_signed(), "X=y").unwrap();
        assert!(own.began > 0 && !own.marked);
    }

    #[tokio::test]
    async fn what_a_program_left_behind_is_killed_though_the_program_was_waited_for() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 >&- & echo $!"]).stdout(Stdio::piped()).process_group(0);
        let mut all = Descendants::start(command).unwrap();
        let mut text = String::new();
        all.take_stdout().unwrap().read_to_string(&mut text).await.unwrap();
        all.wait().await.unwrap();
        let sleeping = text.trim().parse().unwrap();
        assert_eq!(*lock(&all.leader), None, "the id may be another process's now");
        assert!(read_process(sleeping, all.mark.as_deref().unwrap()).unwrap().marked);
        all.end().await;
        assert_eq!(read_process(sleeping, ""), None);
    }
}
