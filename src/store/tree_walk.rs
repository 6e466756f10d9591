//! Visits every directory of a large tree, on several threads: most of the time goes by waiting for memory or the disk.

use std::ffi::{CStr, CString};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use super::Error;
use super::directory_list::DirectoryList;
use super::stage::{UNCHECKED_MAX, check_cancelled};
use crate::payload::join;
use crate::threads::{on_threads, processors};

/// The most threads for one walk.
const THREADS_MAX: usize = 4;
/// Further threads are started once so many directories are waiting: for fewer it is not worth it.
const WAITING_MIN: usize = 128;
/// With so many open directories that have subdirectories left, one thread goes on alone: each of several could open as
/// many more as the tree is deep.
const OPEN_MAX: usize = 96;
/// Down to this level each directory stays open until its subdirectories were visited. Of the deeper ones only those at
/// each [`LEVELS_APART`]th level do, because a tree may have as many levels as a process has descriptors. From those the
/// others are opened again, for each of their subdirectories.
pub(super) const OPEN_LEVELS: usize = 64;
/// The distance between the levels below [`OPEN_LEVELS`] whose directories stay open.
const LEVELS_APART: usize = 32;

/// The number of threads on which a large tree is visited: as many as processors, [`THREADS_MAX`] at most.
pub(super) fn threads() -> usize {
    processors().min(THREADS_MAX)
}

/// Opens and visits the directories of a tree.
pub(super) trait Visitor: Sync {
    /// A directory that is being visited: its handles.
    type Dir: Send + Sync;
    /// What a thread counts in the directories that it visits.
    type Count: Default + Send;

    /// Opens the subdirectory `name`, whose path is `path`. `None` ends the walk there. Directories deeper than
    /// [`OPEN_LEVELS`] may be opened more than once, and are visited once.
    fn open(&self, parent: &Self::Dir, name: &CStr, path: &[u8]) -> Result<Option<Self::Dir>, Error>;

    /// Visits a directory, and adds the names of its subdirectories to `below`. Asks `stop` at each name. Returns a
    /// path to end the walk there.
    fn visit(
        &self,
        dir: &Directory<Self::Dir>,
        stop: &mut StopCheck<'_>,
        below: &mut Vec<CString>,
        count: &mut Self::Count,
    ) -> Result<Option<Vec<u8>>, Error>;
}

/// A directory of the tree.
pub(super) struct Directory<D> {
    pub(super) dir: D,
    /// Its path, empty at the top.
    pub(super) path: Vec<u8>,
    /// Its depth, 0 at the top.
    pub(super) level: usize,
}

impl<D> Directory<D> {
    /// Returns true if it stays open until its subdirectories were visited.
    fn stays_open(&self) -> bool {
        self.level <= OPEN_LEVELS || self.level.is_multiple_of(LEVELS_APART)
    }
}

/// Tells the visitor of a directory, which may have a hundred thousand names, when to leave it: another thread has
/// ended the walk, or the walk was cancelled.
pub(super) struct StopCheck<'w> {
    has_ended: &'w AtomicBool,
    cancel: &'w CancellationToken,
    /// Number of names so far.
    names: usize,
}

impl StopCheck<'_> {
    /// Called for each name in the directory. An error ends its listing; [`StopCheck::check`] then says what to return.
    pub(super) fn at_name(&mut self) -> io::Result<()> {
        self.names += 1;
        // The token has a lock, which all threads would take for each name.
        let is_cancelled = self.names.is_multiple_of(UNCHECKED_MAX) && self.cancel.is_cancelled();
        if is_cancelled || self.has_ended.load(Ordering::Relaxed) { Err(end_listing()) } else { Ok(()) }
    }

    /// Returns [`Error::Cancelled`] if the walk has ended or was cancelled. Of several ends the first is reported.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.has_ended.load(Ordering::Relaxed) {
            Err(Error::Cancelled)
        } else {
            check_cancelled(self.cancel)
        }
    }
}

/// The error with which a visitor ends the listing of a directory early. It is not reported.
pub(super) fn end_listing() -> io::Error {
    io::ErrorKind::Interrupted.into()
}

/// Why a walk ended before all directories were visited.
pub(super) enum End {
    /// The visitor ended it at this path.
    At(Vec<u8>),
    /// The paths of the directories take too much memory.
    TooMany,
}

/// The result of a walk.
pub(super) struct Walked<C> {
    pub(super) end: Option<End>,
    /// All directories except the top one, if their paths are kept.
    pub(super) dirs: DirectoryList,
    /// What each thread counted.
    pub(super) counts: Vec<C>,
}

/// Visits the tree whose top directory is `top` on at most `threads` threads. With `paths_max`, the paths of the
/// directories are collected if they take at most so many bytes. Within a directory, each thread soon notices that
/// another one has ended the walk, or that it was cancelled.
pub(super) fn walk<V: Visitor>(
    top: V::Dir,
    visitor: &V,
    threads: usize,
    paths_max: Option<usize>,
    cancel: &CancellationToken,
) -> Result<Walked<V::Count>, Error> {
    let queue = Queue { state: Mutex::default(), changed: Condvar::new(), has_ended: AtomicBool::new(false) };
    let walk = Walk { visitor, threads, paths_max, cancel, queue, done: Mutex::default() };
    let mut first = Share::default();
    let top = Directory { dir: top, path: Vec::new(), level: 0 };
    let mut below = Vec::new();
    match walk.visit_open(&top, &mut below, &mut first.count)? {
        Some(path) => walk.queue.end(Ok(End::At(path))),
        None => walk.queue.put(Group { open: Arc::new(top), closed: Arc::default(), below }),
    }
    walk.take_share(first, if threads > 1 { WAITING_MIN } else { usize::MAX });
    if walk.queue.is_left() {
        on_threads(threads, || walk.take_share(Share::default(), usize::MAX));
    }
    let end = walk.queue.state.into_inner().unwrap_or_else(PoisonError::into_inner).end;
    let mut walked = Walked { end: end.transpose()?, dirs: DirectoryList::default(), counts: Vec::new() };
    for Share { dirs, count } in walk.done.into_inner().unwrap_or_else(PoisonError::into_inner) {
        walked.dirs.append(dirs);
        walked.counts.push(count);
    }
    if paths_max.is_some_and(|max| walked.dirs.size() > max) {
        walked.end.get_or_insert(End::TooMany);
    }
    Ok(walked)
}

/// What one thread did.
#[derive(Default)]
struct Share<C> {
    dirs: DirectoryList,
    count: C,
}

/// The state of [`walk`].
struct Walk<'v, V: Visitor> {
    visitor: &'v V,
    threads: usize,
    paths_max: Option<usize>,
    cancel: &'v CancellationToken,
    queue: Queue<V::Dir>,
    done: Mutex<Vec<Share<V::Count>>>,
}

impl<V: Visitor> Walk<'_, V> {
    /// Visits directories of the queue until none is left, or at least `enough` are waiting.
    fn take_share(&self, mut share: Share<V::Count>, enough: usize) {
        while let Some(next) = self.queue.take(enough) {
            let _busy = Busy(&self.queue);
            match self.visit(next, &mut share) {
                Ok(None) => {}
                Ok(Some(end)) => self.queue.end(Ok(end)),
                Err(error) => self.queue.end(Err(error)),
            }
        }
        self.done.lock().unwrap_or_else(PoisonError::into_inner).push(share);
    }

    fn visit(&self, next: Next<V::Dir>, share: &mut Share<V::Count>) -> Result<Option<End>, Error> {
        let Next { open, closed, name } = next;
        let mut reopened: Option<(V::Dir, Vec<u8>)> = None;
        for above in &*closed {
            let (parent, path) = reopened.as_ref().map_or((&open.dir, &open.path), |(dir, path)| (dir, path));
            let path = join(path, above.to_bytes());
            let Some(dir) = self.visitor.open(parent, above, &path)? else { return Ok(Some(End::At(path))) };
            reopened = Some((dir, path));
        }
        let (parent, path) = reopened.as_ref().map_or((&open.dir, &open.path), |(dir, path)| (dir, path));
        let path = join(path, name.to_bytes());
        if let Some(max) = self.paths_max {
            let before = share.dirs.size();
            share.dirs.push(&path);
            // Paths that begin alike may be in the lists of several threads: together they take more than one list will.
            let listed = self.queue.add_listed(share.dirs.size() - before);
            if listed > max.saturating_mul(self.threads) {
                return Ok(Some(End::TooMany));
            }
        }
        let Some(dir) = self.visitor.open(parent, &name, &path)? else { return Ok(Some(End::At(path))) };
        let dir = Directory { dir, path, level: open.level + closed.len() + 1 };
        let mut below = Vec::new();
        let end = self.visit_open(&dir, &mut below, &mut share.count)?;
        if end.is_none() {
            let group = if dir.stays_open() {
                Group { open: Arc::new(dir), closed: Arc::default(), below }
            } else {
                let closed = closed.iter().cloned().chain([name]).collect();
                Group { open, closed, below }
            };
            self.queue.put(group);
        }
        Ok(end.map(End::At))
    }

    fn visit_open(
        &self,
        dir: &Directory<V::Dir>,
        below: &mut Vec<CString>,
        count: &mut V::Count,
    ) -> Result<Option<Vec<u8>>, Error> {
        let mut stop = StopCheck { has_ended: &self.queue.has_ended, cancel: self.cancel, names: 0 };
        stop.check()?;
        self.visitor.visit(dir, &mut stop, below, count)
    }
}

/// The directories that no thread has opened yet.
struct Queue<D> {
    state: Mutex<Waiting<D>>,
    changed: Condvar,
    /// True once the walk has ended. Threads look at it without the lock.
    has_ended: AtomicBool,
}

/// A directory whose subdirectories are waiting.
struct Group<D> {
    /// The directory or, if it does not stay open, the nearest one above it that does.
    open: Arc<Directory<D>>,
    /// The names from that one down to the directory. Shared, because they are taken for each of its subdirectories
    /// while the queue is locked.
    closed: Arc<[CString]>,
    /// Its subdirectories.
    below: Vec<CString>,
}

/// A directory that a thread has taken.
struct Next<D> {
    /// The nearest directory above it that stays open.
    open: Arc<Directory<D>>,
    /// The names from that one down to its parent.
    closed: Arc<[CString]>,
    /// Its own name.
    name: CString,
}

struct Waiting<D> {
    /// Directories with their subdirectories. The last one is taken first, so that few directories are open at once.
    groups: Vec<Group<D>>,
    /// Number of waiting directories in all groups.
    count: usize,
    /// Number of threads that visit a directory and may add a group.
    busy: usize,
    /// Sum of the sizes of the threads' lists of directories.
    listed: usize,
    /// Why the walk ended before all directories were visited.
    end: Option<Result<End, Error>>,
}

impl<D> Default for Waiting<D> {
    fn default() -> Self {
        Self { groups: Vec::new(), count: 0, busy: 0, listed: 0, end: None }
    }
}

impl<D> Waiting<D> {
    /// Takes a directory.
    fn pop(&mut self) -> Option<Next<D>> {
        // Only one thread goes further down if many directories are open.
        if self.groups.len() >= OPEN_MAX && self.busy > 0 {
            return None;
        }
        let group = self.groups.last_mut()?;
        let name = group.below.pop()?;
        let next = Next { open: Arc::clone(&group.open), closed: Arc::clone(&group.closed), name };
        if group.below.is_empty() {
            self.groups.pop();
        }
        self.count -= 1;
        self.busy += 1;
        Some(next)
    }
}

impl<D> Queue<D> {
    fn lock(&self) -> MutexGuard<'_, Waiting<D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next directory. `None` if there will be no more, or if at least `enough` are waiting.
    fn take(&self, enough: usize) -> Option<Next<D>> {
        let mut state = self.lock();
        loop {
            if state.end.is_some() || state.count >= enough {
                return None;
            }
            if let Some(next) = state.pop() {
                return Some(next);
            }
            if state.busy == 0 {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Adds the subdirectories of a directory.
    fn put(&self, group: Group<D>) {
        if !group.below.is_empty() {
            let mut state = self.lock();
            state.count += group.below.len();
            state.groups.push(group);
        }
    }

    /// Ends the walk. Of several ends the first counts.
    fn end(&self, end: Result<End, Error>) {
        let mut state = self.lock();
        state.end.get_or_insert(end);
        // Under the lock, so that the error of a thread that stops because of it cannot come first.
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// Returns true if directories are waiting and the walk has not ended.
    fn is_left(&self) -> bool {
        let state = self.lock();
        state.end.is_none() && state.count > 0
    }

    fn add_listed(&self, bytes: usize) -> usize {
        let mut state = self.lock();
        state.listed += bytes;
        state.listed
    }
}

/// A thread that visits a directory. The others wait for it, also if it panics.
struct Busy<'q, D>(&'q Queue<D>);

impl<D> Drop for Busy<'_, D> {
    fn drop(&mut self) {
        self.0.lock().busy -= 1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests;
