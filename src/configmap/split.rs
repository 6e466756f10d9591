//! Splits data that is too large for one ConfigMap (`--oversize=grow`).
//!
//! Data over the limit is divided by the next bit of its keys' hashes, recursively until each part fits. The part
//! with the zero bit keeps the name, so a key moves only when its own ConfigMap is split, and about half of the keys
//! stay even then. The result depends only on the content: the same tree always gives the same parts.

use std::collections::BTreeMap;

use super::data::{DesiredData, key_hash};

/// Maximum recursion depth, more than any real tree needs. A part that is still too large at this depth has keys with
/// equal hashes, or a single key that is too large.
const DEPTH_MAX: usize = 16;

/// The first hash byte to take bits from. Prow's partitioning rule uses byte 0.
const FIRST_BYTE: usize = 1;

/// Splits the data. The map's keys are the hash bits that a part's keys share, as text with trailing zeros removed;
/// the empty text is the part that keeps the name. Each part leaves room for `stamps` (key and length of the value). A
/// part that cannot be divided further may still be over the limit.
pub(super) fn split(data: &DesiredData, stamps: &[(&str, usize)]) -> BTreeMap<String, DesiredData> {
    let mut parts = BTreeMap::new();
    halve(data.clone(), stamps, String::new(), &mut parts);
    parts
}

/// Returns the name of the ConfigMap that one of this name is a part of, if it is a part; `None` if no part has such a
/// name.
pub(super) fn whole_of(name: &str) -> Option<&str> {
    let (whole, bits) = name.rsplit_once('-')?;
    let is_part =
        bits.len() <= DEPTH_MAX && bits.ends_with('1') && bits.bytes().all(|bit| b"01".contains(&bit));
    is_part.then_some(whole)
}

fn halve(
    data: DesiredData,
    stamps: &[(&str, usize)],
    bits: String,
    into: &mut BTreeMap<String, DesiredData>,
) {
    if data.over(stamps).is_none() || data.values().len() < 2 || bits.len() == DEPTH_MAX {
        into.insert(bits.trim_end_matches('0').to_owned(), data);
        return;
    }
    let mut zeros = BTreeMap::new();
    let mut ones = BTreeMap::new();
    for (key, value) in data.values() {
        let bit = bits.len();
        let byte = key_hash(key)[FIRST_BYTE + bit / 8];
        let half = if byte >> (7 - bit % 8) & 1 == 0 { &mut zeros } else { &mut ones };
        half.insert(key.clone(), value.clone());
    }
    drop(data);
    halve(DesiredData::new(zeros), stamps, format!("{bits}0"), into);
    if !ones.is_empty() {
        halve(DesiredData::new(ones), stamps, format!("{bits}1"), into);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::data::Value;
    use super::*;

    /// Clusters hold the parts that earlier releases made.
    #[test]
    fn the_bits_of_the_hash_of_a_key_decide_on_its_part() {
        let parts = |keys: &[&str], bytes: usize| {
            let value = |key: &&str| ((*key).to_owned(), Arc::new(Value::new(vec![b'x'; bytes], false)));
            let parts = split(&DesiredData::new(keys.iter().map(value).collect()), &[]);
            let part = |(bits, data): (&String, &DesiredData)| {
                let keys: Vec<&str> = data.values().keys().map(String::as_str).collect();
                format!("{bits}: {}", keys.join(" "))
            };
            parts.iter().map(part).collect::<Vec<_>>()
        };
        assert_eq!(parts(&["a", "b", "c", "d", "e", "f"], 400_000), [": b f", "01: c e", "1: a d"]);
        assert_eq!(parts(&["key-2803", "key-459"], 600_000), [": key-459", "0000000001: key-2803"]);
        assert_eq!(parts(&["alone"], 2_000_000), [": alone"], "it cannot be divided");
    }

    #[test]
    fn the_name_of_each_part_leads_to_the_whole_and_other_names_do_not() {
        let value = |at: usize| (format!("key-{at}"), Arc::new(Value::new(vec![b'x'; 300_000], false)));
        let parts = split(&DesiredData::new((0..30).map(value).collect()), &[]);
        assert!(parts.len() > 8, "{:?}", parts.keys());
        for bits in parts.keys().filter(|bits| !bits.is_empty()) {
            assert_eq!(whole_of(&format!("a-map-{bits}")), Some("a-map"));
        }
        let longest = format!("a-{}1", "0".repeat(DEPTH_MAX));
        for other in ["a", "1", "a-", "a-0", "a-10", "a-2", "a-x1", longest.as_str()] {
            assert_eq!(whole_of(other), None, "{other}");
        }
    }
}
