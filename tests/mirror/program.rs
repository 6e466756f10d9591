//! `--git`: a program that fetches in our place.

use std::time::{Duration, Instant};

use treeswap::mirror::wire::{Credential, Program};
use treeswap::secret::{Secret, SecretFrom};

use super::*;

/// A mirror whose objects a shell script fetches.
fn with_program(bench: &mut Bench, script: &str) -> PathBuf {
    let program = bench.world.dir().join("program");
    run::executable(&program, script);
    let config = vec![("safe.directory".to_owned(), "*".to_owned())];
    let mirror = PathBuf::new();
    bench.options.wire.program = Some(Program { path: program.clone(), config, mirror });
    program
}

/// Runs git, and notes each call's arguments.
fn noting(bench: &Bench) -> (String, PathBuf) {
    let log = bench.world.dir().join("calls");
    (format!("#!/bin/sh\necho \"$*\" >> {}\nexec git \"$@\"\n", log.display()), log)
}

#[test]
fn the_program_fetches_every_update_as_deep_as_asked_and_leaves_nothing_behind() {
    for (depth, commits) in
        [(Depth::Commits(1), [1, 1, 1]), (Depth::Commits(2), [1, 2, 2]), (Depth::Full, [1, 2, 3])]
    {
        let mut bench = Bench::at_depth("main", depth);
        let (script, log) = noting(&bench);
        with_program(&mut bench, &script);
        let mut mirror = bench.open();
        let mut held = Vec::new();
        for (n, commits) in commits.into_iter().enumerate() {
            let tip = bench.world.remote.commit(&wide().file("n", n.to_string()));
            let at = update(&mut mirror, &held);
            assert_eq!(at, revision(&tip));
            bench.assert_whole(&mirror, at);
            assert_eq!(bench.depth_of(at), commits, "{depth:?}");
            held.insert(0, at);
        }
        let calls = std::fs::read_to_string(log).unwrap();
        assert_eq!(calls.lines().count(), 3, "{calls}");
        assert!(calls.lines().all(|line| line.starts_with("fetch /")), "{calls}");
        let left: Vec<_> =
            std::fs::read_dir(bench.dir()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("tmp_")), "{left:?}");
        // What is held needs no program.
        bench.world.remote.reset(&held[1].to_string());
        update(&mut mirror, &held);
        bench.world.remote.reset(&held[0].to_string());
    }
}

#[test]
fn a_program_that_fails_is_named_with_what_it_said() {
    let mut bench = Bench::new("main");
    bench.world.remote.commit(&wide());
    let program = with_program(&mut bench, "#!/bin/sh\necho 'no luck today' >&2\nexit 3\n");
    let mut mirror = bench.open();
    let error = try_update(&mut mirror, &[]).unwrap_err();
    let said = error.to_string();
    assert!(
        said.contains("no luck today") && said.contains("exit status: 3") && error.is_transient(),
        "{said}"
    );
    drop(mirror);
    std::fs::remove_file(program).unwrap();
    let error = try_update(&mut bench.open(), &[]).unwrap_err();
    assert!(error.to_string().contains("cannot run"), "{error}");
    assert!(!error.hints().is_empty());
}

#[test]
fn the_deadline_is_hard_and_takes_all_that_the_program_started() {
    let mut bench = Bench::new("main");
    bench.world.remote.commit(&wide());
    let pid = bench.world.dir().join("pid");
    // The grandchild holds the pipes, too.
    let script =
        format!("#!/bin/sh\nsleep 600 & echo $! > {0}.new; mv {0}.new {0}; sleep 600\n", pid.display());
    with_program(&mut bench, &script);
    bench.options.wire.timeouts.overall = Duration::from_secs(2);
    let mut mirror = bench.open();
    let began = Instant::now();
    let error = try_update(&mut mirror, &[]).unwrap_err();
    assert!(error.to_string().contains("--sync-timeout"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(60));
    let pid = std::fs::read_to_string(pid).unwrap();
    let gone = || {
        // One that nobody reaps yet is gone, too.
        let status = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        (status.is_empty() || status.contains(") Z ")).then_some(())
    };
    common::eventually(30, "what the program started has ended", gone);
    let left = std::fs::read_dir(bench.dir()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left.into_iter().all(|name| !name.to_string_lossy().starts_with("tmp_")));
}

#[test]
fn credentials_reach_the_program_for_their_own_url_and_are_on_no_disk() {
    let mut bench = Bench::new("main");
    bench.world.remote.commit(&wide());
    let url = format!("file://{}", bench.world.remote.path.display());
    bench.options.wire.remote = url.clone();
    bench.options.wire.credentials = vec![
        Credential {
            url: Some(url.clone()),
            username: Some("bob".into()),
            password: SecretFrom::Value(Secret::new("pass:w@rd")),
        },
        Credential {
            url: Some("https://example.com/team".into()),
            username: Some("eve".into()),
            password: SecretFrom::Value(Secret::new("other")),
        },
    ];
    let out = bench.world.dir().join("filled");
    let asked = [url.as_str(), "https://example.com/team/x", "https://example.com.evil.example/team/x"];
    let fill = |url: &str| format!("echo url={url} | git credential fill >> {0} 2>&1\n", out.display());
    let fills: String = asked.iter().map(|url| fill(url)).collect();
    let env = bench.world.dir().join("env");
    let script = format!(
        "#!/bin/sh\n{fills}(env; tr '\\0' ' ' < /proc/self/cmdline) > {}\nexec git \"$@\"\n",
        env.display()
    );
    with_program(&mut bench, &script);
    let mut mirror = bench.open();
    update(&mut mirror, &[]);
    let filled = std::fs::read_to_string(out).unwrap();
    assert!(filled.contains("username=bob\npassword=pass:w@rd\n"), "{filled}");
    assert_eq!(
        (filled.matches("pass:w@rd").count(), filled.matches("username=eve\npassword=other").count()),
        (1, 1)
    );
    let env = std::fs::read_to_string(env).unwrap();
    assert!(
        !env.contains("pass:w@rd") && !env.contains("other\n") && env.contains("GIT_CONFIG_GLOBAL=/proc/"),
        "{env}"
    );
}

#[test]
fn a_form_that_only_the_program_knows_is_polled_through_it() {
    // For the second, git runs the program git-remote-special.1.
    for remote in ["special://somewhere/else", "special.1::somewhere"] {
        let mut bench = Bench::new("main");
        let tip = bench.world.remote.commit(&wide());
        let real = bench.world.remote.path.clone();
        bench.options.wire.remote = remote.into();
        let places = bench.world.dir().join("places");
        let script = format!(
            "#!/bin/sh\nverb=$1; shift 2\necho $verb $PWD >> {}\nexec git $verb {} \"$@\"\n",
            places.display(),
            real.display()
        );
        with_program(&mut bench, &script);
        let mut mirror = bench.open();
        let at = update(&mut mirror, &[]);
        assert_eq!(at, revision(&tip));
        bench.assert_whole(&mirror, at);
        // Where we were started, or above it, somebody else's repository may lie, with a configuration of theirs.
        let places = std::fs::read_to_string(places).unwrap();
        let mirror = bench.dir().canonicalize().unwrap();
        for line in places.lines() {
            let (verb, place) = line.split_once(' ').unwrap();
            let ours = if verb == "ls-remote" { place == "/" } else { Path::new(place).starts_with(&mirror) };
            assert!(ours, "{line}");
        }
        assert!(places.starts_with("ls-remote ") && places.contains("\nfetch "), "{places}");
    }
}

#[test]
fn a_listing_that_is_too_long_names_the_flag_and_is_not_cut() {
    let mut bench = Bench::new("main");
    let tip = bench.world.remote.commit(&wide());
    bench.options.wire.remote = "special://somewhere/else".into();
    // Two megabytes of other refs come first: the one that is followed is behind the limit.
    let script = format!(
        "#!/bin/sh\nyes \"$(printf '{tip}\\trefs/heads/other')\" | head -n 36000\n\
         printf '{tip}\\trefs/heads/main\\n'\n"
    );
    with_program(&mut bench, &script);
    assert!(wait(bench.open().resolve()).is_ok());
    bench.options.wire.max_refs_bytes = 1 << 20;
    let error = wait(bench.open().resolve()).unwrap_err();
    assert!(error.to_string().contains("--max-refs-bytes") && !error.is_transient(), "{error}");
}

#[test]
fn what_a_kill_left_is_swept() {
    let mut bench = Bench::new("main");
    let (script, _) = noting(&bench);
    with_program(&mut bench, &script);
    bench.world.remote.commit(&wide());
    drop(bench.open());
    let left = bench.dir().join("tmp_worktree-fetch-1-1");
    std::fs::create_dir_all(left.join("objects/pack")).unwrap();
    std::fs::write(left.join("HEAD"), "x").unwrap();
    let mut mirror = bench.open();
    assert!(!left.exists());
    update(&mut mirror, &[]);
}
