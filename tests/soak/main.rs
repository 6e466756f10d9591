//! It runs for days: descriptors do not grow, and threads, memory and disk by no more than constants allow that do not
//! depend on how long it runs ([`Allowed`]); neither while nothing changes nor while everything does.
//! `TREESWAP_TESTS=full`: 500 idle cycles and 200 publications, and an hour with 20,000 publications, faults, restarts,
//! readers and a cluster ([`hour`]), in which a leak of 5 kB per publication is noticed.
#![allow(missing_docs, unreachable_pub)]

#[path = "../common/mod.rs"]
mod common;
mod hour;
#[path = "../cluster/kubernetes/mod.rs"]
mod kubernetes;

use std::time::{Duration, Instant};

use common::sidecar::{Held, disk};
use common::{Files, Sidecar, World, full};

/// What a process at rest may hold more than when it was warm. Everything is compared with that one state: allowances
/// do not add up.
#[derive(Clone, Copy)]
struct Allowed {
    /// Threads for blocking calls: tokio's pool has as many as calls ever coincided. It ends one that had nothing to do
    /// for ten or fifteen seconds, but polls every 10 or 50 ms keep all of them busy in turns.
    threads: usize,
    /// Anonymous memory, KiB: pages of what was given back, which the allocator keeps.
    kibibytes: u64,
}

/// An attempt, a spare, a scrub and a page are four calls at most. A warm process has had one of them. One thread more
/// is started if a call comes in the very instant in which the call before it ends.
const POOLED: usize = 3 + 1;

/// After idle cycles. What leaks 11 KiB in each of 100 cycles is noticed, or 3 KiB in each of 500.
const IDLE: Allowed = Allowed { threads: POOLED, kibibytes: 1024 };

/// After publications. What leaks 103 KiB in each of 40 is noticed, or 21 KiB in each of 200; less is for [`hour`].
const PUBLISHING: Allowed = Allowed { threads: POOLED, kibibytes: 4096 };

/// While it publishes, a root takes less than so many times what it took when it was warm: it may have a retired
/// generation, a staged one and a spare besides the current one, and packs that are not merged yet.
const DISK_AT_MOST: u64 = 6;

/// The same at rest: there may be packs, and a spare, that it did not have when it was warm.
const DISK_AT_REST: u64 = 3;

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
    let (warm, warm_disk) = (sidecar.rests(), disk(&world.root));
    sidecar.idle(idle);
    let rested = flat(&sidecar, "idling", warm, IDLE);
    let mut largest = 0;
    let mut publish = |numbers: std::ops::Range<usize>| {
        for n in numbers {
            sidecar.publishes(&world, &world.remote.commit(&revision(100 + n)));
            largest = largest.max(disk(&world.root));
        }
        sidecar.idle(20);
    };
    publish(0..publications / 2);
    let middle = flat(&sidecar, "publishing", warm, PUBLISHING);
    publish(publications / 2..publications);
    let end = flat(&sidecar, "publishing", warm, PUBLISHING);
    let disk_after = disk(&world.root);
    println!(
        "soak: {idle} idle cycles, {publications} publications\n  warm {warm:?}\n  \
         after idling {rested:?}\n  after half of the publications {middle:?}\n  after all {end:?}\n  \
         disk {warm_disk}, at most {largest}, at the end {disk_after} bytes",
    );
    assert!(largest < DISK_AT_MOST * warm_disk, "the root grew from {warm_disk} to {largest} bytes");
    assert!(disk_after < DISK_AT_REST * warm_disk, "the root went from {warm_disk} to {disk_after} bytes");
    world.assert_clean(1);
}

/// Fails unless the process, at rest, holds no more than what was allowed besides what it held when it was warm, and
/// not one descriptor more. One sample that shows this is enough: what has leaked is in every sample, and in most there
/// is also what an attempt needs.
#[track_caller]
fn flat(sidecar: &Sidecar, doing: &str, warm: Held, allowed: Allowed) -> Held {
    let mut last = warm;
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        last = sidecar.held();
        if last.descriptors <= warm.descriptors
            && last.threads <= warm.threads + allowed.threads
            && last.anonymous <= warm.anonymous + allowed.kibibytes
        {
            return last;
        }
        std::thread::sleep(Duration::from_millis(3));
    }
    panic!("{doing} leaks: from {warm:?} to {last:?}");
}
