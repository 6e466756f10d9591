use super::*;
use crate::human::assert_message_style;

fn each() -> Vec<Error> {
    let root = || PathBuf::from("/root");
    let io = |kind: io::ErrorKind| Error::Io { act: "write", path: root(), source: kind.into() };
    let mut each = vec![
        Error::NoRoot { path: root() },
        Error::NoDirectory { path: root() },
        Error::NotADirectory { path: root() },
        Error::Unreadable { act: "open", path: root(), source: io::ErrorKind::PermissionDenied.into() },
        Error::Dangling { path: root(), link: root(), target: "/gone".into() },
        Error::Refused { path: root(), why: "it is a file".into() },
        Error::OtherLayout { path: root(), made: "git-sync" },
        Error::BadLink { path: root(), why: "a directory is there".into() },
        Error::Foreign { path: root(), names: "\"x\"".into() },
        Error::Locked { path: root(), holder: String::new() },
        Error::Replaced { path: root(), why: "nothing is there".into() },
        Error::Collision { root: root(), name: "a".into() },
        Error::Blob { path: "a".into(), source: BlobError::Sink(io::ErrorKind::StorageFull.into()) },
        Error::Blob { path: "a".into(), source: BlobError::Unopened("too many open files".into()) },
        Error::Miswritten { path: "a".into(), why: "it is shorter".into() },
        Error::Folded { path: "A".into() },
        Error::NoRoom { path: root(), needed: 512 << 20, free: 1 << 20, unit: Unit::Bytes },
        Error::NoRoom { path: root(), needed: 100_000, free: 7, unit: Unit::Inodes },
        Error::OverCeiling { ceiling: 100 << 20, needed: (100 << 20) + 1, current: 5 << 20 },
        Error::Cancelled,
    ];
    each.extend(
        [
            io::ErrorKind::Other,
            io::ErrorKind::StorageFull,
            io::ErrorKind::QuotaExceeded,
            io::ErrorKind::ReadOnlyFilesystem,
            io::ErrorKind::PermissionDenied,
            io::ErrorKind::InvalidFilename,
        ]
        .map(io),
    );
    each
}

#[test]
fn every_variant_is_one_line_without_a_librarys_noise_and_says_what_to_do() {
    let named = |error: &Error| match error {
        Error::Io { .. }
        | Error::NoRoot { .. }
        | Error::NoDirectory { .. }
        | Error::NotADirectory { .. }
        | Error::Unreadable { .. }
        | Error::Dangling { .. }
        | Error::Refused { .. }
        | Error::OtherLayout { .. }
        | Error::BadLink { .. }
        | Error::Foreign { .. }
        | Error::Locked { .. }
        | Error::Replaced { .. }
        | Error::Collision { .. }
        | Error::Blob { .. }
        | Error::Miswritten { .. }
        | Error::Folded { .. }
        | Error::NoRoom { .. }
        | Error::OverCeiling { .. }
        | Error::Cancelled => std::mem::discriminant(error),
    };
    assert_eq!(each().iter().map(named).collect::<std::collections::HashSet<_>>().len(), 19);
    for error in each() {
        assert_message_style(&error, &error.hints());
    }
}

#[test]
fn amounts_are_written_for_people_and_a_full_disk_needs_somebody() {
    let lines: Vec<_> = each().iter().map(ToString::to_string).collect();
    for text in [
        "it needs about 512 MiB, 1.0 MiB are free",
        "100000 inodes, 7 inodes are free",
        "100 MiB (104857601 bytes)",
    ] {
        assert!(lines.iter().any(|line| line.contains(text)), "{text} is not in {lines:?}");
    }
    for error in each().iter().filter(|error| error.is_full()) {
        assert!(!error.is_transient(), "{error}");
    }
}

#[test]
fn a_lack_of_locks_may_pass_and_is_said_to_be_one() {
    let source = rustix::io::Errno::NOLCK.into();
    let error = Error::Io { act: "lock", path: "/root/..treeswap/lock".into(), source };
    assert!(error.is_transient() && error.hints()[0].starts_with("no lock can be had now"), "{error}");
}

#[test]
fn who_may_not_write_a_root_is_told_who_owns_it_and_what_gives_all_of_it() {
    let denied = |act, path: &str| Error::Io {
        act,
        path: path.into(),
        source: io::ErrorKind::PermissionDenied.into(),
    };
    let ours = rustix::process::geteuid().as_raw();
    let hints = denied("open the lock", "/srv/root/..treeswap/lock").hints();
    assert!(hints.last().unwrap().ends_with(" /srv/root`"), "{hints:?}");
    let root = tempfile::tempdir().unwrap();
    fs_err::create_dir(root.path().join(PRIVATE)).unwrap();
    let generation = root.path().join("..2026_11_20_15_04_05.123456789");
    let hints = denied("rename the staged directory to", generation.to_str().unwrap()).hints();
    assert!(hints.last().unwrap().ends_with(&format!(" {}`", root.path().display())), "{hints:?}");
    let hints = denied(MAKE_ROOT, "/srv/root").hints();
    assert!(hints.last().unwrap().contains(&format!("`chown {ours} /srv/root`")), "{hints:?}");
    let hints = denied(RESOLVE_ROOT, "/srv/root").hints();
    assert!(hints.last().unwrap().contains("leads to /srv/root must be searchable"), "{hints:?}");
    let owner = std::fs::symlink_metadata("/proc/1").unwrap().uid();
    let hints = denied("open the lock", "/proc/1/..treeswap/lock").hints();
    let told = hints[0] == format!("/proc/1 belongs to user {owner}, and this is user {ours}");
    assert_eq!(told, owner != ours, "{hints:?}");
    let worktrees = denied("make the directory", "/srv/root/.worktrees").hints();
    assert!(worktrees.last().unwrap().contains(" /srv/root`"), "{worktrees:?}");
}

#[test]
fn what_makes_a_root_writable_depends_on_who_owns_it() {
    for (owner, fs_group, command) in [
        (None, true, "`chown -R 65532 /r`"),
        (Some(0), true, "`chown -R 65532 /r`"),
        (Some(1000), false, "`chown -R 65532 /r`"),
        (Some(65532), false, "`chmod -R u+rwX /r`"),
    ] {
        let hint = writable("/r", owner, 65532);
        assert!(hint.ends_with(command) && hint.contains("fsGroup") == fs_group, "{owner:?}: {hint}");
    }
}
