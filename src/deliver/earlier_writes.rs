//! Remembers what was written in earlier passes over a cluster. The last pass finds it unchanged, but the report,
//! the metrics and the ledger have to say that it was written. And a peer may have dropped it from the inventory before
//! it landed: then the next pass knows only by this that it is ours.

use std::collections::BTreeMap;

use super::report::{Outcome, Target};
use super::write::Written;
use crate::configmap::apply::Entry;

/// What earlier passes wrote.
#[derive(Debug, Default)]
pub(super) struct EarlierWrites {
    /// The targets that were written, by namespace and name.
    targets: BTreeMap<(String, String), Target>,
    /// The objects as they were written, by namespace and name.
    entries: BTreeMap<String, BTreeMap<String, Entry>>,
}

impl EarlierWrites {
    /// Adds the targets that a pass wrote.
    pub(super) fn remember(&mut self, targets: &[Target]) {
        let is_written = |target: &&Target| target.attempts > 0 && target.outcome.is_write();
        let key = |target: &Target| (target.namespace.clone(), target.name.clone());
        self.targets.extend(targets.iter().filter(is_written).map(|target| (key(target), target.clone())));
    }

    /// Adds the objects that a pass wrote in a namespace.
    pub(super) fn remember_objects(&mut self, namespace: &str, written: &BTreeMap<String, Written>) {
        for (name, Written { target, meta, revision }) in written {
            let is_written = target.attempts > 0 && target.outcome.is_write();
            let Some(meta) = meta.as_ref().filter(|_| is_written) else { continue };
            let entry = Entry {
                digest: target.digest.clone(),
                uid: meta.uid.clone(),
                version: meta.resource_version.clone(),
                revision: revision.clone(),
                wanted: None,
            };
            self.entries.entry(namespace.to_owned()).or_default().insert(name.clone(), entry);
        }
    }

    /// The namespaces in which objects were written.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = &String> {
        self.entries.keys()
    }

    /// The entries of the objects that were written in a namespace, by name. They may be gone by now.
    pub(super) fn entries(&self, namespace: &str) -> BTreeMap<String, Entry> {
        self.entries.get(namespace).cloned().unwrap_or_default()
    }

    /// Puts the earlier results into those of a later pass, for targets that it found unchanged or, after a deletion,
    /// not at all.
    pub(super) fn restore(&self, targets: &mut Vec<Target>) {
        let mut absent = self.targets.clone();
        for target in targets.iter_mut() {
            let key = (target.namespace.clone(), target.name.clone());
            let Some(earlier) = absent.remove(&key) else { continue };
            if target.outcome == Outcome::Unchanged && target.attempts == 0 && target.digest == earlier.digest
            {
                *target = earlier;
            }
        }
        targets.extend(absent.into_values().filter(|earlier| earlier.outcome == Outcome::Deleted));
    }
}
