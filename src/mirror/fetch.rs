//! Asking the remote, taking the answer in, and making it count.
//!
//! What is there already needs no network. Otherwise the plan's request goes out, the pack goes through the indexing
//! child, and when the tip turns out complete the boundary and the ref are written (see [`super::layout`] for what a
//! crash leaves). An answer that is incomplete or odd is followed, once, by a request that claims nothing.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;
use std::sync::Arc;

use super::closure::{History, history, tree_closure};
use super::error::Error;
use super::form::{self, Form};
use super::indexer::{Indexer, Job, Report, Task};
use super::layout::Layout;
use super::odb::Reader;
use super::plan::{Reason, Situation, afresh, plan};
use super::shared::Shared;
use super::wire::{self, Answer, Request};
use super::{Depth, Mirror, Submodules, Tip};
use crate::revision::{ObjectId, Revision};

/// Commits of ours that a server is told about. More would only make requests longer.
const HAVES: usize = 16;

/// Objects of a usual commit: itself, the changed files, the directories above them.
const USUAL: u64 = 100;

/// What the remote's history has looked like since the mirror was opened. See [`super::plan`] for what it decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Course {
    /// Nothing was seen yet.
    Unknown,
    /// The last commit had one parent.
    Straight,
    /// There are merges, or rewinds, or a server that works too long for them.
    Crooked,
}

/// What is known about a tip before asking.
#[derive(Debug, Default)]
struct Known {
    /// Commits that are here with their tree, best first.
    haves: Vec<ObjectId>,
    /// Commits whose parents are not here.
    shallow: Vec<ObjectId>,
    /// The tip, if it is here and complete.
    complete: Option<Found>,
}

/// A tip that is here and complete.
#[derive(Debug)]
struct Found {
    commit: ObjectId,
    /// How many parents it has.
    parents: usize,
    /// The boundary that belongs to it.
    boundary: Vec<ObjectId>,
}

/// Sets a mirror aside whose last tip is not complete: the network will bring it again. A repository that git-sync
/// made has no tip of ours; what it published last becomes that, if it is complete.
pub(super) fn mend(layout: &Layout, shared: &Shared) -> Result<(), Error> {
    let tips = match layout.tip() {
        Some(tip) => vec![tip],
        None if layout.form() == Form::Worktrees => form::published(layout.dir())?,
        None => Vec::new(),
    };
    let check = |tip: &ObjectId| -> Result<(), String> {
        let store = shared.store().map_err(|error| error.to_string())?;
        let reader = Reader(store.odb().map_err(|error| error.message().to_owned())?);
        let commit = reader.commit(tip).map_err(|lack| lack.to_string())?;
        tree_closure(&reader, commit.tree, None, shared.partial).map_err(|lack| lack.to_string())
    };
    let mut broken = None;
    for tip in tips {
        match check(&tip) {
            Ok(()) if layout.tip().is_some() => return Ok(()),
            Ok(()) => return layout.settle(&layout.shallow(), tip),
            Err(why) => broken = broken.or(Some(why)),
        }
    }
    match broken {
        None => Ok(()),
        Some(why) => renew(layout, &why),
    }
}

/// Starts with an empty mirror.
fn renew(layout: &Layout, why: &str) -> Result<(), Error> {
    let aside = layout.set_aside()?;
    tracing::warn!(mirror = %layout.dir().display(), why, "the mirror is broken and is made anew");
    // What fails here is swept at the next opening.
    std::thread::spawn(move || fs_err::remove_dir_all(aside));
    Ok(())
}

impl Mirror {
    /// Makes sure the mirror holds the tip's commit with its whole tree (and history as deep as asked), and returns
    /// the commit; the same for the submodules that are asked for. `held` are the published revisions, newest first, that must stay readable.
    pub async fn fetch(&mut self, tip: &Tip, held: &[Revision]) -> Result<Revision, Error> {
        let revision = self.fetch_own(tip, held).await?;
        if self.options.modules.asked != Submodules::Off {
            self.fetch_modules(revision, held).await?;
        }
        Ok(revision)
    }

    async fn fetch_own(&mut self, tip: &Tip, held: &[Revision]) -> Result<Revision, Error> {
        self.stand().await?;
        if self.shared.take_damage() {
            let layout = Arc::clone(&self.layout);
            blocking(move || renew(&layout, "an object could not be read")).await?;
        }
        let known = self.inspect(tip.object, held, None).await?;
        if let Some(found) = known.complete {
            tracing::debug!(commit = %found.commit, "the mirror has it already");
            return self.settle(found).await;
        }
        let now = Situation {
            want: tip.object,
            // A program does not let us say what becomes our boundary.
            commit: tip.peeled.or(Some(tip.object)).filter(|_| self.options.wire.program.is_none()),
            depth: self.options.depth,
            haves: &known.haves,
            shallow: &known.shallow,
            straight: self.course == Course::Straight,
        };
        if self.renew {
            match self.ask(&afresh(&now), Reason::Renewal, held).await {
                Err(error) if !error.is_transient() => {
                    tracing::warn!(%error, "the mirror cannot be renewed");
                    self.renew = false;
                }
                other => return other,
            }
        }
        let (mut request, mut reason) = plan(&now);
        if reason == Reason::Ahead {
            match self.ask(&request, reason, held).await {
                Ok(revision) => return Ok(revision),
                Err(error) => {
                    self.course = Course::Crooked;
                    if !may_help(&error) {
                        return Err(error);
                    }
                    tracing::debug!(%error, "history is not straight");
                    (request, reason) = plan(&Situation { straight: false, ..now });
                }
            }
        }
        match self.ask(&request, reason, held).await {
            Err(error) if reason != Reason::First && may_help(&error) => {
                tracing::info!(%error, "asking again, for everything");
                self.ask(&afresh(&now), Reason::Afresh, held).await
            }
            other => other,
        }
    }

    /// Begins again where somebody removed the mirror below us: it is a cache.
    async fn stand(&mut self) -> Result<(), Error> {
        let layout = Arc::clone(&self.layout);
        let anew = move || layout.stand();
        if let Some(layout) = blocking(anew).await? {
            tracing::warn!(mirror = %layout.dir().display(), "the mirror was removed, and is made again");
            (self.layout, self.renew, self.renewed) = (Arc::new(layout), false, None);
        }
        Ok(())
    }

    /// One request, from asking to settling.
    async fn ask(&mut self, request: &Request, reason: Reason, held: &[Revision]) -> Result<Revision, Error> {
        let want = request.wants[0];
        let (base, filter) = (request.haves.first().copied(), self.options.filter.clone());
        let expected = (reason == Reason::Ahead).then_some(USUAL);
        let task = Task::Index { tip: want, base, expected, partial: filter.is_some() };
        // A large file may be sent as a difference to one that was left out before, so only where no file is sent.
        let thin = request.thin && filter.as_ref().is_none_or(|filter| filter == "blob:none");
        let request = Request { filter, thin, ..request.clone() };
        let (answer, pack) = self.receive(&request, task).await?;
        if request.filter.is_some() && !answer.filtered && self.received == 0 {
            tracing::warn!("the remote cannot leave anything out of a fetch (--filter): it sends everything");
        }
        self.received += answer.bytes;
        tracing::debug!(?reason, bytes = answer.bytes, pack, "received a pack");
        let ends: HashSet<_> = answer.shallow.iter().copied().collect();
        let known = self.inspect(want, held, Some(ends)).await?;
        match known.complete {
            Some(found) => {
                self.course = match (self.course, found.parents) {
                    (Course::Crooked, _) | (_, 2..) => Course::Crooked,
                    _ => Course::Straight,
                };
                let revision = self.settle(found).await?;
                match reason {
                    Reason::First if self.layout.packs()?.len() == 1 => self.layout.set_fresh(&[revision])?,
                    Reason::Renewal => (self.renew, self.renewed) = (false, Some(pack)),
                    // The first one beside packs of git-sync's says nothing about those.
                    Reason::First | Reason::Beside | Reason::Ahead | Reason::History | Reason::Afresh => {}
                }
                Ok(revision)
            }
            None => {
                let id = want;
                let lack = super::odb::Lack::Missing { id, expected: "all of the history of".into() };
                Err(Error::Incomplete { asked: want, at: None, lack: lack.into() })
            }
        }
    }

    /// One pack, from the remote through the child; what came with it, and its name.
    pub(super) async fn receive(&mut self, request: &Request, task: Task) -> Result<(Answer, String), Error> {
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
    ) -> Result<(Answer, String), Error> {
        let job = Job {
            dir: dir.to_owned(),
            task,
            memory: self.options.index_memory,
            max_bytes,
            durable: self.options.durable,
        };
        let (mut indexer, mut stdin) = Indexer::start(self.options.indexer.clone(), job)?;
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
        match (answer, report) {
            (Some(Ok(answer)), Report::Complete { pack, .. }) => Ok((answer, pack)),
            // The stream failed, and the child only saw that it ended.
            (Some(Err(error)), Report::Cut | Report::Complete { .. }) => Err(unsent(request.wants[0], error)),
            // The child failed first, and the stream found nobody to write to.
            (_, report) => Err(indexer.failure(report)),
        }
    }

    async fn inspect(
        &self,
        want: ObjectId,
        held: &[Revision],
        received: Option<HashSet<ObjectId>>,
    ) -> Result<Known, Error> {
        let (layout, shared) = (Arc::clone(&self.layout), Arc::clone(&self.shared));
        let (held, depth) = (held.to_vec(), self.options.depth);
        blocking(move || {
            let store = shared.store()?;
            let odb = store.odb();
            let odb = odb.map_err(|source| Error::Git { act: "open the mirror's objects".into(), source })?;
            inspect(&Reader(odb), &layout, want, &held, (depth, shared.partial), received)
        })
        .await
    }

    async fn settle(&mut self, found: Found) -> Result<Revision, Error> {
        let (layout, commit) = (Arc::clone(&self.layout), found.commit);
        blocking(move || layout.settle(&found.boundary, commit)).await?;
        self.settled = Some(commit);
        Ok(Revision(commit))
    }
}

/// Whether a request that claims nothing may do better.
fn may_help(error: &Error) -> bool {
    match error {
        Error::Incomplete { .. } | Error::BadPack { .. } => true,
        // The remote did not like the question.
        Error::Unsent { source, .. } => matches!(**source, wire::Error::Remote { .. }),
        Error::Wire(wire::Error::Unsupported { .. }) => true,
        _ => false,
    }
}

/// What the remote itself made of the question is told with what was asked for: no entry of it was seen here.
fn unsent(wanted: ObjectId, error: wire::Error) -> Error {
    match error {
        wire::Error::Remote { .. } | wire::Error::Cut { .. } | wire::Error::Local { .. } => {
            Error::Unsent { wanted, source: Box::new(error) }
        }
        error => error.into(),
    }
}

/// Looks at what is here. `received` are the ends of history that came with a pack: then the child has seen that the
/// tip's tree is complete.
fn inspect(
    reader: &Reader<'_>,
    layout: &Layout,
    want: ObjectId,
    held: &[Revision],
    (depth, partial): (Depth, bool),
    received: Option<HashSet<ObjectId>>,
) -> Result<Known, Error> {
    let mut known = Known { shallow: layout.shallow(), ..Known::default() };
    let mut base = None;
    for id in layout.tip().into_iter().chain(held.iter().map(|held| held.0)) {
        let Ok(commit) = reader.commit(&id) else { continue };
        if known.haves.contains(&id) || known.haves.len() == HAVES || !reader.has(&commit.tree) {
            continue;
        }
        // The boundary that a server is told must never claim more than is here.
        if !known.shallow.contains(&id) && !commit.parents.iter().all(|parent| reader.has(parent)) {
            known.shallow.push(id);
        }
        base.get_or_insert(commit.tree);
        known.haves.push(id);
    }
    if !reader.has(&want) {
        return Ok(known);
    }
    let peeled = match reader.peel(&want) {
        Ok(Ok(peeled)) => peeled,
        Ok(Err(kind)) => return Err(Error::NotACommit { asked: want.to_string(), kind: kind.to_owned() }),
        Err(_) => return Ok(known),
    };
    let whole = received.is_some() || tree_closure(reader, peeled.tree, base, partial).is_ok();
    let ends = received.unwrap_or_default();
    let history = history(reader, peeled.commit, depth, &ends).unwrap_or_default();
    if whole && history.complete {
        let commit = peeled.commit;
        let parents = reader.commit(&commit).map_or(0, |commit| commit.parents.len());
        let others = known.haves.iter().copied().chain(held.iter().map(|held| held.0));
        let mut boundary = boundary(reader, history, others, depth, &ends);
        if layout.form() == Form::Worktrees {
            // Refs of others may need theirs: a boundary stays where its commit's parents did not come.
            let cut = |id: &ObjectId| {
                reader.commit(id).is_ok_and(|commit| !commit.parents.iter().all(|parent| reader.has(parent)))
            };
            boundary.extend(layout.shallow().into_iter().filter(cut));
            boundary.sort_unstable();
            boundary.dedup();
        }
        known.complete = Some(Found { commit, parents, boundary });
    }
    Ok(known)
}

/// The `shallow` file's content: the tip's boundary, and those of the revisions that stay readable.
fn boundary(
    reader: &Reader<'_>,
    tip: History,
    others: impl Iterator<Item = ObjectId>,
    depth: Depth,
    ends: &HashSet<ObjectId>,
) -> Vec<ObjectId> {
    let mut all: BTreeSet<_> = tip.boundary.into_iter().collect();
    for id in others {
        if let Ok(history) = history(reader, id, depth, ends) {
            all.extend(history.boundary);
        }
    }
    all.into_iter().collect()
}

/// Runs what blocks on a thread of its own.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Only a runtime that is shutting down refuses to start it.
            Err(_) => std::future::pending().await,
        },
    }
}
