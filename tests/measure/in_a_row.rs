//! Measures thousands of updates, one right after the other, to show whether the last ones cost as much as the first.

use std::time::Instant;

use crate::common::sidecar::disk;
use crate::subject::{How, OURS};
use crate::table::{Table, spread};
use crate::{Bench, Options, directory};

/// The updates are divided into this many parts, of which the first and the last are compared.
const PARTS: usize = 10;

pub fn measure(options: Options, table: &mut Table) {
    let bench = Bench::new(options);
    println!("{}", bench.repository.describe());
    let updates = bench.options.updates;
    let url = bench.url();
    let how = How { url: &url, period: "1h", keep: "0s", more: &[], group: None };
    let subject = bench.subjects.iter().find(|subject| subject.name == OURS).expect("treeswap is measured");
    let world = directory(&bench.options);
    bench.repository.publish(0);
    let mut process = subject.start(how, world.path());
    process.reaches(0);
    let mut took = Vec::new();
    for number in 1..=updates {
        let start = Instant::now();
        bench.repository.publish(number);
        process.poll();
        process.reaches(number);
        took.push(start.elapsed().as_secs_f64() * 1e3);
        if number == updates / PARTS || number == updates {
            process.settle();
            let part = &took[number - updates / PARTS..];
            let (median, _, most) = spread(part).expect("there are updates");
            let mut add = |what: &str, unit, value| {
                table.add(&format!("update {number} of a row: {what}"), unit, OURS, value);
            };
            add("median of the tenth before it", "ms", median);
            add("longest of the tenth before it", "ms", most);
            add("anonymous memory", "MiB", process.anonymous());
            add("descriptors", "", process.descriptors() as f64);
            add("space of the root, mirror included", "MB", disk(&world.path().join("root")) as f64 / 1e6);
        }
    }
}
