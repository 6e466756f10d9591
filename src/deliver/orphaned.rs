//! Finds namespaces that no rule names any more, by the inventories in them, so that pruning reaches them.
//!
//! Inventories are found by name in the whole cluster, never by a label. Without the right to list them there, only the
//! namespaces that rules name are pruned.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future;

use super::aliases::Aliases;
use super::notes::Notes;
use super::pauses::retried;
use super::report::{Outcome, Target};
use super::survey::{NamespaceFailure, NamespaceSurvey, PassContext};
use super::{Options, or_cancelled};
use crate::cluster::{Error, Failure};
use crate::configmap::apply::{Claim, Decision, PruneLimit, PruneLimitExceeded, names};
use crate::human;
use crate::revision::Relation;
use crate::sources::{DeliveryInput, SourceError};

/// The namespaces of a cluster that have an inventory of ours and that no rule names any more.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    /// Those that are known.
    pub(super) namespaces: Vec<String>,
    /// Those that a rule may name by another context of this cluster, with why that is not known.
    pub(super) unclear: Vec<(String, Error)>,
}

/// Finds the namespaces of this cluster that have an inventory of ours and that no rule names any more.
pub(super) async fn find(pass: PassContext<'_>, aliases: &Aliases) -> Result<Orphans, Error> {
    let owner = &pass.policy.owner;
    let marker = owner.marker();
    // No retries for a cluster that no rule names: an unreachable one must not hold up the delivery.
    let is_named = pass.desired.namespaces(pass.cluster_name).next().is_some();
    let options = Options { tries: if is_named { pass.options.tries } else { 1 }, ..pass.options.clone() };
    let list = || pass.cluster.list_everywhere(&marker);
    let mut unnamed = retried(&options, pass.cancel, list).await?;
    unnamed.retain(|meta| {
        owner.claim(&meta.labels, &meta.annotations) == Claim::Ours
            && meta.annotations.get(names::CLUSTER).is_some_and(|name| name == pass.cluster.name())
            && pass.desired.of(pass.cluster_name, &meta.namespace).is_none()
    });
    let otherwise = unnamed.iter().map(|meta| aliases.is_named_otherwise(pass, meta));
    let otherwise = future::join_all(otherwise).await;
    let mut orphans = Orphans::default();
    for (meta, is_named_otherwise) in unnamed.into_iter().zip(otherwise) {
        match is_named_otherwise {
            Ok(true) => {}
            Ok(false) => orphans.namespaces.push(meta.namespace),
            Err(error) => orphans.unclear.push((meta.namespace, error)),
        }
    }
    Ok(orphans)
}

/// Reports that the orphaned namespaces could not be found, so that nothing is pruned in them. That is a note if no
/// rule names the cluster or the right to list is missing; otherwise a failure, which is returned.
pub(super) fn report_unknown(error: &Error, is_unneeded: bool, notes: &mut Notes) -> Option<String> {
    let line = human::one_line(error);
    if is_unneeded {
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
pub(super) fn report_unreadable(namespace: &str, failure: &NamespaceFailure, notes: &mut Notes) {
    let NamespaceFailure { why, hints, .. } = failure;
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

/// Returns the orphaned namespaces in which nothing may be deleted, with the results of their targets.
pub(super) async fn foreign_namespaces<S: DeliveryInput>(
    pass: PassContext<'_>,
    input: &S,
    surveys: &[NamespaceSurvey],
) -> BTreeMap<String, Vec<Target>> {
    let mut refused = BTreeMap::new();
    let (orphaned, served): (Vec<&NamespaceSurvey>, Vec<&NamespaceSurvey>) =
        surveys.iter().partition(|survey| survey.orphaned);
    for survey in orphaned.into_iter().filter(|survey| survey.has_writes()) {
        let targets = match foreign(pass, input, survey, &served).await {
            Ok(None) => continue,
            Ok(Some(failure)) => kept_targets(pass, survey, &failure),
            // The next attempt asks again. Only the remote's error says whether that may help, also for what is held or
            // being deleted.
            Err(error) => {
                let why = format!(
                    "it is not known whether the revision is a descendant of the recorded one: {error}"
                );
                let transient = error.class.is_transient();
                let failure = NamespaceFailure::new(Outcome::Failed, why, error.hints);
                let targets = kept_targets(pass, survey, &failure).into_iter();
                targets.map(|target| Target { transient, ..target }).collect()
            }
        };
        refused.insert(survey.namespace.clone(), targets);
    }
    refused
}

/// Returns why nothing may be deleted in an orphaned namespace, as another installation may use our owner's name there:
/// the remote does not have the revision that the inventory records, or the inventory was written by rules that ours do
/// not descend from. `None` if neither is so; `Err` if the remote does not say how the revisions are related.
/// `served` are the namespaces that rules name.
async fn foreign<S: DeliveryInput>(
    pass: PassContext<'_>,
    input: &S,
    survey: &NamespaceSurvey,
    served: &[&NamespaceSurvey],
) -> Result<Option<NamespaceFailure>, SourceError> {
    let PassContext { desired, options, .. } = pass;
    if let Some(recorded) = survey.recorded.as_ref().filter(|one| one.revision != desired.revision) {
        let relation = input.relation(recorded.clone(), desired.revision);
        if or_cancelled(pass.cancel, relation).await? == Relation::UnknownToRemote {
            let revision = recorded.revision.short();
            let why = format!("its recorded revision {revision} does not exist at the remote");
            let hint = "each repository needs an --owner of its own; leftovers have to be deleted by hand";
            return Ok(Some(NamespaceFailure::refused(why, hint)));
        }
    }
    // If no rule names any namespace of the cluster there is nothing to compare with; then only `PruneLimit` protects.
    let is_related = served.is_empty()
        || survey.marker.shares_history_with(&desired.rules, served.iter().map(|survey| &survey.marker));
    if is_related || options.prune_limit.percent >= 100 {
        return Ok(None);
    }
    let owner = options.owner.name();
    let why =
        format!("another rule set uses the owner {owner}: the rules recorded here are unrelated to these");
    let hint = "give each rule set an --owner of its own; if there is only one, --max-prune=100 allows it";
    Ok(Some(NamespaceFailure::refused(why, hint)))
}

/// Returns the targets of an orphaned namespace, all with this result: they are left as they are.
pub(super) fn kept_targets(
    pass: PassContext<'_>,
    survey: &NamespaceSurvey,
    failure: &NamespaceFailure,
) -> Vec<Target> {
    survey.reported_items().map(|item| failure.end(pass.target(survey, item))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::survey::Item;
    use super::super::testing::{PassFixture, Remote, desired, options, revision, survey};
    use super::*;
    use crate::configmap::apply::Action;
    use crate::retry::ErrorClass;
    use crate::sources::Recorded;

    /// A namespace that rules name, with this many ConfigMaps of ours that stay and that are to be deleted.
    fn served(kept: usize, deleted: usize) -> NamespaceSurvey {
        let decided = |action| Decision { action, ..Decision::unchanged(String::new()) };
        let survey = survey("served", decided(Action::Nothing));
        let stays = survey.items[0].clone();
        let goes = Item { decision: decided(Action::Delete), ..stays.clone() };
        NamespaceSurvey { items: [vec![stays; kept], vec![goes; deleted]].concat(), ..survey }
    }

    fn orphaned(name: &str, kept: usize, deleted: usize) -> NamespaceSurvey {
        NamespaceSurvey { namespace: name.to_owned(), orphaned: true, ..served(kept, deleted) }
    }

    #[test]
    fn deletions_where_no_rule_names_the_namespace_stop_no_other_and_what_stays_there_allows_none() {
        let refused = |surveys: &[NamespaceSurvey]| {
            let (why, refused) = check_limit(PruneLimit::default(), surveys).err()?;
            Some((why.emptied, why.ours, Vec::from_iter(refused)))
        };
        let over = |emptied: usize, ours: usize, namespaces: &[&str]| {
            Some((emptied, ours, namespaces.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()))
        };
        assert_eq!(refused(&[served(2, 1), orphaned("a", 0, 1)]), None);
        assert_eq!(refused(&[served(1, 0), orphaned("a", 0, 2)]), over(2, 3, &["a"]));
        assert_eq!(refused(&[served(1, 2), orphaned("a", 0, 0)]), over(2, 3, &["a", "served"]));
        let two = [served(1, 0), orphaned("a", 0, 2), orphaned("b", 100, 0)];
        assert_eq!(refused(&two), over(2, 3, &["a"]));
        // The rules have moved one to a namespace of its own: what was created there allows no deletion.
        let mut moved = [served(1, 0), served(10, 0), orphaned("a", 0, 2)];
        for (survey, rules) in moved.iter_mut().zip(["old", "new", "old"]) {
            survey.marker.set_rules(rules);
        }
        assert_eq!(refused(&moved), over(2, 3, &["a"]));
        moved[0].marker.set_rules("new");
        assert_eq!(refused(&moved), over(2, 3, &["a"]));
        moved[1].marker.before.push("old".to_owned());
        assert_eq!(refused(&moved), None);
        // A cluster that no rule names any more would lose everything.
        assert_eq!(refused(&[orphaned("a", 0, 1)]), over(1, 1, &["a"]));
    }

    #[tokio::test]
    async fn only_the_error_of_a_remote_that_knows_no_relation_says_whether_another_attempt_may_help() {
        let mut survey = orphaned("a", 1, 1);
        survey.items[0].decision.action = Action::Hold("a source does not answer".to_owned());
        survey.recorded = Some(Recorded { revision: revision(1), sources: BTreeMap::new() });
        let fixture = PassFixture::new(desired(), options());
        for class in [ErrorClass::Transient, ErrorClass::Permanent] {
            let error = SourceError { what: "no answer".to_owned(), hints: Vec::new(), class };
            let remote = Remote::new(Err(error));
            let refused = foreign_namespaces(fixture.pass(), &remote, std::slice::from_ref(&survey)).await;
            let results: Vec<_> =
                refused["a"].iter().map(|target| (target.outcome, target.transient)).collect();
            assert_eq!(results, [(Outcome::Failed, class.is_transient()); 2], "{class:?}");
        }
    }
}
