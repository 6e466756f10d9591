//! Random sequences of operations on a root, compared with a small model: whatever is published, pinned, damaged,
//! restarted and reaped, the link names what was published last, and every generation that must be kept exists.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;

use proptest::prelude::*;

use super::*;
use crate::clock::Now;

const GRACE: u64 = 30;
const MAX_PIN: u64 = 100;
const MAX_GENERATIONS: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    Publish(&'static str),
    Pin,
    Unpin(prop::sample::Index),
    Wait(u64),
    Reap,
    Restart,
    Mend,
    Break(Damage),
}

#[derive(Clone, Copy, Debug)]
enum Damage {
    LinkRemoved,
    LinkTurnedAway,
    LinkBecameDirectory,
    RootLinksRemoved,
    StaleTemporary,
    LeftOvers,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let damage = prop::sample::select(vec![
        Damage::LinkRemoved,
        Damage::LinkTurnedAway,
        Damage::LinkBecameDirectory,
        Damage::RootLinksRemoved,
        Damage::StaleTemporary,
        Damage::LeftOvers,
    ]);
    let step = prop_oneof![
        4 => prop::sample::select(vec!["a", "ab", "bc", "abcd", ""]).prop_map(Step::Publish),
        2 => Just(Step::Pin),
        1 => any::<prop::sample::Index>().prop_map(Step::Unpin),
        2 => (1u64..60).prop_map(Step::Wait),
        3 => Just(Step::Reap),
        1 => Just(Step::Restart),
        1 => Just(Step::Mend),
        2 => damage.prop_map(Step::Break),
    ];
    prop::collection::vec(step, 1..40)
}

/// The model: the generations in the root, their times of retirement, and the pins.
#[derive(Default)]
struct Model {
    /// Retired generations, with the time of retirement in seconds.
    retired: BTreeMap<Name, u64>,
    current: Option<(Name, Tree)>,
    pins: Vec<(Name, Consumer)>,
    time: u64,
}

impl Model {
    fn pinned(&self, name: &Name) -> bool {
        self.pins.iter().any(|(pinned, _)| pinned == name)
    }

    /// The retired generations that reaping may leave if `incoming` generations are about to be written.
    fn reap(&mut self, incoming: usize) {
        let age = |at: &u64| self.time - at;
        let doomed: Vec<Name> = (self.retired.iter())
            .filter(|(name, at)| age(at) >= GRACE && !(self.pinned(name) && age(at) < MAX_PIN))
            .map(|(name, _)| name.clone())
            .collect();
        self.retired.retain(|name, _| !doomed.contains(name));
        while self.retired.len() + usize::from(self.current.is_some()) + incoming > MAX_GENERATIONS {
            let first = self.retired.keys().min_by_key(|name| (self.pinned(name), (*name).clone())).cloned();
            self.retired.remove(&first.unwrap());
        }
    }
}

struct Run {
    world: World,
    store: Option<Store>,
    model: Model,
    start: Now,
}

impl Run {
    fn new() -> Self {
        let world = World::new();
        let model = Model::default();
        let store = Some(Store::open(Self::options(&world)).unwrap().0);
        // Ahead of the real clock, so that only the model's time counts.
        let start = clock::now();
        let start = Now { boottime: start.boottime + Duration::from_secs(1000), ..start };
        Self { world, store, model, start }
    }

    fn options(world: &World) -> Options {
        let mut options = world.options();
        options.retention.max_pin = Duration::from_secs(MAX_PIN);
        options.retention.max_generations = MAX_GENERATIONS as u32;
        options
    }

    fn now(&self) -> Now {
        Now { boottime: self.start.boottime + Duration::from_secs(self.model.time), ..self.start.clone() }
    }

    fn store(&mut self) -> &mut Store {
        self.store.as_mut().unwrap()
    }

    fn step(&mut self, step: &Step) {
        let now = self.now();
        match step {
            Step::Publish(names) => self.publish(&files(names, &self.model.time.to_string()), &now),
            Step::Pin => {
                if let Some((name, _)) = &self.model.current {
                    self.model.pins.push((name.clone(), Consumer::of(&self.world)));
                }
            }
            Step::Unpin(which) => {
                if !self.model.pins.is_empty() {
                    self.model.pins.remove(which.index(self.model.pins.len()));
                }
            }
            Step::Wait(seconds) => self.model.time += seconds,
            Step::Reap => {
                let plan = self.store().plan(&now);
                self.store().reap(&plan);
                self.model.reap(0);
            }
            Step::Restart => {
                self.store = None;
                self.store = Some(Store::open(Self::options(&self.world)).unwrap().0);
            }
            Step::Mend => drop(self.store().repair(&now).unwrap()),
            Step::Break(damage) => {
                self.damage(*damage);
                self.store().repair(&now).unwrap();
            }
        }
        self.check();
    }

    fn publish(&mut self, tree: &Tree, now: &Now) {
        // The store makes room by its own clock, which is behind the model's: only the ceiling can ask for it.
        let before = self.store().generations().len();
        let staged = self.store().stage(&of(tree), "all", &Blobs::of(&[tree]), &go()).unwrap();
        if before + 1 > MAX_GENERATIONS {
            let order = |name: &Name| (self.model.pinned(name), name.clone());
            let first = self.model.retired.keys().min_by_key(|name| order(name)).cloned().unwrap();
            self.model.retired.remove(&first);
        }
        let published = self.store().publish(staged, now).unwrap();
        assert_eq!(published.warnings, [""; 0]);
        let new = published.current.name.clone();
        if let Some((old, _)) = self.model.current.replace((new, tree.clone())) {
            self.model.retired.insert(old, self.model.time);
        }
    }

    fn damage(&self, damage: Damage) {
        let world = &self.world;
        let link = world.at("..data");
        match damage {
            Damage::LinkRemoved | Damage::LinkTurnedAway | Damage::LinkBecameDirectory => {
                let _ = fs_err::remove_file(&link);
                match damage {
                    Damage::LinkTurnedAway => symlink("../elsewhere", link).unwrap(),
                    Damage::LinkBecameDirectory => fs_err::create_dir(link).unwrap(),
                    _ => {}
                }
            }
            Damage::RootLinksRemoved => {
                let links = world.names().into_iter().filter(|name| !name.starts_with(".."));
                links.for_each(|name| fs_err::remove_file(world.at(&name)).unwrap());
            }
            Damage::StaleTemporary => symlink("..2001_01_01_00_00_00.1", world.at("..data_tmp")).unwrap(),
            Damage::LeftOvers => {
                fs_err::create_dir_all(world.at("..treeswap/trash/left/over")).unwrap();
            }
        }
    }

    fn check(&mut self) {
        let expected = self.model.current.as_ref();
        let store = self.store.as_ref().unwrap();
        assert_eq!(store.current().map(|record| &record.name), expected.map(|(name, _)| name));
        if let Some((_, tree)) = expected {
            self.world.assert_serves(tree);
        }
        let mut names: Vec<&Name> = self.model.retired.keys().chain(expected.map(|(name, _)| name)).collect();
        names.sort();
        names.reverse();
        assert_eq!(store.generations().iter().map(|record| &record.name).collect::<Vec<_>>(), names);
        for name in names {
            assert!(self.world.at(name.as_str()).is_dir(), "{name} is on record and not in the root");
        }
        let there = self.world.names().into_iter().filter(|name| name == "..G").count();
        assert_eq!(there, store.generations().len(), "a generation is in the root and not on record");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_life_of_a_root_agrees_with_the_model(steps in steps()) {
        let mut run = Run::new();
        for step in &steps {
            run.step(step);
        }
    }
}
