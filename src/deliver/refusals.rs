//! Finds namespaces in which nothing may be written, before anything is.

use std::collections::BTreeMap;

use super::orphaned;
use super::report::{Outcome, Target, namespace_failed};
use super::set;
use super::survey::{Item, NamespaceSurvey};
use super::worker::Worker;
use crate::configmap::apply::{Desired, names};
use crate::human::{sanitize, short};
use crate::sources::DeliveryInput;

/// The longest revision that an inventory records. Anybody who may write the inventory can write any text there.
const REVISION_MAX: usize = 64;

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
                short(&sanitize(recorded, REVISION_MAX))
            );
            (why, "--force overwrites it with the tree".to_owned())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::pauses::Ending;
    use super::super::testing::{Remote, cluster, desired, options, survey};
    use super::*;
    use crate::configmap::apply::{Action, Decision};
    use crate::revision::{Relation, Revision};
    use crate::sources::{Named, Recorded, SourceError};

    /// A tree without a ref.
    struct Tree;

    impl DeliveryInput for Tree {
        async fn resolve(&self) -> Result<Named, SourceError> {
            Remote(Relation::Unknown).resolve().await
        }

        async fn desired(&self, named: Named) -> Result<Arc<Desired>, SourceError> {
            Remote(Relation::Unknown).desired(named).await
        }

        async fn relation(&self, _: Recorded, _: Revision) -> Result<Relation, SourceError> {
            Ok(Relation::Unknown)
        }

        fn follows_ref(&self) -> bool {
            false
        }
    }

    #[test]
    fn a_recorded_revision_is_shown_short_whatever_somebody_wrote_into_the_inventory() {
        let (ending, input) = (Ending::default(), Arc::new(Tree));
        let name = "test".to_owned();
        let worker = Worker::new(name, cluster(), Arc::default(), input, options(), ending, None);
        let replaced = Decision { action: Action::Replace, ..Decision::unchanged(String::new()) };
        let mut survey = survey("ci", replaced);
        for (recorded, shown) in [
            ("0123456789abcdef".repeat(4), "0123456789ab,"),
            ("x\n\u{1b}[31m 2026 ERROR".to_owned(), "x\u{fffd}"),
            (format!("a{}", "é".repeat(100_000)), "aé"),
        ] {
            survey.marker.revision = recorded;
            let (why, _) = worker.unordered_revision(&desired(), &survey).unwrap();
            assert!(why.starts_with(&format!("its recorded revision is {shown}")), "{why}");
            assert!(why.len() < 300 && !why.contains(char::is_control), "{why}");
        }
    }
}
