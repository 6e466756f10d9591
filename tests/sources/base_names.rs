//! `unique-base-names`: a reader that loads all files of some directories by their base names dies of two.

use super::*;

const GLOB: &str = "unique-base-names: \"**/*.yaml\"\n";

/// Two repositories with generated jobs, as a CI system has them.
fn jobs() -> (SourcesWorld, Remote, Remote, [String; 2]) {
    let many = SourcesWorld::new();
    let (one, two) = (many.remote("one"), many.remote("two"));
    one.commit(&Files::new().file("acme/shop/shop-main.yaml", "1").file("OWNERS", "a"));
    two.commit(&Files::new().file("acme/shop/shop-private.yaml", "1").file("OWNERS", "b"));
    let sources = [source("one", &one, ", to: jobs/one"), source("two", &two, ", to: jobs/two")];
    (many, one, two, sources)
}

#[test]
fn two_files_of_one_base_name_hold_the_set_until_one_is_renamed() {
    let (many, one, two, sources) = jobs();
    many.list_with(GLOB, &sources);
    let sidecar = many.sidecar(&[]);
    let serves = [
        ("jobs/one/OWNERS", "a"),
        ("jobs/one/acme/shop/shop-main.yaml", "1"),
        ("jobs/two/OWNERS", "b"),
        ("jobs/two/acme/shop/shop-private.yaml", "1"),
    ];
    many.assert_shows(&serves);
    let link = std::fs::read_link(many.world.root.join("..data")).unwrap();
    two.commit(&Files::new().file("acme/shop/shop-main.yaml", "2").file("OWNERS", "b"));
    let words = "`jobs/one/acme/shop/shop-main.yaml` of source one and `jobs/two/acme/shop/shop-main.yaml` of source two \
                 have one base name, which `unique-base-names` forbids";
    said(&sidecar.process, words);
    eventually(30, "both are named", || {
        let rows = rows(&sidecar);
        rows.iter().all(|row| row["error"].as_str().is_some_and(|error| error.contains(words))).then_some(())
    });
    // The other one does not move either: nobody knows which of the two is wrong.
    one.commit(&Files::new().file("acme/shop/shop-main.yaml", "3").file("OWNERS", "a"));
    sidecar.idle(3);
    many.assert_shows(&serves);
    assert_eq!(std::fs::read_link(many.world.root.join("..data")).unwrap(), link);
    two.commit(&Files::new().file("acme/shop/shop-private.yaml", "4").file("OWNERS", "b"));
    many.assert_shows(&[serves[0], (serves[1].0, "3"), serves[2], (serves[3].0, "4")]);
    eventually(30, "all is well", || {
        rows(&sidecar).iter().all(|row| row.get("error").is_none()).then_some(())
    });
}

#[test]
fn what_the_file_asks_for_is_asked_of_what_serves_too() {
    let (many, _one, two, sources) = jobs();
    two.commit(&Files::new().file("shop-main.yaml", "2"));
    many.list(&sources);
    let sidecar = many.sidecar(&[]);
    let serves = [
        ("jobs/one/OWNERS", "a"),
        ("jobs/one/acme/shop/shop-main.yaml", "1"),
        ("jobs/two/shop-main.yaml", "2"),
    ];
    many.assert_shows(&serves);
    let link = std::fs::read_link(many.world.root.join("..data")).unwrap();
    let fails = || rows(&sidecar).iter().filter(|row| row["error"].is_string()).count();
    for _ in 0..2 {
        many.list_with(GLOB, &sources);
        eventually(30, "it is refused", || (fails() == 2).then_some(()));
        many.assert_shows(&serves);
        // Only files that match are asked for.
        many.list_with("unique-base-names: [\"jobs/one/**/*.yaml\", \"jobs/two/none/**\"]\n", &sources);
        eventually(30, "all is well", || (fails() == 0).then_some(()));
    }
    assert_eq!(std::fs::read_link(many.world.root.join("..data")).unwrap(), link);
}
