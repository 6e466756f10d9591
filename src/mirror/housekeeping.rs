//! Bounded growth, without a git program.
//!
//! Every update leaves a small pack, and what an update replaced stays behind as garbage. Two things are done about it,
//! both after a publication and neither in its way:
//!
//! - **Merge**: when there are more than [`super::Options::max_packs`] packs, the small ones become one. A child under the
//!   same limits as the indexer's copies their objects, so a hostile object can not take the service down. No object is
//!   lost, so nobody who reads can notice.
//! - **Renewal**: when garbage outweighs what is needed, the next fetch asks for everything and claims nothing; the pack
//!   it gets stands for itself, and after the publication that follows all the others are removed. The revisions before
//!   it can then no longer be read; a delta against one of them is made from the whole tree instead.
//!
//! A crash leaves, after each step:
//!
//! 1. while the child writes: temporary files, swept at the next opening;
//! 2. with the merged pack in place: every object twice; the next merge takes both;
//! 3. while old packs are removed, index first: a pack without an index is not seen by libgit2, and is swept; its
//!    objects are in the merged pack;
//! 4. after a renewing fetch: as after any fetch, and the old packs as garbage until the next renewal.
//!
//! Packs are only removed while nobody reads (see [`super::shared`]); otherwise the next call does it.

use std::collections::HashSet;
use std::path::PathBuf;

use fs_err as fs;

use super::closure::tree_closure;
use super::error::Error;
use super::form::Form;
use super::indexer::{self, Job, Report, Task};
use super::layout::{Pack, local, sync_dir};
use super::odb::Reader;
use super::{Mirror, pack_index, worktrees};
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

impl Mirror {
    pub(super) fn keep_house(&mut self, held: &[Revision]) -> Result<(), Error> {
        if self.layout.form() == Form::Worktrees {
            for gone in worktrees::prune(self.layout.dir(), held)? {
                tracing::debug!(worktree = gone, "removed the worktree of a generation that is gone");
            }
        }
        if let Some(pack) = self.renewed.clone() {
            // Until the renewing revision is published, the next delta starts from the one before.
            let published = held.first().map(|held| held.0) == self.layout.tip();
            if !published || !self.leave_only(&pack)? {
                return Ok(());
            }
            self.renewed = None;
        }
        let packs = self.layout.packs()?;
        let fresh = self.layout.fresh().unwrap_or_else(|| packs.iter().map(|p| p.bytes).max().unwrap_or(0));
        match chore(&packs, fresh, self.options.max_packs, self.options.max_bytes) {
            Chore::Rest => Ok(()),
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
        let job = Job {
            dir: self.layout.dir().to_owned(),
            task: Task::Merge(names.to_vec()),
            memory: self.options.index_memory,
            max_bytes: self.options.wire.max_fetch_bytes,
            durable: self.options.durable,
        };
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
            reader.commit(&tip).is_ok_and(|commit| tree_closure(&reader, commit.tree, None).is_ok())
        });
        if whole {
            self.layout.set_fresh()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn packs(sizes: &[u64]) -> Vec<Pack> {
        sizes.iter().enumerate().map(|(n, bytes)| Pack { name: format!("pack-{n}"), bytes: *bytes }).collect()
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
