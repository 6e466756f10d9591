use super::hints::FLAGS_AS_KEYS;
use super::*;
use crate::human::assert_message_style;

fn id() -> ObjectId {
    ObjectId([0xab; 20])
}

fn object_error() -> ObjectError {
    ObjectError::Missing { id: id(), expected: "blob".into() }
}

fn local(kind: io::ErrorKind) -> Error {
    Error::Local { act: "write", path: "/mirror/x".into(), source: kind.into() }
}

#[test]
fn every_variant_is_one_line_without_a_librarys_noise_and_says_what_to_do() {
    let libgit2 = || Libgit2(git2::Repository::open("/nowhere/at/all").err().unwrap());
    assert!(!libgit2().to_string().contains("class="), "{}", libgit2());
    let wire = || wire::Error::NoSuchRef { name: "x".into(), remote: "h".into(), has_others: false };
    let refusal = Refusal {
        revision: Revision(id()),
        path: "a".into(),
        rule: crate::payload::Rule::FileBytes { bytes: (64 << 20) + 1, limit: 64 << 20 },
    };
    let each = [
        local(io::ErrorKind::Other),
        Error::Foreign { path: "/mirror".into() },
        Error::Locked { path: "/mirror".into() },
        Error::Git { act: "open the mirror's objects".into(), source: libgit2() },
        Error::Damaged { revision: Revision(id()), source: object_error() },
        Error::Irreplaceable { path: "/root/.git".into(), source: object_error() },
        Error::Wire(wire()),
        Error::Unsent { wanted: id(), source: Box::new(wire()) },
        Error::Incomplete { requested: id(), at: Some("a/b".into()), source: object_error() },
        Error::NotACommit { requested: "v1".into(), kind: "tree".into() },
        Error::BadPack { why: "it is truncated".into() },
        Error::IndexMemory { task: "indexing the fetched pack", limit: 64 << 20 },
        Error::IndexKilled { task: "garbage collection in the mirror", limit: 64 << 20 },
        Error::IndexTimeout { task: "garbage collection in the mirror", limit: Duration::from_secs(120) },
        Error::FetchBytes { limit: 4 << 30 },
        Error::Indexer { program: "/treeswap".into(), why: "ended".into() },
        Error::Sparse { line: "[".into(), why: "a bracket is open".into() },
        Error::Refused(refusal),
        Error::Module {
            path: "sub".into(),
            url: "https://h/x".into(),
            source: Box::new(Error::Wire(wire())),
        },
        Error::OfSource { name: "jobs".into(), source: Box::new(Error::Wire(wire())) },
        Error::Collision { path: "a/b".into(), one: "jobs".into(), other: "steps".into() },
        Error::Trespass {
            path: "a".into(),
            owner: "jobs".into(),
            other: "steps".into(),
            place: "where source",
        },
        Error::SameBaseName {
            path: "a/x".into(),
            one: "jobs".into(),
            other_path: "b/x".into(),
            other: "steps".into(),
        },
        Error::NoModule { path: "sub".into(), commit: id() },
        Error::GarbageInUse { limit: 4 << 30 },
        Error::KeptSubmodules { limit: 4 << 30 },
        Error::Cancelled,
    ];
    let named = |error: &Error| match error {
        Error::Local { .. }
        | Error::Foreign { .. }
        | Error::Locked { .. }
        | Error::Git { .. }
        | Error::Damaged { .. }
        | Error::Irreplaceable { .. }
        | Error::Wire(_)
        | Error::Unsent { .. }
        | Error::Incomplete { .. }
        | Error::NotACommit { .. }
        | Error::BadPack { .. }
        | Error::IndexMemory { .. }
        | Error::IndexKilled { .. }
        | Error::IndexTimeout { .. }
        | Error::FetchBytes { .. }
        | Error::Indexer { .. }
        | Error::Sparse { .. }
        | Error::Refused(_)
        | Error::Module { .. }
        | Error::OfSource { .. }
        | Error::Collision { .. }
        | Error::Trespass { .. }
        | Error::SameBaseName { .. }
        | Error::NoModule { .. }
        | Error::GarbageInUse { .. }
        | Error::KeptSubmodules { .. }
        | Error::Cancelled => std::mem::discriminant(error),
    };
    assert_eq!(each.iter().map(named).collect::<std::collections::HashSet<_>>().len(), each.len());
    for error in &each {
        assert_message_style(error, &error.hints());
    }
}

#[test]
fn a_full_volume_and_a_missing_right_need_somebody() {
    for (kind, transient) in [
        (io::ErrorKind::StorageFull, false),
        (io::ErrorKind::QuotaExceeded, false),
        (io::ErrorKind::PermissionDenied, false),
        (io::ErrorKind::ReadOnlyFilesystem, false),
        (io::ErrorKind::Other, true),
        (io::ErrorKind::Interrupted, true),
    ] {
        assert_eq!(local(kind).is_transient(), transient, "{kind}");
        assert_message_style(&local(kind), &local(kind).hints());
    }
}

#[test]
fn a_used_up_quota_is_known_by_the_text_of_either_library() {
    for (why, kind) in [
        ("write the pack: Disk quota exceeded (os error 122)", io::ErrorKind::QuotaExceeded),
        ("write the pack: Quota exceeded (os error 122)", io::ErrorKind::QuotaExceeded),
        ("write the pack: No space left on device (os error 28)", io::ErrorKind::StorageFull),
        ("read the pack: Input/output error (os error 5)", io::ErrorKind::Other),
    ] {
        assert_eq!(kind_of(why), kind, "{why}");
    }
}

#[test]
fn a_limit_on_open_files_is_no_matter_of_the_volume() {
    let source = rustix::io::Errno::MFILE.into();
    let error = Error::Local { act: "open the files of", path: "/mirror".into(), source };
    let hints = error.hints();
    assert_message_style(&error, &hints);
    assert!(error.is_transient() && hints.concat().contains("ulimit"), "{hints:?}");
}

#[test]
fn what_does_not_limit_the_indexing_process_is_no_matter_of_the_volume() {
    let said = "set limits: --sandbox=auto: cannot enter Landlock, which this kernel has: why";
    let error = Error::Local {
        act: "index a pack in",
        path: "/mirror".into(),
        source: io::Error::new(kind_of(said), said),
    };
    let hints = error.hints();
    assert_message_style(&error, &hints);
    assert!(hints.iter().any(|hint| hint.contains("--sandbox=off")), "{hints:?}");
    assert!(!hints.iter().any(|hint| hint.contains("volume")), "{hints:?}");
}

/// Every text in the list of replacements occurs in a hint. Otherwise a hint was reworded and mentions a flag again.
#[test]
fn hints_of_a_source_name_keys_where_there_are_some() {
    let remote = || "h".to_owned();
    let ssh = |source| wire::Error::Ssh { remote: remote(), source: Box::new(source) };
    let file = || std::path::PathBuf::from("/file");
    let absent = || io::Error::from(io::ErrorKind::NotFound);
    let no_ref =
        |name: &str| wire::Error::NoSuchRef { name: name.into(), remote: remote(), has_others: false };
    let denied = wire::ssh::Error::Denied { server: remote(), user: remote(), keys: vec![], said: None };
    let scan = remote();
    let each = [
        no_ref("HEAD"),
        no_ref("abcdef12"),
        no_ref("mian"),
        wire::Error::Auth { remote: remote(), status: 401, username: None, with: Vec::new() },
        wire::Error::Redirect { remote: remote(), to: remote(), why: wire::Unfollowed::OtherOrigin },
        ssh(wire::ssh::Error::NoKeys { files: vec![file()] }),
        ssh(denied),
        ssh(wire::ssh::Error::ReadKnownHosts { file: file(), source: absent(), scan }),
    ];
    let mut named = std::collections::HashSet::<&(&str, &str)>::new();
    for error in each {
        let error = Error::OfSource { name: "jobs".into(), source: Box::new(Error::Wire(error)) };
        let hints = error.hints();
        assert_message_style(&error, &hints);
        named.extend(FLAGS_AS_KEYS.iter().filter(|(_, key)| hints.iter().any(|hint| hint.contains(key))));
    }
    assert_eq!(named.len(), FLAGS_AS_KEYS.len(), "{named:?}");
}
