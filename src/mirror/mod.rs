//! The local copy of a remote's objects, and the client that talks to the remote. This is the only module that names
//! `git2`. A mirror is a bare repository or, in git-sync's layout, `ROOT/.git`, whose linked worktrees are the
//! generations.
//!
//! Promises:
//!
//! - A revision that [`Mirror::fetch`] returns is complete: the commit, every tree and every blob below it, and history
//!   as deep as configured.
//! - A mirror is a cache. It can be deleted and fetched again at any time, and that never touches what is published.
//! - It writes nothing outside its directory and never runs anything that a commit's author wrote.
//! - In `ROOT/.git`, garbage collection keeps foreign refs, worktrees and commits made in a generation. If the mirror
//!   is damaged and therefore fetched again, worktrees and configuration stay; foreign refs and commits are lost.
//!
//! | files | contents |
//! | --- | --- |
//! | `wire/` | git's smart protocol: streams, framing, and the commands we use |
//! | `plan`, `fetch`, `closure` | which request to send; sending it and recording the result; the completeness check |
//! | `indexer/` | the resource-limited child process that indexes packs and collects garbage |
//! | `partial` | partial clones (`--filter`): fetching objects that a filter left out |
//! | `modules/` | submodules |
//! | `composed` | revisions composed of several repositories' trees (`--sources`) |
//! | `layout`, `files`, `foreign_files`, `adopt` | the mirror's files on disk |
//! | `descriptors` | tells whether an open failed only because this process can open no more files |
//! | `repo_kind`, `worktrees`, `git_index` | git-sync's layout: generations as linked worktrees |
//! | `odb`, `loose`, `pack_index`, `packed_blobs`, `blobs` | reading objects |
//! | `read` | what a revision holds: its payload, deltas, blobs |
//! | `tree`, `tree_to_payload`, `delta`, `sparse`, `listing` | turning trees into payloads, deltas and path lists |
//! | `history` | the ancestry relation of two revisions |
//! | `gc`, `gc_plan` | garbage collection: the work, and the rules that plan it |
//! | `subdirectory` | the directory that is published as the root of the tree (`--path`) |
//! | `shared` | what a mirror shares with its readers: a lock, and whether an object was found damaged |
//! | `complete` | the record that the tip was found complete |
//! | `blocking` | runs blocking work on threads of its own |
//! | `error`, `object_error` | errors |
//! | `commit_info`, `received`, `index_limiter` | commit metadata; bytes received; limits how many mirrors index packs at once |
//! | `author` | creates the repository of `treeswap demo` |

mod adopt;
pub mod author;
mod blobs;
pub(crate) mod blocking;
mod closure;
mod commit_info;
mod complete;
mod composed;
mod delta;
mod descriptors;
mod error;
mod fetch;
mod files;
#[cfg(any(test, fuzzing))]
#[cfg_attr(fuzzing, allow(dead_code))]
pub(crate) mod fixture;
mod foreign_files;
#[cfg(any(test, fuzzing))]
#[path = "../../tests/fuzz/targets/trees.rs"]
pub(crate) mod fuzz;
mod gc;
mod gc_plan;
mod git_index;
mod history;
mod index_limiter;
mod indexer;
mod layout;
mod listing;
mod loose;
mod modules;
mod object_error;
mod odb;
mod pack_index;
mod packed_blobs;
mod partial;
mod plan;
mod read;
mod received;
mod repo_kind;
mod shared;
mod sparse;
mod subdirectory;
#[cfg(test)]
mod tests;
mod tree;
mod tree_to_payload;
pub mod wire;
mod worktrees;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

pub use composed::{Composer, Part, UniqueBaseNames};
pub use error::{Error, Libgit2};
pub use files::MIRRORS;

pub(crate) use files::disk_bytes;
pub(crate) use gc_plan::time_limit;
pub use index_limiter::TurnWait;
pub use indexer::child::{child_limits, child_main};
#[cfg(any(test, fuzzing))]
pub(crate) use indexer::pack_fuzz;
pub use listing::{ChangedPath, ListedEntry};
#[cfg(any(test, fuzzing))]
pub(crate) use modules::fuzz as modules_fuzz;
pub use modules::{Access, Hosts, InsteadOf, Submodules};
pub use object_error::ObjectError;
pub use received::Received;
pub use sparse::check_sparse;
pub use subdirectory::{BadSubdirectory, Subdirectory};
pub use wire::Tip;

use crate::payload::Rules;
use crate::revision::{ObjectId, Ref, Revision};
use crate::sandbox::Sandbox;
use index_limiter::{IndexLimiter, Turns};
use layout::Layout;
use odb::Settings;
use repo_kind::RepoKind;
use shared::Shared;

/// How much history to fetch and keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    /// The full history (`--depth=0`).
    Full,
    /// This many commits, counted from the tip; 1 by default.
    Commits(u32),
}

/// When unneeded objects are garbage collected (`--git-gc`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gc {
    /// Never: the mirror only grows.
    Off,
    /// Once garbage outweighs the objects that are needed.
    Auto,
    /// As soon as the last revision that needs an object is gone.
    Always,
    /// Like [`Gc::Always`], and the remaining objects are repacked into one pack.
    Aggressive,
}

/// The configuration of a mirror.
#[derive(Clone, Debug)]
pub struct Options {
    /// The mirror's directory, created if absent: a bare repository, unless `worktrees` is set.
    pub dir: PathBuf,
    /// Other mirrors, and directories of mirrors. A new mirror adopts the packs of one with the same remote instead of
    /// fetching them again.
    pub others: Vec<PathBuf>,
    /// git-sync's layout: `dir` is the non-bare repository `ROOT/.git`. An existing repository is taken over, and
    /// generations may become linked worktrees of it ([`Objects::add_worktree`]).
    pub worktrees: bool,
    /// When unneeded objects are garbage collected.
    pub gc: Gc,
    /// The ref to follow.
    pub followed: Ref,
    /// How much history to fetch and keep.
    pub depth: Depth,
    /// The remote, credentials, and transport settings.
    pub wire: wire::Options,
    /// RLIMIT_DATA of the indexing child process, in bytes (`--index-memory`).
    pub index_memory: u64,
    /// Size in bytes above which the mirror is shrunk (`--max-mirror-bytes`).
    pub max_bytes: u64,
    /// Number of packs above which small packs are merged.
    pub max_packs: u32,
    /// Fsync fetched objects before the ref that names them is written.
    pub durable: bool,
    /// Hash every object again when it is read (`--verify`). Process-wide.
    pub verify: bool,
    /// Which submodules are fetched, and from which hosts.
    pub modules: Access,
    /// A partial clone's object filter in git's syntax: `blob:none`, `blob:limit=1m` (`--filter`).
    pub filter: Option<String>,
    /// Counts received bytes.
    pub received: Received,
    /// Additional restrictions on the indexing child process (`--sandbox`).
    pub sandbox: Sandbox,
    /// The program that indexes packs. Its `main` must begin with [`child_main`].
    pub indexer: PathBuf,
}

impl Options {
    /// The defaults: depth 1, durable, and the running program as the indexer.
    pub fn new(dir: impl Into<PathBuf>, followed: Ref, wire: wire::Options) -> Self {
        Self {
            dir: dir.into(),
            others: Vec::new(),
            worktrees: false,
            gc: Gc::Auto,
            followed,
            depth: Depth::Commits(1),
            wire,
            index_memory: 64 << 20,
            max_bytes: 4 << 30,
            max_packs: 50,
            durable: true,
            verify: false,
            modules: Access::default(),
            filter: None,
            received: Received::default(),
            sandbox: Sandbox::default(),
            // Not current_exe(): its path no longer exists once the binary was replaced by a newer one.
            indexer: "/proc/self/exe".into(),
        }
    }
}

/// Which part of a tree becomes the payload, and which rules it must satisfy.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// What the payload may contain.
    pub rules: Rules,
    /// The directory that becomes the top of the payload (`--path`); `None` is the top of the repository. Patterns and
    /// limits are relative to it.
    pub path: Option<Subdirectory>,
    /// The content of a sparse-checkout file; `None` selects everything.
    pub sparse: Option<String>,
}

/// The published generation that a delta starts from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Base {
    /// Its git tree.
    pub tree: ObjectId,
    /// The number of its files, links and directories.
    pub entries: u64,
    /// The sum of its files' sizes.
    pub bytes: u64,
}

/// Whose mirror it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    /// That of the only repository that is followed.
    Single,
    /// That of one of several sources: several of its revisions may be current at once, and no single fetch brings all
    /// of them.
    Source,
    /// That of a submodule.
    Submodule,
}

/// The mirror of one remote, with a persistent connection to it.
///
/// Dropping the future of an async method cancels it: streams are closed, the indexing child is killed, and leftover
/// files are removed when the mirror is opened next.
#[derive(Debug)]
pub struct Mirror {
    options: Options,
    layout: Arc<Layout>,
    shared: Arc<Shared>,
    client: wire::Client,
    /// The shape of the remote's history, as observed so far.
    history_shape: plan::HistoryShape,
    /// The last tip that a fetch of this process found complete, with history of the configured depth.
    settled: Option<ObjectId>,
    /// The kept revisions at the last garbage collection that left no garbage; `None` if unknown.
    last_kept: Option<Vec<Revision>>,
    /// Whether the next fetch brings everything, so that all older packs can be removed.
    renewal: fetch::Renewal,
    /// The size of the packs when a renewal was last wanted, in bytes.
    renewal_bytes: u64,
    /// The pack of such a fetch, until the older packs are removed or anything else is fetched.
    renewal_pack: Option<fetch::RenewalPack>,
    /// Bytes of all packs that were received completely, those of submodules included.
    complete_pack_bytes: u64,
    role: Role,
    /// Pairs of revisions whose relation stays unknown, however often the remote is asked.
    unknown_relations: HashSet<(ObjectId, ObjectId)>,
    /// Limits how many mirrors index packs at the same time; `None` without other mirrors.
    index_limiter: Option<Arc<IndexLimiter>>,
    /// The mirrors of submodules.
    children: modules::Children,
    /// Ends garbage collection: see [`Self::cancelled_by`].
    cancel: CancellationToken,
}

impl Mirror {
    /// Opens or creates the mirror. Removes stale locks and temporary packs, and sets a broken repository aside.
    /// Blocking, without network. Takes an advisory lock: opening the same directory twice fails.
    pub fn open(options: Options) -> Result<Self, Error> {
        Settings { verify: options.verify, durable: options.durable, max_objects: None }.apply()?;
        Self::open_with(options, Role::Single, |dir, options| {
            Shared::new(dir, options.modules.submodules, options.durable, options.worktrees)
                .partial(options.filter.is_some())
                .verify(options.verify)
        })
    }

    /// Opens the mirror of one source of composed revisions. It shares its read lock with `composed`, whose readers
    /// read this mirror's objects, too.
    fn open_source(options: Options, composed: &Shared, turns: Arc<Turns>) -> Result<Self, Error> {
        Settings { verify: options.verify, durable: options.durable, max_objects: None }.apply()?;
        let mirror = Self::open_with(options, Role::Source, |dir, options| {
            composed.below(dir, options.modules.submodules).verify(options.verify)
        })?;
        let index_limiter = IndexLimiter::new(turns);
        let client = mirror.client.excluding(index_limiter.turn_wait());
        Ok(Self { client, index_limiter: Some(Arc::new(index_limiter)), ..mirror })
    }

    /// Makes the next fetch recreate the mirror, because an object could not be read.
    pub fn distrust(&self) {
        self.shared.note_damage();
    }

    /// Opens the mirror of a submodule. It shares its read lock with the mirror of the enclosing repository, whose
    /// readers read this mirror's objects, too.
    fn open_submodule(options: Options, parent: &Shared) -> Result<Self, Error> {
        // libgit2's settings are process-wide: the enclosing mirror has applied them.
        Self::open_with(options, Role::Submodule, |dir, options| {
            parent.below(dir, options.modules.submodules)
        })
    }

    /// Opens the mirror at `options.dir`: locks it, adopts the packs of another one if it is new, and repairs it.
    /// `share` makes the state for its readers, from the absolute path of that directory.
    fn open_with(
        mut options: Options,
        role: Role,
        share: impl FnOnce(PathBuf, &Options) -> Shared,
    ) -> Result<Self, Error> {
        let kind = if options.worktrees { RepoKind::Worktrees } else { RepoKind::Bare };
        if let Some(program) = &mut options.wire.program {
            program.mirror = std::path::absolute(&options.dir).unwrap_or_else(|_| options.dir.clone());
        }
        let client = wire::Client::new(options.wire.clone())?;
        let layout = Arc::new(Layout::open(&options.dir, kind, options.durable, Some(client.remote()))?);
        let shared = Arc::new(share(layout.dir().to_owned(), &options));
        if role == Role::Submodule {
            adopt::forget_other_remote(&layout, client.remote())?;
        }
        let may_adopt = kind == RepoKind::Bare && role != Role::Submodule;
        let adopted = may_adopt.then(|| adopt::adopt(&layout, &options.others, client.remote())).flatten();
        fetch::repair(&layout, &shared, adopted)?;
        // After `forget_other_remote`, which compares with the URL recorded last.
        layout.record_origin()?;
        if let Some(filter) = options.filter.as_ref().filter(|_| options.worktrees) {
            partial::name_promisor(layout.dir(), filter)?;
        }
        Ok(Self {
            options,
            layout,
            shared,
            client,
            history_shape: plan::HistoryShape::default(),
            settled: None,
            last_kept: None,
            renewal: fetch::Renewal::Allowed,
            renewal_bytes: 0,
            renewal_pack: None,
            complete_pack_bytes: 0,
            role,
            unknown_relations: HashSet::new(),
            index_limiter: None,
            children: modules::Children::new(),
            cancel: CancellationToken::new(),
        })
    }

    /// Returns true if a fetch of this process ensured that the revision is present with history of the configured
    /// depth. False right after opening, even for the published revision: an earlier process may have fetched it with
    /// another depth.
    pub fn is_settled(&self, revision: Revision) -> bool {
        self.settled == Some(revision.0)
    }

    /// Asks the remote what the followed ref names now. Over http(s) that is usually one request on a persistent
    /// connection, over ssh a channel of one, and over `git://` a new connection. A repository on this machine is read
    /// in place, and for a URL that only the program of `--git` understands, the program is started.
    pub async fn resolve(&mut self) -> Result<Tip, Error> {
        let followed = self.options.followed.clone();
        Ok(self.resolve_refs(std::slice::from_ref(&followed)).await?.tip(&followed)?)
    }

    /// The same for several refs at once.
    pub async fn resolve_refs(&mut self, refs: &[Ref]) -> Result<wire::FoundRefs, Error> {
        let found = self.client.resolve(refs).await;
        Ok(found.inspect_err(|_| self.close_modules_if_descriptors_are_scarce())?)
    }

    /// The same once more within an attempt, for which a credential or the place of the repository is known already.
    pub async fn resolve_refs_again(&mut self, refs: &[Ref]) -> Result<wire::FoundRefs, Error> {
        let found = self.client.resolve_again(refs).await;
        Ok(found.inspect_err(|_| self.close_modules_if_descriptors_are_scarce())?)
    }

    /// Returns a handle for reading objects, for blocking threads.
    pub fn objects(&self) -> Objects {
        Objects { shared: Arc::clone(&self.shared), cancel: CancellationToken::new() }
    }

    /// From now on [`Self::housekeep`] and [`Self::make_room`] end with [`Error::Cancelled`] once `cancel` is
    /// cancelled. Their child processes are killed then, or at their own time limit, which depends on `--sync-timeout`
    /// and the mirror's size.
    pub fn cancelled_by(&mut self, cancel: &CancellationToken) -> &mut Self {
        self.cancel = cancel.clone();
        self
    }

    /// Collects garbage so that the mirror's growth stays bounded; called after a publication, and after a fetch that
    /// led to none. `kept` are the published revisions, newest first; what was fetched last stays as well. Blocking.
    /// Packs that readers still use are removed by a later call.
    pub fn housekeep(&mut self, kept: &[Revision]) -> Result<(), Error> {
        self.shared.set_table(None); // frees the object table of the pack that was fetched last
        let complete = self.layout.tip().filter(|tip| self.shared.is_known_complete(*tip));
        let collected = self.collect_garbage(kept);
        match &collected {
            Ok(()) => {
                if let Some(tip) = complete.filter(|tip| self.layout.tip() == Some(*tip)) {
                    // The record names the packs, which garbage collection may have replaced; the objects are the same.
                    self.shared.note_complete(tip);
                }
            }
            // The submodules are skipped: which of them are needed is read from the objects that are damaged.
            Err(error)
                if error.is_damage() || matches!(error, Error::Irreplaceable { .. } | Error::Cancelled) =>
            {
                return collected;
            }
            Err(_) => {} // the mirrors of submodules are smaller, and may take less time or memory
        }
        collected.and(self.keep_modules(kept))
    }

    /// Frees space on a full volume by removing objects that none of the revisions in `keep` needs; `keep` includes the
    /// published ones. Does nothing with [`Gc::Off`]. Blocking. Returns true if space was freed.
    pub fn make_room(&mut self, keep: &[Revision]) -> Result<bool, Error> {
        Ok(self.free_space(keep)?.any)
    }

    /// Which submodules are part of a payload.
    pub fn submodules(&self) -> Submodules {
        self.options.modules.submodules
    }

    /// Bytes of packs that were received completely since the mirror was opened.
    pub fn complete_pack_bytes(&self) -> u64 {
        self.complete_pack_bytes
    }

    /// The live counter of received bytes, those of unfinished packs included.
    pub fn received(&self) -> Received {
        self.options.received.clone()
    }

    /// The mirror's disk usage in bytes, submodules included. Blocking. A file that is removed meanwhile may or may not
    /// be counted.
    pub fn disk_bytes(&self) -> u64 {
        disk_bytes(self.layout.dir())
    }

    /// The mirror's directory.
    pub fn dir(&self) -> &Path {
        self.layout.dir()
    }

    /// The remote's URL without userinfo.
    pub fn remote(&self) -> String {
        self.client.remote().to_owned()
    }
}

/// A handle for reading the mirror's objects. All methods block, and none uses the network.
#[derive(Clone, Debug)]
pub struct Objects {
    shared: Arc<Shared>,
    cancel: CancellationToken,
}
