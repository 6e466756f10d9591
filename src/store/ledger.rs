//! The ledger file in a root: what was last attempted in each cluster with the revisions of this root.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::FileType;

use super::error::Error;
use super::names::{LEDGER, PRIVATE, QUARANTINE};
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
    /// The resolved path of the root.
    pub(super) root: PathBuf,
}

impl LedgerFile {
    fn path(&self) -> PathBuf {
        self.root.join(PRIVATE).join(LEDGER)
    }

    /// Opens the private directory. Each time, because the store makes it again if somebody removes it, or the root.
    fn private(&self) -> Result<OwnedFd, Error> {
        let root = fsx::open_dir_at_path(&self.root);
        let private = root.and_then(|root| fsx::open_dir(root, PRIVATE));
        private.map_err(Error::io("open", self.root.join(PRIVATE)))
    }

    /// Reads the ledger; it is empty if the file does not exist. A ledger that cannot be parsed, or that the disk does
    /// not return, is moved aside; the second value then says why.
    ///
    /// # Errors
    /// If the file cannot be read for another reason, or cannot be moved aside. It must not be overwritten then.
    pub fn read(&self) -> Result<(LedgerSet, Option<String>), Error> {
        let private = self.private()?;
        let parsed = match fsx::read_file(&private, LEDGER, LEDGER_LIMIT) {
            Ok(None) => return Ok(Default::default()),
            Ok(Some(text)) => LedgerSet::read(&text).map_err(|error| error.to_string()),
            Err(error) if is_unreadable(&error) => Err(error.to_string()),
            Err(error) => return Err(Error::io("read", self.path())(error)),
        };
        match parsed {
            Ok(ledgers) => Ok((ledgers, None)),
            Err(error) => {
                let path = self.path();
                quarantine::quarantine_unless(&private, DAMAGED, FileType::RegularFile, QUARANTINE)
                    .map_err(Error::io("move aside", path.with_file_name(DAMAGED)))?;
                rustix::fs::renameat(&private, LEDGER, &private, DAMAGED)
                    .map_err(Error::io("move aside", &path))?;
                let why = format!("{} is damaged, and was renamed to {DAMAGED}: {error}", path.display());
                Ok((LedgerSet::default(), Some(why)))
            }
        }
    }

    /// Replaces the ledger atomically. Blocks until the new content is synced.
    ///
    /// # Errors
    /// If it cannot be written. The old ledger is unchanged then.
    pub fn write(&self, ledgers: &LedgerSet) -> Result<(), Error> {
        quarantine::replace_file(&self.private()?, LEDGER, &ledgers.text(), Flush::Content)
            .map_err(Error::io("write", self.path()))
    }
}
