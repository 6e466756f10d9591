//! Why a server's host key isn't trusted.

use std::fmt;
use std::path::PathBuf;

/// A host key, or certificate, that isn't trusted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Distrust {
    /// The server, with its port.
    pub server: String,
    /// The file of known hosts.
    pub file: PathBuf,
    /// What it showed: the key's kind and fingerprint.
    pub shown: String,
    /// The command that adds the server to the file.
    pub scan: String,
    /// Why it isn't trusted.
    pub why: Why,
}

/// Why a host key isn't trusted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Why {
    /// The file says nothing about the server.
    Unknown {
        /// Lines that cannot be read.
        unread: Vec<usize>,
    },
    /// The file knows the server by keys of other kinds only.
    OtherKind {
        /// Those kinds, with their lines.
        known: String,
    },
    /// The file knows another key of the same kind.
    Changed {
        /// The line that holds it.
        line: usize,
        /// Its fingerprint.
        known: String,
    },
    /// The file says that this key must not be trusted.
    Revoked {
        /// The line that says so.
        line: usize,
    },
    /// The certificate of a known authority doesn't hold for this server, or not now.
    Certificate {
        /// What is wrong with it.
        fault: String,
    },
}

impl Distrust {
    /// What a person can do, a line each.
    pub fn hints(&self) -> Vec<String> {
        let add = || format!("if the host publishes this fingerprint, add the key with `{}`", self.scan);
        match &self.why {
            Why::Unknown { unread } if unread.is_empty() => vec![add()],
            Why::Unknown { unread } => {
                let lines: Vec<String> = unread.iter().map(ToString::to_string).collect();
                vec![
                    add(),
                    format!("{} has lines that cannot be read: {}", self.file.display(), lines.join(", ")),
                ]
            }
            Why::OtherKind { .. } => vec![add()],
            Why::Changed { line, .. } => vec![
                "somebody may be listening in: don't go on before the host's owner confirms the new key"
                    .to_owned(),
                format!("once confirmed, remove line {line} and add the new key with `{}`", self.scan),
            ],
            Why::Revoked { .. } => {
                vec![
                    "whoever revoked it thinks that it is in the wrong hands: ask the host's owner"
                        .to_owned(),
                ]
            }
            Why::Certificate { .. } => {
                vec!["the host needs a new certificate, or this machine's clock is wrong".to_owned()]
            }
        }
    }
}

impl fmt::Display for Distrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, shown, .. } = self;
        let file = self.file.display();
        match &self.why {
            Why::Unknown { .. } => write!(f, "{server} is not in {file}; it showed {shown}"),
            Why::OtherKind { known } => write!(f, "{server} showed {shown}, but {file} knows it by {known}"),
            Why::Changed { line, known } => {
                write!(
                    f,
                    "the host key of {server} changed: it showed {shown}, but {file} line {line} has {known}"
                )
            }
            Why::Revoked { line } => write!(f, "{server} showed {shown}, which {file} line {line} revokes"),
            Why::Certificate { fault } => {
                write!(f, "the host certificate of {server} doesn't hold: {fault}; it showed {shown}")
            }
        }
    }
}

impl std::error::Error for Distrust {}
