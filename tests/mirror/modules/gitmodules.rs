//! What `.gitmodules` says of a tree's submodules, and of paths that are none.

use super::*;

/// git runs with what is said of submodules, and ignores the rest of the file.
#[test]
fn what_git_ignores_refuses_no_revision() {
    let family = Family::new(&["sub", "other"]);
    let sub = family.commit("sub", &Files::new().file("s", "x"));
    let remote = &family.bench.world.remote;
    let mut mirror = family.bench.open();
    let good = declared(&[("sub", "../sub")]);
    let section = |name: &str, path: &str| format!("[submodule \"{name}\"]\npath = {path}\nurl = /x\n");
    for (text, has_submodule) in [
        (section("../b", "b").into_bytes(), false),
        (section("b", "../b").into_bytes(), false),
        (section("a", "a").repeat(2).replacen("\"a\"", "\"b\"", 1).into_bytes(), false),
        (b"# F\xfcr\n".to_vec(), false),
        (format!("{good}{}", section("../b", "b")).into_bytes(), true),
        (format!("{good}{}", section("../b", "sub")).into_bytes(), true),
        (format!("{}{good}", section("b", "sub")).into_bytes(), true),
        (format!("{good}{}", section("b", "/b")).into_bytes(), true),
        (format!("{good}{}", section(&"b".repeat(300), "b")).into_bytes(), true),
        ([good.as_bytes(), b"; \xfc\n[submodule \"\xfc\"]\npath = \xfc\n"].concat(), true),
        (good.replace("[submodule \"sub\"]", "[submodule.sub]").into_bytes(), true),
        (good.replace("../sub", "../other/../sub").into_bytes(), true),
    ] {
        let shown = String::from_utf8_lossy(&text).into_owned();
        let mut files = Files::new().file("f", "top").file(".gitmodules", text);
        if has_submodule {
            files.0.insert("sub".to_owned(), ("160000", sub.clone().into()));
        }
        remote.commit(&files);
        let at = update(&mut mirror, &[]);
        let expected = if has_submodule { "f=top sub/s=x" } else { "f=top" };
        assert_eq!(family.shown(&mirror, at), expected, "{shown}");
    }
}

#[test]
fn what_cannot_be_followed_is_refused_by_path_and_reason() {
    let family = Family::new(&["sub"]);
    let sub = family.commit("sub", &Files::new().file("s", "x"));
    let remote = &family.bench.world.remote;
    let mut mirror = family.bench.open();
    for (text, expected) in [
        (
            "[submodule \"sub\"]\npath = sub\n".to_owned(),
            "`sub`: as a submodule it cannot be published: `.gitmodules` has no url",
        ),
        ("[submodule \"../x\"]\npath = sub\nurl = ../sub\n".to_owned(), "`.gitmodules`"),
        (declared(&[("sub", "ext::sh -c id")]), "not a remote"),
        (declared(&[("sub", "ftp://example.com/x")]), "not a remote"),
        (declared(&[("sub", "https://evil.example/x")]), "\"evil.example\" is not among the hosts"),
        (declared(&[("sub", "../../../../../../../../../x")]), "climbs out"),
        (declared(&[("sub", "x/y")]), "must be absolute"),
    ] {
        let mut files = Files::new().file(".gitmodules", text.clone());
        files.0.insert("sub".to_owned(), ("160000", sub.clone().into()));
        remote.commit(&files);
        let said = refusal(&mut mirror);
        assert!(said.contains(expected), "{text:?}: {said}");
    }
    // Without any entry the fetch has nothing to do, and the payload says so, as `git submodule update` does.
    let mut files = Files::new();
    files.0.insert("sub".to_owned(), ("160000", sub.clone().into()));
    remote.commit(&files);
    let at = update(&mut mirror, &[]);
    let error = mirror.objects().payload(at, &Selection::default()).unwrap_err();
    assert!(matches!(&error, Error::Refused(refusal) if refusal.path == "sub"), "{error}");
    assert!(error.hints().iter().any(|hint| hint.contains("--submodules=off")));
    // git skips these.
    let text = "[submodule \"sub\"]\npath = sub\nurl = ../sub\nupdate = none\n";
    let mut files = Files::new().file(".gitmodules", text);
    files.0.insert("sub".to_owned(), ("160000", sub.into()));
    remote.commit(&files);
    let at = update(&mut mirror, &[]);
    assert_eq!(family.shown(&mirror, at), "sub=/");
}

/// git once ran it, and its author is the commit's.
#[test]
fn an_update_command_of_a_submodule_is_not_run() {
    let family = Family::new(&["sub"]);
    let sub = family.commit("sub", &Files::new().file("s", "x"));
    let ran = family.bench.world.dir().join("ran");
    let text = declared(&[("sub", "../sub")]) + &format!("\tupdate = !touch {}\n", ran.display());
    let mut files = Files::new().file(".gitmodules", text);
    files.0.insert("sub".to_owned(), ("160000", sub.into()));
    family.bench.world.remote.commit(&files);
    let mut mirror = family.bench.open();
    let at = update(&mut mirror, &[]);
    assert_eq!(family.shown(&mirror, at), "sub/s=x");
    assert!(!ran.exists());
}

#[test]
fn a_submodule_behind_a_link_is_none() {
    let family = Family::new(&["sub"]);
    let sub = family.commit("sub", &Files::new().file("s", "x"));
    let mut files = Files::new().link("a", "b").file(".gitmodules", declared(&[("a/sub", "../sub")]));
    files.0.insert("b/sub".to_owned(), ("160000", sub.into()));
    family.bench.world.remote.commit(&files);
    let mut mirror = family.bench.open();
    let at = update(&mut mirror, &[]);
    let error = mirror.objects().payload(at, &Selection::default()).unwrap_err();
    assert!(matches!(&error, Error::Refused(refusal) if refusal.path == "b/sub"), "{error}");
}
