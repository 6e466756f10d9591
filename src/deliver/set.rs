//! Computes what is recorded in a namespace: the inventory (marker), which consumers and the next run read, and the
//! ledger of last attempts. Pure; `record` writes them.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::report::{Outcome, Target};
use super::survey::{Item, NamespaceSurvey};
use super::write::Written;
use crate::configmap::apply::{
    Action, Claim, DecisionReason, Desired, Entry, LastAttempt, Ledger, Marker, names,
};

/// Computes the inventory after a batch of writes: for each target the content that it is known to hold, or that it is
/// still to be written.
pub(super) fn marker(
    survey: &NamespaceSurvey,
    desired: &Desired,
    written: &BTreeMap<String, Written>,
) -> Marker {
    let mut entries = BTreeMap::new();
    for item in &survey.items {
        let old = survey.marker.entries.get(&item.name);
        let entry = match (&item.wanted, written.get(&item.name)) {
            (Some(wanted), written) if wanted.fed || item.meta.is_some() || written.is_some() => {
                entry(item, &wanted.digest, old, written)
            }
            (Some(_), _) => None,
            (None, Some(written)) if written.target.outcome == Outcome::Deleted => None,
            // An object that exists and is ours stays in the inventory, whether or not it was to be deleted.
            (None, _) if item.meta.is_some() && item.decision.why != DecisionReason::NotOurs => old.cloned(),
            (None, _) => None,
        };
        entries.extend(entry.map(|entry| (item.name.clone(), entry)));
    }
    let mut marker = Marker { entries, ..survey.marker.clone() };
    // A held target keeps what other rules or options may have written: until it is written, the inventory must not say
    // that everything was made by the current rules.
    if !survey.items.iter().any(|item| matches!(item.decision.action, Action::Hold(_))) {
        marker.set_rules(&desired.rules);
    }
    marker.damaged.retain(|name, _| !marker.entries.contains_key(name));
    if marker != survey.marker {
        marker.revision = desired.revision.to_string();
    }
    marker
}

fn entry(item: &Item, digest: &str, old: Option<&Entry>, written: Option<&Written>) -> Option<Entry> {
    let decision = &item.decision;
    // The desired content of a held target is not known for sure, and a peer may have recorded it.
    if matches!(decision.action, Action::Hold(_)) {
        return old.cloned();
    }
    if decision.why == DecisionReason::LeftOut {
        return left_out(item, old);
    }
    let known = match written {
        Some(written) if written.target.outcome == Outcome::Deleted => return None,
        Some(written) if written.target.outcome.is_success() => {
            written.meta.as_ref().map(|meta| (meta, written.revision.as_str()))
        }
        None if decision.why == DecisionReason::Right => {
            item.meta.as_ref().map(|meta| (meta, decision.revision.as_str()))
        }
        None if decision.action == Action::Nothing => return None, // not ours
        _ => None,
    };
    Some(match (known, old) {
        (Some((meta, revision)), _) => Entry {
            digest: digest.to_owned(),
            uid: meta.uid.clone(),
            version: meta.resource_version.clone(),
            revision: revision.to_owned(),
            wanted: None,
        },
        (None, Some(old)) => Entry { wanted: Some(digest.to_owned()), ..old.clone() },
        // We own no such object yet, but readers must see that the set is incomplete without it.
        (None, None) => Entry::wanted(digest),
    })
}

/// Returns the entry of a ConfigMap that is left out. It still holds what was written last, as its annotations say,
/// and readers need not wait for it: nothing else is to be written. It is read again before that counts, as the rules
/// may be others by then.
fn left_out(item: &Item, old: Option<&Entry>) -> Option<Entry> {
    let old = old.map(|old| Entry { version: String::new(), ..old.clone() });
    let ours = item.meta.as_ref().filter(|_| item.decision.claim == Claim::Ours);
    let written = ours.and_then(|meta| {
        let annotation = |name: &str| meta.annotations.get(name).cloned();
        Some(Entry {
            digest: annotation(names::DIGEST)?,
            uid: meta.uid.clone(),
            version: String::new(),
            revision: annotation(names::REVISION)?,
            wanted: None,
        })
    });
    written.or(old)
}

/// Returns true if the records have to be written even if no ConfigMap is.
pub(super) fn needs_recording(survey: &NamespaceSurvey, desired: &Desired) -> bool {
    let marker = marker(survey, desired, &BTreeMap::new());
    marker != survey.marker || is_abandoned(survey, &marker)
}

/// Returns true if no rule names the namespace any more and we own nothing in it.
pub(super) fn is_abandoned(survey: &NamespaceSurvey, marker: &Marker) -> bool {
    survey.forgotten && marker.entries.is_empty() && marker.damaged.is_empty()
}

/// Returns true if the inventory does not list the object that is about to be written: it has no entry of that name, or
/// the entry is of another object, whose uid the new one will not have, and does not say that one is to be written.
pub(super) fn is_unlisted(survey: &NamespaceSurvey, item: &Item) -> bool {
    let creates = matches!(item.decision.action, Action::Create | Action::Recreate);
    let entry = survey.marker.entries.get(&item.name);
    item.wanted.is_some()
        && item.decision.writes()
        && entry.is_none_or(|entry| creates && !entry.uid.is_empty() && entry.wanted.is_none())
}

/// Returns the inventory with the objects added that are about to be written, so that a prune after a crash finds
/// them. `None` if it lists all of them already.
pub(super) fn marker_before_writes(survey: &NamespaceSurvey) -> Option<Marker> {
    let mut marker = survey.marker.clone();
    for item in survey.items.iter().filter(|item| is_unlisted(survey, item)) {
        let Some(wanted) = &item.wanted else { continue };
        let entry = match marker.entries.get(&item.name) {
            // The old object may stay, if its deletion fails. Without its labels it is ours by its uid alone.
            Some(old) if item.decision.action == Action::Recreate => {
                Entry { wanted: Some(wanted.digest.clone()), ..old.clone() }
            }
            // What was verified stays, as a repair is recognized by it.
            Some(old) => Entry { uid: String::new(), version: String::new(), ..old.clone() },
            None => Entry::wanted(&wanted.digest),
        };
        marker.damaged.remove(&item.name);
        marker.entries.insert(item.name.clone(), entry);
    }
    (marker != survey.marker).then_some(marker)
}

/// Returns the ledger after a batch of writes.
pub(super) fn ledger<'t>(
    before: &Ledger,
    revision: &str,
    targets: impl Iterator<Item = &'t Target>,
    now: Timestamp,
) -> Ledger {
    let mut ledger = before.clone();
    for target in targets {
        let quiet = matches!(target.outcome, Outcome::Right | Outcome::Left) && target.attempts == 0;
        let failing = before.records.get(&target.name).is_some_and(|record| record.error.is_some());
        // A target that is right needs no new record, unless the last record is a failure.
        if quiet && !failing {
            continue;
        }
        let counted = target.counted && target.outcome.is_write();
        ledger.record_attempt(&target.name, record(target, revision, now), counted);
    }
    ledger
}

/// Returns the ledger's record of one target.
pub(super) fn record(target: &Target, revision: &str, now: Timestamp) -> LastAttempt {
    LastAttempt {
        revision: revision.to_owned(),
        digest: target.digest.clone(),
        at: now,
        outcome: target.outcome.label().to_owned(),
        attempts: target.attempts,
        error: (!target.outcome.is_success()).then(|| target.why.clone()),
        repairs: Vec::new(),
        over: target.over.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{entry, survey};
    use super::*;
    use crate::configmap::apply::Decision;

    fn decided(action: Action, why: DecisionReason) -> Decision {
        Decision { action, why, ..Decision::unchanged(String::new()) }
    }

    #[test]
    fn an_object_that_is_deleted_and_created_again_stays_listed_by_its_uid_until_it_is_gone() {
        let survey = survey("ci", decided(Action::Recreate, DecisionReason::Drift));
        assert!(is_unlisted(&survey, &survey.items[0]));
        let marker = marker_before_writes(&survey).unwrap();
        assert_eq!(marker.entries["a"], Entry { wanted: Some("after".to_owned()), ..entry() });
        let survey = NamespaceSurvey { marker, ..survey };
        assert!(!is_unlisted(&survey, &survey.items[0]) && marker_before_writes(&survey).is_none());
    }

    #[test]
    fn an_object_that_is_created_in_the_place_of_one_that_is_gone_is_listed_without_a_uid() {
        let survey = survey("ci", decided(Action::Create, DecisionReason::Vanished));
        let marker = marker_before_writes(&survey).unwrap();
        let nothing = String::new;
        assert_eq!(marker.entries["a"], Entry { uid: nothing(), version: nothing(), ..entry() });
    }

    #[test]
    fn what_is_left_out_is_listed_as_what_its_annotations_say_and_readers_do_not_wait_for_it() {
        let mut survey = survey("ci", decided(Action::Nothing, DecisionReason::LeftOut));
        let waits = Entry { wanted: Some("too large".to_owned()), ..entry() };
        let unverified = Entry { version: String::new(), ..waits.clone() };
        assert_eq!(left_out(&survey.items[0], Some(&waits)), Some(unverified), "nothing says what it holds");
        let meta = survey.items[0].meta.as_mut().unwrap();
        meta.annotations = [(names::DIGEST, "written"), (names::REVISION, "r0")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let [digest, uid, version, revision] = ["written", "u1", "", "r0"].map(str::to_owned);
        let written = Entry { digest, uid, version, revision, wanted: None };
        for old in [Some(&waits), None] {
            assert_eq!(left_out(&survey.items[0], old).as_ref(), Some(&written));
        }
        survey.items[0].decision.claim = Claim::Nobody;
        assert_eq!(left_out(&survey.items[0], None), None);
    }
}
