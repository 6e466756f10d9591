//! Limits how much of what a cluster answers a pass keeps in memory. The server, and everybody who may write to it,
//! decide on the number of objects and on their size.

use std::sync::atomic::{AtomicIsize, Ordering};

/// The most that a pass keeps of one namespace, in bytes. Some 2,000 ConfigMaps, as many as an inventory can list, take
/// a quarter of it.
const NAMESPACE_MAX: usize = 32 << 20;
/// The most that a pass keeps of all namespaces that rules name, besides [`PER_CONFIG_MAP`] for each desired ConfigMap;
/// and the most of all other namespaces together. Anybody can make inventories in those, so they have a budget of their
/// own.
const CLUSTER_MAX: usize = 64 << 20;
/// How much a pass may keep of each desired ConfigMap, in bytes: of most a few KiB, but all annotations of those that
/// it replaces.
const PER_CONFIG_MAP: usize = 64 << 10;

/// How many bytes a pass over a cluster may still keep.
#[derive(Debug)]
pub(super) struct MemoryBudget {
    /// Of namespaces that rules name.
    named: AtomicIsize,
    /// Of other namespaces.
    orphaned: AtomicIsize,
}

impl MemoryBudget {
    /// The budget for a cluster in which this many ConfigMaps are desired.
    pub(super) fn new(config_maps: usize) -> Self {
        let [named, orphaned] = [CLUSTER_MAX + PER_CONFIG_MAP * config_maps, CLUSTER_MAX]
            .map(|bytes| AtomicIsize::new(bytes.cast_signed()));
        Self { named, orphaned }
    }

    /// Starts the reservation of one namespace.
    pub(super) fn reserve(&self, is_orphaned: bool) -> Reservation<'_> {
        Reservation { budget: if is_orphaned { &self.orphaned } else { &self.named }, reserved: 0 }
    }
}

/// What the survey of one namespace keeps. It is given back to the budget unless the survey succeeds.
#[derive(Debug)]
pub(super) struct Reservation<'a> {
    budget: &'a AtomicIsize,
    reserved: usize,
}

/// More bytes than may be kept.
#[derive(Debug)]
pub(super) struct BudgetExceeded;

impl Reservation<'_> {
    /// Adds this many bytes. Fails if that is more than may be kept.
    pub(super) fn add(&mut self, bytes: usize) -> Result<(), BudgetExceeded> {
        self.reserved += bytes;
        let bytes = bytes.cast_signed();
        if self.budget.fetch_sub(bytes, Ordering::Relaxed) >= bytes && self.reserved <= NAMESPACE_MAX {
            return Ok(());
        }
        Err(BudgetExceeded)
    }

    /// Ends a survey that succeeded, and gives back only these bytes: all others stay in memory.
    pub(super) fn keep_all_but(mut self, dropped: usize) {
        self.reserved = dropped;
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.budget.fetch_add(self.reserved.cast_signed(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_a_cluster_has_a_limit_and_a_survey_that_fails_keeps_nothing() {
        let budget = MemoryBudget::new(1);
        let left = |budget: &AtomicIsize| budget.load(Ordering::Relaxed).cast_unsigned();
        let mut one = budget.reserve(true);
        one.add(NAMESPACE_MAX).unwrap();
        assert!(one.add(1).is_err(), "of one namespace");
        drop(one);
        assert_eq!(left(&budget.orphaned), CLUSTER_MAX);
        assert_eq!(left(&budget.named), CLUSTER_MAX + PER_CONFIG_MAP);
        let mut surveys: Vec<_> = (0..CLUSTER_MAX / NAMESPACE_MAX).map(|_| budget.reserve(true)).collect();
        surveys.iter_mut().for_each(|one| one.add(NAMESPACE_MAX).unwrap());
        assert!(budget.reserve(true).add(1).is_err(), "of all together");
        drop(surveys);
        let mut one = budget.reserve(true);
        one.add(3).unwrap();
        one.keep_all_but(1);
        assert_eq!(left(&budget.orphaned), CLUSTER_MAX - 2);
    }
}
