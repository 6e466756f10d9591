//! More partitions for a payload that is too large for one ConfigMap.
//!
//! A payload over the limit is halved by the next bit of its keys' hashes, and each half again while it is over. The
//! half of the zeros keeps the name, so a key only moves when its own ConfigMap was split, and half of its neighbours
//! stay. Nothing but the content decides it: the same tree always gives the same partitions.

use std::collections::BTreeMap;

use super::payload::{Payload, key_hash};

/// More than any tree needs; beyond it the keys that are left have one hash or one is too large by itself.
const DEEPEST: usize = 16;

/// Prow's rule uses the first byte, so the bits begin after it.
const FIRST_BYTE: usize = 1;

/// The parts, by the bits that they share, as text: `` for the one that keeps the name, else up to the last `1`. Each has
/// room for the stamps: keys, and the lengths of their texts. A part that cannot be halved further may still be over.
pub(super) fn split(payload: &Payload, stamps: &[(&str, usize)]) -> BTreeMap<String, Payload> {
    let mut parts = BTreeMap::new();
    halve(payload.clone(), stamps, String::new(), &mut parts);
    parts
}

fn halve(payload: Payload, stamps: &[(&str, usize)], bits: String, into: &mut BTreeMap<String, Payload>) {
    if payload.over(stamps).is_none() || payload.values().len() < 2 || bits.len() == DEEPEST {
        into.insert(bits.trim_end_matches('0').to_owned(), payload);
        return;
    }
    let mut zeros = BTreeMap::new();
    let mut ones = BTreeMap::new();
    for (key, value) in payload.values() {
        let bit = bits.len();
        let byte = key_hash(key)[FIRST_BYTE + bit / 8];
        let half = if byte >> (7 - bit % 8) & 1 == 0 { &mut zeros } else { &mut ones };
        half.insert(key.clone(), value.clone());
    }
    drop(payload);
    halve(Payload::new(zeros), stamps, format!("{bits}0"), into);
    if !ones.is_empty() {
        halve(Payload::new(ones), stamps, format!("{bits}1"), into);
    }
}
