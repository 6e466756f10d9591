//! `git-sync` from outside, as its users call it: command line, environment, exit codes and streams, logs, files, HTTP.
//! What it publishes is tested with the layout.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::sidecar::Sidecar;
use common::{Files, Ran, World, eventually, run};

/// The binary under git-sync's name, with nothing of the caller's environment.
fn git_sync(world: &World, args: &[&str]) -> Command {
    let name = world.dir().join("git-sync");
    if !name.exists() {
        std::os::unix::fs::symlink(common::binary(), &name).unwrap();
    }
    let mut command = run::clean(name, &world.dir().join("home"));
    command.args(args);
    command
}

fn ran(world: &World, args: &[&str], variables: &[(&str, &str)]) -> Ran {
    run::to_end(git_sync(world, args).envs(variables.iter().copied()))
}

/// Syncs the remote's `main` into the root; `LINK` is `ROOT/link`.
fn sync(world: &World, more: &[&str]) -> Command {
    let mut command = git_sync(world, &["--ref=main", "--link=link", "--repo"]);
    command.arg(&world.remote.path).arg("--root").arg(&world.root).args(more);
    command
}

/// The commit that the link names.
fn linked(world: &World) -> Option<String> {
    let target = std::fs::read_link(world.root.join("link")).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

/// The lines of a log, each a JSON object.
#[track_caller]
fn lines(log: &str) -> Vec<serde_json::Value> {
    log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"))).collect()
}

/// Compares with a file in `tests/cli`; what it should hold is written beside the build.
#[track_caller]
fn is_as_in(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli").join(name);
    if std::fs::read_to_string(&path).unwrap_or_default() != text {
        let found = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(&found, text).unwrap();
        panic!("{} is not what is printed now, which is {}", path.display(), found.display());
    }
}

#[test]
fn help_manual_and_version_go_to_stdout() {
    let world = World::new();
    for (flag, name) in [("--help", "git-sync-help.txt"), ("--man", "git-sync-man.txt")] {
        let shown = ran(&world, &[flag], &[]).expect_ok(flag);
        is_as_in(name, &shown.stdout);
        assert_eq!(shown.stderr, "");
    }
    let help = ran(&world, &["--help"], &[]).stdout;
    for same in [&["-h"][..], &["-?"], &["--man", "-h", "extra"], &["-hv6"]] {
        assert_eq!(ran(&world, same, &[]).expect_ok("help").stdout, help, "{same:?}");
    }
    let version = ran(&world, &["--version", "--help"], &[]).expect_ok("--version").stdout;
    assert!(version.starts_with(env!("CARGO_PKG_VERSION")), "{version}");
    let by_command =
        run::to_end(&mut world.treeswap(&["git-sync", "--help"])).expect_ok("the subcommand").stdout;
    assert_eq!(by_command, help.replace("Usage: git-sync", "Usage: treeswap git-sync"));
}

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

#[test]
fn a_refspec_is_followed_on_its_remote_side_wherever_that_goes() {
    let world = World::new();
    let first = world.remote.commit(&Files::new().file("a", "1"));
    world.remote.git(&["tag", "-a", "v1", "-m", "v1", "main"]);
    let second = world.remote.commit(&Files::new().file("a", "2"));
    let pass = |reference: &str| {
        let done = run::to_end(sync(&world, &["--one-time"]).arg(format!("--ref={reference}")));
        done.expect_ok(reference);
        linked(&world).unwrap()
    };
    for (reference, commit) in [
        ("+main", &second),
        ("v1:v1", &first),
        ("main:x", &second),
        ("+refs/tags/v1:refs/tags/x", &first),
        (":x", &second),
        (first.as_str(), &first),
        ("main:x", &second),
    ] {
        assert_eq!(pass(reference), *commit, "{reference}");
    }
    // Neither what is ahead nor what was rewritten needs a `+`.
    let third = world.remote.commit(&Files::new().file("a", "3"));
    assert_eq!(pass("main:x"), third);
    world.remote.reset(&first);
    assert_eq!(pass("main:x"), first);
    let mut local = run::clean("git", &world.dir().join("home"));
    local.arg("-C").arg(&world.root).args(["for-each-ref", "refs/heads/x", "refs/tags"]);
    assert_eq!(run::to_end(&mut local).expect_ok("for-each-ref").stdout, "", "the local side is not written");
}

#[test]
fn one_pass_says_what_it_did_in_git_syncs_json_and_leaves_no_temporary_file() {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    let temporary = world.dir().join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let mut command = sync(
        &world,
        &[
            "--one-time",
            "-v=6",
            "--touch-file=touched",
            "--error-file=error",
            "--git-config=http.extraHeader:Authorization: Bearer s3cret1",
            "--git-config-add=lfs.url:https://s3cret2",
            "--credential={\"url\":\"https://git.example.com\",\"username\":\"u\",\"password\":\"s3cret3\"}",
            "positional",
        ],
    );
    let done = run::to_end(command.env("TMPDIR", &temporary).env("GITSYNC_PASSWORD", "")).expect_ok("a pass");
    assert_eq!(linked(&world), Some(commit.clone()));
    let target = std::fs::read_link(world.root.join("link")).unwrap();
    assert_eq!(target, PathBuf::from(".worktrees").join(&commit));
    assert!(world.root.join("touched").exists() && !world.root.join("error").exists());
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(world.dir().join("home")).unwrap().count(), 0);
    assert!(!done.stderr.contains("s3cret"), "{}", done.stderr);
    let lines = lines(&done.stderr);
    for line in &lines {
        for key in ["logger", "ts", "caller", "msg"] {
            assert!(line.get(key).is_some(), "no {key} in {line}");
        }
        assert!(line.get("level").is_some() != line.get("error").is_some(), "{line}");
    }
    let published = lines.iter().find(|line| line["revision"] == commit.as_str() && line["level"] == 0);
    assert!(published.is_some(), "{}", done.stderr);
    assert!(lines.iter().any(|line| line["msg"].as_str().unwrap().contains("lfs.url")), "{}", done.stderr);
}

#[test]
fn a_missing_ref_is_in_the_error_file_in_gits_words_until_it_is_there() {
    let world = World::new();
    world.remote.commit(&Files::new().file("a", "1"));
    let missing = run::to_end(sync(&world, &["--one-time", "--error-file=error"]).arg("--ref=missing"));
    assert_eq!(missing.status.code(), Some(1), "{}", missing.stderr);
    let text = std::fs::read_to_string(world.root.join("error")).unwrap();
    let error: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(error["Err"].as_str().unwrap().contains("couldn't find remote ref missing"), "{text}");
    assert_eq!(error["Msg"], "too many failures, aborting");
    assert_eq!(
        (&error["Args"]["failCount"], &error["Args"]["maxFailures"]),
        (&1.into(), &0.into()),
        "{text}"
    );
    run::to_end(&mut sync(&world, &["--one-time", "--error-file=error"])).expect_ok("it is there");
    assert!(!world.root.join("error").exists());
}

/// A message of git-sync, as `docs/migrating/git-sync.md` lists it.
struct Message {
    level: String,
    text: String,
    keys: Vec<String>,
    /// It is the same here.
    same: bool,
}

fn messages() -> Vec<Message> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/migrating/git-sync.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, table) =
        page.split_once("| level | message of git-sync | keys | here |").expect("the table is there");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let message = |row: &str| {
        let [_, level, text, keys, here, _] = row.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            panic!("no row: {row}")
        };
        Message {
            level: level.to_owned(),
            text: text.trim_matches('`').to_owned(),
            keys: keys.split_whitespace().map(|key| key.trim_matches('`').to_owned()).collect(),
            same: here.starts_with("the same"),
        }
    };
    let messages: Vec<_> = rows.map(message).collect();
    assert!(messages.len() > 90, "the table was not found");
    messages
}

/// What makes messages be said that are the same in both programs: arguments, whether that ends by itself, and which
/// messages.
type Provoked = (&'static [&'static str], bool, &'static [&'static str]);

const PROVOKED: &[Provoked] = &[
    (
        &["--one-time", "--exechook-command=/bin/true", "--touch-file=touched", "-v=3", "--period=20s"],
        true,
        &[
            "starting up",
            "update required",
            "updated successfully",
            "touched touch-file",
            "running exechook",
            "exechook succeeded",
            "exiting after one sync",
        ],
    ),
    (
        &["--ref=missing", "--max-failures=2", "--period=10ms", "-v=3"],
        true,
        &["error syncing repo, will retry", "next sync", "too many failures, aborting"],
    ),
    (&["--ref=missing"], true, &["too many failures, aborting"]),
    (
        &["--one-time", "--webhook-url=http://127.0.0.1:1/", "--webhook-backoff=2s"],
        true,
        &["sending webhook", "hook failed"],
    ),
    (
        &[
            "--webhook-url=http://RECEIVER/",
            "--http-bind=127.0.0.1:0",
            "--period=10ms",
            "--init-period=20ms",
            "-v=2",
        ],
        false,
        &[
            "serving HTTP",
            "initial sync complete, switching to normal period",
            "update not required",
            "webhook succeeded",
        ],
    ),
    (&["--one-time", "--touch-file=/dev/null/touched"], true, &["failed to touch touch-file"]),
    (&["--sync-on-signal=HUP", "-v=1"], false, &["installing signal handler", "caught signal"]),
    (&["--max-failures=-1", "--period=10ms", "-v=4"], false, &["resetting failure count"]),
    (&["--ref=COMMIT"], false, &["ref appears to be a git hash, no further sync needed"]),
    (&["--http-bind=192.0.2.1:80"], true, &["can't bind HTTP endpoint"]),
    (&["--root=/dev/null/root"], true, &["FATAL: can't make root dir"]),
];

/// What cannot be made to happen from outside.
const NOT_PROVOKED: &[&str] = &["HTTP server terminated"];

/// Answers every request with 200.
fn receiver() -> std::net::SocketAddr {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]); // as much as comes
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    address
}

/// What a program logs, run with these arguments until it ends or has said these messages.
fn said_by(program: &impl Fn(&World) -> Command, (args, ends, texts): Provoked) -> Vec<serde_json::Value> {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    let log = world.dir().join("log");
    let mut command = program(&world);
    let receiver = receiver().to_string();
    command.arg("--repo").arg(format!("file://{}", world.remote.path.display()));
    command.arg("--root").arg(&world.root).args(["--ref=main", "--link=link"]);
    command.args(args.iter().map(|arg| arg.replace("COMMIT", &commit).replace("RECEIVER", &receiver)));
    let mut away = texts.contains(&"resetting failure count").then(|| world.remote.away());
    let mut child = command.stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap();
    let text = || std::fs::read_to_string(&log).unwrap();
    let has = |message: &str| text().contains(&format!("\"msg\":\"{message}\""));
    eventually(60, "all of it is said", || {
        if has("error syncing repo, will retry") {
            away.take();
        }
        if texts.contains(&"caught signal") && has("updated successfully") {
            let pid = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
        }
        let over =
            if ends { child.try_wait().unwrap().is_some() } else { texts.iter().all(|text| has(text)) };
        over.then_some(())
    });
    let _ = child.kill();
    child.wait().unwrap();
    let text = text();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Runs each of these with a program, and looks for the messages in its log.
fn says_each(program: impl Fn(&World) -> Command) {
    let known = messages();
    for provoked in PROVOKED {
        let (args, _, texts) = *provoked;
        let lines = said_by(&program, *provoked);
        for text in texts {
            let Message { level, keys, .. } = known.iter().find(|message| message.text == *text).unwrap();
            let line = lines.iter().find(|line| line["msg"] == *text);
            let line = line.unwrap_or_else(|| panic!("{args:?}: {text} is not in\n{lines:#?}"));
            for key in keys {
                assert!(line.get(key).is_some(), "{text} has no {key}: {line}");
            }
            for list in ["flags", "reasons"].iter().filter(|list| keys.iter().any(|key| key == *list)) {
                assert!(line[list].as_array().is_some_and(|list| !list.is_empty()), "{line}");
            }
            match level.as_str() {
                "error" => assert!(line["error"].is_string() && line.get("level").is_none(), "{line}"),
                level => assert_eq!(line["level"].to_string(), level, "{line}"),
            }
        }
        // `-v` is a ceiling.
        let most =
            args.iter().find_map(|arg| arg.strip_prefix("-v=")?.parse::<i64>().ok()).unwrap_or_default();
        for line in &lines {
            let is_known = known.iter().any(|message| line["msg"] == *message.text);
            assert!(!is_known || line["level"].as_i64().unwrap_or_default() <= most, "{args:?}: {line}");
        }
        let gave_up = lines.iter().find(|line| line["msg"] == "too many failures, aborting");
        if let Some(line) = gave_up {
            let limit = args.iter().find_map(|arg| arg.strip_prefix("--max-failures=")?.parse().ok());
            assert_eq!(line["maxFailures"], limit.unwrap_or(0), "{line}");
        }
        // What is left of a pause depends on the machine; its form does not.
        for shown in lines.iter().filter_map(|line| line.get("waitTime")) {
            let number = shown
                .as_str()
                .and_then(|shown| shown.trim_end_matches("ms").trim_end_matches('s').parse().ok());
            assert!(number.is_some_and(|number: f64| number <= 20.0), "waitTime={shown}");
        }
        for key in ["timeout", "retry", "period", "initPeriod"] {
            let shown = lines.iter().filter_map(|line| line.get(key));
            for shown in shown {
                // Unlike git-sync's, a hook that is not run again names no pause.
                let known = ["30s", "1s", "3s", "2s", "10ms", "20ms", "10s", "20s", "none"];
                assert!(known.contains(&shown.as_str().unwrap_or_default()), "{key}={shown}");
            }
        }
    }
}

#[test]
fn what_git_sync_says_is_said_in_its_words_with_its_keys() {
    says_each(|world| git_sync(world, &[]));
}

#[test]
fn every_message_that_is_said_to_be_the_same_is_looked_for() {
    let provoked: Vec<&str> = PROVOKED.iter().flat_map(|(_, _, texts)| *texts).copied().collect();
    for message in messages().iter().filter(|message| message.same) {
        let text = message.text.as_str();
        assert!(provoked.contains(&text) != NOT_PROVOKED.contains(&text), "{text}");
    }
}

#[test]
#[ignore = "needs git-sync's own binary, named by TREESWAP_TEST_GIT_SYNC"]
fn git_sync_itself_says_so() {
    let theirs = std::env::var_os("TREESWAP_TEST_GIT_SYNC").expect("TREESWAP_TEST_GIT_SYNC names git-sync");
    let binary = std::fs::read(&theirs).unwrap();
    // Of what came after v4.7.1.
    let newer = ["can't list git config", "unexpected stderr reading git config"];
    for Message { text, .. } in messages().iter().filter(|message| !newer.contains(&message.text.as_str())) {
        assert!(binary.windows(text.len()).any(|part| part == text.as_bytes()), "{text}");
    }
    says_each(|world| common::git_sync::command(world, Path::new(&theirs)));
}

#[test]
fn the_first_failure_ends_it_and_max_failures_counts_attempts() {
    let world = World::new();
    let failures = |more: &[&str]| {
        let ended =
            run::to_end(&mut sync(&world, &[&["--period=10ms", "-v=1", "--ref=missing"], more].concat()));
        assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
        lines(&ended.stderr)
            .iter()
            .filter(|line| {
                ["error syncing repo, will retry", "too many failures, aborting"]
                    .contains(&line["msg"].as_str().unwrap())
            })
            .count()
    };
    world.remote.commit(&Files::new().file("a", "1"));
    assert_eq!(failures(&[]), 1);
    assert_eq!(failures(&["--max-failures=1"]), 1);
    assert_eq!(failures(&["--max-failures=3"]), 3);
    assert_eq!(failures(&["--max-failures=-1", "--init-max-failures=2"]), 2);
    assert_eq!(failures(&["--one-time", "--max-failures=2"]), 2);
}

#[test]
fn every_path_answers_as_git_syncs_does_and_metrics_have_its_names() {
    let world = World::new();
    world.remote.commit(&Files::new().file("a", "1"));
    let away = world.remote.away();
    let serving =
        ["--period=10ms", "--max-failures=-1", "--http-bind=127.0.0.1:0", "--http-metrics", "--http-pprof"];
    let sidecar = Sidecar::of(&world, &mut sync(&world, &serving));
    let status = |path: &str| sidecar.ask(path).map(|answer| answer.split(' ').nth(1).unwrap().to_owned());
    for path in ["/", "/nope", "/nope/deeper?x=1"] {
        assert_eq!(status(path).as_deref(), Some("503"), "{path}");
    }
    assert_eq!(status("/debug/pprof/").as_deref(), Some("200"));
    assert!(sidecar.metric("git_fetch_count_total").is_some_and(|count| count == 0.0));
    eventually(30, "a failure is counted", || {
        sidecar.ask("/metrics")?.contains("git_sync_count_total{status=\"error\"}").then_some(())
    });
    drop(away);
    eventually(30, "it is ready", || (status("/")? == "200").then_some(()));
    assert_eq!(status("/nope").as_deref(), Some("200"));
    let text = eventually(30, "a pass without news", || {
        sidecar.ask("/metrics").filter(|text| text.contains("git_sync_count_total{status=\"noop\"}"))
    });
    for line in ["git_sync_count_total{status=\"success\"} 1", "git_fetch_count_total 1"] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    for name in
        ["git_sync_duration_seconds_sum{", "git_sync_duration_seconds_count{", "treeswap_syncs_total{"]
    {
        assert!(text.lines().any(|found| found.starts_with(name)), "{name} is not in\n{text}");
    }
}

#[test]
fn without_its_flag_metrics_are_a_path_like_any_other() {
    let world = World::new();
    world.remote.commit(&Files::new().file("a", "1"));
    let sidecar = Sidecar::of(&world, &mut sync(&world, &["--http-bind=127.0.0.1:0"]));
    eventually(30, "it is ready", || sidecar.ask("/").filter(|answer| answer.contains(" 200 ")));
    for path in ["/metrics", "/debug/pprof/"] {
        let answer = sidecar.ask(path).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\n"), "{path}: {answer}");
    }
}

#[test]
fn a_commit_id_is_synced_once_and_then_rested_upon() {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    let reference = format!("--ref={commit}");
    let serving =
        ["--period=10ms", "--sync-on-signal=HUP", "--http-bind=127.0.0.1:0", "--http-metrics", &reference];
    let mut sidecar = Sidecar::of(&world, &mut sync(&world, &serving));
    eventually(30, "it is published", || (linked(&world)? == commit).then_some(()));
    eventually(30, "it is counted", || (sidecar.metric("git_sync_count_total")? == 1.0).then_some(()));
    eventually(30, "it rests", || {
        sidecar.ask("/status").filter(|status| status.contains("\"next_attempt\": null"))
    });
    let pid = rustix::process::Pid::from_child(&sidecar.process.child);
    rustix::process::kill_process(pid, rustix::process::Signal::USR1).unwrap(); // ignored, as by git-sync
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    eventually(30, "the signal was heard", || {
        (sidecar.metric("treeswap_triggers_total")? >= 2.0).then_some(())
    });
    assert_eq!(sidecar.metric("git_sync_count_total"), Some(1.0), "and not followed");
    assert!(sidecar.ask("/livez").unwrap().starts_with("HTTP/1.1 200 "));
    assert_eq!(sidecar.process.terminate().code(), Some(0));
}

#[test]
fn hooks_run_in_the_worktree_and_decide_one_times_exit_code() {
    let world = World::new();
    let script = "#!/bin/sh\necho \"$GITSYNC_HASH $(pwd -P) $MINE\" >> \"$OUT\"\nexit \"${CODE:-0}\"\n";
    let commit = world.remote.commit(&Files::new().script("hook.sh", script));
    let out = world.dir().join("hook.out");
    let run = |code: &str| {
        let mut command = sync(&world, &["--one-time", "--exechook-command=./hook.sh"]);
        command.env("OUT", &out).env("MINE", "inherited").env("CODE", code);
        run::to_end(&mut command)
    };
    run("0").expect_ok("the hook succeeds");
    let root = std::fs::canonicalize(&world.root).unwrap();
    let line = format!("{commit} {} inherited\n", root.join(".worktrees").join(&commit).display());
    assert_eq!(std::fs::read_to_string(&out).unwrap(), line);
    assert_eq!(run("3").status.code(), Some(1), "nothing new, and the hook runs again: it fails");
    assert_eq!(std::fs::read_to_string(&out).unwrap(), line.repeat(2));
    assert_eq!(linked(&world), Some(commit));
}

#[test]
fn treeswap_sync_publishes_git_syncs_layout_too() {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    world.sync_once(&["--layout=git-sync", "--link=link"]).expect_ok("sync");
    assert_eq!(linked(&world), Some(commit));
    assert_eq!(std::fs::read_to_string(world.root.join("link/a")).unwrap(), "1");
}

#[test]
fn old_names_work_and_are_said_to_be_old() {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    let mut command = git_sync(&world, &["--one-time", "--wait=0.5", "--dest=link"]);
    command
        .env("GIT_SYNC_REPO", &world.remote.path)
        .env("GITSYNC_ROOT", &world.root)
        .env("GIT_SYNC_BRANCH", "main");
    let done = run::to_end(&mut command).expect_ok("v3's names");
    assert_eq!(linked(&world), Some(commit));
    for line in [
        "$GIT_SYNC_REPO is deprecated: use $GITSYNC_REPO",
        "$GIT_SYNC_BRANCH is deprecated and wins over what replaces it: use --ref",
        "--dest is deprecated and wins over what replaces it: use --link",
        "--wait is deprecated and wins over what replaces it: use --period",
    ] {
        assert!(done.stderr.lines().any(|found| found == line), "{line} is not in\n{}", done.stderr);
    }
}

#[test]
fn what_has_no_effect_is_named_without_the_passwords_in_it() {
    const ONLY: &str =
        "(only -i and -o IdentityFile, UserKnownHostsFile and StrictHostKeyChecking have an effect)";
    let key = "remove it, and give a key by --ssh-key-file";
    let cases: &[(&[&str], &str, &[String])] = &[
        (
            &[],
            "sshpass -p hunter2hunter2 ssh -o StrictHostKeyChecking=no -p 22 -o ConnectTimeout=5",
            &[
                format!("ignored in $GIT_SSH_COMMAND: the words before ssh, -p, -o ConnectTimeout {ONLY}"),
                "ssh host keys go unchecked ($GIT_SSH_COMMAND's StrictHostKeyChecking)".to_owned(),
            ],
        ),
        (&["--repo=ssh://git:hunter2hunter2@127.0.0.1:1/x"], "ssh", &[format!("ssh does not use it: {key}")]),
        (&["--repo=git://git:hunter2hunter2@127.0.0.1:1/x"], "ssh", &["is not used: remove it".to_owned()]),
        (
            &["--repo=http://git:hunter2hunter2@127.0.0.1:1/x"],
            "ssh",
            &["give it by --password-file, or in $GITSYNC_PASSWORD".to_owned()],
        ),
    ];
    for (args, command, warnings) in cases {
        let world = World::new();
        world.remote.commit(&Files::new().file("a", "1"));
        let ran = run::to_end(sync(&world, args).arg("--one-time").env("GIT_SSH_COMMAND", command));
        for warning in *warnings {
            assert!(ran.stderr.contains(warning), "{warning} is not in\n{}", ran.stderr);
        }
        assert!(!format!("{}{}", ran.stdout, ran.stderr).contains("hunter2"), "{}", ran.stderr);
        assert!(!ran.stderr.contains("GIT_SSH_COMMAND: -o "), "{}", ran.stderr);
    }
}
