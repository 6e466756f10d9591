//! Validates the flags of the HTTP listener and the log.

use std::net::SocketAddr;
use std::time::Duration;

use crate::config::check::Check;
use crate::config::error::Error;
use crate::config::personality::Personality;
use crate::config::values;
use crate::phase::machine::Timing;
use crate::{admin, telemetry};

impl Check<'_> {
    /// The options of the HTTP listener; `None` without `--http-bind`. If attempts end after the first success, nothing
    /// is asked of the remote, so no answer is missing: `--max-stale` has no effect.
    pub(super) fn admin(
        &self,
        pace: Timing,
        sync_timeout: Duration,
        ends_after_success: bool,
    ) -> Result<Option<admin::Options>, Error> {
        let given = &self.args.server;
        let max_stale = Some(given.max_stale).filter(|max| !max.is_zero());
        // The remote is asked in attempts only, also after failures that are not the remote's, and its answer shows at
        // the end of one.
        let longest = pace.longest_pause().saturating_add(pace.min_interval).saturating_add(sync_timeout);
        let goes_on = !ends_after_success && !self.args.pace.one_time;
        if let Some(max) = max_stale.filter(|max| *max < longest && goes_on) {
            let of = |flag| self.origins.name(flag);
            let [given, least] = [max, longest].map(values::print_duration);
            let pauses = ["period", "init-period", "max-backoff"].map(of).join(", ");
            let plus = ["min-interval", "sync-timeout"].map(of).join(" plus ");
            return Err(Error::Needs {
                one: format!("{}={given}", of("max-stale")),
                other: format!("{least} or more: the longest pause between attempts ({pauses}) plus {plus}"),
            });
        }
        let personality = self.origins.personality();
        if !given.http_bind.is_empty() {
            if !admin::is_address(&given.http_bind) || !can_be_bound(&given.http_bind) {
                return Err(Error::Value {
                    name: self.origins.name("http-bind"),
                    value: given.http_bind.clone(),
                    why: "write :8080, 127.0.0.1:8080 or [::1]:8080".to_owned(),
                });
            }
            return Ok(Some(admin::Options {
                bind: given.http_bind.clone(),
                webhook_secrets: given.webhook_secret_file.clone(),
                metrics: given.http_metrics,
                fallback: match personality {
                    Personality::Treeswap => admin::Fallback::Treeswap,
                    Personality::GitSync => admin::Fallback::GitSync,
                },
                pprof: given.http_pprof,
                max_stale: max_stale.filter(|_| !ends_after_success),
            }));
        }
        let without =
            |flag: &str| Err(Error::Needs { one: self.origins.name(flag), other: "--http-bind".into() });
        if given.http_metrics && personality == Personality::GitSync {
            return without("http-metrics");
        }
        if given.http_pprof {
            return without("http-pprof");
        }
        if !given.webhook_secret_file.is_empty() {
            return without("webhook-secret-file");
        }
        // An init container with --one-time often shares its flags with the sidecar, so --max-stale is ignored there.
        if max_stale.is_some() && !self.args.pace.one_time {
            return without("max-stale");
        }
        Ok(None)
    }

    /// The format and the level of the log.
    pub(super) fn telemetry(&self) -> Result<telemetry::Options, Error> {
        let given = &self.args.logging;
        let verbosity = match given.verbose {
            ..=0 => "info",
            // Other crates stay at info: what they log about a request may contain secrets.
            1..=4 => "info,treeswap=debug",
            _ => "info,treeswap=trace",
        };
        let filter = match given.log_level.as_str() {
            "" => self.filter_of_variable().and_then(Result::ok),
            level => Some(level.to_owned()),
        };
        let by_verbosity = filter.is_none().then_some(given.verbose);
        let filter = filter.unwrap_or_else(|| verbosity.to_owned());
        let format = match given.log_format.as_str() {
            "json" => telemetry::Format::Json,
            "plain" => telemetry::Format::Plain,
            "git-sync" => telemetry::Format::GitSync,
            _ => telemetry::Format::Auto,
        };
        telemetry::Options::new(format, &filter)
            .map(|options| options.verbose(by_verbosity))
            .map_err(|why| self.invalid("log-level", filter, why.to_string()))
    }

    /// The filter in `$RUST_LOG`, if the variable counts. It is often set for all programs of a Pod, and may be written
    /// for another one: what is no filter here is warned about, and not refused.
    fn filter_of_variable(&self) -> Option<Result<String, String>> {
        // git-sync does not know the variable.
        let counts = self.args.logging.verbose <= 0 && self.origins.personality() == Personality::Treeswap;
        let filter = std::env::var("RUST_LOG").ok().filter(|filter| counts && !filter.is_empty())?;
        // A filter for other programs only would silence this one. A span may be ours.
        let is_ours = |part: &str| ["treeswap", "git-sync", "["].iter().any(|start| part.starts_with(start));
        let counts_here = |part: &str| !part.contains('=') || is_ours(part.trim());
        let is_for_us = filter.split(',').any(counts_here);
        let why = match telemetry::Options::new(telemetry::Format::Auto, &filter) {
            Ok(_) if is_for_us => return Some(Ok(filter)),
            Ok(_) => "it has no level of all or of treeswap".to_owned(),
            Err(why) => why.to_string(),
        };
        Some(Err(format!("$RUST_LOG has no effect: {why}")))
    }

    /// The warning about what is said of the log's level and has no effect.
    pub(super) fn level_without_effect(&self) -> Option<String> {
        let given = &self.args.logging;
        if given.log_level.is_empty() {
            return self.filter_of_variable()?.err();
        }
        let name = |flag| self.origins.name(flag);
        (given.verbose > 0).then(|| format!("{} has no effect beside {}", name("verbose"), name("log-level")))
    }
}

/// Whether the host of an address, a text that [`admin::is_address`] accepts, can be one: an IP address, or a name that
/// may resolve later.
fn can_be_bound(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    if host.starts_with('[') {
        return address.parse::<SocketAddr>().is_ok();
    }
    // As inet_aton(3), the name service also reads numbers such as 127.1.
    let numbers: Option<Vec<u64>> = host.split('.').map(|part| part.parse().ok()).collect();
    let is_no_ipv4 = numbers.is_some_and(|numbers| numbers.len() == 4 && numbers.iter().any(|n| *n > 255));
    !is_no_ipv4 && host.chars().all(|c| c.is_alphanumeric() || "-._".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_no_name_service_knows_is_told_apart_from_one_that_may_resolve() {
        for good in [
            ":8080",
            "127.0.0.1:8080",
            "127.1:80",
            "[::1]:8080",
            "[::]:0",
            "[fe80::1%2]:80",
            "localhost:80",
            "pod_a.ns.svc:1",
        ] {
            assert!(can_be_bound(good), "{good}");
        }
        for bad in ["[]:80", "[::g]:80", "[localhost]:80", "300.1.1.1:80", "a b:80", "//localhost:80", "*:80"]
        {
            assert!(!can_be_bound(bad), "{bad}");
        }
    }
}
