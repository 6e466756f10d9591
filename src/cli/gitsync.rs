//! `git-sync` and `treeswap git-sync`: `sync` with git-sync v4's command line, exit codes and use of stdout and stderr.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{Args as _, FromArgMatches};

use super::flags::FlagOrigins;
use super::{Exit, manual, run_under_init, usage, version};
use crate::config::gitsync::{self, Action, Call, ParseError};
use crate::config::{self, Personality};
use crate::store::{OperatorFile, Style};
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
    config::attach(bare, Personality::GitSync, &|name| std::env::var_os(name).is_some())
}

/// Runs the drop-in. `name` is the name of the program in the usage text. As PID 1 all of it runs in the child, so that
/// nothing is printed twice.
pub(super) fn run(name: &str, arguments: &[OsString]) -> ExitCode {
    run_under_init(|| Ok(run_here(name, arguments))).unwrap_or_else(|error| {
        report_failure(&error, telemetry::Format::GitSync, None);
        Exit::Failed.into()
    })
}

/// Runs the drop-in in this process.
fn run_here(name: &str, arguments: &[OsString]) -> ExitCode {
    let mut flags = flags();
    let call = match read(&flags, arguments) {
        Ok(call) => call,
        Err(error @ ParseError::Arguments(_)) => {
            return refuse_arguments(&error.to_string(), &[], &manual::usage(name, &flags, manual::width()));
        }
        Err(error @ ParseError::Environment(_)) => {
            say!("FATAL: {error}");
            return INVALID.into();
        }
    };
    let shown = match call.action {
        Action::Run => None,
        Action::Version => Some(format!("{}\n", version())),
        Action::Help => Some(manual::usage(name, &flags, manual::width())),
        Action::Manual => Some(manual::manual(&flags)),
    };
    if let Some(text) = shown {
        print(&text);
        return Exit::Done.into();
    }
    for note in &call.notes {
        say!("{note}");
    }
    let error_file = error_file(&call);
    let refuse = |message: &str, hints: &[String], flags: &clap::Command| {
        say!("{message}\n{}\n{message}", manual::usage(name, flags, manual::width()).trim_end());
        say_hints(hints);
        if let Some(file) = &error_file {
            // As in git-sync, the plain text. A failed write is ignored, as the message is on stderr, too.
            let own = file.clone();
            let text = secret::redacted(message).into_owned();
            let _ = detached_io::wait_for_io(file.path(), move |_| own.write(text.as_bytes()));
        }
    };
    if let Some(error) = &call.wrong {
        refuse(&human::one_line(error), &error.hints(), &flags);
        return INVALID.into();
    }
    let given = call.settings.iter().map(|given| format!("--{}={}", given.flag, given.value));
    let matches = match flags.try_get_matches_from_mut(given) {
        Ok(matches) => matches,
        Err(error) => {
            let (line, hints) = usage::explain(&error, arguments);
            return refuse_arguments(&line, &hints, &manual::usage(name, &flags, manual::width()));
        }
    };
    let args = match config::Args::from_arg_matches(&matches) {
        Ok(args) => args,
        Err(error) => {
            return refuse_arguments(&error.to_string(), &[], &manual::usage(name, &flags, manual::width()));
        }
    };
    let given = FlagOrigins::of_git_sync(call, &flags, &matches);
    let settings = match given.settings(&args) {
        Ok(settings) => settings,
        Err(error) => {
            let line = human::one_line(&error);
            refuse(&line, &error.hints(), &flags);
            app::write_termination_log(
                Path::new(&args.root.root),
                Path::new(&args.logging.termination_log),
                &line,
                &error.hints(),
            );
            return INVALID.into();
        }
    };
    let format = settings.telemetry.format();
    match app::sync(settings, None, &given.lines, &given.warnings) {
        Ok(()) => Exit::Done.into(),
        Err(error) => {
            report_failure(&error.into(), format, error_file.as_ref());
            Exit::Failed.into()
        }
    }
}

/// Prints why the process ends, and writes it into the error file unless the sync loop has written it already.
fn report_failure(error: &anyhow::Error, format: telemetry::Format, error_file: Option<&OperatorFile>) {
    let app = error.downcast_ref::<app::Error>();
    let ending = app.map_or(telemetry::ExitReason::Other, app::Error::exit_reason);
    let line = human::one_line(error.as_ref());
    let hints = super::hints(error);
    let gave_up = matches!(app, Some(app::Error::GaveUp { .. }));
    // In git-sync's format the log already says that the loop gave up.
    if !(gave_up && format == telemetry::Format::GitSync) {
        super::print_error(None, ending, &line, &hints);
    }
    if let (Some(file), false) = (error_file, matches!(ending, telemetry::ExitReason::Other)) {
        let text =
            serde_json::json!({"Msg": ending.message(), "Err": line, "Args": {"hints": hints}}).to_string();
        let _ = file.write(secret::redacted(&text).as_bytes()); // a failed write is ignored: it is on stderr, too
    }
}

/// Refuses a command line that cannot be parsed. As git-sync does, prints the error and the usage on stderr, and the
/// error once more on stdout, for operators who keep only that.
fn refuse_arguments(message: &str, hints: &[String], usage: &str) -> ExitCode {
    say!("{message}\n{}", usage.trim_end());
    say_hints(hints);
    print(&format!("{message}\n"));
    Exit::Usage.into()
}

fn say_hints(hints: &[String]) {
    for hint in hints {
        say!("hint: {hint}");
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
fn error_file(call: &Call) -> Option<OperatorFile> {
    let given = |flag: &str| call.get(flag).filter(|text| !text.is_empty());
    let file = given("error-file")?;
    let root = given("root")?;
    let root = std::path::absolute(root).unwrap_or_else(|_| root.into());
    let style = match given("layout") {
        Some("kubelet") => Style::Kubelet,
        _ => {
            let text = |flag: &str| given(flag).unwrap_or_default();
            let link = Some(config::link_name(text("link"), text("repo"))).filter(|link| !link.is_empty());
            // Without a link, a name that is ours anyway.
            Style::GitSync { link: root.join(link.unwrap_or("..treeswap")) }
        }
    };
    OperatorFile::new(&root, &style, Path::new(file)).ok()
}
