//! Scrub: checks that the current generation is still as it was published.
//!
//! Every few minutes each of its inodes is checked (`lstat`, 0.25 s of processor time for 90,000 files). If one may
//! have a foreign write, the generation is in doubt: it is then compared with its revision ([`super::verify`]), and
//! published again if it differs. Nothing is repaired in place.
//!
//! There is no scrub in git-sync's layout or with `--group-write`, where others are meant to write, nor on file systems
//! other than those of [`stamps::ctimes_are_reliable`], nor in gVisor, whose timers do not tell that the clock was set.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::journal::{Journal, Stamp};
use super::stamps::{self, Paths, Stamps};
use super::{Error, Options, Spare, Store, verify};
use crate::generation::{GenerationRecord, Name};
use crate::human::one_line;

/// The stamps of the generations that this process has written or verified.
#[derive(Debug)]
pub(super) struct KnownStamps {
    /// `None` if foreign writes cannot be detected in this root: its ctimes do not tell of them, or no timer tells that
    /// the clock was set.
    journal: Option<Arc<Journal>>,
    stamps: BTreeMap<Name, Stamps>,
}

impl KnownStamps {
    /// Creates the empty collection for a root. `scratch` is a directory of ours on its file system.
    pub(super) fn new(options: &Options, scratch: &OwnedFd, is_git_sync: bool) -> Self {
        let wanted = !is_git_sync && !options.group_write && stamps::ctimes_are_reliable(scratch.as_fd());
        let journal = wanted.then(Journal::start).and_then(Result::ok).map(Arc::new);
        Self { journal, stamps: BTreeMap::new() }
    }

    /// For the log: what `--spare` asks for cannot be done, because of the root's file system or of the kernel.
    pub(super) fn warning(&self, options: &Options) -> Option<String> {
        let is_wanted = matches!(options.spare, Spare::Link | Spare::Recycle) && !options.group_write;
        (is_wanted && self.journal.is_none()).then(|| {
            "changes by other processes cannot be detected here: generations share no files, each spare is a \
             copy, and there is no scrub"
                .to_owned()
        })
    }

    /// Stamps of a tree that was just written.
    pub(super) fn of_new(&self, top: impl AsFd, scratch: &OwnedFd) -> Option<Stamps> {
        Stamps::of_new(top, scratch.as_fd(), self.journal.as_ref()?).ok()
    }

    /// Stamps of a tree that is about to be compared with its payload.
    pub(super) fn of_found(&self, top: impl AsFd, scratch: &OwnedFd) -> Option<Stamps> {
        Stamps::of_found(top, scratch.as_fd(), self.journal.as_ref()?).ok()
    }

    /// The journal of our own changes.
    pub(super) fn journal(&self) -> Option<&Arc<Journal>> {
        self.journal.as_ref()
    }

    /// Returns true if foreign writes can be detected in this root.
    pub(super) fn can_detect_writes(&self) -> bool {
        self.journal.is_some()
    }

    /// The stamps of a generation, if known.
    pub(super) fn of(&self, name: &Name) -> Option<&Stamps> {
        self.stamps.get(name)
    }

    /// Sets the stamps of a generation. `None` changes nothing.
    pub(super) fn put(&mut self, name: &Name, stamps: Option<Stamps>) {
        self.stamps.extend(stamps.map(|stamps| (name.clone(), stamps)));
    }

    /// Drops the stamps of generations without a record.
    pub(super) fn retain(&mut self, records: &[GenerationRecord]) {
        self.stamps.retain(|name, _| records.iter().any(|record| record.name == *name));
    }

    /// The earliest time since which a generation's stamps need the journal.
    pub(super) fn earliest(&self) -> Option<Stamp> {
        self.stamps.values().map(Stamps::since).min()
    }
}

/// A check of the current generation that runs without the store.
#[derive(Debug)]
pub struct Scrub {
    name: Name,
    /// Its directory, or why it cannot be opened.
    top: Result<OwnedFd, String>,
    scratch: OwnedFd,
    stamps: Option<Stamps>,
}

/// The result of a scrub.
#[derive(Debug)]
pub struct Scrubbed {
    name: Name,
    /// The renewed stamps, or why the generation is in doubt.
    found: Result<Stamps, String>,
}

impl Scrub {
    /// Runs the check. A generation that cannot be read completely is in doubt, too.
    pub fn run(self, cancel: &CancellationToken) -> Result<Scrubbed, Error> {
        let Self { name, top, scratch, stamps } = self;
        let found = match (top, stamps) {
            (Err(why), _) => Err(why),
            (_, None) => Err("its timestamps are not known".to_owned()),
            (_, Some(stamps)) if stamps.clock_was_set() => Err("the clock was set".to_owned()),
            (Ok(top), _) if verify::wrong_mode_of(&top).is_some() => Err("its mode was changed".to_owned()),
            (Ok(top), Some(mut stamps)) => {
                match stamps.rescan(&top, scratch.as_fd(), Paths::Forget, cancel) {
                    Err(Error::Cancelled) => return Err(Error::Cancelled),
                    Err(error) => Err(one_line(&error)),
                    Ok(Some(path)) => Err(format!("{} was changed by another process", path.display())),
                    Ok(None) => Ok(stamps),
                }
            }
        };
        Ok(Scrubbed { name, found })
    }
}

impl Store {
    /// Prepares a scrub of the current generation. `None` if there is none, or if foreign writes cannot be detected
    /// here.
    pub fn scrub(&self) -> Option<Scrub> {
        let current = self.current().filter(|record| record.is_known() && self.stamps.can_detect_writes())?;
        let name = current.name.clone();
        let top = self.handles.generation(&name).map_err(|error| one_line(&error));
        let scratch = self.handles.staging.try_clone().ok()?;
        let stamps = self.stamps.of(&name).cloned();
        Some(Scrub { name, top, scratch, stamps })
    }

    /// Takes over the result of a scrub: `Ok` without a foreign write, or why the current generation is in doubt. `None`
    /// if the scrubbed generation is no longer current, and what was found says nothing about the current one.
    pub fn scrubbed(&mut self, scrubbed: Scrubbed) -> Option<Result<(), String>> {
        let Scrubbed { name, found } = scrubbed;
        let current = self.current()?;
        // A file that somebody changed may be the current generation's as well. Waiting for the next scrub is no answer:
        // if commits come faster than scrubs end, each of them is too late.
        let is_about_current = current.name == name || (found.is_err() && self.share_files(&name, current));
        if !is_about_current {
            return None;
        }
        let name = current.name.clone();
        self.stamps.stamps.remove(&name);
        match found {
            Ok(stamps) => {
                self.stamps.put(&name, Some(stamps));
                self.trim_journal();
                Some(Ok(()))
            }
            Err(doubt) => {
                self.discard_shared_spare();
                Some(Err(doubt))
            }
        }
    }

    /// Returns true if a retired generation may have files that are the current one's. False once it is reaped: then we
    /// change it ourselves.
    fn share_files(&self, retired: &Name, current: &GenerationRecord) -> bool {
        let retired = self.state.record(retired).and_then(|record| record.lineage.as_ref());
        retired.zip(current.lineage.as_ref()).is_some_and(|(retired, current)| retired.first == current.first)
    }
}
