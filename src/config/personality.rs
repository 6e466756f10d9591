//! The personality of the program, treeswap or drop-in for git-sync, and the flags whose defaults differ between the
//! two.

use clap::Command;

/// The name under which the program was called.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Personality {
    /// `treeswap sync`.
    #[default]
    Treeswap,
    /// `git-sync`, or `treeswap git-sync`: flags, defaults, exit codes, logs and routes of git-sync v4.
    GitSync,
}

/// A flag whose default depends on the personality.
#[derive(Debug)]
pub(super) struct Default {
    flag: &'static str,
    /// The default as treeswap; empty for a flag without one.
    pub(super) treeswap: &'static str,
    /// The default as git-sync.
    git_sync: &'static str,
}

macro_rules! defaults {
    ($($name:ident = $flag:literal: $treeswap:literal, $git_sync:literal;)*) => {
        $(pub(super) const $name: Default = Default { flag: $flag, treeswap: $treeswap, git_sync: $git_sync };)*
        /// All defaults that differ.
        const DEFAULTS: &[&Default] = &[$(&$name),*];
    };
}

defaults! {
    // Content and retention. git-sync has no ceiling on generations, so ours is high there.
    LAYOUT = "layout": "kubelet", "git-sync";
    SUBMODULES = "submodules": "off", "recursive";
    SYMLINKS = "symlinks": "safe", "keep";
    SPARE = "spare": "link", "off";
    GIT_GC = "git-gc": "auto", "always";
    GRACE = "grace": "30s", "0s";
    MAX_GENERATIONS = "max-generations": "8", "1000";
    // Pace.
    MIN_INTERVAL = "min-interval": "5s", "0s";
    JITTER = "jitter": "0.1", "0";
    MAX_FAILURES = "max-failures": "", "0";
    SYNC_ON_SIGNAL = "sync-on-signal": "SIGHUP", "";
    // Metrics and log.
    HTTP_METRICS = "http-metrics": "true", "false";
    LOG_FORMAT = "log-format": "auto", "git-sync";
    // Limits. git-sync has none, so ours are high there: on disk 64Gi, in memory sixteen times what is the default
    // here. Its connections end with the attempt, so these two are --sync-timeout, whatever that is.
    CONNECT_TIMEOUT = "connect-timeout": "10s", "2m";
    IDLE_TIMEOUT = "idle-timeout": "30s", "2m";
    MAX_REFS_BYTES = "max-refs-bytes": "64Mi", "1Gi";
    MAX_TREE_ENTRIES = "max-tree-entries": "1000000", "16000000";
    MAX_PATH_DEPTH = "max-path-depth": "128", "1000";
    MAX_FETCH_BYTES = "max-fetch-bytes": "4Gi", "64Gi";
    MAX_MIRROR_BYTES = "max-mirror-bytes": "4Gi", "64Gi";
    MAX_TREE_BYTES = "max-tree-bytes": "4Gi", "64Gi";
    MAX_FILE_BYTES = "max-file-bytes": "64Mi", "1Gi";
    INDEX_MEMORY = "index-memory": "64Mi", "512Mi";
}

/// Gives the flags of `sync` git-sync's defaults, and makes none required: as in git-sync, that is checked later, with
/// an error of its own.
pub(super) fn as_git_sync(command: Command) -> Command {
    command.mut_args(|arg| {
        let own = arg.get_long().and_then(|flag| DEFAULTS.iter().find(|default| default.flag == flag));
        match (arg.get_long(), own) {
            (_, Some(own)) => arg.default_value(own.git_sync),
            (Some("repo" | "root"), None) => arg.required(false).default_value(""),
            _ => arg,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_of_the_table_is_that_of_a_flag_and_valid_in_both_columns() {
        #[derive(clap::Parser)]
        struct Bare {
            #[command(flatten)]
            args: super::super::Args,
        }
        let command = || <Bare as clap::CommandFactory>::command();
        for default in DEFAULTS {
            let command = command();
            let flag = command.get_arguments().find(|arg| arg.get_long() == Some(default.flag)).unwrap();
            let shown: Vec<_> =
                flag.get_default_values().iter().map(|value| value.to_str().unwrap()).collect();
            let wanted = if default.flag == "max-failures" { vec![] } else { vec![default.treeswap] };
            assert_eq!(shown, wanted, "{}", default.flag);
        }
        let git_sync = as_git_sync(command()).try_get_matches_from(["git-sync"]).unwrap();
        let args = <Bare as clap::FromArgMatches>::from_arg_matches(&git_sync).unwrap().args;
        assert_eq!((args.root.layout.as_str(), args.pace.max_failures), ("git-sync", Some(0)));
        let limits = command();
        let limits = limits.get_arguments().filter(|arg| arg.get_help_heading() == Some("Limits"));
        let limits =
            limits.filter_map(clap::Arg::get_long).filter(|flag| !["sandbox", "verify"].contains(flag));
        for flag in limits {
            assert!(
                DEFAULTS.iter().any(|default| default.flag == flag),
                "git-sync has no limit like --{flag}"
            );
        }
    }
}
