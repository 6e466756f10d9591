//! Which write comes before which: what moves from one ConfigMap to another is written where it goes before it is
//! taken from where it was, so that a reader of both sees it twice rather than not at all.

use std::collections::{BTreeMap, BTreeSet};

use super::super::compare::{Current, Difference};
use super::super::payload::Payload;

/// What leaves a ConfigMap and what comes into it: keys, and contents, which may move under another key.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Moves {
    /// What comes.
    pub gains: BTreeSet<Thing>,
    /// What leaves.
    pub loses: BTreeSet<Thing>,
}

/// What can move.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Thing {
    /// A key.
    Key(String),
    /// A content, by the digest of it uncompressed.
    Content([u8; 32]),
}

/// In which order, by the numbers of the writes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Order {
    /// Writes that may go at the same time, first ones first.
    pub waves: Vec<Vec<usize>>,
    /// For each write those that must have succeeded before it.
    pub after: Vec<BTreeSet<usize>>,
    /// Writes that wait for each other in a circle: each goes although what it loses may not have arrived.
    pub broken: Vec<usize>,
}

impl Moves {
    /// Of what a write changes. Empty contents are everywhere, and mean nothing.
    pub(super) fn new(difference: &Difference, desired: Option<&Payload>, there: Option<&Current>) -> Self {
        let mut moves = Self::default();
        for key in &difference.added {
            moves.gains.insert(Thing::Key(key.clone()));
            let value = desired.and_then(|payload| payload.values().get(key));
            moves
                .gains
                .extend(value.filter(|value| !value.bytes().is_empty()).map(|v| Thing::Content(*v.digest())));
        }
        for key in &difference.removed {
            moves.loses.insert(Thing::Key(key.clone()));
            moves.loses.extend(there.and_then(|current| current.content_of(key)).map(Thing::Content));
        }
        moves
    }
}

/// Orders the writes of one namespace. They come in the order of names, in which circles are broken.
pub fn order(writes: &[&Moves]) -> Order {
    let mut gainers: BTreeMap<&Thing, Vec<usize>> = BTreeMap::new();
    for (write, moves) in writes.iter().enumerate() {
        for thing in &moves.gains {
            gainers.entry(thing).or_default().push(write);
        }
    }
    let waits = |write: usize| -> BTreeSet<usize> {
        let of = |thing| gainers.get(thing).into_iter().flatten().copied();
        writes[write].loses.iter().flat_map(of).filter(|&other| other != write).collect()
    };
    let mut order = Order { after: (0..writes.len()).map(waits).collect(), ..Order::default() };
    let mut open: BTreeSet<usize> = (0..writes.len()).collect();
    while !open.is_empty() {
        let free = |write: &usize| order.after[*write].is_disjoint(&open);
        let mut wave: Vec<usize> = open.iter().copied().filter(free).collect();
        if wave.is_empty() {
            // All that are left wait for one that waits: the first in the order of names that is in a circle goes.
            let Some(first) = open.iter().copied().find(|&write| reaches_itself(write, &order.after, &open))
            else {
                break; // no circle and none free: impossible, for what waits for nothing open is free
            };
            order.after[first].retain(|other| !open.contains(other));
            order.broken.push(first);
            wave.push(first);
        }
        open.retain(|write| !wave.contains(write));
        order.waves.push(wave);
    }
    order
}

fn reaches_itself(write: usize, after: &[BTreeSet<usize>], open: &BTreeSet<usize>) -> bool {
    let mut seen = BTreeSet::new();
    let mut pending: Vec<usize> = after[write].iter().copied().filter(|one| open.contains(one)).collect();
    while let Some(one) = pending.pop() {
        if one == write {
            return true;
        }
        if seen.insert(one) {
            pending.extend(after[one].iter().copied().filter(|next| open.contains(next)));
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moves(gains: &[&str], loses: &[&str]) -> Moves {
        let keys = |keys: &[&str]| keys.iter().map(|key| Thing::Key((*key).to_owned())).collect();
        Moves { gains: keys(gains), loses: keys(loses) }
    }

    fn ordered(writes: &[Moves]) -> Order {
        order(&writes.iter().collect::<Vec<_>>())
    }

    #[test]
    fn what_gains_goes_before_what_loses() {
        let order = ordered(&[moves(&[], &["x"]), moves(&["x"], &[]), moves(&["y"], &[])]);
        assert_eq!(order.waves, [vec![1, 2], vec![0]]);
        assert_eq!(order.after[0], BTreeSet::from([1]));
        assert!(order.broken.is_empty());
    }

    #[test]
    fn a_chain_has_as_many_waves_as_links() {
        let order = ordered(&[moves(&["b"], &["a"]), moves(&["c"], &["b"]), moves(&["d"], &["c"])]);
        assert_eq!(order.waves, [vec![0], vec![1], vec![2]]);
    }

    #[test]
    fn a_circle_is_broken_at_its_first_name_and_what_waits_for_it_still_waits() {
        let order = ordered(&[
            moves(&[], &["x"]),         // waits for 1, which is in the circle
            moves(&["a", "x"], &["b"]), // 1 and 2 exchange
            moves(&["b"], &["a"]),
        ]);
        assert_eq!(order.broken, [1]);
        assert_eq!(order.waves, [vec![1], vec![0, 2]]);
        assert_eq!(order.after[2], BTreeSet::from([1]), "the rest of the circle keeps its order");
    }

    #[test]
    fn a_key_that_stays_within_one_configmap_is_no_move() {
        assert_eq!(ordered(&[moves(&["x"], &["x"])]).waves, [vec![0]]);
        assert_eq!(ordered(&[]).waves, Vec::<Vec<usize>>::new());
    }

    proptest::proptest! {
        #[test]
        fn every_write_is_in_exactly_one_wave_after_all_that_it_waits_for(
            sides in proptest::collection::vec(
                (proptest::collection::btree_set(0u8..6, 0..3), proptest::collection::btree_set(0u8..6, 0..3)), 0..8)
        ) {
            let writes: Vec<Moves> = sides.iter().map(|(gains, loses)| {
                let keys = |set: &BTreeSet<u8>| set.iter().map(|key| Thing::Key(key.to_string())).collect();
                Moves { gains: keys(gains), loses: keys(loses) }
            }).collect();
            let order = ordered(&writes);
            let mut done = BTreeSet::new();
            for wave in &order.waves {
                for write in wave {
                    proptest::prop_assert!(order.after[*write].is_subset(&done));
                }
                for write in wave {
                    proptest::prop_assert!(done.insert(*write));
                }
            }
            proptest::prop_assert_eq!(done.len(), writes.len());
        }
    }
}
