//! One run per point: restore the root, run up to the point, check the root, restart without the remote, check, restart
//! with the remote and check three times, then check for left-overs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{Ran, Snapshot, World, allowed, root, run};
use crate::scenario::{ONCE, Scenario, Stage, restore};
use crate::tracer::{Act, Seen, Trace, Traced};

/// The points of a scenario that are run.
#[derive(Clone, Copy)]
pub struct Sample {
    /// The distance of two points; 1 for all points.
    pub step: usize,
    /// The first point, counted from 1.
    pub from: usize,
}

impl Sample {
    pub const ALL: Self = Self { step: 1, from: 1 };
}

/// The result of a scenario.
#[derive(Default)]
pub struct Report {
    /// The number of runs that reached their point.
    pub points: usize,
    /// What was wrong, by point.
    pub failures: BTreeMap<usize, String>,
    /// How often each system call was the one at the point.
    pub calls: BTreeMap<&'static str, usize>,
    /// The runs of which the recovery was killed as well.
    pub twice: usize,
}

/// How a run is disturbed, which also decides how its end is judged.
#[derive(Clone, Copy)]
pub enum Disturbance {
    /// SIGKILL before the call.
    Kill,
    /// The call fails with this errno.
    Error(i32),
    /// This call and all later ones that need space or write access fail with this errno.
    ErrorsFromNowOn(i32),
    /// SIGTERM: the program must end by itself soon.
    Terminate,
    /// SIGKILL, and again before this change, counted from 1, of the run that recovers.
    KillTwice(usize),
    #[allow(dead_code)] // used by the power binary
    /// The file system is shut down with this flag, unmounted and mounted again.
    PowerCut(u32),
}

impl Disturbance {
    fn act(self) -> Act {
        match self {
            Self::Kill | Self::KillTwice(_) => Act::Kill,
            Self::Terminate => Act::Terminate,
            Self::Error(errno) => Act::Fail(errno),
            Self::ErrorsFromNowOn(errno) => Act::FailFromNowOn(errno),
            Self::PowerCut(flag) => Act::PowerCut(flag),
        }
    }
}

/// Where the root is, and how it is mounted again after a power cut.
pub trait Place: Sync {
    /// Creates the world of a worker.
    fn world(&self, worker: usize) -> World;
    /// Mounts the file system again after a power cut.
    fn remount(&self, _world: &World) {}
    /// Restores the root to its saved state, durably.
    fn restore(&self, world: &World, saved: &Path) {
        restore(saved, &world.root);
    }
}

/// A root on a memory file system.
pub struct Memory;

impl Place for Memory {
    fn world(&self, _worker: usize) -> World {
        World::new()
    }
}

/// Runs every point of the sample, in parallel.
pub fn sweep(scenario: &Scenario, disturbance: Disturbance, sample: Sample, place: &dyn Place) -> Report {
    let next = AtomicUsize::new(0);
    let beyond = AtomicUsize::new(0); // successive runs that ended before their point: the scenario has no more points
    let twice = AtomicUsize::new(0);
    let report = Mutex::new(Report::default());
    let workers = std::thread::available_parallelism().map_or(2, |n| n.get().min(8));
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let (next, beyond, twice, report) = (&next, &beyond, &twice, &report);
            scope.spawn(move || {
                let world = place.world(worker);
                let stage = (scenario.prepare)(&world);
                let saved = world.dir().join("saved");
                let bench = Bench { scenario, stage, saved, world, place, twice };
                bench.save();
                // The number of calls varies from run to run, so stop only after several runs that did not reach their
                // point.
                while beyond.load(Ordering::Relaxed) < 3 && report.lock().unwrap().failures.len() < 50 {
                    let point = sample.from + sample.step * next.fetch_add(1, Ordering::Relaxed);
                    let outcome = bench.point(point, disturbance);
                    let mut report = report.lock().unwrap();
                    match outcome {
                        Ok(None) => {
                            beyond.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(Some(at)) => {
                            beyond.store(0, Ordering::Relaxed);
                            report.points += 1;
                            *report.calls.entry(at.call).or_default() += 1;
                        }
                        Err(wrong) => {
                            beyond.store(0, Ordering::Relaxed);
                            report.points += 1;
                            report.failures.insert(point, wrong);
                        }
                    }
                }
            });
        }
    });
    Report { twice: twice.into_inner(), ..report.into_inner().unwrap() }
}

/// A worker that runs points of a scenario.
struct Bench<'a> {
    scenario: &'a Scenario,
    stage: Stage,
    world: World,
    saved: PathBuf,
    place: &'a dyn Place,
    /// The recoveries that were killed as well.
    twice: &'a AtomicUsize,
}

impl Bench<'_> {
    fn save(&self) {
        if self.world.root.exists() {
            restore(&self.world.root, &self.saved);
        }
    }

    /// Runs one point. `None`: the run ended before the point.
    fn point(&self, point: usize, disturbance: Disturbance) -> Result<Option<Seen>, String> {
        self.place.restore(&self.world, &self.saved);
        let traced = self.run(point, disturbance.act());
        if !traced.acted {
            let said = self.stage.says.is_none_or(|words| traced.stderr.contains(words));
            return match (traced.code, said) {
                (Some(0), true) => Ok(None),
                (Some(0), false) => Err(format!("undisturbed, it did something else: {}", traced.stderr)),
                _ => Err(format!("undisturbed, it failed: {traced:?}")),
            };
        }
        let at = traced.seen.get(point - 1).cloned().expect("the point was reached");
        self.judge(&traced, disturbance).map_err(|wrong| {
            let before = &traced.seen[..point - 1];
            let context: Vec<String> =
                before.iter().rev().take(3).rev().map(|seen| format!("  after  {seen}")).collect();
            format!("{} point {point}: before {at}\n{}\n{wrong}", self.scenario.name, context.join("\n"))
        })?;
        Ok(Some(at))
    }

    fn run(&self, point: usize, act: Act) -> Traced {
        let mut trace = Trace { idle: self.stage.idle, ..Trace::at(&self.world.root, point, act) };
        if act == Act::Terminate {
            trace.limit = allowed(Duration::from_secs(20)); // 5 s after the signal, and the time to reach the point
        }
        if let Some((before, _)) = &self.stage.ref_moves {
            self.world.remote.reset(before);
        }
        let traced = trace.run(self.sync(self.stage.run), self.world.dir()).expect("tracing works");
        if let Some((_, after)) = &self.stage.ref_moves {
            self.world.remote.reset(after);
        }
        assert!(!traced.timed_out, "it did not end: {traced:?}");
        traced
    }

    /// Checks the end of the disturbed run, the root, and the following runs.
    fn judge(&self, traced: &Traced, disturbance: Disturbance) -> Result<(), String> {
        match disturbance {
            Disturbance::PowerCut(_) => self.place.remount(&self.world),
            Disturbance::Error(_) | Disturbance::ErrorsFromNowOn(_) => self.ended_in_words(traced)?,
            // The loop must exit with 0. A run with --one-time may have finished or not.
            Disturbance::Terminate if self.stage.idle.is_some() && traced.code != Some(0) => {
                return Err(format!("after SIGTERM it ended with {:?}\n{}", traced.code, traced.stderr));
            }
            Disturbance::Terminate
                if !matches!(traced.code, Some(0..=100)) || traced.stderr.contains("panicked") =>
            {
                return Err(format!("after SIGTERM it ended with {:?}\n{}", traced.code, traced.stderr));
            }
            _ => {}
        }
        let seen = self.check_reader("at once", disturbance)?;
        if let Disturbance::KillTwice(second) = disturbance {
            let _away = self.stage.away(&self.world);
            let trace = Trace::at(&self.world.root, second, Act::Kill);
            let recovery = trace.run(self.sync(ONCE), self.world.dir()).map_err(|error| error.to_string())?;
            if recovery.acted {
                self.twice.fetch_add(1, Ordering::Relaxed);
                self.check_reader("at once after the second kill", disturbance)?;
            }
        }
        self.without_the_remote(seen.is_some() || self.stage.published, disturbance)?;
        for cycle in ["restarted with the remote", "a cycle later", "two cycles later"] {
            self.once().filter(Ran::ok, cycle)?;
            let wrong = root::differences(&self.world.root, &self.stage.tip);
            if !wrong.is_empty() {
                return Err(format!("{cycle}, the tip is not what is published:\n{}", wrong.join("\n")));
            }
        }
        let left = root::left_behind(&self.world.root, 1);
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("two cycles later, left behind:\n{}", left.join("\n")))
        }
    }

    /// Checks that a reader finds one of the acceptable trees, complete. Returns the tree's name.
    fn check_reader(&self, when: &str, disturbance: Disturbance) -> Result<Option<&str>, String> {
        let acceptable: Vec<_> = self.acceptable(disturbance).collect();
        let found = root::which(&self.world.root, &acceptable).map_err(|wrong| format!("{when}: {wrong}"))?;
        if found.is_none() && self.stage.published {
            return Err(format!("{when}: nothing is published, though something was"));
        }
        Ok(found)
    }

    fn acceptable(&self, disturbance: Disturbance) -> impl Iterator<Item = (&'static str, &Snapshot)> {
        let failed = matches!(disturbance, Disturbance::Error(_) | Disturbance::ErrorsFromNowOn(_));
        let partial = self.stage.partial.iter().filter(move |_| failed);
        self.stage.acceptable.iter().chain(partial).map(|(name, snapshot)| (*name, snapshot))
    }

    /// Checks that a start without the remote serves what was published, with repaired links, and fails without a
    /// panic.
    fn without_the_remote(&self, published: bool, disturbance: Disturbance) -> Result<(), String> {
        let away = self.stage.away(&self.world);
        let ran = self.once();
        drop(away);
        let when = "restarted without the remote";
        if ran.stderr.contains("panicked") || ran.status.code().is_none() {
            return Err(format!("{when}: {}\n{}", ran.status, ran.stderr));
        }
        let Some(found) = self.check_reader(when, disturbance)? else {
            return if published {
                Err(format!("{when}: nothing is published any more\n{}", ran.stderr))
            } else {
                Ok(())
            };
        };
        let (_, snapshot) =
            self.acceptable(disturbance).find(|(name, _)| *name == found).expect("it was found");
        let wrong = root::wrong_links(&self.world.root, snapshot);
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(format!("{when}, {found}: {}\n{}", wrong.join("\n"), ran.stderr))
        }
    }

    fn sync(&self, args: &[&str]) -> std::process::Command {
        self.stage.sync(&self.world, args)
    }

    fn once(&self) -> Ran {
        run::to_end(&mut self.sync(ONCE))
    }

    /// Checks the end after an injected error: an error message, or success in spite of it.
    fn ended_in_words(&self, traced: &Traced) -> Result<(), String> {
        let failed_well = matches!(traced.code, Some(1..=100)) && traced.stderr.contains("treeswap: ");
        if traced.stderr.contains("panicked") || !(traced.code == Some(0) || failed_well) {
            return Err(format!("it did not end in words: {:?}\n{}", traced.code, traced.stderr));
        }
        if traced.code == Some(0) && self.stage.idle.is_none() {
            let tip = &self.stage.tip;
            root::which(&self.world.root, &[("the tip", tip)])
                .and_then(|found| found.ok_or_else(|| "nothing is published".to_owned()))
                .and_then(|_| root::unreachable(&self.world.root, tip))
                .map_err(|wrong| format!("it says that all is well, but: {wrong}\n{}", traced.stderr))?;
        }
        Ok(())
    }
}

trait Filter: Sized {
    fn filter(self, good: impl Fn(&Self) -> bool, when: &str) -> Result<Self, String>;
}

impl Filter for Ran {
    fn filter(self, good: impl Fn(&Self) -> bool, when: &str) -> Result<Self, String> {
        if good(&self) { Ok(self) } else { Err(format!("{when}: {}\n{}", self.status, self.stderr)) }
    }
}
