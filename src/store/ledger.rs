//! The ledger beside a root: what was attempted in clusters with what the root has published.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use super::error::Error;
use super::layout::LEDGER;
use crate::configmap::apply::Book;
use crate::fsx::{self, Flush};

/// More than any ledger has.
pub(super) const LEDGER_LIMIT: u64 = 256 << 20;

/// A ledger that cannot be read is kept under this name.
const DAMAGED: &str = "ledger.json.damaged";

/// The ledger's file, written by whoever holds the root.
#[derive(Debug)]
pub struct LedgerFile {
    pub(super) private: OwnedFd,
    pub(super) path: PathBuf,
}

impl LedgerFile {
    /// What it holds; nothing where there is none yet. One that cannot be understood is moved aside, and why comes, too.
    ///
    /// # Errors
    /// When it cannot be read, or not be moved: then nothing may be written over it.
    pub fn read(&self) -> Result<(Book, Option<String>), Error> {
        let text = fsx::read_file(&self.private, LEDGER, LEDGER_LIMIT);
        let Some(text) = text.map_err(Error::io("read", &self.path))? else { return Ok(Default::default()) };
        match Book::read(&text) {
            Ok(book) => Ok((book, None)),
            Err(error) => {
                rustix::fs::renameat(&self.private, LEDGER, &self.private, DAMAGED)
                    .map_err(Error::io("move aside", &self.path))?;
                let why =
                    format!("{} cannot be understood, and is {DAMAGED} now: {error}", self.path.display());
                Ok((Book::default(), Some(why)))
            }
        }
    }

    /// Replaces it in one piece. Blocking: it is on the disk before it has its name.
    ///
    /// # Errors
    /// When it cannot be written; the old one is as it was.
    pub fn write(&self, book: &Book) -> Result<(), Error> {
        fsx::replace_file(&self.private, LEDGER, &book.text(), 0o644, Flush::Content)
            .map_err(Error::io("write", &self.path))
    }
}
