//! A list of directories by their paths, as a scan of a tree collects it.
//!
//! A scan finds a directory right after one that is near it, so most paths begin like the one before. Only what differs
//! is kept: the list of a large tree is in memory as long as the tree is a spare.

use std::ffi::CStr;

/// A list of paths, in the order in which they were added.
#[derive(Clone, Debug, Default)]
pub(super) struct DirectoryList {
    /// For each path: how many bytes it has in common with the beginning of the one before (two bytes, little-endian),
    /// and the other bytes, ended by a zero byte.
    bytes: Vec<u8>,
    /// The last path.
    last: Vec<u8>,
}

impl DirectoryList {
    /// Adds a path.
    pub(super) fn push(&mut self, path: &[u8]) {
        let common = self.last.iter().zip(path).take_while(|(one, other)| one == other).count();
        let common = u16::try_from(common).unwrap_or(u16::MAX);
        let rest = &path[common.into()..];
        self.bytes.extend(common.to_le_bytes());
        self.bytes.extend_from_slice(rest);
        self.bytes.push(0);
        self.last.truncate(common.into());
        self.last.extend_from_slice(rest);
    }

    /// Adds the paths of another list.
    pub(super) fn append(&mut self, other: Self) {
        if self.bytes.is_empty() {
            *self = other;
            return;
        }
        let mut paths = other.paths();
        while let Some(path) = paths.next() {
            self.push(path.to_bytes());
        }
    }

    /// The memory that the paths take, in bytes.
    pub(super) fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Starts a pass over the paths.
    pub(super) fn paths(&self) -> Paths<'_> {
        Paths { rest: &self.bytes, path: Vec::new() }
    }
}

/// A pass over a list. No `Iterator`: each path replaces the one before.
pub(super) struct Paths<'l> {
    rest: &'l [u8],
    /// The present path with its zero byte.
    path: Vec<u8>,
}

impl Paths<'_> {
    /// The next path.
    pub(super) fn next(&mut self) -> Option<&CStr> {
        let (common, rest) = self.rest.split_first_chunk()?;
        let end = rest.iter().position(|byte| *byte == 0)? + 1;
        self.path.truncate(u16::from_le_bytes(*common).into());
        self.path.extend_from_slice(&rest[..end]);
        self.rest = &rest[end..];
        CStr::from_bytes_with_nul(&self.path).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::super::stamps::DIRS_MAX;
    use super::*;

    fn list<P: AsRef<str>>(paths: &[P]) -> DirectoryList {
        let mut list = DirectoryList::default();
        paths.iter().for_each(|path| list.push(path.as_ref().as_bytes()));
        list
    }

    #[test]
    fn paths_come_back_in_their_order_and_take_little_memory_if_they_begin_alike() {
        let long = "x".repeat(70_000);
        let odd =
            ["a", "a/b", "a/b/c", "a/bc", "a", "", "b\u{e4}", "b", &format!("{long}y"), &format!("{long}z")];
        let near: Vec<String> = (0..1000).map(|number| format!("config/organisation/{number:04}")).collect();
        let all: Vec<&str> = odd.into_iter().chain(near.iter().map(String::as_str)).collect();
        let list = list(&all);
        let mut paths = list.paths();
        for path in &all {
            assert_eq!(paths.next().map(CStr::to_bytes), Some(path.as_bytes()));
        }
        assert!(paths.next().is_none());
        let near = self::list(&near);
        assert!(near.size() < 5_000, "{}", near.size());
    }

    #[test]
    fn the_directories_of_some_hundred_thousand_files_fit() {
        let path =
            |number: usize| format!("ci-operator/config/organisation-{:05}/repository-{number}", number / 12);
        let all: Vec<String> = (0..300_000).map(path).collect();
        let list = list(&all);
        assert!(list.size() < DIRS_MAX, "{}", list.size());
    }
}
