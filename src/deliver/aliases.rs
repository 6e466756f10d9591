//! Which names mean one cluster: resolved once, before anything is read.
//!
//! What one name has in a cluster looks forgotten to a worker that has it by another name, and would be pruned. So where a
//! revision calls one cluster by two names neither is written, whichever of them is reached first, in whichever round.

use std::collections::{BTreeMap, BTreeSet};

use super::Directory;
use crate::configmap::apply::Desired;

/// The cluster that each name means, by the cluster's own name.
#[derive(Debug, Default)]
pub(super) struct Aliases(BTreeMap<String, String>);

impl Aliases {
    /// Of every cluster there is.
    pub(super) fn of(clusters: &impl Directory) -> Self {
        let meant = |name: String| Some((name.clone(), clusters.find(&name).ok()?.name().to_owned()));
        Self(clusters.names().into_iter().filter_map(meant).collect())
    }

    /// Another name by which a revision calls the cluster of this name.
    pub(super) fn other<'d>(&self, name: &str, desired: &'d Desired) -> Option<&'d str> {
        let cluster = self.0.get(name)?;
        desired.clusters().find(|other| *other != name && self.0.get(*other) == Some(cluster))
    }

    /// The clusters that a revision has something for and, to prune them, all the others, each by one name.
    pub(super) fn concerned(&self, desired: &Desired, prune: bool) -> BTreeSet<String> {
        let mut names: BTreeSet<String> = desired.clusters().map(str::to_owned).collect();
        if prune {
            let mut seen: BTreeSet<&String> = names.iter().filter_map(|name| self.0.get(name)).collect();
            let others = self.0.iter().filter(|(_, cluster)| seen.insert(*cluster));
            let others: Vec<String> = others.map(|(name, _)| name.clone()).collect();
            names.extend(others);
        }
        names
    }
}
