//! The tree writer, with blobs in memory and real directories.

use super::*;
use crate::payload::testing::{Blobs, Tree, delta, expected, id_of, payload, read_back, tree};
use crate::payload::{Rules, Symlinks};
use crate::store::Durability;
use crate::store::durable::{MAX_SINGLE_SYNCS, Unsynced, make_durable};

const OPTIONS: WriteOptions = WriteOptions { threads: 3, group_write: false };

fn checked(tree: &Tree) -> Payload {
    payload(tree, Rules { symlinks: Symlinks::Keep, ..Rules::default() }).unwrap()
}

fn write_to(dir: &Path, payload: &Payload, blobs: &Blobs, options: &WriteOptions) -> Result<OwnedFd, Error> {
    let parent = fsx::open_dir_at_path(dir).unwrap();
    write(parent.as_fd(), "new".as_ref(), payload, blobs, options, &CancellationToken::new())
}

fn some() -> Tree {
    tree(&[
        ("empty", Kind::File, ""),
        ("a/b/c/deep", Kind::File, "deep\n"),
        ("a/run", Kind::Executable, "#!/bin/sh\n"),
        ("a/link", Kind::Symlink, "b/c/deep"),
        ("dangling", Kind::Symlink, "/nowhere"),
        ("sub/module", Kind::Submodule, ""),
    ])
}

#[test]
fn what_is_written_is_the_payload_with_exact_modes() {
    let mut all = some();
    for n in 0..2_000 {
        all.insert(format!("many/{n}").into_bytes(), (Kind::File, format!("{n}").into_bytes()));
    }
    for threads in [0, 1, 4] {
        let dir = tempfile::tempdir().unwrap();
        let options = WriteOptions { threads, ..OPTIONS };
        write_to(dir.path(), &checked(&all), &Blobs::of(&[&all]), &options).unwrap();
        assert_eq!(read_back(&dir.path().join("new")), expected(&all));
    }
}

#[test]
fn directories_come_in_the_order_that_suits_the_source() {
    let all = tree(&[
        ("a/1", Kind::File, ""),
        ("a/2", Kind::File, ""),
        ("b/3", Kind::File, ""),
        ("c/4", Kind::File, ""),
    ]);
    let payload = checked(&all);
    let names = |order: &[u32]| -> Vec<_> {
        let shares = ordered_shares(&payload, order);
        let entries = shares.iter().flat_map(|share| share.entries(&payload));
        entries.map(|entry| String::from_utf8(payload.name(entry).to_vec()).unwrap()).collect()
    };
    assert_eq!(names(&[3, 1, 2, 0]), ["4", "1", "2", "3"]);
    for told in [&[][..], &[7, 0], &[2, 2, 2]] {
        let mut names = names(told);
        names.sort();
        assert_eq!(names, ["1", "2", "3", "4"], "it is an advice: nothing is lost by a wrong one");
    }
}

#[test]
fn an_empty_tree_is_an_empty_directory() {
    let dir = tempfile::tempdir().unwrap();
    write_to(dir.path(), &checked(&Tree::new()), &Blobs::default(), &OPTIONS).unwrap();
    assert_eq!(read_back(dir.path()).keys().collect::<Vec<_>>(), [&b"new".to_vec()]);
}

#[test]
fn group_write_adds_one_bit() {
    let dir = tempfile::tempdir().unwrap();
    let options = WriteOptions { group_write: true, ..OPTIONS };
    write_to(dir.path(), &checked(&some()), &Blobs::of(&[&some()]), &options).unwrap();
    let found = read_back(dir.path());
    for (path, shown) in [
        ("new", "dir 775"),
        ("new/a/b", "dir 775"),
        ("new/sub/module", "dir 775"),
        ("new/empty", "file 664"),
        ("new/a/run", "file 775"),
        ("new/a/link", "link"),
    ] {
        assert_eq!(found[path.as_bytes()].0, shown, "{path}");
    }
}

#[test]
fn a_setgid_bit_of_the_root_reaches_directories_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let setgid = std::os::unix::fs::PermissionsExt::from_mode(0o2755);
    fs_err::set_permissions(dir.path(), setgid).unwrap();
    write_to(dir.path(), &checked(&some()), &Blobs::of(&[&some()]), &OPTIONS).unwrap();
    let found = read_back(dir.path());
    assert_eq!((&*found[&b"new/a/b"[..]].0, &*found[&b"new/a/run"[..]].0), ("dir 2755", "file 755"));
}

#[test]
fn a_missing_blob_and_one_of_another_size_are_errors_that_name_the_entry() {
    let dir = tempfile::tempdir().unwrap();
    let mut blobs = Blobs::of(&[&some()]);
    blobs.0.remove(&id_of(b"deep\n"));
    let error = write_to(dir.path(), &checked(&some()), &blobs, &OPTIONS).unwrap_err();
    assert!(matches!(&error, Error::Blob { path, .. } if path == Path::new("a/b/c/deep")), "{error}");
    let dir = tempfile::tempdir().unwrap();
    blobs.0.insert(id_of(b"deep\n"), b"deeper\n".to_vec());
    let error = write_to(dir.path(), &checked(&some()), &blobs, &OPTIONS).unwrap_err();
    assert!(matches!(&error, Error::Miswritten { path, .. } if path == Path::new("a/b/c/deep")), "{error}");
    assert_eq!(fs_err::read(dir.path().join("new/a/b/c/deep")).unwrap_or_default(), b"");
}

#[test]
fn a_name_that_is_there_already_is_never_written_through() {
    let dir = tempfile::tempdir().unwrap();
    let parent = fsx::open_dir_at_path(dir.path()).unwrap();
    let victim = dir.path().join("victim");
    fs_err::write(&victim, "untouched").unwrap();
    std::os::unix::fs::symlink(&victim, dir.path().join("f")).unwrap();
    std::os::unix::fs::symlink(dir.path(), dir.path().join("d")).unwrap();
    let mut blobs = Blobs::default();
    blobs.0.insert(id_of(b"x"), b"x".to_vec());
    let mut reader = blobs.reader().unwrap();
    for kind in [Kind::File, Kind::Executable, Kind::Symlink, Kind::Submodule] {
        let path = || b"shown/f".to_vec();
        let id = id_of(b"x");
        let modes = Modes::of(&OPTIONS);
        let error = write_entry(parent.as_fd(), b"f", &path, kind, &id, 1, &mut *reader, modes).unwrap_err();
        assert!(matches!(&error, Error::Folded { path } if path == Path::new("shown/f")), "{error}");
    }
    assert_eq!(fs_err::read_to_string(&victim).unwrap(), "untouched");
    assert!(Dirs::new(parent.as_fd()).open(b"d").is_err(), "a link was followed to a directory");
    assert!(Dirs::new(parent.as_fd()).open(b"d/..").is_err());
}

#[test]
fn cancelling_stops_before_the_next_entry() {
    let dir = tempfile::tempdir().unwrap();
    let parent = fsx::open_dir_at_path(dir.path()).unwrap();
    let cancel = CancellationToken::new();
    cancel.cancel();
    let stopped =
        write(parent.as_fd(), "new".as_ref(), &checked(&some()), &Blobs::of(&[&some()]), &OPTIONS, &cancel);
    assert!(matches!(stopped, Err(Error::Cancelled)));
    assert!(!dir.path().join("new/empty").exists());
}

/// Blobs of which reading a certain one cancels the work.
struct Cancelling(Blobs, CancellationToken);

impl BlobSource for Cancelling {
    fn reader(&self) -> Result<Box<dyn BlobReader + '_>, BlobError> {
        Ok(Box::new(CancellingReader(self.0.reader()?, &self.1)))
    }
}

struct CancellingReader<'b>(Box<dyn BlobReader + 'b>, &'b CancellationToken);

impl BlobReader for CancellingReader<'_> {
    fn size(&mut self, id: &ObjectId) -> Result<u64, BlobError> {
        self.0.size(id)
    }

    fn read(
        &mut self,
        id: &ObjectId,
        sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), BlobError> {
        self.1.cancel();
        self.0.read(id, sink)
    }
}

#[test]
fn cancelling_stops_each_thread_within_a_megabyte() {
    let dir = tempfile::tempdir().unwrap();
    let parent = fsx::open_dir_at_path(dir.path()).unwrap();
    let most = (CHECK_INTERVAL / MIN_COUNTED) as usize * OPTIONS.threads;
    let all: Tree = (0..2 * most).map(|n| (format!("{n}").into_bytes(), (Kind::File, vec![b'.']))).collect();
    let cancel = CancellationToken::new();
    let blobs = Cancelling(Blobs::of(&[&all]), cancel.clone());
    let stopped = write(parent.as_fd(), "new".as_ref(), &checked(&all), &blobs, &OPTIONS, &cancel);
    assert!(matches!(stopped, Err(Error::Cancelled)));
    let written = std::fs::read_dir(dir.path().join("new")).unwrap().count();
    assert!((1..=most).contains(&written), "{written} of {} files were written", all.len());
}

#[test]
fn few_files_are_synced_by_name_and_many_with_the_file_system() {
    let few = checked(&some());
    let Unsynced::Few { files, dirs } = Unsynced::after_write(&few) else { panic!("six entries are few") };
    assert_eq!(files.len(), 3);
    let dirs: Vec<_> = dirs.iter().map(|dir| String::from_utf8_lossy(dir).into_owned()).collect();
    assert_eq!(dirs, ["", "a", "a/b", "a/b/c", "sub", "sub/module"]);
    let many: Tree =
        (0..=MAX_SINGLE_SYNCS).map(|n| (format!("{n}").into_bytes(), (Kind::File, Vec::new()))).collect();
    assert!(matches!(Unsynced::after_write(&checked(&many)), Unsynced::Many));
    // Few files in many directories.
    let deep = |n: usize| (format!("{n}/{}x", "d/".repeat(50)).into_bytes(), (Kind::File, b".".to_vec()));
    let deep: Tree = (0..3).map(deep).collect();
    assert!(matches!(Unsynced::after_write(&checked(&deep)), Unsynced::Many));
    let none = tree(&[("0", Kind::File, "")]);
    let change = |to: &Tree| Unsynced::after_delta(&delta(&none, to, Rules::default()).unwrap());
    assert!(matches!(change(&deep), Unsynced::Many));
    assert!(matches!(change(&tree(&[("a/b/c", Kind::File, "")])), Unsynced::Few { .. }));
    let dir = tempfile::tempdir().unwrap();
    let top = write_to(dir.path(), &few, &Blobs::of(&[&some()]), &OPTIONS).unwrap();
    for unsynced in [Unsynced::after_write(&few), Unsynced::Many] {
        make_durable(top.as_fd(), Durability::Syncfs, &unsynced).unwrap();
    }
}
