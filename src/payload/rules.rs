//! What may be in a payload: names, modes, links, sizes. Every refusal names the entry and the rule it breaks.

use std::borrow::Cow;
use std::fmt;
use std::hash::{BuildHasher as _, Hash, RandomState};

use super::{Kind, Limits, Symlinks};
use crate::human;
use crate::revision::Revision;

/// Linux refuses longer link targets (PATH_MAX less the NUL); git stores any.
const MAX_LINK: u64 = 4_095;

/// The choices that the rules depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Ceilings.
    pub limits: Limits,
    /// Links that leave the tree.
    pub symlinks: Symlinks,
    /// Whether top-level names that begin with `..` are refused (the kubelet layout reserves them).
    pub reserve_dotdot: bool,
    /// Whether the root's file system takes `A` and `a` for one name. Then such a pair is refused before anything is
    /// written. Pairs that only a file system's own tables know (accents composed or not) are found by the writer,
    /// which never opens what exists.
    pub folds: bool,
}

/// What an entry of a git tree is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Node {
    /// A sub-tree.
    Dir,
    /// Something that has a place in [`super::Payload::entries`].
    Entry(Kind),
}

impl Node {
    /// Reads a tree entry's raw mode as git's `canon_mode` does, permission bits dropped but for the owner's execute
    /// bit. Where git takes everything it does not know for a submodule, this is `None`.
    pub fn of(raw_mode: u32) -> Option<Self> {
        match raw_mode & !0o7777 {
            0o100_000 if raw_mode & 0o100 != 0 => Some(Self::Entry(Kind::Executable)),
            0o100_000 => Some(Self::Entry(Kind::File)),
            0o120_000 => Some(Self::Entry(Kind::Symlink)),
            0o160_000 => Some(Self::Entry(Kind::Submodule)),
            0o040_000 => Some(Self::Dir),
            _ => None,
        }
    }
}

/// Why an entry is refused, in words that follow its path.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Rule {
    /// No name at all.
    #[error("an entry without a name")]
    NameEmpty,
    /// `.` or `..`.
    #[error("`.` and `..` cannot be names")]
    NameDots,
    /// A `/` or NUL inside one name.
    #[error("a name cannot hold `/` or NUL")]
    NameSeparator,
    /// `.git`, however spelt.
    #[error("git takes this name for `.git`, on some file system")]
    NameDotGit,
    /// `.gitmodules` as a link.
    #[error("`.gitmodules` must not be a symbolic link (git refuses it, too)")]
    LinkGitModules,
    /// A top-level name that the layout reserves.
    #[error("top-level names that begin with `..` are reserved for the root's own entries")]
    NameReserved,
    /// A component that no file system takes.
    #[error("its name is {bytes} bytes long, file systems take {limit}")]
    NameLong {
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        limit: u32,
    },
    /// A path that would not fit below the root.
    #[error("its path is {bytes} bytes long, the limit is {limit}")]
    PathLong {
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        limit: u32,
    },
    /// Too many levels.
    #[error("it lies more than {limit} levels deep")]
    Depth {
        /// How many there may be.
        limit: u32,
    },
    /// Twice the same name in a directory, whatever the two are.
    #[error("its directory holds the name twice")]
    Duplicate,
    /// Two names that the file system takes for one.
    #[error("this file system takes it and `{other}` for one name")]
    Folds {
        /// The other one's path, escaped.
        other: String,
    },
    /// A mode that is no file, link, directory or submodule.
    #[error("mode {mode:06o} is neither file, link, directory nor submodule")]
    Mode {
        /// As the tree has it.
        mode: u32,
    },
    /// A link to nothing.
    #[error("a symbolic link without a target")]
    LinkEmpty,
    /// A link that the kernel would cut.
    #[error("its target holds a NUL")]
    LinkNul,
    /// A link that the kernel would not take.
    #[error("its target is {bytes} bytes long, the kernel takes {MAX_LINK}")]
    LinkLong {
        /// How long it is.
        bytes: u64,
    },
    /// A link out of the tree.
    #[error("it is a symbolic link to `{target}`, which is not inside the tree")]
    LinkLeaves {
        /// Where it points, escaped.
        target: String,
    },
    /// A link out of what its own source placed.
    #[error("it is a symbolic link to `{target}`, which is not inside what its own source has placed")]
    LinkLeavesSource {
        /// Where it points, escaped.
        target: String,
    },
    /// A link that goes up after it went down.
    #[error("it is a symbolic link to `{target}`; `..` after a name can leave the tree through another link")]
    LinkTurns {
        /// Where it points, escaped.
        target: String,
    },
    /// `--path` names what is not there.
    #[error("--path={path} needs this directory, and the revision does not have it")]
    NoDirectory {
        /// The whole path, escaped.
        path: String,
    },
    /// `--path` names something else than a directory.
    #[error("--path={path} needs a directory here, and the revision has a file, symbolic link or submodule")]
    NotADirectory {
        /// The whole path, escaped.
        path: String,
    },
    /// A source's `path` names what is not there.
    #[error("it is the `path` of the source, and the revision does not have it")]
    NoPath,
    /// A source's `path` names a file, and it has no place.
    #[error("it is the `path` of the source and no directory, so that it needs a `to`")]
    PathIsNoDirectory,
    /// A submodule that cannot be had.
    #[error("as a submodule it cannot be published: {why}")]
    Submodule {
        /// Why.
        why: String,
    },
    /// A blob that is too large.
    #[error("it has {}, the limit for one file is {}", human::bytes_beside(*bytes, *limit), human::bytes(*limit))]
    FileBytes {
        /// How large it is.
        bytes: u64,
        /// How large it may be.
        limit: u64,
    },
    /// Everything together is too large.
    #[error("the tree has more than {}", human::bytes(*limit))]
    Bytes {
        /// How many there may be.
        limit: u64,
    },
    /// Too many entries.
    #[error("the tree has more than {limit} files and directories")]
    Entries {
        /// How many there may be.
        limit: u64,
    },
    /// A tree or commit object that is too large to be read, or trees in one another that are so together.
    #[error("it is a git object of {bytes} bytes, with those it lies in; no more than {limit} are read")]
    ObjectBytes {
        /// How large it is.
        bytes: u64,
        /// How large it may be.
        limit: u64,
    },
    /// Too many bytes of whole paths, of which git's index is made.
    #[error("with it git's index of the tree takes more than {}, for it spells every path in full", human::bytes(*limit))]
    IndexBytes {
        /// How many there may be.
        limit: u64,
    },
    /// Too many bytes of names: a small tree that repeats itself can spell gigabytes of paths.
    #[error("the tree's names take more than {}", human::bytes(*limit))]
    Names {
        /// How many there may be.
        limit: u64,
    },
}

impl Rule {
    /// Whether it is about all entries together, so that the last one read is no more to blame than any other.
    fn is_of_the_tree(&self) -> bool {
        matches!(self, Self::Bytes { .. } | Self::Entries { .. } | Self::Names { .. })
    }

    /// The flag that changes the rule, if one does.
    pub fn flag(&self) -> Option<&'static str> {
        match self {
            Self::Depth { .. } => Some("--max-path-depth"),
            Self::FileBytes { .. } => Some("--max-file-bytes"),
            Self::Bytes { .. } => Some("--max-tree-bytes"),
            Self::Entries { .. } | Self::Names { .. } => Some("--max-tree-entries"),
            Self::Submodule { .. } => Some("--submodules=off"),
            Self::LinkLeaves { .. } | Self::LinkLeavesSource { .. } | Self::LinkTurns { .. } => {
                Some("--symlinks=keep")
            }
            _ => None,
        }
    }
}

/// A revision that must not be published, and why. It stays so: only another revision, or another flag, can help.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The revision.
    pub revision: Revision,
    /// The entry's full path, escaped for a terminal; where it is the whole tree that is refused, how far it was read.
    pub path: String,
    /// What it breaks.
    pub rule: Rule,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let revision = self.revision.short();
        if self.rule.is_of_the_tree() {
            write!(f, "revision {revision} is refused: {}", self.rule)
        } else {
            write!(f, "revision {revision} is refused because of `{}`: {}", self.path, self.rule)
        }
    }
}

impl std::error::Error for Refusal {}

impl Refusal {
    /// Whether the entry that it names is to blame, and not all of the tree together.
    pub fn is_of_one_path(&self) -> bool {
        !self.rule.is_of_the_tree()
    }

    /// What an operator can do, a line each.
    pub fn hints(&self) -> Vec<String> {
        let commit = match self.rule {
            Rule::NoDirectory { .. } | Rule::NotADirectory { .. } => {
                "that has the directory, or change --path"
            }
            Rule::NoPath => "that has it, or mend `path` of the source in the file of --sources",
            Rule::PathIsNoDirectory => {
                "where it is a directory, or add `to: NAME` to the source in the file of --sources"
            }
            _ if self.rule.is_of_the_tree() => "with a smaller tree",
            _ => "without it",
        };
        let mend = format!("push a commit {commit}; until then the generation before stays published");
        let flag = match self.rule.flag() {
            Some(flag @ "--symlinks=keep") => Some(format!("{flag} publishes such links as they are")),
            Some(flag @ "--submodules=off") => {
                Some(format!("{flag} publishes empty directories in their place"))
            }
            Some(flag) => Some(format!("{flag} raises the limit")),
            None => None,
        };
        std::iter::once(mend).chain(flag).collect()
    }
}

impl Rules {
    /// Checks one component: `depth` is the number of components above it, `dir_len` the bytes of their path.
    pub fn name(&self, name: &[u8], depth: u32, dir_len: usize) -> Result<(), Rule> {
        if name.is_empty() {
            return Err(Rule::NameEmpty);
        }
        if name == b"." || name == b".." {
            return Err(Rule::NameDots);
        }
        if name.iter().any(|&byte| byte == b'/' || byte == 0) {
            return Err(Rule::NameSeparator);
        }
        if is_dot_git(name) {
            return Err(Rule::NameDotGit);
        }
        if depth == 0 && self.reserve_dotdot && name.starts_with(b"..") {
            return Err(Rule::NameReserved);
        }
        if name.len() > self.limits.name as usize {
            return Err(Rule::NameLong { bytes: name.len(), limit: self.limits.name });
        }
        if depth >= self.limits.depth {
            return Err(Rule::Depth { limit: self.limits.depth });
        }
        let path = if dir_len == 0 { name.len() } else { dir_len + 1 + name.len() };
        if path > self.limits.path as usize {
            return Err(Rule::PathLong { bytes: path, limit: self.limits.path });
        }
        Ok(())
    }

    /// Checks one blob's size.
    pub(super) fn size(&self, bytes: u64) -> Result<(), Rule> {
        let limit = self.limits.file_bytes;
        if bytes > limit { Err(Rule::FileBytes { bytes, limit }) } else { Ok(()) }
    }

    /// Checks how much it has become, all together.
    pub(super) fn totals(&self, entries: u64, bytes: u64) -> Result<(), Rule> {
        if entries > self.limits.entries {
            return Err(Rule::Entries { limit: self.limits.entries });
        }
        if bytes > self.limits.bytes {
            return Err(Rule::Bytes { limit: self.limits.bytes });
        }
        Ok(())
    }

    /// Checks a link called `name` in a directory that is `depth` components deep.
    ///
    /// A safe target is relative, begins with at most `depth` times `..`, and has no `..` after a name. The last part
    /// makes the check hold for chains: in `a/l -> up/../x`, where `a/up -> ..`, no part looks wrong, and yet it
    /// leaves the tree.
    pub(super) fn link(&self, name: &[u8], depth: u32, target: &[u8]) -> Result<(), Rule> {
        if hfs_folded(name) == b".gitmodules" {
            return Err(Rule::LinkGitModules);
        }
        if target.is_empty() {
            return Err(Rule::LinkEmpty);
        }
        if target.len() as u64 > MAX_LINK {
            return Err(Rule::LinkLong { bytes: target.len() as u64 });
        }
        if target.contains(&0) {
            return Err(Rule::LinkNul);
        }
        if self.symlinks == Symlinks::Keep {
            return Ok(());
        }
        if target.starts_with(b"/") {
            return Err(Rule::LinkLeaves { target: escaped(target) });
        }
        let mut above = depth;
        let mut below = false;
        for component in target.split(|&byte| byte == b'/') {
            match component {
                b"" | b"." => {}
                b".." if below => return Err(Rule::LinkTurns { target: escaped(target) }),
                b".." if above == 0 => return Err(Rule::LinkLeaves { target: escaped(target) }),
                b".." => above -= 1,
                _ => below = true,
            }
        }
        Ok(())
    }
}

/// Whether git takes the name for `.git` on any system it knows (`verify_path` with `core.protectHFS` and
/// `core.protectNTFS`): an upper-case letter, the 8.3 name `git~1`, trailing dots and spaces, an NTFS stream, a part
/// after a backslash, code points that HFS+ ignores.
fn is_dot_git(name: &[u8]) -> bool {
    hfs_folded(name) == b".git" || name.split(|&byte| byte == b'\\').any(is_ntfs_dot_git)
}

/// git's `is_ntfs_dotgit`, for one part between backslashes.
fn is_ntfs_dot_git(part: &[u8]) -> bool {
    let rest = [&b".git"[..], b"git~1"].iter().find_map(|prefix| {
        part.get(..prefix.len())
            .filter(|head| head.eq_ignore_ascii_case(prefix))
            .map(|_| &part[prefix.len()..])
    });
    rest.is_some_and(|rest| {
        let end = rest.iter().position(|&byte| byte == b':').unwrap_or(rest.len());
        rest[..end].iter().all(|&byte| byte == b'.' || byte == b' ')
    })
}

/// The name as HFS+ compares it, as far as ASCII goes: ignorable code points dropped, lower case. Malformed UTF-8 ends
/// it, as in git.
fn hfs_folded(name: &[u8]) -> Vec<u8> {
    let valid = name.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    let folded: String = valid
        .chars()
        .filter(|c| {
            !matches!(c, '\u{200c}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{206a}'..='\u{206f}' | '\u{feff}')
        })
        .collect();
    folded.to_ascii_lowercase().into_bytes()
}

/// A name that its directory holds twice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Twice<'n, D> {
    /// The directory.
    pub(super) dir: D,
    /// The name.
    pub(super) name: &'n [u8],
    /// What that breaks.
    pub(super) rule: Rule,
}

/// Finds a name that its directory holds twice, or two that a file system which `folds` takes for one. `names` lists
/// all, directory and name, in any order, the same at every call. Eight bytes a name: what a hash says of two is looked
/// at again.
pub(super) fn twice<'n, D: Copy + Eq + Hash, I: Iterator<Item = (D, &'n [u8])>>(
    names: impl Fn() -> I,
    folds: bool,
) -> Option<Twice<'n, D>> {
    let key = |name: &'n [u8]| if folds { Cow::Owned(case_folded(name)) } else { Cow::Borrowed(name) };
    let state = RandomState::new();
    let hash = |dir: D, name| state.hash_one((dir, &*key(name)));
    let mut hashes: Vec<u64> = names().map(|(dir, name)| hash(dir, name)).collect();
    hashes.sort_unstable();
    let suspects = hashes.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
    suspects.into_iter().find_map(|suspect| {
        let mut seen: Vec<(D, &[u8])> = Vec::new();
        names().filter(|(dir, name)| hash(*dir, name) == suspect).find_map(|(dir, name)| {
            let other = seen.iter().find(|(at, other)| *at == dir && key(other) == key(name));
            let rule = other.map(|(_, other)| {
                if *other == name { Rule::Duplicate } else { Rule::Folds { other: escaped(other) } }
            });
            seen.push((dir, name));
            rule.map(|rule| Twice { dir, name, rule })
        })
    })
}

/// What a folding file system compares: lower case, as far as Unicode's simple rules go.
fn case_folded(name: &[u8]) -> Vec<u8> {
    match std::str::from_utf8(name) {
        Ok(text) => text.to_lowercase().into_bytes(),
        Err(_) => name.to_ascii_lowercase(),
    }
}

/// Bytes that a commit holds, for a terminal, without any part of a secret: what could move the cursor, hide or reorder
/// text is escaped, and what is very long is cut.
pub fn escaped(bytes: &[u8]) -> String {
    const SHOWN: usize = 512;
    let bytes = crate::secret::quoted_bytes(bytes);
    let mut text = String::new();
    for chunk in bytes[..bytes.len().min(SHOWN)].utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\'' | '"' => text.push(c),
                c => text.extend(c.escape_debug()),
            }
        }
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    if bytes.len() > SHOWN {
        text.push_str(&format!("... ({} bytes)", bytes.len()));
    }
    text
}
