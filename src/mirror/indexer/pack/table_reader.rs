//! Reads the objects of a pack by its [`ObjectTable`]. Every failure is `None`: libgit2 then reads the object, and
//! reports the error.

use std::fs::File;
use std::sync::Arc;

use git2::ObjectType;

use super::SMALL;
use super::contents::Contents;
use super::delta::Delta;
use super::entry::{Form, read_header};
use super::resolve::reread;
use super::table::{ObjectTable, Row};
use crate::revision::ObjectId;

/// The memory for contents that may be the bases of deltas, in bytes. git stores an object near its base, and writers
/// read objects in the order of the pack.
const CACHE: usize = 8 << 20;

/// The most bytes of deltas that are kept while the chain from an object to its base is followed.
const DELTAS_MAX: usize = 4 << 20;

/// A reader for one thread.
pub(in crate::mirror) struct TableReader {
    table: Arc<ObjectTable>,
    file: File,
    contents: Contents,
}

impl TableReader {
    /// Opens the pack. `None` if that fails: garbage collection may have replaced it.
    pub(in crate::mirror) fn open(table: Arc<ObjectTable>) -> Option<Self> {
        let file = File::open(table.pack()).ok()?;
        Some(Self { table, file, contents: Contents::with_budget(CACHE) })
    }

    /// The size and type of an object.
    pub(in crate::mirror) fn header(&self, id: &ObjectId) -> Option<(usize, ObjectType)> {
        let row = self.table.find(id)?;
        Some((usize::try_from(row.size).ok()?, row.kind))
    }

    /// Reads an object. `None` if the pack does not have it, it is large or in a very long chain of deltas, or it
    /// cannot be read.
    pub(in crate::mirror) fn read(&mut self, id: &ObjectId) -> Option<(ObjectType, Arc<Vec<u8>>)> {
        let position = self.table.position(id)?;
        let row = self.table.row(position)?;
        let content = self.content(position)?;
        (content.len() as u64 == row.size).then_some((row.kind, content))
    }

    /// Restores the content of an object, starting at the nearest cached content in its chain of bases.
    fn content(&mut self, position: u32) -> Option<Arc<Vec<u8>>> {
        let mut deltas = Vec::new();
        let mut bytes = 0;
        let mut at = position;
        let mut content = loop {
            if let Some(content) = self.contents.cache.get(at) {
                break content;
            }
            let row = self.table.row(at)?;
            let (form, raw) = self.entry(&row)?;
            let base = match form {
                Form::Whole(_) => break self.contents.keep(at, raw),
                Form::OffsetDelta(distance) => {
                    self.table.position_by_offset(row.offset.checked_sub(distance)?)?
                }
                Form::RefDelta(base) => self.table.position(&base)?,
            };
            if Delta::new(&raw)?.result != row.size {
                return None; // `entry` has checked that `row.size` is small
            }
            bytes += raw.len().max(1); // at least 1, so that a cycle of bases ends
            if bytes > DELTAS_MAX {
                return None;
            }
            deltas.push((at, raw));
            at = base;
        };
        while let Some((at, delta)) = deltas.pop() {
            let next = self.contents.apply_delta(&content, &delta).ok()?;
            content = self.contents.keep(at, next);
        }
        Some(content)
    }

    /// Inflates an entry: a content, or a delta.
    fn entry(&mut self, row: &Row) -> Option<(Form, Vec<u8>)> {
        if row.size > SMALL {
            return None;
        }
        let mut source = reread(&self.file, row.offset..row.offset + u64::from(row.length));
        let (form, size) = read_header(&mut source).ok()?;
        if size > SMALL {
            return None;
        }
        Some((form, self.contents.inflate(&mut source, size).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::path::Path;

    use super::super::{IndexedPack, Limits, index_pack};
    use super::*;
    use crate::mirror::fixture::git;
    use crate::mirror::odb::Store;

    /// A repository with several versions of many files, so that most objects are deltas in long chains, and with a
    /// blob of more than [`SMALL`] bytes.
    fn repository() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let mut script = String::new();
        for version in 0..40_u32 {
            script += "commit refs/heads/main\ncommitter n <e> 0 +0000\ndata 1\nv\n";
            for file in 0..30_u32 {
                let line =
                    |n: u32| format!("{n} {}\n", n.wrapping_mul(2_654_435_761) % (101 * version + file + 7));
                let text: String = (0..60).map(line).collect();
                script += &format!("M 644 inline d{}/f{file}\ndata {}\n{text}\n", file % 4, text.len());
            }
            if version == 0 {
                let large = "x".repeat(SMALL as usize + 1);
                script += &format!("M 644 inline large\ndata {}\n{large}\n", large.len());
            }
        }
        git(dir.path(), "init --quiet --bare", b"");
        git(dir.path(), "fast-import --quiet", script.as_bytes());
        dir
    }

    /// Indexes the pack of all objects that git makes with these options.
    fn indexed(repository: &Path, packs: &Path, options: &str) -> IndexedPack {
        let line =
            format!("pack-objects --quiet --stdout --all --no-reuse-delta --depth=45 --window=40{options}");
        let pack = git(repository, &line, b"");
        let limits = Limits { memory: 64 << 20, bytes: 1 << 30, objects: 1 << 20, expected: u64::MAX };
        index_pack(&pack[..], packs, &limits, false, &|_| Ok(None)).unwrap()
    }

    #[test]
    fn every_object_is_read_as_git_reads_it() {
        let dir = repository();
        let store = Store::open(dir.path()).unwrap();
        let right = store.reader().unwrap();
        for options in ["", " --delta-base-offset"] {
            let packs = tempfile::tempdir().unwrap();
            let table = indexed(dir.path(), packs.path(), options).table.unwrap();
            let mut reader = TableReader::open(Arc::clone(&table)).unwrap();
            let all = git(dir.path(), "cat-file --batch-all-objects --batch-check", b"");
            let ids = String::from_utf8(all).unwrap();
            let mut kinds = HashMap::new();
            for line in ids.lines() {
                let id = line.split(' ').next().unwrap().parse().unwrap();
                let expected = right.read(&id).unwrap();
                let header = (expected.data().len(), expected.kind());
                assert_eq!(reader.header(&id), Some(header), "{line}");
                *kinds.entry(expected.kind().str()).or_insert(0) += 1;
                match reader.read(&id) {
                    Some((kind, content)) => {
                        assert_eq!((kind, &content[..]), (expected.kind(), expected.data()), "{line}");
                    }
                    None => assert!(header.0 as u64 > SMALL, "{line}"),
                }
            }
            assert!(kinds.values().sum::<u32>() > 1_000 && kinds.len() == 3, "{kinds:?}");
            assert!(reader.read(&ObjectId([7; 20])).is_none());
            drop(packs);
            assert!(TableReader::open(table).is_none(), "the pack is gone");
        }
    }

    #[test]
    fn a_store_reads_by_the_table_what_it_has_and_by_libgit2_what_it_lacks() {
        let dir = repository();
        let packs = tempfile::tempdir().unwrap();
        let table = indexed(dir.path(), packs.path(), "").table;
        // A store of an empty repository finds the objects of the table only.
        let empty = tempfile::tempdir().unwrap();
        git(empty.path(), "init --quiet --bare", b"");
        let head = String::from_utf8(git(dir.path(), "rev-parse main", b"")).unwrap();
        let head: ObjectId = head.trim().parse().unwrap();
        let store = Store::open(empty.path()).unwrap();
        assert!(store.reader().unwrap().commit(&head).is_err());
        let store = store.with_table(table.clone());
        let tree = store.reader().unwrap().commit(&head).unwrap().tree;
        assert!(!store.reader().unwrap().tree(&tree).unwrap().data().is_empty());
        // An entry that was damaged since is not read by the table.
        let pack = table.as_ref().unwrap().pack().to_owned();
        let length = std::fs::metadata(&pack).unwrap().len() as usize;
        std::fs::remove_file(&pack).unwrap();
        std::fs::write(&pack, vec![0; length]).unwrap();
        let store = Store::open(empty.path()).unwrap().with_table(table.clone());
        assert!(store.reader().unwrap().commit(&head).is_err());
        let whole = Store::open(dir.path()).unwrap().with_table(table);
        assert_eq!(whole.reader().unwrap().commit(&head).unwrap().tree, tree);
    }
}
