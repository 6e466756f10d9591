//! The order of writes. A key or content that moves from one ConfigMap to another is written to the new one before it
//! is removed from the old one, so that a reader of both sees it twice rather than not at all.

use std::collections::{BTreeMap, BTreeSet};

use super::super::compare::{Current, Difference};
use super::super::payload::Payload;

/// What a write adds to a ConfigMap and what it removes. Tracks keys and contents, because a content may move to
/// another key.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Moves {
    /// What the ConfigMap gains.
    pub gains: BTreeSet<MovedItem>,
    /// What the ConfigMap loses.
    pub loses: BTreeSet<MovedItem>,
}

/// Something that can move between ConfigMaps.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum MovedItem {
    /// A key.
    Key(String),
    /// A content, by the SHA-256 of its uncompressed bytes.
    Content([u8; 32]),
}

/// The order of writes. Writes are identified by their index.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Order {
    /// Groups of writes; those of one group may go at the same time.
    pub waves: Vec<Vec<usize>>,
    /// For each write, the writes that must have succeeded before it.
    pub after: Vec<BTreeSet<usize>>,
    /// Writes that were released to break a cycle: each may remove something before it was written elsewhere.
    pub broken: Vec<usize>,
}

impl Moves {
    /// The moves of a write from `current` to `desired` with this difference. Empty contents are ignored: they are too
    /// common to tell a move.
    pub(super) fn new(difference: &Difference, desired: Option<&Payload>, current: Option<&Current>) -> Self {
        let mut moves = Self::default();
        for key in &difference.added {
            moves.gains.insert(MovedItem::Key(key.clone()));
            let value = desired.and_then(|payload| payload.values().get(key));
            let value = value.filter(|value| !value.bytes().is_empty());
            moves.gains.extend(value.map(|value| MovedItem::Content(*value.digest())));
        }
        for key in &difference.removed {
            moves.loses.insert(MovedItem::Key(key.clone()));
            moves.loses.extend(current.and_then(|current| current.content_of(key)).map(MovedItem::Content));
        }
        moves
    }
}

/// Orders the writes of one namespace, which the caller passes sorted by name. A cycle is broken at its first name.
pub fn order(writes: &[&Moves]) -> Order {
    let mut gainers: BTreeMap<&MovedItem, Vec<usize>> = BTreeMap::new();
    for (write, moves) in writes.iter().enumerate() {
        for thing in &moves.gains {
            gainers.entry(thing).or_default().push(write);
        }
    }
    let predecessors = |write: usize| -> BTreeSet<usize> {
        let of = |thing| gainers.get(thing).into_iter().flatten().copied();
        writes[write].loses.iter().flat_map(of).filter(|&other| other != write).collect()
    };
    let mut order = Order { after: (0..writes.len()).map(predecessors).collect(), ..Order::default() };
    let mut open: BTreeSet<usize> = (0..writes.len()).collect();
    while !open.is_empty() {
        let free = |write: &usize| order.after[*write].is_disjoint(&open);
        let mut wave: Vec<usize> = open.iter().copied().filter(free).collect();
        if wave.is_empty() {
            // Every remaining write waits for another one, so there is a cycle. Release the first name that is in one.
            let Some(first) = open.iter().copied().find(|&write| reaches_itself(write, &order.after, &open))
            else {
                break; // unreachable: without a cycle some write waits for no open one
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

/// Returns true if a write waits for itself through other open writes.
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
        let keys = |keys: &[&str]| keys.iter().map(|key| MovedItem::Key((*key).to_owned())).collect();
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
                let keys = |set: &BTreeSet<u8>| set.iter().map(|key| MovedItem::Key(key.to_string())).collect();
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
