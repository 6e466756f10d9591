//! Commits that change nothing of what is published: no generation, and on record all the same.

use serde_json::{Value, json};

use super::common::run::to_end;
use super::common::sources_world::{SourcesWorld, rows, source};
use super::common::{Files, Sidecar, World, eventually};

/// What a command that pins is told of the generation.
fn told(world: &World) -> (String, Value) {
    let print = "printf '%s\n%s' \"$TREESWAP_REVISION\" \"$TREESWAP_REVISIONS\"";
    let root = world.root.to_str().unwrap();
    let ran = to_end(&mut world.treeswap(&["pin", root, "--", "sh", "-c", print])).expect_ok("pin");
    let (revision, sources) = ran.stdout.split_once('\n').unwrap();
    (revision.to_owned(), serde_json::from_str(sources).unwrap_or_default())
}

#[test]
fn sources_that_move_without_another_file_are_on_record_where_they_are() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    let files = Files::new().file("jobs/a", "1").file("docs/x", "1");
    one.commit(&files);
    two.commit(&Files::new().file("f", "1"));
    many.list(&[source("one", &one, ", path: jobs, to: one"), source("two", &two, ", to: two")]);
    let sidecar = many.sidecar(&[]);
    many.assert_shows(&[("one/a", "1"), ("two/f", "1")]);
    let link = || std::fs::read_link(many.world.root.join("..data")).unwrap();
    let before = link();
    let tips = [one.commit(&files.file("docs/x", "2")), two.commit(&Files::new().file("f", "1"))];
    eventually(30, "the rows are where the refs are", || {
        let rows = rows(&sidecar);
        (rows.len() == 2 && rows[0]["revision"] == tips[0] && rows[1]["revision"] == tips[1]).then_some(())
    });
    assert_eq!(link(), before, "no other generation");
    let (revision, sources) = told(&many.world);
    let expected = json!([{"name": "one", "revision": tips[0]}, {"name": "two", "revision": tips[1]}]);
    assert_eq!(sources, expected);
    let status = sidecar.status();
    assert_eq!(status["current"]["revision"], revision);
    assert_eq!(status["current"]["commit"]["sources"][0]["revision"], tips[0]);
    // A restart finds it so.
    drop(sidecar);
    many.once().expect_ok("again");
    assert_eq!((link(), told(&many.world)), (before, (revision, expected)));
}

#[test]
fn a_link_that_leaves_its_source_only_because_others_took_its_files_over_is_refused() {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    let kept = Files::new().file("kept", "1").link("latest", "jobs/x");
    one.commit(&kept.clone().file("jobs/x", "1"));
    two.commit(&Files::new().file("x", "1"));
    many.list(&[source("one", &one, ", to: all")]);
    many.once().expect_ok("one source");
    one.commit(&kept);
    many.list(&[source("one", &one, ", to: all"), source("two", &two, ", to: all/jobs")]);
    for time in ["at once", "after a restart"] {
        let ran = many.once().expect_failure(time);
        assert!(
            ran.stderr.contains("which is not inside what its own source has placed"),
            "{time}: {}",
            ran.stderr
        );
    }
    one.commit(&Files::new().file("kept", "1"));
    many.once().expect_ok("without the link");
}

#[test]
fn a_commit_outside_of_the_path_is_on_record() {
    let world = World::new();
    let files = Files::new().file("jobs/a", "1").file("docs/x", "1");
    world.remote.commit(&files);
    let sidecar = Sidecar::start(&world, &["--path=jobs"]);
    eventually(30, "it is published", || world.root.join("..data/a").exists().then_some(()));
    let before = std::fs::read_link(world.root.join("..data")).unwrap();
    let tip = world.remote.commit(&files.file("docs/x", "2"));
    eventually(30, "the status says it", || (sidecar.status()["current"]["revision"] == tip).then_some(()));
    assert_eq!(std::fs::read_link(world.root.join("..data")).unwrap(), before, "no other generation");
    assert_eq!(told(&world), (tip, Value::Null));
}
