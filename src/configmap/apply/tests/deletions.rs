//! What is deleted, emptied or left out, and how much of it at once.

use super::*;

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
fn the_end_of_a_deletion_is_awaited_only_for_what_is_to_be_made_again() {
    let full = wanted(&[("a", "1")]);
    let seen = LiveConfigMap { deleting: true, ..ours(&full, R1) };
    let known = entry(&full, &seen, R1);
    for (prune, entry) in [(false, None), (true, None), (true, Some(&known))] {
        let policy = Policy { prune, ..policy() };
        let decision = policy.decide(Some(&full), Some(&seen), entry, None);
        assert_eq!(decision.action, Action::Refuse(Refusal::Deleting));
        let decision = policy.decide(Some(&wanted(&[])), Some(&seen), entry, None);
        assert_eq!((decision.action, decision.why), (Action::Nothing, DecisionReason::NotOurs));
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
    crate::human::assert_message_style(&refused, &[refused.hint().to_owned()]);
    assert!(refused.hint().contains("--max-prune=100"));
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

/// As where two installations with different rules have one owner's name: one deletes or empties what the other makes.
#[test]
fn what_other_rules_take_away_and_these_make_again_is_contested_after_a_while() {
    let (full, gone) = (wanted(&[("a", "1")]), wanted(&[]));
    let seen = ours(&full, R2);
    let known = entry(&full, &seen, R2);
    let now = policy().now;
    let record = |over: Option<&str>, repairs: usize| LastAttempt {
        revision: R2.into(),
        digest: String::new(),
        at: now,
        outcome: "deleted".into(),
        attempts: 1,
        error: None,
        repairs: vec![now; repairs],
        over: over.map(str::to_owned),
    };
    // It remembers by which rules it was written, unless they are its own.
    for (rules, over) in [("others", Some("rules")), ("rules", None)] {
        for (wanted, prune) in [(None, true), (Some(&gone), true), (Some(&gone), false)] {
            let policy = Policy { rules: rules.into(), prune, ..policy() };
            let decision = policy.decide(wanted, Some(&seen), Some(&known), None);
            assert!(decision.writes() && !decision.counts_toward_limit(), "{decision:?}");
            assert_eq!(decision.over.as_deref(), over, "{decision:?}");
        }
    }
    let annotations = gone.annotations(&policy().owner, "others", R2);
    let emptied = LiveConfigMap { annotations, ..ours(&gone, R2) };
    for (seen, action, why) in [
        (None, Action::Create, DecisionReason::Returned),
        (Some(&emptied), Action::Replace, DecisionReason::TurnedBack),
    ] {
        let decide = |record: &LastAttempt| policy().decide(Some(&full), seen, None, Some(record));
        let decision = decide(&record(Some("rules"), 2));
        assert_eq!((&decision.action, decision.why), (&action, why));
        assert!(decision.counts_toward_limit() && !decision.repairs(), "{decision:?}");
        let refused = decide(&record(Some("rules"), 3));
        assert_eq!(refused.action, Action::Refuse(Refusal::TurnedBack(3)));
        // A file that comes and goes under the same rules is written as often as it comes.
        for over in [None, Some("others")] {
            let decision = decide(&record(over, 3));
            assert_eq!(decision.action, action);
            assert!(!decision.counts_toward_limit(), "{decision:?}");
        }
    }
    // What does not exist makes the limit of `--max-prune` no wider.
    let deleted = Policy { prune: true, ..policy() }.decide(None, Some(&ours(&full, R2)), Some(&known), None);
    for repairs in [2, 3] {
        let made = policy().decide(Some(&full), None, None, Some(&record(Some("rules"), repairs)));
        assert!(PruneLimit::default().check([&made, &made, &deleted].into_iter()).is_err(), "{made:?}");
    }
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
