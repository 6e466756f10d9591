//! Recovery: brings a root back to the layout that the module doc of [`super::layout`] draws.
//!
//! The same steps run when the root is opened and in every cycle, before any network I/O: first the published link,
//! then the root links, then left-overs. Each step checks first and acts only if something is wrong, so that an idle
//! cycle causes no file system event.
//!
//! Recovery never changes the content of a generation and never deletes anything foreign. Something foreign with the
//! published link's name is moved, unread, to `..treeswap/quarantine-*`, or to a name next to the link if the kernel
//! does not allow that; everything else that is foreign is only reported. A link target is trusted only if it is a
//! generation's name and a real directory has that name.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use rustix::fs::{Access, AtFlags, FileType};

use crate::clock::Now;
use crate::fsx::walk::{self, Measured, SeenLinks};
use crate::fsx::{self, Link, Lock};
use crate::generation::{DATA_LINK, GenerationRecord, Name, Retired};
use crate::human::one_line;
use crate::store::layout::{RootHandles, RootLink, root_link};
use crate::store::links::TopNames;
use crate::store::names::{LINK_TMP, PRIVATE, PRIVATE_ASIDE, QUARANTINE};
use crate::store::{Error, Recovered, Store, operator_file, quarantine};

/// The names in the directory that holds the generations.
pub(super) struct Scan {
    /// Directories with a generation's name. True if our user owns the directory or may change it.
    generations: BTreeMap<Name, bool>,
    /// Names that are neither ours nor root links.
    foreign: Vec<OsString>,
}

/// What has the published link's name.
enum LinkState {
    /// The name does not exist.
    Nothing,
    /// A link to an existing generation.
    Generation(Name),
    /// A link to a generation that does not exist.
    Dangling(Name),
    /// Something that we did not publish, described for the log. In git-sync's layout such a link stays until the first
    /// publication: it may name a tree of git-sync version 3, or a release that an operator put there by hand.
    Odd(String),
}

/// When recovery runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RecoveryTime {
    /// When the root is opened: a publication on record may be one of a killed process, at any of its steps.
    Start,
    /// Later: a publication on record is one of this process that failed before its swap.
    Running,
}

impl Store {
    /// Runs recovery in every cycle: repairs the published link and the root links, removes left-overs. Changes
    /// nothing if everything is right. If the root or our private directory was removed or replaced, reopens the
    /// store first.
    pub fn repair(&mut self, now: &Now) -> Result<Recovered, Error> {
        let mut found = Recovered::default();
        if let Some(why) = self.reopen_reason()? {
            found = self.reopen()?;
            found.done.insert(0, why);
            return Ok(found);
        }
        self.recover_into(now, RecoveryTime::Running, &mut found)?;
        Ok(found)
    }

    /// Runs recovery and adds to `found` what it found and did.
    pub(super) fn recover_into(
        &mut self,
        now: &Now,
        time: RecoveryTime,
        found: &mut Recovered,
    ) -> Result<(), Error> {
        let before = self.state.clone();
        self.drop_stale_tmp(found)?;
        if self.handles.is_git_sync {
            self.take_over(now, found)?;
        }
        let scan = self.scan()?;
        let serving = match self.repair_link(&scan, now, found) {
            // The link may need an inode that the trash has.
            Err(error) => {
                self.sweep_trash(found);
                return Err(error);
            }
            serving => serving?,
        };
        self.finish_publication(&scan, serving.as_ref(), time, found);
        self.reconcile(&scan, serving.as_ref(), now, found);
        self.repair_root_links(serving, &scan, found);
        self.sweep_trash(found);
        if self.unsynced {
            self.sync_link()?;
        }
        // The records come last and a failure is only a warning: a full disk must not prevent repairing links.
        if (self.state != before || self.unsaved)
            && let Err(error) = self.save()
        {
            found.warnings.push(one_line(&error));
        }
        Ok(())
    }

    /// Queues what is left in the trash, and reports what could not be deleted.
    fn sweep_trash(&self, found: &mut Recovered) {
        if let Err(error) = self.trash.sweep() {
            found.warnings.push(one_line(&error));
        }
        found.warnings.extend(self.trash.failures());
    }

    /// Lists and classifies the names in the directory that holds the generations.
    pub(super) fn scan(&self) -> Result<Scan, Error> {
        let handles = &self.handles;
        let uid = rustix::process::geteuid();
        let mut scan = Scan { generations: BTreeMap::new(), foreign: Vec::new() };
        let path = handles.link.generations_path();
        for entry in fsx::list(&handles.generations_dir).map_err(Error::io("list", path))? {
            let name = entry.os();
            let failed = || Error::io("stat", path.join(name));
            let known =
                [DATA_LINK, LINK_TMP, PRIVATE, "lost+found"].iter().any(|known| name == OsStr::new(known))
                    || !handles.is_git_sync
                        && operator_file::is_operator_name(&self.options.operator_names, name);
            let stat = || fsx::stat(&handles.generations_dir, name).map_err(failed());
            match handles.link.name_of(name) {
                _ if known => {}
                Some(generation) => match stat()? {
                    Some(stat) if fsx::file_type(&stat) == FileType::Directory => {
                        let ours = uid.is_root() || stat.st_uid == uid.as_raw() || self.may_change(name);
                        scan.generations.insert(generation, ours);
                    }
                    Some(_) => scan.foreign.push(name.to_owned()),
                    None => {}
                },
                None => {
                    if handles.is_git_sync
                        || root_link(&handles.root, name).map_err(failed())? == RootLink::Foreign
                    {
                        scan.foreign.push(name.to_owned());
                    }
                }
            }
        }
        Ok(scan)
    }

    /// Returns true if we may change a generation's directory although another user owns it: on a file system that shows
    /// one owner for all (NFS with `all_squash`), or as a member of its group.
    fn may_change(&self, name: &OsStr) -> bool {
        let access = Access::WRITE_OK | Access::EXEC_OK;
        rustix::fs::accessat(&self.handles.generations_dir, name, access, AtFlags::EACCESS).is_ok()
    }

    /// Removes the temporary link that a publication left behind: by P5, or step 6 in git-sync's layout.
    fn drop_stale_tmp(&self, found: &mut Recovered) -> Result<(), Error> {
        let link = &self.handles.link;
        let tmp = &link.tmp;
        let path = link.dir_path().join(tmp);
        match fsx::read_link(&link.dir, tmp.as_os_str()).map_err(Error::io("stat", &path))? {
            Link::Absent => {}
            Link::To(target) if link.generation_in(&target).is_some() => {
                fsx::unlink(&link.dir, tmp.as_os_str()).map_err(Error::io("remove", &path))?;
                found.done.push(format!("removed {}, left by a publication that did not end", tmp.display()));
            }
            Link::To(_) | Link::Other(_) => {
                let to = self.handles.move_aside(tmp)?;
                found.done.push(format!("moved {}, which treeswap did not create, to {to}", tmp.display()));
            }
        }
        Ok(())
    }

    /// Makes the published link name the generation that was published last or, without that, the best one there is.
    /// Returns the generation that the link names afterwards.
    fn repair_link(&mut self, scan: &Scan, now: &Now, found: &mut Recovered) -> Result<Option<Name>, Error> {
        let seen = self.handles.link_state(scan)?;
        let wanted = self.desired_target(&seen, scan, now);
        let link = self.handles.link.shown().to_string();
        match (&seen, &wanted) {
            (LinkState::Generation(name), Some(wanted)) if name == wanted => return Ok(Some(name.clone())),
            (LinkState::Nothing, None) => return Ok(None),
            (LinkState::Dangling(name), None) => {
                found.warnings.push(format!(
                    "{link} names {name}, which is gone; nothing is served until the next publication"
                ));
                return Ok(None);
            }
            (LinkState::Odd(what), None) if self.handles.is_git_sync => {
                found.foreign.push(format!("{link} is {what} until the first publication"));
                return Ok(None);
            }
            (LinkState::Odd(what), None) => {
                let to = self.handles.move_aside(DATA_LINK.as_ref())?;
                found.done.push(format!("moved {what} from {link} to {to}"));
            }
            (LinkState::Odd(what), Some(wanted)) if !self.handles.is_git_sync => {
                let to = self.handles.exchange_link(wanted)?;
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
            (LinkState::Generation(_), None) => return Ok(None), // desired_target() keeps an existing generation
        }
        self.sync_link()?;
        Ok(wanted)
    }

    /// Returns the generation that the published link should name, if there is one.
    fn desired_target(&self, seen: &LinkState, scan: &Scan, now: &Now) -> Option<Name> {
        let exists = |name: &Name| scan.generations.contains_key(name);
        let is_lost = matches!(seen, LinkState::Nothing);
        let seen = match seen {
            LinkState::Generation(name) => Some(name),
            _ => None,
        };
        if seen.is_some() && seen == self.state.publishing.as_ref() {
            return seen.cloned(); // the publication completed its swap
        }
        if let Some(name) = seen.filter(|name| self.handles.is_git_sync && self.state.record(name).is_none())
        {
            return Some(name.clone()); // published by git-sync, before treeswap ran or since
        }
        // Nobody knows whether the publication completed its swap before the link was lost. If it did, readers are in
        // the new generation; if not, it is complete and was about to be published.
        let publishing = self.state.publishing.as_ref().filter(|_| is_lost && self.state.replacing.is_none());
        let is_good =
            |name: &&Name| exists(name) && self.state.record(name).is_some_and(|r| r.is_trusted(now));
        if let Some(name) = publishing.filter(is_good) {
            return Some(name.clone());
        }
        if let Some(last) = self.state.current.as_ref().filter(|name| exists(name)) {
            return Some(last.clone());
        }
        let trusted = || {
            let good = |record: &&GenerationRecord| exists(&record.name) && record.is_trusted(now);
            self.state.generations.iter().find(good).map(|record| record.name.clone())
        };
        // Complete, as every directory with a generation's name is, but of an unknown revision.
        let any = || {
            let ours = scan
                .generations
                .iter()
                .rev()
                .filter(|&(name, ours)| *ours && Some(name) != self.state.publishing.as_ref())
                .filter(|_| !self.handles.is_git_sync); // commit ids give no order by age
            ours.map(|(name, _)| name.clone()).next()
        };
        seen.cloned().or_else(trusted).or_else(any)
    }

    /// Undoes a publication that did not reach its swap, and completes one that did.
    fn finish_publication(
        &mut self,
        scan: &Scan,
        serving: Option<&Name>,
        time: RecoveryTime,
        found: &mut Recovered,
    ) {
        let Some(name) = self.state.publishing.take() else { return };
        if let Some(other) = self.state.replacing.take() {
            return self.mark_exchange_unknown(&name, &other, scan);
        }
        if Some(&name) == serving {
            return;
        }
        if !scan.generations.contains_key(&name) {
            self.state.remove(&name);
            return;
        }
        let dir = fsx::open_dir(&self.handles.generations_dir, name.as_str()).ok();
        let lock =
            dir.as_ref().map_or(Lock::Unsupported, |dir| fsx::try_lock(dir).unwrap_or(Lock::Unsupported));
        // If the process was killed, readers may be in it: the swap may have happened, and the link may have been
        // changed since. In this process the swap failed, so only a hook that was told before it can have pinned it.
        if time == RecoveryTime::Start && self.may_be_pinned(lock) {
            let why = "its publication did not end, and a reader may have pinned it";
            found.done.push(format!("retired {name}: {why}"));
            return;
        }
        self.state.remove(&name);
        let locked_dir = dir.filter(|_| lock == Lock::Taken);
        let line = match self.trash.put(&self.handles.generations_dir, name.as_str(), locked_dir) {
            Ok(()) => (&mut found.done, format!("removed {name}: its publication did not end")),
            Err(error) => {
                (&mut found.warnings, format!("cannot remove {name}, whose publication did not end: {error}"))
            }
        };
        line.0.push(line.1);
    }

    /// Handles a crash around the exchange of two generations of one commit, when it is unknown whether they were
    /// exchanged. If the exchange cannot have happened, the old record gets its name back. Otherwise only the commit
    /// of both is known.
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

    /// Brings the records in line with the directories that exist.
    fn reconcile(&mut self, scan: &Scan, serving: Option<&Name>, now: &Now, found: &mut Recovered) {
        let is_usable = |name: &Name| match scan.generations.get(name) {
            Some(ours) => *ours || serving == Some(name),
            None => false,
        };
        self.state.generations.retain(|record| {
            let keep = is_usable(&record.name);
            if !keep {
                let is_there = scan.generations.contains_key(&record.name);
                let why = if is_there { "which belongs to another user" } else { "which is gone" };
                found.done.push(format!("forgot {}, {why}", record.name));
            }
            keep
        });
        for name in scan.generations.keys() {
            if !is_usable(name) {
                found.foreign.push(format!("{name} belongs to another user"));
            } else if self.state.record(name).is_none() && self.handles.is_dir(name) {
                let record = self.found_record(name, serving.is_some(), now);
                self.state.put(record);
                found.done.push(format!("found generation {name}, which is not on record"));
            }
        }
        for record in &mut self.state.generations {
            if serving == Some(&record.name) {
                record.retired = None;
            } else {
                match &record.retired {
                    None => record.retired = Some(Retired::at(now)),
                    // The boot clocks of two boots cannot be compared, and the other boot may be another machine's,
                    // whose readers are elsewhere or start only now. So the grace period begins again.
                    Some(retired) if retired.is_of_another_boot(now) => {
                        record.retired = Some(Retired { at: retired.at, ..Retired::at(now) });
                    }
                    Some(_) => {}
                }
            }
        }
        self.state.current = serving.cloned();
    }

    /// Reports foreign names, and brings the root links in line with the generation that the link names. If that cannot
    /// be listed, the links stay, and the generation is in doubt. Its record stays, too: with the revision on record
    /// it can be published afresh without the network.
    fn repair_root_links(&mut self, serving: Option<Name>, scan: &Scan, found: &mut Recovered) {
        let names = match serving.map_or_else(|| Ok(Arc::default()), |name| self.top_names_of(name)) {
            Ok(names) => names,
            Err(error) => {
                found.warnings.push(one_line(&error));
                found.in_doubt = true;
                return;
            }
        };
        for name in scan.foreign.iter().filter(|name| !names.contains(name)) {
            // In a kubelet's layout the names of the operator's files begin like that. An option that is gone is unknown.
            let bytes = name.as_encoded_bytes();
            let may_be_operators = bytes.starts_with(b"..") && !bytes.starts_with(PRIVATE_ASIDE.as_bytes());
            found.foreign.push(if may_be_operators && !self.handles.is_git_sync {
                format!("{name:?} is not treeswap's (of an earlier --touch-file or --error-file?)")
            } else {
                format!("{name:?} was not created by treeswap")
            });
        }
        if self.handles.is_git_sync {
            return; // that layout has no root links
        }
        if let Err(error) = self.handles.repair_links(&names, found) {
            found.warnings.push(one_line(&error));
        }
    }

    /// The top-level names of the generation that the link names. Empty in git-sync's layout.
    fn top_names_of(&mut self, name: Name) -> Result<Arc<TopNames>, Error> {
        if self.handles.is_git_sync {
            return Ok(Arc::default());
        }
        if let Some((of, names)) = &self.top_names
            && *of == name
        {
            return Ok(Arc::clone(names));
        }
        let dir = self.handles.generation(&name)?;
        let names = TopNames::of(dir).map_err(Error::io("list", self.handles.path_of(&name)))?;
        let names = Arc::new(names);
        self.top_names = Some((name, Arc::clone(&names)));
        Ok(names)
    }
}

impl RootHandles {
    /// Classifies what has the published link's name.
    fn link_state(&self, scan: &Scan) -> Result<LinkState, Error> {
        let target = match self.link.read()? {
            Link::Absent => return Ok(LinkState::Nothing),
            Link::To(target) => target,
            Link::Other(kind) => {
                let what = if kind == FileType::Directory { "a directory" } else { "a file" };
                if self.is_git_sync {
                    let why = format!("{what} is there instead of a link; it is left alone");
                    return Err(Error::BadLink { path: self.link.path(), why });
                }
                return Ok(LinkState::Odd(what.to_owned()));
            }
        };
        Ok(match self.link.generation_in(&target) {
            Some(name) if scan.generations.contains_key(&name) => LinkState::Generation(name),
            Some(name) => {
                let there = fsx::stat(&self.generations_dir, name.as_str());
                match there.map_err(Error::io("stat", self.path_of(&name)))? {
                    None => LinkState::Dangling(name),
                    Some(_) => LinkState::Odd(format!("a link to {name}, which is not a directory,")),
                }
            }
            None => LinkState::Odd(format!("a link to {target:?}")),
        })
    }

    fn is_dir(&self, name: &Name) -> bool {
        matches!(fsx::stat(&self.generations_dir, name.as_str()), Ok(Some(stat)) if fsx::file_type(&stat) == FileType::Directory)
    }

    /// Measures a generation's tree, after those that `seen` was used for. Zero if it cannot be read.
    pub(super) fn measure(&self, name: &Name, seen: &mut SeenLinks) -> Measured {
        let dir = fsx::open_dir(&self.generations_dir, name.as_str());
        dir.and_then(|dir| walk::measure(dir, seen)).unwrap_or_default()
    }

    /// Moves something next to the published link away, unread. Returns its new path relative to the root, or to the
    /// link's directory.
    fn move_aside(&self, name: &OsStr) -> Result<String, Error> {
        let dir = &self.link.dir;
        match quarantine::move_to(dir, name, &self.private, QUARANTINE) {
            Ok(to) => Ok(format!("{PRIVATE}/{to}")),
            // Moving another user's directory to a new parent needs write permission on it (rename(2), EACCES), and the
            // link may be on another file system. Renaming within the same directory works in both cases.
            Err(_) => quarantine::move_to(dir, name, dir, PRIVATE_ASIDE)
                .map_err(Error::io("move aside", self.link.dir_path().join(name))),
        }
    }

    /// Replaces something foreign under the link's name by the link, and moves the foreign thing aside. The name is
    /// never absent, unless the file system cannot exchange names. Returns where the foreign thing is now.
    fn exchange_link(&self, name: &Name) -> Result<String, Error> {
        self.link.make_tmp(name)?;
        if fsx::exchange(&self.root, LINK_TMP, &self.root, DATA_LINK)
            .map_err(Error::io("swap", self.at(DATA_LINK)))?
        {
            return self.move_aside(LINK_TMP.as_ref());
        }
        let to = self.move_aside(DATA_LINK.as_ref())?;
        self.link.swap_tmp()?;
        Ok(to)
    }
}
