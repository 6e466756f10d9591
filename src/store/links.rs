//! Root links: one for each top-level name of the current generation, `name -> ..data/name`.
//!
//! Ours are recognised by their target. Whatever else is under such a name is not ours: reported, never
//! touched. A link is replaced by a rename over it, never by an unlink and a symlink: it must not be absent in between.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::fsx;
use crate::generation::{LINK, Name};
use crate::store::Recovered;
use crate::store::error::Error;
use crate::store::layout::{Layout, RootLink, root_link};

/// Top-level names of a generation.
pub(crate) type Names = BTreeSet<OsString>;

/// Reads the top-level names of a generation.
pub(crate) fn top_names(generation: impl AsFd) -> std::io::Result<Names> {
    let mut names = Names::new();
    fsx::each(generation, |name, _| {
        names.insert(OsStr::from_bytes(name.to_bytes()).to_owned());
        Ok(())
    })?;
    Ok(names)
}

impl Layout {
    /// Refuses names that cannot become root links, before anything is changed.
    pub(crate) fn refuse_collisions(&self, names: &Names) -> Result<(), Error> {
        for name in names {
            let collides =
                name.as_encoded_bytes().starts_with(b"..") || self.link_at(name)? == RootLink::Foreign;
            if collides {
                let name = name.to_string_lossy().into_owned();
                return Err(Error::Collision { root: self.path.clone(), name });
            }
        }
        Ok(())
    }

    /// Makes the links that are missing. They name the generation itself, so that they hold before the swap as well;
    /// returns them for [`Layout::settle_links`].
    pub(crate) fn add_links(&self, names: &Names, generation: &Name) -> Result<Vec<OsString>, Error> {
        let mut added = Vec::new();
        for name in names {
            if self.link_at(name)? == RootLink::Absent {
                let target = Path::new(generation.as_str()).join(name);
                rustix::fs::symlinkat(&target, &self.root, name.as_os_str())
                    .map_err(Error::io("make the link", self.at(name)))?;
                added.push(name.clone());
            }
        }
        Ok(added)
    }

    /// Removes our links whose name is not among `names`; returns them.
    pub(crate) fn remove_links(&self, names: &Names) -> Result<Vec<OsString>, Error> {
        let mut others = Vec::new();
        let mut removed = Vec::new();
        fsx::each(&self.root, |name, _| {
            let name = OsStr::from_bytes(name.to_bytes());
            if !names.contains(name) {
                others.push(name.to_owned());
            }
            Ok(())
        })
        .map_err(Error::io("list", &self.path))?;
        for name in others {
            if matches!(self.link_at(&name)?, RootLink::Ours(_)) {
                fsx::unlink(&self.root, name.as_os_str())
                    .map_err(Error::io("remove the link", self.at(&name)))?;
                removed.push(name);
            }
        }
        Ok(removed)
    }

    /// Points links that were made before the swap to the link.
    pub(crate) fn finish_links(&self, names: &[OsString]) -> Result<(), Error> {
        names.iter().try_for_each(|name| self.point_link(name))
    }

    /// Makes or replaces one root link, in one step.
    fn point_link(&self, name: &OsStr) -> Result<(), Error> {
        let failed = || Error::io("make the link", self.at(name));
        let target = Path::new(LINK).join(name);
        let tmp = loop {
            let tmp = fsx::unique("tmp-link-");
            match rustix::fs::symlinkat(&target, &self.private, tmp.as_str()) {
                Err(rustix::io::Errno::EXIST) => {} // of a process that was killed
                made => break made.map(|()| tmp).map_err(failed())?,
            }
        };
        rustix::fs::renameat(&self.private, tmp.as_str(), &self.root, name).map_err(|error| {
            let _ = fsx::unlink(&self.private, tmp.as_str()); // the first error is the one to report
            failed()(error)
        })
    }

    /// Brings the root links in line with the current generation's names. Reads only, where nothing is wrong.
    pub(crate) fn repair_links(&self, names: &Names, found: &mut Recovered) -> Result<(), Error> {
        for name in self.remove_links(names)? {
            found
                .done
                .push(format!("removed the root link {name:?}: the current generation has no such name"));
        }
        for name in names {
            match self.link_at(name)? {
                RootLink::Ours(dir) if dir == LINK => {}
                RootLink::Ours(_) => {
                    self.point_link(name)?;
                    found.done.push(format!("pointed the root link {name:?} to {LINK}"));
                }
                RootLink::Absent => {
                    self.point_link(name)?;
                    found.done.push(format!("made the missing root link {name:?}"));
                }
                RootLink::Foreign => {
                    found
                        .warnings
                        .push(format!("{name:?} is not our link, and hides the tree's entry of that name"));
                }
            }
        }
        Ok(())
    }

    fn link_at(&self, name: &OsStr) -> Result<RootLink, Error> {
        root_link(&self.root, name).map_err(Error::io("look at", self.at(name)))
    }
}
