//! The flags of hooks. Those that git-sync has, have its names and defaults.

use std::time::Duration;

use super::super::values::{boolean, duration, integer};

/// Hooks.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Hooks")]
pub struct Hooks {
    /// Program to run after each publication, and at the first success
    ///
    /// One program: no arguments, no shell. It runs in the generation's directory, which is pinned while it runs, with
    /// GITSYNC_HASH, TREESWAP_REVISION, TREESWAP_GENERATION and TREESWAP_DIR set, with --sources TREESWAP_REVISIONS. If
    /// it fails it runs again after the backoff, for what is newest by then. With --one-time it runs once, and its
    /// failure is exit code 1.
    #[arg(
        long,
        value_name = "PROGRAM",
        default_value = "",
        hide_default_value = true,
        hide_short_help = true
    )]
    pub exechook_command: String,

    /// How long it may take before it is killed, and all that it started
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration, hide_short_help = true)]
    pub exechook_timeout: Duration,

    /// Pause before it is run again after a failure
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = duration, hide_short_help = true)]
    pub exechook_backoff: Duration,

    /// Program to run just before each publication
    ///
    /// Like --exechook-command; nobody waits for it, and its failure stops nothing, unless --pre-publish-gate is given.
    #[arg(
        long,
        value_name = "PROGRAM",
        default_value = "",
        hide_default_value = true,
        hide_short_help = true
    )]
    pub pre_publish_exechook_command: String,

    /// How long it may take before it is killed, and all that it started
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration, hide_short_help = true)]
    pub pre_publish_exechook_timeout: Duration,

    /// Pause before it is run again after a failure
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = duration, hide_short_help = true)]
    pub pre_publish_exechook_backoff: Duration,

    /// Whether a publication waits for the pre-publish program, and fails with it
    ///
    /// The program then runs in the staged generation, which has no name yet (TREESWAP_GENERATION is not set). If it
    /// fails, what is published stays, and the revision is not asked about again. Its time counts towards
    /// --sync-timeout.
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_short_help = true)]
    pub pre_publish_gate: bool,

    /// Whether a revision that the pre-publish program refused is asked about again at every attempt
    ///
    /// For programs whose answer depends on more than the revision. One that could not be run, or took too long, is run
    /// again anyway.
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_short_help = true)]
    pub pre_publish_gate_retry: bool,

    /// Where to send a request after each publication, and at the first success
    ///
    /// It has no body; its header Gitsync-Hash holds the revision. Tried again like --exechook-command.
    #[arg(long, value_name = "URL", default_value = "", hide_default_value = true, hide_short_help = true)]
    pub webhook_url: String,

    /// Method of the request
    #[arg(long, value_name = "METHOD", default_value = "POST", hide_short_help = true)]
    pub webhook_method: String,

    /// Status that counts as success; 0 for any
    #[arg(long, value_name = "STATUS", default_value = "200", value_parser = integer, allow_negative_numbers = true, hide_short_help = true)]
    pub webhook_success_status: i64,

    /// How long the answer may take
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration, hide_short_help = true)]
    pub webhook_timeout: Duration,

    /// Pause before it is sent again after a failure
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = duration, hide_short_help = true)]
    pub webhook_backoff: Duration,
}
