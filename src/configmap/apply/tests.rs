//! Verdicts, one for each thing that can be wished, seen and recorded.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::super::compare::Current;
use super::super::payload::{Payload, Value};
use super::super::{Place, Plan, Planned};
use super::*;
use crate::revision::{ObjectId, Revision};

const R1: &str = "1111111111111111111111111111111111111111";
const R2: &str = "2222222222222222222222222222222222222222";

fn payload(keys: &[(&str, &str)]) -> Payload {
    let value = |text: &str| Arc::new(Value::new(text.as_bytes().to_vec(), false));
    Payload::new(keys.iter().map(|(key, text)| ((*key).to_owned(), value(text))).collect())
}

fn wish(keys: &[(&str, &str)]) -> Wish {
    let payload = payload(keys);
    Wish { digest: payload.digest(false), payload, fed: !keys.is_empty(), versioned: true, stamp: None }
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
        shape: Shape { version_key: VersionKey::Changed, stamp_key: None },
        pace: Pace::default(),
        now: Timestamp::from_second(1_000_000).unwrap(),
    }
}

/// The ConfigMap as we write it.
fn ours(wish: &Wish, revision: &str) -> Seen {
    let policy = policy();
    Seen {
        uid: "u1".into(),
        version: "7".into(),
        labels: policy.owner.labels().map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        annotations: wish.annotations(&policy.owner, "rules", revision),
        current: wish.content(&policy.shape, revision),
        ..Seen::default()
    }
}

fn prows(keys: &[(&str, &str)]) -> Seen {
    let current = Current {
        data: keys.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect(),
        ..Current::default()
    };
    let labels = names::PROW.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    Seen { uid: "u9".into(), version: "3".into(), labels, current, ..Seen::default() }
}

fn entry(wish: &Wish, seen: &Seen, revision: &str) -> Entry {
    Entry {
        digest: wish.digest.clone(),
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
    let wish = wish(&[("a", "1")]);
    let seen = ours(&wish, R1);
    let verdict = policy().judge(Some(&wish), Some(&seen), None, None);
    assert_eq!((verdict.deed, verdict.why, verdict.revision.as_str()), (Deed::Nothing, Why::Right, R1));
    let every = Policy { shape: Shape { version_key: VersionKey::Every, stamp_key: None }, ..policy() };
    let verdict = every.judge(Some(&wish), Some(&seen), None, None);
    assert_eq!((verdict.deed, verdict.why, verdict.revision.as_str()), (Deed::Replace, Why::Changed, R2));
    assert_eq!(keys(&verdict.difference.changed), ["VERSION"]);
    let known = entry(&wish, &seen, R1);
    assert_eq!(every.judge(Some(&wish), Some(&seen), Some(&known), None).why, Why::Changed);
}

#[test]
fn what_nobody_touched_and_other_rules_want_otherwise_is_no_drift() {
    let wish = wish(&[("a", "1")]);
    let stamped = Wish { stamp: Some("stamp".into()), ..wish.clone() };
    let seen = ours(&wish, R1);
    let known = entry(&wish, &seen, R1);
    let now = Policy { rules: "with a stamp".into(), ..policy() };
    let verdict = now.judge(Some(&stamped), Some(&seen), Some(&known), None);
    assert_eq!((&verdict.deed, verdict.why), (&Deed::Replace, Why::OtherRules));
    assert!(!verdict.repairs() && !verdict.is_counted());
    assert_eq!((keys(&verdict.difference.added), verdict.over.as_deref()), (vec!["stamp"], Some("rules")));
    let touched = Seen { version: "8".into(), ..seen.clone() };
    assert_eq!(now.judge(Some(&stamped), Some(&touched), Some(&known), None).why, Why::Drift);
    // It is told when it goes back, and refused where it does so again and again.
    let record = |repairs: usize| Record {
        revision: R1.into(),
        digest: wish.digest.clone(),
        at: now.now,
        outcome: "replaced".into(),
        attempts: 1,
        error: None,
        repairs: vec![now.now; repairs],
        over: Some("with a stamp".into()),
    };
    let verdict = now.judge(Some(&stamped), Some(&seen), Some(&known), Some(&record(2)));
    assert_eq!((&verdict.deed, verdict.why), (&Deed::Replace, Why::TurnedBack));
    assert!(!verdict.repairs() && verdict.is_counted());
    let verdict = now.judge(Some(&stamped), Some(&seen), Some(&known), Some(&record(3)));
    assert_eq!(verdict.deed, Deed::Refuse(Refusal::TurnedBack(3)));
    let third = Policy { rules: "yet others".into(), ..policy() };
    assert_eq!(third.judge(Some(&stamped), Some(&seen), Some(&known), Some(&record(3))).deed, Deed::Replace);
}

#[test]
fn uid_and_version_are_evidence_and_a_digest_is_none() {
    let wish = wish(&[("a", "1")]);
    let seen = ours(&wish, R1);
    let entry = entry(&wish, &seen, R1);
    assert!(unseen(&wish, "u1", "7", Some(&entry), true));
    assert!(!unseen(&wish, "u1", "8", Some(&entry), true), "somebody wrote it");
    assert!(!unseen(&wish, "u2", "7", Some(&entry), true), "another object");
    assert!(!unseen(&wish, "u1", "7", Some(&entry), false), "verified under other rules");
    assert!(!unseen(&wish, "u1", "7", None, true));
    let failed = Entry { wanted: Some("x".into()), ..entry };
    assert!(!unseen(&wish, "u1", "7", Some(&failed), true));
}

#[test]
fn absent_is_created_and_vanished_is_put_back_as_it_was() {
    let wish = wish(&[("a", "1")]);
    let verdict = policy().judge(Some(&wish), None, None, None);
    assert_eq!((verdict.deed, verdict.why, verdict.revision.as_str()), (Deed::Create, Why::Absent, R2));
    assert_eq!(keys(&verdict.difference.added), ["VERSION", "a"]);
    let entry = entry(&wish, &ours(&wish, R1), R1);
    let verdict = policy().judge(Some(&wish), None, Some(&entry), None);
    assert_eq!((verdict.deed, verdict.why, verdict.revision.as_str()), (Deed::Create, Why::Vanished, R1));
}

#[test]
fn a_change_is_stamped_with_the_revision_and_keeps_no_key_too_many() {
    let old = ours(&wish(&[("a", "1"), ("b", "1")]), R1);
    let verdict = policy().judge(Some(&wish(&[("a", "2")])), Some(&old), None, None);
    assert_eq!((&verdict.deed, verdict.why), (&Deed::Replace, Why::Changed));
    assert_eq!(verdict.revision, R2);
    assert_eq!(keys(&verdict.difference.changed), ["VERSION", "a"]);
    assert_eq!(keys(&verdict.difference.removed), ["b"]);
    assert!(!verdict.repairs());
}

#[test]
fn foreign_writes_are_drift_and_put_right_with_the_revision_on_record() {
    let wish = wish(&[("a", "1"), ("b", "1")]);
    let entry = entry(&wish, &ours(&wish, R1), R1);
    let there = Seen { version: "8".into(), ..ours(&wish, R1) };
    let mut older = there.clone();
    older.current.data.insert("a".into(), "0".into());
    let mut unstamped = there.clone();
    unstamped.current.data.remove("VERSION");
    let mut more = there.clone();
    more.current.data.insert("c".into(), "1".into());
    for (seen, changed) in [(&older, ["a"]), (&unstamped, ["VERSION"]), (&more, ["c"])] {
        for entry in [None, Some(&entry)] {
            let verdict = policy().judge(Some(&wish), Some(seen), entry, None);
            assert_eq!((&verdict.deed, verdict.why), (&Deed::Replace, Why::Drift));
            assert!(verdict.repairs());
            assert_eq!(verdict.revision, R1);
            let difference = &verdict.difference;
            let all: Vec<&String> =
                difference.added.iter().chain(&difference.changed).chain(&difference.removed).collect();
            assert_eq!(all, changed);
        }
    }
    let mut stripped = there.clone();
    stripped.labels.clear();
    stripped.annotations.clear();
    let verdict = policy().judge(Some(&wish), Some(&stripped), Some(&entry), None);
    assert_eq!((verdict.deed, verdict.why), (Deed::Replace, Why::Drift), "we know it by its uid");
    let verdict = policy().judge(Some(&wish), Some(&stripped), None, None);
    assert_eq!(verdict.deed, Deed::Refuse(Refusal::Nobody));
}

#[test]
fn a_newer_writer_of_ours_is_no_drift() {
    let (old, new) = (wish(&[("a", "1")]), wish(&[("a", "2")]));
    let entry = entry(&old, &ours(&old, R1), R1);
    let verdict = policy().judge(Some(&old), Some(&ours(&new, R1)), Some(&entry), None);
    assert_eq!(verdict.why, Why::Changed);
    let others = Policy { rules: "others".into(), ..policy() };
    let verdict = others.judge(Some(&old), Some(&ours(&new, R2)), Some(&entry), None);
    assert_eq!(verdict.why, Why::OtherRules, "one revision, two payloads");
}

#[test]
fn others_are_refused_or_adopted_by_flag_and_never_taken_from_another_owner() {
    let wish = wish(&[("a", "1")]);
    let prow = prows(&[("a", "0"), ("stale", "0"), ("VERSION", "r0")]);
    let nobody = Seen { labels: BTreeMap::new(), ..prow.clone() };
    let other = Owner::new("other").unwrap();
    let others = Seen { annotations: wish.annotations(&other, "rules", R1), ..prow.clone() };
    let deed =
        |adopt, seen: &Seen| Policy { adopt, ..policy() }.judge(Some(&wish), Some(seen), None, None).deed;
    let refused = |refusal| Deed::Refuse(refusal);
    assert_eq!(deed(Adopt::Nothing, &prow), refused(Refusal::Prow));
    assert_eq!(deed(Adopt::Prow, &prow), Deed::Replace);
    assert_eq!(deed(Adopt::Prow, &nobody), refused(Refusal::Nobody));
    assert_eq!(deed(Adopt::All, &nobody), Deed::Replace);
    assert_eq!(deed(Adopt::All, &others), refused(Refusal::Other("other".into())));
    let verdict = policy().judge(Some(&wish), Some(&prow), None, None);
    assert_eq!(keys(&verdict.difference.removed), ["stale"], "the keys that would go are known");
    let adopting = Policy { adopt: Adopt::Prow, ..policy() };
    let same = prows(&[("a", "1"), ("VERSION", R2)]);
    let verdict = adopting.judge(Some(&wish), Some(&same), None, None);
    assert_eq!(
        (verdict.deed, verdict.why),
        (Deed::Replace, Why::Adopted),
        "it is not ours before it says so"
    );
}

#[test]
fn only_the_inventory_says_what_may_be_deleted() {
    let wish = wish(&[("a", "1")]);
    let seen = ours(&wish, R1);
    let entry = entry(&wish, &seen, R1);
    let deed =
        |prune, seen: &Seen, entry| Policy { prune, ..policy() }.judge(None, Some(seen), entry, None).deed;
    assert_eq!(deed(false, &seen, Some(&entry)), Deed::Nothing);
    assert_eq!(deed(true, &seen, Some(&entry)), Deed::Delete);
    assert_eq!(deed(true, &seen, None), Deed::Nothing, "it is in no inventory");
    let again = Seen { uid: "u2".into(), ..seen };
    assert_eq!(deed(true, &again, Some(&entry)), Deed::Nothing, "another object of that name");
    let taken = Seen { annotations: wish.annotations(&Owner::new("b").unwrap(), "", R1), ..again };
    assert_eq!(deed(true, &taken, Some(&entry)), Deed::Nothing);
}

#[test]
fn a_last_file_that_goes_empties_or_deletes_what_is_ours() {
    let gone = wish(&[]);
    let before = wish(&[("a", "1")]);
    let seen = ours(&before, R1);
    let entry = entry(&before, &seen, R1);
    let verdict = policy().judge(Some(&gone), Some(&seen), Some(&entry), None);
    assert_eq!((&verdict.deed, verdict.why, verdict.empties()), (&Deed::Replace, Why::Unfed, true));
    let pruning = Policy { prune: true, ..policy() };
    let verdict = pruning.judge(Some(&gone), Some(&seen), Some(&entry), None);
    assert_eq!((&verdict.deed, verdict.why, verdict.empties()), (&Deed::Delete, Why::Unfed, true));
    assert_eq!(policy().judge(Some(&gone), None, Some(&entry), None).deed, Deed::Nothing, "nor is it made");
    let verdict = policy().judge(Some(&gone), Some(&prows(&[("a", "1")])), None, None);
    assert_eq!((verdict.deed, verdict.why), (Deed::Nothing, Why::NotOurs));
}

#[test]
fn an_immutable_one_is_refused_or_made_again() {
    let old = Seen { immutable: true, ..ours(&wish(&[("a", "1")]), R1) };
    let new = wish(&[("a", "2")]);
    assert_eq!(policy().judge(Some(&new), Some(&old), None, None).deed, Deed::Refuse(Refusal::Immutable));
    let recreating = Policy { recreate: true, ..policy() };
    assert_eq!(recreating.judge(Some(&new), Some(&old), None, None).deed, Deed::Recreate);
}

#[test]
fn a_contested_target_waits_and_an_ordinary_change_does_not() {
    let wish = wish(&[("a", "1")]);
    let mut drifted = ours(&wish, R1);
    drifted.current.data.clear();
    let now = policy().now;
    let repairs = vec![now; 3];
    let record = Record {
        revision: R1.into(),
        digest: wish.digest.clone(),
        at: now,
        outcome: "repaired".into(),
        attempts: 3,
        error: None,
        repairs,
        over: None,
    };
    let verdict = policy().judge(Some(&wish), Some(&drifted), None, Some(&record));
    assert_eq!(verdict.deed, Deed::Refuse(Refusal::Contested(3)));
    let changed = self::wish(&[("a", "2")]);
    assert_eq!(policy().judge(Some(&changed), Some(&drifted), None, Some(&record)).deed, Deed::Replace);
}

#[test]
fn a_stamp_holds_the_digest_and_is_outside_of_it() {
    let shape = Shape { version_key: VersionKey::Changed, stamp_key: Some("stamp".into()) };
    let place = Place { cluster: "c".into(), namespace: "n".into() };
    let planned = Planned {
        name: "m".into(),
        places: vec![place.clone()],
        payload: payload(&[("VERSION", R2), ("a", "1")]),
        files: [("a".to_owned(), b"dir/a".to_vec())].into(),
        fed: true,
        stamped: true,
    };
    let plan = Plan { configmaps: vec![planned], ..Plan::default() };
    let revision = Revision(ObjectId::from_hex(R2).unwrap());
    let desired = Desired::new(&plan, revision, "rules", shape.clone()).unwrap();
    let wish = &desired.of("c", "n").unwrap()["m"];
    assert_eq!(wish.digest, payload(&[("a", "1")]).digest(false));
    let content = wish.content(&shape, R2);
    assert_eq!(content.data["stamp"], wish.digest);
    assert_eq!((content.data["VERSION"].as_str(), content.data["a"].as_str()), (R2, "1"));
    assert_eq!(desired.clusters().collect::<Vec<_>>(), ["c"]);
    let clash = Shape { stamp_key: Some("a".into()), ..shape.clone() };
    let finding = Desired::new(&plan, revision, "rules", clash).unwrap_err();
    assert!(finding.to_string().contains("key a of ConfigMap m"), "{finding}");
    let other = Desired::new(&plan, revision, "rules", Shape::default()).unwrap();
    assert_ne!(other.rules, desired.rules, "what is written besides counts as a rule");
    let named = Shape { stamp_key: Some(".{name}.stamp".into()), ..shape.clone() };
    assert_eq!(named.check(), Ok(()));
    let named = Desired::new(&plan, revision, "rules", named.clone()).unwrap().of("c", "n").unwrap()["m"]
        .content(&named, R2);
    assert_eq!(named.data[".m.stamp"], content.data["stamp"], "the same payload");
    let long = Shape { stamp_key: Some(format!("{}{{name}}{{name}}", "x".repeat(252))), ..shape.clone() };
    let finding = Desired::new(&plan, revision, "rules", long).unwrap_err();
    assert!(finding.to_string().contains("longer than 253 bytes"), "{finding}");
    assert!(Shape { stamp_key: Some("VERSION".into()), ..shape.clone() }.check().is_err());
    assert!(Shape { stamp_key: Some("..x".into()), ..shape }.check().is_err());
}

#[test]
fn a_stamp_that_makes_a_payload_too_large_is_known_before_it_is_written() {
    let planned = Planned {
        name: "m".into(),
        places: vec![Place { cluster: "c".into(), namespace: "n".into() }],
        payload: payload(&[("a", &"x".repeat((1 << 20) - 63))]),
        files: BTreeMap::new(),
        fed: true,
        stamped: false,
    };
    let plan = Plan { configmaps: vec![planned], ..Plan::default() };
    let revision = Revision(ObjectId::from_hex(R2).unwrap());
    let desired = |stamp_key| {
        let shape = Shape { version_key: VersionKey::Off, stamp_key };
        Desired::new(&plan, revision, "rules", shape)
    };
    assert!(desired(None).is_ok());
    let finding = desired(Some("s".into())).unwrap_err();
    assert!(finding.to_string().contains("1048577 bytes of values"), "{finding}");
    assert!(finding.to_string().ends_with("the largest keys: a 1.0 MiB, s 64 B"), "{finding}");
}

#[test]
fn a_run_that_would_take_most_of_it_away_is_refused() {
    let (full, gone) = (wish(&[("a", "1")]), wish(&[]));
    let seen = ours(&full, R1);
    let kept = policy().judge(Some(&full), Some(&seen), None, None);
    let emptied = policy().judge(Some(&gone), Some(&seen), None, None);
    let foreign = policy().judge(Some(&gone), Some(&prows(&[("a", "1")])), None, None);
    let floor = Floor::default();
    assert_eq!(floor.check([&kept, &emptied].into_iter()), Ok(()));
    let refused = floor.check([&kept, &emptied, &emptied, &foreign].into_iter()).unwrap_err();
    assert_eq!(refused.to_string(), "2 of 3 ConfigMaps would be deleted or emptied, which is more than 50%");
    assert!(floor.check([&emptied].into_iter()).is_err(), "one of one is all of them");
    assert_eq!(Floor { percent: 100 }.check([&emptied].into_iter()), Ok(()));
    assert_eq!(floor.check([&foreign].into_iter()), Ok(()));
}

#[test]
fn a_content_that_moves_under_another_key_is_a_move() {
    let (from, to) = (wish(&[("kept", "")]), wish(&[("x.yml", "1"), ("kept", "")]));
    let there = ours(&wish(&[("x.yaml", "1"), ("kept", "")]), R1);
    let empty = ours(&wish(&[("kept", "")]), R1);
    let loses = policy().judge(Some(&from), Some(&there), None, None);
    let gains = policy().judge(Some(&to), Some(&empty), None, None);
    let order = order(&[&loses.moves, &gains.moves]);
    assert_eq!(order.waves, [vec![1], vec![0]]);
}

#[test]
fn what_was_about_to_be_written_is_ours_by_name_and_label_before_its_uid_is_known() {
    let (wished, pruning) = (wish(&[("a", "1")]), Policy { prune: true, ..policy() });
    let announced = Entry::wanted(&wished.digest);
    let judged = |seen: &Seen| pruning.judge(None, Some(seen), Some(&announced), None);
    assert_eq!(judged(&ours(&wished, R2)).deed, Deed::Delete);
    let somebodys =
        judged(&Seen { labels: BTreeMap::new(), annotations: BTreeMap::new(), ..ours(&wished, R2) });
    assert_eq!(
        (somebodys.deed, somebodys.why),
        (Deed::Nothing, Why::NotOurs),
        "it was made by somebody else"
    );
    assert_eq!(judged(&prows(&[("a", "1")])).deed, Deed::Nothing);
    // Nothing was written yet: it is made as if it had never been named.
    assert_eq!(pruning.judge(Some(&wished), None, Some(&announced), None).why, Why::Absent);
}
