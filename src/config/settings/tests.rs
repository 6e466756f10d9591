use clap::Parser;

use super::*;
use crate::phase::machine::Timing;

#[derive(Parser)]
struct Bare {
    #[command(flatten)]
    args: Args,
}

fn validated(flags: &[&str], hidden: &Hidden) -> Result<Settings, Error> {
    let given = ["treeswap", "--repo=https://git.example.com/x", "--root=/config"].iter().chain(flags);
    let args = Bare::try_parse_from(given).unwrap().args;
    Settings::new(&args, &Origins::default(), hidden)
}

fn settings(flags: &[&str]) -> Settings {
    validated(flags, &Hidden::default()).unwrap()
}

fn pace(flags: &[&str]) -> Timing {
    settings(flags).sync.pace
}

#[test]
fn what_waits_for_a_first_revision_is_asked_again_within_half_a_minute() {
    const S: fn(u64) -> Duration = Duration::from_secs;
    let ceilings = |flags: &[&str]| {
        let pace = pace(flags);
        (pace.init_backoff.ceiling, pace.backoff.ceiling)
    };
    assert_eq!(ceilings(&[]), (S(30), S(100)));
    assert_eq!(ceilings(&["--period=1h"]), (S(30), S(300)));
    assert_eq!(ceilings(&["--period=1s"]), (S(10), S(10)));
    assert_eq!(ceilings(&["--max-backoff=2m"]), (S(120), S(120)), "who says it means it");
}

#[test]
fn silence_is_not_shorter_than_the_time_between_two_answers() {
    let is_refused = |flags: &[&str]| {
        let flags = [&["--http-bind=:0"][..], flags].concat();
        validated(&flags, &Hidden::default()).is_err()
    };
    for (flags, shortest, too_short) in [
        (&["--period=10s"][..], "--max-stale=3m55s", "--max-stale=3m54s"),
        (&["--sync-timeout=30s", "--max-backoff=10s"], "--max-stale=46s", "--max-stale=45s"),
        (&["--period=10m", "--jitter=0"], "--max-stale=12m5s", "--max-stale=12m4s"),
        (&["--init-period=10m", "--jitter=0"], "--max-stale=12m5s", "--max-stale=12m4s"),
    ] {
        assert!(!is_refused(&[flags, &[shortest]].concat()), "{flags:?} {shortest}");
        assert!(is_refused(&[flags, &[too_short]].concat()), "{flags:?} {too_short}");
    }
    assert!(!is_refused(&["--max-stale=1s", "--one-time"]), "a sidecar's flags in an init container");
}

#[test]
fn what_a_gate_may_change_or_keep_open_is_neither_shared_nor_used_again() {
    use crate::store::Spare;
    let gate = ["--pre-publish-gate", "--pre-publish-exechook-command=/bin/true"];
    for (given, without, with) in [
        ("recycle", Spare::Recycle, Spare::Copy),
        ("link", Spare::Link, Spare::Copy),
        ("copy", Spare::Copy, Spare::Copy),
        ("off", Spare::Off, Spare::Off),
    ] {
        let spare = format!("--spare={given}");
        let chosen = |flags: &[&str]| settings(flags).store.spare;
        assert_eq!(chosen(&[&spare]), without, "{given}");
        assert_eq!(chosen(&[&spare, gate[0], gate[1]]), with, "{given}");
    }
}

#[test]
fn a_ca_file_that_the_git_program_would_not_read_is_refused() {
    let mut flags = vec!["--ca-file=/ca.pem", "--git=git"];
    let refused = validated(&flags, &Hidden::default()).unwrap_err().to_string();
    assert!(refused.starts_with("--ca-file with --git needs --git-config=http.sslCAInfo:FILE"), "{refused}");
    flags.push("--git-config=http.sslCAInfo:/all.pem");
    assert_eq!(settings(&flags).mirror.wire.ca_file, Some(PathBuf::from("/ca.pem")));
    // What counts is the URL that the program gets.
    flags[2] = "--git-config=\"url.ssh://git@git.example.com/.insteadOf\":\"https://git.example.com/\"";
    assert_eq!(settings(&flags).mirror.wire.remote, "ssh://git@git.example.com/x");
}

#[test]
fn without_durability_neither_the_root_nor_the_mirror_is_synced() {
    let chosen = |flags: &[&str]| {
        let found = settings(flags);
        (found.store.durability, found.mirror.durable)
    };
    assert_eq!(chosen(&[]), (store::Durability::Syncfs, true));
    assert_eq!(chosen(&["--durability=none"]), (store::Durability::None, false));
}

#[test]
fn dev_null_for_known_hosts_leaves_the_file_of_the_flag() {
    use crate::mirror::wire::ssh::KnownHosts::{Off, Strict};
    let trusted = |options: &str| {
        let hidden = Hidden { ssh_command: Some(format!("ssh {options}")), ..Hidden::default() };
        validated(&["--ssh-known-hosts-file=/k"], &hidden).unwrap().mirror.wire.ssh.known_hosts
    };
    assert_eq!(trusted("-o UserKnownHostsFile=/other"), Strict("/other".into()));
    assert_eq!(trusted("-o UserKnownHostsFile=/dev/null"), Strict("/k".into()));
    assert_eq!(trusted("-o UserKnownHostsFile=/dev/null -o StrictHostKeyChecking=no"), Off);
}

#[test]
fn what_the_ssh_command_says_of_host_keys_precedes_the_flag() {
    use crate::mirror::wire::ssh::KnownHosts::{Off, Strict};
    let found = |options: &str, flag: &str| {
        let hidden = Hidden { ssh_command: Some(format!("ssh {options}")), ..Hidden::default() };
        let found = validated(&["--ssh-known-hosts-file=/k", flag], &hidden).unwrap();
        let warnings = found.warnings.concat();
        let learns = warnings.contains("accept-new in $GIT_SSH_COMMAND counts as yes: no host is learnt");
        assert_eq!(learns, options.ends_with("accept-new"), "{warnings}");
        let warned = warnings.contains("ssh host keys go unchecked");
        (found.mirror.wire.ssh.known_hosts, warned)
    };
    for checks in ["yes", "accept-new"] {
        let options = format!("-o StrictHostKeyChecking={checks}");
        assert_eq!(found(&options, "--ssh-known-hosts=false"), (Strict("/k".into()), false), "{checks}");
    }
    assert_eq!(found("-o StrictHostKeyChecking=no", "--ssh-known-hosts=true"), (Off, true));
    assert_eq!(found("", "--ssh-known-hosts=false"), (Off, true));
    assert_eq!(found("", "--ssh-known-hosts=true"), (Strict("/k".into()), false));
}

#[test]
fn urls_are_rewritten_once_and_submodules_are_relative_to_what_was_written() {
    let rule = "--git-config=\"url.https://mirror.example.com/.insteadOf\":\"https://git.example.com/\"";
    let found = settings(&["--git=git", rule, "--git-config-add=http.proxy:http://proxy"]).mirror;
    assert_eq!(found.wire.remote, "https://mirror.example.com/x");
    assert_eq!(found.modules.written.unwrap().expose(), "https://git.example.com/x");
    let submodule = found.modules.instead_of.rewritten("https://git.example.com/y");
    assert_eq!(submodule, "https://mirror.example.com/y");
    let keys: Vec<_> = found.wire.program.unwrap().config.into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["http.proxy"], "the program would do it again");
    assert!(settings(&[]).mirror.modules.written.is_none());
}

#[test]
fn credentials_in_the_variable_count_unless_the_flag_is_given() {
    let json = r#"{"url":"https://h","username":"me","password":"s3cret"}"#;
    let variable = |name: &str| (name == "TREESWAP_CREDENTIAL").then(|| json.into());
    let hidden = Hidden::read(variable);
    let users = |flags: &[&str]| {
        let all = validated(flags, &hidden).unwrap().mirror.wire.credentials;
        all.into_iter().filter_map(|credential| credential.username).collect::<Vec<_>>()
    };
    assert_eq!(users(&[]), ["me"]);
    let flag = r#"--credential={"url":"https://h","username":"you","password-file":"/p"}"#;
    assert_eq!(users(&[flag]), ["you"]);
    let odd = Hidden { unreadable: Some("$TREESWAP_PASSWORD".into()), ..Hidden::default() };
    let refused = validated(&[], &odd).unwrap_err().to_string();
    assert_eq!(refused, "invalid value for $TREESWAP_PASSWORD: it is not UTF-8");
}

#[test]
fn no_secret_is_in_the_debug_output_of_flags_or_settings() {
    let token =
        r#"{"url":"https://git.example.com","username":"ghp_s3cret16C7e42F292c","password-file":"/x"}"#;
    for flag in [
        "--repo=https://bob:s3cret@git.example.com/x",
        "--webhook-url=https://me:s3cret@hooks.example.com/services/s3cret?token=s3cret",
        "--askpass-url=https://me:s3cret@auth.example.com/s3cret",
        "--git-config=http.extraHeader:X-Token: s3cret,http.proxy:http://me:s3cret@proxy.example.com",
        &format!("--credential={token}"),
    ] {
        let repo = Some("--repo=https://git.example.com/x").filter(|_| !flag.starts_with("--repo="));
        let given = ["treeswap", "--root=/config", flag].into_iter().chain(repo);
        let args = Bare::try_parse_from(given).unwrap().args;
        let settings = Settings::new(&args, &Origins::default(), &Hidden::default());
        let shown = format!("{args:?} {settings:?}");
        assert!(settings.is_ok() && !shown.contains("s3cret"), "{flag}: {shown}");
    }
}

#[test]
fn credentials_for_other_urls_alone_are_warned_about() {
    let warned = |url: &str, more: &[&str]| {
        let json = format!(r#"--credential={{"url":"{url}","username":"me","password-file":"/x"}}"#);
        settings(&[&[json.as_str()][..], more].concat()).warnings
    };
    let others =
        ["https://me:s3cret@other.example.com/", "https://git.example.com:444", "https://git.example.com/y"];
    for other in others {
        let warnings = warned(other, &[]).concat();
        assert!(warnings.contains("no --credential is for the repository, but for https://"), "{warnings}");
        assert!(!warnings.contains("s3cret"), "{warnings}");
        assert!(warned(other, &["--submodules=recursive"]).is_empty(), "it may be for them");
        assert!(warned(other, &["--username=me", "--password-file=/y"]).is_empty());
    }
    for own in ["https://git.example.com", "https://git.example.com/x"] {
        assert!(warned(own, &[]).is_empty(), "{own}");
    }
    let other = r#"--credential={"url":"https://other.example.com/y","username":"me","password-file":"/x"}"#;
    let base = ["--repo=https://git.example.com/x", "--root=/config", "--http-metrics=false"];
    let given = ["git-sync"].into_iter().chain(base).chain([other]);
    let args = Bare::try_parse_from(given).unwrap().args;
    let as_git_sync = Origins::default().as_git_sync(std::iter::empty());
    let warnings = Settings::new(&args, &as_git_sync, &Hidden::default()).unwrap().warnings;
    let end = "but for https://other.example.com: scheme, host and port have to be the same";
    assert!(warnings.iter().any(|line| line.ends_with(end)), "once, and without a path: {warnings:?}");
}

#[test]
fn a_link_of_git_syncs_that_is_not_kept_is_warned_about() {
    let root = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(".worktrees/abc", root.path().join("current")).unwrap();
    std::os::unix::fs::symlink("elsewhere", root.path().join("other")).unwrap();
    let flag = format!("--root={}", root.path().display());
    let warnings = |more: &[&str]| {
        let base = ["treeswap", "--repo=https://git.example.com/x", flag.as_str()];
        let args = Bare::try_parse_from(base.iter().chain(more)).unwrap().args;
        Settings::new(&args, &Origins::default(), &Hidden::default()).unwrap().warnings
    };
    let [warning]: [String; 1] = warnings(&["--layout=git-sync"]).try_into().unwrap();
    assert!(warning.ends_with("/current is a link to a generation, and is not updated: add --link=current"));
    assert!(warnings(&["--layout=git-sync", "--link=current"]).is_empty());
    assert!(warnings(&[]).is_empty());
}
