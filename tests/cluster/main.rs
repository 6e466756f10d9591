//! The adapter to Kubernetes against a real API server: what it reads and writes, and every way in which that fails.
#![allow(missing_docs, unreachable_pub)]

mod apply;
#[path = "../common/mod.rs"]
mod common;
mod crowd;
mod ending;
mod every_fault;
mod faults;
mod fleet;
mod follow;
mod kubernetes;
mod objects;
mod options;
mod pool;
mod proxy;
mod prune;
mod refusals;
mod rights;
mod setup;
mod turns;

use std::collections::BTreeMap;
use std::time::Duration;

use treeswap::cluster::{Cluster, Clusters, ConfigMapDraft, Error, Options};
use treeswap::configmap::ConfigMapData;

use kubernetes::{Access, Kubernetes, kubeconfig};

/// A client for one cluster as somebody; generous, for machines that are busy with others.
fn client(access: Access) -> Cluster {
    client_with(access, Options { timeout: Duration::from_secs(60), ..Options::default() })
}

fn client_with(access: Access, options: Options) -> Cluster {
    let dir = tempfile::tempdir().unwrap();
    let kubeconfigs = vec![kubeconfig(&dir.keep().join("kubeconfig"), &[("test", access)])];
    let clusters = Clusters::load(&Options { kubeconfigs, ..options }).unwrap();
    clusters.get("test").unwrap().clone()
}

/// The shared cluster as `admin`.
fn admin() -> Cluster {
    client(Kubernetes::shared().access("admin"))
}

/// A ConfigMap with these keys.
fn draft(namespace: &str, name: &str, data: &[(&str, &str)]) -> ConfigMapDraft {
    let data = data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let content = ConfigMapData { data, binary_data: BTreeMap::new() };
    let [namespace, name] = [namespace, name].map(str::to_owned);
    ConfigMapDraft { namespace, name, content, ..ConfigMapDraft::default() }
}

/// An error with its causes, as the program prints it.
fn whole(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
