//! Reads the live state of a namespace and decides on each of its ConfigMaps: reads the inventory (marker) and the
//! ledger, the metadata of all ConfigMaps that are desired or listed, and the content of only those whose
//! resourceVersion is not the one last verified.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicIsize;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::cause::Cause;
use super::kept::{Kept, TooMuch};
use super::pauses::{Ending, retried};
use super::report::{Outcome, Target, Unread};
use super::{Options, parse_revision};
use crate::cluster::{Cluster, ConfigMap, Error, Meta};
use crate::configmap::apply::{
    Action, Claim, Decision, DecisionReason, Desired, DesiredConfigMap, Entry, Ledger, LiveConfigMap, Marker,
    Policy, TooLong, is_proven_by_record, names,
};
use crate::sources::Recorded;

/// What a key or a word costs in memory besides its text, in bytes.
const TEXT: usize = 64;

/// The live state of one namespace, and the decision on each ConfigMap.
#[derive(Debug)]
pub(super) struct NamespaceSurvey {
    pub(super) namespace: String,
    /// True if no rule names the namespace any more, and it was found by its inventory.
    pub(super) orphaned: bool,
    /// The inventory's ConfigMap, if there is one.
    pub(super) marker_meta: Option<Meta>,
    /// True if the inventory has to be written even if its entries stay: it names another context, as after a renaming,
    /// and pruning finds it by that name; or it records a revision that the ref was followed away from.
    pub(super) outdated: bool,
    pub(super) marker: Marker,
    /// What earlier passes wrote or sent and the inventory does not list: it landed after a peer had dropped it from
    /// there.
    pub(super) late: BTreeMap<String, Entry>,
    /// The revision that the inventory records; `None` if there is none.
    pub(super) recorded: Option<Recorded>,
    /// The ledger's ConfigMap, if there is one.
    pub(super) ledger_meta: Option<Meta>,
    pub(super) ledger: Ledger,
    /// Sorted by name.
    pub(super) items: Vec<Item>,
    /// Why the inventory could not be written before the objects that it does not list; `None` if it was.
    pub(super) unlisted: Option<NamespaceFailure>,
}

impl NamespaceSurvey {
    /// Returns true if any of its ConfigMaps is to be written.
    pub(super) fn has_writes(&self) -> bool {
        self.items.iter().any(|item| item.decision.writes())
    }

    /// Returns the decisions that the limit on deletions counts: all but those on what this delivery itself created.
    pub(super) fn counted_decisions(&self) -> impl Iterator<Item = &Decision> {
        let counted = self.items.iter().filter(move |item| !self.late.contains_key(&item.name));
        counted.map(|item| &item.decision)
    }

    /// Returns the entry of an object that we wrote: the inventory's or, without one, that of [`Self::late`].
    pub(super) fn entry(&self, name: &str) -> Option<&Entry> {
        self.marker.entries.get(name).or_else(|| self.late.get(name))
    }
}

/// The live state of a cluster.
#[derive(Default)]
pub(super) struct ClusterSurvey {
    pub(super) surveys: Vec<NamespaceSurvey>,
    /// Namespaces that could not be read, with the results of their targets.
    pub(super) refused: BTreeMap<String, Vec<Target>>,
    /// Other read failures, a line each.
    pub(super) failures: Vec<String>,
    /// Namespaces whose ConfigMaps are not known, besides `refused`.
    pub(super) unread: Unread,
}

impl ClusterSurvey {
    /// Adds a namespace that no rule names and that could not be read.
    pub(super) fn add_unpruned(&mut self, cluster: &str, namespace: &str, why: &str) {
        self.unread.add(namespace);
        self.failures.push(format!("cluster {cluster}: nothing is pruned in {namespace}: {why}"));
    }
}

/// One ConfigMap: its desired state, its live metadata, and the decision.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) name: String,
    /// The desired state; `None` if only the inventory lists it.
    pub(super) wanted: Option<DesiredConfigMap>,
    /// The live metadata; `None` if there is no such object.
    pub(super) meta: Option<Meta>,
    pub(super) decision: Decision,
}

impl Item {
    /// Returns true if the ConfigMap appears in the report: it exists, is to be written, or is desired.
    pub(super) fn is_reported(&self) -> bool {
        self.meta.is_some() || self.decision.writes() || self.wanted.as_ref().is_some_and(|wanted| wanted.fed)
    }

    /// Returns about how many bytes it keeps of what the server answered.
    fn bytes(&self) -> usize {
        // As differences and as moves.
        let removed = self.decision.difference.removed.iter().map(|key| 2 * (TEXT + key.len()));
        removed.sum::<usize>() + self.meta.as_ref().map_or(0, Meta::bytes)
    }
}

/// Why a namespace could not be read, or its inventory not be written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NamespaceFailure {
    pub(super) why: String,
    pub(super) hints: Vec<String>,
    pub(super) transient: bool,
    /// The outcome of the namespace's targets: failed or refused.
    pub(super) outcome: Outcome,
    /// See [`Target::cause`].
    pub(super) cause: Option<Cause>,
}

impl NamespaceFailure {
    pub(super) fn of(error: &Error) -> Self {
        Self {
            why: crate::human::one_line(error),
            hints: error.hints(),
            transient: error.is_transient(),
            outcome: Outcome::Failed,
            cause: Cause::of(error),
        }
    }
}

impl From<TooMuch> for NamespaceFailure {
    fn from(TooMuch: TooMuch) -> Self {
        let hint = "look for ConfigMaps of ours with very many keys, labels or annotations";
        Self {
            why: "it has more keys and metadata than are held in memory".to_owned(),
            hints: vec![hint.to_owned()],
            transient: false,
            outcome: Outcome::Failed,
            cause: None,
        }
    }
}

/// What all reads of one pass share.
#[derive(Clone, Copy, Debug)]
pub(super) struct SurveyContext<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) options: &'a Options,
    pub(super) policy: &'a Policy,
    pub(super) cancel: &'a Ending,
    /// How much may be kept, by [`super::kept::room`].
    pub(super) room: &'a [AtomicIsize; 2],
}

impl SurveyContext<'_> {
    /// Reads one namespace of the cluster that rules call `name`. `earlier` has what earlier passes wrote there.
    pub(super) async fn survey_namespace(
        &self,
        desired: &Desired,
        (name, namespace): (&str, &str),
        earlier: BTreeMap<String, Entry>,
    ) -> Result<NamespaceSurvey, NamespaceFailure> {
        let none = BTreeMap::new();
        let config_maps = desired.of(name, namespace).unwrap_or(&none);
        let owner = &self.policy.owner;
        let orphaned = desired.of(name, namespace).is_none();
        let mut kept = Kept::of_namespace(self.room, !orphaned);
        let (marker, ledger) = tokio::join!(
            self.owned_record(namespace, owner.marker()), //
            self.owned_record(namespace, owner.ledger())
        );
        let (marker, ledger) = (marker?, ledger?);
        for record in [&marker, &ledger].into_iter().flatten() {
            kept.add(record.bytes())?;
        }
        let (marker_meta, marker) = match marker {
            Some(object) => (Some(object.meta), Marker::read(&object.content.data)),
            None => (None, Marker::default()),
        };
        kept.add(marker.before.len() * TEXT)?;
        let is_other =
            |meta: &Meta| meta.annotations.get(names::CLUSTER).is_none_or(|name| name != self.cluster.name());
        let outdated = marker_meta.as_ref().is_some_and(is_other);
        let recorded = marker_meta.as_ref().and_then(|meta| recorded(&marker, meta));
        let (ledger_meta, ledger) = match ledger {
            Some(object) => (Some(object.meta), Ledger::read(&object.content.data)),
            None => (None, Ledger::default()),
        };
        let spread = "spread the ConfigMaps over more namespaces";
        Marker::check(namespace, config_maps.keys()).map_err(|why| too_long(&why, spread))?;
        let names: BTreeSet<&String> =
            config_maps.keys().chain(marker.entries.keys()).chain(earlier.keys()).collect();
        let all: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
        let metas = retried(self.options, self.cancel, || self.cluster.survey(namespace, &all)).await;
        let metas = metas.map_err(|error| NamespaceFailure::of(&error))?;
        let list_bytes = metas.values().map(Meta::bytes).sum::<usize>();
        kept.add(list_bytes)?;
        let hint = format!("delete by hand what no rule names any more, or {spread}");
        let listed = to_be_listed(&names, config_maps, &metas);
        Marker::check(namespace, listed).map_err(|why| too_long(&why, &hint))?;
        let late = late(&earlier, &marker, &metas);
        let same_rules = marker.rules == desired.rules;
        let mut reads = Vec::new();
        for name in names {
            let wanted = config_maps.get(name);
            let meta = metas.get(name);
            let entry = marker.entries.get(name).or_else(|| late.get(name));
            if wanted.is_none() && entry.is_none() {
                continue; // an earlier pass sent it, and it is not there, or what is there is another one
            }
            reads.push(self.item(namespace, name, wanted, meta, entry, &ledger, same_rules));
        }
        // The first that fails ends the reads: the namespace fails with it, and a server that hangs would hold up each.
        let mut items: Vec<Item> = stream::iter(reads)
            .buffer_unordered(self.options.concurrency.max(1))
            .map(|item| {
                let item = item.map_err(|error| NamespaceFailure::of(&error))?;
                kept.add(item.bytes())?;
                Ok::<_, NamespaceFailure>(item)
            })
            .try_collect()
            .await?;
        items.sort_by(|a, b| a.name.cmp(&b.name));
        let is_part = |item: &&mut Item| desired.is_part_of_left_out((name, namespace), &item.name);
        items.iter_mut().filter(is_part).for_each(leave_part);
        if !marker.damaged.is_empty() {
            items.iter_mut().for_each(never_delete);
        }
        kept.end(list_bytes);
        Ok(NamespaceSurvey {
            namespace: namespace.to_owned(),
            orphaned,
            marker_meta,
            outdated,
            marker,
            late,
            recorded,
            ledger_meta,
            ledger,
            items,
            unlisted: None,
        })
    }

    /// Reads a ConfigMap that holds our records; `None` if there is none. One of another owner is an error, so that it
    /// is not overwritten.
    async fn owned_record(
        &self,
        namespace: &str,
        name: String,
    ) -> Result<Option<ConfigMap>, NamespaceFailure> {
        let found = retried(self.options, self.cancel, || self.cluster.get(namespace, &name)).await;
        let Some(object) = found.map_err(|error| NamespaceFailure::of(&error))? else { return Ok(None) };
        match self.policy.owner.claim(&object.meta.labels, &object.meta.annotations) {
            Claim::Ours => Ok(Some(object)),
            _ => Err(NamespaceFailure {
                why: format!(
                    "the ConfigMap {namespace}/{name} is needed for the inventory, but has another owner"
                ),
                hints: vec!["delete it, or choose another --owner".to_owned()],
                transient: false,
                outcome: Outcome::Failed,
                cause: None,
            }),
        }
    }

    /// Decides on one ConfigMap. Its content is read only if the inventory does not prove that it is as desired.
    #[expect(clippy::too_many_arguments, reason = "what was read for the namespace, and one name in it")]
    async fn item(
        &self,
        namespace: &str,
        name: &str,
        wanted: Option<&DesiredConfigMap>,
        meta: Option<&Meta>,
        entry: Option<&Entry>,
        ledger: &Ledger,
        same_rules: bool,
    ) -> Result<Item, Error> {
        let record = ledger.records.get(name);
        // With pruning, one that no file feeds is to be deleted, even if its content is proven.
        if let (Some(wanted), Some(meta)) = (wanted.filter(|wanted| wanted.fed || !self.policy.prune), meta)
            && is_proven_by_record(wanted, &meta.uid, &meta.resource_version, entry, same_rules)
            && entry.is_some_and(|entry| !self.policy.needs_new_stamp(wanted, &entry.revision))
        {
            let revision = entry.map(|entry| entry.revision.clone()).unwrap_or_default();
            let decision = Decision::unchanged(revision);
            return Ok(Item {
                name: name.to_owned(),
                wanted: Some(wanted.clone()),
                meta: Some(meta.clone()),
                decision,
            });
        }
        let object = match meta {
            Some(_) => retried(self.options, self.cancel, || self.cluster.get(namespace, name)).await?,
            None => None,
        };
        let seen = object.as_ref().map(seen);
        let decision = self.policy.decide(wanted, seen.as_ref(), entry, record);
        let is_sent_again = matches!(decision.action, Action::Replace | Action::Recreate);
        let meta = object.map(|object| object.meta);
        let meta = if is_sent_again { meta } else { meta.map(Meta::without_long_annotations) };
        Ok(Item { name: name.to_owned(), wanted: wanted.cloned(), meta, decision })
    }

    /// Reads one ConfigMap again and decides again.
    pub(super) async fn reread(&self, survey: &NamespaceSurvey, item: &Item) -> Result<Item, Error> {
        let namespace = &survey.namespace;
        let name = &item.name;
        let object = retried(self.options, self.cancel, || self.cluster.get(namespace, name)).await?;
        let entry = survey.entry(name);
        let record = survey.ledger.records.get(name);
        let seen = object.as_ref().map(seen);
        let mut again = item.clone();
        again.decision = self.policy.decide(item.wanted.as_ref(), seen.as_ref(), entry, record);
        again.meta = object.map(|object| object.meta);
        if !survey.marker.damaged.is_empty() {
            never_delete(&mut again);
        }
        Ok(again)
    }
}

/// Returns those names that the inventory will list: of the ConfigMaps that no rule names, only those that exist.
fn to_be_listed<'n>(
    names: &'n BTreeSet<&'n String>,
    config_maps: &'n BTreeMap<String, DesiredConfigMap>,
    metas: &'n BTreeMap<String, Meta>,
) -> impl Iterator<Item = &'n String> {
    names.iter().copied().filter(move |name| config_maps.contains_key(*name) || metas.contains_key(*name))
}

/// Refuses a namespace whose inventory would be too large.
fn too_long(why: &TooLong, hint: &str) -> NamespaceFailure {
    NamespaceFailure {
        why: why.to_string(),
        hints: vec![hint.to_owned()],
        transient: false,
        outcome: Outcome::Refused,
        cause: None,
    }
}

/// Returns the revision that an inventory records and, with several sources, the commit of each.
fn recorded(marker: &Marker, meta: &Meta) -> Option<Recorded> {
    let sources = meta.annotations.get(names::SOURCES).and_then(|text| serde_json::from_str(text).ok());
    Some(Recorded { revision: parse_revision(&marker.revision)?, sources: sources.unwrap_or_default() })
}

/// Returns what earlier passes wrote or sent, is there, and is not listed by the inventory.
fn late(
    earlier: &BTreeMap<String, Entry>,
    marker: &Marker,
    metas: &BTreeMap<String, Meta>,
) -> BTreeMap<String, Entry> {
    let is_there = |name: &String, entry: &Entry| {
        let Some(meta) = metas.get(name) else { return false };
        entry.lists(&meta.uid, meta.annotations.get(names::DIGEST).map(String::as_str))
    };
    let is_late =
        |(name, entry): &(&String, &Entry)| !marker.entries.contains_key(*name) && is_there(name, entry);
    earlier.iter().filter(is_late).map(|(name, entry)| (name.clone(), entry.clone())).collect()
}

/// Leaves what may be a part of a ConfigMap that is left out as it is. If it is one, it is named by no rule only because
/// the whole is not split now.
fn leave_part(item: &mut Item) {
    if item.decision.why == DecisionReason::NoRule {
        let claim = item.decision.claim.clone();
        let unchanged = Decision::unchanged(String::new());
        item.decision = Decision { why: DecisionReason::PartOfLeftOut, claim, ..unchanged };
    }
}

/// Turns a deletion into no action. While the inventory is damaged, it is not known which objects it listed.
fn never_delete(item: &mut Item) {
    if item.decision.action == Action::Delete {
        item.decision.action = Action::Nothing;
        item.decision.why = DecisionReason::NoRule;
    }
}

fn seen(object: &ConfigMap) -> LiveConfigMap {
    LiveConfigMap {
        uid: object.meta.uid.clone(),
        version: object.meta.resource_version.clone(),
        labels: object.meta.labels.clone(),
        annotations: object.meta.annotations.clone(),
        immutable: object.immutable,
        deleting: object.meta.deleting,
        content: object.content.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{entry, survey};
    use super::*;

    #[test]
    fn what_is_kept_of_a_config_map_grows_with_its_metadata_and_with_keys_that_are_not_ours() {
        let mut item = survey("ci", Decision::unchanged(String::new())).items.remove(0);
        let before = item.bytes();
        item.decision.difference.removed = (0..100).map(|key| key.to_string()).collect();
        let with_keys = item.bytes();
        assert!(with_keys > before + 100 * TEXT);
        item.meta.as_mut().unwrap().annotations.insert("a".to_owned(), "x".repeat(1_000));
        assert!(item.bytes() > with_keys + 1_000);
    }

    #[test]
    fn what_an_earlier_pass_wrote_counts_where_that_very_object_is_there_and_not_listed() {
        let earlier = BTreeMap::from([("a".to_owned(), entry())]);
        let meta = |uid: &str| {
            let mut meta = Meta::default();
            meta.uid = uid.to_owned();
            BTreeMap::from([("a".to_owned(), meta)])
        };
        let (empty, listed) = (Marker::default(), survey("ci", Decision::unchanged(String::new())).marker);
        assert_eq!(late(&earlier, &empty, &meta("u1")), earlier);
        assert!(late(&earlier, &empty, &meta("u2")).is_empty(), "somebody else's");
        assert!(late(&earlier, &empty, &BTreeMap::new()).is_empty(), "it is gone");
        assert!(late(&earlier, &listed, &meta("u1")).is_empty());
        // Whether it was written was not known: what was to be written is.
        let sent = BTreeMap::from([("a".to_owned(), Entry::wanted("after"))]);
        for (digest, expected) in [("after", &sent), ("before", &BTreeMap::new())] {
            let mut metas = meta("u3");
            let annotations = &mut metas.get_mut("a").unwrap().annotations;
            annotations.insert(names::DIGEST.to_owned(), digest.to_owned());
            assert_eq!(late(&sent, &empty, &metas), *expected, "{digest}");
        }
    }

    #[test]
    fn an_inventory_keeps_no_room_for_what_is_neither_desired_nor_there() {
        let names = ["desired", "gone", "left"].map(str::to_owned);
        let mut item = survey("ci", Decision::unchanged(String::new())).items.remove(0);
        let config_maps = BTreeMap::from([(names[0].clone(), item.wanted.take().unwrap())]);
        let metas = BTreeMap::from([(names[2].clone(), item.meta.take().unwrap())]);
        let names: BTreeSet<&String> = names.iter().collect();
        let listed: Vec<&String> = to_be_listed(&names, &config_maps, &metas).collect();
        assert_eq!(listed, ["desired", "left"]);
    }

    #[test]
    fn the_limit_on_deletions_does_not_count_what_this_delivery_created() {
        let deleted = Decision { action: Action::Delete, ..Decision::unchanged(String::new()) };
        let mut survey = survey("ci", deleted);
        assert_eq!(survey.counted_decisions().count(), 1);
        survey.late = std::mem::take(&mut survey.marker.entries);
        assert_eq!(survey.counted_decisions().count(), 0);
    }

    #[test]
    fn a_part_of_what_is_left_out_is_not_deleted_and_what_is_not_ours_is_told_as_before() {
        for (action, why, expected) in [
            (Action::Delete, DecisionReason::NoRule, DecisionReason::PartOfLeftOut),
            (Action::Nothing, DecisionReason::NoRule, DecisionReason::PartOfLeftOut),
            (Action::Nothing, DecisionReason::NotOurs, DecisionReason::NotOurs),
        ] {
            let decision = Decision { action, why, ..Decision::unchanged(String::new()) };
            let mut item = survey("ci", decision).items.remove(0);
            leave_part(&mut item);
            assert_eq!((&item.decision.action, item.decision.why), (&Action::Nothing, expected));
            assert_eq!(Outcome::of(&item.decision), Outcome::Left);
        }
    }
}
