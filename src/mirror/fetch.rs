//! Fetches a tip: sends a request, indexes the pack, and records the tip.
//!
//! A tip that is already complete needs no network. Otherwise the request of [`super::plan`] is sent, the indexing
//! child process takes the pack, and once the tip is complete the shallow boundary and the ref are written (see
//! [`super::layout`] for what a crash leaves). If the remote may have rejected the boundary that we chose, it is asked
//! to choose one. If the answer is incomplete or unexpected, or takes too much memory, one more request is sent that
//! claims no commit as present.

mod local_state;
mod receive;

use std::cell::LazyCell;
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::blocking::blocking;
use super::closure::tree_closure_except_blobs;
use super::complete;
use super::descriptors::{self, check_descriptors};
use super::error::Error;
use super::indexer::Task;
use super::layout::Layout;
use super::modules::KeptRevisions;
use super::odb::Store;
use super::packed_blobs::PackedBlobs;
use super::plan::{RequestReason, Situation, plan, without_haves};
use super::repo_kind::{self, RepoKind};
use super::shared::Shared;
use super::wire::{self, Deepen, PackResponse, Request};
use super::{Mirror, Role, Tip};
use crate::revision::{ObjectId, Revision};
use local_state::{CompleteTip, Inspection, LocalState, inspect};

/// The most objects that are expected of the commits since the last fetch: the commits, the changed files, and the
/// directories above them. A commit of 40 files deep in a tree has 200; a merge of an old branch brings all history.
const NEW_OBJECTS_MAX: u64 = 2000;

/// Renewing the mirror: one fetch brings everything, after which all older packs are removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Renewal {
    /// Garbage collection may ask for one.
    Allowed,
    /// The next fetch is one.
    Due,
    /// The last one did not succeed, or more was fetched before the older packs could be removed. The next garbage
    /// collection rewrites the packs instead, which needs no network. After that another renewal is allowed; if it
    /// fails, once the mirror has grown by half.
    Failed,
}

/// The pack of a renewal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RenewalPack {
    /// The file name without suffix.
    pub(super) name: String,
    /// The commit that it holds with everything that belongs to it. Other commits may need other packs.
    pub(super) tip: ObjectId,
}

/// Checks at opening that the last tip is complete, unless that is recorded ([`super::complete`]). If it is not, or if
/// an object could not be read since the mirror was made, the mirror is set aside and the next fetch fills a new one. A
/// repository made by git-sync has no tip in our refs: the revision that it published last becomes the tip if it is
/// complete. So does `adopted`, the tip of a mirror whose packs were linked. Fails, and leaves the mirror as it is, if
/// no file can be opened to check it.
pub(super) fn repair(layout: &Layout, shared: &Shared, adopted: Option<ObjectId>) -> Result<(), Error> {
    if complete::is_damaged(layout.dir()) {
        return rebuild(layout, UNREADABLE);
    }
    let tips = match layout.tip() {
        Some(tip) => vec![tip],
        None if layout.kind() == RepoKind::Worktrees => repo_kind::published(layout.dir())?,
        None => adopted.into_iter().collect(),
    };
    let blobs = LazyCell::new(|| PackedBlobs::of(&shared.pack_indexes()));
    let check = |store: &Store, tip: &ObjectId| -> Result<(), String> {
        let reader = store.reader().map_err(|error| error.message().to_owned())?;
        let commit = reader.commit(tip).map_err(|error| error.to_string())?;
        if shared.is_known_complete(*tip) {
            return Ok(());
        }
        let closure =
            tree_closure_except_blobs(&reader, commit.tree, None, shared.partial, |id| blobs.has(id));
        closure.map_err(|error| error.to_string())
    };
    let mut broken = None;
    for tip in tips {
        let store = shared.store();
        let checked = store.as_ref().map_err(ToString::to_string).and_then(|store| check(store, &tip));
        if checked.is_err() {
            check_descriptors(layout.dir())?; // while the store is open: it may have the last ones
        }
        match checked {
            Ok(()) => {
                if layout.tip().is_none() {
                    layout.commit_tip(&layout.shallow(), tip)?;
                }
                shared.note_complete(tip);
                return Ok(());
            }
            Err(why) => broken = broken.or(Some(why)),
        }
    }
    match broken {
        None => Ok(()),
        Some(why) if !shared.partial && layout.has_filtered_packs()? => {
            let said = "the mirror was fetched with --filter, and is fetched again without it";
            tracing::info!(mirror = %layout.dir().display(), why, "{said}");
            start_empty(layout)
        }
        Some(why) => rebuild(layout, &why),
    }
}

/// Why a mirror is rebuilt whose check found nothing wrong.
const UNREADABLE: &str = "an object could not be read";

/// Starts with an empty repository because this one is damaged.
fn rebuild(layout: &Layout, why: &str) -> Result<(), Error> {
    tracing::warn!(mirror = %layout.dir().display(), why, "the mirror is damaged and is rebuilt");
    start_empty(layout)
}

/// The same for the mirrors of the submodules, too: all are read as one database, so it is unknown in which of them an
/// object could not be read.
fn rebuild_with_modules(layout: &Layout) -> Result<(), Error> {
    tracing::warn!(mirror = %layout.dir().display(), why = UNREADABLE, "the mirror is damaged and is rebuilt");
    let aside = layout.set_aside()?;
    complete::clear(layout.dir());
    let modules = repo_kind::set_modules_aside(layout.dir(), &aside);
    discard(aside);
    modules
}

/// Sets the repository aside and starts with an empty one.
fn start_empty(layout: &Layout) -> Result<(), Error> {
    discard(layout.set_aside()?);
    complete::clear(layout.dir());
    Ok(())
}

/// Removes a repository that was set aside, in the background.
fn discard(aside: PathBuf) {
    // Whatever is not removed here, be it because no thread can be started, is removed at the next opening.
    let _ = std::thread::Builder::new().name("mirror".into()).spawn(move || fs_err::remove_dir_all(aside));
}

impl Mirror {
    /// Ensures that the mirror holds the tip's commit with its whole tree and history of the configured depth, and the
    /// same for the configured submodules. Returns the commit. `kept` are the published revisions, newest first, which
    /// stay readable.
    pub async fn fetch(&mut self, tip: &Tip, kept: &[Revision]) -> Result<Revision, Error> {
        let all = KeptRevisions::of_one_remote(kept);
        let fetched = self.fetch_own(tip, all, self.options.wire.max_fetch_bytes).await;
        let revision = fetched.inspect_err(|_| self.close_modules_if_descriptors_are_scarce())?;
        match self.fetch_modules_without_garbage(revision, all).await {
            Ok(()) => Ok(revision),
            Err(error) => {
                // The revision will not be published, so submodule mirrors that only it uses are removed.
                if matches!(error, Error::Refused(_)) {
                    self.forget_modules(kept).await;
                }
                self.close_modules_if_descriptors_are_scarce();
                Err(error)
            }
        }
    }

    /// Closes the mirrors of submodules, which are opened again when they are needed, if few descriptors are left. To
    /// be called after a failure, whose error may not tell: without it the next attempt would fail, too, even if it
    /// needed no submodule.
    pub(super) fn close_modules_if_descriptors_are_scarce(&mut self) {
        if !self.children.is_empty() && descriptors::are_scarce() {
            let closed = self.children.len();
            tracing::warn!(closed, "few files can be opened: closed the mirrors of submodules");
            self.children.clear();
        }
    }

    /// Like [`Self::fetch`], without submodules. No pack may have more than `max_bytes`.
    pub(super) async fn fetch_own(
        &mut self,
        tip: &Tip,
        kept: KeptRevisions<'_>,
        max_bytes: u64,
    ) -> Result<Revision, Error> {
        self.fetch_tip(tip, kept, max_bytes).await.map_err(|error| match (error, &tip.name) {
            // The ref is what the operator chose, and can change.
            (Error::NotACommit { requested, kind }, Some(name)) => {
                Error::NotACommit { requested: format!("{name} ({requested})"), kind }
            }
            (error, _) => error,
        })
    }

    /// The same. An object that is no commit is named by its id.
    async fn fetch_tip(
        &mut self,
        tip: &Tip,
        kept: KeptRevisions<'_>,
        max_bytes: u64,
    ) -> Result<Revision, Error> {
        self.recreate_if_removed().await?;
        if self.shared.take_damage() {
            let layout = Arc::clone(&self.layout);
            let shared = Arc::clone(&self.shared);
            self.renewal_pack = None;
            blocking(move || rebuild_with_modules(&layout).map(|()| shared.note_rebuilt())).await?;
            self.settled = None;
        }
        let mut known = self.inspect(tip.object, kept, None).await?;
        if let Some(found) = known.complete.take() {
            tracing::debug!(commit = %found.commit, "the mirror has it already");
            return self.commit_tip(found).await;
        }
        let now = self.situation(tip, &known);
        if self.renewal == Renewal::Due {
            // Until it succeeds, and also if this future is dropped: a fetch of everything may take longer than an
            // attempt may, while a fetch of what is new would not. So it is never tried twice in a row.
            self.renewal = Renewal::Failed;
            match self.request(&without_haves(&now), RequestReason::Renewal, kept, max_bytes).await {
                Ok(revision) => return Ok(revision),
                // The remote asks not to be asked again so soon.
                Err(error) if error.retry_after().is_some() => return Err(error),
                // Only garbage asked for the whole. What is new is a smaller request, which may well succeed, and a
                // renewal is no reason to publish it later.
                Err(error) => tracing::warn!(%error, "the mirror cannot be renewed"),
            }
        }
        self.fetch_new(tip, now, kept, max_bytes).await.inspect_err(|error| {
            // The child that indexes a pack reads what it builds on, and does not say which side is damaged.
            use Error::{BadPack, Incomplete, Indexer, Local};
            if matches!(error, BadPack { .. } | Incomplete { .. } | Indexer { .. } | Local { .. }) {
                self.shared.forget_complete();
            }
            self.shared.note_if_damage(error);
        })
    }

    /// Sends the planned request for a tip that is not complete. If it fails, and another kind of request may succeed,
    /// sends that.
    async fn fetch_new(
        &mut self,
        tip: &Tip,
        now: Situation<'_>,
        kept: KeptRevisions<'_>,
        max_bytes: u64,
    ) -> Result<Revision, Error> {
        let (mut request, mut reason) = plan(&now);
        if reason == RequestReason::AssumeParent {
            self.history_shape.note_assumed();
            match self.request(&request, reason, kept, max_bytes).await {
                Ok(revision) => return Ok(revision),
                Err(error) => {
                    // What is too large may be a file of a commit in between, which the tip no longer has.
                    if !fresh_request_may_help(&error) && !is_too_large(&error) {
                        return Err(error);
                    }
                    self.history_shape.note_wrong();
                    tracing::debug!(%error, "the history is not linear, or a commit in between is too large");
                    (request, reason) = plan(&Situation { assume_linear: false, ..now });
                }
            }
        }
        let mut fetched = self.request(&request, reason, kept, max_bytes).await;
        // A server looks at the boundary before it sends anything. A pack that was cut off may be large, and is not
        // asked for again at once.
        if reason == RequestReason::DeclareShallow
            && !self.client.pack_began()
            && fetched.as_ref().is_err_and(|error| boundary_may_be_wrong(tip, error))
        {
            tracing::debug!("what the ref names may not be a commit: the remote chooses the boundary");
            (request, reason) = plan(&Situation { commit: None, ..now });
            fetched = self.request(&request, reason, kept, max_bytes).await;
        }
        match fetched {
            Err(error) if reason != RequestReason::First && fresh_request_may_help(&error) => {
                tracing::info!(%error, "retrying the fetch without haves");
                self.request(&without_haves(&now), RequestReason::WithoutHaves, kept, max_bytes).await
            }
            other => other,
        }
    }

    /// Measures, in bytes, the pack that [`Self::fetch`] would receive for the tip, without submodules. The pack is
    /// received completely and discarded: git's protocol does not announce a pack's size.
    pub async fn pack_bytes(&mut self, tip: &Tip, kept: &[Revision]) -> Result<u64, Error> {
        let known = self.inspect(tip.object, KeptRevisions::of_one_remote(kept), None).await?;
        if known.complete.is_some() {
            return Ok(0);
        }
        let (request, _) = plan(&self.situation(tip, &known));
        let request = self.filtered(&request);
        Ok(self.client.fetch(&request, &mut tokio::io::sink()).await?.bytes)
    }

    fn situation<'k>(&self, tip: &Tip, known: &'k LocalState) -> Situation<'k> {
        Situation {
            want: tip.object,
            // With an external git program (`--git`) we cannot choose the shallow boundary ourselves.
            commit: tip.peeled.or(Some(tip.object)).filter(|_| self.options.wire.program.is_none()),
            depth: self.options.depth,
            haves: &known.haves,
            shallow: &known.shallow,
            assume_linear: self.history_shape.is_linear,
        }
    }

    /// The request with the configured object filter.
    fn filtered(&self, request: &Request) -> Request {
        let filter = self.options.filter.clone();
        // In a thin pack, a large file may be a delta against a file that an earlier fetch filtered out. So thin packs
        // are only requested when no blob is sent at all.
        let thin = request.thin && filter.as_ref().is_none_or(|filter| filter == "blob:none");
        Request { filter, thin, ..request.clone() }
    }

    /// Recreates the mirror if it was deleted while it was open: it is a cache, and deleting it is allowed.
    async fn recreate_if_removed(&mut self) -> Result<(), Error> {
        let layout = Arc::clone(&self.layout);
        if let Some(layout) = blocking(move || layout.recreate_if_removed()).await? {
            tracing::warn!(mirror = %layout.dir().display(), "the mirror was removed, and is created again");
            self.layout = Arc::new(layout);
            self.settled = None;
            self.renewal = Renewal::Allowed;
            self.renewal_pack = None;
        }
        Ok(())
    }

    /// Sends one request, indexes the answer, and records the tip.
    async fn request(
        &mut self,
        request: &Request,
        reason: RequestReason,
        kept: KeptRevisions<'_>,
        max_bytes: u64,
    ) -> Result<Revision, Error> {
        let want = request.wants[0];
        let base = request.haves.first().copied();
        let partial = self.options.filter.is_some();
        let expected = (reason == RequestReason::AssumeParent).then_some(NEW_OBJECTS_MAX);
        let task = Task::Index { tip: want, base, expected, partial };
        let request = self.filtered(request);
        let layout = Arc::clone(&self.layout);
        let (answer, pack, table) = self.receive_into(layout.dir(), max_bytes, &request, task).await?;
        self.shared.set_table(table);
        if request.filter.is_some() && !answer.filtered && self.complete_pack_bytes == 0 {
            tracing::warn!("the remote does not support --filter: it sends everything");
        }
        self.complete_pack_bytes += answer.bytes;
        tracing::debug!(reason = reason.label(), bytes = answer.bytes, pack, "received a pack");
        let ends = ends_of_remote(&request, &answer);
        let known = self.inspect(want, kept, Some(ends)).await?;
        match known.complete {
            Some(found) => {
                let assumed = reason == RequestReason::AssumeParent;
                self.history_shape.note_commit(&found.parents, &request.haves, assumed);
                let revision = self.commit_tip(found).await?;
                if self.renewal_pack.take().is_some() {
                    self.renewal = Renewal::Failed;
                }
                match reason {
                    RequestReason::First if self.layout.packs()?.len() == 1 => {
                        self.layout.record_garbage_free_state(&[revision])?;
                    }
                    RequestReason::Renewal => {
                        self.renewal = Renewal::Allowed;
                        self.renewal_pack = Some(RenewalPack { name: pack, tip: revision.0 });
                    }
                    // A first fetch into a repository with packs of git-sync says nothing about garbage in those packs.
                    RequestReason::First
                    | RequestReason::DeclareShallow
                    | RequestReason::AssumeParent
                    | RequestReason::History
                    | RequestReason::WithoutHaves => {}
                }
                Ok(revision)
            }
            None => {
                // The received pack is sound, so an older pack is damaged.
                if let Some(error) = known.unreadable {
                    return Err(Error::damaged(Revision(want), error));
                }
                let source = super::object_error::ObjectError::Missing {
                    id: want,
                    expected: "all of the history of".into(),
                };
                Err(Error::Incomplete { requested: want, at: None, source })
            }
        }
    }

    async fn inspect(
        &self,
        want: ObjectId,
        kept: KeptRevisions<'_>,
        received: Option<HashSet<ObjectId>>,
    ) -> Result<LocalState, Error> {
        let layout = Arc::clone(&self.layout);
        let shared = Arc::clone(&self.shared);
        let inspection = Inspection {
            want,
            kept_revisions: kept.all.to_vec(),
            of_remote: kept.of_remote.to_vec(),
            is_submodule: self.role == Role::Submodule,
            depth: self.options.depth,
            partial: self.shared.partial,
            received,
            settled: self.settled,
        };
        let cancel = CancellationToken::new();
        let _dropped = cancel.clone().drop_guard();
        blocking(move || inspect(&shared.store()?.objects()?, &layout, inspection, &cancel)).await
    }

    async fn commit_tip(&mut self, found: CompleteTip) -> Result<Revision, Error> {
        let layout = Arc::clone(&self.layout);
        let shared = Arc::clone(&self.shared);
        let commit = found.commit;
        let record = move || {
            layout.commit_tip(&found.boundary, commit)?;
            shared.note_complete(commit);
            Ok(())
        };
        blocking(record).await?;
        self.settled = Some(commit);
        Ok(Revision(commit))
    }
}

/// The commits at which the remote's own history ends. A server does not repeat those that the request states as
/// `shallow`: if it was asked to move the boundary, what it did not lift is where its history ends, too.
fn ends_of_remote(request: &Request, answer: &PackResponse) -> HashSet<ObjectId> {
    let mut ends: HashSet<ObjectId> = HashSet::new();
    if request.depth != Deepen::No {
        ends.extend(&request.shallow);
        for id in &answer.unshallow {
            ends.remove(id);
        }
    }
    ends.extend(&answer.shallow);
    ends
}

/// Returns true if the remote may have rejected the request because what the tip names cannot be a boundary: it is no
/// commit. git lets a branch name commits only; a tag may name a tree, and an id may be that of a tag.
fn boundary_may_be_wrong(tip: &Tip, error: &Error) -> bool {
    let is_branch = |name: &String| name == "HEAD" || name.starts_with("refs/heads/");
    let said_so = match error {
        Error::Unsent { source, .. } => source.may_be_about_boundary(),
        Error::Wire(error) => error.may_be_about_boundary(),
        _ => false,
    };
    said_so && !tip.name.as_ref().is_some_and(is_branch)
}

/// Returns true if the pack has too many bytes.
fn is_too_large(error: &Error) -> bool {
    use Error::{FetchBytes, Wire};
    matches!(error, FetchBytes { .. } | Wire(wire::Error::TooMuch { budget: wire::Budget::Pack, .. }))
}

/// Returns true if a request that claims no commits as present may succeed where this error occurred.
fn fresh_request_may_help(error: &Error) -> bool {
    match error {
        Error::Incomplete { .. } | Error::BadPack { .. } => true,
        // A changed file comes as a delta of one that is present, and both are in memory then. Without haves it comes
        // whole, and is hashed in pieces.
        Error::IndexMemory { .. } => true,
        // The remote rejected this particular request.
        Error::Unsent { source, .. } => matches!(**source, wire::Error::Remote { .. }),
        Error::Wire(wire::Error::Unsupported { .. }) => true,
        _ => false,
    }
}
