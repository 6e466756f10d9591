//! The exit codes of the process, and which error ends it with which.

use std::process::ExitCode;

use crate::fsx::is_wrong_path;
use crate::{app, cluster, config, configmap, mirror, store};

/// The exit code of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Exit {
    /// Done, or drained after SIGTERM or SIGINT.
    Done = 0,
    /// Failed.
    Failed = 1,
    /// The command line or the configuration is wrong; nothing was published or applied.
    Usage = 2,
    /// Some targets or sources are not done; the others are.
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
    ("3", "some targets or sources are not done"),
    ("4", "differences found"),
    ("128+N", "ended by a second signal N"),
];

/// The line about exit codes in a help text.
pub(super) fn exit_codes() -> String {
    let listed: Vec<String> = EXIT_CODES.iter().map(|(code, text)| format!("{code} {text}")).collect();
    format!("Exit codes: {}.", listed.join(", "))
}

impl Exit {
    /// The exit code for the error that ends a command. [`Exit::Usage`] is only for what the operator has to give
    /// otherwise: a Job may not be tried again after it, so nothing that passes by itself may end with it.
    pub(super) fn of(error: &anyhow::Error) -> Self {
        // Rules in the tree are a commit's content and no configuration of ours: what is wrong with them is a failure.
        let usage = error.downcast_ref::<config::Error>().is_some_and(|error| !error.may_pass())
            || error.is::<configmap::RulesError>()
            || error.downcast_ref::<cluster::ConfigError>().is_some_and(|error| !error.may_pass())
            || error.downcast_ref::<mirror::Error>().is_some_and(is_wrong_mirror);
        if usage {
            return Self::Usage;
        }
        match error.downcast_ref() {
            Some(app::Error::Store(error)) if is_wrong_root(error) => Self::Usage,
            Some(app::Error::Mirror(error)) if is_wrong_mirror(error) => Self::Usage,
            Some(app::Error::Sources { .. } | app::Error::Stale { .. }) => Self::Some,
            _ => Self::Failed,
        }
    }
}

/// Returns true if no root can ever be where this one was named, so trying again cannot help. Behind a link to a
/// directory that does not exist there can be one: that directory may be in a volume that is not mounted yet.
fn is_wrong_root(error: &store::Error) -> bool {
    use store::Error::{BadLink, Foreign, Io, OtherLayout, Refused};
    match error {
        BadLink { .. } | Foreign { .. } | OtherLayout { .. } | Refused { .. } => true,
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

#[cfg(test)]
mod tests {
    use std::io::{self, ErrorKind};

    use rustix::io::Errno;

    use super::*;
    use crate::cli::input::unread;

    #[test]
    fn only_what_can_never_be_a_root_or_a_mirror_is_a_usage_error() {
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
            (ErrorKind::StaleNetworkFileHandle, Exit::Failed),
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
        // A volume that is not mounted yet, and a lock that an NFS server does not grant yet.
        let dangling = store::Error::Dangling { path: path(), link: path(), target: path() };
        assert_eq!(of_root(dangling), Exit::Failed);
        let lack = store::Error::Io { act: "lock", path: path(), source: Errno::NOLCK.into() };
        assert_eq!(of_root(lack), Exit::Failed);
    }

    #[test]
    fn a_file_that_may_be_readable_later_is_no_usage_error() {
        let path = || std::path::PathBuf::from("/there");
        let cases: [(fn() -> io::Error, Exit); 9] = [
            (|| Errno::NOENT.into(), Exit::Usage),
            (|| Errno::ISDIR.into(), Exit::Usage),
            (|| Errno::NOTDIR.into(), Exit::Usage),
            (|| Errno::NAMETOOLONG.into(), Exit::Usage),
            (|| ErrorKind::InvalidData.into(), Exit::Usage),
            (|| Errno::ACCESS.into(), Exit::Failed),
            (|| Errno::STALE.into(), Exit::Failed),
            (|| Errno::IO.into(), Exit::Failed),
            (|| ErrorKind::TimedOut.into(), Exit::Failed),
        ];
        for (source, exit) in cases {
            let rules = unread("--rules", &path(), source(), "name it");
            assert_eq!(Exit::of(&rules.into()), exit, "{}", source());
            let kubeconfig = cluster::ConfigError::Read { path: path(), source: source() };
            assert_eq!(Exit::of(&kubeconfig.into()), exit, "{}", source());
        }
        let rules = unread("--rules", &path(), io::Error::other("it has more than 1 MiB"), "name it");
        assert_eq!(Exit::of(&rules.into()), Exit::Usage);
        assert_eq!(Exit::of(&cluster::ConfigError::None.into()), Exit::Usage);
    }
}
