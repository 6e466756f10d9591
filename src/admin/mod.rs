//! The HTTP listener: probes, metrics, status, and the webhook that asks for a look at the remote.
//!
//! | route | answers |
//! | --- | --- |
//! | `GET /livez` | 200 while the sync loop keeps its promise to be heard of again, else 503 |
//! | `GET /readyz`, `/healthz` | 503 until the first generation is published, then 200, but for [`Options::max_stale`]; `?verbose` lists the checks |
//! | `GET /` | the same codes, as git-sync's users probe it; a browser gets the page |
//! | `GET /metrics` | OpenMetrics text |
//! | `GET /status` | the status as JSON; a browser gets the page (`Accept` decides) |
//! | `GET /status.json`, `/status.html` | the one or the other, whatever `Accept` says |
//! | `GET /debug/pprof/` | with `--http-pprof`: 200 and a line that says why there is nothing |
//! | `POST /sync` | 202 at once, and an attempt follows; signed (see [`hook`](self)) or refused |
//!
//! As git-sync ([`Front::GitSync`]) every other path answers as `/` does, and so does `/metrics` unless it was asked
//! for.
//!
//! A process that may read the root asks its writer through a socket there instead: see [`live`].
//!
//! # What it promises
//!
//! A probe is answered quickly whatever others do: a request's head must be complete after [`HEAD_DEADLINE`], there
//! are never more than [`MAX_CONNECTIONS`], and when one more comes the oldest is cut, so that a client that holds
//! connections open harms only those who came before. Everything shown is escaped. No route changes anything but
//! `POST /sync`, and that one can only ask for a look at the remote, or at that of the sources that its query names: its
//! body is checked, never read for content.
//!
//! # What it doesn't do
//!
//! TLS and users: every client that can connect may read the status, which holds no secret. Bind it to an address that
//! only those can reach, or put a proxy before it.

#[cfg(any(test, fuzzing))]
#[path = "../../tests/fuzz/targets/admin.rs"]
pub(crate) mod fuzz;
mod hook;
pub mod live;
mod page;
mod proof;
mod routes;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus_client::registry::Registry;
use rustix::io::Errno;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::phase::{Status, Trigger};
use crate::{detached_io, human};

/// Time for the head of a request, from the moment the connection waits for one; so it also ends idle connections.
pub const HEAD_DEADLINE: Duration = Duration::from_secs(10);

/// Connections at one time. Far more than probes, a scraper and some webhooks need, far fewer than the 1,024
/// descriptors that a process usually has.
pub const MAX_CONNECTIONS: usize = 256;

/// A request's head may be so long, in bytes.
const MAX_HEAD: usize = 16 << 10;

/// Time that requests under way get at shutdown.
const DRAIN: Duration = Duration::from_secs(1);

/// Pause after the kernel had no descriptor or memory left for a connection.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// What makes a listener.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Where to listen: `:8080`, `127.0.0.1:8080`, `[::1]:8080`. Without a host: every address, IPv6 where there is
    /// any.
    pub bind: String,
    /// Files with the secrets that open `POST /sync`, one secret a line (two while one is being rotated); read anew at
    /// each request. None: the route is closed.
    pub webhook_secrets: Vec<PathBuf>,
    /// What answers at routes that are not ours.
    pub front: Front,
    /// Whether `/debug/pprof/` answers.
    pub pprof: bool,
    /// After so long without an answer of a remote what serves is not ready; none: never.
    pub max_stale: Option<Duration>,
}

/// What answers at routes that are not ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Front {
    /// 404.
    #[default]
    Treeswap,
    /// As in git-sync: the readiness.
    GitSync {
        /// Whether `/metrics` is a route; else it is any path.
        metrics: bool,
    },
}

/// What the listener shows, and the one thing it can do.
#[derive(Clone)]
pub struct State {
    /// The newest status.
    pub status: tokio::sync::watch::Receiver<Status>,
    /// Metrics; the listener adds its own.
    pub registry: Arc<Mutex<Registry>>,
    /// Metrics with other names, if there are any; shown with the others.
    pub more: Option<Arc<Mutex<Registry>>>,
    /// Asks for an attempt and returns at once.
    pub trigger: TriggerFn,
}

/// Asks for an attempt, for these sources; for all of them if none is named.
pub type TriggerFn = Arc<dyn Fn(Trigger, &[String]) + Send + Sync>;

/// A bound socket that does not answer yet.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    address: SocketAddr,
    options: Options,
}

impl Listener {
    /// Binds. Call it before the first attempt, so that a taken port is found before anything else happens.
    ///
    /// # Errors
    /// When the text is no address, or the kernel refuses it.
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

    /// Where it listens: the port the kernel chose, if the options said 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `shutdown` is cancelled; requests under way are then finished, within a second.
    ///
    /// # Errors
    /// When the socket itself fails; a failure of a single connection, or a want of descriptors, is no reason to end.
    pub async fn serve(self, state: State, shutdown: CancellationToken) -> Result<(), Error> {
        let router = routes::router(state, &self.options);
        let mut connections = Connections::default();
        let ended = loop {
            tokio::select! {
                () = shutdown.cancelled() => break Ok(()),
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => connections.add(stream, router.clone(), shutdown.clone()),
                    Err(error) if exhausted(&error) => {
                        tracing::warn!(%error, "no resources for a connection; the oldest is cut");
                        connections.cut_oldest();
                        tokio::time::sleep(EXHAUSTED_PAUSE).await;
                    }
                    Err(error) if of_the_peer(&error) => {}
                    Err(source) => break Err(Error::Accept { address: self.address, source }),
                },
            }
        };
        shutdown.cancel();
        let drained =
            tokio::time::timeout(DRAIN, async { while connections.tasks.join_next().await.is_some() {} });
        let _ = drained.await; // what is left is aborted as the set is dropped
        ended
    }
}

/// The kernel was built or booted without IPv6.
fn no_ipv6(error: &std::io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL))
}

/// accept(2): the process or the machine is short of something; it passes.
fn exhausted(error: &std::io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

/// accept(2): "Linux passes already-pending network errors on the new socket as an error code from accept()".
fn of_the_peer(error: &std::io::Error) -> bool {
    !matches!(
        Errno::from_io_error(error),
        None | Some(Errno::BADF | Errno::INVAL | Errno::NOTSOCK | Errno::OPNOTSUPP)
    )
}

/// The open connections, oldest first.
#[derive(Default)]
struct Connections {
    tasks: JoinSet<()>,
    order: VecDeque<AbortHandle>,
}

impl Connections {
    fn add(&mut self, stream: TcpStream, router: Router, shutdown: CancellationToken) {
        while self.tasks.try_join_next().is_some() {}
        if self.order.len() >= MAX_CONNECTIONS {
            self.order.retain(|connection| !connection.is_finished());
        }
        if self.order.len() >= MAX_CONNECTIONS {
            self.cut_oldest();
        }
        self.order.push_back(self.tasks.spawn(connection(stream, router, shutdown)));
    }

    fn cut_oldest(&mut self) {
        if let Some(oldest) = self.order.pop_front() {
            oldest.abort();
        }
    }
}

/// Serves one connection. An error is the peer's affair.
async fn connection(stream: TcpStream, router: Router, shutdown: CancellationToken) {
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_DEADLINE).max_buf_size(MAX_HEAD);
    let served = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = shutdown.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// What went wrong with the listener.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is no address.
    #[error("{0:?} is not an address to listen at")]
    Address(String),
    /// The address cannot be had.
    #[error("cannot listen at {bind}")]
    Bind {
        /// As asked for.
        bind: String,
        /// The kernel's reason.
        #[source]
        source: std::io::Error,
    },
    /// The socket failed.
    #[error("cannot accept connections at {address} any more")]
    Accept {
        /// Where.
        address: SocketAddr,
        /// The kernel's reason.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// What an operator can do, a line each.
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::Address(_) => vec!["write :8080, 127.0.0.1:8080 or [::1]:8080".to_owned()],
            Self::Bind { source, .. } => match Errno::from_io_error(source) {
                Some(Errno::ADDRINUSE) => {
                    vec!["another process listens there (containers of a Pod share their ports); choose another port".to_owned()]
                }
                Some(Errno::ACCESS) => {
                    vec!["ports below 1024 need privileges; choose a higher one".to_owned()]
                }
                _ => vec!["--http-bind names an address of this machine, or only a port: :8080".to_owned()],
            },
            Self::Accept { .. } => {
                vec!["syncing goes on without probes and metrics; a restart listens again".to_owned()]
            }
        }
    }
}
/// Why a file has no usable secret for `POST /sync` here and now. Blocking, within seconds.
pub fn no_secret_in(file: &Path) -> Option<String> {
    let own = file.to_owned();
    match detached_io::wait(file, Duration::from_secs(2), move || proof::read_keys(&[own])) {
        Some(Ok(keys)) if keys.is_empty() => Some(format!("{} is empty", file.display())),
        Some(Ok(_)) => None,
        Some(Err(error)) => Some(format!("{} cannot be read: {}", file.display(), human::one_line(&error))),
        None => Some(format!("{} could not be read in time", file.display())),
    }
}

/// Whether a text has the form of an address to listen at. Whether it can be had, only [`Listener::bind`] finds out.
pub fn is_address(text: &str) -> bool {
    port(text).is_some()
}

fn port(bind: &str) -> Option<u16> {
    bind.rsplit_once(':').and_then(|(_, port)| port.parse().ok())
}
