//! Finds namespaces in which nothing may be written, before anything is.

use std::collections::BTreeMap;

use super::aliases::Aliases;
use super::orphaned;
use super::report::Target;
use super::set;
use super::survey::{Item, NamespaceFailure, NamespaceSurvey, PassContext};
use crate::configmap::apply::names;
use crate::human::{sanitize, short};

/// The longest revision that an inventory records. Anybody who may write the inventory can write any text there.
const REVISION_MAX: usize = 64;

/// Returns the namespaces in which nothing may be written, with the results of their targets. `follows_ref` is false
/// without a ref to ask.
pub(super) fn refusals(
    pass: PassContext<'_>,
    aliases: &Aliases,
    follows_ref: bool,
    surveys: &[NamespaceSurvey],
) -> BTreeMap<String, Vec<Target>> {
    let mut refused = BTreeMap::new();
    for survey in surveys {
        let refusal = record_is_desired(pass, survey)
            .or_else(|| second_name(pass, aliases, survey))
            .or_else(|| if follows_ref { None } else { unordered_revision(pass, survey) });
        let Some(refusal) = refusal else { continue };
        let mut targets = refusal.targets(pass, &survey.namespace);
        if survey.orphaned {
            targets.extend(orphaned::kept_targets(pass, survey, &refusal));
        }
        refused.insert(survey.namespace.clone(), targets);
    }
    refused
}

/// Refuses a namespace in which rules name one of the ConfigMaps of our records.
fn record_is_desired(pass: PassContext<'_>, survey: &NamespaceSurvey) -> Option<NamespaceFailure> {
    let owner = &pass.policy.owner;
    let records = [owner.marker(), owner.ledger()];
    let Item { name, .. } = survey.items.iter().find(|item| records.contains(&item.name))?;
    let why = format!("the ConfigMap {name} is where we record what we write");
    Some(NamespaceFailure::refused(why, "give it another name in the rules"))
}

/// Refuses a namespace that another name of the rules writes, as it is the same cluster then.
fn second_name(
    pass: PassContext<'_>,
    aliases: &Aliases,
    survey: &NamespaceSurvey,
) -> Option<NamespaceFailure> {
    let inventory = survey.marker_meta.as_ref()?;
    let other = aliases.other_writer(pass, inventory)?;
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
        pass.cluster.name()
    );
    Some(NamespaceFailure::refused(why, &hint))
}

/// Without a ref to ask, refuses to write over another revision's record: it may be a newer one.
fn unordered_revision(pass: PassContext<'_>, survey: &NamespaceSurvey) -> Option<NamespaceFailure> {
    let recorded = &survey.marker.revision;
    let is_other = !recorded.is_empty() && *recorded != pass.desired.revision.to_string();
    (is_other && !pass.options.force && set::is_busy(survey, pass.desired)).then(|| {
        let recorded = sanitize(recorded, REVISION_MAX);
        let recorded = short(&recorded);
        let why = format!("its recorded revision is {recorded}, and without a ref the newer one is unknown");
        NamespaceFailure::refused(why, "--force overwrites it with the tree")
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{PassFixture, desired, options, survey};
    use super::*;
    use crate::configmap::apply::{Action, Decision};

    #[test]
    fn a_recorded_revision_is_shown_short_whatever_somebody_wrote_into_the_inventory() {
        let fixture = PassFixture::new(desired(), options());
        let replaced = Decision { action: Action::Replace, ..Decision::unchanged(String::new()) };
        let mut survey = survey("ci", replaced);
        for (recorded, shown) in [
            ("0123456789abcdef".repeat(4), "0123456789ab,"),
            ("x\n\u{1b}[31m 2026 ERROR".to_owned(), "x\u{fffd}"),
            (format!("a{}", "é".repeat(100_000)), "aé"),
        ] {
            survey.marker.revision = recorded;
            let NamespaceFailure { why, .. } = unordered_revision(fixture.pass(), &survey).unwrap();
            assert!(why.starts_with(&format!("its recorded revision is {shown}")), "{why}");
            assert!(why.len() < 300 && !why.contains(char::is_control), "{why}");
        }
    }
}
