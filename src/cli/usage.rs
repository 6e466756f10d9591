//! What clap has to say about a command line, in our form: one line that names the thing, hints under it.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::Exit;
use crate::config::UNSERVED;
use crate::telemetry::{Ending, Format};

/// Prints help and version as clap does, and everything else as our own errors.
pub(super) fn show(error: &Error, arguments: &[OsString], format: Option<Format>) -> ExitCode {
    if !error.use_stderr() {
        let _ = error.print(); // stdout may be closed; nothing is left to say then
        return Exit::Done.into();
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return Exit::Usage.into();
    }
    let (line, hints) = explain(error, arguments);
    super::say_why(format, Ending::Other, &line, &hints);
    Exit::Usage.into()
}

/// One of our variables that holds no text: clap only says that there is one.
fn unreadable_variable() -> Option<String> {
    let ours = |name: &String| name.starts_with("TREESWAP_") || name.starts_with("GITSYNC_");
    let broken = std::env::vars_os().filter(|(_, value)| value.to_str().is_none());
    broken.filter_map(|(name, _)| name.into_string().ok()).find(ours)
}

/// One line, and hints.
pub(super) fn explain(error: &Error, arguments: &[OsString]) -> (String, Vec<String>) {
    let text = |kind| error.get(kind).map(plain);
    let name = text(ContextKind::InvalidArg).unwrap_or_default();
    let value = text(ContextKind::InvalidValue);
    let mut hints = suggestions(error);
    let line = match error.kind() {
        ErrorKind::UnknownArgument => {
            let flag = name.trim_start_matches('-').split('=').next().unwrap_or_default();
            match UNSERVED.iter().find(|(unserved, _)| *unserved == flag && name.starts_with('-')) {
                Some((_, instead)) => {
                    hints = vec![(*instead).to_owned()];
                    format!("--{flag} is a flag of git-sync that `treeswap sync` does not have")
                }
                None => {
                    hints.extend(runs_a_command(arguments).filter(|_| !name.starts_with('-')));
                    hints.extend(detached(&name, arguments));
                    if hints.is_empty() {
                        hints.extend(help(arguments));
                    }
                    format!("unknown argument {name}")
                }
            }
        }
        ErrorKind::MissingRequiredArgument => {
            let names: Vec<String> = match error.get(ContextKind::InvalidArg) {
                Some(ContextValue::Strings(names)) => names.iter().map(|name| flag_of(name)).collect(),
                _ => vec![flag_of(&name)],
            };
            let command = arguments.get(1).and_then(|argument| argument.to_str());
            if !matches!(command, Some("apply" | "render")) {
                hints.extend(names.iter().filter_map(|name| variable_hint(name)));
            }
            hints.extend(runs_a_command(arguments));
            hints.extend(names.iter().filter_map(|name| meant_by(name)).map(str::to_owned));
            if hints.is_empty() {
                hints.extend(help(arguments));
            }
            format!("{} {} required", names.join(" and "), if names.len() == 1 { "is" } else { "are" })
        }
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            let flag = flag_of(&name);
            let value = value.unwrap_or_default();
            let source = from_where(&flag, arguments);
            let why = std::error::Error::source(error).map(|why| format!(": {why}")).unwrap_or_default();
            if let Some(ContextValue::Strings(valid)) = error.get(ContextKind::ValidValue)
                && !valid.is_empty()
            {
                hints.insert(0, format!("it is one of {}", valid.join(", ")));
            }
            match value.as_str() {
                "" if source.starts_with('-') => format!("{source} needs a value{why}"),
                value => format!("invalid value {value:?} for {source}{why}"),
            }
        }
        ErrorKind::InvalidUtf8 => match unreadable_variable() {
            Some(name) => format!("invalid value for ${name}: it is not UTF-8"),
            None => "an argument is not UTF-8".to_owned(),
        },
        ErrorKind::InvalidSubcommand => {
            let command = text(ContextKind::InvalidSubcommand).unwrap_or_default();
            hints.push("`treeswap --help` lists the commands".to_owned());
            format!("unknown command {command:?}")
        }
        ErrorKind::ArgumentConflict => {
            let prior = text(ContextKind::PriorArg).map(|prior| flag_of(&prior));
            match prior.filter(|prior| *prior != flag_of(&name)) {
                Some(prior) => {
                    let one = flag_of(&name);
                    hints.push(format!("leave out {one} or {prior}"));
                    format!("{one} and {prior} exclude each other")
                }
                None => format!("{} is given twice", flag_of(&name)),
            }
        }
        ErrorKind::TooManyValues
        | ErrorKind::NoEquals
        | ErrorKind::WrongNumberOfValues
        | ErrorKind::TooFewValues => {
            format!("{} does not take its value like this", flag_of(&name))
        }
        _ => first_line(&error.to_string()),
    };
    (line, hints)
}

/// `--ref <REF>` is `--ref` to a user, `<ROOT>` is ROOT, and `<--a <A>|--b <B>>`, of which one is needed,
/// `--a or --b`.
fn flag_of(text: &str) -> String {
    if let Some(one_of) = text.strip_prefix('<') {
        return match one_of.split_once('>') {
            Some((name, _)) if !name.starts_with('-') => name.to_owned(),
            _ => one_of.split('|').map(flag_of).collect::<Vec<_>>().join(" or "),
        };
    }
    text.split([' ', '=', '[']).next().unwrap_or_default().to_owned()
}

/// The flag, if it is among the arguments; else the variable that must have held the value.
fn from_where(flag: &str, arguments: &[OsString]) -> String {
    let given = arguments.iter().filter_map(|argument| argument.to_str()).any(|argument| {
        argument == flag
            || argument.strip_prefix(flag).is_some_and(|rest| rest.starts_with('='))
            || (flag == "--verbose" && argument.starts_with("-v"))
            || (flag == "--grace" && argument.starts_with("--stale-worktree-timeout"))
    });
    if given || !flag.starts_with("--") {
        return flag.to_owned();
    }
    let variable = |prefix: &str, flag: &str| {
        format!("{prefix}{}", flag.trim_start_matches('-').to_uppercase().replace('-', "_"))
    };
    let theirs = if flag == "--grace" { "--stale-worktree-timeout" } else { flag };
    let names = [variable("TREESWAP_", flag), variable("GITSYNC_", theirs)];
    let set = names.iter().find(|name| std::env::var_os(name).is_some());
    set.map_or_else(|| flag.to_owned(), |name| format!("${name}"))
}

/// What is to be given, where the name alone does not say it.
fn meant_by(name: &str) -> Option<&'static str> {
    Some(match name {
        "ROOT" => "ROOT is the directory that `treeswap sync` has as --root",
        "PATH" => "PATH is the directory that `treeswap sync` has as --root, or the link it keeps",
        "SHELL" => "SHELL is bash, zsh, fish, elvish or powershell",
        "--owner" => {
            "--owner=NAME is this installation's name, by which it knows its own ConfigMaps; it must never change"
        }
        "--rules or --rules-in-tree" => {
            "--rules=FILE is a file of rules on this machine, --rules-in-tree=PATH one in the tree"
        }
        _ => return None,
    })
}

/// Where the arguments of a command are listed. `git-sync` prints them itself.
fn help(arguments: &[OsString]) -> Option<String> {
    let command = arguments.get(1)?.to_str().filter(|command| !command.starts_with('-'))?;
    Some(format!("`treeswap {command} --help` lists what it takes"))
}

/// How the commands are called that run another one.
fn runs_a_command(arguments: &[OsString]) -> Option<String> {
    let command = arguments.get(1)?.to_str().filter(|command| matches!(*command, "pin" | "watch"))?;
    Some(format!("the command to run goes after `--`: treeswap {command} PATH -- CMD"))
}

/// A switch takes a value only behind `=`: `--one-time true` are two arguments.
fn detached(value: &str, arguments: &[OsString]) -> Option<String> {
    let at = arguments.iter().position(|argument| argument == value)?;
    let flag = arguments.get(at.checked_sub(1)?)?.to_str()?;
    let is_switch = flag.starts_with("--") && !flag.contains('=') && flag.len() > 2;
    (is_switch && crate::config::boolean(value).is_ok()).then(|| format!("write {flag}={value}"))
}

fn variable_hint(flag: &str) -> Option<String> {
    let name = flag.strip_prefix("--")?.to_uppercase().replace('-', "_");
    Some(format!("{flag} can also be given as $TREESWAP_{name} or $GITSYNC_{name}"))
}

fn suggestions(error: &Error) -> Vec<String> {
    let kinds = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
    let said = kinds.iter().filter_map(|kind| error.get(*kind)).map(plain).filter(|text| !text.is_empty());
    said.map(|text| format!("did you mean {text}?")).collect()
}

fn plain(value: &ContextValue) -> String {
    match value {
        ContextValue::String(text) => text.clone(),
        ContextValue::Strings(texts) => texts.join(" or "),
        ContextValue::StyledStr(text) => text.to_string(),
        ContextValue::Bool(value) => value.to_string(),
        ContextValue::Number(number) => number.to_string(),
        _ => String::new(),
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}
