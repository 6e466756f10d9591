//! Kubeconfigs, and what an API server answers.

use super::kubeconfig::Clusters;
use super::{ConfigError, Options};
use crate::fuzz::{SECRET, Scratch, Target, at_once};
use crate::human::one_line;

pub(crate) const TARGETS: &[Target] = &[Target::new("kubeconfigs", kubeconfigs)];

/// Whatever stands in it, no message repeats a secret or the lines around a mistake.
fn kubeconfigs(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    // Files that a kubeconfig names are read, and there are some without an end.
    if ["/dev", "/proc", "/sys", "fifo"].iter().any(|dir| text.contains(dir)) {
        return;
    }
    Scratch::with(|dir| {
        let path = dir.join("kubeconfig");
        std::fs::write(&path, data).unwrap();
        let options = Options { kubeconfigs: vec![path], in_cluster: false, ..Options::default() };
        let unseen = |error: &ConfigError| {
            let line = one_line(error);
            // A name is shown, and a path.
            let is_named = ["name:", "cluster:", "current-context:", "-data:", "server:"]
                .iter()
                .any(|key| text.lines().any(|line| line.contains(key) && line.contains(SECRET)));
            assert!(is_named || !line.contains(SECRET) || text.contains(&format!("/{SECRET}")), "{line}");
            assert!(line.len() < 4_000 + 2 * text.len(), "{line}");
        };
        let clusters = match Clusters::load(&options) {
            Ok(clusters) => clusters,
            Err(error) => return unseen(&error),
        };
        for name in clusters.names() {
            let cluster = clusters.get(name).unwrap();
            match at_once(cluster.inner.origin().config()) {
                Ok(config) => {
                    assert!(config.cluster_url.host().is_some() || config.cluster_url.path() != "*")
                }
                Err(error) => unseen(&error),
            }
        }
    });
}
