//! Asking the remote, taking the answer in, and making it count.
//!
//! What is there already needs no network. Otherwise the plan's request goes out, the pack goes through the indexing
//! child, and when the tip turns out complete the boundary and the ref are written (see [`super::layout`] for what a
//! crash leaves). An answer that is incomplete or odd is followed, once, by a request that claims nothing.

mod local_state;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::blocking::blocking;
use super::closure::closure_beside;
use super::error::{Error, Libgit2};
use super::indexer::{Indexer, Job, Report, Task};
use super::layout::Layout;
use super::modules::Allowance;
use super::packed_blobs::PackedBlobs;
use super::plan::{RequestReason, Situation, plan, without_haves};
use super::repo_kind::{self, RepoKind};
use super::shared::Shared;
use super::turns::Turns;
use super::wire::{self, PackResponse, Request};
use super::{Mirror, Tip};
use crate::revision::{ObjectId, Revision};
use local_state::{CompleteTip, LocalState, inspect};

/// What goes from the connection to the child at once.
const PIECE: usize = 64 << 10;

/// Objects of a usual commit: itself, the changed files, the directories above them.
const USUAL: u64 = 100;

/// What the remote's history has looked like since the mirror was opened. See [`super::plan`] for what it decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HistoryShape {
    /// Nothing was seen yet.
    Unknown,
    /// The last commit had one parent.
    Linear,
    /// There are merges, or rewinds, or a server that works too long for them.
    NonLinear,
}

/// Sets a mirror aside whose last tip is not complete: the network will bring it again. A repository that git-sync
/// made has no tip in our refs; what it published last becomes that, if it is complete, and so does the tip of a mirror
/// that was taken over.
pub(super) fn repair(layout: &Layout, shared: &Shared, adopted: Option<ObjectId>) -> Result<(), Error> {
    let tips = match layout.tip() {
        Some(tip) => vec![tip],
        None if layout.form() == RepoKind::Worktrees => repo_kind::published(layout.dir())?,
        None => adopted.into_iter().collect(),
    };
    if tips.is_empty() {
        return Ok(());
    }
    let blobs = PackedBlobs::of(&shared.pack_indexes());
    let check = |tip: &ObjectId| -> Result<(), String> {
        let store = shared.store().map_err(|error| error.to_string())?;
        let reader = store.reader().map_err(|error| error.message().to_owned())?;
        let commit = reader.commit(tip).map_err(|lack| lack.to_string())?;
        let closure = closure_beside(&reader, commit.tree, None, shared.partial, |id| blobs.has(id));
        closure.map_err(|lack| lack.to_string())
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
        Some(why) => start_empty(layout, &why),
    }
}

/// Starts with an empty mirror.
fn start_empty(layout: &Layout, why: &str) -> Result<(), Error> {
    let aside = layout.set_aside()?;
    tracing::warn!(mirror = %layout.dir().display(), why, "the mirror is broken and is made anew");
    // What fails here is swept at the next opening, that there is no thread to be had included.
    let _ = std::thread::Builder::new().name("mirror".into()).spawn(move || fs_err::remove_dir_all(aside));
    Ok(())
}

impl Mirror {
    /// Makes sure the mirror holds the tip's commit with its whole tree (and history as deep as asked), and returns the
    /// commit; the same for the submodules that are asked for. `held` are the published revisions, newest first, that
    /// must stay readable.
    pub async fn fetch(&mut self, tip: &Tip, held: &[Revision]) -> Result<Revision, Error> {
        let revision = self.fetch_own(tip, held).await?;
        let mut allowance = Allowance::of(&self.options);
        match self.fetch_modules(revision, held, &mut allowance).await {
            Ok(()) => Ok(revision),
            Err(error) => {
                // It will not be published: nothing of what only it has stays.
                if matches!(error, Error::Refused(_)) {
                    self.forget_modules(held).await;
                }
                Err(error)
            }
        }
    }

    pub(super) async fn fetch_own(&mut self, tip: &Tip, held: &[Revision]) -> Result<Revision, Error> {
        self.recreate_if_removed().await?;
        if self.shared.take_damage() {
            let layout = Arc::clone(&self.layout);
            blocking(move || start_empty(&layout, "an object could not be read")).await?;
        }
        let mut known = self.inspect(tip.object, held, None).await?;
        if let Some(found) = known.complete.take() {
            tracing::debug!(commit = %found.commit, "the mirror has it already");
            return self.commit_tip(found).await;
        }
        let now = self.situation(tip, &known);
        if self.renew {
            match self.request(&without_haves(&now), RequestReason::Renewal, held).await {
                Err(error) if !error.is_transient() => {
                    tracing::warn!(%error, "the mirror cannot be renewed");
                    self.renew = false;
                }
                other => return other,
            }
        }
        let (mut request, mut reason) = plan(&now);
        if reason == RequestReason::AssumeParent {
            match self.request(&request, reason, held).await {
                Ok(revision) => return Ok(revision),
                Err(error) => {
                    self.course = HistoryShape::NonLinear;
                    if !fresh_request_may_help(&error) {
                        return Err(error);
                    }
                    tracing::debug!(%error, "history is not straight");
                    (request, reason) = plan(&Situation { straight: false, ..now });
                }
            }
        }
        match self.request(&request, reason, held).await {
            Err(error) if reason != RequestReason::First && fresh_request_may_help(&error) => {
                tracing::info!(%error, "asking again, for everything");
                self.request(&without_haves(&now), RequestReason::WithoutHaves, held).await
            }
            other => other,
        }
    }

    /// Bytes of the pack that [`Self::fetch`] would bring for the tip itself: all of it comes over the network, and
    /// nothing is kept. No protocol says it beforehand.
    pub async fn pack_bytes(&mut self, tip: &Tip, held: &[Revision]) -> Result<u64, Error> {
        let known = self.inspect(tip.object, held, None).await?;
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
            // A program does not let us say what becomes our boundary.
            commit: tip.peeled.or(Some(tip.object)).filter(|_| self.options.wire.program.is_none()),
            depth: self.options.depth,
            haves: &known.haves,
            shallow: &known.shallow,
            straight: self.course == HistoryShape::Linear,
        }
    }

    /// With what is to be left out.
    fn filtered(&self, request: &Request) -> Request {
        let filter = self.options.filter.clone();
        // A large file may be sent as a difference to one that was left out before, so only where no file is sent.
        let thin = request.thin && filter.as_ref().is_none_or(|filter| filter == "blob:none");
        Request { filter, thin, ..request.clone() }
    }

    /// Begins again where the mirror was removed below us: it is a cache.
    async fn recreate_if_removed(&mut self) -> Result<(), Error> {
        let layout = Arc::clone(&self.layout);
        let anew = move || layout.recreate_if_removed();
        if let Some(layout) = blocking(anew).await? {
            tracing::warn!(mirror = %layout.dir().display(), "the mirror was removed, and is made again");
            (self.layout, self.renew, self.renewed) = (Arc::new(layout), false, None);
        }
        Ok(())
    }

    /// One request, from asking to settling.
    async fn request(
        &mut self,
        request: &Request,
        reason: RequestReason,
        held: &[Revision],
    ) -> Result<Revision, Error> {
        let want = request.wants[0];
        let base = request.haves.first().copied();
        let partial = self.options.filter.is_some();
        let expected = (reason == RequestReason::AssumeParent).then_some(USUAL);
        let task = Task::Index { tip: want, base, expected, partial };
        let request = self.filtered(request);
        let (answer, pack) = self.receive(&request, task).await?;
        if request.filter.is_some() && !answer.filtered && self.received == 0 {
            tracing::warn!("the remote cannot leave anything out of a fetch (--filter): it sends everything");
        }
        self.received += answer.bytes;
        tracing::debug!(reason = reason.word(), bytes = answer.bytes, pack, "received a pack");
        let ends: HashSet<_> = answer.shallow.iter().copied().collect();
        let known = self.inspect(want, held, Some(ends)).await?;
        match known.complete {
            Some(found) => {
                self.course = match (self.course, found.parents) {
                    (HistoryShape::NonLinear, _) | (_, 2..) => HistoryShape::NonLinear,
                    _ => HistoryShape::Linear,
                };
                let revision = self.commit_tip(found).await?;
                match reason {
                    RequestReason::First if self.layout.packs()?.len() == 1 => {
                        self.layout.set_size_without_garbage(&[revision])?;
                    }
                    RequestReason::Renewal => (self.renew, self.renewed) = (false, Some(pack)),
                    // The first one beside packs of git-sync's says nothing about those.
                    RequestReason::First
                    | RequestReason::DeclareShallow
                    | RequestReason::AssumeParent
                    | RequestReason::History
                    | RequestReason::WithoutHaves => {}
                }
                Ok(revision)
            }
            None => {
                let id = want;
                let lack = super::lack::Lack::Missing { id, expected: "all of the history of".into() };
                Err(Error::Incomplete { asked: want, at: None, lack: lack.into() })
            }
        }
    }

    /// One pack, from the remote through the child; what came with it, and its name.
    pub(super) async fn receive(
        &mut self,
        request: &Request,
        task: Task,
    ) -> Result<(PackResponse, String), Error> {
        let layout = Arc::clone(&self.layout);
        self.receive_into(layout.dir(), self.options.wire.max_fetch_bytes, request, task).await
    }

    /// The same into any repository.
    pub(super) async fn receive_into(
        &mut self,
        dir: &Path,
        max_bytes: u64,
        request: &Request,
        task: Task,
    ) -> Result<(PackResponse, String), Error> {
        let job = Job {
            dir: dir.to_owned(),
            task,
            memory: self.options.index_memory,
            max_bytes,
            durable: self.options.durable,
            sandbox: self.options.sandbox,
        };
        if let Some(turns) = self.turns.clone() {
            return self.receive_in_turn(&turns, request, job).await;
        }
        let (mut indexer, stdin) = Indexer::start(self.options.indexer.clone(), job, &request.wants).await?;
        let mut stdin = self.options.received.counting(stdin);
        let (answer, report) = {
            let mut report = Box::pin(indexer.report());
            let mut fetch = Box::pin(self.client.fetch(request, &mut stdin));
            tokio::select! {
                answer = &mut fetch => {
                    drop(fetch);
                    drop(stdin); // the child sees the end
                    (Some(answer), report.await?)
                }
                report = &mut report => (None, report?),
            }
        };
        outcome(&indexer, request, answer, report)
    }

    /// The same beside other mirrors: the child is not started before it is its turn.
    async fn receive_in_turn(
        &mut self,
        turns: &Turns,
        request: &Request,
        job: Job,
    ) -> Result<(PackResponse, String), Error> {
        // All of a repository is likely to be much, and a server does not like to wait.
        let is_whole = request.haves.is_empty();
        let early = if is_whole { Some(turns.large().await) } else { None };
        let (pack, mut coming) = tokio::io::duplex(PIECE);
        let mut pack = self.options.received.counting(pack);
        let client = &mut self.client;
        let mut fetch = Box::pin(async move { client.fetch(request, &mut pack).await }); // its end closes the pack
        let mut beginning = Vec::new();
        let mut free = (&mut coming).take(Turns::FREE as u64);
        let (answer, _) = at_once(&mut fetch, free.read_to_end(&mut beginning)).await;
        let _turn = match (early, &answer) {
            (_, Some(Err(_))) => None,
            (None, Some(Ok(_))) => Some(turns.small().await),
            (None, None) => Some(turns.large().await),
            (early, _) => early,
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
                let _ = pass_on(&beginning, &mut coming, &mut stdin).await; // a child that reads no more has said why
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
        outcome(&indexer, request, answer, report)
    }

    async fn inspect(
        &self,
        want: ObjectId,
        held: &[Revision],
        received: Option<HashSet<ObjectId>>,
    ) -> Result<LocalState, Error> {
        let layout = Arc::clone(&self.layout);
        let shared = Arc::clone(&self.shared);
        let held = held.to_vec();
        let depth = self.options.depth;
        blocking(move || {
            let store = shared.store()?;
            let reader = store.reader();
            let reader = reader.map_err(|source| Error::Git {
                act: "open the mirror's objects".into(),
                source: Libgit2(source),
            })?;
            inspect(&reader, &layout, want, &held, (depth, shared.partial), received)
        })
        .await
    }

    async fn commit_tip(&mut self, found: CompleteTip) -> Result<Revision, Error> {
        let layout = Arc::clone(&self.layout);
        let commit = found.commit;
        blocking(move || layout.commit_tip(&found.boundary, commit)).await?;
        self.settled = Some(commit);
        Ok(Revision(commit))
    }
}

/// What became of a pack: what the remote said, if it came to an end, and the child.
fn outcome(
    indexer: &Indexer,
    request: &Request,
    answer: Option<Result<PackResponse, wire::Error>>,
    report: Report,
) -> Result<(PackResponse, String), Error> {
    match (answer, report) {
        (Some(Ok(answer)), Report::Complete { pack, .. }) => Ok((answer, pack)),
        // The stream failed, and the child only saw that it ended.
        (Some(Err(error)), Report::Cut | Report::Complete { .. }) => {
            Err(with_wanted(request.wants[0], error))
        }
        // The child failed first, and the stream found its pipe closed.
        (_, report) => Err(indexer.failure(report)),
    }
}

/// Passes a pack on, its beginning first. Not `tokio::io::copy`, which flushes whenever it has to wait.
async fn pass_on(
    beginning: &[u8],
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
) -> std::io::Result<()> {
    to.write_all(beginning).await?;
    let mut piece = vec![0; PIECE];
    loop {
        match from.read(&mut piece).await? {
            0 => return to.flush().await,
            bytes => to.write_all(&piece[..bytes]).await?,
        }
    }
}

/// Waits for the second; the first goes on meanwhile, and is what it gave if it ended.
async fn at_once<A, B>(
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

/// Whether a request that claims nothing may do better.
fn fresh_request_may_help(error: &Error) -> bool {
    match error {
        Error::Incomplete { .. } | Error::BadPack { .. } => true,
        // The remote did not like the question.
        Error::Unsent { source, .. } => matches!(**source, wire::Error::Remote { .. }),
        Error::Wire(wire::Error::Unsupported { .. }) => true,
        _ => false,
    }
}

/// An error of the remote's own is reported with what was asked for: no entry of it was seen here.
fn with_wanted(wanted: ObjectId, error: wire::Error) -> Error {
    match error {
        wire::Error::Remote { .. } | wire::Error::Cut { .. } | wire::Error::Local { .. } => {
            Error::Unsent { wanted, source: Box::new(error) }
        }
        error => error.into(),
    }
}
