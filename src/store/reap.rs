//! Carries out retention: checks pins, reaps the generations that the plan releases, and makes room for new ones.
//!
//! A generation is reaped only while we hold its exclusive lock, or if the plan evicts the reader that pins it. The
//! generation that the published link names is never reaped; the link is read again under the lock. A generation leaves
//! the root as a whole, by one rename.

use std::path::Path;

use tokio_util::sync::CancellationToken;

use crate::clock::{self, Now};
use crate::fsx::walk::SeenLinks;
use crate::fsx::{self, Lock};
use crate::generation::{self, GenerationRecord, Name, bytes_on_disk};
use crate::human::one_line;
use crate::payload::Delta;
use crate::retention::{self, Candidate, Extent, GenerationDecision, Plan, Reserved};
use crate::store::{Error, Store, Unit};

/// The result of reaping one generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ReapOutcome {
    /// It was kept: it is pinned, or current.
    Stays,
    /// It was reaped.
    Gone,
    /// It was reaped while a reader had it pinned.
    Evicted,
}

impl Store {
    /// Returns what retention would do now, with reasons. Checks pins and changes nothing.
    pub fn plan(&self, now: &Now) -> Plan {
        self.plan_with(self.reserved(0, self.spare_bytes()), now)
    }

    /// Like [`Store::plan`], but drops the spare first if a generation can be kept that way: a spare only saves time,
    /// a grace period is a promise.
    pub fn plan_to_reap(&self, now: &Now, cancel: &CancellationToken) -> Result<Plan, Error> {
        let plan = self.plan(now);
        if self.spare_bytes() == 0 || plan.reaped().all(|decision| !decision.early) {
            return Ok(plan);
        }
        let without = self.plan_with(self.reserved(0, 0), now);
        if without.reaped().count() == plan.reaped().count() {
            return Ok(plan);
        }
        self.drop_spare(cancel)?;
        Ok(self.plan(now))
    }

    fn reserved(&self, generations: u32, bytes: u64) -> Reserved {
        Reserved { generations, bytes, block: self.handles.block }
    }

    fn plan_with(&self, reserved: Reserved, now: &Now) -> Plan {
        retention::plan(&self.candidates(), &self.options.retention, reserved, now)
    }

    /// The plan if something new is to be written and the file system is short of `lack`. Only then are generations
    /// measured, which takes a stat of each of their files: a file that several of them share is freed by the last.
    pub(super) fn plan_for_room(&self, lack: Extent, reserved: Reserved, now: &Now) -> Plan {
        let candidates = self.candidates();
        let options = &self.options.retention;
        let mut gains = vec![Extent::default(); candidates.len()];
        if lack != Extent::default() {
            let mut seen = SeenLinks::default();
            for at in retention::reaping_order(&candidates, options, now) {
                let (bytes, inodes) = self.handles.measure(&candidates[at].record.name, &mut seen).frees;
                gains[at] = Extent { bytes, inodes };
            }
        }
        retention::plan_for_room(&candidates, &gains, lack, options, reserved, now)
    }

    fn candidates(&self) -> Vec<Candidate<'_>> {
        let candidates = self.state.generations.iter().map(|record| {
            let current = self.state.current.as_ref() == Some(&record.name);
            Candidate { record, current, pinned: !current && self.is_pinned(&record.name) }
        });
        candidates.collect()
    }

    /// Carries out the plan: generations are renamed into the trash at once and deleted in the background. Returns
    /// those that were reaped. A generation that was pinned since the plan was made stays. A failure is logged as a
    /// warning once, and tried again with the next plan.
    pub fn reap(&mut self, plan: &Plan) -> Vec<Name> {
        self.reap_with(plan, true)
    }

    /// Like [`Store::reap`]. If `recycle` is set, one generation may become the next spare, which frees no space.
    fn reap_with(&mut self, plan: &Plan, recycle: bool) -> Vec<Name> {
        let mut gone = Vec::new();
        let now = clock::now();
        let pinned = plan.decisions.iter().filter(|decision| decision.pinned);
        self.last_pinned.extend(pinned.map(|decision| (decision.name.clone(), now.boottime)));
        for decision in plan.reaped() {
            match self.reap_one(decision, recycle.then_some(&now)) {
                Ok(ReapOutcome::Stays) => {
                    self.last_pinned.insert(decision.name.clone(), now.boottime); // since the plan was made
                }
                Ok(outcome) => {
                    gone.push(decision.name.clone());
                    if outcome == ReapOutcome::Evicted {
                        self.evicted.insert(decision.name.clone(), decision.reason.clone());
                    }
                }
                Err(error) => {
                    let error = one_line(&error);
                    if self.stuck.insert(decision.name.clone()) {
                        tracing::warn!(generation = %decision.name, error, "a generation cannot be reaped");
                    } else {
                        tracing::debug!(generation = %decision.name, error, "it still cannot be reaped");
                    }
                }
            }
        }
        if !gone.is_empty() {
            self.state.generations.retain(|record| !gone.contains(&record.name));
            self.stuck.retain(|name| !gone.contains(name));
            self.stamps.retain(&self.state.generations);
            self.last_pinned.retain(|name, _| self.state.record(name).is_some());
            let _ = self.save(); // they are gone in any case; the next cycle saves again and reports a failure
        }
        gone
    }

    fn reap_one(
        &self,
        decision: &GenerationDecision,
        recycle_at: Option<&Now>,
    ) -> Result<ReapOutcome, Error> {
        let handles = &self.handles;
        let name = &decision.name;
        let failed = |act| Error::io(act, handles.path_of(name));
        let dir = match fsx::open_dir(&handles.generations_dir, name.as_str()) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(ReapOutcome::Gone),
            // Without write access to a directory it cannot be moved to the trash either (rename(2)).
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied && decision.evicts => {
                fsx::walk::open_for_removal(&handles.generations_dir, name.as_str()).ok()
            }
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => None,
            opened => Some(opened.map_err(failed("open the generation"))?),
        };
        let tried = dir.as_ref().map_or(Ok(Lock::Unsupported), fsx::try_lock);
        let lock = fsx::unsupported_if_lacking(tried).map_err(failed("lock"))?;
        if self.may_be_pinned(lock) && !decision.evicts {
            return Ok(ReapOutcome::Stays);
        }
        // Under the lock no reader can complete a pin, unless the link names the generation again.
        if handles.linked_generation()?.as_ref() == Some(name) {
            if lock == Lock::Taken {
                let _ = dir.as_ref().map(fsx::unlock); // closing would not release duplicates of the handle
            }
            return Ok(ReapOutcome::Stays);
        }
        let dir = match (dir, recycle_at) {
            (Some(dir), Some(now)) => match self.recycle_one(decision, lock, dir, now) {
                Ok(()) => return Ok(ReapOutcome::Gone),
                Err(dir) => Some(dir),
            },
            (dir, _) => dir,
        };
        let locked_dir = dir.filter(|_| lock == Lock::Taken);
        self.trash
            .put(&handles.generations_dir, name.as_str(), locked_dir)
            .map_err(failed("move to the trash"))?;
        Ok(if lock == Lock::Contended { ReapOutcome::Evicted } else { ReapOutcome::Gone })
    }

    /// Makes room for a generation of size `need`, before its first byte is written: drops the spare, reaps what
    /// retention releases early, and waits for deletions if necessary. If that cannot make enough room, nothing is
    /// reaped early. `written` is the part that is not on disk yet. Generations that only exceed `--max-generations`
    /// are reaped later: see [`Store::reap_excess`].
    pub(super) fn make_room(
        &mut self,
        need: RequiredSpace,
        written: RequiredSpace,
        cancel: &CancellationToken,
    ) -> Result<(), Error> {
        let current = self.current().map_or(0, |record| self.on_disk(RequiredSpace::of(record)));
        let needed = self.on_disk(need);
        if let Some(ceiling) = self.options.retention.max_bytes
            && current.saturating_add(needed) > ceiling
        {
            return Err(Error::OverCeiling { ceiling, needed, current });
        }
        let over = |bytes: u64| self.options.retention.max_bytes.is_some_and(|ceiling| bytes > ceiling);
        let all = self.generations_on_disk().saturating_add(needed);
        if over(all.saturating_add(self.spare_bytes())) {
            self.drop_spare_for_room(cancel)?; // a spare only saves time; a grace period is a promise
        }
        if self.shortage(written)?.is_some() {
            self.trash.wait(cancel);
        }
        if self.shortage(written)?.is_some() {
            self.drop_spare_for_room(cancel)?;
            self.trash.wait(cancel);
        }
        loop {
            if cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            let short = self.shortage(written)?;
            let lack = short.as_ref().map_or_else(Extent::default, |short| short.lack);
            // If space is short, reap what exceeds `--max-generations` now: that frees space, too.
            let generations = u32::from(short.is_some());
            let reserved = self.reserved(generations, needed.saturating_add(self.spare_bytes()));
            let gone = self.reap_for(lack, reserved);
            match short {
                None => return Ok(()),
                // Nothing can be reaped for room, or a reader has just pinned it.
                Some(short) if !gone => return Err(short.error),
                Some(_) => self.trash.wait(cancel),
            };
        }
    }

    fn drop_spare_for_room(&mut self, cancel: &CancellationToken) -> Result<(), Error> {
        self.spare_dropped |= self.spare_bytes() > 0;
        self.drop_spare(cancel)
    }

    /// Reaps the generations that exceed `--max-generations` once the staged one is published. Called right before the
    /// publication, when no gate and no name can refuse it any more. A reader is evicted in vain only if one of its
    /// system calls fails: the files are on disk, but its record needs a block or two. To reap after that would need a
    /// plan that does not count the new generation twice.
    pub(super) fn reap_excess(&mut self, staged: RequiredSpace) {
        let bytes = self.on_disk(staged).saturating_add(self.spare_bytes());
        self.reap_for(Extent::default(), self.reserved(1, bytes));
    }

    /// Makes room for `bytes` that a fetch brings into the mirror, by the same rules, if the mirror is on the root's
    /// file system. Returns true if there was too little room before and there is enough now.
    pub fn make_room_to_fetch(
        &mut self,
        mirror: &Path,
        bytes: u64,
        cancel: &CancellationToken,
    ) -> Result<bool, Error> {
        let root = fsx::identity(&self.handles.root).map_err(Error::io("stat", &self.handles.path))?;
        let need = RequiredSpace { bytes, entries: 1 };
        let is_here = rustix::fs::stat(mirror).is_ok_and(|stat| stat.st_dev == root.dev);
        if !is_here || self.shortage(need)?.is_none() {
            return Ok(false);
        }
        self.drop_spare(cancel)?;
        loop {
            self.trash.wait(cancel);
            if cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            let Some(short) = self.shortage(need)? else { return Ok(true) };
            let reserved = self.reserved(0, self.spare_bytes());
            if !self.reap_for(short.lack, reserved) {
                return Ok(false);
            }
        }
    }

    /// Reaps what the plan releases if something is to be written and `lack` is missing. Returns true if anything was
    /// reaped.
    fn reap_for(&mut self, lack: Extent, reserved: Reserved) -> bool {
        let plan = self.plan_for_room(lack, reserved, &clock::now());
        let gone = self.reap_with(&plan, false);
        let early = plan.reaped().filter(|decision| decision.early && gone.contains(&decision.name));
        for GenerationDecision { name, reason, .. } in early.filter(|_| lack != Extent::default()) {
            tracing::warn!(generation = %name, "reaped before its time: it was {reason}");
        }
        !gone.is_empty()
    }

    /// Estimated bytes on disk in this root.
    pub(super) fn on_disk(&self, need: RequiredSpace) -> u64 {
        need.on_disk(self.handles.block)
    }

    /// Estimated bytes on disk of all generations.
    pub(super) fn generations_on_disk(&self) -> u64 {
        bytes_on_disk(self.generations(), self.handles.block)
    }

    /// A generation of which that is unknown counts as pinned. So it stays until `--max-pin`, and not for ever.
    fn is_pinned(&self, name: &Name) -> bool {
        self.probes.pins && fsx::is_locked(&self.handles.generations_dir, name.as_str()).unwrap_or(true)
    }

    /// Returns true if a reader may hold a pin on a generation whose lock we tried to take with this result. Pins work
    /// on this file system if the probe says so. Then [`Lock::Unsupported`] stands for a lack of locks, which may pass,
    /// or for a directory that cannot be opened: readers may have pinned it before its mode was changed.
    pub(super) fn may_be_pinned(&self, lock: Lock) -> bool {
        lock == Lock::Contended || lock == Lock::Unsupported && self.probes.pins
    }

    /// Returns what the file system lacks to hold `need`, if anything.
    pub(super) fn shortage(&self, need: RequiredSpace) -> Result<Option<Shortage>, Error> {
        let path = &self.handles.path;
        let space = fsx::space(&self.handles.root).map_err(Error::io("ask for the space of", path))?;
        let bytes = (need.on_disk(space.block), space.bytes, Unit::Bytes);
        let inodes = (need.entries, space.inodes.unwrap_or(u64::MAX), Unit::Inodes);
        let lack = |(needed, free, _): (u64, u64, _)| needed.saturating_sub(free);
        let short = [bytes, inodes].into_iter().find(|kind| lack(*kind) > 0);
        Ok(short.map(|(needed, free, unit)| Shortage {
            lack: Extent { bytes: lack(bytes), inodes: lack(inodes) },
            error: Error::NoRoom { path: path.clone(), needed, free, unit },
        }))
    }
}

/// A shortage of space on the file system.
pub(super) struct Shortage {
    /// The space that is missing.
    lack: Extent,
    /// The error that reports it.
    error: Error,
}

/// The space that a tree requires.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RequiredSpace {
    /// Sum of its files' sizes, in bytes.
    pub(crate) bytes: u64,
    /// Number of files, symlinks and directories.
    pub(crate) entries: u64,
}

impl From<(u64, u64)> for RequiredSpace {
    fn from((bytes, entries): (u64, u64)) -> Self {
        Self { bytes, entries }
    }
}

impl RequiredSpace {
    /// The space of a recorded generation.
    pub(super) fn of(record: &GenerationRecord) -> Self {
        Self { bytes: record.bytes, entries: record.entries }
    }

    /// The space of the files and directories that a delta writes.
    pub(super) fn of_written(delta: &Delta) -> Self {
        let bytes = delta.written.iter().map(|entry| entry.size).sum();
        Self { bytes, entries: (delta.written.len() + delta.added_dirs.len()) as u64 }
    }

    /// The sum of both.
    pub(super) fn and(self, other: Self) -> Self {
        let bytes = self.bytes.saturating_add(other.bytes);
        Self { bytes, entries: self.entries.saturating_add(other.entries) }
    }

    /// Estimated bytes on a file system with this block size.
    pub(super) fn on_disk(self, block: u64) -> u64 {
        generation::on_disk((self.bytes, self.entries), block)
    }
}
