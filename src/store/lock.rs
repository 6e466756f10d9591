//! The writer's lock: one writer a root.
//!
//! An flock, so that the kernel frees it however the holder ends; no process id is trusted. The file's content names
//! its holder for the message of a second writer, and decides nothing. Mode 0600: a consumer that could open the
//! file, even through a read-only mount, could take the lock.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use jiff::Timestamp;
use rustix::fs::{FileType, Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::fsx::{self, Lock};
use crate::store::Recovered;
use crate::store::error::Error;
use crate::store::layout::Layout;
use crate::store::names::LOCK;

/// Who holds the lock, as it says itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Holder {
    pid: u32,
    host: String,
    since: Timestamp,
}

/// The lock, held until dropped.
#[derive(Debug)]
pub(crate) struct WriterLock {
    file: OwnedFd,
}

impl WriterLock {
    /// Takes the lock, or says who has it.
    pub(crate) fn take(layout: &Layout, found: &mut Recovered) -> Result<Self, Error> {
        let path = layout.private_at(LOCK);
        loop {
            layout.quarantine_foreign(LOCK, FileType::RegularFile, found)?;
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&layout.private, LOCK, flags, Mode::from_raw_mode(0o600))
                .map_err(Error::io("open the lock", &path))?;
            match fsx::try_lock(&file).map_err(Error::io("lock", &path))? {
                Lock::Taken => {}
                Lock::Held => {
                    return Err(Error::Locked { path: layout.path.clone(), holder: holder(&file.into()) });
                }
                Lock::Unsupported => {
                    return Err(Error::Refused {
                        path: layout.path.clone(),
                        why:
                            "its file system has no working flock, so that nothing keeps a second writer out"
                                .to_owned(),
                    });
                }
            }
            let lock = Self { file };
            // The file may have been removed between our open and our lock: then it is no lock at all.
            if lock.is_in_place(layout)? {
                let _ = fsx::set_mode(&lock.file, 0o600); // of another user: then it is as it is
                lock.sign();
                return Ok(lock);
            }
        }
    }

    /// Whether the file we hold is still the one that others would try.
    pub(crate) fn is_in_place(&self, layout: &Layout) -> Result<bool, Error> {
        let failed = || Error::io("look at the lock", layout.private_at(LOCK));
        let ours = fsx::identity(&self.file).map_err(failed())?;
        let there = fsx::stat(&layout.private, LOCK).map_err(failed())?;
        Ok(there.is_some_and(|stat| (stat.st_dev, stat.st_ino) == ours))
    }

    /// Writes who we are; a disk that is full must not keep us from the work that frees it.
    fn sign(&self) {
        let holder = Holder {
            pid: std::process::id(),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            since: crate::clock::now().wall,
        };
        let Ok(mut text) = serde_json::to_vec(&holder) else { return };
        text.push(b'\n');
        let file = match self.file.try_clone() {
            Ok(file) => File::from(file),
            Err(_) => return,
        };
        let _ = file.set_len(0).and_then(|()| file.write_all_at(&text, 0));
    }
}

impl Drop for WriterLock {
    fn drop(&mut self) {
        // Closing alone would leave it with a child that was forked and has not called exec yet.
        let _ = fsx::unlock(&self.file);
    }
}

/// The holder in words for the message, or nothing.
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
