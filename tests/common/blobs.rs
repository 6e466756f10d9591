//! Blobs in memory, for tests that stage payloads of their own. Not in `common` itself, which does not use the library.

use std::collections::HashMap;

use treeswap::payload::{BlobError, BlobReader, BlobSource};
use treeswap::revision::ObjectId;

#[derive(Default)]
pub(crate) struct Blobs(pub(crate) HashMap<ObjectId, Vec<u8>>);

impl BlobSource for Blobs {
    fn reader(&self) -> Result<Box<dyn BlobReader + '_>, BlobError> {
        Ok(Box::new(Reader(self)))
    }
}

struct Reader<'b>(&'b Blobs);

impl BlobReader for Reader<'_> {
    fn size(&mut self, id: &ObjectId) -> Result<u64, BlobError> {
        Ok(self.0.0[id].len() as u64)
    }

    fn read(
        &mut self,
        id: &ObjectId,
        sink: &mut dyn FnMut(&[u8]) -> std::io::Result<()>,
    ) -> Result<(), BlobError> {
        Ok(sink(&self.0.0[id])?)
    }
}
