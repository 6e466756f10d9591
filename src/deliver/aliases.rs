//! Finds names that mean the same cluster (a context and `default`, for example). Resolved once, before anything is
//! read.
//!
//! If a revision used two names for one cluster, the worker of each name would take the other's ConfigMaps for orphans
//! and prune them. So in that case the cluster is written under neither name, in any round. Two contexts of one API
//! server are recognized only in a namespace that both name, or that one names and the other would prune: by the
//! inventory, which the first of them wrote.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future;
use tokio::time::timeout;

use super::Directory;
use super::pauses::retried_if;
use super::survey::PassContext;
use crate::cluster::{Cluster, ConfigError, Error, Failure, Kind, Meta, Operation, Verb};
use crate::configmap::apply::{Desired, names};

/// How long other clusters are asked whether they are the same one: any of them may be away.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// The configured clusters, by each name that rules can call them by.
#[derive(Debug, Default)]
pub(super) struct Aliases(BTreeMap<String, Cluster>);

impl Aliases {
    /// Resolves the names of all configured clusters.
    pub(super) fn of(clusters: &impl Directory) -> Self {
        let named = |name: String| Some((name.clone(), clusters.find(&name).ok()?));
        Self(clusters.names().into_iter().filter_map(named).collect())
    }

    /// Returns the context of the cluster that rules call `name`: the same for each of its names.
    fn context(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(Cluster::name)
    }

    /// Returns another name that the revision uses for the cluster called `name`, if there is one.
    pub(super) fn other_name<'d>(&self, name: &str, desired: &'d Desired) -> Option<&'d str> {
        let cluster = self.context(name)?;
        desired.clusters().find(|other| *other != name && self.context(other) == Some(cluster))
    }

    /// Returns another name that the revision uses for the cluster of the pass, if an inventory in that cluster was
    /// written by it. Two contexts of one API server are found only so. The name of a context that was renamed is used
    /// no more.
    pub(super) fn other_writer<'d>(&self, pass: PassContext<'d>, inventory: &Meta) -> Option<&'d str> {
        let writer = inventory.annotations.get(names::CLUSTER).map(String::as_str);
        let writer = writer.filter(|writer| self.context(pass.cluster_name) != Some(*writer))?;
        let mut others = pass.desired.clusters().filter(|other| *other != pass.cluster_name);
        others.find(|other| self.context(other) == Some(writer))
    }

    /// Returns true if the revision names the namespace of an inventory in another cluster, and that very inventory is
    /// there: it is the same cluster, by another context. Otherwise fails if one of them does not say whether it is.
    pub(super) async fn is_named_otherwise(
        &self,
        pass: PassContext<'_>,
        inventory: &Meta,
    ) -> Result<bool, Error> {
        let others = pass.desired.clusters().filter(|other| *other != pass.cluster_name);
        let others = others.filter(|other| pass.desired.of(other, &inventory.namespace).is_some());
        let answers = others.map(|other| self.has_inventory(pass, other, inventory));
        let answers = future::join_all(answers).await;
        if answers.iter().any(|answer| matches!(answer, Ok(true))) {
            return Ok(true);
        }
        answers.into_iter().find(Result::is_err).unwrap_or(Ok(false))
    }

    /// Returns the clusters that a revision has ConfigMaps for and, if `prune`, all other clusters, each by one name.
    pub(super) fn affected_clusters(&self, desired: &Desired, prune: bool) -> BTreeSet<String> {
        let mut names: BTreeSet<String> = desired.clusters().map(str::to_owned).collect();
        if prune {
            let mut seen: BTreeSet<&str> = names.iter().filter_map(|name| self.context(name)).collect();
            let others = self.0.iter().filter(|(_, cluster)| seen.insert(cluster.name()));
            let others: Vec<String> = others.map(|(name, _)| name.clone()).collect();
            names.extend(others);
        }
        names
    }

    /// Returns true if the cluster called `other` has this very inventory. Asks again where that may soon help, and
    /// gives up after [`PROBE_TIMEOUT`]. A cluster that is not configured gives no answer either: its kubeconfig may be
    /// unreadable for now.
    async fn has_inventory(
        &self,
        pass: PassContext<'_>,
        other: &str,
        inventory: &Meta,
    ) -> Result<bool, Error> {
        let Meta { namespace, name, uid, .. } = inventory;
        let failed = |why: Failure| Error {
            cluster: self.context(other).unwrap_or(other).to_owned(),
            operation: Box::new(Operation {
                verb: Verb::Get,
                kind: Kind::ConfigMap,
                namespace: namespace.clone(),
                name: name.clone(),
            }),
            why,
        };
        let Some(cluster) = self.0.get(other) else {
            let known = self.0.keys().cloned().collect();
            return Err(failed(ConfigError::Unknown { name: other.to_owned(), known }.into()));
        };
        let is_retryable = |error: &Error| {
            let is_away = matches!(error.why, Failure::Timeout { .. } | Failure::Unreachable { .. });
            error.is_transient() && !is_away && error.pause().is_none_or(|pause| pause < PROBE_TIMEOUT)
        };
        let read = || cluster.head(namespace, name);
        match timeout(PROBE_TIMEOUT, retried_if(is_retryable, pass.options, pass.cancel, read)).await {
            Ok(found) => Ok(found?.is_some_and(|found| found.uid == *uid)),
            Err(_) => Err(failed(Failure::Timeout { after: PROBE_TIMEOUT })),
        }
    }
}
