//! A2: asks the remotes what their refs name. Also what becomes of a refused set: one of its sources is held back.

use std::time::{Duration, Instant};

use super::{Bounds, Stage, Worker};
use crate::human::one_line;
use crate::mirror::{self, Tip};
use crate::store::Error as StoreError;
use crate::sync::error::Error;

/// How long the remote is asked in an attempt that could not begin. It is a time of its own: the preparation may have
/// used up that of the attempt, and its failure is reported only after this. An answer takes a round trip or two.
const ASK_LIMIT: Duration = Duration::from_secs(10);

impl Worker {
    /// Asks the remotes what the refs name, and updates the view with their answers.
    pub(super) async fn resolve(&mut self, bounds: &Bounds) -> Result<Tip, Error> {
        let began = Instant::now();
        let kept = self.kept_revisions();
        let current = self.view.revision();
        let served =
            self.view.current().into_iter().flat_map(|record| record.sources.keys().cloned()).collect();
        let mut upstream = self.upstream(bounds, Stage::Resolve).await?;
        upstream.begin_attempt();
        upstream.set_served(served);
        let resolved = bounds.network(Stage::Resolve, upstream.resolve(current, &kept)).await;
        self.view.sources = upstream.source_statuses(current, false);
        self.placement = upstream.placement();
        self.was_answered = resolved.as_ref().map_or_else(Error::is_no_such_ref, |_| true);
        let tip = resolved?;
        self.metrics.took("resolve", began.elapsed());
        Ok(tip)
    }

    /// Asks the remote although `error` ends the attempt: how long the remote has not answered does not depend on the
    /// root. It gets bounds of its own, so that the attempt's stage stays the one that failed.
    pub(super) async fn resolve_after_failure(&mut self, bounds: &Bounds, error: &Error) {
        // A set fetches what is new, into mirrors that it would make in whatever has the place of the root.
        if self.has_sources && error.is_root_missing() {
            return;
        }
        let own = Bounds::new(ASK_LIMIT.min(bounds.limit), bounds.draining.clone());
        let _ = self.resolve(&own).await; // the attempt has its error already
    }

    /// Holds back the source whose new commit `error` is about, so that the others can be published. Returns the tip of
    /// the set that is to be composed instead, or the error if there is no such source. The remotes are not asked again:
    /// each push would begin the search for that source anew, and while there are pushes it would not end.
    pub(super) async fn hold_back(&mut self, bounds: &Bounds, error: Error) -> Result<Tip, Error> {
        let (upstream, tip) = match error {
            Error::Mirror(mirror::Error::Refused(refusal)) => {
                let mut upstream = self.upstream(bounds, bounds.stage()).await?;
                let tip = upstream.hold_back(refusal)?;
                (upstream, tip)
            }
            Error::Store(error @ (StoreError::Collision { .. } | StoreError::Folded { .. })) => {
                let hints = error.hints();
                let mut upstream = self.upstream(bounds, bounds.stage()).await?;
                let Some(tip) = upstream.hold_back_one_updated(&one_line(&error), &hints) else {
                    return Err(error.into());
                };
                (upstream, tip)
            }
            error => return Err(error),
        };
        self.placement = upstream.placement();
        Ok(tip)
    }
}
