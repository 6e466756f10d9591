//! The rules on names, modes, links and sizes of a payload. Every refusal names the entry and the rule it breaks.

use std::borrow::Cow;
use std::fmt;
use std::hash::{BuildHasher as _, Hash, RandomState};

use super::{Kind, Limits, Symlinks};
use crate::human;
use crate::revision::Revision;

/// Longest symbolic link target that Linux accepts: PATH_MAX less the NUL. Git stores targets of any length.
pub(crate) const LINK_MAX: u64 = 4_095;

/// The greatest [`Limits::depth`], and the default when called as git-sync. A commit's author chooses how deep its trees
/// are, and walks must end also where nothing is selected. What is published must be listed for rules whatever the limit.
pub const DEPTH_MAX: u32 = 1_000;

/// The settings that the rules depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Limits on sizes and counts.
    pub limits: Limits,
    /// What to do with links that leave the tree.
    pub symlinks: Symlinks,
    /// Whether top-level names that begin with `..` are refused, because the kubelet layout reserves them.
    pub reserve_dotdot: bool,
    /// Whether the root's file system is case-insensitive, or takes names for one that Unicode normalizes to one. If so,
    /// names that differ only in case are refused before anything is written. Names that only the file system's own
    /// tables treat as equal (for example composed and decomposed accents) are found by the writer, which only creates
    /// files exclusively.
    pub folds: bool,
}

/// The type of a git tree entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Node {
    /// A directory (another tree).
    Dir,
    /// A file, link or submodule: an element of [`super::Payload::entries`].
    Entry(Kind),
}

impl Node {
    /// Decodes a tree entry's raw mode as git's `canon_mode` does: of the permission bits only the owner's execute bit
    /// counts. Returns `None` for an unknown type, which git takes for a submodule.
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

/// The rule that an entry breaks. Its message follows the entry's path.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Rule {
    /// The name is empty.
    #[error("an entry without a name")]
    NameEmpty,
    /// The name is `.` or `..`.
    #[error("`.` and `..` cannot be names")]
    NameDots,
    /// The name contains `/` or NUL.
    #[error("a name cannot hold `/` or NUL")]
    NameSeparator,
    /// The name is `.git` or equivalent to it on some file system.
    #[error("git takes this name for `.git`, on some file system")]
    NameDotGit,
    /// `.gitmodules` is a symbolic link.
    #[error("`.gitmodules` must not be a symbolic link (git refuses it, too)")]
    LinkGitModules,
    /// The kubelet layout reserves the top-level name.
    #[error("top-level names that begin with `..` are reserved for the root's own entries")]
    NameReserved,
    /// The kubelet layout reserves the top-level name, as the file system reads it.
    #[error(
        "this file system may take it for one that begins with `..`, reserved for the root's own entries"
    )]
    NameFoldsReserved,
    /// The name is longer than file systems allow.
    #[error("its name is {bytes} bytes long, file systems take {limit}")]
    NameLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: u32,
    },
    /// The path would not fit below the root.
    #[error("its path is {bytes} bytes long, the limit is {limit}")]
    PathLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: u32,
    },
    /// The path has too many components.
    #[error("it lies more than {} deep", human::count((*limit).into(), "level", "levels"))]
    Depth {
        /// The limit.
        limit: u32,
    },
    /// Two entries of a directory have the same name.
    #[error("its directory contains the name twice")]
    Duplicate,
    /// Two names of a directory are equal to the file system.
    #[error("this file system treats it and `{other}` as the same name")]
    Folds {
        /// The other one's path, escaped.
        other: String,
    },
    /// The mode has an unknown type.
    #[error("mode {mode:06o} is neither file, link, directory nor submodule")]
    Mode {
        /// The raw mode in the tree.
        mode: u32,
    },
    /// The link's target is empty.
    #[error("a symbolic link without a target")]
    LinkEmpty,
    /// The link's target contains a NUL, where the kernel would cut it.
    #[error("its target holds a NUL")]
    LinkNul,
    /// The link's target is longer than the kernel accepts.
    #[error("its target is {bytes} bytes long, the kernel takes {LINK_MAX}")]
    LinkLong {
        /// Its length.
        bytes: u64,
    },
    /// The link's target is outside the tree.
    #[error("it is a symbolic link to `{target}`, which is not inside the tree")]
    LinkLeaves {
        /// The target, escaped.
        target: String,
    },
    /// The link's target is outside the part of a composed tree that its own source placed.
    #[error("it is a symbolic link to `{target}`, which is not inside what its own source has placed")]
    LinkLeavesSource {
        /// The target, escaped.
        target: String,
    },
    /// The link's target has `..` after a name.
    #[error("it is a symbolic link to `{target}`; `..` after a name can leave the tree through another link")]
    LinkTurns {
        /// The target, escaped.
        target: String,
    },
    /// The revision has no directory that `--path` names.
    #[error("--path={path} needs this directory, and the revision does not have it")]
    NoDirectory {
        /// The value of `--path`, escaped.
        path: String,
    },
    /// `--path` names an entry that is not a directory.
    #[error("--path={path} needs a directory here, and the revision has a file, symbolic link or submodule")]
    NotADirectory {
        /// The value of `--path`, escaped.
        path: String,
    },
    /// The revision has no entry that a source's `path` names.
    #[error("it is the `path` of the source, and the revision does not have it")]
    NoPath,
    /// A source's `path` names a file, and the source has no `to`.
    #[error("it is the `path` of the source and no directory, so that it needs a `to`")]
    PathIsNoDirectory,
    /// A submodule's content is not available.
    #[error("as a submodule it cannot be published: {why}")]
    Submodule {
        /// The reason.
        why: String,
    },
    /// A blob is too large.
    #[error("it has {}, the limit for one file is {}", human::bytes_compared(*bytes, *limit), human::bytes(*limit))]
    FileBytes {
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The blobs together are too large.
    #[error("the tree has more than {}", human::bytes(*limit))]
    Bytes {
        /// The limit.
        limit: u64,
    },
    /// The tree has too many entries and directories.
    #[error("the tree has more than {}", human::count(*limit, "file or directory", "files and directories"))]
    Entries {
        /// The limit.
        limit: u64,
    },
    /// A tree or commit object is too large to be read, alone or together with the trees that contain it.
    #[error("it is a git object of {bytes} bytes, with those it lies in; no more than {limit} are read")]
    ObjectBytes {
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// An object's content is not that of such an object, or it is of another type than the entry says.
    #[error("{what}")]
    Malformed {
        /// The object, and what is wrong with it.
        what: String,
    },
    /// Full paths, which git's index stores, are too large together.
    #[error("with it git's index of the tree takes more than {}, for it spells every path in full", human::bytes(*limit))]
    IndexBytes {
        /// The limit.
        limit: u64,
    },
    /// Names are too large together. A small repository can produce gigabytes of names by reusing tree objects.
    #[error("the tree's names take more than {}", human::bytes(*limit))]
    Names {
        /// The limit.
        limit: u64,
    },
    /// Too much would be listed for the rules for ConfigMaps. No flag changes these limits.
    #[error(
        "the rules for ConfigMaps reach more than {paths} paths, or {} of paths and links' targets",
        human::bytes(*bytes)
    )]
    Listed {
        /// The limit on their number.
        paths: u64,
        /// The limit on their lengths and those of the links' targets together.
        bytes: u64,
    },
}

impl Rule {
    /// Returns true if the rule is about the tree as a whole, so that no single entry is at fault.
    fn is_of_the_tree(&self) -> bool {
        matches!(self, Self::Bytes { .. } | Self::Entries { .. } | Self::Names { .. } | Self::Listed { .. })
    }

    /// The flag that changes the rule; `None` if there is none.
    pub fn flag(&self) -> Option<&'static str> {
        match self {
            Self::Depth { limit } if *limit < DEPTH_MAX => Some("--max-path-depth"),
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

/// A revision must not be published. This is permanent: only another revision or another flag can help.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The revision.
    pub revision: Revision,
    /// The entry's full path, escaped. If the whole tree is refused, the entry that was read last.
    pub path: String,
    /// The rule that is broken.
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
    /// Returns true if the entry in [`Self::path`] is at fault, and not the tree as a whole.
    pub fn is_of_one_path(&self) -> bool {
        !self.rule.is_of_the_tree()
    }

    /// Hints for the operator, one line each.
    pub fn hints(&self) -> Vec<String> {
        let commit = match self.rule {
            Rule::NoDirectory { .. } | Rule::NotADirectory { .. } => {
                "that has the directory, or change --path"
            }
            Rule::NoPath => "that has it, or fix `path` of the source in the file of --sources",
            Rule::PathIsNoDirectory => {
                "where it is a directory, or add `to: NAME` to the source in the file of --sources"
            }
            _ if self.rule.is_of_the_tree() => "with a smaller tree",
            _ => "without it",
        };
        // What is served meanwhile is for the caller to say: perhaps nothing yet, or there are only ConfigMaps.
        let remedy = format!("push a commit {commit}");
        let other = match self.rule.flag() {
            Some(flag @ "--symlinks=keep") => Some(format!("{flag} publishes such links as they are")),
            Some(flag @ "--submodules=off") => {
                Some(format!("{flag} publishes empty directories in their place"))
            }
            Some(flag) => Some(format!("{flag} raises the limit")),
            None if matches!(self.rule, Rule::Listed { .. }) => Some(
                "globs of the rules that begin with the path of a smaller directory reach less, unless one \
                 matches a symbolic link"
                    .to_owned(),
            ),
            None => None,
        };
        std::iter::once(remedy).chain(other).collect()
    }
}

impl Rules {
    /// Checks one path component. `depth` is the number of components above it, `dir_len` the length of their path in
    /// bytes.
    pub fn name(&self, name: &[u8], depth: u32, dir_len: usize) -> Result<(), Rule> {
        // Lengths come first: the author may name an entry with many megabytes, which nothing below may scan or copy.
        if name.len() > self.limits.name as usize {
            return Err(Rule::NameLong { bytes: name.len(), limit: self.limits.name });
        }
        let path = if dir_len == 0 { name.len() } else { dir_len + 1 + name.len() };
        if path > self.limits.path as usize {
            return Err(Rule::PathLong { bytes: path, limit: self.limits.path });
        }
        if name.is_empty() {
            return Err(Rule::NameEmpty);
        }
        if name == b"." || name == b".." {
            return Err(Rule::NameDots);
        }
        if name.iter().any(|&byte| byte == b'/' || byte == 0) {
            return Err(Rule::NameSeparator);
        }
        // File systems compare what is no UTF-8 byte by byte.
        let folds_to_dot_git = || {
            std::str::from_utf8(name).is_ok()
                && without_ignorable(name).collect::<String>().eq_ignore_ascii_case(".git")
        };
        if is_dot_git(name) || self.folds && folds_to_dot_git() {
            return Err(Rule::NameDotGit);
        }
        if depth == 0 && self.reserve_dotdot {
            if name.starts_with(b"..") {
                return Err(Rule::NameReserved);
            }
            if self.folds && without_ignorable(name).take(2).eq("..".chars()) {
                return Err(Rule::NameFoldsReserved);
            }
        }
        if depth >= self.limits.depth {
            return Err(Rule::Depth { limit: self.limits.depth });
        }
        Ok(())
    }

    /// Checks one blob's size.
    pub(super) fn size(&self, bytes: u64) -> Result<(), Rule> {
        let limit = self.limits.file_bytes;
        if bytes > limit { Err(Rule::FileBytes { bytes, limit }) } else { Ok(()) }
    }

    /// Checks the totals of a tree.
    pub(super) fn totals(&self, entries: u64, bytes: u64) -> Result<(), Rule> {
        if entries > self.limits.entries {
            return Err(Rule::Entries { limit: self.limits.entries });
        }
        if bytes > self.limits.bytes {
            return Err(Rule::Bytes { limit: self.limits.bytes });
        }
        Ok(())
    }

    /// Checks a symbolic link called `name` in a directory that is `depth` components deep.
    ///
    /// A safe target is relative, begins with at most `depth` times `..`, and has no `..` after a name. The last
    /// condition is for chains of links: the target of `a/l -> up/../x` looks safe, but with `a/up -> ..` it leaves the
    /// tree.
    pub(super) fn link(&self, name: &[u8], depth: u32, target: &[u8]) -> Result<(), Rule> {
        // A longer name is refused in any case.
        if name.len() <= self.limits.name as usize && hfs_folded(name) == b".gitmodules" {
            return Err(Rule::LinkGitModules);
        }
        if target.is_empty() {
            return Err(Rule::LinkEmpty);
        }
        if target.len() as u64 > LINK_MAX {
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

/// Returns true if the name is equivalent to `.git` on any system that git knows (`verify_path` with `core.protectHFS`
/// and `core.protectNTFS`): other case, the 8.3 name `git~1`, trailing dots and spaces, an NTFS stream, a part after a
/// backslash, code points that HFS+ ignores.
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

/// The name as HFS+ compares it, as far as ASCII is concerned: without ignorable code points, in lower case. Cut at
/// malformed UTF-8, as in git.
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

/// The characters of a name up to malformed UTF-8, but for those that Unicode calls default-ignorable. Where names fold
/// by Unicode's tables (directories of ext4, f2fs and tmpfs with `+F`), a name with them and one without are the same.
fn without_ignorable(name: &[u8]) -> impl Iterator<Item = char> {
    let valid = name.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    valid.chars().filter(|c| {
        !matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fff8}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}')
    })
}

/// A name that occurs twice in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Duplicate<'n, D> {
    pub(super) dir: D,
    pub(super) name: &'n [u8],
    /// [`Rule::Duplicate`] or [`Rule::Folds`].
    pub(super) rule: Rule,
}

/// Finds two equal names in a directory; with `folds` also names that differ only in case. `names` lists directory and
/// name of every entry in any order; every call has to return the same. Takes eight bytes of memory per name: only
/// names with equal hashes are compared.
pub(super) fn find_duplicate<'n, D: Copy + Eq + Hash, I: Iterator<Item = (D, &'n [u8])>>(
    names: impl Fn() -> I,
    folds: bool,
) -> Option<Duplicate<'n, D>> {
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
            rule.map(|rule| Duplicate { dir, name, rule })
        })
    })
}

/// The name nearly as a case-insensitive file system compares it: in lower case, by Unicode's full mapping and without
/// normalization. The writer finds what this misses.
fn case_folded(name: &[u8]) -> Vec<u8> {
    match std::str::from_utf8(name) {
        Ok(text) => text.to_lowercase().into_bytes(),
        Err(_) => name.to_ascii_lowercase(),
    }
}

/// Untrusted bytes, for example from a commit, as text that is safe in a terminal: secrets are redacted, characters
/// that could move the cursor or hide or reorder text are escaped, and long text is cut after 512 bytes.
pub fn escaped(bytes: &[u8]) -> String {
    const SHOWN: usize = 512;
    // Only so much is searched for secrets, because the text may have many megabytes. A secret that begins in what is
    // shown ends before, even encoded.
    const SEARCHED: usize = 8 << 10;
    let head = crate::secret::quoted_bytes(&bytes[..bytes.len().min(SEARCHED)]);
    let mut text = String::new();
    for chunk in head[..head.len().min(SHOWN)].utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\'' | '"' => text.push(c),
                c => text.extend(c.escape_debug()),
            }
        }
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    if head.len() > SHOWN || bytes.len() > SEARCHED {
        text.push_str(&format!("... ({} bytes)", bytes.len()));
    }
    text
}
