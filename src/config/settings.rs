//! The validated configuration: the options of every module, with nothing left to interpret. The files below validate
//! groups of flags: `attempts` (when and what to sync), `remote`, `root`, `server` (HTTP and log).

mod attempts;
mod published;
mod remote;
mod root;
mod server;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use published::NamedFile;

use super::args::Args;
use super::check::Check;
use super::credentials;
use super::env::Origins;
use super::error::Error;
use super::git_config;
use super::origin::Hidden;
use super::personality::Personality;
use super::values::{self, MIN_PERIOD};
use crate::mirror::wire;
use crate::sandbox::Sandbox;
use crate::sources::SetOptions;
use crate::{admin, hooks, mirror, store, sync, telemetry};

/// The upper bound of the backoff, unless `--max-backoff` is given.
const LONGEST_BACKOFF: Duration = Duration::from_secs(300);

/// The upper bound of the backoff until the first success, which is shorter because an application waits for it.
const LONGEST_INIT_BACKOFF: Duration = Duration::from_secs(30);

/// The pause after the first failure is at most this long, however long the period is.
const FIRST_BACKOFF: Duration = Duration::from_secs(10);

/// The values of `--submodules`. Not checked by clap, so that as git-sync errors are reported in git-sync's order.
pub(super) const SUBMODULES: [(&str, mirror::Submodules); 3] = [
    ("recursive", mirror::Submodules::Recursive),
    ("shallow", mirror::Submodules::First),
    ("off", mirror::Submodules::Off),
];

/// The values of `--git-gc`.
pub(super) const GIT_GC: [(&str, mirror::Gc); 4] = [
    ("auto", mirror::Gc::Auto),
    ("always", mirror::Gc::Always),
    ("aggressive", mirror::Gc::Aggressive),
    ("off", mirror::Gc::Off),
];

/// The values of `--sandbox`.
pub(super) const SANDBOX: [(&str, Sandbox); 3] =
    [("auto", Sandbox::Auto), ("require", Sandbox::Require), ("off", Sandbox::Off)];

/// Everything `sync` runs with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The mirror and how the remote is reached; with several sources, the options that their mirrors share.
    pub mirror: mirror::Options,
    /// The set of sources, if several repositories are published instead of one remote.
    pub sources: Option<SetOptions>,
    /// The root.
    pub store: store::Options,
    /// How long to wait for the root's lock.
    pub lock_wait: Duration,
    /// The sync loop.
    pub sync: sync::Options,
    /// Hooks.
    pub hooks: hooks::Options,
    /// The number of the signal that triggers an attempt.
    pub signal: Option<i32>,
    /// An attempt that a webhook or a signal triggers begins within this time.
    pub trigger_spread: Duration,
    /// The HTTP listener, if `--http-bind` is given.
    pub admin: Option<admin::Options>,
    /// Whether `/metrics` has treeswap's metrics.
    pub metrics: bool,
    /// What the program was called as. As git-sync, `/metrics` has git-sync's metrics, and the memory that there is
    /// lowers no ceiling.
    pub personality: Personality,
    /// Log format and level.
    pub telemetry: telemetry::Options,
    /// The file for the error that ends the process.
    pub termination_log: Option<PathBuf>,
    /// Whether to add the current user to `/etc/passwd`.
    pub add_user: bool,
    /// Warnings about settings without effect or with unsafe effect, one line each.
    pub warnings: Vec<String>,
}

impl Settings {
    /// Validates everything that can be validated without network access and without changing anything. The order of
    /// the checks is git-sync's, so that of several errors the same one is reported. `origins` says where each value of
    /// `args` came from; `hidden` has the values that only variables give, most of them secrets.
    pub fn new(args: &Args, origins: &Origins, hidden: &Hidden) -> Result<Self, Error> {
        if let Some(name) = hidden.unreadable.clone() {
            return Err(Error::HiddenValue { name, why: "it is not UTF-8".to_owned() });
        }
        let check = Check { args, origins };
        let root = check.root()?;
        let followed = check.followed_ref()?;
        let depth = check.depth()?;
        let submodules = check.submodules()?;
        let gc = check.gc()?;
        let pace = check.pace()?;
        let signal = check.value("sync-on-signal", &args.pace.sync_on_signal, values::signal)?;
        let sync_timeout = check.at_least("sync-timeout", args.pace.sync_timeout, MIN_PERIOD)?;
        let hooks = check.hooks()?;
        let mut credentials = credentials::of_username_flag(args, origins, hidden.password.as_ref())?;
        let issuance = check.issuance(hidden)?;
        credentials.extend(credentials::of_credential_flags(args, origins, hidden.credential.as_ref())?);
        let admin = check.admin(pace, sync_timeout, check.ends_after_success(&followed))?;
        let (git_entries, git_effect) = check.git_config(hidden)?;
        let has_sources = check.has_sources()?;
        let layout = check.layout(&root)?;
        let wire = check.wire(credentials, sync_timeout, hidden, &git_effect)?;
        if !has_sources {
            check.remote(&wire)?;
        }
        let files_of_git = git_config::files(&git_entries);
        let wire = wire::Options { issuance, program: check.program(git_entries), ..wire };
        let mirror_dir = check.mirror_dir(&root, &layout)?;
        let termination_log = check.termination_log(&root, &layout)?;
        let mirror = mirror::Options {
            // A single repository's mirror and those of sources: either may have the packs already (`mirror::adopt`).
            others: match layout {
                store::Layout::Kubelet => vec![mirror_dir.clone(), check.dir_of_mirrors(&mirror_dir)],
                store::Layout::GitSync { .. } => Vec::new(),
            },
            worktrees: layout != store::Layout::Kubelet,
            gc,
            depth,
            modules: check.modules(submodules, &git_effect)?,
            filter: check.filter()?,
            index_memory: check.ceiling("index-memory", args.limits.fetch.index_memory)?,
            sandbox: check.one_of("sandbox", &args.limits.fetch.sandbox, &SANDBOX)?,
            max_bytes: check.ceiling("max-mirror-bytes", args.limits.max_mirror_bytes)?,
            durable: check.durability() != store::Durability::None,
            verify: args.limits.verify,
            ..mirror::Options::new(mirror_dir, followed.clone(), wire)
        };
        let set = || check.source_set(&mirror, pace, sync_timeout, hidden);
        let set = has_sources.then(set).transpose()?;
        let mut warnings = check.warnings(&git_effect, hidden);
        warnings.extend(check.unused_credentials(&mirror.wire.credentials, &git_effect.remote));
        warnings.extend(check.abandoned_links(&root, &layout));
        let settings = Self {
            mirror,
            sources: set,
            sync: check.sync(&root, &layout, &followed, pace, sync_timeout)?,
            store: check.store(root, layout)?,
            lock_wait: args.root.lock_wait,
            hooks,
            signal,
            trigger_spread: args.pace.trigger_spread,
            admin,
            metrics: args.server.http_metrics,
            personality: origins.personality(),
            telemetry: check.telemetry()?,
            termination_log,
            add_user: args.hooks.add_user,
            warnings,
        };
        check.refuse_published(&[settings.files(&check), files_of_git].concat())?;
        Ok(settings)
    }
}

/// Makes a path absolute, relative to the working directory at the start.
pub(super) fn absolute(path: impl AsRef<Path>) -> PathBuf {
    // Fails only for an empty path or a removed working directory; the first use of the path then reports it.
    let path = path.as_ref();
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The link of git-sync's layout. As in git-sync, the default is the last component of the URL as it is written.
pub fn link_name<'t>(given: &'t str, repo: &'t str) -> &'t str {
    let last = repo.trim_matches('/').rsplit('/').next().unwrap_or_default();
    if given.is_empty() { last } else { given }
}

#[cfg(test)]
mod tests;
