//! Tests which features the root's file system has, once when the root is opened.

use std::ops::ControlFlow;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, StatxFlags};

use crate::fsx::{self, Lock, walk};
use crate::generation::WORKTREES;
use crate::human::one_line;
use crate::store::error::Error;
use crate::store::layout::RootHandles;
use crate::store::names::STAGING;
use crate::store::{Recovered, trash};

/// The features of the root's file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probes {
    /// True if a shared flock on a directory excludes an exclusive one, so that pins work.
    pub pins: bool,
    /// True if names that differ only in case or Unicode normalization are the same name.
    pub folds: bool,
    /// Whether two names can be exchanged atomically (`RENAME_EXCHANGE`). `None` until that is first needed, which it
    /// never is in the kubelet's layout.
    pub exchange: Option<bool>,
}

impl Probes {
    /// Tests what every root needs, in staging. Fails if a rename from staging into the root cannot work.
    ///
    /// A file system that is full of what an earlier process left is no reason to fail: that is deleted first. If it is
    /// still full, the store must open all the same, so that the mirror can be cleaned up. Then names are taken not to
    /// fold until the next start: a tree with names that this file system takes for one is refused while it is written.
    pub(crate) fn of(handles: &RootHandles, found: &mut Recovered) -> Result<Self, Error> {
        one_mount(handles)?;
        let failed = || Error::io("try out the file system in", handles.private_at(STAGING));
        let pins = pins(handles).map_err(failed())?;
        let attempt = || in_scratch(handles, names_fold).map_err(failed());
        let is_full = |tried: &Result<_, Error>| tried.as_ref().is_err_and(Error::is_full);
        let mut tried = attempt();
        if is_full(&tried) {
            trash::delete_left_overs(handles, found);
            tried = attempt();
        }
        let folds = match tried {
            Err(full) if full.is_full() => {
                found.warnings.push(format!("{}: it is tried out at the next start", one_line(&full)));
                false
            }
            tried => tried?,
        };
        Ok(Self { pins, folds, exchange: None })
    }

    /// Describes the missing features for the log, one line each.
    pub(crate) fn warnings(self) -> Vec<String> {
        let mut lines = Vec::new();
        if !self.pins {
            lines.push("pins do not work on this file system (no flock on directories): only grace periods protect readers".to_owned());
        }
        if self.folds {
            lines.push("this file system treats names that differ only in case or normalization as the same: trees with such names will be refused".to_owned());
        }
        lines
    }
}

/// Checks that our directories are on the same mount as the root: a rename does not cross mounts, not even two mounts
/// of one file system (`EXDEV`).
fn one_mount(handles: &RootHandles) -> Result<(), Error> {
    let ours = [(&handles.private, ""), (&handles.staging, "staging"), (&handles.trash, "trash")];
    let ours = ours.map(|(dir, name)| (dir, handles.private_at(name)));
    for (dir, path) in ours.into_iter().chain([(&handles.generations_dir, handles.at(WORKTREES))]) {
        let failed = || Error::io("stat", &path);
        if mount_of(dir).map_err(failed())? != mount_of(&handles.root).map_err(failed())? {
            let why = format!(
                "{} is on another mount, so that nothing can be renamed between it and the root",
                path.display()
            );
            return Err(Error::Refused { path: handles.path.clone(), why });
        }
    }
    Ok(())
}

/// Returns device and mount id; the mount id is 0 before Linux 5.8.
fn mount_of(fd: &OwnedFd) -> std::io::Result<(u64, u64)> {
    let device = rustix::fs::fstat(fd)?.st_dev;
    let flags = StatxFlags::MNT_ID;
    let mount = match rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, flags) {
        Ok(found) if found.stx_mask & flags.bits() != 0 => found.stx_mnt_id,
        _ => 0,
    };
    Ok((device, mount))
}

/// Tests whether a shared flock on a directory excludes an exclusive one. Creates nothing, so that the answer is known
/// on a full file system, too: without pins a reader would lose its generation.
fn pins(handles: &RootHandles) -> std::io::Result<bool> {
    let open = || fsx::open_dir(&handles.staging, ".");
    let reader = open()?;
    let reaper = open()?;
    // The writer's lock was just taken, so a lack of locks here is more than a shortage that passes.
    let shared = fsx::unsupported_if_lacking(fsx::try_lock_shared(&reader))?;
    let works = match shared {
        Lock::Taken => fsx::unsupported_if_lacking(fsx::try_lock(&reaper))? == Lock::Contended,
        // Somebody else holds it exclusively. Everybody may read this directory, and so lock it: that must not decide
        // whether `--max-pin` holds.
        Lock::Contended => true,
        Lock::Unsupported => false,
    };
    let _ = fsx::unlock(&reader); // a child that another thread starts may have a duplicate of the handle
    Ok(works)
}

/// Tests whether two names can be exchanged.
pub(super) fn can_exchange(handles: &RootHandles) -> Result<bool, Error> {
    in_scratch(handles, exchange)
        .map_err(Error::io("try out the file system in", handles.private_at(STAGING)))
}

/// Runs a test in an empty directory in staging, and removes that.
fn in_scratch<T>(
    handles: &RootHandles,
    test: impl FnOnce(&OwnedFd) -> std::io::Result<T>,
) -> std::io::Result<T> {
    let (name, dir) = make_scratch(handles)?;
    let tried = test(&dir);
    if tried.is_err() {
        // A file of the test may still be there. If this fails, too, it goes when left-overs are discarded.
        walk::remove(&handles.staging, &name, &mut || ControlFlow::Continue(()));
        return tried;
    }
    rustix::fs::unlinkat(&handles.staging, name.as_str(), AtFlags::REMOVEDIR)?;
    tried
}

/// Makes an empty directory in staging.
fn make_scratch(handles: &RootHandles) -> std::io::Result<(String, OwnedFd)> {
    loop {
        let name = fsx::unique("probe-");
        match fsx::make_dir(&handles.staging, name.as_str(), 0o700) {
            // Left by a process that was killed. In a container every process may have the same pid.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => return made.map(|dir| (name, dir)),
        }
    }
}

/// Exchanges two names, if that is possible.
fn exchange(dir: &OwnedFd) -> std::io::Result<bool> {
    fsx::create_new(dir, "one", 0o600)?;
    fsx::create_new(dir, "two", 0o600)?;
    let exchanged = fsx::exchange(dir, "one", dir, "two");
    fsx::unlink(dir, "one")?;
    fsx::unlink(dir, "two")?;
    exchanged
}

/// Tests whether names fold, by case or by normalization.
fn names_fold(dir: &OwnedFd) -> std::io::Result<bool> {
    Ok(folds(dir, "Cs", "cS")? || folds(dir, "\u{e9}", "e\u{301}")?)
}

/// Tests whether a file created under one spelling is found under the other.
fn folds(dir: &OwnedFd, made: &str, other: &str) -> std::io::Result<bool> {
    fsx::create_new(dir, made, 0o600)?;
    let found = fsx::stat(dir, other);
    fsx::unlink(dir, made)?;
    Ok(found?.is_some())
}
