//! The table of git-sync v4's flags: the type of each, the older names of its variable, and its name in `sync`.

use super::super::values::{any_duration, boolean, integer};

/// The type of a flag's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Any text.
    Text,
    /// Go's booleans; the flag alone means true.
    Bool,
    /// Go's integer literals.
    Int,
    /// A decimal fraction.
    Float,
    /// Go's durations.
    Duration,
    /// Texts: a repeated flag, or a variable with values separated by `:`.
    List,
    /// git-sync's JSON of credentials. A repeated flag; its values add to the variable's.
    Json,
    /// A boolean that turns the fixed path of the cookies on; here it can also be an absolute path.
    Cookies,
}

impl Kind {
    /// The placeholder for the value in the usage text; empty for a switch.
    pub fn placeholder(self) -> &'static str {
        match self {
            Self::Text => "string",
            Self::Int => "int",
            Self::Float => "float",
            Self::Duration => "duration",
            Self::List => "string (repeatable)",
            Self::Json => "JSON (repeatable)",
            Self::Bool | Self::Cookies => "",
        }
    }

    /// Whether the flag takes a value only as `--flag=value`, and means true without one.
    pub(super) fn is_switch(self) -> bool {
        matches!(self, Self::Bool | Self::Cookies)
    }

    /// Whether the flag can be repeated, and keeps all values.
    pub(super) fn repeats(self) -> bool {
        matches!(self, Self::List | Self::Json)
    }

    /// Checks that the text is a value of this type; the error says why not.
    pub(super) fn check(self, text: &str) -> Result<(), String> {
        let unsigned = text.strip_prefix('-').unwrap_or(text); // a negative duration is well-formed, and judged later
        match self {
            Self::Text | Self::List => Ok(()),
            Self::Bool => boolean(text).map(drop),
            Self::Int => integer(text).map(drop),
            Self::Float => match text.parse::<f64>() {
                Ok(number) if number.is_finite() => Ok(()),
                _ => Err("it is not a number".to_owned()),
            },
            Self::Duration => any_duration(unsigned).map(drop),
            Self::Json => super::super::json::check(text),
            Self::Cookies if text.starts_with('/') => Ok(()),
            Self::Cookies => boolean(text).map(drop),
        }
    }
}

/// A flag of git-sync v4, or of v3 where v4 still takes it.
#[derive(Debug)]
pub struct Flag {
    /// Its name, without dashes.
    pub name: &'static str,
    /// The type of its value.
    pub kind: Kind,
    /// Older names of its variable, which win over `GITSYNC_<NAME>`.
    pub older: &'static [&'static str],
    /// Its help text, if that differs from the help text in `sync`.
    pub help: Option<&'static str>,
}

impl Flag {
    /// Its name in `sync`.
    pub fn here(&self) -> &'static str {
        if self.name == RENAMED.1 { RENAMED.0 } else { self.name }
    }

    /// Its variable, if it has one.
    pub fn variable(&self) -> Option<String> {
        // As in git-sync: its values may contain the separator of lists, `:`.
        (self.name != "git-config-add").then(|| variable("GITSYNC", self.name))
    }
}

/// The one flag that git-sync calls differently: our name, and git-sync's.
pub(in crate::config) const RENAMED: (&str, &str) = ("grace", "stale-worktree-timeout");

/// The name of a flag's variable, such as `GITSYNC_MAX_FAILURES`.
pub(in crate::config) fn variable(prefix: &str, flag: &str) -> String {
    format!("{prefix}_{}", flag.to_uppercase().replace('-', "_"))
}

/// The flag of v4 with this name in `sync`.
pub(in crate::config) fn of_sync(flag: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|known| known.here() == flag)
}

/// All old names of variables.
pub(in crate::config) fn older_names() -> impl Iterator<Item = &'static str> {
    let all = FLAGS.iter().chain(DEPRECATED).flat_map(|flag| flag.older.iter().copied());
    all.chain(std::iter::once("GIT_SYNC_PASSWORD"))
}

const fn flag(name: &'static str, kind: Kind, older: &'static [&'static str]) -> Flag {
    Flag { name, kind, older, help: None }
}

const fn explained(
    name: &'static str,
    kind: Kind,
    older: &'static [&'static str],
    help: &'static str,
) -> Flag {
    Flag { name, kind, older, help: Some(help) }
}

use Kind::{Bool, Cookies, Duration, Float, Int, Json, List, Text};

/// The flags of v4, sorted by name, as in its manual.
pub const FLAGS: &[Flag] = &[
    flag("add-user", Bool, &["GIT_SYNC_ADD_USER"]),
    flag("askpass-url", Text, &["GIT_SYNC_ASKPASS_URL", "GIT_ASKPASS_URL"]),
    explained(
        "cookie-file",
        Cookies,
        &["GIT_SYNC_COOKIE_FILE", "GIT_COOKIE_FILE"],
        "Whether to send the cookies in /etc/git-secret/cookie_file; or the path of another such file",
    ),
    explained(
        "credential",
        Json,
        &[],
        "Credential as JSON: {\"url\":…, \"username\":…, \"password-file\":…}, or a list of them",
    ),
    flag("depth", Int, &["GIT_SYNC_DEPTH"]),
    flag("error-file", Text, &["GIT_SYNC_ERROR_FILE"]),
    flag("exechook-backoff", Duration, &["GIT_SYNC_EXECHOOK_BACKOFF"]),
    flag("exechook-command", Text, &["GIT_SYNC_EXECHOOK_COMMAND"]),
    flag("exechook-timeout", Duration, &["GIT_SYNC_EXECHOOK_TIMEOUT"]),
    flag("filter", Text, &[]),
    flag("git", Text, &["GIT_SYNC_GIT"]),
    flag("git-config", Text, &["GIT_SYNC_GIT_CONFIG"]),
    flag("git-config-add", List, &[]),
    flag("git-gc", Text, &["GIT_SYNC_GIT_GC"]),
    flag("github-app-application-id", Int, &[]),
    flag("github-app-client-id", Text, &[]),
    flag("github-app-installation-id", Int, &[]),
    explained(
        "github-app-private-key-file",
        Text,
        &[],
        "PEM file with the GitHub App's private key, read for every token; or $GITSYNC_GITHUB_APP_PRIVATE_KEY",
    ),
    flag("github-base-url", Text, &[]),
    flag("group-write", Bool, &["GIT_SYNC_GROUP_WRITE"]),
    flag("http-bind", Text, &["GIT_SYNC_HTTP_BIND"]),
    explained("http-metrics", Bool, &["GIT_SYNC_HTTP_METRICS"], "Serve metrics on /metrics"),
    flag("http-pprof", Bool, &["GIT_SYNC_HTTP_PPROF"]),
    explained(
        "init-max-failures",
        Int,
        &[],
        "Consecutive failures before the first success after which the process exits [default: --max-failures]",
    ),
    explained("init-period", Duration, &[], "Pause between passes until the first success; 0 for --period"),
    flag("link", Text, &["GIT_SYNC_LINK"]),
    explained(
        "max-failures",
        Int,
        &["GIT_SYNC_MAX_FAILURES"],
        "Consecutive failures after which the process exits; 0 and 1 both mean the first; negative means never",
    ),
    flag("one-time", Bool, &["GIT_SYNC_ONE_TIME"]),
    flag("password-file", Text, &["GIT_SYNC_PASSWORD_FILE"]),
    explained("period", Duration, &["GIT_SYNC_PERIOD"], "Pause between passes"),
    flag("pre-publish-exechook-backoff", Duration, &[]),
    flag("pre-publish-exechook-command", Text, &[]),
    flag("pre-publish-exechook-timeout", Duration, &[]),
    flag("ref", Text, &[]),
    flag("repo", Text, &["GIT_SYNC_REPO"]),
    flag("root", Text, &["GIT_SYNC_ROOT"]),
    flag("sparse-checkout-file", Text, &["GIT_SYNC_SPARSE_CHECKOUT_FILE"]),
    flag("ssh-key-file", List, &["GIT_SYNC_SSH_KEY_FILE", "GIT_SSH_KEY_FILE"]),
    flag("ssh-known-hosts", Bool, &["GIT_SYNC_KNOWN_HOSTS", "GIT_KNOWN_HOSTS"]),
    flag("ssh-known-hosts-file", Text, &["GIT_SYNC_SSH_KNOWN_HOSTS_FILE", "GIT_SSH_KNOWN_HOSTS_FILE"]),
    explained(
        "stale-worktree-timeout",
        Duration,
        &[],
        "How long a worktree is kept after it was replaced; longer while a reader has it pinned",
    ),
    flag("submodules", Text, &["GIT_SYNC_SUBMODULES"]),
    flag("sync-on-signal", Text, &["GIT_SYNC_SYNC_ON_SIGNAL"]),
    flag("sync-timeout", Duration, &["GIT_SYNC_SYNC_TIMEOUT"]),
    flag("touch-file", Text, &["GIT_SYNC_TOUCH_FILE"]),
    explained(
        "username",
        Text,
        &["GIT_SYNC_USERNAME"],
        "User for http(s); with --password-file or $GITSYNC_PASSWORD",
    ),
    explained("verbose", Int, &[], "Log verbosity: 0 logs updates, 1 to 4 more steps, 5 and more everything"),
    flag("webhook-backoff", Duration, &["GIT_SYNC_WEBHOOK_BACKOFF"]),
    flag("webhook-method", Text, &["GIT_SYNC_WEBHOOK_METHOD"]),
    flag("webhook-success-status", Int, &["GIT_SYNC_WEBHOOK_SUCCESS_STATUS"]),
    flag("webhook-timeout", Duration, &["GIT_SYNC_WEBHOOK_TIMEOUT"]),
    flag("webhook-url", Text, &["GIT_SYNC_WEBHOOK_URL"]),
];

/// The flags of v3 that v4 accepts without listing them in its help; `older` has their variables.
pub(super) const DEPRECATED: &[Flag] = &[
    flag("branch", Text, &["GIT_SYNC_BRANCH"]),
    flag("change-permissions", Int, &["GIT_SYNC_PERMISSIONS"]),
    flag("dest", Text, &["GIT_SYNC_DEST"]),
    flag("max-sync-failures", Int, &["GIT_SYNC_MAX_SYNC_FAILURES"]),
    flag("password", Text, &[]),
    flag("rev", Text, &["GIT_SYNC_REV"]),
    flag("ssh", Bool, &[]),
    flag("sync-hook-command", Text, &["GIT_SYNC_HOOK_COMMAND"]),
    flag("timeout", Int, &["GIT_SYNC_TIMEOUT"]),
    flag("v", Int, &[]),
    flag("wait", Float, &["GIT_SYNC_WAIT"]),
];

/// Flags that print something and exit, and hidden flags that set a variable for a secret.
pub(super) const SPECIAL: &[Flag] = &[
    flag("version", Bool, &[]),
    flag("help", Bool, &[]),
    flag("man", Bool, &[]),
    flag("__env__GITSYNC_PASSWORD", Text, &[]),
    flag("__env__GITSYNC_GITHUB_APP_PRIVATE_KEY", Text, &[]),
];
