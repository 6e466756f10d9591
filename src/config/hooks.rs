//! The flags of hooks, and what is wrong with them. Names, defaults and floors are git-sync's.

use std::path::PathBuf;
use std::time::Duration;

use reqwest::Method;
use url::Url;

use super::error::Error;
use super::settings::Check;
use super::values::{boolean, duration, integer};
use crate::hooks::{Exec, Options, Web};
use crate::secret::redact_path;

/// git-sync's floor for what hooks may take and for their pauses.
const SHORTEST: Duration = Duration::from_secs(1);

/// What is run and told.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Hooks")]
pub struct Hooks {
    /// Program to run after each publication, and at the first success
    ///
    /// One program: no arguments, no shell. It runs in the generation's directory, which is pinned while it runs, with
    /// GITSYNC_HASH, TREESWAP_REVISION, TREESWAP_GENERATION and TREESWAP_DIR set. If it fails it runs again after the
    /// backoff, for what is newest by then. With --one-time it runs once, and its failure is exit code 1.
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
    /// fails, what is published stays, and the next attempt runs it again. Its time counts towards --sync-timeout.
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_short_help = true)]
    pub pre_publish_gate: bool,

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

impl Check<'_> {
    /// The hooks. As in git-sync, nothing is said about the pauses of a hook that is not there.
    pub(super) fn hooks(&self) -> Result<Options, Error> {
        let given = &self.args.hooks;
        let exec =
            self.exec("exechook", &given.exechook_command, given.exechook_timeout, given.exechook_backoff)?;
        let pre_publish = self.exec(
            "pre-publish-exechook",
            &given.pre_publish_exechook_command,
            given.pre_publish_exechook_timeout,
            given.pre_publish_exechook_backoff,
        )?;
        if given.pre_publish_gate && pre_publish.is_none() {
            let one = self.origins.name("pre-publish-gate");
            return Err(Error::Needs { one, other: "--pre-publish-exechook-command".into() });
        }
        Ok(Options {
            exec,
            pre_publish,
            gate: given.pre_publish_gate,
            web: self.web()?,
            once: self.args.pace.one_time,
        })
    }

    fn exec(
        &self,
        name: &str,
        command: &str,
        timeout: Duration,
        backoff: Duration,
    ) -> Result<Option<Exec>, Error> {
        if command.is_empty() {
            return Ok(None);
        }
        Ok(Some(Exec {
            command: PathBuf::from(command),
            timeout: self.at_least(&format!("{name}-timeout"), timeout, SHORTEST)?,
            backoff: self.at_least(&format!("{name}-backoff"), backoff, SHORTEST)?,
        }))
    }

    fn web(&self) -> Result<Option<Web>, Error> {
        let given = &self.args.hooks;
        if given.webhook_url.is_empty() {
            return Ok(None);
        }
        let status = given.webhook_success_status;
        Ok(Some(Web {
            url: self.http_url("webhook-url", &given.webhook_url)?,
            method: Method::from_bytes(given.webhook_method.as_bytes()).map_err(|_| {
                self.wrong("webhook-method", &given.webhook_method, "it is not the name of a method")
            })?,
            success: match status {
                -1 | 0 => None,
                _ => Some(u16::try_from(status).ok().filter(|status| *status <= 999).ok_or_else(|| {
                    self.wrong("webhook-success-status", status, "it is a status such as 200, or 0 for any")
                })?),
            },
            timeout: self.at_least("webhook-timeout", given.webhook_timeout, SHORTEST)?,
            backoff: self.at_least("webhook-backoff", given.webhook_backoff, SHORTEST)?,
            ca_file: super::settings::path(&self.args.credentials.ca_file),
        }))
    }

    /// A URL that may hold a secret.
    pub(super) fn http_url(&self, flag: &str, text: &str) -> Result<Url, Error> {
        let url = Url::parse(text).ok();
        url.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host()).ok_or_else(|| {
            let shown = redact_path(text);
            self.wrong(flag, shown, "it is not an http or https URL")
        })
    }
}
