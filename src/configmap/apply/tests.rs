//! Decisions, one for each thing that can be desired, seen and recorded.

mod deletions;
mod desired;
mod moves;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::super::compare::ConfigMapData;
use super::super::data::{DesiredData, Value};
use super::*;

const R1: &str = "1111111111111111111111111111111111111111";
const R2: &str = "2222222222222222222222222222222222222222";

fn data(keys: &[(&str, &str)]) -> DesiredData {
    let value = |text: &str| Arc::new(Value::new(text.as_bytes().to_vec(), false));
    DesiredData::new(keys.iter().map(|(key, text)| ((*key).to_owned(), value(text))).collect())
}

fn wanted(keys: &[(&str, &str)]) -> DesiredConfigMap {
    let data = data(keys);
    DesiredConfigMap {
        held: None,
        digest: data.digest().to_owned(),
        data,
        fed: !keys.is_empty(),
        left_out: false,
        versioned: true,
        stamp: None,
    }
}

/// At revision 2, with the key VERSION.
fn policy() -> Policy {
    Policy {
        owner: Owner::new("team").unwrap(),
        adopt: Adopt::Nothing,
        prune: false,
        recreate: false,
        revision: R2.into(),
        rules: "rules".into(),
        shape: ExtraKeys { version_key: VersionKey::Changed, stamp_key: None },
        pace: RepairLimit::default(),
        now: Timestamp::from_second(1_000_000).unwrap(),
        deletions_held: None,
    }
}

/// The ConfigMap as we write it.
fn ours(wanted: &DesiredConfigMap, revision: &str) -> LiveConfigMap {
    let policy = policy();
    LiveConfigMap {
        uid: "u1".into(),
        version: "7".into(),
        labels: policy.owner.labels().map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        annotations: wanted.annotations(&policy.owner, "rules", revision),
        content: wanted.content(&policy.shape, revision),
        ..LiveConfigMap::default()
    }
}

fn prows(keys: &[(&str, &str)]) -> LiveConfigMap {
    let content = ConfigMapData {
        data: keys.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect(),
        ..ConfigMapData::default()
    };
    let labels = names::PROW_LABELS.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    LiveConfigMap { uid: "u9".into(), version: "3".into(), labels, content, ..LiveConfigMap::default() }
}

fn entry(wanted: &DesiredConfigMap, seen: &LiveConfigMap, revision: &str) -> Entry {
    Entry {
        digest: wanted.digest.clone(),
        uid: seen.uid.clone(),
        version: seen.version.clone(),
        revision: revision.into(),
        wanted: None,
    }
}

fn keys(set: &std::collections::BTreeSet<String>) -> Vec<&str> {
    set.iter().map(String::as_str).collect()
}

#[test]
fn what_is_right_is_left_alone_whatever_the_revision() {
    let wanted = wanted(&[("a", "1")]);
    let seen = ours(&wanted, R1);
    let decision = policy().decide(Some(&wanted), Some(&seen), None, None);
    assert_eq!(
        (decision.action, decision.why, decision.revision.as_str()),
        (Action::Nothing, DecisionReason::Unchanged, R1)
    );
    let every = Policy { shape: ExtraKeys { version_key: VersionKey::Every, stamp_key: None }, ..policy() };
    let decision = every.decide(Some(&wanted), Some(&seen), None, None);
    assert_eq!(
        (decision.action, decision.why, decision.revision.as_str()),
        (Action::Replace, DecisionReason::Changed, R2)
    );
    assert_eq!(keys(&decision.difference.changed), ["VERSION"]);
    // Where a file has that key, it keeps the revision that it was written at.
    let own = DesiredConfigMap { versioned: false, ..self::wanted(&[("VERSION", "1")]) };
    let decision = every.decide(Some(&own), Some(&ours(&own, R1)), None, None);
    assert_eq!((decision.action, decision.revision.as_str()), (Action::Nothing, R1));
    assert!(every.needs_new_stamp(&wanted, R1) && !every.needs_new_stamp(&own, R1));
    let known = entry(&wanted, &seen, R1);
    assert_eq!(every.decide(Some(&wanted), Some(&seen), Some(&known), None).why, DecisionReason::Changed);
}

#[test]
fn what_nobody_touched_and_other_rules_want_otherwise_is_no_drift() {
    let wanted = wanted(&[("a", "1")]);
    let stamped = DesiredConfigMap { stamp: Some("stamp".into()), ..wanted.clone() };
    let seen = ours(&wanted, R1);
    let known = entry(&wanted, &seen, R1);
    let now = Policy { rules: "with a stamp".into(), ..policy() };
    let decision = now.decide(Some(&stamped), Some(&seen), Some(&known), None);
    assert_eq!((&decision.action, decision.why), (&Action::Replace, DecisionReason::OtherRules));
    assert!(!decision.repairs() && !decision.counts_toward_limit());
    assert_eq!((keys(&decision.difference.added), decision.over.as_deref()), (vec!["stamp"], Some("rules")));
    let touched = LiveConfigMap { version: "8".into(), ..seen.clone() };
    assert_eq!(now.decide(Some(&stamped), Some(&touched), Some(&known), None).why, DecisionReason::Drift);
    // It is told when it goes back, and refused where it does so again and again.
    let record = |repairs: usize| LastAttempt {
        revision: R1.into(),
        digest: wanted.digest.clone(),
        at: now.now,
        outcome: "replaced".into(),
        attempts: 1,
        error: None,
        repairs: vec![now.now; repairs],
        over: Some("with a stamp".into()),
    };
    let decision = now.decide(Some(&stamped), Some(&seen), Some(&known), Some(&record(2)));
    assert_eq!((&decision.action, decision.why), (&Action::Replace, DecisionReason::TurnedBack));
    assert!(!decision.repairs() && decision.counts_toward_limit());
    let decision = now.decide(Some(&stamped), Some(&seen), Some(&known), Some(&record(3)));
    assert_eq!(decision.action, Action::Refuse(Refusal::TurnedBack(3)));
    let third = Policy { rules: "yet others".into(), ..policy() };
    assert_eq!(
        third.decide(Some(&stamped), Some(&seen), Some(&known), Some(&record(3))).action,
        Action::Replace
    );
}

#[test]
fn uid_and_version_are_evidence_and_a_digest_is_none() {
    let wanted = wanted(&[("a", "1")]);
    let seen = ours(&wanted, R1);
    let entry = entry(&wanted, &seen, R1);
    assert!(is_proven_by_record(&wanted, "u1", "7", Some(&entry), true));
    let read = policy().decide(Some(&wanted), Some(&seen), Some(&entry), None);
    assert_eq!(Decision::unchanged(R1.into()), read, "it is decided as if its content had been read");
    assert!(!is_proven_by_record(&wanted, "u1", "8", Some(&entry), true), "another writer changed it");
    assert!(!is_proven_by_record(&wanted, "u2", "7", Some(&entry), true), "another object");
    assert!(!is_proven_by_record(&wanted, "u1", "7", Some(&entry), false), "verified under other rules");
    assert!(!is_proven_by_record(&wanted, "u1", "7", None, true));
    let failed = Entry { wanted: Some("x".into()), ..entry };
    assert!(!is_proven_by_record(&wanted, "u1", "7", Some(&failed), true));
}

#[test]
fn absent_is_created_and_vanished_is_put_back_as_it_was() {
    let wanted = wanted(&[("a", "1")]);
    let decision = policy().decide(Some(&wanted), None, None, None);
    assert_eq!(
        (decision.action, decision.why, decision.revision.as_str()),
        (Action::Create, DecisionReason::Absent, R2)
    );
    assert_eq!(keys(&decision.difference.added), ["VERSION", "a"]);
    let entry = entry(&wanted, &ours(&wanted, R1), R1);
    let decision = policy().decide(Some(&wanted), None, Some(&entry), None);
    assert_eq!(
        (decision.action, decision.why, decision.revision.as_str()),
        (Action::Create, DecisionReason::Vanished, R1)
    );
}

#[test]
fn a_change_is_stamped_with_the_revision_and_keeps_no_key_too_many() {
    let old = ours(&wanted(&[("a", "1"), ("b", "1")]), R1);
    let decision = policy().decide(Some(&wanted(&[("a", "2")])), Some(&old), None, None);
    assert_eq!((&decision.action, decision.why), (&Action::Replace, DecisionReason::Changed));
    assert_eq!(decision.revision, R2);
    assert_eq!(keys(&decision.difference.changed), ["VERSION", "a"]);
    assert_eq!(keys(&decision.difference.removed), ["b"]);
    assert!(!decision.repairs());
}

#[test]
fn foreign_writes_are_drift_and_put_right_with_the_revision_on_record() {
    let wanted = wanted(&[("a", "1"), ("b", "1")]);
    let entry = entry(&wanted, &ours(&wanted, R1), R1);
    let there = LiveConfigMap { version: "8".into(), ..ours(&wanted, R1) };
    let mut older = there.clone();
    older.content.data.insert("a".into(), "0".into());
    let mut unstamped = there.clone();
    unstamped.content.data.remove("VERSION");
    let mut more = there.clone();
    more.content.data.insert("c".into(), "1".into());
    for (seen, changed) in [(&older, ["a"]), (&unstamped, ["VERSION"]), (&more, ["c"])] {
        for entry in [None, Some(&entry)] {
            let decision = policy().decide(Some(&wanted), Some(seen), entry, None);
            assert_eq!((&decision.action, decision.why), (&Action::Replace, DecisionReason::Drift));
            assert!(decision.repairs());
            assert_eq!(decision.revision, R1);
            let difference = &decision.difference;
            let all: Vec<&String> =
                difference.added.iter().chain(&difference.changed).chain(&difference.removed).collect();
            assert_eq!(all, changed);
        }
    }
    let mut stripped = there.clone();
    stripped.labels.clear();
    stripped.annotations.clear();
    let decision = policy().decide(Some(&wanted), Some(&stripped), Some(&entry), None);
    assert_eq!(
        (decision.action, decision.why),
        (Action::Replace, DecisionReason::Drift),
        "we know it by its uid"
    );
    let decision = policy().decide(Some(&wanted), Some(&stripped), None, None);
    assert_eq!(decision.action, Action::Refuse(Refusal::Nobody));
}

#[test]
fn an_annotated_revision_that_is_none_is_put_right_and_recorded_nowhere() {
    let wanted = wanted(&[("a", "1")]);
    let known = entry(&wanted, &ours(&wanted, R1), R1);
    for text in ["", "newest", &R1[1..], &"1".repeat(300_000)] {
        let mut seen = LiveConfigMap { version: "8".into(), ..ours(&wanted, R1) };
        seen.annotations.insert(names::REVISION.to_owned(), text.to_owned());
        for version_key in [VersionKey::Off, VersionKey::Changed] {
            let mut seen = seen.clone();
            if version_key == VersionKey::Off {
                seen.content.data.remove("VERSION");
            }
            let policy = Policy { shape: ExtraKeys { version_key, stamp_key: None }, ..policy() };
            let decision = policy.decide(Some(&wanted), Some(&seen), Some(&known), None);
            assert_eq!((&decision.action, decision.why), (&Action::Replace, DecisionReason::Drift));
            assert_eq!(decision.revision, R1, "as it is on record");
            let decision = policy.decide(Some(&wanted), Some(&seen), None, None);
            assert_eq!((decision.action, decision.revision.as_str()), (Action::Replace, R2));
        }
        // Nor is it taken from an inventory.
        let known = Entry { revision: text.to_owned(), ..known.clone() };
        for seen in [None, Some(&seen)] {
            assert_eq!(policy().decide(Some(&wanted), seen, Some(&known), None).revision, R2);
        }
    }
}

#[test]
fn a_newer_writer_of_ours_is_no_drift() {
    let old = wanted(&[("a", "1")]);
    let new = wanted(&[("a", "2")]);
    let entry = entry(&old, &ours(&old, R1), R1);
    let decision = policy().decide(Some(&old), Some(&ours(&new, R1)), Some(&entry), None);
    assert_eq!(decision.why, DecisionReason::Changed);
    let others = Policy { rules: "others".into(), ..policy() };
    let decision = others.decide(Some(&old), Some(&ours(&new, R2)), Some(&entry), None);
    assert_eq!(decision.why, DecisionReason::OtherRules, "one revision, and other data");
}

/// One commit may change rules and files, and another one may change the rules back.
#[test]
fn a_new_revision_with_other_data_is_a_change_whatever_its_rules() {
    let seen = ours(&wanted(&[("a", "1")]), R1);
    let others = Policy { rules: "others".into(), ..policy() };
    let decision = others.decide(Some(&wanted(&[("a", "2")])), Some(&seen), None, None);
    assert_eq!((decision.action, decision.why), (Action::Replace, DecisionReason::Changed));
    assert_eq!(decision.over, None, "it is no sign of two installations that use the same owner name");
}

#[test]
fn every_refusal_says_what_to_do_and_only_a_deletion_ends_by_itself() {
    for (refusal, remedy, is_transient) in [
        (Refusal::Other("b".into()), "delete it there", false),
        (Refusal::Prow, "--adopt=prow", false),
        (Refusal::Nobody, "--adopt=all", false),
        (Refusal::Immutable, "--recreate-immutable", false),
        (Refusal::Deleting, "the next run", true),
        (Refusal::Contested(3), "managedFields", false),
        (Refusal::TurnedBack(3), "--owner", false),
    ] {
        let hint = refusal.hint().to_owned();
        assert!(hint.contains(remedy), "{refusal}: {hint}");
        assert_eq!(refusal.is_transient(), is_transient, "{refusal}");
        crate::human::assert_message_style(&refusal, &[hint]);
    }
}

#[test]
fn others_are_refused_or_adopted_by_flag_and_never_taken_from_another_owner() {
    let wanted = wanted(&[("a", "1")]);
    let prow = prows(&[("a", "0"), ("stale", "0"), ("VERSION", "r0")]);
    let nobody = LiveConfigMap { labels: BTreeMap::new(), ..prow.clone() };
    let other = Owner::new("other").unwrap();
    let others = LiveConfigMap { annotations: wanted.annotations(&other, "rules", R1), ..prow.clone() };
    let action = |adopt, seen: &LiveConfigMap| {
        Policy { adopt, ..policy() }.decide(Some(&wanted), Some(seen), None, None).action
    };
    let refused = |refusal| Action::Refuse(refusal);
    assert_eq!(action(Adopt::Nothing, &prow), refused(Refusal::Prow));
    assert_eq!(action(Adopt::Prow, &prow), Action::Replace);
    assert_eq!(action(Adopt::Prow, &nobody), refused(Refusal::Nobody));
    assert_eq!(action(Adopt::All, &nobody), Action::Replace);
    assert_eq!(action(Adopt::All, &others), refused(Refusal::Other("other".into())));
    let decision = policy().decide(Some(&wanted), Some(&prow), None, None);
    assert_eq!(keys(&decision.difference.removed), ["stale"], "the keys that would go are known");
    let adopting = Policy { adopt: Adopt::Prow, ..policy() };
    let same = prows(&[("a", "1"), ("VERSION", R2)]);
    let decision = adopting.decide(Some(&wanted), Some(&same), None, None);
    assert_eq!(
        (decision.action, decision.why),
        (Action::Replace, DecisionReason::Adopted),
        "it is not ours before it says so"
    );
}

#[test]
fn an_immutable_one_is_refused_or_made_again() {
    let old = LiveConfigMap { immutable: true, ..ours(&wanted(&[("a", "1")]), R1) };
    let new = wanted(&[("a", "2")]);
    assert_eq!(
        policy().decide(Some(&new), Some(&old), None, None).action,
        Action::Refuse(Refusal::Immutable)
    );
    let recreating = Policy { recreate: true, ..policy() };
    assert_eq!(recreating.decide(Some(&new), Some(&old), None, None).action, Action::Recreate);
    // Also if only its labels or annotations differ.
    let same = LiveConfigMap { immutable: true, ..prows(&[("a", "2"), ("VERSION", R2)]) };
    let adopting = |recreate| Policy { adopt: Adopt::Prow, recreate, ..policy() };
    let decision = adopting(false).decide(Some(&new), Some(&same), None, None);
    assert!(decision.difference.is_empty());
    assert_eq!(decision.action, Action::Refuse(Refusal::Immutable));
    assert_eq!(adopting(true).decide(Some(&new), Some(&same), None, None).action, Action::Recreate);
    let unchanged = LiveConfigMap { immutable: true, ..ours(&new, R1) };
    assert_eq!(policy().decide(Some(&new), Some(&unchanged), None, None).action, Action::Nothing);
}

#[test]
fn a_contested_target_waits_and_an_ordinary_change_does_not() {
    let wanted = wanted(&[("a", "1")]);
    let mut drifted = ours(&wanted, R1);
    drifted.content.data.clear();
    let now = policy().now;
    let repairs = vec![now; 3];
    let record = LastAttempt {
        revision: R1.into(),
        digest: wanted.digest.clone(),
        at: now,
        outcome: "repaired".into(),
        attempts: 3,
        error: None,
        repairs,
        over: None,
    };
    let decision = policy().decide(Some(&wanted), Some(&drifted), None, Some(&record));
    assert_eq!(decision.action, Action::Refuse(Refusal::Contested(3)));
    let changed = self::wanted(&[("a", "2")]);
    assert_eq!(policy().decide(Some(&changed), Some(&drifted), None, Some(&record)).action, Action::Replace);
}

/// The inventory says of one that is refused that it is still to be written.
#[test]
fn a_contested_target_still_waits_after_the_refusal_is_recorded() {
    let wanted = wanted(&[("a", "1")]);
    let there = ours(&wanted, R1);
    let refused = Entry { wanted: Some(wanted.digest.clone()), ..entry(&wanted, &there, R1) };
    let other = Entry { wanted: Some("another".into()), ..refused.clone() };
    let stripped =
        LiveConfigMap { version: "8".into(), labels: BTreeMap::new(), annotations: BTreeMap::new(), ..there };
    let now = policy().now;
    let record = |repairs: usize| LastAttempt {
        revision: R1.into(),
        digest: wanted.digest.clone(),
        at: now,
        outcome: "refused".into(),
        attempts: 0,
        error: None,
        repairs: vec![now; repairs],
        over: None,
    };
    for (seen, repaired, written) in [
        (None, DecisionReason::Vanished, DecisionReason::Absent),
        (Some(&stripped), DecisionReason::Drift, DecisionReason::Changed),
    ] {
        let decide =
            |entry, repairs| policy().decide(Some(&wanted), seen, Some(entry), Some(&record(repairs)));
        let decision = decide(&refused, 3);
        assert_eq!((decision.action, decision.why), (Action::Refuse(Refusal::Contested(3)), repaired));
        let decision = decide(&refused, 2);
        assert!(decision.writes() && decision.counts_toward_limit(), "{decision:?}");
        assert_eq!((decision.why, decision.revision.as_str()), (repaired, R1));
        // Whether it held other data in between is not known.
        let decision = decide(&other, 3);
        assert!(decision.writes() && !decision.counts_toward_limit(), "{decision:?}");
        assert_eq!((decision.why, decision.revision.as_str()), (written, R2));
    }
}

#[test]
fn what_depends_on_a_source_that_is_away_is_not_written_whatever_there_is_to_do() {
    let away = || Some("source a is away".to_owned());
    let held = DesiredConfigMap { held: away(), ..wanted(&[("a", "2")]) };
    let there = ours(&wanted(&[("a", "1")]), R1);
    let why = Action::Hold(away().unwrap());
    assert_eq!(policy().decide(Some(&held), None, None, None).action, why);
    assert_eq!(policy().decide(Some(&held), Some(&there), None, None).action, why);
    let unchanged = DesiredConfigMap { held: away(), ..wanted(&[("a", "1")]) };
    assert_eq!(policy().decide(Some(&unchanged), Some(&there), None, None).action, Action::Nothing);
    // Nor is what no rule names any more deleted: of which source it was is not known.
    let entry = entry(&wanted(&[("a", "1")]), &there, R1);
    let prunes = Policy { prune: true, ..policy() };
    assert_eq!(prunes.decide(None, Some(&there), Some(&entry), None).action, Action::Delete);
    let held = Policy { deletions_held: away(), ..prunes };
    assert_eq!(held.decide(None, Some(&there), Some(&entry), None).action, why);
}
