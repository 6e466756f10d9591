//! The command line from outside: help, what is refused and how, where values come from, exit codes, and the end.

mod common;
#[path = "cli/help.rs"]
mod help;
#[path = "cli/inputs.rs"]
mod inputs;
#[path = "cli/messages.rs"]
mod messages;
#[path = "cli/render.rs"]
mod render;
#[path = "cli/runs.rs"]
mod runs;
#[path = "cli/signals.rs"]
mod signals;
#[path = "cli/variables.rs"]
mod variables;

use std::os::unix::ffi::OsStrExt as _;

use common::{Files, Ran, World, run};

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
        (&["--link=current"], &["--link needs --layout=git-sync", "hint: leave it out"]),
        (&["--layout=git-sync", "--link=a/.."], &["\"a/..\"", "--link", "that is the root itself"]),
        (&["--owner=acme"], &["--owner needs --rules or --rules-in-tree"]),
        (&["--pre-publish-gate-retry"], &["--pre-publish-gate-retry needs --pre-publish-gate"]),
        (&["--webhook-method=PUT"], &["--webhook-method needs --webhook-url"]),
        (&["--exechook-command=", "--exechook-timeout=9s"], &["--exechook-timeout needs --exechook-command"]),
        (&["--prune"], &["--prune needs --rules or --rules-in-tree"]),
        (&["--kubeconfig=/x"], &["--kubeconfig needs --rules"]),
        (&["--overlaps=first"], &["--overlaps needs --rules"]),
        (&["--resync-period=5m"], &["--resync-period needs --rules"]),
        (&["--git-gc=never"], &["--git-gc: must be one of auto, always, aggressive, off\n"]),
        (&["--http-pprof"], &["--http-pprof needs --http-bind"]),
        (&["--submodules=some"], &["--submodules", "\"some\""]),
        (&["--username=me"], &["--username needs --password-file"]),
        (&["--password-file=/x"], &["--password-file needs --username", "hint: give the user"]),
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
        (&["--lease-pool=ci"], &["\"ci\" for --lease-pool", "hint: --lease-pool=ci/pool:3 is "]),
        (&["--pre-publish-gate"], &["needs --pre-publish-exechook-command", "PROGRAM runs before each"]),
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

/// git-sync ignores it, and its variables mean the same here.
#[test]
fn the_base_url_of_githubs_api_needs_no_github_app() {
    let world = World::new();
    let first = world.remote.commit(&files("one"));
    let base = "https://github.example.com/api/v3";
    let flag = format!("--github-base-url={base}");
    let said = |flags: &[&str], variable: &str| {
        let mut command = world.sync(&[&["--one-time"][..], flags].concat());
        run::to_end(command.env(variable, base)).expect_ok(variable).stderr
    };
    for (flags, variable, name) in [
        (&[][..], "GITSYNC_GITHUB_BASE_URL", "$GITSYNC_GITHUB_BASE_URL"),
        (&[][..], "TREESWAP_GITHUB_BASE_URL", "$TREESWAP_GITHUB_BASE_URL"),
        (&[flag.as_str()][..], "GITSYNC_GITHUB_BASE_URL", "--github-base-url"),
    ] {
        let log = said(flags, variable);
        world.assert_published(&first);
        let warning = format!("{name} has no effect without --github-app-application-id or ");
        assert!(log.contains(&warning), "{log}");
    }
    // The default counts as not given: `check` prints it.
    assert!(!said(&["--github-base-url=https://api.github.com/"], "UNRELATED").contains("has no effect"));
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
    let v3 = treeswap(&world, &["sync", "--root=/x"], &[("GIT_SYNC_REPO", "https://git.example.com/x")]);
    complains(&v3, 2, &["hint: $GIT_SYNC_REPO is git-sync v3's"]);
    complains(&treeswap(&world, &["sync", "--repo=/x"], &[]), 2, &["sync needs --root, or --rules"]);
    let no_owner = treeswap(&world, &["apply", "--rules=x"], &[]);
    complains(&no_owner, 2, &["--owner is required"]);
    let no_rules = treeswap(&world, &["apply", "--repo=/x", "--owner=x"], &[]);
    complains(&no_rules, 2, &["treeswap: --rules or --rules-in-tree is required"]);
    for ran in [no_owner, no_rules] {
        assert!(!ran.stderr.contains("$TREESWAP_"), "apply has no variables: {}", ran.stderr);
    }
    let variables = [("TREESWAP_OWNER", "acme"), ("TREESWAP_GRACE", "1m")];
    let in_variables = treeswap(&world, &["apply", "--rules=x", "--repo=/x"], &variables);
    let none = "has no effect: the flags of `treeswap apply` have no variables";
    let [owner, grace] = ["OWNER", "GRACE"].map(|name| format!("hint: the variable TREESWAP_{name} {none}"));
    complains(&in_variables, 2, &["--owner is required\n", &format!("{owner}; write --owner\n"), &grace]);
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
    let apply = |flag: &str| treeswap(&world, &["apply", "--owner=x", "--rules=x", flag], &[]);
    let branch = apply("--branch=main");
    complains(&branch, 2, &["of git-sync that `treeswap apply` does not have", "hint: use --ref\n"]);
    assert!(!apply("--wait=5").stderr.contains("--period"), "apply has no such flag");
}

#[test]
fn flags_of_prow_are_named_with_what_to_give_instead() {
    let world = World::new();
    let base = ["--owner=x", "--rules-in-tree=x"];
    for (command, flag, instead) in [
        ("apply", "--plugin-config=p.yaml", "use --rules"),
        ("apply", "--source-path=.", "use --tree with --revision, or --repo"),
        ("render", "--source-path=.", "use --tree, or --repo"),
        ("sync", "--source-path=.", "use --repo"),
    ] {
        let base = if command == "render" { &base[1..] } else { &base[..] };
        let ran = treeswap(&world, &[&[command][..], base, &[flag][..]].concat(), &[]);
        let name = flag.split('=').next().unwrap();
        let line = format!("treeswap: {name} is a flag of Prow that `treeswap {command}` does not have\n");
        assert_eq!(ran.stderr, format!("{line}hint: {instead}\n"));
    }
}

#[test]
fn a_switch_without_a_value_is_written_alone_or_left_out() {
    let world = World::new();
    for (value, hint) in [("true", "write --dry-run alone"), ("false", "leave out --dry-run")] {
        let flag = format!("--dry-run={value}");
        let ran = treeswap(&world, &["apply", "--owner=x", "--rules=x", &flag], &[]);
        complains(&ran, 2, &["treeswap: --dry-run takes no value\n", &format!("hint: {hint}\n")]);
    }
    let ran = treeswap(&world, &["sync", "--help=xyz"], &[]);
    let hint = "hint: write --help alone, or --help=all for all options\n";
    complains(&ran, 2, &["treeswap: --help takes no value but `all`\n", hint]);
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
        ran.stderr.ends_with(
            "treeswap: the configuration is valid; the repository, the root and clusters were not looked at\n"
        ),
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
fn a_password_file_without_a_password_is_warned_about() {
    let world = World::new();
    let file = world.dir().join("password");
    let flags = ["--username=me".to_owned(), format!("--password-file={}", file.display())];
    let check = || {
        let args = ["check"].into_iter().chain(SYNC[1..].iter().copied());
        let args: Vec<&str> = args.chain(flags.iter().map(String::as_str)).collect();
        treeswap(&world, &args, &[]).expect_ok("only a warning").stderr
    };
    std::fs::write(&file, "").unwrap();
    assert!(check().contains("password cannot be read: it is empty"), "{}", check());
    std::fs::write(&file, "hunter2").unwrap();
    assert!(!check().contains("cannot be read"), "{}", check());
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
    let key = world.dir().join("key");
    let [begin, end] = ["BEGIN", "END"].map(|word| format!("-----{word} ENCRYPTED PRIVATE KEY-----"));
    std::fs::write(&key, format!("{begin}\nAA==\n{end}\n")).unwrap();
    let flag = format!("--ssh-key-file={}", key.display());
    let locked = treeswap(&world, &["check", "--repo=git@git.example.com:x", "--root=/r", &flag], &[]);
    let line = format!("warning: --ssh-key-file: the ssh key {} is encrypted; passphrases", key.display());
    assert!(locked.stderr.contains(&line), "{}", locked.stderr);
    let off = warned(&["--ssh-known-hosts=false", "--ssh-known-hosts-file=/no/hosts"], &[]);
    assert_eq!(off, [""; 0], "it is not read");
    let two = warned(&[], &[("TREESWAP_SSH_KEY_FILE", "/no/one:/dev/null:/no/two")]);
    assert_eq!(two.len(), 2, "{two:?}");
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
