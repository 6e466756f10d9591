//! Root links: one symlink `name -> ..data/name` for each top-level name of the current generation.
//!
//! A root link is recognized by its target. Anything else under such a name is foreign: it is reported and never
//! touched. A link is replaced by a rename over it, not by unlink and symlink, so that it is never absent.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::fsx;
use crate::generation::{DATA_LINK, Name};
use crate::store::Recovered;
use crate::store::error::{Error, some_names};
use crate::store::layout::{RootHandles, RootLink, root_link};

/// A list of names in one buffer. A tree may have a million names at its top; each takes its length plus eight bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    text: Vec<u8>,
    /// Start and end of each name in `text`.
    ranges: Vec<(u32, u32)>,
}

impl Names {
    /// Appends a name.
    fn push(&mut self, name: &OsStr) -> io::Result<()> {
        let offset = |at| u32::try_from(at).map_err(|_| io::Error::other("its names take more than 4 GiB"));
        let start = offset(self.text.len())?;
        self.ranges.push((start, offset(self.text.len() + name.len())?));
        self.text.extend_from_slice(name.as_bytes());
        Ok(())
    }

    fn at(&self, (start, end): (u32, u32)) -> &OsStr {
        OsStr::from_bytes(&self.text[start as usize..end as usize])
    }

    fn iter(&self) -> impl Iterator<Item = &OsStr> {
        self.ranges.iter().map(|range| self.at(*range))
    }

    /// Formats the list for a message: some names and the number of the others. `None` if it is empty.
    fn shown(&self) -> Option<String> {
        let count = self.ranges.len();
        (count > 0).then(|| some_names(self.iter(), count))
    }
}

/// The top-level names of a generation, sorted.
#[derive(Debug, Default)]
pub(crate) struct TopNames(Names);

impl TopNames {
    /// Lists the top-level names of a generation's directory.
    pub(crate) fn of(generation: impl AsFd) -> io::Result<Self> {
        let mut names = Names::default();
        fsx::each(generation, |name, _| names.push(OsStr::from_bytes(name.to_bytes())))?;
        let mut ranges = std::mem::take(&mut names.ranges);
        ranges.sort_unstable_by(|one, other| names.at(*one).cmp(names.at(*other)));
        names.ranges = ranges;
        Ok(Self(names))
    }

    /// Returns true if the generation has this top-level name.
    pub(crate) fn contains(&self, name: &OsStr) -> bool {
        self.0.ranges.binary_search_by(|range| self.0.at(*range).cmp(name)).is_ok()
    }
}

impl RootHandles {
    /// Fails if a name cannot become a root link: it starts with `..` or is taken by something foreign. Changes
    /// nothing.
    pub(crate) fn refuse_collisions(&self, names: &TopNames) -> Result<(), Error> {
        for name in names.0.iter() {
            let collides =
                name.as_encoded_bytes().starts_with(b"..") || self.root_link_at(name)? == RootLink::Foreign;
            if collides {
                let name = name.to_string_lossy().into_owned();
                return Err(Error::Collision { root: self.path.clone(), name });
            }
        }
        Ok(())
    }

    /// Creates the missing root links. Their target is the generation itself, so that they resolve before the swap
    /// already. Returns them for [`RootHandles::finish_links`].
    pub(crate) fn add_links(&self, names: &TopNames, generation: &Name) -> Result<Names, Error> {
        let mut added = Names::default();
        for name in names.0.iter() {
            if self.root_link_at(name)? == RootLink::Absent {
                let target = Path::new(generation.as_str()).join(name);
                let made = rustix::fs::symlinkat(&target, &self.root, name).map_err(io::Error::from);
                made.and_then(|()| added.push(name)).map_err(Error::io("make the link", self.at(name)))?;
            }
        }
        Ok(added)
    }

    /// Removes the root links whose name the generation at `place` in the root, which has these names, does not have, and
    /// returns them. Where the file system treats two spellings as one name, a link may keep the earlier one.
    pub(crate) fn remove_links(&self, names: &TopNames, place: &str) -> Result<Names, Error> {
        let mut others = Names::default();
        let mut removed = Names::default();
        fsx::each(&self.root, |name, _| {
            let name = OsStr::from_bytes(name.to_bytes());
            if names.contains(name) { Ok(()) } else { others.push(name) }
        })
        .map_err(Error::io("list", &self.path))?;
        for name in others.iter() {
            let is_found = || fsx::stat(&self.root, Path::new(place).join(name));
            if matches!(self.root_link_at(name)?, RootLink::Ours(_))
                && is_found().map_err(Error::io("stat", self.at(name)))?.is_none()
            {
                let unlinked = fsx::unlink(&self.root, name);
                unlinked
                    .and_then(|()| removed.push(name))
                    .map_err(Error::io("remove the link", self.at(name)))?;
            }
        }
        Ok(removed)
    }

    /// Points the root links that [`RootHandles::add_links`] created to `..data/NAME`.
    pub(crate) fn finish_links(&self, added: &Names) -> Result<(), Error> {
        added.iter().try_for_each(|name| self.point_link(name))
    }

    /// Creates or replaces one root link atomically.
    fn point_link(&self, name: &OsStr) -> Result<(), Error> {
        let failed = || Error::io("make the link", self.at(name));
        let target = Path::new(DATA_LINK).join(name);
        let tmp = loop {
            let tmp = fsx::unique("tmp-link-");
            match rustix::fs::symlinkat(&target, &self.private, tmp.as_str()) {
                Err(rustix::io::Errno::EXIST) => {} // left by a process that was killed
                made => break made.map(|()| tmp).map_err(failed())?,
            }
        };
        rustix::fs::renameat(&self.private, tmp.as_str(), &self.root, name).map_err(|error| {
            let _ = fsx::unlink(&self.private, tmp.as_str()); // the first error is the one to report
            failed()(error)
        })
    }

    /// Brings the root links in line with the current generation's names. Changes nothing if they are right.
    pub(crate) fn repair_links(&self, names: &TopNames, found: &mut Recovered) -> Result<(), Error> {
        let removed = self.remove_links(names, DATA_LINK)?.shown();
        let mut pointed = Names::default();
        let mut made = Names::default();
        for name in names.0.iter() {
            let repaired = match self.root_link_at(name)? {
                RootLink::Ours(dir) if dir == DATA_LINK => continue,
                RootLink::Ours(_) => &mut pointed,
                RootLink::Absent => &mut made,
                RootLink::Foreign => {
                    found.warnings.push(format!(
                        "{name:?} was not created by treeswap, and hides the tree's entry of that name"
                    ));
                    continue;
                }
            };
            self.point_link(name)?;
            repaired.push(name).map_err(Error::io("list", &self.path))?;
        }
        let removed = removed.map(|names| {
            format!("removed root links whose names the current generation does not have: {names}")
        });
        let pointed = pointed.shown().map(|names| format!("pointed root links to {DATA_LINK}: {names}"));
        let made = made.shown().map(|names| format!("made missing root links: {names}"));
        found.done.extend([removed, pointed, made].into_iter().flatten());
        Ok(())
    }

    fn root_link_at(&self, name: &OsStr) -> Result<RootLink, Error> {
        root_link(&self.root, name).map_err(Error::io("stat", self.at(name)))
    }
}
