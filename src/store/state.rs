//! The state file: the records of the generations.
//!
//! A record is written before its generation is moved into the root, and the file is complete even after a power cut.
//! The file does not decide which generation is current: the published link does, and the file only says what we last
//! made it name. If the file is missing, damaged or out of date, the cost is one new generation and a full grace
//! period for every old one, nothing else. In git-sync's layout the mtime of an old one tells the age that it has.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::fsx::{self, Flush};
use crate::generation::{GenerationRecord, Name};
use crate::store::names::STATE;
use crate::store::quarantine;

/// The largest state file that is read, in bytes: tens of thousands of records.
const LIMIT: u64 = 16 << 20;

/// The content of the state file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    /// The version of the file format.
    version: u32,
    /// The generation that was published last.
    pub(crate) current: Option<Name>,
    /// The generation whose publication has started and not finished.
    pub(crate) publishing: Option<Name>,
    /// In git-sync's layout: the name that the older generation of the same commit gets when `publishing` takes over
    /// its name.
    #[serde(default)]
    pub(crate) replacing: Option<Name>,
    /// Every generation in the root, newest first.
    pub(crate) generations: Vec<GenerationRecord>,
    /// The path of the published link in git-sync's layout, relative if it is inside the root. `None` in the kubelet's
    /// layout.
    #[serde(default)]
    pub(crate) link: Option<String>,
}

const VERSION: u32 = 1;

impl Default for State {
    fn default() -> Self {
        Self {
            version: VERSION,
            current: None,
            publishing: None,
            replacing: None,
            generations: Vec::new(),
            link: None,
        }
    }
}

/// The result of reading the state file.
pub(crate) enum Loaded {
    /// The state.
    Known(State),
    /// There is no file: the root is new.
    Absent,
    /// The file cannot be parsed, and why.
    Damaged(String),
}

/// Returns true if this error of a read says that the file's blocks are lost: a bad sector, or a wrong checksum of the
/// file system.
pub(super) fn is_unreadable(error: &std::io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::IO | Errno::UCLEAN | Errno::BADMSG))
}

impl State {
    /// Reads the file in our private directory. A failed system call is an error, a damaged file is not, nor is one that
    /// the disk does not return: without it one more generation is written, and with the error no start would succeed.
    pub(crate) fn load(private: impl AsFd) -> std::io::Result<Loaded> {
        let bytes = match fsx::read_file(private, STATE, LIMIT) {
            Ok(None) => return Ok(Loaded::Absent),
            Ok(Some(bytes)) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData || is_unreadable(&error) => {
                return Ok(Loaded::Damaged(error.to_string()));
            }
            Err(error) => return Err(error),
        };
        Ok(match serde_json::from_slice::<Self>(&bytes) {
            Ok(state) if state.version == VERSION => Loaded::Known(state),
            Ok(state) => Loaded::Damaged(format!("it has version {}, not {VERSION}", state.version)),
            Err(error) => Loaded::Damaged(error.to_string()),
        })
    }

    /// Writes the file.
    pub(crate) fn save(&self, private: &OwnedFd, flush: Flush) -> std::io::Result<()> {
        quarantine::replace_file(private, STATE, &serde_json::to_vec(self)?, flush)
    }

    /// The record of a generation.
    pub(crate) fn record(&self, name: &Name) -> Option<&GenerationRecord> {
        self.generations.iter().find(|record| record.name == *name)
    }

    /// Adds or replaces a record, keeping the records sorted newest first.
    pub(crate) fn put(&mut self, record: GenerationRecord) {
        self.remove(&record.name);
        let at = self.generations.partition_point(|other| other.order() > record.order());
        self.generations.insert(at, record);
    }

    /// Renames a record.
    pub(crate) fn rename(&mut self, name: &Name, to: &Name) {
        self.generations.iter_mut().filter(|record| record.name == *name).for_each(|record| {
            record.name = to.clone();
        });
    }

    /// Removes a generation's record.
    pub(crate) fn remove(&mut self, name: &Name) {
        self.generations.retain(|record| record.name != *name);
    }
}
