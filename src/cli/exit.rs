//! The exit codes of the process, and which error ends it with which.

use std::io::ErrorKind;
use std::process::ExitCode;

use crate::{app, cluster, config, configmap, mirror, store};

/// The exit code of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Exit {
    /// Done, or drained after SIGTERM or SIGINT.
    Done = 0,
    /// Failed.
    Failed = 1,
    /// The command line or the configuration is wrong; nothing was touched.
    Usage = 2,
    /// Some targets, or sources, failed; the others are done.
    Some = 3,
    /// A dry run found differences.
    Differs = 4,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// The exit codes and their meaning, for help and manual.
pub(super) const EXIT_CODES: [(&str, &str); 6] = [
    ("0", "done"),
    ("1", "failed"),
    ("2", "usage or configuration"),
    ("3", "some targets failed"),
    ("4", "differences found"),
    ("128+N", "ended by a second signal N"),
];

impl Exit {
    /// The exit code for the error that ends a command. [`Exit::Usage`] is for what the operator has to give otherwise:
    /// a Job is not tried again after it.
    pub(super) fn of(error: &anyhow::Error) -> Self {
        // Rules in the tree are a commit's content and no configuration of ours: what is wrong with them is a failure.
        let usage = error.is::<config::Error>()
            || error.is::<configmap::RulesError>()
            || error.is::<cluster::ConfigError>()
            || error.downcast_ref::<mirror::Error>().is_some_and(is_wrong_mirror);
        match error.downcast_ref() {
            _ if usage => Self::Usage,
            Some(app::Error::Store(error)) if is_wrong_root(error) => Self::Usage,
            Some(app::Error::Mirror(error)) if is_wrong_mirror(error) => Self::Usage,
            Some(app::Error::Sources { .. } | app::Error::Stale { .. }) => Self::Some,
            _ => Self::Failed,
        }
    }
}

/// Whether a root, or its link, cannot be where it was named.
fn is_wrong_root(error: &store::Error) -> bool {
    use store::Error::{BadLink, Dangling, Foreign, Io, OtherLayout, Refused};
    match error {
        BadLink { .. } | Dangling { .. } | Foreign { .. } | OtherLayout { .. } | Refused { .. } => true,
        Io { source, .. } => is_wrong_path(source.kind()),
        _ => false,
    }
}

/// The same of a mirror.
fn is_wrong_mirror(error: &mirror::Error) -> bool {
    match error {
        mirror::Error::Foreign { .. } => true,
        mirror::Error::Local { source, .. } => is_wrong_path(source.kind()),
        _ => false,
    }
}

/// Whether no file or directory can have such a path: it leads through a file, or is too long.
fn is_wrong_path(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotADirectory | ErrorKind::InvalidFilename)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::EXAMPLES;

    #[test]
    fn the_help_and_the_manual_have_the_same_exit_codes() {
        let listed: Vec<String> = EXIT_CODES.iter().map(|(code, text)| format!("{code} {text}")).collect();
        assert!(EXAMPLES.ends_with(&format!("Exit codes: {}.", listed.join(", "))), "{EXAMPLES}");
    }

    #[test]
    fn what_can_never_be_a_root_or_a_mirror_is_told_apart_from_what_may_pass() {
        let path = || std::path::PathBuf::from("/there");
        let of_root = |error: store::Error| Exit::of(&app::Error::Store(error).into());
        assert_eq!(of_root(store::Error::Refused { path: path(), why: "it is a file".into() }), Exit::Usage);
        assert_eq!(of_root(store::Error::OtherLayout { path: path(), made: "git-sync" }), Exit::Usage);
        assert_eq!(of_root(store::Error::Locked { path: path(), holder: String::new() }), Exit::Failed);
        for (kind, exit) in [
            (ErrorKind::NotADirectory, Exit::Usage),
            (ErrorKind::InvalidFilename, Exit::Usage),
            (ErrorKind::PermissionDenied, Exit::Failed),
            (ErrorKind::ReadOnlyFilesystem, Exit::Failed),
            (ErrorKind::StorageFull, Exit::Failed),
        ] {
            let root = store::Error::Io { act: "make the root", path: path(), source: kind.into() };
            assert_eq!(of_root(root), exit, "{kind}");
            let mirror = mirror::Error::Local { act: "make the mirror", path: path(), source: kind.into() };
            assert_eq!(Exit::of(&mirror.into()), exit, "{kind}");
        }
        // `render` and `apply` open the mirror themselves.
        let foreign = || mirror::Error::Foreign { path: path() };
        assert_eq!(Exit::of(&foreign().into()), Exit::Usage);
        assert_eq!(Exit::of(&app::Error::Mirror(foreign()).into()), Exit::Usage);
        assert_eq!(Exit::of(&mirror::Error::Locked { path: path() }.into()), Exit::Failed);
    }
}
