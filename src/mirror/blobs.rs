//! Contents of blobs, for the threads that write a generation.

use std::io;
use std::sync::Arc;

use git2::ObjectType;

use super::odb::{Store, oid};
use super::shared::{Lease, Shared};
use crate::payload::{BlobError, BlobReader, BlobSource};
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
