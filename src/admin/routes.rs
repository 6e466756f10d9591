//! The routes: from the newest status to an answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State as Extract};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use prometheus_client::encoding::text::{encode_eof, encode_registry};

use super::hook::{Gate, Verdict};
use super::{Front, Options, State, page};
use crate::clock;
use crate::phase::{Status, Trigger};

const TEXT: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";
/// What prometheus-client writes; Prometheus refuses the `# EOF` line under the older `text/plain; version=0.0.4`.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

struct Shared {
    state: State,
    gate: Gate,
    was_ready: AtomicBool,
}

pub(super) fn router(state: State, options: &Options) -> Router {
    let gate = {
        let mut registry = state.registry.lock().unwrap_or_else(PoisonError::into_inner);
        Gate::new(options.webhook_secrets.clone(), &mut registry)
    };
    let shared = Arc::new(Shared { state, gate, was_ready: AtomicBool::new(false) });
    let router = Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/healthz", get(readyz))
        .route("/status", get(status))
        .route("/status.html", get(status_page))
        .route("/sync", post(sync));
    let router = match options.pprof {
        true => router.route("/debug/pprof/", get(pprof)).route("/debug/pprof/{*profile}", get(pprof)),
        false => router,
    };
    let not_found = async || answer(StatusCode::NOT_FOUND, TEXT, "not found\n");
    let router = match options.front {
        Front::Treeswap => router.route("/metrics", get(metrics)).route("/", get(front)).fallback(not_found),
        Front::GitSync { metrics: true } => router.route("/metrics", get(metrics)).fallback(front),
        Front::GitSync { metrics: false } => router.fallback(front),
    };
    router.with_state(shared)
}

impl Shared {
    fn status(&self) -> Status {
        self.state.status.borrow().clone()
    }

    /// The latch: once seen open it never closes, whatever a later status says.
    fn ready(&self, status: &Status) -> bool {
        if status.ready {
            self.was_ready.store(true, Ordering::Relaxed);
        }
        self.was_ready.load(Ordering::Relaxed)
    }
}

async fn livez(Extract(shared): Extract<Arc<Shared>>) -> Response {
    if shared.status().is_alive(&clock::now()) {
        answer(StatusCode::OK, TEXT, "alive\n")
    } else {
        answer(
            StatusCode::SERVICE_UNAVAILABLE,
            TEXT,
            "the sync loop hangs: it has not been heard of as promised\n",
        )
    }
}

async fn readyz(Extract(shared): Extract<Arc<Shared>>, uri: Uri) -> Response {
    let status = shared.status();
    let ready = shared.ready(&status);
    let verbose = uri
        .query()
        .is_some_and(|query| query.split('&').any(|pair| pair.split('=').next() == Some("verbose")));
    let body = match (verbose, ready) {
        (true, _) => checks(&status, ready),
        (false, true) => "ready\n".to_owned(),
        (false, false) => format!("not ready: {}\n", missing(&status)),
    };
    answer(readiness(ready), TEXT, body)
}

/// Why nothing serves yet.
fn missing(status: &Status) -> &str {
    status.starting.as_deref().unwrap_or("no generation was published yet")
}

fn readiness(ready: bool) -> StatusCode {
    if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

/// One line a check, in the manner of kube-apiserver. Only the generation decides; the others inform.
fn checks(status: &Status, ready: bool) -> String {
    let line = |good: bool, name: &str, bad: &str| match good {
        true => format!("[+]{name} ok\n"),
        false => format!("[-]{name} failed: {bad}\n"),
    };
    let remote = match status.consecutive_failures {
        0 => "[+]remote ok (informs only)\n".to_owned(),
        n => format!("[-]remote failed {n} times in a row (informs only)\n"),
    };
    let alive = status.is_alive(&clock::now());
    let verdict = if ready { "readyz check passed\n" } else { "readyz check failed\n" };
    line(ready, "generation", missing(status))
        + &line(alive, "loop", "it hangs (informs only; see /livez)")
        + &remote
        + verdict
}

/// For git-sync's users, who probe `/`: 503 before the first sync, then 200 and nothing.
async fn front(Extract(shared): Extract<Arc<Shared>>, headers: HeaderMap) -> Response {
    let status = shared.status();
    let ready = shared.ready(&status);
    match (wants_html(&headers), ready) {
        (true, _) => answer(readiness(ready), HTML, page::render(&status, &clock::now())),
        (false, true) => answer(StatusCode::OK, TEXT, ""),
        (false, false) => answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{}\n", missing(&status))),
    }
}

/// For whoever checks that it is there: the profiles themselves are the Go runtime's.
async fn pprof() -> Response {
    let text = "treeswap is no Go program and has no profiles; /metrics and /status say what it does\n";
    answer(StatusCode::OK, TEXT, text)
}

async fn status(Extract(shared): Extract<Arc<Shared>>, headers: HeaderMap) -> Response {
    let status = shared.status();
    if wants_html(&headers) {
        return answer(StatusCode::OK, HTML, page::render(&status, &clock::now()));
    }
    match serde_json::to_string_pretty(&status) {
        Ok(json) => answer(StatusCode::OK, JSON, json + "\n"),
        Err(error) => answer(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
    }
}

async fn status_page(Extract(shared): Extract<Arc<Shared>>) -> Response {
    answer(StatusCode::OK, HTML, page::render(&shared.status(), &clock::now()))
}

/// Browsers name `text/html`; curl, probes and scripts don't.
fn wants_html(headers: &HeaderMap) -> bool {
    headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .is_some_and(|accept| accept.split(',').any(|kind| kind.trim_start().starts_with("text/html")))
}

async fn metrics(Extract(shared): Extract<Arc<Shared>>) -> Response {
    let mut text = String::new();
    let registries = std::iter::once(&shared.state.registry).chain(&shared.state.more);
    let mut encoded = registries
        .map(|registry| encode_registry(&mut text, &registry.lock().unwrap_or_else(PoisonError::into_inner)));
    let encoded = encoded.try_for_each(|encoded| encoded);
    match encoded.and_then(|()| encode_eof(&mut text)) {
        Ok(()) => answer(StatusCode::OK, OPENMETRICS, text),
        Err(error) => answer(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
    }
}

async fn sync(Extract(shared): Extract<Arc<Shared>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let verdict = shared.gate.judge(&head.headers, body).await;
    if verdict == Verdict::Accepted {
        (shared.state.trigger)(Trigger::Webhook);
    }
    let (code, text) = verdict.answer();
    let mut response = answer(code, TEXT, text);
    if matches!(verdict, Verdict::Limited | Verdict::NoSecret) {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// Every answer: never cached, never sniffed, and a page that may load and run nothing.
fn answer(code: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
        ),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (code, headers, body.into()).into_response()
}
