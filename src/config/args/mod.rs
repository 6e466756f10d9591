//! The flags of `sync` and `check` as clap parses them. [`super::settings`] validates them.

mod credentials;
mod hooks;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::PossibleValuesParser;

use super::personality as defaults;
use super::values::{boolean, bytes, duration, fraction, integer};
use crate::secret;

pub use credentials::CredentialArgs;
pub(super) use credentials::GITHUB_API;
use hooks::HookArgs;

/// The flags of `sync`, except those about ConfigMaps, which are in `cli`. Text that is empty counts as absent, as in
/// git-sync; so does an empty variable of a flag that shows no default (`env::attach`).
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// What to follow.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Credentials.
    #[command(flatten)]
    pub credentials: CredentialArgs,
    /// Where to publish, and how.
    #[command(flatten)]
    pub root: RootArgs,
    /// When retired generations go.
    #[command(flatten)]
    pub retention: RetentionArgs,
    /// How often.
    #[command(flatten)]
    pub pace: PaceArgs,
    /// Hooks.
    #[command(flatten)]
    pub hooks: HookArgs,
    /// git, for those who configured it.
    #[command(flatten)]
    pub git: GitArgs,
    /// The listener.
    #[command(flatten)]
    pub server: ServerArgs,
    /// The log.
    #[command(flatten)]
    pub logging: LoggingArgs,
    /// Limits on what a remote may use, and checks of what it sends.
    #[command(flatten)]
    pub limits: LimitArgs,
}

impl Args {
    /// Arguments with default values, for a command that fetches a repository and publishes nothing.
    pub fn for_fetching(repo: &str, ref_name: &str, credentials: CredentialArgs, mirror: &Path) -> Self {
        #[derive(clap::Parser)]
        struct Bare {
            #[command(flatten)]
            args: Args,
        }
        let bare = <Bare as clap::Parser>::try_parse_from(["treeswap", "--repo=.", "--root=."]);
        #[expect(clippy::expect_used, reason = "the arguments are the required ones, and constant")]
        let mut args = bare.expect("the defaults are valid").args;
        args.source.repo = repo.to_owned();
        args.source.ref_name = ref_name.to_owned();
        args.credentials = credentials;
        args.root.mirror = mirror.display().to_string();
        args.logging.log_level = "info".to_owned(); // its log has no filter, so $RUST_LOG is not read
        args
    }
}

/// What to follow.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Source")]
pub struct SourceArgs {
    /// Repository: https, http, ssh or git URL, host:path, local path
    #[arg(long, value_name = "URL", default_value = "", hide_default_value = true)]
    pub repo: String,

    /// File that lists several repositories to publish as one tree
    ///
    /// Used instead of --repo. A YAML file, read again at every attempt, that lists for each source the repository, the
    /// ref, and the directory to place its files in; see docs/guides/sources.md. Credential flags apply to every source
    /// without credentials of its own. Flags for a single repository (--ref, --path) are refused.
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    pub sources: String,

    /// Branch, tag, full ref name or full commit id to follow
    #[arg(long = "ref", value_name = "REF", default_value = "HEAD")]
    pub ref_name: String,

    /// Directory of the repository to publish, as in `services/gateway`; empty for all of it
    ///
    /// Its content is published at the top of the root. A revision without the directory is refused. Sparse patterns
    /// and limits are relative to it, and symbolic links must stay inside it; rules for ConfigMaps read the whole
    /// repository. Not with --layout=git-sync or --submodules.
    #[arg(long, value_name = "DIR", default_value = "", hide_default_value = true, hide_short_help = true)]
    pub path: String,

    /// Number of commits of history to fetch; 0 fetches the full history
    #[arg(long, value_name = "N", default_value = "1", value_parser = integer, allow_negative_numbers = true, hide_short_help = true)]
    pub depth: i64,

    /// File with git's sparse-checkout patterns: what to publish
    ///
    /// Read again at every attempt; changed patterns cause a new generation to be published.
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    pub sparse_checkout_file: String,

    /// Submodules: `recursive`, `shallow` (the first level only), or `off` (they become empty directories)
    ///
    /// Those whose URL is a local path or `file://` need --git-config=protocol.file.allow:always, as in git.
    #[arg(long, value_name = "MODE", default_value = defaults::SUBMODULES.treeswap, hide_short_help = true)]
    pub submodules: String,

    /// Partial clone filter, as of `git clone --filter`: `blob:none`, or `tree:0` to omit trees as well
    ///
    /// Files to publish that the filter omitted are then fetched separately. A server that does not support filters
    /// sends everything.
    #[arg(
        long,
        value_name = "FILTER",
        default_value = "",
        hide_default_value = true,
        hide_short_help = true
    )]
    pub filter: String,
}

impl fmt::Debug for SourceArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let repo = secret::redact(&self.repo); // it may contain a password
        f.debug_struct("SourceArgs").field("repo", &repo).finish_non_exhaustive()
    }
}

/// Where to publish, and how.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Root")]
pub struct RootArgs {
    /// Directory to publish into; created if missing, and used by treeswap alone
    #[arg(long, value_name = "DIR", required = true)]
    pub root: String,

    /// Layout of the root: like a ConfigMap volume (`kubelet`), or like git-sync (`git-sync`)
    ///
    /// `kubelet`: a symbolic link ROOT/..data to the current generation. `git-sync`: a git worktree in ROOT/.worktrees,
    /// named by its commit, and one symbolic link to it.
    #[arg(long, value_name = "LAYOUT", default_value = defaults::LAYOUT.treeswap, value_parser = PossibleValuesParser::new(["kubelet", "git-sync"]), hide_short_help = true)]
    pub layout: String,

    /// Symbolic link of git-sync's layout, relative to the root [default: the last part of --repo]
    #[arg(long, value_name = "PATH", default_value = "", hide_default_value = true, hide_short_help = true)]
    pub link: String,

    /// Directory of the mirror of the repository's objects [default: ROOT/..treeswap/mirror, or ROOT/.git]
    #[arg(long, value_name = "DIR", default_value = "", hide_default_value = true, hide_short_help = true)]
    pub mirror: String,

    /// What to flush to disk before a publication; `none` for a root on tmpfs
    #[arg(long, value_name = "HOW", default_value = "syncfs", value_parser = PossibleValuesParser::new(["syncfs", "none"]), hide_short_help = true)]
    pub durability: String,

    /// How to prepare the spare, a tree equal to the current generation that the next one is made from
    ///
    /// `link`: reuse a retired generation, otherwise make hard links to the current files. `recycle`: reuse a retired
    /// generation, otherwise copy. `copy`: always copy. `off`: no spare; every generation is written in full.
    #[arg(long, value_name = "HOW", default_value = defaults::SPARE.treeswap, value_parser = PossibleValuesParser::new(["link", "recycle", "copy", "off"]), hide_short_help = true)]
    pub spare: String,

    /// Symbolic links out of the tree: `safe` refuses the revision, `keep` keeps
    #[arg(long, value_name = "POLICY", default_value = defaults::SYMLINKS.treeswap, value_parser = PossibleValuesParser::new(["safe", "keep"]))]
    pub symlinks: String,

    /// Make files and directories writable by the group
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_short_help = true)]
    pub group_write: bool,

    /// File to touch after each publication and at the first success; relative to the root, where its name must begin
    /// with ".." unless the layout is git-sync
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true, hide_short_help = true)]
    pub touch_file: String,

    /// How long to wait for another instance to release the root
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration, hide_short_help = true)]
    pub lock_wait: Duration,
}

/// When retired generations go.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Retention")]
pub struct RetentionArgs {
    /// How long a generation is kept after a newer one replaced it
    #[arg(long, visible_alias = "stale-worktree-timeout", value_name = "DURATION", default_value = defaults::GRACE.treeswap, value_parser = duration)]
    pub grace: Duration,

    /// How long a pin keeps a generation after its replacement
    ///
    /// A pin is a shared lock that a reader holds on the generation's directory.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    pub max_pin: Duration,

    /// Most generations to keep, including the current one
    ///
    /// The default is enough for a grace period of 30s and a publication every 5s.
    #[arg(long, value_name = "N", default_value = defaults::MAX_GENERATIONS.treeswap, value_parser = integer, hide_short_help = true)]
    pub max_generations: i64,

    /// Most bytes on disk that all generations and the spare may use together; 0 for no limit
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = bytes, hide_short_help = true)]
    pub max_bytes: u64,
}

/// How often.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Pace")]
pub struct PaceArgs {
    /// Publish once and exit
    ///
    /// The first failure ends the process with exit code 1, unless --max-failures is given.
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub one_time: bool,

    /// Pause between attempts
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub period: Duration,

    /// Pause between attempts until the first success; 0 for --period
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration, hide_short_help = true)]
    pub init_period: Duration,

    /// Hard limit on one attempt
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = duration)]
    pub sync_timeout: Duration,

    /// Least time between publications; revisions in between are skipped
    ///
    /// Measured from the last publication, also across restarts. Ignored with --one-time.
    #[arg(long, value_name = "DURATION", default_value = defaults::MIN_INTERVAL.treeswap, value_parser = duration)]
    pub min_interval: Duration,

    /// Consecutive failures after which the process exits [default: never; with --one-time: 1]
    ///
    /// A negative number means never. As in git-sync, 0 and 1 both end the process at the first failure. Unlike in
    /// git-sync, the default is to retry forever, while the current generation stays published.
    #[arg(long, value_name = "N", value_parser = integer, allow_negative_numbers = true)]
    pub max_failures: Option<i64>,

    /// Like --max-failures, until the first success [default: --max-failures]
    #[arg(long, value_name = "N", value_parser = integer, allow_negative_numbers = true, hide_short_help = true)]
    pub init_max_failures: Option<i64>,

    /// Signal that triggers an attempt; empty for none
    #[arg(long, value_name = "SIGNAL", default_value = defaults::SYNC_ON_SIGNAL.treeswap, hide_short_help = true)]
    pub sync_on_signal: String,

    /// Random variation of every pause, as a fraction of it; 0 for none
    ///
    /// Unless it is 0, the first pause is a random part of the period, so that instances that start together do not
    /// poll at the same time.
    #[arg(long, value_name = "FRACTION", default_value = defaults::JITTER.treeswap, value_parser = fraction, hide_short_help = true)]
    pub jitter: f64,

    /// Longest random delay of an attempt that a webhook or a signal triggers; 0s for none
    ///
    /// It spreads the load when one push triggers every instance of a fleet at the same moment.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration, hide_short_help = true)]
    pub trigger_spread: Duration,

    /// Longest backoff after failures; 0 for ten periods (as git-sync one), at most 5m, or 30s until the first success
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration, hide_short_help = true)]
    pub max_backoff: Duration,
}

/// git, for those who configured it.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Git")]
pub struct GitArgs {
    /// git program to list refs and fetch with, instead of the built-in client
    #[arg(
        long,
        value_name = "PROGRAM",
        default_value = "",
        hide_default_value = true,
        hide_short_help = true
    )]
    pub git: String,

    /// git configuration as KEY:VALUE,KEY:VALUE; only settings for connections to the remote have an effect
    ///
    /// http.extraHeader, http.sslVerify, http.sslCAInfo, http.proxy, http.cookieFile (each also as http.URL.NAME),
    /// protocol.file.allow, url.BASE.insteadOf. Others have no effect; the log lists their keys, without the values.
    #[arg(
        long,
        value_name = "SETTINGS",
        default_value = "",
        hide_default_value = true,
        hide_short_help = true
    )]
    pub git_config: String,

    /// One more git setting, as KEY:VALUE (repeatable)
    #[arg(long, value_name = "SETTING", hide_short_help = true)]
    pub git_config_add: Vec<String>,

    /// Garbage collection of the mirror: `auto`, `always`, `aggressive`, `off`
    #[arg(long, value_name = "MODE", default_value = defaults::GIT_GC.treeswap, hide_short_help = true)]
    pub git_gc: String,
}

impl fmt::Debug for GitArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The settings may contain headers and passwords.
        f.debug_struct("GitArgs")
            .field("git", &self.git)
            .field("git_gc", &self.git_gc)
            .finish_non_exhaustive()
    }
}

/// The listener.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Server")]
pub struct ServerArgs {
    /// Address of probes, metrics, status and webhook, such as :9375
    #[arg(long, value_name = "ADDRESS", default_value = "", hide_default_value = true)]
    pub http_bind: String,

    /// Serve metrics on /metrics; unlike in git-sync, on by default
    #[arg(long, value_name = "BOOL", default_value = defaults::HTTP_METRICS.treeswap, value_parser = boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_short_help = true)]
    pub http_metrics: bool,

    /// Serve /debug/pprof/, for probes written for git-sync; there are no Go profiles
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_short_help = true)]
    pub http_pprof: bool,

    /// File with secrets for POST /sync, one per line (repeatable); read again at every request
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub webhook_secret_file: Vec<PathBuf>,

    /// /readyz returns 503 once a remote has not answered for this long; 0s for never
    ///
    /// With --sources, the remote of any source counts. At least the longest pause between attempts plus --min-interval
    /// plus --sync-timeout. By default an outage of the remote does not change readiness, because the current generation
    /// stays published.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration, hide_short_help = true)]
    pub max_stale: Duration,
}

/// The log.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Logging")]
pub struct LoggingArgs {
    /// File for the last error as JSON (Msg, Err, Args), removed after a success; relative to the root, where its name
    /// must begin with ".." unless the layout is git-sync
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true, hide_short_help = true)]
    pub error_file: String,

    /// Existing file to write the error to that ended the process (termination message); empty for none
    #[arg(long, value_name = "FILE", default_value = "/dev/termination-log", hide_short_help = true)]
    pub termination_log: String,

    /// Log format: `plain`, `json`, `git-sync` (git-sync's JSON), or `auto` (plain on a terminal, otherwise JSON)
    #[arg(long, value_name = "FORMAT", default_value = defaults::LOG_FORMAT.treeswap, value_parser = PossibleValuesParser::new(["auto", "json", "plain", "git-sync"]), hide_short_help = true)]
    pub log_format: String,

    /// error, warn, info, debug, trace, off [default: info]
    ///
    /// Directives as in RUST_LOG (TARGET=LEVEL,…) are accepted, too. Without the flag that variable counts, but not as
    /// git-sync, and not with --verbose.
    #[arg(long, value_name = "LEVEL", default_value = "", hide_default_value = true)]
    pub log_level: String,

    /// Verbosity as in git-sync: 0 is info, 1 to 4 debug, more is trace
    #[arg(short, long, value_name = "N", default_value = "0", value_parser = integer, allow_negative_numbers = true, hide_short_help = true)]
    pub verbose: i64,
}

/// The limits on fetching. `apply` and `render` have them too, so that what a hint recommends can be given there.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Limits")]
pub struct FetchLimitArgs {
    /// Timeout for connecting to the remote
    #[arg(long, value_name = "DURATION", default_value = defaults::CONNECT_TIMEOUT.treeswap, value_parser = duration, hide_short_help = true)]
    pub connect_timeout: Duration,

    /// Timeout while the remote sends nothing
    #[arg(long, value_name = "DURATION", default_value = defaults::IDLE_TIMEOUT.treeswap, value_parser = duration, hide_short_help = true)]
    pub idle_timeout: Duration,

    /// Most bytes of one fetched pack
    #[arg(long, value_name = "BYTES", default_value = defaults::MAX_FETCH_BYTES.treeswap, value_parser = bytes, hide_short_help = true)]
    pub max_fetch_bytes: u64,

    /// Most bytes of a remote's ref advertisement
    #[arg(long, value_name = "BYTES", default_value = defaults::MAX_REFS_BYTES.treeswap, value_parser = bytes, hide_short_help = true)]
    pub max_refs_bytes: u64,

    /// Memory limit of the child process that indexes a fetched pack
    #[arg(long, value_name = "BYTES", default_value = defaults::INDEX_MEMORY.treeswap, value_parser = bytes, hide_short_help = true)]
    pub index_memory: u64,

    /// Sandbox of the process that indexes packs, by Landlock and seccomp: `auto`, `require` or `off`
    ///
    /// The process parses data from the server. In the sandbox it can access only the mirror's files, no network and no
    /// other program or process. `auto` uses what the kernel supports; with `require`, treeswap does not start if the
    /// kernel lacks Landlock or seccomp.
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = PossibleValuesParser::new(["auto", "require", "off"]), hide_short_help = true)]
    pub sandbox: String,
}

/// Limits on what a remote may use, and checks of what it sends.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Limits")]
pub struct LimitArgs {
    /// Those that every command has which fetches.
    #[command(flatten)]
    pub fetch: FetchLimitArgs,

    /// Size in bytes above which garbage in the mirror is removed early
    ///
    /// The mirror is then repacked, or fetched again. A repository that is larger by itself is not refused: that does
    /// --max-fetch-bytes. With submodules, their mirrors may not have more than this together, and those that only kept
    /// revisions have not more than as much again.
    #[arg(long, value_name = "BYTES", default_value = defaults::MAX_MIRROR_BYTES.treeswap, value_parser = bytes, hide_short_help = true)]
    pub max_mirror_bytes: u64,

    /// Most files, symbolic links and directories of a revision
    #[arg(long, value_name = "N", default_value = defaults::MAX_TREE_ENTRIES.treeswap, value_parser = integer, hide_short_help = true)]
    pub max_tree_entries: i64,

    /// Most bytes of all files of a revision together
    #[arg(long, value_name = "BYTES", default_value = defaults::MAX_TREE_BYTES.treeswap, value_parser = bytes, hide_short_help = true)]
    pub max_tree_bytes: u64,

    /// Most bytes of one file; writing needs up to twice that in memory, so raise the container's limit with it
    #[arg(long, value_name = "BYTES", default_value = defaults::MAX_FILE_BYTES.treeswap, value_parser = bytes, hide_short_help = true)]
    pub max_file_bytes: u64,

    /// Most components of a path, up to 1000
    #[arg(long, value_name = "N", default_value = defaults::MAX_PATH_DEPTH.treeswap, value_parser = integer, hide_short_help = true)]
    pub max_path_depth: i64,

    /// Verify the hash of every object when it is read, not only when it is fetched
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_short_help = true)]
    pub verify: bool,
}
