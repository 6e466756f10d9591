//! What people are told: by `check`, by the hints of a source's errors, and where rules are read from several sources.

use super::common::run::Ran;
use super::*;

#[test]
fn check_reads_the_file_and_asks_nobody() {
    let many = SourcesWorld::new();
    many.list(&["name: one, repo: 'https://git.example.com/x.git', to: one".to_owned()]);
    let check = |many: &SourcesWorld| {
        let mut command = many.world.treeswap(&["check", "--sources"]);
        to_end(command.arg(many.file()).arg("--root").arg(&many.world.root))
    };
    check(&many).expect_ok("a good file");
    many.list(&["name: one, repo: 'https://', to: one".to_owned()]);
    let ran = check(&many).expect_failure("a remote without a host");
    assert!(ran.stderr.contains("source \"one\""), "{}", ran.stderr);
    let refused = |ran: Ran, words: &str| {
        assert_eq!(ran.status.code(), Some(2), "{}", ran.stderr);
        assert!(
            ran.stderr.contains(words) && ran.stderr.contains("\nhint: fix the file, or its path\n"),
            "{}",
            ran.stderr
        );
        assert!(!ran.stderr.contains("is valid"), "{}", ran.stderr);
    };
    refused(ran, "source \"one\"");
    many.write("version: 1\nsources: none\nend: true\n");
    refused(check(&many), "sources.yaml: sources: write a list");
    std::fs::remove_file(many.file()).unwrap();
    refused(check(&many), "sources.yaml: cannot read it: ");
}

#[test]
fn check_shows_the_sources_and_warns_of_what_they_will_miss() {
    let many = SourcesWorld::new();
    many.list_with(
        "unique-base-names: [\"jobs/**\", \"job/**\"]\n",
        &[
            "name: one, repo: 'https://me:hunter2@git.example.com/x.git', path: a/b, to: jobs".to_owned(),
            "name: second, repo: 'git@git.example.com:y', ref: main, to: y, credentials: {ssh-key-file: /none}".to_owned(),
            "name: third, repo: 'ssh://git:hunter2@git.example.com/z', to: z".to_owned(),
        ],
    );
    let mut command = many.world.treeswap(&["check", "--sources"]);
    let ran = to_end(command.arg(many.file()).arg("--root").arg(&many.world.root)).expect_ok("a good file");
    let table: Vec<Vec<&str>> = ran
        .stdout
        .lines()
        .skip_while(|line| !line.starts_with("# source "))
        .map(|line| line.split_whitespace().skip(1).collect())
        .collect();
    assert_eq!(
        table,
        [
            ["source", "repo", "ref", "path", "to"],
            ["one", "https://git.example.com/x.git", "HEAD", "a/b", "jobs"],
            ["second", "git@git.example.com:y", "main", "/", "y"],
            ["third", "ssh://git@git.example.com/z", "HEAD", "/", "z"],
        ]
    );
    for words in [
        "warning: source one: the password in the URL of `repo` can be read by everybody who can read the file: \
         give it by `credentials`",
        "warning: source third: the password in the URL of `repo` can be read by everybody who can read the file, and \
         ssh does not use it: remove it, and give a key by `ssh-key-file`",
        "warning: source second: ssh-key-file: /none cannot be read: No such file",
        "warning: unique-base-names: \"job/**\" matches no path below the `to` of any source",
    ] {
        assert!(ran.stderr.contains(words), "{words}: {}", ran.stderr);
    }
    assert!(!ran.stderr.contains("hunter2") && ran.stderr.matches("warning").count() == 4, "{}", ran.stderr);
}

/// Flags that are refused beside `--sources` are of no help.
#[test]
fn hints_name_keys_of_the_file() {
    let many = SourcesWorld::new();
    let (one, empty) = (many.remote("one"), many.remote("empty"));
    one.commit(&Files::new().file("f", "1"));
    let at = |remote: &Remote, more: &str| format!("name: one, repo: {}{more}", remote.path.display());
    let ssh =
        "name: one, repo: 'ssh://git@127.0.0.1:1/x', credentials: {ssh-known-hosts-file: /none}".to_owned();
    for (source, hint) in [
        (at(&one, ", ref: mian"), "check `ref` of the source; `git ls-remote`"),
        (at(&one, ", ref: abcdef12"), "check `ref` of the source; a commit id"),
        (at(&empty, ""), "name the ref to follow with `ref` of the source"),
        (at(&one, ", path: nowhere"), "fix `path` of the source in the file of --sources"),
        (at(&one, ", path: f"), "add `to: NAME` to the source in the file of --sources"),
        (ssh, "`ssh-known-hosts-file` in the `credentials` of the source"),
    ] {
        many.list(&[source]);
        let ran = many.once().expect_failure(hint);
        let hints: Vec<&str> = ran.stderr.lines().filter(|line| line.starts_with("hint: ")).collect();
        assert!(hints.iter().any(|line| line.contains(hint)), "{hint}: {}", ran.stderr);
        assert!(!hints.iter().any(|line| line.contains("--ref") || line.contains("--path")), "{hints:?}");
    }
}

const RULES: &str = "config_updater:\n  maps:\n    a/*.yaml: {name: all}\n";

/// A command that makes ConfigMaps of the file, in the directory of the world.
fn of_rules(many: &SourcesWorld, command: &str, more: &[&str]) -> Ran {
    let mut command = many.world.treeswap(&[command, "--sources"]);
    to_end(command.arg(many.file()).args(more).current_dir(many.world.dir()))
}

#[test]
fn rules_in_a_composed_tree_are_looked_for_where_their_source_is_placed() {
    let many = SourcesWorld::new();
    let one = many.remote("one");
    one.commit(&Files::new().file("plugins.yaml", RULES).file("x.yaml", "1"));
    many.list(&[source("one", &one, ", to: a")]);
    let ran = of_rules(&many, "render", &["--rules-in-tree=plugins.yaml"]);
    assert_eq!(ran.status.code(), Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("the tree has no such file"), "{}", ran.stderr);
    assert!(ran.stderr.contains("each source lies at its `to`"), "{}", ran.stderr);
    let ran = of_rules(&many, "render", &["--rules-in-tree=a/plugins.yaml"]).expect_ok("where it lies");
    assert!(ran.stdout.contains("x.yaml"), "{}", ran.stdout);
    std::fs::remove_file(many.file()).unwrap();
    let ran = of_rules(&many, "render", &["--rules-in-tree=a/plugins.yaml"]);
    assert_eq!(ran.status.code(), Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("sources.yaml: cannot read it"), "{}", ran.stderr);
}

/// Who applied what it printed would delete the keys of the source that is away.
#[test]
fn render_needs_every_source() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    one.commit(&Files::new().file("plugins.yaml", RULES).file("x.yaml", "1"));
    two.commit(&Files::new().file("y.yaml", "2"));
    many.list(&[source("one", &one, ", to: a"), source("two", &two, ", to: a, optional: true")]);
    let render = || of_rules(&many, "render", &["--rules-in-tree=a/plugins.yaml"]);
    let all = render().expect_ok("both").stdout;
    assert!(all.contains("x.yaml") && all.contains("y.yaml"), "{all}");
    let _away = two.away();
    let ran = render().expect_failure("one is away");
    assert!(
        ran.stdout.is_empty() && ran.stderr.contains("treeswap: source two is not known"),
        "{}{}",
        ran.stdout,
        ran.stderr
    );
}

/// Without a root: where nothing is published, a directory of this one is as good as another.
#[test]
fn a_mirror_may_be_a_directory_here() {
    let many = SourcesWorld::new();
    let one = many.remote("one");
    one.commit(&Files::new().file("plugins.yaml", RULES).file("x.yaml", "1"));
    many.list(&[source("one", &one, ", to: a")]);
    of_rules(&many, "render", &["--rules-in-tree=a/plugins.yaml", "--mirror=kept"])
        .expect_ok("a relative path");
    assert!(many.world.dir().join("kept").is_dir());
}
