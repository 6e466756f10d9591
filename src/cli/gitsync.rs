//! `git-sync`, and `treeswap git-sync`: the sidecar by git-sync v4's command line, exit codes and streams.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::{Args as _, FromArgMatches};

use super::flags::FlagOrigins;
use super::{Exit, init, manual, usage, version};
use crate::config::gitsync::{self, Action, Call, Fault};
use crate::config::{self, Personality};
use crate::store::{OwnFile, Style};
use crate::{app, detached_io, human, secret, telemetry};

/// What `git-sync` exits with where `treeswap` says 2: a configuration that makes no sense.
const WRONG: Exit = Exit::Failed;

/// Whether the program was called by git-sync's name.
pub(super) fn is_called(program: &OsString) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == "git-sync")
}

/// The flags of `sync`, with git-sync's defaults.
pub(super) fn flags() -> clap::Command {
    let bare = config::Args::augment_args(clap::Command::new("git-sync").no_binary_name(true));
    config::attach(bare, Personality::GitSync, &|name| std::env::var_os(name).is_some())
}

/// Runs it. `name` is what it was called.
pub(super) fn run(name: &str, arguments: &[OsString]) -> ExitCode {
    let mut flags = flags();
    let call = match read(&flags, arguments) {
        Ok(call) => call,
        Err(fault @ Fault::Arguments(_)) => {
            return unreadable(&fault.to_string(), &[], &manual::usage(name, &flags, manual::width()));
        }
        Err(fault @ Fault::Environment(_)) => {
            say!("FATAL: {fault}");
            return WRONG.into();
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
            // As in git-sync: the bare text. Where it cannot be written, stderr has it.
            let own = file.clone();
            let text = secret::redacted(message).into_owned();
            let _ = detached_io::patiently(file.path(), move |_| own.write(text.as_bytes()));
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
            return unreadable(&line, &hints, &manual::usage(name, &flags, manual::width()));
        }
    };
    let args = match config::Args::from_arg_matches(&matches) {
        Ok(args) => args,
        Err(error) => {
            return unreadable(&error.to_string(), &[], &manual::usage(name, &flags, manual::width()));
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
            return WRONG.into();
        }
    };
    let format = settings.telemetry.format();
    let result = init(|| {
        app::sync(settings, None, &given.lines, &given.warnings)?;
        Ok(Exit::Done.into())
    });
    result.unwrap_or_else(|error| {
        failed(&error, format, error_file.as_ref());
        Exit::Failed.into()
    })
}

/// Says why it ends, and keeps it in the error file where that does not have it yet.
fn failed(error: &anyhow::Error, format: telemetry::Format, error_file: Option<&OwnFile>) {
    let app = error.downcast_ref::<app::Error>();
    let ending = app.map_or(telemetry::Ending::Other, app::Error::ending);
    let line = human::one_line(error.as_ref());
    let hints = super::hints(error);
    let gave_up = matches!(app, Some(app::Error::GaveUp { .. }));
    // That it gave up is in the log already, in git-sync's words if that is how it is written.
    if !(gave_up && format == telemetry::Format::GitSync) {
        super::say_why(None, ending, &line, &hints);
    }
    if let (Some(file), false) = (error_file, matches!(ending, telemetry::Ending::Other)) {
        let text =
            serde_json::json!({"Msg": ending.message(), "Err": line, "Args": {"hints": hints}}).to_string();
        let _ = file.write(secret::redacted(&text).as_bytes()); // where it cannot be written, stderr has it
    }
}

/// Refuses a command line that cannot be read, on git-sync's streams: what is wrong and the usage on stderr, and what
/// is wrong again on stdout, where it is found by those who keep only that.
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
    let _ = std::io::stdout().lock().write_all(secret::redacted(text).as_bytes()); // who closes the pipe early has seen enough
}

fn read(flags: &clap::Command, arguments: &[OsString]) -> Result<Call, Fault> {
    let texts: Option<Vec<String>> =
        arguments.iter().map(|argument| argument.to_str().map(str::to_owned)).collect();
    let texts = texts.ok_or_else(|| Fault::Arguments("an argument is not UTF-8".to_owned()))?;
    gitsync::read(flags, &texts, &|name| std::env::var_os(name))
}

/// Where errors go besides stderr, once the root is known.
fn error_file(call: &Call) -> Option<OwnFile> {
    let given = |flag: &str| call.get(flag).filter(|text| !text.is_empty());
    let file = given("error-file")?;
    let root = given("root")?;
    let root = std::path::absolute(root).unwrap_or_else(|_| root.into());
    let style = match given("layout") {
        Some("kubelet") => Style::Kubelet,
        _ => {
            let text = |flag: &str| given(flag).unwrap_or_default();
            let link = Some(config::link_name(text("link"), text("repo"))).filter(|link| !link.is_empty());
            Style::GitSync { link: root.join(link.unwrap_or("..treeswap")) } // no link: any name that is taken anyway
        }
    };
    OwnFile::new(&root, &style, Path::new(file)).ok()
}
