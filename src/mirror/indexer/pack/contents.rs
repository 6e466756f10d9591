//! Restores the contents of objects, by inflating entries and applying deltas, and caches some.

use std::sync::Arc;

use super::cache::Cache;
use super::delta::Delta;
use super::entry::Inflater;
use super::{IndexError, Source};

/// The cache may use this fraction of the process's memory: one part in so many.
const CACHED: u64 = 4;

/// Restores contents, and caches some.
pub(super) struct Contents {
    pub(super) inflater: Inflater,
    pub(super) cache: Cache,
}

impl Contents {
    pub(super) fn new(memory: u64) -> Self {
        Self::with_budget(usize::try_from(memory / CACHED).unwrap_or(usize::MAX))
    }

    /// With so many bytes for the cache.
    pub(super) fn with_budget(budget: usize) -> Self {
        Self { inflater: Inflater::new(), cache: Cache::new(budget) }
    }

    /// Allocates room for one byte more than `bytes`. If memory is short, the cache is cleared.
    fn reserve(&mut self, bytes: u64) -> Result<Vec<u8>, IndexError> {
        let bytes =
            usize::try_from(bytes).ok().and_then(|bytes| bytes.checked_add(1)).ok_or(IndexError::Memory)?;
        let mut content = Vec::new();
        while content.try_reserve_exact(bytes).is_err() {
            if !self.cache.clear() {
                return Err(IndexError::Memory);
            }
        }
        Ok(content)
    }

    /// Inflates an entry's content.
    pub(super) fn inflate(&mut self, source: &mut impl Source, size: u64) -> Result<Vec<u8>, IndexError> {
        let mut content = self.reserve(size)?;
        self.inflater.inflate_all(source, size, &mut content)?;
        Ok(content)
    }

    /// Applies a delta to its base.
    pub(super) fn apply_delta(&mut self, base: &[u8], raw: &[u8]) -> Result<Vec<u8>, IndexError> {
        let wrong = || IndexError::bad("a delta does not match its base");
        let delta = Delta::new(raw).ok_or_else(wrong)?;
        let mut content = self.reserve(delta.result)?;
        delta.apply(base, &mut content).ok_or_else(wrong)?;
        Ok(content)
    }

    /// Puts the content of an object into the cache.
    pub(super) fn keep(&mut self, position: u32, content: Vec<u8>) -> Arc<Vec<u8>> {
        let content = Arc::new(content);
        self.cache.insert(position, Arc::clone(&content));
        content
    }
}
