//! The state file: the records of the generations, written before anything rests on them.
//!
//! Promises: a record is written before its generation is in the root, and after a power cut the file is whole. Does
//! not do: decide what is current; the link does, and the file only says what we last made of it. A file that is
//! missing, damaged or behind costs a new generation and a full grace period for every old one, nothing else.

use std::os::fd::{AsFd, OwnedFd};

use serde::{Deserialize, Serialize};

use crate::fsx::{self, Flush};
use crate::generation::{GenerationRecord, Name};
use crate::store::names::STATE;
use crate::store::quarantine;

/// Bytes of a state file that are read at most: tens of thousands of records.
const LIMIT: u64 = 16 << 20;

/// What the file holds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    /// The form of this file.
    version: u32,
    /// The generation that was published last.
    pub(crate) current: Option<Name>,
    /// The one whose publication began and was not seen to end.
    pub(crate) publishing: Option<Name>,
    /// The name that another generation of the same commit has, or will have, while the one that is being published
    /// takes its place.
    #[serde(default)]
    pub(crate) replacing: Option<Name>,
    /// Every generation in the root, newest first.
    pub(crate) generations: Vec<GenerationRecord>,
    /// The link of git-sync's layout, relative to the root where it is in it; none in our own.
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

/// What reading the file gave.
pub(crate) enum Loaded {
    /// The state.
    Known(State),
    /// There was no file: a new root.
    Absent,
    /// The file is not a state file: why.
    Damaged(String),
}

impl State {
    /// Reads the file in our own directory. Only what is wrong with the file system is an error.
    pub(crate) fn load(private: impl AsFd) -> std::io::Result<Loaded> {
        let bytes = match fsx::read_file(private, STATE, LIMIT) {
            Ok(None) => return Ok(Loaded::Absent),
            Ok(Some(bytes)) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
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

    /// Adds or replaces a record, keeping the order.
    pub(crate) fn put(&mut self, record: GenerationRecord) {
        self.remove(&record.name);
        let at = self.generations.partition_point(|other| other.order() > record.order());
        self.generations.insert(at, record);
    }

    /// Gives a record another name.
    pub(crate) fn rename(&mut self, name: &Name, to: &Name) {
        self.generations.iter_mut().filter(|record| record.name == *name).for_each(|record| {
            record.name = to.clone();
        });
    }

    /// Forgets a generation.
    pub(crate) fn remove(&mut self, name: &Name) {
        self.generations.retain(|record| record.name != *name);
    }
}
