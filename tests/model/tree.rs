//! The model: generated trees, the edits that make one from another, and what a reader must see of a tree. Nothing here
//! uses git or treeswap.

use std::collections::BTreeMap;

use crate::common::Random;
use crate::common::noise;
use crate::common::tree::{Node, Snapshot};

/// The entry at a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    File {
        executable: bool,
        content: Vec<u8>,
    },
    Link(Vec<u8>),
    /// A submodule, at this revision of the submodules' repository.
    Module(usize),
}

pub type Path = Vec<u8>;

/// Settings of a life that affect what a reader sees.
#[derive(Clone, Debug, Default)]
pub struct How {
    pub git_sync: bool,
    /// Symbolic links to outside the tree are kept instead of refused.
    pub keep_links: bool,
    /// Only the directory `a` of each tree is published.
    pub below_a: bool,
    /// Only top-level files and the directories `a` and `b` are published.
    pub sparse: bool,
    pub submodules: bool,
    /// The number of sources, each placed in its own directory; 0: a single repository.
    pub sources: usize,
}

/// The sparse patterns of [`How::sparse`].
pub const SPARSE: &str = "/*\n!/*/\n/a/\n/b/\n";

/// The paths of submodules, which `.gitmodules` does not need to quote.
const MODULE_PLACES: [&str; 3] = ["mod", "a/mod", "c/d/mod"];

/// A small set of names, some of them odd, so that files, directories and links often have the same path.
const NAMES: &[&[u8]] = &[
    b"a",
    b"b",
    b"c",
    b"d",
    b"run",
    b"A",
    b"with space",
    b"-rf",
    b"\xff\xfe bytes",
    "\u{fc}\u{301}\u{202e}".as_bytes(),
    b"new\nline",
    b"quo\"te'",
    b"back\\slash",
    b"{a,*}",
    b"$HOME",
    b"...",
    b"..up",
    b".hidden",
    b"trailing. ",
    b"CON",
    b"HEAD",
    b"objects",
    b"..data.",
];

pub fn name(random: &mut Random) -> Path {
    match random.below(40) {
        0 => vec![b'n'; 255],
        n if n < 26 => NAMES[random.below(5)].to_vec(),
        _ => NAMES[random.below(NAMES.len())].to_vec(),
    }
}

pub fn path(random: &mut Random) -> Path {
    let depth = if random.below(60) == 0 { 12 + random.below(60) } else { 1 + random.below(4) };
    let names: Vec<Path> = (0..depth).map(|_| if depth > 8 { b"a".to_vec() } else { name(random) }).collect();
    names.join(&b'/')
}

fn target(random: &mut Random) -> Vec<u8> {
    let plain = path(random);
    match random.below(24) {
        0..10 => plain,
        10..18 => [&b"../".repeat(1 + random.below(3))[..], &plain].concat(),
        18 => b".".to_vec(),
        19 => [b"./", &plain[..], b"/"].concat(),
        20 => b"/etc/passwd".to_vec(),
        21 => [&plain[..], b"/../x"].concat(),
        22 => b"../../../../../../etc/passwd".to_vec(),
        _ => b"..data/a".to_vec(),
    }
}

pub fn entry(random: &mut Random) -> Entry {
    let executable = random.below(4) == 0;
    let content = match random.below(30) {
        0 => Vec::new(),
        1 => noise(random.below(1 << 20) as u64, 1 + random.below(150_000)),
        2 => b"line\r\n".repeat(random.below(200)),
        n => format!("{n} {}\n", random.below(1 << 20)).into_bytes(),
    };
    if random.below(4) == 0 { Entry::Link(target(random)) } else { Entry::File { executable, content } }
}

/// One change. It is valid for any tree, so that a history without some of its edits is still valid. A number picks one
/// of the existing entries.
#[derive(Clone, Debug)]
pub enum Edit {
    Put(Path, Entry),
    Remove(usize),
    /// Removes the directory of the picked entry.
    RemoveDirectory(usize),
    Chmod(usize),
    /// Replaces the picked entry.
    Retype(usize, Entry),
    /// Moves the directory of the picked entry.
    Move(usize, Path),
    Swap(usize, usize),
    Wide(Path, usize),
    Module(usize, usize),
    Clear,
}

impl Edit {
    pub fn random(random: &mut Random) -> Self {
        let (pick, other) = (random.below(1 << 16), random.below(1 << 16));
        match random.below(24) {
            0..9 => Self::Put(path(random), entry(random)),
            9..11 => Self::Remove(pick),
            11 => Self::RemoveDirectory(pick),
            12 | 13 => Self::Chmod(pick),
            14..17 => Self::Retype(pick, entry(random)),
            17 | 18 => Self::Move(pick, path(random)),
            19 => Self::Swap(pick, other),
            20 => Self::Wide(path(random), 2 + random.below(60)),
            21 | 22 => Self::Module(pick, other),
            _ if pick % 4 == 0 => Self::Clear,
            _ => Self::Put(path(random), entry(random)),
        }
    }
}

#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Tree(pub BTreeMap<Path, Entry>);

/// The part of a path below a directory.
fn below<'p>(path: &'p [u8], directory: &[u8]) -> Option<&'p [u8]> {
    path.strip_prefix(directory)?.strip_prefix(b"/")
}

fn parents(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    (0..path.len()).filter(|at| path[*at] == b'/').map(|at| &path[..at])
}

fn parent(path: &[u8]) -> Option<&[u8]> {
    parents(path).last()
}

impl Tree {
    /// Puts an entry at a path, and removes what is there, above or below it. Submodules are put only at their own
    /// paths.
    pub fn put(&mut self, path: &[u8], entry: Entry) {
        if path.len() > 3_000 || parents(path).count() > 100 {
            return; // the limits on paths are tested elsewhere
        }
        let is_plain = MODULE_PLACES.iter().any(|place| place.as_bytes() == path);
        if matches!(entry, Entry::Module(_)) && !is_plain {
            return;
        }
        for above in parents(path) {
            self.0.remove(above);
        }
        self.remove_below(path);
        self.0.insert(path.to_vec(), entry);
    }

    fn remove_below(&mut self, directory: &[u8]) {
        self.0.retain(|path, _| below(path, directory).is_none());
    }

    fn pick(&self, number: usize) -> Option<Path> {
        self.0.keys().nth(number % self.0.len().max(1)).cloned()
    }

    pub fn edit(&mut self, edit: &Edit) {
        match edit {
            Edit::Put(path, entry) => self.put(path, entry.clone()),
            Edit::Wide(path, count) => {
                for n in 0..*count {
                    let content = format!("{n}").into_bytes();
                    let path = [&path[..], b"/w", n.to_string().as_bytes()].concat();
                    self.put(&path, Entry::File { executable: false, content });
                }
            }
            Edit::Module(place, revision) => {
                let place = MODULE_PLACES[place % MODULE_PLACES.len()].as_bytes();
                self.put(place, Entry::Module(*revision));
            }
            Edit::Clear => self.0.clear(),
            Edit::Remove(number) => drop(self.pick(*number).map(|path| self.0.remove(&path))),
            Edit::RemoveDirectory(number) => {
                let picked = self.pick(*number);
                picked.iter().filter_map(|path| parent(path)).for_each(|above| self.remove_below(above));
            }
            Edit::Chmod(number) => {
                let picked = self.pick(*number);
                if let Some(Entry::File { executable, .. }) = picked.and_then(|path| self.0.get_mut(&path)) {
                    *executable = !*executable;
                }
            }
            Edit::Retype(number, entry) => {
                self.pick(*number).into_iter().for_each(|path| self.put(&path, entry.clone()));
            }
            Edit::Swap(one, other) => {
                if let (Some(one), Some(other)) = (self.pick(*one), self.pick(*other)) {
                    let (first, second) = (self.0[&one].clone(), self.0[&other].clone());
                    self.put(&one, second);
                    self.put(&other, first);
                }
            }
            Edit::Move(number, to) => self.rename(*number, to),
        }
    }

    fn rename(&mut self, number: usize, to: &[u8]) {
        let Some(picked) = self.pick(number) else { return };
        let Some(from) = parent(&picked).map(<[u8]>::to_vec) else { return };
        let moved: Vec<(Path, Entry)> = (self.0.iter())
            .filter_map(|(path, entry)| Some((below(path, &from)?.to_vec(), entry.clone())))
            .collect();
        self.remove_below(&from);
        for (rest, entry) in moved {
            self.put(&[to, b"/", &rest].concat(), entry);
        }
    }

    /// Removes the entries for which the revision would be refused.
    pub fn tame(&mut self, how: &How, modules: &[Self]) {
        let tame = |path: &Path, entry: &Entry| {
            how.below_a || Self([(path.clone(), entry.clone())].into()).visible(how, modules).is_some()
        };
        self.0.retain(|path, entry| tame(path, entry));
        if how.below_a {
            self.0.retain(|path, entry| match (below(path, b"a"), entry) {
                (Some(path), Entry::Link(target)) => how.keep_links || stays(path, target),
                _ => true,
            });
            self.0.retain(|path, _| {
                how.git_sync || below(path, b"a").is_none_or(|path| !path.starts_with(b".."))
            });
        }
    }

    /// The tree that is committed, with `.gitmodules`.
    pub fn sealed(&self) -> Self {
        let modules = self.0.iter().filter(|(_, entry)| matches!(entry, Entry::Module(_)));
        let text: String = modules
            .map(|(path, _)| {
                let path = String::from_utf8_lossy(path);
                format!("[submodule \"{path}\"]\n\tpath = {path}\n\turl = ../sub\n")
            })
            .collect();
        let mut sealed = self.clone();
        if !text.is_empty() {
            sealed.put(b".gitmodules", Entry::File { executable: false, content: text.into() });
        }
        sealed
    }

    /// What a reader must see of the tree. `None`: the revision must be refused. `modules` are the submodules'
    /// revisions.
    pub fn visible(&self, how: &How, modules: &[Self]) -> Option<Snapshot> {
        let mut seen = BTreeMap::new();
        for (path, entry) in &self.0 {
            let path = if how.below_a { below(path, b"a") } else { Some(&path[..]) };
            let Some(path) = path.filter(|path| !how.sparse || kept_by_patterns(how, path, entry)) else {
                continue;
            };
            if path.starts_with(b"..") && !how.git_sync && how.sources == 0 {
                return None; // the root's own names
            }
            seen.extend(parents(path).map(|above| (above.to_vec(), Node::Directory)));
            let node = match entry {
                Entry::File { executable, content } => {
                    Node::File { executable: *executable, content: content.clone() }
                }
                Entry::Link(target) if how.keep_links || stays(path, target) => Node::Link(target.clone()),
                Entry::Link(_) => return None,
                Entry::Module(revision) => {
                    if how.submodules {
                        let inside = modules[revision % modules.len()].visible(&How::default(), &[])?;
                        let placed = inside.0.into_iter();
                        seen.extend(placed.map(|(rest, node)| ([path, b"/", &rest].concat(), node)));
                    }
                    Node::Directory
                }
            };
            seen.insert(path.to_vec(), node);
        }
        (!how.below_a || !seen.is_empty()).then_some(Snapshot(seen))
    }
}

/// Returns true if the entry matches [`SPARSE`]. A submodule is a directory, but not in the layout of git-sync, which
/// turns git's cone mode on: there it counts as a file.
fn kept_by_patterns(how: &How, path: &[u8], entry: &Entry) -> bool {
    let is_file = how.git_sync || !matches!(entry, Entry::Module(_));
    let is_top = is_file && !path.contains(&b'/');
    is_top || path.starts_with(b"a/") || path.starts_with(b"b/")
}

/// Returns true if a link's target is inside the tree whatever other links there are: it goes up first, not above the
/// top, and then only down.
fn stays(path: &[u8], target: &[u8]) -> bool {
    let mut parts =
        target.split(|byte| *byte == b'/').filter(|part| ![&b""[..], b"."].contains(part)).peekable();
    let mut up = 0;
    while parts.next_if(|part| *part == b"..").is_some() {
        up += 1;
    }
    !target.starts_with(b"/") && up <= parents(path).count() && parts.all(|part| part != b"..")
}
