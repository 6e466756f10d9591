//! The writer's lock: one writer per root.
//!
//! It is an flock, so the kernel releases it however the holder ends, and no process id is trusted. A second writer is
//! refused after a second, because a child that the holder was starting when it was killed keeps the lock a little
//! longer. The file's content names the holder for the error message of a second writer and has no other use. The mode
//! is 0600: a reader that could open the file, even through a read-only mount, could take the lock.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use jiff::Timestamp;
use rustix::fs::{FileType, Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::fsx::{self, Lock};
use crate::store::Recovered;
use crate::store::error::Error;
use crate::store::layout::RootHandles;
use crate::store::names::LOCK;

/// The holder's description of itself in the lock file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Holder {
    pid: u32,
    host: String,
    since: Timestamp,
}

/// The writer's lock, held until dropped.
#[derive(Debug)]
pub(crate) struct WriterLock {
    file: OwnedFd,
}

impl WriterLock {
    /// Takes the lock. If another writer has it, the error names that writer.
    pub(crate) fn take(handles: &RootHandles, found: &mut Recovered) -> Result<Self, Error> {
        let path = handles.private_at(LOCK);
        loop {
            handles.quarantine_foreign(LOCK, FileType::RegularFile, found)?;
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&handles.private, LOCK, flags, Mode::from_raw_mode(0o600))
                .map_err(Error::io("open the lock", &path))?;
            // A lack of locks (`ENOLCK`) is an error here, since it may pass, and no refusal of the root.
            match fsx::lock_soon(&file).map_err(Error::io("lock", &path))? {
                Lock::Taken => {}
                Lock::Contended => {
                    return Err(Error::Locked { path: handles.path.clone(), holder: holder(&file.into()) });
                }
                Lock::Unsupported => {
                    return Err(Error::Refused {
                        path: handles.path.clone(),
                        why: "its file system has no working flock, so nothing prevents a second writer"
                            .to_owned(),
                    });
                }
            }
            let lock = Self { file };
            // The file may have been removed between open and flock. Then others would lock a new file: try again.
            if lock.is_in_place(handles)? {
                let _ = fsx::set_mode(&lock.file, 0o600); // fails if another user owns the file
                lock.write_holder();
                return Ok(lock);
            }
        }
    }

    /// Returns true if the locked file is still the one under the lock's name, which other writers would try.
    pub(crate) fn is_in_place(&self, handles: &RootHandles) -> Result<bool, Error> {
        let failed = Error::io("stat the lock", handles.private_at(LOCK));
        fsx::is_at(&handles.private, LOCK, &self.file).map_err(failed)
    }

    /// Writes our pid, host and start time into the file. Errors are ignored: a full disk must not keep us from the
    /// work that frees it.
    fn write_holder(&self) {
        let holder = Holder {
            pid: std::process::id(),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            since: crate::clock::now().wall,
        };
        let Ok(mut text) = serde_json::to_vec(&holder) else { return };
        text.push(b'\n');
        let Ok(file) = self.file.try_clone().map(File::from) else { return };
        let _ = file.set_len(0).and_then(|()| file.write_all_at(&text, 0));
    }
}

impl Drop for WriterLock {
    fn drop(&mut self) {
        // Closing alone is not enough: a child between fork and exec still has a duplicate of the descriptor.
        let _ = fsx::unlock(&self.file);
    }
}

/// Describes the holder for the error message. Empty if the file cannot be parsed.
fn holder(file: &File) -> String {
    let mut text = vec![0; 4096];
    let read = file.read_at(&mut text, 0).unwrap_or(0);
    match serde_json::from_slice::<Holder>(&text[..read]) {
        Ok(Holder { pid, host, since }) => {
            format!(": process {pid} on {host}, since {}", since.strftime("%Y-%m-%dT%H:%M:%SZ"))
        }
        Err(_) => String::new(),
    }
}
