//! What deliveries of ConfigMaps ask of a set, and the status of its sources: where each is placed, which of them have
//! answered the last poll, and how two sets are related.

use super::{Followed, NamedCause, SetError, SourceError, SourceSet, of_source};
use crate::configmap::apply::{PlacedSource, Placement};
use crate::mirror::Part;
use crate::phase::SourceStatus;
use crate::revision::{Relation, Revision};
use crate::sources::Recorded;

impl SourceSet {
    /// Where each source is placed in the last composed set, and which of them did not answer the last poll.
    pub fn placement(&self) -> Placement {
        let placed = |source: &Followed| {
            let listed = &source.listed;
            let part = self.parts.iter().find(|part| part.name == listed.name);
            let to = part.map_or(&listed.to, |part| &part.to).clone();
            PlacedSource {
                name: listed.name.clone(),
                moves_to: (to != listed.to).then(|| listed.to.clone()),
                to,
                revision: part.map(|part| part.revision),
                unanswered: self.unanswered(source).map(|why| why.what),
            }
        };
        Placement::new(self.sources.iter().map(placed).collect())
    }

    /// Returns why it is not known whether the source's ref still names its commit in the set; `None` if the repository
    /// has answered since polls were last started, without an error.
    pub(super) fn unanswered(&self, source: &Followed) -> Option<SourceError> {
        let (_, why) = self.state_of(source);
        let repository = self.repositories.get(&source.mirror);
        let has_ended = repository.and_then(|repository| repository.ended_poll_began) >= self.polled_at;
        why.or_else(|| (!has_ended).then(|| self.not_answered()))
    }

    /// The status of each source, in the file's order. `current` is the published set; `has_failed` says whether the
    /// last attempt failed, so that newer commits may be known but not published.
    pub fn source_statuses(&self, current: Option<Revision>, has_failed: bool) -> Vec<SourceStatus> {
        let published = current.map(|current| self.composer.objects().parts(current)).unwrap_or_default();
        let row = |source: &Followed| {
            let Followed { listed, mirror, repo, .. } = source;
            let (named, why) = self.state_of(source);
            let cause = self.named_cause.as_ref().filter(
                |NamedCause { sources, of_set: (parts, unique), .. }| {
                    *parts == self.parts && *unique == self.unique && sources.contains(&listed.name)
                },
            );
            let why = why.or_else(|| cause.map(|cause| cause.why.clone()));
            let part = published.iter().find(|part| part.name == listed.name);
            let why = why.or_else(|| self.why_behind(&listed.name, named, part, has_failed));
            let repository = self.repositories.get(mirror);
            SourceStatus {
                name: listed.name.clone(),
                repo: repo.clone(),
                ref_name: listed.ref_text.clone(),
                path: listed.path.clone(),
                to: listed.to.clone(),
                revision: part.map(|part| part.revision),
                failing_since: repository.and_then(|repository| repository.failing_since),
                is_late: repository.is_some_and(|repository| repository.busy),
                last_answer: repository.map_or(self.never_answered, |repository| repository.last_answer),
                hints: why.as_ref().map(|why| why.hints.clone()).unwrap_or_default(),
                error: why.map(|why| why.what),
            }
        };
        self.sources.iter().map(row).collect()
    }

    /// Returns why a source that has not failed itself is not at the newest commit of its ref, or not known to be: its
    /// remote has not answered yet, or the attempt failed before that commit was published, perhaps because of another
    /// source. `named` is the commit that the ref named last, `part` what is published of the source.
    fn why_behind(
        &self,
        name: &str,
        named: Option<Revision>,
        part: Option<&Part>,
        has_failed: bool,
    ) -> Option<SourceError> {
        let Some(named) = named else { return Some(self.not_answered()) };
        // An attempt that ended because of another source has chosen no commit of this one.
        let chosen = self.parts.iter().find(|chosen| chosen.name == name && chosen.revision == named);
        let is_published =
            part.is_some_and(|part| part.revision == named && chosen.is_none_or(|chosen| chosen == part));
        (has_failed && !is_published).then(|| SourceError::unpublished(named))
    }

    /// Returns the relation of the set `revision` to a recorded one: of the relations of their commits of each source
    /// the worst one (see `worse`). A source that is new or no longer followed does not count, nor does one whose
    /// commit is the recorded one. Whether a source has answered since does not matter: the delivery that asks knows
    /// which of them had answered when it was planned.
    ///
    /// # Errors
    /// When a remote is asked for its history and does not answer.
    pub async fn relation(&mut self, recorded: &Recorded, revision: Revision) -> Result<Relation, SetError> {
        let parts = self.composer.objects().parts(revision);
        let shared = parts.iter().filter_map(|part| Some((part, *recorded.sources.get(&part.name)?)));
        let shared: Vec<(&Part, Revision)> = shared.collect();
        if shared.is_empty() {
            return Ok(Relation::Unknown);
        }
        let mut found = Relation::Ahead;
        for (part, before) in shared.into_iter().filter(|(part, before)| part.revision != *before) {
            let listed = self.sources.iter().find(|source| source.listed.name == part.name);
            let Some(source) = listed else { continue };
            let idle = self.repositories.get(&part.mirror).and_then(|repository| repository.idle());
            let Some(mut mirror) = idle else { return Err(self.failure_of(source, None, None)) };
            let of_part = mirror.relation(before, part.revision).await;
            found = worse(found, of_part.map_err(|error| of_source(&part.name, &error))?);
        }
        Ok(found)
    }
}

/// Returns the worse of two relations: the one that argues more strongly against an advance of the set.
fn worse(one: Relation, other: Relation) -> Relation {
    let rank = |relation: &Relation| match relation {
        Relation::Ahead => 0,
        Relation::Unknown => 1,
        Relation::Diverged => 2,
        Relation::Behind => 3,
        Relation::UnknownToRemote => 4,
    };
    std::cmp::max_by_key(one, other, rank)
}
