//! The ledger file in a root: what was last attempted in each cluster with the revisions of this root.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::FileType;

use super::error::Error;
use super::names::{LEDGER, QUARANTINE};
use super::quarantine;
use super::state::is_unreadable;
use crate::configmap::apply::LedgerSet;
use crate::fsx::{self, Flush};

/// The largest ledger that is read, in bytes: more than any real one has.
pub(super) const LEDGER_LIMIT: u64 = 256 << 20;

/// A ledger that cannot be read or parsed is kept under this name.
pub(super) const DAMAGED: &str = "ledger.json.damaged";

/// The ledger's file, written by the root's writer.
#[derive(Debug)]
pub struct LedgerFile {
    pub(super) private: OwnedFd,
    pub(super) path: PathBuf,
}

impl LedgerFile {
    /// Reads the ledger; it is empty if the file does not exist. A ledger that cannot be parsed, or that the disk does
    /// not return, is moved aside; the second value then says why.
    ///
    /// # Errors
    /// If the file cannot be read for another reason, or cannot be moved aside. It must not be overwritten then.
    pub fn read(&self) -> Result<(LedgerSet, Option<String>), Error> {
        let parsed = match fsx::read_file(&self.private, LEDGER, LEDGER_LIMIT) {
            Ok(None) => return Ok(Default::default()),
            Ok(Some(text)) => LedgerSet::read(&text).map_err(|error| error.to_string()),
            Err(error) if is_unreadable(&error) => Err(error.to_string()),
            Err(error) => return Err(Error::io("read", &self.path)(error)),
        };
        match parsed {
            Ok(ledgers) => Ok((ledgers, None)),
            Err(error) => {
                quarantine::quarantine_unless(&self.private, DAMAGED, FileType::RegularFile, QUARANTINE)
                    .map_err(Error::io("move aside", self.path.with_file_name(DAMAGED)))?;
                rustix::fs::renameat(&self.private, LEDGER, &self.private, DAMAGED)
                    .map_err(Error::io("move aside", &self.path))?;
                let path = self.path.display();
                let why = format!("{path} is damaged, and was renamed to {DAMAGED}: {error}");
                Ok((LedgerSet::default(), Some(why)))
            }
        }
    }

    /// Replaces the ledger atomically. Blocks until the new content is synced.
    ///
    /// # Errors
    /// If it cannot be written. The old ledger is unchanged then.
    pub fn write(&self, ledgers: &LedgerSet) -> Result<(), Error> {
        quarantine::replace_file(&self.private, LEDGER, &ledgers.text(), Flush::Content)
            .map_err(Error::io("write", &self.path))
    }
}
