//! `git-sync` from outside, as its users call it: command line, environment, exit codes and streams, logs, files, HTTP.
//! What it publishes is tested with the layout.

#[path = "../common/mod.rs"]
mod common;
mod messages;
mod refusals;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::http_backend::{HttpBackend, Kind};
use common::run::Background;
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
fn a_log_variable_of_another_program_neither_stops_nor_silences_it() {
    let world = World::new();
    world.remote.commit(&Files::new().file("a", "1"));
    for filter in ["myapp", "off"] {
        let mut command = sync(&world, &["--one-time"]);
        let done = run::to_end(command.env("RUST_LOG", filter)).expect_ok(filter);
        assert!(done.stderr.contains("\"msg\":\"updated successfully\""), "{filter}: {}", done.stderr);
    }
}

/// git-sync hands it to git, which looks at the host only.
#[test]
fn a_credential_for_another_repository_of_the_host_is_used() {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    let auth = Some(("bob".to_owned(), "hunter2".to_owned()));
    let server = HttpBackend::start(world.dir(), Kind { auth, ..Kind::default() });
    let password = world.dir().join("password");
    std::fs::write(&password, "hunter2").unwrap();
    let json = serde_json::json!({
        "URL": server.url("superproject"), "Username": "bob", "password": null, "password-file": password,
    });
    let flags = [format!("--repo={}", server.url("remote")), format!("--credential={json}")];
    let flags = ["--one-time", &flags[0], &flags[1]];
    run::to_end(&mut sync(&world, &flags)).expect_ok("a pass");
    assert_eq!(linked(&world), Some(commit));
    let root = format!("--root={}", world.dir().join("other").display());
    let ours = world.sync_once(&[&flags[..], &[&root]].concat()).expect_failure("below its path only");
    assert!(ours.stderr.contains("without a credential"), "{}", ours.stderr);
}

#[test]
fn quotes_in_the_ssh_command_are_those_of_a_shell() {
    let world = World::new();
    let said = |command: &str| {
        let mut sync = sync(&world, &["--one-time", "--repo=ssh://git@127.0.0.1:1/x"]);
        run::to_end(sync.env("GIT_SSH_COMMAND", command)).stderr
    };
    let unchecked = "ssh host keys go unchecked ($GIT_SSH_COMMAND's StrictHostKeyChecking)";
    for command in ["ssh -o StrictHostKeyChecking=no", "ssh -i \"/k\" -o 'StrictHostKeyChecking=no'"] {
        let log = said(command);
        assert!(log.contains(unchecked) && !log.contains("ignored in $GIT_SSH_COMMAND"), "{log}");
    }
}

#[test]
fn a_missing_ref_is_in_the_error_file_in_gits_words_until_it_is_there() {
    let world = World::new();
    world.remote.commit(&Files::new().file("a", "1"));
    let flags = ["--one-time", "--error-file=error", "--group-write", "--ref=missing"];
    let missing = run::to_end(&mut sync(&world, &flags));
    assert_eq!(missing.status.code(), Some(1), "{}", missing.stderr);
    let mode = std::fs::metadata(world.root.join("error")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644, "whatever the umask");
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

#[test]
fn what_prevents_the_start_is_in_the_error_file_with_git_syncs_keys() {
    let world = World::new();
    world.remote.commit(&Files::new().file("a", "1"));
    let file = world.dir().join("error");
    for (flag, message, key, value) in [
        ("--root=/proc/root", "FATAL: can't make root dir", "path", "/proc/root"),
        ("--http-bind=192.0.2.1:80", "can't bind HTTP endpoint", "endpoint", "192.0.2.1:80"),
    ] {
        let mut command = sync(&world, &[flag, "--error-file"]);
        let ended = run::to_end(command.arg(&file));
        assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
        let text = std::fs::read_to_string(&file).unwrap();
        let error: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&error["Msg"], &error["Args"][key]), (&message.into(), &value.into()), "{text}");
        assert!(error["Args"]["hints"][0].is_string(), "{text}");
    }
}

/// Here it is a regular file, which a rename would replace by the error file.
#[test]
fn an_error_file_that_leads_to_the_output_is_not_replaced() {
    let world = World::new();
    world.remote.commit(&Files::new().file("a", "1"));
    let (link, output) = (world.dir().join("link-to-output"), world.dir().join("output"));
    std::os::unix::fs::symlink("/dev/stdout", &link).unwrap();
    let mut command = sync(&world, &["--one-time", "--ref=missing", "--error-file"]);
    command.arg(&link).stdout(std::fs::File::create(&output).unwrap()).stderr(std::process::Stdio::null());
    assert_eq!(command.status().unwrap().code(), Some(1));
    assert_eq!(std::fs::read_link(&link).unwrap(), std::path::Path::new("/dev/stdout"));
}

#[test]
fn what_is_in_the_way_at_the_start_is_a_failed_attempt_and_passes() {
    for (obstacle, is_directory) in [("link", true), (".worktrees", false), (".git", false)] {
        let world = World::new();
        let commit = world.remote.commit(&Files::new().file("a", "1"));
        let (there, file) = (world.root.join(obstacle), world.dir().join("error"));
        let flag = format!("--error-file={}", file.display());
        let error = || -> Option<serde_json::Value> {
            serde_json::from_str(&std::fs::read_to_string(&file).ok()?).ok()
        };
        std::fs::create_dir_all(&world.root).unwrap();
        if is_directory {
            std::fs::create_dir(&there).unwrap();
        } else {
            std::fs::write(&there, "").unwrap();
        }
        let ended = run::to_end(&mut sync(&world, &[&flag]));
        assert_eq!(ended.status.code(), Some(1), "{obstacle}: {}", ended.stderr);
        let said = error().expect(obstacle)["Err"].to_string();
        assert!(said.contains(there.to_str().unwrap()), "{said}");
        let mut command = sync(&world, &[&flag, "--max-failures=-1", "--period=10ms"]);
        let process = Background::start(&mut command, &world.dir().join("log"));
        let again = eventually(30, "failures are counted", || {
            error().filter(|error| error["Args"]["failCount"].as_u64().is_some_and(|count| count >= 3))
        });
        assert_eq!(again["Msg"], "error syncing repo, will retry", "{again}");
        assert!(process.log().contains("\"failCount\":3"), "{}", process.log());
        let removed = if is_directory { std::fs::remove_dir(&there) } else { std::fs::remove_file(&there) };
        removed.unwrap();
        eventually(30, "it is published", || (linked(&world)? == commit && !file.exists()).then_some(()));
    }
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
    assert!(sidecar.ask("/metrics").unwrap().contains("\ngit_fetch_count_total 0\n"));
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
fn what_an_earlier_process_has_published_is_no_success_of_this_one() {
    let world = World::new();
    world.remote.commit(&Files::new().file("a", "1"));
    run::to_end(&mut sync(&world, &["--one-time"])).expect_ok("a pass");
    let away = world.remote.away();
    let serving = ["--period=10ms", "--max-failures=-1", "--http-bind=127.0.0.1:0", "--http-metrics"];
    let sidecar = Sidecar::of(&world, &mut sync(&world, &serving));
    let status = |path: &str| sidecar.ask(path).map(|answer| answer.split(' ').nth(1).unwrap().to_owned());
    eventually(30, "a failure is counted", || {
        sidecar.ask("/metrics")?.contains("git_sync_count_total{status=\"error\"}").then_some(())
    });
    assert_eq!(status("/readyz").as_deref(), Some("200"), "it is served");
    assert_eq!(status("/").as_deref(), Some("503"));
    let text = sidecar.ask("/metrics").unwrap();
    assert!(!text.contains("git_sync_count_total{status=\"success\"}"), "{text}");
    drop(away);
    eventually(30, "it has synced", || (status("/")? == "200").then_some(()));
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
    let content = || std::fs::read_to_string(world.root.join("link/a")).ok();
    std::fs::remove_dir_all(world.root.join("link").canonicalize().unwrap()).unwrap();
    eventually(30, "what is lost is published again", || (content()? == "1").then_some(()));
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
fn a_root_that_is_the_home_directory_is_taken_and_what_else_is_there_is_left_alone() {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    std::fs::create_dir(&world.root).unwrap();
    std::fs::write(world.root.join(".profile"), "mine").unwrap();
    for _ in 0..2 {
        run::to_end(sync(&world, &["--one-time"]).env("HOME", &world.root)).expect_ok("a pass");
    }
    assert_eq!(linked(&world), Some(commit));
    assert_eq!(std::fs::read_to_string(world.root.join(".profile")).unwrap(), "mine");
    let ours = run::to_end(world.sync(&["--one-time"]).env("HOME", &world.root));
    assert!(ours.stderr.contains("it is a home directory"), "{}", ours.stderr);
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
