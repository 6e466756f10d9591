//! No seccomp filter: used on processors whose system call numbers `system_calls` does not list.

use std::io;

/// Returns false: there is no filter for this processor.
pub(super) fn can_be_filtered() -> bool {
    false
}

/// Always fails.
pub(super) fn refuse() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
