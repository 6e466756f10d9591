//! A cache of contents with a memory budget. The base of most deltas is an object that was seen shortly before.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// An upper bound for the memory that a cached content takes in addition to its bytes. Without it, small contents would
/// seem to cost nothing.
const OVERHEAD: usize = 128;

fn cost(content: &Vec<u8>) -> usize {
    content.capacity() + OVERHEAD
}

/// The contents of some objects, by position in the pack. Eviction follows the second-chance algorithm.
pub(super) struct Cache {
    budget: usize,
    used: usize,
    /// Each content, and whether it was used since eviction last considered it.
    contents: HashMap<u32, (Arc<Vec<u8>>, bool)>,
    /// The positions in the order in which eviction considers them.
    order: VecDeque<u32>,
}

impl Cache {
    pub(super) fn new(budget: usize) -> Self {
        Self { budget, used: 0, contents: HashMap::new(), order: VecDeque::new() }
    }

    pub(super) fn get(&mut self, at: u32) -> Option<Arc<Vec<u8>>> {
        let (content, is_used) = self.contents.get_mut(&at)?;
        *is_used = true;
        Some(Arc::clone(content))
    }

    /// Adds a content, and evicts others to stay within the budget: first those that were not used. A content that
    /// exceeds the budget alone is kept as the only one.
    pub(super) fn insert(&mut self, at: u32, content: Arc<Vec<u8>>) {
        if self.contents.contains_key(&at) {
            return;
        }
        self.used += cost(&content);
        while self.used > self.budget
            && let Some(oldest) = self.order.pop_front()
        {
            match self.contents.get_mut(&oldest) {
                Some((_, is_used)) if *is_used => {
                    *is_used = false;
                    self.order.push_back(oldest);
                }
                _ => {
                    let gone = self.contents.remove(&oldest);
                    self.used -= gone.map_or(0, |(content, _)| cost(&content));
                }
            }
        }
        self.contents.insert(at, (content, false));
        self.order.push_back(at);
    }

    /// Removes everything. Returns false if the cache was empty already.
    pub(super) fn clear(&mut self) -> bool {
        self.used = 0;
        self.order.clear();
        let any = !self.contents.is_empty();
        self.contents = HashMap::new();
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_contents_stay_longer_and_the_budget_holds() {
        let mut cache = Cache::new(300 + 3 * OVERHEAD);
        let content = |bytes| Arc::new(Vec::with_capacity(bytes));
        (0..3).for_each(|at| cache.insert(at, content(100)));
        assert!(cache.get(0).is_some());
        cache.insert(3, content(100));
        assert!(cache.get(0).is_some() && cache.get(1).is_none() && cache.get(2).is_some());
        cache.insert(4, content(1000));
        assert!((0..4).all(|at| cache.get(at).is_none()) && cache.get(4).is_some());
        cache.insert(5, content(10));
        assert!(cache.get(4).is_none() && cache.get(5).is_some() && cache.used == 10 + OVERHEAD);
    }
}
