//! Checks what a reader sees against what was pushed: every generation is exactly one revision of each source, and none
//! is older than one that was seen before.

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

/// A generation's name and inode number: in git-sync's layout a name may be used again.
pub type Generation = (OsString, u64);

/// The trees that a source's ref named, in order. `None`: the revision must be refused.
type Moments = Vec<Option<Snapshot>>;

pub struct Judge {
    pub root: PathBuf,
    link: PathBuf,
    how: How,
    state: Mutex<State>,
    /// Locked during a foreign write until the generation is marked. Contains open files of older generations that were
    /// written to: as docs/guides/reading.md says, such writes may get into a newer generation.
    pub writing: Mutex<Vec<File>>,
}

#[derive(Default)]
struct State {
    moments: Vec<Moments>,
    /// For each source, the earliest moment that equals what was seen last.
    seen: Vec<usize>,
    /// The generation that was seen last, and its tree.
    last: Option<(Generation, Snapshot)>,
    /// Generations with foreign writes.
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

    /// Tells that the source's ref is about to name a commit with this tree.
    pub fn pushes(&self, source: usize, tree: Option<Snapshot>) {
        self.state().moments[source].push(tree);
    }

    /// Marks a generation as written to by the test.
    pub fn mark_tampered(&self, name: &OsStr) {
        if let Ok(meta) = self.directory(name).metadata() {
            self.state().tampered.insert((name.to_owned(), meta.ino()));
        }
    }

    /// Marks the generation that contains a file that was written to. Returns true if it is the current one: a write
    /// into that must never get into another.
    pub fn mark_tampered_file(&self, file: &File) -> bool {
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        if let Ok(path) = path.strip_prefix(&self.root) {
            path.iter().take(2).for_each(|name| self.mark_tampered(name));
        }
        path.starts_with(self.link.canonicalize().unwrap_or_default())
    }

    /// The directory of the generation with this name.
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

    /// The name of the generation that was seen last, unless it was written to.
    pub fn last(&self) -> Option<OsString> {
        let state = self.state();
        let (generation, _) = state.last.as_ref()?;
        (!state.tampered.contains(generation)).then(|| generation.0.clone())
    }

    /// Where a source is placed.
    fn place_of(&self, source: usize) -> Vec<u8> {
        format!("s{source}").into_bytes()
    }

    /// The tree that must be published in the end, with the newest commit of each source. `None` if one of them must be
    /// refused.
    pub fn newest(&self) -> Option<Snapshot> {
        let state = self.state();
        let newest: Option<Vec<&Snapshot>> = state.moments.iter().map(|all| all.last()?.as_ref()).collect();
        let newest = newest?;
        if self.how.sources == 0 {
            return Some(newest[0].clone());
        }
        let mut all = BTreeMap::new();
        for (source, tree) in newest.iter().enumerate() {
            let place = self.place_of(source);
            if !tree.0.is_empty() {
                all.insert(place.clone(), Node::Directory);
            }
            let entries = tree.0.iter();
            all.extend(entries.map(|(path, node)| ([&place[..], b"/", path].concat(), node.clone())));
        }
        Some(Snapshot(all))
    }

    /// The differences of what is published from the newest tree; empty if there are none.
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

    /// Reads until `stop` is set or something is wrong.
    pub fn watch(&self, stop: &AtomicBool) {
        let mut round = 0;
        while !stop.load(Ordering::Relaxed) {
            round += 1;
            if let Err(wrong) = self.check(round % 32 == 0) {
                self.state().wrong.get_or_insert(wrong);
                return;
            }
            std::thread::sleep(Duration::from_micros(600));
        }
    }

    /// Reads once with a pin, as in docs/guides/reading.md. A generation that was seen last is read again only if
    /// `again`.
    fn check(&self, again: bool) -> Result<(), String> {
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

    /// Reads the pinned generation, without the files that git-sync's layout adds.
    pub fn read(&self, pin: &Pin) -> Result<Snapshot, String> {
        let read = Snapshot::read(&pin.path());
        let mut found = read.map_err(|error| format!("reading {}: {error}", pin.generation().display()))?;
        if self.how.git_sync {
            found.0.retain(|path, _| path != b".git" && !path.ends_with(b"/.git"));
        }
        Ok(found)
    }

    /// Returns the result of a read, or `None` if the generation was written to, so that the result means nothing.
    pub fn unless_tampered<T>(
        &self,
        name: &Generation,
        found: Result<T, String>,
    ) -> Result<Option<T>, String> {
        let kept = self.writing.lock().unwrap();
        kept.iter().for_each(|file| {
            self.mark_tampered_file(file);
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
            |path: &&Vec<u8>| (0..self.how.sources).all(|source| !path.starts_with(&self.place_of(source)));
        if self.how.sources > 0
            && let Some(path) = found.0.keys().find(foreign)
        {
            return Err(format!("{}: {} is of no source", name.0.display(), path.escape_ascii()));
        }
        state.generations.insert(name.clone());
        state.last = Some((name.clone(), found));
        Ok(())
    }

    /// The part of a set's tree that belongs to one source.
    fn part(&self, source: usize, all: &Snapshot) -> Snapshot {
        let place = [&self.place_of(source)[..], b"/"].concat();
        let below = all
            .0
            .iter()
            .filter_map(|(path, node)| Some((path.strip_prefix(&place[..])?.to_vec(), node.clone())));
        Snapshot(below.collect())
    }

    /// Pins the current generation and reads it; it is released at step `until`.
    pub fn hold(&self, until: usize) -> Option<Held> {
        let pin = Pin::take_link(&self.link, &Options::default()).ok()?;
        let saw = self.read(&pin);
        let saw = self.unless_tampered(&of(&pin), saw).ok()??;
        Some(Held { pin, saw, until })
    }

    /// Checks that a pinned generation has not changed, and releases it.
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

/// A pinned generation, and its tree when it was pinned.
pub struct Held {
    pin: Pin,
    saw: Snapshot,
    /// The step at which it is released.
    pub until: usize,
}
