//! The command line: the clap tree, one file per subcommand, output for people, and exit codes.
//!
//! An error is printed on stderr as one line, `treeswap: <what>: <cause>`, followed by lines `hint: <what to do>`.

/// Prints a line on stderr, with secrets replaced. Unlike `eprintln!`, it does not panic if stderr is closed.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let line = format!($($text)*);
        let _ = writeln!(std::io::stderr(), "{}", $crate::secret::redacted(&line));
    }};
}

/// Prints a warning: to the log if it has been started, otherwise on stderr.
fn warn(warning: impl std::fmt::Display) {
    if tracing::dispatcher::has_been_set() {
        tracing::warn!("{warning}");
    } else {
        say!("treeswap: warning: {warning}");
    }
}

/// Prints on stdout. Errors are ignored: after EPIPE the reader (`| head`) needs no more.
fn print(bytes: &[u8]) {
    use std::io::Write as _;
    let _ = std::io::stdout().lock().write_all(bytes);
}

/// Formats rows as lines whose columns are as wide as their widest cell, without trailing spaces.
fn columns<const N: usize>(rows: &[[String; N]], right_aligned: impl Fn(usize) -> bool) -> Vec<String> {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if right_aligned(column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

mod apply;
#[cfg(test)]
mod chart;
mod check;
mod complete;
mod flags;
mod gitsync;
mod input;
mod man;
mod manual;
mod render;
mod sync;
mod temporary;
mod usage;

mod demo;
mod exit;
pub mod pin;
pub mod status;
pub mod watch;

pub use exit::Exit;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::{
    app, cluster, config, configmap, desired, human, mirror, sandbox, secret, shutdown, sources, store,
    telemetry,
};

const EXAMPLES: &str = "\
Examples:
  treeswap sync --repo=https://github.com/acme/config --root=/config
  treeswap sync --one-time --repo=git@github.com:acme/config --ref=v1.4 --root=/config
  treeswap sync --sources=sources.yaml --root=/config
  treeswap watch /config -- systemctl reload gateway
  treeswap apply --rules=plugins.yaml --repo=https://github.com/acme/config --ref=main --owner=acme --dry-run
  treeswap render --rules=plugins.yaml --tree=. | kubectl apply --server-side -f -
  treeswap pin /config -- tar czf /tmp/config.tgz -C {} .";

/// Examples in the help of `sync`.
const SYNC_EXAMPLES: &str = "

Examples:
  treeswap sync --repo=https://github.com/acme/config --ref=main --root=/config
  treeswap sync --sources=sources.yaml --root=/config

sources.yaml, with two repositories for one root:

  version: 1
  sources:
    - {name: shared, repo: https://github.com/acme/shared, ref: main, to: shared}
    - {name: gateway, repo: https://github.com/acme/config, ref: main, path: gateway, to: gateway}
  end: true";

/// Keeps a directory equal to a revision of a git repository, one complete revision at a time
#[derive(Parser)]
#[command(name = "treeswap", version = version(), after_help = format!("{EXAMPLES}\n\n{}", exit::exit_codes()), max_term_width = 120, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Keep a directory equal to a revision, as a sidecar, or once with --one-time
    Sync(Box<sync::Args>),
    /// Run as git-sync v4, with its command line, layout, metrics and exit codes
    #[command(disable_help_flag = true)]
    GitSync(RawArguments),
    /// Run a command with the current generation pinned
    Pin(pin::Args),
    /// Run a command at every swap, with the new generation pinned
    Watch(watch::Args),
    /// Show generations, pins and the last attempts of a root
    Status(status::Args),
    /// Validate the configuration of `sync` offline and print it, secrets replaced
    Check(Box<sync::Args>),
    /// Apply ConfigMaps that Prow's config_updater rules produce from a tree to clusters
    Apply(Box<apply::Args>),
    /// Print ConfigMap manifests that Prow's config_updater rules produce from a tree
    Render(Box<render::Args>),
    /// Demonstrate the main use cases on a bundled example, in seconds
    ///
    /// The steps are shown on a terminal only; elsewhere it prints its last line.
    Demo(demo::Args),
    /// Print a completion script for a shell
    Completions(complete::Args),
    /// Print a page of the manual in roff, for man(1): the program's, or a command's
    Man(man::Args),
}

/// Arguments that are read by other rules than ours.
#[derive(clap::Args)]
struct RawArguments {
    /// git-sync's flags; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FLAGS")]
    arguments: Vec<OsString>,
}

fn version() -> &'static str {
    match telemetry::commit() {
        Some(commit) => format!("{} ({commit})", telemetry::VERSION).leak(), // once, for as long as the process runs
        None => telemetry::VERSION,
    }
}

/// How many options a help text shows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Help {
    /// `-h`: the common options, one line each.
    Short,
    /// `--help`: the common options, with their full description.
    Usual,
    /// `--help=all`: all options, with their full description.
    All,
}

impl Help {
    /// The help that the arguments ask for. Rewrites `--help=all` to `--help`, as clap's option takes no value.
    fn requested(arguments: &mut [OsString]) -> Self {
        let end = own(arguments).len();
        let own = &mut arguments[..end];
        if let Some(all) = own.iter_mut().find(|argument| *argument == "--help=all") {
            *all = "--help".into();
            return Self::All;
        }
        if own.iter().any(|argument| argument == "-h") {
            Self::Short
        } else if own.iter().any(|argument| argument == "--help") {
            Self::Usual
        } else {
            Self::All
        }
    }
}

/// The tree of commands, with each flag's variable.
fn tree(help: Help) -> clap::Command {
    Cli::command()
        .mut_subcommand("sync", |command| with_variables(command, help))
        .mut_subcommand("check", |command| with_variables(command, help))
        .mut_subcommand("apply", |command| with_rules(command, help))
        .mut_subcommand("render", |command| with_rules(command, help))
}

/// The command `sync` or `check`. The short help leaves the variables out, so that every flag has one line.
fn with_variables(command: clap::Command, help: Help) -> clap::Command {
    let rest = if help == Help::All { "" } else { " --help=all has the rest, and ConfigMaps." };
    let examples = if help == Help::Short || command.get_name() != "sync" { "" } else { SYNC_EXAMPLES };
    let lookup = |name: &str| std::env::var_os(name);
    let command = config::attach(command, config::Personality::Treeswap, &lookup).after_help(format!(
        "Every flag has a variable: --max-pin is $TREESWAP_MAX_PIN. Flags that git-sync has are also read from \
         $GITSYNC_…\nThe flag wins over the variable, ours over git-sync's.{rest}{examples}",
    ));
    // With rules the root is optional; whether it is missing is checked together with everything else.
    let command =
        command.mut_arg("root", |arg| arg.required(false).default_value("").hide_default_value(true));
    command.mut_args(|arg| {
        let is_of_rules =
            arg.get_help_heading().is_some_and(|heading| sync::RULE_HEADINGS.contains(&heading));
        let is_rare = is_of_rules || arg.is_hide_short_help_set();
        match help {
            Help::Short => arg.hide_env(true).hide_possible_values(true).hide_short_help(is_rare),
            Help::Usual => arg.hide_long_help(is_rare),
            Help::All => arg,
        }
    })
}

/// The command `apply` or `render`.
fn with_rules(command: clap::Command, help: Help) -> clap::Command {
    if help != Help::Short {
        return command;
    }
    command.mut_args(|arg| {
        let is_rare = matches!(arg.get_help_heading(), Some("Policies" | "Credentials"))
            || arg.is_hide_short_help_set();
        let takes_value = arg.get_action().takes_values();
        arg.hide_possible_values(takes_value).hide_short_help(is_rare)
    })
}

/// Runs the program and returns its exit code.
pub fn main() -> ExitCode {
    // Before anything else: the indexing child must have only one thread when it enters its sandbox.
    if let Some(code) = mirror::child_main(std::env::args_os().skip(1)) {
        return ExitCode::from(code);
    }
    let arguments = expand_aliases(std::env::args_os().collect());
    let git_sync = as_git_sync(&arguments);
    let called = arguments.get(1).and_then(|command| command.to_str()).unwrap_or_default();
    // Not for `pin` and `watch`, whose commands would inherit the limits.
    if git_sync.is_some() || matches!(called, "sync" | "check" | "apply" | "render") {
        app::set_limits();
    }
    if git_sync.is_some() || called == "sync" {
        // If it fails, listening for signals will fail, too, and says why.
        let _ = shutdown::ignore_sync_signals(git_sync.is_some());
    }
    secret::register_arguments_and_environment(std::env::args_os().skip(1), std::env::vars_os());
    std::panic::set_hook(Box::new(print_panic));
    match git_sync {
        Some((name, flags)) => gitsync::run(name, flags),
        None => run(arguments),
    }
}

/// If the command line is git-sync's: the name of the program in its usage text, and its flags.
fn as_git_sync(arguments: &[OsString]) -> Option<(&'static str, &[OsString])> {
    match arguments {
        [program, flags @ ..] if gitsync::is_git_sync(program) => Some(("git-sync", flags)),
        [_, command, flags @ ..] if command == "git-sync" => Some(("treeswap git-sync", flags)),
        _ => None,
    }
}

/// Rewrites `treeswap help COMMAND` and `treeswap version`, which other programs have, to `--help` and `--version`.
fn expand_aliases(mut arguments: Vec<OsString>) -> Vec<OsString> {
    match arguments.get(1).and_then(|command| command.to_str()) {
        Some("help") => {
            arguments.remove(1);
            arguments.push("--help".into());
        }
        Some("version") => arguments[1] = "--version".into(),
        _ => {}
    }
    arguments
}

/// The panic hook: prints the same as the standard library's, with secrets replaced.
fn print_panic(panic: &std::panic::PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let backtrace = std::backtrace::Backtrace::capture(); // empty unless RUST_BACKTRACE is set
    say!("thread {:?} {panic}\n{backtrace}", thread.name().unwrap_or_default());
}

/// Parses the arguments of `treeswap` and runs the command.
fn run(mut arguments: Vec<OsString>) -> ExitCode {
    let mut tree = tree(Help::requested(&mut arguments));
    let parsed = tree.try_get_matches_from_mut(&arguments);
    let parsed = parsed.and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    let (cli, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            let unread = flags::unread_variables(&tree, &arguments);
            return usage::show(&error, own(&arguments), unread, requested_format(&arguments));
        }
    };
    let given = || flags::FlagOrigins::of(&tree, &matches);
    let result = match cli.command {
        Command::Sync(args) => run_under_init(|| sync::run(&args, &given())),
        Command::Check(args) => check::run(&args, &given()),
        Command::Apply(args) => run_under_init(|| apply::run(&args, &given())),
        Command::Render(args) => run_under_init(|| render::run(&args, &given())),
        Command::GitSync(args) => return gitsync::run("treeswap git-sync", &args.arguments),
        Command::Pin(args) => pin::run(args),
        Command::Watch(args) => run_under_init(|| watch::run(args)),
        Command::Status(args) => status::run(args),
        Command::Demo(args) => run_under_init(|| demo::run(&args).map(|()| Exit::Done.into())),
        Command::Completions(args) => complete::completions(args, tree),
        Command::Man(args) => man::run(&args, &tree),
    };
    result.unwrap_or_else(|error| report(&error, &arguments))
}

/// Our own arguments: those before `--`. The others belong to the command that `pin` or `watch` runs.
fn own(arguments: &[OsString]) -> &[OsString] {
    arguments.split(|argument| argument == "--").next().unwrap_or_default()
}

/// JSON if the flag or the variable for the log's format asks for it. Errors of the command line are then also written
/// as JSON: the program that reads the log has to be able to read why there is none.
fn requested_format(arguments: &[OsString]) -> Option<telemetry::Format> {
    let texts: Vec<_> = own(arguments).iter().filter_map(|argument| argument.to_str()).collect();
    let joined = texts.iter().rev().find_map(|text| text.strip_prefix("--log-format="));
    let apart = || texts.windows(2).rev().find_map(|pair| (pair[0] == "--log-format").then_some(pair[1]));
    let variable = std::env::var("TREESWAP_LOG_FORMAT").ok();
    let format = joined.or_else(apart).or(variable.as_deref());
    (format == Some("json")).then_some(telemetry::Format::Json)
}

/// Runs a long-running command. If this process is PID 1, it becomes an init process and the command runs as its child.
fn run_under_init(command: impl FnOnce() -> anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
    match shutdown::init::supervise() {
        Ok(Some(code)) => Ok(ExitCode::from(code)),
        Ok(None) => command(),
        Err(error) => Err(anyhow::Error::new(error).context("cannot run as PID 1")),
    }
}

/// Prints an error and its hints, on stderr or in the log, and returns the exit code for it.
fn report(error: &anyhow::Error, arguments: &[OsString]) -> ExitCode {
    let mut hints = hints(error);
    hints.retain(|hint| !recommends_same_command(hint, arguments));
    let line = human::one_line(error.as_ref());
    print_error(requested_format(arguments), telemetry::ExitReason::Other, &line, &hints);
    Exit::of(error).into()
}

/// Whether a hint recommends the command that has just run.
fn recommends_same_command(hint: &str, arguments: &[OsString]) -> bool {
    let command = arguments.get(1).and_then(|argument| argument.to_str()).unwrap_or_default();
    matches!(command, "check" | "render") && hint.starts_with(&format!("`treeswap {command}"))
}

/// Prints why the process ends: in the log's format if the log has been started or `format` names one, otherwise on
/// stderr.
fn print_error(
    format: Option<telemetry::Format>,
    ending: telemetry::ExitReason<'_>,
    line: &str,
    hints: &[String],
) {
    if !telemetry::ends(format, ending, line, hints) {
        say!("treeswap: {line}");
        hints.iter().for_each(|hint| say!("hint: {hint}"));
    }
}

/// The hints of the first error in the chain whose type has hints.
fn hints(error: &anyhow::Error) -> Vec<String> {
    use std::error::Error;
    type Cause<'a> = &'a (dyn Error + 'static);
    fn of<E: Error + 'static>(cause: Cause<'_>, hints: fn(&E) -> Vec<String>) -> Option<Vec<String>> {
        cause.downcast_ref::<E>().map(hints)
    }
    let of_any = |cause: Cause<'_>| {
        of(cause, app::Error::hints)
            .or_else(|| of(cause, config::Error::hints))
            .or_else(|| of(cause, store::Error::hints))
            .or_else(|| of(cause, crate::pin::Error::hints))
            .or_else(|| of(cause, mirror::Error::hints))
            .or_else(|| of(cause, configmap::RulesError::hints))
            .or_else(|| of(cause, sandbox::Missing::hints))
            .or_else(|| of(cause, desired::Error::hints))
            .or_else(|| of(cause, |error: &sources::SourceError| error.hints.clone()))
            .or_else(|| of(cause, cluster::ConfigError::hints))
    };
    error.chain().find_map(of_any).unwrap_or_default()
}

/// The command of a valid command line, and where its flags come from.
#[cfg(test)]
fn parsed<'a>(words: impl IntoIterator<Item = &'a str>) -> (Command, flags::FlagOrigins) {
    let mut tree = tree(Help::All);
    let matches = tree.try_get_matches_from_mut(words).unwrap();
    (Cli::from_arg_matches(&matches).unwrap().command, flags::FlagOrigins::of(&tree, &matches))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_sound() {
        tree(Help::All).debug_assert();
    }

    #[test]
    fn flags_of_the_command_to_run_are_not_ours() {
        let arguments = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let line = "treeswap watch --poll=x /config -- reload --log-format=json --log-format json --poll=1s";
        assert!(requested_format(&arguments(line)).is_none());
        assert_eq!(own(&arguments(line)), arguments("treeswap watch --poll=x /config"));
        assert!(requested_format(&arguments("treeswap sync --log-format=json")).is_some());
        assert!(requested_format(&arguments("treeswap sync --log-format json --root /config")).is_some());
    }

    /// What `-h` shows fits a screen of 50 lines; the rest is in `--help=all`.
    #[test]
    fn short_help_fits_a_screen() {
        let mut tree = tree(Help::Short);
        tree.build();
        assert!(tree.render_help().to_string().lines().count() <= 40);
        for command in tree.get_subcommands_mut() {
            let lines = command.render_help().to_string().lines().count();
            assert!(lines <= 50, "{} -h has {lines} lines", command.get_name());
        }
    }

    #[test]
    fn every_flag_of_sync_has_a_heading_a_help_text_and_a_variable() {
        let mut tree = tree(Help::All);
        tree.build();
        let sync = tree.find_subcommand("sync").unwrap();
        let flags = sync.get_arguments().filter(|arg| !arg.is_hide_set());
        for flag in flags.filter(|arg| arg.get_long() != Some("help")) {
            let name = flag.get_long().unwrap();
            assert!(flag.get_help_heading().is_some(), "{name} has no heading");
            assert!(flag.get_help().is_some(), "{name} has no help");
            let variable = flag.get_env().unwrap().to_str().unwrap();
            assert_eq!(variable, format!("TREESWAP_{}", name.to_uppercase().replace('-', "_")));
        }
    }
}
