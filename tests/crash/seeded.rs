//! Tests of the checker itself: it must find each of these violations in an otherwise correct root. A checker that
//! cannot fail proves nothing.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use crate::common::{Files, World, root};

const GENERATION: &str = "..2026_11_21_09_00_00.000000001";

/// Creates a correct root by hand, and returns the commit it holds.
fn right(world: &World) -> String {
    let commit = world
        .remote
        .commit(&Files::new().file("a", "1").script("run", "x").link("link", "a").file("d/e/f", "2"));
    let dir = world.root.join(GENERATION);
    fs::create_dir_all(dir.join("d/e")).unwrap();
    fs::write(dir.join("a"), "1").unwrap();
    fs::write(dir.join("run"), "x").unwrap();
    fs::set_permissions(dir.join("run"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("a", dir.join("link")).unwrap();
    fs::write(dir.join("d/e/f"), "2").unwrap();
    symlink(GENERATION, world.root.join("..data")).unwrap();
    for name in ["a", "run", "link", "d"] {
        symlink(format!("..data/{name}"), world.root.join(name)).unwrap();
    }
    fs::create_dir_all(world.root.join("..treeswap/mirror/objects/pack")).unwrap();
    fs::create_dir_all(world.root.join("..treeswap/staging")).unwrap();
    fs::write(world.root.join("..treeswap/lock"), "").unwrap();
    commit
}

fn findings(world: &World, commit: &str) -> Vec<String> {
    let mut found = world.differences(commit);
    found.extend(root::left_behind(&world.root, 1));
    found
}

fn relink(path: &Path, target: &str) {
    fs::remove_file(path).unwrap();
    symlink(target, path).unwrap();
}

#[test]
fn a_root_that_is_right_passes_and_every_seeded_violation_is_found() {
    type Violation = fn(&Path, &Path);
    let violations: &[(&str, Violation)] = &[
        ("a byte flipped", |_, dir| fs::write(dir.join("a"), "2").unwrap()),
        ("a file cut to nothing", |_, dir| fs::write(dir.join("d/e/f"), "").unwrap()),
        ("a file deleted", |_, dir| fs::remove_file(dir.join("d/e/f")).unwrap()),
        ("a file added", |_, dir| fs::write(dir.join("d/new"), "").unwrap()),
        ("an empty directory added", |_, dir| fs::create_dir(dir.join("empty")).unwrap()),
        ("an executable bit lost", |_, dir| {
            fs::set_permissions(dir.join("run"), fs::Permissions::from_mode(0o644)).unwrap();
        }),
        ("a set-uid bit", |_, dir| {
            fs::set_permissions(dir.join("run"), fs::Permissions::from_mode(0o4755)).unwrap();
        }),
        ("a link elsewhere", |_, dir| relink(&dir.join("link"), "run")),
        ("a file that became a link", |_, dir| relink(&dir.join("a"), "run")),
        ("no ..data", |root, _| fs::remove_file(root.join("..data")).unwrap()),
        ("..data to nothing", |root, _| relink(&root.join("..data"), "..2026_11_21_09_00_00.000000002")),
        ("..data of two components", |root, _| {
            relink(&root.join("..data"), &format!("./{GENERATION}"));
        }),
        ("..data is a directory", |root, dir| {
            fs::remove_file(root.join("..data")).unwrap();
            fs::rename(dir, root.join("..data")).unwrap();
        }),
        ("a root link missing", |root, _| fs::remove_file(root.join("a")).unwrap()),
        ("a root link past ..data", |root, _| relink(&root.join("a"), &format!("{GENERATION}/a"))),
        ("a root link too many", |root, _| symlink("..data/gone", root.join("gone")).unwrap()),
        ("a second generation", |root, _| fs::create_dir(root.join("..2026_11_21_08_00_00.1")).unwrap()),
        ("a temporary link", |root, _| symlink(GENERATION, root.join("..data_tmp")).unwrap()),
        ("something in staging", |root, _| fs::write(root.join("..treeswap/staging/x"), "").unwrap()),
        ("something of ours that is unknown", |root, _| {
            fs::write(root.join("..treeswap/x.tmp"), "").unwrap();
        }),
        ("a lock in the mirror", |root, _| {
            fs::write(root.join("..treeswap/mirror/HEAD.lock"), "").unwrap();
        }),
        ("a temporary pack", |root, _| {
            fs::write(root.join("..treeswap/mirror/objects/pack/pack_git2_1"), "").unwrap();
        }),
    ];
    let world = World::new();
    let commit = right(&world);
    assert_eq!(findings(&world, &commit), [""; 0]);
    for (what, violate) in violations {
        let world = World::new();
        let commit = right(&world);
        violate(&world.root, &world.root.join(GENERATION));
        assert!(!findings(&world, &commit).is_empty(), "not found: {what}");
    }
    println!("seeded violations: {0} of {0} found", violations.len());
}
