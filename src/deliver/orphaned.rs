//! Finds namespaces that no rule names any more, by the inventories in them, so that pruning reaches them.
//!
//! Inventories are found by name in the whole cluster, never by a label. Without the right to list them there, only the
//! namespaces that rules name are pruned.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future;

use super::aliases::Aliases;
use super::pauses::retried;
use super::report::{Notes, Outcome, Target};
use super::survey::{Item, NamespaceFailure, NamespaceSurvey, SurveyContext};
use super::{Options, or_cancelled};
use crate::cluster::{Error, Failure};
use crate::configmap::apply::{Claim, Decision, Desired, PruneLimit, PruneLimitExceeded, names};
use crate::human;
use crate::revision::Relation;
use crate::sources::DeliveryInput;

/// The namespaces of a cluster that have an inventory of ours and that no rule names any more.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    /// Those that are known.
    pub(super) namespaces: Vec<String>,
    /// Those that a rule may name by another context of this cluster, with why that is not known.
    pub(super) unclear: Vec<(String, Error)>,
}

/// Finds the namespaces of this cluster that have an inventory of ours and that no rule names any more.
pub(super) async fn find(
    reader: SurveyContext<'_>,
    aliases: &Aliases,
    (cluster, desired): (&str, &Desired),
) -> Result<Orphans, Error> {
    let owner = &reader.policy.owner;
    let marker = owner.marker();
    // No retries for a cluster that no rule names: an unreachable one must not hold up the delivery.
    let tries = if desired.namespaces(cluster).next().is_some() { reader.options.tries } else { 1 };
    let options = Options { tries, ..reader.options.clone() };
    let list = || reader.cluster.list_everywhere(&marker);
    let mut unnamed = retried(&options, reader.cancel, list).await?;
    unnamed.retain(|meta| {
        owner.claim(&meta.labels, &meta.annotations) == Claim::Ours
            && meta.annotations.get(names::CLUSTER).is_some_and(|name| name == reader.cluster.name())
            && desired.of(cluster, &meta.namespace).is_none()
    });
    let named = unnamed.iter().map(|meta| aliases.is_named_otherwise(reader, meta, (cluster, desired)));
    let named = future::join_all(named).await;
    let mut orphans = Orphans::default();
    for (meta, named) in unnamed.into_iter().zip(named) {
        match named {
            Ok(true) => {}
            Ok(false) => orphans.namespaces.push(meta.namespace),
            Err(error) => orphans.unclear.push((meta.namespace, error)),
        }
    }
    Ok(orphans)
}

/// Reports that the orphaned namespaces could not be found, so that nothing is pruned in them. That is a note if no
/// rule names the cluster or the right to list is missing; otherwise a failure, which is returned.
pub(super) fn report_unknown(error: &Error, unneeded: bool, notes: &mut Notes) -> Option<String> {
    let line = human::one_line(error);
    if unneeded {
        notes.add(format!(
            "no rule names it, and it is not known whether it has ConfigMaps of this owner: {line}"
        ));
    } else if is_denied(error) {
        let hint = "apply deploy/apply/prune.yaml with your --owner";
        let note = format!("namespaces that no rule names any more are not pruned: {line}");
        notes.add_with_hint(note, Some(hint.to_owned()));
    } else {
        return Some(line);
    }
    None
}

/// Returns true if the orphaned namespaces stay unknown until an operator grants the right to list inventories.
pub(super) fn is_denied(error: &Error) -> bool {
    matches!(error.why, Failure::Forbidden { .. })
}

/// Reports an orphaned namespace that cannot be read until somebody acts, so that nothing is pruned in it. That is only
/// a note: anybody can make an inventory with our owner's name there, beside a ledger that is not ours, and an operator
/// may withdraw our rights together with the rule.
pub(super) fn report_unreadable(namespace: &str, unreadable: &NamespaceFailure, notes: &mut Notes) {
    let NamespaceFailure { why, hints, .. } = unreadable;
    let note = format!("no rule names {namespace}, and nothing of its inventory is pruned: {why}");
    let somebody = "if the rules never named it, somebody else made the inventory";
    let hint = hints.first().map(|hint| format!("{hint}; {somebody}"));
    notes.add_with_hint(note, hint);
}

/// Checks the limit on deletions: first in the namespaces that rules name, then in all. An error comes with the
/// namespaces in which nothing may be written.
///
/// Anybody can make an inventory in a namespace that no rule names. So what it lists must not stop the writes where
/// rules name the namespaces, nor make the limit wider by being kept. What these writes create must not make it wider
/// in the next run either: a namespace counts only if the rules of the inventories to be pruned were in force there.
pub(super) fn check_limit(
    limit: PruneLimit,
    surveys: &[NamespaceSurvey],
) -> Result<(), (PruneLimitExceeded, BTreeSet<String>)> {
    let namespace = |survey: &NamespaceSurvey| survey.namespace.clone();
    let served = surveys.iter().filter(|survey| !survey.orphaned);
    if let Err(why) = limit.check(served.flat_map(NamespaceSurvey::counted_decisions)) {
        return Err((why, surveys.iter().map(namespace).collect()));
    }
    let deletes = |survey: &&NamespaceSurvey| {
        survey.orphaned && survey.counted_decisions().any(Decision::removes_content)
    };
    let pruned: Vec<&NamespaceSurvey> = surveys.iter().filter(deletes).collect();
    let counted = surveys.iter().flat_map(|survey| {
        let knows = |pruned: &&NamespaceSurvey| pruned.marker.shares_history_with("", [&survey.marker]);
        let counts = !survey.orphaned && pruned.iter().all(knows);
        survey.counted_decisions().filter(move |decision| counts || decision.removes_content())
    });
    let Err(why) = limit.check(counted) else { return Ok(()) };
    Err((why, pruned.into_iter().map(namespace).collect()))
}

/// Returns the orphaned namespaces in which nothing may be deleted, with the results of their targets. Another
/// installation may use our owner's name there, if the remote does not have the revision that the inventory records, or
/// if the inventory was written by rules that ours do not descend from. Nothing is deleted either if the remote did not
/// say how the revisions are related.
pub(super) async fn foreign_namespaces<S: DeliveryInput>(
    reader: SurveyContext<'_>,
    input: &S,
    (cluster, desired): (&str, &Desired),
    surveys: &[NamespaceSurvey],
) -> BTreeMap<String, Vec<Target>> {
    let mut refused = BTreeMap::new();
    let (orphaned, served): (Vec<&NamespaceSurvey>, Vec<&NamespaceSurvey>) =
        surveys.iter().partition(|survey| survey.orphaned);
    for survey in orphaned.into_iter().filter(|survey| survey.has_writes()) {
        let recorded = survey.recorded.as_ref().filter(|one| one.revision != desired.revision);
        let relation = match recorded {
            Some(recorded) => {
                let relation = input.relation(recorded.clone(), desired.revision);
                or_cancelled(reader.cancel, relation).await.map(Some)
            }
            None => Ok(None),
        };
        let relation = match relation {
            Ok(relation) => relation,
            // Nothing is deleted while the relation is unknown; the next attempt asks again.
            Err(error) => {
                let why = format!(
                    "it is not known whether the revision is a descendant of the recorded one: {error}"
                );
                let hints = error.hints.clone();
                let unknown = kept_targets(cluster, survey, Outcome::Failed, &why, &hints).into_iter();
                let unknown =
                    unknown.map(|target| Target { transient: error.class.is_transient(), ..target });
                refused.insert(survey.namespace.clone(), unknown.collect());
                continue;
            }
        };
        let gone = recorded.filter(|_| relation == Some(Relation::UnknownToRemote));
        // If no rule names any namespace of the cluster there is nothing to compare with; then only `PruneLimit`
        // protects.
        let kin = served.is_empty()
            || survey.marker.shares_history_with(&desired.rules, served.iter().map(|survey| &survey.marker));
        let (why, hint) = if let Some(gone) = gone {
            let why = format!("its recorded revision {} does not exist at the remote", gone.revision.short());
            let hint = "each repository needs an --owner of its own; leftovers have to be deleted by hand";
            (why, hint)
        } else if !kin && reader.options.prune_limit.percent < 100 {
            let owner = reader.options.owner.name();
            let why = format!(
                "another rule set uses the owner {owner}: the rules recorded here are unrelated to these"
            );
            (why, "give each rule set an --owner of its own; if there is only one, --max-prune=100 allows it")
        } else {
            continue;
        };
        refused.insert(
            survey.namespace.clone(),
            kept_targets(cluster, survey, Outcome::Refused, &why, &[hint.to_owned()]),
        );
    }
    refused
}

/// Returns the targets of an orphaned namespace, all with this outcome: they are left as they are.
pub(super) fn kept_targets(
    cluster: &str,
    survey: &NamespaceSurvey,
    outcome: Outcome,
    why: &str,
    hints: &[String],
) -> Vec<Target> {
    let items = survey.items.iter().filter(|item| item.is_reported());
    let target = |item: &Item| Target::of(cluster, &survey.namespace, &item.name, &item.decision);
    items.map(|item| target(item).ended(outcome, why, hints.to_vec())).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::survey;
    use super::*;
    use crate::configmap::apply::Action;

    /// A namespace with so many ConfigMaps of ours that stay and that are to be deleted.
    fn namespace(name: &str, orphaned: bool, (kept, deleted): (usize, usize)) -> NamespaceSurvey {
        let decided = |action| Decision { action, ..Decision::unchanged(String::new()) };
        let survey = survey(name, decided(Action::Nothing));
        let stays = survey.items[0].clone();
        let goes = Item { decision: decided(Action::Delete), ..stays.clone() };
        let items = [vec![stays; kept], vec![goes; deleted]].concat();
        NamespaceSurvey { orphaned, items, ..survey }
    }

    #[test]
    fn deletions_where_no_rule_names_the_namespace_stop_no_other_and_what_stays_there_allows_none() {
        let served = |counts| namespace("served", false, counts);
        let orphaned = |name, counts| namespace(name, true, counts);
        let refused = |surveys: &[NamespaceSurvey]| {
            let (why, refused) = check_limit(PruneLimit::default(), surveys).err()?;
            Some((why.emptied, why.ours, Vec::from_iter(refused)))
        };
        let over = |emptied: usize, ours: usize, namespaces: &[&str]| {
            Some((emptied, ours, namespaces.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()))
        };
        assert_eq!(refused(&[served((2, 1)), orphaned("a", (0, 1))]), None);
        assert_eq!(refused(&[served((1, 0)), orphaned("a", (0, 2))]), over(2, 3, &["a"]));
        assert_eq!(refused(&[served((1, 2)), orphaned("a", (0, 0))]), over(2, 3, &["a", "served"]));
        let two = [served((1, 0)), orphaned("a", (0, 2)), orphaned("b", (100, 0))];
        assert_eq!(refused(&two), over(2, 3, &["a"]));
        // The rules have moved one to a namespace of its own: what was created there allows no deletion.
        let mut moved = [served((1, 0)), served((10, 0)), orphaned("a", (0, 2))];
        for (survey, rules) in moved.iter_mut().zip(["old", "new", "old"]) {
            survey.marker.set_rules(rules);
        }
        assert_eq!(refused(&moved), over(2, 3, &["a"]));
        moved[0].marker.set_rules("new");
        assert_eq!(refused(&moved), over(2, 3, &["a"]));
        moved[1].marker.before.push("old".to_owned());
        assert_eq!(refused(&moved), None);
        // A cluster that no rule names any more would lose everything.
        assert_eq!(refused(&[orphaned("a", (0, 1))]), over(1, 1, &["a"]));
    }
}
