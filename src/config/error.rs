//! Errors of the configuration: each message is one line that names the flag or variable, and hints say what to do.

use std::io;
use std::path::Path;

use crate::fsx;

/// Why a configuration is invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The value cannot be parsed or is out of range.
    #[error("invalid value {value:?} for {name}: {why}")]
    Value {
        /// The flag or variable.
        name: String,
        /// The value as it was given.
        value: String,
        /// What is wrong with it.
        why: String,
    },
    /// The value is invalid, and must not be shown because it may hold a secret.
    #[error("invalid value for {name}: {why}")]
    HiddenValue {
        /// The flag or variable.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// The remote is not a URL or path that is supported.
    #[error("invalid value for {name}")]
    Remote {
        /// The flag or variable.
        name: String,
        /// What is wrong with it.
        #[source]
        source: Box<crate::mirror::wire::Error>,
    },
    /// `--sources` names no file of text, or an invalid one.
    #[error("{name}={file}")]
    Sources {
        /// The flag or variable.
        name: String,
        /// The file, and what is wrong with it.
        file: crate::sources::BadFile,
    },
    /// A path cannot be used: nothing that can be read is there, or it leads through names that a commit controls or
    /// that treeswap owns.
    #[error("invalid value {value:?} for {name}: {why}")]
    Place {
        /// The flag or variable.
        name: String,
        /// The path as it was given.
        value: String,
        /// Why it cannot be used.
        why: String,
        /// Which paths can be used.
        hint: &'static str,
    },
    /// What a path names cannot be read now, for a reason that says nothing about the path: a permission is missing, a
    /// file system is gone or gives no answer, or somebody is writing the file.
    #[error("cannot {act} {value} ({name})")]
    Unread {
        /// The operation, in words that follow "cannot".
        act: &'static str,
        /// The flag or variable.
        name: String,
        /// The path as it was given.
        value: String,
        /// The error of the system call.
        #[source]
        source: io::Error,
    },
    /// Two flags were given that exclude each other.
    #[error("{one} and {other} exclude each other")]
    Conflict {
        /// One of the flags.
        one: String,
        /// The other flag.
        other: String,
    },
    /// A flag has no meaning without another one.
    #[error("{one} needs {other}")]
    Needs {
        /// The flag that was given.
        one: String,
        /// The flag that is missing.
        other: String,
    },
    /// A required flag is missing.
    #[error("{name} is required")]
    Required {
        /// The flag.
        name: String,
        /// The variable, or the flags that can be given instead.
        hint: String,
    },
    /// A password was given as an argument, which every process of the machine can read.
    #[error("{what} is refused: every process of the machine can read it")]
    Password {
        /// The flag or the part of its value that holds the password.
        what: &'static str,
        /// What to do instead.
        hint: String,
    },
    /// A feature of git-sync v3 or v4 that treeswap does not have.
    #[error("{name} is not supported")]
    Unsupported {
        /// The flag and its value.
        name: String,
        /// What to do instead.
        hint: &'static str,
    },
}

impl Error {
    /// The error for what the flag `name` names and that cannot be read: the one that `wrong` makes of the reason if
    /// something else has to be given. What else prevents the reading may pass.
    pub fn unread(name: &str, path: &Path, error: io::Error, wrong: impl FnOnce(String) -> Self) -> Self {
        // The content is no text, or longer than any that is accepted. No system call's error has one of these kinds.
        let is_malformed = matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::Other);
        if is_malformed || fsx::is_misnamed(error.kind()) {
            return wrong(format!("cannot read it: {error}"));
        }
        let (name, value) = (name.to_owned(), path.display().to_string());
        Self::Unread { act: "read", name, value, source: error }
    }

    /// Returns true if the same configuration may be valid later, without a change to it.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Unread { .. })
    }

    /// What an operator can do about it, one line per hint.
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::Unread { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                vec!["the user that treeswap runs as needs access to it".to_owned()]
            }
            // Our own "changed while it was read", not EBUSY of a system call.
            Self::Unread { source, .. }
                if source.kind() == io::ErrorKind::ResourceBusy && source.raw_os_error().is_none() =>
            {
                vec!["try again; a file that a rename replaces never changes while it is read".to_owned()]
            }
            Self::Unread { .. } => vec!["check the volume that it is on, and its mount".to_owned()],
            Self::Unsupported { hint, .. } | Self::Place { hint, .. } => vec![(*hint).to_owned()],
            Self::Password { hint, .. } | Self::Required { hint, .. } => vec![hint.clone()],
            Self::Remote { source, .. } => source.hints(),
            Self::Sources { file, .. } => file.hints(),
            // The message itself says which value is valid.
            Self::Value { .. } | Self::HiddenValue { .. } => Vec::new(),
            Self::Needs { one, other } => needed(one, other).map(str::to_owned).into_iter().collect(),
            // Three of which any two can be given.
            Self::Conflict { one, .. } if one.contains(" with ") => {
                vec!["leave out one of the three".to_owned()]
            }
            Self::Conflict { one, other } => {
                let [first, second] = [one, other].map(|name| name.to_lowercase());
                let is_of_source = first.ends_with("sources") && second.ends_with("ref");
                let of_source = is_of_source.then(|| "the `ref` of each source is in its file".to_owned());
                [format!("leave out {one} or {other}")].into_iter().chain(of_source).collect()
            }
        }
    }
}

/// What to give, or to leave out, where [`Error::Needs`] does not say it.
fn needed(one: &str, other: &str) -> Option<&'static str> {
    Some(match (one, other) {
        (_, "--layout=git-sync") => {
            "leave it out, and let readers open the root itself; or give that layout, which is the one with a link"
        }
        (_, "--owner") => {
            "--owner=NAME is this installation's name, by which it knows its own ConfigMaps; it must never change"
        }
        (_, "--pre-publish-exechook-command") => {
            "--pre-publish-exechook-command=PROGRAM runs before each publication; with the gate its exit status decides"
        }
        (_, other) if other.starts_with("--revision") => {
            "for a checkout it is --revision=$(git -C DIR rev-parse HEAD)"
        }
        (_, "--username") => "give the user whose password it is; for a token, most servers accept any name",
        ("sync", _) => "--root is the directory that readers open; --rules is a file of rules for ConfigMaps",
        (_, "--tree, --repo or --sources") => "--tree is a directory on this machine; the others are fetched",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::human::{assert_message_style, one_line};

    #[test]
    fn every_variant_is_one_line_that_says_what_is_right_or_has_a_hint() {
        let text = || "--ref".to_owned();
        let source =
            || Box::new(crate::mirror::wire::Error::BadRemote { remote: text(), why: "it has no host" });
        let bad_file = crate::sources::BadFile {
            path: "sources.yaml".into(),
            why: "two sources are called \"a\"".into(),
        };
        let unread = |kind: io::ErrorKind| Error::Unread {
            act: "read",
            name: text(),
            value: "/there".into(),
            source: kind.into(),
        };
        let each = [
            Error::Value { name: text(), value: text(), why: "it is empty".into() },
            Error::HiddenValue { name: text(), why: "it is not JSON".into() },
            Error::Remote { name: text(), source: source() },
            Error::Sources { name: "--sources".into(), file: bad_file },
            Error::Place { name: text(), value: text(), why: "a commit could".into(), hint: "elsewhere" },
            unread(io::ErrorKind::PermissionDenied),
            unread(io::ErrorKind::StaleNetworkFileHandle),
            unread(io::ErrorKind::ResourceBusy),
            Error::Conflict { one: text(), other: text() },
            Error::Conflict { one: "--one-time with --root".into(), other: text() },
            Error::Needs { one: text(), other: text() },
            Error::Required { name: text(), hint: text() },
            Error::Password { what: "a password", hint: "use a file".into() },
            Error::Unsupported { name: text(), hint: "leave it out" },
        ];
        for error in each {
            match error {
                Error::Value { .. } | Error::HiddenValue { .. } => {} // their messages are in tests/cli.rs
                Error::Needs { .. } => assert!(one_line(&error).contains(" needs "), "{error}"),
                Error::Remote { .. }
                | Error::Sources { .. }
                | Error::Place { .. }
                | Error::Unread { .. }
                | Error::Conflict { .. }
                | Error::Required { .. }
                | Error::Password { .. }
                | Error::Unsupported { .. } => assert_message_style(&error, &error.hints()),
            }
        }
    }
}
