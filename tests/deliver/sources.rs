//! ConfigMaps that are made of several repositories (`--sources`), by `apply` and by `sync`.

use std::path::Path;

use serde_json::Value;

use crate::command::{Place, ends, flag};
use crate::common::run::Background;
use crate::common::{Files, Remote, eventually};
use crate::kubernetes::Kubernetes;

const RULES: &str =
    "config_updater:\n  maps:\n    jobs/**/*.yaml: {name: jobs}\n    steps/*: {name: steps}\n";

/// A cluster, two repositories, and the file that lists them.
struct Two {
    place: Place,
    jobs: Remote,
    steps: Remote,
}

impl Two {
    fn new() -> Self {
        let place = Place::new();
        let [jobs, steps] = ["jobs", "steps"].map(|name| Remote::create(&place.world.dir().join(name)));
        jobs.commit(&Files::new().file("x/a.yaml", "one"));
        steps.commit(&Files::new().file("b", "one"));
        place.file("plugins.yaml", RULES);
        let two = Self { place, jobs, steps };
        two.list("");
        two
    }

    fn list(&self, more: &str) {
        let source = |name: &str, remote: &Remote| {
            format!("  - {{name: {name}, repo: {}, ref: main, to: {name}{more}}}\n", remote.path.display())
        };
        let sources = [source("jobs", &self.jobs), source("steps", &self.steps)].concat();
        self.place.file("sources.yaml", &format!("version: 1\nsources:\n{sources}end: true\n"));
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.place.world.dir().join(name)
    }

    /// Runs `apply`, with a mirror that nobody used before.
    fn apply(&self, more: &[&str]) -> crate::common::Ran {
        let args = [flag("rules", &self.path("plugins.yaml")), flag("sources", &self.path("sources.yaml"))];
        let args: Vec<&str> = args.iter().map(String::as_str).chain(more.iter().copied()).collect();
        self.place.apply(&args)
    }

    fn content(&self, map: &str, key: &str) -> String {
        self.place.content(map).get(key).cloned().unwrap_or_default()
    }

    fn marker(&self) -> Value {
        Kubernetes::shared().configmap(&self.place.namespace, "treeswap-set-team")
    }
}

fn while_away<T>(remote: &Remote, act: impl FnOnce() -> T) -> T {
    let _away = remote.away();
    act()
}

#[test]
fn what_two_repositories_hold_is_applied_and_each_commit_is_recorded() {
    let two = Two::new();
    ends(&two.apply(&["--dry-run"]), 4, &["2 to be created"]);
    ends(&two.apply(&[]), 0, &["2 created"]);
    assert_eq!((two.content("jobs", "a.yaml"), two.content("steps", "b")), ("one".into(), "one".into()));
    let recorded =
        two.marker()["metadata"]["annotations"]["treeswap.dev/sources"].as_str().unwrap().to_owned();
    let recorded: Value = serde_json::from_str(&recorded).unwrap();
    assert_eq!(recorded["jobs"].as_str(), two.jobs.tip("main").as_deref());
    let versions = Kubernetes::shared().versions(&two.place.namespace);
    ends(&two.apply(&[]), 0, &["2 unchanged"]);
    assert_eq!(Kubernetes::shared().versions(&two.place.namespace), versions);
    two.steps.commit(&Files::new().file("b", "two"));
    ends(&two.apply(&[]), 0, &["steps: replaced", "1 unchanged"]);
    assert_eq!(two.content("steps", "b"), "two");
}

#[test]
fn a_repository_that_is_away_holds_what_is_made_of_it_and_nothing_else() {
    let two = Two::new();
    let jobs = two.jobs.tip("main").unwrap();
    ends(&two.apply(&[]), 0, &["2 created", &format!("jobs {}", &jobs[..12])]);
    two.jobs.commit(&Files::new().file("x/a.yaml", "two"));
    two.steps.commit(&Files::new().file("b", "two"));
    let ran = while_away(&two.jobs, || two.apply(&["--prune", "--max-prune=100"]));
    ends(
        &ran,
        3,
        &[
            "jobs: held: source jobs is not known to be at the newest commit of its ref",
            "steps: replaced",
            "hint: ",
        ],
    );
    assert_eq!((two.content("jobs", "a.yaml"), two.content("steps", "b")), ("one".into(), "two".into()));
    let entry: Value = serde_json::from_str(two.marker()["data"]["jobs"].as_str().unwrap()).unwrap();
    assert!(entry["wanted"].is_null(), "nothing is said of what a peer may know better: {entry}");
    let sources =
        two.marker()["metadata"]["annotations"]["treeswap.dev/sources"].as_str().unwrap().to_owned();
    assert!(sources.contains(&jobs), "what was written of it is on record: {sources}");
    // A rule that is gone: of which source its files were is not known, and nothing of it is deleted.
    two.place.file("plugins.yaml", "config_updater:\n  maps:\n    steps/*: {name: steps}\n");
    let pruned = ["--prune", "--max-prune=100"];
    ends(&while_away(&two.jobs, || two.apply(&pruned)), 3, &["jobs: held", "1 unchanged"]);
    ends(&two.apply(&pruned), 0, &["jobs: deleted"]);
}

#[test]
fn a_repository_that_hangs_is_not_waited_for_twice() {
    let two = Two::new();
    ends(&two.apply(&[]), 0, &["2 created"]);
    let (address, _hangs) = crate::common::swallowing();
    let text = std::fs::read_to_string(two.path("sources.yaml")).unwrap();
    let jobs = two.jobs.path.display().to_string();
    two.place.file("sources.yaml", &text.replace(&jobs, &format!("http://{address}/jobs")));
    two.steps.commit(&Files::new().file("b", "two"));
    let mut sync = two.place.command("sync");
    sync.args([flag("rules", &two.path("plugins.yaml")), flag("sources", &two.path("sources.yaml"))]);
    sync.args(["--period=200ms", "--http-bind=127.0.0.1:0"]);
    let mut sync = Background::start(&mut sync, &two.path("log"));
    eventually(60, "the other one to be applied", || (two.content("steps", "b") == "two").then_some(()));
    two.steps.commit(&Files::new().file("b", "three"));
    let asked = std::time::Instant::now();
    eventually(30, "the next one", || (two.content("steps", "b") == "three").then_some(()));
    assert!(asked.elapsed().as_secs() < 20, "{:?}", asked.elapsed());
    assert_eq!(two.content("jobs", "a.yaml"), "one");
    two.place.file("sources.yaml", &text);
    two.jobs.commit(&Files::new().file("x/a.yaml", "two"));
    eventually(60, "the one that hung", || (two.content("jobs", "a.yaml") == "two").then_some(()));
    sync.terminate();
}

#[test]
fn beside_a_root_a_source_that_is_away_holds_its_own_targets() {
    let two = Two::new();
    let mut sync = two.place.command("sync");
    sync.args([flag("rules", &two.path("plugins.yaml")), flag("sources", &two.path("sources.yaml"))]);
    sync.args([flag("root", &two.path("root")), "--period=200ms".into(), "--min-interval=0s".into()]);
    let mut sync = Background::start(&mut sync, &two.path("log"));
    eventually(60, "both to be applied", || (two.content("jobs", "a.yaml") == "one").then_some(()));
    while_away(&two.jobs, || {
        two.steps.commit(&Files::new().file("b", "two"));
        eventually(60, "the other one", || (two.content("steps", "b") == "two").then_some(()));
        let path = format!("/api/v1/namespaces/{}/configmaps/jobs", two.place.namespace);
        Kubernetes::shared().must("DELETE", &path, None);
        two.steps.commit(&Files::new().file("b", "three"));
        eventually(60, "the other one again", || (two.content("steps", "b") == "three").then_some(()));
        assert_eq!(two.content("jobs", "a.yaml"), "", "what it should be is not known for sure");
        assert!(published(&two.path("root"), "jobs/x/a.yaml") == "one", "what serves stays");
    });
    two.jobs.commit(&Files::new().file("x/a.yaml", "two"));
    eventually(60, "the one that was away", || (two.content("jobs", "a.yaml") == "two").then_some(()));
    sync.terminate();
}

fn published(root: &Path, path: &str) -> String {
    std::fs::read_to_string(root.join("..data").join(path)).unwrap_or_default()
}

#[test]
fn a_rewind_of_one_source_is_one_of_the_set() {
    let two = Two::new();
    let base = two.jobs.tip("main").unwrap();
    two.jobs.commit(&Files::new().file("x/a.yaml", "two"));
    ends(&two.apply(&[]), 0, &["2 created"]);
    two.steps.commit(&Files::new().file("b", "two"));
    ends(&two.apply(&["--on-rewind=hold"]), 0, &["steps: replaced"]);
    two.jobs.reset(&base);
    two.jobs.commit(&Files::new().file("x/a.yaml", "other"));
    let held = ["the ref was forced from", "(jobs from ", "only fast-forwards are applied"];
    ends(&two.apply(&["--on-rewind=hold"]), 3, &held);
    assert_eq!(two.content("jobs", "a.yaml"), "two");
    ends(&two.apply(&[]), 0, &["jobs: replaced", "note: "]);
}

#[test]
fn rules_in_the_tree_and_links_are_of_one_source() {
    let two = Two::new();
    two.steps
        .commit(&Files::new().file("b", "one").file("plugins.yaml", RULES).link("c", "../jobs/x/a.yaml"));
    let sources = flag("sources", &two.path("sources.yaml"));
    let in_tree = |more: &[&str]| {
        two.place.apply(&[&[sources.as_str(), "--rules-in-tree=steps/plugins.yaml"], more].concat())
    };
    ends(&in_tree(&[]), 1, &["steps/c", "a symbolic link that points out of its own source"]);
    two.steps.commit(&Files::new().file("b", "one").file("plugins.yaml", RULES));
    ends(&in_tree(&[]), 0, &["2 created"]);
    ends(&while_away(&two.steps, || in_tree(&[])), 1, &["steps"]);
    ends(&in_tree(&["--ref=main"]), 2, &["--sources", "--ref"]);
    ends(&in_tree(&["--repo=x"]), 2, &["--repo", "--sources"]);
}

#[test]
fn the_manifests_of_two_repositories_are_rendered() {
    let two = Two::new();
    let mut render = two.place.world.treeswap(&["render", "--default-namespace=ci"]);
    render.args([flag("rules", &two.path("plugins.yaml")), flag("sources", &two.path("sources.yaml"))]);
    let rendered = crate::common::run::to_end(&mut render).expect_ok("render");
    let keys = ["\"a.yaml\": |-", "\"b\": |-"];
    assert!(keys.iter().all(|key| rendered.stdout.contains(key)), "{}", rendered.stdout);
    let ran = while_away(&two.jobs, || crate::common::run::to_end(&mut render));
    ends(&ran, 1, &["source jobs"]);
    two.list(", optional: true");
    let ran = while_away(&two.jobs, || crate::common::run::to_end(&mut render));
    ends(&ran, 1, &["source jobs", "optional ones included"]);
}

#[test]
fn what_was_held_is_written_by_the_options_that_came_meanwhile() {
    let two = Two::new();
    ends(&two.apply(&[]), 0, &["2 created"]);
    let stamped = ["--stamp-key=stamp"];
    ends(&while_away(&two.jobs, || two.apply(&stamped)), 3, &["jobs: held", "steps: replaced"]);
    ends(&two.apply(&stamped), 0, &["jobs: replaced"]);
    assert!(!two.content("jobs", "stamp").is_empty());
}

#[test]
fn a_source_that_moves_while_it_is_away_holds_what_its_new_place_feeds() {
    let two = Two::new();
    let mirror = flag("mirror", &two.path("mirror"));
    ends(&two.apply(&[&mirror]), 0, &["2 created"]);
    let moved = |path: &str| {
        let text = std::fs::read_to_string(two.path(path)).unwrap();
        two.place.file(path, &text.replace("to: jobs", "to: work").replace("jobs/**", "work/**"));
    };
    moved("sources.yaml");
    moved("plugins.yaml");
    let prunes = [mirror.as_str(), "--prune", "--max-prune=100"];
    ends(&while_away(&two.jobs, || two.apply(&prunes)), 3, &["jobs: held", "1 unchanged"]);
    assert_eq!(two.content("jobs", "a.yaml"), "one");
    ends(&two.apply(&prunes), 0, &["2 unchanged"]);
}

#[test]
fn one_source_that_is_refused_holds_its_own_configmaps() {
    let two = Two::new();
    let text = std::fs::read_to_string(two.path("sources.yaml")).unwrap();
    two.place.file("sources.yaml", &text.replace("to: jobs", "to: jobs, path: absent"));
    ends(&two.apply(&[]), 3, &["source jobs: revision", "`absent`", "steps: created"]);
}
