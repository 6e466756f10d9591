//! Moves foreign things with our names in the private directory aside (see [`super::quarantine`]), by the open handles
//! of the root.

use std::ffi::OsStr;
use std::path::Path;

use rustix::fs::{AtFlags, FileType};

use crate::fsx;
use crate::store::layout::RootHandles;
use crate::store::ledger::DAMAGED;
use crate::store::names::{LEDGER, MIRROR, PRIVATE, QUARANTINE, SOCKET, STATE, STATUS};
use crate::store::{Error, Recovered, quarantine};

impl RootHandles {
    /// Moves a name in our private directory to the quarantine. Returns the new name.
    pub(super) fn quarantine(&self, name: &OsStr) -> Result<String, Error> {
        quarantine::move_to(&self.private, name, &self.private, QUARANTINE)
            .map_err(Error::io("move aside", self.private_at(name)))
    }

    /// Moves `name` in our private directory aside, unless it is missing or has this type.
    pub(super) fn quarantine_foreign(
        &self,
        name: &str,
        kind: FileType,
        found: &mut Recovered,
    ) -> Result<(), Error> {
        let moved = quarantine::quarantine_unless(&self.private, name, kind, QUARANTINE);
        found.report_moved(
            &Path::new(PRIVATE).join(name),
            moved.map_err(Error::io("move aside", self.private_at(name)))?,
        );
        Ok(())
    }

    /// Does the same for all names in our private directory that are not opened before the lock is taken. Needs the
    /// lock.
    pub(super) fn quarantine_all_foreign(&self, found: &mut Recovered) -> Result<(), Error> {
        for name in [STATE, STATUS, LEDGER, DAMAGED] {
            self.quarantine_foreign(name, FileType::RegularFile, found)?;
        }
        self.quarantine_foreign(SOCKET, FileType::Socket, found)?;
        // A symlink to a directory is allowed: operators use one to keep the mirror in another place.
        let is_dir = rustix::fs::statat(&self.private, MIRROR, AtFlags::empty())
            .is_ok_and(|stat| fsx::file_type(&stat).is_dir());
        if !is_dir && fsx::stat(&self.private, MIRROR).is_ok_and(|there| there.is_some()) {
            let to = self.quarantine(MIRROR.as_ref())?;
            found.report_moved(&Path::new(PRIVATE).join(MIRROR), Some(to));
        }
        Ok(())
    }
}
