//! Checks that files of a composed tree do not share a base name (`unique-base-names` in the file that lists the
//! sources), for readers that fail if two do. It applies to files of the same source and of different sources alike.

use std::collections::HashSet;

use super::overlay::Overlay;
use crate::configmap::{Dialect, Pattern, Patterns};
use crate::mirror::error::Error;
use crate::mirror::tree::{Budget, FORMAT, LINK, REGULAR, Step, TreeWalk};
use crate::payload::{Limits, Refusal, Rule, escaped};
use crate::revision::{ObjectId, Revision};

/// The most globs that are accepted.
const GLOBS_MAX: usize = 64;

/// The longest glob in bytes; no file system has longer paths.
const GLOB_BYTES: usize = 4 << 10;

/// The globs of files that must not share a base name. Empty by default.
#[derive(Clone, Debug, Default)]
pub struct UniqueBaseNames {
    globs: Vec<String>,
    patterns: Patterns,
}

impl PartialEq for UniqueBaseNames {
    fn eq(&self, other: &Self) -> bool {
        self.globs == other.globs
    }
}

impl Eq for UniqueBaseNames {}

impl UniqueBaseNames {
    /// Parses globs over the paths of the composed tree, in which `*` and `?` do not match `/`. The error says which
    /// glob is wrong and why.
    pub fn parse(globs: Vec<String>) -> Result<Self, String> {
        if globs.len() > GLOBS_MAX {
            return Err(format!("{} globs; at most {GLOBS_MAX} are read", globs.len()));
        }
        let pattern = |glob: &String| {
            if glob.is_empty() || glob.len() > GLOB_BYTES {
                return Err(format!("a glob has 1 to {GLOB_BYTES} bytes"));
            }
            if glob.starts_with('/') {
                return Err(format!("{glob:?} begins with `/`, and no path below the root does"));
            }
            if let Some(why) = useless(glob) {
                return Err(format!("{glob:?} {why}"));
            }
            Pattern::new(Dialect::Globset, glob, &|_| None).map_err(|error| format!("{glob:?}: {error}"))
        };
        let patterns = globs.iter().map(pattern).collect::<Result<_, _>>()?;
        Ok(Self { globs, patterns: Patterns::new(patterns) })
    }

    /// The globs as written.
    pub fn globs(&self) -> &[String] {
        &self.globs
    }

    /// The globs that cannot match any path below one of these places.
    pub fn out_of(&self, places: &[&str]) -> Vec<&str> {
        let reaches = |prefix: &str, place: &str| {
            let is_below = prefix.strip_prefix(place).is_some_and(|rest| rest.starts_with('/'));
            place.is_empty() || place.starts_with(prefix) || is_below
        };
        let prefix = |index| String::from_utf8_lossy(self.patterns.get(index).prefix());
        let all = self.globs.iter().enumerate();
        let out = all.filter(|(index, _)| !places.iter().any(|place| reaches(&prefix(*index), place)));
        out.map(|(_, glob)| glob.as_str()).collect()
    }

    /// Refuses a tree in which two files that match share a base name.
    pub(super) fn check(
        &self,
        overlay: &mut Overlay<'_>,
        revision: Revision,
        tree: ObjectId,
    ) -> Result<(), Error> {
        let limits = overlay.limits;
        let mut seen = Seen { names: HashSet::new(), bytes: 0 };
        let add = |path: &[u8]| seen.add(base_name(path), limits, revision);
        let duplicate = self.find(overlay, revision, tree, add)?;
        let Some(other) = duplicate else { return Ok(()) };
        // `seen` only has base names, so a second walk finds the path of the first file.
        let is_first = |path: &[u8]| Ok(base_name(path) == base_name(&other));
        let one = self.find(overlay, revision, tree, is_first)?.unwrap_or_default();
        Err(Error::SameBaseName {
            one: overlay.owner(&one)?,
            path: escaped(&one),
            other: overlay.owner(&other)?,
            other_path: escaped(&other),
        })
    }

    /// Returns the path of the first file or link that matches the globs and for which `accept` returns true.
    fn find(
        &self,
        overlay: &Overlay<'_>,
        revision: Revision,
        tree: ObjectId,
        mut accept: impl FnMut(&[u8]) -> Result<bool, Error>,
    ) -> Result<Option<Vec<u8>>, Error> {
        let budget = Budget::new(revision, tree, overlay.limits.entries, false, overlay.cancel);
        let mut walk = TreeWalk::new(overlay.reader, budget, overlay.limits.depth, ())?;
        while let Some(Step { path, line, .. }) = walk.step()? {
            let is_file = matches!(line.mode & FORMAT, REGULAR | LINK);
            if line.is_dir() && self.patterns.reach_below(path) {
                let id = line.id;
                walk.enter(id, ())?;
            } else if is_file && self.patterns.is_match(path) && accept(path)? {
                return Ok(Some(path.to_vec()));
            }
        }
        Ok(None)
    }
}

/// The reason why a glob matches no path, or not the paths that its author means; `None` if it is fine.
fn useless(glob: &str) -> Option<&'static str> {
    let is_part = |part: &str| part == "**" || !part.contains("**");
    if glob.starts_with("./") {
        return Some("begins with `./`: leave that out, the paths begin below the root");
    }
    if glob.ends_with('/') {
        return Some("ends with `/`, and no file does: `/**` is everything below a directory");
    }
    (!glob.split(['/', '{', ',', '}']).all(is_part))
        .then_some("has a `**` beside other characters: write it between two `/`, or `*`")
}

/// The base names that a walk has seen.
struct Seen {
    names: HashSet<Box<[u8]>>,
    bytes: u64,
}

impl Seen {
    /// Adds a name. Returns true if it was already present.
    fn add(&mut self, name: &[u8], limits: &Limits, revision: Revision) -> Result<bool, Error> {
        self.bytes += name.len() as u64;
        let limit = limits.name_bytes();
        if self.bytes > limit {
            return Err(Refusal { revision, path: escaped(name), rule: Rule::Names { limit } }.into());
        }
        Ok(!self.names.insert(name.into()))
    }
}

fn base_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(globs: &[&str]) -> Result<UniqueBaseNames, String> {
        UniqueBaseNames::parse(globs.iter().map(|glob| (*glob).to_owned()).collect())
    }

    #[test]
    fn a_bad_glob_is_named() {
        for (globs, words) in [
            (&["jobs/**", "jobs/[z-a]"][..], "\"jobs/[z-a]\": invalid range"),
            (&["{a,b"], "\"{a,b\": unclosed alternate group"),
            (&[""], "a glob has 1 to 4096 bytes"),
            (&["/jobs/**"], "\"/jobs/**\" begins with `/`"),
            (&["./jobs/**"], "\"./jobs/**\" begins with `./`"),
            (&["jobs/"], "\"jobs/\" ends with `/`"),
            (&["jobs/**.yaml"], "\"jobs/**.yaml\" has a `**` beside other characters"),
            (&["x"; 65], "65 globs; at most 64 are read"),
        ] {
            let why = parse(globs).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn a_glob_that_no_place_can_match_is_found() {
        let of = |glob: &str, places: &[&str]| parse(&[glob]).unwrap().out_of(places).is_empty();
        for (glob, places, can) in [
            ("jobs/**/*.yaml", &["jobs"][..], true),
            ("jobs/**/*.yaml", &["jobs/a", "steps"], true),
            ("jobs/a/*.yaml", &["jobs"], true),
            ("jobs/**", &["job", "jobs-2"], false),
            ("job/**", &["jobs"], false),
            ("**/*.yaml", &["jobs"], true),
            ("anything", &[""], true),
            ("jobs/x.yaml", &["jobs/x.yaml"], true),
            ("{a,**}/x", &["b"], true),
        ] {
            assert_eq!(of(glob, places), can, "{glob} {places:?}");
        }
    }

    #[test]
    fn a_directory_is_entered_only_where_a_glob_reaches() {
        let reaches = |globs: &[&str], dir: &str| parse(globs).unwrap().patterns.reach_below(dir.as_bytes());
        for (globs, dir, expected) in [
            (&["jobs/**/*.yaml"][..], "jobs", true),
            (&["jobs/**/*.yaml"], "jobs/a", true),
            (&["jobs/**/*.yaml"], "jobs2", false),
            (&["jobs/a/*.yaml", "x/*"], "jobs", true),
            (&["jobs/a/*.yaml", "x/*"], "jobs/b", false),
            (&["**/*.yaml"], "anything", true),
            (&["OWNERS"], "jobs", false),
            (&["{a,b}/*"], "c", true), // the literal prefix ends at the brace
        ] {
            assert_eq!(reaches(globs, dir), expected, "{globs:?}: {dir}");
        }
    }
}
