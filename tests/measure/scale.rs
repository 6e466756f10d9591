//! Measures the same update in repositories of several sizes, and a poll of a repository with many refs.

use std::fmt::Write as _;

use crate::repository::git;
use crate::subject::{GIT_SYNC, How, OURS, Running};
use crate::table::Table;
use crate::updates::apart;
use crate::{Bench, Options, directory};

const REFS: usize = 100_000;

pub fn measure(options: &Options, table: &mut Table) {
    for files in &options.scale {
        let bench = Bench::new(Options { files: *files, scale: Vec::new(), ..options.clone() });
        println!("{}", bench.repository.describe());
        for subject in bench.subjects.iter().filter(|subject| [OURS, GIT_SYNC].contains(&subject.name)) {
            let world = directory(options);
            bench.repository.publish(0);
            let url = bench.url();
            let how = How { url: &url, period: "1h", keep: "0s", more: &[], group: None };
            let mut process = subject.start(how, world.path());
            process.reaches(0);
            apart(&bench, &mut process, 1, |latency, processor| {
                table.add(&format!("update of {files} files"), "ms", subject.name, latency);
                table.add(&format!("processor of it, {files} files"), "ms", subject.name, processor);
            });
            idle_polls(&bench, &mut process, subject.name, &format!("{files} files"), table);
            if options.scale.last() == Some(files) {
                many_refs(&bench);
                idle_polls(&bench, &mut process, subject.name, &format!("{REFS} refs"), table);
            }
        }
    }
}

/// Measures polls that find nothing new.
fn idle_polls(bench: &Bench, process: &mut Running, subject: &str, what: &str, table: &mut Table) {
    for _ in 0..bench.options.updates {
        process.settle();
        bench.server.forget();
        let before = process.processor();
        process.poll();
        process.settle();
        let hits = bench.server.hits();
        let bytes: u64 = hits.iter().map(|hit| hit.up + hit.down).sum();
        table.add(&format!("poll with nothing new, {what}: bytes"), "kB", subject, bytes as f64 / 1e3);
        let spent = (process.processor() - before) * 1e3;
        table.add(&format!("poll with nothing new, {what}: processor"), "ms", subject, spent);
    }
}

fn many_refs(bench: &Bench) {
    let tip = git(&bench.repository.path, &["rev-parse", "main"]);
    let mut packed = String::from("# pack-refs with: peeled fully-peeled sorted \n");
    let _ = writeln!(packed, "{tip} refs/heads/main");
    for number in 0..REFS {
        let _ = writeln!(packed, "{tip} refs/pull/{number:06}/head");
    }
    std::fs::write(bench.repository.path.join("packed-refs"), packed).expect("space");
}
