//! Merges the trees of several sources into one. The source with the longest `to` path owns everything below that path,
//! and no other source may have anything there. Sources with the same `to` may share directories, but not files.

use std::collections::{BTreeMap, btree_map};
use std::path::Path;

use git2::ObjectType;
use tokio_util::sync::CancellationToken;

use super::Part;
use crate::mirror::error::Error;
use crate::mirror::odb::ObjectReader;
use crate::mirror::sparse::Patterns;
use crate::mirror::tree::{DIRECTORY, FORMAT, Line, lines, push_name};
use crate::payload::{Limits, Refusal, Rule, escaped};
use crate::revision::{ObjectId, Revision};

/// The most bytes of trees in memory at the same time: those that are merged or filtered by patterns, and the trees
/// that contain them. That is some 100,000 names in one directory, each of which takes some hundred bytes of memory
/// while it is merged. A tree that only one source has at a path is not read at all.
const TREE_BYTES_MAX: usize = 8 << 20;

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

/// What the parts have at one path: their entries there, and the parts that are placed at or below it.
type AtPath<'p> = (Vec<PartItem>, Vec<Placed<'p>>);

/// A directory that is being merged.
struct MergedDir<'p> {
    /// Its name.
    name: Vec<u8>,
    /// The names in it that are still to be merged.
    left: btree_map::IntoIter<Vec<u8>, AtPath<'p>>,
    /// Its merged entries.
    entries: Vec<(Vec<u8>, Item)>,
    /// The bytes of the parts' trees.
    bytes: usize,
    /// The length of the path of its parent.
    parent_len: usize,
}

/// What becomes of one name in a merged directory.
enum Merged<'p> {
    /// This entry, if any.
    Item(Option<Item>),
    /// A directory that is to be merged.
    Dir(AtPath<'p>),
}

/// A directory that patterns are being applied to.
struct FilteredDir {
    /// Its name.
    name: Vec<u8>,
    /// Its entry in its parent.
    item: Item,
    /// Whether the patterns select it. An entry that no pattern matches inherits that.
    inherited: bool,
    /// The entries in it that the patterns are still to be applied to.
    left: std::vec::IntoIter<(Vec<u8>, Item)>,
    /// What is kept of the others.
    kept: Vec<(Vec<u8>, Item)>,
    /// The others are all kept as they are.
    is_same: bool,
    /// The bytes of its tree.
    bytes: usize,
    /// The length of the path of its parent.
    parent_len: usize,
}

impl FilteredDir {
    /// Keeps an entry with the object that is left of its own, if any is.
    fn keep(&mut self, name: Vec<u8>, item: Item, left: Option<ObjectId>) {
        self.is_same &= left == Some(item.id);
        self.kept.extend(left.map(|id| (name, Item { id, ..item })));
    }
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
    /// Bytes of the trees in memory, see [`TREE_BYTES_MAX`].
    tree_bytes: usize,
}

impl<'a> Overlay<'a> {
    /// A merge of these parts. `reader` reads all mirrors; new trees are written with `own`.
    pub(super) fn new(
        reader: &'a ObjectReader<'a>,
        own: &'a ObjectReader<'a>,
        dir_of_own: &'a Path,
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
        let top = self.merged((here, below))?;
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
        let filtered = self.filtered(part.revision, &patterns, item)?;
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
            at = item_of(&line);
        }
        Ok(Some(at))
    }

    /// Writes a copy of a tree with the entries that patterns select, and returns its id. `None` if there are none. Not
    /// recursive: see `OpenTree`.
    fn filtered(
        &mut self,
        revision: Revision,
        patterns: &Patterns,
        top: Item,
    ) -> Result<Option<ObjectId>, Error> {
        let mut path = Vec::new();
        let mut open = vec![self.open_filtered(revision, &path, Vec::new(), top, false, 0)?];
        let mut found = None;
        while let Some(dir) = open.last_mut() {
            if let Some((name, item)) = dir.left.next() {
                let parent_len = push_name(&mut path, &name);
                let wanted = patterns.selects(&path, item.mode, dir.inherited);
                if item.is_dir() {
                    open.push(self.open_filtered(revision, &path, name, item, wanted, parent_len)?);
                } else {
                    dir.keep(name, item, wanted.then_some(item.id));
                    path.truncate(parent_len);
                }
            } else if let Some(done) = open.pop() {
                self.tree_bytes -= done.bytes;
                path.truncate(done.parent_len);
                found = if done.kept.is_empty() {
                    None
                } else if done.is_same {
                    Some(done.item.id)
                } else {
                    Some(self.write(&done.kept)?)
                };
                if let Some(parent) = open.last_mut() {
                    parent.keep(done.name, done.item, found);
                }
            }
        }
        Ok(found)
    }

    /// Reads a directory that patterns are applied to.
    fn open_filtered(
        &mut self,
        revision: Revision,
        path: &[u8],
        name: Vec<u8>,
        item: Item,
        inherited: bool,
        parent_len: usize,
    ) -> Result<FilteredDir, Error> {
        let damaged = |error| Error::damaged(revision, error);
        let object = self.reader.tree(&item.id).map_err(damaged)?;
        let lines = lines(&item.id, object.data()).map_err(damaged)?;
        self.check_bounds(revision, path, lines.len())?;
        let bytes = self.count_bytes(revision, path, object.data().len())?;
        let all: Vec<_> = lines.map(|line| (line.name.to_vec(), item_of(&line))).collect();
        let left = all.into_iter();
        Ok(FilteredDir { name, item, inherited, left, kept: Vec::new(), is_same: true, bytes, parent_len })
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

    /// Counts the bytes of a tree that stays in memory while its sub-trees are read. Returns `size`, which the caller
    /// subtracts from `tree_bytes` when it drops the tree.
    fn count_bytes(&mut self, revision: Revision, path: &[u8], size: usize) -> Result<usize, Error> {
        self.tree_bytes += size;
        if self.tree_bytes > TREE_BYTES_MAX {
            let bytes = self.tree_bytes as u64;
            return Err(Error::too_large(revision, escaped(path), bytes, TREE_BYTES_MAX as u64));
        }
        Ok(size)
    }

    /// Merges the parts' trees at the top with the parts that are placed below it. Returns the id of the merged tree;
    /// `None` if it would be empty. Not recursive: see `OpenTree`.
    fn merged(&mut self, (here, below): AtPath<'_>) -> Result<Option<ObjectId>, Error> {
        if below.is_empty()
            && let [(_, only)] = here[..]
        {
            return Ok(Some(only.id));
        }
        let mut path = Vec::new();
        let mut open = vec![self.open_merged(&path, Vec::new(), (here, below), 0)?];
        let mut found = None;
        while let Some(dir) = open.last_mut() {
            if let Some((name, at_path)) = dir.left.next() {
                let parent_len = push_name(&mut path, &name);
                match self.entry(&path, at_path)? {
                    Merged::Dir(at_path) => open.push(self.open_merged(&path, name, at_path, parent_len)?),
                    Merged::Item(item) => {
                        dir.entries.extend(item.map(|item| (name, item)));
                        path.truncate(parent_len);
                    }
                }
            } else if let Some(done) = open.pop() {
                self.tree_bytes -= done.bytes;
                path.truncate(done.parent_len);
                found = if done.entries.is_empty() { None } else { Some(self.write(&done.entries)?) };
                if let Some(parent) = open.last_mut() {
                    parent.entries.extend(found.map(|id| (done.name, Item { mode: DIRECTORY, id })));
                }
            }
        }
        Ok(found)
    }

    /// Reads a directory that is merged. `here` are the parts' trees at its path, `below` the parts that are placed
    /// below it.
    fn open_merged<'p>(
        &mut self,
        path: &[u8],
        name: Vec<u8>,
        (here, below): AtPath<'p>,
        parent_len: usize,
    ) -> Result<MergedDir<'p>, Error> {
        let mut bytes = 0;
        let mut names: BTreeMap<Vec<u8>, AtPath<'p>> = BTreeMap::new();
        for (part, tree) in here {
            let revision = self.parts[part].revision;
            let damaged = |error| Error::damaged(revision, error);
            let object = self.reader.tree(&tree.id).map_err(damaged)?;
            let lines = lines(&tree.id, object.data()).map_err(damaged)?;
            self.check_bounds(revision, path, lines.len())?;
            bytes += self.count_bytes(revision, path, object.data().len())?;
            for line in lines {
                names.entry(line.name.to_vec()).or_default().0.push((part, item_of(&line)));
            }
        }
        for mut placed in below {
            let name = placed.to.remove(0); // not empty: it is placed below this directory
            names.entry(name.to_vec()).or_default().1.push(placed);
        }
        Ok(MergedDir { name, left: names.into_iter(), entries: Vec::new(), bytes, parent_len })
    }

    /// Merges what the parts have at one path, below the top.
    fn entry<'p>(&self, path: &[u8], (mut items, placed): AtPath<'p>) -> Result<Merged<'p>, Error> {
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
            return Ok(Merged::Item(Some(*only))); // only one part has the path: its entry is taken unchanged
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
        Ok(Merged::Dir((items, below)))
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

fn item_of(line: &Line<'_>) -> Item {
    Item { mode: line.mode, id: line.id }
}

impl Part {
    /// The components of `path`.
    fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.path.split('/').filter(|name| !name.is_empty()).map(str::as_bytes)
    }
}
