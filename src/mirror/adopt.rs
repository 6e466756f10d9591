//! A new mirror adopts the packs of an existing mirror with the same remote, so that nothing is fetched twice. That
//! happens when a single repository becomes one of several sources or the other way round, and when a source's
//! credentials change, because its mirror's directory is named after their user and files.
//!
//! The packs are hard-linked, and the other mirror and its readers are not affected. A crash leaves packs that no ref
//! names, as a crash in a fetch does. The adopted tip becomes the mirror's tip once it was found complete.
//!
//! The opposite is done with the mirror of a submodule whose URL has changed ([`forget_other_remote`]): its packs are
//! kept, and its tip is not used for the new remote.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use fs_err as fs;

use super::error::Error;
use super::files::{TIP, fsync, local, names};
use super::layout::{Layout, boundary_of, tip_of};
use crate::revision::ObjectId;

/// The files of a pack that are linked, in this order.
const SUFFIXES: [&str; 3] = ["pack", "promisor", "idx"];

/// Links the packs of one of the mirrors in `others`, or directly below them: of those with the same remote, the one
/// that wrote its tip last. Returns its tip, which the caller must check. `None` if the mirror already has a tip or
/// nothing could be adopted.
pub(super) fn adopt(layout: &Layout, others: &[PathBuf], remote: &str) -> Option<ObjectId> {
    if layout.tip().is_some() {
        return None;
    }
    let found = others.iter().flat_map(|dir| below(dir)).chain(others.iter().cloned());
    let readable = found.filter(|dir| dir != layout.dir() && has_only_files(dir));
    let same = readable.filter(|dir| origin(dir).is_some_and(|origin| origin == remote));
    let newest = same.max_by_key(|dir| fs::metadata(dir.join(TIP)).and_then(|tip| tip.modified()).ok())?;
    let tip = tip_of(&newest)?;
    match link(layout, &newest) {
        Ok(()) => {
            tracing::info!(mirror = %layout.dir().display(), from = %newest.display(), "reused the packs of another mirror");
            Some(tip)
        }
        Err(error) => {
            tracing::debug!(%error, from = %newest.display(), "cannot reuse the packs of another mirror");
            None
        }
    }
}

/// The paths of a directory's entries; empty if it cannot be listed.
fn below(dir: &Path) -> Vec<PathBuf> {
    names(dir).unwrap_or_default().into_iter().map(|name| dir.join(name)).collect()
}

/// Returns true if all that is read or linked of another mirror is in regular files. Opening a named pipe may block
/// forever, and foreign files are only removed from the mirror that is being opened.
fn has_only_files(dir: &Path) -> bool {
    let is_file = |name: &str| dir.join(name).symlink_metadata().is_ok_and(|found| found.is_file());
    let is_of_pack = |name: &str| name.rsplit_once('.').is_some_and(|(_, suffix)| SUFFIXES.contains(&suffix));
    let packs = names(&dir.join("objects/pack")).unwrap_or_default();
    is_file("config")
        && is_file(TIP)
        && (is_file("shallow") || dir.join("shallow").symlink_metadata().is_err())
        && packs.iter().filter(|name| is_of_pack(name)).all(|name| is_file(&format!("objects/pack/{name}")))
}

/// The remote's URL in a mirror's configuration.
fn origin(dir: &Path) -> Option<String> {
    let config = git2::Config::open(&dir.join("config")).ok()?;
    config.get_string("remote.origin.url").ok()
}

/// Removes the tip of a submodule's mirror if its URL has changed: a fetch sends the tip as a `have`, which tells the
/// new server about the old repository. The objects and the shallow boundary stay: published revisions need them.
pub(super) fn forget_other_remote(layout: &Layout, remote: &str) -> Result<(), Error> {
    if layout.tip().is_some() && origin(layout.dir()).is_none_or(|origin| origin != remote) {
        layout.set_tip(None)?;
    }
    Ok(())
}

/// Links all packs and copies the shallow boundary. If it fails, the packs that it linked are removed: some of a
/// mirror's packs may have a commit and its tree without all that is below it, and the next fetch would take that for
/// complete.
fn link(layout: &Layout, other: &Path) -> Result<(), Error> {
    let mut linked = Vec::new();
    let done = link_all(layout, other, &mut linked);
    if done.is_err() {
        for path in linked.iter().rev() {
            let _ = fs::remove_file(path); // the index of a pack first
        }
    }
    done
}

/// Links all packs, each with the mark that a filter left objects out, and its index last, because git only uses packs
/// with an index. Then copies the shallow boundary. Adds each new path to `linked`.
fn link_all(layout: &Layout, other: &Path, linked: &mut Vec<PathBuf>) -> Result<(), Error> {
    let [from, to] = [other, layout.dir()].map(|dir| dir.join("objects/pack"));
    for pack in names(&from)?.iter().filter_map(|name| name.strip_suffix(".pack")) {
        for suffix in SUFFIXES {
            let name = format!("{pack}.{suffix}");
            let path = to.join(&name);
            match fs::hard_link(from.join(&name), &path) {
                Ok(()) => linked.push(path),
                // A pack is named by its checksum, so an existing file of the same name has the same content.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) if error.kind() == ErrorKind::NotFound && suffix == "promisor" => {}
                Err(error) => return Err(local("link", &path)(error)),
            }
        }
    }
    if layout.is_durable() {
        fsync(&to)?;
    }
    layout.set_shallow(&boundary_of(other))
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, mknodat};

    use super::*;
    use crate::mirror::repo_kind::RepoKind;

    #[test]
    fn all_packs_are_linked_or_none() {
        let dir = tempfile::tempdir().unwrap();
        let [other, mirror] = ["other", "mirror"].map(|name| dir.path().join(name));
        let from = other.join("objects/pack");
        fs::create_dir_all(&from).unwrap();
        for name in ["pack-1.pack", "pack-1.idx", "pack-2.pack"] {
            fs::write(from.join(name), "x").unwrap();
        }
        let layout = Layout::open(&mirror, RepoKind::Bare, false, None).unwrap();
        let linked = || names(&layout.dir().join("objects/pack")).unwrap();
        link(&layout, &other).unwrap_err();
        assert_eq!(linked(), Vec::<String>::new());
        fs::write(from.join("pack-2.idx"), "x").unwrap();
        link(&layout, &other).unwrap();
        assert_eq!(linked().len(), 4);
    }

    #[test]
    fn a_mirror_with_a_pipe_in_the_place_of_a_file_is_passed_over() {
        let index = "objects/pack/pack-1.idx";
        for pipe in ["", "config", TIP, "shallow", index] {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir_all(dir.path().join("objects/pack/multi-pack-index.d")).unwrap();
            fs::create_dir_all(dir.path().join("refs/treeswap")).unwrap();
            for name in ["config", TIP, index].into_iter().filter(|name| *name != pipe) {
                fs::write(dir.path().join(name), "x").unwrap();
            }
            if !pipe.is_empty() {
                mknodat(CWD, dir.path().join(pipe), FileType::Fifo, 0o600.into(), 0).unwrap();
            }
            assert_eq!(has_only_files(dir.path()), pipe.is_empty(), "{pipe}");
        }
    }
}
