//! What moves from one ConfigMap to another, and in which order both are written.

use super::super::order::MovedItem;
use super::*;

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
fn what_is_deleted_goes_after_those_that_gain_its_keys() {
    let gone = wanted(&[("x", "1")]);
    let there = ours(&gone, R1);
    let known = entry(&gone, &there, R1);
    let pruning = Policy { prune: true, ..policy() };
    let deleted = pruning.decide(None, Some(&there), Some(&known), None);
    assert_eq!((&deleted.action, deleted.why), (&Action::Delete, DecisionReason::NoRule));
    assert_eq!(keys(&deleted.difference.removed), ["VERSION", "x"]);
    let kept = ours(&wanted(&[("kept", "")]), R1);
    let gains = policy().decide(Some(&wanted(&[("x", "2"), ("kept", "")])), Some(&kept), None, None);
    let order = order(&[&deleted.moves, &gains.moves]);
    assert_eq!(order.waves, [vec![1], vec![0]]);
}

/// What is stored is not only known by what it decompresses to.
#[test]
fn a_file_that_is_compressed_itself_and_moves_under_another_key_is_a_move() {
    let file = Value::compressed(b"many files").bytes().to_vec();
    let with = |key: &str| {
        let values = [(key, file.clone()), ("kept", Vec::new())];
        let value = |(key, content): (&str, _)| (key.to_owned(), Arc::new(Value::new(content, false)));
        let data = DesiredData::new(values.map(value).into());
        DesiredConfigMap { digest: data.digest().to_owned(), data, ..wanted(&[("kept", "")]) }
    };
    let empty = wanted(&[("kept", "")]);
    let loses = policy().decide(Some(&empty), Some(&ours(&with("x.tgz"), R1)), None, None);
    let gains = policy().decide(Some(&with("y.tgz")), Some(&ours(&empty, R1)), None, None);
    let order = order(&[&loses.moves, &gains.moves]);
    assert_eq!(order.waves, [vec![1], vec![0]]);
}

#[test]
fn a_key_that_moves_to_what_is_being_deleted_waits_for_its_end() {
    const TELLING: &str = "found nowhere else";
    let from = wanted(&[("kept", "1")]);
    let to = wanted(&[("x", TELLING), ("y", "1")]);
    let there = ours(&wanted(&[("x", TELLING), ("kept", "1")]), R1);
    let loses = policy().decide(Some(&from), Some(&there), None, None);
    // Its own state does not matter, not even that it has the key: it will be gone.
    for content in [&[("y", "1"), ("z", "1")][..], &[("x", TELLING), ("y", "1")]] {
        let deleting = LiveConfigMap { deleting: true, ..ours(&wanted(content), R1) };
        let gains = policy().decide(Some(&to), Some(&deleting), None, None);
        assert_eq!((&gains.action, gains.writes()), (&Action::Refuse(Refusal::Deleting), false));
        let order = order(&[&loses.moves, &gains.moves]);
        assert_eq!(order.waves, [vec![1], vec![0]], "{content:?}");
        assert!(!order.waits_for[0].is_empty(), "its write is held when the other one is refused");
        assert!(gains.moves.loses.is_empty());
        for wanted in [&to, &wanted(&[("y", "1")])] {
            let immutable = LiveConfigMap { immutable: true, ..deleting.clone() };
            let recreating = Policy { recreate: true, ..policy() };
            let decision = recreating.decide(Some(wanted), Some(&immutable), None, None);
            assert_eq!(decision.action, Action::Refuse(Refusal::Deleting));
        }
    }
}

/// Others may lose such a key at any time, and a finalizer may keep this one for long.
#[test]
fn a_key_that_what_is_being_deleted_has_holds_none_of_its_name_elsewhere() {
    let there = wanted(&[("enabled", "true"), ("kept", "1")]);
    let loses = policy().decide(Some(&wanted(&[("kept", "1")])), Some(&ours(&there, R1)), None, None);
    let to = wanted(&[("enabled", "true")]);
    for (content, waits) in [("enabled", false), ("other", true)] {
        let deleting = LiveConfigMap { deleting: true, ..ours(&wanted(&[(content, "true")]), R1) };
        let gains = policy().decide(Some(&to), Some(&deleting), None, None);
        assert_eq!(gains.action, Action::Refuse(Refusal::Deleting));
        let order = order(&[&loses.moves, &gains.moves]);
        assert_eq!(!order.waits_for[0].is_empty(), waits, "it has the key {content}");
    }
}

/// All ConfigMaps that we write have the key, so all that are deleted lose it.
#[test]
fn one_that_cannot_be_created_holds_no_deletion_by_its_stamp() {
    let gone = wanted(&[("x", "1")]);
    let there = ours(&gone, R1);
    let known = entry(&gone, &there, R1);
    let pruning = Policy { prune: true, ..policy() };
    let deleted = pruning.decide(None, Some(&there), Some(&known), None);
    assert_eq!(keys(&deleted.difference.removed), ["VERSION", "x"]);
    for (key, waits) in [("y", false), ("x", true)] {
        let created = pruning.decide(Some(&wanted(&[(key, "2")])), None, None, None);
        assert_eq!(keys(&created.difference.added), ["VERSION", key]);
        let order = order(&[&deleted.moves, &created.moves]);
        assert_eq!(!order.waits_for[0].is_empty(), waits, "{key}");
    }
}

/// One that is written first, to break the cycle, would lose its key before the other one has it.
#[test]
fn what_exchanges_keys_with_one_that_is_not_written_waits_for_it() {
    let (x, z) = (wanted(&[("x", "1"), ("kept", "")]), wanted(&[("z", "2"), ("kept", "")]));
    let loses = policy().decide(Some(&z), Some(&ours(&x, R1)), None, None);
    assert!(loses.writes());
    let held = DesiredConfigMap { held: Some("source a is away".to_owned()), ..x.clone() };
    for (wanted, immutable, deleting) in
        [(&x, true, false), (&x, false, true), (&held, false, false), (&x, false, false)]
    {
        let seen = LiveConfigMap { immutable, deleting, ..ours(&z, R1) };
        let gains = policy().decide(Some(wanted), Some(&seen), None, None);
        assert_eq!(gains.writes(), !immutable && !deleting && wanted.held.is_none());
        let order = order(&[&loses.moves, &gains.moves]);
        if gains.writes() {
            assert_eq!((order.waves, order.broken), (vec![vec![0], vec![1]], vec![0]));
        } else {
            assert_eq!((order.waves, order.broken), (vec![vec![1], vec![0]], vec![]), "{:?}", gains.action);
            assert!(!order.waits_for[0].is_empty());
        }
    }
}

#[test]
fn a_content_that_moves_to_a_key_that_had_another_one_is_a_move() {
    let content = "found nowhere else";
    let from = wanted(&[("kept", "2")]);
    let to = wanted(&[("a", content)]);
    let there = ours(&wanted(&[("x", content), ("kept", "2")]), R1);
    let other = ours(&wanted(&[("a", "3")]), R1);
    let loses = policy().decide(Some(&from), Some(&there), None, None);
    let gains = policy().decide(Some(&to), Some(&other), None, None);
    assert_eq!(keys(&gains.difference.changed), ["VERSION", "a"]);
    let order = order(&[&loses.moves, &gains.moves]);
    assert_eq!(order.waves, [vec![1], vec![0]]);
    let common = policy().decide(Some(&wanted(&[("a", "true")])), Some(&other), None, None);
    assert_eq!((common.why, common.moves), (DecisionReason::Changed, Moves::default()));
}

#[test]
fn what_a_repair_brings_back_is_no_move() {
    let wanted = wanted(&[("a", "found nowhere else")]);
    let mut drifted = ours(&wanted, R1);
    drifted.content.data.insert("a".into(), "by hand".into());
    let decision = policy().decide(Some(&wanted), Some(&drifted), None, None);
    assert_eq!((decision.action, decision.why), (Action::Replace, DecisionReason::Drift));
    assert_eq!(keys(&decision.difference.changed), ["a"]);
    assert_eq!(decision.moves, Moves::default());
}

/// What is refused for good must not hold back for ever whatever loses a key of the same name or a common content.
#[test]
fn what_belongs_to_others_gains_telling_contents_and_no_keys() {
    const TELLING: &str = "found nowhere else";
    let theirs = LiveConfigMap { labels: BTreeMap::new(), ..prows(&[("other", "0")]) };
    let gains = |content: &str, adopt, seen: Option<&LiveConfigMap>| {
        let wanted = wanted(&[("a", content)]);
        let decision = Policy { adopt, ..policy() }.decide(Some(&wanted), seen, None, None);
        let is_key = |moved: &&MovedItem| matches!(moved, MovedItem::Key(_));
        let keys = decision.moves.gains.iter().filter(is_key).count();
        (keys, decision.moves.gains.len() - keys)
    };
    let refused = |content| gains(content, Adopt::Nothing, Some(&theirs));
    assert_eq!(refused(TELLING), (0, 1), "a content that moves there stays where it is");
    assert_eq!(refused("true"), (0, 0), "anything may have this content");
    for (adopt, seen) in [(Adopt::All, Some(&theirs)), (Adopt::Nothing, None)] {
        for content in [TELLING, "true"] {
            assert_eq!(gains(content, adopt, seen), (1, 1), "without the key VERSION");
        }
    }
}
