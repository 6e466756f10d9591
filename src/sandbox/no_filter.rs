//! Where the numbers of the system calls are not known: no filter.

use std::io;

/// Whether the kernel takes filters.
pub(super) fn can_be_filtered() -> bool {
    false
}

/// Refuses nothing.
pub(super) fn refuse() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
