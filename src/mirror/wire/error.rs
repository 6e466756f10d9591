//! What can go wrong on the way to the remote. Every variant names the remote without its secrets.

use std::path::PathBuf;
use std::time::Duration;

use crate::fsx::needs_operator;
use crate::human;
use crate::mirror::error::Libgit2;
use crate::secret;
use crate::tls;

use super::ssh;

/// A server that asks for a longer pause is asked again after this one.
const MOST_PAUSE: Duration = Duration::from_secs(60 * 60);

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
    #[error("{remote}: the {} of its answer exceeds {} ({})", budget.words(), human::bytes(*limit), budget.flag())]
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
    #[error("TLS with {remote}: {}", problem.text)]
    Tls {
        /// The remote.
        remote: String,
        /// The problem.
        problem: tls::Problem,
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
    /// The server doesn't speak git's protocol.
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
    /// The remote's git is too old, or configured not to.
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
        source: Libgit2,
    },
    /// A local repository that this user may not read.
    #[error("cannot read the repository {}", path.display())]
    LocalDenied {
        /// Where it is.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
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
    /// Whether the same attempt may succeed later without an operator.
    pub fn is_transient(&self) -> bool {
        match self {
            // An answer cut or garbled on its way may be whole next time.
            Self::Issuer { .. }
            | Self::Timeout { .. }
            | Self::Connect { .. }
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
            // No repository there; an object that is missing may be that of a ref that moved.
            Self::Local { source, .. } => {
                source.0.code() != git2::ErrorCode::NotFound || source.0.class() == git2::ErrorClass::Odb
            }
            Self::Start { source, .. } => {
                !needs_operator(source.kind()) && source.kind() != std::io::ErrorKind::NotFound
            }
            // A ref that is not there is a typing error, or was deleted; it is looked for all the same.
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

    /// How long the server asks to be left alone, as far as it is heeded: one answer does not stop us for a day.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => retry_after.map(|asked| asked.min(MOST_PAUSE)),
            _ => None,
        }
    }

    /// What an operator can do, a line each.
    pub fn hints(&self) -> Vec<String> {
        let hint = |text: &str| vec![text.to_owned()];
        match self {
            Self::NoSuchRef { name, .. } if name == "HEAD" => {
                hint("an empty repository has no HEAD; push a commit, or name the ref to follow with --ref")
            }
            Self::NoSuchRef { name, .. } if name.len() < 40 && is_hex(name) => {
                hint("check --ref; a commit id is followed only if it is complete (40 digits)")
            }
            Self::Start { .. } => {
                hint("--git names a program that this user can run; without --git none is needed")
            }
            Self::NoSuchRef { .. } => hint("check --ref; `git ls-remote` lists what the remote has"),
            Self::Timeout { wait, .. } => vec![format!("raise {} if the remote is merely slow", wait.flag())],
            Self::Connect { .. } if PROXIES.iter().any(|name| std::env::var_os(name).is_some()) => {
                hint("the environment names a proxy; it may be what cannot be reached")
            }
            Self::Connect { .. } => hint(
                "check the URL's host and port, and that name resolution and network policies let this machine reach it",
            ),
            Self::TooMuch { budget, .. } => {
                vec![format!("raise {} if the repository is really that large", budget.flag())]
            }
            Self::Tls { problem, .. } => hint(problem.hint),
            Self::Status { status: 404 | 410, .. } => {
                hint("the repository does not exist, or the credential has no permission to see it")
            }
            Self::Status { status: 407, .. } => hint("the proxy named by the environment wants a credential"),
            Self::Status { status: 408 | 425 | 429, .. } => {
                hint("the server wants to be asked less often: raise --period")
            }
            Self::Status { status: 500.., .. } => hint("look at the server, and at proxies in front of it"),
            Self::Status { .. } => {
                hint("check the URL: it is what `git clone` takes, not a page's or a file's")
            }
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
            Self::Remote { .. } => hint("these are the server's own words; its log has more"),
            Self::Broken { .. } | Self::Cut { .. } => {
                hint("if it lasts, look at the server's log, and at proxies in between that end long answers")
            }
            Self::BadRemote { .. } => hint(
                "write https://HOST/PATH, ssh://USER@HOST/PATH, USER@HOST:PATH, git://HOST/PATH or a local path",
            ),
            Self::Program { .. } => {
                hint("run the same command by hand as this user; without --git no program is needed")
            }
            Self::Unsupported { .. } => {
                hint("the server needs git 2.26 or newer, with protocol version 2 allowed")
            }
            Self::Sink { .. } => {
                hint("the process that indexes the pack ended: look at memory and the mirror's volume")
            }
            Self::Redirect { .. } => {
                hint("no credential was sent there; if it is right, give that URL as --repo")
            }
            Self::NotGit { .. } => hint("check the URL; a log-in page or a proxy may be answering"),
            Self::ObjectFormat { .. } => hint("the server must offer a sha1 repository"),
            Self::Local { .. } | Self::LocalDenied { .. } => {
                hint("check the path, and that the user treeswap runs as may read it")
            }
            Self::Ssh { source, .. } => source.hints(),
            Self::Issuer { source, .. } => source.hints(),
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

#[cfg(test)]
mod tests;
