//! Maps a path of a composed tree to the source that owns it.

use std::sync::Arc;

/// The directories (places) of the sources of a tree. A source owns the paths below its place that are not below a
/// deeper place of another source.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Parts(Arc<[Vec<u8>]>);

impl Parts {
    /// The given places; the top of the tree is the empty path. Without any, the whole tree belongs to one source.
    pub fn new(places: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let mut places: Vec<_> = places.into_iter().collect();
        places.sort_unstable_by(|one, other| (other.len(), other).cmp(&(one.len(), one)));
        places.dedup();
        Self(places.into())
    }

    /// The place that a path belongs to: the longest that contains it, else the top.
    pub fn owner(&self, path: &[u8]) -> &[u8] {
        let found = self.0.iter().find(|place| {
            place.is_empty()
                || path.strip_prefix(place.as_slice()).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        });
        found.map_or(b"", Vec::as_slice)
    }

    /// Returns true if the target of the link `dir/name` is outside the link's own source, or passes through another
    /// one. The target must already be checked to stay inside the tree and to have `..` only at its beginning.
    pub(super) fn is_left_by(&self, dir: &[u8], name: &[u8], target: &[u8]) -> bool {
        let Some(longest) = self.0.first().map(Vec::len) else { return false };
        let own = self.owner(&super::join(dir, name));
        let mut at = dir.to_vec();
        for part in target.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
            match part {
                b".." => at.truncate(super::split(&at).0.len()),
                // No place is deeper, so the owner stays the same, however long the target is.
                _ if at.len() >= longest => return false,
                part => at = super::join(&at, part),
            }
            if self.owner(&at) != own {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(places: &[&str]) -> Parts {
        Parts::new(places.iter().map(|place| place.as_bytes().to_vec()))
    }

    #[test]
    fn the_longest_place_owns_a_path() {
        let parts = parts(&["", "teams", "teams/a"]);
        for (path, owner) in [
            ("x", ""),
            ("teams", "teams"),
            ("teams/b/c", "teams"),
            ("teams/a", "teams/a"),
            ("teams/a/x", "teams/a"),
            ("teams/ab", "teams"),
            ("teamsters", ""),
        ] {
            assert_eq!(parts.owner(path.as_bytes()), owner.as_bytes(), "{path}");
        }
    }

    #[test]
    fn a_link_stays_in_what_its_own_source_placed() {
        let placed = parts(&["", "jobs", "teams/a"]);
        for (dir, target, leaves) in [
            ("", "x", false),
            ("", "jobs/x", true),
            ("sub", "../x", false),
            ("sub", "../jobs", true),
            ("jobs", "x", false),
            ("jobs/deep", "../x", false),
            ("jobs", "../x", true),
            ("jobs", "../jobs/x", true),
            ("teams/a/deep", "../../b", true),
            ("teams", "a", true),
            ("teams", "b", false),
            ("teams", "b/a/x", false),
            ("teams/b/c", "../../a/x/y/z", true),
            ("teams/b/c", "../../x/teams/a", false),
            ("", "teams/a/x/y", true),
            ("", "x/./teams//a/jobs", false),
        ] {
            assert_eq!(
                placed.is_left_by(dir.as_bytes(), b"link", target.as_bytes()),
                leaves,
                "{dir}: {target}"
            );
        }
        assert!(!parts(&[]).is_left_by(b"jobs", b"link", b"../x"), "one source");
    }
}
