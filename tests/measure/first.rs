//! Measures a first sync, from an empty directory to the published link.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::repository::NUMBER;
use crate::subject::{COPIES, How, OURS, treeswap};
use crate::table::Table;
use crate::{Bench, directory};

/// Sparse patterns that select about 5 % of the files.
const SPARSE: &str = "/core-services/*[02468]/\n";

pub fn measure(bench: &Bench, table: &mut Table) {
    bench.repository.publish(0);
    let sparse = bench.home.path().join("sparse");
    std::fs::write(&sparse, format!("/{NUMBER}\n{SPARSE}")).expect("space");
    let sparse = format!("--sparse-checkout-file={}", sparse.display());
    let half = Group::new();
    if half.is_none() {
        table.note(
            "half a processor: no control group can be made here (it needs root and the controller `cpu`)",
        );
    }
    one(bench, table, "first sync", &[], None);
    one(bench, table, "first sync of 5 % of the files", &[&sparse], None);
    for filter in ["--filter=blob:none", "--filter=tree:0"] {
        one(bench, table, &format!("first sync of 5 % of the files, {filter}"), &[&sparse, filter], None);
    }
    if let Some(half) = &half {
        one(bench, table, "first sync at half a processor", &[], Some(&half.0));
    }
    if !bench.wants("binary") {
        return;
    }
    let size = std::fs::metadata(treeswap()).expect("the binary is there").len();
    table.add("binary", "MB", OURS, size as f64 / 1e6);
}

fn one(bench: &Bench, table: &mut Table, row: &str, more: &[&str], group: Option<&Path>) {
    if !bench.wants(row) {
        return;
    }
    // The way in which the spare is prepared makes no difference to the first sync.
    for subject in bench.subjects.iter().filter(|subject| subject.name != COPIES) {
        let world = directory(&bench.options);
        bench.server.forget();
        bench.asked.lock().expect("no test thread panicked").take();
        let start = Instant::now();
        let how = How { url: &bench.url(), period: "1h", keep: "0s", more, group };
        let mut process = subject.start(how, world.path());
        process.reaches(0);
        table.add(row, "s", subject.name, start.elapsed().as_secs_f64());
        if group.is_none() {
            table.add(&format!("{row}: processor"), "s", subject.name, process.processor());
            let asked = bench.asked.lock().expect("no test thread panicked").expect("it asked");
            table.add(
                &format!("{row}: start to first request"),
                "ms",
                subject.name,
                (asked - start).as_secs_f64() * 1e3,
            );
            let bytes: u64 = bench.server.hits().iter().map(|hit| hit.up + hit.down).sum();
            table.add(&format!("{row}: bytes"), "MB", subject.name, bytes as f64 / 1e6);
        }
    }
}

/// A cgroup (v2 or v1) with half a processor, which is removed when dropped.
struct Group(PathBuf);

impl Group {
    fn new() -> Option<Self> {
        let name = format!("treeswap-bench-{}", std::process::id());
        let two = Path::new("/sys/fs/cgroup").join(&name);
        let one = Path::new("/sys/fs/cgroup/cpu").join(&name);
        let files = [(two, "cpu.max", "50000 100000"), (one, "cpu.cfs_quota_us", "50000")];
        files.into_iter().find_map(|(path, file, limit)| {
            std::fs::create_dir(&path).ok()?;
            let group = Self(path);
            // Open without creating: without the controller the file does not exist.
            let mut options = std::fs::OpenOptions::new();
            let mut file = options.write(true).open(group.0.join(file)).ok()?;
            std::io::Write::write_all(&mut file, limit.as_bytes()).ok()?;
            Some(group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20)); // its last process is still exiting
        }
    }
}
