//! Counts attempts, and sets the metrics that describe the root.

use std::time::Duration;

use jiff::Timestamp;

use super::Report;
use crate::hooks::Kind;
use crate::phase::{HookStatus, seconds};
use crate::sync::error::{Error, Stage};
use crate::sync::view::{Done, View};
use crate::telemetry::metrics::{ResultLabel, Room};

impl Report {
    pub(super) fn count(
        &self,
        result: &Result<Done, Error>,
        stage: Stage,
        view: &View,
        now: Timestamp,
        failures: u32,
    ) {
        for (stage, class) in &view.source_failures {
            self.metrics.error(stage, class.label());
        }
        let label = match result {
            Ok(Done::Published(_)) => "published",
            Ok(Done::Unchanged | Done::Postponed) => "unchanged",
            Err(error) => {
                // What was refused before is found in another stage, and does not become another failure by that.
                let stage = if let Error::StillRefused { stage, .. } = error { *stage } else { stage };
                // The failures of sources have been counted already.
                if !error.is_of_source() || view.source_failures.is_empty() {
                    self.metrics.error(stage.label(), error.class().label());
                }
                "failed"
            }
        };
        self.metrics.syncs.get_or_create(&ResultLabel { result: label }).inc();
        self.metrics.consecutive_failures.set(failures.into());
        self.metrics.last_attempt.set(seconds(now));
        if result.is_ok() && !view.unanswered {
            self.metrics.succeeded(Some(seconds(now)));
        }
    }

    /// Counts the attempt in git-sync's metrics, by its rules: the first success of a process is an update as well.
    pub(super) fn count_as_git_sync(
        &self,
        result: &Result<Done, Error>,
        stage: Stage,
        first_success: bool,
        took: Duration,
    ) {
        let (status, update) = match result {
            Ok(Done::Published(_)) => ("success", true),
            Ok(_) if first_success => ("success", true),
            Ok(_) => ("noop", false),
            Err(_) => ("error", matches!(stage, Stage::Export | Stage::Gate | Stage::Publish)),
        };
        self.metrics.git_sync.pass(status, took);
        if update {
            self.metrics.git_sync.update();
        }
    }

    /// The gate is failing no longer: what it refused is not what the ref names now, and it may not be run for that, as
    /// after the ref was set back. Its last run stays in the status.
    pub(super) fn forget_refusals(&self) {
        let gate = Kind::PrePublish.label();
        let failing = |hook: &&mut HookStatus| hook.hook == gate && hook.consecutive_failures > 0;
        self.status.send_if_modified(|status| {
            let Some(hook) = status.hooks.iter_mut().find(failing) else { return false };
            (hook.consecutive_failures, hook.failing_since) = (0, None);
            hook.hints.clear();
            true
        });
        self.metrics.hook_failures.get_or_create(&[("hook", gate)]).set(0);
    }

    /// Updates the metrics that describe the root.
    pub(super) fn update_metrics(&self, view: &View) {
        let pinned = view.plan.decisions.iter().filter(|decision| decision.pinned).count();
        let current = usize::from(view.current().is_some());
        let set = |state, count: usize| {
            let gauge = self.metrics.generations.get_or_create(&[("state", state)]);
            gauge.set(i64::try_from(count).unwrap_or(0));
        };
        set("current", current);
        set("retired", view.generations.len() - current);
        set("pinned", pinned);
        let failing = view.sources.iter().map(|source| (source.name.as_str(), source.error.is_some()));
        self.metrics.sources(failing);
        let room = view.room;
        self.metrics.room(Room {
            free_bytes: room.free_bytes,
            free_inodes: room.free_inodes,
            used_bytes: view.mirror_bytes.map(|bytes| bytes.saturating_add(room.used_bytes)),
            limit_bytes: room.limit_bytes,
        });
        self.metrics.oldest_pin.set(view.oldest_pin().map(seconds));
        let current = view.current();
        self.metrics.name_current(current.map(|record| {
            // An empty label is the same as none.
            let revision = record.known_revision().map(|revision| revision.to_string()).unwrap_or_default();
            (revision, record.name.to_string())
        }));
        let size = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.metrics.generation_bytes.set(current.map_or(0, |record| size(record.bytes)));
        self.metrics.generation_entries.set(current.map_or(0, |record| size(record.entries)));
        if let Some(record) = current {
            self.metrics.last_publish.set(seconds(record.published));
        }
    }
}
