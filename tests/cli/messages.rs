//! What errors, warnings and hints say about a wrong path, flag or file: the line names the cause, and the hint works
//! as it is written.

use std::os::unix::fs::symlink;
use std::path::Path;

use super::common::{Files, Ran, World, eventually, run};
use super::{complains, files, treeswap};

#[test]
fn status_and_pin_name_a_path_that_is_no_root() {
    let world = World::new();
    let text = |path: &Path| path.display().to_string();
    let absent = text(&world.dir().join("absent"));
    let file = text(&world.dir().join("file"));
    std::fs::write(&file, "").unwrap();
    for (path, none) in [
        (&absent, format!("treeswap: there is no directory {absent}\n")),
        (&file, format!("treeswap: {file} is not a directory\n")),
    ] {
        complains(&treeswap(&world, &["status", path], &[]), 1, &[&none, "has as --root"]);
        let pin = treeswap(&world, &["pin", path, "--", "true"], &[]);
        assert!(!pin.stderr.contains("--wait"), "waiting will not help: {}", pin.stderr);
    }
    let pin = treeswap(&world, &["pin", &absent, "--", "true"], &[]);
    complains(&pin, 1, &[&format!("hint: there is no directory {absent}: ")]);
    let dir = text(world.dir());
    let pin = treeswap(&world, &["pin", &dir, "--", "true"], &[]);
    complains(&pin, 1, &[&format!("hint: no writer has opened {dir}")]);
    // A root in which nothing is published yet: the command in the hint is one that can be run.
    std::fs::create_dir_all(world.root.join("..treeswap")).unwrap();
    let root = text(&world.root);
    let pin = treeswap(&world, &["pin", &root, "--", "true"], &[]);
    complains(&pin, 1, &["treeswap pin --wait 1m"]);
    let command: Vec<&str> = pin.stderr.split('`').nth(1).unwrap().split(' ').collect();
    assert_eq!(command, ["treeswap", "status", &root]);
    complains(&treeswap(&world, &command[1..], &[]), 1, &["no generation is published in"]);
}

#[test]
fn who_names_a_link_or_a_directory_in_a_root_is_told_the_root() {
    let world = World::new();
    world.remote.commit(&files("1"));
    let mut command = world.treeswap(&["git-sync", "--one-time", "--link=link", "--ref=main", "--repo"]);
    run::to_end(command.arg(&world.remote.path).arg("--root").arg(&world.root)).expect_ok("a root");
    let root = world.root.display().to_string();
    let hint = format!("hint: this is inside the root {root}: name that\n");
    for path in [format!("{root}/link"), format!("{root}/.worktrees")] {
        complains(&treeswap(&world, &["status", &path], &[]), 1, &["no writer has opened", &hint]);
    }
}

#[test]
fn a_password_in_the_url_is_warned_about_with_the_variable_that_this_program_reads() {
    let world = World::new();
    for (command, ours, other) in [("sync", "TREESWAP", "GITSYNC"), ("git-sync", "GITSYNC", "TREESWAP")] {
        let repo = "--repo=https://bob:hunter2-hunter2@127.0.0.1:1/x";
        let mut command = world.treeswap(&[command, repo, "--one-time", "--root"]);
        let said = run::to_end(command.arg(world.dir().join(ours))).stderr;
        assert!(said.contains(&format!("by --password-file, or in ${ours}_PASSWORD")), "{said}");
        assert!(!said.contains(&format!("{other}_PASSWORD")), "{said}");
    }
}

#[test]
fn that_submodules_are_off_is_said_where_there_are_some() {
    let world = World::new();
    let mut tree = files("1");
    tree.0.insert("lib/sub".to_owned(), ("160000", "7".repeat(40).into()));
    world.remote.commit(&tree);
    let said = |more: &[&str]| world.sync_once(more).expect_ok("a root").stderr;
    let log = said(&[]);
    let line = "submodules are off, so lib/sub is an empty directory";
    assert!(log.contains(line) && log.contains("--submodules=recursive"), "{log}");
    world.remote.commit(&files("2"));
    assert!(!said(&[]).contains("submodules"));
    // One that a small commit adds is written onto the spare.
    world.remote.commit(&tree);
    assert!(said(&[]).contains(line));
}

#[test]
fn a_watch_of_a_directory_that_does_not_exist_says_so_and_waits() {
    let world = World::new();
    let root = world.root.display().to_string();
    let log = world.dir().join("log");
    let mut watch = world.treeswap(&["watch", "--exit-on-failure", &root, "--", "false"]);
    let mut watch = run::Background::start(&mut watch, &log);
    let absent = format!("there is no directory {root} yet; PATH is the --root of `treeswap sync`");
    eventually(30, "it says so", || watch.log().contains(&absent).then_some(()));
    world.remote.commit(&files("1"));
    world.sync_once(&[]).expect_ok("a root");
    assert_eq!(watch.ended().code(), Some(1), "the command ran");
}

#[test]
fn a_watch_of_a_directory_that_is_no_root_yet_says_so_and_waits() {
    let world = World::new();
    world.remote.commit(&files("1"));
    std::fs::create_dir(&world.root).unwrap(); // as a volume is mounted before the sidecar has started
    let root = world.root.display().to_string();
    let log = world.dir().join("log");
    let mut watch = world.treeswap(&["watch", "--exit-on-failure", &root, "--", "false"]);
    let mut watch = run::Background::start(&mut watch, &log);
    let said = format!(
        "treeswap: no generation is published at {root}/..data: no writer has opened {root} yet; PATH is the --root of \
         `treeswap sync`, or the link it keeps; waiting for it\n"
    );
    eventually(30, "it says so", || watch.log().contains(&said).then_some(()));
    world.sync_once(&[]).expect_ok("a root");
    assert_eq!(watch.ended().code(), Some(1), "the command ran");
}

#[test]
fn a_root_that_leads_through_a_link_to_nothing_is_named_with_it() {
    let world = World::new();
    world.remote.commit(&files("1"));
    let link = world.dir().join("dl");
    let target = world.dir().join("later");
    symlink(&target, &link).unwrap();
    for root in [link.clone(), link.join("below")] {
        let mut command = world.treeswap(&["sync", "--one-time", "--ref=main", "--repo"]);
        let ran = run::to_end(command.arg(&world.remote.path).arg("--root").arg(&root));
        let words =
            format!("{} is a symbolic link to {}, which does not exist", link.display(), target.display());
        let ran = ran.expect_failure("nothing is there");
        ran.names(&[&words]);
        assert!(ran.stderr.contains("\nhint: create that directory, or "), "{}", ran.stderr);
    }
    // As the hint says.
    std::fs::create_dir(&target).unwrap();
    let mut command = world.treeswap(&["sync", "--one-time", "--ref=main", "--repo"]);
    run::to_end(command.arg(&world.remote.path).arg("--root").arg(&link)).expect_ok("the directory was made");
}

/// Renders an empty tree by rules of this text.
fn render_by(world: &World, text: &str) -> Ran {
    let (tree, rules) = (world.dir().join("tree"), world.dir().join("rules.yaml"));
    std::fs::create_dir_all(&tree).unwrap();
    std::fs::write(&rules, text).unwrap();
    let [tree, rules] =
        [("tree", tree), ("rules", rules)].map(|(flag, path)| format!("--{flag}={}", path.display()));
    treeswap(world, &["render", &rules, &tree], &[])
}

#[test]
fn rules_that_are_empty_or_have_an_unknown_field_are_refused() {
    let world = World::new();
    for text in ["", "# nothing\n", "{}\n"] {
        complains(&render_by(&world, text), 2, &["rules.yaml cannot be read: it is empty"]);
    }
    for (text, words) in [
        ("map:\n  a: {name: a}\n", &["map (line 1): ", "did you mean maps?"][..]),
        ("config_updatr:\n  maps: {a: {name: a}}\n", &["did you mean config_updater?"]),
        (
            "plugins: {}\nconfig-updater:\n  maps: {a: {name: a}}\n",
            &["config-updater (line 2): ", "did you mean config_updater?"],
        ),
        ("some: thing\n", &["some (line 1): there is no such field"]),
    ] {
        complains(&render_by(&world, text), 2, words);
    }
}

#[test]
fn a_pattern_that_yaml_takes_for_something_else_is_to_be_quoted() {
    let world = World::new();
    for pattern in ["**/*.yaml", "*.yaml", "*x", "&", "{a,b}/*", "[ab]/*"] {
        let ran = render_by(&world, &format!("maps:\n  {pattern}: {{name: a}}\n"));
        let hint = "hint: correct the YAML; quote a pattern that begins with *, { or [: \"**/*.yaml\"\n";
        complains(&ran, 2, &["rules.yaml cannot be read: ", hint]);
    }
    complains(&render_by(&world, "maps:\n\ta: {name: a}\n"), 2, &["hint: correct the YAML there\n"]);
    let ran = render_by(&world, "maps:\n  a: {name: a, clusters: {default: ci}}\n");
    complains(&ran, 2, &["it is text, where a list such as [a, b] belongs"]);
}

#[test]
fn a_warning_says_what_is_done_with_what_a_policy_skips() {
    let world = World::new();
    let tree = world.dir().join("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("..key"), "").unwrap();
    symlink("nothing", tree.join("link")).unwrap();
    std::fs::write(tree.join("big"), super::common::noise(7, 2 << 20)).unwrap();
    let skips = ["--illegal-keys=skip", "--links=skip", "--oversize=skip"];
    let rules = world.dir().join("rules.yaml");
    std::fs::write(&rules, "maps:\n  '*': {name: a}\n  none: {name: none}\n").unwrap();
    let [tree, rules] =
        [("tree", tree), ("rules", rules)].map(|(flag, path)| format!("--{flag}={}", path.display()));
    let ran = treeswap(&world, &[&["render", &*rules, &tree][..], &skips].concat(), &[]).expect_ok("skipped");
    for (about, end) in [
        ("..key cannot have the key", "; it is left out"),
        ("link is ", "; it is left out"),
        ("key big (big) of ConfigMap a", "; it is left out"),
        ("no file matches", "the rule none"),
    ] {
        let line = ran.stderr.lines().find(|line| line.contains(about));
        assert!(line.is_some_and(|line| line.ends_with(end)), "{about}: {}", ran.stderr);
    }
}

#[test]
fn rules_without_maps_mean_prows_default_maps() {
    let world = World::new();
    for text in ["plugins: {}\n", "lgtm:\n- repos: [a/b]\n", "maps: {}\n", "config_updater: {}\n"] {
        let ran = render_by(&world, text).expect_ok("only a warning");
        assert!(ran.stderr.contains("maps: there are no maps, so that Prow's two"), "{}", ran.stderr);
    }
}

#[test]
fn a_hint_does_not_recommend_the_command_that_was_just_run() {
    let world = World::new();
    let path = world.dir().join("bad.yaml");
    std::fs::write(&path, "maps: [\n").unwrap();
    let (rules, sources) = (format!("--rules={}", path.display()), format!("--sources={}", path.display()));
    let render = treeswap(&world, &["render", &rules, "--tree=."], &[]);
    complains(&render, 2, &["hint: correct the YAML there\n"]);
    assert!(!render.stderr.contains("`treeswap render"), "{}", render.stderr);
    let apply = treeswap(&world, &["apply", &rules, "--tree=.", "--owner=o"], &[]);
    complains(&apply, 2, &["hint: `treeswap render` tries the rules offline\n"]);
    let check = treeswap(&world, &["check", &sources, "--root=/x"], &[]);
    complains(&check, 2, &["hint: fix the file, or its path\n"]);
    assert!(!check.stderr.contains("`treeswap check"), "{}", check.stderr);
}

#[test]
fn what_cannot_be_read_or_is_not_taken_has_a_hint() {
    let world = World::new();
    let none = world.dir().join("nope").display().to_string();
    let tree = format!("--tree={none}");
    let rules = world.dir().join("r.yaml");
    std::fs::write(&rules, "maps:\n  a: {name: a}\n").unwrap();
    let rules = format!("--rules={}", rules.display());
    complains(
        &treeswap(&world, &["render", &rules, &tree], &[]),
        2,
        &["--tree: cannot read it: ", "\nhint: "],
    );
    let unread = treeswap(&world, &["render", &format!("--rules={none}"), "--tree=."], &[]);
    complains(&unread, 2, &["--rules: cannot read it: ", "\nhint: "]);
    let full = format!("--output={}", world.dir().display());
    let full = treeswap(&world, &["render", &rules, "--tree=.", &full], &[]);
    complains(&full, 2, &["--output: it is not empty", "hint: name a directory that does not exist yet"]);
    complains(&treeswap(&world, &["status", "/", "x"], &[]), 2, &["hint: `treeswap status --help` lists"]);
    complains(&treeswap(&world, &["status"], &[]), 2, &["hint: ROOT is the directory"]);
    let apply = treeswap(&world, &["apply", "--rules=x", "--tree=."], &[]);
    complains(&apply, 2, &["--owner is required\n", "hint: --owner=NAME"]);
    let variable = treeswap(
        &world,
        &["check", "--repo=https://git.example.com/x", "--root=/nonexistent/x"],
        &[("GITSYNC_BRANCH", "main")],
    );
    assert!(
        variable.stderr.contains("GITSYNC_BRANCH is git-sync's and has no effect here: use --ref"),
        "{}",
        variable.stderr
    );
}

#[test]
fn a_key_that_alone_is_too_large_is_not_told_to_grow() {
    let world = World::new();
    let tree = world.dir().join("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("big"), super::common::noise(7, 2 << 20)).unwrap();
    let tree = format!("--tree={}", tree.display());
    let rules = world.dir().join("r.yaml");
    for (more, gzip) in [("", true), (", gzip: true", false)] {
        std::fs::write(&rules, format!("maps:\n  big: {{name: cm{more}}}\n")).unwrap();
        let rules = format!("--rules={}", rules.display());
        for policy in ["--oversize=refuse", "--oversize=grow"] {
            let ran = treeswap(&world, &["render", &rules, &tree, policy], &[]);
            assert_eq!(ran.status.code(), Some(1), "{}", ran.stderr);
            for words in
                ["key big (big) of ConfigMap cm alone has ", "a key cannot be split", "--oversize=skip"]
            {
                assert!(ran.stderr.contains(words), "{words} is not in {}", ran.stderr);
            }
            assert_eq!(ran.stderr.contains("gzip makes"), gzip, "{}", ran.stderr);
            assert!(!ran.stderr.contains("=grow"), "{}", ran.stderr);
        }
        treeswap(&world, &["render", &rules, &tree, "--oversize=skip"], &[]).expect_ok("as the hint says");
    }
}

#[test]
fn the_gates_hint_can_be_followed() {
    let world = World::new();
    world.remote.commit(&Files::new().file("a", "1"));
    let gate = world.dir().join("gate");
    run::executable(&gate, "#!/bin/sh\necho no >&2\nexit 3\n");
    let ran = world
        .sync_once(&[&format!("--pre-publish-exechook-command={}", gate.display()), "--pre-publish-gate"]);
    let ran = ran.expect_failure("it is refused");
    assert!(
        ran.stderr.contains("hint: the text after the exit status is what the program printed"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("check out that revision and run the program there"), "{}", ran.stderr);
    assert!(ran.stderr.contains("hint: the hook runs again for another revision or at the next start; "));
}
