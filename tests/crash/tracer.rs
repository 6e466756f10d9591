//! Runs a program and all its descendants under ptrace, counts the system calls that change something below one
//! directory, and kills the program at the N-th, lets the call fail, or acts otherwise.
//!
//! A seccomp filter stops the tracees at the calls of [`super::filter`] only. A stop is *before* the call takes effect:
//! a process killed there has not made it (`seccomp(2)`: a fatal signal skips the call). Threads, children and programs
//! they execute inherit the filter and are traced. Each tracer waits with `__WNOTHREAD`, so that several threads of the
//! test can trace programs at the same time.
#![allow(unsafe_code)] // ptrace, seccomp and waitpid have no safe API; every call is in this file, with its reason

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use libc::{c_int, c_void, pid_t};

use super::filter::{self, CALLS, Names};

/// How long a newly forked child may take until its first stop.
const NEWBORN: Duration = Duration::from_secs(5);

/// What happens at the N-th call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// Nothing: count and record.
    Count,
    /// SIGKILL to the whole tree before the call.
    Kill,
    /// The call is not made and returns this error.
    Fail(c_int),
    /// This call and every later one that could fail with this error are not made and return it.
    FailFromNowOn(c_int),
    /// SIGTERM to the program, not to its children; the call is made.
    Terminate,
    /// The directory's file system is shut down (`EXT4_IOC_SHUTDOWN`, the same number on xfs) with this flag: 1 keeps
    /// what is in the journal, 2 not even that. Then SIGKILL. This simulates a power cut.
    PowerCut(u32),
}

/// One recorded call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    pub call: &'static str,
    /// The paths it names, relative to the directory if they are below it.
    pub paths: Vec<PathBuf>,
    /// Which process made it, counted from 0 in order of appearance.
    pub process: usize,
}

impl std::fmt::Display for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let paths: Vec<String> = self.paths.iter().map(|path| path.display().to_string()).collect();
        write!(f, "{} {} (process {})", self.call, paths.join(" "), self.process)
    }
}

/// The result of a traced run.
#[derive(Debug)]
pub struct Traced {
    /// The calls below the directory, up to the N-th if the run ended there.
    pub seen: Vec<Seen>,
    /// True if the N-th call was reached, so that the act was carried out.
    pub acted: bool,
    /// The program's exit code; `None` after a signal.
    pub code: Option<i32>,
    pub stderr: String,
    /// True if the run was killed because it took too long.
    pub timed_out: bool,
}

/// The settings of a traced run.
pub struct Trace<'a> {
    /// The directory: calls that name something below it are counted.
    pub below: &'a Path,
    /// The number of the call to act on, from 1.
    pub at: usize,
    pub act: Act,
    /// Send SIGTERM to the program once nothing was counted for this long and all its threads sleep (for a program that
    /// runs until it is stopped).
    pub idle: Option<Duration>,
    pub limit: Duration,
}

impl<'a> Trace<'a> {
    pub fn count(below: &'a Path) -> Self {
        Self { below, at: usize::MAX, act: Act::Count, idle: None, limit: Duration::from_secs(60) }
    }

    pub fn at(below: &'a Path, at: usize, act: Act) -> Self {
        Self { at, act, ..Self::count(below) }
    }

    /// Runs the command. `scratch` is a directory for its output.
    pub fn run(&self, mut command: Command, scratch: &Path) -> io::Result<Traced> {
        let err = scratch.join("stderr");
        command.stdout(Stdio::null()).stderr(File::create(&err)?);
        let filter = filter::program();
        // SAFETY: between fork and exec only async-signal-safe system calls are made, on memory made before the fork.
        unsafe {
            command.pre_exec(move || {
                let program =
                    libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
                check(libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0))?;
                check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0).into())?;
                check(libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program))
            });
        }
        let child = command.spawn()?; // it stops at its execve, after the setup above
        let mut tree = Tree::new(self, child.id() as pid_t);
        let code = tree.follow()?;
        if !tree.unlisted.is_empty() {
            let numbers = tree.unlisted;
            return Err(io::Error::other(format!(
                "it made system calls that may change files unseen, by number: {numbers:?}; see tests/crash/filter.rs"
            )));
        }
        let read =
            |path: &Path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
        Ok(Traced { seen: tree.seen, acted: tree.acted, code, stderr: read(&err), timed_out: tree.timed_out })
    }
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The traced processes and threads.
struct Tree<'a> {
    trace: &'a Trace<'a>,
    first: pid_t,
    /// Known threads that have not ended.
    alive: BTreeSet<pid_t>,
    /// Process ids in order of appearance.
    processes: Vec<pid_t>,
    /// The process of each thread, as an index into `processes`.
    process_of: HashMap<pid_t, usize>,
    seen: Vec<Seen>,
    /// Numbers of calls at which the filter stops although they are not in its list.
    unlisted: BTreeSet<libc::c_long>,
    acted: bool,
    dying: bool,
    /// True once SIGTERM was sent.
    terminated: bool,
    timed_out: bool,
}

impl<'a> Tree<'a> {
    fn new(trace: &'a Trace<'a>, first: pid_t) -> Self {
        Self {
            trace,
            first,
            alive: BTreeSet::from([first]),
            processes: Vec::new(),
            process_of: HashMap::new(),
            seen: Vec::new(),
            unlisted: BTreeSet::new(),
            acted: false,
            dying: false,
            terminated: false,
            timed_out: false,
        }
    }

    /// Traces until all processes have ended. Returns the program's exit code.
    fn follow(&mut self) -> io::Result<Option<i32>> {
        let mut code = None;
        let mut begun = false;
        let start = Instant::now();
        let mut last = start;
        let waits = self.trace.idle.is_some();
        let mut emptied = None;
        loop {
            // A child forked at the moment of the kill may not have reached its first stop. It is not known before
            // that, and would sleep for ever if nobody waited for it. ECHILD means that there is none.
            let lingers = self.alive.is_empty();
            if lingers && (!self.dying || emptied.get_or_insert_with(Instant::now).elapsed() > NEWBORN) {
                break;
            }
            let mut status = 0;
            let flags = libc::__WALL | libc::__WNOTHREAD | if waits || lingers { libc::WNOHANG } else { 0 };
            // SAFETY: writes to our own int.
            let tid = unsafe { libc::waitpid(-1, &mut status, flags) };
            if start.elapsed() > self.trace.limit && !self.dying {
                self.timed_out = true;
                self.kill_all();
            }
            if tid == 0 {
                // Not before its first change, as it may be slow to start, and not while it waits for a processor.
                let done = !lingers && self.trace.idle.is_some_and(|idle| last.elapsed() > idle);
                let may_stop = done && !self.terminated && !self.seen.is_empty();
                if may_stop && self.alive.iter().all(|tid| sleeps(*tid)) {
                    self.terminated = true;
                    // SAFETY: a signal to a child that has not been reaped.
                    unsafe { libc::kill(self.first, libc::SIGTERM) };
                }
                std::thread::sleep(Duration::from_micros(300));
                continue;
            }
            if tid < 0 {
                match io::Error::last_os_error().raw_os_error() {
                    Some(libc::EINTR) => continue,
                    Some(libc::ECHILD) => break,
                    _ => return Err(io::Error::last_os_error()),
                }
            }
            if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
                self.alive.remove(&tid);
                if tid == self.first && libc::WIFEXITED(status) {
                    code = Some(libc::WEXITSTATUS(status));
                }
                continue;
            }
            let before = self.seen.len();
            self.alive.insert(tid);
            if self.dying {
                kill(tid);
            }
            let mut signal = 0;
            match (status >> 8) & 0xff {
                _ if status >> 16 == libc::PTRACE_EVENT_SECCOMP => self.at_call(tid)?,
                _ if status >> 16 != 0 => {} // fork, clone, exec: the new thread stops by itself
                libc::SIGTRAP if tid == self.first && !begun => {
                    begun = true;
                    let options = libc::PTRACE_O_TRACESECCOMP
                        | libc::PTRACE_O_TRACEFORK
                        | libc::PTRACE_O_TRACEVFORK
                        | libc::PTRACE_O_TRACECLONE
                        | libc::PTRACE_O_TRACEEXEC
                        | libc::PTRACE_O_EXITKILL;
                    // SAFETY: tid is a stopped tracee of this thread.
                    unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, tid, 0, options) };
                }
                // A new thread's first stop, at which it becomes known.
                libc::SIGSTOP if !self.process_of.contains_key(&tid) => {}
                other => signal = other,
            }
            self.process(tid);
            if self.seen.len() > before {
                last = Instant::now();
            }
            // SAFETY: tid is a stopped tracee of this thread, or died meanwhile, which is an error that is ignored.
            unsafe { libc::ptrace(libc::PTRACE_CONT, tid, 0, signal) };
        }
        Ok(code)
    }

    /// The index of the process that a thread belongs to.
    fn process(&mut self, tid: pid_t) -> usize {
        if let Some(process) = self.process_of.get(&tid) {
            return *process;
        }
        let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
        let tgid =
            status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok()).unwrap_or(tid);
        let index = self.processes.iter().position(|pid| *pid == tgid).unwrap_or_else(|| {
            self.processes.push(tgid);
            self.processes.len() - 1
        });
        self.process_of.insert(tid, index);
        index
    }

    fn kill_all(&mut self) {
        self.dying = true;
        for tid in &self.alive {
            kill(*tid);
        }
    }

    /// A thread is stopped at one of the filter's calls: records it, and acts if it is the N-th.
    fn at_call(&mut self, tid: pid_t) -> io::Result<()> {
        if self.dying {
            return Ok(());
        }
        let Some((number, arguments)) = call_of(tid) else { return Ok(()) };
        let Some(&(_, call, names)) = CALLS.iter().find(|(known, ..)| *known == number) else {
            self.unlisted.insert(number);
            return Ok(());
        };
        if call == "openat2" && !creates(tid, &arguments) {
            return Ok(());
        }
        let paths = named(tid, names, &arguments);
        let below: Vec<PathBuf> = paths
            .iter()
            .map(|path| path.strip_prefix(self.trace.below).map_or_else(|_| path.clone(), Path::to_owned))
            .collect();
        if below == paths {
            return Ok(());
        }
        let process = self.process(tid);
        self.seen.push(Seen { call, paths: below, process });
        let count = self.seen.len();
        let at = self.trace.at;
        match self.trace.act {
            Act::Count => {}
            Act::Kill if count == at => {
                self.acted = true;
                self.kill_all();
            }
            Act::PowerCut(flag) if count == at => {
                self.acted = true;
                shutdown(self.trace.below, flag)?;
                self.kill_all();
            }
            // A second signal would abort the program.
            Act::Terminate if count == at && !self.terminated => {
                self.acted = true;
                self.terminated = true;
                // SAFETY: a signal to a child that has not been reaped.
                unsafe { libc::kill(self.first, libc::SIGTERM) };
            }
            Act::Fail(errno) if count == at => {
                self.acted = true;
                refuse(tid, errno)?;
            }
            // Locks and removals do not fail for lack of space.
            Act::FailFromNowOn(errno)
                if count >= at && !matches!(call, "flock" | "fcntl" | "unlinkat" | "unlink" | "rmdir") =>
            {
                self.acted = true;
                refuse(tid, errno)?;
            }
            _ => {}
        }
        Ok(())
    }
}

/// Returns true if a thread is in an interruptible sleep (proc(5)): it is not running, runnable, waiting for a disk, or
/// stopped by the tracer.
fn sleeps(tid: pid_t) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S'))
}

fn kill(tid: pid_t) {
    // SAFETY: a signal to a child that has not been reaped.
    unsafe { libc::kill(tid, libc::SIGKILL) };
    // SAFETY: the same for a thread that is not its process's leader.
    unsafe { libc::syscall(libc::SYS_tkill, tid, libc::SIGKILL) };
}

/// The number and arguments of the call at which a thread is stopped.
fn call_of(tid: pid_t) -> Option<(libc::c_long, [u64; 6])> {
    let mut info = MaybeUninit::<libc::ptrace_syscall_info>::zeroed();
    let size = size_of::<libc::ptrace_syscall_info>();
    // SAFETY: the kernel writes at most `size` bytes into the structure.
    let got = unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, tid, size, info.as_mut_ptr()) };
    if got <= 0 {
        return None;
    }
    // SAFETY: zeroed before, and every bit pattern is a value of its integers.
    let info = unsafe { info.assume_init() };
    if info.op != libc::PTRACE_SYSCALL_INFO_SECCOMP {
        return None;
    }
    // SAFETY: `op` says which variant the kernel wrote.
    let call = unsafe { info.u.seccomp };
    Some((call.nr as libc::c_long, call.args))
}

/// Returns true if an `openat2` may create or truncate a file: its `struct open_how` begins with the flags.
fn creates(tid: pid_t, arguments: &[u64; 6]) -> bool {
    let bytes = memory(tid, arguments[2], 8);
    let flags = bytes.try_into().map_or(0, u64::from_ne_bytes);
    flags & (libc::O_CREAT | libc::O_TRUNC) as u64 != 0
}

/// The paths that a call names, absolute and without `.` and `..`.
fn named(tid: pid_t, names: Names, arguments: &[u64; 6]) -> Vec<PathBuf> {
    let descriptor = |n: usize| link(&format!("/proc/{tid}/fd/{}", arguments[n] as c_int));
    let resolved = |base: PathBuf, text: Vec<u8>| {
        let text = PathBuf::from(OsString::from_vec(text));
        let text = match text.strip_prefix("/proc/self") {
            Ok(rest) => Path::new("/proc").join(tid.to_string()).join(rest),
            Err(_) => text,
        };
        let mut parts = text.components();
        if text.starts_with("/proc") && text.components().nth(3).is_some_and(|part| part.as_os_str() == "fd")
        {
            let held: PathBuf = parts.by_ref().take(5).collect();
            return plain(&link(&held.to_string_lossy()).join(parts.as_path()));
        }
        plain(&base.join(text))
    };
    let path = |base: PathBuf, n: usize| resolved(base, string(tid, arguments[n]));
    let here = || link(&format!("/proc/{tid}/cwd"));
    let at = |n: usize| if arguments[n] as c_int == libc::AT_FDCWD { here() } else { descriptor(n) };
    match names {
        Names::Fd => vec![plain(&descriptor(0))],
        Names::Fd2 => vec![plain(&descriptor(2))],
        Names::Path => vec![path(here(), 0)],
        Names::At if arguments[1] == 0 => vec![plain(&descriptor(0))], // utimensat(fd, NULL): the descriptor itself
        Names::At => vec![path(at(0), 1)],
        Names::TwoAt => vec![path(at(0), 1), path(at(2), 3)],
        Names::TwoPaths => vec![path(here(), 0), path(here(), 1)],
        Names::TextPath => vec![path(here(), 1)],
        Names::TextAt => vec![path(at(1), 2)],
        Names::Socket => {
            let size = (arguments[2] as usize).min(size_of::<libc::sockaddr_un>());
            let name = socket_name(&memory(tid, arguments[1], size));
            name.into_iter().map(|name| resolved(here(), name)).collect()
        }
    }
}

/// The path in a socket's address; `None` if the socket is not a Unix socket or has no file.
fn socket_name(address: &[u8]) -> Option<Vec<u8>> {
    let (family, name) = address.split_first_chunk()?;
    let name = name.split(|byte| *byte == 0).next()?;
    (libc::sa_family_t::from_ne_bytes(*family) == libc::AF_UNIX as libc::sa_family_t && !name.is_empty())
        .then(|| name.to_vec())
}

fn link(path: &str) -> PathBuf {
    let target = std::fs::read_link(path).unwrap_or_default();
    match target.to_str().and_then(|text| text.strip_suffix(" (deleted)")) {
        Some(text) => text.into(),
        None => target,
    }
}

/// Removes `.` and `..` lexically.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    plain
}

/// Reads a NUL-terminated string from a tracee's memory.
fn string(tid: pid_t, address: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < libc::PATH_MAX as usize {
        // Do not read across a page boundary: the next page may not be mapped.
        let at = address + bytes.len() as u64;
        let chunk = memory(tid, at, (4096 - at as usize % 4096).min(256));
        if chunk.is_empty() {
            break;
        }
        if let Some(end) = chunk.iter().position(|byte| *byte == 0) {
            bytes.extend_from_slice(&chunk[..end]);
            break;
        }
        bytes.extend_from_slice(&chunk);
    }
    bytes
}

fn memory(tid: pid_t, address: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let ours = libc::iovec { iov_base: bytes.as_mut_ptr().cast::<c_void>(), iov_len: length };
    let theirs = libc::iovec { iov_base: address as *mut c_void, iov_len: length };
    // SAFETY: writes at most `length` bytes into a buffer of that size; only the kernel uses the other address.
    let got = unsafe { libc::process_vm_readv(tid, &raw const ours, 1, &raw const theirs, 1, 0) };
    bytes.truncate(usize::try_from(got).unwrap_or(0));
    bytes
}

/// Makes the call fail: a call number of -1 skips it, and the return value is set to the error.
#[cfg(target_arch = "x86_64")]
fn refuse(tid: pid_t, errno: c_int) -> io::Result<()> {
    let mut registers = MaybeUninit::<libc::user_regs_struct>::zeroed();
    // SAFETY: the kernel fills the structure of a stopped tracee.
    check(unsafe { libc::ptrace(libc::PTRACE_GETREGS, tid, 0, registers.as_mut_ptr()) })?;
    // SAFETY: zeroed before, and every bit pattern is a value of its integers.
    let mut registers = unsafe { registers.assume_init() };
    registers.orig_rax = u64::MAX;
    registers.rax = i64::from(-errno) as u64;
    // SAFETY: the kernel reads the structure.
    check(unsafe { libc::ptrace(libc::PTRACE_SETREGS, tid, 0, &raw const registers) })
}

#[cfg(not(target_arch = "x86_64"))]
fn refuse(_: pid_t, _: c_int) -> io::Result<()> {
    Err(io::Error::other("setting a call's result is written for x86_64 only"))
}

/// Shuts down the file system of the directory, or of the nearest parent that exists.
pub fn shutdown(directory: &Path, flag: u32) -> io::Result<()> {
    use std::os::fd::AsRawFd as _;
    const SHUTDOWN: libc::c_ulong = 0x8004_587d; // _IOR('X', 125, __u32)
    let mut at = directory;
    let dir = loop {
        match File::open(at) {
            Ok(dir) => break dir,
            Err(error) => at = at.parent().ok_or(error)?,
        }
    };
    // SAFETY: the kernel reads four bytes of our own memory.
    check(unsafe { libc::ioctl(dir.as_raw_fd(), SHUTDOWN, &raw const flag) }.into())
}
