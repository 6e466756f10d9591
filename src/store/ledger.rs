//! The ledger file in a root: what was last attempted in each cluster with the revisions of this root.

use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::FileType;

use super::error::Error;
use super::layout::RootHandles;
use super::names::{LEDGER, QUARANTINE};
use super::quarantine;
use super::state::is_unreadable;
use crate::configmap::apply::LedgerSet;
use crate::fsx::{self, Flush};

/// The largest ledger that is read, in bytes: more than any real one has.
pub(super) const LEDGER_LIMIT: u64 = 256 << 20;

/// A ledger that cannot be read or parsed is kept under this name.
pub(super) const DAMAGED: &str = "ledger.json.damaged";

/// The ledger's file, written by the root's writer: only through the handles of a root that the store has locked. All
/// copies follow the store when it opens the root again.
#[derive(Clone, Debug)]
pub struct LedgerFile(Arc<Mutex<Arc<RootHandles>>>);

impl LedgerFile {
    pub(super) fn new(handles: &Arc<RootHandles>) -> Self {
        Self(Arc::new(Mutex::new(Arc::clone(handles))))
    }

    /// From now on the ledger is in this root, which was opened again.
    pub(super) fn move_to(&self, handles: &Arc<RootHandles>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(handles);
    }

    fn handles(&self) -> Arc<RootHandles> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the ledger; it is empty if the file does not exist. A ledger that cannot be parsed, or that the disk does
    /// not return, is moved aside; the second value then says why.
    ///
    /// # Errors
    /// If the file cannot be read for another reason, or cannot be moved aside. It must not be overwritten then.
    pub fn read(&self) -> Result<(LedgerSet, Option<String>), Error> {
        let handles = self.handles();
        let private = &handles.private;
        let path = handles.private_at(LEDGER);
        let parsed = match fsx::read_file(private, LEDGER, LEDGER_LIMIT) {
            Ok(None) => return Ok(Default::default()),
            Ok(Some(text)) => LedgerSet::read(&text).map_err(|error| error.to_string()),
            Err(error) if is_unreadable(&error) => Err(error.to_string()),
            Err(error) => return Err(Error::io("read", path)(error)),
        };
        match parsed {
            Ok(ledgers) => Ok((ledgers, None)),
            Err(error) => {
                quarantine::quarantine_unless(private, DAMAGED, FileType::RegularFile, QUARANTINE)
                    .map_err(Error::io("move aside", path.with_file_name(DAMAGED)))?;
                rustix::fs::renameat(private, LEDGER, private, DAMAGED)
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
        let handles = self.handles();
        quarantine::replace_file(&handles.private, LEDGER, &ledgers.text(), Flush::Content)
            .map_err(Error::io("write", handles.private_at(LEDGER)))
    }
}
