//! History as deep as asked, in the repository of a tree that does not change for it.

use super::*;

#[test]
fn a_depth_that_changes_is_seen_in_the_published_tree() {
    let mut bench = at_depth(Depth::Commits(1));
    let mut tip = None;
    for n in 0..4 {
        tip = Some(revision(&bench.world.remote.commit(&varied().file("n", n.to_string()))));
    }
    let tip = tip.unwrap();
    bench.update(&mut bench.open(), &[]);
    assert_eq!(bench.depth_of(tip), 1);
    for (depth, expected) in [
        (Depth::Commits(2), 2),
        (Depth::Commits(1), 1),
        (Depth::Full, 4),
        (Depth::Commits(3), 3),
        (Depth::Commits(9), 4),
    ] {
        bench.options.depth = depth;
        let mut mirror = bench.open();
        assert!(!mirror.is_settled(tip), "{depth:?}: not known before it was asked for");
        assert_eq!(fetch(&mut mirror, &[tip]), tip);
        assert!(mirror.is_settled(tip));
        mirror.housekeep(&[tip]).unwrap();
        assert_eq!(bench.depth_of(tip), expected, "{depth:?}");
        bench.assert_clean(tip);
        bench.assert_sane();
    }
}

/// The file `shallow` is for the whole repository: where the history of an earlier revision ends, that of the tip may
/// have to go on.
#[test]
fn a_ref_that_goes_back_has_its_history_as_deep_as_asked() {
    for (before, depth, expected, back) in [
        (Depth::Commits(2), Depth::Commits(2), 2, 1),
        (Depth::Commits(3), Depth::Commits(3), 3, 1),
        (Depth::Commits(3), Depth::Commits(3), 3, 2),
        (Depth::Full, Depth::Commits(4), 4, 1),
        (Depth::Full, Depth::Commits(5), 2, 4),
    ] {
        let case = format!("{before:?}, then {back} back at {depth:?}");
        let mut bench = at_depth(before);
        let all: Vec<_> =
            (0..6).map(|n| bench.world.remote.commit(&varied().file("n", n.to_string()))).collect();
        let newest = bench.update(&mut bench.open(), &[]);
        bench.options.depth = depth;
        bench.world.remote.reset(&all[5 - back]);
        let mut mirror = bench.open();
        let older = bench.update(&mut mirror, &[newest]);
        assert_eq!(older, revision(&all[5 - back]), "{case}");
        assert_eq!(bench.depth_of(older), expected, "{case}");
        assert_eq!(bench.git(&bench.place(older), &["diff", "--name-only", "HEAD~1"]), "n\n", "{case}");
        assert!(bench.depth_of(newest) > back, "{case}: the earlier one has as much, and its own");
        bench.assert_clean(older);
        bench.assert_sane();
        // Forward again, to what the mirror still has.
        bench.world.remote.reset(&all[5]);
        assert_eq!(fetch(&mut mirror, &[older, newest]), newest, "{case}");
        let asked = if let Depth::Commits(asked) = depth { asked } else { 6 };
        assert_eq!(bench.depth_of(newest).to_string(), asked.to_string(), "{case}");
        bench.assert_sane();
    }
}
