//! The spare: what the next update is written onto.

use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use rustix::process::Signal;

use crate::common::run::executable;
use crate::common::{Files, Sidecar, World, eventually};
use crate::{files, send};

#[test]
fn a_spare_is_of_what_was_published_whatever_the_patterns_choose_by_then() {
    let world = World::new();
    world.remote.commit(&files("one"));
    let patterns = world.dir().join("patterns");
    std::fs::write(&patterns, "/jobs/\n").unwrap();
    // The attempt has read the patterns, and what follows it will find other ones.
    let gate = world.dir().join("gate");
    let (seen, all) = (world.dir().join("seen"), format!("echo '/*' > {}", patterns.display()));
    executable(&gate, &format!("#!/bin/sh\ntest -e {0} || {{ : > {0}; {all}; }}\n", seen.display()));
    let sidecar = Sidecar::start(
        &world,
        &[
            "--period=1h",
            "--spare=copy",
            "--log-level=debug",
            "--pre-publish-gate",
            &format!("--pre-publish-exechook-command={}", gate.display()),
            &format!("--sparse-checkout-file={}", patterns.display()),
        ],
    );
    let log = || sidecar.process.log();
    eventually(20, "a spare, or none", || {
        let known = ["the spare is ready", "no spare: the selection of files changed meanwhile"];
        known.iter().any(|words| log().contains(words)).then_some(())
    });
    std::fs::write(&patterns, "/jobs/\n").unwrap();
    world.remote.commit(&files("two").file("jobs/weekly.yaml", "x"));
    send(&sidecar.process, Signal::HUP);
    let there = |name: &str| world.root.join("..data").join(name).exists();
    eventually(20, "the second", || there("jobs/weekly.yaml").then_some(()));
    assert!(!there("routes.yaml"), "a file that no pattern chooses is published");
}

#[test]
fn a_lower_ceiling_takes_the_spare_before_a_grace_period() {
    let world = World::new();
    let mebibyte = |text: &str| Files::new().file("large", text.repeat(1 << 20));
    let first = world.remote.commit(&mebibyte("1"));
    let sidecar = Sidecar::start(&world, &["--grace=1h", "--spare=copy"]);
    sidecar.publishes(&world, &first);
    let second = world.remote.commit(&mebibyte("2"));
    sidecar.publishes(&world, &second);
    let ready = world.root.join("..treeswap/spare/ready");
    let is_of_the_second = || {
        let copy = std::fs::read(world.root.join("..treeswap/spare/tree/large")).ok()?;
        (ready.exists() && copy[0] == b'2').then_some(())
    };
    eventually(20, "a spare", is_of_the_second);
    drop(sidecar);
    let sidecar = Sidecar::start(&world, &["--grace=1h", "--spare=copy", "--max-bytes=2500000"]);
    sidecar.idle(3);
    let names = std::fs::read_dir(&world.root).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.filter(|name| name.to_string_lossy().starts_with("..20")).count(), 2);
    assert!(!ready.exists());
}

/// The fourth publication is what was the second, carried forward; somebody who wrote into that one spoils it.
#[test]
fn a_retired_generation_is_used_again_unless_somebody_wrote_into_it() {
    for spoilt in [false, true] {
        let world = World::new();
        let sidecar = Sidecar::start(&world, &["--grace=0s", "--spare=recycle", "--log-level=debug"]);
        let ready = world.root.join("..treeswap/spare/ready");
        let inode = || world.root.join("..data/jobs/nightly.yaml").metadata().unwrap().ino();
        let mut inodes = Vec::new();
        for text in ["one", "two", "three", "four"] {
            let commit = world.remote.commit(&files(text));
            sidecar.publishes(&world, &commit);
            inodes.push(inode());
            if spoilt && text == "two" {
                std::thread::sleep(Duration::from_millis(50)); // another tick of the file system's clock
                std::fs::create_dir(world.root.join("..data/jobs/__pycache__")).unwrap();
            }
            eventually(20, "a spare", || {
                let log = sidecar.process.log();
                let made = log.matches("the spare is ready").count();
                (made == inodes.len() && ready.exists()).then_some(())
            });
        }
        assert_eq!(inodes[1] == inodes[3], !spoilt, "{inodes:?}: {}", sidecar.process.log());
        let refused = sidecar.process.log().contains("jobs: changed by another process");
        assert_eq!(refused, spoilt, "{}", sidecar.process.log());
    }
}

/// The grace period of the first generation ends soon, so that its files are about to be used again, and no spare is
/// made for now.
#[test]
fn an_update_that_finds_no_spare_shares_the_files_that_it_does_not_change() {
    let world = World::new();
    let sidecar = Sidecar::start(&world, &["--grace=4s", "--log-level=debug"]);
    let inode = || world.root.join("..data/jobs/nightly.yaml").metadata().unwrap().ino();
    let mut inodes = Vec::new();
    for text in ["one", "two", "three"] {
        let commit = world.remote.commit(&files(text));
        sidecar.publishes(&world, &commit);
        inodes.push(inode());
        if text == "one" {
            eventually(20, "the spare", || {
                sidecar.process.log().contains("the spare is ready").then_some(())
            });
        }
    }
    assert_eq!(inodes, [inodes[0]; 3], "{}", sidecar.process.log());
}
