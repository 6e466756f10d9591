//! The ledger beside a root: what was attempted in clusters with what the root has published.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::FileType;

use super::error::Error;
use super::names::{LEDGER, QUARANTINE};
use super::quarantine;
use crate::configmap::apply::LedgerSet;
use crate::fsx::{self, Flush};

/// More than any ledger has.
pub(super) const LEDGER_LIMIT: u64 = 256 << 20;

/// A ledger that cannot be read is kept under this name.
pub(super) const DAMAGED: &str = "ledger.json.damaged";

/// The ledger's file, written by the root's writer.
#[derive(Debug)]
pub struct LedgerFile {
    pub(super) private: OwnedFd,
    pub(super) path: PathBuf,
}

impl LedgerFile {
    /// What it holds; nothing where there is none yet. One that cannot be understood is moved aside, and why comes,
    /// too.
    ///
    /// # Errors
    /// When it cannot be read, or not be moved: then nothing may be written over it.
    pub fn read(&self) -> Result<(LedgerSet, Option<String>), Error> {
        let text = fsx::read_file(&self.private, LEDGER, LEDGER_LIMIT);
        let Some(text) = text.map_err(Error::io("read", &self.path))? else { return Ok(Default::default()) };
        match LedgerSet::read(&text) {
            Ok(ledgers) => Ok((ledgers, None)),
            Err(error) => {
                quarantine::quarantine_unless(&self.private, DAMAGED, FileType::RegularFile, QUARANTINE)
                    .map_err(Error::io("move aside", &self.path))?;
                rustix::fs::renameat(&self.private, LEDGER, &self.private, DAMAGED)
                    .map_err(Error::io("move aside", &self.path))?;
                let why =
                    format!("{} cannot be understood, and is {DAMAGED} now: {error}", self.path.display());
                Ok((LedgerSet::default(), Some(why)))
            }
        }
    }

    /// Replaces it in one piece. Blocking: it is on the disk before it has its name.
    ///
    /// # Errors
    /// When it cannot be written; the old one is as it was.
    pub fn write(&self, ledgers: &LedgerSet) -> Result<(), Error> {
        quarantine::replace_file(&self.private, LEDGER, &ledgers.text(), Flush::Content)
            .map_err(Error::io("write", &self.path))
    }
}
