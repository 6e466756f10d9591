use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::store::journal::Journal;
use crate::store::stage::{UNCHECKED_MAX, WriteOptions};

fn modes() -> Modes {
    Modes::of(&WriteOptions { threads: 1, group_write: false })
}

/// Makes the directory `from` with this many files, and its stamps.
fn published(place: &OwnedFd, files: usize, journal: &Arc<Journal>) -> (OwnedFd, Stamps) {
    let from = fsx::make_dir(place, "from", 0o755).unwrap();
    for number in 0..files {
        fsx::create_new(&from, number.to_string(), 0o644).unwrap();
    }
    let stamps = Stamps::of_new(&from, place.as_fd(), journal).unwrap();
    (from, stamps)
}

#[test]
fn a_huge_directory_is_left_when_cancelled() {
    let dir = tempfile::tempdir().unwrap();
    let place = fsx::open_dir_at_path(dir.path()).unwrap();
    let journal = Arc::new(Journal::start().unwrap());
    let (from, stamps) = published(&place, 4 * UNCHECKED_MAX, &journal);
    let cancel = CancellationToken::new();
    let first = fsx::list(&from).unwrap().remove(0);
    let first = fsx::stat(&from, first.os()).unwrap().unwrap();
    let locked = journal.lock(first.st_ino); // here it waits, after its look at the token
    std::thread::scope(|scope| {
        let linked = scope.spawn(|| {
            let source = Linkable { top: from.as_fd(), stamps: &stamps };
            link_tree(place.as_fd(), "to", source, modes(), &cancel)
        });
        while !dir.path().join("to").exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(50));
        cancel.cancel();
        drop(locked);
        assert!(matches!(linked.join().unwrap(), Err(Error::Cancelled)));
    });
    let made = fs_err::read_dir(dir.path().join("to")).unwrap().count();
    assert!(made < UNCHECKED_MAX, "{made} files were linked after that");
}

#[test]
fn a_directory_that_somebody_removed_replaced_or_closed_is_a_reason_to_copy() {
    type Act = fn(&Path);
    let acts: [(&str, Act); 4] = [
        ("removed", |_| {}),
        ("a file", |path| fs_err::write(path, "x").unwrap()),
        ("a symlink", |path| std::os::unix::fs::symlink(".", path).unwrap()),
        ("closed", |path| rustix::fs::mkdir(path, rustix::fs::Mode::empty()).unwrap()),
    ];
    for (what, act) in acts {
        let dir = tempfile::tempdir().unwrap();
        let place = fsx::open_dir_at_path(dir.path()).unwrap();
        let (from, stamps) = published(&place, 0, &Arc::new(Journal::start().unwrap()));
        let to = fsx::make_dir(&place, "to", 0o755).unwrap();
        act(&dir.path().join("from/below"));
        let linker = TreeLinker { stamps: &stamps, modes: modes(), user: user() };
        let top = Pair { from, to };
        let linked = std::thread::scope(|scope| {
            let somebody = scope.spawn(|| {
                // Modes do not restrict uid 0.
                if rustix::process::geteuid().is_root() {
                    let uid = rustix::fs::Uid::from_raw(65_534);
                    rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
                }
                linker.open(&top, c"below", b"below").map(|below| below.is_some())
            });
            somebody.join().unwrap()
        });
        assert!(matches!(linked, Ok(false)), "{what}: {linked:?}");
    }
}

/// Runs again in a mount namespace of its own, on a file system that has room for one more name.
#[test]
fn no_room_for_a_link_is_an_error_because_a_copy_needs_more() {
    const DISK: &str = "TREESWAP_TEST_DISK";
    let Some(disk) = std::env::var_os(DISK) else {
        let dir = tempfile::tempdir().unwrap();
        let script = r#"mount -t tmpfs -o nr_inodes=8 tmpfs "$1" && exec "$2" --exact --nocapture "$3""#;
        let mut inside = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            inside.args(["--user", "--map-root-user"]);
        }
        inside.args(["--mount", "--propagation=private", "sh", "-c", script, "sh"]);
        inside.arg(dir.path()).arg(std::env::current_exe().unwrap());
        inside.arg("store::link_tree::tests::no_room_for_a_link_is_an_error_because_a_copy_needs_more");
        let ran = inside.env(DISK, dir.path()).output().unwrap();
        let stdout = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && stdout.contains("1 passed"), "{ran:?}");
        return;
    };
    let place = fsx::open_dir_at_path(Path::new(&disk)).unwrap();
    let (from, stamps) = published(&place, 4, &Arc::new(Journal::start().unwrap()));
    let source = Linkable { top: from.as_fd(), stamps: &stamps };
    let linked = link_tree(place.as_fd(), "to", source, modes(), &CancellationToken::new());
    assert!(linked.as_ref().is_err_and(Error::is_full), "{:?}", linked.map(|made| made.is_some()));
}
