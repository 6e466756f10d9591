//! `treeswap watch`: runs a command at every swap, with the new generation pinned.
//!
//! Commands run one at a time. Swaps during a run count as one, and the command then runs for the newest generation.
//! The pin of the generation that the command ran for last is kept until the next run has ended, so that readers of
//! the old generation can finish while the command makes them move on.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Pid, Signal};
use tokio::process::Child;
use tokio::sync::watch::Receiver;

use super::pin;
use crate::generation::DATA_LINK;
use crate::human;
use crate::marker::set::{Gap, Stamps};
use crate::pin::{Error, Options, Pin, absent_dir};
use crate::repeats::{Repeats, suppressed};
use crate::shutdown::EndSignals;
use crate::watch::{self, Change, Watcher, set};

/// Pause before a failed pin, or a failed start of the command, is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Most characters of a line about an incomplete set: it quotes what others wrote into the volume.
const LINE_MAX: usize = 600;

/// Arguments of `treeswap watch`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    treeswap watch /config -- pkill -HUP -x gateway\n  \
    treeswap watch --skip-first /config -- curl -fsS -X POST http://localhost:9090/-/reload\n  \
    treeswap watch --set /maps -- ./load {}\n\n\
    The command gets the new generation's own directory in TREESWAP_DIR and wherever {} stands in its arguments, \
    TREESWAP_REVISION and TREESWAP_REVISIONS as `treeswap pin` sets them, and runs for the generation that is current \
    at the start, too. If it fails, that is reported, and the next swap runs it again. SIGTERM \
    is passed on to it, and ends the watch once it has ended; a second one kills it. A command that signals another \
    process needs its user or CAP_KILL.")]
pub struct Args {
    /// The root; or a link that names a generation, as in git-sync's layout
    #[arg(value_name = "PATH")]
    pub path: PathBuf,

    /// PATH is the symbolic link itself, even if it does not exist yet
    #[arg(long)]
    pub link: bool,

    /// Do not run the command for the generation that is current at the start
    #[arg(long)]
    pub skip_first: bool,

    /// PATH is a projected volume of several ConfigMaps: run the command only for complete sets of them
    ///
    /// A set is complete when each ConfigMap that the marker (.treeswap) lists has the stamp that the marker has for
    /// it; incomplete sets are skipped. The value is the path of a ConfigMap's stamp, with {name} for its name, and
    /// must be the writer's --stamp-key.
    #[arg(long, value_name = "STAMP", num_args = 0..=1, require_equals = true, default_missing_value = ".{name}.stamp")]
    pub set: Option<Stamps>,

    /// Poll the link at this interval, in addition to inotify
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = crate::config::duration)]
    pub poll: Duration,

    /// Exit with the command's exit code when it fails
    #[arg(long)]
    pub exit_on_failure: bool,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Watches until a signal ends it.
///
/// # Errors
/// When PATH cannot be pinned and trying again cannot help, or the process is short of threads or descriptors.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    pin::check_command(&args.command)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the runtime")?.block_on(watch(&args))
}

/// The loop: serves the newest generation if that is due, and waits for the next swap.
async fn watch(args: &Args) -> anyhow::Result<ExitCode> {
    let link = pin::link_of(&args.path, args.link);
    let mut stop = EndSignals::listen().context("cannot listen for signals")?;
    let mut watch = Watch {
        args,
        swaps: swaps_of(&link, args.poll)?,
        link,
        served: None,
        was_pinned: false,
        skip: args.skip_first,
        reported_gaps: Vec::new(),
        pin_failures: Repeats::default(),
        has_run: false,
        start_failures: Repeats::default(),
    };
    loop {
        let retry = match watch.look(&mut stop).await? {
            Step::Look => continue,
            Step::Wait { retry } => retry,
            Step::Exit(code) => return Ok(code),
        };
        tokio::select! {
            changed = watch.swaps.changed() => changed.context("the watching thread ended")?,
            () = tokio::time::sleep(RETRY_PAUSE), if retry => {}
            _ = stop.next() => return Ok(ExitCode::SUCCESS),
        }
    }
}

/// What the loop does next.
enum Step {
    /// Look for the newest generation at once.
    Look,
    /// Wait for the next swap, or with `retry` only for a moment.
    Wait { retry: bool },
    /// End the process.
    Exit(ExitCode),
}

/// What the loop knows.
struct Watch<'a> {
    args: &'a Args,
    link: PathBuf,
    swaps: Receiver<Option<Change>>,
    /// The generation that the command ran for last.
    served: Option<Pin>,
    /// PATH is right, so an error may pass.
    was_pinned: bool,
    /// The command does not run for the generation that is found next.
    skip: bool,
    reported_gaps: Vec<String>,
    pin_failures: Repeats,
    /// The command was started once, so it is right, and an error may pass.
    has_run: bool,
    start_failures: Repeats,
}

impl Watch<'_> {
    /// Pins the newest generation, and runs the command for it if it is due.
    async fn look(&mut self, stop: &mut EndSignals) -> anyhow::Result<Step> {
        let newest = match Pin::take_link(&self.link, &Options::default()) {
            Ok(newest) => newest,
            Err(error) => return self.without_pin(error),
        };
        self.was_pinned = true;
        self.pin_failures.forget();
        if self.served.as_ref().is_some_and(|served| served.same_generation(&newest)) {
            return Ok(Step::Wait { retry: false }); // the command ran for it already
        }
        if let Some(gaps) = set_gaps(self.args, &self.link, &newest) {
            self.report_gaps(gaps, &newest);
            self.skip = false; // the first complete set will not be the one that is current at the start
            return Ok(Step::Wait { retry: true });
        }
        if self.skip {
            self.served = Some(newest);
            self.skip = false;
            return Ok(Step::Wait { retry: false });
        }
        self.serve(newest, stop).await
    }

    /// What to do without a pin: an error that may pass is reported, and it is tried again.
    fn without_pin(&mut self, error: Error) -> anyhow::Result<Step> {
        match error {
            error @ Error::NoGeneration { .. } => {
                let why = format!("{error}{}; waiting for it", what_is_absent(&self.link));
                report(&mut self.pin_failures, &why);
                self.skip = false; // the first generation will not be one that is current at the start
                let link = pin::link_of(&self.args.path, self.args.link);
                if link == self.link {
                    return Ok(Step::Wait { retry: true });
                }
                self.swaps = swaps_of(&link, self.args.poll)?; // PATH exists now, and is itself the link
                self.link = link;
                Ok(Step::Look)
            }
            error if error.is_transient() || self.was_pinned => {
                let why = format!("{:#}; trying again", anyhow::Error::new(error));
                report(&mut self.pin_failures, &why);
                Ok(Step::Wait { retry: true })
            }
            error => Err(error.into()),
        }
    }

    /// Prints why there is no complete set, unless that was printed already.
    fn report_gaps(&mut self, gaps: Vec<String>, newest: &Pin) {
        if !gaps.is_empty() && gaps != self.reported_gaps {
            say!("treeswap: no complete set is in {}; waiting for one", newest.location().display());
            gaps.iter().for_each(|line| say!("treeswap: {}", human::sanitize(line, LINE_MAX)));
            self.reported_gaps = gaps;
        }
    }

    /// Runs the command for a generation.
    async fn serve(&mut self, newest: Pin, stop: &mut EndSignals) -> anyhow::Result<Step> {
        self.reported_gaps.clear();
        let child = match start(self.args, &newest) {
            Ok(child) => child,
            Err(error) => return Ok(self.without_child(&error, newest)),
        };
        self.has_run = true;
        self.start_failures.forget();
        if let Some(warning) = pin::warning(&newest) {
            say!("treeswap: {warning}"); // not before: a start that fails is tried again every second
        }
        if let Some(code) = wait_for(child, self.args, &newest, stop).await? {
            return Ok(Step::Exit(code));
        }
        if self.args.set.is_some() && !set::link_points_to(&self.link, newest.dir()) {
            let gone = newest.location().display();
            say!("treeswap: {gone} was replaced while the command ran, so it may not have read all files");
        }
        self.served = Some(newest); // drops the previous pin
        Ok(Step::Look) // there may have been a swap during the run
    }

    /// What to do if the command could not be started. The first time it is probably misspelt: the process ends as a
    /// shell does. Later a missing command, or one that may not be executed, counts as one that failed; all else may
    /// pass and is tried again, such as a file that is being written, or a process or descriptor too many; the first
    /// time, too, if `--skip-first` has left out a generation, which may be long ago.
    fn without_child(&mut self, error: &io::Error, newest: Pin) -> Step {
        let program = &self.args.command[0];
        use io::ErrorKind::{ArgumentListTooLong, InvalidInput, NotADirectory, NotFound, PermissionDenied};
        let lasts = [ArgumentListTooLong, InvalidInput, NotADirectory, NotFound, PermissionDenied];
        let may_pass = !lasts.contains(&error.kind());
        let goes_on = self.has_run || (may_pass && self.served.is_some());
        if !goes_on || self.args.exit_on_failure {
            return Step::Exit(pin::cannot_run(program, error));
        }
        let then = if may_pass { "; trying again" } else { "" };
        let generation = newest.generation().display();
        let why = format!("cannot run {} for {generation}: {error}{then}", program.display());
        report(&mut self.start_failures, &why);
        if !may_pass {
            self.served = Some(newest);
        }
        Step::Wait { retry: may_pass }
    }
}

/// What is absent besides the link, in words that follow the error: the directory, or a writer that has opened it. A
/// consumer may start before either, so it waits; but PATH may also be wrong, and then nothing would ever come.
fn what_is_absent(link: &Path) -> String {
    let is_in_root = link.file_name() == Some(DATA_LINK.as_ref());
    let what = match (absent_dir(link), link.parent()) {
        (Some(dir), _) => format!("there is no directory {} yet", dir.display()),
        (None, Some(dir)) if is_in_root && !link.with_file_name("..treeswap").exists() => {
            format!("no writer has opened {} yet", dir.display())
        }
        _ => return String::new(),
    };
    format!(": {what}; PATH is the --root of `treeswap sync`, or the link it keeps")
}

/// Prints why there is no pin, or no command. Both are tried again every second, so the same reason is printed at
/// growing intervals.
fn report(failures: &mut Repeats, why: &str) {
    if let Some(times) = failures.should_log(why) {
        say!("treeswap: {why}{}", suppressed(times));
    }
}

/// Watches the swaps of a link, on a thread of its own.
fn swaps_of(link: &Path, poll: Duration) -> anyhow::Result<Receiver<Option<Change>>> {
    let watcher = Watcher::new(link, &watch::Options { poll });
    if let Some(limitation) = watcher.limitation() {
        say!("treeswap: swaps are detected by polling every {poll:?}: {limitation}");
        limitation.hints().iter().for_each(|hint| say!("hint: {hint}"));
    }
    watcher.in_background().context("cannot start the watching thread")
}

/// With `--set`: why the newest generation is no complete set, one line per gap; `None` if it is complete, or without
/// the flag. The list is empty if a swap during the check made its result meaningless.
fn set_gaps(args: &Args, link: &Path, newest: &Pin) -> Option<Vec<String>> {
    let read = set::read_gaps(newest.dir(), args.set.as_ref()?);
    if !set::link_points_to(link, newest.dir()) {
        return Some(Vec::new()); // it was swapped meanwhile and may be half removed
    }
    match read {
        Ok(gaps) if gaps.is_empty() => None,
        Ok(gaps) => Some(gaps.iter().map(Gap::to_string).collect()),
        Err(error) => Some(vec![error.to_string()]),
    }
}

/// Starts the command for one generation, whose pin it inherits.
fn start(args: &Args, generation: &Pin) -> io::Result<Child> {
    let _inherited = generation.inheritable()?; // until the command has been started
    tokio::process::Command::from(pin::command(&args.command, generation)).spawn()
}

/// Waits for the end of the command. A first signal is forwarded to it as SIGTERM, a second one kills it. Returns the
/// exit code if the process is to end.
async fn wait_for(
    mut child: Child,
    args: &Args,
    generation: &Pin,
    stop: &mut EndSignals,
) -> anyhow::Result<Option<ExitCode>> {
    let mut signals = 0;
    let status = loop {
        tokio::select! {
            status = child.wait() => break status.context("cannot wait for the command")?,
            _ = stop.next() => {
                signals += 1;
                let signal = if signals == 1 { Signal::TERM } else { Signal::KILL };
                if let Some(pid) = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
                    let _ = rustix::process::kill_process(pid, signal); // the command may have ended already
                }
            }
        }
    };
    if signals > 0 {
        return Ok(Some(ExitCode::SUCCESS));
    }
    if !status.success() {
        let (program, generation) = (args.command[0].display(), generation.generation().display());
        say!("treeswap: {program} failed for {generation}: {status}");
        if args.exit_on_failure {
            return Ok(Some(code_of(status)));
        }
    }
    Ok(None)
}

/// A shell's exit code for an exit status: the command's own, or 128 plus the number of the signal.
fn code_of(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
