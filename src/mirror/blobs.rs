//! Contents of blobs, for the threads that write a generation.

use std::io;
use std::sync::Arc;

use git2::ObjectType;

use super::odb::{Store, oid};
use super::pack_index;
use super::shared::{Lease, Shared};
use crate::payload::{BlobError, BlobReader, BlobSource, Entry};
use crate::revision::ObjectId;

/// Hands out readers; each opens the database for itself, because libgit2 serialises the users of one handle.
pub(super) struct Blobs {
    shared: Arc<Shared>,
    _lease: Lease,
}

struct Reader<'a> {
    store: Store,
    shared: &'a Shared,
}

impl Blobs {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let _lease = shared.lease();
        Self { shared, _lease }
    }
}

impl BlobSource for Blobs {
    fn reader(&self) -> Result<Box<dyn BlobReader + '_>, BlobError> {
        let store = self.shared.all().map_err(|error| {
            self.shared.note_damage();
            BlobError::Unopened(Box::new(error))
        })?;
        Ok(Box::new(Reader { store, shared: &self.shared }))
    }

    /// Packs first, each from its beginning: git puts what is stored as a difference next to what it differs from, and
    /// libgit2 remembers only a few megabytes of what it put together. What cannot be found out changes the order alone.
    fn order(&self, entries: &[Entry]) -> Vec<u32> {
        let mut order: Vec<u32> = (0..).take(entries.len()).collect();
        order.sort_unstable_by_key(|at| entries[*at as usize].id);
        let mut places = vec![u64::MAX; entries.len()];
        for (pack, index) in (0..).zip(self.shared.pack_indexes()) {
            let known = pack_index::places(&index).unwrap_or_default();
            let mut known = known.iter().peekable();
            for at in order.iter().map(|at| *at as usize) {
                while known.next_if(|(id, _)| *id < entries[at].id).is_some() {}
                if let Some((_, offset)) = known.peek().filter(|(id, _)| *id == entries[at].id) {
                    places[at] = pack << 48 | offset;
                }
            }
        }
        order.sort_unstable_by_key(|at| (places[*at as usize], *at));
        order
    }
}

impl BlobReader for Reader<'_> {
    fn read(
        &mut self,
        id: &ObjectId,
        sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), BlobError> {
        let unreadable = |source| {
            self.shared.note_damage();
            BlobError::Unreadable { id: *id, source }
        };
        let odb = self.store.odb().map_err(|error| unreadable(error.into()))?;
        let object = odb.read(oid(id)).map_err(|error| unreadable(error.into()))?;
        if object.kind() != ObjectType::Blob {
            return Err(unreadable(format!("it is a {}", object.kind()).into()));
        }
        Ok(sink(object.data())?)
    }
}
