//! Files that the operator asks for beside what is published, and commits that would have them opened elsewhere.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use super::common::{Files, World, run};

/// A commit that has every name that the tests ask for, as a link, a file and a directory.
fn grasping() -> Files {
    Files::new()
        .file("sub/err.json", "the repository's")
        .file("sub/ready", "the repository's")
        .link("touched", "sub/new")
        .link("mirror", "sub/mirror")
        .link("err.json", "sub/err.json")
}

/// The arguments for a touch file and an error file.
fn asking(touch: impl AsRef<Path>, error: impl AsRef<Path>) -> [String; 2] {
    let (touch, error) = (touch.as_ref().display(), error.as_ref().display());
    [format!("--touch-file={touch}"), format!("--error-file={error}")]
}

/// A failure, which writes the error file, and a success, which touches the touch file and removes the other.
fn fails_and_succeeds(world: &World, args: &[&str]) -> String {
    let away = [args, &["--ref=nowhere"]].concat();
    let failed = world.sync_once(&away).expect_failure("no such ref");
    failed.stderr + &world.sync_once(args).expect_ok("a pass").stderr
}

#[test]
fn in_our_layout_a_name_that_the_repository_may_have_is_refused_before_anything_is_touched() {
    let world = World::new();
    world.remote.commit(&grasping());
    let inside = world.root.join("sub/err.json");
    for flag in [
        "--touch-file=touched".to_owned(),
        "--touch-file=sub/ready".to_owned(),
        "--error-file=err.json".to_owned(),
        "--error-file=..data/err.json".to_owned(),
        "--error-file=..treeswap/state".to_owned(),
        format!("--error-file={}", inside.display()),
        format!("--termination-log={}", inside.display()),
        format!("--termination-log={}", world.root.join("..log").display()),
        format!("--mirror={}", world.root.join("mirror").display()),
    ] {
        let ran = world.sync_once(&[&flag]).expect_failure(&flag);
        assert_eq!(ran.status.code(), Some(2), "{flag}: {}", ran.stderr);
        let (name, value) = flag.split_once('=').unwrap();
        ran.names(&[name, value]);
        assert!(!world.root.exists(), "{flag}: something was touched");
    }
    let ran = world.sync_once(&["--touch-file=sub/ready"]).expect_failure("a name of the repository's");
    ran.names(&["\"sub\""]);
    assert!(ran.stderr.contains("begins with \"..\""), "{}", ran.stderr);
}

#[test]
fn in_our_layout_names_that_no_commit_can_have_work_and_are_nobody_elses() {
    let world = World::new();
    let commit = world.remote.commit(&grasping());
    let args = asking("..own/touched", "..err.json");
    let args = [&*args[0], &*args[1]];
    let failed = world.sync_once(&[args[0], args[1], "--ref=nowhere"]).expect_failure("no such ref");
    let text = std::fs::read_to_string(world.root.join("..err.json")).unwrap();
    assert!(text.contains("nowhere"), "{text}");
    let passed = world.sync_once(&args).expect_ok("a pass");
    assert!(world.root.join("..own/touched").is_file() && !world.root.join("..err.json").exists());
    let again = fails_and_succeeds(&world, &args);
    for stderr in [failed.stderr, passed.stderr, again] {
        assert!(!stderr.contains("left alone") && !stderr.contains("cannot"), "{stderr}");
    }
    world.assert_published(&commit);
    // A root with nothing in it but what a publication and the operator's files leave is ours.
    std::fs::remove_dir_all(world.root.join("..treeswap")).unwrap();
    world.sync_once(&args).expect_ok("without our own directory");
    world.assert_published(&commit);
}

#[test]
fn a_way_round_into_the_published_generation_is_named_and_leads_nowhere() {
    let world = World::new();
    let commit = world.remote.commit(&grasping());
    world.sync_once(&[]).expect_ok("a pass");
    let alias = world.dir().join("alias");
    symlink(&world.root, &alias).unwrap();
    for (touch, error) in
        [("touched", "sub/err.json"), ("sub/ready", "err.json"), ("new/ready", "..data/new")]
    {
        let args = asking(alias.join(touch), alias.join(error));
        let said = fails_and_succeeds(&world, &[&args[0], &args[1], "--symlinks=keep"]);
        assert!(said.contains("cannot touch") && said.contains("cannot write"), "{said}");
        world.assert_published(&commit);
        let text = std::fs::read_to_string(world.root.join("sub/err.json")).unwrap();
        assert_eq!(text, "the repository's");
    }
}

#[test]
fn in_git_syncs_layout_they_are_beside_the_worktrees_whatever_a_commit_has() {
    let world = World::new();
    let commit = world.remote.commit(&grasping());
    let layout = ["--layout=git-sync", "--link=link"];
    let untouched = || {
        let tree = world.root.join(".worktrees").join(&commit);
        let read = |name: &str| std::fs::read_to_string(tree.join(name)).unwrap();
        assert_eq!(
            (read("sub/err.json"), read("sub/ready")),
            ("the repository's".into(), "the repository's".into())
        );
        assert_eq!(std::fs::read_dir(tree.join("sub")).unwrap().count(), 2);
    };
    for (touch, error) in [("touched", "err.json"), ("sub/ready", "sub/err.json")] {
        let args = asking(touch, error);
        fails_and_succeeds(&world, &[layout[0], layout[1], &args[0], &args[1]]);
        assert!(world.root.join(touch).is_file() && !world.root.join(error).exists());
        untouched();
    }
    for path in ["link", "link/sub/ready", ".worktrees/x", ".git/config", "..treeswap/state"] {
        let flag = format!("--touch-file={path}");
        let ran = world.sync_once(&[layout[0], layout[1], &flag]).expect_failure(path);
        assert_eq!(ran.status.code(), Some(2), "{path}: {}", ran.stderr);
        ran.names(&["--touch-file", path]);
    }
    untouched();
}

#[test]
fn the_termination_log_is_never_written_in_the_root_and_no_mirror_is_made_there_by_another_way() {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "hi").file("d/f", "x"));
    world.sync_once(&[]).expect_ok("a first publication");
    let out = world.dir().join("out");
    std::fs::create_dir(&out).unwrap();
    symlink(world.root.join("..data"), out.join("current")).unwrap();
    symlink(world.root.join("..data/a"), out.join("file")).unwrap();
    std::fs::hard_link(world.root.join("..data/a"), out.join("hard")).unwrap();
    let ways = [world.root.join("..data/a"), world.root.join("a"), world.root.join("..treeswap/state")];
    for way in ways.into_iter().chain([out.join("current/a"), out.join("file"), out.join("hard")]) {
        let flag = format!("--termination-log={}", way.display());
        world.sync_once(&[&flag, "--ref=nowhere"]).expect_failure(&flag);
        world.assert_published(&commit);
        world.sync_once(&["--period=0.1parsecs", &flag]).expect_failure(&flag);
        world.assert_published(&commit);
    }
    let flag = format!("--mirror={}", out.join("current/cache").display());
    let ran = world.sync_once(&[&flag]).expect_failure("a mirror in what is published");
    assert_eq!(ran.status.code(), Some(2), "{}", ran.stderr);
    world.assert_published(&commit);
    // Where the kubelet makes it, it is written.
    let usual = out.join("termination-log");
    std::fs::write(&usual, "").unwrap();
    world
        .sync_once(&[&format!("--termination-log={}", usual.display()), "--ref=nowhere"])
        .expect_failure("no such ref");
    assert!(std::fs::read_to_string(&usual).unwrap().contains("nowhere"));
}

#[test]
fn nothing_is_made_in_what_the_writer_of_another_root_keeps() {
    let (world, other) = (World::new(), World::new());
    let commit = other.remote.commit(&Files::new().file("d/f", "x"));
    other.sync_once(&[]).expect_ok("the other root");
    let own = world.remote.commit(&Files::new().file("a", "hi"));
    for place in ["..data/new", "d/new", "..treeswap/new", "..treeswap/trash/new"] {
        let place = other.root.join(place);
        for flag in ["mirror", "touch-file", "error-file"] {
            let flag = format!("--{flag}={}", place.display());
            let ran = world.sync_once(&[&flag]).expect_failure(&flag);
            assert_eq!(ran.status.code(), Some(2), "{flag}: {}", ran.stderr);
            ran.names(&["only that root's writer may change", other.root.to_str().unwrap()]);
            assert!(!world.root.exists(), "{flag}: something was touched");
        }
        let mut command = world.treeswap(&["sync", "--one-time", "--repo"]);
        command.arg(&world.remote.path).arg("--root").arg(&place);
        let ran = run::to_end(&mut command).expect_failure("a root in another one");
        assert_eq!(ran.status.code(), Some(2), "{}", ran.stderr);
        ran.names(&["refusing the root", "only that root's writer may change"]);
        let mut command = world.treeswap(&["sync", "--owner=o", "--rules-in-tree=rules", "--repo"]);
        command.arg(&world.remote.path).arg("--mirror").arg(&place);
        let ran = run::to_end(&mut command).expect_failure("rules, and a mirror in another root");
        assert_eq!(ran.status.code(), Some(2), "{}", ran.stderr);
        ran.names(&["--mirror", "only that root's writer may change"]);
        assert!(!place.exists(), "{} was made", place.display());
    }
    other.assert_published(&commit);
    other.assert_clean(1);
    let beside = [world.dir().join("mirror"), other.root.join("..ready")];
    let [mirror, touch] = ["mirror", "touch-file"].map(|flag| format!("--{flag}="));
    let [mirror, touch] = [mirror + beside[0].to_str().unwrap(), touch + beside[1].to_str().unwrap()];
    world.sync_once(&[&mirror, &touch]).expect_ok("beside what another writer keeps");
    world.assert_published(&own);
    assert!(beside[1].is_file());
}

/// What refuses the configuration is written to the termination log, but not to one that is refused.
#[test]
fn a_refused_termination_log_is_not_written() {
    let (world, other) = (World::new(), World::new());
    let commit = other.remote.commit(&Files::new().file("d/f", "x"));
    other.sync_once(&[]).expect_ok("the other root");
    let state = std::fs::read(other.root.join("..treeswap/state")).unwrap();
    for place in ["..data/d/f", "d/f", "..treeswap/state"] {
        let flag = format!("--termination-log={}", other.root.join(place).display());
        let ran = world.sync_once(&[&flag]).expect_failure(&flag);
        ran.names(&["--termination-log", "only that root's writer may change"]);
        let mut command = world.treeswap(&["sync", &flag, "--repo=/nowhere"]);
        run::to_end(&mut command).expect_failure("no root").names(&["--root"]);
    }
    other.assert_published(&commit);
    assert_eq!(std::fs::read(other.root.join("..treeswap/state")).unwrap(), state);
}

#[test]
fn no_commit_chooses_what_is_read_at_every_attempt() {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("sparse", "/*\n").file("f", "x"));
    world.sync_once(&[]).expect_ok("all files");
    let ours = "\"..data\" in the root is treeswap's own";
    for (place, why) in
        [("sparse", "the repository may have a \"sparse\""), ("..data/sparse", ours), ("..data/none", ours)]
    {
        let flag = format!("--sparse-checkout-file={}", world.root.join(place).display());
        world.sync_once(&[&flag]).expect_failure(&flag).names(&["for --sparse-checkout-file", why]);
    }
    let beside = world.root.join("..sparse");
    std::fs::write(&beside, "/*\n").unwrap();
    world.sync_once(&[&format!("--sparse-checkout-file={}", beside.display())]).expect_ok("no commit has it");
    let link = world.dir().join("link");
    symlink(world.root.join("sparse"), &link).unwrap();
    let flag = format!("--sparse-checkout-file={}", link.display());
    world
        .sync_once(&[&flag])
        .expect_failure(&flag)
        .names(&["--sparse-checkout-file", "by what it resolves to, the repository may have"]);
    world.assert_published(&commit);
    // The author of another repository can mend it with a commit.
    let other = World::new();
    let all = other.remote.commit(&Files::new().file("a", "1").file("b", "2"));
    other.sync_once(&["--ref=main"]).expect_ok("all files");
    other.assert_published(&all);
    let flag = format!("--sparse-checkout-file={}", world.root.join("sparse").display());
    other.sync_once(&[&flag]).expect_ok("patterns that another writer publishes");
}

/// Whatever is read at every start or attempt: a commit that broke it would be the last one to be published.
#[test]
fn no_commit_chooses_keys_certificates_rules_or_kubeconfigs() {
    let world = World::new();
    let out = world.dir().join("elsewhere");
    std::fs::write(&out, "x").unwrap();
    let files = Files::new().file("f", "x").link("out", out.to_str().unwrap());
    let commit = world.remote.commit(&files);
    world.sync_once(&["--symlinks=keep"]).expect_ok("all files");
    let published = world.root.join("..data/f").display().to_string();
    let command = |more: &[&str]| {
        let mut command = world.treeswap(&["check", "--repo=/nowhere"]);
        command.arg("--root").arg(&world.root).args(more).current_dir(&world.root);
        command
    };
    let refuses = |command: &mut Command, name: &str| {
        let ran = run::to_end(command);
        ran.expect_failure(name)
            .names(&[&format!("for {name}: "), "\"..data\" in the root is treeswap's own"]);
    };
    let token = format!(r#"--credential={{"url":"http://h/","username":"u","password-file":"{published}"}}"#);
    for (name, value, more) in [
        ("--ca-file", &*published, &[][..]),
        ("--cookie-file", &published, &[]),
        ("--password-file", &published, &["--username=u"]),
        ("--ssh-known-hosts-file", &published, &[]),
        ("--ssh-key-file", &published, &["--ssh-key-file=/none"]),
        ("--github-app-private-key-file", &published, APP),
        ("--webhook-secret-file", &published, &["--http-bind=127.0.0.1:0"]),
        ("--rules", &published, &["--owner=o"]),
        ("--kubeconfig", &published, &["--owner=o", "--rules-in-tree=r"]),
        ("--kubeconfig-dir", "..data/d", &["--owner=o", "--rules-in-tree=r"]),
    ] {
        refuses(command(more).arg(format!("{name}={value}")), name);
    }
    refuses(&mut command(&[&token]), "the password-file of a credential");
    for setting in ["http.sslCAInfo", "http.cookieFile", "http.https://modules.example/.sslCAInfo"] {
        refuses(&mut command(&[&format!("--git-config=\"{setting}\":{published}")]), setting);
    }
    refuses(
        command(&["--owner=o", "--rules-in-tree=r"]).env("KUBECONFIG", format!("/none:{published}")),
        "$KUBECONFIG",
    );
    let list = format!("/none:{published}");
    refuses(command(&[]).env("TREESWAP_SSH_KEY_FILE", list), "$TREESWAP_SSH_KEY_FILE");
    let mut sync = world.treeswap(&["sync", "--repo=/nowhere", "--owner=o"]);
    refuses(sync.arg("--root").arg(&world.root).arg(format!("--rules={published}")), "--rules");

    let key = format!("ref: main, to: a, credentials: {{ssh-key-file: {published}}}");
    let sources = format!("version: 1\nsources:\n  - {{name: a, repo: 'git@h:x', {key}}}\nend: true\n");
    let file = world.dir().join("sources.yaml");
    std::fs::write(&file, sources).unwrap();
    let mut of_sources = world.treeswap(&["check", "--root"]);
    refuses(of_sources.arg(&world.root).arg(format!("--sources={}", file.display())), "its ssh-key-file");

    // By links: into the tree, through one of its links out of it again, and to where nothing is yet.
    for (number, target) in ["..data/f", "..data/out", "..data/none"].into_iter().enumerate() {
        let link = world.dir().join(format!("link-{number}"));
        symlink(world.root.join(target), &link).unwrap();
        let ran = run::to_end(&mut command(&[&format!("--ca-file={}", link.display())]));
        ran.expect_failure(target).names(&["for --ca-file: by what it resolves to, \"..data\" in the root"]);
    }
    // What no commit chooses: truth values, the operator's own names, other places.
    std::fs::write(world.root.join("..ca"), "").unwrap();
    for more in
        ["--cookie-file=1", "--cookie-file=F", "--cookie-file", "--ca-file=..ca", "--ca-file=../elsewhere"]
    {
        run::to_end(&mut command(&[more])).expect_ok(more);
    }
    world.assert_published(&commit);
    // The published link may be in a directory of kubeconfigs.
    let dir = world.dir().join("kube");
    std::fs::create_dir(&dir).unwrap();
    let [link, dir] =
        [format!("--link={}/now", dir.display()), format!("--kubeconfig-dir={}", dir.display())];
    let more = ["--layout=git-sync", "--owner=o", "--rules-in-tree=r", &link, &dir];
    run::to_end(&mut command(&more)).expect_ok("a directory with the link");
}

#[test]
fn no_commit_chooses_them_through_the_published_link_either() {
    let world = World::new();
    let out = world.dir().join("elsewhere");
    std::fs::write(&out, "x").unwrap();
    world.remote.commit(&Files::new().file("f", "x").link("out", out.to_str().unwrap()));
    let layout = ["--layout=git-sync", "--link=now"];
    world.sync_once(&[layout[0], layout[1], "--symlinks=keep"]).expect_ok("all files");
    let by_text = format!("it is the published link {}", world.root.join("now").display());
    let link = world.dir().join("link");
    for (file, why) in [("now/f", &*by_text), ("now/out", &by_text), (".git/config", "is treeswap's own")] {
        let published = world.root.join(file);
        let _ = std::fs::remove_file(&link);
        symlink(&published, &link).unwrap();
        let resolved = "by what it resolves to, ";
        for (place, why) in [(&published, why), (&link, resolved)] {
            for flag in ["rules", "kubeconfig"] {
                let mut command = world.treeswap(&["check", "--owner=o", "--repo=/nowhere", "--root"]);
                command.arg(&world.root).args(layout).arg(format!("--{flag}={}", place.display()));
                command.args((flag == "kubeconfig").then_some("--rules-in-tree=r"));
                run::to_end(&mut command).expect_failure(file).names(&[&format!("for --{flag}: "), why]);
            }
        }
    }
}

/// The flags that a GitHub App needs beside its key.
const APP: &[&str] = &["--github-app-application-id=7", "--github-app-installation-id=42"];

/// The settings have the mirror's directory, or the working directory, where the root would be.
#[test]
fn without_a_root_the_sources_may_be_anywhere() {
    let world = World::new();
    world.remote.commit(&Files::new().file("f", "x"));
    let list = format!(
        "version: 1\nsources:\n  - {{name: a, repo: {}, ref: main, to: a}}\nend: true\n",
        world.remote.path.display()
    );
    std::fs::write(world.dir().join("sources.yaml"), list).unwrap();
    std::fs::write(world.dir().join("rules.yaml"), "maps: {}\n").unwrap();
    let mut command = world.treeswap(&["check", "--rules=rules.yaml", "--sources=sources.yaml", "--owner=o"]);
    run::to_end(command.current_dir(world.dir())).expect_ok("below the working directory");
    let mirror = format!("--mirror={}", world.dir().display());
    run::to_end(command.arg(&mirror)).expect_ok("below the mirror's directory");
    let published = format!("--sources={}", world.root.join("..data/sources.yaml").display());
    let mut command = world.treeswap(&["sync", "--one-time", &published, "--root"]);
    run::to_end(command.arg(&world.root))
        .expect_failure("sources that a commit chooses")
        .names(&["for --sources", "\"..data\" in the root is treeswap's own"]);
}
