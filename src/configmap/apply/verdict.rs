//! What to do with one ConfigMap, and why.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;

use super::super::compare::{Current, Difference};
use super::ledger::{Pace, Record};
use super::marker::Entry;
use super::names;
use super::order::Moves;
use super::owner::{Adopt, Claim, Owner};
use super::wish::{Shape, VersionKey, Wish};

/// A ConfigMap as it was read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// Which object it is: another one after a deletion.
    pub uid: String,
    /// Which state of it: another one after any write.
    pub version: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// Whether the API server lets nobody change its data.
    pub immutable: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// What is in it.
    pub current: Current,
}

/// What a verdict rests on besides the ConfigMap itself.
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
    /// The revision that the wishes are from.
    pub revision: String,
    /// Digest of the rules and the shape that the wishes are by.
    pub rules: String,
    /// What is written besides payloads.
    pub shape: Shape,
    /// How often a target may be repaired before that happens at a slower pace.
    pub pace: Pace,
    /// The time, for the pace alone.
    pub now: Timestamp,
}

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Deed {
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
    /// Not without a person.
    Refuse(Refusal),
}

/// Why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// Its content was looked at, or is known by uid and version, and is right.
    Right,
    /// It is not there.
    Absent,
    /// It is not there although we wrote it.
    Vanished,
    /// The revision or the rules ask for something else.
    Changed,
    /// Somebody else wrote it since we did.
    Drift,
    /// We wrote it, by other rules or options.
    OtherRules,
    /// The same, and it had been written by these before: they change back and forth, or two installations have our
    /// owner's name.
    TurnedBack,
    /// It was somebody else's and becomes ours.
    Adopted,
    /// No file feeds it any more.
    Unfed,
    /// No rule names it any more.
    NoRule,
    /// Nothing asks for it and nothing is there, or it is not ours.
    NotOurs,
}

/// Why not without a person.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// Another installation's.
    #[error("it belongs to the owner {0:?}")]
    Other(String),
    /// Prow's, and not to be adopted.
    #[error("it is Prow's")]
    Prow,
    /// Nobody's that we know of, and not to be adopted.
    #[error("it was not made by treeswap")]
    Nobody,
    /// Immutable, and not to be made again.
    #[error("it is immutable")]
    Immutable,
    /// On its way out.
    #[error("it is being deleted")]
    Deleting,
    /// Repaired too often.
    #[error("it is contested: it was repaired {0} times and written again by somebody else")]
    Contested(usize),
    /// Written back too often.
    #[error(
        "it is contested: {0} times rules or options of this owner changed back to what they had been before"
    )]
    TurnedBack(usize),
}

impl Refusal {
    /// What a person can do.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Other(_) => {
                "two installations never overwrite each other; let one rule set have it, or delete it there"
            }
            Self::Prow => {
                "--adopt=prow takes over what Prow's tools made; the plan shows the keys that would go"
            }
            Self::Nobody => {
                "--adopt=all takes over what nobody claims; the plan shows the keys that would go. Several repositories \
                 that feed one ConfigMap need targets of their own"
            }
            Self::Immutable => {
                "--recreate-immutable deletes it and makes it again; mounted Pods do not see that"
            }
            Self::Deleting => "the next run makes it again",
            Self::Contested(_) => {
                "find out who else writes it (managedFields tell); it is repaired again, but at a slower pace"
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
pub struct Verdict {
    /// What.
    pub deed: Deed,
    /// Why.
    pub why: Why,
    /// Whose it was when it was read.
    pub claim: Claim,
    /// The revision it is stamped with: where the payload is what it was, the one that it was before.
    pub revision: String,
    /// Keys that the deed adds, changes and removes.
    pub difference: Difference,
    /// What leaves it and what comes into it, for the order of writing.
    pub moves: Moves,
    /// The rules by which it was written, where these are others and the reason.
    pub over: Option<String>,
}

impl Verdict {
    fn new(deed: Deed, why: Why, claim: Claim) -> Self {
        Self {
            deed,
            why,
            claim,
            revision: String::new(),
            difference: Difference::default(),
            moves: Moves::default(),
            over: None,
        }
    }

    /// On what uid and version prove to be right.
    pub fn right(revision: String) -> Self {
        Self { revision, ..Self::new(Deed::Nothing, Why::Right, Claim::Ours) }
    }

    /// Whether it ends in a write.
    pub fn writes(&self) -> bool {
        matches!(self.deed, Deed::Create | Deed::Replace | Deed::Recreate | Deed::Delete)
    }

    /// Whether it puts right what somebody else did.
    pub fn repairs(&self) -> bool {
        matches!(self.why, Why::Vanished | Why::Drift)
    }

    /// Whether, where it happens often, it is to happen less often.
    pub fn is_counted(&self) -> bool {
        self.repairs() || self.why == Why::TurnedBack
    }

    /// Whether it leaves less of a ConfigMap than an empty one.
    pub fn empties(&self) -> bool {
        self.deed == Deed::Delete || (self.why == Why::Unfed && self.writes())
    }
}

/// Whether what was recorded of a ConfigMap is evidence enough that it is right, so that its content need not be read:
/// nobody wrote it since it was verified, and nothing else is asked of it.
pub fn unseen(wish: &Wish, uid: &str, version: &str, entry: Option<&Entry>, same_rules: bool) -> bool {
    same_rules
        && entry.is_some_and(|entry| {
            entry.uid == uid
                && entry.version == version
                && entry.digest == wish.digest
                && entry.wanted.is_none()
        })
}

impl Policy {
    /// The verdict on one ConfigMap: what is wished, what was read, what the inventory and the ledger say of it.
    pub fn judge(
        &self,
        wish: Option<&Wish>,
        seen: Option<&Seen>,
        entry: Option<&Entry>,
        record: Option<&Record>,
    ) -> Verdict {
        match (wish, seen) {
            (None, None) => Verdict::new(Deed::Nothing, Why::NotOurs, Claim::Nobody),
            (None, Some(seen)) => self.unwished(seen, entry, Why::NoRule),
            (Some(wish), None) if !wish.fed => Verdict::new(Deed::Nothing, Why::NotOurs, Claim::Nobody),
            (Some(wish), None) => self.absent(wish, entry, record),
            (Some(wish), Some(seen)) => self.there(wish, seen, entry, record),
        }
    }

    /// Whether what is stamped with a revision has to be looked at for the stamp alone.
    pub fn asks_again(&self, stamped: &str) -> bool {
        self.shape.version_key == VersionKey::Every && stamped != self.revision
    }

    /// Nothing asks for it any more.
    fn unwished(&self, seen: &Seen, entry: Option<&Entry>, why: Why) -> Verdict {
        let claim = self.claim(seen, entry);
        // Only the inventory says what may be deleted, and only for the very object that it names. Of one that was about
        // to be written it knows none yet: there our name on the object decides.
        let ours =
            claim == Claim::Ours && entry.is_some_and(|entry| entry.uid == seen.uid || entry.uid.is_empty());
        let (deed, why) = match (ours, self.prune) {
            (true, true) => (Deed::Delete, why),
            (true, false) => (Deed::Nothing, why),
            (false, _) => (Deed::Nothing, Why::NotOurs),
        };
        let mut verdict = Verdict::new(deed, why, claim);
        if verdict.deed == Deed::Delete {
            verdict.difference.removed = seen.current.keys().cloned().collect();
            verdict.moves = Moves::new(&verdict.difference, None, Some(&seen.current));
        }
        verdict
    }

    fn absent(&self, wish: &Wish, entry: Option<&Entry>, record: Option<&Record>) -> Verdict {
        let known = entry.filter(|entry| entry.digest == wish.digest && entry.wanted.is_none());
        let why = if known.is_some() { Why::Vanished } else { Why::Absent };
        let mut verdict = Verdict::new(Deed::Create, why, Claim::Ours);
        verdict.revision = self.stamp(known.map(|entry| entry.revision.as_str()));
        verdict.difference.added = wish.content(&self.shape, "").keys().cloned().collect();
        verdict.moves = Moves::new(&verdict.difference, Some(&wish.payload), None);
        self.paced(verdict, record)
    }

    fn there(&self, wish: &Wish, seen: &Seen, entry: Option<&Entry>, record: Option<&Record>) -> Verdict {
        let claim = self.claim(seen, entry);
        if !wish.fed && !self.adopt.covers(&claim) {
            return Verdict::new(Deed::Nothing, Why::NotOurs, claim);
        }
        let refusal = match &claim {
            claim if self.adopt.covers(claim) => None,
            Claim::Other(name) => Some(Refusal::Other(name.clone())),
            Claim::Prow => Some(Refusal::Prow),
            Claim::Nobody | Claim::Ours => Some(Refusal::Nobody),
        };
        if seen.deleting && refusal.is_none() {
            return Verdict::new(Deed::Refuse(Refusal::Deleting), Why::Changed, claim);
        }
        if !wish.fed && self.prune {
            let verdict = self.unwished(seen, entry, Why::Unfed);
            if verdict.deed == Deed::Delete {
                return verdict;
            }
        }
        let said = self.said(wish, seen, entry);
        let revision = self.stamp(said);
        let difference = self.difference(wish, seen, &revision);
        let as_stamped = said.is_some_and(|said| self.difference(wish, seen, said).is_empty());
        let over = seen.annotations.get(names::RULES).filter(|rules| **rules != self.rules);
        let why = match self.origin(wish, seen, entry, said.is_some(), as_stamped) {
            _ if claim != Claim::Ours => Why::Adopted,
            _ if !wish.fed => Why::Unfed,
            Why::OtherRules if over.is_none() => Why::Changed,
            Why::OtherRules if record.is_some_and(|record| record.over.as_ref() == Some(&self.rules)) => {
                Why::TurnedBack
            }
            why => why,
        };
        let deed = match refusal {
            Some(refusal) => Deed::Refuse(refusal),
            None if difference.is_empty() && self.named(wish, seen) => Deed::Nothing,
            None if seen.immutable && !difference.is_empty() && self.recreate => Deed::Recreate,
            None if seen.immutable && !difference.is_empty() => Deed::Refuse(Refusal::Immutable),
            None => Deed::Replace,
        };
        let why = if deed == Deed::Nothing { Why::Right } else { why };
        let over = over.filter(|_| matches!(why, Why::OtherRules | Why::TurnedBack)).cloned();
        let moves = Moves::new(&difference, Some(&wish.payload), Some(&seen.current));
        self.paced(Verdict { deed, why, claim, revision, difference, moves, over }, record)
    }

    /// Whose it is. One that we recorded and that lost its labels is still ours.
    fn claim(&self, seen: &Seen, entry: Option<&Entry>) -> Claim {
        match self.owner.claim(&seen.labels, &seen.annotations) {
            Claim::Prow | Claim::Nobody if entry.is_some_and(|entry| entry.uid == seen.uid) => Claim::Ours,
            claim => claim,
        }
    }

    /// The revision that is on record for this very payload.
    fn said<'a>(&self, wish: &Wish, seen: &'a Seen, entry: Option<&'a Entry>) -> Option<&'a str> {
        let named = self.owner.claim(&seen.labels, &seen.annotations) == Claim::Ours;
        match seen.annotations.get(names::DIGEST).filter(|_| named) {
            // What another instance of ours wrote meanwhile says so, whatever the inventory still has.
            Some(digest) if *digest == wish.digest => {
                seen.annotations.get(names::REVISION).map(String::as_str)
            }
            Some(_) => None,
            None => entry
                .filter(|entry| {
                    entry.digest == wish.digest && entry.wanted.is_none() && entry.uid == seen.uid
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
    fn difference(&self, wish: &Wish, seen: &Seen, revision: &str) -> Difference {
        let mut difference = seen.current.difference(&wish.payload);
        for (key, value) in wish.stamps(&self.shape, revision) {
            difference.removed.remove(&key);
            match seen.current.data.get(&key) {
                Some(there) if *there == value => {}
                Some(_) => drop(difference.changed.insert(key)),
                None => drop(difference.added.insert(key)),
            }
        }
        difference
    }

    /// Whose doing it is that one of ours differs. `said`: this very payload is on record for it; `as_stamped`: and it
    /// holds that, stamped with the revision on record.
    fn origin(&self, wish: &Wish, seen: &Seen, entry: Option<&Entry>, said: bool, as_stamped: bool) -> Why {
        // As we left it: what differs is what is asked of it.
        let untouched = entry.is_some_and(|entry| entry.uid == seen.uid && entry.version == seen.version);
        let annotation = |name: &str| seen.annotations.get(name).map(String::as_str);
        let same_revision = annotation(names::REVISION) == Some(&self.revision);
        let other_payload = annotation(names::DIGEST).is_some_and(|digest| *digest != wish.digest);
        match said {
            true if untouched => Why::OtherRules,
            true if as_stamped && self.named(wish, seen) => Why::Changed, // but for the revision in it
            true => Why::Drift,
            false if same_revision && other_payload => Why::OtherRules,
            false => Why::Changed,
        }
    }

    /// Whether labels and annotations are what we write.
    fn named(&self, wish: &Wish, seen: &Seen) -> bool {
        let labels = self.owner.labels();
        labels.iter().all(|(key, value)| seen.labels.get(*key).is_some_and(|there| there == value))
            && seen.annotations.get(names::OWNER_NAME).is_some_and(|name| name == self.owner.name())
            && seen.annotations.get(names::DIGEST) == Some(&wish.digest)
            && seen.annotations.contains_key(names::REVISION)
    }

    /// A repair waits where there were too many.
    fn paced(&self, mut verdict: Verdict, record: Option<&Record>) -> Verdict {
        let contested = record.and_then(|record| self.pace.contested(&record.repairs, self.now));
        if let (Some(times), true) = (contested, verdict.writes() && verdict.is_counted()) {
            verdict.deed = Deed::Refuse(match verdict.why {
                Why::TurnedBack => Refusal::TurnedBack(times),
                _ => Refusal::Contested(times),
            });
        }
        verdict
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Right => "it is right",
            Self::Absent => "it is not there",
            Self::Vanished => "somebody deleted it",
            Self::Changed => "it changed",
            Self::Drift => "somebody else wrote it",
            Self::OtherRules => "the rules or options changed",
            Self::TurnedBack => "the rules or options changed back",
            Self::Adopted => "it becomes ours",
            Self::Unfed => "no file feeds it any more",
            Self::NoRule => "no rule names it any more",
            Self::NotOurs => "it is not ours",
        })
    }
}
