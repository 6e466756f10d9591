//! Validates the flags of hooks. The lower bounds are git-sync's.

use std::path::PathBuf;
use std::time::Duration;

use reqwest::Method;

use super::check::Check;
use super::error::Error;
use crate::hooks::{Exec, Options, Webhook};

/// git-sync's lower bound for the timeout and the backoff of a hook.
const SHORTEST: Duration = Duration::from_secs(1);

impl Check<'_> {
    /// The options of all hooks. As in git-sync, timeout and backoff of a hook that is not given are not validated.
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
            gate_retry: given.pre_publish_gate_retry,
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

    fn web(&self) -> Result<Option<Webhook>, Error> {
        let given = &self.args.hooks;
        if given.webhook_url.is_empty() {
            return Ok(None);
        }
        let status = given.webhook_success_status;
        Ok(Some(Webhook {
            url: self.http_url("webhook-url", &given.webhook_url)?,
            method: Method::from_bytes(given.webhook_method.as_bytes()).map_err(|_| {
                self.invalid("webhook-method", &given.webhook_method, "it is not the name of a method")
            })?,
            success: match status {
                -1 | 0 => None,
                _ => Some(u16::try_from(status).ok().filter(|status| *status <= 999).ok_or_else(|| {
                    self.invalid(
                        "webhook-success-status",
                        status,
                        "must be a status such as 200, or 0 for any",
                    )
                })?),
            },
            timeout: self.at_least("webhook-timeout", given.webhook_timeout, SHORTEST)?,
            backoff: self.at_least("webhook-backoff", given.webhook_backoff, SHORTEST)?,
            ca_file: super::values::path(&self.args.credentials.ca_file),
        }))
    }
}
