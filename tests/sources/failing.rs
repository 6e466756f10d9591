//! One source that fails, for whatever reason: what it leaves of the others, and how it comes back.

use super::*;

#[test]
fn a_source_that_fails_stays_where_it_was_and_the_others_go_on() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    one.commit(&Files::new().file("f", "1"));
    two.commit(&Files::new().file("f", "1"));
    let sources = [source("one", &one, ", to: one"), source("two", &two, ", to: two")];
    many.list(&sources);
    let sidecar = many.sidecar(&[]);
    many.assert_shows(&[("one/f", "1"), ("two/f", "1")]);
    {
        let _away = one.away();
        said(&sidecar.process, "source one is not at the newest commit of its ref");
        two.commit(&Files::new().file("f", "2"));
        many.assert_shows(&[("one/f", "1"), ("two/f", "2")]);
        let rows = rows(&sidecar);
        assert!(rows[0]["error"].is_string() && rows[0]["failing_since"].is_string(), "{rows:?}");
        assert_eq!(rows[1].get("error"), None);
    }
    one.commit(&Files::new().file("f", "3"));
    many.assert_shows(&[("one/f", "3"), ("two/f", "2")]);
    eventually(30, "it is well again", || rows(&sidecar)[0].get("error").is_none().then_some(()));
    let shown = to_end(&mut many.world.treeswap(&["status".as_ref(), many.world.root.as_os_str()])).stdout;
    assert!(shown.contains("source        one ") && shown.contains(" in two"), "{shown}");
    assert_eq!(sidecar.metric("treeswap_source_failing"), Some(0.0));
    // A revision that is refused is the failure of its source alone.
    one.commit(&Files::new().file("f", "4").link("out", "../two/f"));
    two.commit(&Files::new().file("f", "5"));
    many.assert_shows(&[("one/f", "3"), ("two/f", "5")]);
    said(&sidecar.process, "which is not inside what its own source has placed");
    eventually(30, "it is counted", || {
        sidecar.metric("treeswap_source_failing").filter(|count| *count == 1.0)
    });
    let page = sidecar.request_with("GET", "/", "Accept: text/html\r\n").unwrap_or_default();
    let page = if page.contains("The published generation does not have the newest commit of one.") {
        page
    } else {
        sidecar.request_with("GET", "/status", "Accept: text/html\r\n").unwrap()
    };
    assert!(
        page.contains("The published generation does not have the newest commit of one.")
            && page.contains("<h2"),
        "{page}"
    );
    two.commit(&Files::new().file("f", "6"));
    many.assert_shows(&[("one/f", "3"), ("two/f", "6")]);
    one.commit(&Files::new().file("f", "7"));
    many.assert_shows(&[("one/f", "7"), ("two/f", "6")]);
    // Where it is asked for, nothing moves without all.
    many.list_with("on-failure: hold\n", &sources);
    let _away = one.away();
    two.commit(&Files::new().file("f", "8"));
    eventually(30, "it fails", || {
        (sidecar.metric("treeswap_sync_consecutive_failures")? > 0.0).then_some(())
    });
    sidecar.idle(3);
    many.assert_shows(&[("one/f", "7"), ("two/f", "6")]);
}

#[test]
fn what_a_source_is_called_decides_what_stays_of_it() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    one.commit(&Files::new().file("f", "1"));
    two.commit(&Files::new().file("g", "1"));
    let one_at = source("one", &one, ", to: one");
    many.list(&[one_at.clone(), source("two", &two, ", to: two")]);
    many.once().expect_ok("both");
    // Another way to its repository that does not work, or another repository: its files stay.
    for repo in ["/nowhere/at/all".to_owned(), format!("file://{}.gone", two.path.display())] {
        many.list(&[one_at.clone(), format!("name: two, repo: '{repo}', ref: main, to: two")]);
        assert_eq!(many.once().status.code(), Some(3), "{repo}");
        many.assert_shows(&[("one/f", "1"), ("two/g", "1")]);
        one.commit(&Files::new().file("f", "1").file("new", "x"));
        assert_eq!(many.once().status.code(), Some(3), "{repo}");
        many.assert_shows(&[("one/f", "1"), ("one/new", "x"), ("two/g", "1")]);
        one.commit(&Files::new().file("f", "1"));
        assert_eq!(many.once().status.code(), Some(3), "{repo}");
    }
}

#[test]
fn a_mirror_that_is_lost_is_fetched_again_and_garbage_goes() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    one.commit(&Files::new().file("f", "1"));
    two.commit(&Files::new().file("g", "1").file("d/keep", "1"));
    let of_two = ", to: two, sparse: [\"/*\", \"!/d/drop\"]";
    many.list(&[source("one", &one, ", to: one"), source("two", &two, of_two)]);
    let sidecar = many.sidecar(&["--grace=0s", "--git-gc=always"]);
    many.assert_shows(&[("one/f", "1"), ("two/g", "1"), ("two/d/keep", "1")]);
    let mirrors = many.world.root.join("..treeswap/mirrors");
    for n in 2..8 {
        // A tree that is filtered back to what it was before is ours to keep, whatever becomes of the commit before.
        two.commit(&Files::new().file("g", n.to_string()).file("d/keep", "1").file("d/drop", n.to_string()));
        many.assert_shows(&[("one/f", "1"), ("two/g", &n.to_string()), ("two/d/keep", "1")]);
        sidecar.idle(2);
    }
    take_mirrors_away(&many);
    one.commit(&Files::new().file("f", "9"));
    many.assert_shows(&[("one/f", "9"), ("two/g", "7"), ("two/d/keep", "1")]);
    let loose = || {
        let objects = std::fs::read_dir(mirrors.join("composed/objects")).unwrap().flatten();
        let dirs = objects.filter(|entry| entry.file_name().len() == 2);
        dirs.map(|dir| std::fs::read_dir(dir.path()).unwrap().count()).sum::<usize>()
    };
    eventually(30, "what no generation needs goes", || (loose() < 15).then_some(()));
}

/// Takes the mirrors of all sources away at once, so that none is recreated while it is being removed.
fn take_mirrors_away(many: &SourcesWorld) {
    let found = std::fs::read_dir(many.world.root.join("..treeswap/mirrors")).unwrap();
    let found: Vec<_> = found.flatten().filter(|mirror| mirror.file_name() != "composed").collect();
    assert_eq!(found.len(), 2);
    for mirror in found {
        std::fs::rename(mirror.path(), many.world.dir().join(mirror.file_name())).unwrap();
    }
}

/// Its ref names a commit that is refused, so that its new mirror gets the published one by its id.
#[test]
fn a_source_that_is_held_back_when_its_mirror_is_lost_keeps_its_commit_and_stops_no_other() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    one.commit(&Files::new().file("f", "1"));
    two.commit(&Files::new().file("dir/g", "1"));
    many.list(&[source("one", &one, ", to: one"), source("two", &two, ", path: dir, to: two")]);
    let sidecar = many.sidecar(&[]);
    many.assert_shows(&[("one/f", "1"), ("two/g", "1")]);
    two.commit(&Files::new().file("other", "2"));
    said(&sidecar.process, "it is the `path` of the source, and the revision does not have it");
    take_mirrors_away(&many);
    one.commit(&Files::new().file("f", "2"));
    many.assert_shows(&[("one/f", "2"), ("two/g", "1")]);
    two.commit(&Files::new().file("dir/g", "3"));
    many.assert_shows(&[("one/f", "2"), ("two/g", "3")]);
}

/// The same with a commit that is not even fetched.
#[test]
fn a_source_whose_commit_is_too_large_keeps_its_published_one_when_its_mirror_is_lost() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    one.commit(&Files::new().file("f", "1"));
    two.commit(&Files::new().file("g", "1"));
    many.list(&[source("one", &one, ", to: one"), source("two", &two, ", to: two")]);
    let sidecar = many.sidecar(&["--max-fetch-bytes=100Ki"]);
    many.assert_shows(&[("one/f", "1"), ("two/g", "1")]);
    two.commit(&Files::new().file("g", crate::common::noise(1, 400_000)));
    said(&sidecar.process, "exceeds 100 KiB (--max-fetch-bytes)");
    take_mirrors_away(&many);
    one.commit(&Files::new().file("f", "2"));
    many.assert_shows(&[("one/f", "2"), ("two/g", "1")]);
    two.commit(&Files::new().file("g", "3"));
    many.assert_shows(&[("one/f", "2"), ("two/g", "3")]);
}

#[test]
fn what_could_not_be_written_is_no_fault_of_a_commit() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    one.commit(&Files::new().file("f", "1"));
    two.commit(&Files::new().file("g", "1").file("drop", "1"));
    let chosen = ", to: two, sparse: [\"/*\", \"!/drop\"]";
    many.list(&[source("one", &one, ", to: one"), source("two", &two, chosen)]);
    let sidecar = many.sidecar(&[]);
    many.assert_shows(&[("one/f", "1"), ("two/g", "1")]);
    // No tree can be written: a file is where its directory would be.
    let objects = many.world.root.join("..treeswap/mirrors/composed/objects");
    let dirs = (0..256).map(|first| objects.join(format!("{first:02x}")));
    let planted: Vec<_> = dirs.filter(|dir| !dir.exists()).collect();
    planted.iter().for_each(|dir| std::fs::write(dir, "").unwrap());
    two.commit(&Files::new().file("g", "2").file("drop", "2"));
    said(&sidecar.process, "write a tree");
    planted.iter().for_each(|dir| std::fs::remove_file(dir).unwrap());
    many.assert_shows(&[("one/f", "1"), ("two/g", "2")]);
}

#[test]
fn a_mirror_that_cannot_be_opened_is_the_failure_of_its_source() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    one.commit(&Files::new().file("f", "1"));
    two.commit(&Files::new().file("g", "1"));
    many.list(&[source("one", &one, ", to: one"), source("two", &two, ", to: two")]);
    many.once().expect_ok("both");
    let mirrors = std::fs::read_dir(many.world.root.join("..treeswap/mirrors")).unwrap().flatten();
    let marks = mirrors.map(|entry| entry.path().join("treeswap")).filter(|mark| mark.exists());
    let of_two = marks.into_iter().find(|mark| {
        let refs = std::fs::read_to_string(mark.parent().unwrap().join("refs/treeswap/tip")).unwrap();
        refs.trim() == two.tip("main").unwrap()
    });
    std::fs::write(of_two.unwrap(), "something else").unwrap();
    one.commit(&Files::new().file("f", "2"));
    let ran = many.once();
    assert_eq!(ran.status.code(), Some(3), "{}", ran.stderr);
    many.assert_shows(&[("one/f", "2"), ("two/g", "1")]);
}

#[test]
fn an_optional_source_that_is_refused_holds_no_first_publication_up() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    one.commit(&Files::new().file("f", "1"));
    two.commit(&Files::new().link("bad", "/etc/passwd").file("g", "1"));
    let one_at = source("one", &one, ", to: one");
    for two_at in [", to: two, optional: true", ", path: nowhere, to: two, optional: true"] {
        let _ = std::fs::remove_dir_all(&many.world.root);
        many.list(&[one_at.clone(), source("two", &two, two_at)]);
        assert_eq!(many.once().status.code(), Some(3), "{two_at}");
        many.assert_shows(&[("one/f", "1")]);
    }
    let _ = std::fs::remove_dir_all(&many.world.root);
    many.list(&[one_at, source("two", &two, ", to: two")]);
    let ran = many.once().expect_failure("it is not optional");
    assert!(ran.stderr.contains("source two: ") && ran.stderr.contains("two/bad"), "{}", ran.stderr);
}

/// The set itself is the same, and was refused.
#[test]
fn a_refused_first_set_is_published_without_the_cause_once_the_file_says_that_it_is_optional() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    one.commit(&Files::new().file("f", "1"));
    two.commit(&Files::new().link("bad", "/etc/passwd").file("g", "1"));
    let one_at = source("one", &one, ", to: one");
    many.list(&[one_at.clone(), source("two", &two, ", to: two")]);
    let sidecar = many.sidecar(&[]);
    said(&sidecar.process, "two/bad");
    sidecar.idle(3);
    assert!(!many.world.root.join("..data").exists());
    many.list(&[one_at, source("two", &two, ", to: two, optional: true")]);
    many.assert_shows(&[("one/f", "1")]);
}

/// The generation's record still names it, so that its files do not disappear.
#[test]
fn an_optional_source_that_is_served_is_needed_when_the_mirrors_are_lost() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    one.commit(&Files::new().file("f", "1"));
    two.commit(&Files::new().file("g", "1"));
    let one_at = source("one", &one, ", to: one");
    let lose_mirrors = || std::fs::remove_dir_all(many.world.root.join("..treeswap/mirrors")).unwrap();
    many.list(&[one_at.clone(), source("two", &two, ", to: two, optional: true")]);
    many.once().expect_ok("both");
    lose_mirrors();
    one.commit(&Files::new().file("f", "2"));
    let away = two.away();
    let ran = many.once().expect_failure("one is not there");
    assert!(ran.stderr.contains("source two: ") && ran.stderr.contains("remove it from"), "{}", ran.stderr);
    many.assert_shows(&[("one/f", "1"), ("two/g", "1")]);
    drop(away);
    many.once().expect_ok("both are there");
    many.assert_shows(&[("one/f", "2"), ("two/g", "1")]);
    lose_mirrors();
    let _away = two.away();
    many.list(std::slice::from_ref(&one_at));
    many.once().expect_ok("it is removed from the file");
    many.assert_shows(&[("one/f", "2")]);
}

#[test]
fn a_first_publication_of_nothing_but_failing_optional_sources_fails() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    one.commit(&Files::new().link("bad", "/etc/passwd"));
    two.commit(&Files::new().file("f", "1"));
    let nowhere = source("two", &two, ", path: nowhere, to: two, optional: true");
    many.list(&[source("one", &one, ", to: one, optional: true"), nowhere.clone()]);
    let ran = many.once();
    assert_eq!(ran.status.code(), Some(1), "{}", ran.stderr);
    assert!(!many.world.root.join("..data").exists(), "readers would start on an empty directory");
    one.commit(&Files::new().file("f", "1"));
    assert_eq!(many.once().status.code(), Some(3));
    many.assert_shows(&[("one/f", "1")]);
}

#[test]
fn two_that_collide_are_both_named_until_one_is_mended() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    one.commit(&Files::new().file("f", "1"));
    two.commit(&Files::new().file("g", "1"));
    many.list(&[source("one", &one, ", to: z"), source("two", &two, ", to: z")]);
    let sidecar = many.sidecar(&[]);
    many.assert_shows(&[("z/f", "1"), ("z/g", "1")]);
    two.commit(&Files::new().file("f", "2"));
    let words = "sources one and two both have `z/f`";
    said(&sidecar.process, words);
    eventually(30, "both are named", || {
        let rows = rows(&sidecar);
        rows.iter().all(|row| row["error"].as_str().is_some_and(|error| error.contains(words))).then_some(())
    });
    many.assert_shows(&[("z/f", "1"), ("z/g", "1")]);
    two.commit(&Files::new().file("g", "3"));
    many.assert_shows(&[("z/f", "1"), ("z/g", "3")]);
    eventually(30, "all is well", || {
        rows(&sidecar).iter().all(|row| row.get("error").is_none()).then_some(())
    });
}

#[test]
fn a_remote_that_hangs_holds_no_other_up() {
    let many = SourcesWorld::new();
    let one = many.remote("one");
    one.commit(&Files::new().file("f", "1"));
    let (address, _held) = common::swallowing();
    let list = |one: &Remote| {
        let hangs = format!("name: hangs, repo: http://{address}/x.git, to: hangs, optional: true");
        [source("one", one, ", to: one"), hangs]
    };
    many.list(&[source("one", &one, ", to: one")]);
    let sidecar = many.sidecar(&["--connect-timeout=20s", "--idle-timeout=20s"]);
    many.assert_shows(&[("one/f", "1")]);
    many.list(&list(&one));
    eventually(30, "it is asked", || (rows(&sidecar).len() == 2).then_some(()));
    eventually(30, "it is late", || rows(&sidecar).get(1)?["late"].as_bool().filter(|late| *late));
    // It is not known to be at the newest commit of its ref.
    let unanswered = || (rows(&sidecar).get(1)?["error"] == "its remote has not answered yet").then_some(());
    eventually(30, "it is said", unanswered);
    let began = Instant::now();
    for n in 2..7 {
        one.commit(&Files::new().file("f", n.to_string()));
        many.assert_shows(&[("one/f", &n.to_string())]);
    }
    let took = began.elapsed();
    assert!(took < common::allowed(Duration::from_secs(10)), "five commits took {took:?}");
}

#[test]
fn the_first_set_waits_for_all_but_what_is_optional() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    one.commit(&Files::new().file("f", "1"));
    many.list(&[source("one", &one, ", to: one"), source("two", &two, ", to: two")]);
    let ran = many.once().expect_failure("a ref that is not there");
    assert!(ran.stderr.contains("source two: ") && ran.stderr.contains("main"), "{}", ran.stderr);
    assert!(!many.world.root.join("..data").exists());
    many.list(&[source("one", &one, ", to: one"), source("two", &two, ", to: two, optional: true")]);
    assert_eq!(many.once().status.code(), Some(3), "it is optional, and said to be absent");
    many.assert_shows(&[("one/f", "1")]);
    two.commit(&Files::new().file("g", "2"));
    many.once().expect_ok("it is there");
    many.assert_shows(&[("one/f", "1"), ("two/g", "2")]);
}

/// None of them can be held back, as at later publications.
#[test]
fn a_first_set_that_is_refused_as_a_whole_names_the_sources_that_are_the_cause() {
    let of = |count| (0..count).fold(Files::new(), |files, at| files.file(format!("f{at}"), "x"));
    let large = "is refused: the tree has more than 50 files and directories";
    let link = Files::new().link("bad", "/etc/passwd");
    for (files, places, names, words) in [
        ([of(1), of(60)], ["one", "two"], "two", large),
        ([of(60), of(1)], ["one", "two"], "one", large),
        ([of(30), of(30)], ["one", "two"], "one or two", large),
        ([of(1), link], ["z", "z"], "two", "is refused because of `z/bad`: it is a symbolic link"),
    ] {
        let many = SourcesWorld::new();
        let remotes = ["one", "two"].map(|name| many.remote(name));
        let commits = [0, 1].map(|at| remotes[at].commit(&files[at]));
        let listed =
            [0, 1].map(|at| source(["one", "two"][at], &remotes[at], &format!(", to: {}", places[at])));
        many.list(&listed);
        let ran = to_end(&mut many.sync(&["--one-time", "--max-tree-entries=50"]));
        let ran = ran.expect_failure("it is refused");
        let at = ["one", "two"].iter().position(|name| *name == names);
        let revision = at.map(|at| &commits[at][..12]).unwrap_or_default();
        let line = format!("source {names}: revision {revision}");
        let complaint = ran.complaint();
        assert!(complaint.contains(&line) && complaint.contains(words), "{line}: {}", ran.stderr);
        assert!(ran.stderr.contains("\nhint: push a commit "), "{}", ran.stderr);
        assert!(!many.world.root.join("..data").exists());
    }
}

/// The attempts after the first one find it refused as soon as they have asked the remotes.
#[test]
fn a_first_set_that_is_refused_is_so_in_the_row_of_its_source_and_counts_where_it_was_found() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    one.commit(&Files::new().file("f", "1"));
    two.commit(&(0..60).fold(Files::new(), |files, at| files.file(format!("f{at}"), "x")));
    many.list(&[source("one", &one, ", to: one"), source("two", &two, ", to: two")]);
    let sidecar = many.sidecar(&["--max-tree-entries=50"]);
    let told = eventually(30, "the reason", || {
        let rows = rows(&sidecar);
        let is_told = rows.get(1)?["error"].as_str()?.contains("the tree has more than 50 files");
        is_told.then_some(rows)
    });
    assert!(told[0]["error"].as_str().unwrap().ends_with(" is not published"), "{told:?}");
    let counted = |stage: &str| {
        sidecar.metric_of("treeswap_errors_total", &format!("{{stage=\"{stage}\",class=\"refused\"}}"))
    };
    eventually(30, "it is counted again", || (counted("export")? >= 3.0).then_some(()));
    assert_eq!(counted("resolve"), Some(0.0));
    two.commit(&Files::new().file("f", "2"));
    many.assert_shows(&[("one/f", "1"), ("two/f", "2")]);
    let is_well = |row: &serde_json::Value| row.get("error").is_none();
    eventually(30, "both are well", || rows(&sidecar).iter().all(is_well).then_some(()));
}

/// Without its optional source the first set is refused as well, until the other one is mended.
#[test]
fn an_optional_source_that_was_left_out_in_vain_is_published_with_the_next_commit_of_another_one() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    one.commit(&(0..60).fold(Files::new(), |files, at| files.file(format!("f{at}"), "x")));
    two.commit(&Files::new().file("f", "1"));
    many.list(&[source("one", &one, ", to: one"), source("two", &two, ", to: two, optional: true")]);
    let sidecar = many.sidecar(&["--max-tree-entries=50"]);
    said(&sidecar.process, "the tree has more than 50 files");
    sidecar.idle(3);
    one.commit(&Files::new().file("f", "2"));
    many.assert_shows(&[("one/f", "2"), ("two/f", "1")]);
}

/// At the first publication nothing is published of a source while another one is missing.
#[test]
fn a_source_that_waits_for_another_one_is_not_said_to_be_well() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    two.commit(&Files::new().file("f", "1"));
    many.list(&[source("one", &one, ", to: one"), source("two", &two, ", to: two")]);
    let sidecar = many.sidecar(&[]);
    let failing =
        |name: &str| sidecar.metric_of("treeswap_source_failing", &format!("{{source=\"{name}\"}}"));
    let are = |fails: f64| (failing("one")? == fails && failing("two")? == fails).then_some(());
    eventually(30, "neither is published", || are(1.0));
    let error = rows(&sidecar)[1]["error"].clone();
    assert!(error.as_str().is_some_and(|error| error.ends_with(" is not published")), "{error}");
    one.commit(&Files::new().file("f", "1"));
    many.assert_shows(&[("one/f", "1"), ("two/f", "1")]);
    eventually(30, "both are published", || are(0.0));
}

/// If they were, each push would begin the search for the source anew.
#[test]
fn the_remotes_are_not_asked_again_while_a_set_without_one_source_is_looked_for() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    for remote in [&one, &two] {
        remote.commit(&Files::new().file("f", "1"));
    }
    many.list(&[source("one", &one, ", to: one"), source("two", &two, ", to: two")]);
    many.once().expect_ok("the first set");
    one.commit(&(0..50).fold(Files::new(), |files, at| files.file(format!("f{at}"), "x")));
    two.commit(&Files::new().file("f", "2"));
    let sidecar = many.sidecar(&["--max-tree-entries=40", "--period=1h"]);
    many.assert_shows(&[("one/f", "1"), ("two/f", "2")]);
    eventually(30, "they were asked once an attempt", || {
        let asked = sidecar.metric_of("treeswap_sync_duration_seconds_count", "{stage=\"resolve\"}")?;
        (asked > 0.0 && asked == sidecar.attempts() as f64).then_some(())
    });
}

#[test]
fn a_tree_that_is_too_large_stops_its_own_source_whichever_moves_first() {
    let many = SourcesWorld::new();
    let (one, two, three) = (many.remote("one"), many.remote("two"), many.remote("three"));
    for remote in [&one, &two, &three] {
        remote.commit(&Files::new().file("f", "1"));
    }
    let source = |name, remote| source(name, remote, &format!(", to: {name}"));
    many.list(&[source("one", &one), source("two", &two), source("three", &three)]);
    many.once().expect_ok("the first set");
    let bomb = (0..50).fold(Files::new(), |files, at| files.file(format!("f{at}"), "x"));
    one.commit(&Files::new().file("f", "2"));
    two.commit(&bomb);
    three.commit(&Files::new().file("f", "2"));
    let sidecar = many.sidecar(&["--max-tree-entries=40"]);
    many.assert_shows(&[("one/f", "2"), ("two/f", "1"), ("three/f", "2")]);
    let told = eventually(30, "the refusal", || {
        let rows = rows(&sidecar);
        let told =
            |row: &serde_json::Value| row["error"].as_str().is_some_and(|why| why.contains("40 files"));
        let well = |row: &serde_json::Value| row["error"].is_null();
        (rows.len() == 3 && well(&rows[0]) && told(&rows[1]) && well(&rows[2])).then_some(rows)
    });
    assert_eq!(told[1]["name"], "two");
    two.commit(&Files::new().file("f", "3"));
    many.assert_shows(&[("one/f", "2"), ("two/f", "3"), ("three/f", "2")]);
}
