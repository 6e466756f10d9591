//! Wrong inputs: one line names the thing, and a hint says what to do. The exit code is 2 if something else has to be
//! given, and 1 if it may pass.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use super::common::{Ran, World, run};
use super::{SYNC, complains, files, treeswap};

/// It ended with this code and an error line with a hint, whatever was logged before.
#[track_caller]
fn ends(ran: &Ran, code: i32, words: &[&str]) {
    assert_eq!(ran.status.code(), Some(code), "{}", ran.stderr);
    ran.names(words);
}

fn flag(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

/// Writes a file of the world.
fn written(world: &World, name: &str, text: &str) -> PathBuf {
    let path = world.dir().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// Makes a FIFO. Nothing ever writes into it, so that a reader hangs as on a file system that is gone.
fn mknod(path: &Path) {
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
}

fn directory(world: &World, name: &str) -> PathBuf {
    let path = world.dir().join(name);
    std::fs::create_dir(&path).unwrap();
    path
}

#[test]
fn an_empty_argument_is_named() {
    let world = World::new();
    let root = world.root.to_str().unwrap();
    for (args, line, hint) in [
        (&["pin", root, ""][..], "unknown argument \"\"\n", "hint: the command to run goes after `--`"),
        (&["pin", "", "--", "true"], "PATH is empty\n", "hint: PATH is the directory"),
        (&["watch", "", "--", "true"], "PATH is empty\n", "hint: PATH is the directory"),
        (&["status", ""], "ROOT is empty\n", "hint: ROOT is the directory"),
        (&["completions", ""], "SHELL is empty\n", "hint: must be one of bash"),
    ] {
        complains(&treeswap(&world, args, &[]), 2, &[line, hint]);
    }
    for command in ["pin", "watch"] {
        let ran = treeswap(&world, &[command, root, "--", ""], &[]);
        complains(&ran, 2, &["invalid value \"\" for CMD: it is empty: name the program"]);
    }
}

#[test]
fn what_cannot_be_the_directory_of_the_manual_is_refused() {
    let world = World::new();
    let file = written(&world, "file", "");
    let below = file.join("below");
    for (dir, why) in [(&file, "it is not a directory"), (&below, "one of its parents is not a directory")] {
        let ran = treeswap(&world, &["man", &flag("dir", dir)], &[]);
        complains(&ran, 2, &[&format!(" for --dir: {why}\n"), "hint: name a directory"]);
    }
    let both = treeswap(&world, &["man", "sync", "--dir", "x"], &[]);
    complains(&both, 2, &["COMMAND and --dir exclude each other\n", "hint: leave out COMMAND or --dir\n"]);
}

#[test]
fn a_duration_is_shown_as_it_was_given() {
    let world = World::new();
    for (given, shown) in [
        ("--period=0", "\"0\" for --period: "),
        ("--period=0s", "\"0s\" for --period: "),
        ("--init-period=0.5ms", "\"0.5ms\" for --init-period: "),
        ("--sync-timeout=0m", "\"0m\" for --sync-timeout: "),
        ("--max-backoff=1ns", "\"1ns\" for --max-backoff: "),
    ] {
        let ran = treeswap(&world, &[&SYNC[..], &[given]].concat(), &[]);
        complains(&ran, 2, &[shown, "must be at least 10ms"]);
    }
    let ran = treeswap(&world, &SYNC, &[("GITSYNC_PERIOD", "0")]);
    complains(&ran, 2, &["\"0\" for $GITSYNC_PERIOD: ", "must be at least 10ms"]);
}

/// Ten lists of ten lists, and so on: a few lines that stand for a hundred million values.
fn many_aliases() -> String {
    let list = |of: &str| [of; 10].join(",");
    let mut text = format!("a0: &a0 [{}]\n", list("x"));
    for level in 1..8 {
        text += &format!("a{level}: &a{level} [{}]\n", list(&format!("*a{}", level - 1)));
    }
    text
}

#[test]
fn a_file_of_sources_or_rules_that_is_none_is_named() {
    let world = World::new();
    let sources = "version: 1\nsources:\n  - {name: a, repo: https://git.example.com/x}\nend: true\n";
    let fifo = world.dir().join("fifo");
    mknod(&fifo);
    for (path, why) in [
        (written(&world, "aliases.yaml", &format!("{}sources: *a7\nend: true\n", many_aliases())), ""),
        (written(&world, "two.yaml", &format!("{sources}---\n{sources}")), "more than one document"),
        (directory(&world, "directory"), "it is not a regular file"),
        (fifo, "it is not a regular file"),
    ] {
        let ran = treeswap(&world, &["check", &flag("sources", &path), "--root=/x"], &[]);
        complains(&ran, 2, &[&format!("treeswap: {}: ", flag("sources", &path)), why, "hint: fix the file"]);
    }
    let rules = "maps:\n  a: {name: a}\n";
    for (path, why) in [
        (written(&world, "aliases-of-rules.yaml", &format!("{}maps: *a7\n", many_aliases())), ""),
        (written(&world, "two-of-rules.yaml", &format!("{rules}---\n{rules}")), "more than one document"),
    ] {
        let ran = treeswap(&world, &["render", &flag("rules", &path), "--tree=."], &[]);
        complains(&ran, 2, &[&format!("the rules in {} cannot be read: ", path.display()), why, "hint: "]);
    }
}

#[test]
fn what_is_no_kubeconfig_is_named() {
    let world = World::new();
    let rules = flag("rules", &written(&world, "rules.yaml", "maps:\n  a: {name: a}\n"));
    let apply = |given: &str| treeswap(&world, &["apply", "--owner=o", &rules, "--tree=.", given], &[]);
    let text = written(&world, "text", "just some text\nof two lines\n");
    let not = format!("treeswap: {} is not a kubeconfig (line 1)\n", text.display());
    complains(&apply(&flag("kubeconfig", &text)), 2, &[&not, "hint: compare it with"]);
    let (empty, dir) = (written(&world, "empty", ""), directory(&world, "directory"));
    let pod = written(&world, "pod", "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n");
    for (name, path) in [("kubeconfig", &empty), ("kubeconfig", &pod), ("kubeconfig-dir", &dir)] {
        let none = format!("no cluster is configured: there is no context in {}\n", path.display());
        complains(&apply(&flag(name, path)), 2, &[&none, "hint: name a kubeconfig with contexts"]);
    }
    // What is no file is not opened, as a FIFO would hang.
    let [pipes, mixed] = ["pipes", "mixed"].map(|name| directory(&world, name));
    for dir in [&pipes, &mixed] {
        mknod(&dir.join("pipe"));
        std::fs::create_dir(dir.join("sub")).unwrap();
    }
    let none = format!("no cluster is configured: there is no context in {}\n", pipes.display());
    complains(&apply(&flag("kubeconfig-dir", &pipes)), 2, &[&none]);
    std::fs::write(mixed.join("config"), "contexts: [{name: a, context: {cluster: a, user: a}}]\n").unwrap();
    let given = flag("kubeconfig-dir", &mixed);
    let check = ["check", "--owner=o", &rules, "--repo=/x", "--root=/x", &given];
    let said = treeswap(&world, &check, &[]).expect_ok("only a warning").stderr;
    for name in ["pipe", "sub"] {
        let path = mixed.join(name);
        let none = format!("treeswap: warning: {} is not a kubeconfig: it is not a", path.display());
        assert!(said.contains(&none), "{said}");
    }
    let large = world.dir().join("large");
    std::fs::File::create(&large).unwrap().set_len((64 << 20) + 1).unwrap();
    let line = format!("treeswap: cannot read {}: it has more than 64 MiB\n", large.display());
    complains(&apply(&flag("kubeconfig", &large)), 2, &[&line, "hint: split it"]);
    let kinds = "hint: --kubeconfig and $KUBECONFIG name files, --kubeconfig-dir a directory";
    let absent = world.dir().join("absent");
    for (name, path, hint) in [
        ("kubeconfig", &dir, kinds),
        ("kubeconfig-dir", &text, kinds),
        ("kubeconfig", &absent, "hint: create it, or name another one"),
    ] {
        let unread = format!("treeswap: cannot read {}: ", path.display());
        complains(&apply(&flag(name, path)), 2, &[&unread, hint]);
    }
}

#[test]
fn check_needs_no_cluster_but_reads_the_rules_and_the_kubeconfigs_that_are_there() {
    let world = World::new();
    let rules = flag("rules", &written(&world, "rules.yaml", "maps:\n  a: {name: a}\n"));
    let [absent, absent_dir] =
        ["kubeconfig", "kubeconfig-dir"].map(|name| flag(name, &world.dir().join("absent")));
    let dir = directory(&world, "directory");
    let empty_dir = flag("kubeconfig-dir", &dir);
    let chosen_elsewhere = flag("kubeconfig", &written(&world, "chosen", "current-context: elsewhere\n"));
    let check = |more: &[&str]| treeswap(&world, &[&["check", "--owner=o", "--repo=/x"], more].concat(), &[]);
    for (more, warning) in [
        (&[rules.as_str()][..], "warning: no cluster is configured; where `treeswap sync` runs"),
        (&[&rules, "--root=/x"], "warning: no cluster is configured; where `treeswap sync` runs"),
        (&[&rules, &absent], "warning: cannot read "),
        (&[&rules, &absent_dir], "warning: cannot read "),
        (&[&rules, &empty_dir], "warning: no cluster is configured: there is no context in "),
        (&[&rules, &chosen_elsewhere, &absent_dir], "warning: cannot read "),
    ] {
        let said = check(more).expect_ok("only a warning").stderr;
        assert!(said.contains(warning) && said.contains("clusters were not looked at"), "{said}");
    }
    let wrong = flag("rules", &written(&world, "wrong.yaml", "maps:\n  a: {nam: a}\n"));
    complains(&check(&[&wrong]), 2, &["treeswap: the rules in "]);
    let text = flag("kubeconfig", &written(&world, "text", "just some text\nof two lines\n"));
    complains(&check(&[&rules, &text]), 2, &["is not a kubeconfig", "hint: "]);
    // What is wrong anywhere is found although something else is missing here.
    ends(&check(&[&rules, &absent, &text, &absent_dir]), 2, &["is not a kubeconfig"]);
    complains(&check(&[&rules, &chosen_elsewhere]), 2, &["is in no kubeconfig"]);
    complains(&check(&[&rules, &flag("kubeconfig", &dir)]), 2, &["treeswap: cannot read "]);
}

#[test]
fn a_kubeconfigs_token_file_that_hangs_is_named_and_the_server_is_not_blamed() {
    let world = World::new();
    let fifo = world.dir().join("token");
    mknod(&fifo);
    let kubeconfig = format!(
        "{{current-context: a, contexts: [{{name: a, context: {{cluster: a, user: a}}}}], \
         clusters: [{{name: a, cluster: {{server: \"http://127.0.0.1:1\"}}}}], \
         users: [{{name: a, user: {{tokenFile: {}}}}}]}}",
        fifo.display()
    );
    let kubeconfig = flag("kubeconfig", &written(&world, "kubeconfig", &kubeconfig));
    let tree = flag("tree", &directory(&world, "tree"));
    written(&world, "tree/a", "x");
    let rules = flag("rules", &written(&world, "rules.yaml", "maps:\n  a: {name: a}\n"));
    let revision = format!("--revision={}", "1".repeat(40));
    let given = ["apply", "--owner=o", &rules, &tree, &revision, &kubeconfig, "--request-timeout=4s"];
    let ran = treeswap(&world, &given, &[]);
    ends(&ran, 3, &[&format!("cannot read {}: no answer within 1s", fifo.display())]);
    assert!(ran.stderr.contains("hint: check the volume that it is on, and its mount\n"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("a slow server"), "{}", ran.stderr);
}

#[test]
fn what_apply_warns_about_is_in_its_log() {
    let world = World::new();
    let kubeconfig = "current-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n";
    let kubeconfig = flag("kubeconfig", &written(&world, "kubeconfig", kubeconfig));
    let rules = flag("rules", &written(&world, "rules.yaml", "maps:\n  a: {name: a}\n"));
    let given = ["apply", "--owner=o", &rules, &kubeconfig, "--repo=ssh://git@127.0.0.1:1/x", "--timeout=5s"];
    let unchecked = ["--ssh-known-hosts=false", "--log-format=json"];
    let ran = treeswap(&world, &[&given[..], &unchecked].concat(), &[]);
    assert_ne!(ran.status.code(), Some(0), "{}", ran.stderr);
    let parsed = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"));
    let lines: Vec<serde_json::Value> = ran.stderr.lines().map(parsed).collect();
    let warning = "ssh host keys go unchecked (--ssh-known-hosts)";
    assert!(lines.iter().any(|line| line["level"] == "WARN" && line["message"] == warning), "{}", ran.stderr);
}

#[test]
fn a_path_of_rules_that_does_not_begin_at_the_top_of_the_tree_is_a_wrong_flag() {
    let world = World::new();
    let right = "write a path below the top of the tree, as in `ci/plugins.yaml`: no `/` in front, no `..`\n";
    for command in [
        &["apply", "--owner=o", "--tree=."][..],
        &["render", "--tree=."],
        &["check", "--owner=o", "--repo=/x", "--root=/x"],
    ] {
        let refused = |path: &str, line: &str| {
            let given = format!("--rules-in-tree={path}");
            let ran = treeswap(&world, &[command, &[given.as_str()]].concat(), &[]);
            complains(&ran, 2, &[&format!("treeswap: {line}: {right}")]);
        };
        for path in ["../x", "a/../../x", "a/../b", "a/..", "..", "/x", "././x", ".", "a//b", "a/"] {
            refused(path, &format!("invalid value {path:?} for --rules-in-tree"));
        }
        refused("", "--rules-in-tree needs a value");
    }
    let variable = [("TREESWAP_RULES_IN_TREE", "../x")];
    let ran = treeswap(&world, &["sync", "--owner=o", "--repo=/x"], &variable);
    complains(&ran, 2, &["invalid value \"../x\" for $TREESWAP_RULES_IN_TREE: "]);
    // A name that only looks like one of these is a name.
    let tree = flag("tree", &directory(&world, "tree"));
    directory(&world, "tree/..a");
    written(&world, "tree/..a/b..yaml", "maps:\n  a: {name: a}\n");
    for path in ["..a/b..yaml", "./..a/b..yaml"] {
        let given = format!("--rules-in-tree={path}");
        treeswap(&world, &["render", &given, &tree], &[]).expect_ok("names with dots");
    }
}

#[test]
fn a_repository_that_is_no_organisation_and_name_or_that_rules_need_is_a_wrong_flag() {
    let world = World::new();
    let text = "maps:\n  a: {name: a}\n  b: {name: b, denied_repos: [acme]}\n";
    let rules = flag("rules", &written(&world, "rules.yaml", text));
    let tree = flag("tree", &directory(&world, "tree"));
    let right = "write ORGANISATION/NAME, as in acme/config\n";
    let needs = "the rule b, which has allowed_repos or denied_repos, needs --repository=ORGANISATION/NAME\n";
    for command in [
        &["apply", "--owner=o", &tree][..],
        &["render", &tree],
        &["check", "--owner=o", "--repo=/x", "--root=/x"],
    ] {
        for value in ["x", "acme/", "/x", "a/b/c", "https://github.com/acme/x", "a/b c"] {
            let given = format!("--repository={value}");
            let ran = treeswap(&world, &[command, &[rules.as_str(), &given]].concat(), &[]);
            let line = format!("treeswap: invalid value {value:?} for --repository: {right}");
            complains(&ran, 2, &[&line]);
        }
        complains(&treeswap(&world, &[command, &[rules.as_str()]].concat(), &[]), 2, &[needs]);
    }
    treeswap(&world, &["render", &rules, &tree, "--repository=acme/x.y"], &[]).expect_ok("a name");
    // Rules in the tree are a commit's: that is refused.
    written(&world, "tree/rules.yaml", text);
    let ran = treeswap(&world, &["render", "--rules-in-tree=rules.yaml", &tree], &[]);
    complains(&ran, 1, &["the rule b depends on the repository's name", "hint: give it with --repository"]);
}

#[test]
fn what_can_never_be_a_root_a_link_or_a_mirror_is_a_wrong_configuration() {
    let world = World::new();
    world.remote.commit(&files("1"));
    let sync = |args: &[&str]| {
        let mut command = world.treeswap(&["sync", "--one-time", "--ref=main", "--repo"]);
        run::to_end(command.arg(&world.remote.path).args(args))
    };
    let (file, full) = (written(&world, "file", ""), directory(&world, "full"));
    std::fs::write(full.join("theirs"), "").unwrap();
    let below = file.join("below");
    for (root, why) in [
        (&file, "it is not a directory"),
        (&below, "one of its parents is not a directory"),
        (&full, "it is not empty"),
        (&PathBuf::from("/"), "it is the root of the file system"),
        (&world.dir().join("x".repeat(300)), "File name too long"),
    ] {
        ends(&sync(&[&flag("root", root)]), 2, &[why]);
    }
    complains(&sync(&["--root="]), 2, &["sync needs --root, or --rules"]);
    let own = flag("root", &world.root);
    for (mirror, why) in [(&file, "it is not a directory"), (&below, "one of its parents is not a directory")]
    {
        let why = format!(" for --mirror: {why}\n");
        complains(
            &sync(&[&own, &flag("mirror", mirror)]),
            2,
            &[&why, "hint: give --mirror an empty directory"],
        );
    }
    ends(&sync(&[&own, &flag("mirror", &full)]), 2, &["is not a mirror"]);
    let rules = flag("rules", &written(&world, "rules.yaml", "maps:\n  a: {name: a}\n"));
    let (repo, mirror) = (flag("repo", &world.remote.path), flag("mirror", &full));
    ends(&treeswap(&world, &["render", &rules, &repo, &mirror], &[]), 2, &["is not a mirror"]);
    let root = flag("root", &world.dir().join("other"));
    for (link, why) in [(&file, "a file is there instead of a link"), (&below, "Not a directory")] {
        ends(&sync(&[&root, "--layout=git-sync", &flag("link", link)]), 2, &[why]);
    }
}

#[test]
fn what_is_no_address_is_told_apart_from_one_that_cannot_be_had_now() {
    let world = World::new();
    world.remote.commit(&files("1"));
    for bind in ["nonsense", ":99999", ":", "[]:80", "[::g]:80", "::1:80", "300.1.1.1:80", "a b:80"] {
        let ran = world.sync_once(&[&format!("--http-bind={bind}")]);
        complains(&ran, 2, &[&format!("invalid value {bind:?} for --http-bind: write :8080")]);
    }
    let elsewhere = world.sync_once(&["--http-bind=192.0.2.1:80"]);
    ends(&elsewhere, 1, &["cannot listen at 192.0.2.1:80"]);
    assert!(!world.root.exists(), "nothing was touched");
}

#[test]
fn a_root_in_a_volume_that_is_not_there_yet_is_no_wrong_configuration() {
    let world = World::new();
    world.remote.commit(&files("1"));
    let (link, volume) = (world.dir().join("link"), world.dir().join("volume"));
    symlink(&volume, &link).unwrap();
    let root = flag("root", &link.join("root"));
    let words = format!("{} is a symbolic link to {}, which does not", link.display(), volume.display());
    ends(&world.sync_once(&[&root]), 1, &[&words]);
    std::fs::create_dir(&volume).unwrap();
    world.sync_once(&[&root]).expect_ok("once it is there");
}

#[test]
fn what_cannot_be_read_now_is_no_wrong_configuration() {
    let world = World::new();
    world.remote.commit(&files("1"));
    world.sync_once(&[]).expect_ok("a root");
    let rules = flag("rules", &written(&world, "rules.yaml", "maps:\n  a: {name: a}\n"));
    let hint = "hint: check the volume that it is on, and its mount\n";
    // Its first bytes cannot be read, as those of a file on a disk that is gone.
    let sick = Path::new("/proc/self/mem");
    let ran = treeswap(&world, &["render", &flag("rules", sick), "--tree=."], &[]);
    complains(&ran, 1, &["treeswap: cannot read /proc/self/mem (--rules): Input/output error", hint]);
    let kubeconfig = "current-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n";
    let kubeconfig = flag("kubeconfig", &written(&world, "kubeconfig", kubeconfig));
    let sources = flag("sources", sick);
    for args in [
        &["check", "--root=/nonexistent/root", &sources][..],
        &["render", &rules, &sources],
        &["apply", "--owner=o", &rules, &kubeconfig, &sources],
    ] {
        let ran = treeswap(&world, args, &[]);
        complains(&ran, 1, &["treeswap: cannot read /proc/self/mem (--sources): Input/output error", hint]);
    }
    let apply = |kubeconfig: &Path| {
        let kubeconfig = flag("kubeconfig", kubeconfig);
        treeswap(&world, &["apply", "--owner=o", &rules, "--tree=.", &kubeconfig], &[])
    };
    complains(&apply(sick), 1, &["treeswap: cannot read /proc/self/mem: Input/output error", hint]);
    let fifo = world.dir().join("fifo");
    mknod(&fifo);
    complains(&apply(&fifo), 1, &[&format!("cannot read {}: no answer within 5s\n", fifo.display()), hint]);
    let circle = world.dir().join("circle");
    symlink("circle", &circle).unwrap();
    let ran = treeswap(&world, &["render", &rules, &flag("tree", &circle)], &[]);
    complains(&ran, 1, &[&format!("cannot read {} (--tree): Too many", circle.display()), hint]);
    let ran = world.sync_once(&[&flag("mirror", &circle)]);
    complains(&ran, 1, &[&format!("cannot resolve {} (--mirror): Too many", circle.display()), hint]);
}

#[test]
fn an_operators_file_that_a_link_leads_into_what_is_treeswaps_is_refused_by_check_and_never_written() {
    let world = World::new();
    world.remote.commit(&files("1"));
    world.sync_once(&[]).expect_ok("a root");
    symlink("..data", world.root.join("..d")).unwrap();
    let [private, shared] = ["private", "shared"].map(|name| world.dir().join(name));
    symlink(world.root.join("..treeswap"), &private).unwrap();
    symlink(&world.root, &shared).unwrap(); // as a second mount of the volume
    let [private, shared] = [private.join("x"), shared.join("ready")];
    let own = "in the root is treeswap's own\n";
    let root = flag("root", &world.root);
    for (file, why) in [
        ("..d/x", own),
        ("..d/sub/x", own),
        (private.to_str().unwrap(), own),
        (shared.to_str().unwrap(), "the repository may have a \"ready\" of its own"),
    ] {
        for flag in ["--error-file", "--touch-file"] {
            let given = format!("{flag}={file}");
            let checked = treeswap(&world, &["check", "--repo=https://h/x", &root, &given], &[]);
            let line = format!("invalid value {file:?} for {flag}: by what it resolves to, ");
            complains(&checked, 2, &[&line, why, "hint: name a path outside"]);
            // Nothing that is published depends on the file.
            let said = world.sync_once(&[&given]).expect_ok(&given).stderr;
            let warning = format!("{flag}: {}: by what it resolves to, ", world.root.join(file).display());
            assert!(said.contains(&warning) && said.contains("; it will not be written"), "{said}");
        }
    }
    world.remote.commit(&files("2"));
    world.sync_once(&[&flag("touch-file", &shared)]).expect_ok("with a second mount");
    assert_eq!(std::fs::read_to_string(world.root.join("routes.yaml")).unwrap(), "2");
    for file in [&world.root.join("..data/x"), &private, &shared] {
        assert!(!file.exists(), "{} was written", file.display());
    }
    // What is the operator's own may be reached through a link.
    let own = directory(&world, "own");
    symlink(&own, world.root.join("..own")).unwrap();
    world.sync_once(&["--touch-file=..own/touched"]).expect_ok("beside the generations");
    assert!(own.join("touched").exists());
}

#[test]
fn a_command_is_not_run_without_the_pin_that_was_asked_for() {
    let world = World::new();
    world.remote.commit(&files("1"));
    world.sync_once(&[]).expect_ok("a root");
    let root = world.root.to_str().unwrap();
    let generation = std::fs::canonicalize(world.root.join("..data")).unwrap();
    let held = std::fs::File::open(&generation).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let ran = treeswap(&world, &["pin", root, "--", "echo", "it ran"], &[]);
    let line =
        format!("cannot pin {}: another process holds an exclusive lock on it\n", generation.display());
    complains(&ran, 1, &[&line, "`treeswap pin --wait 1m`"]);
    assert_eq!(ran.stdout, "");
    // With --wait the command runs once the lock is free.
    let mut command = world.treeswap(&["pin", "--wait=1m", root, "--", "echo", "it ran"]);
    let mut waiting = run::Background::start(&mut command, &world.dir().join("pin.log"));
    std::thread::sleep(Duration::from_secs(1)); // without --wait it has ended by now
    assert!(waiting.is_running(), "{}", waiting.log());
    flock(&held, FlockOperation::Unlock).unwrap();
    assert!(waiting.ended().success(), "{}", waiting.log());
    assert_eq!(waiting.log(), "it ran\n");
    // `watch` reloads what reads by itself: that is not given up for a lock.
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let ran = treeswap(&world, &["watch", "--exit-on-failure", root, "--", "sh", "-c", "exit 3"], &[]);
    assert_eq!(ran.status.code(), Some(3), "{}", ran.stderr);
    assert!(ran.stderr.contains("is not pinned, only its grace period protects it"), "{}", ran.stderr);
}
