//! The flags for credentials: what excludes what, and in which order they are used.

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Bare {
    #[command(flatten)]
    args: args::Args,
}

fn refused(origins: &Origins, flags: &[&str], hidden: &Hidden) -> Error {
    checked(origins, flags, hidden).unwrap_err()
}

fn parsed(flags: &[&str]) -> args::Args {
    let has_repo = flags.iter().any(|flag| flag.starts_with("--repo="));
    let repo = Some(&"--repo=https://git.example.com/x").filter(|_| !has_repo);
    let given = ["treeswap", "--root=/config"].iter().chain(repo).chain(flags);
    Bare::try_parse_from(given).unwrap().args
}

fn checked(origins: &Origins, flags: &[&str], hidden: &Hidden) -> Result<(), Error> {
    let args = parsed(flags);
    let user = of_username_flag(&args, origins, hidden.password.as_ref()).map(drop);
    let check = Check { args: &args, origins };
    user.and_then(|()| check.issuance(hidden).map(drop))
}

#[test]
fn a_part_of_a_github_app_without_an_id_is_refused() {
    let with_key = hidden_key("$TREESWAP_GITHUB_APP_PRIVATE_KEY");
    let without = Hidden::default();
    for (name, flags, hidden) in [
        ("$TREESWAP_GITHUB_APP_PRIVATE_KEY", &[][..], &with_key),
        ("--github-app-installation-id", &["--github-app-installation-id=42"][..], &with_key),
        ("--github-app-private-key-file", &["--github-app-private-key-file=/k"][..], &without),
    ] {
        let error = refused(&Origins::default(), flags, hidden).to_string();
        assert_eq!(error, format!("{name} needs --{APPLICATION_ID} or --{CLIENT_ID}"));
    }
    let as_git_sync = Origins::default().as_git_sync(std::iter::empty());
    assert!(checked(&as_git_sync, &[], &with_key).is_ok(), "git-sync ignores it");
}

#[test]
fn what_git_sync_ignores_without_an_id_is_ignored_and_warned_about() {
    let said = |origins: &Origins, flags: &[&str], hidden: &Hidden| {
        checked(origins, flags, hidden).unwrap();
        let args = parsed(flags);
        Check { args: &args, origins }.ignored_parts_of_app(hidden)
    };
    let (none, treeswap) = (Vec::<String>::new(), Origins::default());
    let name = "$GITSYNC_GITHUB_APP_PRIVATE_KEY";
    let with_key = hidden_key(name);
    let base = "--github-base-url=https://github.example.com/api/v3";
    let warning = |part: &str| format!("{part} has no effect without --{APPLICATION_ID} or --{CLIENT_ID}");
    assert_eq!(said(&treeswap, &[], &with_key), [warning(name)]);
    assert_eq!(said(&treeswap, &[base], &with_key), [warning(name), warning("--github-base-url")]);
    let as_git_sync = Origins::default().as_git_sync(std::iter::empty());
    assert_eq!(said(&as_git_sync, &[base], &with_key), none);
    let app = ["--github-app-client-id=x", "--github-app-installation-id=42", base];
    assert_eq!(said(&treeswap, &app, &with_key), none, "they have an effect");
    let usual = format!("--github-base-url={}", args::GITHUB_API);
    assert_eq!(said(&treeswap, &[&usual], &Hidden::default()), none, "`check` prints it");
}

#[test]
fn as_git_sync_a_credential_is_for_its_whole_host_and_that_of_the_repository_comes_first() {
    let as_git_sync = Origins::default().as_git_sync(std::iter::empty());
    let given = |origins: &Origins, flags: &[&str]| {
        let args = parsed(flags);
        let user = of_username_flag(&args, origins, None).unwrap();
        let all = user.into_iter().chain(of_credential_flags(&args, origins, None).unwrap());
        all.map(|one| (one.username.unwrap(), one.url.unwrap_or_default())).collect::<Vec<_>>()
    };
    let is = |list: &[(&str, &str)]| -> Vec<(String, String)> {
        list.iter().map(|(user, url)| ((*user).to_owned(), (*url).to_owned())).collect()
    };
    let json = |user: &str, url: &str| {
        format!(r#"--credential={{"url":"{url}","username":"{user}","password-file":"/p"}}"#)
    };
    let (a, b) = ("https://git.example.com/org/a", "https://other.example.com:444/b?x");
    let flags = [json("a", a), json("b", b)];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    assert_eq!(given(&Origins::default(), &flags), is(&[("a", a), ("b", b)]), "only below that path");
    let hosts = [("a", "https://git.example.com/"), ("b", "https://other.example.com:444/?x")];
    assert_eq!(given(&as_git_sync, &flags), is(&[("a", a), ("b", b), hosts[0], hosts[1]]));
    let user = ["--username=me", "--password-file=/me"];
    assert_eq!(given(&Origins::default(), &user), is(&[("me", "")]));
    assert_eq!(given(&as_git_sync, &user), is(&[("me", "https://git.example.com/x"), ("me", "")]));
    let root = json("c", "https://git.example.com");
    assert_eq!(given(&as_git_sync, &[&root]), is(&[("c", "https://git.example.com")]), "once");
    for issuer in ["askpass-url=http://h", "github-app-client-id=x", "github-app-application-id=7"] {
        let issuer = format!("--{issuer}");
        let beside = [&flags[..], &[issuer.as_str()]].concat();
        assert_eq!(given(&as_git_sync, &beside), is(&[("a", a), ("b", b), hosts[1]]), "{issuer}");
    }
    let of_ssh = [&user[..], &["--repo=ssh://git.example.com/x"]].concat();
    assert_eq!(given(&as_git_sync, &of_ssh), is(&[("me", "")]));
    let in_url = [&flags[..], &["--repo=https://bob:pw@git.example.com/x"]].concat();
    assert_eq!(given(&as_git_sync, &in_url), is(&[("a", a), ("b", b), hosts[1]]), "bob is for that host");
}

#[test]
fn a_url_that_would_never_be_asked_is_refused_unless_git_sync_asks_it() {
    let flags = ["--username=me", "--password-file=/p", "--askpass-url=http://h"];
    let error = refused(&Origins::default(), &flags, &Hidden::default()).to_string();
    assert_eq!(error, "--askpass-url and --username exclude each other");
    let as_git_sync = Origins::default().as_git_sync(std::iter::empty());
    assert!(checked(&as_git_sync, &flags, &Hidden::default()).is_ok());
}

#[test]
fn a_credential_for_http_is_warned_about_where_the_repository_is_reached_otherwise() {
    let said = |origins: &Origins, flags: &[&str]| {
        let args = parsed(flags);
        Check { args: &args, origins }.credential_without_effect(&args.source.repo)
    };
    let ours = Origins::default();
    let user = ["--username=me", "--password-file=/p"];
    let app = "--github-app-client-id=x";
    assert_eq!(said(&ours, &[user[0], user[1], app]), None);
    for repo in ["--repo=git@h:x", "--repo=ssh://h/x", "--repo=/srv/x", "--repo=git://h/x"] {
        let why = "has no effect: the repository is not reached by http or https";
        for (flag, name) in
            [(user[0], "username"), ("--askpass-url=http://h", "askpass-url"), (app, CLIENT_ID)]
        {
            assert_eq!(said(&ours, &[repo, flag]).unwrap(), format!("--{name} {why}"), "{repo}");
        }
        assert_eq!(said(&ours, &[repo]), None);
        let as_git_sync = Origins::default().as_git_sync(std::iter::empty());
        assert_eq!(said(&as_git_sync, &[repo, user[0]]), None);
    }
    assert_eq!(said(&ours, &["--repo=", "--sources=/s.yaml", user[0]]), None, "each has its remarks");
}

/// The variable of this name holds a private key.
fn hidden_key(name: &str) -> Hidden {
    let value = secret::Secret::new("canary-of-a-lone-key");
    Hidden { private_key: Some(Variable { name: name.to_owned(), value }), ..Hidden::default() }
}

#[test]
fn messages_name_the_variable_of_the_name_that_the_program_is_called_by() {
    let none = Hidden::default();
    let as_git_sync = Origins::default().as_git_sync(std::iter::empty());
    for (origins, prefix) in [(Origins::default(), "TREESWAP"), (as_git_sync, "GITSYNC")] {
        let user = refused(&origins, &["--username=me"], &none).to_string();
        assert_eq!(user, format!("--username needs --password-file or ${prefix}_PASSWORD"));
        let hints = refused(&origins, &["--password=x"], &none).hints();
        assert!(hints[0].ends_with(&format!("or into ${prefix}_PASSWORD")), "{hints:?}");
        let app = ["--github-app-client-id=x", "--github-app-installation-id=42"];
        let key = refused(&origins, &app, &none).to_string();
        assert!(key.ends_with(&format!("or ${prefix}_GITHUB_APP_PRIVATE_KEY")), "{key}");
    }
}

#[test]
fn as_git_sync_a_later_credential_takes_the_place_of_an_earlier_one_for_the_same_user_of_a_host() {
    let as_git_sync = Origins::default().as_git_sync(std::iter::empty());
    let kept = |origins: &Origins, given: &[[&str; 3]]| -> Vec<String> {
        let each = given.iter().map(|[user, url, file]| {
            format!(r#"{{"url":"https://{url}","username":"{user}","password-file":"/{file}"}}"#)
        });
        let flag = format!("--credential=[{}]", each.collect::<Vec<_>>().join(","));
        let all = of_credential_flags(&parsed(&[&flag]), origins, None).unwrap().into_iter();
        let shown = |one: Credential| match one.password {
            secret::SecretFrom::File(file) => {
                format!("{} {} {}", one.username.unwrap(), one.url.unwrap(), file.display())
            }
            other => panic!("{other:?}"),
        };
        all.map(shown).collect()
    };
    for (given, expected) in [
        (
            &[["u", "h", "old"], ["v", "h", "v"], ["u", "h:443/", "new"]][..],
            &["u https://h:443/ /new", "v https://h /v"][..],
        ),
        (&[["u", "h", "old"], ["u", "h/a", "new"]], &["u https://h/a /new", "u https://h/ /new"]),
        (&[["u", "h/a", "old"], ["u", "h", "new"]], &["u https://h/a /old", "u https://h /new"]),
        (&[["u", "h/a", "old"], ["u", "h/a/", "new"]], &["u https://h/a/ /new", "u https://h/ /new"]),
        (&[["u", "h", "one"], ["u", "h:444", "other"]], &["u https://h /one", "u https://h:444 /other"]),
    ] {
        assert_eq!(kept(&as_git_sync, given), expected, "{given:?}");
        assert_eq!(kept(&Origins::default(), given).len(), given.len(), "{given:?}");
    }
}
