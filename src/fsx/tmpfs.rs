//! Detects tmpfs, where file content occupies memory.

use std::path::Path;

use rustix::fs::statfs;

use super::TMPFS;

/// Returns true if the path is on tmpfs. If it does not exist yet, its nearest existing ancestor decides.
pub fn is_in_memory(path: &Path) -> bool {
    let found = path.ancestors().find_map(|ancestor| statfs(ancestor).ok());
    found.is_some_and(|found| found.f_type == TMPFS)
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
