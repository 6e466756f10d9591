//! Merges the trees of several sources into one. The source with the longest `to` path owns everything below that path,
//! and no other source may have anything there. Sources with the same `to` may share directories, but not files.

use std::collections::BTreeMap;
use std::path::Path;

use git2::ObjectType;
use tokio_util::sync::CancellationToken;

use super::Part;
use crate::mirror::error::Error;
use crate::mirror::odb::ObjectReader;
use crate::mirror::sparse::Patterns;
use crate::mirror::tree::{DIRECTORY, FORMAT, Line, SUBMODULE, lines, push_name};
use crate::payload::{Limits, Refusal, Rule, escaped};
use crate::revision::{ObjectId, Revision};

/// The most bytes of trees that are held at the same time: those that are merged or filtered by patterns, and the trees
/// that contain them. That is some 100,000 names in one directory, each of which takes some hundred bytes of memory
/// while it is merged. A tree that only one source has at a path is not read at all.
const HELD_TREES_MAX: usize = 8 << 20;

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

    /// Returns true if sparse patterns treat the entry as a directory.
    fn matches_as_dir(&self) -> bool {
        matches!(self.mode & FORMAT, DIRECTORY | SUBMODULE)
    }
}

/// The index of a part, and its entry at the current path.
type PartItem = (usize, Item);

/// A part that is placed further down.
struct Placed<'p> {
    part: usize,
    /// `None` if the part's patterns select nothing. It owns its place nevertheless.
    item: Option<Item>,
    /// The remaining components of its `to` path.
    to: Vec<&'p [u8]>,
}

/// A merge of the trees of several parts.
pub(super) struct Overlay<'a> {
    /// Reads the objects of all mirrors.
    pub(super) reader: &'a ObjectReader<'a>,
    /// Writes new trees.
    own: &'a ObjectReader<'a>,
    /// The directory of the repository to which trees are written.
    dir_of_own: &'a Path,
    parts: &'a [Part],
    pub(super) limits: &'a Limits,
    pub(super) cancel: &'a CancellationToken,
    /// Entries that may still be read. Trees that name the same trees repeatedly may have arbitrarily many.
    left: u64,
    /// Bytes of the trees that are held, see [`HELD_TREES_MAX`].
    tree_bytes: usize,
}

impl<'a> Overlay<'a> {
    /// A merge of these parts. `reader` reads all mirrors; new trees are written with `own`.
    pub(super) fn new(
        (reader, own, dir_of_own): (&'a ObjectReader<'a>, &'a ObjectReader<'a>, &'a Path),
        parts: &'a [Part],
        limits: &'a Limits,
        cancel: &'a CancellationToken,
    ) -> Self {
        let left = limits.entries.saturating_mul(8);
        Self { reader, own, dir_of_own, parts, limits, cancel, left, tree_bytes: 0 }
    }

    /// Merges the parts and returns the id of the top tree. All trees that no source has are written.
    pub(super) fn tree(&mut self) -> Result<ObjectId, Error> {
        let mut here = Vec::new();
        let mut below = Vec::new();
        for (part, given) in self.parts.iter().enumerate() {
            let of = |source| match source {
                // Not the fault of the source: the same commit may succeed next time.
                Error::Git { .. } | Error::Local { .. } | Error::Cancelled => source,
                _ => Error::OfSource { name: given.name.clone(), source: Box::new(source) },
            };
            let item = self.selected(given).map_err(of)?;
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

    /// The name of the source that has the file at a path of the merged tree.
    pub(super) fn owner(&mut self, path: &[u8]) -> Result<String, Error> {
        for part in self.parts {
            let Some(below) = below(part.to.as_bytes(), path) else { continue };
            let Some(item) = self.selected(part)? else { continue };
            let names = below.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
            if self.resolve(part.revision, item, names)?.is_some() {
                return Ok(part.name.clone());
            }
        }
        Ok(String::new()) // unreachable: every file of the merged tree is some part's
    }
}

/// The rest of `path` below `place`; `None` if it is not below it.
fn below<'p>(place: &[u8], path: &'p [u8]) -> Option<&'p [u8]> {
    let rest = path.strip_prefix(place)?;
    (place.is_empty() || rest.is_empty() || rest[0] == b'/').then_some(rest)
}

fn refusal(revision: Revision, path: &[u8], rule: Rule) -> Error {
    Refusal { revision, path: escaped(path), rule }.into()
}

impl Overlay<'_> {
    /// The file or tree that a part places, after applying its patterns; `None` if they select nothing.
    fn selected(&mut self, part: &Part) -> Result<Option<Item>, Error> {
        let damaged = |error| Error::damaged(part.revision, error);
        let top = self.reader.commit(&part.revision.0).map_err(damaged)?.tree;
        let found = self.resolve(part.revision, Item { mode: DIRECTORY, id: top }, part.components())?;
        let item = found.ok_or_else(|| refusal(part.revision, part.path.as_bytes(), Rule::NoPath))?;
        if part.sparse.is_empty() || !item.is_dir() {
            return Ok(Some(item));
        }
        let patterns = Patterns::parse(&part.sparse.join("\n"))?;
        let filtered = self.filtered(part.revision, &patterns, item.id, &mut Vec::new(), false)?;
        Ok(filtered.map(|id| Item { id, ..item }))
    }

    /// Follows path components from an entry; `None` if there is nothing at that path.
    fn resolve<'n>(
        &self,
        revision: Revision,
        mut at: Item,
        names: impl Iterator<Item = &'n [u8]>,
    ) -> Result<Option<Item>, Error> {
        let damaged = |error| Error::damaged(revision, error);
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

    /// Writes a copy of a tree with the entries that patterns select, and returns its id. `None` if there are none.
    fn filtered(
        &mut self,
        revision: Revision,
        patterns: &Patterns,
        tree: ObjectId,
        path: &mut Vec<u8>,
        inherited: bool,
    ) -> Result<Option<ObjectId>, Error> {
        let damaged = |error| Error::damaged(revision, error);
        let (all, size): (Vec<(Vec<u8>, Item)>, usize) = {
            let object = self.reader.tree(&tree).map_err(damaged)?;
            let lines = lines(&tree, object.data()).map_err(damaged)?;
            (lines.map(|line| (line.name.to_vec(), item(&line))).collect(), object.data().len())
        };
        self.check_bounds(revision, path, all.len())?;
        let held = self.hold(revision, path, size)?;
        let before = all.len();
        let mut kept = Vec::new();
        let mut is_same = true;
        for (name, item) in all {
            let end = push_name(path, &name);
            let wanted = patterns.selects(path, item.matches_as_dir(), inherited);
            let found = if item.is_dir() {
                self.filtered(revision, patterns, item.id, path, wanted)?
            } else {
                wanted.then_some(item.id)
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

    /// Checks the depth of a directory and the total number of entries, both of which commits' authors choose.
    fn check_bounds(&mut self, revision: Revision, path: &[u8], entries: usize) -> Result<(), Error> {
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

    /// Counts the bytes of a tree that is held while its sub-trees are read. Returns `size`, which the caller subtracts
    /// from `tree_bytes` when it drops the tree.
    fn hold(&mut self, revision: Revision, path: &[u8], size: usize) -> Result<usize, Error> {
        self.tree_bytes += size;
        if self.tree_bytes > HELD_TREES_MAX {
            let bytes = self.tree_bytes as u64;
            return Err(Error::too_large(revision, escaped(path), bytes, HELD_TREES_MAX as u64));
        }
        Ok(size)
    }

    /// Merges one directory. `here` are the parts' trees at this path, `below` the parts that are placed below it.
    /// Returns the id of the merged tree; `None` if it would be empty.
    fn dir(
        &mut self,
        path: &mut Vec<u8>,
        here: Vec<PartItem>,
        below: Vec<Placed<'_>>,
    ) -> Result<Option<ObjectId>, Error> {
        if below.is_empty()
            && let [(_, only)] = here[..]
        {
            return Ok(Some(only.id));
        }
        let mut held = 0;
        let mut names: BTreeMap<Vec<u8>, (Vec<PartItem>, Vec<Placed<'_>>)> = BTreeMap::new();
        for (part, tree) in here {
            let revision = self.parts[part].revision;
            let damaged = |error| Error::damaged(revision, error);
            let object = self.reader.tree(&tree.id).map_err(damaged)?;
            let lines = lines(&tree.id, object.data()).map_err(damaged)?;
            self.check_bounds(revision, path, lines.len())?;
            held += self.hold(revision, path, object.data().len())?;
            for line in lines {
                names.entry(line.name.to_vec()).or_default().0.push((part, item(&line)));
            }
        }
        for mut placed in below {
            let name = placed.to.remove(0); // not empty: it is placed below this directory
            names.entry(name.to_vec()).or_default().1.push(placed);
        }
        let mut entries = Vec::new();
        for (name, (items, placed)) in names {
            let end = push_name(path, &name);
            let found = self.entry(path, items, placed)?;
            path.truncate(end);
            entries.extend(found.map(|item| (name, item)));
        }
        self.tree_bytes -= held;
        if entries.is_empty() { Ok(None) } else { self.write(&entries).map(Some) }
    }

    /// Merges the entries at one path. `items` are the entries of parts whose trees contain the path, `placed` the
    /// parts that are placed at or below it.
    fn entry(
        &mut self,
        path: &mut Vec<u8>,
        mut items: Vec<PartItem>,
        placed: Vec<Placed<'_>>,
    ) -> Result<Option<Item>, Error> {
        let (exact, below): (Vec<_>, Vec<_>) = placed.into_iter().partition(|placed| placed.to.is_empty());
        if let (Some(owner), Some((other, _))) = (exact.first(), items.first()) {
            return Err(Error::Trespass {
                path: escaped(path),
                owner: self.name(owner.part),
                other: self.name(*other),
                place: "where source",
            });
        }
        items.extend(exact.into_iter().filter_map(|placed| Some((placed.part, placed.item?))));
        if let ([(_, only)], []) = (&items[..], &below[..]) {
            return Ok(Some(*only)); // only one part has the path: its entry is taken unchanged
        }
        if let Some((one, _)) = items.iter().find(|(_, item)| !item.is_dir()) {
            let mut others = items.iter().map(|(part, _)| *part);
            let Some(other) = others.find(|part| part != one) else {
                let owner = below.iter().map(|placed| placed.part).find(|part| part != one).unwrap_or(*one);
                return Err(Error::Trespass {
                    path: escaped(path),
                    owner: self.name(owner),
                    other: self.name(*one),
                    place: "below which source",
                });
            };
            return Err(Error::Collision {
                path: escaped(path),
                one: self.name(*one),
                other: self.name(other),
            });
        }
        let tree = self.dir(path, items, below)?;
        Ok(tree.map(|id| Item { mode: DIRECTORY, id }))
    }

    fn name(&self, part: usize) -> String {
        self.parts[part].name.clone()
    }

    /// Writes a tree in git's order, in which a directory's name ends with a slash.
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
    /// The components of `path`.
    fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.path.split('/').filter(|name| !name.is_empty()).map(str::as_bytes)
    }
}
