//! Remembers what earlier passes over a cluster wrote. The last pass finds it unchanged, but the report, the metrics
//! and the ledger have to say that it was written. And another instance may have dropped it from the inventory before
//! it landed: then the next pass knows only by this that it is ours. That holds for what was sent without success, too:
//! it may land later. Of earlier rounds of a delivery only the results are kept.

use std::collections::BTreeMap;

use super::report::{Outcome, Target};
use super::write::Written;
use crate::configmap::apply::Entry;

/// What earlier passes wrote.
#[derive(Debug, Default)]
pub(super) struct EarlierWrites {
    /// The targets that were written, by namespace and name.
    targets: BTreeMap<(String, String), Target>,
    /// The objects as they were written or, where that is not known, were to be, by namespace and name.
    entries: BTreeMap<String, BTreeMap<String, Entry>>,
}

impl EarlierWrites {
    /// Adds the targets that a pass wrote.
    pub(super) fn remember(&mut self, targets: &[Target]) {
        let is_written = |target: &&Target| target.attempts > 0 && target.outcome.is_write();
        let key = |target: &Target| (target.namespace.clone(), target.name.clone());
        self.targets.extend(targets.iter().filter(is_written).map(|target| (key(target), target.clone())));
    }

    /// Adds the objects that a pass wrote in a namespace, or sent without knowing that they were written.
    pub(super) fn remember_objects(&mut self, namespace: &str, written: &BTreeMap<String, Written>) {
        for (name, Written { target, meta, revision }) in written {
            // A deletion leaves no object.
            if target.attempts == 0 || target.outcome == Outcome::Deleted || target.digest.is_empty() {
                continue;
            }
            let entries = self.entries.entry(namespace.to_owned()).or_default();
            match meta.as_ref().filter(|_| target.outcome.is_write()) {
                Some(meta) => {
                    let entry = Entry {
                        digest: target.digest.clone(),
                        uid: meta.uid.clone(),
                        version: meta.resource_version.clone(),
                        revision: revision.clone(),
                        wanted: None,
                    };
                    entries.insert(name.clone(), entry);
                }
                None => {
                    let entry = entries.entry(name.clone()).or_insert_with(|| Entry::wanted(&target.digest));
                    entry.wanted = Some(target.digest.clone());
                }
            }
        }
    }

    /// The namespaces in which objects were written, or may have been.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = &String> {
        self.entries.keys()
    }

    /// The entries of the objects that were or may have been written in a namespace, by name. They may be gone by now.
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

#[cfg(test)]
mod tests {
    use super::super::testing::entry;
    use super::*;
    use crate::cluster::Meta;

    fn sent(outcome: Outcome, attempts: u32, meta: Option<Meta>) -> BTreeMap<String, Written> {
        let target = Target::failed("test", "ci", "a", "no answer", Vec::new());
        let target = Target { outcome, attempts, digest: "after".to_owned(), ..target };
        BTreeMap::from([("a".to_owned(), Written { target, meta, revision: "r2".to_owned() })])
    }

    #[test]
    fn what_was_sent_without_success_is_remembered_by_its_digest() {
        for outcome in [Outcome::Failed, Outcome::Skipped, Outcome::Unchanged] {
            let mut earlier = EarlierWrites::default();
            earlier.remember_objects("ci", &sent(outcome, 0, None));
            assert_eq!(earlier.namespaces().count(), 0, "nothing was sent: {outcome:?}");
            earlier.remember_objects("ci", &sent(outcome, 1, None));
            assert_eq!(earlier.entries("ci")["a"], Entry::wanted("after"), "{outcome:?}");
        }
        let mut earlier = EarlierWrites::default();
        earlier.remember_objects("ci", &sent(Outcome::Deleted, 1, None));
        assert_eq!(earlier.namespaces().count(), 0);
    }

    #[test]
    fn what_was_written_stays_known_by_its_uid_though_a_later_write_of_it_fails() {
        let mut earlier = EarlierWrites::default();
        let mut meta = Meta::default();
        meta.uid = entry().uid;
        earlier.remember_objects("ci", &sent(Outcome::Created, 1, Some(meta)));
        assert!(earlier.entries("ci")["a"].wanted.is_none());
        earlier.remember_objects("ci", &sent(Outcome::Failed, 1, None));
        let listed = earlier.entries("ci").remove("a").unwrap();
        assert!(listed.lists(&entry().uid, None) && listed.lists("u2", Some("after")), "{listed:?}");
    }
}
