//! `treeswap render` from outside: a directory and a repository, one stream and files, what is refused and how.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::common::{Files, Ran, World, run};
use super::complains;

fn render(world: &World, args: &[&str]) -> Ran {
    run::to_end(&mut world.treeswap(&[&["render"], args].concat()))
}

/// Writes files below a directory of the world.
fn write(world: &World, name: &str, files: &Files) -> PathBuf {
    let directory = world.dir().join(name);
    for (path, (mode, content)) in &files.0 {
        let path = directory.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        match *mode {
            "120000" => {
                std::os::unix::fs::symlink(String::from_utf8(content.clone()).unwrap(), path).unwrap();
            }
            _ => std::fs::write(path, content).unwrap(),
        }
    }
    directory
}

fn rules(world: &World, text: &str) -> String {
    let path = world.dir().join("plugins.yaml");
    std::fs::write(&path, text).unwrap();
    format!("--rules={}", path.display())
}

fn flag(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

const RULES: &str = "\
plugins: {acme: [trigger]}
config_updater:
  maps:
    ci/**/*.yaml: {name: ci, gzip: true}
    bin/*: {name: bin, clusters: {default: [tools]}}
";

fn files() -> Files {
    Files::new()
        .file("ci/acme/shop.yaml", "shop: 1\n")
        .file("ci/acme/desk.yaml", "desk: 1\n")
        .file("bin/tool", vec![0xff, 0x00])
        .link("bin/alias", "tool")
        .file("docs/x.md", "x")
}

fn documents(stream: &str) -> Vec<serde_yaml::Value> {
    use serde::Deserialize as _;
    let each = serde_yaml::Deserializer::from_str(stream);
    each.map(|one| serde_yaml::Value::deserialize(one).unwrap()).collect()
}

#[test]
fn a_directory_and_the_commit_of_it_give_the_same_bytes_every_time() {
    let world = World::new();
    let rules = rules(&world, RULES);
    let directory =
        write(&world, "tree", &files().file(".git/config", "x").file("ci/.git/y.yaml", "hidden: 1\n"));
    world.remote.commit(&files());
    let local = render(&world, &[&rules, &flag("tree", &directory)]).expect_ok("render");
    let again = render(&world, &[&rules, &flag("tree", &directory)]).expect_ok("render");
    let remote = [&rules, &flag("repo", &world.remote.path), "--ref=main"];
    let remote = render(&world, &remote).expect_ok("render");
    assert_eq!(local.stdout, again.stdout);
    assert_eq!(local.stdout, remote.stdout);
    let documents = documents(&local.stdout);
    let names: Vec<_> = documents.iter().map(|one| one["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["ci", "bin"], "in the order of namespaces");
    assert_eq!(documents[1]["metadata"]["namespace"], "tools");
    assert_eq!(documents[1]["binaryData"]["alias"], "/wA=");
    assert!(documents[0]["binaryData"]["shop.yaml"].as_str().unwrap().starts_with("H4sI"));
    assert!(!local.stdout.contains("hidden"));
}

#[test]
fn the_stamp_is_the_commit() {
    let world = World::new();
    let rules = rules(&world, "maps:\n  docs/*: {name: docs}\n");
    let commit = world.remote.commit(&files());
    let tree = write(&world, "tree", &files());
    let (repo, tree) = (flag("repo", &world.remote.path), flag("tree", &tree));
    let id = format!("--revision={commit}");
    let cases: [&[&str]; 3] = [
        &[&repo, "--ref=main", "--version-key=every"],
        &[&repo, "--ref=main", "--version-key"],
        &[&tree, &id, "--version-key=every"],
    ];
    for args in cases {
        let ran = render(&world, &[&[rules.as_str()], args].concat()).expect_ok("render");
        assert_eq!(documents(&ran.stdout)[0]["data"]["VERSION"].as_str(), Some(commit.as_str()), "{args:?}");
    }
    let ran = render(&world, &[&rules, &tree, "--version-key=off"]).expect_ok("render");
    assert!(documents(&ran.stdout)[0]["data"]["VERSION"].is_null());
    for (args, said) in [
        (&[&*tree, "--version-key"][..], "--version-key with --tree needs --revision"),
        (&[&*tree, &*id], "--revision needs --version-key"),
        (&[&*tree, "--version-key", "--revision=v7"], "40 hexadecimal digits"),
        (&[&*tree, "--version-key=changed"], "off, every"),
        (&[&*repo, &*id], "--revision and --repo exclude each other"),
    ] {
        complains(&render(&world, &[&[rules.as_str()], args].concat()), 2, &[said]);
    }
}

#[test]
fn several_clusters_are_chosen_from_or_written_as_files() {
    let world = World::new();
    let rules = rules(
        &world,
        "maps:\n  docs/*: {name: docs, clusters: {a/b: [n1, n2], c: [n1]}}\n  bin/*: {name: bin, clusters: {c: [n1]}}\n",
    );
    let tree = flag("tree", &write(&world, "tree", &files()));
    complains(&render(&world, &[&rules, &tree]), 2, &["2 clusters (a/b, c)", "--cluster", "--output"]);
    complains(&render(&world, &[&rules, &tree, "--cluster=d"]), 2, &["\"d\"", "a/b, c"]);
    let ran = render(&world, &[&rules, &tree, "--cluster=c"]).expect_ok("render");
    assert_eq!(documents(&ran.stdout).len(), 2);
    let output = world.dir().join("manifests");
    let ran = render(&world, &[&rules, &tree, &flag("output", &output)]).expect_ok("render");
    assert_eq!(ran.stdout, "");
    for file in ["a%2fb/n1/docs.yaml", "a%2fb/n2/docs.yaml", "c/n1/docs.yaml", "c/n1/bin.yaml"] {
        assert_eq!(documents(&std::fs::read_to_string(output.join(file)).unwrap()).len(), 1);
    }
    complains(&render(&world, &[&rules, &tree, &flag("output", &output)]), 2, &["--output", "not empty"]);
    std::fs::create_dir_all(world.root.join("..treeswap")).unwrap();
    let kept = flag("output", &world.root.join("..data/new"));
    complains(&render(&world, &[&rules, &tree, &kept]), 2, &["--output", "only that root's writer"]);
    let (mount, link) = (world.dir().join("mount"), world.dir().join("link")); // nothing can be renamed over either
    std::fs::create_dir(&mount).unwrap();
    std::os::unix::fs::symlink(&mount, &link).unwrap();
    render(&world, &[&rules, &tree, &flag("output", &link)]).expect_ok("render");
    let mut names: Vec<_> =
        std::fs::read_dir(&mount).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["a%2fb", "c"]);
}

/// It fails again and again until the time is over: that is said, and what failed.
#[test]
fn an_apply_that_runs_out_of_time_says_what_held_it_up() {
    let world = World::new();
    let tree = flag("tree", &write(&world, "tree", &files()));
    let (closed, _held) = super::common::refusing();
    let kubeconfig = world.dir().join("kubeconfig");
    let text = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "default",
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{closed}")}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "default", "context": {"cluster": "c", "user": "u"}}],
    });
    fs_err::write(&kubeconfig, text.to_string()).unwrap();
    let revision = flag("revision", std::path::Path::new(&"1".repeat(40)));
    let mut command =
        world.treeswap(&["apply", "--owner=test", "--timeout=2s", &rules(&world, RULES), &tree, &revision]);
    let ran = run::to_end(command.args([flag("kubeconfig", &kubeconfig), "-o=lines".to_owned()]));
    let said = format!("{}{}", ran.stdout, ran.stderr);
    assert_eq!(ran.status.code(), Some(3), "{said}");
    assert!(said.contains("Connection refused"), "{said}");
    assert!(said.contains("--timeout=2s was over before everything was done"), "{said}");
}

/// The plan counts in the time of the run, with what is read and compressed for it.
#[test]
fn an_apply_whose_plan_takes_too_long_ends_in_time() {
    let world = World::new();
    let tree = world.dir().join("tree");
    fs_err::create_dir(&tree).unwrap();
    // One file without blocks, under many names: each is read and compressed by itself.
    fs_err::File::create(tree.join("0")).unwrap().set_len(60 << 20).unwrap();
    for name in 1..400 {
        fs_err::hard_link(tree.join("0"), tree.join(name.to_string())).unwrap();
    }
    let kubeconfig = world.dir().join("kubeconfig");
    let text = "current-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n";
    fs_err::write(&kubeconfig, text).unwrap();
    let rules = rules(&world, "maps:\n  '*': {name: all, gzip: true}\n");
    let revision = format!("--revision={}", "1".repeat(40));
    let mut command = world.treeswap(&["apply", "--owner=test", "--timeout=2s", &rules, &revision]);
    let ran = run::to_end(command.args([flag("tree", &tree), flag("kubeconfig", &kubeconfig)]));
    let cause = "was done: revision 111111111111: the run ended while computing the plan\n";
    complains(&ran, 1, &["treeswap: --timeout=2s was over", cause, "hint: the next run starts over"]);
}

#[test]
fn what_is_refused_is_named_and_nothing_is_written() {
    let world = World::new();
    let tree = write(&world, "tree", &files().link("ci/out.yaml", "/etc/passwd").file("ci/b/shop.yaml", "2"));
    let tree = flag("tree", &tree);
    let output = world.dir().join("manifests");
    let good = rules(&world, RULES);
    let ran = render(&world, &[&good, &tree, &flag("output", &output)]);
    complains(
        &ran,
        1,
        &["ci/out.yaml", "points out of the tree", "ci/acme/shop.yaml, ci/b/shop.yaml", "--collisions=last"],
    );
    assert!(!output.exists());
    let ran = render(&world, &[&good, &tree, "--links=skip", "--collisions=last"]).expect_ok("render");
    assert!(ran.stderr.contains("warning"));
    complains(&render(&world, &[&good]), 2, &["--tree, --repo or --sources"]);
    complains(&render(&world, &[&good, &tree, "--repo=x"]), 2, &["--tree and --repo exclude each other"]);
    complains(&render(&world, &["--rules=/nonexistent", &tree]), 2, &["--rules", "/nonexistent"]);
    let long = world.dir().join("long.yaml");
    std::fs::write(&long, "# a line\n".repeat(1 << 17)).unwrap();
    complains(&render(&world, &[&flag("rules", &long), &tree]), 2, &["--rules", "it has more than 1 MiB"]);
    complains(
        &render(&world, &[&good, "--tree=/nonexistent"]),
        2,
        &["--tree: cannot read it", "/nonexistent"],
    );
    for idle in ["--ref=main", "--mirror=/x", "--username=me", "--ssh-key-file=/x", "--index-memory=1Gi"] {
        let flag = idle.split_once('=').unwrap().0;
        complains(&render(&world, &[&good, &tree, idle]), 2, &[&format!("{flag} needs --repo")]);
    }
    let both = render(&world, &[&good, &tree, "--rules-in-tree=x"]);
    complains(&both, 2, &["exclude each other", "--rules", "--rules-in-tree"]);
    let bad = rules(&world, "config_updater:\n  maps:\n    a: {name: X}\n    b: {nmae: y, name: b}\n");
    complains(
        &render(&world, &[&bad, &tree]),
        2,
        &["maps[\"a\"].name (line 3)", "and 1 more", "did you mean name"],
    );
    complains(&render(&world, &[&rules(&world, "a: [\n"), &tree]), 2, &["plugins.yaml", "cannot be read"]);
}

/// The shape of a large configuration repository: organisations with repositories, a job and a config file a branch.
/// Only what a rule names is read, and of that only its own size counts.
#[test]
fn a_large_file_counts_only_where_a_rule_names_it() {
    let world = World::new();
    let large = || vec![0; 70 << 20];
    world.remote.commit(&files().file("model.bin", large()));
    let (rules, repo) = (rules(&world, RULES), flag("repo", &world.remote.path));
    let small = render(&world, &[&rules, &repo, "--ref=main"]).expect_ok("the file is in no rule");
    assert_eq!(documents(&small.stdout).len(), 2);
    world.remote.commit(&files().file("bin/model.bin", large()));
    let tree = flag("tree", &write(&world, "tree", &files().file("bin/model.bin", large())));
    for from in [vec![&*repo, "--ref=main"], vec![&*tree]] {
        let ran = render(&world, &[&[&*rules], &from[..]].concat());
        assert_eq!((ran.status.code(), ran.stdout.as_str()), (Some(1), ""), "{}", ran.stderr);
        let says = "key model.bin (bin/model.bin) of ConfigMap bin alone has 73400320 bytes";
        assert!(ran.stderr.contains(says), "{}", ran.stderr);
        assert!(!ran.stderr.contains("--max-file-bytes"), "no option of this command: {}", ran.stderr);
    }
}

#[test]
fn a_repository_of_many_files_renders_whole_and_grows() {
    let world = World::new();
    let mut files = Files::new();
    let mut contents: BTreeMap<String, String> = BTreeMap::new();
    for at in 0..600 {
        let mut text = String::new();
        for line in 0..60 {
            let _ = writeln!(
                text,
                "  - name: job-{at}-{line}\n    value: {:x}",
                (at * 7919 + line) * 2_654_435_761u64
            );
        }
        let path = format!("ci-operator/jobs/org{}/repo{at}/org-repo{at}-main.yaml", at % 30);
        contents.insert(format!("org-repo{at}-main.yaml"), text.clone());
        files = files.file(path, text);
    }
    let tree = flag("tree", &write(&world, "tree", &files));
    let rules = rules(&world, "maps:\n  ci-operator/jobs/**/*.yaml: {name: jobs}\n");
    complains(&render(&world, &[&rules, &tree]), 1, &["ConfigMap jobs", "1048576", "--oversize=grow"]);
    let ran = render(&world, &[&rules, &tree, "--oversize=grow"]).expect_ok("render");
    let again = render(&world, &[&rules, &tree, "--oversize=grow"]).expect_ok("render");
    assert_eq!(ran.stdout, again.stdout);
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for document in documents(&ran.stdout) {
        let data = document["data"].as_mapping().unwrap();
        let sizes = data.values().map(|value| value.as_str().unwrap().len());
        assert!(sizes.sum::<usize>() <= 1 << 20);
        for (key, value) in data {
            let text = value.as_str().unwrap().to_owned();
            assert!(
                found.insert(key.as_str().unwrap().to_owned(), text).is_none(),
                "a key in two ConfigMaps"
            );
        }
    }
    assert_eq!(found, contents);
}
