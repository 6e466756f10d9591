//! Limits how many mirrors index packs at the same time: one large pack and one small pack, because each indexing child
//! process may use `--index-memory`.
//!
//! A remote may be arbitrarily slow, so the beginning of a pack is received without a turn. If that is the whole pack,
//! as with a usual commit, its turn lasts milliseconds. The first pack of a repository is likely to be large, so its
//! turn is taken before the request is sent: otherwise the server would have to wait in the middle of the pack. A
//! remote that is slow during its turn delays other first packs, at most until its own deadline. The deadlines of those
//! others, of the poll and of the client, are later by as much ([`TurnWait`]): they are not to blame.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Mirror;

/// The turns that a set of mirrors takes.
#[derive(Debug, Default)]
pub(super) struct Turns {
    small: tokio::sync::Mutex<()>,
    large: tokio::sync::Mutex<()>,
}

/// One mirror's access to the turns that it shares with other mirrors.
#[derive(Debug)]
pub(super) struct IndexLimiter {
    turns: Arc<Turns>,
    turn_wait: TurnWait,
}

/// A mirror's turn to index a pack, until it is dropped.
type Turn<'a> = tokio::sync::MutexGuard<'a, ()>;

impl IndexLimiter {
    /// Bytes of a pack that are received before its turn, and kept in memory until then.
    pub(super) const BUFFERED: usize = 256 << 10;

    pub(super) fn new(turns: Arc<Turns>) -> Self {
        Self { turns, turn_wait: TurnWait::default() }
    }

    /// How long it has waited for turns.
    pub(super) fn turn_wait(&self) -> TurnWait {
        self.turn_wait.clone()
    }

    /// Waits for the turn of a pack that was received completely.
    pub(super) async fn small(&self) -> Turn<'_> {
        self.turn_wait.while_waiting(self.turns.small.lock()).await
    }

    /// Waits for the turn of a pack of which more is to be received.
    pub(super) async fn large(&self) -> Turn<'_> {
        self.turn_wait.while_waiting(self.turns.large.lock()).await
    }
}

/// How long a mirror has waited for its turns. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct TurnWait(Arc<Mutex<Waited>>);

#[derive(Debug, Default)]
struct Waited {
    before: Duration,
    /// Since when it is waiting.
    since: Option<Instant>,
}

impl TurnWait {
    /// The whole time so far.
    pub fn total(&self) -> Duration {
        let waited = self.lock();
        waited.before + waited.since.map(|since| since.elapsed()).unwrap_or_default()
    }

    /// Counts the time until the end of `turn`, or until it is dropped.
    pub(crate) async fn while_waiting<T>(&self, turn: impl Future<Output = T>) -> T {
        self.lock().since = Some(Instant::now());
        let _waiting = Waiting(self);
        turn.await
    }

    /// Runs `work` with a time limit that leaves out the time spent waiting for turns. `None` if it takes longer.
    pub(crate) async fn within<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        let start = Instant::now();
        let before = self.total();
        let mut work = std::pin::pin!(work);
        let mut waited = Duration::ZERO;
        loop {
            // A limit that is too long for the clock is none.
            let Some(deadline) = start.checked_add(limit.saturating_add(waited)) else {
                return Some(work.await);
            };
            if let Ok(done) = tokio::time::timeout_at(deadline, &mut work).await {
                return Some(done);
            }
            let now = self.total().saturating_sub(before);
            if now <= waited {
                return None;
            }
            waited = now;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waited> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner) // consistent after every step, so a panic does no harm
    }
}

/// Ends the waiting when it is dropped.
struct Waiting<'a>(&'a TurnWait);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let total = self.0.total();
        *self.0.lock() = Waited { before: total, since: None };
    }
}

impl Mirror {
    /// How long this mirror has waited for others to index their packs.
    pub fn turn_wait(&self) -> TurnWait {
        self.index_limiter.as_ref().map(|index_limiter| index_limiter.turn_wait()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::wire;
    use crate::revision::ObjectId;

    #[tokio::test(start_paused = true)]
    async fn the_time_until_a_turn_is_counted_and_also_while_it_lasts() {
        let turns = Arc::<Turns>::default();
        let [one, other] = [0, 1].map(|_| IndexLimiter::new(Arc::clone(&turns)));
        let seconds = Duration::from_secs;
        let turn = one.large().await;
        assert!(tokio::time::timeout(seconds(3), other.large()).await.is_err());
        assert_eq!(
            (one.turn_wait.total(), other.turn_wait.total()),
            (seconds(0), seconds(3)),
            "also of one that gave up"
        );
        tokio::join!(
            async {
                drop(other.large().await);
                tokio::time::sleep(seconds(5)).await;
            },
            async {
                tokio::time::sleep(seconds(2)).await;
                assert_eq!(other.turn_wait.total(), seconds(5), "while it waits");
                drop(turn);
            }
        );
        assert_eq!(other.turn_wait.total(), seconds(5));
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_that_another_remote_takes_does_not_count() {
        let seconds = Duration::from_secs;
        let turn_wait = TurnWait::default();
        let wait = |time| turn_wait.while_waiting(tokio::time::sleep(time));
        let fetch = async {
            wait(seconds(8)).await;
            tokio::time::sleep(seconds(3)).await;
            wait(seconds(30)).await;
            tokio::time::sleep(seconds(6)).await;
        };
        assert_eq!(turn_wait.within(seconds(10), fetch).await, Some(()));
        let slow = async {
            wait(seconds(30)).await;
            tokio::time::sleep(seconds(11)).await;
        };
        let start = Instant::now();
        assert_eq!(turn_wait.within(seconds(10), slow).await, None);
        assert_eq!(start.elapsed().as_secs(), 40, "its own time is as limited as ever");
    }

    #[tokio::test(start_paused = true)]
    async fn nor_does_it_count_for_the_limit_of_the_client() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let hour = Duration::from_secs(3_600);
        let mut options = wire::Options::new(format!("git://{}/x", silent.local_addr().unwrap()));
        options.timeouts = wire::Timeouts { connect: hour, idle: hour, overall: Duration::from_secs(10) };
        let turn_wait = TurnWait::default();
        let mut client = wire::Client::new(options).unwrap().excluding(turn_wait.clone());
        let request = wire::Request { wants: vec![ObjectId([1; 20])], ..wire::Request::default() };
        let start = Instant::now();
        let mut sink = tokio::io::sink();
        let fetch = client.fetch(&request, &mut sink);
        let wait = turn_wait.while_waiting(tokio::time::sleep(Duration::from_secs(30)));
        let (fetched, ()) = tokio::join!(fetch, wait);
        assert!(
            matches!(fetched, Err(wire::Error::Timeout { wait: wire::Wait::Overall, .. })),
            "{fetched:?}"
        );
        assert_eq!(start.elapsed().as_secs(), 40);
    }
}
