//! What a network and a busy server do to a request, before it took effect and after: whoever asks learns which of the
//! two it may have been, and reading tells.

use std::time::Duration;

use treeswap::cluster::{Cluster, Error, Failure, Mode, Options};

use crate::kubernetes::Kubernetes;
use crate::proxy::{Fault, Proxy};
use crate::{client, client_with, draft, whole};

/// A namespace of its own behind a proxy of its own.
fn stage() -> (Proxy, Cluster, String) {
    let kubernetes = Kubernetes::shared();
    let proxy = Proxy::start(kubernetes);
    let cluster = client(proxy.access("admin"));
    (proxy, cluster, kubernetes.namespace("faults"))
}

/// Whether the ConfigMap is there, by the server's own word.
fn is_there(namespace: &str, name: &str) -> bool {
    !Kubernetes::shared().configmap(namespace, name).is_null()
}

#[track_caller]
fn is_unknown(error: &Error) {
    assert!(error.is_unknown() && error.is_transient(), "{error:?}");
}

#[tokio::test]
async fn a_cut_is_an_unknown_outcome_before_the_effect_and_after_it() {
    let (proxy, cluster, namespace) = stage();
    for (fault, took_effect) in [(Fault::CutBefore, false), (Fault::CutAfter, true), (Fault::CutAnswer, true)]
    {
        let name = format!("{fault:?}").to_lowercase();
        proxy.next("POST", "configmaps", fault);
        let error = cluster.create(draft(&namespace, &name, &[]), Mode::Write).await.unwrap_err();
        assert!(matches!(error.why, Failure::ConnectionLost { .. }), "{error:?}");
        is_unknown(&error);
        assert_eq!(is_there(&namespace, &name), took_effect, "{name}");
        // Nothing was sent twice, and reading decides.
        assert_eq!(cluster.head(&namespace, &name).await.unwrap().is_some(), took_effect);
    }
    assert_eq!(proxy.count("POST", "configmaps"), 3);

    // Of a read there is nothing to know.
    proxy.next("GET", "configmaps", Fault::CutAnswer);
    let error = cluster.list(&namespace).await.unwrap_err();
    assert!(error.is_transient() && !error.is_unknown(), "{error:?}");
}

#[tokio::test]
async fn a_deadline_is_an_unknown_outcome_before_the_effect_and_after_it() {
    let (proxy, _, namespace) = stage();
    let limit = Duration::from_secs(4);
    let cluster = client_with(proxy.access("admin"), Options { timeout: limit, ..Options::default() });
    let read =
        client(proxy.access("admin")).create(draft(&namespace, "one", &[]), Mode::Write).await.unwrap();
    for (fault, took_effect) in [(Fault::HoldAfter, true), (Fault::HoldBefore, false)] {
        let name = format!("{fault:?}").to_lowercase();
        proxy.next("POST", "configmaps", fault);
        let error = cluster.create(draft(&namespace, &name, &[]), Mode::Write).await.unwrap_err();
        assert!(matches!(error.why, Failure::Timeout { after } if after == limit), "{error:?}");
        is_unknown(&error);
        proxy.held().await; // the proxy is as busy as we are
        assert!(whole(&error).contains("no answer within 4s"), "{}", whole(&error));
        assert_eq!(is_there(&namespace, &name), took_effect, "{name}");
    }
    // What was given up and arrives late still has its precondition: it can't undo what came after it.
    proxy.next("PUT", "configmaps", Fault::HoldBefore);
    let error =
        cluster.replace(&read, draft(&namespace, "one", &[("old", "")]), Mode::Write).await.unwrap_err();
    is_unknown(&error);
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
    let (proxy, cluster, namespace) = stage();
    cluster.create(draft(&namespace, "one", &[]), Mode::Write).await.unwrap();
    let sent = &proxy.seen()[0].uri;
    assert!(sent.contains("fieldManager=treeswap"), "{sent}");
    // What is left of a minute when it is sent.
    let timeout = sent.split(['?', '&']).find_map(|part| part.strip_prefix("timeout=")?.strip_suffix("ms"));
    let timeout: u32 = timeout.unwrap_or_else(|| panic!("{sent}")).parse().unwrap();
    assert!((30_000..=60_000).contains(&timeout), "{sent}");
}

#[tokio::test]
async fn a_busy_server_names_the_pause_up_to_the_cap_and_nothing_is_sent_again_before() {
    let (proxy, _, namespace) = stage();
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
    assert_eq!(proxy.count("POST", "configmaps"), cases.len(), "the client's own retries are off");
    assert!(!is_there(&namespace, "one"));
}

#[tokio::test]
async fn any_other_server_error_is_an_unknown_outcome() {
    let (proxy, cluster, namespace) = stage();
    let etcd = r#"{"kind":"Status","status":"Failure","message":"etcdserver: leader changed","code":500}"#;
    for (status, text) in [(500, etcd), (502, "<html>bad gateway</html>"), (504, "")] {
        let name = format!("after-{status}");
        proxy.next("POST", "configmaps", Fault::AnswerAfter(status, None, text));
        let error = cluster.create(draft(&namespace, &name, &[]), Mode::Write).await.unwrap_err();
        assert!(matches!(error.why, Failure::Server { status: found, .. } if found == status), "{error:?}");
        is_unknown(&error);
        assert!(is_there(&namespace, &name));
    }
    proxy.next("POST", "configmaps", Fault::Answer(500, None, etcd));
    let error = cluster.create(draft(&namespace, "before", &[]), Mode::Write).await.unwrap_err();
    is_unknown(&error);
    assert!(whole(&error).contains("leader changed"), "{}", whole(&error));
    assert!(!is_there(&namespace, "before"));
}

#[tokio::test]
async fn a_success_that_is_none_is_an_unknown_outcome() {
    let (proxy, cluster, namespace) = stage();
    for text in
        ["<html>log in here</html>", r#"{"kind":"Secret"}"#, "", r#"{"kind":"ConfigMap","metadata":{}}"#]
    {
        proxy.next("POST", "configmaps", Fault::Answer(200, None, text));
        let error = cluster.create(draft(&namespace, "one", &[]), Mode::Write).await.unwrap_err();
        assert!(matches!(error.why, Failure::UnexpectedResponse { .. }), "{error:?}");
        is_unknown(&error);
        proxy.next("GET", "configmaps", Fault::Answer(200, None, text));
        let error = cluster.list(&namespace).await.unwrap_err();
        assert!(matches!(error.why, Failure::UnexpectedResponse { .. }) && !error.is_unknown(), "{error:?}");
    }
}

#[tokio::test]
async fn a_list_of_which_a_page_is_missing_is_no_list() {
    let (proxy, cluster, namespace) = stage();
    let all = (0..600).map(|n| cluster.create(draft(&namespace, &format!("m{n}"), &[]), Mode::Write));
    futures_util::future::try_join_all(all).await.unwrap();
    proxy.next("GET", "continue=", Fault::CutAfter);
    assert!(cluster.list(&namespace).await.unwrap_err().is_transient());
    // What the server says when it has forgotten where a list began: it is begun anew.
    let gone = r#"{"kind":"Status","status":"Failure","reason":"Expired","code":410}"#;
    let before = proxy.count("GET", "limit=");
    proxy.next("GET", "continue=", Fault::Answer(410, None, gone));
    let found = cluster.list(&namespace).await.unwrap();
    assert!(found.len() >= 600, "{}", found.len());
    assert_eq!(proxy.count("GET", "limit=") - before, 4, "two pages, twice");
    // But not for ever.
    proxy.plan("GET", "continue=", 0, 100, Fault::Answer(410, None, gone));
    let error = cluster.list(&namespace).await.unwrap_err();
    assert!(matches!(error.why, Failure::Expired) && error.is_transient(), "{error:?}");
}

#[tokio::test]
async fn no_more_requests_are_in_flight_than_allowed() {
    let (proxy, _, namespace) = stage();
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
    // Another client's request goes through all the while, after which the third had its chance, too.
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
async fn a_server_that_is_not_there_got_nothing() {
    let (address, _held) = crate::common::refusing();
    let mut access = Kubernetes::shared().access("admin");
    access.server = format!("https://{address}");
    let error = client(access).create(draft("default", "one", &[]), Mode::Write).await.unwrap_err();
    assert!(matches!(error.why, Failure::Unreachable { .. }), "{error:?}");
    assert!(error.is_transient() && !error.is_unknown(), "{error:?}");
    assert!(whole(&error).contains(&address.to_string()), "{}", whole(&error));

    // One that does not even refuse is told from a slow one.
    let (address, _full) = crate::common::swallowing();
    let mut access = Kubernetes::shared().access("admin");
    access.server = format!("https://{address}");
    let cluster = client_with(access, Options { timeout: Duration::from_secs(2), ..Options::default() });
    let error = cluster.create(draft("default", "one", &[]), Mode::Write).await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    assert!(matches!(error.why, Failure::Unreachable { .. } | Failure::Timeout { .. }), "{error:?}");
}

#[tokio::test]
async fn a_server_of_another_authority_gets_no_credentials() {
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
async fn a_server_that_restarts_is_found_again() {
    // One of its own: the others' tests go on meanwhile.
    let kubernetes = Kubernetes::start(&[]);
    let namespace = kubernetes.namespace("restart");
    let cluster = client(kubernetes.access("admin"));
    let read = cluster.create(draft(&namespace, "one", &[]), Mode::Write).await.unwrap();
    kubernetes.kill();
    let error =
        cluster.replace(&read, draft(&namespace, "one", &[("a", "1")]), Mode::Write).await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    kubernetes.resume();
    // The same client, and what it had read still holds.
    assert_eq!(cluster.head(&namespace, "one").await.unwrap(), Some(read.clone()));
    cluster.replace(&read, draft(&namespace, "one", &[("a", "1")]), Mode::Write).await.unwrap();
    assert_eq!(kubernetes.writes(&namespace).len(), 0, "only admin wrote");
    let updates =
        kubernetes.requests(&namespace).into_iter().filter(|request| request.verb == "update").count();
    assert_eq!(updates, 1);
}
