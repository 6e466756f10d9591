//! The mirrors of a set on disk: which of them composed revisions are read from, garbage collection, and their size.

use std::collections::BTreeSet;

use super::repository::is_mirror_name;
use super::{Composer, SourceSet};
use crate::mirror::{self, Part};
use crate::revision::Revision;

impl SourceSet {
    /// Makes the composed repository read objects from all mirrors on disk. That includes those of sources that are no
    /// longer listed: older generations were composed of them.
    pub(super) fn update_read_dirs(&self) {
        let found = std::fs::read_dir(&self.options.dir).into_iter().flatten().flatten();
        let dirs = found.map(|entry| entry.path()).filter(|dir| dir.join("objects").is_dir());
        let composed = self.composer.dir();
        self.composer.read_from(&dirs.filter(|dir| dir != composed).collect::<Vec<_>>());
    }

    /// Collects garbage in the mirrors, and removes those that neither the file nor a held revision needs. Blocking. A
    /// mirror that is being polled is skipped.
    pub fn housekeep(&mut self, held: &[Revision]) -> Result<(), mirror::Error> {
        let objects = self.composer.objects();
        let parts: Vec<Part> = held.iter().flat_map(|revision| objects.parts(*revision)).collect();
        let mut kept = self.composer.collect_garbage(held);
        for (name, repository) in &self.repositories {
            if let Some(mut mirror) = repository.idle() {
                kept = kept.and(mirror.housekeep(&repository.held(name, &parts)));
            }
        }
        let needed: BTreeSet<&str> = parts.iter().map(|part| part.mirror.as_str()).collect();
        let mut gone = Vec::new();
        for entry in std::fs::read_dir(&self.options.dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let is_followed = self.sources.iter().any(|source| source.mirror == name)
                || self.repositories.contains_key(&*name); // a poll may still be running
            if kept.is_ok() && is_mirror_name(&name) && !needed.contains(&*name) && !is_followed {
                gone.push(entry.path());
            }
        }
        kept = kept.and_then(|()| self.composer.remove_mirrors(&gone));
        self.update_read_dirs();
        kept
    }

    /// Frees space on a full volume: see `Mirror::make_room`. Returns true if that freed any.
    pub fn make_room(&mut self, keep: &[Revision]) -> Result<bool, mirror::Error> {
        let objects = self.composer.objects();
        let parts: Vec<Part> = keep.iter().flat_map(|revision| objects.parts(*revision)).collect();
        let mut made = Ok(false);
        for (name, repository) in &self.repositories {
            if let Some(mut mirror) = repository.idle() {
                let more = mirror.make_room(&repository.held(name, &parts));
                made = made.and_then(|made| more.map(|more| made || more));
            }
        }
        made
    }

    /// The size of all mirrors in bytes. Blocking.
    pub fn disk_bytes(&self) -> u64 {
        Composer::disk_bytes(&self.options.dir)
    }
}
