//! Tests which features the root's file system has, once when the root is opened.

use rustix::fs::{AtFlags, StatxFlags};

use crate::fsx::{self, Lock};
use crate::generation::WORKTREES;
use crate::store::error::Error;
use crate::store::layout::Layout;
use crate::store::names::STAGING;

/// The features of the root's file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probes {
    /// True if a shared flock on a directory excludes an exclusive one, so that pins work.
    pub pins: bool,
    /// True if names that differ only in case or Unicode normalization are the same name.
    pub folds: bool,
    /// True if two names can be exchanged atomically (`RENAME_EXCHANGE`).
    pub exchange: bool,
}

impl Probes {
    /// Tests all features, in staging. Fails if a rename from staging into the root cannot work.
    pub(crate) fn of(layout: &Layout) -> Result<Self, Error> {
        one_mount(layout)?;
        Self::try_out(layout).map_err(Error::io("try out the file system in", layout.private_at(STAGING)))
    }

    fn try_out(layout: &Layout) -> std::io::Result<Self> {
        let name = fsx::unique("probe-");
        let dir = fsx::make_dir(&layout.staging, name.as_str(), 0o700)?;
        let probes = pins(layout, &name).and_then(|pins| {
            let folds = folds(&dir, "Cs", "cS")? || folds(&dir, "\u{e9}", "e\u{301}")?;
            Ok(Self { pins, folds, exchange: exchange(&dir)? })
        });
        // If a test failed, its file may still be there. Staging is emptied at the next start; the error is that of the
        // test.
        let removed = rustix::fs::unlinkat(&layout.staging, name.as_str(), AtFlags::REMOVEDIR);
        let probes = probes?;
        removed?;
        Ok(probes)
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
fn one_mount(layout: &Layout) -> Result<(), Error> {
    let ours = [(&layout.private, ""), (&layout.staging, "staging"), (&layout.trash, "trash")];
    let ours = ours.map(|(dir, name)| (dir, layout.private_at(name)));
    for (dir, path) in ours.into_iter().chain([(&layout.generations_dir, layout.at(WORKTREES))]) {
        let failed = || Error::io("stat", &path);
        if mount_of(dir).map_err(failed())? != mount_of(&layout.root).map_err(failed())? {
            let why = format!(
                "{} is on another mount, so that nothing can be renamed between it and the root",
                path.display()
            );
            return Err(Error::Refused { path: layout.path.clone(), why });
        }
    }
    Ok(())
}

/// Returns device and mount id; the mount id is 0 before Linux 5.8.
fn mount_of(fd: &std::os::fd::OwnedFd) -> std::io::Result<(u64, u64)> {
    let device = rustix::fs::fstat(fd)?.st_dev;
    let flags = StatxFlags::MNT_ID;
    let mount = match rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, flags) {
        Ok(found) if found.stx_mask & flags.bits() != 0 => found.stx_mnt_id,
        _ => 0,
    };
    Ok((device, mount))
}

/// Tests whether a shared flock on a directory excludes an exclusive one.
fn pins(layout: &Layout, name: &str) -> std::io::Result<bool> {
    let open = || fsx::open_dir(&layout.staging, name);
    let reader = open()?;
    let reaper = open()?;
    Ok(fsx::try_lock_shared(&reader)? == Lock::Taken && fsx::try_lock(&reaper)? == Lock::Held)
}

/// Tests whether two names can be exchanged.
fn exchange(dir: &std::os::fd::OwnedFd) -> std::io::Result<bool> {
    fsx::create_new(dir, "one", 0o600)?;
    fsx::create_new(dir, "two", 0o600)?;
    let exchanged = fsx::exchange(dir, "one", dir, "two");
    fsx::unlink(dir, "one")?;
    fsx::unlink(dir, "two")?;
    exchanged
}

/// Tests whether a file created under one spelling is found under the other.
fn folds(dir: &std::os::fd::OwnedFd, made: &str, other: &str) -> std::io::Result<bool> {
    fsx::create_new(dir, made, 0o600)?;
    let found = fsx::stat(dir, other);
    fsx::unlink(dir, made)?;
    Ok(found?.is_some())
}
