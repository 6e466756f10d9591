//! Network failures and a busy server, before a request took effect and after it: the error says whether the write may
//! have taken effect, and a read then shows whether it did.

use std::time::Duration;

use treeswap::cluster::{Cluster, Error, Failure, Mode, Options};

use crate::kubernetes::Kubernetes;
use crate::proxy::{Fault, Proxy};
use crate::{client, client_with, draft, whole};

/// A namespace of its own behind a proxy of its own.
fn namespace_behind_proxy() -> (Proxy, Cluster, String) {
    let kubernetes = Kubernetes::shared();
    let proxy = Proxy::start(kubernetes);
    let cluster = client(proxy.access("admin"));
    (proxy, cluster, kubernetes.namespace("faults"))
}

/// Whether the ConfigMap exists, asked of the server without the proxy and the client under test.
fn exists(namespace: &str, name: &str) -> bool {
    !Kubernetes::shared().configmap(namespace, name).is_null()
}

/// Fails the test unless the write may have taken effect and trying again can help.
#[track_caller]
fn assert_unknown(error: &Error) {
    assert!(error.is_unknown() && error.is_transient(), "{error:?}");
}

#[tokio::test]
async fn a_lost_connection_leaves_the_outcome_unknown_before_and_after_the_write_took_effect() {
    let (proxy, cluster, namespace) = namespace_behind_proxy();
    for (fault, took_effect) in [(Fault::CutBefore, false), (Fault::CutAfter, true), (Fault::CutAnswer, true)]
    {
        let name = format!("{fault:?}").to_lowercase();
        proxy.next("POST", "configmaps", fault);
        let error = cluster.create(draft(&namespace, &name, &[]), Mode::Write).await.unwrap_err();
        assert!(matches!(error.why, Failure::ConnectionLost { .. }), "{error:?}");
        assert_unknown(&error);
        assert_eq!(exists(&namespace, &name), took_effect, "{name}");
        // A read shows whether the write took effect.
        assert_eq!(cluster.head(&namespace, &name).await.unwrap().is_some(), took_effect);
    }
    assert_eq!(proxy.count("POST", "configmaps"), 3, "no write was sent twice");

    // A read changes nothing, so its outcome is never unknown.
    proxy.next("GET", "configmaps", Fault::CutAnswer);
    let error = cluster.list(&namespace).await.unwrap_err();
    assert!(error.is_transient() && !error.is_unknown(), "{error:?}");
}

#[tokio::test]
async fn a_timeout_leaves_the_outcome_unknown_before_and_after_the_write_took_effect() {
    let (proxy, _, namespace) = namespace_behind_proxy();
    let limit = Duration::from_secs(4);
    let cluster = client_with(proxy.access("admin"), Options { timeout: limit, ..Options::default() });
    let read =
        client(proxy.access("admin")).create(draft(&namespace, "one", &[]), Mode::Write).await.unwrap();
    for (fault, took_effect) in [(Fault::HoldAfter, true), (Fault::HoldBefore, false)] {
        let name = format!("{fault:?}").to_lowercase();
        proxy.next("POST", "configmaps", fault);
        let error = cluster.create(draft(&namespace, &name, &[]), Mode::Write).await.unwrap_err();
        assert!(matches!(error.why, Failure::Timeout { after } if after == limit), "{error:?}");
        assert_unknown(&error);
        proxy.held().await; // on a busy machine the proxy gets this far only after the client's deadline
        assert!(whole(&error).contains("no answer within 4s"), "{}", whole(&error));
        assert_eq!(exists(&namespace, &name), took_effect, "{name}");
    }
    // A write that timed out may reach the server late. It has the resourceVersion as a precondition, so it cannot undo
    // a newer write.
    proxy.next("PUT", "configmaps", Fault::HoldBefore);
    let error =
        cluster.replace(&read, draft(&namespace, "one", &[("old", "")]), Mode::Write).await.unwrap_err();
    assert_unknown(&error);
    proxy.held().await;
    let patient = client(proxy.access("admin"));
    let newer = patient.replace(&read, draft(&namespace, "one", &[("new", "")]), Mode::Write).await.unwrap();
    proxy.release();
    crate::common::eventually(60, "the late write was answered", || {
        let late = proxy.seen().into_iter().filter(|seen| seen.method == "PUT");
        late.into_iter().any(|seen| seen.status == Some(409)).then_some(())
    });
    assert_eq!(patient.head(&namespace, "one").await.unwrap(), Some(newer));
}

#[tokio::test]
async fn the_server_is_told_the_deadline() {
    let (proxy, cluster, namespace) = namespace_behind_proxy();
    cluster.create(draft(&namespace, "one", &[]), Mode::Write).await.unwrap();
    let sent = &proxy.seen()[0].uri;
    assert!(sent.contains("fieldManager=treeswap"), "{sent}");
    // What is left of the client's 60 s when the request is sent.
    let timeout = sent.split(['?', '&']).find_map(|part| part.strip_prefix("timeout=")?.strip_suffix("ms"));
    let timeout: u32 = timeout.unwrap_or_else(|| panic!("{sent}")).parse().unwrap();
    assert!((30_000..=60_000).contains(&timeout), "{sent}");
}

#[tokio::test]
async fn retry_after_of_a_busy_server_is_capped_and_the_client_does_not_retry_by_itself() {
    let (proxy, _, namespace) = namespace_behind_proxy();
    let longest_pause = Duration::from_secs(20);
    let cluster = client_with(proxy.access("admin"), Options { longest_pause, ..Options::default() });
    let far = "Fri, 31 Dec 2100 23:59:59 GMT";
    let cases = [
        (429, Some("7"), Some(7)),
        (503, Some("3600"), Some(20)),
        (429, Some(far), Some(20)),
        (503, Some("Mon, 01 Jan 2024 00:00:00 GMT"), Some(0)),
        (429, Some("soon"), None),
        (503, None, None),
    ];
    for (status, header, pause) in cases {
        proxy.next("POST", "configmaps", Fault::Answer(status, header, "busy"));
        let error = cluster.create(draft(&namespace, "one", &[]), Mode::Write).await.unwrap_err();
        assert!(matches!(error.why, Failure::Busy { status: found, .. } if found == status), "{error:?}");
        assert!(error.is_transient() && !error.is_unknown(), "{error:?}");
        assert_eq!(error.pause(), pause.map(Duration::from_secs), "{header:?}");
    }
    assert_eq!(proxy.count("POST", "configmaps"), cases.len(), "kube's own retries are off");
    assert!(!exists(&namespace, "one"));
}

#[tokio::test]
async fn any_other_server_error_is_an_unknown_outcome() {
    let (proxy, cluster, namespace) = namespace_behind_proxy();
    let etcd = r#"{"kind":"Status","status":"Failure","message":"etcdserver: leader changed","code":500}"#;
    for (status, text) in [(500, etcd), (502, "<html>bad gateway</html>"), (504, "")] {
        let name = format!("after-{status}");
        proxy.next("POST", "configmaps", Fault::AnswerAfter(status, None, text));
        let error = cluster.create(draft(&namespace, &name, &[]), Mode::Write).await.unwrap_err();
        assert!(matches!(error.why, Failure::Server { status: found, .. } if found == status), "{error:?}");
        assert_unknown(&error);
        assert!(exists(&namespace, &name));
    }
    proxy.next("POST", "configmaps", Fault::Answer(500, None, etcd));
    let error = cluster.create(draft(&namespace, "before", &[]), Mode::Write).await.unwrap_err();
    assert_unknown(&error);
    assert!(whole(&error).contains("leader changed"), "{}", whole(&error));
    assert!(!exists(&namespace, "before"));
}

#[tokio::test]
async fn status_200_with_an_unexpected_body_leaves_the_outcome_unknown() {
    let (proxy, cluster, namespace) = namespace_behind_proxy();
    for text in
        ["<html>log in here</html>", r#"{"kind":"Secret"}"#, "", r#"{"kind":"ConfigMap","metadata":{}}"#]
    {
        proxy.next("POST", "configmaps", Fault::Answer(200, None, text));
        let error = cluster.create(draft(&namespace, "one", &[]), Mode::Write).await.unwrap_err();
        assert!(matches!(error.why, Failure::UnexpectedResponse { .. }), "{error:?}");
        assert_unknown(&error);
        proxy.next("GET", "configmaps", Fault::Answer(200, None, text));
        let error = cluster.list(&namespace).await.unwrap_err();
        assert!(matches!(error.why, Failure::UnexpectedResponse { .. }) && !error.is_unknown(), "{error:?}");
    }
}

#[tokio::test]
async fn a_list_fails_if_a_page_is_missing_and_starts_again_if_its_continue_token_expired() {
    let (proxy, cluster, namespace) = namespace_behind_proxy();
    let all = (0..600).map(|n| cluster.create(draft(&namespace, &format!("m{n}"), &[]), Mode::Write));
    futures_util::future::try_join_all(all).await.unwrap();
    proxy.next("GET", "continue=", Fault::CutAfter);
    assert!(cluster.list(&namespace).await.unwrap_err().is_transient());
    // The continue token has expired: the list starts again.
    let gone = r#"{"kind":"Status","status":"Failure","reason":"Expired","code":410}"#;
    let before = proxy.count("GET", "limit=");
    proxy.next("GET", "continue=", Fault::Answer(410, None, gone));
    let found = cluster.list(&namespace).await.unwrap();
    assert!(found.len() >= 600, "{}", found.len());
    assert_eq!(proxy.count("GET", "limit=") - before, 4, "two pages, twice");
    // But not without end.
    proxy.plan("GET", "continue=", 0, 100, Fault::Answer(410, None, gone));
    let error = cluster.list(&namespace).await.unwrap_err();
    assert!(matches!(error.why, Failure::Expired) && error.is_transient(), "{error:?}");
}

#[tokio::test]
async fn a_list_that_begins_again_and_again_fails_and_what_was_not_asked_for_is_dropped() {
    let (proxy, cluster, namespace) = namespace_behind_proxy();
    let page = r#"{"kind":"PartialObjectMetadataList","metadata":{"continue":"again"},"items":[]}"#;
    proxy.plan("GET", "configmaps", 0, 100, Fault::Answer(200, None, page));
    let error = cluster.list(&namespace).await.unwrap_err();
    assert!(matches!(error.why, Failure::EndlessList) && !error.is_transient(), "{error:?}");
    assert_eq!(proxy.count("GET", "limit="), 2, "the second page has the token that it was asked for by");
    proxy.heal();
    let two = r#"{"kind":"PartialObjectMetadataList","metadata":{},"items":[
        {"kind":"PartialObjectMetadata","metadata":{"namespace":"ci","name":"one","uid":"1"}},
        {"kind":"PartialObjectMetadata","metadata":{"namespace":"ci","name":"other","uid":"2"}}]}"#;
    proxy.next("GET", "configmaps", Fault::Answer(200, None, two));
    let found = cluster.list_everywhere("one").await.unwrap();
    assert_eq!(found.iter().map(|meta| meta.name.as_str()).collect::<Vec<_>>(), ["one"]);
}

#[tokio::test]
async fn no_more_requests_are_in_flight_than_allowed() {
    let (proxy, _, namespace) = namespace_behind_proxy();
    let options = Options { concurrency: 2, timeout: Duration::from_secs(120), ..Options::default() };
    let cluster = client_with(proxy.access("admin"), options);
    proxy.plan("GET", "configmaps/held", 0, 2, Fault::HoldBefore);
    let ask = |name: &'static str| {
        let (cluster, namespace) = (cluster.clone(), namespace.clone());
        tokio::spawn(async move { cluster.head(&namespace, name).await })
    };
    let mut asked = vec![ask("held-1")];
    proxy.held().await;
    asked.push(ask("held-2"));
    proxy.held().await;
    asked.extend([ask("third"), ask("fourth")]);
    // A request of another client gets through. By then the third request would have, too, if it had been sent.
    client(proxy.access("admin")).head(&namespace, "other").await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(proxy.count("GET", "third") + proxy.count("GET", "fourth"), 0, "{:?}", proxy.seen());
    proxy.release();
    for task in asked {
        assert_eq!(task.await.unwrap().unwrap(), None);
    }
    assert_eq!(proxy.count("GET", "third") + proxy.count("GET", "fourth"), 2);
}

#[tokio::test]
async fn a_write_to_an_unreachable_server_has_no_effect() {
    let (address, _held) = crate::common::refusing();
    let mut access = Kubernetes::shared().access("admin");
    access.server = format!("https://{address}");
    let error = client(access).create(draft("default", "one", &[]), Mode::Write).await.unwrap_err();
    assert!(matches!(error.why, Failure::Unreachable { .. }), "{error:?}");
    assert!(error.is_transient() && !error.is_unknown(), "{error:?}");
    assert!(whole(&error).contains(&address.to_string()), "{}", whole(&error));

    // A server that does not even refuse the connection. Connecting may take half of the deadline, so that the error is
    // `Unreachable`; on a busy machine the deadline may end first.
    let (address, _full) = crate::common::swallowing();
    let mut access = Kubernetes::shared().access("admin");
    access.server = format!("https://{address}");
    let cluster = client_with(access, Options { timeout: Duration::from_secs(2), ..Options::default() });
    let error = cluster.create(draft("default", "one", &[]), Mode::Write).await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    assert!(matches!(error.why, Failure::Unreachable { .. } | Failure::Timeout { .. }), "{error:?}");
}

#[tokio::test]
async fn a_server_certificate_of_another_authority_is_refused() {
    let kubernetes = Kubernetes::shared();
    let key = rcgen::KeyPair::generate().unwrap();
    let other = rcgen::CertificateParams::new(vec!["other".to_owned()]).unwrap().self_signed(&key).unwrap();
    let mut access = kubernetes.access("s3cret");
    access.ca = Some(other.pem());
    let error = client(access).list("default").await.unwrap_err();
    assert!(matches!(error.why, Failure::Unreachable { transient: false, .. }), "{error:?}");
    assert!(!error.is_transient());
    assert!(
        whole(&error).contains("TLS") && error.hints()[0].contains("certificate-authority-data"),
        "{}",
        whole(&error)
    );
}

#[tokio::test]
async fn the_client_works_again_after_the_server_restarted() {
    // A server of its own, as other tests use the shared one meanwhile.
    let kubernetes = Kubernetes::start(&[]);
    let namespace = kubernetes.namespace("restart");
    let cluster = client(kubernetes.access("admin"));
    let read = cluster.create(draft(&namespace, "one", &[]), Mode::Write).await.unwrap();
    kubernetes.kill();
    let error =
        cluster.replace(&read, draft(&namespace, "one", &[("a", "1")]), Mode::Write).await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    kubernetes.resume();
    // The same client works again, and the metadata that it read is still current.
    assert_eq!(cluster.head(&namespace, "one").await.unwrap(), Some(read.clone()));
    cluster.replace(&read, draft(&namespace, "one", &[("a", "1")]), Mode::Write).await.unwrap();
    let updates =
        kubernetes.requests(&namespace).into_iter().filter(|request| request.verb == "update").count();
    assert_eq!(updates, 1);
}
