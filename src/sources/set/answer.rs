//! What deliveries of ConfigMaps ask of a set, and what people are told of it: how each source is, which of them say now
//! that their refs are there, and whether a set comes after another one.

use super::{Collided, Followed, SetError, SourceError, SourceSet, of_source};
use crate::configmap::apply::{PlacedSource, Placement};
use crate::mirror::Part;
use crate::phase::SourceStatus;
use crate::revision::{Relation, Revision};
use crate::sources::Recorded;

impl SourceSet {
    /// Where each source is placed in the set that was composed last, and which of them did not answer the last question.
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

    /// Why it is not known that a source's ref names what is in the set, asked since the last question was put.
    pub(super) fn unanswered(&self, source: &Followed) -> Option<SourceError> {
        let (_, why) = self.state_of(source);
        let repository = self.repositories.get(&source.mirror);
        let has_answered = repository.and_then(|repository| repository.answered) >= self.asked;
        why.or_else(|| (!has_answered).then(SourceError::unanswered))
    }

    /// How each source is, in the file's order. `current` is the set that serves; `has_failed` whether it stays so
    /// although another one was chosen.
    pub fn rows(&self, current: Option<Revision>, has_failed: bool) -> Vec<SourceStatus> {
        let serves = current.map(|current| self.composer.objects().parts(current)).unwrap_or_default();
        let row = |source: &Followed| {
            let Followed { listed, mirror, repo, .. } = source;
            let (_, why) = self.state_of(source);
            let collided =
                self.collided.as_ref().filter(|Collided { names, of: (parts, unique), .. }| {
                    *parts == self.parts && *unique == self.unique && names.contains(&listed.name)
                });
            let why = why.or_else(|| collided.map(|collided| collided.why.clone()));
            let part = serves.iter().find(|part| part.name == listed.name);
            let chosen = self.parts.iter().find(|part| part.name == listed.name);
            let why = why.or_else(|| {
                chosen.filter(|chosen| has_failed && part != Some(*chosen)).map(SourceError::unpublished)
            });
            let repository = self.repositories.get(mirror);
            SourceStatus {
                name: listed.name.clone(),
                repo: repo.clone(),
                asked: listed.asked.clone(),
                path: listed.path.clone(),
                to: listed.to.clone(),
                revision: part.map(|part| part.revision),
                failing_since: repository.and_then(|repository| repository.failing_since),
                is_late: repository.is_some_and(|repository| repository.busy),
                heard: repository.map_or(self.opened, |repository| repository.heard),
                hints: why.as_ref().map(|why| why.hints.clone()).unwrap_or_default(),
                error: why.map(|why| why.what),
            }
        };
        self.sources.iter().map(row).collect()
    }

    /// How a set stands to one that was recorded: as its sources do. One that is new, or followed no more, counts for
    /// nothing, nor does one that did not answer: nothing is written of it.
    ///
    /// # Errors
    /// When a remote that is asked for its history does not answer.
    pub async fn relation(&mut self, recorded: &Recorded, named: Revision) -> Result<Relation, SetError> {
        let parts = self.composer.objects().parts(named);
        let shared = parts.iter().filter_map(|part| Some((part, *recorded.sources.get(&part.name)?)));
        let shared: Vec<(&Part, Revision)> = shared.collect();
        if shared.is_empty() {
            return Ok(Relation::Unknown);
        }
        let mut found = Relation::Ahead;
        for (part, before) in shared.into_iter().filter(|(part, before)| part.revision != *before) {
            let source = self.sources.iter().find(|source| source.listed.name == part.name);
            if source.is_some_and(|source| self.unanswered(source).is_none()) {
                found = worse(found, self.relation_of(part, before).await?);
            }
        }
        Ok(found)
    }

    async fn relation_of(&self, part: &Part, before: Revision) -> Result<Relation, SetError> {
        match self.repositories.get(&part.mirror).and_then(|repository| repository.idle()) {
            Some(mut mirror) => {
                let found = mirror.relation(before, part.revision).await;
                found.map_err(|error| of_source(&part.name, &error))
            }
            None => Err(SetError::Source { name: part.name.clone(), source: SourceError::unanswered() }),
        }
    }
}

/// Of two relations, the one that says less for an advance.
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
