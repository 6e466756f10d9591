//! `treeswap watch`: runs a command at every swap, with the new generation pinned.
//!
//! One command at a time; what is swapped while it runs is one change when it ends, and the newest generation wins. The
//! pin of the generation that the command ran for last is kept until the next run has ended: whatever still reads the
//! old one, while the command makes it move on, can finish.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Pid, Signal};
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::sync::watch::Receiver;

use super::pin;
use crate::marker::set::{Gap, Stamps};
use crate::pin::{Error, Options, Pin};
use crate::watch::{self, Change, Watcher, set};

/// Pause before trying again to pin what could not be pinned.
const PAUSE: Duration = Duration::from_secs(1);

/// Arguments of `treeswap watch`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    treeswap watch /config -- kill -HUP 1\n  \
    treeswap watch --skip-first /config -- curl -fsS -X POST http://localhost:9090/-/reload\n  \
    treeswap watch --set /maps -- ./load {}\n\n\
    The command gets the new generation's own directory in TREESWAP_DIR and wherever {} stands in its arguments, \
    TREESWAP_REVISION and TREESWAP_REVISIONS as `treeswap pin` sets them, and runs for the generation that is current at the start, too. If it fails, that is reported, and the next swap runs it \
    again. SIGTERM is passed on to it, and ends the watch once it has ended; a second one kills it.")]
pub struct Args {
    /// The root; or a link that names a generation, as in git-sync's layout
    #[arg(value_name = "PATH")]
    pub path: PathBuf,

    /// PATH is the link itself, even if nothing is there yet
    #[arg(long)]
    pub link: bool,

    /// Don't run the command for the generation that is current at the start
    #[arg(long)]
    pub skip_first: bool,

    /// PATH is a projected volume of several ConfigMaps: run the command only for complete sets of them
    ///
    /// A set is complete when each map that the marker names (in .treeswap) has the stamp that the marker has for it;
    /// what is swapped between two complete sets is passed over. The value says where a map's stamp is, {name} standing
    /// for the map's name: what the writer's --stamp-key says.
    #[arg(long, value_name = "STAMP", num_args = 0..=1, require_equals = true, default_missing_value = ".{name}.stamp")]
    pub set: Option<Stamps>,

    /// Look at the link so often, also without an event
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = crate::config::duration)]
    pub poll: Duration,

    /// End with the command's exit code when it fails
    #[arg(long)]
    pub exit_on_failure: bool,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Watches until a signal ends it.
///
/// # Errors
/// When PATH can never be pinned, or the process is short of threads or descriptors.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the runtime")?.block_on(watch(&args))
}

async fn watch(args: &Args) -> anyhow::Result<ExitCode> {
    let mut link = pin::link_of(&args.path, args.link);
    let mut stop = EndSignals::new()?;
    let mut swaps = swaps_of(&link, args.poll)?;
    let mut served: Option<Pin> = None;
    let mut skip = args.skip_first;
    let mut waits = false;
    let mut lacked = Vec::new();
    loop {
        let mut again = false;
        let newest = Pin::take_link(&link, &Options::default());
        let lacks = newest.as_ref().ok().and_then(|newest| lack(args, &link, newest));
        match (newest, lacks) {
            (Ok(newest), _) if served.as_ref().is_some_and(|served| served.same_generation(&newest)) => {}
            (Ok(newest), Some(lacks)) => {
                if !lacks.is_empty() && lacks != lacked {
                    say!("treeswap: no complete set is in {}; waiting for one", newest.location().display());
                    lacks.iter().for_each(|line| say!("treeswap: {line}"));
                    lacked = lacks;
                }
                skip = false; // a complete one will come by a swap
                again = true;
            }
            (Ok(newest), None) if skip => {
                served = Some(newest);
                skip = false;
            }
            (Ok(newest), None) => {
                lacked.clear();
                if let Some(warning) = pin::warning(&newest) {
                    say!("treeswap: {warning}");
                }
                match run_for(args, &newest, &mut stop).await? {
                    Next::Watch if args.set.is_some() && !set::names(&link, newest.dir()) => {
                        let gone = newest.location().display();
                        say!(
                            "treeswap: {gone} was swapped while the command ran, which may have read less than all"
                        );
                        served = Some(newest);
                    }
                    Next::Watch => served = Some(newest), // and the pin before it goes
                    Next::Exit(code) => return Ok(code),
                }
                continue; // what was swapped meanwhile is due now
            }
            (Err(error @ Error::NoGeneration { .. }), _) => {
                if !std::mem::replace(&mut waits, true) {
                    say!("treeswap: {error}; waiting for it");
                }
                skip = false; // the first one to come is a swap
                again = true;
                let now = pin::link_of(&args.path, args.link);
                if now != link {
                    swaps = swaps_of(&now, args.poll)?; // what is there now is itself a link
                    link = now;
                    continue;
                }
            }
            (Err(error), _) if error.is_transient() || served.is_some() => {
                say!("treeswap: {:#}; trying again", anyhow::Error::new(error));
                again = true;
            }
            (Err(error), _) => return Err(error.into()),
        }
        tokio::select! {
            changed = swaps.changed() => changed.context("the watching thread ended")?,
            () = tokio::time::sleep(PAUSE), if again => {}
            () = stop.signalled() => return Ok(ExitCode::SUCCESS),
        }
    }
}

/// The swaps of a link, from now on.
fn swaps_of(link: &Path, poll: Duration) -> anyhow::Result<Receiver<Option<Change>>> {
    let watcher = Watcher::new(link, &watch::Options { poll });
    if let Some(limitation) = watcher.limitation() {
        say!("treeswap: swaps are found by looking every {poll:?}: {limitation}");
        limitation.hints().iter().for_each(|hint| say!("hint: {hint}"));
    }
    watcher.in_background().context("cannot start the watching thread")
}

/// Why the newest generation is no complete set, a line each, where sets are asked for.
fn lack(args: &Args, link: &Path, newest: &Pin) -> Option<Vec<String>> {
    let missing = set::missing(newest.dir(), args.set.as_ref()?);
    if !set::names(link, newest.dir()) {
        return Some(Vec::new()); // it was swapped meanwhile, and what was seen may be half removed
    }
    match missing {
        Ok(gaps) if gaps.is_empty() => None,
        Ok(gaps) => Some(gaps.iter().map(Gap::to_string).collect()),
        Err(error) => Some(vec![format!("cannot read it: {error}")]),
    }
}

/// What follows a run.
enum Next {
    Watch,
    Exit(ExitCode),
}

/// Runs the command for one generation, passing signals on.
async fn run_for(args: &Args, generation: &Pin, stop: &mut EndSignals) -> anyhow::Result<Next> {
    let inherited = generation.inheritable().context("cannot hand the pin to the command")?;
    let mut command = tokio::process::Command::from(pin::command(&args.command, generation));
    let spawned = command.spawn();
    drop(inherited);
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => return Ok(Next::Exit(pin::cannot_run(&args.command[0], &error))),
    };
    let mut signals = 0;
    let status = loop {
        tokio::select! {
            status = child.wait() => break status.context("cannot wait for the command")?,
            () = stop.signalled() => {
                signals += 1;
                let signal = if signals == 1 { Signal::TERM } else { Signal::KILL };
                if let Some(pid) = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
                    let _ = rustix::process::kill_process(pid, signal); // it may have ended by itself
                }
            }
        }
    };
    if signals > 0 {
        return Ok(Next::Exit(ExitCode::SUCCESS));
    }
    if !status.success() {
        say!(
            "treeswap: {} failed for {}: {status}",
            args.command[0].display(),
            generation.generation().display()
        );
        if args.exit_on_failure {
            return Ok(Next::Exit(code_of(status)));
        }
    }
    Ok(Next::Watch)
}

/// A shell's code for how a command ended.
fn code_of(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// The signals that end the watch.
struct EndSignals {
    terminate: Signals,
    interrupt: Signals,
}

impl EndSignals {
    fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn signalled(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
