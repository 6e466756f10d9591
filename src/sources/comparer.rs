//! Compares revisions for deliveries next to a root.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::{Recorded, SourceError, Upstream};
use crate::retry::ErrorClass;
use crate::revision::{Relation, Revision};

/// Compares revisions of the ref, to tell an advance from a rewind. It holds the lock of the upstream while it asks, at
/// most for half the time limit of an attempt: an attempt that waits meanwhile has the other half. The time to get the
/// lock is not limited.
pub struct RevisionComparer {
    upstream: Arc<Mutex<Upstream>>,
    limit: Duration,
}

impl RevisionComparer {
    /// Uses the given upstream, with the time limit of an attempt.
    pub fn new(upstream: Arc<Mutex<Upstream>>, limit: Duration) -> Self {
        Self { upstream, limit: limit / 2 }
    }

    /// Returns the relation of `revision`, which the ref names, to a recorded one, from a mirror or a remote.
    ///
    /// # Errors
    /// When the remote does not answer, or not within the time limit. If the future is dropped, the lock is released.
    pub(super) async fn relation(
        &self,
        recorded: Recorded,
        revision: Revision,
    ) -> Result<Relation, SourceError> {
        let old = recorded.revision;
        let limit = self.limit;
        let cancel = CancellationToken::new();
        let _dropped = cancel.clone().drop_guard();
        let runtime = tokio::runtime::Handle::current();
        let mut upstream = Arc::clone(&self.upstream).lock_owned().await;
        // On a blocking thread, because a connection must stay on the thread that uses it.
        let task = tokio::task::spawn_blocking(move || {
            let asked = tokio::time::timeout(limit, upstream.relation(&recorded, revision));
            runtime.block_on(cancel.run_until_cancelled(asked))
        });
        let ended = match task.await {
            Ok(ended) => ended,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => None, // at shutdown, before it began
        };
        match ended.ok_or_else(SourceError::interrupted)? {
            Ok(found) => found.map_err(|error| SourceError::of_set(&error)),
            Err(_) => Err(timed_out(limit, old, revision)),
        }
    }
}

/// The error of a comparison that took longer than `limit`.
fn timed_out(limit: Duration, old: Revision, new: Revision) -> SourceError {
    let [old, new] = [old, new].map(|revision| revision.short());
    let seconds = limit.as_secs_f64();
    SourceError {
        what: format!("the remote did not answer within {seconds}s how {old} and {new} are related"),
        hints: vec!["it may take half of --sync-timeout: raise that to give it more time".to_owned()],
        class: ErrorClass::Timeout,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tokio::net::TcpListener;

    use super::*;
    use crate::human::assert_message_style;
    use crate::mirror::{self, wire};
    use crate::revision::{ObjectId, Ref};

    const A: Revision = Revision(ObjectId([0xab; 20]));
    const B: Revision = Revision(ObjectId([0xcd; 20]));

    #[tokio::test]
    async fn a_delivery_that_ends_while_it_compares_releases_the_upstream() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/remote", silent.local_addr().unwrap());
        let dir = tempfile::tempdir().unwrap();
        let options = mirror::Options::new(dir.path().join("mirror"), Ref::Head, wire::Options::new(url));
        let upstream = Arc::new(Mutex::new(Upstream::open(options, None).unwrap()));
        let comparer = RevisionComparer::new(Arc::clone(&upstream), Duration::from_secs(120));
        let recorded = Recorded { revision: A, sources: BTreeMap::new() };
        let _connection = tokio::select! {
            biased; // the indexing child, which is this test program, ends as soon as it has begun
            asked = silent.accept() => asked.unwrap(),
            answer = comparer.relation(recorded, B) => panic!("{answer:?}"),
        };
        let free = tokio::time::timeout(Duration::from_secs(10), upstream.lock()).await;
        assert!(free.is_ok(), "an attempt would wait for an answer that nobody needs");
    }

    #[test]
    fn a_remote_that_does_not_answer_in_time_is_a_timeout() {
        let error = timed_out(Duration::from_millis(250), A, B);
        assert_eq!(error.class, ErrorClass::Timeout);
        assert!(error.what.starts_with("the remote did not answer within 0.25s how abab"), "{error}");
        assert_message_style(&error, &error.hints);
    }
}
