//! Several trees placed in one. Rules: the source with the longest place owns what is below it, and others have nothing
//! there; sources of one place may share directories and no file.

use std::collections::BTreeMap;
use std::path::Path;

use git2::ObjectType;
use tokio_util::sync::CancellationToken;

use super::Part;
use crate::mirror::error::Error;
use crate::mirror::odb::ObjectReader;
use crate::mirror::sparse::Patterns;
use crate::mirror::tree::{DIRECTORY, FORMAT, Line, SUBMODULE, lines};
use crate::payload::{Limits, Refusal, Rule, escaped};
use crate::revision::{ObjectId, Revision};

/// Trees that lie over each other, or are read by patterns, with those that they lie in, have no more bytes than this
/// together: 100,000 names or so in one directory. Each name takes some hundred bytes of memory meanwhile. What one source
/// alone has anywhere is not looked into.
const OVERLAID_MAX: usize = 8 << 20;

/// An entry of a source's tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Item {
    mode: u32,
    id: ObjectId,
}

impl Item {
    fn is_dir(&self) -> bool {
        self.mode & FORMAT == DIRECTORY
    }

    /// As patterns see it.
    fn matches_as_dir(&self) -> bool {
        matches!(self.mode & FORMAT, DIRECTORY | SUBMODULE)
    }
}

/// A source, and what it has somewhere.
type Has = (usize, Item);

/// Something that is placed further down.
struct Placed<'p> {
    part: usize,
    /// None where its patterns leave nothing: the place is its own all the same.
    item: Option<Item>,
    /// The components that are left of its place.
    to: Vec<&'p [u8]>,
}

pub(super) struct Overlay<'a> {
    pub(super) reader: &'a ObjectReader<'a>,
    /// Where trees are written.
    own: &'a ObjectReader<'a>,
    dir_of_own: &'a Path,
    parts: &'a [Part],
    pub(super) limits: &'a Limits,
    pub(super) cancel: &'a CancellationToken,
    /// Entries that may still be looked at. Trees that name the same trees again and again would have no end.
    left: u64,
    /// Bytes of the trees that lie in one another and are held.
    tree_bytes: usize,
}

impl<'a> Overlay<'a> {
    /// Of these parts; trees that no source has are written to `own`.
    pub(super) fn new(
        (reader, own, dir_of_own): (&'a ObjectReader<'a>, &'a ObjectReader<'a>, &'a Path),
        parts: &'a [Part],
        limits: &'a Limits,
        cancel: &'a CancellationToken,
    ) -> Self {
        let left = limits.entries.saturating_mul(8);
        Self { reader, own, dir_of_own, parts, limits, cancel, left, tree_bytes: 0 }
    }

    /// The tree that holds what every part places. It is written with all the trees on the way that no source has.
    pub(super) fn tree(&mut self) -> Result<ObjectId, Error> {
        let mut here = Vec::new();
        let mut below = Vec::new();
        for (part, given) in self.parts.iter().enumerate() {
            let of = |source| match source {
                // That is ours: the same commit may do the next time.
                Error::Git { .. } | Error::Local { .. } | Error::Cancelled => source,
                _ => Error::OfSource { name: given.name.clone(), source: Box::new(source) },
            };
            let item = self.chosen(given).map_err(of)?;
            match (given.to.as_str(), item) {
                ("", None) => {}
                ("", Some(item)) if item.is_dir() => here.push((part, item)),
                ("", Some(_)) => {
                    let rule = Rule::PathIsNoDirectory;
                    return Err(of(refusal(given.revision, given.path.as_bytes(), rule)));
                }
                (to, item) => {
                    let to = to.split('/').map(str::as_bytes).collect();
                    below.push(Placed { part, item, to });
                }
            }
        }
        let top = self.dir(&mut Vec::new(), here, below)?;
        top.map_or_else(|| self.write(&[]), Ok)
    }

    /// The name of the source whose file lies at a path of that tree.
    pub(super) fn owner(&mut self, path: &[u8]) -> Result<String, Error> {
        for part in self.parts {
            let Some(below) = below(part.to.as_bytes(), path) else { continue };
            let Some(item) = self.chosen(part)? else { continue };
            let names = below.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
            if self.down(part.revision, item, names)?.is_some() {
                return Ok(part.name.clone());
            }
        }
        Ok(String::new()) // of such a path the tree would not be made
    }
}

/// What is left of a path below a place.
fn below<'p>(place: &[u8], path: &'p [u8]) -> Option<&'p [u8]> {
    let rest = path.strip_prefix(place)?;
    (place.is_empty() || rest.is_empty() || rest[0] == b'/').then_some(rest)
}

fn refusal(revision: Revision, path: &[u8], rule: Rule) -> Error {
    Refusal { revision, path: escaped(path), rule }.into()
}

impl Overlay<'_> {
    /// What a part places; none where its patterns leave nothing.
    fn chosen(&mut self, part: &Part) -> Result<Option<Item>, Error> {
        let damaged = |lack| Error::damaged(part.revision, lack);
        let top = self.reader.commit(&part.revision.0).map_err(damaged)?.tree;
        let found = self.down(part.revision, Item { mode: DIRECTORY, id: top }, part.components())?;
        let item = found.ok_or_else(|| refusal(part.revision, part.path.as_bytes(), Rule::NoPath))?;
        if part.sparse.is_empty() || !item.is_dir() {
            return Ok(Some(item));
        }
        let patterns = Patterns::parse(&part.sparse.join("\n"))?;
        let chosen = self.filtered(part.revision, &patterns, item.id, &mut Vec::new(), false)?;
        Ok(chosen.map(|id| Item { id, ..item }))
    }

    /// What lies below an item, by these names.
    fn down<'n>(
        &self,
        revision: Revision,
        mut at: Item,
        names: impl Iterator<Item = &'n [u8]>,
    ) -> Result<Option<Item>, Error> {
        let damaged = |lack| Error::damaged(revision, lack);
        for name in names {
            if !at.is_dir() {
                return Ok(None);
            }
            let object = self.reader.tree(&at.id).map_err(damaged)?;
            let mut lines = lines(&at.id, object.data()).map_err(damaged)?;
            let Some(line) = lines.find(|line| line.name == name) else { return Ok(None) };
            at = item(&line);
        }
        Ok(Some(at))
    }

    /// A tree without what patterns leave out; none where nothing is left.
    fn filtered(
        &mut self,
        revision: Revision,
        patterns: &Patterns,
        tree: ObjectId,
        path: &mut Vec<u8>,
        inherited: bool,
    ) -> Result<Option<ObjectId>, Error> {
        let damaged = |lack| Error::damaged(revision, lack);
        let (all, size): (Vec<(Vec<u8>, Item)>, usize) = {
            let object = self.reader.tree(&tree).map_err(damaged)?;
            let lines = lines(&tree, object.data()).map_err(damaged)?;
            (lines.map(|line| (line.name.to_vec(), item(&line))).collect(), object.data().len())
        };
        self.look(revision, path, all.len())?;
        let held = self.hold(revision, path, size)?;
        let before = all.len();
        let mut kept = Vec::new();
        let mut is_same = true;
        for (name, item) in all {
            let end = path.len();
            if end > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(&name);
            let wanted = patterns.wants(path, item.matches_as_dir(), inherited);
            let found = match item.is_dir() {
                true => self.filtered(revision, patterns, item.id, path, wanted)?,
                false => wanted.then_some(item.id),
            };
            path.truncate(end);
            is_same &= found == Some(item.id);
            kept.extend(found.map(|id| (name, Item { id, ..item })));
        }
        self.tree_bytes -= held;
        if kept.is_empty() {
            return Ok(None);
        }
        if is_same && kept.len() == before {
            return Ok(Some(tree));
        }
        self.write(&kept).map(Some)
    }

    /// Depth and number of what is looked at are bounded: commits' authors choose both.
    fn look(&mut self, revision: Revision, path: &[u8], entries: usize) -> Result<(), Error> {
        if self.cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let depth = if path.is_empty() { 0 } else { 1 + path.iter().filter(|byte| **byte == b'/').count() };
        if depth > self.limits.depth as usize {
            return Err(refusal(revision, path, Rule::Depth { limit: self.limits.depth }));
        }
        match self.left.checked_sub(entries as u64 + 1) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(refusal(revision, path, Rule::Entries { limit: self.limits.entries })),
        }
    }

    /// A tree is held while those in it are looked at: all together are bounded as one tree is. Returns what to give back.
    fn hold(&mut self, revision: Revision, path: &[u8], size: usize) -> Result<usize, Error> {
        self.tree_bytes += size;
        if self.tree_bytes > OVERLAID_MAX {
            return Err(Error::too_large(
                revision,
                escaped(path),
                self.tree_bytes as u64,
                OVERLAID_MAX as u64,
            ));
        }
        Ok(size)
    }

    /// One directory: `here` are the trees that lie over each other in it, `below` what is placed somewhere in it. None
    /// where nothing is in it.
    fn dir(
        &mut self,
        path: &mut Vec<u8>,
        here: Vec<Has>,
        below: Vec<Placed<'_>>,
    ) -> Result<Option<ObjectId>, Error> {
        if below.is_empty()
            && let [(_, only)] = here[..]
        {
            return Ok(Some(only.id));
        }
        let mut held = 0;
        let mut names: BTreeMap<Vec<u8>, (Vec<Has>, Vec<Placed<'_>>)> = BTreeMap::new();
        for (part, tree) in here {
            let revision = self.parts[part].revision;
            let damaged = |lack| Error::damaged(revision, lack);
            let object = self.reader.tree(&tree.id).map_err(damaged)?;
            let lines = lines(&tree.id, object.data()).map_err(damaged)?;
            self.look(revision, path, lines.len())?;
            held += self.hold(revision, path, object.data().len())?;
            for line in lines {
                names.entry(line.name.to_vec()).or_default().0.push((part, item(&line)));
            }
        }
        for mut placed in below {
            let name = placed.to.remove(0); // it is placed below here
            names.entry(name.to_vec()).or_default().1.push(placed);
        }
        let mut entries = Vec::new();
        for (name, (has, placed)) in names {
            let end = path.len();
            if end > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(&name);
            let found = self.entry(path, has, placed)?;
            path.truncate(end);
            entries.extend(found.map(|item| (name, item)));
        }
        self.tree_bytes -= held;
        if entries.is_empty() { Ok(None) } else { self.write(&entries).map(Some) }
    }

    /// What becomes of one path.
    fn entry(
        &mut self,
        path: &mut Vec<u8>,
        mut has: Vec<Has>,
        placed: Vec<Placed<'_>>,
    ) -> Result<Option<Item>, Error> {
        let (exact, below): (Vec<_>, Vec<_>) = placed.into_iter().partition(|placed| placed.to.is_empty());
        if let (Some(owner), Some((other, _))) = (exact.first(), has.first()) {
            return Err(Error::Trespass {
                path: escaped(path),
                owner: self.name(owner.part),
                other: self.name(*other),
            });
        }
        has.extend(exact.into_iter().filter_map(|placed| Some((placed.part, placed.item?))));
        if let ([(_, only)], []) = (&has[..], &below[..]) {
            return Ok(Some(*only)); // as it is, whatever it is
        }
        if let Some((one, _)) = has.iter().find(|(_, item)| !item.is_dir()) {
            let others = has.iter().map(|(part, _)| *part).chain(below.iter().map(|placed| placed.part));
            let other = others.into_iter().find(|part| part != one).unwrap_or(*one);
            let (one, other) = (self.name(*one), self.name(other));
            return Err(Error::Collision { path: escaped(path), one, other });
        }
        let tree = self.dir(path, has, below)?;
        Ok(tree.map(|id| Item { mode: DIRECTORY, id }))
    }

    fn name(&self, part: usize) -> String {
        self.parts[part].name.clone()
    }

    /// Writes a tree, in git's order: a directory's name counts as if it ended in a slash.
    fn write(&self, entries: &[(Vec<u8>, Item)]) -> Result<ObjectId, Error> {
        let key = |(name, item): &(Vec<u8>, Item)| {
            let slash: &[u8] = if item.is_dir() { b"/" } else { b"" };
            [name, slash].concat()
        };
        let mut sorted: Vec<_> = entries.iter().collect();
        sorted.sort_by_cached_key(|entry| key(entry));
        let mut raw = Vec::new();
        for (name, item) in sorted {
            raw.extend_from_slice(format!("{:o} ", item.mode).as_bytes());
            raw.extend_from_slice(name);
            raw.push(0);
            raw.extend_from_slice(&item.id.0);
        }
        let written = self.own.write(ObjectType::Tree, &raw);
        written.map_err(|source| Error::unwritten("write a tree in", self.dir_of_own, source))
    }
}

fn item(line: &Line<'_>) -> Item {
    Item { mode: line.mode, id: line.id }
}

impl Part {
    /// Each name of the path.
    fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.path.split('/').filter(|name| !name.is_empty()).map(str::as_bytes)
    }
}
