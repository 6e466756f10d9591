//! Visits every directory of a large tree, on several threads: most of the time goes by waiting for memory or the disk.

use std::ffi::{CStr, CString};
use std::num::NonZero;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::Error;
use super::directory_list::DirectoryList;
use crate::payload::join;
use crate::threads::on_threads;

/// The most threads for one walk.
const THREADS_MAX: usize = 4;
/// Further threads are started once so many directories are waiting: for fewer it is not worth it.
const WAITING_MIN: usize = 128;

/// The number of threads on which a large tree is visited: as many as processors, [`THREADS_MAX`] at most.
pub(super) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX)
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
    /// The bytes that the paths of the directories take so far, see [`DirectoryList::size`].
    pub(super) listed: usize,
}

/// The result of a walk.
pub(super) struct Walked<C> {
    /// The path at which the visitor ended the walk.
    pub(super) ended_at: Option<Vec<u8>>,
    /// All directories except the top one, if their paths are kept.
    pub(super) dirs: DirectoryList,
    /// What each thread counted.
    pub(super) counts: Vec<C>,
}

/// Visits the tree whose top directory is `top` on at most `threads` threads. The paths of the directories are collected if
/// `keeps_paths` is set.
pub(super) fn walk<V: Visitor>(
    top: V::Dir,
    visitor: &V,
    threads: usize,
    keeps_paths: bool,
) -> Result<Walked<V::Count>, Error> {
    let queue = Queue { state: Mutex::default(), changed: Condvar::new() };
    let walk = Walk { visitor, keeps_paths, queue, done: Mutex::default() };
    let mut first = Share::default();
    let top = Directory { dir: top, path: Vec::new(), level: 0, listed: 0 };
    let mut below = Vec::new();
    let ended_at = visitor.visit(&top, &mut below, &mut first.count)?;
    walk.queue.put(&Arc::new(top), below, Ok(ended_at));
    walk.take_share(first, if threads > 1 { WAITING_MIN } else { usize::MAX });
    if walk.queue.is_left() {
        on_threads(threads, || walk.take_share(Share::default(), usize::MAX));
    }
    let ended_at = match walk.queue.into_end() {
        Some(end) => Some(end?),
        None => None,
    };
    let mut walked = Walked { ended_at, dirs: DirectoryList::default(), counts: Vec::new() };
    for Share { dirs, count } in walk.done.into_inner().unwrap_or_else(PoisonError::into_inner) {
        walked.dirs.append(dirs);
        walked.counts.push(count);
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
    keeps_paths: bool,
    queue: Queue<V::Dir>,
    done: Mutex<Vec<Share<V::Count>>>,
}

impl<V: Visitor> Walk<'_, V> {
    /// Visits directories of the queue until none is left, or at least `enough` are waiting.
    fn take_share(&self, mut share: Share<V::Count>, enough: usize) {
        while let Some((parent, name)) = self.queue.take(enough) {
            let _busy = Busy(&self.queue);
            self.visit(&parent, &name, &mut share);
        }
        self.done.lock().unwrap_or_else(PoisonError::into_inner).push(share);
    }

    fn visit(&self, parent: &Directory<V::Dir>, name: &CStr, share: &mut Share<V::Count>) {
        let path = join(&parent.path, name.to_bytes());
        let mut listed = parent.listed;
        if self.keeps_paths {
            let before = share.dirs.size();
            share.dirs.push(&path);
            listed = self.queue.add_listed(share.dirs.size() - before);
        }
        let dir = match self.visitor.open(&parent.dir, name, &path) {
            Ok(Some(dir)) => Arc::new(Directory { dir, path, level: parent.level + 1, listed }),
            Ok(None) => return self.queue.end(Ok(path)),
            Err(error) => return self.queue.end(Err(error)),
        };
        let mut below = Vec::new();
        let end = self.visitor.visit(&dir, &mut below, &mut share.count);
        self.queue.put(&dir, below, end);
    }
}

/// The directories that no thread has opened yet.
struct Queue<D> {
    state: Mutex<Waiting<D>>,
    changed: Condvar,
}

struct Waiting<D> {
    /// Each with its parent. The last one is taken first, so that few directories are open at once.
    dirs: Vec<(Arc<Directory<D>>, CString)>,
    /// Number of threads that visit a directory and may add to `dirs`.
    busy: usize,
    /// Sum of the sizes of the threads' lists of directories.
    listed: usize,
    /// Why the walk ended before all directories were visited.
    end: Option<Result<Vec<u8>, Error>>,
}

impl<D> Default for Waiting<D> {
    fn default() -> Self {
        Self { dirs: Vec::new(), busy: 0, listed: 0, end: None }
    }
}

impl<D> Queue<D> {
    fn lock(&self) -> MutexGuard<'_, Waiting<D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next directory. `None` if there will be no more, or if at least `enough` are waiting.
    fn take(&self, enough: usize) -> Option<(Arc<Directory<D>>, CString)> {
        let mut state = self.lock();
        loop {
            if state.end.is_some() || state.dirs.len() >= enough {
                return None;
            }
            if let Some(next) = state.dirs.pop() {
                state.busy += 1;
                return Some(next);
            }
            if state.busy == 0 {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Adds the subdirectories of a directory, or ends the walk.
    fn put(&self, parent: &Arc<Directory<D>>, below: Vec<CString>, end: Result<Option<Vec<u8>>, Error>) {
        match end.transpose() {
            Some(end) => self.end(end),
            None => self.lock().dirs.extend(below.into_iter().map(|name| (Arc::clone(parent), name))),
        }
    }

    fn end(&self, end: Result<Vec<u8>, Error>) {
        self.lock().end.get_or_insert(end);
    }

    /// Returns true if directories are waiting and the walk has not ended.
    fn is_left(&self) -> bool {
        let state = self.lock();
        state.end.is_none() && !state.dirs.is_empty()
    }

    fn add_listed(&self, bytes: usize) -> usize {
        let mut state = self.lock();
        state.listed += bytes;
        state.listed
    }

    fn into_end(self) -> Option<Result<Vec<u8>, Error>> {
        self.state.into_inner().unwrap_or_else(PoisonError::into_inner).end
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

    use rustix::fs::FileType;

    use super::*;
    use crate::fsx;

    /// Counts files, and ends at a directory of this name.
    struct Files(&'static str);

    impl Visitor for Files {
        type Dir = OwnedFd;
        type Count = usize;

        fn open(&self, parent: &OwnedFd, name: &CStr, _: &[u8]) -> Result<Option<OwnedFd>, Error> {
            Ok((name.to_bytes() != self.0.as_bytes()).then(|| fsx::open_dir(parent, name).unwrap()))
        }

        fn visit(
            &self,
            dir: &Directory<OwnedFd>,
            below: &mut Vec<CString>,
            count: &mut usize,
        ) -> Result<Option<Vec<u8>>, Error> {
            fsx::each(&dir.dir, |name, kind| {
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

    #[test]
    fn all_directories_are_visited_once_whatever_the_number_of_threads() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..3 * WAITING_MIN {
            fs_err::create_dir_all(dir.path().join(format!("{}/{number}/a/b", number % 7))).unwrap();
            fs_err::write(dir.path().join(format!("{}/{number}/a/file", number % 7)), "").unwrap();
        }
        let walk_on = |threads, until| {
            walk(fsx::open_dir_at_path(dir.path()).unwrap(), &Files(until), threads, true).unwrap()
        };
        for threads in [1, 4] {
            let walked = walk_on(threads, "");
            assert_eq!(walked.ended_at, None);
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
            let ended = walk_on(threads, "b").ended_at.unwrap();
            assert!(ended.ends_with(b"/a/b"), "{threads} threads");
        }
    }
}
