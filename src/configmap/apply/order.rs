//! The order of writes. A key or content that moves from one ConfigMap to another is written to the new one before it
//! is removed from the old one, so that a reader of both sees it twice rather than not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::super::compare::{ConfigMapData, Difference};
use super::super::data::{DesiredData, Value, ValueEncoding};

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
    /// A content, by the SHA-256 of its bytes. What is stored as gzip is lost as its uncompressed bytes, too.
    Content([u8; 32]),
}

/// The fewest bytes of a content by which a move is recognized without its key, as to a key that had another content:
/// `true` and `{}` are too common.
const TELLING_MIN: usize = 16;

/// What gzip adds to a content at least: its header and trailer.
const GZIP_FRAME: usize = 18;

/// How many steps the search for cycles may take in total. The author of a commit decides how much there is to
/// search.
const STEPS_MAX: usize = 10_000_000;

/// The order of writes. Writes are identified by their index, and what moves by numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Order {
    /// Groups of writes; those of one group may go at the same time.
    pub waves: Vec<Vec<usize>>,
    /// For each write, the numbers of what its ConfigMap gains.
    pub gains: Vec<Vec<usize>>,
    /// For each write, the numbers of what must have been written elsewhere before, by all writes of earlier waves that
    /// gain it.
    pub waits_for: Vec<Vec<usize>>,
    /// Writes that were released to break a cycle: each may remove something before it was written elsewhere.
    pub broken: Vec<usize>,
}

impl Moves {
    /// The moves of a write from `live` to `desired` with this difference. Empty contents are ignored: they are too common
    /// to tell a move. So are stamps: each ConfigMap gains its own. `is_repair`: the write only brings back what was
    /// there.
    pub(super) fn new(
        difference: &Difference,
        desired: Option<&DesiredData>,
        live: Option<&ConfigMapData>,
        is_repair: bool,
    ) -> Self {
        let mut moves = Self::default();
        let value = |key: &String| desired.and_then(|data| data.values().get(key));
        let content = |value: &Arc<Value>| MovedItem::Content(*value.digest());
        let moved = difference.added.iter().filter(|key| value(key).is_some());
        moves.gains.extend(moved.cloned().map(MovedItem::Key));
        let added = difference.added.iter().filter_map(value);
        moves.gains.extend(added.filter(|value| !value.bytes().is_empty()).map(content));
        // A content may also move to a key that had another one.
        if !is_repair {
            let changed = difference.changed.iter().filter_map(value);
            moves.gains.extend(changed.filter(|value| tells_a_move(value)).map(content));
        }
        moves.loses.extend(difference.removed.iter().cloned().map(MovedItem::Key));
        let contents = live.map(|live| live.contents_of(difference.removed.iter())).unwrap_or_default();
        moves.loses.extend(contents.into_iter().map(MovedItem::Content));
        moves
    }

    /// Forgets the keys and the short contents that are gained: a move is then recognized by a telling content alone.
    pub(super) fn gain_telling_contents_only(&mut self, desired: &DesiredData) {
        let telling = desired.values().values().filter(|value| tells_a_move(value));
        let telling: BTreeSet<_> = telling.map(|value| MovedItem::Content(*value.digest())).collect();
        self.gains.retain(|moved| telling.contains(moved));
    }
}

/// Returns true if a content is long enough to tell a move by itself, without its key.
fn tells_a_move(value: &Value) -> bool {
    let frame = if value.form() == ValueEncoding::Gzip { GZIP_FRAME } else { 0 };
    value.bytes().len() >= frame + TELLING_MIN
}

/// Orders the writes of one namespace, which the caller passes sorted by name. A cycle is broken at its first name.
/// What a ConfigMap gains and loses at once, such as a content whose key is renamed, stays in it and waits for nothing.
pub fn order(writes: &[&Moves]) -> Order {
    order_within(writes, STEPS_MAX)
}

/// [`order`], with a limit on the steps of the search for cycles. When they are used up, the first name that is left is
/// released, whether or not it is in a cycle.
fn order_within(writes: &[&Moves], steps: usize) -> Order {
    let mut numbers: BTreeMap<&MovedItem, usize> = BTreeMap::new();
    for moved in writes.iter().flat_map(|moves| &moves.gains) {
        let next = numbers.len();
        numbers.entry(moved).or_insert(next);
    }
    let number = |moved: &MovedItem| numbers.get(moved).copied();
    let gains: Vec<Vec<usize>> =
        writes.iter().map(|moves| moves.gains.iter().filter_map(number).collect()).collect();
    let waits_for: Vec<Vec<usize>> = writes
        .iter()
        .map(|moves| moves.loses.difference(&moves.gains).filter_map(number).collect())
        .collect();
    let mut open = OpenWrites::new(&gains, &waits_for, numbers.len(), steps);
    let mut waves = Vec::new();
    let mut broken = Vec::new();
    let mut wave: Vec<usize> = (0..writes.len()).filter(|&write| open.missing[write] == 0).collect();
    loop {
        if wave.is_empty() {
            // Every remaining write waits for another one, so there is a cycle. Release the first name that is in one.
            let Some(first) = open.first_in_cycle() else { break };
            broken.push(first);
            wave.push(first);
        }
        let next = open.close(&wave);
        waves.push(std::mem::replace(&mut wave, next));
    }
    Order { waves, gains, waits_for, broken }
}

/// The writes that are in no wave yet. They wait for numbers and not for each other, so that everything here is in
/// proportion to what moves: as many ConfigMaps may lose a key as gain it.
struct OpenWrites<'o> {
    gains: &'o [Vec<usize>],
    waits_for: &'o [Vec<usize>],
    is_open: Vec<bool>,
    /// For each write, how many of the numbers that it waits for an open write still has to gain.
    missing: Vec<usize>,
    /// For each number, the writes that gain it, and how many of them are open.
    gainers: Vec<Vec<usize>>,
    open_gainers: Vec<usize>,
    /// For each number, the writes that wait for it.
    waiting: Vec<Vec<usize>>,
    /// The next write to search for a cycle. One that is in no cycle never gets into one.
    next: usize,
    /// For each number and each write, the last write whose search came by.
    seen: (Vec<usize>, Vec<usize>),
    steps: usize,
}

impl<'o> OpenWrites<'o> {
    fn new(gains: &'o [Vec<usize>], waits_for: &'o [Vec<usize>], numbers: usize, steps: usize) -> Self {
        let inverted = |of: &[Vec<usize>]| {
            let mut writes = vec![Vec::new(); numbers];
            for (write, moved) in of.iter().enumerate() {
                moved.iter().for_each(|&number| writes[number].push(write));
            }
            writes
        };
        let gainers = inverted(gains);
        Self {
            gains,
            waits_for,
            is_open: vec![true; gains.len()],
            missing: waits_for.iter().map(Vec::len).collect(), // each number has at least one gainer
            open_gainers: gainers.iter().map(Vec::len).collect(),
            gainers,
            waiting: inverted(waits_for),
            next: 0,
            seen: (vec![usize::MAX; numbers], vec![usize::MAX; gains.len()]),
            steps,
        }
    }

    /// Closes the writes of a wave, and returns those that wait for nothing more.
    fn close(&mut self, wave: &[usize]) -> Vec<usize> {
        wave.iter().for_each(|&write| self.is_open[write] = false);
        let mut free = Vec::new();
        for &number in wave.iter().flat_map(|&write| &self.gains[write]) {
            self.open_gainers[number] -= 1;
            if self.open_gainers[number] > 0 {
                continue;
            }
            for &write in &self.waiting[number] {
                self.missing[write] -= 1;
                if self.missing[write] == 0 && self.is_open[write] {
                    free.push(write);
                }
            }
        }
        free.sort_unstable();
        free
    }

    /// The first open write that waits for itself through others; `None` if no write is open.
    fn first_in_cycle(&mut self) -> Option<usize> {
        while self.next < self.is_open.len() {
            let write = self.next;
            if self.is_open[write] && (self.steps == 0 || self.reaches_itself(write)) {
                return Some(write);
            }
            self.next += 1;
        }
        None
    }

    /// Returns true if a write waits for itself through other open writes, or if there are no steps left to tell.
    fn reaches_itself(&mut self, write: usize) -> bool {
        let mut pending: Vec<usize> = self.waits_for[write].clone();
        while let Some(number) = pending.pop() {
            self.steps = self.steps.saturating_sub(1);
            if self.steps == 0 {
                return true;
            }
            if std::mem::replace(&mut self.seen.0[number], write) == write {
                continue;
            }
            for &gainer in &self.gainers[number] {
                self.steps = self.steps.saturating_sub(1);
                if gainer == write {
                    return true;
                }
                let is_new = std::mem::replace(&mut self.seen.1[gainer], write) != write;
                if is_new && self.is_open[gainer] {
                    pending.extend(&self.waits_for[gainer]);
                }
            }
        }
        false
    }
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
    fn a_content_of_a_few_bytes_tells_no_move() {
        for compress in [false, true] {
            let tells = |content: &str| tells_a_move(&Value::new(content.as_bytes().to_vec(), compress));
            assert!(!tells("") && !tells("0") && !tells("{}\n") && !tells("true\n"), "{compress}");
            assert!(tells("a content that is found nowhere else"), "{compress}");
        }
    }

    #[test]
    fn what_gains_goes_before_what_loses() {
        let order = ordered(&[moves(&[], &["x"]), moves(&["x"], &[]), moves(&["y"], &[])]);
        assert_eq!(order.waves, [vec![1, 2], vec![0]]);
        assert_eq!(order.waits_for[0], order.gains[1], "the first waits for x");
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
        assert_eq!(order.waves, [vec![1], vec![0, 2]], "the rest of the circle keeps its order");
    }

    #[test]
    fn one_that_loses_several_keys_waits_for_all_that_gain_them() {
        let order = ordered(&[
            moves(&[], &["x", "y"]),
            moves(&["x"], &[]),
            moves(&["x", "y"], &["z"]),
            moves(&["z"], &[]),
        ]);
        assert_eq!((order.waves, order.broken), (vec![vec![1, 3], vec![2], vec![0]], vec![]));
    }

    /// The first one exchanges with the second one and is released. That one still waits for the third, which exchanges
    /// with the fourth, but nothing waits for it.
    #[test]
    fn one_that_was_released_leads_no_other_into_a_circle() {
        let order = ordered(&[
            moves(&["x"], &["y"]),
            moves(&["y"], &["x"]),
            moves(&["a", "x"], &["b"]),
            moves(&["b"], &["a"]),
        ]);
        assert_eq!((order.waves, order.broken), (vec![vec![0], vec![2], vec![1, 3]], vec![0, 2]));
    }

    #[test]
    fn a_key_that_stays_within_one_configmap_is_no_move() {
        assert_eq!(ordered(&[moves(&["x"], &["x"])]).waves, [vec![0]]);
        assert_eq!(ordered(&[]).waves, Vec::<Vec<usize>>::new());
        let renamed = [moves(&["new", "same"], &["old", "same"]), moves(&["new", "same"], &["old", "same"])];
        let order = ordered(&renamed);
        assert_eq!((order.waves, order.broken), (vec![vec![0, 1]], vec![]), "both keep the same content");
    }

    #[test]
    fn however_many_exchange_two_keys_the_steps_to_order_them_are_few() {
        const EACH: usize = 1_500;
        let (one, other) = (moves(&["a"], &["b"]), moves(&["b"], &["a"]));
        let writes: Vec<&Moves> =
            std::iter::repeat_n(&one, EACH).chain(std::iter::repeat_n(&other, EACH)).collect();
        let order = order(&writes);
        let expected: Vec<Vec<usize>> =
            (0..EACH).map(|write| vec![write]).chain([(EACH..2 * EACH).collect()]).collect();
        assert_eq!(
            order.waves, expected,
            "one side is released name by name, and the other waits for all of it"
        );
        assert_eq!(order.broken, (0..EACH).collect::<Vec<_>>());
        let size = |of: &[Vec<usize>]| of.iter().map(Vec::len).sum::<usize>();
        assert_eq!(size(&order.gains) + size(&order.waits_for), 4 * EACH);
    }

    #[test]
    fn without_steps_to_search_for_cycles_the_first_name_is_released() {
        let writes = [moves(&[], &["x"]), moves(&["a", "x"], &["b"]), moves(&["b"], &["a"])];
        let order = order_within(&writes.iter().collect::<Vec<_>>(), 0);
        assert_eq!((order.waves, order.broken), (vec![vec![0], vec![1], vec![2]], vec![0, 1]));
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
                for &write in wave {
                    let is_needed = |other: usize| {
                        order.gains[other].iter().any(|number| order.waits_for[write].contains(number))
                    };
                    let are_done = (0..writes.len()).all(|other| !is_needed(other) || done.contains(&other));
                    proptest::prop_assert!(are_done != order.broken.contains(&write));
                }
                for &write in wave {
                    proptest::prop_assert!(done.insert(write));
                }
            }
            proptest::prop_assert_eq!(done.len(), writes.len());
        }
    }
}
