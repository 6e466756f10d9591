//! Computes what is recorded in a namespace: the inventory (marker), which consumers and the next run read, and the
//! ledger of last attempts. Pure; `record` writes them.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::parse_revision;
use super::report::{Outcome, Target};
use super::survey::{Item, NamespaceSurvey};
use super::write::Written;
use crate::configmap::apply::{
    Action, Claim, DecisionReason, Desired, Entry, LastAttempt, Ledger, Marker, names,
};
use crate::secret;

/// Computes the inventory after the writes of a pass: for each target the content that it is known to hold, or that it
/// is still to be written.
pub(super) fn marker(
    survey: &NamespaceSurvey,
    desired: &Desired,
    written: &BTreeMap<String, Written>,
) -> Marker {
    let mut entries = BTreeMap::new();
    for item in &survey.items {
        let old = survey.entry(&item.name);
        let entry = match (&item.wanted, written.get(&item.name)) {
            (Some(wanted), written) if wanted.fed || item.meta.is_some() || written.is_some() => {
                entry(item, &wanted.digest, old, written)
            }
            (Some(_), _) => None,
            (None, Some(written)) if written.target.outcome == Outcome::Deleted => None,
            // An object that exists and is ours stays in the inventory, whether or not it was to be deleted.
            (None, _) if item.meta.is_some() && item.decision.why != DecisionReason::NotOurs => unproven(old),
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
    // The annotations of the inventory are of the same revision as its data.
    if marker != survey.marker || survey.marker_outdated {
        marker.revision = desired.revision.to_string();
    }
    marker
}

fn entry(item: &Item, digest: &str, old: Option<&Entry>, written: Option<&Written>) -> Option<Entry> {
    let decision = &item.decision;
    // The desired content of a held target is not known for sure, and another instance may have recorded it.
    if matches!(decision.action, Action::Hold(_)) {
        return old.cloned();
    }
    if decision.why == DecisionReason::LeftOut {
        return left_out(item, old);
    }
    // No file feeds it, and only the damage of the inventory keeps it from being deleted.
    if decision.why == DecisionReason::NoRule {
        return unproven(old);
    }
    let known = match written {
        Some(written) if written.target.outcome == Outcome::Deleted => return None,
        Some(written) if written.target.outcome.is_success() => {
            written.meta.as_ref().map(|meta| (meta, written.revision.as_str()))
        }
        None if decision.why == DecisionReason::Unchanged => {
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

/// Returns the entry of a ConfigMap that stays as it is, without the version that would prove its content: it may have
/// been written under other rules or options than those that the inventory has from now on.
fn unproven(old: Option<&Entry>) -> Option<Entry> {
    old.map(|old| Entry { version: String::new(), ..old.clone() })
}

/// Returns the entry of a ConfigMap that is left out. It still holds what was verified last, and readers need not wait
/// for it: nothing else is to be written. If nothing was verified, its annotations say what it holds. It is read again
/// before that counts, as the rules may be others by then.
fn left_out(item: &Item, old: Option<&Entry>) -> Option<Entry> {
    let old = unproven(old);
    let ours = item.meta.as_ref().filter(|_| item.decision.claim == Claim::Ours);
    let annotated = ours.and_then(|meta| {
        // Anybody may have annotated it, with anything of any length.
        let digest = meta.annotations.get(names::DIGEST).filter(|text| is_digest(text))?;
        let revision = meta.annotations.get(names::REVISION).filter(|text| parse_revision(text).is_some())?;
        Some(Entry {
            digest: digest.clone(),
            uid: meta.uid.clone(),
            version: String::new(),
            revision: revision.clone(),
            wanted: None,
        })
    });
    old.clone().filter(|old| old.wanted.is_none()).or(annotated).or(old)
}

/// Returns true if a text is a SHA-256 as it is written in records: 64 digits and letters in lower case.
fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns true if the records have to be written even if no ConfigMap is.
pub(super) fn needs_recording(survey: &NamespaceSurvey, desired: &Desired) -> bool {
    let marker = marker(survey, desired, &BTreeMap::new());
    marker != survey.marker || survey.marker_outdated || is_abandoned(survey, &marker)
}

/// Returns true if anything is to be written in the namespace: a ConfigMap, or the records alone.
pub(super) fn is_busy(survey: &NamespaceSurvey, desired: &Desired) -> bool {
    survey.has_writes() || needs_recording(survey, desired)
}

/// Returns true if no rule names the namespace any more and we own nothing in it.
pub(super) fn is_abandoned(survey: &NamespaceSurvey, marker: &Marker) -> bool {
    survey.orphaned && marker.entries.is_empty() && marker.damaged.is_empty()
}

/// Returns true if the inventory does not list the object that there will be after the write: it has no entry of that
/// name, or the entry has neither its uid nor its digest. An object that is created has no uid before.
pub(super) fn is_unlisted(survey: &NamespaceSurvey, item: &Item) -> bool {
    let uid = match item.decision.action {
        Action::Create | Action::Recreate => "",
        Action::Replace => item.meta.as_ref().map_or("", |meta| meta.uid.as_str()),
        Action::Delete | Action::Nothing | Action::Refuse(_) | Action::Hold(_) => return false,
    };
    let Some(wanted) = &item.wanted else { return false };
    let entry = survey.marker.entries.get(&item.name);
    entry.is_none_or(|entry| !entry.lists(uid, Some(wanted.digest.as_str())))
}

/// Returns the inventory with the objects added that are about to be written, and those that landed late, so that a
/// prune after a crash finds them. `None` if it lists all of them already.
pub(super) fn marker_before_writes(survey: &NamespaceSurvey) -> Option<Marker> {
    let mut marker = survey.marker.clone();
    marker.entries.extend(survey.late.clone());
    for item in survey.items.iter().filter(|item| is_unlisted(survey, item)) {
        let Some(wanted) = &item.wanted else { continue };
        let listed = survey.entry(&item.name);
        let mut entry = listed.cloned().unwrap_or_else(|| Entry::wanted(&wanted.digest));
        let is_verified = entry.wanted.is_none() && entry.digest == wanted.digest;
        // An object that is replaced or recreated keeps its uid, as it may stay if the write fails, and without its
        // labels it is ours by its uid alone.
        if item.decision.action == Action::Create {
            entry.uid.clear();
            entry.version.clear();
        }
        // What was verified stays if just that is created again, as a repair is recognized by it.
        if item.decision.action != Action::Create || !is_verified {
            entry.wanted = Some(wanted.digest.clone());
        }
        marker.entries.insert(item.name.clone(), entry);
    }
    // What is neither desired nor there leaves the inventory after the writes, and takes no room before them.
    if marker != survey.marker {
        let is_gone = |item: &&Item| item.wanted.is_none() && item.meta.is_none();
        survey.items.iter().filter(is_gone).for_each(|item| drop(marker.entries.remove(&item.name)));
    }
    marker.damaged.retain(|name, _| !marker.entries.contains_key(name));
    (marker != survey.marker).then_some(marker)
}

/// Returns the ledger after the writes of a pass.
pub(super) fn ledger<'t>(
    before: &Ledger,
    revision: &str,
    targets: impl Iterator<Item = &'t Target>,
    now: Timestamp,
) -> Ledger {
    let mut ledger = before.clone();
    for target in targets {
        let quiet = matches!(target.outcome, Outcome::Unchanged | Outcome::Left) && target.attempts == 0;
        let failing = before.records.get(&target.name).is_some_and(|record| record.error.is_some());
        // An unchanged target needs no new record, unless the last record is a failure.
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
        error: (!target.outcome.is_success()).then(|| secret::redacted(&target.why).into_owned()),
        repairs: Vec::new(),
        over: target.over.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{desired, entry, survey};
    use super::*;
    use crate::configmap::apply::Decision;

    fn decided(action: Action, why: DecisionReason) -> Decision {
        Decision { action, why, ..Decision::unchanged(String::new()) }
    }

    #[test]
    fn no_secret_is_in_the_record_of_a_failure() {
        secret::register("canary-of-the-ledger");
        let why = "it said canary-of-the-ledger";
        let target = Target::failed("default", "ci", "a", why, Vec::new());
        let error = record(&target, "r", Timestamp::UNIX_EPOCH).error.unwrap();
        assert!(error.starts_with("it said ") && !error.contains("canary"), "{error}");
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
        let mut survey = survey("ci", decided(Action::Create, DecisionReason::Vanished));
        let gone = Entry { uid: String::new(), version: String::new(), ..entry() };
        let other = Entry { wanted: Some("after".to_owned()), ..gone.clone() };
        for (digest, expected) in [(entry().digest, gone), ("after".to_owned(), other)] {
            survey.items[0].wanted.as_mut().unwrap().digest = digest;
            survey.marker.entries.insert("a".to_owned(), entry());
            survey.marker = marker_before_writes(&survey).unwrap();
            assert_eq!(survey.marker.entries["a"], expected);
            assert!(!is_unlisted(&survey, &survey.items[0]));
        }
    }

    #[test]
    fn what_landed_after_another_instance_had_dropped_it_is_listed_until_it_is_deleted() {
        let mut survey = survey("ci", decided(Action::Nothing, DecisionReason::NoRule));
        survey.items[0].wanted = None;
        survey.late = std::mem::take(&mut survey.marker.entries);
        let listed = marker(&survey, &desired(), &BTreeMap::new());
        assert!(listed.entries["a"].lists(&entry().uid, None), "{listed:?}");
        let announced = marker_before_writes(&survey).unwrap();
        assert_eq!(announced.entries, survey.late, "a crash before the deletion leaves it listed");
    }

    #[test]
    fn what_no_rule_names_is_proven_by_no_version_and_that_is_recorded_once() {
        let mut survey = survey("ci", decided(Action::Nothing, DecisionReason::NoRule));
        survey.items[0].wanted = None;
        survey.marker = marker(&survey, &desired(), &BTreeMap::new());
        assert_eq!(survey.marker.entries["a"], Entry { version: String::new(), ..entry() });
        assert!(!needs_recording(&survey, &desired()));
    }

    #[test]
    fn what_no_file_feeds_stays_listed_while_the_damage_of_the_inventory_keeps_it() {
        for (why, is_listed) in [(DecisionReason::NoRule, true), (DecisionReason::NotOurs, false)] {
            let mut survey = survey("ci", decided(Action::Nothing, why));
            survey.items[0].wanted.as_mut().unwrap().fed = false;
            let listed = marker(&survey, &desired(), &BTreeMap::new()).entries;
            let kept = Entry { version: String::new(), ..entry() };
            assert_eq!(listed.get("a"), Some(&kept).filter(|_| is_listed), "{why:?}");
        }
    }

    #[test]
    fn what_is_about_to_be_written_is_announced_again_where_the_inventory_would_not_know_it() {
        let failed = Entry { wanted: Some("earlier".to_owned()), ..entry() };
        let never = Entry::wanted("earlier");
        let elsewhere = Entry { uid: "u0".to_owned(), ..entry() };
        let announced = |action, entry: &Entry| {
            let mut survey = survey("ci", decided(action, DecisionReason::Changed));
            survey.marker.entries.insert("a".to_owned(), entry.clone());
            marker_before_writes(&survey).map(|marker| marker.entries["a"].clone())
        };
        let after = |entry: &Entry| Some(Entry { wanted: Some("after".to_owned()), ..entry.clone() });
        assert_eq!(announced(Action::Recreate, &failed), after(&failed), "a later digest");
        for (action, entry) in
            [(Action::Create, &never), (Action::Replace, &never), (Action::Replace, &elsewhere)]
        {
            assert_eq!(announced(action, entry), after(entry), "{entry:?}");
        }
        for (action, entry) in [(Action::Replace, &failed), (Action::Delete, &elsewhere)] {
            assert_eq!(announced(action, entry), None, "{entry:?}");
        }
    }

    #[test]
    fn what_is_left_out_is_listed_as_it_was_verified_or_as_its_annotations_say() {
        let mut survey = survey("ci", decided(Action::Nothing, DecisionReason::LeftOut));
        let unverified = |entry: &Entry| Entry { version: String::new(), ..entry.clone() };
        let waits = Entry { wanted: Some("too large".to_owned()), ..entry() };
        let said = left_out(&survey.items[0], Some(&waits));
        assert_eq!(said, Some(unverified(&waits)), "nothing says what it holds");
        let [digest, revision] = ["5".repeat(64), "6".repeat(40)];
        let annotate = |item: &mut Item, digest: &str, revision: &str| {
            let annotations = [(names::DIGEST, digest), (names::REVISION, revision)];
            let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned()));
            item.meta.as_mut().unwrap().annotations = annotations.into();
        };
        annotate(&mut survey.items[0], &digest, &revision);
        let [uid, version] = ["u1", ""].map(str::to_owned);
        let annotated =
            Entry { digest: digest.clone(), uid, version, revision: revision.clone(), wanted: None };
        for old in [Some(&waits), None] {
            assert_eq!(left_out(&survey.items[0], old).as_ref(), Some(&annotated));
        }
        let verified = left_out(&survey.items[0], Some(&entry()));
        assert_eq!(verified, Some(unverified(&entry())), "anybody may have annotated it");
        let long = "5".repeat(70_000);
        let [whole, hex] = [digest.as_str(), revision.as_str()];
        for (digest, revision) in [("written", hex), (long.as_str(), hex), (whole, "r")] {
            annotate(&mut survey.items[0], digest, revision);
            assert_eq!(left_out(&survey.items[0], Some(&waits)), Some(unverified(&waits)));
            assert_eq!(left_out(&survey.items[0], None), None);
        }
        annotate(&mut survey.items[0], &digest, &revision);
        survey.items[0].decision.claim = Claim::Nobody;
        assert_eq!(left_out(&survey.items[0], None), None);
    }
}
