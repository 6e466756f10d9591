//! What cannot be run: exit codes, streams and words, compared with git-sync's own.

use std::path::Path;
use std::process::Command;

use super::common::{Files, Ran, World, run};
use super::{git_sync, is_as_in, linked, ran, sync};

/// What is said besides hints and what is said of old names.
fn said(ran: &Ran) -> Vec<&str> {
    ran.stderr.lines().filter(|line| !line.starts_with("hint: ") && !line.contains("is deprecated")).collect()
}

/// The message before and after the usage.
#[track_caller]
fn complains(ran: &Ran, code: i32, words: &[&str]) {
    assert_eq!((ran.status.code(), ran.stdout.as_str()), (Some(code), ""), "{}", ran.stderr);
    let said = said(ran);
    assert_eq!(said.first(), said.last(), "{}", ran.stderr);
    assert!(said.iter().any(|line| line.starts_with("Usage: git-sync")), "{}", ran.stderr);
    for word in words {
        assert!(said[0].contains(word), "{word:?} is not in {:?}", said[0]);
    }
}

/// Arguments, and a variable if there is one.
type Call = (&'static [&'static str], Option<(&'static str, &'static str)>);

/// Calls that end before anything is touched.
const CALLS: &[Call] = &[
    (&["--nope"], None),
    (&["--reff=x"], None),
    (&["-x"], None),
    (&["-one-time"], None),
    (&["--depth", "x"], None),
    (&["-v=x"], None),
    (&["--period=10"], None),
    (&["--one-time=maybe"], None),
    (&["--wait=x"], None),
    (&["--credential={\"password\":\"s3cret"], None),
    (&["--repo"], None),
    (&["-v"], None),
    (&["---ref"], None),
    (&["--help", "--nope"], None),
    (&["--version"], Some(("GITSYNC_DEPTH", "x"))),
    (&["--depth=1"], Some(("GITSYNC_DEPTH", ""))),
    (&["--help"], Some(("GITSYNC_PERIOD", "10"))),
    (&[], Some(("GITSYNC_ONE_TIME", "maybe"))),
    (&["--version"], Some(("GITSYNC_CREDENTIAL", "{\"password\":\"s3cret"))),
    (&["--version"], None),
    (&["--man", "--help", "--version"], None),
    (&["--help"], None),
    (&["-h"], None),
    (&["-?"], None),
    (&["--man", "-h"], None),
    (&[], None),
    (&["--root=/nowhere/root"], None),
    (&["--repo=x"], None),
    (&["--root=/nowhere/root", "--repo=x", "--ref="], None),
    (&["--root=/nowhere/root", "--repo=x", "--depth=-1"], None),
    (&["--root=/nowhere/root", "--repo=x", "--submodules=some"], None),
    (&["--root=/nowhere/root", "--repo=x", "--period=1ms"], None),
    (&["--root=/nowhere/root", "--repo=x", "--sync-on-signal=x"], None),
    (&["--root=/nowhere/root", "--repo=x", "--username=u"], None),
    (&["--root=/nowhere/root", "--repo=x", "--credential={\"url\":\"https://h\"}"], None),
    (&["--root=/nowhere/root", "--repo=x", "--branch=a", "--rev=b"], None),
    (&["--root=/nowhere/root", "--repo=x", "--change-permissions=1"], None),
];

/// How each of the calls ends, and what is on which stream: the usage text is `<usage>`.
fn answers(command: impl Fn() -> Command, version: &str) -> String {
    let usage = run::to_end(command().arg("--help")).expect_ok("--help").stdout;
    let mut text = String::new();
    for (args, variable) in CALLS {
        let ran = run::to_end(command().args(*args).envs(*variable));
        let variable = variable.map(|(name, value)| format!("{name}={value:?} ")).unwrap_or_default();
        let call = [&["git-sync"], *args].concat().join(" ");
        text += &format!("$ {variable}{call}\nexit code {}\n", ran.status.code().unwrap());
        for (stream, said) in [("stdout", &ran.stdout), ("stderr", &ran.stderr)] {
            for line in said.replace(&usage, "<usage>\n").lines() {
                let line = if line == version { "<version>" } else { line };
                text += &format!("{stream}: {line}\n");
            }
        }
        text.push('\n');
    }
    text
}

#[test]
fn what_cannot_be_run_ends_with_git_syncs_codes_on_its_streams_in_clearer_words() {
    let world = World::new();
    let version = ran(&world, &["--version"], &[]).stdout;
    let answers = answers(|| git_sync(&world, &[]), version.trim_end());
    assert!(!answers.lines().any(|line| !line.starts_with('$') && line.contains("s3cret")), "{answers}");
    is_as_in("git-sync-refusals.txt", &answers);
}

/// Without the words: `-` is a message, and hints and remarks on old names are not counted.
fn shape(answers: &str) -> String {
    let line = |line: &str| match line.split_once(": ") {
        Some((_, text)) if text.starts_with("hint: ") => None,
        Some((_, text)) if text.contains("is deprecated") || text.contains("has been deprecated") => None,
        Some(("stdout" | "stderr", "<usage>" | "<version>")) => Some(line.to_owned()),
        Some((stream @ ("stdout" | "stderr"), _)) => Some(format!("{stream}: -")),
        _ => Some(line.to_owned()),
    };
    answers.lines().filter_map(line).collect::<Vec<_>>().join("\n")
}

#[test]
#[ignore = "needs git-sync's own binary, named by TREESWAP_TEST_GIT_SYNC"]
fn git_sync_itself_ends_with_the_same_codes_on_the_same_streams() {
    let world = World::new();
    let theirs = std::env::var_os("TREESWAP_TEST_GIT_SYNC").expect("TREESWAP_TEST_GIT_SYNC names git-sync");
    let home = world.dir().join("home");
    let original = || run::clean(&theirs, &home);
    let version = run::to_end(original().arg("--version")).expect_ok("--version").stdout;
    let theirs = answers(original, version.trim_end());
    let ours = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/git-sync-refusals.txt"),
    );
    assert_eq!(shape(&ours.unwrap()), shape(&theirs));
}

#[test]
fn a_flag_of_treeswaps_own_is_refused_on_the_same_streams() {
    let world = World::new();
    let refused = ran(&world, &["--root=/x", "--repo=y", "--durability=hope"], &[]);
    assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
    assert!(refused.stdout.contains("\"hope\" for --durability"), "{}", refused.stdout);
    assert_eq!(refused.stdout.lines().count(), 1);
    assert!(refused.stderr.starts_with(&refused.stdout) && refused.stderr.contains("\nUsage: git-sync"));
}

#[test]
fn a_configuration_that_makes_no_sense_is_exit_code_1_and_in_the_error_file() {
    let world = World::new();
    let root = world.root.to_str().unwrap().to_owned();
    let cases: &[(&[&str], &[&str])] = &[
        (&["--depth=-1"], &["--depth"]),
        (&["--ref="], &["--ref", "empty"]),
        (&["--submodules=some"], &["--submodules", "recursive, shallow, off"]),
        (&["--git-gc=never"], &["--git-gc"]),
        (&["--period=1ms"], &["--period", "10ms"]),
        (&["--period=-1s"], &["--period", "negative"]),
        (&["--init-period=1ms"], &["--init-period"]),
        (&["--sync-on-signal=TERM"], &["--sync-on-signal"]),
        (&["--sync-timeout=1ms"], &["--sync-timeout"]),
        (&["--exechook-command=x", "--exechook-timeout=0s"], &["--exechook-timeout", "1s"]),
        (&["--pre-publish-exechook-command=x", "--pre-publish-exechook-backoff=0s"], &["1s"]),
        (&["--webhook-url=http://x/", "--webhook-success-status=-2"], &["--webhook-success-status"]),
        (&["--username=u"], &["--username needs --password-file"]),
        (&["--password-file=/x"], &["--password-file needs --username"]),
        (&["--github-app-client-id=x"], &["--github-app-installation-id"]),
        (&["--credential={\"url\":\"https://h\"}"], &["--credential", "username"]),
        (&["--http-metrics"], &["--http-metrics needs --http-bind"]),
        (&["--http-pprof"], &["--http-pprof needs --http-bind"]),
        (&["--branch=a", "--rev=b"], &["--branch and --rev exclude each other"]),
        (&["--change-permissions=0755"], &["--change-permissions is not supported"]),
        (&["--link=.."], &["--link"]),
        (&["--git-config=http.proxy"], &["--git-config"]),
        (&["--ref=v1^{}"], &["\"v1^{}\" for --ref", "write v1"]),
        (&["--branch=refs/heads/*"], &["--ref", "a pattern"]),
    ];
    let error_file = world.dir().join("errors/last");
    for (args, words) in cases {
        let mut command =
            git_sync(&world, &["--repo=https://git.example.com/x", "--root", &root, "--error-file"]);
        let ran = run::to_end(command.arg(&error_file).args(*args));
        complains(&ran, 1, words);
        assert_eq!(std::fs::read_to_string(&error_file).unwrap(), said(&ran)[0]);
    }
    complains(&ran(&world, &[], &[]), 1, &["--root is required"]);
    complains(&ran(&world, &["--root=/x", "--depth=-1"], &[]), 1, &["--repo is required"]);
    let both =
        ran(&world, &["--root", &root, "--repo=x", "--password-file=/x"], &[("GITSYNC_PASSWORD", "s3cret")]);
    complains(&both, 1, &["$GITSYNC_PASSWORD and --password-file exclude each other"]);
    assert!(!world.root.exists(), "nothing was touched");
}

#[test]
fn the_error_file_is_found_by_treeswaps_own_variables_too() {
    let world = World::new();
    let file = world.dir().join("error");
    let (root, path) = (world.root.to_str().unwrap(), file.to_str().unwrap());
    let flags = [format!("--error-file={path}"), format!("--root={root}")];
    for (flag, variable) in flags.iter().zip([("TREESWAP_ROOT", root), ("TREESWAP_ERROR_FILE", path)]) {
        let ran = ran(&world, &["--repo=https://git.example.com/x", "--depth=-1", flag], &[variable]);
        complains(&ran, 1, &["--depth"]);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), said(&ran)[0]);
        std::fs::remove_file(&file).unwrap();
    }
}

#[test]
fn a_malformed_variable_is_fatal_and_named_whatever_else_is_asked_for() {
    let world = World::new();
    for (name, value) in [
        ("GITSYNC_PERIOD", ""),
        ("GIT_SYNC_WAIT", "x"),
        ("GITSYNC_MAX_FAILURES", "many"),
        ("GITSYNC_HTTP_METRICS", ""),
    ] {
        let ran = ran(&world, &["--version"], &[(name, value)]);
        assert_eq!((ran.status.code(), ran.stdout.as_str()), (Some(1), ""), "{name}");
        assert!(
            ran.stderr.starts_with("FATAL: ") && ran.stderr.contains(&format!("${name}")),
            "{}",
            ran.stderr
        );
        assert_eq!(ran.stderr.lines().count(), 1);
    }
}

#[test]
fn a_malformed_variable_of_credentials_is_done_without_and_said_to_be() {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    let mut command = sync(&world, &["--one-time"]);
    command.env("GITSYNC_CREDENTIAL", "{\"password\":\"s3cret\"");
    let done = run::to_end(&mut command).expect_ok("a pass");
    assert_eq!(linked(&world), Some(commit));
    assert!(done.stderr.starts_with("$GITSYNC_CREDENTIAL is ignored: "), "{}", done.stderr);
    assert!(!done.stderr.contains("s3cret"), "{}", done.stderr);
}
