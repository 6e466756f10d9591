use super::*;
use crate::revision::{ObjectId, Revision};
use jiff::Timestamp;
use proptest::prelude::*;

const BOOT: &str = "this boot";

fn now(seconds: u64) -> Now {
    Now { wall: Timestamp::UNIX_EPOCH, boottime: Duration::from_secs(seconds), boot_id: BOOT.to_owned() }
}

fn retired(seconds: u64) -> Retired {
    Retired {
        at: Timestamp::UNIX_EPOCH,
        boottime_ns: Duration::from_secs(seconds).as_nanos() as u64,
        boot_id: BOOT.to_owned(),
    }
}

fn record(number: usize, bytes: u64, retired: Option<Retired>) -> GenerationRecord {
    GenerationRecord {
        name: Name::parse(&format!("..2026_11_20_15_04_05.{number:09}")).unwrap(),
        sources: Default::default(),
        revision: Revision(ObjectId([0; 20])),
        tree: ObjectId([0; 20]),
        selection_digest: String::new(),
        entries: 1,
        bytes,
        lineage: None,
        published: Timestamp::UNIX_EPOCH,
        boot_id: BOOT.to_owned(),
        synced: true,
        retired,
    }
}

fn generous() -> Options {
    Options {
        grace: Duration::from_secs(30),
        max_pin: Duration::from_secs(600),
        max_generations: 100,
        max_bytes: None,
    }
}

fn decision_at(seconds: u64, pinned: bool, options: &Options) -> GenerationDecision {
    let record = record(1, 10, Some(retired(1000)));
    let candidate = Candidate { record: &record, current: false, pinned };
    plan(&[candidate], options, Reserved::default(), &now(seconds)).decisions.remove(0)
}

#[test]
fn a_retired_generation_stays_for_its_grace_period_and_not_longer() {
    let last = decision_at(1029, false, &generous());
    assert!(last.keep);
    assert_eq!(last.reason, "in its grace period for another 1s");
    assert_eq!(last.next_change_in, Some(Duration::from_secs(1)));
    let past = decision_at(1030, false, &generous());
    assert!(!past.keep && !past.early && !past.evicts);
    assert_eq!(past.reason, "past its grace period and not pinned");
    assert_eq!(past.next_change_in, None);
}

#[test]
fn time_that_is_left_is_rounded_up_to_a_second() {
    let shown = |millis| Seconds(Duration::from_millis(millis)).to_string();
    assert_eq!([shown(1), shown(1000), shown(1001)], ["1s", "1s", "2s"]);
    assert_eq!([shown(59_001), shown(60_001)], ["1m", "1m 1s"]);
}

#[test]
fn a_plan_changes_when_the_first_of_its_decisions_does() {
    let records =
        [record(1, 10, Some(retired(1000))), record(2, 10, Some(retired(990))), record(3, 10, None)];
    let candidates: Vec<Candidate<'_>> = (records.iter().enumerate())
        .map(|(at, record)| Candidate { record, current: at == 2, pinned: false })
        .collect();
    let plan_at = |seconds| plan(&candidates, &generous(), Reserved::default(), &now(seconds));
    assert_eq!(plan_at(1001).next_change_in(), Some(Duration::from_secs(19)));
    assert_eq!(
        plan_at(1021).next_change_in(),
        Some(Duration::from_secs(9)),
        "what is reaped changes no more"
    );
    assert_eq!(plan_at(1030).next_change_in(), None);
}

#[test]
fn a_pin_holds_a_generation_up_to_max_pin() {
    assert_eq!(decision_at(1030, true, &generous()).reason, "pinned (for another 9m 30s at most)");
    assert!(decision_at(1599, true, &generous()).keep);
    let evicted = decision_at(1600, true, &generous());
    assert!(!evicted.keep && evicted.evicts && !evicted.early);
    assert_eq!(evicted.reason, "pinned for longer than --max-pin allows");
}

#[test]
fn a_grace_of_zero_reaps_at_once_but_for_pins() {
    let options = Options { grace: Duration::ZERO, ..generous() };
    assert!(!decision_at(1000, false, &options).keep);
    assert!(decision_at(1000, true, &options).keep);
}

#[test]
fn how_old_what_another_boot_retired_is_is_not_known() {
    let other = Retired { boot_id: "another".to_owned(), ..retired(5) };
    let in_2286 = Now { wall: Timestamp::from_second(9_999_999_999).unwrap(), ..now(12) };
    assert_eq!(age(&other, &in_2286), Duration::ZERO, "this machine may run for longer than that one");
}

#[test]
fn without_boot_ids_an_age_is_never_overstated() {
    let nameless = |seconds| Retired { boot_id: String::new(), ..retired(seconds) };
    let here = Now { boot_id: String::new(), ..now(100) };
    assert_eq!(age(&nameless(90), &here), Duration::from_secs(10));
    assert_eq!(age(&nameless(500), &here), Duration::from_secs(100), "only another boot can explain it");
    assert_eq!(age(&nameless(500), &now(100)), Duration::from_secs(100), "also if only the record has none");
    assert_eq!(age(&retired(500), &now(100)), Duration::ZERO, "in one boot no time is negative");
}

#[test]
fn ceilings_end_grace_periods_before_they_evict_readers() {
    let records: Vec<GenerationRecord> =
        (0..4).map(|n| record(n, 10, (n < 3).then(|| retired(1000)))).collect();
    let candidates: Vec<Candidate<'_>> = (records.iter().enumerate())
        .map(|(n, record)| Candidate { record, current: n == 3, pinned: n == 0 })
        .collect();
    let kept = |max_generations, reserved| {
        let options = Options { max_generations, ..generous() };
        let plan = plan(
            &candidates,
            &options,
            Reserved { generations: reserved, ..Reserved::default() },
            &now(1001),
        );
        plan.decisions.iter().map(|decision| decision.keep).collect::<Vec<_>>()
    };
    assert_eq!(kept(4, 0), [true, true, true, true]);
    assert_eq!(kept(4, 1), [true, false, true, true], "the oldest unpinned one makes room");
    assert_eq!(kept(2, 0), [true, false, false, true]);
    assert_eq!(kept(1, 1), [false, false, false, true], "the current one stays over any ceiling");

    let bytes = |max_bytes| {
        let options = Options { max_bytes: Some(max_bytes), ..generous() };
        plan(&candidates, &options, Reserved::default(), &now(1001)).decisions
    };
    assert!(bytes(40).iter().all(|decision| decision.keep && !decision.early), "a ceiling may be reached");
    let over = bytes(39);
    assert!(!over[1].keep && over[1].early && over[0].keep);
    assert_eq!(over[1].reason, "in its grace period, and --max-bytes is exceeded");
}

/// The generations that are reaped if each frees 10 bytes and an inode, the last is current and the first pinned.
fn goes_for_room(generations: usize, lack: Extent, options: &Options) -> Vec<(usize, String)> {
    let last = generations - 1;
    let retire = |n| (n < last).then(|| retired(1000));
    let records: Vec<GenerationRecord> = (0..generations).map(|n| record(n, 10, retire(n))).collect();
    let candidates: Vec<Candidate<'_>> = (records.iter().enumerate())
        .map(|(n, record)| Candidate { record, current: n == last, pinned: n == 0 })
        .collect();
    let gains = vec![Extent { bytes: 10, inodes: 1 }; generations];
    let reserved = Reserved { generations: 1, bytes: 10, block: 0 };
    let plan = plan_for_room(&candidates, &gains, lack, options, reserved, &now(1001));
    let decisions = plan.decisions.into_iter().enumerate().filter(|(_, decision)| !decision.keep);
    decisions.map(|(at, decision)| (at, decision.reason)).collect()
}

#[test]
fn grace_periods_end_for_room_only_as_far_as_needed_and_not_in_vain() {
    let goes = |bytes, inodes| {
        let all = goes_for_room(5, Extent { bytes, inodes }, &generous());
        all.into_iter().map(|(at, _)| at).collect::<Vec<_>>()
    };
    assert_eq!(goes(0, 0), [0; 0]);
    assert_eq!(goes(1, 0), [1], "the oldest that is not pinned");
    assert_eq!(goes(10, 2), [1, 2]);
    assert_eq!(goes(30, 3), [1, 2, 3]);
    assert_eq!(goes(31, 0), [0; 0], "all of them would not do, and who pins is not evicted");
    assert_eq!(goes(0, 4), [0; 0]);
    let said = goes_for_room(3, Extent { bytes: 1, inodes: 1 }, &generous());
    assert_eq!(said, [(1, "reaped to make room for a new generation".to_owned())]);
}

#[test]
fn what_goes_by_its_age_goes_first_then_the_oldest_that_is_not_pinned_then_pinned_ones() {
    // The newest first, as the store has them: when it was retired, and whether it is pinned.
    let shapes = [
        (None, false),
        (Some(1635), true),
        (Some(1630), false),
        (Some(1500), false), // past its grace period
        (Some(1620), false),
        (Some(1200), true),
        (Some(1000), true), // past the time that a pin keeps it
    ];
    let retire = |at: Option<u64>| at.map(retired);
    let records: Vec<GenerationRecord> =
        (shapes.iter().enumerate()).map(|(n, (at, _))| record(9 - n, 10, retire(*at))).collect();
    let candidates: Vec<Candidate<'_>> = (records.iter().zip(&shapes))
        .map(|(record, (at, pinned))| Candidate { record, current: at.is_none(), pinned: *pinned })
        .collect();
    let order = reaping_order(&candidates, &generous(), &now(1640));
    assert_eq!(order, [3, 6, 4, 2, 5, 1]);
    // A gain may count what goes with it only because those before it are gone: a plan reaps no others.
    for (bytes, count) in [(1, 2), (2, 2), (3, 3), (4, 4), (5, 2)] {
        let gains = [Extent { bytes: 1, inodes: 0 }; 7];
        let lack = Extent { bytes, inodes: 0 };
        let plan = plan_for_room(&candidates, &gains, lack, &generous(), Reserved::default(), &now(1640));
        let mut first = order[..count].to_vec();
        first.sort_unstable();
        let reaped: Vec<usize> = (0..7).filter(|&at| !plan.decisions[at].keep).collect();
        assert_eq!(reaped, first, "{bytes}");
    }
}

#[test]
fn no_ceiling_ends_anything_for_a_generation_that_has_no_room() {
    for options in
        [Options { max_generations: 1, ..generous() }, Options { max_bytes: Some(20), ..generous() }]
    {
        let goes = |bytes| goes_for_room(4, Extent { bytes, inodes: 0 }, &options).len();
        assert_eq!((goes(0), goes(30), goes(31)), (3, 3, 0), "what a ceiling sends off gives room, too");
    }
}

#[test]
fn sizes_that_no_disk_has_are_over_a_ceiling() {
    let records: Vec<_> = (0..3).map(|n| record(n, u64::MAX, (n < 2).then(|| retired(1000)))).collect();
    let candidates: Vec<Candidate<'_>> = (records.iter().enumerate())
        .map(|(n, record)| Candidate { record, current: n == 2, pinned: false })
        .collect();
    let options = Options { max_bytes: Some(100), ..generous() };
    let plan =
        plan(&candidates, &options, Reserved { generations: 1, bytes: u64::MAX, block: 0 }, &now(1001));
    assert_eq!(plan.reaped().count(), 2);
}

/// The rules written again as sets: what must hold for any plan.
fn check(records: &[(GenerationRecord, bool, bool)], options: &Options, reserved: Reserved, now: &Now) {
    let candidates: Vec<_> = (records.iter())
        .map(|(record, current, pinned)| Candidate { record, current: *current, pinned: *pinned })
        .collect();
    let plan = plan(&candidates, options, reserved, now);
    assert_eq!(plan.decisions.len(), candidates.len());
    let all = || candidates.iter().zip(&plan.decisions);
    let old = |c: &Candidate<'_>| age(c.record.retired.as_ref().unwrap(), now);
    let over = |extra: Option<&Candidate<'_>>| {
        let kept = all().filter(|(_, v)| v.keep).map(|(c, _)| c).chain(extra);
        let (count, bytes) = kept.fold((0, 0), |(n, sum), c| (n + 1, sum + c.record.bytes));
        count + reserved.generations > options.max_generations
            || options.max_bytes.is_some_and(|ceiling| bytes + reserved.bytes > ceiling)
    };
    // By age alone, what would stay?
    let stays =
        |c: &Candidate<'_>| c.current || old(c) < options.grace || (c.pinned && old(c) < options.max_pin);
    for (candidate, decision) in all() {
        assert!(decision.keep || !candidate.current, "the current generation was to be reaped");
        assert!(!decision.keep || stays(candidate), "kept without a reason: {decision:?}");
        assert_eq!(decision.evicts, !decision.keep && candidate.pinned);
        assert_eq!(decision.next_change_in.is_some(), decision.keep && !candidate.current);
    }
    if over(None) {
        assert!(all().all(|(c, v)| c.current || !v.keep), "over a ceiling, yet something retired stays");
    }
    let sacrificed: Vec<_> = all().filter(|(c, v)| !v.keep && stays(c)).map(|(c, _)| c).collect();
    if let Some(last) = sacrificed.iter().max_by_key(|c| (c.pinned, &c.record.name)) {
        assert!(over(Some(last)), "{} went although there was room", last.record.name);
        for (kept, _) in all().filter(|(c, v)| v.keep && !c.current) {
            let order = |c: &Candidate<'_>| (c.pinned, c.record.name.clone());
            assert!(order(kept) > order(last), "{} went before {}", last.record.name, kept.record.name);
        }
    }
}

proptest! {
    #[test]
    fn every_plan_keeps_the_rules(
        shapes in proptest::collection::vec((0u64..200, 0u64..50, any::<bool>()), 0..9),
        has_current in any::<bool>(),
        grace in 0u64..120,
        max_pin in 0u64..200,
        max_generations in 0u32..8,
        max_bytes in proptest::option::of(0u64..250),
        generations in 0u32..2,
        bytes in 0u64..60,
    ) {
        let last = shapes.len().wrapping_sub(1);
        let records: Vec<_> = (shapes.iter().enumerate())
            .map(|(n, &(at, bytes, pinned))| {
                let current = has_current && n == last;
                (record(n, bytes, (!current).then(|| retired(at))), current, pinned)
            })
            .collect();
        let options = Options {
            grace: Duration::from_secs(grace),
            max_pin: Duration::from_secs(max_pin),
            max_generations,
            max_bytes,
        };
        check(&records, &options, Reserved { generations, bytes, block: 0 }, &now(200));
    }
}
