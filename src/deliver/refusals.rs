//! Finds namespaces in which nothing may be written, before anything is.

use std::collections::BTreeMap;

use super::orphaned;
use super::report::{Outcome, Target, namespace_failed};
use super::set;
use super::survey::{Item, NamespaceSurvey};
use super::worker::Worker;
use crate::configmap::apply::{Desired, names};
use crate::human::short;
use crate::sources::DeliveryInput;

impl<S: DeliveryInput> Worker<S> {
    /// Returns the namespaces in which nothing may be written, with the results of their targets.
    pub(super) fn refusals(
        &self,
        desired: &Desired,
        surveys: &[NamespaceSurvey],
    ) -> BTreeMap<String, Vec<Target>> {
        let mut refused = BTreeMap::new();
        for survey in surveys {
            let Some((why, hint)) = self.refusal(desired, survey) else { continue };
            let hints = [hint];
            let here = namespace_failed(desired, (&self.name, &survey.namespace), &why, &hints).into_iter();
            let mut targets: Vec<Target> =
                here.map(|target| Target { outcome: Outcome::Refused, ..target }).collect();
            if survey.orphaned {
                targets.extend(orphaned::kept_targets(&self.name, survey, Outcome::Refused, &why, &hints));
            }
            refused.insert(survey.namespace.clone(), targets);
        }
        refused
    }

    /// Returns why nothing may be written in a namespace, and a hint; `None` if it may be written.
    fn refusal(&self, desired: &Desired, survey: &NamespaceSurvey) -> Option<(String, String)> {
        let owner = &self.options.owner;
        let ours = [owner.marker(), owner.ledger()];
        if let Some(Item { name, .. }) = survey.items.iter().find(|item| ours.contains(&item.name)) {
            let why = format!("the ConfigMap {name} is where we record what we write");
            return Some((why, "give it another name in the rules".to_owned()));
        }
        self.second_name(desired, survey).or_else(|| self.unordered_revision(desired, survey))
    }

    /// Refuses a namespace that another name of the rules writes, as it is the same cluster then.
    fn second_name(&self, desired: &Desired, survey: &NamespaceSurvey) -> Option<(String, String)> {
        let inventory = survey.marker_meta.as_ref()?;
        let other = self.aliases.writer_of(inventory, &self.name, desired)?;
        let why = format!(
            "its inventory was written through {other}: if that is the same cluster, each would treat the other's \
             ConfigMaps as removed from the rules"
        );
        let hint = format!(
            "use {other} for this cluster in all rules; if the contexts were renamed, set the annotation {} of \
             {}/{} to {}",
            names::CLUSTER,
            survey.namespace,
            inventory.name,
            self.cluster.name()
        );
        Some((why, hint))
    }

    /// Without a ref to ask, refuses to write over another revision's record: it may be a newer one.
    fn unordered_revision(&self, desired: &Desired, survey: &NamespaceSurvey) -> Option<(String, String)> {
        let recorded = &survey.marker.revision;
        let other = !recorded.is_empty() && *recorded != desired.revision.to_string();
        let is_kept = !self.options.force && !self.input.follows_ref();
        (other && is_kept && set::is_busy(survey, desired)).then(|| {
            let why = format!(
                "its recorded revision is {}, and without a ref the newer one is unknown",
                short(recorded)
            );
            (why, "--force overwrites it with the tree".to_owned())
        })
    }
}
