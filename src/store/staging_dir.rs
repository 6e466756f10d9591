//! A name in staging whose directory is deleted unless it is published.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::layout::RootHandles;
use super::names::STAGING;
use super::trash::Trash;
use crate::fsx;

/// A unique name in staging. When this is dropped, a directory of that name goes to the trash, unless
/// [`StagingDir::mark_moved`] was called.
#[derive(Debug)]
pub(super) struct StagingDir {
    handles: Arc<RootHandles>,
    trash: Arc<Trash>,
    pub(super) name: String,
    moved: AtomicBool,
}

impl StagingDir {
    pub(super) fn new(handles: &Arc<RootHandles>, trash: &Arc<Trash>) -> Self {
        let handles = Arc::clone(handles);
        let trash = Arc::clone(trash);
        let name = loop {
            let name = fsx::unique("generation-");
            // Another user's directory, which could not be removed, may have it: in containers process ids repeat.
            if !matches!(fsx::stat(&handles.staging, name.as_str()), Ok(Some(_))) {
                break name;
            }
        };
        Self { handles, trash, name, moved: AtomicBool::new(false) }
    }

    /// Its path, for messages.
    pub(super) fn path(&self) -> PathBuf {
        self.handles.private_at(STAGING).join(&self.name)
    }

    /// Records that the directory was moved away or never created, so that the drop removes nothing.
    pub(super) fn mark_moved(&self) {
        self.moved.store(true, Ordering::Relaxed);
    }

    /// The staging directory.
    pub(super) fn staging(&self) -> BorrowedFd<'_> {
        self.handles.staging.as_fd()
    }
}

impl Drop for StagingDir {
    fn drop(&mut self) {
        if self.moved.load(Ordering::Relaxed) {
            return;
        }
        match self.trash.put(&self.handles.staging, self.name.as_str(), None) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(error = %error, "the staging directory cannot be removed before the next start");
            }
            _ => {}
        }
    }
}
