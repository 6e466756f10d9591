//! What can go wrong on the way to the remote. Every variant names the remote without its secrets.

use std::path::PathBuf;
use std::time::Duration;

use crate::secret::{self, Secret};

use super::ssh;

/// Which wait was too long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// For a connection.
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

    fn words(self) -> &'static str {
        match self {
            Self::Connect => "no connection",
            Self::Idle => "silence",
            Self::Overall => "not done",
        }
    }
}

/// Which answer was too long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Budget {
    /// Capabilities and references.
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

    fn words(self) -> &'static str {
        match self {
            Self::Refs => "references",
            Self::Pack => "pack",
        }
    }
}

/// What went wrong on the way to the remote.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The remote's form is not one we know.
    #[error("{remote:?} cannot be a remote: {why}")]
    BadRemote {
        /// As given, without secrets.
        remote: String,
        /// Why.
        why: &'static str,
    },
    /// The program that fetches could not be run.
    #[error("cannot {act} {} (--git)", program.display())]
    Start {
        /// What was tried.
        act: &'static str,
        /// The program.
        program: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The program that fetches failed.
    #[error("{} (--git) could not fetch from {remote}: {status}{}", program.display(), after_colon(said))]
    Program {
        /// The program.
        program: PathBuf,
        /// The remote.
        remote: String,
        /// How it ended.
        status: std::process::ExitStatus,
        /// What it wrote to its standard error, the beginning.
        said: String,
    },
    /// A credential could not be read.
    #[error("no credential for {remote}")]
    Credential {
        /// The remote.
        remote: String,
        /// Why.
        #[source]
        source: secret::Error,
    },
    /// Who issues credentials did not.
    #[error("no credential for {remote}")]
    Issuer {
        /// The remote.
        remote: String,
        /// Why.
        #[source]
        source: Box<super::Unissued>,
    },
    /// The remote has no such ref. (The words are git's: people and scripts look for them.)
    #[error("couldn't find remote ref {name} in {remote}")]
    NoSuchRef {
        /// The ref as asked.
        name: String,
        /// The remote.
        remote: String,
    },
    /// A wait was too long.
    #[error("{remote}: {} after {after:?} while {doing} ({})", wait.words(), wait.flag())]
    Timeout {
        /// The remote.
        remote: String,
        /// Which wait.
        wait: Wait,
        /// Its limit.
        after: Duration,
        /// What was under way.
        doing: &'static str,
    },
    /// An answer was too long.
    #[error("{remote}: the {} of its answer exceeds {limit} bytes ({})", budget.words(), budget.flag())]
    TooMuch {
        /// The remote.
        remote: String,
        /// Which budget.
        budget: Budget,
        /// Its limit.
        limit: u64,
    },
    /// No connection.
    #[error("cannot connect to {remote}")]
    Connect {
        /// The remote.
        remote: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The remote's certificate, or our roots, won't do.
    #[error("TLS with {remote}: {problem}")]
    Tls {
        /// The remote.
        remote: String,
        /// The problem in words.
        problem: String,
        /// Whether a network in between may be the cause.
        transient: bool,
    },
    /// The connection broke.
    #[error("the connection to {remote} broke while {doing}")]
    Broken {
        /// The remote.
        remote: String,
        /// What was under way.
        doing: &'static str,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The answer ended before its end.
    #[error("{remote} ended its answer early while {doing}{}", after_colon(said))]
    Cut {
        /// The remote.
        remote: String,
        /// What was under way.
        doing: &'static str,
        /// What the other side wrote to its standard error, if we can see it.
        said: String,
    },
    /// Not answered with success.
    #[error("{remote} answered {status}{}", after_colon(said))]
    Status {
        /// The remote.
        remote: String,
        /// The HTTP status.
        status: u16,
        /// How long the server asks to be left alone.
        retry_after: Option<Duration>,
        /// The beginning of the answer's text.
        said: String,
    },
    /// Refused for want of a right credential.
    #[error("{remote} answered {status} to {}", tried(username.as_deref()))]
    Auth {
        /// The remote.
        remote: String,
        /// The HTTP status.
        status: u16,
        /// The user name that was tried, if any.
        username: Option<String>,
    },
    /// Sent elsewhere, where we don't go.
    #[error("{remote} redirects to {to}: {why}")]
    Redirect {
        /// The remote.
        remote: String,
        /// Where it points, without secrets.
        to: String,
        /// Why we don't follow.
        why: &'static str,
    },
    /// Whoever answered doesn't speak git's protocol.
    #[error("{remote} does not speak git's protocol: its answer begins with \"{said}\"")]
    NotGit {
        /// The remote.
        remote: String,
        /// The first bytes, escaped.
        said: String,
    },
    /// The remote itself reported an error.
    #[error("{remote} says: {said}")]
    Remote {
        /// The remote.
        remote: String,
        /// Its words, escaped.
        said: String,
    },
    /// SHA-256 object ids.
    #[error("{remote} is a {format} repository; only sha1 repositories are supported")]
    ObjectFormat {
        /// The remote.
        remote: String,
        /// What it says it is.
        format: String,
    },
    /// The remote's git is too old, or is told not to.
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
        /// Where it should be.
        path: PathBuf,
        /// Why.
        #[source]
        source: git2::Error,
    },
    /// ssh has words of its own.
    #[error("ssh to {remote}")]
    Ssh {
        /// The remote.
        remote: String,
        /// Why.
        #[source]
        source: Box<ssh::Error>,
    },
    /// The pack could not be handed on; the reason is on that side.
    #[error("the pack from {remote} could not be handed on")]
    Sink {
        /// The remote.
        remote: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

fn after_colon(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!(": {said}") }
}

fn tried(username: Option<&str>) -> String {
    match username {
        None => "a request without a credential".into(),
        Some("") => "the credential without a user name".into(),
        Some(name) => format!("user {name:?}"),
    }
}

impl Error {
    /// Whether the same attempt may succeed later without a person.
    pub fn is_transient(&self) -> bool {
        match self {
            // Refs come and go; an answer cut or garbled on its way may be whole next time.
            Self::NoSuchRef { .. }
            | Self::Issuer { .. }
            | Self::Timeout { .. }
            | Self::Connect { .. }
            | Self::Broken { .. }
            | Self::Cut { .. }
            | Self::NotGit { .. }
            | Self::Remote { .. }
            | Self::Start { .. }
            | Self::Program { .. }
            | Self::Sink { .. } => true,
            Self::Tls { transient, .. } => *transient,
            Self::Ssh { source, .. } => source.is_transient(),
            Self::Status { status, retry_after, .. } => {
                matches!(status, 408 | 425 | 429) || *status >= 500 || retry_after.is_some()
            }
            // No repository there; an object that is missing may be that of a ref that moved.
            Self::Local { source, .. } => {
                source.code() != git2::ErrorCode::NotFound || source.class() == git2::ErrorClass::Odb
            }
            Self::BadRemote { .. }
            | Self::Credential { .. }
            | Self::TooMuch { .. }
            | Self::Auth { .. }
            | Self::Redirect { .. }
            | Self::ObjectFormat { .. }
            | Self::Unsupported { .. } => false,
        }
    }

    /// The error without these secrets: what a server says is its own choice, and it has just been told them.
    pub(super) fn without(mut self, secrets: &[Secret]) -> Self {
        let (Self::Status { said, .. }
        | Self::Program { said, .. }
        | Self::NotGit { said, .. }
        | Self::Remote { said, .. }
        | Self::Redirect { to: said, .. }) = &mut self
        else {
            return self;
        };
        for secret in secrets.iter().filter(|secret| !secret.expose().is_empty()) {
            let escaped = secret.expose().as_bytes().escape_ascii().to_string();
            *said = said.replace(secret.expose(), "[redacted]").replace(&escaped, "[redacted]");
        }
        self
    }

    /// How long the server asks to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// What a person can do, a line each.
    pub fn hints(&self) -> Vec<String> {
        let hint = |text: &str| vec![text.to_owned()];
        match self {
            Self::NoSuchRef { name, .. } if name == "HEAD" => {
                hint("an empty repository has no HEAD; push a commit, or name the ref to follow with --ref")
            }
            Self::NoSuchRef { name, .. } if name.len() < 40 && is_hex(name) => {
                hint("check --ref; a commit id is followed only if it is complete (40 digits)")
            }
            Self::Start { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                hint("without --git no program is needed")
            }
            Self::NoSuchRef { .. } => hint("check --ref; `git ls-remote` lists what the remote has"),
            Self::Timeout { wait, .. } => vec![format!("raise {} if the remote is merely slow", wait.flag())],
            Self::Connect { .. } if PROXIES.iter().any(|name| std::env::var_os(name).is_some()) => {
                hint("the environment names a proxy; it may be what cannot be reached")
            }
            Self::TooMuch { budget, .. } => {
                vec![format!("raise {} if the repository is really that large", budget.flag())]
            }
            Self::Tls { .. } => hint("a private certificate authority is trusted with --ca-file"),
            Self::Status { status: 404 | 410, .. } => {
                hint("the repository does not exist, or the credential has no permission to see it")
            }
            Self::Status { status: 407, .. } => hint("the proxy named by the environment wants a credential"),
            Self::Auth { username: None, .. } => hint(
                "give a credential with --username and --password-file, or with --credential for this URL",
            ),
            Self::Auth { .. } => {
                hint("check the user name, and that the password or token is valid and may read")
            }
            Self::Credential { .. } => hint(
                "the file must exist, and the user treeswap runs as must be able to read it; it is read at every attempt",
            ),
            Self::Remote { said, .. } if said.contains("not our ref") => hint(
                "the remote has no such commit, or does not hand out commits that no branch or tag leads to",
            ),
            Self::Redirect { .. } => {
                hint("no credential was sent there; if it is right, give that URL as the remote")
            }
            Self::NotGit { .. } => hint("check the URL; a log-in page or a proxy may be answering"),
            Self::ObjectFormat { .. } => hint("the server must offer a sha1 repository"),
            Self::Local { .. } => hint("check the path, and that the user treeswap runs as may read it"),
            Self::Ssh { source, .. } => source.hints(),
            Self::Issuer { source, .. } => source.hints(),
            _ => Vec::new(),
        }
    }
}

/// Digits that may be the beginning of a commit id.
fn is_hex(name: &str) -> bool {
    name.len() >= 4 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Where a proxy is named.
const PROXIES: [&str; 6] =
    ["https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"];

/// At most `limit` bytes as printable ASCII, so that no answer can play with a terminal or a log.
pub(super) fn escaped(bytes: &[u8], limit: usize) -> String {
    let text = &bytes[..bytes.len().min(limit)];
    let more = if bytes.len() > limit { "..." } else { "" };
    format!("{}{more}", text.escape_ascii())
}
