//! Writes the ConfigMaps of one namespace in waves, so that a key that moves from one to another is always in one of
//! them.

use std::collections::BTreeMap;

use futures_util::{StreamExt as _, stream};

use super::Worker;
use crate::cluster::Meta;
use crate::configmap::apply::{Action, Order, order};
use crate::deliver::report::{Outcome, Target};
use crate::deliver::set;
use crate::deliver::survey::{Item, NamespaceFailure, NamespaceSurvey};
use crate::deliver::write::{Writer, Written};
use crate::sources::DeliveryInput;

impl<S: DeliveryInput> Worker<S> {
    /// Notes the ConfigMaps that wait for each other, and which of them is written first all the same.
    pub(super) fn note_cycles(&mut self, survey: &NamespaceSurvey) {
        let (items, order) = write_order(survey);
        for broken in order.broken {
            let name = &items[broken].name;
            self.notes
                .add(format!("ConfigMaps of {} exchange keys; {name} is written first", survey.namespace));
        }
    }

    /// Writes one namespace in waves, so that a ConfigMap that gains a key is written before the one that loses it.
    pub(super) async fn write_namespace(
        &self,
        writer: &Writer<'_, S>,
        survey: &NamespaceSurvey,
    ) -> BTreeMap<String, Written> {
        let (items, order) = write_order(survey);
        let mut done = BTreeMap::new();
        // What was to be gained and was not, each with the first write that failed to.
        let mut missing: BTreeMap<usize, usize> = BTreeMap::new();
        for wave in &order.waves {
            let mut ready = Vec::new();
            for &write in wave {
                let item = items[write];
                let awaited = order.waits_for[write].iter().filter_map(|moved| missing.get(moved)).min();
                let held = awaited.filter(|_| item.decision.writes());
                let held = held.map(|&before| items[before].name.clone());
                ready.push(async move { (write, self.write_unless_held(writer, survey, item, held).await) });
            }
            let wave: Vec<(usize, Written)> =
                stream::iter(ready).buffer_unordered(self.options.concurrency.max(1)).collect().await;
            for (write, written) in wave {
                if !written.target.outcome.is_success() {
                    for &moved in &order.gains[write] {
                        missing.entry(moved).and_modify(|first| *first = write.min(*first)).or_insert(write);
                    }
                }
                done.insert(items[write].name.clone(), written);
            }
        }
        done
    }

    /// Writes one ConfigMap, unless `held` names another one that gains keys from it and could not be written, or the
    /// inventory could not list it before.
    async fn write_unless_held(
        &self,
        writer: &Writer<'_, S>,
        survey: &NamespaceSurvey,
        item: &Item,
        held: Option<String>,
    ) -> Written {
        let target = match (held, &survey.unlisted) {
            _ if writer.stopped().is_some() => None,
            (Some(other), _) => {
                let why = format!("keys move from it to {other}, which could not be written");
                let target = writer.target(&self.name, survey, item);
                Some(Target { transient: true, ..target.ended(Outcome::Held, why, Vec::new()) })
            }
            (None, Some(NamespaceFailure { why, hints, transient, cause, .. }))
                if set::is_unlisted(survey, item) =>
            {
                let why = format!("the inventory has to list it first: {why}");
                let target = writer.target(&self.name, survey, item);
                let target = target.ended(Outcome::Failed, why, hints.clone());
                Some(Target { transient: *transient, cause: cause.clone(), ..target })
            }
            _ => None,
        };
        match target {
            Some(target) => {
                Written { target, meta: item.meta.as_ref().map(Meta::identity), revision: String::new() }
            }
            None => writer.write(&self.name, survey, item).await,
        }
    }
}

/// Returns the items that take part in the write order, which are those that are written and those that should be but
/// are refused or held, and the order of their indices.
fn write_order(survey: &NamespaceSurvey) -> (Vec<&Item>, Order) {
    let takes_part = |item: &&Item| {
        item.decision.writes() || matches!(item.decision.action, Action::Refuse(_) | Action::Hold(_))
    };
    let items: Vec<&Item> = survey.items.iter().filter(takes_part).collect();
    let moves: Vec<_> = items.iter().map(|item| &item.decision.moves).collect();
    let order = order(&moves);
    (items, order)
}
