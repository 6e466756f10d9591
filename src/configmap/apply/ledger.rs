//! The ledger: the last attempt at each target of a namespace, and its outcome. It is stored as the data of a ConfigMap
//! (or in a file, see `ledger_set`) and survives restarts. It does not say what the target holds now.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Longest error message that is kept, in bytes.
const ERROR_MAX: usize = 300;
/// Longest rules digest that is kept, in bytes. It comes from an annotation, which anybody may have written.
const OVER_MAX: usize = 100;
/// How many repairs of a target are remembered.
const REPAIRS_MAX: usize = 8;
/// Largest ledger, in bytes of keys and values.
const BYTES_MAX: usize = 900_000;

/// The last attempt at a target.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LastAttempt {
    /// The revision that was to be written.
    pub revision: String,
    /// The digest of the data that was to be written; empty for a deletion.
    pub digest: String,
    /// The time by the local clock, for people to read.
    pub at: Timestamp,
    /// The outcome, in one word.
    pub outcome: String,
    /// How many writes were sent for this revision and digest.
    pub attempts: u32,
    /// The error, shortened; `None` if it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The times of its last writes that count against the [`RepairLimit`], oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repairs: Vec<Timestamp>,
    /// The digest of the rules it had been written under, if the last write was because the rules differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<String>,
}

/// How often a target may be repaired before repairs slow down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RepairLimit {
    /// The number of repairs within the window that makes a target contested.
    pub repairs: usize,
    /// The window.
    pub window: Duration,
    /// The pause between repairs of a contested target.
    pub pause: Duration,
}

impl Default for RepairLimit {
    fn default() -> Self {
        Self { repairs: 3, window: Duration::from_secs(24 * 3_600), pause: Duration::from_secs(6 * 3_600) }
    }
}

/// The last attempts at the targets of one namespace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ledger {
    /// The records, by ConfigMap name.
    pub records: BTreeMap<String, LastAttempt>,
    /// Entries that could not be parsed; they are written back unchanged.
    pub damaged: BTreeMap<String, String>,
}

impl RepairLimit {
    /// Returns the number of repairs within the window if the next repair has to wait, else `None`. Repairs in the
    /// future are ignored: they mean that the clock was set back.
    pub fn repairs_over_limit(&self, repairs: &[Timestamp], now: Timestamp) -> Option<usize> {
        let since = |window: Duration| {
            repairs
                .iter()
                .filter(|at| now.duration_since(**at).unsigned_abs() <= window && **at <= now)
                .count()
        };
        let recent = since(self.window);
        (recent >= self.repairs && since(self.pause) > 0).then_some(recent)
    }
}

impl LastAttempt {
    /// A copy with error and repairs cut to their limits, and without what is too long for a rules digest.
    fn shortened(&self) -> Self {
        let mut record = self.clone();
        record.over = record.over.filter(|over| over.len() <= OVER_MAX);
        if let Some(error) = record.error.as_mut().filter(|error| error.len() > ERROR_MAX) {
            error.truncate((0..=ERROR_MAX).rev().find(|&at| error.is_char_boundary(at)).unwrap_or_default());
            error.push('…');
        }
        let old = record.repairs.len().saturating_sub(REPAIRS_MAX);
        record.repairs.drain(..old);
        record
    }
}

impl Ledger {
    /// Parses the data of the ledger's ConfigMap.
    pub fn read(data: &BTreeMap<String, String>) -> Self {
        let mut ledger = Self::default();
        for (name, text) in data {
            match serde_json::from_str(text) {
                Ok(record) => drop(ledger.records.insert(name.clone(), record)),
                Err(_) => drop(ledger.damaged.insert(name.clone(), text.clone())),
            }
        }
        ledger
    }

    /// The data of the ledger's ConfigMap. If it would be too large, records are left out: successful ones first, and
    /// of these the oldest.
    pub fn data(&self) -> BTreeMap<String, String> {
        let mut data = self.damaged.clone();
        let mut kept: Vec<(&String, LastAttempt)> =
            self.records.iter().map(|(name, record)| (name, record.shortened())).collect();
        kept.sort_by_key(|(_, record)| (record.error.is_none(), std::cmp::Reverse(record.at)));
        let mut bytes: usize = data.iter().map(|(key, text)| key.len() + text.len()).sum();
        for (name, record) in kept {
            let text = serde_json::to_string(&record).unwrap_or_default(); // serializing strings and times does not fail
            bytes += name.len() + text.len();
            if bytes <= BYTES_MAX {
                data.insert(name.clone(), text);
            }
        }
        data
    }

    /// Records an attempt. A record with no writes sent only updates the ledger if the outcome differs from the last
    /// one, for example to clear an error. `counted`: the write counts against the [`RepairLimit`]. An attempt that is
    /// recorded already changes nothing.
    pub fn record_attempt(&mut self, name: &str, mut record: LastAttempt, counted: bool) {
        let old = self.records.get(name);
        // The ledger may have been written although no answer came; it is then read and has this very attempt.
        let is_this = |old: &LastAttempt| {
            (old.at, &old.revision, &old.digest) == (record.at, &record.revision, &record.digest)
        };
        if old.is_some_and(is_this) {
            return;
        }
        let sent = record.attempts > 0;
        let wrote = sent && record.error.is_none(); // as far as is known
        record.over.take_if(|_| !wrote);
        if let Some(old) = old {
            record.repairs.clone_from(&old.repairs);
            if !wrote {
                record.over.clone_from(&old.over);
            }
            if old.digest == record.digest && old.revision == record.revision {
                record.attempts = record.attempts.saturating_add(old.attempts); // anybody may have edited it
            }
        }
        if counted {
            record.repairs.push(record.at);
        }
        let record = record.shortened();
        let same = |old: &LastAttempt| {
            let LastAttempt { revision, at, attempts, .. } = record.clone();
            LastAttempt { revision, at, attempts, ..old.clone() } == record
        };
        // If nothing was sent and the outcome is the same as before, keep the old record: another time or revision
        // alone is no reason to write the ledger.
        if !sent && old.is_some_and(|old| same(&old.shortened())) {
            return;
        }
        self.records.insert(name.to_owned(), record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn record(second: i64, error: Option<&str>, attempts: u32) -> LastAttempt {
        LastAttempt {
            revision: "r".into(),
            digest: "d".into(),
            at: at(second),
            outcome: if error.is_some() { "failed" } else { "replaced" }.into(),
            attempts,
            error: error.map(str::to_owned),
            repairs: Vec::new(),
            over: None,
        }
    }

    #[test]
    fn attempts_add_up_and_what_is_no_news_changes_nothing() {
        let mut ledger = Ledger::default();
        ledger.record_attempt("a", record(1, Some("no route"), 1), false);
        ledger.record_attempt("a", record(2, Some("no route"), 1), false);
        assert_eq!((ledger.records["a"].attempts, ledger.records["a"].at), (2, at(2)));
        let before = ledger.clone();
        ledger.record_attempt("a", record(3, Some("no route"), 0), false);
        assert_eq!(ledger, before, "nothing was sent");
        ledger.record_attempt(
            "a",
            LastAttempt { revision: "s".into(), ..record(3, Some("no route"), 0) },
            false,
        );
        assert_eq!(ledger, before, "another revision that asks for the same");
        ledger.record_attempt("a", record(4, None, 1), true);
        assert_eq!((ledger.records["a"].attempts, ledger.records["a"].repairs.len()), (3, 1));
        ledger.records.get_mut("a").unwrap().attempts = u32::MAX;
        ledger.record_attempt("a", record(5, None, 1), false);
        assert_eq!(ledger.records["a"].attempts, u32::MAX, "somebody edited it");
        assert_eq!(Ledger::read(&ledger.data()), ledger);
    }

    #[test]
    fn attempts_are_those_of_one_revision_and_its_data() {
        let mut ledger = Ledger::default();
        let attempt = |second, revision: &str, digest: &str| LastAttempt {
            revision: revision.to_owned(),
            digest: digest.to_owned(),
            ..record(second, Some("no route"), 1)
        };
        for (second, revision, digest, attempts) in
            [(1, "r", "d", 1), (2, "r", "d", 2), (3, "s", "d", 1), (4, "s", "e", 1), (5, "s", "e", 2)]
        {
            ledger.record_attempt("a", attempt(second, revision, digest), false);
            assert_eq!(ledger.records["a"].attempts, attempts, "{revision} {digest}");
        }
    }

    #[test]
    fn the_rules_that_a_write_replaced_are_known_until_the_next_write() {
        let mut ledger = Ledger::default();
        let over = |over: &str, record: LastAttempt| LastAttempt { over: Some(over.to_owned()), ..record };
        for (attempt, expected) in [
            (over("none", record(0, Some("a webhook denies it"), 1)), None),
            (over("first", record(1, None, 1)), Some("first")),
            (record(2, Some("it is contested"), 0), Some("first")),
            (over("second", record(3, None, 1)), Some("second")),
            (over("third", record(4, Some("a webhook denies it"), 1)), Some("second")),
            (record(5, Some("a webhook denies it"), 1), Some("second")),
            (record(6, None, 1), None),
        ] {
            ledger.record_attempt("a", attempt, false);
            assert_eq!(ledger.records["a"].over.as_deref(), expected);
        }
    }

    #[test]
    fn an_attempt_that_was_recorded_without_an_answer_is_not_counted_again() {
        let mut ledger = Ledger::default();
        ledger.record_attempt("a", record(1, None, 1), true);
        let mut read_again = Ledger::read(&ledger.data());
        read_again.record_attempt("a", record(1, None, 1), true);
        assert_eq!(read_again, ledger);
        read_again.record_attempt("a", record(2, None, 1), true);
        let a = &read_again.records["a"];
        assert_eq!((a.attempts, &a.repairs[..]), (2, &[at(1), at(2)][..]), "the next attempt is another one");
    }

    #[test]
    fn a_long_error_is_no_news_the_second_time() {
        let mut ledger = Ledger::default();
        let long = "é".repeat(1_000);
        ledger.record_attempt("a", record(1, Some(&long), 0), false);
        let before = Ledger::read(&ledger.data());
        assert_eq!(before, ledger);
        ledger.record_attempt("a", record(2, Some(&long), 0), false);
        assert_eq!(ledger, before);
        let fits = "x".repeat(ERROR_MAX);
        ledger.record_attempt("a", record(3, Some(&fits), 0), false);
        assert_eq!(ledger.records["a"].error.as_ref(), Some(&fits), "it is not cut");
    }

    #[test]
    fn an_annotation_that_is_too_long_for_a_rules_digest_is_not_kept() {
        for (length, kept) in [(67, true), (200_000, false)] {
            let mut ledger = Ledger::default();
            let over = Some("x".repeat(length));
            ledger.record_attempt("a", LastAttempt { over, ..record(1, None, 1) }, true);
            assert_eq!(ledger.records["a"].over.is_some(), kept);
        }
    }

    #[test]
    fn it_stays_bounded_and_failures_outlast_successes() {
        let mut ledger = Ledger::default();
        for target in 0..10_000 {
            let error = (target % 10 == 0).then(|| "é".repeat(1_000));
            ledger.record_attempt(&format!("target-{target}"), record(target, error.as_deref(), 1), false);
        }
        let data = ledger.data();
        assert!(data.iter().map(|(key, text)| key.len() + text.len()).sum::<usize>() <= BYTES_MAX);
        assert!((0..10_000).step_by(10).all(|target| data.contains_key(&format!("target-{target}"))));
        assert!(data.contains_key("target-9999") && !data.contains_key("target-1"));
        for second in 2..22 {
            ledger.record_attempt("target-1", record(second, None, 1), true);
        }
        assert_eq!(ledger.records["target-1"].repairs.len(), REPAIRS_MAX);
    }

    #[test]
    fn damage_is_kept_as_it_stands() {
        let data = [("a".to_owned(), "nonsense".to_owned())].into();
        assert_eq!(Ledger::read(&data).data(), data);
        let large = [("x".repeat(250), "nonsense".repeat(1_000))].into();
        let mut ledger = Ledger::read(&large);
        ledger.record_attempt("a", record(1, None, 1), false);
        assert_eq!(ledger.data().len(), 2, "there is room for both");
    }

    #[test]
    fn a_target_is_contested_after_several_repairs_until_a_pause_has_gone_by() {
        let pace =
            RepairLimit { repairs: 3, window: Duration::from_secs(100), pause: Duration::from_secs(10) };
        let repairs = [at(30), at(50), at(99)];
        assert_eq!(pace.repairs_over_limit(&repairs, at(100)), Some(3));
        assert_eq!(pace.repairs_over_limit(&repairs[..2], at(51)), None, "not often enough");
        assert_eq!(
            pace.repairs_over_limit(&repairs, at(120)),
            None,
            "a pause has gone by, so it is repaired once more"
        );
        assert_eq!(pace.repairs_over_limit(&repairs, at(20)), None, "repairs in the future are none");
        assert_eq!(pace.repairs_over_limit(&repairs, at(1_000)), None, "long ago");
    }
}
