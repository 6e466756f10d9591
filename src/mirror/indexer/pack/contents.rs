//! Contents of objects: inflated, put together, kept for a moment.

use std::sync::Arc;

use super::cache::Cache;
use super::delta::Delta;
use super::entry::Inflater;
use super::{Fault, Source};

/// Of the memory there is, contents that may be needed again have this part.
const CACHED: u64 = 4;

/// Makes contents, and keeps some.
pub(super) struct Contents {
    pub(super) inflater: Inflater,
    pub(super) cache: Cache,
}

impl Contents {
    pub(super) fn new(memory: u64) -> Self {
        let budget = usize::try_from(memory / CACHED).unwrap_or(usize::MAX);
        Self { inflater: Inflater::new(), cache: Cache::new(budget) }
    }

    /// Room for so many bytes and one more; what is kept makes way for it.
    fn room(&mut self, bytes: u64) -> Result<Vec<u8>, Fault> {
        let bytes =
            usize::try_from(bytes).ok().and_then(|bytes| bytes.checked_add(1)).ok_or(Fault::Memory)?;
        let mut room = Vec::new();
        while room.try_reserve_exact(bytes).is_err() {
            if !self.cache.clear() {
                return Err(Fault::Memory);
            }
        }
        Ok(room)
    }

    pub(super) fn inflated(&mut self, source: &mut impl Source, size: u64) -> Result<Vec<u8>, Fault> {
        let mut content = self.room(size)?;
        self.inflater.whole(source, size, &mut content)?;
        Ok(content)
    }

    pub(super) fn applied(&mut self, base: &[u8], raw: &[u8]) -> Result<Vec<u8>, Fault> {
        let wrong = || Fault::bad("a difference does not fit its base");
        let delta = Delta::new(raw).ok_or_else(wrong)?;
        let mut content = self.room(delta.result)?;
        delta.apply(base, &mut content).ok_or_else(wrong)?;
        Ok(content)
    }

    /// Keeps the content of an object for a moment.
    pub(super) fn keep(&mut self, place: u32, content: Vec<u8>) -> Arc<Vec<u8>> {
        let content = Arc::new(content);
        self.cache.insert(place, Arc::clone(&content));
        content
    }
}
