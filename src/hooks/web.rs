//! Requests: no body, the revision in a header.

use std::error::Error as _;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::Method;
use reqwest::header::CONTENT_LENGTH;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::{Failure, Notice, PATIENCE};
use crate::secret::redact_path;
use crate::tls;

/// The header that holds the revision.
const HEADER: &str = "Gitsync-Hash";

/// How much of an answer is read. Nothing is done with it: but a receiver may fail if it is not read.
const ANSWER: usize = 1 << 20;

const USER_AGENT: &str = concat!("treeswap/", env!("CARGO_PKG_VERSION"));

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Web {
    /// Where to. It may hold a secret, so that only its origin is ever shown.
    pub url: Url,
    /// The method.
    pub method: Method,
    /// The status that counts as success; none: any.
    pub success: Option<u16>,
    /// How long it may take, from the connection to the end of the answer.
    pub timeout: Duration,
    /// Pause after a failure.
    pub backoff: Duration,
    /// Authorities to trust besides the system's.
    pub ca_file: Option<PathBuf>,
}

impl Web {
    /// Sends it, following redirects as git-sync does: up to ten.
    pub(super) async fn send(&self, notice: &Notice, stop: &CancellationToken) -> Result<String, Failure> {
        let exchange = async {
            let tls = tls::config(self.ca_file.clone()).map_err(|error| self.failed(error.to_string()))?;
            // A new one each time: there is no connection worth keeping for hours.
            let client = reqwest::Client::builder()
                .tls_backend_preconfigured(tls)
                .user_agent(USER_AGENT)
                .redirect(reqwest::redirect::Policy::limited(10))
                .referer(false)
                .build()
                .map_err(|error| self.broken(error))?;
            let request = client.request(self.method.clone(), self.url.clone());
            // Said explicitly: some receivers refuse a POST without a length.
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
            () = out_of_patience(stop) => return Err(Failure::Drained),
            answered = tokio::time::timeout(self.timeout, exchange) => answered.unwrap_or_else(|_| {
                Err(Failure::Silent { url: self.shown(), after: self.timeout })
            })?,
        };
        match self.success {
            Some(wanted) if wanted != status => Err(Failure::Status { url: self.shown(), status, wanted }),
            _ => Ok(status.to_string()),
        }
    }

    /// The URL as people may see it.
    pub(super) fn shown(&self) -> String {
        redact_path(self.url.as_str())
    }

    fn failed(&self, why: String) -> Failure {
        Failure::Send { url: self.shown(), why }
    }

    /// The last cause says what happened; those above it repeat the URL.
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

async fn out_of_patience(stop: &CancellationToken) {
    stop.cancelled().await;
    tokio::time::sleep(PATIENCE).await;
}
