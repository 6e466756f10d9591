//! The HTTP listener: probes, metrics, status, and the webhook that triggers an attempt.
//!
//! | route | answers |
//! | --- | --- |
//! | `GET /livez` | 200 while the sync loop meets the deadline that it set for its next sign of life, else 503 |
//! | `GET /readyz`, `/healthz` | 503 until the first generation is published, then 200, unless it is stale ([`Options::max_stale`]); `?verbose` lists the checks |
//! | `GET /` | the same codes, for probes written for git-sync; a browser gets the page; as git-sync's drop-in 503 until an attempt of the process has succeeded |
//! | `GET /metrics` | OpenMetrics text, if it is enabled |
//! | `GET /status` | the status as JSON; a browser gets the page (`Accept` decides) |
//! | `GET /status.json`, `/status.html` | JSON or the page, whatever `Accept` says |
//! | `GET /debug/pprof/` | with `--http-pprof`: 200 and a line that says why there are no profiles |
//! | `POST /sync` | 202 at once, and triggers an attempt; 403 without a valid signature or token (`hook`) |
//!
//! Every other path, also `/metrics` if it is not enabled, answers 404; as git-sync's drop-in ([`Fallback::GitSync`]) it
//! answers as `/` does.
//!
//! A process that can read the root can instead ask its writer through a socket there: see [`status_socket`].
//!
//! # What it promises
//!
//! A probe is answered quickly whatever other clients do: a request's head must be complete after [`HEAD_DEADLINE`],
//! and there are never more than [`MAX_CONNECTIONS`]. When one more comes, the oldest is closed, so a client that holds
//! connections open only affects older ones, and none lasts longer than a minute. By the same rule at most 16 hold an
//! answer of more than 64 KiB, so that clients that read nothing cost little memory. The status is rendered once at a
//! time, away from the threads that sync. Everything shown is escaped. No route but `POST /sync` has an effect, and that
//! one can only trigger an attempt, for all sources or those that its query names: its body is authenticated, but never
//! interpreted.
//!
//! # What it does not do
//!
//! TLS and authentication of users: every client that can connect can read the status, which holds no secret. Bind the
//! listener to an address that only the intended clients can reach, or put a proxy in front.

mod ceiling;
#[cfg(any(test, fuzzing))]
#[path = "../../tests/fuzz/targets/admin.rs"]
pub(crate) mod fuzz;
mod hook;
mod page;
mod proof;
mod render;
mod routes;
pub mod status_socket;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::HttpBody as _;
use axum::http::{HeaderValue, header};
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus_client::registry::Registry;
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::detached_io;
use crate::phase::{Status, Trigger};
use crate::repeats::{Repeats, suppressed};

use ceiling::Ceiling;

/// How long the head of a request may take, from when the connection waits for one. It ends idle connections, too.
pub const HEAD_DEADLINE: Duration = Duration::from_secs(10);

/// The most connections at one time. Far more than probes, a scraper and some webhooks need, far fewer than the 1,024
/// descriptors that a process usually has.
pub const MAX_CONNECTIONS: usize = 256;

/// The most connections at one time that were given a large answer. A rendering is shared for a second only: a client
/// that reads nothing could make each connection keep one of its own.
const MAX_LARGE: usize = 16;

/// The size of an answer, in bytes, above which it is large.
const LARGE: u64 = 64 << 10;

/// The largest head of a request, in bytes.
const MAX_HEAD: usize = 16 << 10;

/// How long a connection may last. Then it ends after the request under way, which may take as long again: a client that
/// reads nothing must not keep it.
const CONNECTION_LIMIT: Duration = Duration::from_secs(30);

/// How long requests under way may take at shutdown.
const DRAIN: Duration = Duration::from_secs(1);

/// The pause after a connection could not be accepted, for example for a lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Options of the listener.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The address to listen at: `:8080`, `127.0.0.1:8080`, `[::1]:8080`. Without a host: all addresses, also of IPv6
    /// where the kernel has it.
    pub bind: String,
    /// Files with the secrets for `POST /sync`, one a line (two while one is being rotated); read at each request. If
    /// empty, the route is closed.
    pub webhook_secrets: Vec<PathBuf>,
    /// Whether `/metrics` is a route; if not, it is an unknown path.
    pub metrics: bool,
    /// What answers on unknown paths.
    pub fallback: Fallback,
    /// Whether `/debug/pprof/` answers.
    pub pprof: bool,
    /// How long a remote may fail to answer before `/readyz` says not ready; `None`: for ever.
    pub max_stale: Option<Duration>,
}

/// What answers on unknown paths.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fallback {
    /// 404.
    #[default]
    Treeswap,
    /// The readiness, as in git-sync.
    GitSync,
}

/// What the listener shows, and the trigger that it can fire.
#[derive(Clone)]
pub struct State {
    /// The newest status.
    pub status: tokio::sync::watch::Receiver<Status>,
    /// Metrics; the listener adds its own.
    pub registry: Arc<Mutex<Registry>>,
    /// A second registry, with git-sync's names, shown together with the first.
    pub git_sync_registry: Option<Arc<Mutex<Registry>>>,
    /// Triggers an attempt and returns at once.
    pub trigger: TriggerFn,
}

/// Triggers an attempt for these sources; for all sources if none is named.
pub type TriggerFn = Arc<dyn Fn(Trigger, &[String]) + Send + Sync>;

/// A bound socket that does not serve yet.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    address: SocketAddr,
    options: Options,
}

impl Listener {
    /// Binds the socket. Call it before the first attempt, so that a taken port is found before anything else happens.
    ///
    /// # Errors
    /// If the text is no address, or the kernel refuses it.
    pub async fn bind(options: Options) -> Result<Self, Error> {
        let bind = options.bind.as_str();
        let Some(port) = port(bind) else { return Err(Error::Address(bind.to_owned())) };
        let bound = if bind.starts_with(':') {
            match TcpListener::bind(("::", port)).await {
                Err(error) if no_ipv6(&error) => TcpListener::bind(("0.0.0.0", port)).await,
                bound => bound,
            }
        } else {
            TcpListener::bind(bind).await
        };
        let failed = |source| Error::Bind { bind: bind.to_owned(), source };
        let listener = bound.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address, options })
    }

    /// Returns the address that it listens at, with the port that the kernel chose if the options said 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown` is cancelled. Requests under way are then finished, within a second. No failure to accept
    /// a connection ends it: without probes the container would be restarted.
    pub async fn serve(self, state: State, shutdown: CancellationToken) {
        let router = routes::router(state, &self.options);
        let mut connections = Connections::default();
        let mut failing = Repeats::default();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => break,
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => connections.add(stream, router.clone(), shutdown.clone()),
                    // The client is gone. After a pause it would have delayed the others.
                    Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
                    Err(error) => {
                        if let Some(times) = failing.should_log(&error.to_string()) {
                            tracing::warn!(%error, "cannot accept a connection{}", suppressed(times));
                        }
                        if is_exhausted(&error) {
                            connections.open.cut_oldest();
                        }
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        let drained =
            tokio::time::timeout(DRAIN, async { while connections.tasks.join_next().await.is_some() {} });
        let _ = drained.await; // the rest is aborted when the set is dropped
    }
}

/// Returns true if the kernel was built or booted without IPv6.
fn no_ipv6(error: &std::io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL))
}

/// Returns true if accept(2) failed for a lack of descriptors or memory, which passes.
fn is_exhausted(error: &std::io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

/// The open connections.
#[derive(Default)]
struct Connections {
    tasks: JoinSet<()>,
    open: Ceiling<MAX_CONNECTIONS>,
    /// Those that were given a large answer.
    large: Arc<Ceiling<MAX_LARGE>>,
}

impl Connections {
    fn add(&mut self, stream: TcpStream, router: Router, shutdown: CancellationToken) {
        while self.tasks.try_join_next().is_some() {}
        let cut = CancellationToken::new();
        self.open.enter(&cut);
        self.tasks.spawn(serve_connection(stream, router, shutdown, cut, Arc::clone(&self.large)));
    }
}

/// Serves one connection until it ends, or gracefully ends it at shutdown or after [`CONNECTION_LIMIT`]. `cut` cuts it
/// to make room, also when too many others were given a large answer after it, and is cancelled when it ends. Errors
/// are only logged.
async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    shutdown: CancellationToken,
    cut: CancellationToken,
    large: Arc<Ceiling<MAX_LARGE>>,
) {
    let _ended = cut.clone().drop_guard();
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_DEADLINE).max_buf_size(MAX_HEAD);
    let routes = TowerToHyperService::new(router);
    let token = cut.clone();
    // A connection ends with the first request that has a body. hyper may drain a body that was not read and then take
    // the next request before the answer is sent: answers to a client that reads none would pile up in memory.
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let has_body = !request.body().is_end_stream();
        let answer = Service::call(&routes, request);
        let large = Arc::clone(&large);
        let token = token.clone();
        async move {
            answer.await.map(|mut response| {
                if has_body {
                    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
                }
                if response.body().size_hint().lower() > LARGE {
                    large.enter(&token);
                }
                response
            })
        }
    });
    let served = http.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(served);
    let ended = cut.run_until_cancelled(async {
        tokio::select! {
            ended = served.as_mut() => Ok(ended),
            _ = tokio::time::timeout(CONNECTION_LIMIT, shutdown.cancelled()) => {
                served.as_mut().graceful_shutdown();
                tokio::time::timeout(CONNECTION_LIMIT, served).await
            }
        }
    });
    match ended.await {
        Some(Ok(Ok(()))) => {}
        Some(Ok(Err(error))) => tracing::debug!(%error, "a connection ended early"),
        Some(Err(_)) => tracing::debug!("a connection was cut: its client reads nothing"),
        None => tracing::debug!("a connection was cut to make room for newer ones"),
    }
}

/// What went wrong with the listener.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The option is no address, or one of IPv6 without brackets.
    #[error("{0:?} is not an address to listen on")]
    Address(String),
    /// The kernel refused the address.
    #[error("cannot listen at {bind}")]
    Bind {
        /// The address as configured.
        bind: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// What an operator can do, a line each.
    pub fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::Address(_) => "write :8080, 127.0.0.1:8080 or [::1]:8080 (IPv6 in brackets)",
            Self::Bind { source, .. } => match Errno::from_io_error(source) {
                Some(Errno::ADDRINUSE) => {
                    "another process listens there (containers of a Pod share their ports); choose another port"
                }
                Some(Errno::ACCESS) => "ports below 1024 need privileges; choose a higher one",
                _ => "--http-bind names an address of this machine, or only a port: :8080",
            },
        };
        vec![hint.to_owned()]
    }
}

/// Returns why a file has no usable secret for `POST /sync`; `None` if it has one. Blocks for at most two seconds.
pub fn no_secret_in(file: &Path) -> Option<String> {
    let own = file.to_owned();
    match detached_io::wait(file, Duration::from_secs(2), move || proof::read_keys(&[own])) {
        Some(Ok(keys)) if keys.is_empty() => Some(format!("{} is empty", file.display())),
        Some(Ok(_)) => None,
        Some(Err(error)) => Some(format!("it cannot be read: {error}")), // the error names the file
        None => Some(format!("{} could not be read in time", file.display())),
    }
}

/// Returns true if a text has the form of an address to listen at. Only [`Listener::bind`] finds out whether it can be
/// bound.
pub fn is_address(text: &str) -> bool {
    port(text).is_some()
}

/// The port of an address to listen at; `None` if it is no address. An IPv6 address without brackets is none: where it
/// ends is a guess, and `::1:8080` must not listen on all addresses.
fn port(bind: &str) -> Option<u16> {
    let (host, port) = bind.rsplit_once(':')?;
    let is_host = !host.contains(':') || (host.starts_with('[') && host.ends_with(']'));
    port.parse().ok().filter(|_| is_host)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::os::fd::AsFd as _;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[test]
    fn an_ipv6_address_needs_brackets() {
        for good in [":8080", "127.0.0.1:8080", "[::1]:8080", "[::]:0", "localhost:80"] {
            assert!(is_address(good), "{good}");
        }
        for bad in ["::1:8080", ":::8080", "::8080", "8080", "[::1]", ":http", "[::1:8080"] {
            assert!(!is_address(bad), "{bad}");
        }
    }

    /// After shutdown(2), accept(2) fails with EINVAL for good.
    #[tokio::test(start_paused = true)]
    async fn a_socket_that_accepts_no_more_connections_does_not_end_the_listener() {
        let options = Options { bind: "127.0.0.1:0".into(), ..Options::default() };
        let listener = Listener::bind(options).await.unwrap();
        let socket = std::net::TcpStream::from(listener.listener.as_fd().try_clone_to_owned().unwrap());
        socket.shutdown(std::net::Shutdown::Both).unwrap();
        let (_status, status) = tokio::sync::watch::channel(Status::default());
        let trigger: TriggerFn = Arc::new(|_: Trigger, _: &[String]| {});
        let state = State { status, registry: Arc::default(), git_sync_registry: None, trigger };
        let shutdown = CancellationToken::new();
        let serving = tokio::spawn(listener.serve(state, shutdown.clone()));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!serving.is_finished());
        shutdown.cancel();
        serving.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_does_not_keep_its_connection() {
        let router = Router::new().route("/", get(async || "x".repeat(1 << 20)));
        let (mut client, stream) = tokio::io::duplex(1 << 10);
        client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let began = tokio::time::Instant::now();
        let (shutdown, cut) = Default::default();
        serve_connection(stream, router, shutdown, cut, Arc::default()).await;
        assert_eq!(began.elapsed().as_secs(), 2 * CONNECTION_LIMIT.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn of_clients_that_do_not_read_large_answers_the_oldest_makes_room() {
        for (size, fits) in [(1 << 20, false), (1 << 14, true)] {
            let router = Router::new().route("/", get(move || async move { "x".repeat(size) }));
            let large = Arc::default();
            let mut connections = VecDeque::new();
            for _ in 0..=MAX_LARGE {
                let (mut client, stream) = tokio::io::duplex(1 << 10);
                client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
                let (shutdown, cut) = Default::default();
                let serving = serve_connection(stream, router.clone(), shutdown, cut, Arc::clone(&large));
                let serving = tokio::spawn(serving);
                client.read_u8().await.unwrap(); // the answer has begun
                connections.push_back((client, serving));
            }
            let (_client, oldest) = connections.pop_front().unwrap();
            let ended = tokio::time::timeout(Duration::from_secs(1), oldest).await;
            assert_eq!(ended.is_err(), fits, "{size} bytes");
            assert!(connections.iter().all(|(_, serving)| !serving.is_finished()), "{size} bytes");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_whose_bodies_nobody_reads_are_not_answered_without_end() {
        let router = Router::new().route("/", get(async || "x"));
        let (mut client, stream) = tokio::io::duplex(1 << 10);
        let (shutdown, cut) = Default::default();
        let serving = serve_connection(stream, router, shutdown, cut, Arc::default());
        let serving = tokio::spawn(serving);
        client.write_all(b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let expect = "HEAD / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\nx";
        client.write_all(expect.repeat(10_000).as_bytes()).await.expect_err("it reads on, and is not read");
        let mut answers = String::new();
        client.read_to_string(&mut answers).await.unwrap();
        assert_eq!(answers.matches("HTTP/1.1 200").count(), 2, "{answers}");
        serving.await.unwrap();
    }
}
