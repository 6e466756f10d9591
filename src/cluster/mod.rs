//! Client for Kubernetes API servers: ConfigMaps and Leases. The only module that uses the kube crate.
//!
//! It reads ConfigMaps (the metadata of a whole namespace, or one object with its data), creates them with POST,
//! replaces them with PUT under the resourceVersion and uid that were read (optimistic concurrency), and deletes them
//! under the same two preconditions. Leases are read, created and replaced in the same way. Nothing else is written,
//! and PATCH and server-side apply are never used.
//!
//! Each request has one deadline, and is sent again only after a 401, with the credentials read anew. A failure is an
//! [`Error`] that tells whether the write may have taken effect ([`Error::is_unknown`]), whether trying again can help
//! ([`Error::is_transient`]), and what an operator can do. Retrying is left to the caller. No error contains a token, a
//! certificate or the content of an object.
//!
//! Files: `object` has the types that are read and written; `kubeconfig` finds clusters by the names of their contexts;
//! `plugin` runs credential plugins; `connection` has a cluster's client, requests and deadlines; `answer` turns HTTP
//! responses into values or failures; `configmap` and `lease` have the requests; `operation` names a request in errors;
//! `error` has the failures and their hints.

mod answer;
mod configmap;
mod connection;
mod error;
#[cfg(any(test, fuzzing))]
#[path = "../../tests/fuzz/targets/cluster.rs"]
pub(crate) mod fuzz;
mod kubeconfig;
mod lease;
mod object;
mod operation;
mod plugin;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use connection::Connection;

pub use error::{ConfigError, Error, Failure};
pub use kubeconfig::{Clusters, DEFAULT};
pub use object::{ConfigMap, ConfigMapDraft, Lease, LeaseDraft, Meta};
pub use operation::{Kind, Operation, Verb};

/// The name under which the API server records our writes in an object's managed fields.
pub const FIELD_MANAGER: &str = "treeswap";

/// Which clusters are configured, and the limits of requests to them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Kubeconfig files; each of their contexts is a cluster.
    pub kubeconfigs: Vec<PathBuf>,
    /// A directory of kubeconfig files (a mounted Secret). Names that begin with `..` (the kubelet's links) are
    /// skipped.
    pub kubeconfig_dir: Option<PathBuf>,
    /// Use the cluster that this process runs in, with the service account of its Pod, as [`DEFAULT`].
    pub in_cluster: bool,
    /// How long one request may take once [`Self::concurrency`] lets it start. This includes reading the credentials,
    /// connecting, reading the whole answer, and sending the request again after a 401. The server is given the rest of
    /// this time (`timeout` in the query), so that it does not carry out a request after we have given it up.
    pub timeout: Duration,
    /// A longer pause that a server asks for (`Retry-After`) is cut to this.
    pub longest_pause: Duration,
    /// The most requests in flight to one cluster; requests about Leases are not counted.
    pub concurrency: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            kubeconfigs: Vec::new(),
            kubeconfig_dir: None,
            in_cluster: false,
            timeout: Duration::from_secs(30),
            longest_pause: Duration::from_secs(60),
            concurrency: 8,
        }
    }
}

/// Whether the server stores a write or only checks it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The write is stored.
    Write,
    /// The server checks the write, including admission, and stores nothing. It needs the same rights.
    DryRun,
}

/// One cluster. Clones share its client and its limits of requests in flight. All clones must be used on one tokio
/// runtime.
#[derive(Clone, Debug)]
pub struct Cluster {
    inner: Arc<Connection>,
}

impl Cluster {
    /// Returns the name of its context, or [`DEFAULT`].
    pub fn name(&self) -> &str {
        &self.inner.name
    }
}
