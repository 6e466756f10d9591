//! Pins against a writer that the tests play: they swap the link, and try the lock as the reaper does.

use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

#[cfg(feature = "program")] // `human` exists only with the feature `program`
#[test]
fn every_variant_is_one_line_and_says_what_to_do() {
    let link = || PathBuf::from("/config/..data");
    let io = |kind: io::ErrorKind| Error::Io { act: "open", path: link(), source: kind.into() };
    let each = [
        Error::NoGeneration { link: link() },
        Error::OtherLayout { root: link() },
        Error::NotALink { link: link() },
        Error::NotAGeneration { link: link(), target: link() },
        Error::Restless { link: link() },
        Error::Contended { generation: link() },
        Error::Unsupported { generation: link() },
        Error::Unavailable { generation: link() },
        io(io::ErrorKind::PermissionDenied),
        io(io::ErrorKind::Other),
    ];
    for error in each {
        match error {
            Error::NoGeneration { .. }
            | Error::OtherLayout { .. }
            | Error::NotALink { .. }
            | Error::NotAGeneration { .. }
            | Error::Restless { .. }
            | Error::Contended { .. }
            | Error::Unsupported { .. }
            | Error::Unavailable { .. }
            | Error::Io { .. } => {}
        }
        crate::human::assert_message_style(&error, &error.hints());
    }
}

fn name(n: u32) -> String {
    format!("..2026_11_20_15_04_05.{n:09}")
}

fn root() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    swap(root.path(), 1);
    root
}

fn swap(root: &Path, n: u32) {
    std::fs::create_dir(root.join(name(n))).unwrap();
    symlink(name(n), root.join("..data_tmp")).unwrap();
    std::fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
}

fn reapable(root: &Path, n: u32) -> bool {
    let dir = fsx::open_dir_at_path(&root.join(name(n))).unwrap();
    fsx::try_lock(dir).unwrap() == fsx::Lock::Taken
}

/// Waits, because a child that another test starts has duplicates of our descriptors until its exec.
fn becomes_reapable(root: &Path, n: u32) -> bool {
    (0..2000).any(|_| {
        std::thread::sleep(Duration::from_millis(1));
        reapable(root, n)
    })
}

#[test]
fn a_pin_keeps_the_reaper_away_until_it_is_dropped() {
    let root = root();
    let pin = Pin::take(root.path(), &Options::default()).unwrap();
    assert_eq!(pin.protection(), Protection::Locked);
    assert_eq!(pin.generation(), name(1).as_str());
    assert!(!reapable(root.path(), 1));
    drop(pin);
    assert!(becomes_reapable(root.path(), 1));
}

#[test]
fn renewing_moves_the_pin_and_a_failed_renewal_keeps_it() {
    let root = root();
    let mut pin = Pin::take(root.path(), &Options::default()).unwrap();
    assert!(!pin.renew().unwrap());
    swap(root.path(), 2);
    assert!(pin.renew().unwrap());
    assert!(becomes_reapable(root.path(), 1) && !reapable(root.path(), 2));
    std::fs::remove_file(root.path().join("..data")).unwrap();
    assert!(matches!(pin.renew(), Err(Error::NoGeneration { .. })));
    assert!(!reapable(root.path(), 2), "a failed renewal keeps what there is");
}

#[test]
fn an_inherited_copy_holds_on_its_own() {
    let root = root();
    let pin = Pin::take(root.path(), &Options::default()).unwrap();
    let copy = pin.inheritable().unwrap();
    assert!(copy.as_raw_fd() >= fsx::INHERITED_FROM);
    drop(pin);
    assert!(!reapable(root.path(), 1));
    drop(copy);
    assert!(becomes_reapable(root.path(), 1));
}

#[test]
fn somebody_who_keeps_the_exclusive_lock_cannot_keep_readers_out() {
    let root = root();
    let dir = fsx::open_dir_at_path(&root.path().join(name(1))).unwrap();
    assert_eq!(fsx::try_lock(&dir).unwrap(), fsx::Lock::Taken);
    let pin = Pin::take(root.path(), &Options::default()).unwrap();
    assert_eq!(pin.protection(), Protection::Contended);
}

#[test]
fn renewing_a_pin_without_a_lock_locks_what_it_has_open() {
    let root = root();
    let dir = fsx::open_dir_at_path(&root.path().join(name(1))).unwrap();
    assert_eq!(fsx::try_lock(&dir).unwrap(), fsx::Lock::Taken);
    let mut pin = Pin::take(root.path(), &Options::default()).unwrap();
    let path = pin.path();
    assert!(!pin.renew().unwrap());
    assert_eq!(pin.protection(), Protection::Contended);
    fsx::unlock(&dir).unwrap();
    assert!(!pin.renew().unwrap(), "it is the same generation");
    assert_eq!((pin.protection(), pin.path()), (Protection::Locked, path));
    assert!(!reapable(root.path(), 1));
}

#[test]
fn a_reader_that_needs_the_lock_gets_no_pin_without_it() {
    let root = root();
    let location = root.path().canonicalize().unwrap().join(name(1));
    let dir = fsx::open_dir_at_path(&location).unwrap();
    assert_eq!(fsx::try_lock(&dir).unwrap(), fsx::Lock::Taken);
    let error = Pin::take(root.path(), &Options::default()).unwrap().locked().unwrap_err();
    assert!(matches!(&error, Error::Contended { generation } if *generation == location), "{error}");
    assert!(error.is_transient() && !error.is_absence());
    fsx::unlock(&dir).unwrap();
    let pin = Pin::take(root.path(), &Options::default()).unwrap();
    let unsupported = Pin { protection: Protection::Unsupported, ..pin }.locked().unwrap_err();
    assert!(matches!(unsupported, Error::Unsupported { .. }) && !unsupported.is_transient(), "{unsupported}");
    let pin = Pin::take(root.path(), &Options::default()).unwrap();
    let lacking = Pin { protection: Protection::Unavailable, ..pin }.locked().unwrap_err();
    assert!(matches!(lacking, Error::Unavailable { .. }) && lacking.is_transient(), "{lacking}");
    assert!(Pin::take(root.path(), &Options::default()).unwrap().locked().is_ok());
}

#[test]
fn a_lack_of_locks_is_no_file_system_without_them_and_no_failure_of_the_pin() {
    let of = |errno: Errno| protection_by(Err(errno.into()));
    assert_eq!(of(Errno::NOLCK).unwrap(), Protection::Unavailable);
    assert_eq!(protection_by(Ok(Lock::Unsupported)).unwrap(), Protection::Unsupported);
    assert!(of(Errno::IO).is_err());
}

#[test]
fn what_is_no_generation_is_refused_with_the_way_out() {
    let root = root();
    let at = |name: &str| root.path().join(name);
    std::fs::create_dir(at(&name(1)).join("app")).unwrap();
    symlink("..data/app", at("app")).unwrap();
    let error = Pin::take_link(at("app"), &Options::default()).unwrap_err();
    assert!(matches!(error, Error::NotAGeneration { .. }), "{error}");
    assert!(error.hints()[0].contains("the root itself"));
    let error = Pin::take_link(at(&name(1)), &Options::default()).unwrap_err();
    assert!(matches!(error, Error::NotALink { .. }), "{error}");
}

#[test]
fn git_syncs_link_is_pinned_through_its_target() {
    let root = tempfile::tempdir().unwrap();
    let commit = "0123456789abcdef0123456789abcdef01234567";
    std::fs::create_dir_all(root.path().join(".worktrees").join(commit)).unwrap();
    symlink(format!(".worktrees/{commit}"), root.path().join("live")).unwrap();
    let pin = Pin::take_link(root.path().join("live"), &Options::default()).unwrap();
    assert_eq!(pin.generation(), commit);
    assert!(pin.location().ends_with(format!(".worktrees/{commit}")));
}

#[test]
fn the_first_generation_is_waited_for() {
    let root = tempfile::tempdir().unwrap();
    let error = Pin::take(root.path(), &Options::default()).unwrap_err();
    assert!(matches!(error, Error::NoGeneration { .. }) && error.is_transient());
    let path = root.path().to_owned();
    let writer = std::thread::spawn(move || swap(&path, 1));
    Pin::take(root.path(), &Options { wait: Duration::from_secs(20) }).unwrap();
    writer.join().unwrap();
}

#[test]
fn what_may_pass_is_tried_again_while_there_is_time() {
    let root = root();
    let at = || root.path().join(name(1));
    let fail: [fn(PathBuf) -> Error; 2] =
        [|generation| Error::Unavailable { generation }, |link| Error::Restless { link }];
    for failure in fail {
        let mut tries = 0;
        let mut fails_twice = |options: &Options| {
            tries += 1;
            if tries > 2 { Pin::take(root.path(), options) } else { Err(failure(at())) }
        };
        let error = within(Duration::ZERO, &mut fails_twice).unwrap_err();
        assert_eq!(error.to_string(), failure(at()).to_string());
        within(Duration::from_secs(60), &mut fails_twice).unwrap();
        assert_eq!(tries, 3, "{error}");
    }
    // What a file system never has is not waited for.
    let never = |_: &Options| Err(Error::Unsupported { generation: at() });
    assert!(matches!(within(Duration::MAX, never), Err(Error::Unsupported { .. })));
}

#[test]
fn a_lock_in_the_way_is_waited_for() {
    let root = root();
    let dir = fsx::open_dir_at_path(&root.path().join(name(1))).unwrap();
    assert_eq!(fsx::try_lock(&dir).unwrap(), fsx::Lock::Taken);
    let error = Pin::take_locked(root.path(), &Options::default()).unwrap_err();
    assert!(matches!(error, Error::Contended { .. }), "{error}");
    let owner = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(400)); // longer than one try
        fsx::unlock(&dir).unwrap();
    });
    let pin = Pin::take_locked(root.path(), &Options { wait: Duration::from_secs(60) }).unwrap();
    assert_eq!(pin.protection(), Protection::Locked);
    owner.join().unwrap();
}

#[test]
fn pins_hold_one_generation_while_another_thread_swaps_and_reaps() {
    let root = root();
    let path = root.path().to_owned();
    let pins = Arc::new(AtomicUsize::new(0));
    let taken = Arc::clone(&pins);
    let writer = std::thread::spawn(move || {
        // It goes on until there was a pin meanwhile: on a busy machine it might be done before the first one.
        for n in (2..).take_while(|n| *n < 400 || taken.load(Ordering::Relaxed) == 0) {
            swap(&path, n);
            let old = path.join(name(n - 1));
            let dir = fsx::open_dir_at_path(&old).unwrap();
            if fsx::try_lock(&dir).unwrap() == fsx::Lock::Taken {
                std::fs::remove_dir(&old).unwrap();
            }
        }
    });
    while !writer.is_finished() {
        let pin = Pin::take(root.path(), &Options::default()).unwrap();
        assert_eq!(pin.protection(), Protection::Locked);
        assert!(pin.location().is_dir(), "{} was reaped under a pin", pin.location().display());
        assert_eq!(std::fs::canonicalize(pin.path()).unwrap(), pin.location());
        pins.fetch_add(1, Ordering::Relaxed);
    }
    writer.join().unwrap();
    assert!(pins.load(Ordering::Relaxed) > 0);
}

#[test]
fn whoever_waits_for_ever_is_told_what_cannot_be_waited_for() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("..data"), "").unwrap();
    let error = Pin::take(root.path(), &Options { wait: Duration::MAX }).unwrap_err();
    assert!(matches!(error, Error::NotALink { .. }), "{error}");
}
