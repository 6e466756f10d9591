//! Decisions, one for each thing that can be desired, seen and recorded.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::super::compare::ConfigMapData;
use super::super::data::{DesiredData, Value};
use super::super::{ClusterNamespace, Finding, Plan, Planned};
use super::*;
use crate::revision::{ObjectId, Revision};

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

/// Asserts that a problem of the stamp is told as such: no policy for files accepts it, so no hint names one.
#[track_caller]
fn assert_blames_stamp(finding: Finding, words: &str) {
    let refused = super::super::Refused(vec![finding]);
    assert!(refused.to_string().contains(words), "{refused}");
    let hints = refused.hints();
    crate::human::assert_message_style(&refused, &hints);
    assert!(hints.iter().any(|hint| hint.contains("--stamp-key")), "{hints:?}");
    for policy in ["--illegal-keys", "--collisions", "--oversize", "use_full_path_as_key"] {
        assert!(!hints.iter().any(|hint| hint.contains(policy)), "{policy} does not help: {hints:?}");
    }
}

fn desired_of(plan: &Plan, shape: ExtraKeys) -> Result<Desired, Finding> {
    let made_of = (Revision(ObjectId([1; 20])), Placement::default());
    Desired::new(plan, made_of, "rules".into(), shape, |_| b"")
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
fn only_the_inventory_says_what_may_be_deleted() {
    let wanted = wanted(&[("a", "1")]);
    let seen = ours(&wanted, R1);
    let entry = entry(&wanted, &seen, R1);
    let action = |prune, seen: &LiveConfigMap, entry| {
        Policy { prune, ..policy() }.decide(None, Some(seen), entry, None).action
    };
    assert_eq!(action(false, &seen, Some(&entry)), Action::Nothing);
    assert_eq!(action(true, &seen, Some(&entry)), Action::Delete);
    assert_eq!(action(true, &seen, None), Action::Nothing, "it is in no inventory");
    let again = LiveConfigMap { uid: "u2".into(), ..seen };
    assert_eq!(action(true, &again, Some(&entry)), Action::Nothing, "another object of that name");
    let taken = LiveConfigMap { annotations: wanted.annotations(&Owner::new("b").unwrap(), "", R1), ..again };
    assert_eq!(action(true, &taken, Some(&entry)), Action::Nothing);
}

#[test]
fn a_last_file_that_goes_empties_or_deletes_what_is_ours() {
    let gone = wanted(&[]);
    let before = wanted(&[("a", "1")]);
    let seen = ours(&before, R1);
    let entry = entry(&before, &seen, R1);
    let decision = policy().decide(Some(&gone), Some(&seen), Some(&entry), None);
    assert_eq!(
        (&decision.action, decision.why, decision.removes_content()),
        (&Action::Replace, DecisionReason::Unfed, true)
    );
    let pruning = Policy { prune: true, ..policy() };
    let decision = pruning.decide(Some(&gone), Some(&seen), Some(&entry), None);
    assert_eq!(
        (&decision.action, decision.why, decision.removes_content()),
        (&Action::Delete, DecisionReason::Unfed, true)
    );
    assert_eq!(
        policy().decide(Some(&gone), None, Some(&entry), None).action,
        Action::Nothing,
        "nor is it made"
    );
    let nobodys = LiveConfigMap { labels: BTreeMap::new(), ..prows(&[("a", "1")]) };
    for seen in [&prows(&[("a", "1")]), &nobodys] {
        let decision = policy().decide(Some(&gone), Some(seen), None, None);
        assert_eq!((decision.action, decision.why), (Action::Nothing, DecisionReason::NotOurs));
        for prune in [false, true] {
            let adopting = Policy { adopt: Adopt::All, prune, ..policy() };
            let decision = adopting.decide(Some(&gone), Some(seen), None, None);
            assert_eq!((&decision.action, decision.why), (&Action::Replace, DecisionReason::Unfed));
            assert!(decision.removes_content(), "the limit of --max-prune counts it");
        }
    }
}

#[test]
fn what_a_policy_leaves_out_is_neither_written_nor_deleted() {
    let left_out = DesiredConfigMap { left_out: true, ..wanted(&[]) };
    let before = wanted(&[("a", "1")]);
    let seen = ours(&before, R1);
    let entry = entry(&before, &seen, R1);
    for prune in [false, true] {
        let policy = Policy { prune, adopt: Adopt::All, ..policy() };
        let decide = |seen| policy.decide(Some(&left_out), seen, Some(&entry), None);
        let decision = decide(Some(&seen));
        assert_eq!((&decision.action, decision.why), (&Action::Nothing, DecisionReason::LeftOut));
        assert!(!decision.removes_content());
        assert_eq!(decide(None).action, Action::Nothing, "nor is it made");
        let adopted = decide(Some(&prows(&[("a", "1")])));
        assert_eq!(adopted.action, Action::Nothing, "nor is what others made emptied to adopt it");
    }
}

#[test]
fn the_parts_of_what_is_left_out_are_told_by_their_names() {
    let planned = |name: &str, left_out: bool| Planned {
        rules: vec![0],
        name: name.to_owned(),
        places: vec![ClusterNamespace { cluster: "c".into(), namespace: "n".into() }],
        data: DesiredData::default(),
        files: BTreeMap::new(),
        fed: !left_out,
        left_out,
        stamp: None,
    };
    let all = [planned("large", true), planned("large-01", false), planned("small", false)];
    let plan = Plan { configmaps: all.into_iter().map(Arc::new).collect(), ..Plan::default() };
    let desired = desired_of(&plan, ExtraKeys::default()).unwrap();
    for (name, is_part) in [("large-1", true), ("large-001", true), ("large-01", false), ("small-1", false)] {
        assert_eq!(desired.is_part_of_left_out(("c", "n"), name), is_part, "{name}");
    }
    assert!(!desired.is_part_of_left_out(("c", "elsewhere"), "large-1"));
    let reason = DecisionReason::PartOfLeftOut.phrase("large-001");
    assert_eq!(reason, "it may be a part of large, which is left out");
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

#[test]
fn a_stamp_holds_the_digest_and_is_outside_of_it() {
    let shape = ExtraKeys { version_key: VersionKey::Changed, stamp_key: Some("stamp".into()) };
    let place = ClusterNamespace { cluster: "c".into(), namespace: "n".into() };
    let planned = Planned {
        rules: vec![0],
        name: "m".into(),
        places: vec![place.clone()],
        data: data(&[("a", "1")]),
        files: [("a".to_owned(), b"dir/a"[..].into())].into(),
        fed: true,
        left_out: false,
        stamp: Some(R2.into()),
    };
    let plan = Plan { configmaps: vec![planned.into()], ..Plan::default() };
    let desired = desired_of(&plan, shape.clone()).unwrap();
    let wanted = &desired.of("c", "n").unwrap()["m"];
    assert_eq!(wanted.digest, data(&[("a", "1")]).digest());
    let content = wanted.content(&shape, R2);
    assert_eq!(content.data["stamp"], wanted.digest);
    assert_eq!((content.data["VERSION"].as_str(), content.data["a"].as_str()), (R2, "1"));
    assert_eq!(desired.clusters().collect::<Vec<_>>(), ["c"]);
    let clash = ExtraKeys { stamp_key: Some("a".into()), ..shape.clone() };
    let claimed = "key a of ConfigMap m is claimed by the stamp (--stamp-key) and by a file: dir/a";
    assert_blames_stamp(desired_of(&plan, clash).unwrap_err(), claimed);
    let named = ExtraKeys { stamp_key: Some(".{name}.stamp".into()), ..shape.clone() };
    assert_eq!(named.check(), Ok(()));
    let named = desired_of(&plan, named.clone()).unwrap().of("c", "n").unwrap()["m"].content(&named, R2);
    assert_eq!(named.data[".m.stamp"], content.data["stamp"], "the same data");
    let long = ExtraKeys { stamp_key: Some(format!("{}{{name}}{{name}}", "x".repeat(252))), ..shape.clone() };
    let too_long = "(--stamp-key): it is longer than 253 bytes";
    assert_blames_stamp(desired_of(&plan, long).unwrap_err(), too_long);
    assert!(ExtraKeys { stamp_key: Some("VERSION".into()), ..shape.clone() }.check().is_err());
    assert!(ExtraKeys { stamp_key: Some("..x".into()), ..shape }.check().is_err());
}

#[test]
fn a_stamp_that_makes_the_data_too_large_is_known_before_it_is_written() {
    let planned = Planned {
        rules: vec![0],
        name: "m".into(),
        places: vec![ClusterNamespace { cluster: "c".into(), namespace: "n".into() }],
        data: data(&[("a", &"x".repeat((1 << 20) - 63))]),
        files: BTreeMap::new(),
        fed: true,
        left_out: false,
        stamp: None,
    };
    let plan = Plan { configmaps: vec![planned.into()], ..Plan::default() };
    let desired = |stamp_key| {
        let shape = ExtraKeys { version_key: VersionKey::Off, stamp_key };
        desired_of(&plan, shape)
    };
    assert!(desired(None).is_ok());
    let finding = desired(Some("s".into())).unwrap_err();
    assert!(finding.to_string().ends_with("the largest keys: a 1.0 MiB, s 64 B"), "{finding}");
    assert_blames_stamp(finding, "1048577 bytes of values with its stamp s, ");
}

#[test]
fn a_run_that_would_take_most_of_it_away_is_refused() {
    let full = wanted(&[("a", "1")]);
    let gone = wanted(&[]);
    let seen = ours(&full, R1);
    let kept = policy().decide(Some(&full), Some(&seen), None, None);
    let emptied = policy().decide(Some(&gone), Some(&seen), None, None);
    let foreign = policy().decide(Some(&gone), Some(&prows(&[("a", "1")])), None, None);
    let limit = PruneLimit::default();
    assert_eq!(limit.check([&kept, &emptied].into_iter()), Ok(()));
    let refused = limit.check([&kept, &emptied, &emptied, &foreign].into_iter()).unwrap_err();
    assert_eq!(refused.to_string(), "2 of 3 ConfigMaps would be deleted or emptied, which is more than 50%");
    assert!(limit.check([&emptied].into_iter()).is_err(), "one of one is all of them");
    assert_eq!(PruneLimit { percent: 100 }.check([&emptied].into_iter()), Ok(()));
    assert_eq!(limit.check([&foreign].into_iter()), Ok(()));
    // Neither what is created, refused or left out makes the limit wider.
    let created = policy().decide(Some(&full), None, None, None);
    let known = entry(&full, &seen, R1);
    let vanished = policy().decide(Some(&full), None, Some(&known), None);
    let prow = prows(&[("a", "0")]);
    let refused = policy().decide(Some(&full), Some(&prow), None, None);
    let adopted = Policy { adopt: Adopt::Prow, ..policy() }.decide(Some(&full), Some(&prow), None, None);
    let left_out = DesiredConfigMap { left_out: true, ..wanted(&[]) };
    let left_out = Policy { adopt: Adopt::Prow, ..policy() }.decide(Some(&left_out), Some(&prow), None, None);
    for other in [&created, &vanished, &refused, &left_out] {
        let exceeded = limit.check([other, other, &emptied].into_iter()).unwrap_err();
        assert_eq!((exceeded.emptied, exceeded.ours), (1, 1), "{other:?}");
    }
    assert_eq!(limit.check([&adopted, &emptied].into_iter()), Ok(()), "what is adopted is counted");
}

#[test]
fn a_content_that_moves_under_another_key_is_a_move() {
    let from = wanted(&[("kept", "")]);
    let to = wanted(&[("x.yml", "1"), ("kept", "")]);
    let there = ours(&wanted(&[("x.yaml", "1"), ("kept", "")]), R1);
    let empty = ours(&wanted(&[("kept", "")]), R1);
    let loses = policy().decide(Some(&from), Some(&there), None, None);
    let gains = policy().decide(Some(&to), Some(&empty), None, None);
    let order = order(&[&loses.moves, &gains.moves]);
    assert_eq!(order.waves, [vec![1], vec![0]]);
}

#[test]
fn what_was_about_to_be_written_is_ours_by_name_and_label_before_its_uid_is_known() {
    let desired = wanted(&[("a", "1")]);
    let pruning = Policy { prune: true, ..policy() };
    let announced = Entry::wanted(&desired.digest);
    let judged = |seen: &LiveConfigMap| pruning.decide(None, Some(seen), Some(&announced), None);
    assert_eq!(judged(&ours(&desired, R2)).action, Action::Delete);
    let somebodys = judged(&LiveConfigMap {
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        ..ours(&desired, R2)
    });
    assert_eq!(
        (somebodys.action, somebodys.why),
        (Action::Nothing, DecisionReason::NotOurs),
        "it was made by somebody else"
    );
    assert_eq!(judged(&prows(&[("a", "1")])).action, Action::Nothing);
    // It was to be deleted and created again; the entry has the uid of the one that was deleted.
    let before = Entry { uid: "u0".into(), ..entry(&desired, &ours(&desired, R1), R1) };
    let again = Entry { wanted: Some(desired.digest.clone()), ..before.clone() };
    for (entry, action) in [(before, Action::Nothing), (again, Action::Delete)] {
        assert_eq!(pruning.decide(None, Some(&ours(&desired, R2)), Some(&entry), None).action, action);
    }
    // A write of the listed object failed, or another one was announced: that is no permission to delete any object of
    // that name.
    let failed = Entry { wanted: Some("too large".to_owned()), ..entry(&desired, &ours(&desired, R1), R1) };
    let elsewhere = LiveConfigMap { uid: "u2".into(), ..ours(&desired, R1) };
    for entry in [failed, Entry::wanted("another")] {
        let decision = pruning.decide(None, Some(&elsewhere), Some(&entry), None);
        assert_eq!((decision.action, decision.why), (Action::Nothing, DecisionReason::NotOurs));
    }
    // Nothing was written yet: it is made as if it had never been named.
    assert_eq!(pruning.decide(Some(&desired), None, Some(&announced), None).why, DecisionReason::Absent);
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
