//! Verification finds changes in a generation, and a new publication repairs them.

use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

/// Publishes, makes a foreign write to the generation, and returns the differences that verification finds.
fn tampered(change: impl FnOnce(&Path)) -> Vec<String> {
    let world = World::new();
    let first = varied("1");
    let mut store = world.with(&first);
    assert_eq!(store.verify(&of(&first), &go()).unwrap(), [""; 0]);
    change(&world.at("..data").canonicalize().unwrap());
    let differences = store.verify(&of(&first), &go()).unwrap();
    publish(&mut store, &first);
    assert_eq!(store.verify(&of(&first), &go()).unwrap(), [""; 0], "a new generation heals");
    world.assert_serves(&first);
    differences
}

fn write(top: &Path, name: &str, text: &str) {
    fs_err::write(top.join(name), text).unwrap();
}

fn set_mode(top: &Path, name: &str, mode: u32) {
    fs_err::set_permissions(top.join(name), PermissionsExt::from_mode(mode)).unwrap();
}

#[test]
fn every_kind_of_change_is_found_and_named() {
    type Case = (&'static str, fn(&Path));
    let cases: &[Case] = &[
        ("app/config.yaml: has other content", |top| write(top, "app/config.yaml", "2")),
        ("app/config.yaml: has 3 bytes, not 1", |top| write(top, "app/config.yaml", "222")),
        ("app/config.yaml: is missing", |top| fs_err::remove_file(top.join("app/config.yaml")).unwrap()),
        ("app/deep/er/y: is not in the tree", |top| write(top, "app/deep/er/y", "")),
        ("planted: is not in the tree", |top| fs_err::create_dir(top.join("planted")).unwrap()),
        ("bin: is missing", |top| fs_err::remove_dir_all(top.join("bin")).unwrap()),
        ("vendored: is missing", |top| fs_err::remove_dir(top.join("vendored")).unwrap()),
        ("vendored: is not empty", |top| write(top, "vendored/x", "")),
        ("latest: has other content", |top| {
            fs_err::remove_file(top.join("latest")).unwrap();
            symlink("/etc/passwd////", top.join("latest")).unwrap();
        }),
        ("bin/run: has mode 644", |top| set_mode(top, "bin/run", 0o644)),
        ("bin/run: has mode 4755", |top| set_mode(top, "bin/run", 0o4755)),
        ("app/config.yaml: has mode 600", |top| set_mode(top, "app/config.yaml", 0o600)),
        ("app/config.yaml: has mode 666", |top| set_mode(top, "app/config.yaml", 0o666)),
        ("app/deep: has mode 750", |top| set_mode(top, "app/deep", 0o750)),
        ("app/deep: is Symlink, not Directory", |top| {
            fs_err::rename(top.join("app/deep"), top.join("vendored/deep")).unwrap();
            symlink("../vendored/deep", top.join("app/deep")).unwrap();
        }),
    ];
    for (expected, change) in cases {
        let found = tampered(change);
        assert!(found.iter().any(|line| line == expected), "{expected}: {found:?}");
    }
}

#[test]
fn differences_are_listed_up_to_a_ceiling() {
    let found = tampered(|top| {
        for n in 0..500 {
            fs_err::write(top.join(format!("app/{n}")), "").unwrap();
        }
    });
    assert_eq!(found.len(), 20);
}

#[test]
fn nothing_published_differs_from_anything() {
    let world = World::new();
    let mut store = world.open();
    assert_eq!(store.verify(&of(&varied("1")), &go()).unwrap().len(), 1);
}

#[test]
fn verification_ends_when_cancelled() {
    let world = World::new();
    let mut store = world.with(&varied("1"));
    let stop = go();
    stop.cancel();
    store.verify(&of(&varied("1")), &stop).unwrap_err();
}
