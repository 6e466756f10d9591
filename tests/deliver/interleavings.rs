//! Two appliers, one of them with an older revision, their steps in every order there is.
//!
//! Each takes six: it reads, asks the remote, writes one ConfigMap, writes another, asks again, records. The newer
//! revision is pushed just before its applier's first step, so until then the remote names the older one. That makes
//! C(12, 6) = 924 orders, of which `cargo test` plays a sample, and `TREESWAP_TESTS=full` all. Where the older applier
//! is killed before its last question, its two last steps fall away: C(10, 4) = 210 orders.
//!
//! The maps are such that either danger of a race is there: `both` is changed by both revisions, so the writes conflict;
//! `back` is changed by the older and back in the newer, so that the newer one finds it right and has nothing to write.
//!
//! A map that only the older revision has is created where the newer one finds nothing to delete.
//!
//! The same orders are played with two sources, of which the one that `back` and `both` are made of is away for the older
//! applier once the newer revisions are pushed: it has the old commit of that source and the new one of the other.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use serde_json::Value;
use tokio::sync::{Mutex as Turn, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use treeswap::configmap::apply::{PlacedSource, Placement, RepairLimit};
use treeswap::deliver::{Options, Outcome, Relation, Report, Target, deliver};
use treeswap::retry::Backoff;
use treeswap::revision::Revision;
use treeswap::sources::Named;

use crate::common::full;
use crate::kubernetes::{Kubernetes, text};
use crate::proxy::Proxy;
use crate::script::{
    Answer, Everywhere, Plans, Script, data, desired_of, files, load, plans, revision, run, runtime,
};

const RULES: &str =
    "maps: {back/*: {name: back}, both/*: {name: both}, gone/*: {name: gone}, new/*: {name: new}}";
const BASE: u8 = 1;
const OLDER: u8 = 2;
const NEWER: u8 = 3;
const MIXED: u8 = 4;
const FILES: [(u8, &[(&str, &str)]); 4] = [
    (BASE, &[("back/k", "base"), ("both/k", "base"), ("new/k", "base")]),
    (OLDER, &[("back/k", "older"), ("both/k", "older"), ("new/k", "base")]),
    (NEWER, &[("back/k", "base"), ("both/k", "newer"), ("new/k", "newer")]),
    (MIXED, &[("back/k", "older"), ("both/k", "older"), ("new/k", "newer")]),
];

/// The older revision of the orders with a map that is gone in the newer one.
const ADDS: &[(&str, &str)] =
    &[("back/k", "base"), ("both/k", "base"), ("gone/k", "older"), ("new/k", "base")];

/// What a step does. Requests of one reading belong together, and so do those of one recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Read,
    Ask,
    Write,
    Record,
}

/// Where an applier stops before each of its steps, until it is let go on.
struct Gate {
    last: Turn<Option<Step>>,
    arrived: mpsc::UnboundedSender<Event>,
    open: Semaphore,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    Arrived(Step),
    Ended,
}

impl Gate {
    async fn pass(&self, step: Step) {
        // Kept while waiting: what belongs to the same step waits with it, and then goes on with it.
        let mut last = self.last.lock().await;
        if *last == Some(step) && matches!(step, Step::Read | Step::Record) {
            return;
        }
        *last = Some(step);
        let _ = self.arrived.send(Event::Arrived(step)); // nobody listens to one that was killed
        self.open.acquire().await.unwrap().forget();
    }
}

/// Where the gate of the applier is that goes through a proxy at the moment.
type Slot = Arc<Mutex<Option<Arc<Gate>>>>;

fn gate(slot: &Slot) -> Option<Arc<Gate>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// A proxy whose requests are an applier's steps.
fn proxy() -> (Proxy, Slot) {
    let slot = Slot::default();
    let seen = Arc::clone(&slot);
    let pass = move |method: &str, uri: &str| {
        let step = match method {
            "GET" => Step::Read,
            _ if uri.contains("/treeswap-") => Step::Record,
            _ => Step::Write,
        };
        let gate = gate(&seen);
        async move {
            if let Some(gate) = gate {
                gate.pass(step).await;
            }
        }
        .boxed()
    };
    (Proxy::gated(Kubernetes::shared(), Box::new(pass)), slot)
}

/// What all share: a namespace, and two ways to it.
struct Stage {
    namespace: String,
    plans: Arc<Plans>,
    /// What the older applier finds the refs to name after the push.
    pushed: Named,
    /// Whether the appliers delete what no file feeds any more.
    prune: bool,
    ways: [(Proxy, Slot); 2],
}

/// One applier under way.
struct Applier {
    gate: Arc<Gate>,
    events: mpsc::UnboundedReceiver<Event>,
    task: tokio::task::JoinHandle<Report>,
    at: Event,
    steps: Vec<Step>,
}

impl Applier {
    /// Starts with its own revision and stops before its first step.
    async fn start(stage: &Stage, way: usize, own: Revision, named: Arc<Mutex<Named>>) -> Self {
        let (arrived, events) = mpsc::unbounded_channel();
        let gate = Arc::new(Gate { last: Turn::new(None), arrived, open: Semaphore::new(0) });
        let (proxy, slot) = &stage.ways[way];
        *slot.lock().unwrap() = Some(Arc::clone(&gate));
        let asked = Arc::clone(&gate);
        let answer = move |at: usize| -> Answer {
            let (gate, named) = (Arc::clone(&asked), Arc::clone(&named));
            Box::pin(async move {
                if at == 0 {
                    return Ok(own.into()); // when it began that was the newest
                }
                gate.pass(Step::Ask).await;
                Ok(named.lock().unwrap().clone())
            })
        };
        let input = Arc::new(Script {
            answer: Box::new(answer),
            asked: AtomicUsize::new(0),
            plans: Arc::clone(&stage.plans),
            relation: Ok(Relation::Unknown),
        });
        let clusters = load(&[("test", proxy.access("writer"))]);
        let ends = Arc::clone(&gate);
        let options = options(stage.prune);
        let task = tokio::spawn(async move {
            let cluster = Everywhere(clusters.get("default").unwrap().clone());
            let report = deliver(input, &cluster, &options, &CancellationToken::new()).await.unwrap();
            let _ = ends.arrived.send(Event::Ended);
            report
        });
        let mut applier = Self { gate, events, task, at: Event::Ended, steps: Vec::new() };
        applier.arrive().await;
        applier
    }

    async fn arrive(&mut self) {
        let next = tokio::time::timeout(Duration::from_secs(120), self.events.recv());
        self.at = next.await.expect("an applier goes on").expect("an applier does not panic");
    }

    /// One step, if it has any left.
    async fn step(&mut self) {
        if let Event::Arrived(step) = self.at {
            self.steps.push(step);
            self.gate.open.add_permits(1);
            self.arrive().await;
        }
    }

    /// All steps that it has left.
    async fn finish(mut self) -> (Report, Vec<Step>) {
        while self.at != Event::Ended {
            self.step().await;
        }
        (self.task.await.unwrap(), self.steps)
    }
}

/// One at a time, without pauses, and no repair is too many: the same maps serve for hundreds of orders.
fn options(prune: bool) -> Options {
    let pause = Duration::from_millis(1);
    Options {
        prune,
        concurrency: 1,
        backoff: Backoff { first: pause, ceiling: pause },
        pace: RepairLimit { repairs: usize::MAX, ..RepairLimit::default() },
        ..crate::script::options()
    }
}

/// The value and the stamp of each map.
fn values(stage: &Stage) -> BTreeMap<String, (String, String)> {
    let value = |object: &Value| -> (String, String) {
        let mut data = data(object);
        ["k", "VERSION"].map(|key| data.remove(key).unwrap_or_default()).into()
    };
    let all = Kubernetes::shared().configmaps(&stage.namespace).into_iter();
    let maps = all.filter(|(name, _)| !name.starts_with("treeswap-"));
    maps.map(|(name, object)| (name, value(&object))).collect()
}

/// Why the maps are not the newest revision's, if so.
fn wrong(stage: &Stage) -> Option<String> {
    let (newer, base) = (revision(NEWER).to_string(), revision(BASE).to_string());
    let found = values(stage);
    // What both revisions have alike may carry the stamp of either; nothing carries the older one's.
    let right = found["both"] == ("newer".into(), newer.clone())
        && found["new"].0 == "newer"
        && [&newer, &stage.pushed.revision.to_string()].contains(&&found["new"].1)
        && found["back"].0 == "base"
        && [&newer, &base].contains(&&found["back"].1)
        && !found.contains_key("gone");
    (!right).then(|| format!("{found:#?}"))
}

impl Stage {
    fn new() -> Self {
        let namespace = Kubernetes::shared().namespace("orders");
        crate::script::clusters(&namespace); // the rights of the user
        let plans = plans(RULES, &namespace, &FILES);
        let pushed = revision(NEWER).into();
        Self { namespace, plans, pushed, prune: false, ways: [proxy(), proxy()] }
    }

    /// The older revision only adds a map, and both appliers prune.
    fn with_a_map_that_goes() -> Self {
        let mut stage = Self::new();
        let adds = desired_of(&revision(OLDER).into(), RULES, &stage.namespace, &files(ADDS));
        let mut plans = Arc::unwrap_or_clone(stage.plans);
        plans.insert(revision(OLDER), adds);
        (stage.plans, stage.prune) = (Arc::new(plans), true);
        stage
    }

    /// The older applier sees one source only.
    fn with_a_source_away() -> Self {
        let mut stage = Self::new();
        let source = |name: &str, to: &str, away: bool| PlacedSource {
            name: name.to_owned(),
            to: to.to_owned(),
            moves_to: None,
            revision: Some(revision(1)),
            unanswered: away.then(|| "it is away".to_owned()),
        };
        let sources = Placement::new(vec![
            source("a", "back", true),
            source("b", "both", true),
            source("c", "new", false),
        ]);
        let mixed = Named { revision: revision(MIXED), sources };
        let wanted = desired_of(&mixed, RULES, &stage.namespace, &files(FILES[3].1));
        let mut plans = Arc::unwrap_or_clone(stage.plans);
        plans.insert(mixed.revision, wanted);
        (stage.plans, stage.pushed) = (Arc::new(plans), mixed);
        stage
    }

    /// One revision, alone.
    fn alone(&self, number: u8) -> Report {
        let clusters = load(&[("test", Kubernetes::shared().access("writer"))]);
        let report = run(Script::at(&self.plans, revision(number)), &clusters, &options(self.prune)).unwrap();
        assert!(report.is_success(), "{report:#?}");
        report
    }

    /// Plays one order: `true` is a step of the older applier, which may be killed before its last question. Whether a
    /// resync was needed.
    fn play(&self, order: &[bool], kill: bool) -> bool {
        self.alone(BASE);
        let told = || order.iter().map(|&older| if older { 'o' } else { 'n' }).collect::<String>();
        let runtime = runtime();
        runtime.block_on(async {
            let seen = Arc::new(Mutex::new(Named::from(revision(OLDER))));
            let mut older = Applier::start(self, 0, revision(OLDER), Arc::clone(&seen)).await;
            let named = Arc::new(Mutex::new(Named::from(revision(NEWER))));
            let mut newer = None;
            for &turn in order {
                if turn {
                    older.step().await;
                    continue;
                }
                if newer.is_none() {
                    *seen.lock().unwrap() = self.pushed.clone(); // the push
                    newer = Some(Applier::start(self, 1, revision(NEWER), Arc::clone(&named)).await);
                }
                newer.as_mut().unwrap().step().await;
            }
            if kill {
                older.task.abort();
            } else {
                let (report, steps) = older.finish().await;
                let is_held = |target: &Target| {
                    target.outcome == Outcome::Held && self.pushed.sources.hold_reason().is_some()
                };
                let open =
                    report.targets.iter().filter(|target| !target.outcome.is_success() && !is_held(target));
                assert_eq!(
                    (open.count(), &report.failures),
                    (0, &vec![]),
                    "{}: {steps:?} {report:#?}",
                    told()
                );
            }
            let (report, steps) = newer.unwrap().finish().await;
            assert!(report.is_success(), "{}: {steps:?} {report:#?}", told());
        });
        drop(runtime);
        let at_once = wrong(self);
        let Some(found) = at_once else {
            let marker = Kubernetes::shared().configmap(&self.namespace, "treeswap-set-team");
            let named = text(&marker["data"]["_revision"]);
            let ours = [revision(NEWER).to_string(), self.pushed.revision.to_string()];
            assert!(kill || ours.contains(&named), "{}: {marker}", told());
            return false;
        };
        let is_away = self.pushed.sources.hold_reason().is_some();
        assert!(kill || is_away, "{}: {found}", told());
        self.alone(NEWER);
        assert_eq!(wrong(self), None, "{}: a resync brings it right", told());
        true
    }
}

/// Every order of so many steps of the older and of the newer applier.
fn orders(older: usize, newer: usize) -> Vec<Vec<bool>> {
    if older + newer == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (turn, left) in [(true, older), (false, newer)] {
        if left > 0 {
            let rest = if turn { orders(older - 1, newer) } else { orders(older, newer - 1) };
            all.extend(rest.into_iter().map(|rest| [&[turn], &rest[..]].concat()));
        }
    }
    all
}

/// Plays all, or in a sample every so-many-th; how many, and how many needed a resync.
fn play(stage: &Stage, orders: &[Vec<bool>], sample: usize, kill: bool) -> (usize, usize) {
    let some: Vec<&Vec<bool>> = orders.iter().step_by(if full() { 1 } else { sample }).collect();
    let resynced = some.iter().filter(|order| stage.play(order, kill)).count();
    println!("{} orders, {resynced} right after one resync, the others at once", some.len());
    (some.len(), resynced)
}

#[test]
fn in_whatever_order_two_appliers_take_their_steps_the_newest_revision_holds_at_last() {
    let orders = orders(6, 6);
    assert_eq!(orders.len(), 924);
    let (_, resynced) = play(&Stage::new(), &orders, 42, false);
    assert_eq!(resynced, 0, "its own last question heals what it did");
}

#[test]
fn an_older_applier_that_is_killed_before_its_last_question_is_healed_by_one_resync() {
    let orders = orders(4, 6);
    assert_eq!(orders.len(), 210);
    let (_, resynced) = play(&Stage::new(), &orders, 15, true);
    assert!(resynced > 0, "at least one order of the sample leaves an older value behind");
}

/// It announces the map in the inventory first, and is overtaken before or after it creates it.
#[test]
fn what_an_older_applier_creates_after_the_newer_one_has_dropped_it_is_deleted() {
    let mut orders: Vec<_> = orders(3, 6).into_iter().map(|rest| [&[true; 3], &rest[..]].concat()).collect();
    assert_eq!(orders.len(), 84);
    orders.reverse(); // the first is that in which the newer one does all before the map is created
    let (_, resynced) = play(&Stage::with_a_map_that_goes(), &orders, 7, false);
    assert_eq!(resynced, 0, "its own last question heals what it did");
}

/// What it wrote before the push and was overtaken by is healed as after a kill: it does not know what to write instead.
#[test]
fn what_an_applier_for_which_a_source_is_away_leaves_behind_is_healed_by_one_resync() {
    let orders = orders(6, 6);
    let (played, resynced) = play(&Stage::with_a_source_away(), &orders, 42, false);
    assert!(resynced > 0 && resynced < played / 2, "{resynced} of {played}");
}
