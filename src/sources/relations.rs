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
    /// Returns the relation of `named` to `recorded`: the cached one, or the result of `answer`. The relation of two
    /// sets depends on which sources answer, and is not cached.
    ///
    /// # Errors
    /// Those of `answer`.
    pub(super) async fn of(
        &mut self,
        recorded: &Recorded,
        named: Revision,
        answer: impl Future<Output = Result<Relation, SourceError>>,
    ) -> Result<Relation, SourceError> {
        if !recorded.sources.is_empty() {
            return answer.await;
        }
        let pair = (recorded.revision, named);
        if let Some(relation) = self.0.get(&pair) {
            return Ok(*relation);
        }
        let relation = answer.await?;
        // A replica of the remote may get the revision later.
        if relation != Relation::UnknownToRemote {
            if self.0.len() >= MOST {
                self.0.clear();
            }
            self.0.insert(pair, relation);
        }
        Ok(relation)
    }
}
