//! Sends a request as a hook: without a body, with the revision in a header.

use std::error::Error as _;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::Method;
use reqwest::header::CONTENT_LENGTH;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::{Failure, Notice, SHUTDOWN_GRACE};
use crate::secret::redact_path;
use crate::tls;

/// The header that holds the revision.
const HEADER: &str = "Gitsync-Hash";

/// How many bytes of a response are read. They are discarded, but a receiver may fail if nobody reads its response.
const ANSWER: usize = 1 << 20;

const USER_AGENT: &str = concat!("treeswap/", env!("CARGO_PKG_VERSION"));

/// A request to send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Web {
    /// The receiver's URL. It may hold a secret, so only its origin is ever shown.
    pub url: Url,
    /// The method.
    pub method: Method,
    /// The status that counts as success; `None`: any.
    pub success: Option<u16>,
    /// How long it may take, from the connection to the end of the response.
    pub timeout: Duration,
    /// The wait after a failure.
    pub backoff: Duration,
    /// A PEM file of certificate authorities to trust besides the system's.
    pub ca_file: Option<PathBuf>,
}

impl Web {
    /// Sends the request and returns the status. Follows up to ten redirects, as git-sync does.
    pub(super) async fn send(&self, notice: &Notice, stop: &CancellationToken) -> Result<String, Failure> {
        let exchange = async {
            let tls = tls::config(self.ca_file.clone()).map_err(|error| self.failed(error.to_string()))?;
            // A new client each time: a connection would be idle for hours between two publications.
            let client = reqwest::Client::builder()
                .tls_backend_preconfigured(tls)
                .user_agent(USER_AGENT)
                .redirect(reqwest::redirect::Policy::limited(10))
                .referer(false)
                .build()
                .map_err(|error| self.broken(error))?;
            let request = client.request(self.method.clone(), self.url.clone());
            // Explicit, as some receivers refuse a POST without a Content-Length.
            let request = request.header(HEADER, notice.revision.to_string()).header(CONTENT_LENGTH, "0");
            let mut answer = request.send().await.map_err(|error| self.broken(error))?;
            let mut read = 0;
            while let Some(piece) = answer.chunk().await.map_err(|error| self.broken(error))? {
                read += piece.len();
                if read > ANSWER {
                    break;
                }
            }
            Ok(answer.status().as_u16())
        };
        let status = tokio::select! {
            () = after_shutdown_grace(stop) => return Err(Failure::Drained),
            answered = tokio::time::timeout(self.timeout, exchange) => answered.unwrap_or_else(|_| {
                Err(Failure::Silent { url: self.shown(), after: self.timeout })
            })?,
        };
        match self.success {
            Some(wanted) if wanted != status => Err(Failure::Status { url: self.shown(), status, wanted }),
            _ => Ok(status.to_string()),
        }
    }

    /// Returns the URL with everything but its origin redacted.
    pub(super) fn shown(&self) -> String {
        redact_path(self.url.as_str())
    }

    fn failed(&self, why: String) -> Failure {
        Failure::Send { url: self.shown(), why }
    }

    /// Converts an error with the message of its innermost cause, as the outer ones repeat the URL.
    fn broken(&self, error: reqwest::Error) -> Failure {
        let error = error.without_url();
        if let Some(problem) = tls::problem(&error) {
            return self.failed(format!("TLS: {}", problem.text));
        }
        let mut cause = error.source();
        while let Some(deeper) = cause.and_then(std::error::Error::source) {
            cause = Some(deeper);
        }
        self.failed(cause.map_or_else(|| error.to_string(), ToString::to_string))
    }
}

/// Completes [`SHUTDOWN_GRACE`] after `stop`.
async fn after_shutdown_grace(stop: &CancellationToken) {
    stop.cancelled().await;
    tokio::time::sleep(SHUTDOWN_GRACE).await;
}
