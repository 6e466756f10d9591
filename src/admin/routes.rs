//! The HTTP routes. All but `POST /sync` render the newest status or the metrics.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State as Extract};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use prometheus_client::encoding::text::{encode_eof, encode_registry};

use tokio::sync::watch;

use super::hook::{Decision, Deferred, Gate, WebhookOutcome};
use super::render::{Form, Renderer};
use super::{Fallback, Options, State};
use crate::clock;
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
    deferred: Deferred,
    renderer: Renderer,
    max_stale: Option<Duration>,
    is_git_sync: bool,
}

/// Builds the router with the routes that the options enable.
pub(super) fn router(state: State, options: &Options) -> Router {
    let gate = {
        let mut registry = state.registry.lock().unwrap_or_else(PoisonError::into_inner);
        Gate::new(options.webhook_secrets.clone(), &mut registry)
    };
    let renderer = Renderer::new(state.status.clone());
    let deferred = Deferred::default();
    let is_git_sync = options.fallback != Fallback::Treeswap;
    let shared = Shared { state, gate, deferred, renderer, max_stale: options.max_stale, is_git_sync };
    let shared = Arc::new(shared);
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
    let router = if options.metrics { router.route("/metrics", get(metrics)) } else { router };
    let not_found = async || answer(StatusCode::NOT_FOUND, TEXT, "not found\n");
    let router = match options.fallback {
        Fallback::Treeswap => router.route("/", get(front)).fallback(not_found),
        Fallback::GitSync => router.fallback(front),
    };
    router.with_state(shared)
}

impl Shared {
    /// The newest status. It must not be held for long: the loop waits for it.
    fn status(&self) -> watch::Ref<'_, Status> {
        self.state.status.borrow()
    }

    /// Returns why what is published is stale: a remote has not answered for longer than allowed.
    fn stale(&self, status: &Status) -> Option<String> {
        let max = self.max_stale.filter(|_| status.ready);
        max.and_then(|max| status.silent_for(max, &clock::now()))
    }

    /// Returns why it is not ready; `Ok` if it is. Once ready it stays so, unless what is published is stale.
    fn ready(&self) -> Result<(), String> {
        let status = self.status();
        match self.stale(&status) {
            Some(stale) => Err(stale),
            None if status.ready => Ok(()),
            None => Err(not_ready_reason(&status).to_owned()),
        }
    }

    /// The same for `/`. git-sync's is not ready until an attempt of the process has succeeded, whatever is published:
    /// what an earlier one has published may be old.
    fn front_ready(&self) -> Result<(), String> {
        let is_waiting = self.is_git_sync && !self.status().synced;
        self.ready()?;
        if is_waiting { Err("no attempt of this process has succeeded yet".to_owned()) } else { Ok(()) }
    }

    /// Lists the checks, a line each, as kube-apiserver does. Only `generation` and, with `max_stale`, `fresh` decide;
    /// the others inform.
    fn checks(&self, ready: bool) -> String {
        let status = self.status();
        let line = |good: bool, name: &str, bad: &str| {
            if good { format!("[+]{name} ok\n") } else { format!("[-]{name} failed: {bad}\n") }
        };
        // The remote is only one of the parts that can be at fault: the error says which.
        let why = status.last_failure.as_ref().and_then(|failure| failure.error.as_deref());
        let why = why.map(|why| format!(": {}", secret::redacted(why))).unwrap_or_default();
        let sync = match status.consecutive_failures {
            0 => "[+]sync ok (informs only)\n".to_owned(),
            1 => format!("[-]sync failed once{why} (informs only)\n"),
            n => format!("[-]sync failed {n} times in a row{why} (informs only)\n"),
        };
        let decision = if ready { "readyz check passed\n" } else { "readyz check failed\n" };
        let stale = self.stale(&status);
        let fresh =
            self.max_stale.map(|_| line(stale.is_none(), "fresh", stale.as_deref().unwrap_or_default()));
        line(status.ready, "generation", not_ready_reason(&status))
            + &fresh.unwrap_or_default()
            + &line(status.is_alive(), "loop", "it hangs (informs only; see /livez)")
            + &sync
            + decision
    }

    async fn render(&self, form: Form) -> Result<Bytes, serde_json::Error> {
        let stale = self.stale(&self.status());
        self.renderer.render(form, stale).await
    }
}

async fn livez(Extract(shared): Extract<Arc<Shared>>) -> Response {
    if shared.status().is_alive() {
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
    let verbose = uri
        .query()
        .is_some_and(|query| query.split('&').any(|pair| pair.split('=').next() == Some("verbose")));
    let ready = shared.ready();
    let body = match &ready {
        _ if verbose => shared.checks(ready.is_ok()),
        Ok(()) => "ready\n".to_owned(),
        Err(why) => format!("not ready: {why}\n"),
    };
    answer(readiness(ready.is_ok()), TEXT, body)
}

/// Returns why nothing was published yet. Without a root there are only ConfigMaps.
fn not_ready_reason(status: &Status) -> &str {
    let reason = if status.root.is_empty() {
        "the ConfigMaps have not all been as they should be yet"
    } else {
        "no generation was published yet"
    };
    status.starting.as_deref().unwrap_or(reason)
}

fn readiness(ready: bool) -> StatusCode {
    if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

/// `/`, for probes written for git-sync: 503 before the first publication (as git-sync, before the first success of the
/// process), then 200 with an empty body. A browser gets the page.
async fn front(Extract(shared): Extract<Arc<Shared>>, headers: HeaderMap) -> Response {
    let ready = shared.front_ready();
    if wants_html(&headers) {
        return varying(rendered(readiness(ready.is_ok()), HTML, shared.render(Form::Page).await));
    }
    let body = ready.as_ref().err().map(|why| format!("{why}\n")).unwrap_or_default();
    answer(readiness(ready.is_ok()), TEXT, body)
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
    rendered(StatusCode::OK, JSON, shared.render(Form::Json).await)
}

async fn status_page(Extract(shared): Extract<Arc<Shared>>) -> Response {
    rendered(StatusCode::OK, HTML, shared.render(Form::Page).await)
}

/// Builds a response with a rendered status.
fn rendered(code: StatusCode, kind: &'static str, text: Result<Bytes, serde_json::Error>) -> Response {
    match text {
        Ok(text) => response(code, kind, text),
        Err(error) => answer(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
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
    let ranges: Vec<(String, f32)> = accept.flat_map(|accept| accept.split(',')).map(media_range).collect();
    // The quality of the most specific range that matches, and its specificity.
    let weight = |ranges_of_type: [&str; 3]| {
        let mut fitting = ranges_of_type.iter().zip([3_u8, 2, 1]).filter_map(|(wanted, specificity)| {
            let (_, quality) = ranges.iter().find(|(range, _)| range == wanted)?;
            Some((*quality, specificity))
        });
        fitting.next().unwrap_or_default()
    };
    let html = weight(["text/html", "text/*", "*/*"]);
    html.0 > 0.0 && html > weight(["application/json", "application/*", "*/*"])
}

/// Reads one media range of an `Accept`: the range in lower case, and its quality.
fn media_range(text: &str) -> (String, f32) {
    let mut parts = text.split(';').map(str::trim);
    let range = parts.next().unwrap_or_default().to_ascii_lowercase();
    let quality = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
    (range, quality.map_or(1.0, |quality| quality.parse().unwrap_or(0.0)))
}

async fn metrics(Extract(shared): Extract<Arc<Shared>>) -> Response {
    let mut text = String::new();
    let registries = std::iter::once(&shared.state.registry).chain(&shared.state.git_sync_registry);
    let mut encoded = registries
        .map(|registry| encode_registry(&mut text, &registry.lock().unwrap_or_else(PoisonError::into_inner)));
    let encoded = encoded.try_for_each(|encoded| encoded);
    match encoded.and_then(|()| encode_eof(&mut text)) {
        // Names are not redacted, and values of labels were when they were set.
        Ok(()) => response(StatusCode::OK, OPENMETRICS, text),
        Err(error) => answer(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
    }
}

async fn sync(Extract(shared): Extract<Arc<Shared>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let sources = source_names(head.uri.query().unwrap_or_default());
    let find_unknown = || unknown_source(&shared.status(), &sources);
    let Decision { outcome, why } = shared.gate.check_request(&head.headers, body, find_unknown).await;
    match outcome {
        WebhookOutcome::Accepted => (shared.state.trigger)(Trigger::Webhook, &sources),
        WebhookOutcome::Limited => shared.deferred.add(sources, &shared.state.trigger),
        _ => {}
    }
    let (code, text) = outcome.answer();
    let mut response = match why.filter(|_| outcome == WebhookOutcome::Unknown) {
        Some(unknown) => answer(code, TEXT, unknown + "\n"),
        None => answer(code, TEXT, text),
    };
    if matches!(outcome, WebhookOutcome::Limited | WebhookOutcome::NoSecret) {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// The most sources that a request can name, which is the most that there can be.
const MAX_NAMED: usize = 64;

/// Returns the sources that a request names: `source=NAME`, once for each. Of too many, one more than allowed.
fn source_names(query: &str) -> Vec<String> {
    let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let names = pairs.filter(|(key, _)| *key == "source").map(|(_, name)| name.to_owned());
    names.take(MAX_NAMED + 1).collect()
}

/// Returns why these are no sources; `None` if all of them are. Every name is accepted where no sources are known: the
/// first attempt has not ended, their file has been invalid since the start, or there is only one repository.
fn unknown_source(status: &Status, names: &[String]) -> Option<String> {
    if names.len() > MAX_NAMED {
        return Some(format!(
            "a request names at most {MAX_NAMED} sources; without a name it is for all of them"
        ));
    }
    if status.sources.is_empty() {
        return None;
    }
    let is_known = |name: &String| status.sources.iter().any(|source| source.name == *name);
    let name = names.iter().find(|name| !is_known(name))?;
    Some(format!("no source is called {:?}; GET /status lists them", human::sanitize(name, 63)))
}

/// Builds a response with secrets redacted.
fn answer(code: StatusCode, kind: &'static str, body: impl AsRef<str>) -> Response {
    response(code, kind, secret::redacted(body.as_ref()).into_owned())
}

/// Builds a response: not cacheable, without content sniffing, and with a policy that lets a page
/// load and run nothing.
fn response(code: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response {
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
    let body: Body = body.into();
    (code, headers, body).into_response()
}
