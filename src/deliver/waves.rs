//! Writes the ConfigMaps of one namespace in waves, so that a key that moves from one to another is always in one of
//! them.

use std::collections::BTreeMap;

use futures_util::{StreamExt as _, stream};

use super::notes::Notes;
use super::report::{Outcome, Target};
use super::set;
use super::survey::{Item, NamespaceFailure, NamespaceSurvey};
use super::write::{Writer, Written};
use crate::configmap::apply::{Action, Order, order};
use crate::sources::DeliveryInput;

/// Notes the ConfigMaps that wait for each other, and which of them is written first all the same.
pub(super) fn note_cycles(survey: &NamespaceSurvey, notes: &mut Notes) {
    let (items, order) = write_order(survey);
    for broken in order.broken {
        let name = &items[broken].name;
        notes.add(format!("ConfigMaps of {} exchange keys; {name} is written first", survey.namespace));
    }
}

/// Writes one namespace in waves, so that a ConfigMap that gains a key is written before the one that loses it.
pub(super) async fn write_namespace<S: DeliveryInput>(
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
            let awaited = awaited.filter(|_| item.decision.writes());
            let awaited = awaited.map(|&before| items[before].name.clone());
            ready.push(async move { (write, write_unless_held(writer, survey, item, awaited).await) });
        }
        let concurrency = writer.pass.options.concurrency.max(1);
        let wave: Vec<(usize, Written)> = stream::iter(ready).buffer_unordered(concurrency).collect().await;
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

/// Writes one ConfigMap, unless it has to wait for `awaited`, which gains keys from it and could not be written, or the
/// inventory could not list it before.
async fn write_unless_held<S: DeliveryInput>(
    writer: &Writer<'_, S>,
    survey: &NamespaceSurvey,
    item: &Item,
    awaited: Option<String>,
) -> Written {
    let target = || writer.pass.target(survey, item);
    match (awaited, &survey.announce_failure) {
        _ if writer.stopped().is_some() => {} // the write reports why
        (Some(other), _) => {
            let why = format!("keys move from it to {other}, which could not be written");
            let held = target().ended(Outcome::Held, why, Vec::new());
            return Written::of(Target { transient: true, ..held }, item);
        }
        (None, Some(failure)) if set::is_unlisted(survey, item) => {
            let why = format!("the inventory has to list it first: {}", failure.why);
            return Written::of(NamespaceFailure { why, ..failure.clone() }.end(target()), item);
        }
        _ => {}
    }
    writer.write(survey, item).await
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
