use super::*;

fn entries(text: &str) -> Result<Vec<(String, String)>, String> {
    parse(text).map(|all| all.into_iter().map(|entry| (entry.key, entry.value)).collect())
}

#[test]
fn the_grammar_is_git_syncs() {
    let cases: &[(&str, &[(&str, &str)])] = &[
        ("", &[]),
        ("k:v", &[("k", "v")]),
        ("k:v,", &[("k", "v")]),
        ("a.b:1,c.d:2", &[("a.b", "1"), ("c.d", "2")]),
        ("k:v:w", &[("k", "v:w")]),
        ("k:v w\tx", &[("k", "v w\tx")]),
        (r"k:a\,b,l:c", &[("k", "a,b"), ("l", "c")]),
        (r#"k:a\nb\tc\"d\\e"#, &[("k", "a\nb\tc\"d\\e")]),
        (r#""k:1":"v,w",l:x"#, &[("k:1", "v,w"), ("l", "x")]),
        (r#""a\"b":"c\"d""#, &[("a\"b", "c\"d")]),
        ("http.https://h/.proxy:x", &[("http.https", "//h/.proxy:x")]),
        ("k:é,l:ü", &[("k", "é"), ("l", "ü")]),
    ];
    for (text, wanted) in cases {
        let wanted = wanted.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        assert_eq!(entries(text), Ok(wanted.collect()), "{text:?}");
    }
    for text in ["k", "k:", r"k:a\xb", r#""k:v"#, r#"k:"v"#, r#"k:"v"w"#, r#""k"v"#, "a:b,c", r"k:a\"] {
        assert!(entries(text).is_err(), "{text:?} was accepted: {:?}", entries(text));
    }
}

fn effect(pairs: &[(&str, &str)], remote: &str) -> Effect {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).to_owned(), value: (*value).to_owned() };
    apply(&pairs.iter().map(entry).collect::<Vec<_>>(), remote).unwrap()
}

#[test]
fn settings_about_the_remote_are_applied_and_others_named_without_their_values() {
    let remote = "https://git.example.com/team/x.git";
    let found = effect(
        &[
            ("http.extraHeader", "X-One: 1"),
            ("HTTP.ExtraHeader", ""),
            ("http.extraheader", "Authorization: Bearer s3cret"),
            ("http.https://other.example.com/.extraHeader", "X-Two: 2"),
            ("http.https://git.example.com/team.sslVerify", "no"),
            ("http.https://git.example.com/elsewhere.sslCAInfo", "/not/this"),
            ("http.sslCAInfo", "/ca.pem"),
            ("http.proxy", "http://proxy:3128"),
            ("http.cookieFile", "/cookies"),
            ("protocol.file.allow", "always"),
            ("safe.directory", "*"),
            ("gc.auto", "0"),
            ("lfs.url", "https://s3cret"),
            ("lfs.url", "again"),
            ("Core.autoCRLF", "true"),
            ("core.autocrlf", "s3cret"),
            ("credential.helper", "store"),
        ],
        remote,
    );
    assert_eq!(sent(&found, remote), ["Bearer s3cret"]);
    assert_eq!(sent(&found, "https://other.example.com/x"), ["2"]);
    assert!(found.unverified && found.local_submodules && matches!(found.proxy, Proxy::To(_)));
    assert_eq!(found.ca_file, Some("/ca.pem".into()));
    assert_eq!(found.cookie_file, Some("/cookies".into()));
    let warnings: Vec<String> = found.warnings(false).collect();
    assert_eq!(
        warnings,
        [
            "git's Core.autoCRLF has no effect here: files are published as they are committed",
            "git's credential.helper has no effect here: use --credential, --password-file or --askpass-url",
            "git's gc.auto has no effect here: use --git-gc",
            "git's lfs.url has no effect here: Git LFS is not supported: its pointer files are published as they are \
             committed",
            "git's safe.directory has no effect here: treeswap does not need it",
        ]
    );
    // git itself fetches, and has the settings; what is published is not its doing.
    assert!(found.warnings(true).all(|line| !line.contains("credential.helper")));
    assert!(found.warnings(true).any(|line| line.contains("autoCRLF")));
    assert!(!format!("{found:?}").contains("s3cret"), "{found:?}");
    assert!(effect(&[("http.extraHeader", "A: b")], "git@example.com:x").headers.is_empty());
}

/// What git itself finds, of pairs of settings in either order.
#[test]
fn the_closest_url_wins_and_the_later_one_of_two_that_are_alike_as_in_git() {
    let url = "https://bob@git.example.com/team/x.git";
    let keys = [
        "http.sslVerify",
        "http.https://git.example.com.sslVerify",
        "http.https://git.example.com/.sslVerify",
        "http.https://git.example.com:443/team.sslVerify",
        "http.https://git.example.com/tea.sslVerify",
        "http.https://GIT.example.com/team/x.git.sslVerify",
        "http.https://bob@git.example.com/.sslVerify",
        "http.https://amy@git.example.com/team/x.git.sslVerify",
        "http.https://*.example.com/team/.sslVerify",
        "http.https://*.com/.sslVerify",
        "http.http://git.example.com/.sslVerify",
        "http.https://git.example.com:8443/.sslVerify",
        "http.https://other.example.com/.sslVerify",
    ];
    for (first, second) in keys.iter().flat_map(|first| keys.iter().map(move |second| (first, second))) {
        for (one, other) in [("true", "false"), ("false", "true")] {
            let said = std::process::Command::new("git")
                .env("GIT_CONFIG_NOSYSTEM", "1")
                .env("GIT_CONFIG_GLOBAL", "/dev/null")
                .current_dir("/")
                .args(["-c", &format!("{first}={one}"), "-c", &format!("{second}={other}")])
                .args(["config", "--get-urlmatch", "http.sslVerify", url])
                .output()
                .unwrap();
            let found = effect(&[(first, one), (second, other)], url);
            let theirs = String::from_utf8(said.stdout).unwrap().trim() == "false";
            assert_eq!(found.unverified, theirs, "{first}={one} {second}={other}");
            assert!(found.unused.is_empty(), "{:?}", found.unused);
        }
    }
}

#[test]
fn what_names_a_url_holds_for_the_remotes_below_it() {
    let remote = "https://git.example.com/x";
    let (verify, proxy, file, any) = (
        "http.https://git.example.com.sslVerify",
        "http.https://git.example.com.proxy",
        "http.https://git.example.com.sslCAInfo",
        "http.https://*.example.org/.sslCAInfo",
    );
    let own = [(verify, "false"), (proxy, "http://proxy:3128"), (file, "/own.pem")];
    let found = effect(&[own[0], own[1], own[2], (any, "/any.pem"), ("http.sslCAInfo", "/all.pem")], remote);
    assert!(found.unverified && matches!(found.proxy, Proxy::To(_)));
    assert_eq!(found.ca_file, Some("/own.pem".into()));
    let by_url = found.by_url(None);
    let again = by_url.of("https://git.example.com/other");
    assert!(again.unverified && matches!(again.proxy, Proxy::To(_)));
    assert_eq!(again.ca_file, Some("/own.pem".into()));
    for (other, file) in [
        ("https://git.example.org/x", "/any.pem"),
        ("https://git.example.net/x", "/all.pem"),
        ("git@git.example.com:x", "/all.pem"),
    ] {
        let there = by_url.of(other);
        assert!(!there.unverified && matches!(there.proxy, Proxy::Environment), "{other}");
        assert_eq!(there.ca_file, Some(file.into()), "{other}");
        assert_eq!(found.by_url(Some("/flag.pem".into())).of(other).ca_file, Some("/flag.pem".into()));
    }
    let found = effect(&[(verify, "true"), ("http.sslVerify", "false")], remote);
    assert!(!found.unverified && found.by_url(None).of("https://git.example.org/x").unverified);
    let other = Entry { key: "http.https://git.example.org.sslVerify".to_owned(), value: "maybe".to_owned() };
    assert!(apply(&[other], remote).is_err(), "a submodule may be there");
}

#[test]
fn a_protocols_own_setting_beats_that_for_all_protocols() {
    let all = "protocol.allow";
    let file = "protocol.file.allow";
    for (first, second, allowed) in [
        ((file, "never"), (all, "always"), false),
        ((all, "always"), (file, "never"), false),
        ((file, "always"), (all, "never"), true),
        ((all, "never"), (all, "always"), true),
        ((file, "always"), (file, "never"), false),
        ((all, "never"), ("protocol.https.allow", "always"), false),
    ] {
        let found = effect(&[first, second], "https://h/x");
        assert_eq!(found.local_submodules, allowed, "{first:?} {second:?}");
    }
}

#[test]
fn a_url_that_is_none_is_named_as_without_effect() {
    let found = effect(&[("http.example.com.proxy", "http://proxy")], "https://h/x");
    let warnings: Vec<String> = found.warnings(true).collect();
    assert_eq!(warnings, ["git's http.[redacted].proxy has no effect here: the URL in it is invalid"]);
}

#[test]
fn a_key_is_named_without_what_may_be_a_secret() {
    for (key, named) in [
        ("http.sslVerify", "http.sslVerify"),
        ("protocol.file.allow", "protocol.file.allow"),
        ("lfs.https://bob:s3cret@h/s3cret.locksverify", "lfs.https://h/[redacted].locksverify"),
        ("http.s3cret.foo", "http.[redacted].foo"),
        ("http.extraHeader=s3cret", "http.[redacted]"),
        ("s3cret", "[redacted]"),
        ("s3cret.foo", "[redacted].foo"),
    ] {
        assert_eq!(shown(key), named);
    }
}

fn sent(effect: &Effect, url: &str) -> Vec<String> {
    let headers = ExtraHeader::of(&effect.headers, &Url::parse(url).unwrap());
    headers.into_iter().map(|(_, value)| value.to_str().unwrap().to_owned()).collect()
}

#[test]
fn headers_are_taken_back_only_where_the_url_matches() {
    let remote = "https://bob@git.example.com/team/x.git";
    let followed = "https://git.example.com/team/x.git/info/refs";
    let (any, other) = ("http.extraHeader", "http.https://other.example.com/.extraHeader");
    let (host, team) =
        ("http.https://git.example.com/.extraHeader", "http.https://git.example.com/team/.extraHeader");
    let (bob, amy) =
        ("http.https://bob@git.example.com.extraHeader", "http.https://amy@git.example.com.extraHeader");
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str]);
    let cases: [Case<'_>; 9] = [
        (&[(any, "A: 1"), (other, "")], &["1"]),
        (&[(any, "A: 1"), (host, "")], &[]),
        (&[(host, "A: 1"), (any, "")], &["1"]), // names it less closely
        (&[(host, "A: 1"), (any, "A: 2")], &["1"]),
        (&[(any, "A: 1"), (team, "A: 2"), (host, "A: 3")], &["1", "2"]),
        (&[(host, "A: 1"), (host, ""), (host, "A: 2")], &["2"]),
        (&[("http.https://*.example.com/.extraHeader", "A: 1")], &["1"]),
        (&[("http.https://*.com/.extraHeader", "A: 1")], &[]),
        (&[(bob, "A: 1"), (amy, "A: 2")], &["1"]),
    ];
    for (settings, wanted) in cases {
        assert_eq!(sent(&effect(settings, remote), followed), wanted, "{settings:?}");
    }
    let found = effect(&[(host, "A: 1"), (team, "")], remote);
    assert_eq!(sent(&found, followed), [""; 0]);
    assert_eq!(
        sent(&found, "https://git.example.com/shared/y.git"),
        ["1"],
        "a submodule elsewhere on the host"
    );
}

#[test]
fn the_longest_instead_of_wins() {
    let rules = [
        ("url.https://mirror/.insteadOf", "https://git.example.com/"),
        ("url.git@example.com:.insteadof", "https://git.example.com/team/"),
    ];
    assert_eq!(effect(&rules, "https://git.example.com/team/x").remote, "git@example.com:x");
    assert_eq!(effect(&rules, "https://git.example.com/x").remote, "https://mirror/x");
    assert_eq!(effect(&rules, "https://elsewhere/x").remote, "https://elsewhere/x");
    let alike = [("url.https://a/.insteadOf", "x:"), ("url.https://b/.insteadOf", "x:")];
    assert_eq!(effect(&alike, "x:foo").remote, "https://a/foo");
    let of_others = effect(&alike, "https://elsewhere/x").instead_of;
    assert_eq!(of_others.rewritten("x:foo"), "https://a/foo", "a submodule");
    let found = effect(&[("url.https://a/.pushInsteadOf", "x:"), ("url.insteadOf", "x:")], "x:foo");
    assert_eq!(found.remote, "x:foo");
    let without_base = found.warnings(true).last().unwrap();
    assert_eq!(without_base, "git's url.insteadOf has no effect here: it is url.BASE.insteadOf");
}

#[test]
fn what_is_no_setting_is_named_without_its_value() {
    for (key, value) in [
        ("nonsense", "s3cret"),
        ("http.sslVerify", "s3cret"),
        ("http.extraHeader", "s3cret"),
        (".x", "s3cret"),
    ] {
        let entry = Entry { key: key.to_owned(), value: value.to_owned() };
        assert!(!format!("{entry:?}").contains("s3cret"), "{entry:?}");
        let error = apply(&[entry], "https://h/x").unwrap_err().to_string();
        assert!(error.contains(key) && !error.contains("s3cret"), "{error}");
    }
}
