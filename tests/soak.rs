//! It runs for days: descriptors, threads, memory and disk do not grow, neither while nothing changes nor while
//! everything does. `TREESWAP_TESTS=full`: 500 idle cycles and 200 publications, and more.
#![allow(missing_docs)]

mod common;

use common::sidecar::{Held, disk};
use common::{Files, Sidecar, World, full};

/// Thirty files, a few of which change in every revision.
fn revision(n: usize) -> Files {
    (0..30).fold(Files::new(), |files, index| {
        let content =
            if index % 7 == n % 7 { format!("{n} {}", "x".repeat(index * 40)) } else { "same".into() };
        files.file(format!("dir-{}/file-{index}", index % 5), content)
    })
}

#[test]
fn descriptors_threads_memory_and_disk_stay_flat() {
    let (idle, publications) = if full() { (500, 200) } else { (100, 40) };
    let world = World::new();
    let first = world.remote.commit(&revision(0));
    let sidecar = Sidecar::start(&world, &["--grace=50ms"]);
    sidecar.publishes(&world, &first);
    // Warm: caches are full and the pool has its threads.
    for n in 1..=12 {
        sidecar.publishes(&world, &world.remote.commit(&revision(n)));
    }
    sidecar.idle(20);
    let (before, disk_before) = (sidecar.held(), disk(&world.root));
    sidecar.idle(idle);
    let rested = sidecar.held();
    // The most of each half: a pool grows to its peak, a leak goes on.
    let mut halves = [rested; 2];
    let mut largest = 0;
    for n in 0..publications {
        sidecar.publishes(&world, &world.remote.commit(&revision(100 + n)));
        let (now, half) = (sidecar.held(), &mut halves[2 * n / publications]);
        half.descriptors = half.descriptors.max(now.descriptors);
        half.threads = half.threads.max(now.threads);
        half.anonymous = half.anonymous.max(now.anonymous);
        largest = largest.max(disk(&world.root));
    }
    sidecar.idle(20);
    let disk_after = disk(&world.root);
    println!(
        "soak: {idle} idle cycles, {publications} publications\n  warm {before:?}\n  after idling {rested:?}\n  \
         most of the first half of the publications {:?}\n  of the second {:?}\n  \
         disk {disk_before}, at most {largest}, at the end {disk_after} bytes",
        halves[0], halves[1]
    );
    flat("idling", before, rested, 1024);
    flat("publishing", halves[0], halves[1], 2048);
    assert!(largest < 6 * disk_before, "the root grew from {disk_before} to {largest} bytes");
    assert!(disk_after < 3 * disk_before, "the root went from {disk_before} to {disk_after} bytes");
    world.assert_clean(1);
}

#[track_caller]
fn flat(doing: &str, before: Held, after: Held, kibibytes: u64) {
    assert!(after.descriptors <= before.descriptors + 3, "{doing} leaks descriptors: {before:?}, {after:?}");
    assert!(after.threads <= before.threads + 3, "{doing} leaks threads: {before:?}, {after:?}");
    assert!(after.anonymous <= before.anonymous + kibibytes, "{doing} leaks memory: {before:?}, {after:?}");
}
