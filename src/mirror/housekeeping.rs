//! Bounded growth, without a git program.
//!
//! Every update leaves a small pack, and what an update replaced stays behind as garbage. Three things are done about it,
//! all after a publication and none in its way; [`super::Gc`] says which:
//!
//! - **Merge**: when there are more than [`super::Options::max_packs`] packs, the small ones become one. A child under the
//!   same limits as the indexer's copies their objects, so a hostile object can not take the service down. No object is
//!   lost, so nobody who reads can notice.
//! - **Renewal**: when garbage outweighs what is needed, the next fetch asks for everything and claims nothing; the pack
//!   it gets stands for itself, and after the publication that follows all the others are removed. The revisions before
//!   it can then no longer be read; a delta against one of them is made from the whole tree instead. Not in git-sync's
//!   layout, where other people's commits are in the packs, too.
//! - **Sifting**: after a revision went that is not part of another's history, a child finds what is needed still (by
//!   whom: `indexer/sift`) and writes it out of the packs that hold much garbage. No network. What stays of garbage is
//!   less than a quarter of each large pack.
//!
//! And one in its way, where the volume is full: what was fetched and never published is given back; whole packs first,
//! because nothing need be written for that.
//!
//! A crash leaves, after each step:
//!
//! 1. while the child writes: temporary files, swept at the next opening;
//! 2. with the merged pack in place: every object twice; the next merge takes both;
//! 3. while old packs are removed, index first: a pack without an index is not seen by libgit2, and is swept; its
//!    objects are in the merged pack, or garbage;
//! 4. after a renewing fetch: as after any fetch, and the old packs as garbage until the next renewal.
//!
//! Packs are only removed while nobody reads (see [`super::shared`]); otherwise the next call does it.

use std::collections::{HashSet, VecDeque};
use std::path::PathBuf;

use fs_err as fs;

use super::closure::tree_closure;
use super::error::Error;
use super::form::Form;
use super::indexer::{self, Job, Needs, Report, Task};
use super::layout::{Pack, local, sync_dir};
use super::odb::Reader;
use super::{Gc, Mirror, pack_index, worktrees};
use crate::revision::{ObjectId, Revision};

/// Below this, garbage is not worth a fetch.
const FLOOR: u64 = 64 << 20;

/// A pack at least this large a part of all is not copied again.
const LARGE: u64 = 16;

/// Nor does any pack below this size count as large.
const SMALL: u64 = 1 << 20;

/// What is to be done. Pure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Chore {
    /// Nothing.
    Rest,
    /// Make these packs one.
    Merge(Vec<String>),
    /// Let the next fetch bring everything.
    Renew {
        /// Bytes now.
        bytes: u64,
    },
}

/// Decides. `fresh` is what the mirror weighed when it was last complete and without garbage.
pub(super) fn chore(packs: &[Pack], fresh: u64, max_packs: u32, max_bytes: u64) -> Chore {
    let bytes: u64 = packs.iter().map(|pack| pack.bytes).sum();
    let grown = bytes > fresh.saturating_mul(3).max(FLOOR);
    // A repository that alone is near the ceiling must not be fetched again and again.
    let over = bytes > max_bytes && bytes > fresh.saturating_add(fresh / 2);
    // Merging failed again and again, or readers never left.
    let crowded = packs.len() as u64 > u64::from(max_packs) * 4;
    if grown || over || crowded {
        return Chore::Renew { bytes };
    }
    let small: Vec<_> = packs
        .iter()
        .filter(|pack| pack.bytes < SMALL.max(bytes / LARGE))
        .map(|pack| pack.name.clone())
        .collect();
    if packs.len() > max_packs as usize && small.len() > 1 { Chore::Merge(small) } else { Chore::Rest }
}

/// What is in a pack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Weighed {
    pub(super) name: String,
    /// Bytes of its objects.
    pub(super) bytes: u64,
    /// Bytes of those that are needed.
    pub(super) needed: u64,
    /// Somebody wants it to stay as it is (`.keep`).
    pub(super) pinned: bool,
}

/// What becomes of packs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Sieve {
    /// Nothing in them is needed.
    pub(super) gone: Vec<String>,
    /// What is needed in them is written anew.
    pub(super) rewrite: Vec<String>,
}

/// Decides which packs are worth rewriting. Pure. A large pack stays while three quarters of it are needed: copying it
/// for every commit would cost more than it gives back.
pub(super) fn sieve(packs: &[Weighed], one_pack: bool, max_packs: u32) -> Sieve {
    let total: u64 = packs.iter().map(|pack| pack.bytes).sum();
    let mut sieve = Sieve::default();
    let (gone, rest): (Vec<_>, Vec<_>) =
        packs.iter().filter(|pack| !pack.pinned).partition(|pack| pack.needed == 0);
    sieve.gone = gone.into_iter().map(|pack| pack.name.clone()).collect();
    let is_small = |pack: &Weighed| pack.bytes < SMALL.max(total / LARGE);
    let crowded = rest.len() > max_packs as usize;
    let garbage = |pack: &Weighed| pack.bytes - pack.needed;
    let is_poor = |pack: &Weighed| garbage(pack) > 0 && (is_small(pack) || garbage(pack) > pack.bytes / 4);
    let rewrite: Vec<_> =
        rest.into_iter().filter(|pack| one_pack || is_poor(pack) || crowded && is_small(pack)).collect();
    // One pack without garbage would only be copied.
    if rewrite.len() > 1 || rewrite.iter().any(|pack| garbage(pack) > 0) {
        sieve.rewrite = rewrite.into_iter().map(|pack| pack.name.clone()).collect();
    }
    sieve
}

impl Mirror {
    pub(super) fn keep_house(&mut self, held: &[Revision]) -> Result<(), Error> {
        if self.layout.form() == Form::Worktrees || self.inner {
            for gone in worktrees::prune(self.layout.dir(), held, self.inner)? {
                tracing::debug!(worktree = gone, "removed the worktree of a generation that is gone");
            }
        }
        match self.options.gc {
            Gc::Off => Ok(()),
            Gc::Auto => self.bound(held),
            Gc::Always | Gc::Aggressive => {
                let due = self.is_garbage_likely(held)?;
                self.held = Some(held.to_vec());
                if due { self.sift(held, false) } else { Ok(()) }
            }
        }
    }

    pub(super) fn give_back(&mut self, keep: &[Revision]) -> Result<bool, Error> {
        if self.options.gc == Gc::Off {
            return Ok(false);
        }
        let before = self.layout.bytes()?;
        if self.layout.form() == Form::Worktrees {
            worktrees::prune(self.layout.dir(), keep, self.inner)?;
        }
        let here: Vec<_> = {
            let store = self.shared.store()?;
            let odb = store.odb();
            let odb = odb.map_err(|source| Error::Git { act: "open the mirror's objects".into(), source })?;
            let reader = Reader(odb);
            keep.iter().copied().filter(|id| reader.commit(&id.0).is_ok()).collect()
        };
        if self.layout.tip().is_some_and(|tip| !here.contains(&Revision(tip))) {
            // First: what it names may go from here on.
            self.layout.retreat(here.first().map(|id| id.0))?;
            (self.settled, self.renewed) = (None, None);
        }
        self.sift(&here, true)?;
        match self.sift(&here, false) {
            Err(error) if error.is_full() => {
                tracing::debug!(%error, "no room for what is needed of other packs");
            }
            ended => ended?,
        }
        Ok(self.layout.bytes()? < before)
    }

    /// Whether something may have become garbage since the mirror was last known to have none: a revision went, and
    /// is not part of another's history.
    fn is_garbage_likely(&self, held: &[Revision]) -> Result<bool, Error> {
        let before = match &self.held {
            Some(before) => before.clone(),
            None => match self.layout.fresh() {
                Some((bytes, held)) if bytes == self.layout.bytes()? => held,
                _ => return Ok(true),
            },
        };
        let gone: Vec<_> = before.into_iter().filter(|id| !held.contains(id)).map(|id| id.0).collect();
        if gone.is_empty() {
            return Ok(false);
        }
        let ends: HashSet<_> = self.layout.shallow().into_iter().collect();
        let store = self.shared.store()?;
        let odb =
            store.odb().map_err(|source| Error::Git { act: "open the mirror's objects".into(), source })?;
        Ok(!is_history(&Reader(odb), held, &gone, &ends))
    }

    /// Removes what nothing needs; where there is no room to write what is needed anew, whole packs only.
    fn sift(&mut self, held: &[Revision], no_room: bool) -> Result<(), Error> {
        // Again the next time, whatever goes wrong.
        self.held = None;
        self.layout.forget_fresh()?;
        let needs = Needs {
            held: held.iter().map(|held| held.0).collect(),
            one_pack: self.options.gc == Gc::Aggressive,
            max_packs: self.options.max_packs,
            no_room,
        };
        let job = self.job(Task::Sift(needs));
        let (pack, gone) = match indexer::run(&self.options.indexer, &job)? {
            Report::Sifted { pack, gone } => (pack, gone),
            other => return Err(indexer::failure(&self.options.indexer, &job, other)),
        };
        tracing::debug!(?pack, ?gone, "told garbage from what is needed");
        let Some(_alone) = self.shared.alone() else { return Ok(()) };
        self.layout.remove_derived()?;
        self.remove(&gone)?;
        let store = self.shared.store()?;
        let odb =
            store.odb().map_err(|source| Error::Git { act: "open the mirror's objects".into(), source })?;
        let reader = Reader(odb);
        let boundary: Vec<_> = self.layout.shallow().into_iter().filter(|id| reader.has(id)).collect();
        self.layout.set_shallow(&boundary)?;
        if !no_room {
            self.layout.set_fresh(held)?;
            self.held = Some(held.to_vec());
        }
        Ok(())
    }

    /// Keeps packs few, and garbage below what is needed.
    fn bound(&mut self, held: &[Revision]) -> Result<(), Error> {
        if let Some(pack) = self.renewed.clone() {
            // Until the renewing revision is published, the next delta starts from the one before.
            let published = held.first().map(|held| held.0) == self.layout.tip();
            if !published || !self.leave_only(&pack)? {
                return Ok(());
            }
            self.renewed = None;
        }
        let packs = self.layout.packs()?;
        let fresh = self.layout.fresh().map(|(bytes, _)| bytes);
        let fresh = fresh.unwrap_or_else(|| packs.iter().map(|pack| pack.bytes).max().unwrap_or(0));
        match chore(&packs, fresh, self.options.max_packs, self.options.max_bytes) {
            Chore::Rest => Ok(()),
            // Commits and refs of others are in there, too: the remote could not bring them again.
            // And of a partial clone one fetch does not bring all that is published.
            Chore::Renew { .. } if self.layout.form() == Form::Worktrees || self.shared.partial => {
                self.sift(held, false)
            }
            Chore::Renew { bytes } => {
                tracing::info!(
                    bytes,
                    packs = packs.len(),
                    "the mirror holds much garbage; the next fetch renews it"
                );
                self.renew = true;
                Ok(())
            }
            Chore::Merge(names) => self.merge(&names),
        }
    }

    /// Makes some packs one.
    fn merge(&self, names: &[String]) -> Result<(), Error> {
        let job = self.job(Task::Merge(names.to_vec()));
        let merged = match indexer::run(&self.options.indexer, &job)? {
            Report::Merged(name) => name,
            other => return Err(indexer::failure(&self.options.indexer, &job, other)),
        };
        let held: HashSet<ObjectId> = self.ids(&merged)?.into_iter().collect();
        let mut old = Vec::new();
        for name in names.iter().filter(|name| **name != merged) {
            if self.ids(name)?.iter().all(|id| held.contains(id)) {
                old.push(name.clone());
            }
        }
        tracing::debug!(packs = names.len(), objects = held.len(), "merged small packs");
        if let Some(_alone) = self.shared.alone() {
            self.remove(&old)?;
        }
        Ok(())
    }

    fn job(&self, task: Task) -> Job {
        Job {
            dir: self.layout.dir().to_owned(),
            task,
            memory: self.options.index_memory,
            max_bytes: self.options.wire.max_fetch_bytes,
            durable: self.options.durable,
        }
    }

    /// Removes every pack but one, if nobody reads and that one is enough. `false`: not now.
    fn leave_only(&self, pack: &str) -> Result<bool, Error> {
        let Some(_alone) = self.shared.alone() else { return Ok(false) };
        let others = self.layout.packs()?.into_iter().map(|other| other.name).filter(|name| name != pack);
        self.remove(&others.collect::<Vec<_>>())?;
        let store = self.shared.store()?;
        let odb =
            store.odb().map_err(|source| Error::Git { act: "open the mirror's objects".into(), source })?;
        let reader = Reader(odb);
        let whole = self.layout.tip().is_some_and(|tip| {
            reader.commit(&tip).is_ok_and(|commit| tree_closure(&reader, commit.tree, None, false).is_ok())
        });
        if whole {
            self.layout.set_fresh(&[])?;
        } else {
            // The server left out what it was told nothing about. The next fetch starts with an empty mirror.
            self.shared.note_damage();
        }
        Ok(true)
    }

    fn remove(&self, names: &[String]) -> Result<(), Error> {
        for name in names {
            for suffix in ["idx", "pack"] {
                let path = self.pack(name, suffix);
                fs::remove_file(&path).map_err(local("remove the merged", &path))?;
            }
            for suffix in ["rev", "bitmap", "promisor", "mtimes"] {
                let _ = fs::remove_file(self.pack(name, suffix)); // git's own; most packs have none
            }
        }
        if self.options.durable { sync_dir(&self.layout.dir().join("objects/pack")) } else { Ok(()) }
    }

    fn ids(&self, name: &str) -> Result<Vec<ObjectId>, Error> {
        let path = self.pack(name, "idx");
        pack_index::ids(&path).map_err(local("read", &path))
    }

    fn pack(&self, name: &str, suffix: &str) -> PathBuf {
        self.layout.dir().join("objects/pack").join(format!("{name}.{suffix}"))
    }
}

/// Commits that are looked at before history is given up.
const LOOK: usize = 10_000;

/// Whether all of `gone` are in the history of what is held.
fn is_history(reader: &Reader<'_>, held: &[Revision], gone: &[ObjectId], ends: &HashSet<ObjectId>) -> bool {
    let mut sought: HashSet<_> = gone.iter().copied().collect();
    let mut seen: HashSet<_> = held.iter().map(|held| held.0).collect();
    let mut queue: VecDeque<_> = seen.iter().copied().collect();
    while let Some(at) = queue.pop_front().filter(|_| seen.len() < LOOK && !sought.is_empty()) {
        sought.remove(&at);
        if let Some(commit) = reader.commit(&at).ok().filter(|_| !ends.contains(&at)) {
            queue.extend(commit.parents.into_iter().filter(|id| seen.insert(*id)));
        }
    }
    sought.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packs(sizes: &[u64]) -> Vec<Pack> {
        sizes.iter().enumerate().map(|(n, bytes)| Pack { name: format!("pack-{n}"), bytes: *bytes }).collect()
    }

    fn weighed(packs: &[(u64, u64)]) -> Vec<Weighed> {
        let name = |n| format!("pack-{n}");
        let each = packs.iter().enumerate();
        each.map(|(n, (bytes, needed))| Weighed {
            name: name(n),
            bytes: *bytes,
            needed: *needed,
            pinned: false,
        })
        .collect()
    }

    #[test]
    fn packs_are_rewritten_for_what_it_gives_back() {
        let sieve = |packs: &[(u64, u64)]| sieve(&weighed(packs), false, 50);
        let mb = 1 << 20;
        let is = |gone: &[&str], rewrite: &[&str]| Sieve {
            gone: gone.iter().map(ToString::to_string).collect(),
            rewrite: rewrite.iter().map(ToString::to_string).collect(),
        };
        assert_eq!(sieve(&[(60 * mb, 60 * mb), (1_000, 1_000)]), is(&[], &[]), "nothing is garbage");
        assert_eq!(sieve(&[(60 * mb, 60 * mb), (1_000, 0)]), is(&["pack-1"], &[]));
        assert_eq!(sieve(&[(60 * mb, 59 * mb), (1_000, 900)]), is(&[], &["pack-1"]), "the large one stays");
        assert_eq!(sieve(&[(60 * mb, 40 * mb), (1_000, 1_000)]), is(&[], &["pack-0"]));
    }

    #[test]
    fn one_pack_is_made_of_all_unless_it_is_one() {
        let one = |packs: &[(u64, u64)]| sieve(&weighed(packs), true, 50).rewrite.len();
        assert_eq!((one(&[(9, 9), (8, 8)]), one(&[(9, 9)]), one(&[(9, 8)])), (2, 0, 1));
    }

    #[test]
    fn many_packs_become_one_and_one_that_somebody_pinned_stays() {
        let mut packs = weighed(&[(10, 10); 60]);
        packs[7].pinned = true;
        packs[8] = Weighed { pinned: true, needed: 0, ..packs[8].clone() };
        let sieve = sieve(&packs, false, 50);
        assert_eq!((sieve.rewrite.len(), sieve.gone.len()), (58, 0));
    }

    #[test]
    fn few_packs_are_left_alone() {
        assert_eq!(chore(&packs(&[60 << 20, 1_000, 1_000]), 60 << 20, 50, 4 << 30), Chore::Rest);
    }

    #[test]
    fn small_packs_become_one_and_large_ones_stay() {
        let mut sizes = vec![1_000; 60];
        sizes.push(60 << 20);
        sizes.push(20 << 20);
        let Chore::Merge(names) = chore(&packs(&sizes), 60 << 20, 50, 4 << 30) else { panic!("no merge") };
        assert_eq!(names.len(), 60);
        assert!(!names.contains(&"pack-60".to_owned()) && !names.contains(&"pack-61".to_owned()));
    }

    #[test]
    fn garbage_that_outweighs_the_rest_is_renewed() {
        assert_eq!(chore(&packs(&[60 << 20, 119 << 20]), 60 << 20, 50, 4 << 30), Chore::Rest);
        assert_eq!(
            chore(&packs(&[60 << 20, 121 << 20]), 60 << 20, 50, 4 << 30),
            Chore::Renew { bytes: 181 << 20 }
        );
        assert_eq!(
            chore(&packs(&[1 << 20, 20 << 20]), 1 << 20, 50, 4 << 30),
            Chore::Rest,
            "not worth it yet"
        );
    }

    #[test]
    fn a_ceiling_below_the_repository_does_not_renew_for_ever() {
        assert_eq!(chore(&packs(&[100 << 20]), 100 << 20, 50, 50 << 20), Chore::Rest);
        assert!(matches!(chore(&packs(&[151 << 20]), 100 << 20, 50, 50 << 20), Chore::Renew { .. }));
    }

    #[test]
    fn packs_that_will_not_merge_are_renewed() {
        assert!(matches!(chore(&packs(&[1_000; 201]), 1_000, 50, 4 << 30), Chore::Renew { .. }));
    }
}
