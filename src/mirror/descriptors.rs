//! Tells whether an open failed only because this process can open no more files. Then what could not be opened may be
//! intact, and must not be given up as damaged or absent.

use std::io;
use std::path::Path;

use rustix::io::Errno;

use super::error::Error;
use super::files::local;

/// The files that libgit2 opens at once in order to find an object: a directory, and a pack with its index.
const FILES_OF_OBJECT: usize = 3;

/// More files than an attempt opens for a short time: connections, pipes to the indexing process, packs.
const FILES_OF_ATTEMPT: usize = 64;

/// Returns an error if this process can open too few files to read an object, because a limit on open files (or kernel
/// memory) is reached. Then a file that could not be opened may be intact. libgit2 does not tell: it treats such a pack
/// as one without the object. Call this while the repository is still open: closing it frees descriptors and hides the
/// cause.
pub(super) fn descriptors_used_up() -> Option<io::Error> {
    open_file_limit_reached(FILES_OF_OBJECT, open_any)
}

/// Fails if this process can open too few files: see [`descriptors_used_up`]. To be called before the mirror in `dir`,
/// or part of it, is given up as unusable.
pub(super) fn check_descriptors(dir: &Path) -> Result<(), Error> {
    descriptors_used_up().map_or(Ok(()), |error| Err(local("open the files of", dir)(error)))
}

/// Returns true if this process can open fewer files than an attempt may need.
pub(super) fn are_scarce() -> bool {
    open_file_limit_reached(FILES_OF_ATTEMPT, open_any).is_some()
}

/// Opens a file. The descriptor is taken before the path is looked at, so any path will do. An error of fs_err would
/// have no number.
fn open_any() -> io::Result<std::fs::File> {
    std::fs::File::open("/")
}

/// The error if so many files cannot be open at once for want of descriptors. They are closed again.
fn open_file_limit_reached<F>(count: usize, mut open: impl FnMut() -> io::Result<F>) -> Option<io::Error> {
    let opened: io::Result<Vec<F>> = (0..count).map(|_| open()).collect();
    opened.err().filter(is_open_file_limit)
}

fn is_open_file_limit(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_limit_on_open_files_says_nothing_about_the_file() {
        let is_limit = |errno: Errno| is_open_file_limit(&errno.into());
        assert!([Errno::MFILE, Errno::NFILE, Errno::NOMEM].into_iter().all(is_limit));
        assert!(![Errno::NOENT, Errno::ACCESS, Errno::IO, Errno::LOOP].into_iter().any(is_limit));
    }

    #[test]
    fn one_free_descriptor_is_too_few_for_a_pack_and_its_index() {
        let held = std::rc::Rc::new(());
        let lacks = |free: usize| {
            let open = || {
                let is_left = std::rc::Rc::strong_count(&held) <= free;
                if is_left { Ok(std::rc::Rc::clone(&held)) } else { Err(Errno::MFILE.into()) }
            };
            open_file_limit_reached(FILES_OF_OBJECT, open).is_some()
        };
        assert_eq!([0, 1, 2, 3, 4].map(lacks), [true, true, true, false, false]);
        assert_eq!(std::rc::Rc::strong_count(&held), 1);
        let denied = open_file_limit_reached(1, || Err::<(), _>(Errno::ACCESS.into()));
        assert!(denied.is_none(), "it says nothing about descriptors");
    }
}
