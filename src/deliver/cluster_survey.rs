//! Reads the live state of a cluster: of the namespaces that the revision has ConfigMaps for and, if pruning, of those
//! that no rule names any more.

use std::collections::BTreeMap;

use futures_util::future;

use super::aliases::Aliases;
use super::earlier_writes::EarlierWrites;
use super::notes::Notes;
use super::orphaned;
use super::report::{Target, Unread};
use super::survey::{NamespaceFailure, NamespaceSurvey, PassContext};
use crate::human;

/// How much of the names of an inventory's damaged keys is shown, in characters.
const NAMES_MAX: usize = 200;

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

/// Reads all these namespaces. One that cannot be read fails by itself. `earlier` has what earlier passes wrote.
pub(super) async fn survey_cluster(
    pass: PassContext<'_>,
    aliases: &Aliases,
    earlier: &EarlierWrites,
    notes: &mut Notes,
) -> ClusterSurvey {
    let mut found = ClusterSurvey::default();
    let mut namespaces: Vec<String> = pass.desired.namespaces(pass.cluster_name).map(str::to_owned).collect();
    let is_unneeded = namespaces.is_empty();
    let mut orphans_unknown = None;
    let mut without_inventory: Vec<String> = Vec::new();
    if pass.options.prune {
        match orphaned::find(pass, aliases).await {
            Ok(orphans) => {
                namespaces.extend(orphans.namespaces);
                for (namespace, error) in orphans.unclear {
                    found.add_unpruned(pass, &namespace, &human::one_line(&error));
                }
            }
            Err(error) => orphans_unknown = Some(error),
        }
        // Another instance may have deleted the inventory of one in which an earlier pass wrote.
        let is_new = |namespace: &&String| !namespaces.contains(namespace);
        without_inventory.extend(earlier.namespaces().filter(is_new).cloned());
        namespaces.extend_from_slice(&without_inventory);
    }
    let surveys =
        namespaces.iter().map(|namespace| pass.survey_namespace(namespace, earlier.entries(namespace)));
    let surveys = future::join_all(surveys).await;
    for (namespace, survey) in namespaces.into_iter().zip(surveys) {
        match survey {
            // Its inventory did not count above, or nothing that we wrote is there.
            Ok(survey)
                if without_inventory.contains(&namespace)
                    && (survey.marker_meta.is_some() || survey.late.is_empty()) => {}
            Ok(survey) => found.add(pass, survey, notes),
            Err(failure) => found.add_unreadable(pass, namespace, &failure, notes),
        }
    }
    if let Some(error) = orphans_unknown {
        // What there may be besides stays on record, unless it will never be known.
        if !orphaned::is_denied(&error) {
            let read = found.surveys.iter().map(|survey| survey.namespace.clone());
            found.unread = Unread::AllBut(read.collect());
        }
        found.failures.extend(orphaned::report_unknown(&error, is_unneeded, notes));
    }
    found
}

impl ClusterSurvey {
    fn add(&mut self, pass: PassContext<'_>, survey: NamespaceSurvey, notes: &mut Notes) {
        if !survey.marker.damaged.is_empty() {
            let names: Vec<_> = survey.marker.damaged.keys().cloned().collect();
            let names = human::sanitize(&names.join(", "), NAMES_MAX);
            let (namespace, marker) = (&survey.namespace, pass.policy.owner.marker());
            notes.add(format!(
                "the inventory {namespace}/{marker} cannot be read at {names}: nothing is deleted there"
            ));
        }
        self.surveys.push(survey);
    }

    /// Adds a namespace that could not be read.
    fn add_unreadable(
        &mut self,
        pass: PassContext<'_>,
        namespace: String,
        failure: &NamespaceFailure,
        notes: &mut Notes,
    ) {
        if pass.desired.of(pass.cluster_name, &namespace).is_some() {
            let targets = failure.targets(pass, &namespace);
            self.refused.insert(namespace, targets);
        } else if failure.transient {
            self.add_unpruned(pass, &namespace, &failure.why);
        } else {
            orphaned::report_unreadable(&namespace, failure, notes);
        }
    }

    /// Adds a namespace that no rule names and that could not be read.
    fn add_unpruned(&mut self, pass: PassContext<'_>, namespace: &str, why: &str) {
        self.unread.add(namespace);
        let cluster = pass.cluster_name;
        self.failures.push(format!("cluster {cluster}: nothing is pruned in {namespace}: {why}"));
    }
}
