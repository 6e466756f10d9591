//! Reads blob contents for the threads that write a generation.

use std::io;
use std::sync::Arc;

use git2::ObjectType;

use super::error::Libgit2;
use super::odb::Store;
use super::pack_index;
use super::shared::{ReadGuard, Shared};
use crate::payload::{BlobError, BlobReader, BlobSource};
use crate::revision::ObjectId;

/// A source of readers. Each reader opens the database itself, because libgit2 serialises the users of one handle.
/// Holds a lease, so that no pack is removed.
pub(super) struct Blobs {
    shared: Arc<Shared>,
    lease: ReadGuard,
}

struct BlobSourceReader<'a> {
    store: Store,
    blobs: &'a Blobs,
}

impl Blobs {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let lease = shared.lease();
        Self { shared, lease }
    }
}

impl BlobSource for Blobs {
    fn reader(&self) -> Result<Box<dyn BlobReader + '_>, BlobError> {
        let store = self.shared.all().map_err(|error| {
            self.shared.note_damage_of(&self.lease);
            BlobError::Unopened(Box::new(error))
        })?;
        Ok(Box::new(BlobSourceReader { store, blobs: self }))
    }

    /// Orders blobs by their offset in their pack; those in no pack come last. git stores a delta near its base, and
    /// libgit2 caches only a few megabytes of inflated bases. A pack index that cannot be read only affects the order.
    fn order(&self, ids: &[ObjectId]) -> Vec<u32> {
        let mut order: Vec<u32> = (0..).take(ids.len()).collect();
        order.sort_unstable_by_key(|at| ids[*at as usize]);
        let mut places = vec![u64::MAX; ids.len()];
        for (pack, index) in (0..).zip(self.shared.pack_indexes()) {
            let mut rest = order.iter().map(|at| *at as usize).peekable();
            // `rest` and the index are both sorted by id.
            let _unreadable = pack_index::each_offset(&index, |id, offset| {
                while rest.next_if(|at| ids[*at] < id).is_some() {}
                while let Some(at) = rest.next_if(|at| ids[*at] == id) {
                    places[at] = pack << 48 | offset;
                }
            });
        }
        order.sort_unstable_by_key(|at| (places[*at as usize], *at));
        order
    }
}

impl BlobSourceReader<'_> {
    fn unreadable(&self, id: &ObjectId, source: Box<dyn std::error::Error + Send + Sync>) -> BlobError {
        self.blobs.shared.note_damage_of(&self.blobs.lease);
        BlobError::Unreadable { id: *id, source }
    }
}

impl BlobReader for BlobSourceReader<'_> {
    fn size(&mut self, id: &ObjectId) -> Result<u64, BlobError> {
        let header = self.store.reader().and_then(|reader| reader.read_header(id));
        let (size, _) = header.map_err(|error| self.unreadable(id, Libgit2(error).into()))?;
        Ok(size as u64)
    }

    fn read(
        &mut self,
        id: &ObjectId,
        sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), BlobError> {
        let reader = self.store.reader().map_err(|error| self.unreadable(id, Libgit2(error).into()))?;
        let object = reader.read(id).map_err(|error| self.unreadable(id, Libgit2(error).into()))?;
        if object.kind() != ObjectType::Blob {
            return Err(self.unreadable(id, format!("it is a {}", object.kind()).into()));
        }
        Ok(sink(object.data())?)
    }
}
