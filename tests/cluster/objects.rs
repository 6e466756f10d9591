//! Reading and writing ConfigMaps and Leases through `treeswap::cluster`, against a real API server.

use std::collections::BTreeMap;

use serde_json::json;
use treeswap::cluster::{ConfigMapDraft, Failure, LeaseDraft, Mode};
use treeswap::configmap::ConfigMapData;

use crate::kubernetes::{Kubernetes, text};
use crate::{admin, draft};

#[tokio::test]
async fn create_stores_all_fields_and_get_returns_them() {
    let (kubernetes, cluster) = (Kubernetes::shared(), admin());
    let namespace = kubernetes.namespace("objects");
    let labels = BTreeMap::from([("app".to_owned(), "x".to_owned())]);
    let annotations = BTreeMap::from([("treeswap/revision".to_owned(), "abc".to_owned())]);
    let binary_data = BTreeMap::from([("b".to_owned(), vec![0, 159, 255])]);
    let data = BTreeMap::from([("a".to_owned(), "ä\n".to_owned())]);
    let content = ConfigMapData { data, binary_data };
    let wanted = ConfigMapDraft {
        namespace: namespace.clone(),
        name: "one".to_owned(),
        labels: labels.clone(),
        annotations: annotations.clone(),
        content: content.clone(),
    };
    let made = cluster.create(wanted, Mode::Write).await.unwrap();
    let found = cluster.get(&namespace, "one").await.unwrap().unwrap();
    assert_eq!((&found.meta, &found.content, found.immutable), (&made, &content, false));
    assert_eq!((&made.labels, &made.annotations, made.deleting), (&labels, &annotations, false));
    let stored = kubernetes.configmap(&namespace, "one");
    assert_eq!(text(&stored["metadata"]["uid"]), made.uid);
    assert_eq!(text(&stored["metadata"]["resourceVersion"]), made.resource_version);
    assert_eq!(stored["metadata"]["managedFields"][0]["manager"], "treeswap");
    assert_eq!(cluster.head(&namespace, "one").await.unwrap(), Some(made));
    assert_eq!(cluster.get(&namespace, "two").await.unwrap(), None);
    assert_eq!(cluster.head("no-such-namespace", "two").await.unwrap(), None);
}

#[tokio::test]
async fn replace_replaces_data_and_labels_and_keeps_finalizers_and_owners() {
    let (kubernetes, cluster) = (Kubernetes::shared(), admin());
    let namespace = kubernetes.namespace("replaced");
    let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "1-2-3" });
    let metadata =
        json!({ "finalizers": ["example.com/x"], "ownerReferences": [owner], "labels": { "a": "b" } });
    kubernetes.put(
        &namespace,
        "one",
        json!({ "metadata": metadata, "data": { "old": "1" }, "binaryData": { "b": "AA==" } }),
    );
    let read = cluster.list(&namespace).await.unwrap().remove("one").unwrap();
    let written =
        cluster.replace(&read, draft(&namespace, "one", &[("new", "2")]), Mode::Write).await.unwrap();
    assert_eq!(written.uid, read.uid);
    assert_ne!(written.resource_version, read.resource_version);
    let stored = kubernetes.configmap(&namespace, "one");
    assert_eq!((&stored["data"], &stored["binaryData"]), (&json!({ "new": "2" }), &json!(null)));
    assert_eq!(stored["metadata"]["labels"], json!(null));
    assert_eq!(stored["metadata"]["finalizers"], json!(["example.com/x"]));
    assert_eq!(stored["metadata"]["ownerReferences"][0]["name"], "p");

    // Deleted, it waits for its finalizer, and says so.
    assert!(cluster.delete(&written, Mode::Write).await.unwrap());
    assert!(cluster.head(&namespace, "one").await.unwrap().unwrap().deleting);
}

#[tokio::test]
async fn writes_need_the_uid_and_resource_version_that_were_read() {
    let (kubernetes, cluster) = (Kubernetes::shared(), admin());
    let namespace = kubernetes.namespace("preconditions");
    let new = || draft(&namespace, "one", &[("a", "1")]);
    let first = cluster.create(new(), Mode::Write).await.unwrap();
    let error = cluster.create(new(), Mode::Write).await.unwrap_err();
    assert!(matches!(error.why, Failure::AlreadyExists) && error.is_transient() && !error.is_unknown());

    // Somebody writes in between.
    kubernetes.put(&namespace, "one", json!({ "data": { "theirs": "1" } }));
    for error in [
        cluster.replace(&first, new(), Mode::Write).await.unwrap_err(),
        cluster.delete(&first, Mode::Write).await.unwrap_err(),
    ] {
        assert!(
            matches!(error.why, Failure::Conflict) && error.is_transient() && !error.is_unknown(),
            "{error:?}"
        );
    }
    assert_eq!(kubernetes.configmap(&namespace, "one")["data"], json!({ "theirs": "1" }));

    // Somebody deletes it, and makes it anew: another object of that name.
    let second = cluster.head(&namespace, "one").await.unwrap().unwrap();
    assert!(cluster.delete(&second, Mode::Write).await.unwrap());
    assert!(!cluster.delete(&second, Mode::Write).await.unwrap(), "it is gone already");
    let error = cluster.replace(&second, new(), Mode::Write).await.unwrap_err();
    assert!(matches!(error.why, Failure::NotFound | Failure::Conflict) && error.is_transient(), "{error:?}");
    cluster.create(new(), Mode::Write).await.unwrap();
    for error in [
        cluster.replace(&second, new(), Mode::Write).await.unwrap_err(),
        cluster.delete(&second, Mode::Write).await.unwrap_err(),
    ] {
        assert!(matches!(error.why, Failure::Conflict), "{error:?}");
    }
}

#[tokio::test]
async fn a_dry_run_is_validated_and_stores_nothing() {
    let (kubernetes, cluster) = (Kubernetes::shared(), admin());
    let namespace = kubernetes.namespace("dry");
    let unreal = cluster.create(draft(&namespace, "new", &[("a", "1")]), Mode::DryRun).await.unwrap();
    assert_eq!(cluster.get(&namespace, "new").await.unwrap(), None);
    // It proves nothing that a write could rest on, whatever is there by then.
    kubernetes.put(&namespace, "new", json!({ "data": { "theirs": "1" } }));
    let error = cluster.replace(&unreal, draft(&namespace, "new", &[]), Mode::Write).await.unwrap_err();
    assert!(matches!(error.why, Failure::Conflict), "{error:?}");
    let error = cluster.delete(&unreal, Mode::Write).await.unwrap_err();
    assert!(matches!(error.why, Failure::Conflict), "{error:?}");
    let read = cluster.create(draft(&namespace, "old", &[("a", "1")]), Mode::Write).await.unwrap();
    cluster.replace(&read, draft(&namespace, "old", &[("a", "2")]), Mode::DryRun).await.unwrap();
    assert!(cluster.delete(&read, Mode::DryRun).await.unwrap());
    let error = cluster.create(draft(&namespace, "Not_A_Name", &[]), Mode::DryRun).await.unwrap_err();
    assert!(matches!(error.why, Failure::Invalid { .. }), "{error:?}");
    assert_eq!(cluster.head(&namespace, "old").await.unwrap(), Some(read));
}

#[tokio::test]
async fn a_list_is_complete_however_many_pages_it_takes_and_has_no_content() {
    const COUNT: usize = 3_000;
    let (kubernetes, cluster) = (Kubernetes::shared(), admin());
    let namespace = kubernetes.namespace("pages");
    let big = "x".repeat(200_000);
    let name = |number: usize| format!("map-{number:04}");
    let all = (0..COUNT).map(|number| {
        let value = if number < 10 { big.as_str() } else { "1" };
        cluster.create(draft(&namespace, &name(number), &[("a", value)]), Mode::Write)
    });
    let made = futures_util::future::try_join_all(all).await.unwrap();

    let proxy = crate::proxy::Proxy::start(kubernetes);
    let through = crate::client(proxy.access("admin"));
    let found = through.list(&namespace).await.unwrap();
    assert_eq!(found.len(), COUNT);
    assert!(made.iter().all(|meta| found.get(&meta.name) == Some(meta)));
    let pages = proxy.seen();
    assert_eq!(pages.len(), COUNT.div_ceil(500), "{pages:?}");
    let bytes: usize = pages.iter().map(|page| page.length).sum();
    assert!(bytes < COUNT * 1_200, "{bytes} bytes for the metadata of {COUNT}; ten of them hold 200 kB each");
    assert!(pages.iter().all(|page| page.uri.contains("limit=500")));
}

#[tokio::test]
async fn a_survey_gets_each_name_if_list_is_forbidden() {
    let kubernetes = Kubernetes::shared();
    let namespace = kubernetes.namespace("named");
    for name in ["one", "two", "three"] {
        kubernetes.put(&namespace, name, json!({ "data": {} }));
    }
    kubernetes.grant(
        &namespace,
        "narrow",
        &json!([{ "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["one", "two", "absent"],
                  "verbs": ["get", "update", "delete"] }]),
    );
    let cluster = crate::client(kubernetes.access("narrow"));
    let found = cluster.survey(&namespace, &["one", "two", "absent"]).await.unwrap();
    assert_eq!(found.keys().collect::<Vec<_>>(), ["one", "two"]);
    let error = cluster.survey(&namespace, &["one", "three"]).await.unwrap_err();
    assert!(matches!(error.why, Failure::Forbidden { verb: "get", .. }), "{error:?}");
    // What the names grant works, and nothing else does.
    let meta =
        cluster.replace(&found["one"], draft(&namespace, "one", &[("a", "1")]), Mode::Write).await.unwrap();
    assert!(cluster.delete(&meta, Mode::Write).await.unwrap());
    let error = cluster.create(draft(&namespace, "one", &[]), Mode::Write).await.unwrap_err();
    assert!(matches!(error.why, Failure::Forbidden { verb: "create", .. }), "{error:?}");
}

#[tokio::test]
async fn a_lease_is_replaced_only_at_the_version_that_was_read() {
    let cluster = admin();
    let namespace = Kubernetes::shared().namespace("lease");
    let taken = |holder: &str, transitions| LeaseDraft {
        namespace: namespace.clone(),
        name: "turn".to_owned(),
        holder: Some(holder.to_owned()),
        duration_seconds: 15,
        acquired: Some("2026-11-21T20:00:00.123456Z".parse().unwrap()),
        renewed: Some("2026-11-21T20:00:01Z".parse().unwrap()),
        transitions,
        ..LeaseDraft::default()
    };
    assert_eq!(cluster.lease(&namespace, "turn").await.unwrap(), None);
    let first = cluster.create_lease(taken("a", 0)).await.unwrap();
    assert!(matches!(cluster.create_lease(taken("b", 0)).await.unwrap_err().why, Failure::AlreadyExists));
    assert_eq!(cluster.lease(&namespace, "turn").await.unwrap().as_ref(), Some(&first));
    assert_eq!(
        (first.holder.as_deref(), first.duration_seconds, first.transitions),
        (Some("a"), Some(15), 0)
    );
    assert_eq!(first.acquired, taken("a", 0).acquired);

    let free = LeaseDraft { holder: None, ..taken("", 0) };
    let second = cluster.replace_lease(&first.meta, free).await.unwrap();
    assert_eq!(second.holder, None);
    let late = cluster.replace_lease(&first.meta, taken("b", 1)).await.unwrap_err();
    assert!(matches!(late.why, Failure::Conflict), "{late:?}");
    assert_eq!(cluster.replace_lease(&second.meta, taken("b", 1)).await.unwrap().transitions, 1);
}
