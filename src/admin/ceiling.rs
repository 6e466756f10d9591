//! A ceiling on what clients can make the process hold. When one more comes, the oldest makes room: a genuine client
//! needs milliseconds, so slow ones cannot keep it out.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// At most `MAX` at one time, oldest first. Each is a token, which is cancelled to cut it, and which its owner cancels
/// when it ends.
#[derive(Default)]
pub(super) struct Ceiling<const MAX: usize>(Mutex<VecDeque<CancellationToken>>);

impl<const MAX: usize> Ceiling<MAX> {
    /// Adds one as the newest, also if it is there already. If there are too many, cuts the oldest.
    pub(super) fn enter(&self, token: &CancellationToken) {
        let mut queue = self.queue();
        queue.retain(|other| other != token && !other.is_cancelled());
        queue.push_back(token.clone());
        if queue.len() > MAX
            && let Some(oldest) = queue.pop_front()
        {
            oldest.cancel();
        }
    }

    /// Cuts the oldest that has not ended.
    pub(super) fn cut_oldest(&self) {
        let mut queue = self.queue();
        queue.retain(|token| !token.is_cancelled());
        if let Some(oldest) = queue.pop_front() {
            oldest.cancel();
        }
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<CancellationToken>> {
        // Poisoning is harmless: the queue is consistent after every step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_cut_unless_another_has_ended_and_none_counts_twice() {
        let ceiling = Ceiling::<2>::default();
        let [first, second, third, fourth] = std::array::from_fn(|_| CancellationToken::new());
        for token in [&first, &first, &first, &second, &first] {
            ceiling.enter(token);
        }
        assert!(!first.is_cancelled() && !second.is_cancelled());
        ceiling.enter(&third);
        assert!(second.is_cancelled() && !first.is_cancelled(), "the first has entered again since");
        third.cancel(); // it has ended
        ceiling.enter(&fourth);
        assert!(!first.is_cancelled() && !fourth.is_cancelled());
        first.cancel(); // it has ended
        ceiling.cut_oldest();
        assert!(fourth.is_cancelled(), "the oldest that had not ended");
    }
}
