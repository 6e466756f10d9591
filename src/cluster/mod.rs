//! Kubernetes clusters: the only module that names kube.
//!
//! It reads ConfigMaps (metadata of a whole namespace, or one object with its data), writes them with POST and PUT, the
//! latter always with the resourceVersion and uid that were read, deletes under the same two preconditions, and does
//! the same for Leases. Nothing else is ever written, and nothing is patched or applied by the server.
//!
//! Each request is sent once, under one deadline, and an answer is an [`Error`] that says whether the write may have
//! taken effect ([`Failure::is_unknown`]), whether trying again can help ([`Failure::is_transient`]), and what a person
//! can do. When to try again is the caller's business. No token, certificate or content is in any error.
//!
//! Files: `object` what is read and written; `kubeconfig` clusters by their contexts' names; `plugin` credentials from
//! a program; `connection` one cluster's client, requests and their deadlines; `answer` from HTTP answers to failures;
//! `configmap` and `lease` the requests; `error` what can go wrong.

mod act;
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
mod plugin;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use connection::Connection;

pub use act::{Act, Kind, Verb};
pub use error::{ConfigError, Error, Failure};
pub use kubeconfig::{Clusters, DEFAULT};
pub use object::{ConfigMap, Draft, Lease, LeaseDraft, Meta};

/// The name under which the API server records our writes in an object's managed fields.
pub const FIELD_MANAGER: &str = "treeswap";

/// Which clusters there are and how to speak to them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Kubeconfig files; each of their contexts is a cluster.
    pub kubeconfigs: Vec<PathBuf>,
    /// A directory of kubeconfig files (a mounted Secret). Directories, and names that begin with `..`, are skipped.
    pub kubeconfig_dir: Option<PathBuf>,
    /// The cluster this process runs in, with the service account of its Pod.
    pub in_cluster: bool,
    /// How long one request may take, from the connection to the end of its answer. The server gets it, too, so that it
    /// does not carry out later what we have given up.
    pub timeout: Duration,
    /// The longest pause a server can ask us to make (`Retry-After`).
    pub longest_pause: Duration,
    /// Requests in flight to one cluster, those about Leases not among them.
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

/// Whether a write is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// It is.
    Write,
    /// The server checks it, with all its admission, and stores nothing. It needs the same rights.
    DryRun,
}

/// One cluster. Clones share its connection and its limit of requests in flight; they belong to one tokio runtime.
#[derive(Clone, Debug)]
pub struct Cluster {
    inner: Arc<Connection>,
}

impl Cluster {
    /// The name of its context, or [`DEFAULT`].
    pub fn name(&self) -> &str {
        self.inner.name()
    }
}
