//! `git-sync` and `treeswap git-sync`: `sync` with git-sync v4's command line, exit codes and use of stdout and stderr.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args as _, FromArgMatches};

use super::flags::FlagOrigins;
use super::{Exit, manual, run_under_init, usage, version};
use crate::config::gitsync::{self, Action, Call, ParseError};
use crate::config::{self, Personality, Settings};
use crate::store::{Layout, OperatorFile};
use crate::{app, detached_io, human, secret, telemetry};

/// The exit code for an invalid configuration, for which `treeswap` has 2.
const INVALID: Exit = Exit::Failed;

/// Whether the program was started under the name `git-sync`.
pub(super) fn is_git_sync(program: &OsString) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == "git-sync")
}

/// The flags of `sync`, with git-sync's defaults.
pub(super) fn flags() -> clap::Command {
    let bare = config::Args::augment_args(clap::Command::new("git-sync").no_binary_name(true));
    config::attach(bare, Personality::GitSync, &|name| std::env::var_os(name))
}

/// Runs the drop-in. `name` is the name of the program in the usage text. As PID 1 all of it runs in the child, so that
/// nothing is printed twice.
pub(super) fn run(name: &str, arguments: &[OsString]) -> ExitCode {
    run_under_init(|| Ok(run_here(name, arguments))).unwrap_or_else(|error| {
        report_failure(&error, telemetry::Format::GitSync);
        Exit::Failed.into()
    })
}

/// Runs the drop-in in this process.
fn run_here(name: &str, arguments: &[OsString]) -> ExitCode {
    let mut flags = flags();
    let usage = |flags: &clap::Command| manual::usage(name, flags, manual::width());
    let call = match read(&flags, arguments) {
        Ok(call) => call,
        Err(error) => return Refusal::from(error).report(&usage(&flags), None),
    };
    let shown = match call.action {
        Action::Run => None,
        Action::Version => Some(format!("{}\n", version())),
        Action::Help => Some(usage(&flags)),
        Action::Manual => Some(manual::manual(&flags)),
    };
    if let Some(text) = shown {
        print(&text);
        return Exit::Done.into();
    }
    for note in &call.notes {
        say!("{note}");
    }
    let error_file = error_file(&call, |name| std::env::var(name).ok());
    let (settings, given) = match prepare(&mut flags, call, arguments) {
        Ok(prepared) => prepared,
        Err(refusal) => return refusal.report(&usage(&flags), error_file.as_ref()),
    };
    let format = settings.telemetry.format();
    match app::sync(settings, None, &given.lines, &given.warnings) {
        Ok(()) => Exit::Done.into(),
        Err(error) => {
            report_failure(&error.into(), format);
            Exit::Failed.into()
        }
    }
}

/// Makes the settings of what was called.
fn prepare(
    flags: &mut clap::Command,
    call: Call,
    arguments: &[OsString],
) -> Result<(Settings, FlagOrigins), Refusal> {
    if let Some(error) = &call.first_error {
        return Err(Refusal::Configuration {
            line: human::one_line(error),
            hints: error.hints(),
            termination_log: None,
        });
    }
    let given = call.settings.iter().map(|given| format!("--{}={}", given.flag, given.value));
    let matches = flags.try_get_matches_from_mut(given).map_err(|error| {
        let (line, hints) = usage::explain(&error, arguments);
        Refusal::Arguments { line, hints }
    })?;
    let args = config::Args::from_arg_matches(&matches)
        .map_err(|error| Refusal::Arguments { line: error.to_string(), hints: Vec::new() })?;
    let given = FlagOrigins::of_git_sync(call, flags, &matches);
    let settings = given.settings(&args).map_err(|error| Refusal::Configuration {
        line: human::one_line(&error),
        hints: error.hints(),
        termination_log: Some((args.root.root.into(), args.logging.termination_log.into())),
    })?;
    Ok((settings, given))
}

/// Why nothing is run.
enum Refusal {
    /// The command line cannot be parsed.
    Arguments { line: String, hints: Vec<String> },
    /// A variable cannot be parsed.
    Environment(String),
    /// The configuration is invalid. `termination_log` are the root and the file of the termination log, if it is to be
    /// written.
    Configuration { line: String, hints: Vec<String>, termination_log: Option<(PathBuf, PathBuf)> },
}

impl From<ParseError> for Refusal {
    fn from(error: ParseError) -> Self {
        match error {
            ParseError::Arguments(line) => Self::Arguments { line, hints: Vec::new() },
            ParseError::Environment(line) => Self::Environment(line),
        }
    }
}

impl Refusal {
    /// Prints the refusal where git-sync does.
    fn report(&self, usage: &str, error_file: Option<&OperatorFile>) -> ExitCode {
        let usage = usage.trim_end();
        match self {
            Self::Arguments { line, hints } => {
                say!("{line}\n{usage}");
                hints.iter().for_each(|hint| say!("hint: {hint}"));
                print(&format!("{line}\n")); // on stdout, too, for operators who keep only that
                Exit::Usage.into()
            }
            Self::Environment(line) => {
                say!("FATAL: {line}");
                INVALID.into()
            }
            Self::Configuration { line, hints, termination_log } => {
                say!("{line}\n{usage}\n{line}");
                hints.iter().for_each(|hint| say!("hint: {hint}"));
                if let Some(file) = error_file {
                    let (own, text) = (file.clone(), secret::redacted(line).into_owned()); // plain, as in git-sync
                    // A failed write is ignored, as the error is on stderr, too.
                    let _ = detached_io::wait_for_io(file.path(), move |_| own.write(text.as_bytes()));
                }
                if let Some((root, file)) = termination_log {
                    app::write_termination_log(root, file, line, hints);
                }
                INVALID.into()
            }
        }
    }
}

/// Prints why the process ends.
fn report_failure(error: &anyhow::Error, format: telemetry::Format) {
    let app = error.downcast_ref::<app::Error>();
    let ending = app.map_or(telemetry::ExitReason::Other, app::Error::exit_reason);
    let line = human::one_line(error.as_ref());
    let hints = super::hints(error);
    let gave_up = matches!(app, Some(app::Error::GaveUp { .. }));
    // In git-sync's format the log already says that the loop gave up.
    if !(gave_up && format == telemetry::Format::GitSync) {
        super::print_error(None, ending, &line, &hints);
    }
}

fn print(text: &str) {
    super::print(secret::redacted(text).as_bytes());
}

/// Parses arguments and environment.
fn read(flags: &clap::Command, arguments: &[OsString]) -> Result<Call, ParseError> {
    let texts: Option<Vec<String>> =
        arguments.iter().map(|argument| argument.to_str().map(str::to_owned)).collect();
    let texts = texts.ok_or_else(|| ParseError::Arguments("an argument is not UTF-8".to_owned()))?;
    gitsync::read(flags, &texts, &|name| std::env::var_os(name))
}

/// The file of `--error-file`, if it and the root are given. Used for errors that come before there are valid settings.
/// `ours` is the value of one of treeswap's own variables, which clap reads only later.
fn error_file(call: &Call, ours: impl Fn(String) -> Option<String>) -> Option<OperatorFile> {
    let text = |flag: &str| {
        let name = || format!("TREESWAP_{}", flag.to_uppercase().replace('-', "_"));
        call.get(flag).map(str::to_owned).or_else(|| ours(name())).unwrap_or_default()
    };
    let given = |flag: &str| Some(text(flag)).filter(|text| !text.is_empty());
    let file = given("error-file")?;
    let root = given("root")?;
    let root = std::path::absolute(&root).unwrap_or_else(|_| root.into());
    let layout = match text("layout").as_str() {
        "kubelet" => Layout::Kubelet,
        _ => {
            let (link, repo) = (text("link"), text("repo"));
            let link = Some(config::link_name(&link, &repo)).filter(|link| !link.is_empty());
            // Without a link, a name that is ours anyway.
            Layout::GitSync { link: root.join(link.unwrap_or("..treeswap")) }
        }
    };
    OperatorFile::new(&root, &layout, Path::new(&file)).ok()
}
