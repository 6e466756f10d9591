//! The error type of the wire client. Every variant names the remote with its secrets redacted, and knows whether a
//! retry can help and, in `hints`, what an operator can do.

mod hints;

use std::path::PathBuf;
use std::time::Duration;

use crate::fsx::needs_operator;
use crate::human;
use crate::mirror::error::Libgit2;
use crate::secret;
use crate::tls;

use super::ssh;

/// The capability to leave objects out of a pack. git offers it only with `uploadpack.allowFilter`.
pub(super) const FILTER: &str = "filter";
/// The capability, in protocol version 0, to send objects that no ref names. Version 2 implies it.
pub(super) const ANY_WANT: &str = "allow-any-sha1-in-want";

/// The kind of wait that timed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// For a connection to be established.
    Connect,
    /// For the next byte.
    Idle,
    /// For the operation as a whole.
    Overall,
}

impl Wait {
    /// The flag that sets the limit.
    pub fn flag(self) -> &'static str {
        match self {
            Self::Connect => "--connect-timeout",
            Self::Idle => "--idle-timeout",
            Self::Overall => "--sync-timeout",
        }
    }

    fn phrase(self) -> &'static str {
        match self {
            Self::Connect => "no connection",
            Self::Idle => "silence",
            Self::Overall => "not done",
        }
    }
}

/// The kind of response that exceeded its size limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Budget {
    /// A capability or ref advertisement.
    Refs,
    /// A pack.
    Pack,
}

impl Budget {
    /// The flag that sets the limit.
    pub fn flag(self) -> &'static str {
        match self {
            Self::Refs => "--max-refs-bytes",
            Self::Pack => "--max-fetch-bytes",
        }
    }

    fn phrase(self) -> &'static str {
        match self {
            Self::Refs => "list of references",
            Self::Pack => "pack",
        }
    }
}

/// Why a redirect is not followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unfollowed {
    /// Its target is no URL.
    NotAUrl,
    /// It leads from https to http.
    LeavesTls,
    /// It leads to another scheme, host or port.
    OtherOrigin,
    /// It leads to something else than a repository.
    NoRepository,
    /// It is one of more redirects than are followed.
    TooMany,
    /// It is the answer to a POST.
    AfterQuestion,
}

impl Unfollowed {
    fn phrase(self) -> &'static str {
        match self {
            Self::NotAUrl => "that is not a URL",
            Self::LeavesTls => "that would leave TLS",
            Self::OtherOrigin => "that is another origin (scheme, host or port)",
            Self::NoRepository => "that is not a repository, but possibly a log-in page",
            Self::TooMany => "that is too many redirects",
            Self::AfterQuestion => "a question is not sent after a redirect",
        }
    }
}

/// Why an operation on a remote failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The remote is not of a known form, or is malformed.
    #[error("{remote:?} cannot be a remote: {why}")]
    BadRemote {
        /// The remote as given, without secrets.
        remote: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The git program (`--git`), or something it needs, could not be prepared or started.
    #[error("cannot {act} {} (--git)", program.display())]
    Start {
        /// What failed, as a verb phrase.
        act: &'static str,
        /// The program.
        program: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The git program (`--git`) ended with a failure.
    #[error("{} (--git) could not fetch from {remote}: {status}{}", program.display(), after_colon(said))]
    Program {
        /// The program.
        program: PathBuf,
        /// The remote.
        remote: String,
        /// Its exit status.
        status: std::process::ExitStatus,
        /// The beginning of what it wrote to standard error.
        said: String,
    },
    /// A credential could not be read.
    #[error("no credential for {remote}")]
    Credential {
        /// The remote.
        remote: String,
        /// The cause.
        #[source]
        source: secret::Error,
    },
    /// The credential issuer (the askpass URL, or GitHub) returned no credential.
    #[error("no credential for {remote}")]
    Issuer {
        /// The remote.
        remote: String,
        /// The cause.
        #[source]
        source: Box<super::IssueError>,
    },
    /// The remote has no such ref. (The message uses git's wording: people and scripts search for it.)
    #[error("couldn't find remote ref {name} in {remote}")]
    NoSuchRef {
        /// The ref as the caller gave it.
        name: String,
        /// The remote.
        remote: String,
        /// True if it is known that the remote has other refs.
        has_others: bool,
    },
    /// A wait exceeded its limit.
    #[error("{remote}: {} after {after:?} while {doing} ({})", wait.phrase(), wait.flag())]
    Timeout {
        /// The remote.
        remote: String,
        /// The kind of wait.
        wait: Wait,
        /// Its limit.
        after: Duration,
        /// What was in progress.
        doing: &'static str,
    },
    /// A response exceeded its size limit.
    #[error("{remote}: the {} in its answer exceeds {} ({})", budget.phrase(), human::bytes(*limit), budget.flag())]
    TooMuch {
        /// The remote.
        remote: String,
        /// The kind of response.
        budget: Budget,
        /// Its limit, in bytes.
        limit: u64,
    },
    /// No connection could be established.
    #[error("cannot connect to {remote}")]
    Connect {
        /// The remote.
        remote: String,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No connection could be established through the proxy of the git configuration.
    #[error("cannot connect to {remote} through the proxy {proxy}")]
    Proxy {
        /// The remote.
        remote: String,
        /// The proxy's URL, without userinfo.
        proxy: String,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The TLS handshake failed, for example because the server's certificate is not trusted.
    #[error("TLS with {remote}: {}", problem.text)]
    Tls {
        /// The remote.
        remote: String,
        /// The problem.
        problem: tls::Problem,
    },
    /// The connection failed after it was established.
    #[error("the connection to {remote} broke while {doing}")]
    Broken {
        /// The remote.
        remote: String,
        /// What was in progress.
        doing: &'static str,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The response was truncated.
    #[error("{remote} ended its answer early while {doing}{}", after_colon(said))]
    Cut {
        /// The remote.
        remote: String,
        /// What was in progress.
        doing: &'static str,
        /// What a local `git upload-pack` wrote to standard error; empty for other transports.
        said: String,
    },
    /// The HTTP status is not a success.
    #[error("{remote} answered {status}{}", after_colon(said))]
    Status {
        /// The remote.
        remote: String,
        /// The HTTP status.
        status: u16,
        /// The pause that the server asks for (`Retry-After`), capped at 10 minutes.
        retry_after: Option<Duration>,
        /// The beginning of the response body; empty if it looks like HTML.
        said: String,
    },
    /// The server rejected the credential, or demands one.
    #[error("{remote} answered {status} to {}", tried(username.as_deref(), with))]
    Auth {
        /// The remote.
        remote: String,
        /// The HTTP status.
        status: u16,
        /// The user name that was sent; `None` if no user name and password were.
        username: Option<String>,
        /// What else the request contained that may be a credential.
        with: Vec<String>,
    },
    /// The server sent a redirect that is not followed.
    #[error("{remote} redirects to {to}: {}", why.phrase())]
    Redirect {
        /// The remote.
        remote: String,
        /// The redirect's target, without secrets.
        to: String,
        /// Why it is not followed.
        why: Unfollowed,
    },
    /// The response is not git's protocol.
    #[error("{remote} does not speak git's protocol: its answer begins with \"{said}\"")]
    NotGit {
        /// The remote.
        remote: String,
        /// The first bytes of the response, escaped.
        said: String,
    },
    /// The remote reported an error in an `ERR` packet or on the error side-band.
    #[error("{remote} reports: {said}")]
    Remote {
        /// The remote.
        remote: String,
        /// Its message, escaped.
        said: String,
    },
    /// The remote does not use SHA-1 object ids.
    #[error("{remote} is a {format} repository; only sha1 repositories are supported")]
    ObjectFormat {
        /// The remote.
        remote: String,
        /// The object format that it announced.
        format: String,
    },
    /// The remote lacks a capability that the request needs: its git is too old, or configured without it.
    #[error("{remote} does not offer `{feature}`")]
    Unsupported {
        /// The remote.
        remote: String,
        /// The missing capability.
        feature: &'static str,
    },
    /// A local repository could not be read.
    #[error("cannot read the repository {}", path.display())]
    Local {
        /// The path of the repository.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Libgit2,
    },
    /// This user has no permission to read a local repository.
    #[error("cannot read the repository {}", path.display())]
    LocalDenied {
        /// The path of the repository.
        path: PathBuf,
        /// The error from opening its HEAD.
        #[source]
        source: std::io::Error,
    },
    /// The ssh connection or command failed.
    #[error("ssh to {remote}")]
    Ssh {
        /// The remote.
        remote: String,
        /// The cause.
        #[source]
        source: Box<ssh::Error>,
    },
    /// The sink did not accept the pack; the cause lies with the process that indexes it.
    #[error("the pack from {remote} could not be passed to the indexer")]
    Sink {
        /// The remote.
        remote: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}

fn after_colon(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!(": {said}") }
}

fn tried(username: Option<&str>, with: &[String]) -> String {
    match username {
        None if with.is_empty() => "a request without a credential".into(),
        None => format!("a request with {}", with.join(" and ")),
        Some("") => "the credential without a user name".into(),
        Some(name) => format!("user {name:?}"),
    }
}

impl Error {
    /// Returns true if the same attempt may succeed later without an operator's help.
    pub fn is_transient(&self) -> bool {
        match self {
            // A truncated or garbled response may be intact next time.
            Self::Issuer { .. }
            | Self::Timeout { .. }
            | Self::Connect { .. }
            | Self::Proxy { .. }
            | Self::Broken { .. }
            | Self::Cut { .. }
            | Self::NotGit { .. }
            | Self::Remote { .. }
            | Self::Program { .. }
            | Self::Sink { .. } => true,
            Self::Tls { problem, .. } => problem.transient,
            Self::Ssh { source, .. } => source.is_transient(),
            Self::Status { status, retry_after, .. } => {
                matches!(status, 408 | 425 | 429) || *status >= 500 || retry_after.is_some()
            }
            // NotFound: there is no repository. With class Odb an object is missing, perhaps because a ref moved.
            Self::Local { source, .. } => {
                source.0.code() != git2::ErrorCode::NotFound || source.0.class() == git2::ErrorClass::Odb
            }
            Self::Start { source, .. } => {
                !needs_operator(source.kind()) && source.kind() != std::io::ErrorKind::NotFound
            }
            // A missing ref is a typo or was deleted; it is looked up again nevertheless.
            Self::NoSuchRef { .. }
            | Self::BadRemote { .. }
            | Self::Credential { .. }
            | Self::LocalDenied { .. }
            | Self::TooMuch { .. }
            | Self::Auth { .. }
            | Self::Redirect { .. }
            | Self::ObjectFormat { .. }
            | Self::Unsupported { .. } => false,
        }
    }

    /// Returns true if the remote may have rejected the boundary of the request. git's message on that goes to its
    /// standard error, which HTTP and git:// do not transmit: the answer just ends.
    pub(in crate::mirror) fn may_be_about_boundary(&self) -> bool {
        let is_about_it = |said: &str| said.contains("shallow");
        match self {
            Self::Cut { said, .. } => said.is_empty() || is_about_it(said),
            Self::Remote { said, .. } => is_about_it(said),
            Self::Ssh { source, .. } => match &**source {
                ssh::Error::Command { stderr, .. } => stderr.as_deref().is_none_or(is_about_it),
                _ => false,
            },
            _ => false,
        }
    }

    /// The pause that the server asked for (`Retry-After`), capped so that one response cannot stop us for a day.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
