//! Validates when attempts are made and what each of them does.

use std::path::Path;
use std::time::Duration;

use super::{FIRST_BACKOFF, LONGEST_BACKOFF, LONGEST_INIT_BACKOFF, MIN_PERIOD, absolute};
use crate::config::args::{self, Args};
use crate::config::check::Check;
use crate::config::error::Error;
use crate::config::personality::Personality;
use crate::payload::Symlinks;
use crate::phase::REF_OF_SOURCES;
use crate::phase::machine::{FailureLimits, Timing};
use crate::revision::Ref;
use crate::{mirror, retry, store, sync};

impl Check<'_> {
    /// The options of the sync loop.
    pub(super) fn sync(
        &self,
        root: &Path,
        layout: &store::Layout,
        followed: &Ref,
        pace: Timing,
        sync_timeout: Duration,
    ) -> Result<sync::Options, Error> {
        let Args { source, root: given, pace: args::PaceArgs { one_time, .. }, logging, .. } = self.args;
        Ok(sync::Options {
            ref_name: match source.sources.as_str() {
                "" => followed.to_string(),
                _ => REF_OF_SOURCES.to_owned(),
            },
            root: root.to_owned(),
            limits: self.limits()?,
            symlinks: match given.symlinks.as_str() {
                "keep" => Symlinks::Keep,
                _ => Symlinks::Safe,
            },
            path: self.subdirectory(layout)?,
            sparse_file: match source.sparse_checkout_file.as_str() {
                "" => None,
                text => Some(absolute(text)),
            },
            group_write: given.group_write,
            spare: given.spare != "off" && !one_time,
            pace,
            failure_limits: self.failure_limits()?,
            sync_timeout,
            one_time: *one_time,
            park: self.ends_after_success(followed),
            every_failure: self.origins.personality() == Personality::GitSync,
            touch_file: self.operator_file("touch-file", &given.touch_file, root, layout)?,
            error_file: self.operator_file("error-file", &logging.error_file, root, layout)?,
        })
    }

    /// Whether attempts end after the first success, as git-sync's do for a commit id. As treeswap they go on, to check
    /// that the root is intact.
    pub(super) fn ends_after_success(&self, followed: &Ref) -> bool {
        self.origins.personality() == Personality::GitSync && matches!(followed, Ref::Commit(_))
    }

    /// The directory of the repository that is published (`--path`). Excludes git-sync's layout and submodules: git
    /// has no worktree of a subdirectory, nor submodules of one.
    pub(super) fn subdirectory(&self, layout: &store::Layout) -> Result<Option<mirror::Subdirectory>, Error> {
        let args::SourceArgs { path, submodules, .. } = &self.args.source;
        if path.is_empty() {
            return Ok(None);
        }
        let name = |flag| self.origins.name(flag);
        let conflict = |other: String| Err(Error::Conflict { one: name("path"), other });
        if *layout != store::Layout::Kubelet {
            return conflict(format!("{}=git-sync", name("layout")));
        }
        if submodules != "off" {
            return conflict(format!("{}={submodules}", name("submodules")));
        }
        let found = path.parse().map_err(|why: mirror::BadSubdirectory| Error::Value {
            name: name("path"),
            value: path.clone(),
            why: why.to_string(),
        });
        found.map(Some)
    }

    /// The timing of the sync loop.
    pub(super) fn pace(&self) -> Result<Timing, Error> {
        let given = &self.args.pace;
        let period = self.at_least("period", given.period, MIN_PERIOD)?;
        let init_period = match given.init_period {
            Duration::ZERO => period,
            own => self.at_least("init-period", own, MIN_PERIOD)?,
        };
        let max_backoff = match given.max_backoff {
            Duration::ZERO => None,
            own => Some(self.at_least("max-backoff", own, MIN_PERIOD)?),
        };
        let backoff = |period: Duration, longest: Duration| {
            let ceiling = match (max_backoff, self.origins.personality()) {
                (Some(own), _) => own,
                // git-sync has no backoff: it tries again after one period.
                (None, Personality::GitSync) => return retry::Backoff { first: period, ceiling: period },
                (None, Personality::Treeswap) => longest.min(period.saturating_mul(10)),
            };
            retry::Backoff { first: period.min(FIRST_BACKOFF).min(ceiling), ceiling }
        };
        Ok(Timing {
            period,
            init_period,
            min_interval: given.min_interval,
            backoff: backoff(period, LONGEST_BACKOFF),
            init_backoff: backoff(init_period, LONGEST_INIT_BACKOFF),
            jitter: given.jitter,
        })
    }

    /// The number of failures after which the process exits. As in git-sync, 0 and 1 both mean the first failure, and a
    /// negative number means never.
    pub(super) fn failure_limits(&self) -> Result<FailureLimits, Error> {
        let given = &self.args.pace;
        let limit = |flag: &str, value: i64| match value {
            ..0 => Ok(None),
            value => self.count(flag, value, 0).map(Some),
        };
        let failures = match given.max_failures {
            Some(value) => limit("max-failures", value)?,
            None => given.one_time.then_some(1),
        };
        let init_failures = match given.init_max_failures {
            Some(value) => limit("init-max-failures", value)?,
            None => failures,
        };
        Ok(FailureLimits { failures, init_failures })
    }
}
