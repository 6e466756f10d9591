//! The error for a host key that is not trusted, with its reason and hints.

use std::fmt;
use std::path::PathBuf;

/// A host key or host certificate that is not trusted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Distrust {
    /// The server, with its port.
    pub server: String,
    /// The known_hosts file.
    pub file: PathBuf,
    /// The algorithm and fingerprint of the key that the server presented.
    pub shown: String,
    /// The command that prints the server's keys.
    pub scan: String,
    /// Why the key is not trusted.
    pub why: UntrustedReason,
}

/// Why a host key is not trusted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UntrustedReason {
    /// The file has no entry for the server.
    Unknown {
        /// The numbers of lines that cannot be parsed.
        unread: Vec<usize>,
    },
    /// The file has only keys of other algorithms for the server.
    OtherKind {
        /// Those algorithms, with their line numbers.
        known: String,
    },
    /// The file has another key of the same algorithm.
    Changed {
        /// The line of that key.
        line: usize,
        /// Its fingerprint.
        known: String,
    },
    /// The file revokes the key.
    Revoked {
        /// The line that does.
        line: usize,
    },
    /// The certificate is signed by a known authority, but is invalid for this server or at this time.
    Certificate {
        /// What is wrong with it.
        fault: String,
    },
}

impl Distrust {
    /// The file to edit, and the Secret key it comes from in Kubernetes, where it is mounted read-only.
    fn place(&self) -> String {
        format!("{} (in Kubernetes: to the key known_hosts of its Secret)", self.file.display())
    }

    /// Hints for the operator, one line each.
    pub fn hints(&self) -> Vec<String> {
        let add = || {
            format!(
                "if the host publishes this fingerprint, add what `{}` prints to {}",
                self.scan,
                self.place()
            )
        };
        match &self.why {
            UntrustedReason::Unknown { unread } if unread.is_empty() => vec![add()],
            UntrustedReason::Unknown { unread } => {
                let lines: Vec<String> = unread.iter().map(ToString::to_string).collect();
                vec![
                    add(),
                    format!("{} has lines that cannot be read: {}", self.file.display(), lines.join(", ")),
                ]
            }
            UntrustedReason::OtherKind { .. } => vec![add()],
            UntrustedReason::Changed { line, .. } => vec![
                "this may be a man-in-the-middle attack: do not continue until the host's owner confirms the new key"
                    .to_owned(),
                format!(
                    "once confirmed, remove line {line} and add what `{}` prints to {}",
                    self.scan,
                    self.place()
                ),
            ],
            UntrustedReason::Revoked { .. } => {
                vec!["a revoked key may be compromised: ask the host's owner".to_owned()]
            }
            UntrustedReason::Certificate { .. } => {
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
            UntrustedReason::Unknown { .. } => write!(f, "{server} is not in {file}; it showed {shown}"),
            UntrustedReason::OtherKind { known } => {
                write!(f, "{server} showed {shown}, but {file} knows it by {known}")
            }
            UntrustedReason::Changed { line, known } => {
                write!(
                    f,
                    "the host key of {server} changed: it showed {shown}, but {file} line {line} has {known}"
                )
            }
            UntrustedReason::Revoked { line } => {
                write!(f, "{server} showed {shown}, which {file} line {line} revokes")
            }
            UntrustedReason::Certificate { fault } => {
                write!(f, "the host certificate of {server} is invalid: {fault}; it showed {shown}")
            }
        }
    }
}

impl std::error::Error for Distrust {}

/// One of each, for the tests.
#[cfg(test)]
pub(super) fn each() -> Vec<Distrust> {
    let of = |why| Distrust {
        server: "git.example.com:22".into(),
        file: "/etc/git-secret/known_hosts".into(),
        shown: "ssh-ed25519 SHA256:abc".into(),
        scan: "ssh-keyscan git.example.com".into(),
        why,
    };
    let each = vec![
        of(UntrustedReason::Unknown { unread: Vec::new() }),
        of(UntrustedReason::Unknown { unread: vec![3] }),
        of(UntrustedReason::OtherKind { known: "ssh-rsa (line 3)".into() }),
        of(UntrustedReason::Changed { line: 3, known: "SHA256:def".into() }),
        of(UntrustedReason::Revoked { line: 3 }),
        of(UntrustedReason::Certificate { fault: "it is no longer valid".into() }),
    ];
    for Distrust { why, .. } in &each {
        match why {
            UntrustedReason::Unknown { .. }
            | UntrustedReason::OtherKind { .. }
            | UntrustedReason::Changed { .. }
            | UntrustedReason::Revoked { .. }
            | UntrustedReason::Certificate { .. } => {}
        }
    }
    each
}
