//! Options that decide what a ConfigMap holds, changed while nobody else writes: told as what they are, and never as
//! somebody else's doing.

use serde_json::json;

use crate::apply::{MAPS, Stage};
use crate::common::{Files, Ran};
use crate::kubernetes::Kubernetes;

const STAMP: &str = "--stamp-key=.stamp";

/// Every map ended like this.
#[track_caller]
fn all(ran: &Ran, code: i32, how: &str) {
    assert_eq!(ran.status.code(), Some(code), "{}{}", ran.stdout, ran.stderr);
    for map in MAPS {
        assert!(ran.stdout.contains(&format!("{map}: {how}")), "{map}: {how}:\n{}{}", ran.stdout, ran.stderr);
    }
}

#[test]
fn a_stamp_that_comes_or_goes_is_our_own_change_and_what_goes_back_and_forth_is_contested() {
    let stage = Stage::new();
    all(&stage.apply(&[]), 0, "created");
    all(&stage.apply(&[STAMP]), 0, "replaced: the rules or options changed +.stamp");
    // Once more than can be told from two installations that have one name.
    for (options, key) in [(&[] as &[&str], "-.stamp"), (&[STAMP], "+.stamp"), (&[], "-.stamp")] {
        all(&stage.apply(options), 0, &format!("replaced: the rules or options changed back {key}"));
    }
    let ran = stage.apply(&[STAMP]);
    all(&ran, 3, "refused: it is contested: 3 times rules or options of this owner changed back");
    assert!(ran.stderr.contains("hint: give each installation an --owner of its own"), "{}", ran.stderr);
    stage.assert_all("1");
    // Whatever else is asked for is written.
    stage.commit("2");
    all(&stage.apply(&[STAMP]), 0, "replaced: it changed");
    // And what somebody else does is still somebody else's.
    let kubernetes = Kubernetes::shared();
    let mut map = kubernetes.configmap(&stage.namespace, "beta");
    map["data"]["value"] = json!("by hand");
    kubernetes.put(&stage.namespace, "beta", map);
    let ran = stage.apply(&[]);
    assert!(ran.stdout.contains("beta: refused: it is contested: it was repaired"), "{}", ran.stdout);
}

#[test]
fn a_version_key_that_follows_every_commit_is_never_contested() {
    let stage = Stage::new();
    let every = ["--version-key=every"];
    all(&stage.apply(&every), 0, "created");
    let mut files = MAPS.into_iter().fold(Files::new(), |files, map| files.file(format!("{map}/value"), "1"));
    for number in 0..5 {
        files = files.file("elsewhere", format!("{number}"));
        let commit = stage.world.remote.commit(&files);
        all(&stage.apply(&every), 0, "replaced: it changed ~VERSION");
        let map = Kubernetes::shared().configmap(&stage.namespace, "alpha");
        assert_eq!(map["data"]["VERSION"], json!(commit));
    }
}
