//! Finds names that mean the same cluster (a context and `default`, for example). Resolved once, before anything is
//! read.
//!
//! If a revision used two names for one cluster, the worker of each name would take the other's ConfigMaps for orphans
//! and prune them. So in that case the cluster is written under neither name, in any round. Two contexts of one API
//! server are recognized only in a namespace that both write: by the inventory, which the first of them wrote.

use std::collections::{BTreeMap, BTreeSet};

use super::Directory;
use crate::cluster::Meta;
use crate::configmap::apply::{Desired, names};

/// The cluster's own name, by each name that it is known by.
#[derive(Debug, Default)]
pub(super) struct Aliases(BTreeMap<String, String>);

impl Aliases {
    /// Resolves the names of all configured clusters.
    pub(super) fn of(clusters: &impl Directory) -> Self {
        let meant = |name: String| Some((name.clone(), clusters.find(&name).ok()?.name().to_owned()));
        Self(clusters.names().into_iter().filter_map(meant).collect())
    }

    /// Returns another name that the revision uses for the cluster called `name`, if there is one.
    pub(super) fn other<'d>(&self, name: &str, desired: &'d Desired) -> Option<&'d str> {
        let cluster = self.0.get(name)?;
        desired.clusters().find(|other| *other != name && self.0.get(*other) == Some(cluster))
    }

    /// Returns another name that the revision uses for the cluster called `name`, if an inventory in that cluster was
    /// written by it. Two contexts of one API server are found only so. The name of a context that was renamed is used
    /// no more.
    pub(super) fn writer_of<'d>(
        &self,
        inventory: &Meta,
        name: &str,
        desired: &'d Desired,
    ) -> Option<&'d str> {
        let writer =
            inventory.annotations.get(names::CLUSTER).filter(|writer| self.0.get(name) != Some(writer))?;
        desired.clusters().find(|other| *other != name && self.0.get(*other) == Some(writer))
    }

    /// Returns the clusters that a revision has ConfigMaps for and, if `prune`, all other clusters, each by one name.
    pub(super) fn affected_clusters(&self, desired: &Desired, prune: bool) -> BTreeSet<String> {
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
