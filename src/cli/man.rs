//! `treeswap man`: manual pages in roff for the program and for each command, made from clap's tree.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

use super::Exit;
use super::exit::EXIT_CODES;
use crate::config;

/// Arguments of `treeswap man`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// The command whose page is printed; without one, the program's
    #[arg(value_name = "COMMAND")]
    command: Option<String>,
    /// Write all pages into this directory instead, as treeswap.1, treeswap-sync.1, and so on
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    dir: Option<PathBuf>,
}

/// The parts of a page that clap's tree does not have.
struct More {
    command: &'static str,
    /// Variables that belong to no option, and their meaning.
    variables: &'static [(&'static str, &'static str)],
    files: &'static [(&'static str, &'static str)],
    see_also: &'static [&'static str],
}

/// The exit codes of a command and their meaning. docs/reference/exit-codes.md has the same.
fn exit_codes(command: &str) -> Vec<(&'static str, &'static str)> {
    let of = |codes: &[&str]| -> Vec<_> {
        EXIT_CODES.iter().filter(|(code, _)| codes.contains(code)).copied().collect()
    };
    let usage = of(&["2"]);
    let own: &[(&str, &str)] = match command {
        "treeswap" | "apply" => return EXIT_CODES.to_vec(),
        "sync" => {
            let mut codes = of(&["0", "1", "2", "3", "128+N"]);
            codes[0].1 = "done, or drained after SIGTERM or SIGINT";
            return codes;
        }
        "status" => &[
            ("0", "a generation is published, and with --max-age the last success is no older"),
            ("1", "otherwise, or the root cannot be read"),
        ],
        "pin" => &[
            ("1", "nothing could be pinned"),
            ("126", "the command cannot be run"),
            ("127", "there is no such command"),
            ("any", "the command's own"),
        ],
        "watch" => &[
            ("0", "ended by SIGTERM or SIGINT"),
            ("1", "failed"),
            ("126", "the command cannot be run"),
            ("127", "there is no such command"),
            ("any", "with --exit-on-failure, that of the command that failed"),
        ],
        "git-sync" => &[
            ("0", "done"),
            ("1", "failed, or the configuration is wrong"),
            ("2", "an argument cannot be read"),
            ("128+N", "ended by a second signal N"),
        ],
        _ => return of(&["0", "1", "2"]),
    };
    let usage = usage.into_iter().filter(|_| command != "git-sync");
    let mut codes: Vec<_> = own.iter().copied().chain(usage).collect();
    codes.sort_by_key(|(code, _)| code.trim_end_matches("+N").parse().unwrap_or(u16::MAX));
    codes
}

const PASSWORD: (&str, &str) =
    ("TREESWAP_PASSWORD", "The password that goes with --username, where no file holds it.");
const PRIVATE_KEY: (&str, &str) =
    ("TREESWAP_GITHUB_APP_PRIVATE_KEY", "The GitHub App's private key, where no file holds it.");
const CREDENTIAL: (&str, &str) = ("TREESWAP_CREDENTIAL", "As --credential, where that is not given.");
const RUST_LOG: (&str, &str) = ("RUST_LOG", "The log level, if neither --log-level nor --verbose is given.");
const PROXIES: (&str, &str) = ("HTTPS_PROXY, HTTP_PROXY, NO_PROXY", "Proxies, as curl(1) reads them.");
const KUBECONFIG: (&str, &str) = ("KUBECONFIG", "The kubeconfig, if no option names one.");
const KEYS: (&str, &str) =
    ("/etc/git-secret/", "Keys, known hosts and cookies, where no option names others.");
const DATA: (&str, &str) =
    ("ROOT/..data", "The link that names the current generation; names in ROOT lead through it.");
const OWN: (&str, &str) = ("ROOT/..treeswap/", "treeswap's private state: mirror, records, lock, staging.");

const MORE: &[More] = &[
    More {
        command: "treeswap",
        variables: &[RUST_LOG, ("NO_COLOR", "No colours.")],
        files: &[DATA, OWN],
        see_also: &[],
    },
    More {
        command: "sync",
        variables: &[PASSWORD, PRIVATE_KEY, RUST_LOG, PROXIES, KUBECONFIG],
        files: &[
            DATA,
            OWN,
            KEYS,
            ("/dev/termination-log", "The file for the container's termination message."),
        ],
        see_also: &["git(1)", "gitrevisions(7)", "ssh-keyscan(1)"],
    },
    More {
        command: "check",
        variables: &[PASSWORD, PRIVATE_KEY, RUST_LOG],
        files: &[KEYS],
        see_also: &["treeswap-sync(1)"],
    },
    More {
        command: "git-sync",
        variables: &[("GITSYNC_...", "As in git-sync v4; `git-sync --man` lists them.")],
        files: &[("ROOT/LINK", "The link that names the current worktree."), OWN],
        see_also: &["treeswap-sync(1)", "git-worktree(1)"],
    },
    More { command: "pin", variables: &[], files: &[DATA], see_also: &["flock(1)", "treeswap-watch(1)"] },
    More { command: "watch", variables: &[], files: &[DATA], see_also: &["treeswap-pin(1)", "inotify(7)"] },
    More { command: "status", variables: &[], files: &[OWN], see_also: &["treeswap-sync(1)"] },
    More {
        command: "apply",
        variables: &[PASSWORD, PRIVATE_KEY, CREDENTIAL, PROXIES, KUBECONFIG],
        files: &[KEYS],
        see_also: &["treeswap-render(1)", "kubectl(1)"],
    },
    More {
        command: "render",
        variables: &[PASSWORD, PRIVATE_KEY, CREDENTIAL, PROXIES],
        files: &[KEYS],
        see_also: &["treeswap-apply(1)", "kubectl(1)"],
    },
    More { command: "demo", variables: &[], files: &[], see_also: &["treeswap-sync(1)"] },
    More { command: "completions", variables: &[], files: &[], see_also: &["bash(1)", "zsh(1)", "fish(1)"] },
    More { command: "man", variables: &[], files: &[], see_also: &["man(1)"] },
];

/// Prints a page, or writes all of them.
pub(super) fn run(args: &Args, tree: &Command) -> anyhow::Result<ExitCode> {
    // The pages have all options, including those that the short help leaves out.
    let whole = |command: Command| command.mut_args(|arg| arg.hide_short_help(false).hide_long_help(false));
    let mut tree = whole(tree.clone()).mut_subcommands(whole);
    tree.build();
    if let Some(dir) = &args.dir {
        make_dir(dir)?;
        for command in std::iter::once(&tree).chain(commands(&tree)) {
            let name = Man::new(command.clone()).get_filename();
            fs_err::write(Path::join(dir, name), page(command, &tree)?)?;
        }
        return Ok(Exit::Done.into());
    }
    let command = match args.command.as_deref() {
        None | Some("treeswap") => &tree,
        Some(name) => match commands(&tree).find(|command| command.get_name() == name) {
            Some(command) => command,
            None => {
                let names: Vec<_> = commands(&tree).map(Command::get_name).collect();
                say!("treeswap: there is no command {name}; there are {}", names.join(", "));
                return Ok(Exit::Usage.into());
            }
        },
    };
    super::print(&page(command, &tree)?);
    Ok(Exit::Done.into())
}

/// Makes the directory for all pages. It is an error of the command line if something else is in its place.
fn make_dir(dir: &Path) -> anyhow::Result<()> {
    let Err(error) = fs_err::create_dir_all(dir) else { return Ok(()) };
    let why = match error.kind() {
        ErrorKind::AlreadyExists => "it is not a directory",
        ErrorKind::NotADirectory => "one of its parents is not a directory",
        _ => return Err(error.into()),
    };
    let (name, value) = ("--dir".to_owned(), dir.display().to_string());
    let hint = "name a directory, which is made if it is missing; without --dir, the page is printed";
    Err(config::Error::Place { name, value, why: why.to_owned(), hint }.into())
}

fn commands(tree: &Command) -> impl Iterator<Item = &Command> {
    tree.get_subcommands().filter(|command| !command.is_hide_set())
}

/// The page of a command, in roff.
fn page(command: &Command, tree: &Command) -> anyhow::Result<Vec<u8>> {
    let name = command.get_name();
    let more = MORE.iter().find(|more| more.command == name);
    let more = more.with_context(|| format!("no manual entry for {name}"))?;
    let version = tree.get_version().unwrap_or_default();
    let man = Man::new(command.clone()).source(format!("{} {version}", tree.get_name()));
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    synopsis(command).to_writer(&mut text)?;
    man.render_description_section(&mut text)?;
    if let Some(examples) = command.get_after_help().filter(|_| name == "treeswap") {
        preformatted("EXAMPLES", &examples.to_string()).to_writer(&mut text)?;
    }
    options(&man, &mut text)?;
    if command.has_subcommands() {
        let list =
            commands(command).map(|command| (format!("treeswap-{}(1)", command.get_name()), about(command)));
        section("COMMANDS", list).to_writer(&mut text)?;
    }
    let of_options = command
        .get_arguments()
        .filter_map(|arg| Some((arg.get_env()?.to_str()?.to_owned(), format!("As --{}.", arg.get_long()?))));
    let others = more.variables.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    section("ENVIRONMENT", of_options.chain(others)).to_writer(&mut text)?;
    let codes = exit_codes(name).into_iter().map(|(code, text)| (code.to_owned(), format!("{text}.")));
    section("EXIT STATUS", codes).to_writer(&mut text)?;
    let files = more.files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
    section("FILES", files).to_writer(&mut text)?;
    let pages: Vec<String> = match name {
        "treeswap" => commands(tree).map(|command| format!("treeswap-{}(1)", command.get_name())).collect(),
        _ => {
            let others = more.see_also.iter().map(|page| (*page).to_owned());
            std::iter::once("treeswap(1)".to_owned()).chain(others).collect()
        }
    };
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]).text([roman(pages.join(", "))]);
    roff.to_writer(&mut text)?;
    Ok(text)
}

fn about(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

/// The synopsis, taken from the help, which names only required options; clap_mangen's would list all ninety.
fn synopsis(command: &Command) -> Roff {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").trim();
    let (name, rest) = usage.split_once(' ').unwrap_or((usage, ""));
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]).text([bold(name), roman(format!(" {rest}"))]);
    roff
}

/// The options in one section, with the headings of the help as subsections.
fn options(man: &Man, into: &mut Vec<u8>) -> std::io::Result<()> {
    let mut text = Vec::new();
    man.render_options_section(&mut text)?;
    for line in String::from_utf8_lossy(&text).lines() {
        match line.strip_prefix(".SH ").filter(|heading| *heading != "OPTIONS") {
            Some(heading) => writeln!(into, ".SS {heading}")?,
            None => writeln!(into, "{line}")?,
        }
    }
    Ok(())
}

/// A section with a list of terms and their meaning; empty if there are no terms.
fn section(heading: &str, entries: impl Iterator<Item = (String, String)>) -> Roff {
    let mut roff = Roff::new();
    for (number, (term, text)) in entries.enumerate() {
        if number == 0 {
            roff.control("SH", [heading]);
        }
        roff.control("TP", []).text([italic(term)]).text([roman(text)]);
    }
    roff
}

fn preformatted(heading: &str, text: &str) -> Roff {
    let lines = text.lines().skip(1).take_while(|line| !line.is_empty());
    let mut roff = Roff::new();
    roff.control("SH", [heading]).control("nf", []);
    for line in lines {
        roff.text([Inline::Roman(line.trim().to_owned())]);
    }
    roff.control("fi", []);
    roff
}
