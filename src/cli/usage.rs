//! Translates clap's errors into our form: one line that names the flag, followed by hints.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::Exit;
use crate::config::instead_of_flag;
use crate::telemetry::{ExitReason, Format};

/// Prints help and version as clap does, and errors in our form. `unread` are warnings about variables that the command
/// does not read: one of them may be why something is missing. Returns the exit code.
pub(super) fn show(
    error: &Error,
    arguments: &[OsString],
    unread: Vec<String>,
    format: Option<Format>,
) -> ExitCode {
    if !error.use_stderr() {
        let _ = error.print(); // EPIPE: the reader needs no more
        return Exit::Done.into();
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return Exit::Usage.into();
    }
    let (line, mut hints) = explain(error, arguments);
    if error.kind() == ErrorKind::MissingRequiredArgument {
        hints = unread.into_iter().chain(hints).collect();
    }
    super::print_error(format, ExitReason::Other, &line, &hints);
    Exit::Usage.into()
}

/// The name of one of our variables whose value is not UTF-8. clap's error does not name it.
fn unreadable_variable() -> Option<String> {
    let ours = |name: &String| name.starts_with("TREESWAP_") || name.starts_with("GITSYNC_");
    let broken = std::env::vars_os().filter(|(_, value)| value.to_str().is_none());
    broken.filter_map(|(name, _)| name.into_string().ok()).find(ours)
}

/// The message and the hints for an error of clap.
pub(super) fn explain(error: &Error, arguments: &[OsString]) -> (String, Vec<String>) {
    let name = text_of(error, ContextKind::InvalidArg).unwrap_or_default();
    let mut hints = suggestions(error);
    let line = match error.kind() {
        ErrorKind::UnknownArgument => return unknown_argument(&name, hints, arguments),
        ErrorKind::MissingRequiredArgument => return missing_argument(error, &name, hints, arguments),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            return invalid_value(error, &name, hints, arguments);
        }
        ErrorKind::InvalidUtf8 => match unreadable_variable() {
            Some(name) => format!("invalid value for ${name}: it is not UTF-8"),
            None => "an argument is not UTF-8".to_owned(),
        },
        ErrorKind::InvalidSubcommand => {
            let command = text_of(error, ContextKind::InvalidSubcommand).unwrap_or_default();
            hints.push("`treeswap --help` lists the commands".to_owned());
            format!("unknown command {command:?}")
        }
        ErrorKind::ArgumentConflict => {
            let one = flag_of(&name);
            let prior = text_of(error, ContextKind::PriorArg).map(|prior| flag_of(&prior));
            match prior.filter(|prior| *prior != one) {
                Some(prior) => {
                    hints.push(format!("leave out {one} or {prior}"));
                    format!("{one} and {prior} exclude each other")
                }
                None => format!("{one} is given twice"),
            }
        }
        ErrorKind::TooManyValues => {
            let flag = flag_of(&name);
            if flag == "--help" {
                hints.push("write --help alone, or --help=all for all options".to_owned());
                return (format!("{flag} takes no value but `all`"), hints);
            }
            let value = text_of(error, ContextKind::InvalidValue).unwrap_or_default();
            let is_off = crate::config::boolean(&value).is_ok_and(|on| !on);
            hints.push(if is_off { format!("leave out {flag}") } else { format!("write {flag} alone") });
            format!("{flag} takes no value")
        }
        ErrorKind::NoEquals | ErrorKind::WrongNumberOfValues | ErrorKind::TooFewValues => {
            format!("{} does not take its value like this", flag_of(&name))
        }
        _ => first_line(&error.to_string()),
    };
    (line, hints)
}

/// What an error says about one thing.
fn text_of(error: &Error, kind: ContextKind) -> Option<String> {
    error.get(kind).map(plain)
}

/// The message and the hints for an argument that no command takes here.
fn unknown_argument(name: &str, mut hints: Vec<String>, arguments: &[OsString]) -> (String, Vec<String>) {
    let flag = name.trim_start_matches('-').split('=').next().unwrap_or_default();
    let command = arguments.get(1).and_then(|argument| argument.to_str()).unwrap_or_default();
    if let Some((whose, instead)) = of_another_program(flag, command).filter(|_| name.starts_with('-')) {
        let command = if has_rules_only(command) { command } else { "sync" };
        let line = format!("--{flag} is a flag of {whose} that `treeswap {command}` does not have");
        return (line, vec![instead]);
    }
    hints.extend(separator_hint(arguments).filter(|_| !name.starts_with('-')));
    hints.extend(switch_hint(name, arguments));
    if hints.is_empty() {
        hints.extend(help_hint(arguments));
    }
    (format!("unknown argument {}", if name.is_empty() { "\"\"" } else { name }), hints)
}

/// The program that has a flag which the command does not have, and what to do instead.
fn of_another_program(flag: &str, command: &str) -> Option<(&'static str, String)> {
    let instead = match (flag, command) {
        ("plugin-config", "apply" | "render" | "sync" | "check") => "use --rules",
        ("source-path", "apply") => "use --tree with --revision, or --repo",
        ("source-path", "render") => "use --tree, or --repo",
        ("source-path", "sync" | "check") => "use --repo",
        _ => {
            let instead = instead_of_flag(flag)?;
            // Of what replaces git-sync's flags, --ref is all that the commands for ConfigMaps have.
            let is_other_flag = instead.starts_with("use --") && instead != "use --ref";
            return (!has_rules_only(command) || !is_other_flag).then_some(("git-sync", instead));
        }
    };
    Some(("Prow", instead.to_owned()))
}

/// Whether a command is one for ConfigMaps, whose flags have no variables.
pub(super) fn has_rules_only(command: &str) -> bool {
    matches!(command, "apply" | "render")
}

/// The message and the hints for arguments that are required and not given.
fn missing_argument(
    error: &Error,
    name: &str,
    mut hints: Vec<String>,
    arguments: &[OsString],
) -> (String, Vec<String>) {
    let names: Vec<String> = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(names)) => names.iter().map(|name| flag_of(name)).collect(),
        _ => vec![flag_of(name)],
    };
    let command = arguments.get(1).and_then(|argument| argument.to_str());
    if !command.is_some_and(has_rules_only) {
        hints.extend(names.iter().filter_map(|name| variable_hint(name)));
    }
    hints.extend(separator_hint(arguments));
    hints.extend(names.iter().filter_map(|name| meaning(name)).map(str::to_owned));
    if hints.is_empty() {
        hints.extend(help_hint(arguments));
    }
    let line = format!("{} {} required", names.join(" and "), if names.len() == 1 { "is" } else { "are" });
    (line, hints)
}

/// The message and the hints for a value that is missing or not valid.
fn invalid_value(
    error: &Error,
    name: &str,
    mut hints: Vec<String>,
    arguments: &[OsString],
) -> (String, Vec<String>) {
    let value = text_of(error, ContextKind::InvalidValue).unwrap_or_default();
    let source = given_as(&flag_of(name), arguments);
    let why = std::error::Error::source(error).map(|why| format!(": {why}")).unwrap_or_default();
    if let Some(ContextValue::Strings(valid)) = error.get(ContextKind::ValidValue)
        && !valid.is_empty()
    {
        hints.insert(0, format!("must be one of {}", valid.join(", ")));
    }
    if hints.is_empty() {
        hints.extend(meaning(&flag_of(name)).map(str::to_owned));
    }
    let line = match value.as_str() {
        "" if source.starts_with('-') => format!("{source} needs a value{why}"),
        "" if !source.starts_with('$') => format!("{source} is empty{why}"),
        value => format!("invalid value {value:?} for {source}{why}"),
    };
    (line, hints)
}

/// The name of an argument for people: `--ref` for clap's `--ref <REF>`, `ROOT` for `<ROOT>` and `[ROOT]`, and
/// `--a or --b` for a group `<--a <A>|--b <B>>`.
fn flag_of(text: &str) -> String {
    if let Some(optional) = text.strip_prefix('[') {
        return optional.split(']').next().unwrap_or_default().to_owned();
    }
    if let Some(one_of) = text.strip_prefix('<') {
        return match one_of.split_once('>') {
            Some((name, _)) if !name.starts_with('-') => name.to_owned(),
            _ => one_of.split('|').map(flag_of).collect::<Vec<_>>().join(" or "),
        };
    }
    text.split([' ', '=', '[']).next().unwrap_or_default().to_owned()
}

/// How a value was given: the flag if it is among the arguments, otherwise the variable.
fn given_as(flag: &str, arguments: &[OsString]) -> String {
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
    // An empty one of ours hides none of git-sync's.
    let is_text = |name: &String| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_set = |name: &&String| std::env::var_os(name).is_some();
    let set = names.iter().find(|name| is_text(name)).or_else(|| names.iter().rev().find(is_set));
    set.map_or_else(|| flag.to_owned(), |name| format!("${name}"))
}

/// Explains an argument whose name does not explain itself.
fn meaning(name: &str) -> Option<&'static str> {
    Some(match name {
        "ROOT" => "ROOT is the directory that `treeswap sync` has as --root",
        "PATH" => "PATH is the directory that `treeswap sync` has as --root, or the link it keeps",
        "SHELL" => "SHELL is bash, zsh, fish, elvish or powershell",
        "--owner" => {
            "--owner=NAME is this installation's name, by which it knows its own ConfigMaps; it must never change"
        }
        "--lease-pool" => "--lease-pool=ci/pool:3 is pool-0, pool-1 and pool-2 in the namespace ci",
        "--rules or --rules-in-tree" => {
            "--rules=FILE is a file of rules on this machine, --rules-in-tree=PATH one in the tree"
        }
        _ => return None,
    })
}

/// Names the help of the command, if one was given. (`git-sync` prints its usage itself.)
fn help_hint(arguments: &[OsString]) -> Option<String> {
    let command = arguments.get(1)?.to_str().filter(|command| !command.starts_with('-'))?;
    Some(format!("`treeswap {command} --help` lists what it takes"))
}

/// For the commands that run another command: says that it goes after `--`.
fn separator_hint(arguments: &[OsString]) -> Option<String> {
    let command = arguments.get(1)?.to_str().filter(|command| matches!(*command, "pin" | "watch"))?;
    Some(format!("the command to run goes after `--`: treeswap {command} PATH -- CMD"))
}

/// If `value` is a boolean after a switch (`--one-time true`), says that a switch takes its value only after `=`.
fn switch_hint(value: &str, arguments: &[OsString]) -> Option<String> {
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
    let texts = kinds.iter().filter_map(|kind| error.get(*kind)).map(plain).filter(|text| !text.is_empty());
    texts.map(|text| format!("did you mean {text}?")).collect()
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
