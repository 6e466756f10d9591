use std::collections::BTreeMap;

use super::*;
use crate::phase::SourceStatus;

#[test]
fn long_numbers_are_grouped() {
    assert_eq!(
        [0, 999, 1_000, 1_234_567].map(grouped),
        ["0", "999", "1\u{202f}000", "1\u{202f}234\u{202f}567"]
    );
}

#[test]
fn the_headline_names_the_state() {
    // By default the liveness deadline is 0 and nothing is published.
    let alive = Status { alive_until_ms: u64::MAX, ..Status::default() };
    assert_eq!(headline(&Status::default()).word, "hangs");
    assert_eq!(headline(&alive).word, "starting");
    assert_eq!(headline(&Status { consecutive_failures: 2, ..alive.clone() }).word, "not serving");
    let counted = |outcome: &str, count| BTreeMap::from([(outcome.to_owned(), count)]);
    let applied = |outcome, open: &[&str]| Applied {
        revision: crate::revision::Revision(crate::revision::ObjectId([1; 20])),
        at: Timestamp::UNIX_EPOCH,
        targets: counted(outcome, 120),
        totals: BTreeMap::new(),
        open: open.iter().map(ToString::to_string).collect(),
        clusters: BTreeMap::new(),
    };
    let good = Status { ready: true, applied: Some(applied("unchanged", &[])), ..alive.clone() };
    assert_eq!(headline(&good).word, "up to date");
    let stale = Status { stale: Some("source a has not answered".into()), ..good.clone() };
    assert_eq!(headline(&stale).word, "stale", "readyz says 503");
    let source = SourceStatus { name: "a".into(), error: Some("x".into()), ..SourceStatus::default() };
    assert_eq!(headline(&Status { sources: vec![source], ..good.clone() }).word, "incomplete");
    let behind = headline(&Status { applied: Some(applied("failed", &["one"])), ..good });
    assert!(
        behind.sentence.starts_with("120 targets"),
        "not only those that are listed: {}",
        behind.sentence
    );
    let full = Status { starting: Some("the volume is full".into()), consecutive_failures: 2, ..alive };
    assert!(headline(&full).sentence.contains("the volume is full"));
}
