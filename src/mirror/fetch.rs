//! Fetches a tip: sends a request, indexes the pack, and records the tip.
//!
//! A tip that is already complete needs no network. Otherwise the request of [`super::plan`] is sent, the indexing
//! child process takes the pack, and once the tip is complete the shallow boundary and the ref are written (see
//! [`super::layout`] for what a crash leaves). If the answer is incomplete or unexpected, one more request is sent that
//! claims no commits as present.

mod local_state;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio_util::sync::CancellationToken;

use super::blocking::blocking;
use super::closure::closure_beside;
use super::error::Error;
use super::index_limiter::IndexLimiter;
use super::indexer::{Indexer, Job, ObjectTable, Report, Task};
use super::layout::Layout;
use super::modules::Held;
use super::packed_blobs::PackedBlobs;
use super::plan::{RequestReason, Situation, plan, without_haves};
use super::repo_kind::{self, RepoKind};
use super::shared::Shared;
use super::wire::{self, PackResponse, Request};
use super::{Mirror, Tip};
use crate::revision::{ObjectId, Revision};
use local_state::{CompleteTip, Inspection, LocalState, inspect};

/// Buffer size in bytes between the connection and the child process.
const CHUNK: usize = 64 << 10;

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
    /// collection rewrites the packs instead, which needs no network.
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

/// Checks at opening that the last tip is complete. If it is not, the mirror is set aside and the next fetch fills a
/// new one. A repository made by git-sync has no tip in our refs: the revision that it published last becomes the tip
/// if it is complete. So does `adopted`, the tip of a mirror whose packs were linked.
pub(super) fn repair(layout: &Layout, shared: &Shared, adopted: Option<ObjectId>) -> Result<(), Error> {
    let tips = match layout.tip() {
        Some(tip) => vec![tip],
        None if layout.kind() == RepoKind::Worktrees => repo_kind::published(layout.dir())?,
        None => adopted.into_iter().collect(),
    };
    if tips.is_empty() {
        return Ok(());
    }
    let blobs = PackedBlobs::of(&shared.pack_indexes());
    let check = |tip: &ObjectId| -> Result<(), String> {
        let store = shared.store().map_err(|error| error.to_string())?;
        let reader = store.reader().map_err(|error| error.message().to_owned())?;
        let commit = reader.commit(tip).map_err(|error| error.to_string())?;
        let closure = closure_beside(&reader, commit.tree, None, shared.partial, |id| blobs.has(id));
        closure.map_err(|error| error.to_string())
    };
    let mut broken = None;
    for tip in tips {
        match check(&tip) {
            Ok(()) if layout.tip().is_some() => return Ok(()),
            Ok(()) => return layout.commit_tip(&layout.shallow(), tip),
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

/// Starts with an empty repository because this one is damaged.
fn rebuild(layout: &Layout, why: &str) -> Result<(), Error> {
    tracing::warn!(mirror = %layout.dir().display(), why, "the mirror is damaged and is rebuilt");
    start_empty(layout)
}

/// The same for the mirrors of the submodules, too: all are read as one database, so it is unknown in which of them an
/// object could not be read.
fn rebuild_with_modules(layout: &Layout) -> Result<(), Error> {
    let why = "an object could not be read";
    tracing::warn!(mirror = %layout.dir().display(), why, "the mirror is damaged and is rebuilt");
    let aside = layout.set_aside()?;
    let modules = repo_kind::set_modules_aside(layout.dir(), &aside);
    discard(aside);
    modules
}

/// Sets the repository aside and starts with an empty one.
fn start_empty(layout: &Layout) -> Result<(), Error> {
    discard(layout.set_aside()?);
    Ok(())
}

/// Removes a repository that was set aside, in the background.
fn discard(aside: PathBuf) {
    // Whatever is not removed here, be it because no thread can be started, is removed at the next opening.
    let _ = std::thread::Builder::new().name("mirror".into()).spawn(move || fs_err::remove_dir_all(aside));
}

impl Mirror {
    /// Ensures that the mirror holds the tip's commit with its whole tree and history of the configured depth, and the
    /// same for the configured submodules. Returns the commit. `held` are the published revisions, newest first, which
    /// stay readable.
    pub async fn fetch(&mut self, tip: &Tip, held: &[Revision]) -> Result<Revision, Error> {
        let all = Held::of_one_remote(held);
        let revision = self.fetch_own(tip, all, self.options.wire.max_fetch_bytes).await?;
        match self.fetch_modules_without_garbage(revision, all).await {
            Ok(()) => Ok(revision),
            Err(error) => {
                // The revision will not be published, so submodule mirrors that only it uses are removed.
                if matches!(error, Error::Refused(_)) {
                    self.forget_modules(held).await;
                }
                Err(error)
            }
        }
    }

    /// Like [`Self::fetch`], without submodules. No pack may have more than `max_bytes`.
    pub(super) async fn fetch_own(
        &mut self,
        tip: &Tip,
        held: Held<'_>,
        max_bytes: u64,
    ) -> Result<Revision, Error> {
        self.recreate_if_removed().await?;
        if self.shared.take_damage() {
            let layout = Arc::clone(&self.layout);
            self.renewal_pack = None;
            blocking(move || rebuild_with_modules(&layout)).await?;
            self.settled = None;
        }
        let mut known = self.inspect(tip.object, held, None).await?;
        if let Some(found) = known.complete.take() {
            tracing::debug!(commit = %found.commit, "the mirror has it already");
            return self.commit_tip(found).await;
        }
        let now = self.situation(tip, &known);
        if self.renewal == Renewal::Due {
            // Until it succeeds, and also if this future is dropped: a fetch of everything may take longer than an
            // attempt may, while a fetch of what is new would not. So it is never tried twice in a row.
            self.renewal = Renewal::Failed;
            match self.request(&without_haves(&now), RequestReason::Renewal, held, max_bytes).await {
                Ok(revision) => return Ok(revision),
                // The remote asks not to be asked again so soon.
                Err(error) if error.retry_after().is_some() => return Err(error),
                // Only garbage asked for the whole. What is new is a smaller request, which may well succeed, and a
                // renewal is no reason to publish it later.
                Err(error) => tracing::warn!(%error, "the mirror cannot be renewed"),
            }
        }
        let (mut request, mut reason) = plan(&now);
        if reason == RequestReason::AssumeParent {
            self.history_shape.note_assumed();
            match self.request(&request, reason, held, max_bytes).await {
                Ok(revision) => return Ok(revision),
                Err(error) => {
                    if !fresh_request_may_help(&error) {
                        return Err(error);
                    }
                    self.history_shape.note_wrong();
                    tracing::debug!(%error, "the history is not linear");
                    (request, reason) = plan(&Situation { assume_linear: false, ..now });
                }
            }
        }
        match self.request(&request, reason, held, max_bytes).await {
            Err(error) if reason != RequestReason::First && fresh_request_may_help(&error) => {
                tracing::info!(%error, "retrying the fetch without haves");
                self.request(&without_haves(&now), RequestReason::WithoutHaves, held, max_bytes).await
            }
            other => other,
        }
    }

    /// Measures, in bytes, the pack that [`Self::fetch`] would receive for the tip, without submodules. The pack is
    /// received completely and discarded: git's protocol does not announce a pack's size.
    pub async fn pack_bytes(&mut self, tip: &Tip, held: &[Revision]) -> Result<u64, Error> {
        let known = self.inspect(tip.object, Held::of_one_remote(held), None).await?;
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
        held: Held<'_>,
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
        if request.filter.is_some() && !answer.filtered && self.received == 0 {
            tracing::warn!("the remote does not support --filter: it sends everything");
        }
        self.received += answer.bytes;
        tracing::debug!(reason = reason.label(), bytes = answer.bytes, pack, "received a pack");
        let ends: HashSet<_> = answer.shallow.iter().copied().collect();
        let known = self.inspect(want, held, Some(ends)).await?;
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
                        self.layout.set_size_without_garbage(&[revision])?;
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
                let error = super::object_error::ObjectError::Missing {
                    id: want,
                    expected: "all of the history of".into(),
                };
                Err(Error::Incomplete { requested: want, at: None, source: error.into() })
            }
        }
    }

    /// Receives one pack of at most `max_bytes` into the repository `dir`. Returns the remote's answer, the pack's name
    /// and, if it is large, the table of its objects.
    pub(super) async fn receive_into(
        &mut self,
        dir: &Path,
        max_bytes: u64,
        request: &Request,
        task: Task,
    ) -> Result<(PackResponse, String, Option<ObjectTable>), Error> {
        let job = Job {
            dir: dir.to_owned(),
            task,
            memory: self.options.index_memory,
            max_bytes,
            durable: self.options.durable,
            sandbox: self.options.sandbox,
        };
        if let Some(index_limiter) = self.index_limiter.clone() {
            return self.receive_in_turn(&index_limiter, request, job).await;
        }
        let (mut indexer, stdin) = Indexer::start(self.options.indexer.clone(), job, &request.wants).await?;
        let mut stdin = self.options.received.counting(stdin);
        let (answer, report) = {
            let mut report = Box::pin(indexer.report());
            let mut fetch = Box::pin(self.client.fetch(request, &mut stdin));
            tokio::select! {
                answer = &mut fetch => {
                    drop(fetch);
                    drop(stdin); // signals end of file to the child
                    (Some(answer), report.await?)
                }
                report = &mut report => (None, report?),
            }
        };
        received_pack(&indexer, request, answer, report)
    }

    /// Receives one pack while other mirrors may be fetching: the child process is started only when [`IndexLimiter`]
    /// admits it.
    async fn receive_in_turn(
        &mut self,
        index_limiter: &IndexLimiter,
        request: &Request,
        job: Job,
    ) -> Result<(PackResponse, String, Option<ObjectTable>), Error> {
        // A request without haves asks for the whole repository, which is likely a large pack. Its turn is taken before
        // the request is sent, because otherwise the server would have to wait in the middle of the pack.
        let is_whole = request.haves.is_empty();
        let early_permit = if is_whole { Some(index_limiter.large().await) } else { None };
        let (pack, mut incoming) = tokio::io::duplex(CHUNK);
        let mut pack = self.options.received.counting(pack);
        let client = &mut self.client;
        // Dropping `pack` at the end of the fetch signals end of file to the reader.
        let mut fetch = Box::pin(async move { client.fetch(request, &mut pack).await });
        let mut beginning = Vec::new();
        let mut buffered = (&mut incoming).take(IndexLimiter::BUFFERED as u64);
        let (answer, _) = run_alongside(&mut fetch, buffered.read_to_end(&mut beginning)).await;
        let _turn = match (early_permit, &answer) {
            (_, Some(Err(_))) => None,
            (None, Some(Ok(_))) => Some(index_limiter.small().await),
            (None, None) => Some(index_limiter.large().await),
            (early_permit, _) => early_permit,
        };
        let answer = match answer {
            Some(Err(error)) => return Err(with_wanted(request.wants[0], error)),
            answer => answer,
        };
        let (mut indexer, mut stdin) =
            Indexer::start(self.options.indexer.clone(), job, &request.wants).await?;
        let (answer, report) = {
            let mut report = Box::pin(indexer.report());
            let feed = async move {
                // If the child stops reading, its report says why.
                let _ = forward(&beginning, &mut incoming, &mut stdin).await;
            };
            let rest = async {
                match answer {
                    Some(answer) => answer,
                    None => fetch.await,
                }
            };
            tokio::select! {
                (answer, ()) = async { tokio::join!(rest, feed) } => (Some(answer), report.await?),
                report = &mut report => (None, report?),
            }
        };
        received_pack(&indexer, request, answer, report)
    }

    async fn inspect(
        &self,
        want: ObjectId,
        held: Held<'_>,
        received: Option<HashSet<ObjectId>>,
    ) -> Result<LocalState, Error> {
        let layout = Arc::clone(&self.layout);
        let shared = Arc::clone(&self.shared);
        let inspection = Inspection {
            want,
            held: held.all.to_vec(),
            of_remote: held.of_remote.to_vec(),
            is_submodule: self.is_submodule,
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
        let commit = found.commit;
        blocking(move || layout.commit_tip(&found.boundary, commit)).await?;
        self.settled = Some(commit);
        Ok(Revision(commit))
    }
}

/// Combines the results of the stream and of the child process. `answer` is `None` if the child ended first.
fn received_pack(
    indexer: &Indexer,
    request: &Request,
    answer: Option<Result<PackResponse, wire::Error>>,
    (report, table): (Report, Option<ObjectTable>),
) -> Result<(PackResponse, String, Option<ObjectTable>), Error> {
    match (answer, report) {
        (Some(Ok(answer)), Report::Complete { pack, .. }) => Ok((answer, pack, table)),
        // The stream failed, and the child only saw the end of its input.
        (Some(Err(error)), Report::Cut | Report::Complete { .. }) => {
            Err(with_wanted(request.wants[0], error))
        }
        // The child failed first, so the stream's pipe was closed.
        (_, report) => Err(indexer.failure(report)),
    }
}

/// Writes `beginning`, then everything from `from`. Not `tokio::io::copy`, which flushes whenever it has to wait.
async fn forward(
    beginning: &[u8],
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
) -> std::io::Result<()> {
    to.write_all(beginning).await?;
    let mut chunk = vec![0; CHUNK];
    loop {
        match from.read(&mut chunk).await? {
            0 => return to.flush().await,
            bytes => to.write_all(&chunk[..bytes]).await?,
        }
    }
}

/// Waits for `second` while also polling `first`. Returns the output of `first` if it completed before `second`.
async fn run_alongside<A, B>(
    first: impl Future<Output = A> + Unpin,
    second: impl Future<Output = B>,
) -> (Option<A>, B) {
    let mut second = std::pin::pin!(second);
    tokio::select! {
        biased;
        ended = first => (Some(ended), second.await),
        ended = &mut second => (None, ended),
    }
}

/// Returns true if a request that claims no commits as present may succeed where this error occurred.
fn fresh_request_may_help(error: &Error) -> bool {
    match error {
        Error::Incomplete { .. } | Error::BadPack { .. } => true,
        // The remote rejected this particular request.
        Error::Unsent { source, .. } => matches!(**source, wire::Error::Remote { .. }),
        Error::Wire(wire::Error::Unsupported { .. }) => true,
        _ => false,
    }
}

/// Adds the wanted object to an error of the remote: no object of the answer was received that could identify it.
fn with_wanted(wanted: ObjectId, error: wire::Error) -> Error {
    match error {
        wire::Error::Remote { .. } | wire::Error::Cut { .. } | wire::Error::Local { .. } => {
            Error::Unsent { wanted, source: Box::new(error) }
        }
        error => error.into(),
    }
}
