//! A cache of the relations of revisions.

use std::collections::HashMap;

use super::{Recorded, SourceError};
use crate::revision::{Relation, Revision};

/// The maximum number of cached pairs. A full cache is cleared.
const MOST: usize = 1_000;

/// Known relations of pairs of revisions. All clusters tend to ask for the same ones.
#[derive(Default, Debug)]
pub(super) struct Relations(HashMap<(Revision, Revision), Relation>);

impl Relations {
    /// Returns the relation of `revision` to `recorded`: the cached one, or the result of `answer`. The relation of two
    /// sets depends on which sources answer, and is not cached; nor is one that the remote may tell later.
    ///
    /// # Errors
    /// Those of `answer`.
    pub(super) async fn of(
        &mut self,
        recorded: &Recorded,
        revision: Revision,
        answer: impl Future<Output = Result<Relation, SourceError>>,
    ) -> Result<Relation, SourceError> {
        if !recorded.sources.is_empty() {
            return answer.await;
        }
        let pair = (recorded.revision, revision);
        if let Some(relation) = self.0.get(&pair) {
            return Ok(*relation);
        }
        let relation = answer.await?;
        // A replica of the remote may get the revision later, and the remote may have failed to tell the relation. The
        // mirror remembers those that stay unknown.
        if !matches!(relation, Relation::UnknownToRemote | Relation::Unknown) {
            if self.0.len() >= MOST {
                self.0.clear();
            }
            self.0.insert(pair, relation);
        }
        Ok(relation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::revision::ObjectId;

    #[tokio::test]
    async fn only_a_relation_that_stays_as_it_is_is_kept() {
        let revision = Revision(ObjectId([2; 20]));
        let recorded = Recorded { revision: Revision(ObjectId([1; 20])), sources: Default::default() };
        let mut relations = Relations::default();
        for (answer, expected) in [
            (Relation::Unknown, Relation::Unknown),
            (Relation::UnknownToRemote, Relation::UnknownToRemote),
            (Relation::Ahead, Relation::Ahead),
            (Relation::Unknown, Relation::Ahead),
        ] {
            let found = relations.of(&recorded, revision, async { Ok(answer) }).await.unwrap();
            assert_eq!(found, expected);
        }
    }
}
