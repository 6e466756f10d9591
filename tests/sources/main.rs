//! Several repositories, refs and directories in one root (`--sources`), from outside.
//!
//! Files: `placing` is every rule of what may lie beside each other, with its refusal; `base_names` what a reader needs
//! that dies of two files with one name; `guide` what docs/guides/sources.md shows; `words` what people are told;
//! `repositories` what one is asked, and whose mirrors are whose; `requests` what webhooks and signals ask for; `failing`
//! one source that fails beside others; `stale` how long a remote may be silent; `outage` when none answers, and how
//! failures are counted; `equal` commits that change nothing that is published.

mod base_names;
#[path = "../common/mod.rs"]
mod common;
mod equal;
mod failing;
mod guide;
mod outage;
mod placing;
mod repositories;
mod requests;
mod stale;
mod words;

use std::time::{Duration, Instant};

use common::run::{Background, to_end};
use common::sources_world::{SourcesWorld, published, rows, source};
use common::{Files, Remote, Sidecar, eventually};

#[track_caller]
fn said(process: &Background, words: &str) {
    eventually(30, words, || process.log().contains(words).then_some(()));
}

#[test]
fn directories_files_and_patterns_of_several_repositories_are_one_tree() {
    let many = SourcesWorld::new();
    let (release, team) = (many.remote("release"), many.remote("team"));
    release.commit(
        &Files::new()
            .file("ci/jobs/a.yaml", "a")
            .file("ci/jobs/sub/b.yaml", "b")
            .link("ci/jobs/sub/up", "../a.yaml")
            .file("ci/steps/s.yaml", "s")
            .file("OWNERS", "o"),
    );
    team.commit(&Files::new().file("x.yaml", "x").file("keep/y.yaml", "y").file("drop/z.yaml", "z"));
    many.list(&[
        source("jobs", &release, ", path: ci/jobs, to: jobs"),
        source("owners", &release, ", path: OWNERS, to: jobs/OWNERS-of-all"),
        source("steps", &release, ", path: ci/steps, to: deep/down/steps"),
        source("team", &team, ", to: teams/a, sparse: [\"/keep/\", \"x.yaml\"]"),
        source("top", &team, ", path: drop"),
    ]);
    // `owners` lies in `jobs`' place, which is its own: nothing of `jobs` is there.
    many.once().expect_ok("five sources");
    many.assert_shows(&[
        ("deep/down/steps/s.yaml", "s"),
        ("jobs/OWNERS-of-all", "o"),
        ("jobs/a.yaml", "a"),
        ("jobs/sub/b.yaml", "b"),
        ("jobs/sub/up", "-> ../a.yaml"),
        ("teams/a/keep/y.yaml", "y"),
        ("teams/a/x.yaml", "x"),
        ("z.yaml", "z"),
    ]);
    assert!(many.world.root.join("z.yaml").exists() && many.world.root.join("jobs/a.yaml").exists());
    // Nothing new: no other generation.
    let link = std::fs::read_link(many.world.root.join("..data")).unwrap();
    many.once().expect_ok("again");
    assert_eq!(std::fs::read_link(many.world.root.join("..data")).unwrap(), link);
}

#[test]
fn every_source_moves_by_itself_and_a_commit_costs_what_it_changes() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    let wide = (0..400).fold(Files::new(), |files, n| files.file(format!("d{}/f{n}", n % 20), "same"));
    one.commit(&wide);
    two.commit(&Files::new().file("f", "1"));
    many.list(&[source("one", &one, ", to: one"), source("two", &two, ", to: two")]);
    let sidecar = many.sidecar(&[]);
    eventually(30, "the first set", || many.world.root.join("two/f").exists().then_some(()));
    for n in 2..12 {
        two.commit(&Files::new().file("f", n.to_string()).file(format!("g{n}"), "x"));
        eventually(30, "the commit", || {
            (std::fs::read_to_string(many.world.root.join("two/f")).ok()? == n.to_string()).then_some(())
        });
    }
    one.commit(&wide.file("d0/f0", "changed"));
    eventually(30, "the other one's commit", || {
        (std::fs::read_to_string(many.world.root.join("one/d0/f0")).ok()? == "changed").then_some(())
    });
    let all = published(&many.world.root);
    assert_eq!(all.len(), 402);
    let tips = [&one, &two].map(|remote| remote.tip("main").unwrap());
    eventually(30, "the status says so", || {
        let rows = rows(&sidecar);
        let at_tips = rows.len() == 2 && rows[0]["revision"] == tips[0] && rows[1]["revision"] == tips[1];
        (at_tips && rows.iter().all(|row| row.get("error").is_none())).then_some(())
    });
    // An idle look writes nothing, once the spare is ready.
    let written = || std::fs::metadata(many.world.root.join("..treeswap")).unwrap().modified().unwrap();
    eventually(30, "nothing is written", || {
        let before = written();
        sidecar.idle(10);
        (written() == before).then_some(())
    });
}

#[test]
fn what_the_file_had_wrong_is_right_once_it_is_changed() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    one.commit(&Files::new().file("dir/f", "1").file("other/f", "2"));
    two.commit(&Files::new().file("g", "1"));
    let two_at = source("two", &two, ", to: two");
    many.list(&[source("one", &one, ", path: dir, to: one"), two_at.clone()]);
    let sidecar = many.sidecar(&[]);
    many.assert_shows(&[("one/f", "1"), ("two/g", "1")]);
    many.list(&[source("one", &one, ", path: dri, to: one"), two_at.clone()]);
    said(&sidecar.process, "it is the `path` of the source, and the revision does not have it");
    sidecar.idle(3);
    many.list(&[source("one", &one, ", path: other, to: one"), two_at.clone()]);
    many.assert_shows(&[("one/f", "2"), ("two/g", "1")]);
    // Another ref, which the repository does not have: what was published stays.
    let elsewhere = source("one", &one, ", path: other, to: one").replace("ref: main", "ref: none");
    many.list(&[elsewhere, two_at]);
    said(&sidecar.process, "couldn't find remote ref none");
    two.commit(&Files::new().file("g", "3"));
    many.assert_shows(&[("one/f", "2"), ("two/g", "3")]);
}

#[test]
fn a_hook_gets_the_set_and_once_ends_by_what_failed() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    let a = one.commit(&Files::new().file("f", "1"));
    let b = two.commit(&Files::new().file("g", "2"));
    let said = many.world.dir().join("said");
    let hook = many.world.dir().join("hook");
    common::run::executable(&hook, &format!("#!/bin/sh\nprintenv TREESWAP_REVISIONS > {}\n", said.display()));
    many.list(&[source("one", &one, ", to: one"), source("two", &two, ", to: two")]);
    let hook = format!("--exechook-command={}", hook.display());
    to_end(many.sync(&["--one-time"]).arg(&hook)).expect_ok("with a hook");
    let set: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&said).unwrap()).unwrap();
    assert_eq!((set[0]["name"].as_str(), set[0]["revision"].as_str()), (Some("one"), Some(a.as_str())));
    assert_eq!((set[1]["to"].as_str(), set[1]["revision"].as_str()), (Some("two"), Some(b.as_str())));
    // The record names the set of each generation.
    let status = to_end(&mut many.world.treeswap(&[
        "status".as_ref(),
        "--json".as_ref(),
        many.world.root.as_os_str(),
    ]));
    let status = common::schema::root_status(&status.stdout);
    assert_eq!(status["generations"][0]["commit"]["sources"], set);
    let away = one.away();
    two.commit(&Files::new().file("g", "3"));
    let ran = many.once();
    assert_eq!(ran.status.code(), Some(3), "{}", ran.stderr);
    assert!(ran.stderr.contains("published without the newest of one"), "{}", ran.stderr);
    many.assert_shows(&[("one/f", "1"), ("two/g", "3")]);
    let again = many.once();
    assert_eq!(again.status.code(), Some(3), "{}", again.stderr);
    let words =
        ["nothing new from the sources that answered: ", "not up to date: one; what was published stays"];
    assert!(words.iter().all(|words| again.stderr.contains(words)), "{}", again.stderr);
    drop(away);
    let all = many.once().expect_ok("all of them answer");
    assert!(all.stderr.contains(" has the newest commits of all sources"), "{}", all.stderr);
    let table = to_end(&mut many.world.treeswap(&["status".as_ref(), many.world.root.as_os_str()])).stdout;
    assert!(table.contains(&format!(" the sources in {}\n", many.file().display())), "{table}");
}

#[test]
fn sources_come_go_and_move_and_one_repository_becomes_many_and_back() {
    let many = SourcesWorld::new();
    let (one, two) = (&many.world.remote, many.remote("two"));
    let tip = one.commit(&Files::new().file("f", "1"));
    two.commit(&Files::new().file("g", "2"));
    many.world.sync_once(&[]).expect_ok("one repository");
    many.world.assert_published(&tip);
    many.list(&[source("one", one, "")]);
    many.once().expect_ok("a set of one");
    many.assert_shows(&[("f", "1")]);
    many.list(&[source("one", one, ""), source("two", &two, ", to: two")]);
    many.once().expect_ok("one more");
    many.assert_shows(&[("f", "1"), ("two/g", "2")]);
    many.list(&[source("one", one, ", to: one"), source("two", &two, "")]);
    many.once().expect_ok("they move");
    many.assert_shows(&[("g", "2"), ("one/f", "1")]);
    many.list(&[source("two", &two, ", to: two")]);
    many.once().expect_ok("one less");
    many.assert_shows(&[("two/g", "2")]);
    many.world.sync_once(&[]).expect_ok("one repository again");
    many.world.assert_published(&tip);
    many.list(&[source("two", &two, "")]);
    {
        let _away = two.away();
        many.once().expect_failure("the remote is away, and nothing of the set is published");
        many.world.assert_published(&tip);
    }
    many.once().expect_ok("and a set again");
    many.assert_shows(&[("g", "2")]);
}

#[test]
fn two_refs_of_one_repository_come_from_one_moment() {
    let many = SourcesWorld::new();
    let one = many.remote("one");
    let push = |n: u32| {
        let files = Files::new().file("n", n.to_string());
        let (a, b) = (one.commit_on("next-a", &files), one.commit_on("next-b", &files));
        let update = format!("start\nupdate refs/heads/a {a}\nupdate refs/heads/b {b}\nprepare\ncommit\n");
        let mut git = one.command(&["update-ref", "--stdin"]);
        let mut git =
            git.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null()).spawn().unwrap();
        std::io::Write::write_all(&mut git.stdin.take().unwrap(), update.as_bytes()).unwrap();
        assert!(git.wait().unwrap().success());
    };
    push(0);
    let of = |name: &str| format!("name: {name}, repo: {}, ref: {name}, to: {name}", one.path.display());
    many.list(&[of("a"), of("b")]);
    let _sidecar = many.sidecar(&[]);
    many.assert_shows(&[("a/n", "0"), ("b/n", "0")]);
    let mut looks = 0;
    for n in 1..40 {
        push(n);
        let until = Instant::now() + Duration::from_millis(60);
        while Instant::now() < until {
            let generation = many.world.root.join("..data").canonicalize().unwrap();
            let read = |name: &str| std::fs::read_to_string(generation.join(name)).ok();
            if let (Some(a), Some(b)) = (read("a/n"), read("b/n")) {
                assert_eq!(a, b, "a torn pair");
                looks += 1;
            }
        }
    }
    many.assert_shows(&[("a/n", "39"), ("b/n", "39")]);
    assert!(looks > 100, "{looks} looks");
}

#[test]
fn flags_of_one_repository_are_refused_beside_the_file() {
    let many = SourcesWorld::new();
    many.list(&[source("one", &many.world.remote, "")]);
    for flag in [
        "--repo=/x",
        "--ref=main",
        "--path=x",
        "--sparse-checkout-file=/x",
        "--submodules=recursive",
        "--layout=git-sync",
    ] {
        let ran = to_end(&mut many.sync(&[flag, "--one-time"])).expect_failure(flag);
        assert!(ran.stderr.contains("--sources"), "{flag}: {}", ran.stderr);
    }
    let git_sync = to_end(many.world.treeswap(&["git-sync", "--root=/x", "--sources"]).arg(many.file()));
    assert_eq!(git_sync.status.code(), Some(1), "{}", git_sync.stderr);
    assert!(git_sync.stderr.contains("--sources is not supported"), "{}", git_sync.stderr);
    assert!(git_sync.stderr.contains("use `treeswap sync --sources`"), "{}", git_sync.stderr);
    let neither = to_end(&mut many.world.treeswap(&["sync", "--root=/x"])).expect_failure("neither");
    assert!(neither.stderr.contains("--repo"), "{}", neither.stderr);
}

#[test]
fn a_pinned_reader_knows_the_commit_of_each_source() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    let commits = [&one, &two].map(|remote| remote.commit(&Files::new().file("f", "1")));
    many.list(&[source("one", &one, ", to: one"), source("two", &two, ", to: two")]);
    many.once().expect_ok("sync");
    let root = many.world.root.to_str().unwrap();
    for command in [&["pin", root][..], &["watch", "--exit-on-failure", root]] {
        let echo =
            ["--", "sh", "-c", "printf '%s\n%s\n' \"$TREESWAP_REVISION\" \"$TREESWAP_REVISIONS\"; exit 5"];
        let ran = to_end(&mut many.world.treeswap(&[command, &echo].concat()));
        let (revision, sources) = ran.stdout.split_once('\n').unwrap();
        assert_eq!(revision.len(), 40, "{ran:?}");
        let sources: serde_json::Value = serde_json::from_str(sources).unwrap();
        let [one, two] = &commits;
        let expected =
            serde_json::json!([{"name": "one", "revision": one}, {"name": "two", "revision": two}]);
        assert_eq!(sources, expected);
    }
}

#[test]
fn a_source_that_gets_another_name_stays_until_it_is_there_by_it() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    let _ = [&one, &two].map(|remote| remote.commit(&Files::new().file("f", "1")));
    let listed = |name: &str, asked: &str| {
        let [one, two] = [&one, &two].map(|remote| remote.path.display().to_string());
        many.list(&[
            format!("name: one, repo: {one}, ref: main, to: one"),
            format!("name: {name}, repo: {two}, ref: {asked}, to: two"),
        ]);
    };
    listed("two", "main");
    let sidecar = many.sidecar(&[]);
    many.assert_shows(&[("one/f", "1"), ("two/f", "1")]);
    listed("other", "absent");
    let wrong = || rows(&sidecar).into_iter().find(|row| row["name"] == "other" && !row["error"].is_null());
    eventually(30, "the wrong ref to be told", wrong);
    one.commit(&Files::new().file("f", "2"));
    many.assert_shows(&[("one/f", "2"), ("two/f", "1")]);
    listed("other", "main");
    two.commit(&Files::new().file("f", "2"));
    many.assert_shows(&[("one/f", "2"), ("two/f", "2")]);
}

#[test]
fn the_rows_are_those_of_the_set_that_serves() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    let commits = [&one, &two].map(|remote| remote.commit(&Files::new().file("f", "1")));
    many.list(&[source("one", &one, ", to: one"), source("two", &two, ", to: two")]);
    let gate = many.world.dir().join("gate");
    common::run::executable(&gate, "#!/bin/sh\nexec test \"$(cat two/f)\" = 1\n");
    let gate = format!("--pre-publish-exechook-command={}", gate.display());
    let sidecar = many.sidecar(&[&gate, "--pre-publish-gate"]);
    many.assert_shows(&[("one/f", "1"), ("two/f", "1")]);
    two.commit(&Files::new().file("f", "2"));
    let told = eventually(30, "the refusal", || {
        let rows = rows(&sidecar);
        (!rows.get(1)?["error"].is_null()).then_some(rows)
    });
    assert_eq!([&told[0]["revision"], &told[1]["revision"]], commits.each_ref().map(|commit| commit));
    assert!(told[0]["error"].is_null(), "{told:?}");
    assert!(told[1]["error"].as_str().unwrap().contains("is not published"), "{told:?}");
}

#[test]
fn a_place_is_its_sources_own_although_its_patterns_leave_nothing() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    one.commit(&Files::new().file("jobs/f", "1").file("g", "1"));
    two.commit(&Files::new().file("f", "1"));
    many.list(&[source("one", &one, ""), source("two", &two, ", to: jobs, sparse: [/absent/]")]);
    let ran = many.once().expect_failure("a path of another's place");
    assert!(ran.stderr.contains("jobs") && ran.stderr.contains("two is placed"), "{}", ran.stderr);
}

/// What the last attempt failed with.
fn last_error(sidecar: &Sidecar) -> String {
    let answer = sidecar.ask("/status").unwrap_or_default();
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let status: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    status["last_attempt"]["error"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_pipe_in_place_of_the_file_is_refused_and_leaves_nothing_behind() {
    let many = SourcesWorld::new();
    let one = many.remote("one");
    one.commit(&Files::new().file("f", "1"));
    many.list(&[source("one", &one, "")]);
    let sidecar = many.sidecar(&[]);
    many.assert_shows(&[("f", "1")]);
    std::fs::remove_file(many.file()).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, many.file(), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    eventually(30, "the refusal", || last_error(&sidecar).contains("it is not a regular file").then_some(()));
    many.list(&[source("one", &one, "")]);
    one.commit(&Files::new().file("f", "2"));
    many.assert_shows(&[("f", "2")]);
}
