//! Why a hook failed.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use super::Kind;
use crate::revision::Revision;

/// A hook failed for a revision.
#[derive(Debug, thiserror::Error)]
#[error("{} failed for {}", kind.label(), revision.short())]
pub struct Error {
    /// The hook.
    pub kind: Kind,
    /// The revision.
    pub revision: Revision,
    /// Why.
    #[source]
    pub why: Failure,
}

/// Why.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// No process.
    #[error("cannot run {} in {}", program.display(), dir.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The generation's directory.
        dir: PathBuf,
        /// The kernel's answer.
        #[source]
        source: std::io::Error,
    },
    /// It ended otherwise than with exit code 0.
    #[error("{} ended with {status}{}", program.display(), said(output))]
    Ended {
        /// The program.
        program: PathBuf,
        /// How.
        status: ExitStatus,
        /// The end of what it said.
        output: String,
    },
    /// It took too long and was killed.
    #[error("{} was killed after {after:?}{}", program.display(), said(output))]
    Timeout {
        /// The program.
        program: PathBuf,
        /// Its limit.
        after: Duration,
        /// The end of what it said.
        output: String,
    },
    /// No answer.
    #[error("no answer from {url} within {after:?}")]
    Silent {
        /// The receiver, without what may be secret.
        url: String,
        /// The limit.
        after: Duration,
    },
    /// No connection, or a broken one.
    #[error("cannot send to {url}: {why}")]
    Send {
        /// The receiver, without what may be secret.
        url: String,
        /// Why.
        why: String,
    },
    /// Another status than the one that counts as success.
    #[error("{url} answered {status}, not {wanted}")]
    Status {
        /// The receiver, without what may be secret.
        url: String,
        /// What it answered.
        status: u16,
        /// What was wanted.
        wanted: u16,
    },
    /// The process was asked to end.
    #[error("it was ended, because the process was asked to end")]
    Drained,
    /// The system gave us no pipe, or lost a process.
    #[error("cannot {act}")]
    System {
        /// What was tried.
        act: &'static str,
        /// The kernel's answer.
        #[source]
        source: std::io::Error,
    },
}

fn said(output: &str) -> String {
    if output.is_empty() { String::new() } else { format!(": {output}") }
}

impl Error {
    /// What a person can do, a line each.
    pub fn hints(&self) -> Vec<String> {
        let name = self.kind.label();
        match &self.why {
            Failure::Start { source, .. } if source.kind() == std::io::ErrorKind::NotFound => vec![format!(
                "--{name}-command is one program, without arguments and without a shell; a path with a slash is relative to \
                 the generation"
            )],
            Failure::Start { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
                vec![
                    "it must be executable for the user treeswap runs as, on a file system without noexec"
                        .to_owned(),
                ]
            }
            Failure::Timeout { .. } | Failure::Silent { .. } => {
                vec![format!("raise --{name}-timeout if it may take that long")]
            }
            Failure::Status { .. } => {
                vec![format!("--{name}-success-status says which status is success; 0 takes any")]
            }
            _ => Vec::new(),
        }
    }
}
