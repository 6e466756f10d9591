use std::path::Path;

use serde_json::Value;

use super::*;
use crate::cluster::Cluster;

const JSON: &str = "application/json";

#[test]
fn an_address_has_its_port_and_no_credentials() {
    let shown = |url: &str| address(&url.parse().unwrap());
    assert_eq!(shown("https://api.example.com/"), "https://api.example.com:443");
    assert_eq!(shown("http://user:s3cret@10.0.0.1/k8s/x"), "http://10.0.0.1:80");
    assert_eq!(shown("https://[::1]:6443"), "https://[::1]:6443");
}

/// A server that answers 401 after three quarters of the time limit, and nothing at all to what is sent after that.
/// Returns its URL and the values of `timeout` that it is sent.
async fn slow_then_silent(limit: Duration) -> (String, Arc<std::sync::Mutex<Vec<Duration>>>) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let timeouts = Arc::<std::sync::Mutex<Vec<_>>>::default();
    let seen = Arc::clone(&timeouts);
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 4096];
            let length = stream.read(&mut head).await.unwrap();
            let head = String::from_utf8_lossy(&head[..length]).into_owned();
            let after = head.split_once("timeout=").unwrap().1;
            let milliseconds = after.split_once("ms").unwrap().0.parse().unwrap();
            seen.lock().unwrap().push(Duration::from_millis(milliseconds));
            if held.is_empty() {
                tokio::time::sleep(limit * 3 / 4).await;
                let answer = "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
            held.push(stream);
        }
    });
    (url, timeouts)
}

/// A connection to a server with a user's credentials.
fn connection(dir: &Path, server: &str, user: &Value, limit: Duration) -> Connection {
    let path = dir.join("config");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{ "name": "x", "cluster": { "server": server } }],
        "users": [{ "name": "x", "user": user }],
        "contexts": [{ "name": "x", "context": { "cluster": "x", "user": "x" } }],
    });
    std::fs::write(&path, config.to_string()).unwrap();
    let options = Options { timeout: limit, ..Options::default() };
    Connection::new("x", Origin::Context { path, name: "x".into() }, &options)
}

fn request() -> Request {
    Request::new(Verb::Get, Kind::ConfigMap, "default", "x")
}

#[tokio::test]
async fn a_token_file_that_hangs_is_named_to_all_requests_that_wait_for_it() {
    let dir = tempfile::tempdir().unwrap();
    // Nothing ever writes into it, so that a reader hangs as on a file system that is gone.
    let fifo = dir.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let user = json!({ "tokenFile": fifo });
    let limit = Duration::from_secs(4);
    let connection = connection(dir.path(), "http://127.0.0.1:1", &user, limit);
    let request = request();
    // More than fit into the deadline one after the other.
    let deadline = Instant::now() + limit;
    let sent = (0..8).map(|_| connection.send(&request, JSON, deadline));
    for sent in futures_util::future::join_all(sent).await {
        match sent.err() {
            Some(Failure::Config(ConfigError::Read { path, .. })) => assert_eq!(path, fifo),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn all_steps_of_a_request_share_one_deadline() {
    let limit = Duration::from_secs(4);
    let (url, timeouts) = slow_then_silent(limit).await;
    let dir = tempfile::tempdir().unwrap();
    let connection = connection(dir.path(), &url, &user(), limit);
    let request = request();
    let began = Instant::now();
    let deadline = began + limit;
    let (first, _) = connection.send(&request, JSON, deadline).await.unwrap();
    assert_eq!(first.status, http::StatusCode::UNAUTHORIZED);
    let second = connection.send(&request, JSON, deadline).await;
    assert!(matches!(second, Err(Failure::Timeout { after }) if after == limit));
    // With the whole limit for each step it takes at least 1.75 of it.
    assert!(began.elapsed() < limit * 3 / 2, "{:?}", began.elapsed());
    let timeouts = timeouts.lock().unwrap().clone();
    assert_eq!(timeouts.len(), 2);
    assert!(timeouts[0] <= limit && timeouts[1] <= limit / 4, "{timeouts:?}");
}

/// A server that gives an answer to each request, by its first line. Returns its URL.
async fn answering(answer: impl Fn(&str) -> (u16, String) + Send + 'static) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 4096];
            let length = stream.read(&mut head).await.unwrap();
            let line = String::from_utf8_lossy(&head[..length]).lines().next().unwrap_or_default().to_owned();
            let (status, body) = answer(&line);
            let length = body.len();
            let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {length}\r\nconnection: close");
            // The client may have read enough of it before its end.
            let _ = stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await;
        }
    });
    url
}

const LIMIT: Duration = Duration::from_secs(60);

fn user() -> Value {
    json!({ "token": "t0ken-of-the-test" })
}

fn cluster(dir: &Path, server: &str) -> Cluster {
    Cluster { inner: Arc::new(connection(dir, server, &user(), LIMIT)) }
}

#[test]
fn what_a_server_named_at_any_length_goes_into_no_request() {
    let with_token = |length: usize| {
        let mut request = Request::new(Verb::List, Kind::ConfigMap, "ci", "");
        request.query("continue", &"x".repeat(length));
        request.to_http(JSON, LIMIT)
    };
    assert!(with_token(4_000).is_ok());
    for length in [URI_MAX, 65_000, 70_000, 1 << 20] {
        assert!(matches!(with_token(length).err(), Some(Failure::UnexpectedResponse { .. })), "{length}");
        let long = "x".repeat(length);
        for request in [
            Request::new(Verb::Get, Kind::ConfigMap, &long, "x"),
            Request::new(Verb::Delete, Kind::Lease, "ci", &long),
        ] {
            assert!(request.to_http(JSON, LIMIT).is_err(), "{length}");
        }
    }
}

#[tokio::test]
async fn a_token_of_any_length_ends_a_list_and_not_the_process() {
    let dir = tempfile::tempdir().unwrap();
    for length in [65_400, 70_000] {
        let metadata = json!({ "continue": "x".repeat(length) });
        let page = json!({ "kind": "PartialObjectMetadataList", "metadata": metadata, "items": [] });
        let url = answering(move |_| (200, page.to_string())).await;
        // Only together with this path the shorter one is too long for kube.
        let server = format!("{url}/k8s/{}", "y".repeat(300));
        let error = cluster(dir.path(), &server).list("ci").await.unwrap_err();
        assert!(matches!(error.why, Failure::UnexpectedResponse { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn a_response_is_read_as_far_as_what_was_asked_for_can_be_long() {
    let dir = tempfile::tempdir().unwrap();
    // The bytes that are read, or none where it is a failure.
    for (kind, status, length, expected) in [
        (Kind::ConfigMap, 200, RESPONSE_MAX, Some(RESPONSE_MAX)),
        (Kind::ConfigMap, 200, RESPONSE_MAX + 1, None),
        (Kind::Lease, 200, LEASE_MAX, Some(LEASE_MAX)),
        (Kind::Lease, 200, LEASE_MAX + 1, None),
        (Kind::ConfigMap, 400, ERROR_MAX, Some(ERROR_MAX)),
        (Kind::ConfigMap, 400, ERROR_MAX + 1, Some(0)),
        (Kind::Lease, 401, ERROR_MAX + 1, Some(0)),
    ] {
        let url = answering(move |_| (status, "x".repeat(length))).await;
        let connection = connection(dir.path(), &url, &user(), LIMIT);
        let request = Request::new(Verb::Get, kind, "ci", "x");
        match connection.send(&request, JSON, Instant::now() + LIMIT).await {
            Ok((answer, _)) => {
                assert_eq!((answer.status.as_u16(), Some(answer.body.len())), (status, expected));
            }
            Err(Failure::LongAnswer { .. }) => assert_eq!(expected, None, "{kind:?} {length}"),
            Err(failure) => panic!("{kind:?} {length}: {failure:?}"),
        }
    }
}

#[tokio::test]
async fn a_cluster_has_one_large_response_in_memory_at_a_time() {
    let url = answering(|_| (200, "x".repeat(3 * LARGE))).await;
    let dir = tempfile::tempdir().unwrap();
    let connection = connection(dir.path(), &url, &user(), LIMIT);
    let request = request();
    let (first, permit) = connection.send(&request, JSON, Instant::now() + LIMIT).await.unwrap();
    assert_eq!(first.body.len(), 3 * LARGE);
    let soon = Instant::now() + Duration::from_secs(1);
    let second = connection.send(&request, JSON, soon).await.err();
    assert!(matches!(second, Some(Failure::Timeout { .. })), "{second:?}");
    drop(permit);
    assert!(connection.send(&request, JSON, Instant::now() + LIMIT).await.is_ok());
}

/// The number that a request's first line has as this parameter; 0 if it is not there.
fn parameter(line: &str, name: &str) -> usize {
    let found = line.split(['?', '&', ' ']).find_map(|part| part.strip_prefix(name));
    found.map_or(0, |number| number.parse().unwrap())
}

#[tokio::test]
async fn a_list_keeps_no_long_annotations_which_together_may_be_more_than_it_keeps() {
    let url = answering(|line| {
        let (limit, from) = (parameter(line, "limit="), parameter(line, "continue="));
        let end = (from + limit).min(100);
        let item = |number: usize| {
            let annotations = json!({ "long": "x".repeat(200 << 10), "short": "x" });
            let name = number.to_string();
            json!({ "metadata": { "namespace": "ci", "name": name, "uid": "u", "annotations": annotations } })
        };
        let items: Vec<Value> = (from..end).map(item).collect();
        let next = if end < 100 { end.to_string() } else { String::new() };
        let page =
            json!({ "kind": "PartialObjectMetadataList", "metadata": { "continue": next }, "items": items });
        (200, page.to_string())
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let found = cluster(dir.path(), &url).list("ci").await.unwrap();
    assert_eq!(found.len(), 100);
    assert!(found.values().all(|meta| meta.annotations.keys().eq(["short"])));
}

#[tokio::test]
async fn without_the_right_to_list_no_long_annotations_are_kept_either() {
    let url = answering(|line| {
        let path = line.split(['?', ' ']).nth(1).unwrap();
        let Some((_, name)) = path.split_once("configmaps/") else {
            let message = "configmaps is forbidden: User \"a\" cannot list resource \"configmaps\"";
            return (403, json!({ "kind": "Status", "reason": "Forbidden", "message": message }).to_string());
        };
        let annotations = json!({ "long": "x".repeat(200 << 10), "short": "x" });
        let metadata = json!({ "namespace": "ci", "name": name, "uid": "u", "annotations": annotations });
        (200, json!({ "kind": "PartialObjectMetadata", "metadata": metadata }).to_string())
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let found = cluster(dir.path(), &url).survey("ci", &names).await.unwrap();
    assert_eq!(found.len(), 100);
    assert!(found.values().all(|meta| meta.annotations.keys().eq(["short"])));
}

#[tokio::test]
async fn a_page_of_a_list_with_too_much_metadata_is_asked_for_in_parts() {
    let url = answering(|line| {
        let padding = if parameter(line, "limit=") == 1 { 0 } else { RESPONSE_MAX };
        let kind = "PartialObjectMetadataList";
        (200, json!({ "kind": kind, "metadata": {}, "padding": " ".repeat(padding) }).to_string())
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    assert!(cluster(dir.path(), &url).list("ci").await.unwrap().is_empty());

    // 20 objects with much metadata, and 4,000 others.
    let url = answering(|line| {
        let (limit, from) = (parameter(line, "limit="), parameter(line, "continue="));
        let padding = if from < 20 && limit > 5 { RESPONSE_MAX } else { 0 };
        let next = Some(from + limit).filter(|next| *next < 4_020).map(|next| next.to_string());
        let metadata = json!({ "continue": next.unwrap_or_default() });
        let page = json!({ "kind": "PartialObjectMetadataList", "metadata": metadata });
        (200, format!("{page}{}", " ".repeat(padding)))
    })
    .await;
    assert!(cluster(dir.path(), &url).list("ci").await.unwrap().is_empty());

    let url = answering(|_| (200, " ".repeat(RESPONSE_MAX + 1))).await;
    let error = cluster(dir.path(), &url).list("ci").await.unwrap_err();
    assert!(matches!(error.why, Failure::LongAnswer { most: RESPONSE_MAX }), "{error:?}");
}
