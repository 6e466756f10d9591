//! Visits every directory of a large tree, on several threads: most of the time goes by waiting for memory or the disk.

use std::ffi::{CStr, CString};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::Error;
use super::directory_list::DirectoryList;
use crate::payload::join;
use crate::threads::{on_threads, processors};

/// The most threads for one walk.
const THREADS_MAX: usize = 4;
/// Further threads are started once so many directories are waiting: for fewer it is not worth it.
const WAITING_MIN: usize = 128;
/// With so many open directories that have subdirectories left, one thread goes on alone: each of several could open as
/// many more as the tree is deep.
const OPEN_MAX: usize = 96;

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

    /// Opens the subdirectory `name`, whose path is `path`. `None` ends the walk there.
    fn open(&self, parent: &Self::Dir, name: &CStr, path: &[u8]) -> Result<Option<Self::Dir>, Error>;

    /// Visits a directory, and adds the names of its subdirectories to `below`. Returns a path to end the walk there.
    fn visit(
        &self,
        dir: &Directory<Self::Dir>,
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
/// directories are collected if they take at most so many bytes.
pub(super) fn walk<V: Visitor>(
    top: V::Dir,
    visitor: &V,
    threads: usize,
    paths_max: Option<usize>,
) -> Result<Walked<V::Count>, Error> {
    let queue = Queue { state: Mutex::default(), changed: Condvar::new() };
    let walk = Walk { visitor, threads, paths_max, queue, done: Mutex::default() };
    let mut first = Share::default();
    let top = Directory { dir: top, path: Vec::new(), level: 0 };
    let mut below = Vec::new();
    match visitor.visit(&top, &mut below, &mut first.count)? {
        Some(path) => walk.queue.end(Ok(End::At(path))),
        None => walk.queue.put(top, below),
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
    queue: Queue<V::Dir>,
    done: Mutex<Vec<Share<V::Count>>>,
}

impl<V: Visitor> Walk<'_, V> {
    /// Visits directories of the queue until none is left, or at least `enough` are waiting.
    fn take_share(&self, mut share: Share<V::Count>, enough: usize) {
        while let Some((parent, name)) = self.queue.take(enough) {
            let _busy = Busy(&self.queue);
            match self.visit(&parent, &name, &mut share) {
                Ok(None) => {}
                Ok(Some(end)) => self.queue.end(Ok(end)),
                Err(error) => self.queue.end(Err(error)),
            }
        }
        self.done.lock().unwrap_or_else(PoisonError::into_inner).push(share);
    }

    fn visit(
        &self,
        parent: &Directory<V::Dir>,
        name: &CStr,
        share: &mut Share<V::Count>,
    ) -> Result<Option<End>, Error> {
        let path = join(&parent.path, name.to_bytes());
        if let Some(max) = self.paths_max {
            let before = share.dirs.size();
            share.dirs.push(&path);
            // Paths that begin alike may be in the lists of several threads: together they take more than one list will.
            let listed = self.queue.add_listed(share.dirs.size() - before);
            if listed > max.saturating_mul(self.threads) {
                return Ok(Some(End::TooMany));
            }
        }
        let Some(dir) = self.visitor.open(&parent.dir, name, &path)? else { return Ok(Some(End::At(path))) };
        let dir = Directory { dir, path, level: parent.level + 1 };
        let mut below = Vec::new();
        let end = self.visitor.visit(&dir, &mut below, &mut share.count)?;
        if end.is_none() {
            self.queue.put(dir, below);
        }
        Ok(end.map(End::At))
    }
}

/// The directories that no thread has opened yet.
struct Queue<D> {
    state: Mutex<Waiting<D>>,
    changed: Condvar,
}

struct Waiting<D> {
    /// Directories with their subdirectories. The last one is taken first, so that few directories are open at once.
    groups: Vec<(Arc<Directory<D>>, Vec<CString>)>,
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
    /// Takes a directory, and its parent.
    fn pop(&mut self) -> Option<(Arc<Directory<D>>, CString)> {
        // Only one thread goes further down if many directories are open.
        if self.groups.len() >= OPEN_MAX && self.busy > 0 {
            return None;
        }
        let (parent, names) = self.groups.last_mut()?;
        let taken = (Arc::clone(parent), names.pop()?);
        if names.is_empty() {
            self.groups.pop();
        }
        self.count -= 1;
        self.busy += 1;
        Some(taken)
    }
}

impl<D> Queue<D> {
    fn lock(&self) -> MutexGuard<'_, Waiting<D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next directory and its parent. `None` if there will be no more, or if at least `enough` are waiting.
    fn take(&self, enough: usize) -> Option<(Arc<Directory<D>>, CString)> {
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
    fn put(&self, parent: Directory<D>, below: Vec<CString>) {
        if !below.is_empty() {
            let mut state = self.lock();
            state.count += below.len();
            state.groups.push((Arc::new(parent), below));
        }
    }

    /// Ends the walk.
    fn end(&self, end: Result<End, Error>) {
        self.lock().end.get_or_insert(end);
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
mod tests {
    use std::os::fd::OwnedFd;
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rustix::fs::FileType;

    use super::*;
    use crate::fsx;

    /// Counts files, and ends at a directory of the name `until`.
    struct Files {
        until: &'static str,
        panics: bool,
        /// The directories that are open, and the most that were at once.
        open: Arc<(AtomicUsize, AtomicUsize)>,
    }

    struct Open(OwnedFd, Arc<(AtomicUsize, AtomicUsize)>);

    impl Drop for Open {
        fn drop(&mut self) {
            self.1.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    impl Files {
        fn until(until: &'static str) -> Self {
            Self { until, panics: false, open: Arc::default() }
        }

        fn opened(&self, dir: OwnedFd) -> Open {
            let open = self.open.0.fetch_add(1, Ordering::SeqCst) + 1;
            self.open.1.fetch_max(open, Ordering::SeqCst);
            Open(dir, Arc::clone(&self.open))
        }
    }

    impl Visitor for Files {
        type Dir = Open;
        type Count = usize;

        fn open(&self, parent: &Open, name: &CStr, _: &[u8]) -> Result<Option<Open>, Error> {
            let is_end = name.to_bytes() == self.until.as_bytes();
            assert!(!(is_end && self.panics), "as the test wants it");
            Ok((!is_end).then(|| self.opened(fsx::open_dir(&parent.0, name).unwrap())))
        }

        fn visit(
            &self,
            dir: &Directory<Open>,
            below: &mut Vec<CString>,
            count: &mut usize,
        ) -> Result<Option<Vec<u8>>, Error> {
            fsx::each(&dir.dir.0, |name, kind| {
                match kind {
                    FileType::Directory => below.push(name.to_owned()),
                    _ => *count += 1,
                }
                Ok(())
            })
            .unwrap();
            Ok(None)
        }
    }

    fn walk_on(dir: &Path, threads: usize, files: &Files, paths_max: usize) -> Walked<usize> {
        let top = files.opened(fsx::open_dir_at_path(dir).unwrap());
        walk(top, files, threads, Some(paths_max)).unwrap()
    }

    /// Makes many directories, each with a file.
    fn wide() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..3 * WAITING_MIN {
            fs_err::create_dir_all(dir.path().join(format!("{}/{number}/a/b", number % 7))).unwrap();
            fs_err::write(dir.path().join(format!("{}/{number}/a/file", number % 7)), "").unwrap();
        }
        dir
    }

    #[test]
    fn all_directories_are_visited_once_whatever_the_number_of_threads() {
        let dir = wide();
        for threads in [1, 4] {
            let walked = walk_on(dir.path(), threads, &Files::until(""), usize::MAX);
            assert!(walked.end.is_none());
            assert_eq!(walked.counts.iter().sum::<usize>(), 3 * WAITING_MIN);
            let mut found = Vec::new();
            let mut paths = walked.dirs.paths();
            while let Some(path) = paths.next() {
                assert!(dir.path().join(path.to_str().unwrap()).is_dir());
                found.push(path.to_owned());
            }
            assert_eq!(found.len(), 7 + 3 * 3 * WAITING_MIN);
            found.sort();
            found.dedup();
            assert_eq!(found.len(), 7 + 3 * 3 * WAITING_MIN, "some twice");
        }
    }

    #[test]
    fn a_walk_ends_where_its_visitor_ends_it_or_where_there_are_too_many_paths() {
        let dir = wide();
        for threads in [1, 4] {
            let ended = walk_on(dir.path(), threads, &Files::until("b"), usize::MAX).end;
            assert!(matches!(ended, Some(End::At(path)) if path.ends_with(b"/a/b")), "{threads} threads");
            let all = walk_on(dir.path(), threads, &Files::until(""), usize::MAX).dirs.size();
            for (max, fits) in [(2 * all, true), (all / 8, false), (1, false)] {
                let end = walk_on(dir.path(), threads, &Files::until(""), max).end;
                assert_eq!(end.is_none(), fits, "{threads} threads, {max} of {all} bytes");
            }
        }
    }

    #[test]
    fn a_visitor_that_panics_ends_the_walk() {
        let files = Files { panics: true, ..Files::until("b") };
        let walk = || walk_on(wide().path(), 4, &files, usize::MAX).counts;
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(walk)).is_err());
    }

    /// Many chains of directories, each with a branch at every level.
    #[test]
    fn few_directories_are_open_at_once() {
        let dir = tempfile::tempdir().unwrap();
        for chain in 0..2 * WAITING_MIN {
            let mut path = dir.path().join(chain.to_string());
            for _ in 0..20 {
                path.push("d");
                fs_err::create_dir_all(path.join("e")).unwrap();
            }
        }
        let files = Files::until("");
        walk_on(dir.path(), 4, &files, usize::MAX);
        let most = files.open.1.load(Ordering::SeqCst);
        assert!(most <= OPEN_MAX + 4 + 22, "{most} were open at once");
    }
}
