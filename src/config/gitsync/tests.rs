//! git-sync's rules, as tables.

use std::ffi::OsStr;

use clap::Args as _;

use super::*;

fn sync() -> Command {
    super::super::Args::augment_args(Command::new("git-sync"))
}

/// Reads with these variables and arguments.
fn call(variables: &[(&str, &str)], arguments: &[&str]) -> Result<Call, ParseError> {
    let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
    let look = |name: &str| {
        variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
    };
    read(&sync(), &arguments, &look)
}

/// The values of a flag of `sync`.
fn values(variables: &[(&str, &str)], arguments: &[&str], flag: &str) -> Vec<String> {
    let call = call(variables, arguments).unwrap();
    call.settings.into_iter().filter(|given| given.flag == flag).map(|given| given.value).collect()
}

#[test]
fn every_flag_of_git_sync_is_one_of_sync() {
    let command = sync();
    for flag in FLAGS {
        let here = command.get_arguments().find(|arg| arg.get_long() == Some(flag.here()));
        let here = here.unwrap_or_else(|| panic!("sync has no --{}", flag.here()));
        let switch = here.get_num_args().is_some_and(|values| values.min_values() == 0);
        assert_eq!(switch, flag.kind.is_switch(), "{}", flag.name);
    }
    assert!(FLAGS.windows(2).all(|pair| pair[0].name < pair[1].name), "they are listed by name");
    assert_eq!(FLAGS.len(), 52);
}

#[test]
fn no_value_is_in_the_debug_output() {
    let variables =
        [("GITSYNC_WEBHOOK_URL", "https://hooks.example.com/s3cret"), ("GITSYNC_PASSWORD", "s3cret")];
    let shown = format!("{:?}", call(&variables, &["--repo=https://bob:s3cret@h/x"]).unwrap());
    assert!(shown.contains("webhook-url") && !shown.contains("s3cret"), "{shown}");
}

#[test]
fn a_flag_beats_the_environment_and_the_oldest_variable_beats_the_others() {
    let variables = [("GITSYNC_DEPTH", "2"), ("GIT_SYNC_DEPTH", "3")];
    assert_eq!(values(&variables, &["--depth=4"], "depth"), ["4"]);
    assert_eq!(values(&variables, &[], "depth"), ["3"]);
    let notes = call(&variables, &[]).unwrap().notes;
    assert_eq!(
        notes,
        [
            "$GIT_SYNC_DEPTH is deprecated: use $GITSYNC_DEPTH",
            "$GITSYNC_DEPTH is overridden by $GIT_SYNC_DEPTH"
        ]
    );
    let three = [("GITSYNC_ASKPASS_URL", "a"), ("GIT_SYNC_ASKPASS_URL", "b"), ("GIT_ASKPASS_URL", "c")];
    assert_eq!(values(&three, &[], "askpass-url"), ["c"]);
    assert_eq!(values(&[("GITSYNC_STALE_WORKTREE_TIMEOUT", "5s")], &[], "grace"), ["5s"]);
    assert_eq!(values(&[("GITSYNC_REF", "a"), ("TREESWAP_REF", "b")], &[], "ref"), [""; 0], "left to ours");
    let v3 = [("GIT_SYNC_BRANCH", "a"), ("GIT_SYNC_REV", "HEAD"), ("TREESWAP_REF", "b")];
    assert_eq!(values(&v3, &[], "ref"), [""; 0], "also over v3's");
    assert_eq!(values(&v3, &["--branch=c"], "ref"), ["c"], "but not over a flag");
    let empty = [("GITSYNC_REF", "a"), ("TREESWAP_REF", "")];
    assert_eq!(values(&empty, &[], "ref"), ["a"], "an empty one hides none");
}

#[test]
fn a_variable_is_read_even_where_the_flag_is_given() {
    for (name, value, said) in [
        ("GITSYNC_PERIOD", "10", "invalid value \"10\" for $GITSYNC_PERIOD"),
        ("GITSYNC_PERIOD", "", "invalid value \"\" for $GITSYNC_PERIOD"),
        ("GITSYNC_DEPTH", "", "invalid value \"\" for $GITSYNC_DEPTH"),
        ("GITSYNC_ONE_TIME", "yes", "invalid value \"yes\" for $GITSYNC_ONE_TIME"),
        ("GIT_SYNC_WAIT", "soon", "invalid value \"soon\" for $GIT_SYNC_WAIT"),
    ] {
        let fault = call(&[(name, value)], &["--period=1s", "--depth=1", "--one-time"]).unwrap_err();
        assert!(matches!(&fault, ParseError::Environment(text) if text.starts_with(said)), "{fault:?}");
    }
    assert_eq!(values(&[("GITSYNC_REF", "")], &[], "ref"), [""], "text may be empty");
    let unreadable = read(&sync(), &[], &|name| {
        use std::os::unix::ffi::OsStrExt as _;
        (name == "GITSYNC_REF").then(|| OsStr::from_bytes(b"\xff").to_owned())
    });
    assert!(unreadable.unwrap_err().to_string().contains("$GITSYNC_REF: it is not UTF-8"));
}

#[test]
fn a_malformed_variable_of_credentials_is_ignored_and_said_to_be() {
    let variables = [("GITSYNC_CREDENTIAL", "{\"password\":\"s3cret")];
    let call = call(&variables, &["--root=/r", "--repo=u", "--credential={}"]).unwrap();
    assert!(call.notes[0].starts_with("$GITSYNC_CREDENTIAL is ignored: it is not JSON"), "{:?}", call.notes);
    assert!(!call.notes[0].contains("s3cret"));
    assert_eq!(call.get("credential"), Some("{}"));
}

#[test]
fn a_refspec_is_its_remote_side_under_every_name_of_the_flag() {
    for arguments in
        [&["--ref=+main:x"][..], &["--branch=main:x"], &["--rev=+main"], &["--branch=+main", "--rev=HEAD"]]
    {
        assert_eq!(values(&[], arguments, "ref"), ["main"], "{arguments:?}");
    }
    assert_eq!(values(&[("GITSYNC_REF", ":x")], &[], "ref"), ["HEAD"]);
    assert_eq!(values(&[], &["--ref="], "ref"), [""], "refused with what follows");
    let stored = call(&[("GITSYNC_REF", "a:b")], &["--root=/r", "--repo=u"]).unwrap();
    assert_eq!(stored.notes, ["$GITSYNC_REF=a:b follows a; b is not written"]);
    let wrong =
        call(&[], &["--root=/r", "--repo=u", "--ref=v1^{}"]).unwrap().first_error.unwrap().to_string();
    assert_eq!(wrong, "invalid value \"v1^{}\" for --ref: a tag is followed to its commit anyway: write v1");
}

#[test]
fn lists_replace_or_add_up_as_git_syncs_do() {
    let keys = [("GITSYNC_SSH_KEY_FILE", "/a:/b")];
    assert_eq!(values(&keys, &[], "ssh-key-file"), ["/a:/b"], "split where it is used");
    assert_eq!(values(&keys, &["--ssh-key-file=/c", "--ssh-key-file=/d"], "ssh-key-file"), ["/c", "/d"]);
    let json = [("GITSYNC_CREDENTIAL", "[]")];
    assert_eq!(values(&json, &["--credential={}", "--credential=[]"], "credential"), ["[]", "{}", "[]"]);
    assert_eq!(
        values(&[], &["--git-config-add=a:b,c", "--git-config-add=d:e"], "git-config-add"),
        ["a:b,c", "d:e"]
    );
}

#[test]
fn old_flags_win_over_their_successors() {
    for (arguments, flag, value) in [
        (&["--branch=b", "--ref=r"][..], "ref", "b"),
        (&["--branch=b", "--rev=HEAD"], "ref", "b"),
        (&["--rev=abc", "--ref=r"], "ref", "abc"),
        (&["--dest=d", "--link=l"], "link", "d"),
        (&["--wait=1.5"], "period", "1500ms"),
        (&["--wait=0", "--period=3s"], "period", "3s"),
        (&["--timeout=30", "--sync-timeout=1s"], "sync-timeout", "30s"),
        (&["--max-sync-failures=-1"], "max-failures", "-1"),
        (&["--sync-hook-command=/x"], "exechook-command", "/x"),
        (&["--v=3", "-v6"], "verbose", "3"),
        (&["--v=-1", "-v6"], "verbose", "6"),
    ] {
        assert_eq!(values(&[], arguments, flag), [value], "{arguments:?}");
    }
    assert_eq!(values(&[("GIT_SYNC_BRANCH", "b")], &["--ref=r"], "ref"), ["b"]);
    let old = call(&[("GIT_SYNC_BRANCH", "b")], &["--password=pw", "--ssh"]).unwrap();
    assert_eq!(old.hidden.password.unwrap().value.expose(), "pw");
    assert_eq!(old.notes.len(), 3, "{:?}", old.notes);
    assert!(!old.notes.concat().contains("pw"));
}

#[test]
fn what_git_sync_checks_first_is_wrong_first() {
    let wrong = |arguments: &[&str]| call(&[], arguments).unwrap().first_error.map(|error| error.to_string());
    let both = ["--root=/r", "--repo=u"];
    let with = |more: &'static [&'static str]| wrong(&[&both[..], more].concat());
    assert_eq!(wrong(&[]).unwrap(), "--root is required");
    assert_eq!(wrong(&["--root=/r", "--rev=a", "--branch=b"]).unwrap(), "--repo is required");
    assert_eq!(with(&["--rev=a", "--branch=b"]).unwrap(), "--branch and --rev exclude each other");
    assert_eq!(with(&["--change-permissions=0755"]).unwrap(), "--change-permissions is not supported");
    assert_eq!(with(&["--change-permissions=0"]), None);
    assert_eq!(call(&[], &["--change-permissions=0755"]).unwrap().notes, [""; 0], "said once");
    assert!(with(&["--period=-1s"]).unwrap().contains("negative"));
    assert_eq!(with(&["--stale-worktree-timeout=-1s"]), None);
}

#[test]
fn a_duration_of_centuries_is_capped() {
    for (arguments, flag) in [
        (&["--stale-worktree-timeout=999999h"][..], "grace"),
        (&["--grace=2562047h47m16s"], "grace"),
        (&["--sync-timeout=999999h"], "sync-timeout"),
        (&["--wait=1e10"], "period"),
    ] {
        assert_eq!(values(&[], arguments, flag), ["878400h"], "{arguments:?}");
    }
    let variables = [("GITSYNC_STALE_WORKTREE_TIMEOUT", "999999h")];
    assert_eq!(values(&variables, &[], "grace"), ["878400h"]);
    assert_eq!(super::super::values::duration("878400h"), Ok(MAX_DURATION), "and is taken then");
    assert_eq!(values(&[], &["--period=878400h"], "period"), ["878400h"]);
}

#[test]
fn version_help_and_manual_come_in_this_order_and_before_what_is_missing() {
    let action = |arguments: &[&str]| call(&[], arguments).unwrap().action;
    assert_eq!(action(&["--man", "--help", "--version"]), Action::Version);
    assert_eq!(action(&["--man", "-h"]), Action::Help);
    assert_eq!(action(&["--man", "-?"]), Action::Help);
    assert_eq!(action(&["--man"]), Action::Manual);
    assert_eq!(action(&["--help=false", "extra"]), Action::Run);
    assert!(matches!(call(&[], &["--help", "--nope"]), Err(ParseError::Arguments(_))));
}

#[test]
fn secrets_come_from_the_environment_or_from_what_stands_in_for_it() {
    let password = |variables, arguments| {
        let found = call(variables, arguments).unwrap().hidden.password;
        found.map(|found| (found.name, found.value.expose().to_owned()))
    };
    let is = |name: &str, value: &str| Some((name.to_owned(), value.to_owned()));
    assert_eq!(password(&[("GITSYNC_PASSWORD", "a")], &[]), is("$GITSYNC_PASSWORD", "a"));
    assert_eq!(
        password(&[("GITSYNC_PASSWORD", "a"), ("GIT_SYNC_PASSWORD", "b")], &[]),
        is("$GIT_SYNC_PASSWORD", "b")
    );
    assert_eq!(password(&[("GITSYNC_PASSWORD", "")], &[]), None);
    let ours_is_empty = [("TREESWAP_PASSWORD", ""), ("GITSYNC_PASSWORD", "a")];
    assert_eq!(password(&ours_is_empty, &[]), is("$GITSYNC_PASSWORD", "a"));
    let flag = "--__env__GITSYNC_PASSWORD";
    assert_eq!(password(&[("GITSYNC_PASSWORD", "a")], &["--__env__GITSYNC_PASSWORD=c"]), is(flag, "c"));
    assert_eq!(
        password(&[("GITSYNC_PASSWORD", "a")], &["--__env__GITSYNC_PASSWORD="]),
        is("$GITSYNC_PASSWORD", "a")
    );
}

#[test]
fn what_treeswap_has_besides_is_taken_too() {
    assert_eq!(values(&[], &["--max-pin", "1m", "--pre-publish-gate"], "max-pin"), ["1m"]);
    assert_eq!(values(&[], &["--pre-publish-gate", "x"], "pre-publish-gate"), ["true"]);
    assert_eq!(values(&[], &["--grace=1m"], "grace"), ["1m"]);
    let fault = call(&[], &["--grace=soon"]).unwrap_err();
    assert!(fault.to_string().contains("--grace"), "{fault}");
}
