//! Records that are found again: beside a root, in a cluster, and at another program's listener.

use std::collections::BTreeMap;

use super::{Input, Target};
use crate::configmap::apply::LedgerSet;
use crate::marker::Marker;
use crate::marker::set::{Stamps, gaps};
use crate::phase::Status;

pub(super) const TARGETS: &[Target] =
    &[Target::new("ledgers", ledgers), Target::new("markers", markers), Target::new("statuses", statuses)];

fn cut(data: &[u8], length: usize) -> usize {
    data.iter().fold(0_usize, |sum, byte| sum.wrapping_mul(31) + usize::from(*byte)) % length.max(1)
}

/// A ledger is written as it was read, but for what is bounded; what is left of it after a cut is not understood.
fn ledgers(data: &[u8]) {
    let Ok(ledgers) = LedgerSet::read(data) else { return };
    let text = ledgers.text();
    let again = LedgerSet::read(&text).unwrap();
    assert_eq!(LedgerSet::read(&again.text()).unwrap(), again);
    assert_eq!(again.records().count(), ledgers.records().count());
    for ((place, name, record), (other_place, other_name, other)) in ledgers.records().zip(again.records()) {
        assert_eq!(
            (place, name, &record.digest, record.at),
            (other_place, other_name, &other.digest, other.at)
        );
    }
    let cut = cut(data, text.len());
    assert!(LedgerSet::read(&text[..cut]).is_err(), "torn at {cut}, and understood");
}

/// A marker keeps all that it holds, and a set is complete only if everything in it was understood.
fn markers(data: &[u8]) {
    let input = &mut Input::new(data);
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    while found.len() < 12 && !input.is_empty() {
        let key = match input.byte() % 4 {
            0 => "_revision".to_owned(),
            1 => "_rules".to_owned(),
            2 => "a".to_owned(),
            _ => input.text(),
        };
        let text = match input.byte() % 4 {
            0 => r#"{"digest":"d","uid":"u","resourceVersion":"7","revision":"r"}"#.to_owned(),
            1 => format!(
                r#"{{"digest":{:?},"uid":"u","resourceVersion":"7","revision":"r","wanted":"w"}}"#,
                input.byte()
            ),
            _ => {
                let length = input.number();
                String::from_utf8_lossy(input.bytes(length)).into_owned()
            }
        };
        found.insert(key, text);
    }
    let marker = Marker::read(&found);
    assert_eq!(Marker::read(&marker.data()), marker);
    let written = marker.data();
    for (name, text) in found.iter().filter(|(name, _)| !matches!(name.as_str(), "_revision" | "_rules")) {
        assert_eq!(marker.entries.contains_key(name), !marker.damaged.contains_key(name));
        assert!(
            !marker.damaged.contains_key(name) || written[name] == *text,
            "what is damaged stays as it is"
        );
    }
    let digest = |path: &str| {
        let name = path.strip_prefix('.')?.strip_suffix(".stamp")?;
        Some(marker.entries.get(name)?.digest.trim().to_owned())
    };
    let gaps = gaps(&found, &Stamps::default(), digest);
    let is_clean = marker.entries.values().all(|entry| entry.digest.trim() == entry.digest);
    let is_empty = marker.entries.is_empty();
    assert!(!is_clean || gaps.is_empty() == (marker.is_complete() && !is_empty), "{gaps:?}");
}

/// A status that another process told is told on as it was.
fn statuses(data: &[u8]) {
    let Ok(status) = serde_json::from_slice::<Status>(data) else { return };
    let text = serde_json::to_vec(&status).unwrap();
    let again: Status = serde_json::from_slice(&text).unwrap();
    assert_eq!(serde_json::to_vec(&again).unwrap(), text);
    assert!(
        serde_json::from_slice::<Status>(&text[..cut(data, text.len())]).is_err(),
        "torn, and understood"
    );
}
