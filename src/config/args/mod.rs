//! The flags of `sync` and `check` as clap parses them. [`super::settings`] validates them.

mod hooks;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::PossibleValuesParser;

use super::personality as of;
use super::values::{boolean, bytes, duration, fraction, integer};

/// Every flag of `sync`. Text that is empty counts as absent, as in git-sync.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// What to follow.
    #[command(flatten)]
    pub source: Source,
    /// Credentials.
    #[command(flatten)]
    pub credentials: Credentials,
    /// Where to publish, and how.
    #[command(flatten)]
    pub root: Root,
    /// When retired generations go.
    #[command(flatten)]
    pub retention: Retention,
    /// How often.
    #[command(flatten)]
    pub pace: PaceArgs,
    /// Hooks.
    #[command(flatten)]
    pub hooks: hooks::Hooks,
    /// git, for those who configured it.
    #[command(flatten)]
    pub git: Git,
    /// The listener.
    #[command(flatten)]
    pub server: Server,
    /// The log.
    #[command(flatten)]
    pub logging: Logging,
    /// Ceilings.
    #[command(flatten)]
    pub limits: Limits,
}

impl Args {
    /// Arguments with default values, for a command that fetches a repository and publishes nothing.
    pub fn for_fetching(repo: &str, ref_name: &str, credentials: Credentials, mirror: &Path) -> Self {
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
        args
    }
}

/// What to follow.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Source")]
pub struct Source {
    /// Repository: https, http, ssh or git URL, host:path, local path
    #[arg(long, value_name = "URL", default_value = "", hide_default_value = true)]
    pub repo: String,

    /// File that lists several repositories to publish as one tree
    ///
    /// Instead of --repo: each source is a repository, a ref, and the directory that is placed. YAML, read again at
    /// every attempt: see docs/guides/sources.md. Flags for credentials count for every source that has none of its
    /// own; those that say what to take of one repository (--ref, --path) are refused.
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    pub sources: String,

    /// Branch, tag, full ref name or full commit id to follow
    #[arg(long = "ref", value_name = "REF", default_value = "HEAD")]
    pub ref_name: String,

    /// Directory of the repository to publish, as in `services/gateway`; empty for all of it
    ///
    /// What is in it lies at the top of the root. A revision without the directory is refused. Sparse patterns and
    /// limits count from it, links must stay inside it; rules for ConfigMaps read the whole repository. Not with
    /// --layout=git-sync or --submodules.
    #[arg(long, value_name = "DIR", default_value = "", hide_default_value = true, hide_short_help = true)]
    pub path: String,

    /// Commits of history to fetch; 0 fetches all of it
    #[arg(long, value_name = "N", default_value = "1", value_parser = integer, allow_negative_numbers = true, hide_short_help = true)]
    pub depth: i64,

    /// File with git's sparse-checkout patterns: what to publish
    ///
    /// Read again at every attempt; other patterns are another generation.
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    pub sparse_checkout_file: String,

    /// Submodules: `recursive`, `shallow` (the first level only), or `off`: each is an empty directory
    #[arg(long, value_name = "MODE", default_value = of::SUBMODULES.treeswap, hide_short_help = true)]
    pub submodules: String,

    /// What to leave out of a fetch, as git writes it: `blob:none`, or `tree:0` to leave out trees as well
    ///
    /// Files that are published and were left out are then fetched by themselves. A server without filters sends
    /// everything.
    #[arg(
        long,
        value_name = "FILTER",
        default_value = "",
        hide_default_value = true,
        hide_short_help = true
    )]
    pub filter: String,
}

/// Credentials.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Credentials")]
pub struct Credentials {
    /// User for http(s); with --password-file or $TREESWAP_PASSWORD
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub username: String,

    /// File with the password or token, read again at every attempt
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    pub password_file: String,

    /// A password would be visible in the process list.
    #[arg(long, hide = true)]
    pub password: Option<String>,

    /// Credential as JSON: {"url":…, "username":…, "password-file":…}, or a list of them
    ///
    /// `password` instead of `password-file` is accepted in $TREESWAP_CREDENTIAL only: arguments are visible to every
    /// process of the machine. Given several times, all of them count.
    #[arg(long, value_name = "JSON", hide_short_help = true)]
    pub credential: Vec<String>,

    /// URL that answers a GET with lines username= and password=, asked before every attempt
    ///
    /// It has a second to answer 200; redirects are not followed.
    #[arg(long, value_name = "URL", default_value = "", hide_default_value = true, hide_short_help = true)]
    pub askpass_url: String,

    /// File with cookies for http(s), as curl writes them, read again at every request
    ///
    /// Without a value, or with `true` as git-sync has it: /etc/git-secret/cookie_file.
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_short_help = true)]
    pub cookie_file: String,

    /// GitHub's API, for a GitHub App
    #[arg(long, value_name = "URL", default_value = "https://api.github.com/", hide_short_help = true)]
    pub github_base_url: String,

    /// Application id of the GitHub App to authenticate as; or give its client id
    #[arg(long, value_name = "N", default_value = "0", hide_default_value = true, value_parser = integer, allow_negative_numbers = true, hide_short_help = true)]
    pub github_app_application_id: i64,

    /// Client id of a GitHub App
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true, hide_short_help = true)]
    pub github_app_client_id: String,

    /// Which installation of the GitHub App
    #[arg(long, value_name = "N", default_value = "0", hide_default_value = true, value_parser = integer, allow_negative_numbers = true, hide_short_help = true)]
    pub github_app_installation_id: i64,

    /// The GitHub App's private key, PEM, read again for every token; or $TREESWAP_GITHUB_APP_PRIVATE_KEY
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true, hide_short_help = true)]
    pub github_app_private_key_file: String,

    /// Private key for ssh (repeatable)
    ///
    /// In the variable, paths are separated by `:`. A key that does not exist is ignored.
    #[arg(long, value_name = "FILE", default_value = "/etc/git-secret/ssh")]
    pub ssh_key_file: Vec<String>,

    /// Whether an ssh server's key must be known
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_short_help = true)]
    pub ssh_known_hosts: bool,

    /// The ssh servers' keys, as ssh-keyscan(1) prints them
    #[arg(long, value_name = "FILE", default_value = "/etc/git-secret/known_hosts")]
    pub ssh_known_hosts_file: String,

    /// Authorities to trust besides the system's, as PEM, for https
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    pub ca_file: String,

    /// Whether to add the user treeswap runs as to /etc/passwd, if it is not there and the file can be written
    ///
    /// treeswap needs no such entry; programs that hooks run may.
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_short_help = true)]
    pub add_user: bool,
}

/// Where to publish, and how.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Root")]
pub struct Root {
    /// The directory to publish in; made when absent, owned by treeswap alone
    #[arg(long, value_name = "DIR", required = true)]
    pub root: String,

    /// How a generation is published: as a ConfigMap volume is (`kubelet`), or as git-sync does
    ///
    /// `git-sync`: a git worktree in ROOT/.worktrees, named by its commit, and one link to it.
    #[arg(long, value_name = "LAYOUT", default_value = of::LAYOUT.treeswap, value_parser = PossibleValuesParser::new(["kubelet", "git-sync"]), hide_short_help = true)]
    pub layout: String,

    /// The link of git-sync's layout, relative to the root [default: the last part of --repo]
    #[arg(long, value_name = "PATH", default_value = "", hide_default_value = true, hide_short_help = true)]
    pub link: String,

    /// Where the mirror of the repository's objects lives [default: ROOT/..treeswap/mirror, or ROOT/.git]
    #[arg(long, value_name = "DIR", default_value = "", hide_default_value = true, hide_short_help = true)]
    pub mirror: String,

    /// What to sync to disk before a publication; `none` for a root on tmpfs
    #[arg(long, value_name = "HOW", default_value = "syncfs", value_parser = PossibleValuesParser::new(["syncfs", "none"]), hide_short_help = true)]
    pub durability: String,

    /// How the next generation is prepared: a retired one used again or else hard links, the same with copies for
    /// links, always a copy, or nothing
    #[arg(long, value_name = "HOW", default_value = of::SPARE.treeswap, value_parser = PossibleValuesParser::new(["link", "recycle", "copy", "off"]), hide_short_help = true)]
    pub spare: String,

    /// Links that leave the tree: `safe` refuses the revision, `keep` keeps
    #[arg(long, value_name = "POLICY", default_value = of::SYMLINKS.treeswap, value_parser = PossibleValuesParser::new(["safe", "keep"]))]
    pub symlinks: String,

    /// Whether files and directories are writable by the group
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_short_help = true)]
    pub group_write: bool,

    /// File to touch after each publication and at the first success; relative to the root, in which it begins with
    /// ".." unless the layout is git-sync
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true, hide_short_help = true)]
    pub touch_file: String,

    /// How long to wait for another instance to release the root
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration, hide_short_help = true)]
    pub lock_wait: Duration,
}

/// When retired generations go.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Retention")]
pub struct Retention {
    /// How long a generation is kept after it stopped being current
    #[arg(long, visible_alias = "stale-worktree-timeout", value_name = "DURATION", default_value = of::GRACE.treeswap, value_parser = duration)]
    pub grace: Duration,

    /// How long a pin holds a generation beyond its retirement
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    pub max_pin: Duration,

    /// Generations kept at most, the current one included
    ///
    /// The default holds a grace period of 30s of publications that are 5s apart.
    #[arg(long, value_name = "N", default_value = of::MAX_GENERATIONS.treeswap, value_parser = integer, hide_short_help = true)]
    pub max_generations: i64,

    /// Bytes on disk that all generations and the spare may take together; 0 for no ceiling
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = bytes, hide_short_help = true)]
    pub max_bytes: u64,
}

/// How often.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Pace")]
pub struct PaceArgs {
    /// Publish once and exit
    ///
    /// The first failure ends it with exit code 1, unless --max-failures says otherwise.
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub one_time: bool,

    /// Pause between attempts
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub period: Duration,

    /// The same until the first success; 0 for --period
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration, hide_short_help = true)]
    pub init_period: Duration,

    /// Hard limit on one attempt
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = duration)]
    pub sync_timeout: Duration,

    /// Publications are at least this far apart; the newest revision wins
    ///
    /// Counted from the last publication, restarts included. With --one-time it does not apply.
    #[arg(long, value_name = "DURATION", default_value = of::MIN_INTERVAL.treeswap, value_parser = duration)]
    pub min_interval: Duration,

    /// Consecutive failures after which the process exits [default: never; with --one-time: 1]
    ///
    /// A negative number means never. As in git-sync, 0 and 1 both end it at the first failure. Unlike git-sync's, the
    /// default is never to give up: what is published keeps serving.
    #[arg(long, value_name = "N", value_parser = integer, allow_negative_numbers = true)]
    pub max_failures: Option<i64>,

    /// The same until the first success [default: --max-failures]
    #[arg(long, value_name = "N", value_parser = integer, allow_negative_numbers = true, hide_short_help = true)]
    pub init_max_failures: Option<i64>,

    /// Signal that triggers an attempt; empty for none
    #[arg(long, value_name = "SIGNAL", default_value = of::SYNC_ON_SIGNAL.treeswap, hide_short_help = true)]
    pub sync_on_signal: String,

    /// Every pause is lengthened or shortened by up to this fraction of itself; 0 for none
    ///
    /// Unless it is 0, the first pause is a random part of the period, so that instances that start together are
    /// spread over it.
    #[arg(long, value_name = "FRACTION", default_value = of::JITTER.treeswap, value_parser = fraction, hide_short_help = true)]
    pub jitter: f64,

    /// An attempt that a webhook or a signal triggers starts after a random part of this time; 0s for at once
    ///
    /// One push reaches every instance of a fleet at the same moment.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration, hide_short_help = true)]
    pub trigger_spread: Duration,

    /// Longest pause after failures; 0 for ten periods, at most 5m, or 30s until the first success
    ///
    /// As git-sync, 0 stands for one period.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration, hide_short_help = true)]
    pub max_backoff: Duration,
}

/// git, for those who configured it.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Git")]
pub struct Git {
    /// Program to list refs and fetch with, instead of the built-in client; it gets git's arguments
    #[arg(
        long,
        value_name = "PROGRAM",
        default_value = "",
        hide_default_value = true,
        hide_short_help = true
    )]
    pub git: String,

    /// Settings of git as KEY:VALUE,KEY:VALUE; those about reaching the remote have an effect
    ///
    /// http.extraHeader, http.sslVerify, http.sslCAInfo, http.proxy, http.cookieFile (each also as http.URL.NAME),
    /// protocol.file.allow, url.BASE.insteadOf. Others have no effect, and are named in the log, without their values.
    #[arg(
        long,
        value_name = "SETTINGS",
        default_value = "",
        hide_default_value = true,
        hide_short_help = true
    )]
    pub git_config: String,

    /// One more setting of git, as KEY:VALUE (repeatable)
    #[arg(long, value_name = "SETTING", hide_short_help = true)]
    pub git_config_add: Vec<String>,

    /// When unneeded objects of the mirror are removed: `auto`, `always`, `aggressive`, `off`
    #[arg(long, value_name = "MODE", default_value = of::GIT_GC.treeswap, hide_short_help = true)]
    pub git_gc: String,
}

/// The listener.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Server")]
pub struct Server {
    /// Address for probes, metrics, status and webhook, such as :9375
    #[arg(long, value_name = "ADDRESS", default_value = "", hide_default_value = true)]
    pub http_bind: String,

    /// Whether /metrics has metrics; unlike git-sync's, on unless turned off
    #[arg(long, value_name = "BOOL", default_value = of::HTTP_METRICS.treeswap, value_parser = boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_short_help = true)]
    pub http_metrics: bool,

    /// Whether /debug/pprof/ answers, for probes made for git-sync; there is no Go profile behind it
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_short_help = true)]
    pub http_pprof: bool,

    /// File with the secrets that open POST /sync, one a line (repeatable); read again at every request
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub webhook_secret_file: Vec<PathBuf>,

    /// /readyz is 503 once the remote, or that of some source, has not answered for so long; 0s for never
    ///
    /// At least twice --period. Without it an outage never turns readiness: what is published keeps serving.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration, hide_short_help = true)]
    pub max_stale: Duration,
}

/// The log.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Logging")]
pub struct Logging {
    /// File for the last error as JSON, removed after a success; relative to the root, in which it begins with ".."
    /// unless the layout is git-sync
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true, hide_short_help = true)]
    pub error_file: String,

    /// File for the error that ended the process, if it exists; empty for none
    #[arg(long, value_name = "FILE", default_value = "/dev/termination-log", hide_short_help = true)]
    pub termination_log: String,

    /// `auto` is plain on a terminal and JSON elsewhere; `git-sync` is git-sync's JSON
    #[arg(long, value_name = "FORMAT", default_value = of::LOG_FORMAT.treeswap, value_parser = PossibleValuesParser::new(["auto", "json", "plain", "git-sync"]), hide_short_help = true)]
    pub log_format: String,

    /// error, warn, info, debug, trace [default: $RUST_LOG, then info]
    ///
    /// Or directives as in RUST_LOG.
    #[arg(long, value_name = "LEVEL", default_value = "", hide_default_value = true)]
    pub log_level: String,

    /// git-sync's verbosity: 0 is info, 1 to 4 debug, more is trace
    #[arg(short, long, value_name = "N", default_value = "0", value_parser = integer, allow_negative_numbers = true, hide_short_help = true)]
    pub verbose: i64,
}

/// Ceilings. Hitting one is an error that names it.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Limits")]
pub struct Limits {
    /// Time for a connection to the remote
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration, hide_short_help = true)]
    pub connect_timeout: Duration,

    /// How long a remote may send nothing
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration, hide_short_help = true)]
    pub idle_timeout: Duration,

    /// Bytes of one fetched pack
    #[arg(long, value_name = "BYTES", default_value = of::MAX_FETCH_BYTES.treeswap, value_parser = bytes, hide_short_help = true)]
    pub max_fetch_bytes: u64,

    /// Bytes of a remote's list of refs
    #[arg(long, value_name = "BYTES", default_value = "64Mi", value_parser = bytes, hide_short_help = true)]
    pub max_refs_bytes: u64,

    /// Bytes that the mirror may take before it is fetched anew
    #[arg(long, value_name = "BYTES", default_value = of::MAX_MIRROR_BYTES.treeswap, value_parser = bytes, hide_short_help = true)]
    pub max_mirror_bytes: u64,

    /// Files, links and directories of a revision
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = integer, hide_short_help = true)]
    pub max_tree_entries: i64,

    /// Bytes of a revision's files together
    #[arg(long, value_name = "BYTES", default_value = of::MAX_TREE_BYTES.treeswap, value_parser = bytes, hide_short_help = true)]
    pub max_tree_bytes: u64,

    /// Bytes of one file. It is in memory while it is written, up to twice: raise the container's limit with it
    #[arg(long, value_name = "BYTES", default_value = of::MAX_FILE_BYTES.treeswap, value_parser = bytes, hide_short_help = true)]
    pub max_file_bytes: u64,

    /// Components of a path
    #[arg(long, value_name = "N", default_value = "128", value_parser = integer, hide_short_help = true)]
    pub max_path_depth: i64,

    /// Memory of the child process that indexes a fetched pack
    #[arg(long, value_name = "BYTES", default_value = of::INDEX_MEMORY.treeswap, value_parser = bytes, hide_short_help = true)]
    pub index_memory: u64,

    /// Limits of the process that indexes packs, by Landlock and seccomp: what the kernel has, all of it, or none
    ///
    /// It reads what a server sent. It may use the mirror's files and no others, no network, no other program
    /// and no other process. With `require`, a kernel that cannot do that ends treeswap at its start.
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = PossibleValuesParser::new(["auto", "require", "off"]), hide_short_help = true)]
    pub sandbox: String,

    /// Hash every object again when it is read, not only when it is fetched
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_short_help = true)]
    pub verify: bool,
}
