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
