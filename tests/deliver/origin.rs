//! What an object says of where it came from, and a right that is granted while a delivery waits for it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use treeswap::deliver::{LoopEvent, LoopTiming, Options, Outcome, follow};
use treeswap::retry::Backoff;

use crate::kubernetes::{Kubernetes, text};
use crate::script::{Everywhere, Script, clusters, data, load, only, options, plans, revision, run, runtime};

const RULES: &str = "config_updater:\n  maps:\n    jobs/*.yaml:\n      name: job-config\n";
const FILES: [(u8, &[(&str, &str)]); 2] = [(1, &[("jobs/a.yaml", "one")]), (2, &[("jobs/a.yaml", "two")])];

#[test]
fn objects_name_their_rules_and_their_repository_without_its_password() {
    let kubernetes = Kubernetes::shared();
    let namespace = kubernetes.namespace("origin");
    clusters(&namespace);
    let writer = load(&[("test", kubernetes.access("writer"))]);
    let plans = plans(RULES, &namespace, &FILES);
    let rules = &plans[&revision(1)].rules;
    let options = options().with_remote(Some("https://git.example.com/acme/config.git?token=s3cret"));
    let annotation =
        |name: &str, of: &str| text(&kubernetes.configmap(&namespace, name)["metadata"]["annotations"][of]);
    let report = run(Script::at(&plans, revision(1)), &writer, &options).unwrap();
    assert_eq!(only(&report).outcome, Outcome::Created);
    assert_eq!(annotation("job-config", "treeswap.dev/rules"), *rules);
    for name in ["job-config", "treeswap-set-team", "treeswap-ledger-team"] {
        let from = annotation(name, "treeswap.dev/repository");
        assert_eq!(from, "https://git.example.com/acme/config.git", "{name}");
    }
}

#[test]
fn what_is_denied_is_tried_again_and_done_once_the_right_is_granted() {
    let kubernetes = Kubernetes::shared();
    let namespace = kubernetes.namespace("denied");
    let grant = |verbs: &[&str], more: bool| {
        let rules = json!([{ "apiGroups": [""], "resources": ["configmaps"], "verbs": verbs }]);
        match more {
            false => kubernetes.grant(&namespace, "narrow", &rules),
            true => kubernetes.grant_more(&namespace, "narrow", &rules),
        }
    };
    grant(&["get", "list"], false);
    let narrow = load(&[("test", kubernetes.access("narrow"))]);
    let cluster = Everywhere(narrow.get("default").unwrap().clone());
    let plans = plans(RULES, &namespace, &FILES);
    let input = Arc::new(Script::at(&plans, revision(1)));
    let hour = Duration::from_secs(3_600);
    let loop_timing = LoopTiming {
        period: Some(hour), // nobody asks for it
        min_interval: Duration::ZERO,
        resync: hour,
        denied: Duration::from_millis(300),
        backoff: Backoff { first: hour, ceiling: hour },
        jitter: 0.0,
        limit: hour,
        once: false,
    };
    let (_asks, mut asked) = mpsc::channel(1);
    let ending = CancellationToken::new();
    let (denied, done) = std::sync::mpsc::channel();
    let stop = ending.clone();
    let tell = move |turn: LoopEvent<'_>| {
        if let LoopEvent::Delivered(report) = turn {
            let _ = denied.send(only(report).clone());
            if report.is_success() {
                stop.cancel();
            }
        }
    };
    let options = Options { adopt: Default::default(), ..options() };
    let following = std::thread::spawn(move || {
        runtime().block_on(async {
            let end = tokio::time::timeout(
                Duration::from_secs(120),
                follow(input, &cluster, &options, &loop_timing, &mut asked, &ending, tell),
            );
            assert!(end.await.is_ok(), "the right was granted, and nobody noticed");
        });
    });
    let wait = || done.recv_timeout(Duration::from_secs(120)).unwrap();
    for _ in 0..2 {
        let target = wait();
        assert_eq!(target.outcome, Outcome::Failed);
        assert!(target.why.contains("the right to create configmaps"), "{}", target.why);
        assert!(
            target.hints.concat().contains("grant narrow get, list, create and update"),
            "{:?}",
            target.hints
        );
    }
    grant(&["create", "update"], true);
    while !wait().outcome.is_success() {}
    following.join().unwrap();
    assert_eq!(data(&kubernetes.configmap(&namespace, "job-config"))["a.yaml"], "one");
}
