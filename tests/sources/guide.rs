//! What docs/guides/sources.md shows: its files, and the gate that refuses YAML that is no map.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;

fn guide() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guides/sources.md");
    std::fs::read_to_string(path).unwrap()
}

/// The blocks of the guide that begin with this line.
fn blocks(first: &str) -> Vec<String> {
    let guide = guide();
    let all = guide.split("\n```").skip(1).step_by(2).filter_map(|block| block.split_once('\n'));
    all.map(|(_, text)| format!("{text}\n")).filter(|text| text.starts_with(first)).collect()
}

/// The guide's gate, as a program.
fn gate(many: &SourcesWorld) -> PathBuf {
    let scripts = blocks("#!/bin/sh\n");
    assert_eq!(scripts.len(), 1, "one gate");
    let path = many.world.dir().join("maps-only");
    common::run::executable(&path, &scripts[0]);
    path
}

#[test]
fn the_files_of_the_guide_are_read() {
    let many = SourcesWorld::new();
    let files = blocks("version: 1\n");
    assert!(!files.is_empty(), "the guide shows a file");
    for text in files {
        many.write(&text);
        let mut command = many.world.treeswap(&["check", "--sources"]);
        to_end(command.arg(many.file()).arg("--root").arg(&many.world.root)).expect_ok(&text);
    }
}

#[test]
fn the_gate_knows_maps_from_what_is_none() {
    let many = SourcesWorld::new();
    let gate = gate(&many);
    let jobs = many.world.dir().join("staged/jobs/a b");
    std::fs::create_dir_all(&jobs).unwrap();
    let ran = || to_end(Command::new(&gate).current_dir(many.world.dir().join("staged")));
    ran().expect_ok("no file at all");
    for map in [
        "a: 1\n",
        "# note: - x\n\n---\npresubmits:\n- a\n",
        "{a: b}\n",
        "'a b': c\n",
        "--- {a: b}\n",
        "a:\r\n  b: c\r\n",
        "%YAML 1.2\n---\na: b\n",
        "",
        "-x: y\n",
        "a:\n",
    ] {
        std::fs::write(jobs.join("map.yaml"), map).unwrap();
        ran().expect_ok(map);
    }
    std::fs::write(jobs.join("list.txt"), "- x\n").unwrap();
    ran().expect_ok("another file");
    for none in [
        "- a: 1\n",
        "-\n  a: 1\n",
        "[a, b]\n",
        "just words\n",
        "---\n- x\n",
        "--- - x: y\n",
        "# c\n\n- x: y\n",
        "http://x/y\n",
    ] {
        std::fs::write(jobs.join("none.yaml"), none).unwrap();
        let ran = ran().expect_failure(none);
        assert!(ran.stdout.starts_with("jobs/a b/none.yaml is no map: "), "{none:?}: {}", ran.stdout);
    }
}

/// Two repositories whose jobs have the same names, and one with a list: both would kill who loads them.
#[test]
fn two_places_under_one_directory_as_the_guide_has_them() {
    let many = SourcesWorld::new();
    let (release, generated) = (many.remote("release"), many.remote("generated"));
    let public = Files::new().file("ci-operator/jobs/acme/shop-main.yaml", "presubmits: {}\n");
    release.commit(&public);
    generated.commit(&Files::new().file("acme/shop-generated.yaml", "periodics: []\n"));
    many.list_with(
        "unique-base-names: \"jobs/**/*.yaml\"\n",
        &[
            source("jobs", &release, ", path: ci-operator/jobs, to: jobs/release"),
            source("generated", &generated, ", to: jobs/generated"),
        ],
    );
    let gate = format!("--pre-publish-exechook-command={}", gate(&many).display());
    let sidecar = many.sidecar(&[&gate, "--pre-publish-gate"]);
    let serves = [
        ("jobs/generated/acme/shop-generated.yaml", "periodics: []\n"),
        ("jobs/release/acme/shop-main.yaml", "presubmits: {}\n"),
    ];
    many.assert_shows(&serves);
    let link = || std::fs::read_link(many.world.root.join("..data")).unwrap();
    let before = link();
    generated.commit(&Files::new().file("acme/shop-main.yaml", "periodics: []\n"));
    said(
        &sidecar.process,
        "`jobs/generated/acme/shop-main.yaml` of source generated and `jobs/release/acme/shop-main.yaml` of source jobs \
         have one base name",
    );
    generated.commit(&Files::new().file("acme/shop-generated.yaml", "- job: nightly\n"));
    said(&sidecar.process, "jobs/generated/acme/shop-generated.yaml is no map: - job: nightly");
    sidecar.idle(3);
    assert_eq!(link(), before);
    many.assert_shows(&serves);
    generated.commit(&Files::new().file("acme/shop-generated.yaml", "periodics: [{name: nightly}]\n"));
    many.assert_shows(&[(serves[0].0, "periodics: [{name: nightly}]\n"), serves[1]]);
}
