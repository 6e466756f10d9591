//! What deliveries of ConfigMaps ask of a set: which of its sources say now that their refs are there, and whether a set
//! comes after another one.

use crate::configmap::apply::{PlacedSource, Placement};
use crate::mirror::{self, Part};
use crate::revision::{Relation, Revision};
use crate::sources::Recorded;

use super::{Followed, SourceError, SourceSet};

impl SourceSet {
    /// Where each source is placed in the set that was composed last, and which of them did not answer the last question.
    pub fn placement(&self) -> Placement {
        let placed = |source: &Followed| {
            let name = &source.listed.name;
            let part = self.parts.iter().find(|part| part.name == *name);
            let (_, why) = self.state_of(source);
            let answered = self.repositories.get(&source.mirror).and_then(|repository| repository.answered)
                >= self.asked;
            let why = why.or_else(|| (!answered).then(SourceError::unanswered));
            PlacedSource {
                name: name.clone(),
                to: part.map_or(&source.listed.to, |part| &part.to).clone(),
                revision: part.map(|part| part.revision),
                unanswered: why.map(|why| why.what),
            }
        };
        Placement::new(self.sources.iter().map(placed).collect())
    }

    /// How a set stands to one that was recorded: as its sources do. One that is new, or no more, makes no difference.
    ///
    /// # Errors
    /// When a remote that is asked for its history does not answer.
    pub async fn relation(
        &mut self,
        recorded: &Recorded,
        named: Revision,
    ) -> Result<Relation, mirror::Error> {
        let mut found = Relation::Ahead;
        let parts = self.composer.objects().parts(named);
        if recorded.sources.is_empty() || parts.is_empty() {
            return Ok(Relation::Unknown);
        }
        for part in &parts {
            let Some(before) = recorded.sources.get(&part.name).filter(|before| **before != part.revision)
            else {
                continue;
            };
            found = worse(found, self.relation_of(part, *before).await?);
        }
        Ok(found)
    }

    async fn relation_of(&self, part: &Part, before: Revision) -> Result<Relation, mirror::Error> {
        match self.repositories.get(&part.mirror).and_then(|repository| repository.idle()) {
            Some(mut mirror) => mirror.relation(before, part.revision).await,
            None => Ok(Relation::Unknown), // it is being asked, or followed no more
        }
    }
}

/// Of two relations, the one that says less for an advance.
fn worse(one: Relation, other: Relation) -> Relation {
    let rank = |relation: &Relation| match relation {
        Relation::Ahead => 0,
        Relation::Unknown => 1,
        Relation::Diverged => 2,
        Relation::UnknownToRemote => 3,
        Relation::Behind => 4,
    };
    std::cmp::max_by_key(one, other, rank)
}
