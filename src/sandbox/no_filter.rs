//! No seccomp filter: used on processors whose system call numbers `system_calls` does not list.

use std::io;

/// Returns false: there is no filter for this processor.
pub(super) fn is_supported() -> bool {
    false
}

/// Always fails.
pub(super) fn install_filter() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
