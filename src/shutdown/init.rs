//! What PID 1 of a container has to do: pass signals on, reap orphans, and end as its child ends.
//!
//! The kernel gives every orphan of a PID namespace to PID 1, and a process that is never waited for stays as a zombie
//! and takes a process id until the container ends (a killed `git upload-pack` leaves its `git pack-objects`).
//! Waiting for any child inside the real process would take the exit codes of its own children away from the code that
//! waits for them, so the real process runs as a child, as git-sync does it.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use tokio::signal::unix::{SignalKind, signal};

/// Signals that are passed on to the child.
const PASSED_ON: [SignalKind; 7] = [
    SignalKind::terminate(),
    SignalKind::interrupt(),
    SignalKind::hangup(),
    SignalKind::quit(),
    SignalKind::user_defined1(),
    SignalKind::user_defined2(),
    SignalKind::window_change(),
];

/// Where this process is PID 1: runs the same command line again as its child and returns the code to exit with.
/// Anywhere else: `None`, at once.
pub fn supervise() -> io::Result<Option<u8>> {
    if rustix::process::getpid() != Pid::INIT {
        return Ok(None);
    }
    // The listeners stand before the child does: a signal that comes in between is passed on, not lost.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let mut reaper = signal(SignalKind::child())?;
        let mut forwarders = tokio::task::JoinSet::new();
        let (send, mut signals) = tokio::sync::mpsc::channel(PASSED_ON.len());
        for kind in PASSED_ON {
            let mut arrivals = signal(kind)?;
            let send = send.clone();
            forwarders.spawn(async move {
                while arrivals.recv().await.is_some() && send.send(kind).await.is_ok() {}
            });
        }
        let mut arguments = std::env::args_os();
        let name = arguments.next().unwrap_or_default();
        // By its path, so that `ps` shows the program's name and not `exe`.
        let program = std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
        let child = Command::new(program).arg0(name).args(arguments).spawn()?;
        let child = pid(&child)?;
        loop {
            tokio::select! {
                _ = reaper.recv() => if let Some(code) = reap(child)? { return Ok(Some(code)) },
                Some(kind) = signals.recv() => forward(child, kind),
            }
        }
    })
}

/// Where this process is PID 1: ends it at the first signal that would end any other process. To PID 1 the kernel
/// delivers none that it has no handler for, so that a wait could not be ended but by SIGKILL. What the process becomes
/// by exec(2) starts without these handlers.
pub fn heed_signals() -> io::Result<()> {
    if rustix::process::getpid() != Pid::INIT {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let ending = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()];
    let inside = runtime.enter();
    // The listeners stand before this returns: a signal that comes at once is not lost.
    let listeners: Vec<_> =
        ending.into_iter().map(|kind| Ok((kind, signal(kind)?))).collect::<io::Result<_>>()?;
    drop(inside);
    let wait = move || {
        runtime.block_on(async {
            let mut arrivals = tokio::task::JoinSet::new();
            for (kind, mut arrived) in listeners {
                arrivals.spawn(async move { arrived.recv().await.map(|()| kind) });
            }
            if let Some(Ok(Some(kind))) = arrivals.join_next().await {
                std::process::exit(128 + kind.as_raw_value());
            }
        });
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(wait)?;
    Ok(())
}

fn pid(child: &Child) -> io::Result<Pid> {
    i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::Error::other("the kernel returned no process id"))
}

fn forward(child: Pid, kind: SignalKind) {
    if let Some(signal) = Signal::from_named_raw(kind.as_raw_value()) {
        let _ = rustix::process::kill_process(child, signal); // it may have ended; the reaper will say so
    }
}

/// Waits for everybody who has ended; the exit code once the child is among them. One SIGCHLD may stand for many.
fn reap(child: Pid) -> io::Result<Option<u8>> {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == child => return Ok(Some(code(status))),
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) | Err(rustix::io::Errno::CHILD) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// As a shell would say it: the exit code, or 128 and the signal.
fn code(status: WaitStatus) -> u8 {
    let status = process_status(status);
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

fn process_status(status: WaitStatus) -> std::process::ExitStatus {
    std::process::ExitStatus::from_raw(status.as_raw())
}
