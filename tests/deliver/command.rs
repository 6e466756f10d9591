//! `treeswap apply` from outside: a repository, a cluster, and what is printed.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::common::{Files, Ran, World, run};
use crate::kubernetes::{Kubernetes, kubeconfig};
use crate::script::data;

pub struct Place {
    pub world: World,
    pub namespace: String,
    kubeconfig: PathBuf,
}

impl Place {
    pub fn new() -> Self {
        let world = World::new();
        let kubernetes = Kubernetes::shared();
        let namespace = kubernetes.namespace("command");
        crate::script::clusters(&namespace); // the rights of the user
        let kubeconfig =
            kubeconfig(&world.dir().join("kubeconfig"), &[("build01", kubernetes.access("writer"))]);
        Self { world, namespace, kubeconfig }
    }

    pub fn apply(&self, args: &[&str]) -> Ran {
        run::to_end(self.command("apply").args(args))
    }

    /// `apply` or `sync`, as the team.
    pub fn command(&self, name: &str) -> Command {
        let mut command = self.world.treeswap(&[name, "--owner=team"]);
        command.arg("--kubeconfig").arg(&self.kubeconfig).arg("--default-namespace").arg(&self.namespace);
        command
    }

    fn remote(&self) -> String {
        format!("--repo={}", self.world.remote.path.display())
    }

    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.world.dir().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    pub fn content(&self, name: &str) -> std::collections::BTreeMap<String, String> {
        data(&Kubernetes::shared().configmap(&self.namespace, name))
    }
}

const RULES: &str = "config_updater:\n  maps:\n    jobs/**/*.yaml: {name: jobs}\n    docs/*: {name: docs}\n";

pub fn flag(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

#[track_caller]
pub fn ends(ran: &Ran, code: i32, words: &[&str]) {
    assert_eq!(ran.status.code(), Some(code), "{}\n{}", ran.stdout, ran.stderr);
    let all = format!("{}{}", ran.stdout, ran.stderr);
    for word in words {
        assert!(all.contains(word), "{word:?} is not in\n{all}");
    }
}

#[test]
fn a_repository_is_planned_applied_and_then_unchanged() {
    let place = Place::new();
    let (remote, rules) = (place.remote(), flag("rules", &place.file("plugins.yaml", RULES)));
    let files = Files::new().file("jobs/x/a.yaml", "s3cr3t: 1\n").file("docs/b.md", "b");
    let first = place.world.remote.commit(&files);
    let args = [rules.as_str(), &remote, "--ref=main", "--version-key=changed"];
    let dry = [&args[..], &["--dry-run"]].concat();
    let ran = place.apply(&dry);
    ends(&ran, 4, &["jobs: to be created", "+a.yaml", "2 to be created", &first]);
    assert!(!ran.stdout.contains("s3cr3t"), "keys are shown, values never");
    assert!(place.content("jobs").is_empty(), "a dry run writes nothing");
    ends(&place.apply(&args), 0, &["2 created"]);
    assert_eq!(place.content("jobs")["VERSION"], first);
    let versions = Kubernetes::shared().versions(&place.namespace);
    ends(&place.apply(&args), 0, &["2 unchanged"]);
    ends(&place.apply(&dry), 0, &["2 unchanged"]);
    assert_eq!(Kubernetes::shared().versions(&place.namespace), versions);

    let second = place.world.remote.commit(&files.file("docs/c.md", "c"));
    let ran = place.apply(&[&args[..], &["-o", "json"]].concat());
    ends(&ran, 0, &[]);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["revision"], second.as_str());
    assert_eq!(report["dry_run"], false);
    let outcomes: Vec<&Value> =
        report["targets"].as_array().unwrap().iter().map(|one| &one["outcome"]).collect();
    assert_eq!(outcomes, ["replaced", "unchanged"]);
    assert_eq!(place.content("jobs")["VERSION"], first, "what did not change keeps its revision");
    assert_eq!(place.content("docs")["VERSION"], second);
}

#[test]
fn a_revision_is_read_by_its_own_rules() {
    let place = Place::new();
    let remote = place.remote();
    let args = [remote.as_str(), "--ref=main", "--rules-in-tree=plugins.yaml"];
    place.world.remote.commit(&Files::new().file("docs/b.md", "b"));
    ends(&place.apply(&args), 1, &["--rules-in-tree", "plugins.yaml", "no such file"]);
    place.world.remote.commit(&Files::new().file("docs/b.md", "b").file("plugins.yaml", RULES));
    ends(&place.apply(&args), 0, &["1 created"]);
    let more = format!("{RULES}    new/*: {{name: new}}\n");
    place
        .world
        .remote
        .commit(&Files::new().file("docs/b.md", "b").file("plugins.yaml", more).file("new/x", "1"));
    ends(&place.apply(&args), 0, &["1 created", "1 unchanged"]);
    assert_eq!(place.content("new")["x"], "1");
}

/// The lines of a log in which everything is JSON.
#[track_caller]
fn log(ran: &Ran, code: i32) -> Vec<Value> {
    ends(ran, code, &[]);
    assert_eq!(ran.stdout, "", "all of it is in the log");
    let parsed = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let lines: Vec<Value> = ran.stderr.lines().map(parsed).collect();
    for line in &lines {
        assert!(["timestamp", "level", "message"].iter().all(|key| line[key].is_string()), "{line}");
    }
    lines
}

#[track_caller]
fn has(log: &[Value], level: &str, words: &str) {
    let found = log.iter().any(|line| {
        line["level"] == level
            && ["message", "error"]
                .iter()
                .any(|key| line[key].as_str().is_some_and(|text| text.contains(words)))
    });
    assert!(found, "no {level} with {words:?} in {log:#?}");
}

/// Results, and what is worth saying of rules and clusters: those that stay write as those do that do one run.
#[test]
fn a_log_of_json_has_nothing_else_in_it() {
    let place = Place::new();
    let remote = place.remote();
    let gone =
        flag("kubeconfig", &place.file("gone", "{contexts: [{name: gone, context: {cluster: x, user: x}}]}"));
    let args = [&*remote, "--ref=main", "--rules-in-tree=plugins.yaml", "--unknown-fields=ignore", &gone];
    let args = [&args[..], &["--illegal-keys=skip", "--log-format=json"]].concat();
    let sync = |one: &str| {
        let mut command = place.world.treeswap(&["sync", "--one-time", "--owner=team"]);
        command.arg("--kubeconfig").arg(&place.kubeconfig).arg("--default-namespace").arg(&place.namespace);
        run::to_end(command.args(&args).arg(one))
    };
    let rules = format!("{RULES}    other: {{name: other, old: 1}}\n");
    let files = Files::new().file("docs/b.md", "b").file("docs/a key", "");
    let files = files.file("plugins.yaml", rules);
    place.world.remote.commit(&files);
    let created = log(&place.apply(&args), 0);
    has(&created, "WARN", "old");
    has(&created, "WARN", "a key");
    let map = created.iter().find(|line| line["configmap"] == "docs").unwrap();
    assert_eq!((map["level"].as_str(), map["outcome"].as_str()), (Some("INFO"), Some("created")));
    let last = created.last().unwrap();
    assert!(
        last["message"].as_str().unwrap().contains("1 created") && last["revision"].is_string(),
        "{last}"
    );
    // Somebody else has the name.
    Kubernetes::shared().put(&place.namespace, "jobs", serde_json::json!({ "data": { "theirs": "1" } }));
    place.world.remote.commit(&files.file("jobs/x/a.yaml", "1"));
    for ran in [place.apply(&args), sync("--resync-period=1h")] {
        let refused = log(&ran, 3);
        has(&refused, "WARN", "a key");
        has(&refused, "WARN", "old");
        has(&refused, "ERROR", "jobs: refused");
        has(&refused, "INFO", "hint: ");
    }
    // Results on stdout where somebody asks for them there, too.
    let ran = place.apply(&[&args[..], &["--output=json"]].concat());
    assert!(serde_json::from_str::<Value>(&ran.stdout).unwrap()["targets"].is_array());
    has(&log(&Ran { stdout: String::new(), ..ran }, 3), "ERROR", "jobs: refused");
}

#[test]
fn a_mirror_that_never_saw_the_recorded_commit_follows_the_ref_wherever_it_went() {
    let place = Place::new();
    let (remote, rules) = (place.remote(), flag("rules", &place.file("plugins.yaml", RULES)));
    let commit = |text: &str| place.world.remote.commit(&Files::new().file("docs/b.md", text));
    let apply = |name: &str| {
        let mirror = place.world.dir().join(name);
        (place.apply(&[&rules, &remote, "--ref=main", &flag("mirror", &mirror)]), mirror)
    };
    let knows = |mirror: &Path, commit: &str| {
        let mut git = run::clean("git", place.world.dir());
        run::to_end(git.arg("--git-dir").arg(mirror).args(["cat-file", "-e", commit])).ok()
    };
    let first = commit("one");
    ends(&apply("first").0, 0, &["1 created", &first]);
    let (second, third) = (commit("two"), commit("three"));
    // An advance over a commit that nobody fetched.
    let (ran, mirror) = apply("second");
    ends(&ran, 0, &["1 replaced", &third]);
    assert!(knows(&mirror, &third) && !knows(&mirror, &second) && !knows(&mirror, &first), "its depth is 1");
    assert_eq!(place.content("docs")["b.md"], "three");
    // A ref that was forced aside, by a mirror that knows only what is recorded.
    place.world.remote.reset(&second);
    let other = commit("other");
    ends(&apply("second").0, 0, &["1 replaced", &other, "the ref was forced from"]);
    assert_eq!(place.content("docs")["b.md"], "other");
    // One that went back, by a mirror that knows neither.
    place.world.remote.reset(&first);
    let (ran, mirror) = apply("third");
    ends(&ran, 0, &["1 replaced", &first, "the ref went back from"]);
    assert!(knows(&mirror, &first) && !knows(&mirror, &third), "its depth is 1");
    assert_eq!(place.content("docs")["b.md"], "one");
    let versions = Kubernetes::shared().versions(&place.namespace);
    ends(&apply("fourth").0, 0, &["1 unchanged"]);
    assert_eq!(Kubernetes::shared().versions(&place.namespace), versions);
}

#[test]
fn a_directory_needs_the_revision_that_it_is_of_and_overwrites_another_only_by_force() {
    let place = Place::new();
    let rules = flag("rules", &place.file("plugins.yaml", RULES));
    let tree = flag("tree", place.file("tree/docs/b.md", "b").parent().unwrap().parent().unwrap());
    let (one, two) = (format!("--revision={}", "1".repeat(40)), format!("--revision={}", "2".repeat(40)));
    ends(&place.apply(&[&rules, &tree]), 2, &["--tree needs --revision"]);
    ends(&place.apply(&[&rules, &tree, "--revision=abc"]), 2, &["40 hexadecimal digits"]);
    ends(&place.apply(&[&rules, &place.remote(), &one]), 2, &["--revision and --repo"]);
    ends(&place.apply(&[&rules, &place.remote(), "--force"]), 2, &["--force needs --tree"]);
    ends(&place.apply(&[&rules, &tree, &one, "--ref=main"]), 2, &["--ref needs --repo"]);
    ends(&place.apply(&[&rules, &tree, &one]), 0, &["1 created"]);
    // Not even the inventory is written by other rules that change no ConfigMap.
    let more = flag("rules", &place.file("more.yaml", &format!("{RULES}    nothing/*: {{name: nothing}}\n")));
    let versions = Kubernetes::shared().versions(&place.namespace);
    ends(&place.apply(&[&more, &tree, &two]), 3, &["docs: refused", "111111111111", "--force"]);
    assert_eq!(Kubernetes::shared().versions(&place.namespace), versions);
    place.file("tree/docs/b.md", "changed");
    ends(&place.apply(&[&rules, &tree, &two]), 3, &["docs: refused", "111111111111", "--force"]);
    assert_eq!(place.content("docs")["b.md"], "b");
    ends(&place.apply(&[&rules, &tree, &two, "--force"]), 0, &["1 replaced"]);
    assert_eq!(place.content("docs")["b.md"], "changed");
}

#[test]
fn rules_cannot_have_the_configmaps_that_hold_our_records() {
    let place = Place::new();
    let remote = place.remote();
    place.world.remote.commit(&Files::new().file("docs/b.md", "b").file("jobs/a.yaml", "1"));
    let apply = |docs: &str| {
        let rules = RULES.replace("name: docs", &format!("name: {docs}"));
        place.apply(&[
            &flag("rules", &place.file("plugins.yaml", &rules)),
            &remote,
            "--ref=main",
            "--adopt=all",
        ])
    };
    ends(&apply("docs"), 0, &["2 created"]);
    let versions = Kubernetes::shared().versions(&place.namespace);
    for name in ["treeswap-set-team", "treeswap-ledger-team"] {
        ends(&apply(name), 3, &["refused", &format!("the ConfigMap {name} is where we record"), "hint: "]);
    }
    assert_eq!(Kubernetes::shared().versions(&place.namespace), versions, "nothing was written");
    ends(&apply("docs"), 0, &["2 unchanged"]);
}

#[test]
fn a_configmap_that_is_for_another_repository_is_neither_adopted_nor_emptied() {
    let place = Place::new();
    let kubernetes = Kubernetes::shared();
    let rules = "maps:\n  jobs/*: {name: jobs}\n  docs/*: {name: docs, allowed_repos: [acme/config]}\n  theirs/*: \
                 {name: theirs, allowed_repos: [acme/other]}\n";
    let rules = flag("rules", &place.file("plugins.yaml", rules));
    place.world.remote.commit(&Files::new().file("jobs/a", "1").file("docs/b", "2"));
    let labels = serde_json::json!({
        "app.kubernetes.io/name": "prow", "app.kubernetes.io/component": "updateconfig-plugin",
    });
    for name in ["jobs", "docs", "theirs"] {
        let object = serde_json::json!({ "metadata": { "labels": labels }, "data": { "old": "1" } });
        kubernetes.put(&place.namespace, name, object);
    }
    let theirs = kubernetes.configmap(&place.namespace, "theirs");
    let remote = place.remote();
    let args = [&*rules, &remote, "--ref=main", "--adopt=prow", "--max-prune=0"];
    let with = |more: &[&str]| place.apply(&[&args[..], more].concat());
    let needs = ["the rule docs/*, which has allowed_repos", " needs --repository=ORGANISATION/NAME\n"];
    ends(&with(&[]), 2, &needs);
    let planned = with(&["--repository=acme/config", "--dry-run", "-o", "json"]);
    ends(&planned, 4, &[]);
    assert!(!planned.stdout.contains("theirs"), "{}", planned.stdout);
    assert!(planned.stdout.contains("\"dry_run\": true"), "{}", planned.stdout);
    let ran = with(&["--repository=acme/config"]);
    ends(&ran, 0, &["2 replaced"]);
    assert_eq!(kubernetes.configmap(&place.namespace, "theirs"), theirs);
    // A rule for this repository that no file matches empties its ConfigMap, which the limit refuses, as the hint says.
    place.world.remote.commit(&Files::new().file("jobs/a", "1"));
    let words = [
        "the rule docs/*; its ConfigMap, if it is this owner's or adopted, is emptied, or",
        "would be deleted or emptied",
    ];
    ends(&with(&["--repository=acme/config"]), 3, &words);
    assert_eq!(place.content("docs")["b"], "2");
    // For another repository, what this owner wrote counts as named by no rule.
    place.world.remote.commit(&Files::new().file("jobs/a", "1").file("docs/b", "2"));
    let words = ["what this owner wrote for it counts as named by no rule", "docs: deleted"];
    let other = [&*rules, &remote, "--ref=main", "--repository=acme/other", "--prune"];
    ends(&place.apply(&other), 0, &words);
    assert!(kubernetes.configmap(&place.namespace, "docs").is_null());
    assert_eq!(kubernetes.configmap(&place.namespace, "theirs"), theirs);
}

#[test]
fn one_cluster_that_is_gone_or_unknown_fails_alone() {
    let place = Place::new();
    let kubernetes = Kubernetes::shared();
    let mut gone = kubernetes.access("writer");
    gone.server = "https://127.0.0.1:1".into(); // nobody listens there
    let contexts = [("good", kubernetes.access("writer")), ("gone", gone)];
    kubeconfig(&place.kubeconfig, &contexts);
    let namespace = &place.namespace;
    let rules = format!(
        "maps:\n  docs/*: {{name: docs, clusters: {{good: [{namespace}], gone: [{namespace}], nowhere: [{namespace}]}}}}\n"
    );
    let rules = flag("rules", &place.file("rules.yaml", &rules));
    place.world.remote.commit(&Files::new().file("docs/b.md", "b"));
    let ran = place.apply(&[&rules, &place.remote(), "--ref=main"]);
    let good = format!("good/{namespace}/docs: created");
    ends(&ran, 3, &[&good, "gone", "cannot connect", "there is no cluster nowhere", "2 failed"]);
    assert_eq!(place.content("docs")["b.md"], "b");
}

#[test]
fn what_is_wrong_is_named_before_anything_is_touched() {
    let place = Place::new();
    let rules = flag("rules", &place.file("plugins.yaml", RULES));
    place.world.remote.commit(&Files::new().file("jobs/a/x.yaml", "1").file("jobs/b/x.yaml", "2"));
    let remote = place.remote();
    ends(&place.apply(&[&rules, &remote, "--ref=main"]), 1, &["x.yaml", "--collisions=last"]);
    ends(&place.apply(&[&rules, &remote, "--ref=nobranch"]), 1, &["nobranch"]);
    ends(&place.apply(&[&rules]), 2, &["--tree, --repo or --sources"]);
    ends(&place.apply(&[&rules, &remote, "--stamp-key=..x"]), 2, &["--stamp-key", "begins with"]);
    ends(&place.apply(&[&rules, &remote, "--owner= x"]), 2, &["--owner"]);
    assert!(Kubernetes::shared().configmaps(&place.namespace).is_empty());
}
