//! `git-sync`, and `treeswap git-sync`: the sidecar by git-sync v4's command line, exit codes and streams.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args as _, FromArgMatches};

use super::flags::Given;
use super::{Exit, init, manual, usage, version};
use crate::config::gitsync::{self, Action, Call, Fault};
use crate::config::{self, Personality};
use crate::{app, human};

/// What `git-sync` exits with where `treeswap` says 2: a configuration that makes no sense.
const WRONG: Exit = Exit::Failed;

/// Whether the program was called by git-sync's name.
pub(super) fn is_called(program: &OsString) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == "git-sync")
}

/// The flags of `sync`, with git-sync's defaults.
fn flags() -> clap::Command {
    let bare = config::Args::augment_args(clap::Command::new("git-sync").no_binary_name(true));
    config::attach(bare, Personality::GitSync, &|name| std::env::var_os(name).is_some())
}

/// Runs it. `name` is what it was called.
pub(super) fn run(name: &str, arguments: &[OsString]) -> ExitCode {
    let mut flags = flags();
    let call = match read(&flags, arguments) {
        Ok(call) => call,
        Err(fault @ Fault::Arguments(_)) => {
            return unreadable(&fault.to_string(), &[], &manual::usage(name, &flags));
        }
        Err(fault @ Fault::Environment(_)) => {
            say!("FATAL: {fault}");
            return WRONG.into();
        }
    };
    let shown = match call.action {
        Action::Run => None,
        Action::Version => Some(format!("{}\n", version())),
        Action::Help => Some(manual::usage(name, &flags)),
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
        say!("{message}\n{}\n{message}", manual::usage(name, flags).trim_end());
        say_hints(hints);
        if let Some(path) = &error_file {
            // As in git-sync: the bare text. Where it cannot be written, stderr has it.
            let _ = path
                .parent()
                .map_or(Ok(()), std::fs::create_dir_all)
                .and_then(|()| std::fs::write(path, message));
        }
    };
    if let Some(error) = &call.wrong {
        refuse(&human::one_line(error), &error.hints(), &flags);
        return WRONG.into();
    }
    let given = call.settings.iter().map(|given| format!("--{}={}", given.flag, given.value));
    let matches = match flags.try_get_matches_from_mut(given) {
        Ok(matches) => matches,
        Err(error) => {
            let (line, hints) = usage::explain(&error, arguments);
            return unreadable(&line, &hints, &manual::usage(name, &flags));
        }
    };
    let args = match config::Args::from_arg_matches(&matches) {
        Ok(args) => args,
        Err(error) => {
            return unreadable(&error.to_string(), &[], &manual::usage(name, &flags));
        }
    };
    let given = Given::of_git_sync(call, &flags, &matches);
    let settings = match given.settings(&args) {
        Ok(settings) => settings,
        Err(error) => {
            let line = human::one_line(&error);
            refuse(&line, &error.hints(), &flags);
            app::last_words(Path::new(&args.logging.termination_log), &line, &error.hints());
            return WRONG.into();
        }
    };
    let result = init(|| {
        app::sync(settings, None, &given.lines, &given.warnings)?;
        Ok(Exit::Done.into())
    });
    result.unwrap_or_else(|error| {
        let hints = super::hints(&error).join("; ");
        tracing::error!(error = human::one_line(error.as_ref()), hints, "git-sync ends");
        Exit::Failed.into()
    })
}

/// Refuses a command line that cannot be read, on git-sync's streams: what is wrong and the usage on stderr, and what is
/// wrong again on stdout, where whoever keeps only that finds it.
fn unreadable(message: &str, hints: &[String], usage: &str) -> ExitCode {
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
    let _ = std::io::stdout().lock().write_all(text.as_bytes()); // who closes the pipe early has seen enough
}

fn read(flags: &clap::Command, arguments: &[OsString]) -> Result<Call, Fault> {
    let texts: Option<Vec<String>> =
        arguments.iter().map(|argument| argument.to_str().map(str::to_owned)).collect();
    let texts = texts.ok_or_else(|| Fault::Arguments("an argument is not UTF-8".to_owned()))?;
    gitsync::read(flags, &texts, &|name| std::env::var_os(name))
}

/// Where errors go besides stderr, once the root is known.
fn error_file(call: &Call) -> Option<PathBuf> {
    let file = call.get("error-file").filter(|file| !file.is_empty())?;
    let root = call.get("root").filter(|root| !root.is_empty())?;
    Some(std::path::absolute(root).unwrap_or_else(|_| root.into()).join(file))
}
