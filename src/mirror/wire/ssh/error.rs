//! The error type of the ssh transport.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::Distrust;

/// Why an ssh operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection could not be established: name resolution, routing, or nothing listens.
    #[error("cannot connect to {host} port {port}")]
    Connect {
        /// The host as given.
        host: String,
        /// The port.
        port: u16,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A step exceeded its deadline.
    #[error("{step} with {server} took longer than {after:?} ({flag})")]
    Timeout {
        /// The step, as a noun phrase.
        step: &'static str,
        /// The server, with its port.
        server: String,
        /// The deadline that passed.
        after: Duration,
        /// The flag that sets the deadline.
        flag: &'static str,
    },
    /// The server closed the connection, or violated the protocol.
    #[error("{step} with {server} failed")]
    Broken {
        /// The step, as a noun phrase.
        step: &'static str,
        /// The server, with its port.
        server: String,
        /// The protocol error, or the server's disconnect message.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The two sides have no algorithm in common.
    #[error("{server} offers no {kind} that treeswap supports: {theirs}")]
    NoCommonAlgorithm {
        /// The server, with its port.
        server: String,
        /// The kind of algorithm: host key, key exchange, cipher, ...
        kind: String,
        /// The algorithms that the server offers.
        theirs: String,
    },

    /// None of the key files exists.
    #[error("no ssh key: {} not found", list(.files))]
    NoKeys {
        /// The files that were tried.
        files: Vec<PathBuf>,
    },
    /// A key file exists but cannot be read.
    #[error("cannot read the ssh key {}", file.display())]
    ReadKey {
        /// The file.
        file: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A key is protected by a passphrase.
    #[error("the ssh key {} is encrypted", file.display())]
    EncryptedKey {
        /// The file.
        file: PathBuf,
    },
    /// A file is not a private key, or one of an unsupported kind.
    #[error("cannot read {} as a private key: {why}", file.display())]
    BadKey {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The server accepted none of the keys.
    #[error("{server} refused {user} with {}{}", tried(.keys), words(.said.as_deref()))]
    Denied {
        /// The server, with its port.
        server: String,
        /// The user.
        user: String,
        /// The keys offered: file and fingerprint.
        keys: Vec<String>,
        /// The server's disconnect message.
        said: Option<String>,
    },

    /// The known_hosts file cannot be read.
    #[error("cannot read the known hosts in {}", file.display())]
    ReadKnownHosts {
        /// The file.
        file: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
        /// The command whose output to put into it.
        scan: String,
    },
    /// A line with `@revoked` cannot be parsed. Ignoring it would trust a revoked key.
    #[error("{} line {line}: {why}", file.display())]
    BadKnownHosts {
        /// The file.
        file: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// The server's host key is not trusted.
    #[error(transparent)]
    HostKey(Box<Distrust>),

    /// The server did not start the command.
    #[error("{server} didn't run `{command}`")]
    NotRun {
        /// The server, with its port.
        server: String,
        /// The command.
        command: String,
    },
    /// The command failed.
    #[error("`{command}` on {server} ended with {status}{}", words(.stderr.as_deref()))]
    Command {
        /// The server, with its port.
        server: String,
        /// The command.
        command: String,
        /// Its exit status, or the signal that ended it.
        status: String,
        /// The beginning of its standard error.
        stderr: Option<String>,
    },
}

impl Error {
    /// Returns true if the same attempt may succeed later without an operator's help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Timeout { .. } | Self::Broken { .. } | Self::NotRun { .. } => true,
            // A hosting service's reply under load looks the same as that for a missing repository.
            Self::Command { .. } => true,
            _ => false,
        }
    }

    /// Hints for the operator, one line each.
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::Timeout { flag, .. } => vec![format!("{flag} gives it more time")],
            Self::NoKeys { .. } => {
                vec!["name the private key with --ssh-key-file; it may be given several times".to_owned()]
            }
            Self::ReadKey { source, .. } if source.kind() == io::ErrorKind::IsADirectory => {
                vec!["it is a directory: name a file in it".to_owned()]
            }
            Self::ReadKey { .. } => {
                vec![
                    "the file must be readable by the user that treeswap runs as (fsGroup, or defaultMode)"
                        .to_owned(),
                ]
            }
            Self::EncryptedKey { file } => vec![format!(
                "passphrases are not supported: use a key without one \
                 (`ssh-keygen -p -N '' -f {}` removes it)",
                file.display()
            )],
            Self::BadKey { file, .. } if file.extension().is_some_and(|extension| extension == "pub") => {
                vec!["name the file without .pub".to_owned()]
            }
            Self::BadKey { .. } => vec![
                "OpenSSH, PKCS#1 and PKCS#8 files of ed25519, ecdsa and rsa keys are understood".to_owned(),
                "a key pasted into a Secret often lost its line breaks".to_owned(),
            ],
            Self::Denied { user, .. } => vec![
                format!(
                    "add one of these keys to the repository as a deploy key, or to the account {user} uses"
                ),
                "--ssh-key-file names other keys".to_owned(),
            ],
            Self::NoCommonAlgorithm { .. } => {
                vec!["the server is too old or too strict; SHA-1 signatures are not taken".to_owned()]
            }
            Self::ReadKnownHosts { scan, .. } => vec![
                format!(
                    "write what `{scan}` prints to a file, and compare the fingerprints with those the host publishes; \
                     --ssh-known-hosts-file names that file"
                ),
                "in Kubernetes it is the key known_hosts of the Secret that is mounted there".to_owned(),
            ],
            Self::BadKnownHosts { .. } => vec!["fix or remove the line".to_owned()],
            Self::HostKey(distrust) => distrust.hints(),
            Self::Connect { .. } => vec![
                "check the URL's host and port, and that name resolution and network policies let this machine reach it"
                    .to_owned(),
            ],
            Self::Broken { .. } => {
                vec!["if it persists, check the server's log: it may refuse more connections".to_owned()]
            }
            Self::NotRun { .. } | Self::Command { .. } => vec![
                "check the URL's path, and that this key's account may read the repository there".to_owned(),
            ],
        }
    }
}

fn list(files: &[PathBuf]) -> String {
    files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn tried(keys: &[String]) -> String {
    match keys {
        [one] => format!("the key {one}"),
        many => format!("the keys {}", many.join(", ")),
    }
}

fn words(text: Option<&str>) -> String {
    text.map(|text| format!(": {text}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::human::assert_message_style;

    #[test]
    fn every_variant_is_one_line_and_says_what_to_do() {
        let text = || "x".to_owned();
        let file = || PathBuf::from("/etc/git-secret/ssh");
        let io = || io::Error::from(io::ErrorKind::PermissionDenied);
        let distrust = super::super::distrust::each().into_iter().map(|why| Error::HostKey(Box::new(why)));
        let each = [
            Error::Connect { host: text(), port: 22, source: io() },
            Error::Timeout {
                step: "the handshake",
                server: text(),
                after: Duration::from_secs(3),
                flag: "--connect-timeout",
            },
            Error::Broken { step: "the handshake", server: text(), source: Box::new(io()) },
            Error::NoCommonAlgorithm { server: text(), kind: "cipher".into(), theirs: "des".into() },
            Error::NoKeys { files: vec![file()] },
            Error::ReadKey { file: file(), source: io() },
            Error::ReadKey { file: file(), source: io::ErrorKind::IsADirectory.into() },
            Error::EncryptedKey { file: file() },
            Error::BadKey { file: file(), why: "it is empty".into() },
            Error::BadKey { file: file().with_extension("pub"), why: "it is a public key".into() },
            Error::Denied { server: text(), user: "git".into(), keys: vec![text()], said: None },
            Error::ReadKnownHosts { file: file(), source: io(), scan: "ssh-keyscan x".into() },
            Error::BadKnownHosts { file: file(), line: 3, why: "it is cut".into() },
            Error::NotRun { server: text(), command: text() },
            Error::Command { server: text(), command: text(), status: "exit status 1".into(), stderr: None },
        ];
        for error in each.into_iter().chain(distrust) {
            match error {
                Error::Connect { .. }
                | Error::Timeout { .. }
                | Error::Broken { .. }
                | Error::NoCommonAlgorithm { .. }
                | Error::NoKeys { .. }
                | Error::ReadKey { .. }
                | Error::EncryptedKey { .. }
                | Error::BadKey { .. }
                | Error::Denied { .. }
                | Error::ReadKnownHosts { .. }
                | Error::BadKnownHosts { .. }
                | Error::HostKey(_)
                | Error::NotRun { .. }
                | Error::Command { .. } => {}
            }
            assert_message_style(&error, &error.hints());
        }
    }
}
