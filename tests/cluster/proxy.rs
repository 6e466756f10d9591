//! A proxy in front of an API server that can fail in every way a network and a busy server do, before or after the
//! request took effect. Plain HTTP on our side: nothing has to be pretended about certificates.
#![allow(dead_code, unreachable_pub, missing_docs)] // each test binary uses its part

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Frame, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::sync::Notify;

use super::kubernetes::{Access, Kubernetes, token_of};

/// What happens to a request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It is held for so long, then forwarded.
    Delay(Duration),
    /// It is held until [`Proxy::release`], then forwarded; whether or not the client still waits.
    HoldBefore,
    /// It is forwarded, and the answer held until [`Proxy::release`].
    HoldAfter,
    /// The connection breaks; the server never hears of it.
    CutBefore,
    /// It takes effect, then the connection breaks.
    CutAfter,
    /// It takes effect, and half of the answer arrives.
    CutAnswer,
    /// The server never hears of it; this is the answer: status, `Retry-After`, body.
    Answer(u16, Option<&'static str>, &'static str),
    /// It takes effect; this is the answer.
    AnswerAfter(u16, Option<&'static str>, &'static str),
}

/// A request that came by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    pub method: String,
    /// Path and query.
    pub uri: String,
    /// Of the server's answer; none if it was not forwarded, or not answered yet.
    pub status: Option<u16>,
    /// Bytes of the server's answer.
    pub length: usize,
}

/// Waits for its requests: the next so many that match, after letting some pass.
struct Planned {
    method: &'static str,
    part: String,
    pass: usize,
    times: usize,
    fault: Fault,
}

/// Called with method, path and query of each request; it goes on when this is over.
pub type Gate = Box<dyn Fn(&str, &str) -> futures_util::future::BoxFuture<'static, ()> + Send + Sync>;

struct State {
    server: String,
    gate: Option<Gate>,
    client: reqwest::Client,
    planned: Mutex<Vec<Planned>>,
    seen: Mutex<Vec<Seen>>,
    held: Notify,
    released: tokio::sync::watch::Sender<u64>,
}

/// The proxy; it ends when dropped.
pub struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Proxy {
    /// In front of this cluster. Requests are forwarded with the credentials they come with.
    pub fn start(kubernetes: &Kubernetes) -> Self {
        Self::started(kubernetes, None)
    }

    /// The same, with a gate that every request has to pass.
    pub fn gated(kubernetes: &Kubernetes, gate: Gate) -> Self {
        Self::started(kubernetes, Some(gate))
    }

    fn started(kubernetes: &Kubernetes, gate: Option<Gate>) -> Self {
        let access = kubernetes.access("admin");
        let authority = reqwest::Certificate::from_pem(access.ca.unwrap().as_bytes()).unwrap();
        // No connection is kept: one that a killed server left behind must not look like a fault of the next.
        let client =
            reqwest::Client::builder().tls_certs_only([authority]).no_proxy().pool_max_idle_per_host(0);
        let state = Arc::new(State {
            server: access.server,
            gate,
            client: client.build().unwrap(),
            planned: Mutex::default(),
            seen: Mutex::default(),
            held: Notify::new(),
            released: tokio::sync::watch::Sender::new(0),
        });
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(serve(listener, state.clone()));
        Self { address, state, runtime: Some(runtime) }
    }

    /// How a user reaches the cluster through it.
    pub fn access(&self, user: &str) -> Access {
        Access { server: format!("http://{}", self.address), ca: None, token: token_of(user) }
    }

    /// The next request of this method (any if empty) whose path and query contain `part` has this fault.
    pub fn next(&self, method: &'static str, part: &str, fault: Fault) {
        self.plan(method, part, 0, 1, fault);
    }

    /// After `pass` matching requests the next `times` have this fault.
    pub fn plan(&self, method: &'static str, part: &str, pass: usize, times: usize, fault: Fault) {
        let planned = Planned { method, part: part.to_owned(), pass, times, fault };
        self.state.planned.lock().unwrap().push(planned);
    }

    /// Nothing fails any more. How many planned faults no request has met.
    pub fn heal(&self) -> usize {
        let mut planned = self.state.planned.lock().unwrap();
        planned.drain(..).filter(|plan| plan.times > 0).count()
    }

    /// Waits until a request is held.
    pub async fn held(&self) {
        tokio::time::timeout(Duration::from_secs(60), self.state.held.notified())
            .await
            .expect("a request is held");
    }

    /// Lets every request go on that is held.
    pub fn release(&self) {
        self.state.released.send_modify(|count| *count += 1);
    }

    /// Every request so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().unwrap().clone()
    }

    /// How many requests of this method had `part` in path and query.
    pub fn count(&self, method: &str, part: &str) -> usize {
        self.seen().iter().filter(|seen| seen.method == method && seen.uri.contains(part)).count()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background(); // it may be dropped inside another runtime
        }
    }
}

async fn serve(listener: std::net::TcpListener, state: Arc<State>) {
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let state = state.clone();
        tokio::spawn(async move {
            let service = hyper::service::service_fn(move |request| answer(state.clone(), request));
            // An error of the service closes the connection, which is what a cut is.
            drop(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await,
            );
        });
    }
}

/// The connection is to break.
#[derive(Debug)]
struct Cut;

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("cut")
    }
}

impl std::error::Error for Cut {}

/// A body that may end before it is complete.
struct Body {
    rest: Option<Bytes>,
    cut: bool,
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let next = match self.rest.take() {
            Some(bytes) => Some(Ok(Frame::data(bytes))),
            None => std::mem::take(&mut self.cut).then_some(Err(Cut)),
        };
        std::task::Poll::Ready(next)
    }
}

async fn answer(state: Arc<State>, request: Request<Incoming>) -> Result<Response<Body>, Cut> {
    // In a task of its own: a client that gives up does not undo what is on its way to the server.
    tokio::spawn(handle(state, request)).await.map_err(|_| Cut)?
}

async fn handle(state: Arc<State>, request: Request<Incoming>) -> Result<Response<Body>, Cut> {
    let (head, body) = request.into_parts();
    let uri = head.uri.path_and_query().map_or_else(String::new, ToString::to_string);
    let body = read(body).await?;
    let seen = Seen { method: head.method.to_string(), uri: uri.clone(), status: None, length: 0 };
    let index = {
        let mut all = state.seen.lock().unwrap();
        all.push(seen);
        all.len() - 1
    };
    if let Some(gate) = &state.gate {
        gate(head.method.as_str(), &uri).await;
    }
    let fault = due(&state, head.method.as_str(), &uri);
    match &fault {
        Some(Fault::Delay(time)) => tokio::time::sleep(*time).await,
        Some(Fault::HoldBefore) => hold(&state).await,
        Some(Fault::CutBefore) => return Err(Cut),
        Some(Fault::Answer(status, after, text)) => return Ok(said(*status, *after, text)),
        _ => {}
    }
    let mut onward = state.client.request(head.method, format!("{}{uri}", state.server)).body(body);
    for name in ["authorization", "accept", "content-type", "user-agent"] {
        if let Some(value) = head.headers.get(name) {
            onward = onward.header(name, value);
        }
    }
    let answered = onward.send().await.map_err(|_| Cut)?;
    let (status, headers) = (answered.status(), answered.headers().clone());
    let bytes = answered.bytes().await.map_err(|_| Cut)?;
    {
        let seen = &mut state.seen.lock().unwrap()[index];
        (seen.status, seen.length) = (Some(status.as_u16()), bytes.len());
    }
    match fault {
        Some(Fault::HoldAfter) => hold(&state).await,
        Some(Fault::CutAfter) => return Err(Cut),
        Some(Fault::AnswerAfter(status, after, text)) => return Ok(said(status, after, text)),
        _ => {}
    }
    let mut response = Response::builder().status(status).header("content-length", bytes.len());
    for name in ["content-type", "retry-after"] {
        if let Some(value) = headers.get(name) {
            response = response.header(name, value);
        }
    }
    let cut = matches!(fault, Some(Fault::CutAnswer));
    let shown = if cut { bytes.slice(..bytes.len() / 2) } else { bytes };
    Ok(response.body(Body { rest: Some(shown).filter(|bytes| !bytes.is_empty()), cut }).unwrap())
}

/// The first plan that this request fits, if its turn has come.
fn due(state: &State, method: &str, uri: &str) -> Option<Fault> {
    let mut plans = state.planned.lock().unwrap();
    let fits = |plan: &Planned| (plan.method.is_empty() || plan.method == method) && uri.contains(&plan.part);
    let at = plans.iter().position(fits)?;
    let plan = &mut plans[at];
    if plan.pass > 0 {
        plan.pass -= 1;
        return None;
    }
    let fault = plan.fault.clone();
    plan.times -= 1;
    if plan.times == 0 {
        plans.remove(at);
    }
    Some(fault)
}

async fn hold(state: &State) {
    let mut released = state.released.subscribe();
    state.held.notify_one();
    drop(released.changed().await);
}

async fn read(mut body: Incoming) -> Result<Vec<u8>, Cut> {
    use hyper::body::Body as _;
    let mut bytes = Vec::new();
    while let Some(frame) = std::future::poll_fn(|cx| std::pin::Pin::new(&mut body).poll_frame(cx)).await {
        if let Ok(data) = frame.map_err(|_| Cut)?.into_data() {
            bytes.extend_from_slice(&data);
        }
    }
    Ok(bytes)
}

fn said(status: u16, retry_after: Option<&str>, text: &str) -> Response<Body> {
    let mut response = Response::builder().status(status).header("content-length", text.len());
    if let Some(value) = retry_after {
        response = response.header("retry-after", value);
    }
    let rest = Some(Bytes::copy_from_slice(text.as_bytes())).filter(|bytes| !bytes.is_empty());
    response.body(Body { rest, cut: false }).unwrap()
}
