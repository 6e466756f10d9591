//! What a reader sees, against what was pushed: every generation is one revision of each source, whole, and none is older
//! than one that was seen before.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use treeswap::pin::{Options, Pin};

use crate::common::root;
use crate::common::tree::{Node, Snapshot};
use crate::life::few;
use crate::tree::How;

/// A directory under a name: in git-sync's layout a name may come again.
pub type Generation = (OsString, u64);

/// What the ref of a source named, one after the other; `None`: what must be refused.
type Moments = Vec<Option<Snapshot>>;

pub struct Judge {
    pub root: PathBuf,
    link: PathBuf,
    how: How,
    state: Mutex<State>,
    /// Held while somebody writes into a generation, until it is noted which one. The files of older ones that were written
    /// to by who had them open: as docs/guides/reading.md says, that may come into a newer one.
    pub writing: Mutex<Vec<File>>,
}

#[derive(Default)]
struct State {
    moments: Vec<Moments>,
    /// Of each source, the earliest moment that can be what was seen last.
    seen: Vec<usize>,
    /// What was seen last, and in which generation.
    last: Option<(Generation, Snapshot)>,
    /// Generations that somebody wrote into.
    tampered: BTreeSet<Generation>,
    generations: BTreeSet<Generation>,
    reads: usize,
    wrong: Option<String>,
}

impl Judge {
    pub fn new(root: &Path, how: &How) -> Self {
        let sources = how.sources.max(1);
        let state = State { moments: vec![Vec::new(); sources], seen: vec![0; sources], ..State::default() };
        let link = root.join(if how.git_sync { "live" } else { "..data" });
        Self {
            root: root.to_owned(),
            link,
            how: how.clone(),
            state: Mutex::new(state),
            writing: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// The ref is about to name this.
    pub fn pushes(&self, source: usize, tree: Option<Snapshot>) {
        self.state().moments[source].push(tree);
    }

    /// Somebody is about to write into that generation.
    pub fn is_tampered_with(&self, name: &OsStr) {
        if let Ok(meta) = self.directory(name).metadata() {
            self.state().tampered.insert((name.to_owned(), meta.ino()));
        }
    }

    /// Notes which generation has a file that was written to, if one has, and says whether it is the current one: what is
    /// written into that must never be in another.
    pub fn note(&self, file: &File) -> bool {
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        if let Ok(path) = path.strip_prefix(&self.root) {
            path.iter().take(2).for_each(|name| self.is_tampered_with(name));
        }
        path.starts_with(self.link.canonicalize().unwrap_or_default())
    }

    /// Where a generation of this name lies.
    pub fn directory(&self, name: &OsStr) -> PathBuf {
        if self.how.git_sync { self.root.join(".worktrees").join(name) } else { self.root.join(name) }
    }

    pub fn wrong(&self) -> Option<String> {
        self.state().wrong.clone()
    }

    pub fn generations(&self) -> usize {
        self.state().generations.len()
    }

    pub fn reads(&self) -> usize {
        self.state().reads
    }

    /// The generation that was seen last, if nobody wrote into it.
    pub fn last(&self) -> Option<OsString> {
        let state = self.state();
        let (generation, _) = state.last.as_ref()?;
        (!state.tampered.contains(generation)).then(|| generation.0.clone())
    }

    fn placed(&self, source: usize) -> Vec<u8> {
        format!("s{source}").into_bytes()
    }

    /// What must be seen in the end: the newest of each source. `None` where some source must stay where it is.
    pub fn newest(&self) -> Option<Snapshot> {
        let state = self.state();
        let newest: Option<Vec<&Snapshot>> = state.moments.iter().map(|all| all.last()?.as_ref()).collect();
        let newest = newest?;
        if self.how.sources == 0 {
            return Some(newest[0].clone());
        }
        let mut all = BTreeMap::new();
        for (source, tree) in newest.iter().enumerate() {
            let place = self.placed(source);
            if !tree.0.is_empty() {
                all.insert(place.clone(), Node::Directory);
            }
            let entries = tree.0.iter();
            all.extend(entries.map(|(path, node)| ([&place[..], b"/", path].concat(), node.clone())));
        }
        Some(Snapshot(all))
    }

    /// What keeps the newest from being served; empty when it is.
    pub fn lacks(&self, newest: &Snapshot) -> Vec<String> {
        let state = self.state();
        let Some((_, last)) = &state.last else { return vec!["nothing is published".into()] };
        let mut lines = newest.differences(last);
        drop(state);
        if lines.is_empty() {
            lines.extend(root::wrong_links(&self.root, newest));
        }
        lines
    }

    /// Reads until told to stop, or something is wrong.
    pub fn watch(&self, stop: &AtomicBool) {
        let mut round = 0;
        while !stop.load(Ordering::Relaxed) {
            round += 1;
            if let Err(wrong) = self.look(round % 32 == 0) {
                self.state().wrong.get_or_insert(wrong);
                return;
            }
            std::thread::sleep(Duration::from_micros(600));
        }
    }

    /// One read, pinned as docs/guides/reading.md has it.
    fn look(&self, again: bool) -> Result<(), String> {
        let pin = match Pin::take_link(&self.link, &Options::default()) {
            Ok(pin) => pin,
            Err(_) if self.state().last.is_none() => return Ok(()),
            Err(error) => return Err(format!("a reader finds nothing: {error}")),
        };
        let name = of(&pin);
        if !again && self.state().last.as_ref().is_some_and(|(last, _)| *last == name) {
            return Ok(());
        }
        let found = self.read(&pin);
        drop(pin);
        let Some(found) = self.unless_tampered(&name, found)? else { return Ok(()) };
        let wrong = self.judge(&name, found).err();
        wrong.map_or(Ok(()), |wrong| self.unless_tampered(&name, Err(wrong)).map(|_: Option<()>| ()))
    }

    /// What is below a pin, without what git-sync's layout adds.
    pub fn read(&self, pin: &Pin) -> Result<Snapshot, String> {
        let read = Snapshot::read(&pin.path());
        let mut found = read.map_err(|error| format!("reading {}: {error}", pin.generation().display()))?;
        if self.how.git_sync {
            found.0.retain(|path, _| path != b".git" && !path.ends_with(b"/.git"));
        }
        Ok(found)
    }

    /// What was found, unless somebody wrote into the generation: then nothing can be said about it.
    pub fn unless_tampered<T>(
        &self,
        name: &Generation,
        found: Result<T, String>,
    ) -> Result<Option<T>, String> {
        let kept = self.writing.lock().unwrap();
        kept.iter().for_each(|file| {
            self.note(file);
        });
        if self.state().tampered.contains(name) { Ok(None) } else { found.map(Some) }
    }

    fn judge(&self, name: &Generation, found: Snapshot) -> Result<(), String> {
        let mut state = self.state();
        let state = &mut *state;
        state.reads += 1;
        for (source, moments) in state.moments.iter().enumerate() {
            let part = if self.how.sources == 0 { found.clone() } else { self.part(source, &found) };
            let is_it = |moment: &Option<Snapshot>| moment.as_ref() == Some(&part);
            let least = state.seen[source];
            if let Some(later) = moments[least.min(moments.len())..].iter().position(is_it) {
                state.seen[source] = least + later;
                continue;
            }
            let was = moments.iter().position(is_it);
            let (now, newest) = (moments.get(least).cloned().flatten(), moments.last().cloned().flatten());
            let against = |tree: Option<Snapshot>| few(&tree.unwrap_or_default().differences(&part));
            return Err(format!(
                "{} is {} of source {source}, after push {least} of {} was seen\n  against that:\n    {}\n  against the newest:\n    {}",
                name.0.display(),
                was.map_or("no revision".into(), |was| format!("the older push {was}")),
                moments.len() - 1,
                against(now),
                against(newest),
            ));
        }
        let foreign =
            |path: &&Vec<u8>| (0..self.how.sources).all(|source| !path.starts_with(&self.placed(source)));
        if self.how.sources > 0
            && let Some(path) = found.0.keys().find(foreign)
        {
            return Err(format!("{}: {} is of no source", name.0.display(), path.escape_ascii()));
        }
        state.generations.insert(name.clone());
        state.last = Some((name.clone(), found));
        Ok(())
    }

    /// What one source has in a set.
    fn part(&self, source: usize, all: &Snapshot) -> Snapshot {
        let place = [&self.placed(source)[..], b"/"].concat();
        let below = all
            .0
            .iter()
            .filter_map(|(path, node)| Some((path.strip_prefix(&place[..])?.to_vec(), node.clone())));
        Snapshot(below.collect())
    }

    /// A pin that a reader holds, and what it saw.
    pub fn hold(&self, until: usize) -> Option<Held> {
        let pin = Pin::take_link(&self.link, &Options::default()).ok()?;
        let saw = self.read(&pin);
        let saw = self.unless_tampered(&of(&pin), saw).ok()??;
        Some(Held { pin, saw, until })
    }

    /// What was pinned is still what it was.
    pub fn release(&self, held: Held) -> Result<(), String> {
        let name = of(&held.pin);
        let Some(now) = self.unless_tampered(&name, self.read(&held.pin))? else { return Ok(()) };
        let lines = held.saw.differences(&now);
        if lines.is_empty() || self.state().tampered.contains(&name) {
            return Ok(());
        }
        Err(format!("{} changed while it was pinned:\n    {}", name.0.display(), few(&lines)))
    }
}

fn of(pin: &Pin) -> Generation {
    let inode = rustix::fs::fstat(pin.dir()).map_or(0, |stat| stat.st_ino);
    (pin.generation().to_owned(), inode)
}

/// A generation that a reader holds.
pub struct Held {
    pin: Pin,
    saw: Snapshot,
    /// The step at which it is released.
    pub until: usize,
}
