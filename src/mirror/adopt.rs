//! A mirror that is new takes over what another one has of the same repository, so that nothing is fetched twice: where
//! one repository becomes one of several sources, or a source gets other credentials, and back.
//!
//! The packs are linked, and the other mirror stays as it is, with all that is read from it. A crash leaves packs that no
//! ref names, as that of a fetch does. What was taken over counts once its tip was found complete.

use std::path::{Path, PathBuf};

use fs_err as fs;

use super::error::Error;
use super::files::{TIP, local, names, sync_dir};
use super::layout::{Layout, boundary_of, tip_of};
use crate::revision::ObjectId;

/// Takes over from that of these mirrors, or of those in these directories, which is of the same remote and has fetched last.
/// The tip that is to be looked at.
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
            tracing::info!(mirror = %layout.dir().display(), from = %newest.display(), "took over a mirror");
            Some(tip)
        }
        Err(error) => {
            tracing::debug!(%error, from = %newest.display(), "cannot take over a mirror");
            None
        }
    }
}

fn below(dir: &Path) -> Vec<PathBuf> {
    names(dir).unwrap_or_default().into_iter().map(|name| dir.join(name)).collect()
}

/// The remote of a mirror.
fn origin(dir: &Path) -> Option<String> {
    let config = git2::Config::open(&dir.join("config")).ok()?;
    config.get_string("remote.origin.url").ok()
}

/// The packs, each before its index, which is what makes it seen; then the commits whose parents are in none of them.
fn link(layout: &Layout, other: &Path) -> Result<(), Error> {
    let [from, to] = [other, layout.dir()].map(|dir| dir.join("objects/pack"));
    for pack in names(&from)?.iter().filter_map(|name| name.strip_suffix(".pack")) {
        for suffix in ["pack", "idx"] {
            let name = format!("{pack}.{suffix}");
            match fs::hard_link(from.join(&name), to.join(&name)) {
                // Of the same name is the same content: it is a checksum.
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(local("link", &to.join(&name))(error));
                }
                _ => {}
            }
        }
    }
    if layout.is_durable() {
        sync_dir(&to)?;
    }
    layout.set_shallow(&boundary_of(other))
}
