//! Namespaces that no rule names any more, found by the inventories in them, so that pruning reaches them, too.
//!
//! An inventory is found by its name, in the whole cluster, never by a label. Where the right to that is missing the
//! namespaces that rules name are pruned all the same.

use std::collections::BTreeMap;

use super::pauses::retried;
use super::report::{Outcome, Target};
use super::source::Source;
use super::survey::{Item, Reader, Space};
use super::worker::Worker;
use super::{Options, parsed, unless};
use crate::cluster::{Error, Failure};
use crate::configmap::apply::{Claim, Desired, names};
use crate::human;
use crate::revision::Relation;

impl<S: Source> Worker<S> {
    /// Namespaces of this cluster with an inventory of ours that nothing is for any more.
    pub(super) async fn forgotten(
        &self,
        desired: &Desired,
        reader: Reader<'_>,
    ) -> Result<Vec<String>, Error> {
        let owner = &reader.policy.owner;
        let marker = owner.marker();
        // Nobody waits for a cluster that nothing is for.
        let tries = if desired.namespaces(&self.name).next().is_some() { self.options.tries } else { 1 };
        let options = Options { tries, ..self.options.clone() };
        let found = retried(&options, &self.cancel, || self.cluster.everywhere(&marker)).await?;
        let forgotten = found.into_iter().filter(|meta| {
            owner.claim(&meta.labels, &meta.annotations) == Claim::Ours
                && meta.annotations.get(names::CLUSTER).is_some_and(|name| name == self.cluster.name())
                && desired.of(&self.name, &meta.namespace).is_none()
        });
        Ok(forgotten.map(|meta| meta.namespace).collect())
    }

    /// It is not known which namespaces are forgotten: in them nothing is pruned. Returns what makes that a failure.
    pub(super) fn unlisted(&mut self, error: &Error, unneeded: bool) -> Option<String> {
        let line = human::one_line(error);
        if unneeded {
            self.note(format!(
                "no rule names it, and whether it holds anything of ours is not known: {line}"
            ));
        } else if matches!(error.why, Failure::Forbidden { .. }) {
            self.note(format!("namespaces that no rule names any more are not pruned: {line}"));
        } else {
            return Some(line);
        }
        None
    }

    /// Forgotten namespaces that somebody else may use our owner's name for, and what they wrote is not ours to delete:
    /// those of which the remote knows nothing, because it does not have the revision that they are recorded at; and
    /// those that were written by rules which these did not come from.
    pub(super) async fn strange(&self, desired: &Desired, spaces: &[Space]) -> BTreeMap<String, Vec<Target>> {
        let mut refused = BTreeMap::new();
        let (forgotten, served): (Vec<&Space>, Vec<&Space>) =
            spaces.iter().partition(|space| space.forgotten);
        for space in
            forgotten.into_iter().filter(|space| space.items.iter().any(|item| item.verdict.writes()))
        {
            let recorded = parsed(&space.marker.revision).filter(|one| *one != desired.revision);
            let gone = match recorded {
                Some(recorded) => {
                    let relation =
                        unless(&self.cancel, self.source.relation(recorded, desired.revision)).await;
                    relation.is_ok_and(|relation| relation == Relation::Gone).then_some(recorded)
                }
                None => None,
            };
            // Where nothing is served there is nothing to compare with; that is all there is, and the floor's to stop.
            let kin = served.is_empty()
                || space.marker.is_kin(&desired.rules, served.iter().map(|space| &space.marker));
            let (why, hint) = if let Some(gone) = gone {
                let why = format!("it is recorded at {}, which the remote does not have", gone.short());
                let hint = "each repository needs an --owner of its own; what is left over all the same has to be \
                            deleted by hand";
                (why, hint)
            } else if !kin && self.options.floor.percent < 100 {
                let owner = self.options.owner.name();
                let why = format!(
                    "another rule set uses the owner {owner}: this was written by rules that these did not come from"
                );
                (
                    why,
                    "give each rule set an --owner of its own; if there is but one, --max-prune=100 insists",
                )
            } else {
                continue;
            };
            refused.insert(space.namespace.clone(), self.left(space, &why, hint));
        }
        refused
    }

    /// What is in a forgotten namespace, and stays.
    pub(super) fn left(&self, space: &Space, why: &str, hint: &str) -> Vec<Target> {
        let items = space.items.iter().filter(|item| item.is_told());
        let target = |item: &Item| Target::of(&self.name, &space.namespace, &item.name, &item.verdict);
        items.map(|item| target(item).ended(Outcome::Refused, why, vec![hint.to_owned()])).collect()
    }
}
