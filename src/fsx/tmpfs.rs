//! Whether files are memory.

use std::path::Path;

use rustix::fs::{FsWord, statfs};

/// TMPFS_MAGIC of Linux's `linux/magic.h`.
const TMPFS: FsWord = 0x0102_1994;

/// Whether the file system of this path, or of where it is going to be, is one in memory.
pub fn is_in_memory(path: &Path) -> bool {
    let known = path.ancestors().find_map(|place| statfs(place).ok());
    known.is_some_and(|known| known.f_type == TMPFS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_memory_is_known_before_it_is_made() {
        assert!(is_in_memory(Path::new("/dev/shm/not/made/yet")));
        assert!(!is_in_memory(Path::new("/proc")));
    }
}
