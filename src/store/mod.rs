//! The store owns a root: it stages, publishes, retains, reaps and recovers generations. All of it is blocking code.
//!
//! It promises that the published link names one complete generation at every instant once it named one; that a
//! published generation is never written into; that nothing foreign is deleted; and that no failure changes what is
//! published. It does no network I/O, does not read git objects itself, and does not decide when to sync.
//!
//! | modules | purpose |
//! | --- | --- |
//! | `layout`, `names`, `link`, `links` | names and open handles of the root, the published link, root links |
//! | `lock`, `state`, `ledger`, `error` | the writer's lock, the records of generations, the ledger file, errors |
//! | `stage`, `carry`, `durable` | write a tree, change a tree by a delta, sync it |
//! | `staged`, `staging_dir` | staged generations and their directories |
//! | `spare`, `spare_slot`, `spare_task` | the spare, its place, its preparation in the background |
//! | `recycle`, `retired`, `linkable`, `link_tree` | reuse of retired generations, hard links between generations |
//! | `tree_walk`, `directory_list` | visit a tree on several threads, list its directories |
//! | `stamps`, `journal`, `scrub` | detect foreign writes by ctimes, check the current generation for them |
//! | `publish`, `worktrees` | the numbered steps of a publication, in the kubelet's and in git-sync's layout |
//! | `recover`, `takeover` | repairs at start and in every cycle, roots made by git-sync |
//! | `quarantine`, `foreign` | move foreign files out of the way |
//! | `verify` | compares a generation with its payload |
//! | `reap`, `trash` | carries out retention, makes room, deletes in the background |
//! | `inspect`, `probe`, `mounts` | reads a root without the lock, tests the file system, resolves mounts |
//! | `operator_file` | files that the operator asked for in or near the root |
//! | `nested` | refuses paths in what the writer of another root keeps |

mod carry;
mod directory_list;
mod durable;
mod foreign;
#[cfg(any(test, fuzzing))]
#[path = "../../tests/fuzz/targets/state.rs"]
pub(crate) mod fuzz;
mod inspect;
mod journal;
mod ledger;
mod link;
mod link_tree;
mod linkable;
mod links;
mod lock;
mod mounts;
mod names;
mod nested;
mod operator_file;
mod probe;
mod publish;
mod quarantine;
mod reap;
mod recover;
mod recycle;
mod retired;
mod scrub;
mod spare;
mod spare_slot;
mod spare_task;
mod stage;
mod staged;
mod staging_dir;
mod stamps;
mod state;
mod takeover;
mod trash;
mod tree_walk;
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
use layout::RootHandles;
use links::TopNames;
use lock::WriterLock;
use names::{STAGING, STATUS};
use recover::RecoveryTime;
use scrub::KnownStamps;
use spare_slot::SpareSlot;
use state::{Loaded, State};
use trash::Trash;

pub use error::{Error, Unit, links_to_worktrees};
pub use inspect::{Inspected, Inspection, inspect, recorded};
pub use ledger::LedgerFile;
pub use link::check_link;
pub(crate) use link::clean;
pub use nested::{check_nested, check_nested_entry};
pub use operator_file::{OperatorFile, check_outside, check_place, check_resolved, open_outside};
pub use probe::Probes;
pub use publish::Ready;
pub use recycle::SpareCheck;
pub use retired::RetiredTree;
pub use scrub::{Scrub, Scrubbed};
pub use spare_task::SpareTask;
pub use staged::Staged;

/// Whether a publication survives a power cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// syncfs (or fsync of a few files) before the swap, fsync of the root after it.
    #[default]
    Syncfs,
    /// No sync: for a root on tmpfs.
    None,
}

/// How the next generation is prepared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Spare {
    /// A retired generation without foreign writes is carried forward. If there is none, the spare is a tree of hard
    /// links to the current generation. Unchanged files are shared between generations: see [`linkable`].
    #[default]
    Link,
    /// A retired generation is carried forward, as with [`Spare::Link`]; if there is none, the spare is a copy, as with
    /// [`Spare::Copy`]. Generations share no files.
    Recycle,
    /// A full copy of the current generation is kept ready.
    Copy,
    /// No spare: every generation is written in full.
    Off,
}

/// The layout of the root.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Layout {
    /// The kubelet's: `..data`, generations named by timestamps, and root links.
    #[default]
    Kubelet,
    /// git-sync's: generations are `.worktrees/<commit>`, each with a `.git` file. There are no root links.
    GitSync {
        /// The absolute path of the published link. It may be outside the root.
        link: PathBuf,
    },
}

/// The options of a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// The path of the root.
    pub root: PathBuf,
    /// The layout of the root.
    pub layout: Layout,
    /// Top-level names in the root that belong to the operator's files: see [`OperatorFile`].
    pub operator_names: BTreeSet<OsString>,
    /// Whether a publication survives a power cut.
    pub durability: Durability,
    /// How the next generation is prepared.
    pub spare: Spare,
    /// Make directories and files writable by the group.
    pub group_write: bool,
    /// Number of threads that write a generation.
    pub writers: usize,
    /// When retired generations are reaped.
    pub retention: retention::Options,
}

/// The result of a publication.
#[derive(Clone, Debug)]
pub struct Published {
    /// The new current generation.
    pub current: GenerationRecord,
    /// The generation that was current before.
    pub previous: Option<Name>,
    /// Steps that failed after the swap, one line each. The next cycle repairs them.
    pub warnings: Vec<String>,
}

/// Free and used space of a root.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Room {
    /// Bytes that an unprivileged process may still write. `None` if unknown.
    pub free_bytes: Option<u64>,
    /// Number of inodes that may still be created. `None` if unknown.
    pub free_inodes: Option<u64>,
    /// Estimated bytes on disk of the generations and the spare: their sizes plus a block for each entry. A file that
    /// several generations share counts once.
    pub used_bytes: u64,
    /// The value of `--max-bytes`.
    pub limit_bytes: Option<u64>,
}

/// What recovery found and did, for the log.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    /// Repairs and removals, one line each.
    pub done: Vec<String>,
    /// Foreign files and directories that were left alone, one line each.
    pub foreign: Vec<String>,
    /// Features the file system lacks and repairs that failed so far, one line each.
    pub warnings: Vec<String>,
    /// True if the current generation cannot be listed, so that it has to be compared with its revision.
    pub in_doubt: bool,
}

impl Recovered {
    /// Reports that something foreign had one of our names, if it was moved to `to`.
    fn report_moved(&mut self, from: &Path, to: Option<String>) {
        let line = |to| format!("moved {}, which does not belong there, to {to} beside it", from.display());
        self.done.extend(to.map(line));
    }
}

/// An open root, of which this process is the only writer.
#[derive(Debug)]
pub struct Store {
    options: Options,
    handles: Arc<RootHandles>,
    ledger: LedgerFile,
    probes: Probes,
    state: State,
    /// True if the state file may differ from `state`.
    unsaved: bool,
    /// True if the link's directory was changed and could not be synced yet.
    unsynced: bool,
    /// Cache of the current generation's top-level names.
    top_names: Option<(Name, Arc<TopNames>)>,
    spare: Arc<SpareSlot>,
    /// The stamps of the generations, which detect foreign writes: see [`stamps`].
    stamps: KnownStamps,
    /// Boot clock time at which each generation was last found pinned.
    last_pinned: BTreeMap<Name, Duration>,
    trash: Arc<Trash>,
    /// Generations that could not be reaped. Their first failure was logged as a warning.
    stuck: BTreeSet<Name>,
    /// Generations that were reaped while pinned, and why, since the last [`Store::take_evicted`].
    evicted: BTreeMap<Name, String>,
    /// True if the spare was dropped to make room for a generation since the last [`Store::take_spare_dropped`].
    spare_dropped: bool,
}

impl Store {
    /// Opens the root: refuses `/` and, but for git-sync's layout, home directories, directories of the system and
    /// foreign directories, takes the writer's lock and recovers what a crash left.
    pub fn open(mut options: Options) -> Result<(Self, Recovered), Error> {
        let mut found = Recovered::default();
        let handles = Arc::new(RootHandles::open(&options, &mut found)?);
        let lock = WriterLock::take(&handles, &mut found)?;
        handles.quarantine_all_foreign(&mut found)?;
        let probes = Probes::of(&handles, &mut found)?;
        found.warnings.extend(probes.warnings());
        let mut state = match handles.load()? {
            Loaded::Known(state) => state,
            Loaded::Absent => State::default(),
            Loaded::Damaged(why) => {
                let to = handles.quarantine(names::STATE.as_ref())?;
                found.done.push(format!(
                    "the state file is damaged ({why}) and moved to {to}: taken from what is on disk"
                ));
                State::default()
            }
        };
        layout::refuse_other_layout(&handles.path, &state, handles.is_git_sync)?;
        let link = handles.is_git_sync.then(|| handles.link.recorded(&handles.path));
        let unsaved = std::mem::replace(&mut state.link, link.clone()) != link;
        if handles.is_git_sync && matches!(options.spare, Spare::Link | Spare::Recycle) {
            options.spare = Spare::Copy; // readers write into published generations there, so nothing can be shared
        }
        let stamps = KnownStamps::new(&options, &handles.staging, handles.is_git_sync);
        found.warnings.extend(stamps.warning(&options));
        // The trash records its unlinks in the journal whatever `--spare` is, because generations of an earlier process
        // may share files.
        let trash = Arc::new(Trash::new(Arc::clone(&handles), lock, stamps.journal().cloned()));
        let spare = Arc::new(SpareSlot::open(&handles, &trash, &mut found)?);
        let unsynced = false;
        let top_names = None;
        let mut store = Self {
            options,
            ledger: LedgerFile::new(&handles),
            handles,
            probes,
            state,
            unsaved,
            unsynced,
            top_names,
            spare,
            stamps,
            last_pinned: BTreeMap::new(),
            trash,
            stuck: BTreeSet::new(),
            evicted: BTreeMap::new(),
            spare_dropped: false,
        };
        store.recover_into(&clock::now(), RecoveryTime::Start, &mut found)?;
        store.discard_left_overs(&mut found)?;
        Ok((store, found))
    }

    /// The generation that the published link names, if any.
    pub fn current(&self) -> Option<&GenerationRecord> {
        self.state.current.as_ref().and_then(|name| self.state.record(name))
    }

    /// Returns true if the content of the current generation is known and cannot have been lost in a power cut.
    /// Otherwise it stays published, but a new generation must be staged even for the same revision.
    pub fn is_trusted(&self, now: &Now) -> bool {
        self.current().is_some_and(|record| record.is_trusted(now))
    }

    /// Records that the current generation also holds a newer revision with the same content. Readers that look up
    /// their generation's revision then get the newer one.
    pub fn advance(&mut self, revision: Revision, sources: BTreeMap<String, Revision>) -> Result<(), Error> {
        let current = self.state.current.clone();
        for record in &mut self.state.generations {
            if Some(&record.name) == current.as_ref() {
                (record.revision, record.sources) = (revision, sources.clone());
            }
        }
        self.save()
    }

    /// All generations, newest first, including the current one.
    pub fn generations(&self) -> &[GenerationRecord] {
        &self.state.generations
    }

    /// The resolved path of the root.
    pub fn root(&self) -> &Path {
        &self.handles.path
    }

    /// Returns true if the root has git-sync's layout, in which generations are named by their commit.
    pub fn is_git_sync(&self) -> bool {
        self.handles.is_git_sync
    }

    /// The features of the root's file system.
    pub fn probes(&self) -> Probes {
        self.probes
    }

    /// Returns the free space on the root's file system and the space the generations and the spare take.
    pub fn room(&self) -> Room {
        let space = fsx::space(&self.handles.root).ok();
        Room {
            free_bytes: space.map(|space| space.bytes),
            free_inodes: space.and_then(|space| space.inodes),
            used_bytes: self.generations_on_disk().saturating_add(self.spare_bytes()),
            limit_bytes: self.options.retention.max_bytes,
        }
    }

    /// The path of the socket on which the writer reports its status.
    pub fn socket(&self) -> PathBuf {
        self.handles.private_at(names::SOCKET)
    }

    /// Reads the last status record, written by this or an earlier process. `None` if there is none or it is
    /// unreadable.
    pub fn status(&self) -> Option<Status> {
        inspect::read_status(&self.handles.private)
    }

    /// Replaces the status record for `treeswap status` atomically, but does not sync it.
    pub fn write_status(&self, status: &[u8]) -> Result<(), Error> {
        quarantine::replace_file(&self.handles.private, STATUS, status, Flush::Lazy)
            .map_err(Error::io("write", self.handles.private_at(STATUS)))
    }

    /// The ledger of what is delivered from this root. It can be written without the store, by one task at a time.
    pub fn ledger(&self) -> LedgerFile {
        self.ledger.clone()
    }

    /// Returns the generations reaped while pinned since the last call, and why.
    pub fn take_evicted(&mut self) -> BTreeMap<Name, String> {
        std::mem::take(&mut self.evicted)
    }

    /// Returns true if a spare was dropped to make room for a generation since the last call.
    pub fn take_spare_dropped(&mut self) -> bool {
        std::mem::take(&mut self.spare_dropped)
    }

    /// Waits until the background thread has tried to delete everything in the trash. Returns false if cancelled first.
    pub fn wait_for_deletions(&self, cancel: &CancellationToken) -> bool {
        self.trash.wait(cancel)
    }

    /// Removes what a killed process left in our private directory. Only at start: later such names may be in use.
    fn discard_left_overs(&self, found: &mut Recovered) -> Result<(), Error> {
        let handles = &self.handles;
        for entry in fsx::list(&handles.staging).map_err(Error::io("list", handles.private_at(STAGING)))? {
            let name = entry.os().display();
            match self.trash.discard(&handles.staging, entry.os()) {
                Ok(()) => found.done.push(format!("removed {STAGING}/{name}, which was not published")),
                // Another user's directory stays. `StagingDir` takes no name that is in use.
                Err(error) => {
                    found.warnings.push(format!("cannot remove {STAGING}/{name}: {error}"));
                }
            }
        }
        for entry in fsx::list(&handles.private).map_err(Error::io("list", handles.private_at("")))? {
            if entry.name.to_bytes().starts_with(fsx::TMP_PREFIX.as_bytes()) {
                let failed = || Error::io("remove", handles.private_at(entry.os()));
                let found_stat = fsx::stat(&handles.private, entry.os()).map_err(failed())?;
                if found_stat.is_some_and(|stat| fsx::file_type(&stat).is_dir()) {
                    // We create only files with such names, so this directory is foreign.
                    let to = handles.quarantine(entry.os())?;
                    found.report_moved(&Path::new(names::PRIVATE).join(entry.os()), Some(to));
                } else {
                    fsx::unlink(&handles.private, entry.os()).map_err(failed())?;
                }
            }
        }
        Ok(())
    }

    /// Returns why the store must be reopened, if it must: the root, our private directory or another directory we hold
    /// open was removed or replaced.
    fn reopen_reason(&self) -> Result<Option<String>, Error> {
        let handles = &self.handles;
        let replaced = |why: String| Error::Replaced { path: handles.path.clone(), why };
        let root = fsx::identity(&handles.root).map_err(Error::io("stat", &handles.path))?;
        let there = match rustix::fs::stat(&handles.path) {
            Ok(stat) => stat,
            // git-sync creates the root again. But if the parent is on another device, the volume may have been
            // unmounted, and the root would be created in its empty mount point.
            Err(rustix::io::Errno::NOENT) if handles.is_git_sync && handles.has_parent_on(root.dev) => {
                return Ok(Some("the root was removed, and is created again".to_owned()));
            }
            Err(error) => return Err(replaced(format!("it is gone ({error})"))),
        };
        if there.st_dev != root.dev {
            return Err(replaced("another file system is mounted there".to_owned()));
        }
        if there.st_ino != root.ino {
            return Ok(Some("the root was removed and created again".to_owned()));
        }
        let has_private = fsx::is_at(&handles.root, names::PRIVATE, &handles.private)
            .map_err(Error::io("stat", handles.private_at("")))?;
        if !has_private {
            return Ok(Some(format!("{} was removed, and is created again", names::PRIVATE)));
        }
        if !self.trash.writer_lock().is_in_place(handles)? {
            return Ok(Some(format!("{}/{} was removed, and is created again", names::PRIVATE, names::LOCK)));
        }
        if let Some(why) = handles.reopen_reason()? {
            return Ok(Some(why));
        }
        let inner = [
            (names::STAGING, &handles.staging),
            (names::TRASH, &handles.trash),
            (names::SPARE, self.spare.dir()),
        ];
        for (name, dir) in inner {
            let is_there = fsx::is_at(&handles.private, name, dir);
            if !is_there.map_err(Error::io("stat", handles.private_at(name)))? {
                return Ok(Some(format!("{}/{name} was removed, and is created again", names::PRIVATE)));
            }
        }
        Ok(None)
    }

    /// Reopens the store. The records are kept, and recovery drops those whose generation is gone.
    fn reopen(&mut self) -> Result<Recovered, Error> {
        // Our open descriptor holds the lock until `*self` is replaced below, so a new lock file is needed.
        if self.trash.writer_lock().is_in_place(&self.handles)? {
            let failed = Error::io("remove the lock", self.handles.private_at(names::LOCK));
            fsx::unlink(&self.handles.private, names::LOCK).map_err(failed)?;
        }
        // The new slot and the new trash may be the same directories.
        self.spare.close();
        self.trash.stop();
        let (mut fresh, mut found) = Self::open(self.options.clone())?;
        if fresh.state.generations.iter().all(|record| !record.is_known()) {
            fresh.state = self.state.clone();
            fresh.unsaved = true; // the file has what was found without records
            fresh.recover_into(&clock::now(), RecoveryTime::Running, &mut found)?;
        }
        self.ledger.move_to(&fresh.handles);
        fresh.ledger = self.ledger.clone();
        *self = fresh;
        Ok(found)
    }
}

#[cfg(test)]
mod tests;
