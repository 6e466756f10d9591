//! The root: layout, staging, publication, pins, retention's hands, recovery. Blocking.
//!
//! Files: `layout` names and handles; `quarantine` what stands in their way; `link` the link; `lock` one writer;
//! `state` what is on record; `stage`, `spare` and `carry` write trees, `durable` syncs them; `staged` and `spare_slot`
//! what the store makes of them; `recycle` and `retired` generations that are used again, `stamps` whether somebody else
//! changed them, `journal` what we changed ourselves, `linkable` files that generations share, `scrub` the look at what is
//! current; `publish` the numbered order, `worktrees` that of git-sync's layout; `links` root links; `operator_file` files of
//! the operator's beside what is published; `recover` what every start and every cycle mends; `takeover` what git-sync
//! left; `verify` content against payload; `reap` and `trash` deletion; `inspect` a look without the lock; `probe` what
//! the file system can do; `error`.
//!
//! Promises: the link names one complete generation at every instant, and once it named one it always does; a published
//! generation is never written into; nothing that is not ours is deleted; no failure touches what is published.
//! Does not do: network, objects, deciding when.

mod carry;
pub mod durable;
#[cfg(any(test, fuzzing))]
#[path = "../../tests/fuzz/targets/state.rs"]
pub(crate) mod fuzz;
mod inspect;
mod journal;
mod ledger;
mod link;
mod linkable;
mod links;
mod lock;
mod mounts;
mod names;
mod operator_file;
mod probe;
mod publish;
mod quarantine;
mod reap;
mod recover;
mod recycle;
mod retired;
mod scrub;
pub mod spare;
mod spare_slot;
pub mod stage;
mod staged;
mod staging_dir;
mod stamps;
mod state;
mod takeover;
mod trash;
mod verify;
mod worktrees;

pub(crate) mod error;
pub(crate) mod layout;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock::{self, Now};
use crate::fsx::{self, Flush};
use crate::generation::{GenerationRecord, Name};
use crate::phase::Status;
use crate::retention;
use crate::revision::Revision;
use layout::Layout;
use links::TopNames;
use lock::WriterLock;
use names::{LEDGER, STAGING, STATUS};
use scrub::KnownStamps;
use spare_slot::SpareSlot;
use state::{Loaded, State};
use trash::Trash;

pub use error::{Error, Unit};
pub use inspect::{Inspected, Inspection, inspect, recorded};
pub use ledger::LedgerFile;
pub use operator_file::{OwnFile, check_outside, check_place, check_resolved, open_outside};
pub use probe::Probes;
pub use publish::Ready;
pub use recycle::SpareLook;
pub use retired::RetiredTree;
pub use scrub::{Scrub, Scrubbed};
pub use spare_slot::SpareTask;
pub use staged::Staged;

/// How hard a publication is made to survive a power cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// syncfs (or fsync of a few files) before the swap, fsync of the root after it.
    #[default]
    Syncfs,
    /// Nothing: for a root on tmpfs.
    None,
}

/// How the next generation is prepared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Spare {
    /// A retired generation that nobody else changed, carried forward; where there is none, hard links of the current
    /// one: what did not change is shared among generations, see [`linkable`].
    #[default]
    Link,
    /// As [`Spare::Link`], but where nothing has retired, as [`Spare::Copy`]: generations share nothing.
    Recycle,
    /// A private full copy of the current generation, kept ready.
    Copy,
    /// None: every generation is written in full.
    Off,
}

/// Which layout is published.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Style {
    /// `..data`, generations named by their time, and root links.
    #[default]
    Kubelet,
    /// git-sync's: generations are `.worktrees/<commit>`, each with a `.git` file, and there are no root links.
    GitSync {
        /// The path of the published link, absolute. It may be outside the root.
        link: PathBuf,
    },
}

/// What makes a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// The root.
    pub root: PathBuf,
    /// See [`Style`].
    pub style: Style,
    /// Names in the root that the operator gave to something besides: see [`OwnFile`].
    pub own: BTreeSet<OsString>,
    /// See [`Durability`].
    pub durability: Durability,
    /// See [`Spare`].
    pub spare: Spare,
    /// Directories and files writable by the group.
    pub group_write: bool,
    /// Threads that write a generation.
    pub writers: usize,
    /// When retired generations go.
    pub retention: retention::Options,
}

/// What a publication did.
#[derive(Clone, Debug)]
pub struct Published {
    /// The new current generation.
    pub current: GenerationRecord,
    /// The one before.
    pub previous: Option<Name>,
    /// What did not work after the swap, a line each; the next cycle mends it.
    pub warnings: Vec<String>,
}

/// Room in a root.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Room {
    /// Bytes that an unprivileged process may still write.
    pub free_bytes: Option<u64>,
    /// Files that may still be made.
    pub free_inodes: Option<u64>,
    /// Bytes that the generations and the spare take on disk, from their sizes: a block is added for each entry, and a
    /// file that several generations share counts once.
    pub used_bytes: u64,
    /// `--max-bytes`.
    pub limit_bytes: Option<u64>,
}

/// What recovery found and did, for the log.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    /// One line for each thing mended or removed.
    pub done: Vec<String>,
    /// One line for each thing found that is not ours and was left alone.
    pub foreign: Vec<String>,
    /// One line for each thing that does not work here, or could not be mended yet.
    pub warnings: Vec<String>,
}

impl Recovered {
    /// Something that is not ours was under one of our names, and was moved to another one beside it.
    fn moved(&mut self, from: &Path, to: Option<String>) {
        let line =
            |to| format!("moved {}, which is not what belongs there, to {to} beside it", from.display());
        self.done.extend(to.map(line));
    }
}

/// The root, locked by us.
#[derive(Debug)]
pub struct Store {
    options: Options,
    layout: Arc<Layout>,
    probes: Probes,
    state: State,
    /// The state file does not hold `state`.
    unsaved: bool,
    /// The root was changed and its sync failed.
    unsynced: bool,
    /// Top-level names of the current generation.
    names: Option<(Name, Arc<TopNames>)>,
    spare: Arc<SpareSlot>,
    /// Of generations: see [`stamps`].
    stamps: KnownStamps,
    /// When a reader was last seen to pin each generation, by the boot clock.
    pinned: BTreeMap<Name, Duration>,
    trash: Arc<Trash>,
    /// Generations that could not be reaped.
    stuck: BTreeSet<Name>,
    /// Generations that were reaped although a reader had them pinned, and why, until somebody asks.
    evicted: BTreeMap<Name, String>,
}

impl Store {
    /// Opens the root, refuses `/`, home directories and foreign ones, takes the writer's lock, recovers (links first,
    /// no network).
    pub fn open(mut options: Options) -> Result<(Self, Recovered), Error> {
        let mut found = Recovered::default();
        let layout = Arc::new(Layout::open(&options, &mut found)?);
        let lock = WriterLock::take(&layout, &mut found)?;
        layout.quarantine_all_foreign(&mut found)?;
        let probes = Probes::of(&layout)?;
        found.warnings.extend(probes.warnings());
        let mut state = match layout.load()? {
            Loaded::Known(state) => state,
            Loaded::Absent => State::default(),
            Loaded::Damaged(why) => {
                let to = layout.quarantine(&layout.private, names::STATE.as_ref())?;
                found.done.push(format!(
                    "the state file is damaged ({why}) and moved to {to}: taken from what is on disk"
                ));
                State::default()
            }
        };
        layout::refuse_the_other(&layout.path, &state, layout.is_git_sync)?;
        let link = layout.is_git_sync.then(|| layout.link.recorded(&layout.path));
        let unsaved = std::mem::replace(&mut state.link, link.clone()) != link;
        if layout.is_git_sync && matches!(options.spare, Spare::Link | Spare::Recycle) {
            options.spare = Spare::Copy; // consumers write into what is published there
        }
        let stamps = KnownStamps::new(&options, &layout.staging, layout.is_git_sync);
        let journal = stamps.journal().filter(|_| options.spare == Spare::Link);
        let trash = Arc::new(Trash::new(Arc::clone(&layout), lock, journal.cloned()));
        let spare = Arc::new(SpareSlot::open(&layout, &trash, options.spare, &mut found)?);
        let unsynced = false;
        let names = None;
        let mut store = Self {
            options,
            layout,
            probes,
            state,
            unsaved,
            unsynced,
            names,
            spare,
            stamps,
            pinned: BTreeMap::new(),
            trash,
            stuck: BTreeSet::new(),
            evicted: BTreeMap::new(),
        };
        store.recover_into(&clock::now(), &mut found)?;
        store.discard_left_overs(&mut found)?;
        Ok((store, found))
    }

    /// The generation that the link names, if any.
    pub fn current(&self) -> Option<&GenerationRecord> {
        self.state.current.as_ref().and_then(|name| self.state.record(name))
    }

    /// Whether what the current generation holds is known and, after a power cut, still there. Where it is not, the
    /// current generation goes on serving, but a new one must be staged whatever its revision.
    pub fn is_trusted(&self, now: &Now) -> bool {
        self.current().is_some_and(|record| record.is_trusted(now))
    }

    /// Notes that the current generation is also what another revision holds, which is newer: readers that ask which one
    /// they have are told of that.
    pub fn advance(&mut self, revision: Revision, sources: BTreeMap<String, Revision>) -> Result<(), Error> {
        let current = self.state.current.clone();
        for record in &mut self.state.generations {
            if Some(&record.name) == current.as_ref() {
                (record.revision, record.sources) = (revision, sources.clone());
            }
        }
        self.save()
    }

    /// Every generation known, newest first, the current one included.
    pub fn generations(&self) -> &[GenerationRecord] {
        &self.state.generations
    }

    /// The root, resolved.
    pub fn root(&self) -> &Path {
        &self.layout.path
    }

    /// Whether the layout is git-sync's, in which a commit is what a generation is named by.
    pub fn is_git_sync(&self) -> bool {
        self.layout.is_git_sync
    }

    /// What the root's file system can do.
    pub fn probes(&self) -> Probes {
        self.probes
    }

    /// What the root's file system has left for us, if it says, and what the generations and the spare take of it.
    pub fn room(&self) -> Room {
        let space = fsx::space(&self.layout.root).ok();
        Room {
            free_bytes: space.map(|space| space.bytes),
            free_inodes: space.and_then(|space| space.inodes),
            used_bytes: self.generations_on_disk().saturating_add(self.spare_bytes()),
            limit_bytes: self.options.retention.max_bytes,
        }
    }

    /// Where the writer says how it is.
    pub fn socket(&self) -> PathBuf {
        self.layout.private_at(names::SOCKET)
    }

    /// The status record that was written last, by this process or one before, if it can be read.
    pub fn status(&self) -> Option<Status> {
        inspect::read_status(&self.layout.private)
    }

    /// Writes the status record for `treeswap status`, in one piece but not durably.
    pub fn write_status(&self, status: &[u8]) -> Result<(), Error> {
        quarantine::replace_file(&self.layout.private, STATUS, status, Flush::Lazy)
            .map_err(Error::io("write", self.layout.private_at(STATUS)))
    }

    /// The ledger of what is delivered from this root. It may be written without the store, by one of us at a time.
    pub fn ledger(&self) -> Result<LedgerFile, Error> {
        let private = self.layout.private.try_clone();
        let path = self.layout.private_at(LEDGER);
        Ok(LedgerFile { private: private.map_err(Error::io("open", &path))?, path })
    }

    /// Which generations were reaped from under a reader since the last call, and why.
    pub fn take_evicted(&mut self) -> BTreeMap<Name, String> {
        std::mem::take(&mut self.evicted)
    }

    /// Waits until the background has tried to delete everything in the trash. False when `cancel` came first.
    pub fn wait_for_deletions(&self, cancel: &CancellationToken) -> bool {
        self.trash.wait(cancel)
    }

    /// Removes what a process that was killed left in our own directory. Only at start: later it may be in use.
    fn discard_left_overs(&self, found: &mut Recovered) -> Result<(), Error> {
        let layout = &self.layout;
        for entry in fsx::list(&layout.staging).map_err(Error::io("list", layout.private_at(STAGING)))? {
            let failed = Error::io("move to the trash", layout.private_at(STAGING).join(entry.os()));
            self.trash.put(&layout.staging, entry.os(), None).map_err(failed)?;
            found.done.push(format!("removed {STAGING}/{}, which was not published", entry.os().display()));
        }
        for entry in fsx::list(&layout.private).map_err(Error::io("list", layout.private_at("")))? {
            if entry.name.to_bytes().starts_with(fsx::TMP_PREFIX.as_bytes()) {
                let failed = || Error::io("remove", layout.private_at(entry.os()));
                let there = fsx::stat(&layout.private, entry.os()).map_err(failed())?;
                if there.is_some_and(|stat| fsx::file_type(&stat).is_dir()) {
                    // We make none of such a name.
                    let to = layout.quarantine(&layout.private, entry.os())?;
                    found.moved(&Path::new(names::PRIVATE).join(entry.os()), Some(to));
                } else {
                    fsx::unlink(&layout.private, entry.os()).map_err(failed())?;
                }
            }
        }
        Ok(())
    }

    /// Why everything has to be opened anew, if so: our own directory or the root is not the one we hold.
    fn displaced(&self) -> Result<Option<String>, Error> {
        let layout = &self.layout;
        let replaced = |why: String| Error::Replaced { path: layout.path.clone(), why };
        let (device, inode) = fsx::identity(&layout.root).map_err(Error::io("look at", &layout.path))?;
        let there = match rustix::fs::stat(&layout.path) {
            Ok(stat) => stat,
            // As git-sync does; but not below what may be the empty mount point of the volume that it was on.
            Err(rustix::io::Errno::NOENT) if layout.is_git_sync && layout.is_beside_its_parent(device) => {
                return Ok(Some("the root was removed, and is made again".to_owned()));
            }
            Err(error) => return Err(replaced(format!("it is gone ({error})"))),
        };
        if there.st_dev != device {
            return Err(replaced("another file system is mounted there".to_owned()));
        }
        if there.st_ino != inode {
            return Ok(Some("the root was removed and made again".to_owned()));
        }
        let private =
            fsx::stat(&layout.root, names::PRIVATE).map_err(Error::io("look at", layout.private_at("")))?;
        let held = fsx::identity(&layout.private).map_err(Error::io("look at", layout.private_at("")))?;
        if private.is_none_or(|stat| (stat.st_dev, stat.st_ino) != held)
            || !self.trash.lock().is_in_place(layout)?
        {
            return Ok(Some(format!("{} was removed, and is made again", names::PRIVATE)));
        }
        if let Some(why) = layout.displaced()? {
            return Ok(Some(why));
        }
        let inner = [
            (names::STAGING, &layout.staging),
            (names::TRASH, &layout.trash),
            (names::SPARE, self.spare.place()),
        ];
        for (name, held) in inner {
            let failed = || Error::io("look at", layout.private_at(name));
            let held = fsx::identity(held).map_err(failed())?;
            let there = fsx::stat(&layout.private, name).map_err(failed())?;
            if there.is_none_or(|stat| (stat.st_dev, stat.st_ino) != held) {
                return Ok(Some(format!("{}/{name} was removed, and is made again", names::PRIVATE)));
            }
        }
        Ok(None)
    }

    /// Opens everything anew. What is on record stays on record; recovery strikes out what is not there any more.
    fn reopen(&mut self) -> Result<Recovered, Error> {
        // Our own descriptors hold the lock until they are dropped below: another file is needed to take it again.
        if self.trash.lock().is_in_place(&self.layout)? {
            let failed = Error::io("remove the lock", self.layout.private_at(names::LOCK));
            fsx::unlink(&self.layout.private, names::LOCK).map_err(failed)?;
        }
        let (mut fresh, mut found) = Self::open(self.options.clone())?;
        if fresh.state.generations.iter().all(|record| !record.is_known()) {
            fresh.state = self.state.clone();
            fresh.recover_into(&clock::now(), &mut found)?;
        }
        *self = fresh;
        Ok(found)
    }
}

#[cfg(test)]
mod tests;
