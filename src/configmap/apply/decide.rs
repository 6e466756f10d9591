//! Decides on one ConfigMap, from what is desired, what was read and what is on record.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::super::compare::{ConfigMapData, Difference};
use super::decision::{Action, Decision, DecisionReason, Refusal};
use super::desired_state::{DesiredConfigMap, ExtraKeys, VersionKey};
use super::ledger::{LastAttempt, RepairLimit};
use super::names;
use super::order::Moves;
use super::owner::{Adopt, Claim, Owner};
use crate::marker::Entry;
use crate::revision::ObjectId;

/// A ConfigMap as read from the API server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LiveConfigMap {
    /// The object's uid; changes when it is deleted and created again.
    pub uid: String,
    /// The object's resourceVersion; changes with every write.
    pub version: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// Whether the object is marked `immutable`, so that the API server refuses changes of its data.
    pub immutable: bool,
    /// Whether a deletion is in progress.
    pub deleting: bool,
    /// Its content.
    pub content: ConfigMapData,
}

/// The settings that decisions depend on besides the ConfigMap itself.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The owner that this installation writes as.
    pub owner: Owner,
    /// Which ConfigMaps of other owners are adopted.
    pub adopt: Adopt,
    /// Whether a ConfigMap is deleted that no rule names or no file feeds any more.
    pub prune: bool,
    /// Whether a change of an immutable ConfigMap deletes it and creates it again.
    pub recreate: bool,
    /// The desired revision.
    pub revision: String,
    /// The digest of the rules and extra keys behind the desired state.
    pub rules: String,
    /// The keys that are written besides the data.
    pub shape: ExtraKeys,
    /// How often a target may be repaired before repairs slow down.
    pub pace: RepairLimit,
    /// The current time; only used for `pace`.
    pub now: Timestamp,
    /// Why ConfigMaps that no rule names must not be deleted now; `None` if they may be.
    pub deletions_held: Option<String>,
}

/// Returns true if the inventory proves that a ConfigMap is as desired, so that its content need not be read: uid and
/// resourceVersion show that it was not written since it was verified, and the desired digest and rules are the same.
pub fn is_proven_by_record(
    wanted: &DesiredConfigMap,
    uid: &str,
    version: &str,
    entry: Option<&Entry>,
    same_rules: bool,
) -> bool {
    same_rules
        && entry.is_some_and(|entry| {
            entry.uid == uid
                && entry.version == version
                && entry.digest == wanted.digest
                && entry.wanted.is_none()
        })
}

impl Policy {
    /// Decides on one ConfigMap. `wanted` is the desired state (`None`: no rule names it), `seen` what was read
    /// (`None`: it does not exist), `entry` its entry in the inventory, and `record` its last attempt in the ledger.
    pub fn decide(
        &self,
        wanted: Option<&DesiredConfigMap>,
        seen: Option<&LiveConfigMap>,
        entry: Option<&Entry>,
        record: Option<&LastAttempt>,
    ) -> Decision {
        let mut decision = self.decide_ignoring_holds(wanted, seen, entry, record);
        let held = wanted.map_or(self.deletions_held.as_ref(), |wanted| wanted.held.as_ref());
        if decision.writes()
            && let Some(why) = held
        {
            decision.action = Action::Hold(why.clone());
        }
        if !decision.writes() {
            // What is not written loses nothing. A cycle through it would be broken at one that has to wait for it.
            decision.moves.loses.clear();
        }
        decision
    }

    /// [`Self::decide`] without regard to whether the write is held.
    fn decide_ignoring_holds(
        &self,
        wanted: Option<&DesiredConfigMap>,
        seen: Option<&LiveConfigMap>,
        entry: Option<&Entry>,
        record: Option<&LastAttempt>,
    ) -> Decision {
        match (wanted, seen) {
            (None, None) => Decision::new(Action::Nothing, DecisionReason::NotOurs, Claim::Nobody),
            (None, Some(seen)) => self.undesired(seen, entry, DecisionReason::NoRule),
            (Some(wanted), None) if !wanted.fed => {
                Decision::new(Action::Nothing, DecisionReason::NotOurs, Claim::Nobody)
            }
            (Some(wanted), None) => self.absent(wanted, entry, record),
            (Some(wanted), Some(seen)) => self.existing(wanted, seen, entry, record),
        }
    }

    /// Returns true if a ConfigMap with this stamp has to be read just because the stamp changes.
    pub fn needs_new_stamp(&self, wanted: &DesiredConfigMap, stamped: &str) -> bool {
        self.stamps_every_revision(wanted) && stamped != self.revision
    }

    /// Returns true if every revision is written into the ConfigMap: we write its key `VERSION`, and no file does.
    fn stamps_every_revision(&self, wanted: &DesiredConfigMap) -> bool {
        self.shape.version_key == VersionKey::Every && wanted.versioned
    }

    /// The decision on an object that no rule names or no file feeds.
    fn undesired(&self, seen: &LiveConfigMap, entry: Option<&Entry>, why: DecisionReason) -> Decision {
        let claim = self.claim(seen, entry);
        // Only the inventory says what may be deleted, and only for the object whose uid it has. It does not have the
        // uid of an object that was about to be created, or deleted and created again: that one has the digest that
        // was announced, and our owner's name.
        let digest = seen.annotations.get(names::DIGEST).map(String::as_str);
        let is_listed = entry.is_some_and(|entry| entry.lists(&seen.uid, digest));
        let is_ours = claim == Claim::Ours && is_listed;
        let action = if is_ours && self.prune { Action::Delete } else { Action::Nothing };
        let why = if is_ours { why } else { DecisionReason::NotOurs };
        let mut decision = Decision::new(action, why, claim);
        if decision.action == Action::Delete {
            decision.difference.removed = seen.content.keys().cloned().collect();
            decision.moves = Moves::new(&decision.difference, None, Some(&seen.content), false);
            decision.over = self.other_rules(seen).cloned();
        }
        decision
    }

    /// The decision on a desired ConfigMap that does not exist.
    fn absent(
        &self,
        wanted: &DesiredConfigMap,
        entry: Option<&Entry>,
        record: Option<&LastAttempt>,
    ) -> Decision {
        let known = entry.filter(|entry| entry.is_verified_as(&wanted.digest));
        let why = match known {
            Some(_) => DecisionReason::Vanished,
            None if self.was_written_over(record) => DecisionReason::Returned,
            None => DecisionReason::Absent,
        };
        let mut decision = Decision::new(Action::Create, why, Claim::Ours);
        let recorded = known.map(|entry| entry.revision.as_str()).filter(|text| is_revision(text));
        decision.revision = self.stamp(wanted, recorded);
        decision.difference.added = wanted.content(&self.shape, "").keys().cloned().collect();
        decision.moves = Moves::new(&decision.difference, Some(&wanted.data), None, false);
        self.limit_repairs(decision, record)
    }

    /// The decision on a desired ConfigMap that exists.
    fn existing(
        &self,
        wanted: &DesiredConfigMap,
        seen: &LiveConfigMap,
        entry: Option<&Entry>,
        record: Option<&LastAttempt>,
    ) -> Decision {
        let claim = self.claim(seen, entry);
        if !wanted.fed && claim != Claim::Ours && !self.adopt.covers(&claim) {
            return Decision::new(Action::Nothing, DecisionReason::NotOurs, claim);
        }
        if wanted.left_out {
            return Decision::new(Action::Nothing, DecisionReason::LeftOut, claim);
        }
        let refusal = self.refusal(&claim);
        if seen.deleting && refusal.is_none() && !wanted.fed {
            // It is not made again, so nothing waits for its end: a finalizer may keep it for long.
            return Decision::new(Action::Nothing, DecisionReason::NotOurs, claim);
        }
        if !wanted.fed && self.prune {
            let decision = self.undesired(seen, entry, DecisionReason::Unfed);
            if decision.action == Action::Delete {
                return decision;
            }
        }
        let recorded = self.recorded_revision(wanted, seen, entry);
        let revision = self.stamp(wanted, recorded);
        let difference = self.difference(wanted, seen, &revision);
        let as_stamped = recorded.is_some_and(|recorded| self.difference(wanted, seen, recorded).is_empty());
        let over = self.other_rules(seen);
        let why = match self.origin(wanted, seen, entry, recorded.is_some(), as_stamped) {
            // First, because the limit of `--max-prune` counts what is emptied, also of those that are adopted by it.
            _ if !wanted.fed => DecisionReason::Unfed,
            _ if claim != Claim::Ours => DecisionReason::Adopted,
            DecisionReason::OtherRules if over.is_none() => DecisionReason::Changed,
            DecisionReason::OtherRules if self.was_written_over(record) => DecisionReason::TurnedBack,
            why => why,
        };
        let action = match refusal {
            Some(refusal) => Action::Refuse(refusal),
            None if seen.deleting => Action::Refuse(Refusal::Deleting),
            None if difference.is_empty() && self.has_our_metadata(wanted, seen) => Action::Nothing,
            // Also if only labels or annotations differ: a PUT has the whole object and is not immutable, which the API
            // server refuses.
            None if seen.immutable && self.recreate => Action::Recreate,
            None if seen.immutable => Action::Refuse(Refusal::Immutable),
            None => Action::Replace,
        };
        let why = if action == Action::Nothing { DecisionReason::Unchanged } else { why };
        let is_told =
            matches!(why, DecisionReason::OtherRules | DecisionReason::TurnedBack | DecisionReason::Unfed);
        let over = over.filter(|_| is_told).cloned();
        let moves = moves(wanted, seen, &difference, &action, why == DecisionReason::Drift);
        self.limit_repairs(Decision { action, why, claim, revision, difference, moves, over }, record)
    }

    /// The digest of the rules that an object was written under, if these are not the present ones.
    fn other_rules<'a>(&self, seen: &'a LiveConfigMap) -> Option<&'a String> {
        seen.annotations.get(names::RULES).filter(|rules| **rules != self.rules)
    }

    /// Returns true if the last write replaced or deleted what had been written under the present rules.
    fn was_written_over(&self, record: Option<&LastAttempt>) -> bool {
        record.and_then(|record| record.over.as_ref()).is_some_and(|over| *over == self.rules)
    }

    /// Why an object of this owner must not be written; `None` if it may be.
    fn refusal(&self, claim: &Claim) -> Option<Refusal> {
        match claim {
            claim if self.adopt.covers(claim) => None,
            Claim::Other(name) => Some(Refusal::Other(name.clone())),
            Claim::Prow => Some(Refusal::Prow),
            Claim::Nobody | Claim::Ours => Some(Refusal::Nobody),
        }
    }

    /// Who owns the ConfigMap. An object in the inventory that lost its labels is still ours.
    fn claim(&self, seen: &LiveConfigMap, entry: Option<&Entry>) -> Claim {
        match self.owner.claim(&seen.labels, &seen.annotations) {
            Claim::Prow | Claim::Nobody if entry.is_some_and(|entry| entry.uid == seen.uid) => Claim::Ours,
            claim => claim,
        }
    }

    /// The recorded revision of an object whose recorded digest is the desired one.
    fn recorded_revision<'a>(
        &self,
        wanted: &DesiredConfigMap,
        seen: &'a LiveConfigMap,
        entry: Option<&'a Entry>,
    ) -> Option<&'a str> {
        let is_ours = self.owner.claim(&seen.labels, &seen.annotations) == Claim::Ours;
        let digest = seen.annotations.get(names::DIGEST).filter(|_| is_ours);
        if digest.is_some_and(|digest| *digest != wanted.digest) {
            return None;
        }
        // The annotations take precedence: another of our instances may have written the object after the inventory.
        // Anybody may have annotated it, and the revision is written to the inventory: it has to be one.
        let annotated = digest.and_then(|_| seen.annotations.get(names::REVISION));
        let is_same = |entry: &&Entry| entry.uid == seen.uid && entry.is_verified_as(&wanted.digest);
        let listed = entry.filter(is_same).map(|entry| &entry.revision);
        let recorded = annotated.into_iter().chain(listed).find(|text| is_revision(text));
        recorded.map(String::as_str)
    }

    /// The revision to stamp with; `recorded` is the one on record for the desired data.
    fn stamp(&self, wanted: &DesiredConfigMap, recorded: Option<&str>) -> String {
        recorded.filter(|_| !self.stamps_every_revision(wanted)).unwrap_or(&self.revision).to_owned()
    }

    /// The difference to the desired content when stamped with `revision`.
    fn difference(&self, wanted: &DesiredConfigMap, seen: &LiveConfigMap, revision: &str) -> Difference {
        let mut difference = seen.content.difference(&wanted.data);
        for (key, value) in wanted.stamps(&self.shape, revision) {
            difference.removed.remove(&key);
            match seen.content.data.get(&key) {
                Some(there) if *there == value => {}
                Some(_) => drop(difference.changed.insert(key)),
                None => drop(difference.added.insert(key)),
            }
        }
        difference
    }

    /// Why an object of ours differs. `is_recorded`: the desired data is on record for it. `as_stamped`: its content
    /// is that data, stamped with the revision on record.
    fn origin(
        &self,
        wanted: &DesiredConfigMap,
        seen: &LiveConfigMap,
        entry: Option<&Entry>,
        is_recorded: bool,
        as_stamped: bool,
    ) -> DecisionReason {
        // Nobody wrote it since we verified it, so the difference comes from what is desired.
        let untouched = entry.is_some_and(|entry| entry.uid == seen.uid && entry.version == seen.version);
        let annotation = |name: &str| seen.annotations.get(name).map(String::as_str);
        let same_revision = annotation(names::REVISION) == Some(&self.revision);
        let other_data = annotation(names::DIGEST).is_some_and(|digest| *digest != wanted.digest);
        if is_recorded {
            if untouched {
                DecisionReason::OtherRules
            } else if as_stamped && self.has_our_metadata(wanted, seen) {
                DecisionReason::Changed // only the revision stamp differs
            } else {
                DecisionReason::Drift
            }
        } else if same_revision && other_data {
            DecisionReason::OtherRules
        } else {
            DecisionReason::Changed
        }
    }

    /// Returns true if labels and annotations are as we write them.
    fn has_our_metadata(&self, wanted: &DesiredConfigMap, seen: &LiveConfigMap) -> bool {
        let labels = self.owner.labels();
        labels.iter().all(|(key, value)| seen.labels.get(*key).is_some_and(|there| there == value))
            && seen.annotations.get(names::OWNER_NAME).is_some_and(|name| name == self.owner.name())
            && seen.annotations.get(names::DIGEST) == Some(&wanted.digest)
            && seen.annotations.get(names::REVISION).is_some_and(|text| is_revision(text))
    }

    /// Refuses a counted write while its target is over the repair limit.
    fn limit_repairs(&self, mut decision: Decision, record: Option<&LastAttempt>) -> Decision {
        let contested = record.and_then(|record| self.pace.repairs_over_limit(&record.repairs, self.now));
        if let (Some(times), true) = (contested, decision.writes() && decision.counts_toward_limit()) {
            decision.action = Action::Refuse(match decision.turns_back() {
                true => Refusal::TurnedBack(times),
                false => Refusal::Contested(times),
            });
        }
        decision
    }
}

/// What a ConfigMap that exists gains and loses.
fn moves(
    wanted: &DesiredConfigMap,
    seen: &LiveConfigMap,
    difference: &Difference,
    action: &Action,
    is_repair: bool,
) -> Moves {
    if *action == Action::Refuse(Refusal::Deleting) {
        // What it has now will be gone, so it gains all of its keys. Those that it has may have moved there before:
        // their names and contents like `true` would only hold back what others lose for their own reasons.
        let keys = wanted.data.values().keys().cloned();
        let (added, changed) = keys.partition(|key| difference.added.contains(key));
        let difference = Difference { added, changed, ..Difference::default() };
        return Moves::new(&difference, Some(&wanted.data), None, false);
    }
    let mut moves = Moves::new(difference, Some(&wanted.data), Some(&seen.content), is_repair);
    // It lacks its keys in every run. Their names, or a content like `true`, would for ever hold back whatever loses
    // the same.
    if matches!(action, Action::Refuse(Refusal::Other(_) | Refusal::Prow | Refusal::Nobody)) {
        moves.gain_telling_contents_only(&wanted.data);
    }
    moves
}

/// Returns true if a text is a full commit id.
fn is_revision(text: &str) -> bool {
    ObjectId::from_hex(text).is_some()
}
