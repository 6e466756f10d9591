//! The text of `git-sync --help` and `--man`: git-sync's flags by name, mostly with the descriptions of `sync --help`.

use std::os::fd::AsFd;

use clap::builder::StyledStr;
use clap::{Arg, Command};

use crate::config::gitsync::{FLAGS, Flag, Kind};

/// The column where the descriptions begin.
const MEANING: usize = 44;

/// The line width of the manual, and of the usage if the terminal's width is unknown.
const WIDTH: usize = 100;

/// The smallest line width that is supported.
const NARROW: usize = 40;

/// The line width for the usage: the terminal's, but at most 120, as longer lines are hard to read.
pub(super) fn width() -> usize {
    let columns = |size: rustix::termios::Winsize| usize::from(size.ws_col);
    let width_of = |stream: &dyn AsFd| rustix::termios::tcgetwinsize(stream.as_fd()).map(columns).ok();
    let found = width_of(&std::io::stdout()).or_else(|| width_of(&std::io::stderr()));
    let found = found.filter(|columns| *columns > 0);
    found.unwrap_or(WIDTH).clamp(NARROW, 120)
}

const ENVIRONMENT: &str = "\
Every flag has a variable, except --git-config-add: --max-failures is $GITSYNC_MAX_FAILURES. The flag wins.
$GITSYNC_PASSWORD is the password that goes with --username, $GITSYNC_GITHUB_APP_PRIVATE_KEY the key of a GitHub App.
Of treeswap's own flags the variable is $TREESWAP_…: --max-pin is $TREESWAP_MAX_PIN.
";

/// The text of `--help`.
pub(super) fn usage(name: &str, sync: &Command, width: usize) -> String {
    let row = |name: &str, placeholder: &str, meaning: &str| row(name, placeholder, meaning, width);
    let mut text = format!("Usage: {name} [FLAGS...]\n\nFlags:\n");
    for flag in FLAGS {
        let short = if flag.name == "verbose" { "-v, " } else { "" };
        let meaning = with_default(help(flag, sync, Arg::get_help), flag.here(), sync);
        text += &row(&format!("{short}--{}", flag.name), flag.kind.placeholder(), &meaning);
    }
    text += &row("-h, --help", "", "Print this");
    text += &row("--man", "", "Print the manual");
    text += &row("--version", "", "Print the version");
    text += "\nFlags that git-sync does not have:\n";
    for arg in own_flags(sync) {
        let name = arg.get_long().unwrap_or_default();
        let meaning = arg.get_help().map(ToString::to_string).unwrap_or_default();
        text += &row(&format!("--{name}"), placeholder(arg), &with_default(meaning, name, sync));
    }
    text += "\nEnvironment variables:\n";
    ENVIRONMENT.lines().fold(text, |text, line| text + &wrapped(line, "", width))
}

/// The text of `--man`.
pub(super) fn manual(sync: &Command) -> String {
    let mut text = String::from(INTRODUCTION);
    text += "\nFLAGS\n";
    for flag in FLAGS {
        let heading = format!("--{} {}", flag.name, flag.kind.placeholder());
        let mut names: Vec<String> = flag.variable().into_iter().map(|name| format!("${name}")).collect();
        names.extend(flag.older.iter().map(|name| format!("${name} (deprecated)")));
        let names = if names.is_empty() { "no variable".to_owned() } else { names.join(", ") };
        let meaning = with_default(help(flag, sync, long), flag.here(), sync);
        text += &entry(heading.trim_end(), &[names, meaning]);
    }
    text += "\nFLAGS THAT GIT-SYNC DOES NOT HAVE\n";
    for arg in own_flags(sync) {
        let name = arg.get_long().unwrap_or_default();
        let heading = format!("--{name} {}", placeholder(arg));
        let meaning = long(arg).map(ToString::to_string).unwrap_or_default();
        let variable = arg.get_env().and_then(|name| name.to_str()).map(|name| format!("${name}"));
        text +=
            &entry(heading.trim_end(), &[variable.unwrap_or_default(), with_default(meaning, name, sync)]);
    }
    text + EPILOGUE
}

/// A row of the usage, with the meaning in a column of its own, or on lines below if the terminal is too narrow.
fn row(name: &str, placeholder: &str, meaning: &str, width: usize) -> String {
    let indent = if name.starts_with("--") { "      " } else { "  " };
    let left = format!("{indent}{name} {placeholder}");
    let left = left.trim_end();
    let column = if width >= MEANING + 40 { MEANING } else { 10 };
    let meaning = wrapped(meaning, &" ".repeat(column + 1), width);
    if left.len() <= column {
        format!("{left}{}", meaning.get(left.len()..).unwrap_or_default())
    } else {
        format!("{left}\n{meaning}")
    }
}

fn entry(heading: &str, paragraphs: &[String]) -> String {
    let mut text = format!("\n    {heading}\n");
    for line in paragraphs.iter().flat_map(|paragraph| paragraph.lines()).filter(|line| !line.is_empty()) {
        text += &wrapped(line, "        ", WIDTH);
    }
    text
}

fn wrapped(line: &str, indent: &str, width: usize) -> String {
    let mut text = String::from(indent);
    let mut used = indent.len();
    for word in line.split(' ') {
        let length = word.chars().count();
        if used > indent.len() && used + 1 + length > width {
            text = text + "\n" + indent;
            used = indent.len();
        } else if used > indent.len() {
            text.push(' ');
            used += 1;
        }
        text += word;
        used += length;
    }
    text + "\n"
}

fn arg<'a>(name: &str, sync: &'a Command) -> Option<&'a Arg> {
    sync.get_arguments().find(|arg| arg.get_long() == Some(name))
}

/// The description of a flag: git-sync's own, or what `of` takes from ours.
fn help(flag: &Flag, sync: &Command, of: fn(&Arg) -> Option<&StyledStr>) -> String {
    let ours = || arg(flag.here(), sync).and_then(of).map(ToString::to_string);
    flag.help.map(str::to_owned).or_else(ours).unwrap_or_default()
}

/// The long description of one of our own flags.
fn long(arg: &Arg) -> Option<&StyledStr> {
    arg.get_long_help().or(arg.get_help())
}

/// Appends the default to the meaning unless it is empty or false.
fn with_default(meaning: String, flag: &str, sync: &Command) -> String {
    let shown = arg(flag, sync).filter(|arg| !arg.is_hide_default_value_set());
    let default = shown.and_then(|arg| arg.get_default_values().first()).and_then(|value| value.to_str());
    match default.filter(|value| !matches!(*value, "" | "false") && !meaning.contains("[default:")) {
        Some(default) => format!("{meaning} [default: {default}]"),
        None => meaning,
    }
}

/// The flags that `sync` has and git-sync does not.
fn own_flags(sync: &Command) -> impl Iterator<Item = &Arg> {
    // --sources is left out because it is refused: git-sync has one repository.
    let known = |name: &str| name == "sources" || FLAGS.iter().any(|flag| flag.here() == name);
    sync.get_arguments().filter(move |arg| {
        !arg.is_hide_set() && arg.get_long().is_some_and(|name| !known(name) && name != "help")
    })
}

/// The placeholder for the value of one of our own flags.
fn placeholder(arg: &Arg) -> &str {
    if arg.get_num_args().is_some_and(|values| values.min_values() == 0) {
        return Kind::Bool.placeholder();
    }
    let names = arg.get_value_names().and_then(|names| names.first());
    names.map(clap::builder::Str::as_str).unwrap_or_default()
}

const INTRODUCTION: &str = "\
NAME
    git-sync - keep a directory equal to a revision of a git repository (treeswap's stand-in for git-sync v4)

SYNOPSIS
    git-sync --repo=<URL> --root=<DIR> [FLAGS...]

DESCRIPTION
    Fetches what --ref names, makes a worktree of it in ROOT/.worktrees/<commit>, and makes the link --link name it, in
    one step. A reader that goes through the link, or opens the directory behind it, sees one complete commit. Again after
    --period, until it is ended; once with --one-time.

    Flags and variables, the layout of the root, metrics, hooks and exit codes are those of git-sync v4. What is
    different on purpose: a failure of any kind leaves what is published in place; a commit is complete and on disk
    before the link names it; --sync-timeout is a hard limit; a worktree that somebody has pinned (a shared flock on its
    directory) outlives --stale-worktree-timeout by up to --max-pin; no git program is needed, nor run unless --git
    names one.
";

const EPILOGUE: &str = "
ENVIRONMENT
    Every flag has a variable, except --git-config-add; the flag wins. Of several names of one variable the oldest
    wins. A malformed variable is fatal, and so is an empty one that holds no text.

    $GITSYNC_PASSWORD, $GITSYNC_GITHUB_APP_PRIVATE_KEY
        Secrets that no flag takes: arguments are visible to every process of the machine.
    $GIT_CONFIG_COUNT, $GIT_CONFIG_KEY_<n>, $GIT_CONFIG_VALUE_<n>, $GIT_SSL_CAINFO, $GIT_SSL_NO_VERIFY, $GIT_SSH_COMMAND
        As in git, as far as reaching the remote goes. $HTTPS_PROXY, $HTTP_PROXY, $NO_PROXY: as in curl.

HOOKS
    --exechook-command and the webhook run after each update and at the first success of every process, the pre-publish
    exechook just before an update; each again after its backoff if it fails, with --one-time once, and then its failure
    is exit code 1. A program runs in the worktree, with GITSYNC_HASH set; the webhook's header Gitsync-Hash has the
    commit. With --pre-publish-gate an update waits for the pre-publish exechook, and is dropped if that fails.

EXIT CODES
    0 done, or ended by SIGTERM or SIGINT; 1 failed, or the configuration is wrong; 2 the command line cannot be read;
    128+N ended by a second signal N.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usage_is_as_wide_as_the_terminal_and_says_the_same_at_every_width() {
        let sync = crate::cli::gitsync::flags();
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let wide = usage("git-sync", &sync, 120);
        for width in [NARROW, 60, 80, 100, 120] {
            let text = usage("git-sync", &sync, width);
            assert_eq!(words(&text), words(&wide));
            for line in text.lines().filter(|line| line.chars().count() > width) {
                assert!(width < 60 && line.split_whitespace().count() <= 3, "{width}: {line}"); // one long word
            }
        }
    }
}
