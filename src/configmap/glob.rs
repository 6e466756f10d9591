//! Patterns in the dialect that the rules name, and sets of patterns that are matched together.
//!
//! A [`Patterns`] set has a sorted list of the patterns' literal prefixes. For one path it tries only the patterns
//! whose prefix fits, and a tree walk skips every directory that no prefix reaches.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::str::FromStr;

use super::zglob::{Part, Zglob};

/// How patterns are interpreted. The name includes the version, because another version may assign files to other
/// ConfigMaps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Dialect {
    /// go-zglob v0.0.2, which Prow pins.
    #[default]
    Zglob,
    /// The crate globset, where `*` and `?` do not match `/`.
    Globset,
}

impl Dialect {
    /// The names of all dialects.
    pub const NAMES: [&str; 2] = ["zglob-0.0.2", "globset"];
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Zglob => Self::NAMES[0],
            Self::Globset => Self::NAMES[1],
        })
    }
}

impl FromStr for Dialect {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "zglob-0.0.2" => Ok(Self::Zglob),
            "globset" => Ok(Self::Globset),
            _ => Err(format!("there is no dialect {name:?}; there are {}", Self::NAMES.join(" and "))),
        }
    }
}

/// A pattern that is invalid in its dialect, with the parser's message.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadPattern(String);

/// A compiled pattern.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    matcher: Matcher,
}

#[derive(Clone, Debug)]
enum Matcher {
    Zglob(Zglob),
    Globset(globset::GlobMatcher),
    /// A globset pattern without special characters: its text is the path.
    Text,
}

/// Longest pattern, in bytes, with the values of its variables. No path is longer (`PATH_MAX`).
const TEXT_MAX: usize = 4096;
/// Most opening braces in a globset pattern.
const BRACES_MAX: usize = 100;

/// Characters that are special in globset patterns.
const META: [char; 6] = ['*', '?', '[', ']', '{', '\\'];

impl Pattern {
    /// Compiles a pattern. `variable` looks up environment variables; only zglob has them, as `$NAME` and `~`.
    pub fn new(
        dialect: Dialect,
        text: &str,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, BadPattern> {
        if text.len() > TEXT_MAX {
            return Err(BadPattern(format!("it has {} bytes, the limit is {TEXT_MAX}", text.len())));
        }
        // The crate globset aborts the process on braces nested 250 deep.
        if dialect == Dialect::Globset && text.bytes().filter(|byte| *byte == b'{').count() > BRACES_MAX {
            return Err(BadPattern(format!("it has more than {BRACES_MAX} braces")));
        }
        let matcher = match dialect {
            Dialect::Zglob => {
                let why = "with the values of its variables it has more than";
                let zglob = Zglob::new(text, TEXT_MAX, variable);
                Matcher::Zglob(zglob.ok_or_else(|| BadPattern(format!("{why} {TEXT_MAX} bytes")))?)
            }
            Dialect::Globset => {
                let glob = globset::GlobBuilder::new(text).literal_separator(true).build();
                let glob = glob.map_err(|error| BadPattern(error.kind().to_string()))?;
                // A compiled one takes some kilobytes.
                if text.contains(META) { Matcher::Globset(glob.compile_matcher()) } else { Matcher::Text }
            }
        };
        Ok(Self { text: text.to_owned(), matcher })
    }

    /// Returns true if a path matches. The path is relative to the top of the tree.
    pub fn matches(&self, path: &[u8]) -> bool {
        match &self.matcher {
            Matcher::Zglob(zglob) => zglob.matches(path),
            Matcher::Globset(glob) => glob.is_match(Path::new(OsStr::from_bytes(path))),
            Matcher::Text => self.text.as_bytes() == path,
        }
    }

    /// The only path that the pattern can match; `None` if it may match several.
    pub fn literal(&self) -> Option<&str> {
        match &self.matcher {
            Matcher::Zglob(Zglob::Whole(_)) | Matcher::Text => Some(&self.text),
            Matcher::Zglob(Zglob::Parts { .. }) | Matcher::Globset(_) => None,
        }
    }

    /// The literal text that every matching path begins with.
    pub fn prefix(&self) -> &[u8] {
        match &self.matcher {
            Matcher::Zglob(zglob) => zglob.prefix(),
            Matcher::Globset(_) => {
                // `a/**` also matches below `a`, and `a/**/b` also matches `a/b`, so only the whole components before
                // the first special character are certain.
                let certain = self.text.split(META).next().unwrap_or_default();
                &certain.as_bytes()[..certain.rfind('/').map_or(0, |at| at + 1)]
            }
            Matcher::Text => self.text.as_bytes(),
        }
    }

    /// Literal texts such that every matching path begins with one of them.
    fn prefixes(&self) -> Vec<Vec<u8>> {
        match &self.matcher {
            Matcher::Zglob(zglob) => zglob.prefixes(),
            Matcher::Globset(_) | Matcher::Text => vec![self.prefix().to_vec()],
        }
    }

    /// The number of literal bytes, `usize::MAX` for a pattern that names one path. Of two patterns that match a path,
    /// the one with more is more specific.
    pub fn weight(&self) -> usize {
        match &self.matcher {
            Matcher::Zglob(Zglob::Parts { parts, .. }) => parts
                .iter()
                .map(|part| match part {
                    Part::Literal(text) => text.len(),
                    _ => 0,
                })
                .sum(),
            _ if self.literal().is_some() => usize::MAX,
            _ => self.text.chars().filter(|c| !META.contains(c)).map(char::len_utf8).sum(),
        }
    }

    /// Describes what in the pattern does not mean what it means in ordinary globs, as a phrase that follows the
    /// pattern in a message. `None` if nothing does.
    pub fn unusual_syntax(&self) -> Option<&'static str> {
        let Matcher::Zglob(zglob) = &self.matcher else { return None };
        let text = self.text.as_str();
        let deep_elsewhere = || {
            text.split('/').enumerate().any(|(at, component)| {
                component.contains("**") && (component != "**" || text.split('/').count() == at + 1)
            })
        };
        if matches!(zglob, Zglob::Whole(_)) {
            return match () {
                () if text.contains('{') => Some("has braces but no `*`, and is compared literally"),
                () if text.contains(['?', '[', '\\']) => Some("has no `*`, and is compared literally"),
                () if text != clean_form(text) => Some("is compared literally, and no path is written so"),
                () => None,
            };
        }
        match () {
            () if text.split('/').any(|c| c.starts_with('$') && c.len() > 2) || text.starts_with("~/") => {
                Some("depends on environment variables")
            }
            () if text.starts_with('/') => Some("begins with `/`, and no path of a tree does"),
            () if text.contains(['?', '[', '\\']) => Some("has `?`, `[` or `\\`, which are literal here"),
            () if text.matches('{').count() != text.matches('}').count() => Some("has an unclosed brace"),
            () if text
                .split('{')
                .skip(1)
                .any(|inner| inner.split('}').next().is_some_and(|i| i.contains('*'))) =>
            {
                Some("has a `*` inside braces, which is literal there")
            }
            () if deep_elsewhere() => {
                Some("has `**` that is not a whole component before a `/`, and does not mean any depth")
            }
            () => None,
        }
    }
}

/// The path without `.` components, empty components, and leading or trailing slashes.
fn clean_form(text: &str) -> String {
    text.split('/').filter(|part| !part.is_empty() && *part != ".").collect::<Vec<_>>().join("/")
}

/// Most bytes that are kept of a prefix if a pattern has several, as with alternatives in braces: many long ones would
/// take many times the text of the rules. A shorter one is still right, as the pattern itself is tried then.
const PREFIX_MAX: usize = 64;

/// A set of patterns that is matched as a whole.
#[derive(Clone, Debug, Default)]
pub struct Patterns {
    all: Vec<Pattern>,
    /// Literal beginnings of paths, each with the index of a pattern that may match those; sorted.
    prefixes: Vec<(Box<[u8]>, usize)>,
}

impl Patterns {
    /// Builds the set. Patterns keep their indices.
    pub fn new(all: Vec<Pattern>) -> Self {
        let prefixes = |(index, pattern): (usize, &Pattern)| {
            let mut prefixes = pattern.prefixes();
            if prefixes.len() > 1 {
                prefixes.iter_mut().for_each(|prefix| prefix.truncate(PREFIX_MAX));
            }
            prefixes.sort_unstable();
            prefixes.dedup();
            prefixes.into_iter().map(move |prefix| (prefix.into_boxed_slice(), index))
        };
        let mut prefixes: Vec<_> = all.iter().enumerate().flat_map(prefixes).collect();
        prefixes.sort_unstable();
        Self { all, prefixes }
    }

    /// The pattern at an index.
    pub fn get(&self, index: usize) -> &Pattern {
        &self.all[index]
    }

    /// Returns true if any pattern matches the path.
    pub fn is_match(&self, path: &[u8]) -> bool {
        let mut found = false;
        self.follow(path, |prefixes| {
            found |= prefixes.iter().any(|&(_, index)| self.all[index].matches(path));
            found
        });
        found
    }

    /// The indices of all patterns that match the path, ascending.
    pub fn matching(&self, path: &[u8]) -> Vec<usize> {
        let mut found: Vec<usize> = Vec::new();
        self.follow(path, |prefixes| {
            let indices = prefixes.iter().map(|&(_, index)| index);
            found.extend(indices.filter(|&index| self.all[index].matches(path)));
            false
        });
        found.sort_unstable();
        found.dedup(); // several prefixes of one pattern may fit the path
        found
    }

    /// Returns true if any path below the directory could match.
    pub fn reach_below(&self, directory: &[u8]) -> bool {
        let below = [directory, b"/"].concat();
        self.follow(&below, |prefixes| !prefixes.is_empty())
    }

    /// Calls `visit` for each beginning of the path, from the empty one to the whole path, with the prefixes that are
    /// equal to it, until it returns true. Returns true if it did, or if a prefix begins with the whole path.
    fn follow(&self, path: &[u8], mut visit: impl FnMut(&[(Box<[u8]>, usize)]) -> bool) -> bool {
        let mut fitting = self.prefixes.as_slice(); // those that begin with the first `at` bytes of the path
        for at in 0..=path.len() {
            // Those that end here come first, and the others are sorted by their next byte.
            let (equal, longer) = fitting.split_at(fitting.partition_point(|(prefix, _)| prefix.len() == at));
            if visit(equal) {
                return true;
            }
            let Some(byte) = path.get(at) else { break };
            let first = longer.partition_point(|(prefix, _)| prefix[at] < *byte);
            let count = longer[first..].partition_point(|(prefix, _)| prefix[at] == *byte);
            fitting = &longer[first..first + count];
            if fitting.is_empty() {
                return false;
            }
        }
        !fitting.is_empty()
    }
}
