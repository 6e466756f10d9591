//! The init process of a container (PID 1): forwards signals to its one child, reaps orphans, and exits as the child
//! does.
//!
//! The kernel makes PID 1 the parent of every orphan of the PID namespace, and a process that nobody waits for stays a
//! zombie that takes up a process id until the container ends (a killed `git upload-pack` leaves `git pack-objects`).
//! A wait(2) for any child in the real process would steal exit codes from the code that waits for its own children, so
//! the real process runs as a child of the init process. git-sync does the same.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use tokio::signal::unix::{SignalKind, signal};

use super::SYNC_SIGNALS;

/// Signals that are forwarded to the child: those that end it, and all that can ask it for a sync.
fn forwarded() -> Vec<SignalKind> {
    let sync = SYNC_SIGNALS.into_iter().map(|(_, number)| SignalKind::from_raw(number));
    [SignalKind::terminate(), SignalKind::interrupt()].into_iter().chain(sync).collect()
}

/// If this process is PID 1, runs the same command line again as a child and returns the code to exit with. Otherwise
/// returns `None` at once.
pub fn supervise() -> io::Result<Option<u8>> {
    if rustix::process::getpid() != Pid::INIT {
        return Ok(None);
    }
    // Handlers are installed before the child is started, so that a signal in between is forwarded and not lost.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let mut reaper = signal(SignalKind::child())?;
        let mut forwarders = tokio::task::JoinSet::new();
        let forwarded = forwarded();
        let (send, mut signals) = tokio::sync::mpsc::channel(forwarded.len());
        for kind in forwarded {
            let mut arrivals = signal(kind)?;
            let send = send.clone();
            forwarders.spawn(async move {
                while arrivals.recv().await.is_some() && send.send(kind).await.is_ok() {}
            });
        }
        let mut arguments = std::env::args_os();
        let name = arguments.next().unwrap_or_default();
        // Executed by its path, so that `ps` shows the program's name and not `exe`.
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

/// If this process is PID 1, installs handlers that exit at the first signal that would end any other process. The
/// kernel does not deliver a signal to PID 1 that has no handler, so that otherwise only SIGKILL could end a process
/// that waits. exec(2) resets the handlers.
pub fn install_signal_handlers() -> io::Result<()> {
    if rustix::process::getpid() != Pid::INIT {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let ending = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()];
    let inside = runtime.enter();
    // Handlers are installed before this returns, so that a signal right after it is not lost.
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
        let _ = rustix::process::kill_process(child, signal); // the child may have ended; `reap` finds that out
    }
}

/// Reaps all children that have ended, as one SIGCHLD may stand for many. Returns the exit code once `child` has ended.
fn reap(child: Pid) -> io::Result<Option<u8>> {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == child => return Ok(Some(exit_code(status))),
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) | Err(rustix::io::Errno::CHILD) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// A shell's exit code for a child: its own, or 128 plus the number of the signal that ended it.
fn exit_code(status: WaitStatus) -> u8 {
    let status = std::process::ExitStatus::from_raw(status.as_raw());
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `rustix` has to know a signal to send it, too.
    #[test]
    fn every_signal_that_can_ask_for_a_sync_is_forwarded() {
        let forwarded: Vec<i32> = forwarded().iter().map(SignalKind::as_raw_value).collect();
        for (name, number) in SYNC_SIGNALS {
            assert!(forwarded.contains(&number) && Signal::from_named_raw(number).is_some(), "SIG{name}");
        }
    }
}
