//! Refs that are forced, go back and lag, on a real server of git's, seen by mirrors that never saw the recorded commit.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use treeswap::cluster::Clusters;
use treeswap::deliver::{OnRewind, Options, Outcome, Report, deliver};
use treeswap::mirror::wire;
use treeswap::sources::{Remote, Upstream};

use crate::common::http_backend::{HttpBackend, Kind};
use crate::common::{Files, World, binary, eventually, run};
use crate::kubernetes::Kubernetes;
use crate::script::{Everywhere, clusters, data, only, options, planner, runtime};

const RULES: &str = "config_updater:\n  maps:\n    jobs/*.yaml:\n      name: job-config\n";

/// A namespace, and a repository behind git's own server.
struct Stage {
    world: World,
    server: HttpBackend,
    namespace: String,
    clusters: Clusters,
}

impl Stage {
    fn new() -> Self {
        let world = World::new();
        let server = HttpBackend::start(world.dir(), Kind::default());
        let namespace = Kubernetes::shared().namespace("rewinds");
        let clusters = clusters(&namespace);
        Self { world, server, namespace, clusters }
    }

    fn commit(&self, text: &str) -> String {
        self.world.remote.commit(&Files::new().file("jobs/a.yaml", text))
    }

    /// Delivers what `main` of a repository names, with a mirror that nobody used before.
    fn deliver(&self, repository: &str, options: &Options) -> Report {
        self.deliver_by(RULES, repository, options)
    }

    fn deliver_by(&self, rules: &str, repository: &str, options: &Options) -> Report {
        let mirror = tempfile::tempdir_in(self.world.dir()).unwrap();
        let mut mirrored = treeswap::mirror::Options::new(
            mirror.path().join("mirror"),
            "main".parse().unwrap(),
            wire::Options::new(self.server.url(repository)),
        );
        mirrored.indexer = binary();
        let planner = planner(rules, &self.namespace);
        let input = Arc::new(Remote::new(Upstream::open(mirrored, None).unwrap(), planner).unwrap());
        let cluster = Everywhere(self.clusters.get("default").unwrap().clone());
        runtime().block_on(deliver(input, &cluster, options, &CancellationToken::new())).unwrap()
    }

    fn content(&self) -> String {
        data(&Kubernetes::shared().configmap(&self.namespace, "job-config"))["a.yaml"].clone()
    }

    fn versions(&self) -> BTreeMap<String, String> {
        Kubernetes::shared().versions(&self.namespace)
    }

    /// Questions about refs and for packs that were answered so far.
    fn questions(&self) -> usize {
        self.server.hits().iter().filter(|hit| hit.method == "POST").count()
    }
}

fn holding() -> Options {
    Options { on_rewind: OnRewind::Hold, ..options() }
}

#[track_caller]
fn held(report: &Report, words: &str) {
    assert_eq!(only(report).outcome, Outcome::Refused, "{report:?}");
    assert!(only(report).why.contains(words), "{report:?}");
}

#[track_caller]
fn followed(report: &Report, words: &str) {
    assert_eq!(only(report).outcome, Outcome::Replaced, "{report:?}");
    assert!(report.notes.iter().any(|note| note.contains(words)), "{report:?}");
}

/// An advance like any other: nothing is said of it.
#[track_caller]
fn advanced(stage: &Stage, report: &Report, content: &str) {
    assert_eq!((only(report).outcome, stage.content().as_str()), (Outcome::Replaced, content), "{report:?}");
    assert!(report.notes.is_empty(), "{report:?}");
}

#[test]
fn a_forced_ref_is_held_or_followed_and_told() {
    let stage = Stage::new();
    let base = stage.commit("one");
    stage.commit("two");
    stage.deliver("remote", &options());
    stage.world.remote.reset(&base);
    stage.commit("other");
    let before = stage.versions();
    held(&stage.deliver("remote", &holding()), "the ref was forced from");
    assert_eq!(stage.versions(), before, "nothing was written");
    followed(&stage.deliver("remote", &options()), "the ref was forced from");
    assert_eq!(stage.content(), "other");
}

/// Nothing but the inventory would be written, and the next commit would then count as an advance over it.
#[test]
fn a_forced_ref_that_changes_no_configmap_is_not_recorded_either_where_it_is_held() {
    let stage = Stage::new();
    let base = stage.commit("one");
    let second = stage.commit("two");
    stage.deliver("remote", &options());
    stage.world.remote.reset(&base);
    stage.commit("other");
    stage.commit("two");
    let recorded =
        || data(&Kubernetes::shared().configmap(&stage.namespace, "treeswap-set-team"))["_revision"].clone();
    let rules = format!("{RULES}    nothing/*:\n      name: nothing\n");
    let report = stage.deliver_by(&rules, "remote", &holding());
    assert_eq!((only(&report).outcome, recorded()), (Outcome::Unchanged, second.clone()), "{report:?}");
    assert!(report.notes.iter().any(|note| note.contains("the ref was forced from")), "{report:?}");
    stage.commit("evil");
    held(&stage.deliver_by(&rules, "remote", &holding()), "the ref was forced from");
    assert_eq!((stage.content().as_str(), recorded()), ("two", second));
}

#[test]
fn an_advance_over_commits_that_nobody_fetched_is_known_as_one() {
    let stage = Stage::new();
    stage.commit("one");
    stage.deliver("remote", &options());
    for text in ["two", "three", "four"] {
        stage.commit(text);
    }
    let report = stage.deliver("remote", &holding());
    advanced(&stage, &report, "four");
}

#[test]
fn a_ref_that_went_back_is_believed_after_a_while_or_held() {
    let stage = Stage::new();
    let first = stage.commit("one");
    stage.commit("two");
    stage.deliver("remote", &options());
    stage.world.remote.reset(&first);
    let short = Duration::from_millis(1_500);
    let report = stage.deliver("remote", &Options { lag: short, ..holding() });
    held(&report, "the ref went back from");
    assert!(only(&report).hints.concat().starts_with("push something newer"), "{report:?}");
    assert_eq!(stage.content(), "two");
    followed(&stage.deliver("remote", &Options { lag: short, ..options() }), "the ref went back from");
    assert_eq!(stage.content(), "one");
}

/// Delivers while the ref is behind, and lets it catch up after so many questions.
fn lagging(stage: &Stage, repository: &str, questions: usize, catches_up: impl FnOnce() + Send) -> Report {
    stage.server.forget();
    let patient = Options { lag: Duration::from_secs(600), ..options() };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            eventually(300, "it is asked again", || (stage.questions() >= questions).then_some(()));
            catches_up();
        });
        stage.deliver(repository, &patient)
    })
}

#[test]
fn a_ref_that_lags_for_ten_seconds_never_brings_old_content_back() {
    let stage = Stage::new();
    let first = stage.commit("one");
    let second = stage.commit("two");
    let third = stage.commit("three");
    stage.deliver("remote", &options());
    let before = stage.versions();
    stage.world.remote.reset(&first);
    // It is asked every half second. On its way it shows what came in between, too.
    let report = lagging(&stage, "remote", 24, || {
        stage.world.remote.reset(&second);
        let now = stage.questions();
        eventually(300, "it is asked again", || (stage.questions() >= now + 4).then_some(()));
        stage.world.remote.reset(&third);
    });
    assert_eq!((report.revision.to_string(), only(&report).outcome), (third, Outcome::Unchanged));
    assert_eq!(stage.versions(), before, "nothing was written");

    // It comes back with something new.
    stage.world.remote.reset(&first);
    let report = lagging(&stage, "remote", 10, || {
        stage.world.remote.reset(&report.revision.to_string());
        stage.commit("four");
    });
    advanced(&stage, &report, "four");
    assert_eq!(Kubernetes::shared().writes(&stage.namespace)["job-config"], 2);
}

#[test]
fn a_replica_that_does_not_have_the_recorded_commit_is_asked_again_too() {
    let stage = Stage::new();
    stage.commit("one");
    let dir = stage.world.dir();
    let git =
        |args: &[&str]| run::to_end(run::clean("git", dir).current_dir(dir).args(args)).expect_ok("git");
    git(&["clone", "--quiet", "--bare", "remote", "replica"]);
    git(&["config", "--file", "replica/config", "uploadpack.allowFilter", "true"]);
    let serve = |name: &str| {
        let link = dir.join("link");
        std::os::unix::fs::symlink(name, &link).unwrap();
        std::fs::rename(&link, dir.join("forge")).unwrap();
    };
    stage.commit("two");
    stage.commit("three");
    serve("remote");
    stage.deliver("forge", &options());
    let before = stage.versions();
    serve("replica");
    let report = lagging(&stage, "forge", 12, || serve("remote"));
    assert_eq!(only(&report).outcome, Outcome::Unchanged);
    assert_eq!(stage.versions(), before, "nothing was written");
    // One that stays so has lost what was recorded.
    serve("replica");
    let short = Duration::from_millis(1_500);
    held(&stage.deliver("forge", &Options { lag: short, ..holding() }), "does not have");
    followed(&stage.deliver("forge", &Options { lag: short, ..options() }), "does not have");
    assert_eq!(stage.content(), "one");
}

#[test]
fn without_filters_only_what_a_commit_says_itself_is_known_and_that_stops_nobody_who_does_not_hold() {
    let stage = Stage::new();
    stage.world.remote.git(&["config", "uploadpack.allowFilter", "false"]);
    stage.commit("one");
    stage.deliver("remote", &options());
    stage.commit("two");
    let report = stage.deliver("remote", &holding());
    assert_eq!(only(&report).outcome, Outcome::Replaced, "its parent is what is recorded: {report:?}");
    stage.commit("three");
    stage.commit("four");
    held(&stage.deliver("remote", &holding()), "it is not known whether");
    assert_eq!(stage.content(), "two");
    let report = stage.deliver("remote", &options());
    advanced(&stage, &report, "four");
}

#[test]
fn the_command_holds_when_it_is_told_to() {
    let stage = Stage::new();
    let base = stage.commit("one");
    let rules = stage.world.dir().join("rules.yaml");
    std::fs::write(&rules, RULES).unwrap();
    let context = [("test", Kubernetes::shared().access("writer"))];
    let config = crate::kubernetes::kubeconfig(&stage.world.dir().join("kubeconfig"), &context);
    let apply = |what: &str| {
        let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
        let repo = format!("--repo={}", stage.server.url("remote"));
        let mut command = stage.world.treeswap(&["apply", "--owner=team", "--ref=main", &repo, what]);
        command.args([flag("rules", &rules), flag("kubeconfig", &config)]);
        run::to_end(command.arg(format!("--default-namespace={}", stage.namespace)))
    };
    assert_eq!(apply("--on-rewind=perhaps").status.code(), Some(2));
    assert_eq!(apply("--on-rewind=hold").status.code(), Some(0));
    stage.commit("two");
    assert_eq!(apply("--on-rewind=hold").status.code(), Some(0));
    stage.world.remote.reset(&base);
    stage.commit("other");
    let ran = apply("--on-rewind=hold");
    assert_eq!(ran.status.code(), Some(3), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("refused: the ref was forced from"), "{}", ran.stdout);
    let hint = "hint: if the ref is right, run once with --on-rewind=apply";
    assert!(ran.stderr.contains("the ref was forced from") && ran.stderr.contains(hint), "{}", ran.stderr);
    assert_eq!(stage.content(), "two");
    let ran = apply("--on-rewind=apply");
    assert_eq!(ran.status.code(), Some(0), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.contains("the ref was forced from"), "{}", ran.stderr);
    assert_eq!(stage.content(), "other");
}
