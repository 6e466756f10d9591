//! Walks of trees, and when they end.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

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
        stop: &mut StopCheck<'_>,
        below: &mut Vec<CString>,
        count: &mut usize,
    ) -> Result<Option<Vec<u8>>, Error> {
        let listed = fsx::each(&dir.dir.0, |name, kind| {
            stop.at_name()?;
            match kind {
                FileType::Directory => below.push(name.to_owned()),
                _ => *count += 1,
            }
            Ok(())
        });
        stop.check()?;
        listed.unwrap();
        below.sort_unstable();
        below.reverse(); // the last one is visited first
        Ok(None)
    }
}

fn walk_on(dir: &Path, threads: usize, files: &Files, paths_max: usize) -> Walked<usize> {
    let top = files.opened(fsx::open_dir_at_path(dir).unwrap());
    walk(top, files, threads, Some(paths_max), &CancellationToken::new()).unwrap()
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

/// One long chain of directories with a branch at every level, which is visited after the rest of the chain.
#[test]
fn few_directories_of_a_deep_tree_stay_open() {
    const LEVELS: usize = 300;
    let dir = tempfile::tempdir().unwrap();
    let mut path = dir.path().to_path_buf();
    for _ in 0..LEVELS {
        path.push("d");
        fs_err::create_dir_all(path.join("e")).unwrap();
        fs_err::write(path.join("e/file"), "").unwrap();
    }
    for threads in [1, 4] {
        let files = Files::until("");
        let walked = walk_on(dir.path(), threads, &files, usize::MAX);
        assert!(walked.end.is_none());
        assert_eq!(walked.counts.iter().sum::<usize>(), LEVELS, "each file once");
        let (mut paths, mut dirs) = (walked.dirs.paths(), 0);
        while paths.next().is_some() {
            dirs += 1;
        }
        assert_eq!(dirs, 2 * LEVELS, "each directory once");
        let most = files.open.1.load(Ordering::SeqCst);
        let bound = 1 + OPEN_LEVELS + LEVELS / LEVELS_APART + 3 * threads;
        assert!(most <= bound, "{most} were open at once on {threads} threads");
    }
}

/// Many directories of very many names, each of which takes a while. The visit of the first one waits for another
/// thread to be in a second one; then it ends with the result of `act`.
struct Huge<A> {
    act: A,
    visited: AtomicUsize,
    names: AtomicUsize,
}

const NAMES: usize = 10_000;

impl<A: Fn() -> Result<Option<Vec<u8>>, Error> + Sync> Visitor for Huge<A> {
    type Dir = ();
    type Count = ();

    fn open(&self, (): &(), _: &CStr, _: &[u8]) -> Result<Option<()>, Error> {
        Ok(Some(()))
    }

    fn visit(
        &self,
        dir: &Directory<()>,
        stop: &mut StopCheck<'_>,
        below: &mut Vec<CString>,
        (): &mut (),
    ) -> Result<Option<Vec<u8>>, Error> {
        if dir.level == 0 {
            below.extend((0..2 * WAITING_MIN).map(|number| CString::new(number.to_string()).unwrap()));
            return Ok(None);
        }
        if self.visited.fetch_add(1, Ordering::SeqCst) == 0 {
            for _ in 0..20_000 {
                if self.names.load(Ordering::SeqCst) > 0 {
                    return (self.act)();
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            panic!("no other thread visits a directory");
        }
        for _ in 0..NAMES {
            if stop.at_name().is_err() {
                break;
            }
            self.names.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.check()?;
        Ok(None)
    }
}

/// Walks such a tree on two threads. Returns the walk's end and the number of names that were visited.
fn walk_huge(act: impl Fn() -> Result<Option<Vec<u8>>, Error> + Sync) -> (Result<Option<End>, Error>, usize) {
    let huge = Huge { act, visited: AtomicUsize::new(0), names: AtomicUsize::new(0) };
    let end = walk((), &huge, 2, None, &CancellationToken::new()).map(|walked| walked.end);
    (end, huge.names.into_inner())
}

#[test]
fn a_thread_leaves_a_huge_directory_once_another_has_ended_the_walk() {
    let (end, names) = walk_huge(|| Ok(Some(b"here".to_vec())));
    assert!(matches!(end, Ok(Some(End::At(path))) if path == b"here"));
    assert!(names < NAMES, "all names were visited");
    let (end, names) = walk_huge(|| Err(Error::Folded { path: "here".into() }));
    assert!(matches!(end, Err(Error::Folded { .. })), "the first error is the reason");
    assert!(names < NAMES, "all names were visited");
}

#[test]
fn a_huge_directory_is_left_when_the_walk_is_cancelled() {
    let (has_ended, cancel) = (AtomicBool::new(false), CancellationToken::new());
    let mut stop = StopCheck { has_ended: &has_ended, cancel: &cancel, names: 0 };
    assert!((0..2 * UNCHECKED_MAX).all(|_| stop.at_name().is_ok()));
    cancel.cancel();
    let names = (0..2 * UNCHECKED_MAX).take_while(|_| stop.at_name().is_ok()).count();
    assert!(names < UNCHECKED_MAX, "{names} names after that");
    assert!(matches!(stop.check(), Err(Error::Cancelled)));
}
