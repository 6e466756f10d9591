//! The interleavings in which Prow's tools end wrong, each with what happens inside a step placed before and after that
//! step's question to the remote.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use treeswap::deliver::{Options, Relation, deliver};
use treeswap::revision::Revision;

use crate::kubernetes::{Kubernetes, text};
use crate::script::{Everywhere, Plans, Script, clusters, data, desired, options, revision, run, runtime};

/// Where the inner steps of a step happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Inside {
    /// After it has read, before the remote answers.
    BeforeTheAnswer,
    /// After the remote has answered, before it writes.
    AfterTheAnswer,
}

/// The story that all steps share.
#[derive(Clone)]
struct Story {
    plans: Arc<Plans>,
    newest: Arc<Mutex<Revision>>,
    cluster: treeswap::cluster::Cluster,
    options: Options,
    inside: Inside,
}

/// `r7`, or `bootstrap of r7`.
fn number(step: &Value) -> u8 {
    let named = step["sha"].as_str().or_else(|| step["actor"].as_str()?.rsplit(' ').next()).unwrap();
    named.trim_start_matches('r').parse().unwrap()
}

fn all_steps(steps: &Value, into: &mut Vec<Value>) {
    for step in steps.as_array().into_iter().flatten() {
        into.push(step.clone());
        all_steps(&step["inner"], into);
    }
}

/// One step: an applier that believes in its own revision until it asks.
fn act(story: Story, step: Value) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
    let own = revision(number(&step));
    {
        let mut newest = story.newest.lock().unwrap();
        *newest = (*newest).max(own);
    }
    let inner: Vec<Value> = step["inner"].as_array().cloned().unwrap_or_default();
    let told = story.clone();
    let answer = move |at: usize| -> crate::script::Answer {
        let (story, inner) = (told.clone(), inner.clone());
        Box::pin(async move {
            let named = |story: &Story| *story.newest.lock().unwrap();
            let before = if at == 0 { own } else { named(&story) };
            if at == 1 {
                for step in inner {
                    act(story.clone(), step).await;
                }
                let newest = if story.inside == Inside::BeforeTheAnswer { named(&story) } else { before };
                return Ok(newest.into());
            }
            Ok(before.into())
        })
    };
    let input = Script {
        answer: Box::new(answer),
        asked: AtomicUsize::new(0),
        plans: Arc::clone(&story.plans),
        relation: Ok(Relation::Unknown),
    };
    Box::pin(async move {
        let everywhere = Everywhere(story.cluster.clone());
        let report =
            deliver(Arc::new(input), &everywhere, &story.options, &CancellationToken::new()).await.unwrap();
        assert!(report.is_success(), "{report:#?}");
    })
}

fn plays(case: &Value, inside: Inside) {
    let id = text(&case["id"]);
    let kubernetes = Kubernetes::shared();
    let namespace = kubernetes.namespace("race");
    let clusters = clusters(&namespace);
    for object in case["existing"].as_array().unwrap() {
        let body = json!({ "metadata": { "labels": object["labels"] }, "data": object["data"] });
        kubernetes.put(&namespace, object["name"].as_str().unwrap(), body);
    }
    let mut rules = text(&case["config_yaml"]);
    if id == "plugin-config-changed-with-the-file" {
        rules += "    new/*.yaml:\n      name: new-map\n"; // the file that the merge brings along
    }
    let mut steps = Vec::new();
    all_steps(&case["steps"], &mut steps);
    let plan = |step: &Value| {
        let revision = revision(number(step));
        let tree = step["tree"].as_object().unwrap();
        let files = tree.iter().map(|(path, content)| (path.clone(), text(content))).collect();
        (revision, desired(revision, &rules, &namespace, &files))
    };
    let plans: Arc<Plans> = Arc::new(steps.iter().map(plan).collect());
    let runtime = runtime();
    let story = Story {
        plans: Arc::clone(&plans),
        newest: Arc::new(Mutex::new(revision(0))),
        cluster: clusters.get("default").unwrap().clone(),
        options: options(),
        inside,
    };
    for step in case["steps"].as_array().unwrap() {
        runtime.block_on(act(story.clone(), step.clone()));
    }
    drop(runtime);
    let stamped = |value: &Value| match value.as_str().unwrap().strip_prefix('r').map(str::parse::<u8>) {
        Some(Ok(number)) => revision(number).to_string(),
        _ => text(value),
    };
    for (name, expected) in case["correct_end_state"].as_object().unwrap() {
        let expected: BTreeMap<String, String> = expected
            .as_object()
            .unwrap()
            .iter()
            .map(|(key, value)| (key.clone(), if key == "VERSION" { stamped(value) } else { text(value) }))
            .collect();
        assert_eq!(data(&kubernetes.configmap(&namespace, name)), expected, "{id}, {inside:?}: {name}");
    }
    let before = kubernetes.versions(&namespace);
    let newest = *story.newest.lock().unwrap();
    let again = self::clusters_again();
    assert!(run(Script::at(&plans, newest), &again, &options()).unwrap().is_success());
    assert_eq!(kubernetes.versions(&namespace), before, "{id}, {inside:?}: another run changes nothing");
}

/// A client belongs to the runtime that it was first used in.
fn clusters_again() -> treeswap::cluster::Clusters {
    crate::script::load(&[("test", Kubernetes::shared().access("writer"))])
}

#[test]
fn every_race_ends_as_it_should() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/vectors/races.json");
    let vectors: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let cases = vectors["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 12);
    for case in cases {
        plays(case, Inside::BeforeTheAnswer);
        plays(case, Inside::AfterTheAnswer);
    }
}
