//! The HTTP routes. All but `POST /sync` render the newest status or the metrics.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State as Extract};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use prometheus_client::encoding::text::{encode_eof, encode_registry};

use super::hook::{Gate, WebhookOutcome};
use super::{Fallback, Options, State, page};
use crate::clock;
use crate::fsx;
use crate::human;
use crate::phase::{Status, Trigger};
use crate::secret;

const TEXT: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";
/// The format that prometheus-client writes. Prometheus refuses its `# EOF` line under the older `text/plain;
/// version=0.0.4`.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What all routes share.
struct Shared {
    state: State,
    gate: Gate,
    /// Set once something was published.
    was_ready: AtomicBool,
    max_stale: Option<Duration>,
}

/// Builds the router with the routes that the options enable.
pub(super) fn router(state: State, options: &Options) -> Router {
    let gate = {
        let mut registry = state.registry.lock().unwrap_or_else(PoisonError::into_inner);
        Gate::new(options.webhook_secrets.clone(), &mut registry)
    };
    let was_ready = AtomicBool::new(false);
    let shared = Arc::new(Shared { state, gate, was_ready, max_stale: options.max_stale });
    let router = Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/healthz", get(readyz))
        .route("/status", get(status))
        .route("/status.json", get(status_json))
        .route("/status.html", get(status_page))
        .route("/sync", post(sync));
    let router = if options.pprof {
        router.route("/debug/pprof/", get(pprof)).route("/debug/pprof/{*profile}", get(pprof))
    } else {
        router
    };
    let not_found = async || answer(StatusCode::NOT_FOUND, TEXT, "not found\n");
    let router = match options.fallback {
        Fallback::Treeswap => {
            router.route("/metrics", get(metrics)).route("/", get(front)).fallback(not_found)
        }
        Fallback::GitSync { metrics: true } => router.route("/metrics", get(metrics)).fallback(front),
        Fallback::GitSync { metrics: false } => router.fallback(front),
    };
    router.with_state(shared)
}

impl Shared {
    /// Returns the newest status, with `stale` set if a remote has not answered for longer than allowed.
    fn status(&self) -> Status {
        let status = self.state.status.borrow().clone();
        let max = self.max_stale.filter(|_| status.ready);
        let stale = max.and_then(|max| status.silent_for(max, &clock::now()));
        Status { stale, ..status }
    }

    /// Returns the readiness. Once ready it stays so, unless the published generation is stale.
    fn ready(&self, status: &Status) -> bool {
        if status.ready {
            self.was_ready.store(true, Ordering::Relaxed);
        }
        self.was_ready.load(Ordering::Relaxed) && status.stale.is_none()
    }
}

async fn livez(Extract(shared): Extract<Arc<Shared>>) -> Response {
    if shared.status().is_alive(&clock::now()) {
        answer(StatusCode::OK, TEXT, "alive\n")
    } else {
        answer(
            StatusCode::SERVICE_UNAVAILABLE,
            TEXT,
            "the sync loop hangs: it missed its liveness deadline\n",
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
        (true, _) => checks(&status, ready, shared.max_stale),
        (false, true) => "ready\n".to_owned(),
        (false, false) => format!("not ready: {}\n", not_ready_reason(&status)),
    };
    answer(readiness(ready), TEXT, body)
}

/// Returns why it is not ready: the generation is stale, or none was published yet.
fn not_ready_reason(status: &Status) -> &str {
    status.stale.as_deref().or(status.starting.as_deref()).unwrap_or("no generation was published yet")
}

fn readiness(ready: bool) -> StatusCode {
    if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

/// Lists the checks, a line each, as kube-apiserver does. Only `generation` and, with `max_stale`, `fresh` decide; the
/// others inform.
fn checks(status: &Status, ready: bool, max_stale: Option<Duration>) -> String {
    let line = |good: bool, name: &str, bad: &str| {
        if good { format!("[+]{name} ok\n") } else { format!("[-]{name} failed: {bad}\n") }
    };
    let remote = match status.consecutive_failures {
        0 => "[+]remote ok (informs only)\n".to_owned(),
        1 => "[-]remote failed once (informs only)\n".to_owned(),
        n => format!("[-]remote failed {n} times in a row (informs only)\n"),
    };
    let alive = status.is_alive(&clock::now());
    let decision = if ready { "readyz check passed\n" } else { "readyz check failed\n" };
    let stale = status.stale.as_deref();
    let fresh = max_stale.map(|_| line(stale.is_none(), "fresh", stale.unwrap_or_default()));
    line(ready || status.ready, "generation", not_ready_reason(status))
        + &fresh.unwrap_or_default()
        + &line(alive, "loop", "it hangs (informs only; see /livez)")
        + &remote
        + decision
}

/// `/`, for probes written for git-sync: 503 before the first publication, then 200 with an empty body. A browser gets
/// the page.
async fn front(Extract(shared): Extract<Arc<Shared>>, headers: HeaderMap) -> Response {
    let status = shared.status();
    let ready = shared.ready(&status);
    match (wants_html(&headers), ready) {
        (true, _) => {
            let status = with_holders(status).await;
            varying(answer(readiness(ready), HTML, page::render(&status, &clock::now())))
        }
        (false, true) => answer(StatusCode::OK, TEXT, ""),
        (false, false) => {
            answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{}\n", not_ready_reason(&status)))
        }
    }
}

/// For checks that the route exists. The profiles that git-sync has there are the Go runtime's.
async fn pprof() -> Response {
    let text = "treeswap is not a Go program and has no pprof profiles; see /metrics and /status\n";
    answer(StatusCode::OK, TEXT, text)
}

async fn status(Extract(shared): Extract<Arc<Shared>>, headers: HeaderMap) -> Response {
    varying(if wants_html(&headers) {
        status_page(Extract(shared)).await
    } else {
        status_json(Extract(shared)).await
    })
}

async fn status_json(Extract(shared): Extract<Arc<Shared>>) -> Response {
    match serde_json::to_string_pretty(&with_holders(shared.status()).await) {
        Ok(json) => answer(StatusCode::OK, JSON, json + "\n"),
        Err(error) => answer(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
    }
}

async fn status_page(Extract(shared): Extract<Arc<Shared>>) -> Response {
    answer(StatusCode::OK, HTML, page::render(&with_holders(shared.status()).await, &clock::now()))
}

/// Adds the processes that hold pins to the status, if any generation is pinned.
async fn with_holders(mut status: Status) -> Status {
    if !status.retired.iter().any(|generation| generation.pinned) {
        return status;
    }
    let look = move || {
        let root = PathBuf::from(&status.root);
        for generation in status.retired.iter_mut().filter(|generation| generation.pinned) {
            if let Ok(dir) = fs_err::metadata(root.join(generation.name.relative_path())) {
                generation.holders = fsx::lock_holders(dir.dev(), dir.ino());
            }
        }
        status
    };
    match tokio::task::spawn_blocking(look).await {
        Ok(status) => status,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic), // an empty status would look like that of an empty root
            Err(_) => std::future::pending().await, // only a runtime that shuts down refuses to start it
        },
    }
}

/// Marks a response as dependent on `Accept`, for caches.
fn varying(mut response: Response) -> Response {
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
    response
}

/// Returns true if `Accept` prefers HTML to JSON, by quality, then by specificity (RFC 9110, 12.5.1). Browsers name
/// `text/html`. curl accepts everything and probes and scripts send no `Accept`: they get JSON.
fn wants_html(headers: &HeaderMap) -> bool {
    let accept = headers.get_all(header::ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
    let ranges: Vec<Range<'_>> = accept.flat_map(|accept| accept.split(',')).map(Range::read).collect();
    let html = weight(&ranges, "text", "html");
    html.0 > 0.0 && html > weight(&ranges, "application", "json")
}

/// One media range of an `Accept`.
struct Range<'a> {
    kind: &'a str,
    subkind: &'a str,
    quality: f32,
}

impl<'a> Range<'a> {
    fn read(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let (kind, subkind) = parts.next().and_then(|range| range.split_once('/')).unwrap_or_default();
        let quality = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
        let quality = quality.map_or(1.0, |quality| quality.parse().unwrap_or(0.0));
        Self { kind, subkind, quality }
    }
}

/// Returns the quality of the most specific range that matches, and its specificity.
fn weight(ranges: &[Range<'_>], kind: &str, subkind: &str) -> (f32, u8) {
    let exact = |range: &Range<'_>| match () {
        () if range.kind.eq_ignore_ascii_case(kind) && range.subkind.eq_ignore_ascii_case(subkind) => Some(3),
        () if range.kind.eq_ignore_ascii_case(kind) && range.subkind == "*" => Some(2),
        () if range.kind == "*" && range.subkind == "*" => Some(1),
        () => None,
    };
    let fitting = ranges.iter().filter_map(|range| Some((exact(range)?, range.quality)));
    fitting.max_by_key(|(exact, _)| *exact).map_or((0.0, 0), |(exact, quality)| (quality, exact))
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
    let sources = named(head.uri.query().unwrap_or_default());
    let unknown = sources.iter().find_map(|name| unknown(&shared.status(), name));
    let decision = shared.gate.check_request(&head.headers, body, unknown.as_deref()).await;
    if decision == WebhookOutcome::Accepted {
        (shared.state.trigger)(Trigger::Webhook, &sources);
    }
    let (code, text) = decision.answer();
    let mut response = match unknown.filter(|_| decision == WebhookOutcome::Unknown) {
        Some(unknown) => answer(code, TEXT, unknown + "\n"),
        None => answer(code, TEXT, text),
    };
    if matches!(decision, WebhookOutcome::Limited | WebhookOutcome::NoSecret) {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// Returns the sources that a request names: `source=NAME`, once for each.
fn named(query: &str) -> Vec<String> {
    let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.filter(|(key, _)| *key == "source").map(|(_, name)| name.to_owned()).collect()
}

/// Returns why there is no source of that name; `None` if there is one. Before the end of the first attempt the sources
/// are not known, so every name is accepted; that attempt asks all of them.
fn unknown(status: &Status, name: &str) -> Option<String> {
    if status.last_attempt.is_none() || status.sources.iter().any(|source| source.name == name) {
        return None;
    }
    let what = if status.sources.is_empty() {
        "this instance has no sources: omit the parameter `source`"
    } else {
        "GET /status lists them"
    };
    Some(format!("no source is called {:?}; {what}", human::sanitize(name, 63)))
}

/// Builds a response: secrets redacted, not cacheable, without content sniffing, and with a policy that lets a page
/// load and run nothing.
fn answer(code: StatusCode, kind: &'static str, body: impl AsRef<str>) -> Response {
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
    (code, headers, secret::redacted(body.as_ref()).into_owned()).into_response()
}
