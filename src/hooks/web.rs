//! Sends a request as a hook: without a body, with the revision in a header.

use std::error::Error as _;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::header::CONTENT_LENGTH;
use reqwest::{Method, Response};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::{Failure, HookEvent, SHUTDOWN_GRACE};
use crate::secret::redact_path;
use crate::tls;

/// The header that holds the revision.
const HEADER: &str = "Gitsync-Hash";

/// How much of a response's body is read, and for how long. It is discarded, but a receiver may fail if nobody reads
/// its response.
const MAX_RESPONSE_BYTES: usize = 1 << 20;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

const USER_AGENT: &str = concat!("treeswap/", env!("CARGO_PKG_VERSION"));

/// A request to send.
#[derive(Clone, PartialEq, Eq)]
pub struct Webhook {
    /// The receiver's URL. It may hold a secret, so only its origin is ever shown.
    pub url: Url,
    /// The method.
    pub method: Method,
    /// The status that counts as success; `None`: any.
    pub success: Option<u16>,
    /// How long it may take, from the connection to the head of the response.
    pub timeout: Duration,
    /// The wait after a failure.
    pub backoff: Duration,
    /// A PEM file of certificate authorities to trust besides the system's.
    pub ca_file: Option<PathBuf>,
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url: _, method, success, timeout, backoff, ca_file } = self;
        f.debug_struct("Webhook")
            .field("url", &self.shown())
            .field("method", method)
            .field("success", success)
            .field("timeout", timeout)
            .field("backoff", backoff)
            .field("ca_file", ca_file)
            .finish()
    }
}

impl Webhook {
    /// Sends the request and returns the status. Follows up to ten redirects, as git-sync does.
    pub(super) async fn send(&self, event: &HookEvent, stop: &CancellationToken) -> Result<u16, Failure> {
        let response = tokio::select! {
            () = after_shutdown_grace(stop) => return Err(Failure::ShutDown),
            response = timeout(self.timeout, self.request(event)) => response.unwrap_or_else(|_| {
                Err(Failure::NoResponse { url: self.shown(), after: self.timeout })
            })?,
        };
        let status = response.status().as_u16();
        // The receiver has decided: a body that is slow or breaks off does not change that.
        let _ = timeout(DRAIN_TIMEOUT, drain(response)).await;
        match self.success {
            Some(wanted) if wanted != status => Err(Failure::Status { url: self.shown(), status, wanted }),
            _ => Ok(status),
        }
    }

    /// Sends the request and returns the response once its head was received.
    async fn request(&self, event: &HookEvent) -> Result<Response, Failure> {
        let tls = tls::config(self.ca_file.clone()).map_err(|error| self.send_failure(error.to_string()))?;
        // A new client each time: a connection would be idle for hours between two publications.
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .user_agent(USER_AGENT)
            .redirect(reqwest::redirect::Policy::limited(10))
            .referer(false);
        let client = if self.url.host_str().is_some_and(tls::is_local) { client.no_proxy() } else { client };
        let client = client.build().map_err(|error| self.request_failure(error))?;
        let request = client.request(self.method.clone(), self.url.clone());
        // Explicit, as some receivers refuse a POST without a Content-Length.
        let request = request.header(HEADER, event.revision.to_string()).header(CONTENT_LENGTH, "0");
        request.send().await.map_err(|error| self.request_failure(error))
    }

    /// Returns the URL with everything but its origin redacted.
    pub(super) fn shown(&self) -> String {
        redact_path(self.url.as_str())
    }

    fn send_failure(&self, why: String) -> Failure {
        Failure::Send { url: self.shown(), why }
    }

    /// Converts an error with the message of its innermost cause, as the outer ones repeat the URL.
    fn request_failure(&self, error: reqwest::Error) -> Failure {
        let error = error.without_url();
        if let Some(problem) = tls::problem(&error) {
            return self.send_failure(format!("TLS: {}", problem.text));
        }
        let mut cause = error.source();
        while let Some(deeper) = cause.and_then(std::error::Error::source) {
            cause = Some(deeper);
        }
        self.send_failure(cause.map_or_else(|| error.to_string(), ToString::to_string))
    }
}

/// Reads the body to its end, to an error, or to [`MAX_RESPONSE_BYTES`].
async fn drain(mut response: Response) {
    let mut read = 0;
    while let Ok(Some(piece)) = response.chunk().await {
        read += piece.len();
        if read > MAX_RESPONSE_BYTES {
            return;
        }
    }
}

/// Completes [`SHUTDOWN_GRACE`] after `stop`.
async fn after_shutdown_grace(stop: &CancellationToken) {
    stop.cancelled().await;
    tokio::time::sleep(SHUTDOWN_GRACE).await;
}
