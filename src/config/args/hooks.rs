//! The flags of hooks. Those that git-sync has, have its names and defaults.

use std::fmt;
use std::time::Duration;

use super::super::values::{boolean, duration, integer};
use crate::secret;

/// Hooks.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Hooks")]
pub struct HookArgs {
    /// Program to run after each publication, and at the first success
    ///
    /// A path without arguments; no shell is used. It runs in the generation's directory, which is pinned meanwhile,
    /// with GITSYNC_HASH, TREESWAP_REVISION, TREESWAP_GENERATION and TREESWAP_DIR set, and TREESWAP_REVISIONS with
    /// --sources. If it fails, it is retried after the backoff, for the generation that is current by then. With
    /// --one-time it runs once, and its failure is exit code 1.
    #[arg(
        long,
        value_name = "PROGRAM",
        default_value = "",
        hide_default_value = true,
        hide_short_help = true
    )]
    pub exechook_command: String,

    /// Timeout after which the program and its child processes are killed
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration, hide_short_help = true)]
    pub exechook_timeout: Duration,

    /// Pause before a failed run is retried
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = duration, hide_short_help = true)]
    pub exechook_backoff: Duration,

    /// Program to run just before each publication
    ///
    /// Like --exechook-command. The publication neither waits for it nor depends on its success, except with
    /// --pre-publish-gate.
    #[arg(
        long,
        value_name = "PROGRAM",
        default_value = "",
        hide_default_value = true,
        hide_short_help = true
    )]
    pub pre_publish_exechook_command: String,

    /// Timeout after which the pre-publish program and its child processes are killed
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration, hide_short_help = true)]
    pub pre_publish_exechook_timeout: Duration,

    /// Pause before a failed run of the pre-publish program is retried
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = duration, hide_short_help = true)]
    pub pre_publish_exechook_backoff: Duration,

    /// Publish only if the pre-publish program succeeds
    ///
    /// The program then runs in the staged generation, which has no name yet (TREESWAP_GENERATION is not set). If it
    /// refuses the revision, the current generation stays published and the program is not run again for that revision,
    /// unless it could not be started or timed out. Its run time counts towards --sync-timeout.
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_short_help = true)]
    pub pre_publish_gate: bool,

    /// Run the pre-publish program again at every attempt for a revision that it refused
    ///
    /// For programs whose result depends on more than the revision. A program that could not be started or timed out is
    /// retried anyway.
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_short_help = true)]
    pub pre_publish_gate_retry: bool,

    /// URL to send a request to after each publication, and at the first success
    ///
    /// The request has no body; its header Gitsync-Hash holds the revision. Retried like --exechook-command.
    #[arg(long, value_name = "URL", default_value = "", hide_default_value = true, hide_short_help = true)]
    pub webhook_url: String,

    /// HTTP method of the request
    #[arg(long, value_name = "METHOD", default_value = "POST", hide_short_help = true)]
    pub webhook_method: String,

    /// HTTP status that counts as success; 0 for any
    #[arg(long, value_name = "STATUS", default_value = "200", value_parser = integer, allow_negative_numbers = true, hide_short_help = true)]
    pub webhook_success_status: i64,

    /// Timeout of the request
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration, hide_short_help = true)]
    pub webhook_timeout: Duration,

    /// Pause before a failed request is retried
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = duration, hide_short_help = true)]
    pub webhook_backoff: Duration,

    /// Add the user that treeswap runs as to /etc/passwd, if it is missing and the file is writable
    ///
    /// treeswap needs no such entry; programs that hooks run may need it.
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_short_help = true)]
    pub add_user: bool,
}

impl fmt::Debug for HookArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = secret::redact_path(&self.webhook_url); // its path may be a token
        f.debug_struct("HookArgs")
            .field("exechook_command", &self.exechook_command)
            .field("pre_publish_exechook_command", &self.pre_publish_exechook_command)
            .field("webhook_url", &url)
            .finish_non_exhaustive()
    }
}
