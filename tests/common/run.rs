//! Runs programs in a clean environment, to their end or in the background.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The result of a program.
#[derive(Debug)]
pub struct Ran {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    pub fn ok(&self) -> bool {
        self.status.success()
    }

    /// Fails the test unless the program exited with 0.
    #[track_caller]
    pub fn expect_ok(self, what: &str) -> Self {
        assert!(self.ok(), "{what}: {}\n{}{}", self.status, self.stdout, self.stderr);
        self
    }

    /// Fails the test unless the program exited with a code from 1 to 100 and without a panic.
    #[track_caller]
    pub fn expect_failure(self, what: &str) -> Self {
        let code = self.status.code();
        assert!(
            matches!(code, Some(1..=100)) && !self.stderr.contains("panicked"),
            "{what}: should have failed in words, but: {}\n{}{}",
            self.status,
            self.stdout,
            self.stderr
        );
        self
    }

    /// The error line: the last line that begins with `treeswap: `.
    pub fn complaint(&self) -> &str {
        self.stderr.lines().rev().find(|line| line.starts_with("treeswap: ")).unwrap_or_default()
    }

    /// Fails the test unless the error line contains all of these words and there is a hint.
    #[track_caller]
    pub fn names(&self, words: &[&str]) {
        let line = self.complaint();
        for word in words {
            assert!(line.contains(word), "the complaint does not name `{word}`: {line:?}\n{}", self.stderr);
        }
        assert!(self.stderr.contains("\nhint: "), "no hint:\n{}", self.stderr);
    }
}

/// Returns a command with a clean environment: `PATH` and two variables of the build are kept; git's identity and
/// configuration are fixed.
pub fn clean(program: impl AsRef<std::ffi::OsStr>, home: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear();
    for kept in ["PATH", "LD_LIBRARY_PATH", "LLVM_PROFILE_FILE"] {
        if let Some(value) = std::env::var_os(kept) {
            command.env(kept, value);
        }
    }
    command
        .env("HOME", home)
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_AUTHOR_NAME", "Author")
        .env("GIT_AUTHOR_EMAIL", "author@example.com")
        .env("GIT_AUTHOR_DATE", "1700000000 +0000")
        .env("GIT_COMMITTER_NAME", "Committer")
        .env("GIT_COMMITTER_EMAIL", "committer@example.com")
        .env("GIT_COMMITTER_DATE", "1700000000 +0000")
        .stdin(Stdio::null());
    command
}

/// Writes an executable file in another process. If this process wrote it, a child that another test starts meanwhile
/// could inherit the descriptor open for writing, and executing the file would fail until that child's exec
/// (`ETXTBSY`).
pub fn executable(path: &Path, text: &str) {
    let draft = path.with_extension("draft");
    std::fs::write(&draft, text).unwrap();
    copy(&draft, path);
    std::fs::remove_file(draft).unwrap();
}

/// Copies a program in another process, for the same reason as [`executable`].
pub fn copy(from: &Path, to: &Path) {
    to_end(Command::new("install").args(["-m", "755"]).arg(from).arg(to)).expect_ok("install");
}

/// Runs the command and returns its result. Waits at most ten minutes for the end of the program and of everything that
/// holds its output open, so that a hanging test reports something.
#[track_caller]
pub fn to_end(command: &mut Command) -> Ran {
    within(Duration::from_secs(600), command)
}

/// The same with another time limit.
#[track_caller]
pub fn within(limit: Duration, command: &mut Command) -> Ran {
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = spawned.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let pid = rustix::process::Pid::from_child(&child);
    let (send, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || send.send(child.wait_with_output()));
    let Ok(out) = ended.recv_timeout(limit) else {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        panic!("{command:?} still runs, or what it started holds its output");
    };
    let out = out.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    Ran {
        status: out.status,
        stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
    }
}

/// Waits for a process that is about to end, at most two minutes, so that a hanging test reports something.
#[track_caller]
pub fn ended(child: &mut Child) -> ExitStatus {
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > end {
            let _ = child.kill();
            panic!("process {} still runs", child.id());
        }
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// A program in the background, which is killed when dropped. Its output goes to a file, so that it never blocks on it.
pub struct Background {
    pub child: Child,
    log: PathBuf,
}

impl Background {
    pub fn start(command: &mut Command, log: &Path) -> Self {
        let out = File::create(log).unwrap();
        let err = out.try_clone().unwrap();
        let child =
            command.stdout(out).stderr(err).spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { child, log: log.to_owned() }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its output so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Sends SIGTERM and waits for the end.
    pub fn terminate(&mut self) -> ExitStatus {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        self.ended()
    }

    /// Waits for its end.
    #[track_caller]
    pub fn ended(&mut self) -> ExitStatus {
        ended(&mut self.child)
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(15)..];
            eprintln!("--- what the process said last:\n{}\n---", last.join("\n"));
        }
    }
}
