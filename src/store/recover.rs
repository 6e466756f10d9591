//! Recovery: what is found is brought back to what the module doc of [`super::layout`] draws.
//!
//! The same steps run when the root is opened and in every cycle: before any network, the link first, root links
//! second, left-overs last. They look before they act and only act where something is wrong, so that an idle cycle
//! causes no event at all.
//!
//! Promises: nothing on this path touches the content of a generation. What is not ours is never deleted: what stands
//! where the link belongs is moved to `..treeswap/quarantine-*` unread (or to a name beside it, where the kernel does not
//! let us have it there), everything else is reported. A link's target is trusted only if it is one name of a
//! generation's form and a real directory stands under it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, FileType};
use std::sync::Arc;

use crate::clock::Now;
use crate::fsx::{self, Link};
use crate::generation::{GenerationRecord, LINK, Name, Retired};
use crate::human::one_line;
use crate::store::layout::{Layout, RootLink, root_link};
use crate::store::ledger::DAMAGED;
use crate::store::links::TopNames;
use crate::store::names::{
    LEDGER, LINK_TMP, MIRROR, PRIVATE, PRIVATE_ASIDE, QUARANTINE, SOCKET, STATE, STATUS,
};
use crate::store::{Error, Recovered, Store, operator_file, quarantine};

/// One look at the names in the root.
struct Scan {
    /// Directories with a generation's name, and whether they belong to us.
    generations: BTreeMap<Name, bool>,
    /// Names that are neither ours nor root links.
    foreign: Vec<OsString>,
}

/// What stands under the link's name.
enum LinkState {
    /// Nothing.
    Nothing,
    /// A link to a generation that is there.
    Generation(Name),
    /// A link to a generation that is not there.
    Dangling(Name),
    /// Something we would not put there, in words. In git-sync's layout such a link serves until there is something
    /// better: a generation of version 3, or a release that was put there by hand.
    Odd(String),
}

impl Store {
    /// Every cycle: repairs the link and root links, removes left-overs. Reads only, where nothing is wrong.
    ///
    /// Where our own directory was removed or the root re-made under us, everything is opened anew first.
    pub fn repair(&mut self, now: &Now) -> Result<Recovered, Error> {
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
        if self.layout.is_git_sync {
            self.take_over(now, found)?;
        }
        let scan = self.scan()?;
        let serving = self.repair_link(&scan, now, found)?;
        self.finish_publication(&scan, serving.as_ref(), found);
        self.reconcile(&scan, serving.as_ref(), now, found);
        self.repair_root_links(serving, &scan, found)?;
        if let Err(error) = self.trash.sweep() {
            found.warnings.push(one_line(&error));
        }
        found.warnings.extend(self.trash.take_failures());
        if self.unsynced {
            self.sync_link()?;
        }
        // Links count more than records: a disk that is full must not keep them from being mended.
        if (self.state != before || self.unsaved)
            && let Err(error) = self.save()
        {
            found.warnings.push(one_line(&error));
        }
        Ok(())
    }

    /// Looks at every name where generations are.
    fn scan(&self) -> Result<Scan, Error> {
        let layout = &self.layout;
        let uid = rustix::process::geteuid();
        let mut scan = Scan { generations: BTreeMap::new(), foreign: Vec::new() };
        for entry in fsx::list(&layout.home).map_err(Error::io("list", &layout.path))? {
            let name = entry.os();
            let failed = || Error::io("look at", layout.at(name));
            let known = [LINK, LINK_TMP, PRIVATE, "lost+found"].iter().any(|known| name == OsStr::new(known))
                || !layout.is_git_sync && operator_file::is_one(&self.options.own, name);
            let stat = || fsx::stat(&layout.home, name).map_err(failed());
            match layout.link.name_of(name) {
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
                    if layout.is_git_sync
                        || root_link(&layout.root, name).map_err(failed())? == RootLink::Foreign
                    {
                        scan.foreign.push(name.to_owned());
                    }
                }
            }
        }
        Ok(scan)
    }

    /// Removes what step 5 of a publication left behind.
    fn drop_stale_tmp(&self, found: &mut Recovered) -> Result<(), Error> {
        let link = &self.layout.link;
        let (tmp, path) = (&link.tmp, link.dir_path().join(&link.tmp));
        match fsx::read_link(&link.dir, tmp.as_os_str()).map_err(Error::io("look at", &path))? {
            Link::Absent => {}
            Link::To(target) if link.named_by(&target).is_some() => {
                fsx::unlink(&link.dir, tmp.as_os_str()).map_err(Error::io("remove", &path))?;
                found.done.push(format!("removed {}, left by a publication that did not end", tmp.display()));
            }
            Link::To(_) | Link::Other(_) => {
                let to = self.layout.move_aside(tmp)?;
                found.done.push(format!("moved {}, which is not ours, to {to}", tmp.display()));
            }
        }
        Ok(())
    }

    /// Makes the link name the generation that was published last, or the best there is. Returns what it names.
    fn repair_link(&mut self, scan: &Scan, now: &Now, found: &mut Recovered) -> Result<Option<Name>, Error> {
        let seen = self.layout.link_state(scan)?;
        let wanted = self.desired_target(&seen, scan, now);
        let link = self.layout.link.shown().to_string();
        match (&seen, &wanted) {
            (LinkState::Generation(name), Some(wanted)) if name == wanted => return Ok(Some(name.clone())),
            (LinkState::Nothing, None) => return Ok(None),
            (LinkState::Dangling(name), None) => {
                found.warnings.push(format!(
                    "{link} names {name}, which is gone; nothing is served until the next publication"
                ));
                return Ok(None);
            }
            (LinkState::Odd(what), None) if self.layout.is_git_sync => {
                found.foreign.push(format!("{link} is {what} until the first publication"));
                return Ok(None);
            }
            (LinkState::Odd(what), None) => {
                let to = self.layout.move_aside(LINK.as_ref())?;
                found.done.push(format!("moved {what} from {link} to {to}"));
            }
            (LinkState::Odd(what), Some(wanted)) if !self.layout.is_git_sync => {
                let to = self.layout.exchange_link(wanted)?;
                found.done.push(format!("moved {what} from {link} to {to}; it names {wanted} again"));
            }
            (seen, Some(wanted)) => {
                self.swap(wanted)?;
                let was = match seen {
                    LinkState::Generation(name) => format!("named {name}, which was not published last"),
                    LinkState::Dangling(name) => format!("named {name}, which is gone"),
                    LinkState::Odd(what) => format!("was {what}"),
                    LinkState::Nothing => "was missing".to_owned(),
                };
                found.done.push(format!("{link} {was}; it names {wanted} again"));
            }
            (LinkState::Generation(_), None) => return Ok(None), // wanted() never gives up one that is there
        }
        self.sync_link()?;
        Ok(wanted)
    }

    /// What the link should name.
    fn desired_target(&self, seen: &LinkState, scan: &Scan, now: &Now) -> Option<Name> {
        let there = |name: &Name| scan.generations.contains_key(name);
        let seen = match seen {
            LinkState::Generation(name) => Some(name),
            _ => None,
        };
        if seen.is_some() && seen == self.state.publishing.as_ref() {
            return seen.cloned(); // a publication that got past its swap
        }
        if let Some(name) = seen.filter(|name| self.layout.is_git_sync && self.state.record(name).is_none()) {
            return Some(name.clone()); // published by git-sync, before us or in between
        }
        if let Some(last) = self.state.current.as_ref().filter(|name| there(name)) {
            return Some(last.clone());
        }
        let trusted = || {
            let good = |record: &&GenerationRecord| there(&record.name) && record.is_trusted(now);
            self.state.generations.iter().find(good).map(|record| record.name.clone())
        };
        // Whole, as everything that has a generation's name, but it is unknown which revision it is.
        let any = || {
            let ours = scan
                .generations
                .iter()
                .rev()
                .filter(|&(name, ours)| *ours && Some(name) != self.state.publishing.as_ref())
                .filter(|_| !self.layout.is_git_sync); // a commit's id says nothing about its age
            ours.map(|(name, _)| name.clone()).next()
        };
        seen.cloned().or_else(trusted).or_else(any)
    }

    /// A publication that did not reach its swap is taken back; one that did is done.
    fn finish_publication(&mut self, scan: &Scan, serving: Option<&Name>, found: &mut Recovered) {
        let Some(name) = self.state.publishing.take() else { return };
        if let Some(other) = self.state.replacing.take() {
            return self.mark_exchange_unknown(&name, &other, scan);
        }
        if Some(&name) == serving {
            return;
        }
        self.state.remove(&name);
        if !scan.generations.contains_key(&name) {
            return;
        }
        let line = match self.trash.put(&self.layout.home, name.as_str(), None) {
            Ok(()) => (&mut found.done, format!("removed {name}: its publication did not end")),
            Err(error) => {
                (&mut found.warnings, format!("cannot remove {name}, whose publication did not end: {error}"))
            }
        };
        line.0.push(line.1);
    }

    /// Two generations of one commit were to be exchanged, and it is not known whether they were. If the exchange
    /// cannot have been made, the record goes back to its name; else nothing is known about either but its commit.
    fn mark_exchange_unknown(&mut self, name: &Name, other: &Name, scan: &Scan) {
        self.state.remove(name);
        if !scan.generations.contains_key(other) {
            return self.state.rename(other, name);
        }
        let Some(old) = self.state.record(other).cloned() else { return };
        self.state.remove(other);
        for name in [name, other].into_iter().filter(|name| scan.generations.contains_key(name)) {
            self.state.put(GenerationRecord { name: name.clone(), ..old.clone() }.untrusted());
        }
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
                let record = self.found_record(name, now);
                self.state.put(record);
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

    fn repair_root_links(
        &mut self,
        serving: Option<Name>,
        scan: &Scan,
        found: &mut Recovered,
    ) -> Result<(), Error> {
        let names = match serving {
            None => Arc::default(),
            Some(_) if self.layout.is_git_sync => Arc::default(),
            Some(name) => match self.names.take() {
                Some((of, names)) if of == name => self.names.insert((of, names)).1.clone(),
                _ => {
                    let dir = self.layout.generation(&name)?;
                    let names = TopNames::of(dir).map_err(Error::io("list", self.layout.place(&name)))?;
                    self.names.insert((name, Arc::new(names))).1.clone()
                }
            },
        };
        for name in scan.foreign.iter().filter(|name| !names.contains(name)) {
            found.foreign.push(format!("{name:?} is not ours"));
        }
        if self.layout.is_git_sync {
            return Ok(()); // it has none
        }
        if let Err(error) = self.layout.repair_links(&names, found) {
            found.warnings.push(one_line(&error));
        }
        Ok(())
    }
}

impl Layout {
    fn link_state(&self, scan: &Scan) -> Result<LinkState, Error> {
        let target = match self.link.read()? {
            Link::Absent => return Ok(LinkState::Nothing),
            Link::To(target) => target,
            Link::Other(kind) => {
                let what = if kind == FileType::Directory { "a directory" } else { "a file" };
                if self.is_git_sync {
                    let why = format!("{what} is there, and no link; it is left alone");
                    return Err(Error::BadLink { path: self.link.path(), why });
                }
                return Ok(LinkState::Odd(what.to_owned()));
            }
        };
        Ok(match self.link.named_by(&target) {
            Some(name) if scan.generations.contains_key(&name) => LinkState::Generation(name),
            Some(name) => {
                let there = fsx::stat(&self.home, name.as_str());
                match there.map_err(Error::io("look at", self.place(&name)))? {
                    None => LinkState::Dangling(name),
                    Some(_) => LinkState::Odd(format!("a link to {name}, which is no directory,")),
                }
            }
            None => LinkState::Odd(format!("a link to {target:?}")),
        })
    }

    fn is_dir(&self, name: &Name) -> bool {
        matches!(fsx::stat(&self.home, name.as_str()), Ok(Some(stat)) if fsx::file_type(&stat) == FileType::Directory)
    }

    pub(super) fn measure(&self, name: &Name) -> fsx::walk::Measured {
        let measured = fsx::open_dir(&self.home, name.as_str()).and_then(fsx::walk::measure);
        measured.unwrap_or_default() // it cannot be read: then at least it is not counted twice
    }

    /// Moves something that stands beside the link out of sight, unread, and says where it is now, seen from there.
    fn move_aside(&self, name: &OsStr) -> Result<String, Error> {
        let dir = &self.link.dir;
        match quarantine::move_to(dir, name, &self.private, QUARANTINE) {
            Ok(to) => Ok(format!("{PRIVATE}/{to}")),
            // Another user's directory has another parent only with the right to write into it (rename(2), EACCES), and
            // the link may be on another file system. Its name it can lose.
            Err(_) => quarantine::move_to(dir, name, dir, PRIVATE_ASIDE)
                .map_err(Error::io("move aside", self.link.dir_path().join(name))),
        }
    }

    /// Moves a name in one of our own directories aside.
    pub(super) fn quarantine(&self, dir: &OwnedFd, name: &OsStr) -> Result<String, Error> {
        quarantine::move_to(dir, name, &self.private, QUARANTINE)
            .map_err(Error::io("move aside", self.at(name)))
    }

    /// Moves what is under one of our names in our own directory aside, unless it is of this kind.
    pub(super) fn quarantine_foreign(
        &self,
        name: &str,
        kind: FileType,
        found: &mut Recovered,
    ) -> Result<(), Error> {
        let moved = quarantine::quarantine_unless(&self.private, name, kind, QUARANTINE);
        found.moved(
            &Path::new(PRIVATE).join(name),
            moved.map_err(Error::io("move aside", self.private_at(name)))?,
        );
        Ok(())
    }

    /// The same for everything in our own directory that is not opened before. Only with the lock.
    pub(super) fn quarantine_all_foreign(&self, found: &mut Recovered) -> Result<(), Error> {
        for name in [STATE, STATUS, LEDGER, DAMAGED] {
            self.quarantine_foreign(name, FileType::RegularFile, found)?;
        }
        self.quarantine_foreign(SOCKET, FileType::Socket, found)?;
        // A link to a directory may be the operator's way of having the mirror elsewhere.
        let is_dir = rustix::fs::statat(&self.private, MIRROR, AtFlags::empty())
            .is_ok_and(|stat| fsx::file_type(&stat).is_dir());
        if !is_dir && fsx::stat(&self.private, MIRROR).is_ok_and(|there| there.is_some()) {
            let to = self.quarantine(&self.private, MIRROR.as_ref())?;
            found.moved(&Path::new(PRIVATE).join(MIRROR), Some(to));
        }
        Ok(())
    }

    /// Puts the link in the place of something that is not one, without a moment in which nothing is there, and moves
    /// that something aside. Where the file system cannot exchange, there is such a moment.
    fn exchange_link(&self, name: &Name) -> Result<String, Error> {
        self.link.make_tmp(name)?;
        if fsx::exchange(&self.root, LINK_TMP, &self.root, LINK).map_err(Error::io("swap", self.at(LINK)))? {
            return self.move_aside(LINK_TMP.as_ref());
        }
        let to = self.move_aside(LINK.as_ref())?;
        self.link.swap_tmp()?;
        Ok(to)
    }
}
