//! The command line from outside: help, what is refused and how, where values come from, exit codes, and the end.

mod common;
#[path = "cli/inputs.rs"]
mod inputs;
#[path = "cli/messages.rs"]
mod messages;
#[path = "cli/render.rs"]
mod render;

use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::Command;

use common::sidecar::Sidecar;
use common::{Files, Ran, World, eventually, run};

fn files(text: &str) -> Files {
    Files::new().file("routes.yaml", text).file("jobs/nightly.yaml", "at: 03:00\n")
}

/// Runs `treeswap` with nothing but these arguments and variables.
fn treeswap(world: &World, args: &[&str], variables: &[(&str, &str)]) -> Ran {
    run::to_end(world.treeswap(args).envs(variables.iter().copied()))
}

/// One complaint on one line, then nothing but hints.
#[track_caller]
fn complains(ran: &Ran, code: i32, words: &[&str]) {
    assert_eq!(ran.status.code(), Some(code), "{}{}", ran.stdout, ran.stderr);
    let mut lines = ran.stderr.lines();
    let first = lines.next().unwrap_or_default();
    assert!(first.starts_with("treeswap: "), "{:?}", ran.stderr);
    assert!(lines.all(|line| line.starts_with("hint: ")), "{:?}", ran.stderr);
    for word in words {
        assert!(ran.stderr.contains(word), "{word:?} is not in {:?}", ran.stderr);
    }
}

const SYNC: [&str; 3] = ["sync", "--repo=https://git.example.com/x.git", "--root=/nonexistent/root"];

#[test]
fn wrong_values_end_with_one_line_that_names_the_flag() {
    let world = World::new();
    let cases: &[(&[&str], &[&str])] = &[
        (&["--period=10"], &["\"10\"", "--period", "2m30s"]),
        (&["--period=-5s"], &["--period", "negative"]),
        (&["--period=1ms"], &["--period", "at least 10ms"]),
        (&["--depth=-1"], &["--depth", "\"-1\""]),
        (&["--depth=x"], &["--depth", "integer"]),
        (&["--ref="], &["--ref", "empty"]),
        (&["--ref=HEAD~1"], &["--ref", "HEAD~1"]),
        (&["--one-time=maybe"], &["--one-time", "true or false"]),
        (&["--durability=hope"], &["--durability", "syncfs, none"]),
        (&["--jitter=2"], &["--jitter", "between 0 and 1"]),
        (&["--max-bytes=lots"], &["--max-bytes", "512Mi"]),
        (&["--max-generations=0"], &["--max-generations", "at least 1"]),
        (&["--sync-on-signal=TERM"], &["--sync-on-signal", "SIGHUP"]),
        (&["--log-level=verbose"], &["--log-level", "debug"]),
        (&["--max-tree-entries=0"], &["--max-tree-entries"]),
        (&["--link=current"], &["--link needs --layout=git-sync"]),
        (&["--layout=git-sync", "--link=a/.."], &["\"a/..\"", "--link", "that is the root itself"]),
        (&["--owner=acme"], &["--owner needs --rules or --rules-in-tree"]),
        (&["--pre-publish-gate-retry"], &["--pre-publish-gate-retry needs --pre-publish-gate"]),
        (&["--webhook-method=PUT"], &["--webhook-method needs --webhook-url"]),
        (&["--exechook-command=", "--exechook-timeout=9s"], &["--exechook-timeout needs --exechook-command"]),
        (
            &["--github-base-url=https://g/api"],
            &["--github-base-url needs --github-app-application-id or --github-app-client-id"],
        ),
        (&["--prune"], &["--prune needs --rules or --rules-in-tree"]),
        (&["--kubeconfig=/x"], &["--kubeconfig needs --rules"]),
        (&["--overlaps=first"], &["--overlaps needs --rules"]),
        (&["--resync-period=5m"], &["--resync-period needs --rules"]),
        (&["--git-gc=never"], &["--git-gc: must be one of auto, always, aggressive, off\n"]),
        (&["--http-pprof"], &["--http-pprof needs --http-bind"]),
        (&["--submodules=some"], &["--submodules", "\"some\""]),
        (&["--username=me"], &["--username needs --password-file"]),
        (&["--password-file=/x"], &["--password-file needs --username"]),
        (&["--credential={}"], &["--credential", "url"]),
        (&["--credential=[1"], &["--credential", "JSON"]),
        (&["--http-bind=9375"], &["--http-bind", "\"9375\"", ":8080"]),
        (&["--http-bind=localhost:99999"], &["--http-bind", "localhost:99999"]),
        (&["--webhook-secret-file=/x"], &["--webhook-secret-file needs --http-bind"]),
        (&["--repo=ftp://x/y"], &["--repo", "https, http, ssh, git"]),
        (&["--perod=5s"], &["unknown argument --perod", "did you mean", "--period"]),
        (&["-one-time"], &["unknown argument"]),
        (&["main"], &["unknown argument main"]),
        (&["--period"], &["--period needs a value"]),
        (&["--one-time", "true"], &["unknown argument true", "hint: write --one-time=true"]),
        (&["--max-prune=50%"], &["\"50%\"", "--max-prune", "from 0 to 100", "without a percent sign"]),
        (&["--max-prune=150"], &["\"150\"", "from 0 to 100"]),
        (&["--log-level=garbage=x"], &["for --log-level", "a level is one of"]),
        (&["--depth=-1"], &["--depth: must be at least 0 and at most 2147483647\n"]),
        (&["--depth=3000000000"], &["--depth: must be at least 0 and at most 2147483647\n"]),
        (&["--depth=5000000000"], &["--depth: must be at least 0 and at most 2147483647\n"]),
        (&["--max-path-depth=0"], &["--max-path-depth: must be at least 1 and at most 1000\n"]),
        (&["--max-path-depth=1001"], &["--max-path-depth: must be at least 1 and at most 1000\n"]),
        (&["--max-fetch-bytes=0"], &["--max-fetch-bytes: must be at least 1\n"]),
        (&["--filter=foo"], &["\"foo\"", "--filter", "blob:none"]),
        (&["--filter=blob:limit=1x"], &["--filter"]),
        (&["--layout=git-sync", "--link=.git/x"], &["--link", "it is inside .git"]),
        (&["--concurrency=0"], &["--concurrency", "from 1 to"]),
        (&["--webhook-url=localhost:9090/x"], &["--webhook-url", "must begin with http:// or https://"]),
    ];
    for (args, words) in cases {
        let base: Vec<&str> = match args[0].split('=').next() {
            Some("--repo") => vec![SYNC[0], SYNC[2]],
            _ => SYNC.to_vec(),
        };
        let ran = treeswap(&world, &[&base[..], args].concat(), &[]);
        complains(&ran, 2, words);
        let checked = treeswap(&world, &[&["check"], &base[1..], args].concat(), &[]);
        let said = checked.stderr.replace("`treeswap check --help`", "`treeswap sync --help`");
        assert_eq!(said, ran.stderr, "check says the same of {args:?}");
    }
}

#[test]
fn a_wrong_wait_of_a_pin_is_named() {
    let world = World::new();
    for wrong in ["--wait=5", "--wait=", "--wait=1 hour"] {
        complains(&treeswap(&world, &["pin", wrong, "/x", "--", "true"], &[]), 2, &["--wait", "2m30s"]);
    }
}

#[test]
fn what_is_missing_is_named_with_its_variable_if_it_has_one() {
    let world = World::new();
    complains(&treeswap(&world, &["sync", "--root=/x"], &[]), 2, &["--repo is required", "$TREESWAP_REPO"]);
    complains(&treeswap(&world, &["sync"], &[]), 2, &["--repo is required"]);
    complains(&treeswap(&world, &["sync", "--repo=/x"], &[]), 2, &["sync needs --root, or --rules"]);
    let no_owner = treeswap(&world, &["apply", "--rules=x"], &[]);
    complains(&no_owner, 2, &["--owner is required"]);
    let no_rules = treeswap(&world, &["apply", "--repo=/x", "--owner=x"], &[]);
    complains(&no_rules, 2, &["treeswap: --rules or --rules-in-tree is required"]);
    for ran in [no_owner, no_rules] {
        assert!(!ran.stderr.contains("$TREESWAP_"), "apply has no variables: {}", ran.stderr);
    }
    complains(&treeswap(&world, &["status"], &[]), 2, &["treeswap: ROOT is required\n"]);
    let without_value = treeswap(&world, &["sync", "--period"], &[]);
    assert_eq!(without_value.stderr, "treeswap: --period needs a value\n", "and no empty list of values");
}

#[test]
fn a_flag_of_a_root_needs_one() {
    let world = World::new();
    for flag in
        ["--grace=3m", "--touch-file=..t", "--exechook-command=x", "--submodules=shallow", "--max-failures=3"]
    {
        let name = flag.split_once('=').unwrap().0;
        let args = ["sync", "--repo=/x", "--rules-in-tree=x", "--owner=o", flag];
        complains(&treeswap(&world, &args, &[]), 2, &[&format!("{name} needs --root")]);
    }
}

#[test]
fn a_missing_or_unknown_command_is_named() {
    let world = World::new();
    complains(&treeswap(&world, &["synchronise"], &[]), 2, &["unknown command \"synchronise\""]);
    complains(&treeswap(&world, &["man", "nothing-such"], &[]), 2, &["there is no command nothing-such"]);
    let after = "hint: the command to run goes after `--`: treeswap watch PATH -- CMD\n";
    complains(&treeswap(&world, &["watch"], &[]), 2, &["treeswap: PATH and CMD are required\n", after]);
    complains(&treeswap(&world, &["watch", "/x", "echo"], &[]), 2, &["unknown argument echo\n", after]);
    let none = treeswap(&world, &[], &[]);
    assert_eq!(none.status.code(), Some(2));
    assert!(none.stderr.contains("Usage: treeswap <COMMAND>"), "{}", none.stderr);
}

#[test]
fn a_wrong_variable_is_named_as_the_variable_it_is() {
    let world = World::new();
    let ran = treeswap(&world, &SYNC, &[("GITSYNC_PERIOD", "ten")]);
    complains(&ran, 2, &["\"ten\"", "$GITSYNC_PERIOD"]);
    let ran = treeswap(&world, &SYNC, &[("RUST_LOG", "garbage=x")]);
    complains(&ran, 2, &["invalid value \"garbage=x\" for $RUST_LOG: "]);
    let ran = treeswap(&world, &SYNC, &[("TREESWAP_REF", "a..b"), ("GITSYNC_REF", "main")]);
    complains(&ran, 2, &["$TREESWAP_REF", "a..b"]);
    let ran = treeswap(&world, &SYNC, &[("TREESWAP_SUBMODULES", "some")]);
    complains(&ran, 2, &["$TREESWAP_SUBMODULES", "recursive, shallow, off"]);
    let mut command = world.treeswap(&SYNC);
    let ran = run::to_end(command.env("TREESWAP_REF", std::ffi::OsStr::from_bytes(b"\xff")));
    complains(&ran, 2, &["$TREESWAP_REF", "UTF-8"]);
}

#[test]
fn a_log_that_cannot_be_written_stops_nothing() {
    let world = World::new();
    let commit = world.remote.commit(&files("one"));
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = world.sync(&["--one-time"]);
    let status = command.stdout(full()).stderr(full()).status().unwrap();
    assert!(status.success(), "{status}");
    world.assert_published(&commit);
    let status = world.sync(&["--period=nonsense"]).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(2));
}

#[test]
fn flags_of_git_sync_that_are_not_served_are_named_with_what_to_do_instead() {
    let world = World::new();
    for (flag, instead) in [
        ("--sync-hook-command=/x", "--exechook-command"),
        ("--branch=main", "--ref"),
        ("--wait=5", "--period"),
    ] {
        let ran = treeswap(&world, &[&SYNC[..], &[flag]].concat(), &[]);
        let name = flag.split('=').next().unwrap();
        complains(&ran, 2, &[name, "is a flag of git-sync that `treeswap sync` does not have", instead]);
    }
}

#[test]
fn a_password_among_the_arguments_is_refused_and_not_repeated() {
    let world = World::new();
    let given = ["--username=me", "--password=hunter2"];
    let ran = treeswap(&world, &[&SYNC[..], &given].concat(), &[]);
    complains(&ran, 2, &["--password is refused", "--password-file", "$TREESWAP_PASSWORD"]);
    let json = r#"--credential={"url":"https://git.example.com","username":"me","password":"hunter2"}"#;
    let in_json = treeswap(&world, &[&SYNC[..], &[json]].concat(), &[]);
    complains(
        &in_json,
        2,
        &["a password in --credential is refused", "password-file", "$TREESWAP_CREDENTIAL"],
    );
    let url = "--repo=https://me:hunter2@git.example.com/x.git";
    let twice = [("TREESWAP_PASSWORD", "hunter2"), ("TREESWAP_USERNAME", "me")];
    let both = treeswap(&world, &["check", url, "--root=/r"], &twice);
    complains(&both, 2, &["exclude each other"]);
    for ran in [ran, in_json, both] {
        assert!(!ran.stderr.contains("hunter2"), "{}", ran.stderr);
    }
}

#[test]
fn the_flag_wins_over_our_variable_and_that_over_git_syncs() {
    let world = World::new();
    let variables = [
        ("GITSYNC_PERIOD", "1m"),
        ("TREESWAP_PERIOD", "2m"),
        ("GITSYNC_STALE_WORKTREE_TIMEOUT", "3m"),
        ("GITSYNC_REF", "stable"),
        ("TREESWAP_ONE_TIME", "true"),
        ("GITSYNC_SSH_KEY_FILE", "/a:/b"),
    ];
    let ran = treeswap(&world, &[&["check"], &SYNC[1..], &["--ref=main"]].concat(), &variables);
    let printed = ran.expect_ok("check").stdout;
    let line = |flag: &str| {
        let found = printed.lines().find(|line| line.starts_with(&format!("--{flag}=")));
        found
            .unwrap_or_else(|| panic!("no --{flag} in\n{printed}"))
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(line("period"), "--period=2m # $TREESWAP_PERIOD");
    assert_eq!(line("grace"), "--grace=3m # $GITSYNC_STALE_WORKTREE_TIMEOUT");
    assert_eq!(line("ref"), "--ref=main # flag");
    assert_eq!(line("one-time"), "--one-time=true # $TREESWAP_ONE_TIME");
    assert_eq!(line("min-interval"), "--min-interval=5s # default");
}

/// The flags that `check` printed, without the comments that say where they came from.
fn without_origins(printed: &str) -> Vec<&str> {
    printed.lines().map(|line| line.split("  #").next().unwrap().trim_end()).collect()
}

#[test]
fn check_prints_what_sync_would_run_with_and_no_secret() {
    let world = World::new();
    let args = ["check", "--repo=https://me:hunter2@git.example.com/x.git", "--root=/config"];
    let json = r#"[{"url":"https://other.example.com","username":"it","password":"hunter2"}]"#;
    let ran = treeswap(&world, &args, &[("TREESWAP_CREDENTIAL", json)]).expect_ok("check");
    assert!(!ran.stdout.contains("hunter2") && !ran.stderr.contains("hunter2"), "{}", ran.stdout);
    assert!(ran.stderr.contains("warning: the password in --repo's URL can be read by"), "{}", ran.stderr);
    assert!(
        ran.stderr.ends_with("treeswap: the configuration is valid; nothing was sent over the network\n"),
        "{}",
        ran.stderr
    );
    assert!(ran.stdout.contains("--repo=https://git.example.com/x.git "), "{}", ran.stdout);
    assert!(ran.stdout.contains("--credential=[secret] "), "{}", ran.stdout);
    assert!(!world.root.exists() && !std::path::Path::new("/config/..treeswap").exists());
    // What it prints is a command line that means the same, but for the secret.
    let again: Vec<&str> =
        without_origins(&ran.stdout).into_iter().filter(|flag| !flag.starts_with("--credential=")).collect();
    let second = treeswap(&world, &[&["check"], &again[..]].concat(), &[]).expect_ok("its own output");
    assert_eq!(without_origins(&second.stdout), again);
}

#[test]
fn unknown_variables_are_warned_about_and_service_links_are_not() {
    let world = World::new();
    let variables = [
        ("TREESWAP_PEROID", "5s"),
        ("GITSYNC_BRANCHES", "x"),
        ("GIT_SYNC_REPO", "x"),
        ("TREESWAP_PORT", "tcp://10.0.0.1:9375"),
        ("TREESWAP_SERVICE_HOST", "10.0.0.1"),
        ("TREESWAP_PORT_9375_TCP_PROTO", "tcp"),
    ];
    let ran = treeswap(&world, &[&["check"], &SYNC[1..]].concat(), &variables).expect_ok("only a warning");
    let warned: Vec<&str> = ran.stderr.lines().filter(|line| line.contains("warning")).collect();
    assert_eq!(warned.len(), 3, "{}", ran.stderr);
    for name in ["TREESWAP_PEROID", "GITSYNC_BRANCHES", "GITSYNC_REPO"] {
        assert!(ran.stderr.contains(name), "{}", ran.stderr);
    }
}

#[test]
fn files_of_ssh_that_are_given_and_cannot_be_read_are_warned_about() {
    let world = World::new();
    let warned = |args: &[&str], variables: &[(&str, &str)]| -> Vec<String> {
        let args = [&["check", "--repo=git@git.example.com:x", "--root=/r"], args].concat();
        let ran = treeswap(&world, &args, variables).expect_ok("only a warning");
        ran.stderr.lines().filter(|line| line.contains("cannot be read")).map(str::to_owned).collect()
    };
    assert_eq!(warned(&[], &[]), [""; 0], "the defaults");
    let lines = warned(&["--ssh-key-file=/no/key", "--ssh-known-hosts-file=/no/hosts"], &[]);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].contains("--ssh-key-file=/no/key") && lines[0].contains("No such file"), "{lines:?}");
    assert!(lines[1].contains("--ssh-known-hosts-file=/no/hosts"), "{lines:?}");
    let off = warned(&["--ssh-known-hosts=false", "--ssh-known-hosts-file=/no/hosts"], &[]);
    assert_eq!(off, [""; 0], "it is not read");
    let two = warned(&[], &[("TREESWAP_SSH_KEY_FILE", "/no/one:/dev/null:/no/two")]);
    assert_eq!(two.len(), 2, "{two:?}");
}

#[test]
fn help_version_completions_and_manual_come_from_one_tree() {
    let world = World::new();
    let help = treeswap(&world, &["sync", "--help=all"], &[]).expect_ok("--help=all").stdout;
    let headings = ["Source", "Credentials", "Root", "Retention", "Pace", "Server", "Logging", "Limits"];
    for heading in headings {
        assert!(help.contains(&format!("\n{heading}:\n")), "no heading {heading}");
    }
    for part in ["[env: TREESWAP_MAX_PIN]", "[default: 10m]", "--stale-worktree-timeout"] {
        assert!(help.contains(part), "{part}");
    }
    let version = treeswap(&world, &["--version"], &[]).expect_ok("--version").stdout;
    assert!(version.starts_with(&format!("treeswap {}", env!("CARGO_PKG_VERSION"))), "{version}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = treeswap(&world, &["completions", shell], &[]).expect_ok(shell).stdout;
        assert!(script.contains("min-interval"), "{shell}");
    }
    let manual = treeswap(&world, &["man", "sync"], &[]).expect_ok("man sync").stdout;
    // Every flag that the help shows is in the manual.
    for flag in help.lines().filter_map(|line| line.trim_start().strip_prefix("--")) {
        let flag = flag.split([' ', '[', '=']).next().unwrap().replace('-', "\\-");
        assert!(manual.contains(&flag), "--{flag} is not in the manual");
    }
}

/// The options that a help shows, besides `--help`.
fn options(help: &str) -> Vec<&str> {
    let lines = help.lines().filter_map(|line| line.trim_start().strip_prefix("--"));
    lines.map(|flag| flag.split([' ', '[', '=']).next().unwrap()).collect()
}

#[test]
fn the_help_of_sync_has_what_people_need_and_all_of_it_where_that_is_asked_for() {
    let world = World::new();
    let help = |word: &str| treeswap(&world, &["sync", word], &[]).expect_ok(word).stdout;
    let (short, usual, all) = (help("-h"), help("--help"), help("--help=all"));
    assert_eq!(options(&short), options(&usual));
    // `-h` fits a screen of 50 lines (a test in `src/cli/mod.rs`), on which about twenty options have room.
    assert!(options(&usual).len() <= 22, "{usual}");
    for needed in ["repo", "ref", "password-file", "ssh-key-file", "root", "grace", "one-time", "period"] {
        assert!(options(&usual).contains(&needed), "--{needed} is not in {usual}");
    }
    assert!(usual.contains("--help=all") && usual.contains("[env: TREESWAP_MAX_PIN]"), "{usual}");
    let all = options(&all);
    assert!(all.len() > 80 && options(&usual).iter().all(|flag| all.contains(flag)), "{all:?}");
    // What belongs to another program is passed on.
    let passed = treeswap(&world, &["pin", "/nonexistent", "--", "x", "--help=all"], &[]);
    assert!(!passed.stdout.contains("Usage"), "{}", passed.stdout);
}

#[test]
fn the_manual_has_a_page_for_each_command_with_the_customary_sections() {
    let world = World::new();
    let dir = world.dir().join("man1");
    treeswap(&world, &["man", "--dir", dir.to_str().unwrap()], &[]).expect_ok("man --dir");
    let help = treeswap(&world, &["--help"], &[]).expect_ok("--help").stdout;
    let list = help.split("Commands:").nth(1).unwrap().split("Options:").next().unwrap();
    let commands: Vec<&str> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), commands.len() + 1);
    for name in std::iter::once("").chain(commands) {
        let (file, page) = if name.is_empty() {
            ("treeswap.1".to_owned(), vec!["man"])
        } else {
            (format!("treeswap-{name}.1"), vec!["man", name])
        };
        let text = std::fs::read_to_string(dir.join(&file)).unwrap();
        assert_eq!(treeswap(&world, &page, &[]).expect_ok("man").stdout, text);
        let sections: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
        let sections: Vec<&str> = sections.iter().map(|section| section.trim_matches('"')).collect();
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "SEE ALSO"] {
            assert!(sections.contains(&section), "{file} has no {section}: {sections:?}");
        }
        if ["", "sync", "apply", "git-sync"].contains(&name) {
            for section in ["OPTIONS", "ENVIRONMENT", "FILES"] {
                assert!(sections.contains(&section), "{file} has no {section}: {sections:?}");
            }
        }
        assert_eq!(sections.first(), Some(&"NAME"));
        assert_eq!(sections.last(), Some(&"SEE ALSO"));
    }
    let unknown = treeswap(&world, &["man", "nope"], &[]);
    assert!(unknown.complaint().contains("there is no command nope"), "{}", unknown.stderr);
}

/// A terminal of 70 columns.
struct Terminal {
    /// What programs have as their output.
    program: std::fs::File,
    /// What a person sees.
    seen: std::sync::mpsc::Receiver<String>,
}

impl Terminal {
    #[expect(unsafe_code, reason = "openpty(3) has no safe form")]
    fn open() -> Self {
        use std::io::Read as _;
        use std::os::fd::FromRawFd as _;
        let (mut person, mut program) = (-1, -1);
        let (no_name, as_it_is) = (std::ptr::null_mut(), std::ptr::null());
        // SAFETY: both descriptors are written, and then owned by one file each.
        let (mut person, program) = unsafe {
            let size = libc::winsize { ws_row: 40, ws_col: 70, ws_xpixel: 0, ws_ypixel: 0 };
            assert_eq!(libc::openpty(&mut person, &mut program, no_name, as_it_is, &size), 0);
            (std::fs::File::from_raw_fd(person), std::fs::File::from_raw_fd(program))
        };
        let (send, seen) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(length @ 1..) = person.read(&mut piece) {
                let _ = send.send(String::from_utf8_lossy(&piece[..length]).into_owned());
            }
        });
        Self { program, seen }
    }

    fn output(&self) -> std::fs::File {
        self.program.try_clone().unwrap()
    }

    /// Waits until it shows all of these words, and returns what it shows.
    fn shows(&self, words: &[&str]) -> String {
        let (mut text, limit) = (String::new(), std::time::Duration::from_secs(30));
        while !words.iter().all(|word| text.contains(word)) {
            let more = self.seen.recv_timeout(limit);
            text += &more.unwrap_or_else(|_| panic!("{words:?} are not in {text:?}"));
        }
        text
    }
}

#[test]
fn on_a_terminal_a_line_says_what_a_sync_waits_for_and_for_how_long() {
    let world = World::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let terminal = Terminal::open();
    let repo = format!("--repo=git://{}/x", silent.local_addr().unwrap());
    let mut command = world.treeswap(&["sync", &repo, "--root"]);
    command.arg(&world.root).env("TERM", "xterm").stderr(terminal.output());
    let mut child = command.spawn().unwrap();
    terminal.shows(&["resolving the ref at the remote", "(3s)"]);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn on_a_terminal_git_syncs_help_is_as_wide_as_it() {
    let world = World::new();
    let terminal = Terminal::open();
    let mut command = world.treeswap(&["git-sync", "--help"]);
    command.stdout(terminal.output()).spawn().unwrap().wait().unwrap();
    let text = terminal.shows(&["Usage: treeswap git-sync", "$TREESWAP_MAX_PIN."]);
    let (_, usage) = text.split_once("Usage: ").unwrap();
    for line in usage.lines() {
        assert!(line.trim_end().chars().count() <= 70, "{line:?}");
    }
}

#[test]
fn one_time_publishes_and_ends() {
    let world = World::new();
    let commit = world.remote.commit(&files("one"));
    let log = world.sync_once(&[]).expect_ok("first").stderr;
    world.assert_published(&commit);
    world.assert_clean(1);
    assert!(log.contains("\"message\":\"published ") && log.contains(&commit), "{log}");
    let link = std::fs::read_link(world.root.join("..data")).unwrap();
    world.sync_once(&[]).expect_ok("nothing new");
    assert_eq!(std::fs::read_link(world.root.join("..data")).unwrap(), link);
    let commit = world.remote.commit(&files("two"));
    world.sync_once(&[]).expect_ok("second");
    world.assert_published(&commit);
}

#[test]
fn one_time_fails_with_what_is_wrong_and_what_to_do() {
    let world = World::new();
    world.remote.commit(&files("one"));
    let ran = world.sync_once(&["--ref=nope", "--max-failures=0"]);
    assert_eq!(ran.status.code(), Some(1));
    ran.names(&["giving up after 1 failure", "couldn't find remote ref nope"]);
    assert!(!world.root.join("..data").exists());
}

#[test]
fn a_second_instance_is_refused_and_can_wait() {
    let world = World::new();
    let commit = world.remote.commit(&files("one"));
    let log = world.dir().join("first.log");
    let mut first = run::Background::start(&mut world.sync(&["--period=1h"]), &log);
    eventually(20, "it publishes", || world.differences(&commit).is_empty().then_some(()));
    let pid = first.pid().to_string();
    let second = world.sync_once(&[]);
    assert_eq!(second.status.code(), Some(1));
    second.names(&[world.root.to_str().unwrap(), "in use", &pid]);

    let log = world.dir().join("third.log");
    let mut third = run::Background::start(&mut world.sync(&["--one-time", "--lock-wait=1m"]), &log);
    eventually(20, "it waits", || third.log().contains("waiting").then_some(()));
    assert!(first.terminate().success());
    assert!(third.ended().success(), "{}", third.log());
}

#[test]
fn probes_are_answered_while_the_lock_is_waited_for() {
    let world = World::new();
    let commit = world.remote.commit(&files("one"));
    let mut first = run::Background::start(&mut world.sync(&["--period=1h"]), &world.dir().join("first.log"));
    eventually(20, "it publishes", || world.differences(&commit).is_empty().then_some(()));
    let second = Sidecar::start(&world, &["--lock-wait=1m"]);
    let answer = |path: &str| second.ask(path).unwrap_or_default();
    eventually(20, "it waits", || answer("/readyz").contains("in use by another writer").then_some(()));
    assert!(answer("/readyz").starts_with("HTTP/1.1 503"), "{}", answer("/readyz"));
    assert!(answer("/livez").starts_with("HTTP/1.1 200"), "{}", answer("/livez"));
    assert!(first.terminate().success());
    eventually(20, "it serves", || answer("/readyz").starts_with("HTTP/1.1 200").then_some(()));
}

#[test]
fn a_port_that_is_taken_is_found_before_anything_is_touched() {
    let world = World::new();
    world.remote.commit(&files("one"));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let bind = taken.local_addr().unwrap().to_string();
    let ran = world.sync_once(&[&format!("--http-bind={bind}")]);
    assert_eq!(ran.status.code(), Some(1));
    assert!(ran.complaint().contains(&bind), "{}", ran.stderr);
    assert!(!world.root.exists());
}

#[test]
fn the_last_error_goes_to_the_termination_log_if_there_is_one() {
    let world = World::new();
    let log = world.dir().join("termination-log");
    let flag = format!("--termination-log={}", log.display());
    world.sync_once(&[&flag]).expect_failure("an empty repository");
    assert!(!log.exists(), "made by us, nobody would read it");
    std::fs::write(&log, "left over").unwrap();
    let ran = world.sync_once(&[&flag]).expect_failure("an empty repository");
    let words = std::fs::read_to_string(&log).unwrap();
    assert_eq!(words.lines().next(), Some(ran.complaint()));
    assert!(words.contains("\nhint: "), "{words}");
}

#[test]
fn an_error_before_the_sync_starts_goes_to_the_termination_log_too() {
    let world = World::new();
    let log = world.dir().join("termination-log");
    let kubeconfig = world.dir().join("kubeconfig");
    std::fs::write(&kubeconfig, "contexts: 1").unwrap();
    let fails = |more: &[&str], tmpdir: &Path, named: &str| {
        std::fs::write(&log, "left over").unwrap();
        let mut command = world.treeswap(&["sync", "--owner=o", "--repo"]);
        command
            .arg(&world.remote.path)
            .arg("--termination-log")
            .arg(&log)
            .arg("--kubeconfig")
            .arg(&kubeconfig);
        let ran = run::to_end(command.args(more).env("TMPDIR", tmpdir)).expect_failure(named);
        assert!(ran.complaint().contains(named), "{}", ran.stderr);
        assert_eq!(std::fs::read_to_string(&log).unwrap().lines().next(), Some(ran.complaint()));
    };
    let absent = world.dir().join("absent");
    let (rules, mirror) = ("--rules-in-tree=r", format!("--mirror={}", absent.join("mirror").display()));
    for more in [&[rules][..], &[rules, "--root=/nonexistent/root"]] {
        fails(&[more, &["--stamp-key=..x"]].concat(), world.dir(), "--stamp-key");
        fails(more, world.dir(), "kubeconfig");
    }
    fails(&["--rules=/nonexistent/rules.yaml"], world.dir(), "/nonexistent/rules.yaml");
    fails(&[rules], &absent, "temporary directory");
    // With a directory for the mirror no other is made, so the next thing that is wrong is named.
    fails(&[rules, &mirror], &absent, "kubeconfig");
}

/// Every line is JSON, and why it ended is said once: also what is wrong before there is a log.
#[test]
fn json_means_every_line_the_last_one_included() {
    let world = World::new();
    let mut command = world.treeswap(&["sync", "--log-format=json"]);
    for (more, code, error) in [
        (&["--repo=https://h/x", "--root=/x", "--nope"][..], 2, "unknown argument --nope"),
        (&["--repo=https://h/x", "--root=/x", "--period=1ms"], 2, "--period"),
        (&["--one-time", "--ref=nope"], 1, "couldn't find remote ref nope"),
    ] {
        let ran = match code {
            2 => treeswap(&world, &[&["sync", "--log-format", "json"], more].concat(), &[]),
            _ => {
                command.arg("--repo").arg(&world.remote.path).arg("--root").arg(&world.root).args(more);
                run::to_end(&mut command)
            }
        };
        assert_eq!(ran.status.code(), Some(code), "{}", ran.stderr);
        let parsed = |line: &str| {
            serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|_| panic!("no JSON: {line}"))
        };
        let lines: Vec<_> = ran.stderr.lines().map(parsed).collect();
        let last = lines.last().unwrap();
        assert_eq!((&last["level"], &last["message"]), (&"ERROR".into(), &"treeswap ends".into()));
        assert!(last["error"].as_str().unwrap().contains(error), "{last}");
        let said = lines.iter().filter(|line| line.to_string().contains(error)).count();
        assert_eq!(said, 1, "{}", ran.stderr);
    }
    // A run of `apply`, wrong in its command line, in its values, and in what they name.
    for (args, code, error) in [
        (&["--no-such-flag"][..], 2, "--no-such-flag"),
        (&["--rules=r", "--owner=o", "--max-prune=200"], 2, "--max-prune"),
        (&["--rules=/nonexistent/rules.yaml", "--owner=o", "--tree=."], 2, "/nonexistent/rules.yaml"),
        (&["--rules-in-tree=r", "--owner=o", "--tree=."], 2, "no cluster is configured"),
    ] {
        let ran = treeswap(&world, &[&["apply", "--log-format=json"], args].concat(), &[]);
        assert_eq!((ran.status.code(), ran.stdout.as_str()), (Some(code), ""), "{}", ran.stderr);
        let lines: Vec<serde_json::Value> =
            ran.stderr.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
        assert_eq!(lines.len(), 1, "{}", ran.stderr);
        assert_eq!(lines[0]["level"], "ERROR");
        assert!(lines[0]["error"].as_str().unwrap().contains(error), "{}", ran.stderr);
    }
}

#[test]
fn once_with_nothing_new_says_that_the_remote_agrees() {
    let world = World::new();
    world.remote.commit(&files("one"));
    world.sync_once(&[]).expect_ok("the first");
    let again = world.sync_once(&[]).expect_ok("the second");
    assert!(again.stderr.contains("up to date: main is "), "{}", again.stderr);
}

#[test]
fn the_error_file_holds_the_last_error_until_a_success_and_the_touch_file_is_touched() {
    let world = World::new();
    let (error, touched) = (world.dir().join("error.json"), world.dir().join("sub/touched"));
    let flags =
        [&format!("--error-file={}", error.display())[..], &format!("--touch-file={}", touched.display())];
    world.sync_once(&flags).expect_failure("an empty repository");
    let text = std::fs::read_to_string(&error).unwrap();
    let read: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&read["Msg"], &read["Args"]["failCount"]),
        (&"too many failures, aborting".into(), &1.into())
    );
    assert!(read["Err"].as_str().unwrap().contains("main") && read["Args"].is_object(), "{text}");
    assert!(!touched.exists());
    world.remote.commit(&files("one"));
    world.sync_once(&flags).expect_ok("now there is a commit");
    assert!(!error.exists() && touched.exists());
}

/// In a container, Ctrl-C reaches the process twice: from the terminal, and from PID 1, which forwards it.
#[test]
fn a_second_signal_aborts_unless_it_is_the_first_one_again_at_once() {
    use rustix::process::{Pid, Signal, kill_process};
    let ends = |pause: u64, second: Signal| {
        let world = World::new();
        world.remote.commit(&files("one"));
        // The drain waits for this program for more than a second.
        let (hook, started) = (world.dir().join("hook"), world.dir().join("started"));
        run::executable(&hook, &format!("#!/bin/sh\ntouch {}\nexec sleep 60\n", started.display()));
        let hook = format!("--exechook-command={}", hook.display());
        let log = world.dir().join("log");
        let mut sync = run::Background::start(&mut world.sync(&["--period=1h", &hook]), &log);
        eventually(20, "the program runs", || started.exists().then_some(()));
        let pid = Pid::from_child(&sync.child);
        kill_process(pid, Signal::INT).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(pause));
        kill_process(pid, second).unwrap();
        sync.ended().code()
    };
    assert_eq!(ends(20, Signal::TERM), Some(143), "another signal");
    assert_eq!(ends(500, Signal::INT), Some(130), "a later one");
    // On a machine that is busy, the process may see it later than it was sent.
    let again: Vec<_> = (0..5).map(|_| ends(20, Signal::INT)).take_while(|code| *code != Some(0)).collect();
    assert!(again.len() < 5, "the first one again: {again:?}");
}

/// The arguments of unshare(1) with which a program becomes PID 1 of a namespace of its own.
fn pid_namespace() -> Vec<&'static str> {
    let mut arguments = vec!["--pid", "--fork", "--mount-proc", "--kill-child"];
    if !rustix::process::geteuid().is_root() {
        arguments.extend(["--user", "--map-root-user"]);
    }
    arguments
}

#[test]
fn as_pid_1_it_passes_signals_on_reaps_orphans_and_ends_as_its_child_does() {
    let world = World::new();
    let commit = world.remote.commit(&files("one"));
    let namespace = pid_namespace();
    let ran = Command::new("unshare").args(&namespace).arg("true").output().expect("unshare of util-linux");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(
        ran.status.success(),
        "this test needs a PID namespace: run it as root, or allow user namespaces: {said}"
    );
    // The script leaves an orphan behind that ends at once, as a killed `git upload-pack` would, and becomes treeswap.
    let mut command = world.sync(&["--period=1h"]);
    let mut inside = run::clean("unshare", &world.dir().join("home"));
    inside.args(&namespace).args(["sh", "-c", "(sh -c 'sleep 0.2 & echo orphan' &) ; exec \"$@\"", "sh"]);
    inside.arg(command.get_program()).args(command.get_args());
    command = inside;
    let mut sync = run::Background::start(&mut command, &world.dir().join("init.log"));
    eventually(20, "it publishes", || world.differences(&commit).is_empty().then_some(()));
    let parent = sync.pid();
    let init = eventually(20, "PID 1", || children(parent).first().copied());
    let child = eventually(20, "its child", || children(init).iter().copied().find(|pid| is_treeswap(*pid)));
    eventually(20, "the orphan is reaped", || (children(init) == [child]).then_some(()));
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(init as i32).unwrap(),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    let status = sync.ended();
    assert_eq!(status.code(), Some(0), "{}", sync.log());
    assert!(sync.log().contains("drained"), "{}", sync.log());
}

/// Runs `treeswap` with these arguments as PID 1, and expects that SIGTERM ends it, whatever it waits for.
#[track_caller]
fn ends_at_a_signal_as_pid_1(world: &World, args: &[&str]) {
    let mut command = run::clean("unshare", &world.dir().join("home"));
    command.args(pid_namespace()).arg(common::binary()).args(args);
    let mut waiting = run::Background::start(&mut command, &world.dir().join("init.log"));
    let parent = waiting.pid();
    let init = eventually(20, "PID 1", || children(parent).into_iter().find(|pid| is_treeswap(*pid)));
    let init = rustix::process::Pid::from_raw(init as i32).unwrap();
    eventually(20, "its end", || {
        let _ = rustix::process::kill_process(init, rustix::process::Signal::TERM); // the first may come too early
        (!waiting.is_running()).then_some(())
    });
    assert_eq!(waiting.ended().code(), Some(143), "{}", waiting.log());
}

#[test]
fn pin_as_pid_1_ends_at_a_signal_while_it_waits() {
    let world = World::new();
    ends_at_a_signal_as_pid_1(&world, &["pin", "--wait=1h", world.root.to_str().unwrap(), "--", "true"]);
}

#[test]
fn render_as_pid_1_ends_at_a_signal_while_it_waits() {
    let world = World::new();
    let rules = world.dir().join("rules");
    rustix::fs::mknodat(rustix::fs::CWD, &rules, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    ends_at_a_signal_as_pid_1(&world, &["render", "--tree=.", &format!("--rules={}", rules.display())]);
}

#[test]
fn a_kubeconfigs_program_gets_no_setting_of_git_with_a_token_in_it() {
    let world = World::new();
    let told = world.dir().join("told");
    let program = world.dir().join("plugin");
    run::executable(&program, &format!("#!/bin/sh\nenv >{}\nexit 1\n", told.display()));
    let kubeconfig = world.dir().join("kubeconfig");
    let text = format!(
        "{{apiVersion: v1, kind: Config, current-context: default, \
         contexts: [{{name: default, context: {{cluster: c, user: u}}}}], \
         clusters: [{{name: c, cluster: {{server: \"http://127.0.0.1:1\"}}}}], \
         users: [{{name: u, user: {{exec: {{apiVersion: client.authentication.k8s.io/v1, command: {}, \
         interactiveMode: Never}}}}}}]}}",
        program.display()
    );
    std::fs::write(&kubeconfig, text).unwrap();
    let map = world.dir().join("plugins.yaml");
    std::fs::write(&map, "config_updater: {maps: {file: {name: map}}}").unwrap();
    let tree = world.dir().join("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("file"), "x").unwrap();
    let [rules, tree, kubeconfig] = [("rules", &map), ("tree", &tree), ("kubeconfig", &kubeconfig)]
        .map(|(flag, path)| format!("--{flag}={}", path.display()));
    let revision = format!("--revision={}", "1".repeat(40));
    let token = "Authorization: Bearer canary-of-a-setting";
    let variables =
        [("GIT_CONFIG_COUNT", "1"), ("GIT_CONFIG_KEY_0", "http.extraHeader"), ("GIT_CONFIG_VALUE_0", token)];
    let args = ["apply", "--owner=test", &rules, &tree, &kubeconfig, &revision, "--timeout=5s"];
    let ran = treeswap(&world, &args, &variables);
    let environment = std::fs::read_to_string(&told).unwrap_or_else(|_| panic!("it ran: {}", ran.stderr));
    assert!(environment.contains("PATH=") && !environment.contains("canary-of-a-setting"), "{environment}");
}

/// The children of a process, zombies included.
fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn is_treeswap(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "treeswap")
}

/// A named pipe that nobody writes to hangs as a file on a network that is gone does.
#[test]
fn a_file_that_hangs_is_named_and_ends_no_command() {
    let world = World::new();
    let fifo = |name: &str| {
        let path = world.dir().join(name);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        path.display().to_string()
    };
    let (sparse, rules) = (fifo("sparse"), fifo("rules"));
    let (kubeconfig, words) = (fifo("kubeconfig"), fifo("words"));
    let map = world.dir().join("plugins.yaml");
    std::fs::write(&map, "config_updater: {maps: {file: {name: map}}}").unwrap();
    let map = format!("--rules={}", map.display());
    let root = format!("--root={}", world.root.display());
    let apply = ["apply", "--owner=test", "--repo=http://127.0.0.1:1/x"];
    let sync = ["sync", "--one-time", "--repo=http://127.0.0.1:1/x", &root];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let sparse = format!("--sparse-checkout-file={sparse}");
            let ran = treeswap(
                &world,
                &["check", "--repo=http://127.0.0.1:1/x", "--root=/nonexistent", &sparse],
                &[],
            );
            assert_eq!(ran.status.code(), Some(0), "{}", ran.stderr);
            assert!(
                ran.stderr.contains(&sparse) && ran.stderr.contains("no answer within 5s"),
                "{}",
                ran.stderr
            );
        });
        scope.spawn(|| {
            let ran = treeswap(&world, &[&apply[..], &[&format!("--rules={rules}")]].concat(), &[]);
            assert!(ran.stderr.contains(&rules) && ran.stderr.contains("no answer"), "{}", ran.stderr);
            assert_ne!(ran.status.code(), Some(0));
        });
        scope.spawn(|| {
            let file = format!("--kubeconfig={kubeconfig}");
            let ran = treeswap(&world, &[&apply[..], &[&map, &file]].concat(), &[]);
            assert!(ran.stderr.contains(&kubeconfig) && ran.stderr.contains("no answer"), "{}", ran.stderr);
            assert_ne!(ran.status.code(), Some(0));
        });
        scope.spawn(|| {
            let ran = treeswap(&world, &[&sync[..], &[&format!("--termination-log={words}")]].concat(), &[]);
            assert_eq!(ran.status.code(), Some(1), "{}", ran.stderr);
        });
    });
}
