//! Submodules: fetched, nested, moved, removed, refused.

mod bounds;
mod gitmodules;

use std::collections::BTreeMap;

use treeswap::mirror::{Access, Hosts, InsteadOf, Submodules};
use treeswap::secret::{Secret, SecretFrom, quoted};

use super::common::Remote;
use super::common::http_backend::{Canned, Hit, HttpBackend, Kind, base64};
use super::*;

/// A repository with others beside it, in directories of the same parent.
struct Family {
    bench: Bench,
    others: BTreeMap<&'static str, Remote>,
}

impl Family {
    fn new(others: &[&'static str]) -> Self {
        let mut bench = Bench::new("main");
        bench.options.modules =
            Access { submodules: Submodules::Recursive, local: true, ..Access::default() };
        let others =
            others.iter().map(|name| (*name, Remote::create(&bench.world.dir().join(name)))).collect();
        Self { bench, others }
    }

    fn commit(&self, name: &str, files: &Files) -> String {
        self.others[name].commit(files)
    }

    /// What is at a revision, by path: contents; `None` for an empty directory.
    fn content(&self, mirror: &Mirror, at: Revision) -> BTreeMap<String, Option<String>> {
        let objects = mirror.objects();
        let payload = payload(&objects, at);
        let blobs = objects.blobs();
        let mut reader = blobs.reader().unwrap();
        let mut read = |entry: &treeswap::payload::Entry| {
            let mut content = Vec::new();
            if entry.kind == treeswap::payload::Kind::Submodule {
                return None;
            }
            let mut sink = |bytes: &[u8]| {
                content.extend_from_slice(bytes);
                Ok(())
            };
            reader.read(&entry.id, &mut sink).unwrap();
            Some(String::from_utf8_lossy(&content).into_owned())
        };
        let path = |entry| String::from_utf8(payload.path_of(entry)).unwrap();
        payload.entries.iter().map(|entry| (path(entry), read(entry))).collect()
    }

    /// The same without `.gitmodules`, as one line.
    fn shown(&self, mirror: &Mirror, at: Revision) -> String {
        let content = self.content(mirror, at);
        let shown = content.iter().filter(|(path, _)| !path.ends_with(".gitmodules"));
        shown
            .map(|(path, text)| format!("{path}={}", text.as_deref().unwrap_or("/")))
            .collect::<Vec<_>>()
            .join(" ")
    }
}

fn declared(modules: &[(&str, &str)]) -> String {
    modules
        .iter()
        .map(|(path, url)| format!("[submodule \"{path}\"]\n\tpath = {path}\n\turl = {url}\n"))
        .collect()
}

/// Files with submodules: path, URL, commit.
fn with(files: Files, modules: &[(&str, &str, &str)]) -> Files {
    let text = declared(&modules.iter().map(|(path, url, _)| (*path, *url)).collect::<Vec<_>>());
    let mut files = files.file(".gitmodules", text);
    for (path, _, commit) in modules {
        files.0.insert((*path).to_owned(), ("160000", (*commit).into()));
    }
    files
}

fn refusal(mirror: &mut Mirror) -> String {
    match try_update(mirror, &[]) {
        Err(Error::Refused(refusal)) => refusal.to_string(),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn submodules_are_directories_with_their_commits_content_at_every_level() {
    let family = Family::new(&["sub", "deep"]);
    let deep = family.commit("deep", &Files::new().file("d", "deep"));
    let sub = family.commit("sub", &with(Files::new().file("s", "one"), &[("in/deep", "../deep", &deep)]));
    let remote = &family.bench.world.remote;
    remote.commit(&with(Files::new().file("f", "top"), &[("lib/sub", "../sub", &sub)]));
    let mut mirror = family.bench.open();
    let first = update(&mut mirror, &[]);
    assert_eq!(family.shown(&mirror, first), "f=top lib/sub/in/deep/d=deep lib/sub/s=one");
    assert!(mirror.objects().holds(first));

    // Forward and back, and the remotes need not be there for what is held.
    let next = family.commit("sub", &with(Files::new().file("s", "two"), &[("in/deep", "../deep", &deep)]));
    remote.commit(&with(Files::new().file("f", "top"), &[("lib/sub", "../sub", &next)]));
    let second = update(&mut mirror, &[first]);
    assert_eq!(family.shown(&mirror, second), "f=top lib/sub/in/deep/d=deep lib/sub/s=two");
    let received = mirror.complete_pack_bytes();
    remote.commit(&with(Files::new().file("f", "top"), &[("lib/sub", "../sub", &sub)]));
    let away: Vec<_> = family.others.values().map(Remote::away).collect();
    let third = update(&mut mirror, &[second, first]);
    drop(away);
    assert_eq!(family.shown(&mirror, third), "f=top lib/sub/in/deep/d=deep lib/sub/s=one");
    assert!(mirror.complete_pack_bytes() - received < 1_000, "only the new commit of the repository itself");

    // Gone from the tree, and after the next look after the house from the mirror.
    remote.commit(&Files::new().file("f", "alone"));
    let last = update(&mut mirror, &[third]);
    assert_eq!(family.shown(&mirror, last), "f=alone");
    let dir = family.bench.dir().join("modules/lib%2fsub");
    assert!(dir.is_dir());
    mirror.housekeep(&[last, third]).unwrap();
    assert!(dir.is_dir(), "a generation that is kept has it");
    mirror.housekeep(&[last]).unwrap();
    assert!(!dir.exists());
    // And it comes again.
    remote.commit(&with(Files::new(), &[("lib/sub", "../sub", &sub)]));
    let again = update(&mut mirror, &[last]);
    assert_eq!(family.shown(&mirror, again), "lib/sub/in/deep/d=deep lib/sub/s=one");
}

#[test]
fn shallow_means_the_first_level_and_off_none() {
    let family = Family::new(&["sub", "deep"]);
    let deep = family.commit("deep", &Files::new().file("d", "deep"));
    let sub = family.commit("sub", &with(Files::new().file("s", "one"), &[("deep", "../deep", &deep)]));
    family.bench.world.remote.commit(&with(Files::new().file("f", "top"), &[("sub", "../sub", &sub)]));
    for (asked, expected) in [
        (Submodules::Off, "f=top sub=/"),
        (Submodules::First, "f=top sub/deep=/ sub/s=one"),
        (Submodules::Recursive, "f=top sub/deep/d=deep sub/s=one"),
    ] {
        let mut options = family.bench.options.clone();
        options.modules.submodules = asked;
        let mut mirror = Mirror::open(options).unwrap();
        let at = update(&mut mirror, &[]);
        assert_eq!(family.shown(&mirror, at), expected, "{asked:?}");
        let below = family.bench.dir().join("modules/sub/modules");
        assert_eq!(
            below.exists(),
            asked == Submodules::Recursive,
            "{asked:?}: whether the second level was fetched"
        );
    }
}

#[test]
fn each_submodule_has_a_history_as_deep_as_asked() {
    for (depth, commits) in [(Depth::Commits(1), 1), (Depth::Commits(2), 2), (Depth::Full, 3)] {
        let family = Family::new(&["sub"]);
        for text in ["1", "2", "3"] {
            family.commit("sub", &Files::new().file("s", text));
        }
        let sub = family.others["sub"].tip("main").unwrap();
        family.bench.world.remote.commit(&with(Files::new(), &[("sub", "../sub", &sub)]));
        let mut options = family.bench.options.clone();
        options.depth = depth;
        let mut mirror = Mirror::open(options).unwrap();
        update(&mut mirror, &[]);
        let mut command = run::clean("git", family.bench.world.dir());
        command.arg("--git-dir").arg(family.bench.dir().join("modules/sub")).args(["rev-list", &sub]);
        assert_eq!(run::to_end(&mut command).expect_ok("git").stdout.lines().count(), commits);
    }
}

#[test]
fn a_changed_submodule_is_a_small_delta() {
    let family = Family::new(&["sub"]);
    let old = family.commit("sub", &wide());
    let remote = &family.bench.world.remote;
    remote.commit(&with(wide(), &[("sub", "../sub", &old)]));
    let mut mirror = family.bench.open();
    let first = update(&mut mirror, &[]);
    let before = payload(&mirror.objects(), first);
    let new = family.commit("sub", &wide().file("dir3/file31", "new").without("dir4/file41"));
    remote.commit(&with(wide(), &[("sub", "../sub", &new)]));
    let second = update(&mut mirror, &[first]);
    let base = treeswap::mirror::Base { tree: before.tree, entries: before.count(), bytes: before.bytes };
    let delta = mirror.objects().delta(base, second, &Selection::default()).unwrap().unwrap();
    let written: Vec<_> = delta.written.iter().map(|entry| entry.path.escape_ascii().to_string()).collect();
    assert_eq!(written, ["sub/dir3/file31"]);
    let after = payload(&mirror.objects(), second);
    assert_eq!((delta.entries, delta.bytes), (after.count(), after.bytes));
    // From a submodule to plain files of the same names, and back.
    remote.commit(&Files::new().file("sub/dir3/file31", "plain"));
    let third = update(&mut mirror, &[second]);
    let base = treeswap::mirror::Base { tree: after.tree, entries: after.count(), bytes: after.bytes };
    let delta = mirror.objects().delta(base, third, &Selection::default()).unwrap().unwrap();
    assert_eq!((delta.entries, delta.written.len()), (3, 1), "sub, dir3 and the file");
}

#[test]
fn patterns_take_a_submodule_as_a_whole_or_not_at_all() {
    let family = Family::new(&["sub"]);
    let sub = family.commit("sub", &Files::new().file("a/b", "1").file("c", "2"));
    let modules = [("in/sub", "../sub", &*sub), ("out/sub", "../sub", &*sub)];
    family.bench.world.remote.commit(&with(Files::new().file("in/f", "x").file("g", "y"), &modules));
    let mut mirror = family.bench.open();
    let at = update(&mut mirror, &[]);
    let selection = Selection { sparse: Some("/in/\n!c\n".into()), ..Selection::default() };
    let payload = mirror.objects().payload(at, &selection).unwrap();
    let paths: Vec<_> =
        payload.entries.iter().map(|entry| String::from_utf8(payload.path_of(entry)).unwrap()).collect();
    assert_eq!(paths, ["in/f", "in/sub/c", "in/sub/a/b"]);
}

#[test]
fn a_submodule_that_cannot_be_fetched_is_named_and_comes_later() {
    let family = Family::new(&["sub", "deep"]);
    let deep = family.commit("deep", &Files::new().file("d", "deep"));
    let sub = family.commit("sub", &with(Files::new().file("s", "one"), &[("in", "../deep", &deep)]));
    family.bench.world.remote.commit(&with(Files::new(), &[("sub", "../sub", &sub)]));
    let mut mirror = family.bench.open();
    let away = family.others["deep"].away();
    let error = try_update(&mut mirror, &[]).unwrap_err();
    let Error::Module { path, url, .. } = &error else { panic!("{error:?}") };
    assert_eq!(path, "sub/in");
    assert!(url.ends_with("/deep"), "{error}");
    drop(away);
    let at = update(&mut mirror, &[]);
    assert_eq!(family.shown(&mirror, at), "sub/in/d=deep sub/s=one");
    // A commit that its repository does not have.
    family.bench.world.remote.commit(&with(Files::new(), &[("sub", "../sub", &"7".repeat(40))]));
    let error = try_update(&mut mirror, &[at]).unwrap_err();
    assert!(matches!(&error, Error::Module { path, .. } if path == "sub"), "{error:?}");
    assert_eq!(family.shown(&mirror, at), "sub/in/d=deep sub/s=one", "nothing is lost");
}

#[test]
fn repositories_on_this_machine_need_leave_wherever_the_first_one_is() {
    let family = Family::new(&["sub"]);
    let mut options = family.bench.options.clone();
    options.modules.hosts = Hosts::Any;
    options.modules.local = false;
    let sub = family.commit("sub", &Files::new().file("s", "x"));
    let url = format!("file://{}", family.others["sub"].path.display());
    family.bench.world.remote.commit(&with(Files::new(), &[("sub", &url, &sub)]));
    let server = HttpBackend::start(family.bench.world.dir(), Kind::default());
    let here = family.bench.world.remote.path.display().to_string();
    for remote in [server.url("remote"), format!("file://{here}"), here] {
        options.wire.remote = remote;
        let said = refusal(&mut Mirror::open(options.clone()).unwrap());
        assert!(said.contains("--git-config=protocol.file.allow:always"), "{said}");
    }
    options.modules.local = true;
    let mut mirror = Mirror::open(options).unwrap();
    let at = update(&mut mirror, &[]);
    assert_eq!(family.shown(&mirror, at), "sub/s=x");
}

#[test]
fn urls_are_rewritten_for_submodules_too_and_relative_ones_after_they_are_resolved() {
    let family = Family::new(&["sub", "deep"]);
    let deep = family.commit("deep", &Files::new().file("d", "deep"));
    let sub = family.commit("sub", &with(Files::new().file("s", "x"), &[("in", "../deep", &deep)]));
    let modules = [("a", "../../other/sub", &*sub), ("b", "hub:other/sub", &*sub)];
    family.bench.world.remote.commit(&with(Files::new(), &modules));
    let here = format!("{}/", family.bench.world.dir().display());
    let mut options = family.bench.options.clone();
    options.modules.instead_of = InsteadOf::new([("hub:other/".to_owned(), here)]);
    options.modules.written = Some(Secret::holder("hub:team/remote"));
    let mut mirror = Mirror::open(options).unwrap();
    let at = update(&mut mirror, &[]);
    assert_eq!(family.shown(&mirror, at), "a/in/d=deep a/s=x b/in/d=deep b/s=x");
}

#[test]
fn each_server_gets_its_own_password_and_no_other() {
    let family = Family::new(&["sub", "deep"]);
    let start = |password: &str| {
        let auth = Some(("bob".to_owned(), password.to_owned()));
        HttpBackend::start(family.bench.world.dir(), Kind { auth, ..Kind::default() })
    };
    let (one, two, three) = (start("first"), start("second"), start("third"));
    let deep = family.commit("deep", &Files::new().file("d", "deep"));
    let sub = with(Files::new().file("s", "x"), &[("in", &three.url("deep"), &deep)]);
    let sub = family.commit("sub", &sub);
    family.bench.world.remote.commit(&with(Files::new(), &[("sub", &two.url("sub"), &sub)]));
    let credential = |url: Option<String>, password: &str| wire::Credential {
        url,
        username: Some("bob".into()),
        password: SecretFrom::Value(Secret::new(password)),
    };
    let mut options = family.bench.options.clone();
    options.wire.remote = one.url("remote");
    options.wire.credentials = vec![
        credential(None, "first"),
        credential(Some(two.url("")), "second"),
        credential(Some(three.url("")), "third"),
    ];
    let mut mirror = Mirror::open(options.clone()).unwrap();
    let at = update(&mut mirror, &[]);
    assert_eq!(family.shown(&mirror, at), "sub/in/d=deep sub/s=x");
    drop(mirror);
    std::fs::remove_dir_all(family.bench.dir()).unwrap();

    // The first server's password, which was given for no URL, is not tried elsewhere.
    options.wire.credentials.truncate(1);
    two.forget();
    let mut mirror = Mirror::open(options).unwrap();
    let error = try_update(&mut mirror, &[]).unwrap_err();
    assert!(matches!(&error, Error::Module { path, .. } if path == "sub"), "{error:?}");
    assert!(two.hits().iter().all(|hit| hit.header("authorization").is_none()));
}

/// The submodule's own, too, whose URL is relative to that with the password.
#[test]
fn a_password_that_an_author_wrote_is_sent_and_is_no_secret_of_ours() {
    let family = Family::new(&["sub", "deep"]);
    let (user, password) = ("user-of-an-author", "kV6x-wQ2z-of-an-author");
    let auth = Some((user.to_owned(), password.to_owned()));
    let server = HttpBackend::start(family.bench.world.dir(), Kind { auth, ..Kind::default() });
    let deep = family.commit("deep", &Files::new().file("d", "deep"));
    let sub = family.commit("sub", &with(Files::new().file("s", "x"), &[("in", "../deep", &deep)]));
    let url = server.url("sub").replacen("://", &format!("://{user}:{password}@"), 1);
    family.bench.world.remote.commit(&with(Files::new(), &[("sub", &url, &sub)]));
    let mut options = family.bench.options.clone();
    options.modules.hosts = Hosts::Any;
    let mut mirror = Mirror::open(options).unwrap();
    let at = update(&mut mirror, &[]);
    assert_eq!(family.shown(&mirror, at), "sub/in/d=deep sub/s=x");
    for text in [user, password, &*base64(format!("{user}:{password}").as_bytes())] {
        assert_eq!(quoted(text), text);
    }
}

#[test]
fn a_submodule_that_names_a_tag_is_refused_with_its_path() {
    let family = Family::new(&["sub"]);
    let sub = &family.others["sub"];
    sub.commit(&Files::new().file("s", "x"));
    sub.git(&["tag", "-a", "-m", "x", "v1", "main"]);
    let tag = sub.tip("refs/tags/v1").unwrap();
    family.bench.world.remote.commit(&with(Files::new(), &[("lib/sub", "../sub", &tag)]));
    let mut mirror = family.bench.open();
    let at = update(&mut mirror, &[]);
    let error = mirror.objects().payload(at, &Selection::default()).unwrap_err();
    assert!(matches!(&error, Error::Refused(refusal) if refusal.path == "lib/sub"), "{error:?}");
    assert!(error.to_string().contains("it names a tag"), "{error}");
}

#[test]
fn an_askpass_url_is_asked_for_a_submodule_at_each_attempt() {
    let family = Family::new(&["sub"]);
    let dir = family.bench.world.dir();
    let auth = Some(("bob".to_owned(), "s3cret".to_owned()));
    let server = HttpBackend::start(dir, Kind { auth, ..Kind::default() });
    let hook = |_: &Hit| Some(Canned::status(200, "username=bob\npassword=s3cret\n"));
    let pass = HttpBackend::start(dir, Kind { hook: Some(Box::new(hook)), ..Kind::default() });
    let mut options = family.bench.options.clone();
    options.wire.remote = server.url("remote");
    options.wire.issuance = Some(wire::Issuance::Askpass(pass.url("askpass").parse().unwrap()));
    let mut mirror = Mirror::open(options).unwrap();
    for text in ["1", "2"] {
        let sub = family.commit("sub", &Files::new().file("s", text));
        family.bench.world.remote.commit(&with(Files::new(), &[("sub", "../sub", &sub)]));
        pass.forget();
        let at = update(&mut mirror, &[]);
        assert_eq!(family.shown(&mirror, at), format!("sub/s={text}"));
        assert_eq!(pass.hits().len(), 2, "for the repository, and for its submodule");
    }
}

#[test]
fn the_server_of_a_new_url_does_not_learn_what_came_from_the_old_one() {
    let family = Family::new(&["old", "new"]);
    let start = || HttpBackend::start(family.bench.world.dir(), Kind::default());
    let (one, two) = (start(), start());
    let mut options = family.bench.options.clone();
    options.wire.remote = one.url("remote");
    let remote = &family.bench.world.remote;
    let mut mirror = Mirror::open(options.clone()).unwrap();
    let mut held = Vec::new();
    let mut commits = Vec::new();
    family.commit("old", &Files::new().file("s", "0"));
    for (name, text) in [("old", "1"), ("new", "2"), ("new", "3")] {
        let server = if name == "old" { &one } else { &two };
        let sub = family.commit(name, &Files::new().file("s", text));
        remote.commit(&with(Files::new(), &[("sub", &server.url(name), &sub)]));
        held.insert(0, update(&mut mirror, &held));
        commits.push(sub);
        if text == "2" {
            // Also across a restart.
            drop(mirror);
            mirror = Mirror::open(options.clone()).unwrap();
        }
    }
    let learns = |commit: &String| {
        two.hits().iter().any(|hit| hit.body.windows(commit.len()).any(|part| part == commit.as_bytes()))
    };
    assert!(!learns(&commits[0]), "it came from another server");
    let last = two.hits().pop().unwrap().body;
    assert!(String::from_utf8_lossy(&last).contains(&*commits[1]), "its own commits need not be sent again");
    for (at, text) in held.iter().rev().zip(["1", "2", "3"]) {
        assert_eq!(family.shown(&mirror, *at), format!("sub/s={text}"), "what is published stays readable");
    }
    let sub = family.bench.dir().join("modules/sub");
    for commit in &commits {
        let mut git = run::clean("git", family.bench.world.dir());
        let history =
            run::to_end(git.arg("--git-dir").arg(&sub).args(["rev-list", commit.as_str()])).expect_ok("git");
        assert_eq!(history.stdout.lines().count(), 1, "the boundary of each is known to git");
    }
}

#[test]
fn in_git_syncs_layout_submodules_keep_the_commits_of_retained_generations() {
    let mut family = Family::new(&["sub"]);
    family.bench.options.worktrees = true;
    family.bench.options.dir = family.bench.world.dir().join("root/.git");
    family.bench.options.max_packs = 1;
    let mut mirror = family.bench.open();
    let mut held = Vec::new();
    for n in 0..6 {
        // While there is a reader no pack is removed, so that soon there are too many.
        let reader = (n < 4).then(|| mirror.objects().blobs());
        let sub = family.commit("sub", &Files::new().file("s", n.to_string()));
        family.bench.world.remote.commit(&with(Files::new(), &[("sub", "../sub", &sub)]));
        held.insert(0, update(&mut mirror, &held));
        mirror.housekeep(&held).unwrap();
        drop(reader);
    }
    for (at, n) in held.iter().rev().zip(0..) {
        assert_eq!(family.shown(&mirror, *at), format!("sub/s={n}"));
    }
}
