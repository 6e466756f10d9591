//! Deletion in the background: a rename into `..treeswap/trash`, then removal by one thread.
//!
//! A reader that opens a path sees a generation completely or not at all, and a publication waits for no deletion,
//! unless no thread can be started or a tree cannot be renamed.
//! What a crash leaves in the trash is deleted after the next start. Deleting with several threads was measured and
//! is not worthwhile; the one thread has low priority. What cannot be deleted is reported and tried again.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::fsx::{self, walk};
use crate::store::Recovered;
use crate::store::error::Error;
use crate::store::journal::Journal;
use crate::store::layout::RootHandles;
use crate::store::lock::WriterLock;
use crate::store::names::{STAGING, TRASH};
use crate::store::quarantine;

/// The trash, and the thread that empties it.
#[derive(Debug)]
pub(crate) struct Trash {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    handles: Arc<RootHandles>,
    /// The writer's lock. Everything that may still change the root holds the trash and with it the lock, so that no
    /// second writer starts before it is done.
    writer_lock: WriterLock,
    /// The journal that records the removal of hard links, if foreign writes can be detected.
    journal: Option<Arc<Journal>>,
    jobs: Mutex<Jobs>,
    changed: Condvar,
    stop: AtomicBool,
}

#[derive(Debug, Default)]
struct Jobs {
    /// Names in the trash to delete, each with the handle whose lock keeps late readers from pinning it.
    waiting: BTreeMap<OsString, Option<OwnedFd>>,
    /// The name that is being deleted.
    working: Option<OsString>,
    /// Why names in the trash could not be deleted when that was tried last.
    failed: BTreeMap<OsString, String>,
}

impl Jobs {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.working.is_none()
    }
}

impl Trash {
    pub(super) fn new(
        handles: Arc<RootHandles>,
        writer_lock: WriterLock,
        journal: Option<Arc<Journal>>,
    ) -> Self {
        let shared = Shared {
            handles,
            writer_lock,
            journal,
            jobs: Mutex::default(),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared), thread: Mutex::new(None) }
    }

    /// The writer's lock.
    pub(crate) fn writer_lock(&self) -> &WriterLock {
        &self.shared.writer_lock
    }

    /// Renames `name` from `dir` into the trash as [`walk::move_dir`] does, to be deleted later; it need not be a
    /// directory. `lock` is closed after that.
    pub(crate) fn put(
        &self,
        dir: impl AsFd,
        name: impl AsRef<OsStr>,
        lock: Option<OwnedFd>,
    ) -> std::io::Result<()> {
        let dir = dir.as_fd();
        let trash = &self.shared.handles.trash;
        let name: &OsStr = name.as_ref();
        let to = quarantine::to_new_name("gone-", |new| walk::move_dir(dir, name, trash, new))?;
        self.enqueue(to.into(), lock);
        Ok(())
    }

    /// Like [`Self::put`], for a tree that no reader can have open. One that cannot be renamed is deleted where it is:
    /// without its option `redirect_dir`, overlayfs renames no directory of a lower layer, such as an image's (`EXDEV`).
    pub(crate) fn discard(&self, dir: impl AsFd, name: impl AsRef<OsStr>) -> std::io::Result<()> {
        let name = name.as_ref();
        match self.put(dir.as_fd(), name, None) {
            Err(error) if error.kind() == std::io::ErrorKind::CrossesDevices => {
                let removal = self.shared.remove(dir, name, &mut || ControlFlow::Continue(()));
                removal.failed.map_or(Ok(()), |(_, error)| Err(error))
            }
            done => done,
        }
    }

    /// Queues everything in the trash that is not queued: left by an earlier process, or not deletable before.
    pub(crate) fn sweep(&self) -> Result<(), Error> {
        let handles = &self.shared.handles;
        let found = fsx::list(&handles.trash).map_err(Error::io("list", handles.private_at(TRASH)))?;
        let is_found = |name: &OsStr| found.iter().any(|entry| entry.os() == name);
        self.shared.jobs().failed.retain(|name, _| is_found(name));
        for entry in &found {
            let name = entry.os();
            let known = {
                let jobs = self.shared.jobs();
                jobs.waiting.contains_key(name) || jobs.working.as_deref() == Some(name)
            };
            if !known {
                self.enqueue(name.to_owned(), None);
            }
        }
        Ok(())
    }

    /// Returns why names in the trash cannot be deleted. The same failure is returned until the deletion succeeds, so
    /// that a caller can tell it from a new one.
    pub(crate) fn failures(&self) -> Vec<String> {
        self.shared.jobs().failed.values().cloned().collect()
    }

    /// Waits until the deletion of everything was tried, or until cancelled. Returns true if nothing is queued any
    /// more.
    pub(crate) fn wait(&self, cancel: &CancellationToken) -> bool {
        let mut jobs = self.shared.jobs();
        while !jobs.is_idle() && !cancel.is_cancelled() {
            let slice = Duration::from_millis(50); // the longest delay until a cancellation is noticed
            jobs = self.shared.changed.wait_timeout(jobs, slice).unwrap_or_else(PoisonError::into_inner).0;
        }
        jobs.is_idle()
    }

    /// Ends the thread. What it has not deleted stays in the trash and is not queued any more: it is left to a later
    /// [`Trash::sweep`], which may be that of the store that is opened next.
    pub(super) fn stop(&self) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner); // none is started meanwhile
        {
            let mut jobs = self.shared.jobs(); // the thread must not be between its check of `stop` and its wait
            jobs.waiting.clear();
            self.shared.stop.store(true, Ordering::Relaxed);
        }
        self.shared.changed.notify_all();
        if let Some(started) = thread.take() {
            let _ = started.join(); // a panic was printed already; what is left is deleted after the next start
        }
        self.shared.stop.store(false, Ordering::Relaxed);
    }

    fn enqueue(&self, name: OsString, lock: Option<OwnedFd>) {
        self.shared.jobs().waiting.insert(name, lock);
        self.shared.changed.notify_all();
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            match std::thread::Builder::new().name("treeswap-trash".to_owned()).spawn(move || shared.run()) {
                Ok(started) => *thread = Some(started),
                // No thread can be started (pids.max): delete on this thread, which is slower.
                Err(_) => while self.shared.delete_next() {},
            }
        }
    }
}

impl Drop for Trash {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Deletes what an earlier process left in staging and in the trash, before this returns. For a file system that is
/// full of it while the root is being opened. No journal is needed: no stamps are known yet. What cannot be deleted
/// stays for the background thread, which reports it.
pub(super) fn delete_left_overs(handles: &RootHandles, found: &mut Recovered) {
    for (dir, shown) in [(&handles.staging, STAGING), (&handles.trash, TRASH)] {
        for entry in fsx::list(dir).unwrap_or_default() {
            let removal = walk::remove(dir, entry.os(), &mut || ControlFlow::Continue(()));
            if removal.is_complete() {
                let name = entry.os().display();
                found.done.push(format!("removed {shown}/{name} at once: the file system is full"));
            }
        }
    }
}

impl Shared {
    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The background thread: deletes until stopped.
    fn run(&self) {
        // Best effort. On Linux the nice value is per thread (setpriority(2), "C library/kernel differences").
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), 10);
        while !self.is_stopped() {
            if !self.delete_next() {
                let jobs = self.jobs();
                if jobs.waiting.is_empty() && !self.is_stopped() {
                    let wait = self.changed.wait_timeout(jobs, Duration::from_secs(3600));
                    drop(wait.unwrap_or_else(PoisonError::into_inner));
                }
            }
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Removes `name` in `dir` and everything below it, and keeps the journal.
    fn remove(
        &self,
        dir: impl AsFd,
        name: &OsStr,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> walk::Removal {
        match &self.journal {
            None => walk::remove(dir, name, go_on),
            Some(journal) => walk::remove_by(dir, name, go_on, &mut |dir, name| journal.unlink(dir, name)),
        }
    }

    /// Deletes the next name in the queue. Returns false if the queue is empty.
    fn delete_next(&self) -> bool {
        let (name, lock) = {
            let mut jobs = self.jobs();
            let Some((name, lock)) = jobs.waiting.pop_first() else { return false };
            jobs.working = Some(name.clone());
            (name, lock)
        };
        let mut go_on = || if self.is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        let removal = self.remove(&self.handles.trash, &name, &mut go_on);
        drop(lock);
        let mut jobs = self.jobs();
        jobs.working = None;
        match removal.failed {
            Some((path, error)) => {
                let path = self.handles.private_at(TRASH).join(path);
                jobs.failed
                    .insert(name, format!("cannot remove {}: {error}; retrying later", path.display()));
            }
            None => _ = jobs.failed.remove(&name),
        }
        drop(jobs);
        self.changed.notify_all();
        true
    }
}
