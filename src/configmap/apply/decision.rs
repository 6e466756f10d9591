//! What to do with one ConfigMap, and why.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;

use super::super::compare::{Current, Difference};
use super::desired_state::{DesiredConfigMap, ExtraKeys, VersionKey};
use super::ledger::{LastAttempt, RepairLimit};
use super::names;
use super::order::Moves;
use super::owner::{Adopt, Claim, Owner};
use crate::marker::{Entry, RulesDigest};

/// A ConfigMap as it was read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LiveConfigMap {
    /// Which object it is: another one after a deletion.
    pub uid: String,
    /// Which state of it: another one after any write.
    pub version: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// Whether the API server refuses to change its data.
    pub immutable: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// What is in it.
    pub current: Current,
}

/// What a decision rests on besides the ConfigMap itself.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Who we are.
    pub owner: Owner,
    /// Whose ConfigMaps become ours.
    pub adopt: Adopt,
    /// Whether what no file and no rule feeds any more is deleted.
    pub prune: bool,
    /// Whether an immutable ConfigMap is deleted and made again.
    pub recreate: bool,
    /// The revision that what is desired is of.
    pub revision: String,
    /// Digest of the rules and extra keys that what is desired is by.
    pub rules: RulesDigest,
    /// What is written besides payloads.
    pub shape: ExtraKeys,
    /// How often a target may be repaired before that happens at a slower pace.
    pub pace: RepairLimit,
    /// The time, for the pace alone.
    pub now: Timestamp,
    /// Why what no rule names any more is not to be deleted now.
    pub deletions_held: Option<String>,
}

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// It is right, or not ours to touch.
    Nothing,
    /// POST.
    Create,
    /// PUT, with the version that was read.
    Replace,
    /// DELETE, with uid and version as preconditions, then POST.
    Recreate,
    /// DELETE, with uid and version as preconditions.
    Delete,
    /// An operator has to decide.
    Refuse(Refusal),
    /// It is to be written, and not now: why.
    Hold(String),
}

/// Why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DecisionReason {
    /// Its content was looked at, or is known by uid and version, and is right.
    Right,
    /// It is not there.
    Absent,
    /// It is not there although we wrote it.
    Vanished,
    /// The revision or the rules ask for something else.
    Changed,
    /// Another writer changed it since our last write.
    Drift,
    /// We wrote it, by other rules or options.
    OtherRules,
    /// The same, and it had been written by these before: they change back and forth, or two installations have our
    /// owner's name.
    TurnedBack,
    /// It had another owner and becomes ours.
    Adopted,
    /// No file feeds it any more.
    Unfed,
    /// No rule names it any more.
    NoRule,
    /// Nothing asks for it and nothing is there, or it is not ours.
    NotOurs,
}

/// Why an operator has to decide.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// Another installation's.
    #[error("it belongs to the owner {0:?}")]
    Other(String),
    /// Prow's, and not to be adopted.
    #[error("it is Prow's")]
    Prow,
    /// It has no known owner, and is not to be adopted.
    #[error("it was not made by treeswap")]
    Nobody,
    /// Immutable, and not to be made again.
    #[error("it is immutable")]
    Immutable,
    /// On its way out.
    #[error("it is being deleted")]
    Deleting,
    /// Repaired too often.
    #[error("it is contested: it was repaired {0} times and written again by another writer")]
    Contested(usize),
    /// Written back too often.
    #[error(
        "it is contested: {0} times rules or options of this owner changed back to what they had been before"
    )]
    TurnedBack(usize),
}

impl Refusal {
    /// What an operator can do.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Other(_) => {
                "two installations never overwrite each other; let one rule set have it, or delete it there"
            }
            Self::Prow => {
                "--adopt=prow takes over what Prow's tools made; the plan shows the keys that would go"
            }
            Self::Nobody => {
                "--adopt=all takes over what has no owner; the plan shows the keys that would go. If another \
                 installation made it: `--sources` feeds one ConfigMap from several repositories"
            }
            Self::Immutable => {
                "--recreate-immutable deletes it and makes it again; mounted Pods do not see that"
            }
            Self::Deleting => "the next run makes it again",
            Self::Contested(_) => {
                "find out who else writes it (managedFields name it); it is repaired again, but at a slower pace"
            }
            Self::TurnedBack(_) => {
                "give each installation an --owner of its own; if there is but one, it is written again at a slower pace"
            }
        }
    }

    /// Whether it may pass by itself.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Deleting)
    }
}

/// What to do with one ConfigMap.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision {
    /// What.
    pub action: Action,
    /// Why.
    pub why: DecisionReason,
    /// Whose it was when it was read.
    pub claim: Claim,
    /// The revision it is stamped with: where the payload is what it was, the one that it was before.
    pub revision: String,
    /// Keys that the action adds, changes and removes.
    pub difference: Difference,
    /// What leaves it and what comes into it, for the order of writing.
    pub moves: Moves,
    /// The rules by which it was written, where these are others and the reason.
    pub over: Option<String>,
}

impl Decision {
    fn new(action: Action, why: DecisionReason, claim: Claim) -> Self {
        Self {
            action,
            why,
            claim,
            revision: String::new(),
            difference: Difference::default(),
            moves: Moves::default(),
            over: None,
        }
    }

    /// On what uid and version prove to be right.
    pub fn unchanged(revision: String) -> Self {
        Self { revision, ..Self::new(Action::Nothing, DecisionReason::Right, Claim::Ours) }
    }

    /// Whether it ends in a write.
    pub fn writes(&self) -> bool {
        matches!(self.action, Action::Create | Action::Replace | Action::Recreate | Action::Delete)
    }

    /// Whether it repairs what another writer changed.
    pub fn repairs(&self) -> bool {
        matches!(self.why, DecisionReason::Vanished | DecisionReason::Drift)
    }

    /// Whether, where it happens often, it is to happen less often.
    pub fn is_counted(&self) -> bool {
        self.repairs() || self.why == DecisionReason::TurnedBack
    }

    /// Whether it leaves less of a ConfigMap than an empty one.
    pub fn empties(&self) -> bool {
        self.action == Action::Delete || (self.why == DecisionReason::Unfed && self.writes())
    }
}

/// Whether what was recorded of a ConfigMap is evidence enough that it is right, so that its content need not be read:
/// it was not written since it was verified, and nothing else is asked of it.
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
    /// The decision on one ConfigMap, from what is desired, what was read, what the inventory and the ledger say of it.
    pub fn decide(
        &self,
        wanted: Option<&DesiredConfigMap>,
        seen: Option<&LiveConfigMap>,
        entry: Option<&Entry>,
        record: Option<&LastAttempt>,
    ) -> Decision {
        let mut decision = self.decide_unheld(wanted, seen, entry, record);
        let held = wanted.map_or(self.deletions_held.as_ref(), |wanted| wanted.held.as_ref());
        if decision.writes()
            && let Some(why) = held
        {
            decision.action = Action::Hold(why.clone());
        }
        decision
    }

    fn decide_unheld(
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
            (Some(wanted), Some(seen)) => self.there(wanted, seen, entry, record),
        }
    }

    /// Whether what is stamped with a revision has to be looked at for the stamp alone.
    pub fn needs_new_stamp(&self, stamped: &str) -> bool {
        self.shape.version_key == VersionKey::Every && stamped != self.revision
    }

    /// Nothing asks for it any more.
    fn undesired(&self, seen: &LiveConfigMap, entry: Option<&Entry>, why: DecisionReason) -> Decision {
        let claim = self.claim(seen, entry);
        // Only the inventory says what may be deleted, and only for the very object that it names. Of one that was
        // about to be written it knows none yet: there our name on the object decides.
        let ours =
            claim == Claim::Ours && entry.is_some_and(|entry| entry.uid == seen.uid || entry.uid.is_empty());
        let (action, why) = match (ours, self.prune) {
            (true, true) => (Action::Delete, why),
            (true, false) => (Action::Nothing, why),
            (false, _) => (Action::Nothing, DecisionReason::NotOurs),
        };
        let mut decision = Decision::new(action, why, claim);
        if decision.action == Action::Delete {
            decision.difference.removed = seen.current.keys().cloned().collect();
            decision.moves = Moves::new(&decision.difference, None, Some(&seen.current));
        }
        decision
    }

    fn absent(
        &self,
        wanted: &DesiredConfigMap,
        entry: Option<&Entry>,
        record: Option<&LastAttempt>,
    ) -> Decision {
        let known = entry.filter(|entry| entry.digest == wanted.digest && entry.wanted.is_none());
        let why = if known.is_some() { DecisionReason::Vanished } else { DecisionReason::Absent };
        let mut decision = Decision::new(Action::Create, why, Claim::Ours);
        decision.revision = self.stamp(known.map(|entry| entry.revision.as_str()));
        decision.difference.added = wanted.content(&self.shape, "").keys().cloned().collect();
        decision.moves = Moves::new(&decision.difference, Some(&wanted.payload), None);
        self.limit_repairs(decision, record)
    }

    fn there(
        &self,
        wanted: &DesiredConfigMap,
        seen: &LiveConfigMap,
        entry: Option<&Entry>,
        record: Option<&LastAttempt>,
    ) -> Decision {
        let claim = self.claim(seen, entry);
        if !wanted.fed && !self.adopt.covers(&claim) {
            return Decision::new(Action::Nothing, DecisionReason::NotOurs, claim);
        }
        let refusal = match &claim {
            claim if self.adopt.covers(claim) => None,
            Claim::Other(name) => Some(Refusal::Other(name.clone())),
            Claim::Prow => Some(Refusal::Prow),
            Claim::Nobody | Claim::Ours => Some(Refusal::Nobody),
        };
        if seen.deleting && refusal.is_none() {
            return Decision::new(Action::Refuse(Refusal::Deleting), DecisionReason::Changed, claim);
        }
        if !wanted.fed && self.prune {
            let decision = self.undesired(seen, entry, DecisionReason::Unfed);
            if decision.action == Action::Delete {
                return decision;
            }
        }
        let said = self.recorded_revision(wanted, seen, entry);
        let revision = self.stamp(said);
        let difference = self.difference(wanted, seen, &revision);
        let as_stamped = said.is_some_and(|said| self.difference(wanted, seen, said).is_empty());
        let over = seen.annotations.get(names::RULES).filter(|rules| !self.rules.is(rules));
        let why = match self.origin(wanted, seen, entry, said.is_some(), as_stamped) {
            _ if claim != Claim::Ours => DecisionReason::Adopted,
            _ if !wanted.fed => DecisionReason::Unfed,
            DecisionReason::OtherRules if over.is_none() => DecisionReason::Changed,
            DecisionReason::OtherRules
                if record.and_then(|record| record.over.as_ref()).is_some_and(|over| self.rules.is(over)) =>
            {
                DecisionReason::TurnedBack
            }
            why => why,
        };
        let action = match refusal {
            Some(refusal) => Action::Refuse(refusal),
            None if difference.is_empty() && self.named(wanted, seen) => Action::Nothing,
            None if seen.immutable && !difference.is_empty() && self.recreate => Action::Recreate,
            None if seen.immutable && !difference.is_empty() => Action::Refuse(Refusal::Immutable),
            None => Action::Replace,
        };
        let why = if action == Action::Nothing { DecisionReason::Right } else { why };
        let over =
            over.filter(|_| matches!(why, DecisionReason::OtherRules | DecisionReason::TurnedBack)).cloned();
        let moves = Moves::new(&difference, Some(&wanted.payload), Some(&seen.current));
        self.limit_repairs(Decision { action, why, claim, revision, difference, moves, over }, record)
    }

    /// Whose it is. One that we recorded and that lost its labels is still ours.
    fn claim(&self, seen: &LiveConfigMap, entry: Option<&Entry>) -> Claim {
        match self.owner.claim(&seen.labels, &seen.annotations) {
            Claim::Prow | Claim::Nobody if entry.is_some_and(|entry| entry.uid == seen.uid) => Claim::Ours,
            claim => claim,
        }
    }

    /// The revision that is on record for this very payload.
    fn recorded_revision<'a>(
        &self,
        wanted: &DesiredConfigMap,
        seen: &'a LiveConfigMap,
        entry: Option<&'a Entry>,
    ) -> Option<&'a str> {
        let named = self.owner.claim(&seen.labels, &seen.annotations) == Claim::Ours;
        match seen.annotations.get(names::DIGEST).filter(|_| named) {
            // What another instance of ours wrote meanwhile says so, whatever the inventory still has.
            Some(digest) if *digest == wanted.digest => {
                seen.annotations.get(names::REVISION).map(String::as_str)
            }
            Some(_) => None,
            None => entry
                .filter(|entry| {
                    entry.digest == wanted.digest && entry.wanted.is_none() && entry.uid == seen.uid
                })
                .map(|entry| entry.revision.as_str()),
        }
    }

    /// The revision to stamp with.
    fn stamp(&self, said: Option<&str>) -> String {
        match (self.shape.version_key, said) {
            (VersionKey::Every, _) | (_, None) => self.revision.clone(),
            (_, Some(said)) => said.to_owned(),
        }
    }

    /// What differs, stamps included.
    fn difference(&self, wanted: &DesiredConfigMap, seen: &LiveConfigMap, revision: &str) -> Difference {
        let mut difference = seen.current.difference(&wanted.payload);
        for (key, value) in wanted.stamps(&self.shape, revision) {
            difference.removed.remove(&key);
            match seen.current.data.get(&key) {
                Some(there) if *there == value => {}
                Some(_) => drop(difference.changed.insert(key)),
                None => drop(difference.added.insert(key)),
            }
        }
        difference
    }

    /// Who changed one of ours that differs. `said`: this very payload is on record for it; `as_stamped`: and it
    /// holds that, stamped with the revision on record.
    fn origin(
        &self,
        wanted: &DesiredConfigMap,
        seen: &LiveConfigMap,
        entry: Option<&Entry>,
        said: bool,
        as_stamped: bool,
    ) -> DecisionReason {
        // As we left it: what differs is what is asked of it.
        let untouched = entry.is_some_and(|entry| entry.uid == seen.uid && entry.version == seen.version);
        let annotation = |name: &str| seen.annotations.get(name).map(String::as_str);
        let same_revision = annotation(names::REVISION) == Some(&self.revision);
        let other_payload = annotation(names::DIGEST).is_some_and(|digest| *digest != wanted.digest);
        match said {
            true if untouched => DecisionReason::OtherRules,
            true if as_stamped && self.named(wanted, seen) => DecisionReason::Changed, // but for the revision in it
            true => DecisionReason::Drift,
            false if same_revision && other_payload => DecisionReason::OtherRules,
            false => DecisionReason::Changed,
        }
    }

    /// Whether labels and annotations are what we write.
    fn named(&self, wanted: &DesiredConfigMap, seen: &LiveConfigMap) -> bool {
        let labels = self.owner.labels();
        labels.iter().all(|(key, value)| seen.labels.get(*key).is_some_and(|there| there == value))
            && seen.annotations.get(names::OWNER_NAME).is_some_and(|name| name == self.owner.name())
            && seen.annotations.get(names::DIGEST) == Some(&wanted.digest)
            && seen.annotations.contains_key(names::REVISION)
    }

    /// A repair waits where there were too many.
    fn limit_repairs(&self, mut decision: Decision, record: Option<&LastAttempt>) -> Decision {
        let contested = record.and_then(|record| self.pace.repairs_over_limit(&record.repairs, self.now));
        if let (Some(times), true) = (contested, decision.writes() && decision.is_counted()) {
            decision.action = Action::Refuse(match decision.why {
                DecisionReason::TurnedBack => Refusal::TurnedBack(times),
                _ => Refusal::Contested(times),
            });
        }
        decision
    }
}

impl fmt::Display for DecisionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Right => "it is right",
            Self::Absent => "it is not there",
            Self::Vanished => "it was deleted by another writer",
            Self::Changed => "it changed",
            Self::Drift => "it was changed by another writer",
            Self::OtherRules => "the rules or options changed",
            Self::TurnedBack => "the rules or options changed back",
            Self::Adopted => "it becomes ours",
            Self::Unfed => "no file feeds it any more",
            Self::NoRule => "no rule names it any more",
            Self::NotOurs => "it is not ours",
        })
    }
}
