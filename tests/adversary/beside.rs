//! Beside treeswap, under the same pushes: what others get of two refs that move together who have each of them from a
//! program of its own. Two git-syncs where TREESWAP_TEST_GIT_SYNC names one, else two treeswaps of one ref each; and a
//! volume that is projected from two watches.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::run::Background;
use crate::common::{Random, Remote, World, eventually, git_sync};

/// The refs; the file that is read of each holds a number after a word.
const REFS: [&str; 2] = ["x", "y"];

/// The number at the end of what a file holds.
pub fn number(text: std::io::Result<String>) -> Option<usize> {
    text.ok()?.split_whitespace().nth(1)?.parse().ok()
}

/// How often a pair was read, and how often it was one that never was.
#[derive(Default)]
pub struct Pairs {
    pub reads: u64,
    pub mixed: u64,
}

impl Pairs {
    /// Counts a pair that was read, if both numbers were there.
    fn count(&mut self, pair: [Option<usize>; 2], were_together: &impl Fn(usize, usize) -> bool) {
        if let [Some(x), Some(y)] = pair {
            self.reads += 1;
            self.mixed += u64::from(!were_together(x, y));
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

pub struct Beside<'a> {
    what: &'static str,
    /// The file of each ref, through the link of its program.
    files: [PathBuf; 2],
    volume: PathBuf,
    remote: &'a Remote,
    _running: [Background; 2],
}

impl<'a> Beside<'a> {
    /// Starts both programs, and waits until each has published.
    pub fn start(world: &World, remote: &'a Remote, url: &str) -> Self {
        let program = git_sync::program();
        let one = |name: &str| {
            let root = world.dir().join(format!("alone-{name}"));
            let (mut command, link) = match &program {
                Some(program) => {
                    let mut command = git_sync::command(world, program);
                    command.args(["--link=current", "--max-failures=-1", "--stale-worktree-timeout=1m"]);
                    (command, "current")
                }
                None => (world.treeswap(&["sync", "--min-interval=0s", "--grace=1m"]), "..data"),
            };
            command.args(["--repo", url, "--ref", name, "--period=100ms", "--sync-timeout=5s", "--root"]);
            let log = world.dir().join(format!("alone-{name}.log"));
            (Background::start(command.arg(&root), &log), root.join(link).join("k0"))
        };
        let [(x, file_of_x), (y, file_of_y)] = REFS.map(one);
        let files = [file_of_x, file_of_y];
        for file in &files {
            eventually(60, &format!("{} is published", file.display()), || file.exists().then_some(()));
        }
        let what = if program.is_some() {
            "two git-syncs"
        } else {
            "two treeswaps of one ref each (TREESWAP_TEST_GIT_SYNC names no git-sync)"
        };
        let volume = world.dir().join("volume");
        Self { what, files, volume, remote, _running: [x, y] }
    }

    /// Reads pairs until told to stop; what was read, a line for people each.
    pub fn read(
        &self,
        were_together: impl Fn(usize, usize) -> bool + Sync,
        stop: &AtomicBool,
    ) -> [String; 2] {
        let (apart, of_volume) = std::thread::scope(|scope| {
            let apart = scope.spawn(|| self.apart(&were_together, stop));
            let of_volume = scope.spawn(|| self.of_volume(&were_together, stop));
            self.project(stop);
            (apart.join().unwrap(), of_volume.join().unwrap())
        });
        let line = |what, Pairs { reads, mixed }| {
            assert!(reads > 0, "{what}: nothing was read");
            format!("  beside it, {what}: {mixed} of {reads} reads mixed")
        };
        [line(self.what, apart), line("a volume that is projected from two watches, simulated", of_volume)]
    }

    /// One file after the other, as a program reads that has two directories.
    fn apart(&self, were_together: &impl Fn(usize, usize) -> bool, stop: &AtomicBool) -> Pairs {
        let mut pairs = Pairs::default();
        while !stop.load(Ordering::Relaxed) {
            let pair = self.files.each_ref().map(|file| number(std::fs::read_to_string(file)));
            pairs.count(pair, were_together);
        }
        pairs
    }

    /// Both files of the volume as it was at one moment: its link is resolved once.
    fn of_volume(&self, were_together: &impl Fn(usize, usize) -> bool, stop: &AtomicBool) -> Pairs {
        let mut pairs = Pairs::default();
        while !stop.load(Ordering::Relaxed) {
            if let Ok(set) = self.volume.join("..data").canonicalize() {
                let pair = REFS.map(|name| number(std::fs::read_to_string(set.join(name))));
                pairs.count(pair, were_together);
            }
        }
        pairs
    }

    /// As a kubelet does with two ConfigMaps in a projected volume: each is known from a watch of its own, and what is known
    /// of both is swapped in at once.
    fn project(&self, stop: &AtomicBool) {
        std::fs::create_dir_all(&self.volume).unwrap();
        let mut random = Random::new(3);
        let mut known = REFS.map(|_| String::new());
        for round in 0.. {
            for (name, known) in REFS.iter().zip(&mut known) {
                if random.below(2) == 0 || known.is_empty() {
                    *known = self.remote.git(&["show", &format!("refs/heads/{name}:k0")]);
                }
            }
            let new = self.volume.join(format!("..{round}"));
            std::fs::create_dir(&new).unwrap();
            for (name, text) in REFS.iter().zip(&known) {
                std::fs::write(new.join(name), text).unwrap();
            }
            let link = self.volume.join("..data_tmp");
            std::os::unix::fs::symlink(format!("..{round}"), &link).unwrap();
            std::fs::rename(link, self.volume.join("..data")).unwrap();
            if stop.load(Ordering::Relaxed) {
                return;
            }
            random.pause(50);
        }
    }
}
