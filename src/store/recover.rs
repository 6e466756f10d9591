//! Recovery: what is found is brought back to what the module doc of [`super::layout`] draws.
//!
//! The same steps run when the root is opened and in every cycle: before any network, the link first, root links second,
//! left-overs last. They look before they act and only act where something is wrong, so that an idle cycle causes no
//! event at all.
//!
//! Promises: nothing on this path touches the content of a generation. What is not ours is never deleted: what stands
//! where the link belongs is moved to `..treeswap/quarantine-*` unread, everything else is reported. A link's target is
//! trusted only if it is one name of a generation's form and a real directory stands under it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;

use rustix::fs::{FileType, RenameFlags};
use rustix::io::Errno;

use crate::clock::Now;
use crate::fsx::{self, Link};
use crate::generation::{Name, Record, Retired};
use crate::human::one_line;
use crate::store::layout::{LINK, LINK_TMP, Layout, PRIVATE, QUARANTINE, RootLink, root_link};
use crate::store::links::{Names, top_names};
use crate::store::{Error, Recovered, Store};

/// One look at the names in the root.
struct Scan {
    /// Directories with a generation's name, and whether they belong to us.
    generations: BTreeMap<Name, bool>,
    /// Names that are neither ours nor root links.
    foreign: Vec<OsString>,
}

/// What stands under the link's name.
enum Seen {
    /// Nothing.
    Nothing,
    /// A link to a generation that is there.
    Generation(Name),
    /// A link to a generation that is not there.
    Dangling(Name),
    /// Something we would not put there, in words.
    Odd(String),
}

impl Store {
    /// Every cycle: mends the link and root links, removes left-overs. Reads only, where nothing is wrong.
    ///
    /// Where our own directory was removed or the root re-made under us, everything is opened anew first.
    pub fn mend(&mut self, now: &Now) -> Result<Recovered, Error> {
        let mut found = Recovered::default();
        if let Some(why) = self.displaced()? {
            found = self.reopen()?;
            found.done.insert(0, why);
            return Ok(found);
        }
        self.recover_into(now, &mut found)?;
        Ok(found)
    }

    /// See the module.
    pub(super) fn recover(&mut self, now: &Now) -> Result<Recovered, Error> {
        let mut found = Recovered::default();
        self.recover_into(now, &mut found)?;
        Ok(found)
    }

    pub(super) fn recover_into(&mut self, now: &Now, found: &mut Recovered) -> Result<(), Error> {
        let before = self.state.clone();
        self.drop_stale_tmp(found)?;
        let scan = self.scan()?;
        let serving = self.mend_link(&scan, now, found)?;
        self.finish_publication(&scan, serving.as_ref(), found);
        self.reconcile(&scan, serving.as_ref(), now, found);
        self.mend_root_links(serving, &scan, found)?;
        if let Err(error) = self.trash.sweep() {
            found.warnings.push(one_line(&error));
        }
        found.warnings.extend(self.trash.take_failures());
        if self.unsynced {
            self.sync_root()?;
        }
        // Links count more than records: a disk that is full must not keep them from being mended.
        if (self.state != before || self.unsaved)
            && let Err(error) = self.save()
        {
            found.warnings.push(one_line(&error));
        }
        Ok(())
    }

    /// Looks at every name in the root.
    fn scan(&self) -> Result<Scan, Error> {
        let (layout, uid) = (&self.layout, rustix::process::geteuid());
        let mut scan = Scan { generations: BTreeMap::new(), foreign: Vec::new() };
        for entry in fsx::list(&layout.root).map_err(Error::io("list", &layout.path))? {
            let name = entry.os();
            let failed = || Error::io("look at", layout.at(name));
            let known = [LINK, LINK_TMP, PRIVATE, "lost+found"].iter().any(|known| name == OsStr::new(known));
            let stat = || fsx::stat(&layout.root, name).map_err(failed());
            match name.to_str().and_then(Name::parse) {
                _ if known => {}
                Some(generation) => match stat()? {
                    Some(stat) if fsx::file_type(&stat) == FileType::Directory => {
                        let ours = uid.is_root() || stat.st_uid == uid.as_raw();
                        scan.generations.insert(generation, ours);
                    }
                    Some(_) => scan.foreign.push(name.to_owned()),
                    None => {}
                },
                None => {
                    if root_link(&layout.root, name).map_err(failed())? == RootLink::Foreign {
                        scan.foreign.push(name.to_owned());
                    }
                }
            }
        }
        Ok(scan)
    }

    /// Removes what step 5 of a publication left behind.
    fn drop_stale_tmp(&self, found: &mut Recovered) -> Result<(), Error> {
        let layout = &self.layout;
        let failed = || Error::io("look at", layout.at(LINK_TMP));
        match fsx::read_link(&layout.root, LINK_TMP).map_err(failed())? {
            Link::Absent => {}
            Link::To(target) if target.to_str().and_then(Name::parse).is_some() => {
                fsx::unlink(&layout.root, LINK_TMP).map_err(Error::io("remove", layout.at(LINK_TMP)))?;
                found.done.push(format!("removed {LINK_TMP}, left by a publication that did not end"));
            }
            Link::To(_) | Link::Other(_) => {
                let to = layout.move_aside(LINK_TMP)?;
                found.done.push(format!("moved {LINK_TMP}, which is not ours, to {PRIVATE}/{to}"));
            }
        }
        Ok(())
    }

    /// Makes the link name the generation that was published last, or the best there is. Returns what it names.
    fn mend_link(&mut self, scan: &Scan, now: &Now, found: &mut Recovered) -> Result<Option<Name>, Error> {
        let seen = self.layout.see(scan)?;
        let wanted = self.wanted(&seen, scan, now);
        match (&seen, &wanted) {
            (Seen::Generation(name), Some(wanted)) if name == wanted => return Ok(Some(name.clone())),
            (Seen::Nothing, None) => return Ok(None),
            (Seen::Dangling(name), None) => {
                found.warnings.push(format!(
                    "{LINK} names {name}, which is gone; nothing is served until the next publication"
                ));
                return Ok(None);
            }
            (Seen::Odd(what), None) => {
                let to = self.layout.move_aside(LINK)?;
                found.done.push(format!("moved {what} from {LINK} to {PRIVATE}/{to}"));
            }
            (Seen::Odd(what), Some(wanted)) => {
                let to = self.layout.exchange_link(wanted)?;
                found
                    .done
                    .push(format!("moved {what} from {LINK} to {PRIVATE}/{to}; it names {wanted} again"));
            }
            (seen, Some(wanted)) => {
                self.swap(wanted)?;
                let was = match seen {
                    Seen::Generation(name) => format!("named {name}, which was not published last"),
                    Seen::Dangling(name) => format!("named {name}, which is gone"),
                    _ => "was missing".to_owned(),
                };
                found.done.push(format!("{LINK} {was}; it names {wanted} again"));
            }
            (Seen::Generation(_), None) => return Ok(None), // wanted() never gives up one that is there
        }
        self.sync_root()?;
        Ok(wanted)
    }

    /// What the link should name.
    fn wanted(&self, seen: &Seen, scan: &Scan, now: &Now) -> Option<Name> {
        let there = |name: &Name| scan.generations.contains_key(name);
        let seen = match seen {
            Seen::Generation(name) => Some(name),
            _ => None,
        };
        if seen.is_some() && seen == self.state.publishing.as_ref() {
            return seen.cloned(); // a publication that got past its swap
        }
        if let Some(last) = self.state.current.as_ref().filter(|name| there(name)) {
            return Some(last.clone());
        }
        let trusted = || {
            let good = |record: &&Record| there(&record.name) && record.is_trusted(now);
            self.state.generations.iter().find(good).map(|record| record.name.clone())
        };
        // Whole, as everything that has a generation's name, but nobody knows which revision it is.
        let any = || {
            let ours = scan
                .generations
                .iter()
                .rev()
                .filter(|&(name, ours)| *ours && Some(name) != self.state.publishing.as_ref());
            ours.map(|(name, _)| name.clone()).next()
        };
        seen.cloned().or_else(trusted).or_else(any)
    }

    /// A publication that did not reach its swap is taken back; one that did is done.
    fn finish_publication(&mut self, scan: &Scan, serving: Option<&Name>, found: &mut Recovered) {
        let Some(name) = self.state.publishing.take() else { return };
        if Some(&name) == serving {
            return;
        }
        self.state.remove(&name);
        if !scan.generations.contains_key(&name) {
            return;
        }
        let line = match self.trash.put(&self.layout.root, name.as_str(), None) {
            Ok(()) => (&mut found.done, format!("removed {name}: its publication did not end")),
            Err(error) => {
                (&mut found.warnings, format!("cannot remove {name}, whose publication did not end: {error}"))
            }
        };
        line.0.push(line.1);
    }

    /// Brings the records in line with what is there.
    fn reconcile(&mut self, scan: &Scan, serving: Option<&Name>, now: &Now, found: &mut Recovered) {
        let there = |name: &Name| match scan.generations.get(name) {
            Some(ours) => *ours || serving == Some(name),
            None => false,
        };
        self.state.generations.retain(|record| {
            let keep = there(&record.name);
            if !keep {
                found.done.push(format!("forgot {}, which is gone", record.name));
            }
            keep
        });
        for name in scan.generations.keys() {
            if !there(name) {
                found.foreign.push(format!("{name} belongs to another user"));
            } else if self.state.record(name).is_none() && self.layout.is_dir(name) {
                let size = self.layout.measure(name);
                self.state.put(Record::unknown(name.clone(), size.entries, size.bytes, now));
                found.done.push(format!("found {name}, of which nothing is on record"));
            }
        }
        for record in &mut self.state.generations {
            if serving == Some(&record.name) {
                record.retired = None;
            } else if record.retired.is_none() {
                record.retired = Some(Retired::at(now));
            }
        }
        self.state.current = serving.cloned();
    }

    fn mend_root_links(
        &mut self,
        serving: Option<Name>,
        scan: &Scan,
        found: &mut Recovered,
    ) -> Result<(), Error> {
        let names = match serving {
            None => Names::new(),
            Some(name) => match self.names.take() {
                Some((of, names)) if of == name => self.names.insert((of, names)).1.clone(),
                _ => {
                    let dir = self.layout.generation(&name)?;
                    let names = top_names(dir).map_err(Error::io("list", self.layout.at(name.as_str())))?;
                    self.names.insert((name, names)).1.clone()
                }
            },
        };
        for name in scan.foreign.iter().filter(|name| !names.contains(*name)) {
            found.foreign.push(format!("{name:?} is not ours"));
        }
        if let Err(error) = self.layout.mend_links(&names, found) {
            found.warnings.push(one_line(&error));
        }
        Ok(())
    }
}

impl Layout {
    fn see(&self, scan: &Scan) -> Result<Seen, Error> {
        let target = match self.link()? {
            Link::Absent => return Ok(Seen::Nothing),
            Link::Other(FileType::Directory) => return Ok(Seen::Odd("a directory".to_owned())),
            Link::Other(_) => return Ok(Seen::Odd("a file".to_owned())),
            Link::To(target) => target,
        };
        Ok(match target.to_str().and_then(Name::parse) {
            Some(name) if scan.generations.contains_key(&name) => Seen::Generation(name),
            Some(name) => {
                let there = fsx::stat(&self.root, name.as_str());
                match there.map_err(Error::io("look at", self.at(name.as_str())))? {
                    None => Seen::Dangling(name),
                    Some(_) => Seen::Odd(format!("a link to {name}, which is no directory,")),
                }
            }
            None => Seen::Odd(format!("a link to {target:?}")),
        })
    }

    fn is_dir(&self, name: &Name) -> bool {
        matches!(fsx::stat(&self.root, name.as_str()), Ok(Some(stat)) if fsx::file_type(&stat) == FileType::Directory)
    }

    fn measure(&self, name: &Name) -> fsx::walk::Measured {
        let measured = fsx::open_dir(&self.root, name.as_str()).and_then(fsx::walk::measure);
        measured.unwrap_or_default() // it cannot be read: then at least it is not counted twice
    }

    /// Moves something out of the root's sight, unread, and says to which name.
    fn move_aside(&self, name: &str) -> Result<String, Error> {
        self.quarantine(&self.root, name)
    }

    /// The same for a name in any directory of ours.
    pub(super) fn quarantine(&self, dir: &OwnedFd, name: &str) -> Result<String, Error> {
        loop {
            let to = fsx::unique(QUARANTINE);
            match fsx::rename_new(dir, name, &self.private, to.as_str()) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {} // of a process before us
                moved => return moved.map(|()| to).map_err(Error::io("move aside", self.at(name))),
            }
        }
    }

    /// Puts the link in the place of something that is not one, without a moment in which nothing is there, and moves
    /// that something aside. Where the file system cannot exchange, there is such a moment.
    fn exchange_link(&self, name: &Name) -> Result<String, Error> {
        rustix::fs::symlinkat(name.as_str(), &self.root, LINK_TMP)
            .map_err(Error::io("make the link", self.at(LINK_TMP)))?;
        match rustix::fs::renameat_with(&self.root, LINK_TMP, &self.root, LINK, RenameFlags::EXCHANGE) {
            Ok(()) => self.move_aside(LINK_TMP),
            Err(Errno::INVAL | Errno::NOSYS) => {
                let to = self.move_aside(LINK)?;
                rustix::fs::renameat(&self.root, LINK_TMP, &self.root, LINK)
                    .map_err(Error::io("swap", self.at(LINK)))?;
                Ok(to)
            }
            Err(error) => Err(Error::io("swap", self.at(LINK))(error)),
        }
    }
}
