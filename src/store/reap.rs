//! Retention's hands: looking at pins, carrying a plan out, making room.
//!
//! Promises: a generation goes only while its exclusive lock is held, or when the plan says that whoever pins it is
//! evicted; never the one that the link names, which is read again under the lock; and always whole, by one rename.

use std::os::fd::OwnedFd;

use tokio_util::sync::CancellationToken;

use crate::clock::{self, Now};
use crate::fsx::{self, Lock};
use crate::generation::Name;
use crate::human::one_line;
use crate::retention::{self, Candidate, Plan, Reserved, Verdict};
use crate::store::{Error, Store};

impl Store {
    /// What retention would do now, with reasons: pins are looked at, nothing is changed.
    pub fn plan(&self, now: &Now) -> Plan {
        self.plan_with(Reserved { generations: 0, bytes: self.spare_bytes() }, now)
    }

    fn plan_with(&self, reserved: Reserved, now: &Now) -> Plan {
        let candidates: Vec<_> = (self.state.generations.iter())
            .map(|record| {
                let current = self.state.current.as_ref() == Some(&record.name);
                Candidate { record, current, pinned: !current && self.is_pinned(&record.name) }
            })
            .collect();
        retention::plan(&candidates, &self.options.retention, reserved, now)
    }

    /// Carries the plan out: renames into the trash at once, deletes in the background. Returns what went. What was
    /// pinned since the plan was made stays; what cannot go is logged once, and tried again with the next plan.
    pub fn reap(&mut self, plan: &Plan) -> Vec<Name> {
        let mut gone = Vec::new();
        for verdict in plan.reaped() {
            match self.reap_one(verdict) {
                Ok(true) => gone.push(verdict.name.clone()),
                Ok(false) => {}
                Err(error) => {
                    let error = one_line(&error);
                    if self.stuck.insert(verdict.name.clone()) {
                        tracing::warn!(generation = %verdict.name, error, "a generation cannot be reaped");
                    } else {
                        tracing::debug!(generation = %verdict.name, error, "it still cannot be reaped");
                    }
                }
            }
        }
        if !gone.is_empty() {
            self.state.generations.retain(|record| !gone.contains(&record.name));
            self.stuck.retain(|name| !gone.contains(name));
            let _ = self.save(); // they are gone in any case; the next cycle saves again, and says what is wrong
        }
        gone
    }

    fn reap_one(&self, verdict: &Verdict) -> Result<bool, Error> {
        let (layout, name) = (&self.layout, &verdict.name);
        let failed = |act| Error::io(act, layout.place(name));
        let dir = match fsx::open_dir(&layout.home, name.as_str()) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(true),
            // A directory that we may not read can still be renamed; nobody who is not its owner can have pinned it.
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => None,
            opened => Some(opened.map_err(failed("open the generation"))?),
        };
        let lock = dir.as_ref().map_or(Ok(Lock::Unsupported), fsx::try_lock).map_err(failed("lock"))?;
        if lock == Lock::Held && !verdict.evicts {
            return Ok(false);
        }
        // Under the lock: no reader can prove a pin on it now, unless the link names it again.
        if layout.named()?.as_ref() == Some(name) {
            if lock == Lock::Taken {
                let _ = dir.as_ref().map(fsx::unlock); // closing does the same, but for copies of the handle
            }
            return Ok(false);
        }
        let held = dir.filter(|_| lock == Lock::Taken);
        self.trash.put(&layout.home, name.as_str(), held).map_err(failed("move to the trash"))?;
        Ok(true)
    }

    /// Makes sure that a generation of this size fits, before its first byte is written: reaps what retention lets go
    /// early, and waits for the deletion where it is needed.
    /// `written` is the part of it that is not on disk yet.
    pub(super) fn make_room(
        &mut self,
        need: Need,
        written: Need,
        cancel: &CancellationToken,
    ) -> Result<(), Error> {
        let current = self.current().map_or(0, |record| record.bytes);
        if let Some(ceiling) = self.options.retention.max_bytes
            && current + need.bytes > ceiling
        {
            return Err(Error::OverCeiling { ceiling, needed: need.bytes, current });
        }
        let now = clock::now();
        let over = |bytes: u64| self.options.retention.max_bytes.is_some_and(|ceiling| bytes > ceiling);
        let all = self.state.generations.iter().map(|record| record.bytes).sum::<u64>() + need.bytes;
        if over(all + self.spare_bytes()) {
            self.drop_spare(cancel)?; // a spare saves time; a grace period is a promise
        }
        let reserved = Reserved { generations: 1, bytes: need.bytes + self.spare_bytes() };
        let plan = self.plan_with(reserved, &now);
        self.reap(&plan);
        self.make_space(written, cancel)
    }

    /// The same for what the file system has left: the spare goes first, then grace periods end early, the oldest
    /// generation first. Whoever holds a pin is not evicted for it; the new generation waits.
    fn make_space(&mut self, need: Need, cancel: &CancellationToken) -> Result<(), Error> {
        if self.shortage(need)?.is_none() {
            return Ok(());
        }
        self.trash.wait(cancel);
        if self.shortage(need)?.is_some() {
            self.drop_spare(cancel)?;
            self.trash.wait(cancel);
        }
        while let Some(error) = self.shortage(need)? {
            if cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            let Some(name) = self.oldest_unpinned() else { return Err(error) };
            tracing::warn!(generation = %name, "reaped within its grace period: the next generation has no room");
            let reason = "in the way of a new generation, for which there is no room".to_owned();
            let verdict = Verdict { name, keep: false, pinned: false, evicts: false, reason, again_in: None };
            if self.reap(&Plan { verdicts: vec![verdict] }).is_empty() {
                return Err(error); // pinned in this moment
            }
            self.trash.wait(cancel);
        }
        Ok(())
    }

    fn oldest_unpinned(&self) -> Option<Name> {
        let retired = self.state.generations.iter().rev().filter(|record| record.retired.is_some());
        retired.map(|record| &record.name).find(|name| !self.is_pinned(name)).cloned()
    }

    fn is_pinned(&self, name: &Name) -> bool {
        self.probes.pins && is_pinned(&self.layout.home, name)
    }

    pub(super) fn shortage(&self, need: Need) -> Result<Option<Error>, Error> {
        let space =
            fsx::space(&self.layout.root).map_err(Error::io("ask for the space of", &self.layout.path))?;
        let needed = need.on_disk(space.block);
        let short = |needed: u64, free: u64, unit| {
            (needed > free).then(|| Error::NoRoom { path: self.layout.path.clone(), needed, free, unit })
        };
        Ok(short(needed, space.bytes, "bytes")
            .or_else(|| space.inodes.and_then(|free| short(need.entries, free, "inodes"))))
    }
}

/// What a new generation takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Need {
    /// Sum of its files' sizes.
    pub(crate) bytes: u64,
    /// Files, links and directories.
    pub(crate) entries: u64,
}

impl Need {
    /// An estimate: a file wastes half a block on average, and whoever refuses to write should not be wrong.
    fn on_disk(self, block: u64) -> u64 {
        self.bytes.saturating_add(self.entries.saturating_mul(block / 2))
    }
}

/// Whether somebody holds a pin on a generation: tries for the exclusive lock and lets it go at once. A reader who
/// comes in that moment tries again. What cannot be asked counts as not pinned; the reaper takes the lock itself.
pub(crate) fn is_pinned(home: &OwnedFd, name: &Name) -> bool {
    let Ok(dir) = fsx::open_dir(home, name.as_str()) else { return false };
    let lock = fsx::try_lock(&dir);
    if matches!(lock, Ok(Lock::Taken)) {
        let _ = fsx::unlock(&dir); // it cannot fail on a descriptor that was just locked, and closing it does the same
    }
    matches!(lock, Ok(Lock::Held))
}
