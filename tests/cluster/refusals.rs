//! What the server refuses: which failure it is, and what it says to a person.

use std::collections::BTreeMap;

use serde_json::json;
use treeswap::cluster::{ConfigMapDraft, Error, Failure, Mode};

use crate::common::eventually;
use crate::kubernetes::Kubernetes;
use crate::{admin, client, draft, whole};

/// Permanent, no effect, these words in its line, and a hint with these.
#[track_caller]
fn says(error: &Error, line: &[&str], hint: &[&str]) {
    assert!(!error.is_transient() && !error.is_unknown(), "{error:?}");
    let (text, hints) = (whole(error), error.hints().join("\n"));
    assert!(line.iter().all(|word| text.contains(word)), "{text}");
    assert!(hint.iter().all(|word| hints.contains(word)), "{text}\n{hints}");
    assert!(!text.contains('\n') && text.len() < 600, "{text}");
}

#[tokio::test]
async fn a_missing_right_is_named_by_verb_and_resource() {
    let kubernetes = Kubernetes::shared();
    let namespace = kubernetes.namespace("forbidden");
    let read = admin().create(draft(&namespace, "one", &[]), Mode::Write).await.unwrap();
    let cluster = client(kubernetes.access("stranger"));
    let place = namespace.as_str();
    says(
        &cluster.list(place).await.unwrap_err(),
        &["list configmaps", place],
        &["grant stranger get, list, create and update on configmaps"],
    );
    says(&cluster.get(place, "one").await.unwrap_err(), &["get configmaps", place, "one"], &["grant"]);
    says(
        &cluster.create(draft(place, "x", &[]), Mode::Write).await.unwrap_err(),
        &["create configmaps"],
        &["grant stranger"],
    );
    let error = cluster.replace(&read, draft(place, "one", &[]), Mode::Write).await.unwrap_err();
    says(&error, &["update configmaps"], &["Role"]);
    says(&cluster.delete(&read, Mode::DryRun).await.unwrap_err(), &["delete configmaps"], &["Role"]);
    says(&cluster.lease(place, "x").await.unwrap_err(), &["get leases.coordination.k8s.io"], &["Role"]);
}

#[tokio::test]
async fn credentials_that_are_not_accepted_are_tried_twice_and_never_shown() {
    let cluster = client(Kubernetes::shared().access("not-a-token-s3cret"));
    let error = cluster.list("default").await.unwrap_err();
    assert!(matches!(error.why, Failure::Unauthorized), "{error:?}");
    says(&error, &["credentials"], &["expired"]);
    assert!(!format!("{error:?} {}", whole(&error)).contains("s3cret"));
}

#[tokio::test]
async fn an_absent_namespace_is_told_from_an_absent_map() {
    let error = admin().create(draft("nowhere", "one", &[]), Mode::Write).await.unwrap_err();
    assert!(matches!(error.why, Failure::NamespaceNotFound { .. }), "{error:?}");
    says(&error, &["namespace nowhere does not exist"], &["create the namespace nowhere"]);
    assert!(admin().list("nowhere").await.unwrap().is_empty(), "the server knows no difference here");
}

#[tokio::test]
async fn a_namespace_that_is_being_deleted_is_told_from_a_missing_right() {
    let (kubernetes, cluster) = (Kubernetes::shared(), admin());
    let namespace = kubernetes.namespace("terminating");
    let read = cluster.create(draft(&namespace, "one", &[]), Mode::Write).await.unwrap();
    // Nobody here cleans it up, so that it stays in this state.
    kubernetes.must("DELETE", &format!("/api/v1/namespaces/{namespace}"), None);
    let mut last = None;
    for _ in 0..600 {
        match cluster.create(draft(&namespace, "two", &[]), Mode::DryRun).await {
            Err(error) => last = Some(error),
            // The server's own caches are behind for a moment.
            Ok(_) => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
        }
        if last.is_some() {
            break;
        }
    }
    let error = last.expect("the server refuses new objects");
    assert!(matches!(error.why, Failure::NamespaceTerminating { .. }), "{error:?}");
    says(&error, &[&namespace, "is being deleted"], &["wait"]);
    // What is there can still be replaced.
    cluster.replace(&read, draft(&namespace, "one", &[("a", "1")]), Mode::Write).await.unwrap();
}

#[tokio::test]
async fn a_quota_is_named_with_its_figures() {
    let kubernetes = Kubernetes::shared();
    let namespace = kubernetes.namespace("quota");
    let quota = json!({ "metadata": { "name": "few" }, "spec": { "hard": { "count/configmaps": "0" } } });
    let path = format!("/api/v1/namespaces/{namespace}/resourcequotas");
    kubernetes.must("POST", &path, Some(&quota));
    // Without a controller manager nobody counts; what is used is said here.
    let used = json!({ "hard": { "count/configmaps": "0" }, "used": { "count/configmaps": "0" } });
    let mut quota = kubernetes.must("GET", &format!("{path}/few"), None);
    quota["status"] = used;
    kubernetes.must("PUT", &format!("{path}/few/status"), Some(&quota));
    let cluster = admin();
    let mut refused = None;
    for _ in 0..600 {
        match cluster.create(draft(&namespace, "one", &[]), Mode::DryRun).await {
            Err(error) if matches!(error.why, Failure::QuotaExceeded { .. }) => {
                refused = Some(error);
                break;
            }
            // The quota's cache is behind for a moment.
            _ => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
        }
    }
    says(
        &refused.expect("the quota is in force"),
        &["quota", "count/configmaps=1", "few"],
        &["ResourceQuota"],
    );
}

#[tokio::test]
async fn an_immutable_map_is_named_as_such() {
    let (kubernetes, cluster) = (Kubernetes::shared(), admin());
    let namespace = kubernetes.namespace("immutable");
    kubernetes.put(&namespace, "fixed", json!({ "data": { "a": "1" }, "immutable": true }));
    let found = cluster.get(&namespace, "fixed").await.unwrap().unwrap();
    assert!(found.immutable);
    let error = cluster
        .replace(&found.meta, draft(&namespace, "fixed", &[("a", "2")]), Mode::Write)
        .await
        .unwrap_err();
    assert!(matches!(error.why, Failure::Immutable), "{error:?}");
    says(&error, &["it is immutable", "fixed"], &["deleting"]);
    assert!(cluster.delete(&found.meta, Mode::Write).await.unwrap());
    cluster.create(draft(&namespace, "fixed", &[("a", "2")]), Mode::Write).await.unwrap();
}

#[tokio::test]
async fn what_the_servers_validation_refuses_is_named_without_its_value() {
    let cluster = admin();
    let namespace = Kubernetes::shared().namespace("invalid");
    let bad_label = ConfigMapDraft {
        labels: BTreeMap::from([("app".to_owned(), "s3cret value!".to_owned())]),
        ..draft(&namespace, "one", &[])
    };
    let error = cluster.create(bad_label, Mode::Write).await.unwrap_err();
    assert!(matches!(error.why, Failure::Invalid { .. }), "{error:?}");
    says(&error, &["metadata.labels", "a valid label must"], &[]);
    assert!(!whole(&error).contains("s3cret"), "{}", whole(&error));
    let error =
        cluster.create(draft(&namespace, "one", &[("a/b", "s3cret")]), Mode::Write).await.unwrap_err();
    says(&error, &["data[a/b]"], &[]);
    assert!(!whole(&error).contains("s3cret"), "{}", whole(&error));
}

#[tokio::test]
async fn too_large_is_the_same_failure_whoever_finds_it() {
    let cluster = admin();
    let namespace = Kubernetes::shared().namespace("large");
    // The server's validation: values over 1 MiB.
    let error = cluster
        .create(draft(&namespace, "one", &[("a", &"x".repeat((1 << 20) + 1))]), Mode::Write)
        .await
        .unwrap_err();
    assert!(matches!(error.why, Failure::TooLarge { .. }), "{error:?}");
    says(&error, &["too large"], &["partitioned_names"]);
    // etcd: 900 KB of values under 3,000 long keys, over 1.5 MiB together.
    let value = "x".repeat(300);
    let mut long = draft(&namespace, "two", &[]);
    long.content.data = (0..3_000).map(|key| (format!("{key:0>250}"), value.clone())).collect();
    let error = cluster.create(long, Mode::Write).await.unwrap_err();
    assert!(matches!(error.why, Failure::TooLarge { .. }), "{error:?}");
    says(&error, &["request is too large"], &["gzip"]);
    // The server's limit of a body: over 3 MiB.
    let error = cluster
        .create(draft(&namespace, "three", &[("a", &"x".repeat(4 << 20))]), Mode::Write)
        .await
        .unwrap_err();
    assert!(matches!(error.why, Failure::TooLarge { .. }), "{error:?}");
    says(&error, &["too large"], &["gzip"]);
}

#[test]
fn a_grant_takes_a_moment_and_is_then_in_force() {
    let kubernetes = Kubernetes::shared();
    let namespace = kubernetes.namespace("grant");
    let rules = json!([{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"] }]);
    kubernetes.grant(&namespace, "reader", &rules);
    eventually(30, "the user may read", || {
        kubernetes.may("reader", &namespace, "get", "", "configmaps", "any").then_some(())
    });
    assert!(!kubernetes.may("reader", &namespace, "update", "", "configmaps", "any"));
}
