//! The mirrors of a set on disk: which of them composed revisions are read from, garbage collection, and their size.

use std::io;
use std::path::PathBuf;

use tokio_util::sync::CancellationToken;

use super::SourceSet;
use super::repository::is_mirror_name;
use crate::human::one_line;
use crate::mirror::{self, Part};
use crate::revision::Revision;

impl SourceSet {
    /// Makes the composed repository read objects from all mirrors on disk. That includes those of sources that are no
    /// longer listed: older generations were composed of them. If they cannot be listed, it stays as it was.
    pub(super) fn update_read_dirs(&self) {
        match self.mirror_dirs() {
            Ok(mut dirs) => {
                dirs.retain(|dir| dir.join("objects").is_dir());
                self.composer.read_from(&dirs);
            }
            Err(error) => {
                let dir = self.options.dir.display();
                tracing::warn!(%dir, error = one_line(&error), "cannot list the mirrors of the sources");
            }
        }
    }

    /// What is in the directory of the mirrors, besides the composed repository.
    fn mirror_dirs(&self) -> io::Result<Vec<PathBuf>> {
        let found = std::fs::read_dir(&self.options.dir)?.map(|entry| entry.map(|entry| entry.path()));
        let composed = self.composer.dir();
        found.filter(|dir| !dir.as_ref().is_ok_and(|dir| dir == composed)).collect()
    }

    /// Collects garbage in the mirrors, and removes those that neither the file nor a kept revision needs. Blocking. A
    /// mirror that is being polled is skipped. Ends once the token is cancelled: see `Mirror::cancelled_by`.
    pub fn housekeep(&mut self, kept: &[Revision], cancel: &CancellationToken) -> Result<(), mirror::Error> {
        let parts = self.parts_of(kept);
        let mut result = self.composer.collect_garbage(kept);
        // Mirrors are removed first, because that takes little time.
        result = result.and_then(|()| self.composer.remove_mirrors(&self.unused_mirrors(&parts)));
        // After an error the next housekeeping tries again: none is made for it.
        self.may_have_unlisted = result.is_ok() && !self.unlisted_mirrors().is_empty();
        self.update_read_dirs();
        for (name, repository) in &self.repositories {
            // Housekeeping that begins and is cancelled forgets that a mirror is without garbage.
            if cancel.is_cancelled() {
                return Err(mirror::Error::Cancelled);
            }
            if let Some(mut mirror) = repository.idle() {
                let kept = repository.kept_revisions(name, &parts);
                result = result.and(mirror.cancelled_by(cancel).housekeep(&kept));
            }
        }
        result
    }

    /// Returns true if [`Self::housekeep`] would remove the mirror of a source that is no longer listed, which it had to
    /// keep before: a poll was running, or a kept revision was composed of it. Blocking.
    pub fn may_remove_mirrors(&self, kept: &[Revision]) -> bool {
        self.may_have_unlisted && !self.unused_mirrors(&self.parts_of(kept)).is_empty()
    }

    /// The mirrors on disk that no listed source has, with their names. If they cannot be listed, there are none, and
    /// `update_read_dirs` logs why.
    fn unlisted_mirrors(&self) -> Vec<(String, PathBuf)> {
        let named = |dir: PathBuf| {
            let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
            (name, dir)
        };
        let is_listed = |name: &str| self.sources.iter().any(|source| source.mirror == name);
        let found = self.mirror_dirs().unwrap_or_default().into_iter().map(named);
        found.filter(|(name, _)| is_mirror_name(name) && !is_listed(name)).collect()
    }

    /// Those of them that neither `parts`, which are kept, nor an opening or a poll that may still be running uses.
    fn unused_mirrors(&self, parts: &[Part]) -> Vec<PathBuf> {
        let is_used = |name: &str| {
            parts.iter().any(|part| part.mirror == name)
                || self.repositories.contains_key(name)
                || self.opening.contains_key(name)
        };
        let unlisted = self.unlisted_mirrors().into_iter();
        unlisted.filter(|(name, _)| !is_used(name)).map(|(_, dir)| dir).collect()
    }

    /// The parts of composed revisions.
    pub(super) fn parts_of(&self, revisions: &[Revision]) -> Vec<Part> {
        let objects = self.composer.objects();
        revisions.iter().flat_map(|revision| objects.parts(*revision)).collect()
    }

    /// Frees space on a full volume: see `Mirror::make_room` and `Mirror::cancelled_by`. Returns true if that freed
    /// any.
    pub fn make_room(
        &mut self,
        keep: &[Revision],
        cancel: &CancellationToken,
    ) -> Result<bool, mirror::Error> {
        let parts = self.parts_of(keep);
        let mut freed = Ok(false);
        for (name, repository) in &self.repositories {
            if cancel.is_cancelled() {
                return Err(mirror::Error::Cancelled);
            }
            if let Some(mut mirror) = repository.idle() {
                let more = mirror.cancelled_by(cancel).make_room(&repository.kept_revisions(name, &parts));
                freed = freed.and_then(|freed| more.map(|more| freed || more));
            }
        }
        freed
    }

    /// The size of all mirrors in bytes. Blocking.
    pub fn disk_bytes(&self) -> u64 {
        mirror::disk_bytes(&self.options.dir)
    }
}
