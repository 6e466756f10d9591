//! A new mirror adopts the packs of an existing mirror with the same remote, so that nothing is fetched twice. That
//! happens when a single repository becomes one of several sources or the other way round, and when a source's
//! credentials change, because its mirror's directory is named after their user and files.
//!
//! The packs are hard-linked, and the other mirror and its readers are not affected. A crash leaves packs that no ref
//! names, like that of a fetch. The adopted tip becomes the mirror's tip once it was found complete.

use std::path::{Path, PathBuf};

use fs_err as fs;

use super::error::Error;
use super::files::{TIP, fsync, local, names};
use super::layout::{Layout, boundary_of, tip_of};
use crate::revision::ObjectId;

/// Links the packs of one of the mirrors in `others`, or directly below them: of those with the same remote, the one
/// that wrote its tip last. Returns its tip, which the caller must check. `None` if the mirror already has a tip or
/// nothing could be adopted.
pub(super) fn adopt(layout: &Layout, others: &[PathBuf], remote: &str) -> Option<ObjectId> {
    if layout.tip().is_some() {
        return None;
    }
    let found = others.iter().flat_map(|dir| below(dir)).chain(others.iter().cloned());
    let same = found.filter(|dir| dir != layout.dir() && origin(dir).is_some_and(|origin| origin == remote));
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

/// Links all packs, each before its index, because git only uses packs with an index. Then copies the shallow boundary.
fn link(layout: &Layout, other: &Path) -> Result<(), Error> {
    let [from, to] = [other, layout.dir()].map(|dir| dir.join("objects/pack"));
    for pack in names(&from)?.iter().filter_map(|name| name.strip_suffix(".pack")) {
        for suffix in ["pack", "idx"] {
            let name = format!("{pack}.{suffix}");
            match fs::hard_link(from.join(&name), to.join(&name)) {
                // A pack is named by its checksum, so an existing file of the same name has the same content.
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(local("link", &to.join(&name))(error));
                }
                _ => {}
            }
        }
    }
    if layout.is_durable() {
        fsync(&to)?;
    }
    layout.set_shallow(&boundary_of(other))
}
