//! The order of revisions, as far as it was asked for.

use std::collections::HashMap;

use super::{Recorded, SourceError};
use crate::revision::{Relation, Revision};

/// Pairs of revisions whose relation is remembered.
const MOST: usize = 1_000;

/// Relations of revisions that are known: each cluster asks the same.
#[derive(Default, Debug)]
pub(super) struct Relations(HashMap<(Revision, Revision), Relation>);

impl Relations {
    /// The relation of the second one to the first: remembered, or what `answer` says now. Of sets it depends on the
    /// sources that answer, and is not remembered.
    ///
    /// # Errors
    /// Those of the answer.
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
        // What a replica lacks now it may have in a moment.
        if relation != Relation::UnknownToRemote {
            if self.0.len() >= MOST {
                self.0.clear();
            }
            self.0.insert(pair, relation);
        }
        Ok(relation)
    }
}
