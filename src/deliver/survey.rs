//! Reads the live state of a namespace and decides on each of its ConfigMaps: reads the inventory (marker) and the
//! ledger, the metadata of all ConfigMaps that are desired or listed, and the content of only those whose
//! resourceVersion is not the one last verified.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::cause::Cause;
use super::memory_budget::{BudgetExceeded, MemoryBudget, Reservation};
use super::pauses::{Cancellation, retried};
use super::report::{Outcome, Target, namespace_failed};
use super::{Options, parse_revision};
use crate::cluster::{Cluster, ConfigMap, Error, Meta};
use crate::configmap::apply::{
    Action, Claim, Decision, DecisionReason, Desired, DesiredConfigMap, Entry, Ledger, LiveConfigMap, Marker,
    Policy, TooLong, is_proven_by_record, names,
};
use crate::human;
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
    pub(super) marker_outdated: bool,
    pub(super) marker: Marker,
    /// What earlier passes wrote or sent and the inventory does not list: it landed after another instance had dropped
    /// it from there.
    pub(super) late: BTreeMap<String, Entry>,
    /// The revision that the inventory records; `None` if there is none.
    pub(super) recorded: Option<Recorded>,
    /// The ledger's ConfigMap, if there is one.
    pub(super) ledger_meta: Option<Meta>,
    pub(super) ledger: Ledger,
    /// Sorted by name.
    pub(super) items: Vec<Item>,
    /// Why the inventory could not be written before the objects that it does not list; `None` if it was.
    pub(super) announce_failure: Option<NamespaceFailure>,
}

impl NamespaceSurvey {
    /// Returns true if any of its ConfigMaps is to be written.
    pub(super) fn has_writes(&self) -> bool {
        self.items.iter().any(|item| item.decision.writes())
    }

    /// Returns the ConfigMaps that appear in the report: those that exist, are to be written, or are desired.
    pub(super) fn reported_items(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(|item| {
            let is_fed = item.wanted.as_ref().is_some_and(|wanted| wanted.fed);
            is_fed || item.meta.is_some() || item.decision.writes()
        })
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
    /// Returns about how many bytes it keeps of what the server answered.
    fn bytes(&self) -> usize {
        // As differences and as moves.
        let removed = self.decision.difference.removed.iter().map(|key| 2 * (TEXT + key.len()));
        removed.sum::<usize>() + self.meta.as_ref().map_or(0, Meta::bytes)
    }
}

/// Why a namespace could not be read, must not be written, or its inventory could not be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NamespaceFailure {
    pub(super) why: String,
    pub(super) hints: Vec<String>,
    pub(super) transient: bool,
    /// The outcome of the namespace's targets: failed, refused or skipped.
    pub(super) outcome: Outcome,
    /// See [`Target::cause`].
    pub(super) cause: Option<Cause>,
}

impl NamespaceFailure {
    /// One that is not transient, and not known to be shared with others.
    pub(super) fn new(outcome: Outcome, why: String, hints: Vec<String>) -> Self {
        Self { why, hints, transient: false, outcome, cause: None }
    }

    pub(super) fn of(error: &Error) -> Self {
        let (transient, cause) = (error.is_transient(), Cause::of(error));
        Self { transient, cause, ..Self::new(Outcome::Failed, human::one_line(error), error.hints()) }
    }

    pub(super) fn refused(why: String, hint: &str) -> Self {
        Self::new(Outcome::Refused, why, vec![hint.to_owned()])
    }

    pub(super) fn skipped(why: String) -> Self {
        Self::new(Outcome::Skipped, why, Vec::new())
    }

    /// Returns the results of all targets that the revision has in the namespace.
    pub(super) fn targets(&self, pass: PassContext<'_>, namespace: &str) -> Vec<Target> {
        let targets = namespace_failed(pass.desired, pass.cluster_name, namespace, &self.why, &self.hints);
        targets.into_iter().map(|target| self.end(target)).collect()
    }

    /// Returns the result of a target that ends by this. It is also transient if the target was: see [`Target::of`].
    pub(super) fn end(&self, target: Target) -> Target {
        Target {
            transient: self.transient || target.transient,
            cause: self.cause.clone(),
            ..target.ended(self.outcome, self.why.as_str(), self.hints.clone())
        }
    }
}

impl From<BudgetExceeded> for NamespaceFailure {
    fn from(BudgetExceeded: BudgetExceeded) -> Self {
        let why = "it has more keys and metadata than are held in memory".to_owned();
        let hint = "look for ConfigMaps of ours with very many keys, labels or annotations".to_owned();
        Self::new(Outcome::Failed, why, vec![hint])
    }
}

impl From<Error> for NamespaceFailure {
    fn from(error: Error) -> Self {
        Self::of(&error)
    }
}

/// What the steps of one pass over a cluster share.
#[derive(Clone, Copy, Debug)]
pub(super) struct PassContext<'a> {
    /// The cluster's name in the rules.
    pub(super) cluster_name: &'a str,
    pub(super) cluster: &'a Cluster,
    pub(super) desired: &'a Desired,
    pub(super) options: &'a Options,
    pub(super) policy: &'a Policy,
    pub(super) cancel: &'a Cancellation,
    pub(super) memory: &'a MemoryBudget,
}

impl PassContext<'_> {
    /// Reads one namespace. `earlier` has what earlier passes wrote there.
    pub(super) async fn survey_namespace(
        &self,
        namespace: &str,
        earlier: BTreeMap<String, Entry>,
    ) -> Result<NamespaceSurvey, NamespaceFailure> {
        let config_maps = self.desired.of(self.cluster_name, namespace);
        let is_orphaned = config_maps.is_none();
        let none = BTreeMap::new();
        let config_maps = config_maps.unwrap_or(&none);
        let mut kept = self.memory.reserve(is_orphaned);
        let mut survey = self.survey_records(namespace, is_orphaned, &mut kept).await?;
        let spread = "spread the ConfigMaps over more namespaces";
        let refused = |why: TooLong, hint: &str| NamespaceFailure::refused(why.to_string(), hint);
        Marker::check(namespace, config_maps.keys()).map_err(|why| refused(why, spread))?;
        let known = config_maps.keys().chain(survey.marker.entries.keys()).chain(earlier.keys());
        let known: BTreeSet<&String> = known.collect();
        let names: Vec<&str> = known.iter().map(|name| name.as_str()).collect();
        let metas = retried(self.options, self.cancel, || self.cluster.survey(namespace, &names)).await?;
        let list_bytes = metas.values().map(Meta::bytes).sum::<usize>();
        kept.add(list_bytes)?;
        let hint = format!("delete by hand what no rule names any more, or {spread}");
        let listed = to_be_listed(&known, config_maps, &metas);
        Marker::check(namespace, listed).map_err(|why| refused(why, &hint))?;
        survey.late = late(&earlier, &survey.marker, &metas);
        let entries = survey.marker.entries.keys().chain(survey.late.keys());
        let names: BTreeSet<&String> = config_maps.keys().chain(entries).collect();
        let reads: Vec<_> = names
            .into_iter()
            .map(|name| self.item(&survey, name, config_maps.get(name), metas.get(name)))
            .collect();
        // The first that fails ends the reads: the namespace fails with it, and a server that hangs would hold up each.
        let mut items: Vec<Item> = stream::iter(reads)
            .buffer_unordered(self.options.concurrency.max(1))
            .map(|item| {
                let item = item?;
                kept.add(item.bytes())?;
                Ok::<_, NamespaceFailure>(item)
            })
            .try_collect()
            .await?;
        items.sort_by(|a, b| a.name.cmp(&b.name));
        let place = (self.cluster_name, namespace);
        let is_part = |item: &&mut Item| self.desired.is_part_of_left_out(place, &item.name);
        items.iter_mut().filter(is_part).for_each(leave_part);
        survey.items = items;
        kept.keep_all_but(list_bytes);
        Ok(survey)
    }

    /// Reads the inventory and the ledger of a namespace. The survey has no ConfigMaps yet.
    async fn survey_records(
        &self,
        namespace: &str,
        orphaned: bool,
        kept: &mut Reservation<'_>,
    ) -> Result<NamespaceSurvey, NamespaceFailure> {
        let owner = &self.policy.owner;
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
        let (ledger_meta, ledger) = match ledger {
            Some(object) => (Some(object.meta), Ledger::read(&object.content.data)),
            None => (None, Ledger::default()),
        };
        let names_another_cluster =
            |meta: &Meta| meta.annotations.get(names::CLUSTER).is_none_or(|name| name != self.cluster.name());
        Ok(NamespaceSurvey {
            namespace: namespace.to_owned(),
            orphaned,
            marker_outdated: marker_meta.as_ref().is_some_and(names_another_cluster),
            recorded: marker_meta.as_ref().and_then(|meta| recorded(&marker, meta)),
            marker_meta,
            marker,
            late: BTreeMap::new(),
            ledger_meta,
            ledger,
            items: Vec::new(),
            announce_failure: None,
        })
    }

    /// Reads a ConfigMap that holds our records; `None` if there is none. One of another owner is an error, so that it
    /// is not overwritten.
    async fn owned_record(
        &self,
        namespace: &str,
        name: String,
    ) -> Result<Option<ConfigMap>, NamespaceFailure> {
        let Some(object) = self.get(namespace, &name).await? else { return Ok(None) };
        match self.policy.owner.claim(&object.meta.labels, &object.meta.annotations) {
            Claim::Ours => Ok(Some(object)),
            _ => {
                let record = format!("the ConfigMap {namespace}/{name}");
                let why = format!("{record} is needed for the inventory, but has another owner");
                let hint = "delete it, or choose another --owner".to_owned();
                Err(NamespaceFailure::new(Outcome::Failed, why, vec![hint]))
            }
        }
    }

    /// Decides on one ConfigMap. Its content is read only if the inventory does not prove that it is as desired.
    async fn item(
        &self,
        survey: &NamespaceSurvey,
        name: &str,
        wanted: Option<&DesiredConfigMap>,
        meta: Option<&Meta>,
    ) -> Result<Item, Error> {
        let entry = survey.entry(name);
        let same_rules = survey.marker.rules == self.desired.rules;
        // With pruning, one that no file feeds is to be deleted, even if its content is proven.
        let provable = wanted.filter(|wanted| wanted.fed || !self.policy.prune);
        if let (Some(wanted), Some(meta), Some(proof)) = (provable, meta, entry)
            && is_proven_by_record(wanted, &meta.uid, &meta.resource_version, entry, same_rules)
            && !self.policy.needs_new_stamp(wanted, &proof.revision)
        {
            return Ok(Item {
                name: name.to_owned(),
                wanted: Some(wanted.clone()),
                meta: Some(meta.clone()),
                decision: Decision::unchanged(proof.revision.clone()),
            });
        }
        let object = match meta {
            Some(_) => self.get(&survey.namespace, name).await?,
            None => None,
        };
        let item = self.decide(survey, name, wanted, object);
        let is_sent_again = matches!(item.decision.action, Action::Replace | Action::Recreate);
        Ok(if is_sent_again {
            item
        } else {
            Item { meta: item.meta.map(Meta::without_long_annotations), ..item }
        })
    }

    /// Reads one ConfigMap again and decides again.
    pub(super) async fn reread(&self, survey: &NamespaceSurvey, item: &Item) -> Result<Item, Error> {
        let object = self.get(&survey.namespace, &item.name).await?;
        Ok(self.decide(survey, &item.name, item.wanted.as_ref(), object))
    }

    /// Decides on a ConfigMap as it was read; `None` if there is none.
    fn decide(
        &self,
        survey: &NamespaceSurvey,
        name: &str,
        wanted: Option<&DesiredConfigMap>,
        object: Option<ConfigMap>,
    ) -> Item {
        let live = object.as_ref().map(live_config_map);
        let record = survey.ledger.records.get(name);
        let mut decision = self.policy.decide(wanted, live.as_ref(), survey.entry(name), record);
        // While the inventory is damaged, it is not known which objects it listed.
        if !survey.marker.damaged.is_empty() && decision.action == Action::Delete {
            decision.action = Action::Nothing;
            decision.why = DecisionReason::NoRule;
        }
        let meta = object.map(|object| object.meta);
        Item { name: name.to_owned(), wanted: wanted.cloned(), meta, decision }
    }

    /// Reads a ConfigMap, with retries; `None` if there is none.
    pub(super) async fn get(&self, namespace: &str, name: &str) -> Result<Option<ConfigMap>, Error> {
        retried(self.options, self.cancel, || self.cluster.get(namespace, name)).await
    }

    /// Returns the result of a ConfigMap as decided, before it is written.
    pub(super) fn target(&self, survey: &NamespaceSurvey, item: &Item) -> Target {
        let digest = item.wanted.as_ref().map(|wanted| wanted.digest.clone()).unwrap_or_default();
        Target { digest, ..Target::of(self.cluster_name, &survey.namespace, &item.name, &item.decision) }
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

fn live_config_map(object: &ConfigMap) -> LiveConfigMap {
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
    fn a_part_of_what_is_left_out_is_not_deleted_and_what_is_not_ours_is_reported_as_before() {
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
