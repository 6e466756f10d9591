//! Contents that were put together, within a budget: most differences are to something that was seen a moment ago.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// What a content takes beside its bytes, at most: those of small ones would not be seen otherwise.
const AROUND: usize = 128;

fn room(content: &Vec<u8>) -> usize {
    content.capacity() + AROUND
}

/// The contents of some objects, by their places.
pub(super) struct Cache {
    budget: usize,
    used: usize,
    /// With whether it was asked for since it was looked at last.
    contents: HashMap<u32, (Arc<Vec<u8>>, bool)>,
    order: VecDeque<u32>,
}

impl Cache {
    pub(super) fn new(budget: usize) -> Self {
        Self { budget, used: 0, contents: HashMap::new(), order: VecDeque::new() }
    }

    pub(super) fn get(&mut self, at: u32) -> Option<Arc<Vec<u8>>> {
        let (content, asked) = self.contents.get_mut(&at)?;
        *asked = true;
        Some(Arc::clone(content))
    }

    /// Adds one. Those that were not asked for go first; one that is over the budget is alone.
    pub(super) fn insert(&mut self, at: u32, content: Arc<Vec<u8>>) {
        if self.contents.contains_key(&at) {
            return;
        }
        self.used += room(&content);
        while self.used > self.budget
            && let Some(oldest) = self.order.pop_front()
        {
            match self.contents.get_mut(&oldest) {
                Some((_, asked)) if *asked => {
                    *asked = false;
                    self.order.push_back(oldest);
                }
                _ => {
                    let gone = self.contents.remove(&oldest);
                    self.used -= gone.map_or(0, |(content, _)| room(&content));
                }
            }
        }
        self.contents.insert(at, (content, false));
        self.order.push_back(at);
    }

    /// Forgets all; whether there was anything.
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
    fn what_was_asked_for_stays_longer_and_the_budget_holds() {
        let mut cache = Cache::new(300 + 3 * AROUND);
        let content = |bytes| Arc::new(Vec::with_capacity(bytes));
        (0..3).for_each(|at| cache.insert(at, content(100)));
        assert!(cache.get(0).is_some());
        cache.insert(3, content(100));
        assert!(cache.get(0).is_some() && cache.get(1).is_none() && cache.get(2).is_some());
        cache.insert(4, content(1000));
        assert!((0..4).all(|at| cache.get(at).is_none()) && cache.get(4).is_some());
        cache.insert(5, content(10));
        assert!(cache.get(4).is_none() && cache.get(5).is_some() && cache.used == 10 + AROUND);
    }
}
