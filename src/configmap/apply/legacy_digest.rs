//! The text that releases before the canonical form of `digest` hashed: the `derive(Debug)` output of their types.
//! Copies of those types live here so that stored digests of those releases are still recognized. This file must never
//! change its output.

use std::fmt::Debug;

use super::super::{Options, RuleSet, Setting};
use super::desired_state::{ExtraKeys, VersionKey};

/// The text that earlier releases hashed.
pub(super) fn text(rules: &RuleSet, setting: &Setting<'_>, options: &Options, shape: &ExtraKeys) -> String {
    let rules: Vec<Rule<'_>> = rules.rules.iter().map(Rule).collect();
    let policies = Policy {
        overlaps: options.policies.overlaps.label(),
        collisions: options.policies.collisions.label(),
        illegal_keys: options.policies.illegal_keys.label(),
        links: options.policies.links.label(),
        oversize: options.policies.oversize.label(),
        unknown_fields: if setting.ignore_unknown { "ignore" } else { "refuse" },
    };
    let repository = &options.repository;
    let dialect = setting.dialect.to_string();
    let namespace = setting.default_namespace;
    let version_key = match shape.version_key {
        VersionKey::Off => "Off",
        VersionKey::Changed => "Changed",
        VersionKey::Every => "Every",
    };
    let stamp_key = &shape.stamp_key;
    format!("{rules:?} {policies:?} {repository:?} {dialect:?} {namespace}\0{version_key}\0{stamp_key:?}")
}

#[derive(Debug)]
#[expect(dead_code, reason = "for their Debug alone")]
struct Policy {
    overlaps: &'static str,
    collisions: &'static str,
    illegal_keys: &'static str,
    links: &'static str,
    oversize: &'static str,
    unknown_fields: &'static str,
}

struct Rule<'a>(&'a super::super::Rule);

struct Place<'a>(&'a super::super::ClusterNamespace);

struct Names<'a>(&'a super::super::Names);

impl Debug for Rule<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rule = self.0;
        let places: Vec<Place<'_>> = rule.places.iter().map(Place).collect();
        f.debug_struct("Rule")
            .field("pattern", &rule.pattern)
            .field("names", &Names(&rule.names))
            .field("key", &rule.key)
            .field("full_path", &rule.full_path)
            .field("gzip", &rule.gzip)
            .field("compress", &rule.compress)
            .field("places", &places)
            .field("allowed", &rule.allowed)
            .field("denied", &rule.denied)
            .finish()
    }
}

impl Debug for Place<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let super::super::ClusterNamespace { cluster, namespace } = self.0;
        f.debug_struct("Place").field("cluster", cluster).field("namespace", namespace).finish()
    }
}

impl Debug for Names<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            super::super::Names::One(name) => f.debug_tuple("One").field(name).finish(),
            super::super::Names::Partitions(names) => f.debug_tuple("Partitions").field(names).finish(),
        }
    }
}
