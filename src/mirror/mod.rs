//! Our own copy of the remote's objects, and the way to the remote. The only module that names `git2`. It is a bare
//! repository, or, in git-sync's layout, `ROOT/.git`, whose linked worktrees the generations are.
//!
//! It promises that what [`Mirror::fetch`] returns is complete: the commit, every tree and every blob below it, and
//! history as deep as asked. It is a cache: whatever happens to it, it can be made anew, and nothing that is published
//! is touched for that. It writes nothing outside its directory, and nothing of a commit's author is ever run. What
//! others keep in `ROOT/.git` (refs, worktrees, commits made in a generation) is theirs and stays.
//!
//! Files: `wire/` git's smart protocol (streams, framing, the commands we speak); `plan` what to ask it for; `fetch`
//! asking and settling; `indexer/` the child process that takes a fetched pack in, and separates garbage from what is
//! needed, under limits; `closure` whether all is there; `partial` what a filter left out; `modules/` submodules;
//! `composed` revisions of several repositories' trees; `layout` the mirror's files, `files` names and helpers, `foreign_files` what is taken out, `repo_kind` what is
//! different in git-sync's layout, `worktrees` generations as linked worktrees, `git_index` their index; `odb` reading
//! objects; `tree`, `tree_to_payload`, `delta`, `sparse` trees to payloads and deltas; `listing` trees to paths;
//! `blobs` contents for writers; `history` how two revisions stand to each other; `gc` bounded growth, by the rules of
//! `gc_plan`; `error` and `lack`; `commit_info` what a commit says of itself; `received` how much has come; `turns` whose
//! pack is taken in; `author` makes the repository of the demonstration.

mod adopt;
pub mod author;
mod blobs;
mod blocking;
mod closure;
mod commit_info;
mod composed;
mod delta;
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
mod indexer;
mod lack;
mod layout;
mod listing;
mod loose;
mod modules;
mod odb;
mod pack_index;
mod packed_blobs;
mod partial;
mod plan;
mod received;
mod repo_kind;
mod shared;
mod sparse;
mod subdirectory;
#[cfg(test)]
mod tests;
mod tree;
mod tree_to_payload;
mod turns;
pub mod wire;
mod worktrees;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

pub use composed::{Composer, Part, UniqueBaseNames};
pub use error::{Error, Lack, Libgit2};

pub use indexer::child::{child_limits, child_main};
#[cfg(any(test, fuzzing))]
pub(crate) use indexer::pack_fuzz;
pub use listing::{Differing, Listed};
#[cfg(any(test, fuzzing))]
pub(crate) use modules::fuzz as modules_fuzz;
pub use modules::{Access, Hosts, Submodules};
pub use received::Received;
pub use sparse::check_sparse;
pub use subdirectory::{NotBelow, Subdirectory};
pub use wire::Tip;

use crate::payload::{BlobSource, Delta, Payload, Rules};
use crate::revision::{ObjectId, Ref, Revision};
use crate::sandbox::Sandbox;
use layout::Layout;
use modules::{Modules, Trouble};
use odb::{ObjectReader, Peeled, Settings};
use repo_kind::RepoKind;
use shared::Shared;
use sparse::Patterns;
use turns::Turns;

/// How much history to keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    /// All of it (`--depth=0`).
    Full,
    /// So many commits; 1 by default.
    Commits(u32),
}

/// What becomes of objects that nothing needs any more (`--git-gc`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gc {
    /// Nothing: the mirror only grows.
    Off,
    /// They go once they outweigh the rest.
    Auto,
    /// They go when the last revision that needs them went.
    Always,
    /// The same, and what stays becomes one pack.
    Aggressive,
}

/// What makes a mirror.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the mirror lives (a bare repository; made when absent).
    pub dir: PathBuf,
    /// Mirrors, and directories of mirrors, of which one may be of the same remote: what it has need not be fetched.
    pub others: Vec<PathBuf>,
    /// git-sync's layout: `dir` is `ROOT/.git` of a repository that is not bare, a repository that is there is taken
    /// over, and generations may become linked worktrees of it ([`Objects::add_worktree`]).
    pub worktrees: bool,
    /// What becomes of objects that nothing needs any more.
    pub gc: Gc,
    /// What to follow.
    pub asked: Ref,
    /// How much history.
    pub depth: Depth,
    /// The remote and everything about reaching it.
    pub wire: wire::Options,
    /// RLIMIT_DATA of the indexing child, bytes (`--index-memory`).
    pub index_memory: u64,
    /// Bytes that the mirror may occupy before it is made smaller (`--max-mirror-bytes`).
    pub max_bytes: u64,
    /// Packs that the mirror may consist of before they become one.
    pub max_packs: u32,
    /// fsync what is fetched before it counts.
    pub durable: bool,
    /// Hash every object again when it is read (`--verify`). Process-wide.
    pub verify: bool,
    /// Submodules: which, and from where.
    pub modules: Access,
    /// What need not be fetched before it is needed (`--filter`, git's words: `blob:none`, `blob:limit=1m`).
    pub filter: Option<String>,
    /// Counts what comes.
    pub received: Received,
    /// What limits that program besides (`--sandbox`).
    pub sandbox: Sandbox,
    /// The program that indexes packs: one whose `main` begins with [`child_main`].
    pub indexer: PathBuf,
}

impl Options {
    /// The defaults: depth 1, durable, this program as its own indexer.
    pub fn new(dir: impl Into<PathBuf>, asked: Ref, wire: wire::Options) -> Self {
        Self {
            dir: dir.into(),
            others: Vec::new(),
            worktrees: false,
            gc: Gc::Auto,
            asked,
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
            // Not current_exe(): its path is gone when the binary was replaced by a newer one.
            indexer: "/proc/self/exe".into(),
        }
    }
}

/// What shapes a payload besides the tree.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// What may be in it.
    pub rules: Rules,
    /// The directory of the repository that is the payload's top, or the repository's own. Patterns and limits count
    /// from there.
    pub path: Option<Subdirectory>,
    /// git's sparse patterns (the file's content), or everything.
    pub sparse: Option<String>,
}

/// What a delta starts from: a generation that was published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Base {
    /// Its tree.
    pub tree: ObjectId,
    /// Files, links and directories in it.
    pub entries: u64,
    /// Sum of its files' sizes.
    pub bytes: u64,
}

/// The mirror, and a kept connection to the remote.
///
/// The async functions are cancelled by dropping their future: streams close, the indexing child is killed, and what
/// they left behind is swept by the next opening.
#[derive(Debug)]
pub struct Mirror {
    options: Options,
    layout: Arc<Layout>,
    shared: Arc<Shared>,
    client: wire::Client,
    /// What the remote's history has looked like so far.
    course: fetch::HistoryShape,
    /// The last tip that a fetch of this process left complete, with a boundary of the depth asked for.
    settled: Option<ObjectId>,
    /// The revisions held when housekeeping was last done.
    held: Option<Vec<Revision>>,
    /// The next fetch brings everything.
    renew: bool,
    /// The pack that it brought, which stands for itself.
    renewed: Option<String>,
    /// Bytes of all packs that came whole, those of submodules included.
    received: u64,
    /// It is a submodule's.
    inner: bool,
    /// It is a source's: several revisions of it may be current at once, and no one fetch brings all of them.
    of_source: bool,
    /// Packs are taken in by turns with these.
    turns: Option<Arc<Turns>>,
    /// The mirrors of submodules.
    children: modules::Children,
}

impl Mirror {
    /// Opens or makes the mirror, sweeping stale locks and temporary packs; a broken one is set aside. Blocking; no
    /// network. The mirror has a lock of its own: a second one on the same directory is refused.
    pub fn open(options: Options) -> Result<Self, Error> {
        Settings { verify: options.verify, durable: options.durable, max_objects: None }.apply()?;
        Self::begin(options, false, |dir, options| {
            Shared::new(dir, options.modules.asked, options.durable, options.worktrees)
                .partial(options.filter.is_some())
        })
    }

    /// The same for a source of composed revisions: readers of those may read its objects, too.
    fn open_beside(options: Options, composed: &Shared, turns: Arc<Turns>) -> Result<Self, Error> {
        Settings { verify: options.verify, durable: options.durable, max_objects: None }.apply()?;
        let mirror = Self::begin(options, false, |dir, options| composed.below(dir, options.modules.asked))?;
        Ok(Self { of_source: true, turns: Some(turns), ..mirror })
    }

    /// The next fetch makes the mirror anew: something of it could not be read.
    pub fn distrust(&self) {
        self.shared.note_damage();
    }

    /// The same for a submodule: readers of the objects of the mirror above may read its objects, too.
    fn open_below(options: Options, above: &Shared) -> Result<Self, Error> {
        Self::begin(options, true, |dir, options| above.below(dir, options.modules.asked))
    }

    fn begin(
        mut options: Options,
        inner: bool,
        share: impl FnOnce(PathBuf, &Options) -> Shared,
    ) -> Result<Self, Error> {
        let form = if options.worktrees { RepoKind::Worktrees } else { RepoKind::Bare };
        if let Some(program) = &mut options.wire.program {
            program.mirror = std::path::absolute(&options.dir).unwrap_or_else(|_| options.dir.clone());
        }
        let client = wire::Client::new(options.wire.clone())?;
        let layout = Arc::new(Layout::open(&options.dir, form, options.durable)?);
        let shared = Arc::new(share(layout.dir().to_owned(), &options));
        let may_adopt = form == RepoKind::Bare && !inner;
        let adopted = may_adopt.then(|| adopt::adopt(&layout, &options.others, client.remote())).flatten();
        fetch::repair(&layout, &shared, adopted)?;
        repo_kind::name_origin(layout.dir(), client.remote())?;
        if let Some(filter) = options.filter.as_ref().filter(|_| options.worktrees) {
            partial::name_promisor(layout.dir(), filter)?;
        }
        let course = fetch::HistoryShape::Unknown;
        let children = modules::Children::new();
        Ok(Self {
            options,
            layout,
            shared,
            client,
            course,
            settled: None,
            held: None,
            renew: false,
            renewed: None,
            received: 0,
            inner,
            of_source: false,
            turns: None,
            children,
        })
    }

    /// Whether a fetch of this process has seen to it that the revision is there with history as deep as asked. Not so
    /// right after opening: the depth may have been another one before, with nothing new to publish.
    pub fn is_settled(&self, revision: Revision) -> bool {
        self.settled == Some(revision.0)
    }

    /// Asks the remote what the ref names now: one round trip on a kept connection, no process, no disk.
    pub async fn resolve(&mut self) -> Result<Tip, Error> {
        let asked = &self.options.asked;
        Ok(self.client.resolve(std::slice::from_ref(asked)).await?.tip(asked)?)
    }

    /// The same for any refs: still one round trip.
    pub async fn resolve_refs(&mut self, asked: &[Ref]) -> Result<wire::FoundRefs, Error> {
        Ok(self.client.resolve(asked).await?)
    }

    /// A handle to the objects, for blocking threads.
    pub fn objects(&self) -> Objects {
        Objects { shared: Arc::clone(&self.shared), cancel: CancellationToken::new() }
    }

    /// Keeps the mirror's growth bounded; called after a publication. `held` are the published revisions, newest
    /// first. Blocking. What it can't do because of readers, it does the next time.
    pub fn housekeep(&mut self, held: &[Revision]) -> Result<(), Error> {
        self.collect_garbage(held)?;
        self.keep_modules(held)
    }

    /// On a full volume: gives back what was fetched and is of none of these revisions, of which the published ones
    /// are some, unless nothing is ever to go ([`Gc::Off`]). Blocking. `true`: there is more room now.
    pub fn make_room(&mut self, keep: &[Revision]) -> Result<bool, Error> {
        self.free_space(keep)
    }

    /// Which submodules a payload holds.
    pub fn submodules(&self) -> Submodules {
        self.options.modules.asked
    }

    /// Bytes of packs that came whole since the mirror was opened.
    pub fn received_bytes(&self) -> u64 {
        self.received
    }

    /// What comes, while it comes.
    pub fn received(&self) -> Received {
        self.options.received.clone()
    }

    /// Bytes that the mirror takes on its disk, those of submodules included. Blocking. What vanishes meanwhile counts
    /// or does not.
    pub fn disk_bytes(&self) -> u64 {
        files::disk_bytes(self.layout.dir())
    }

    /// Where it lies.
    pub fn dir(&self) -> &Path {
        self.layout.dir()
    }

    /// The remote's URL without userinfo.
    pub fn remote(&self) -> String {
        self.client.remote().to_owned()
    }
}

/// The mirror's objects. Everything here blocks and needs no network.
#[derive(Clone, Debug)]
pub struct Objects {
    shared: Arc<Shared>,
    cancel: CancellationToken,
}

impl Objects {
    /// The same, but payloads and deltas end with [`Error::Cancelled`] once `cancel` says so: a large revision has
    /// tens of thousands of trees to read.
    pub fn until(self, cancel: &CancellationToken) -> Self {
        Self { cancel: cancel.clone(), ..self }
    }

    /// The checked content of a revision.
    pub fn payload(&self, revision: Revision, selection: &Selection) -> Result<Payload, Error> {
        let patterns = selection.sparse.as_deref().map(Patterns::parse).transpose()?;
        let cancel = &self.cancel;
        let asked = self.shared.asked;
        self.read_top(revision, selection.path.as_ref(), |reader, at| {
            let modules = Modules::of(reader, at.tree, asked).map_err(|trouble| trouble.of(revision))?;
            let parts = composed::places(reader, &self.shared, revision);
            tree_to_payload::payload(reader, at, selection, patterns.as_ref(), (&modules, parts), cancel)
        })
    }

    /// What `to` changes against `base`, with the same checks; `None` where only a whole payload will do.
    pub fn delta(&self, base: Base, to: Revision, selection: &Selection) -> Result<Option<Delta>, Error> {
        let patterns = selection.sparse.as_deref().map(Patterns::parse).transpose()?;
        let cancel = &self.cancel;
        let asked = self.shared.asked;
        self.read_top(to, selection.path.as_ref(), |reader, at| {
            let Ok(old) = Modules::of(reader, base.tree, asked) else { return Ok(None) };
            let new = Modules::of(reader, at.tree, asked).map_err(|trouble| trouble.of(to))?;
            // Patterns choose files of the repository itself and whole submodules: what was one and is the other
            // has no decision of its own to compare.
            // And where git works in submodules, each has a `.git` that belongs to its generation.
            if (patterns.is_some() || self.shared.linked) && !(old.is_empty() && new.is_empty()) {
                return Ok(None);
            }
            let parts = composed::places(reader, &self.shared, to);
            delta::delta(reader, base, at, selection, patterns.as_ref(), (&old, &new, parts), cancel)
        })
    }

    /// Whether the mirror holds a revision, with its submodules. That it does not is no damage.
    pub fn holds(&self, revision: Revision) -> bool {
        let _lease = self.shared.lease();
        let Ok(store) = self.shared.all() else { return false };
        let Ok(reader) = store.reader() else { return false };
        let asked = self.shared.asked;
        reader.commit(&revision.0).is_ok_and(|commit| {
            reader.has(&commit.tree)
                && !matches!(Modules::of(&reader, commit.tree, asked), Err(Trouble::Absent { .. }))
        })
    }

    /// The tree of a revision that the mirror holds, or of a directory in it.
    pub fn tree_of(&self, revision: Revision, path: Option<&Subdirectory>) -> Result<ObjectId, Error> {
        self.read_top(revision, path, |_, at| Ok(at.tree))
    }

    /// Where what was made of blobs may be kept.
    pub fn values_file(&self) -> PathBuf {
        self.shared.dir.join(files::VALUES)
    }

    /// Contents of blobs, for any number of threads. No pack is removed while it lives.
    pub fn blobs(&self) -> Box<dyn BlobSource + Send> {
        Box::new(blobs::Blobs::new(Arc::clone(&self.shared)))
    }

    /// The same, where the tree is that of a directory.
    fn read_top<T>(
        &self,
        revision: Revision,
        path: Option<&Subdirectory>,
        act: impl FnOnce(&ObjectReader<'_>, Peeled) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.read(revision, |reader, at| {
            let tree = path.map_or(Ok(at.tree), |path| path.tree(reader, revision, at.tree))?;
            act(reader, Peeled { tree, ..at })
        })
    }

    /// Reads with a handle of its own; an object that is not there is remembered, so that the next fetch mends it.
    fn read<T>(
        &self,
        revision: Revision,
        act: impl FnOnce(&ObjectReader<'_>, Peeled) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let _lease = self.shared.lease();
        let store = self.shared.all()?;
        let reader = store.reader().map_err(|source| Error::Git {
            act: "open the mirror's objects".into(),
            source: Libgit2(source),
        })?;
        let result = match reader.commit(&revision.0) {
            Ok(commit) => act(&reader, Peeled { commit: revision.0, tree: commit.tree }),
            Err(lack) => Err(Error::damaged(revision, lack)),
        };
        if result.as_ref().is_err_and(Error::is_damage) {
            self.shared.note_damage();
        }
        result
    }
}
