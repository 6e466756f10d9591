use super::*;

fn scratch() -> (tempfile::TempDir, OwnedFd) {
    let dir = tempfile::tempdir().unwrap();
    let fd = open_dir_at_path(dir.path()).unwrap();
    (dir, fd)
}

fn names(dir: &OwnedFd) -> Vec<String> {
    let mut names: Vec<_> =
        list(dir).unwrap().into_iter().map(|entry| entry.os().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

#[test]
fn what_a_network_file_system_moves_at_a_time_is_no_block() {
    assert_eq!([0, 512, 4096, 64 << 10].map(block), [1, 512, 4096, 64 << 10]);
    assert_eq!([1 << 20, 4 << 20].map(block), [4096, 4096]);
}

#[test]
fn a_replaced_file_leaves_no_temporary_name_behind() {
    let (_keep, dir) = scratch();
    for (text, flush) in [("one", Flush::Content), ("two", Flush::Lazy)] {
        replace_file(&dir, "state", text.as_bytes(), 0o644, flush).unwrap();
        assert_eq!(read_file(&dir, "state", 99).unwrap().unwrap(), text.as_bytes());
    }
    assert_eq!(names(&dir), ["state"]);
}

#[test]
fn a_failed_replacement_leaves_the_old_file_and_no_temporary_name() {
    let (_keep, dir) = scratch();
    make_dir(&dir, "state", 0o755).unwrap();
    make_dir(open_dir(&dir, "state").unwrap(), "inside", 0o755).unwrap();
    assert!(replace_file(&dir, "state", b"x", 0o644, Flush::Content).is_err());
    assert_eq!(names(&dir), ["state"]);
}

#[test]
fn modes_are_exact_whatever_the_umask() {
    let (_keep, dir) = scratch();
    for mode in [0o644, 0o755, 0o664, 0o775, 0o600] {
        let file = create_new(&dir, format!("f{mode:o}"), mode).unwrap();
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_mode & 0o7777, mode);
        let made = make_dir(&dir, format!("d{mode:o}").as_str(), mode).unwrap();
        assert_eq!(rustix::fs::fstat(&made).unwrap().st_mode & 0o777, mode);
    }
}

#[test]
fn directories_keep_the_group_that_the_root_hands_down() {
    let (_keep, dir) = scratch();
    rustix::fs::fchmod(&dir, Mode::from_raw_mode(0o2755)).unwrap();
    for mode in [0o755, 0o775, 0o700] {
        let made = make_dir(&dir, format!("d{mode:o}").as_str(), mode).unwrap();
        assert_eq!(rustix::fs::fstat(&made).unwrap().st_mode & 0o7777, mode | 0o2000);
    }
}

#[test]
fn links_are_neither_opened_nor_written_through() {
    let (_keep, dir) = scratch();
    make_dir(&dir, "real", 0o755).unwrap();
    rustix::fs::symlinkat("real", &dir, "link").unwrap();
    rustix::fs::symlinkat("nowhere", &dir, "dangling").unwrap();
    assert!(open_dir(&dir, "link").is_err());
    assert!(read_file(&dir, "link", 9).is_err());
    assert_eq!(create_new(&dir, "dangling", 0o644).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert!(ensure_dir(&dir, "link", 0o755).is_err());
    assert_eq!(read_link(&dir, "link").unwrap(), Link::To("real".into()));
    assert_eq!(read_link(&dir, "real").unwrap(), Link::Other(FileType::Directory));
    assert_eq!(read_link(&dir, "absent").unwrap(), Link::Absent);
}

#[test]
fn a_rename_to_a_taken_name_is_refused() {
    let (_keep, dir) = scratch();
    make_dir(&dir, "a", 0o755).unwrap();
    make_dir(&dir, "b", 0o755).unwrap();
    assert_eq!(rename_new(&dir, "a", &dir, "b").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    rename_new(&dir, "a", &dir, "c").unwrap();
    assert_eq!(names(&dir), ["b", "c"]);
}

#[test]
fn two_names_are_exchanged_whatever_they_are() {
    let (_keep, dir) = scratch();
    make_dir(&dir, "a", 0o755).unwrap();
    create_new(&dir, "b", 0o644).unwrap();
    assert!(exchange(&dir, "a", &dir, "b").unwrap(), "the file system of temporary directories can");
    assert!(open_dir(&dir, "b").is_ok() && open_dir(&dir, "a").is_err());
    assert_eq!(exchange(&dir, "a", &dir, "c").unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn a_lack_of_locks_may_pass_and_is_no_file_system_without_locks() {
    for never in [Errno::NOSYS, Errno::OPNOTSUPP, Errno::INVAL, Errno::BADF] {
        assert_eq!(lock_of(Err(never)).unwrap(), Lock::Unsupported, "{never}");
    }
    assert_eq!(lock_of(Err(Errno::WOULDBLOCK)).unwrap(), Lock::Contended);
    assert!(lacks_locks(&lock_of(Err(Errno::NOLCK)).unwrap_err()));
    assert_eq!(unsupported_if_lacking(lock_of(Err(Errno::NOLCK))).unwrap(), Lock::Unsupported);
    for other in [Errno::IO, Errno::STALE] {
        let error = unsupported_if_lacking(lock_of(Err(other))).unwrap_err();
        assert!(!lacks_locks(&error), "{error}");
    }
}

#[test]
fn only_a_name_under_which_nothing_can_be_read_is_a_wrong_one() {
    let kind = |errno: Errno| io::Error::from(errno).kind();
    for (errno, wrong, misnamed) in [
        (Errno::NOTDIR, true, true),
        (Errno::NAMETOOLONG, true, true),
        (Errno::NOENT, false, true),
        (Errno::ISDIR, false, true),
        (Errno::ACCESS, false, false),
        (Errno::STALE, false, false),
        (Errno::IO, false, false),
        (Errno::TIMEDOUT, false, false),
    ] {
        assert_eq!((is_wrong_path(kind(errno)), is_misnamed(kind(errno))), (wrong, misnamed), "{errno}");
    }
}

#[test]
fn an_exclusive_lock_waits_for_nobody_and_ends_with_its_handle() {
    let (_keep, dir) = scratch();
    let open = || open_dir(&dir, ".").unwrap();
    let reader = open();
    let reaper = open();
    assert_eq!(try_lock_shared(&reader).unwrap(), Lock::Taken);
    assert_eq!(try_lock(&reaper).unwrap(), Lock::Contended);
    // Until its exec, a child that another test starts has a copy of the handle.
    drop(reader);
    while try_lock(&reaper).unwrap() == Lock::Contended {
        std::thread::yield_now();
    }
    assert_eq!(try_lock_shared(open()).unwrap(), Lock::Contended);
}
