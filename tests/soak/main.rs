//! It runs for days: descriptors, threads, memory and disk do not grow, neither while nothing changes nor while
//! everything does. `TREESWAP_TESTS=full`: 500 idle cycles and 200 publications, and an hour with 20,000 publications,
//! faults, restarts, readers and a cluster ([`hour`]).
#![allow(missing_docs, unreachable_pub)]

#[path = "../common/mod.rs"]
mod common;
mod hour;
#[path = "../cluster/kubernetes.rs"]
mod kubernetes;

use std::time::{Duration, Instant};

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
    // Warm: caches are full.
    for n in 1..=12 {
        sidecar.publishes(&world, &world.remote.commit(&revision(n)));
    }
    sidecar.idle(20);
    let (before, disk_before) = (sidecar.rests(), disk(&world.root));
    sidecar.idle(idle);
    let rested = flat(&sidecar, "idling", before, 1024);
    let mut largest = 0;
    let mut publish = |numbers: std::ops::Range<usize>| {
        for n in numbers {
            sidecar.publishes(&world, &world.remote.commit(&revision(100 + n)));
            largest = largest.max(disk(&world.root));
        }
        sidecar.idle(20);
    };
    publish(0..publications / 2);
    let middle = flat(&sidecar, "publishing", rested, 2048);
    publish(publications / 2..publications);
    let end = flat(&sidecar, "publishing", middle, 1024);
    let disk_after = disk(&world.root);
    println!(
        "soak: {idle} idle cycles, {publications} publications\n  warm {before:?}\n  after idling {rested:?}\n  \
         after half of the publications {middle:?}\n  after all {end:?}\n  \
         disk {disk_before}, at most {largest}, at the end {disk_after} bytes",
    );
    assert!(largest < 6 * disk_before, "the root grew from {disk_before} to {largest} bytes");
    assert!(disk_after < 3 * disk_before, "the root went from {disk_before} to {disk_after} bytes");
    world.assert_clean(1);
}

/// Threads for blocking calls that tokio's pool may hold more than at another time: it ends one that had nothing to do for
/// ten or fifteen seconds, and polls every 50 ms keep it busy.
const POOLED: usize = 2;

/// What is held at rest is not more than before: not one descriptor, no thread but those of a pool, and so many KiB of
/// memory at most, which the allocator keeps.
#[track_caller]
fn flat(sidecar: &Sidecar, doing: &str, before: Held, kibibytes: u64) -> Held {
    let mut last = before;
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        last = sidecar.held();
        if last.descriptors <= before.descriptors
            && last.threads <= before.threads + POOLED
            && last.anonymous <= before.anonymous + kibibytes
        {
            return last;
        }
        std::thread::sleep(Duration::from_millis(3));
    }
    panic!("{doing} leaks: from {before:?} to {last:?}");
}
