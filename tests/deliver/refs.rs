//! Refs that are forced, lag, move and do not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use treeswap::deliver::{OnRewind, Options, Outcome, Relation, deliver};
use treeswap::sources::SourceError;

use crate::common::eventually;
use crate::kubernetes::Kubernetes;
use crate::proxy::{Fault, Proxy};
use crate::script::{Script, away, clusters, data, load, only, options, plans, revision, run, runtime};

const RULES: &str = "config_updater:\n  maps:\n    jobs/*.yaml:\n      name: job-config\n";
const FILES: [(u8, &[(&str, &str)]); 3] =
    [(1, &[("jobs/a.yaml", "one")]), (2, &[("jobs/a.yaml", "two")]), (3, &[("jobs/a.yaml", "three")])];

/// A namespace in which revision 2 was delivered.
struct Delivered {
    namespace: String,
    plans: Arc<crate::script::Plans>,
}

impl Delivered {
    fn new() -> Self {
        let kubernetes = Kubernetes::shared();
        let namespace = kubernetes.namespace("refs");
        let plans = plans(RULES, &namespace, &FILES);
        let clusters = clusters(&namespace);
        let report = run(Script::at(&plans, revision(2)), &clusters, &options()).unwrap();
        assert_eq!(only(&report).outcome, Outcome::Created);
        Self { namespace, plans }
    }

    fn run(&self, input: Script, options: &Options) -> Result<treeswap::deliver::Report, SourceError> {
        run(input, &load(&[("test", Kubernetes::shared().access("writer"))]), options)
    }

    /// Writes revision 3, and ends before that is in the inventory.
    fn write_without_record(&self) {
        let proxy = Proxy::start(Kubernetes::shared());
        let denied = r#"{"kind":"Status","status":"Failure","message":"no","code":403}"#;
        proxy.plan("PUT", "treeswap-set-team", 0, 1_000, Fault::Answer(403, None, denied));
        let broken = load(&[("test", proxy.access("writer"))]);
        let report = run(Script::at(&self.plans, revision(3)), &broken, &options()).unwrap();
        assert_eq!((only(&report).outcome, report.failures.len()), (Outcome::Replaced, 1), "{report:?}");
    }

    fn content(&self) -> String {
        data(&Kubernetes::shared().configmap(&self.namespace, "job-config"))["a.yaml"].clone()
    }
}

#[test]
fn a_ref_that_was_forced_elsewhere_is_followed_or_held_and_told_in_either_case() {
    let there = Delivered::new();
    let forced = || Script::at(&there.plans, revision(3)).related(Relation::Diverged);
    let holding = Options { on_rewind: OnRewind::Hold, ..options() };
    let report = there.run(forced(), &holding).unwrap();
    assert_eq!(only(&report).outcome, Outcome::Refused);
    assert!(only(&report).why.contains("forced from 020202020202 to 030303030303"), "{report:?}");
    assert_eq!(there.content(), "two");
    let report = there.run(forced(), &options()).unwrap();
    assert_eq!(only(&report).outcome, Outcome::Replaced);
    assert!(report.notes[0].contains("forced"), "{report:?}");
    assert_eq!(there.content(), "three");
}

/// What stayed recorded anywhere would hold the next revision.
#[test]
fn a_forced_ref_that_was_followed_is_recorded_also_where_no_configmap_differs() {
    let namespaces = ["jobs", "docs"].map(|_| Kubernetes::shared().namespace("refs"));
    let [_, clusters] = namespaces.each_ref().map(|namespace| clusters(namespace));
    let [of_jobs, of_docs] = &namespaces;
    let rules = format!(
        "config_updater:\n  maps:\n    jobs/*.yaml: {{name: jobs, clusters: {{default: [{of_jobs}]}}}}\n    \
         docs/*.yaml: {{name: docs, clusters: {{default: [{of_docs}]}}}}\n"
    );
    let two: &[(&str, &str)] = &[("jobs/a.yaml", "two"), ("docs/a.yaml", "docs")];
    let other: &[(&str, &str)] = &[("jobs/a.yaml", "other"), ("docs/a.yaml", "docs")];
    let plans = plans(&rules, of_jobs, &[(2, two), (3, other), (4, other)]);
    run(Script::at(&plans, revision(2)), &clusters, &options()).unwrap();
    // The last one changes nothing at all.
    for (number, settles_rewinds) in [(3, false), (4, true)] {
        let forced = Script::at(&plans, revision(number)).related(Relation::Diverged);
        let report = run(forced, &clusters, &Options { settles_rewinds, ..options() }).unwrap();
        assert!(report.notes.iter().any(|note| note.contains("forced")), "{report:?}");
        for namespace in &namespaces {
            let marker = data(&Kubernetes::shared().configmap(namespace, "treeswap-set-team"));
            assert_eq!(marker["_revision"], revision(number).to_string(), "{namespace}");
        }
    }
}

/// The revision that is on the object, as it was written, is newer than the one in the inventory, which was not.
#[test]
fn what_a_delivery_wrote_and_did_not_record_is_not_overwritten_by_a_ref_that_went_back() {
    let there = Delivered::new();
    there.write_without_record();
    let back = || Script::at(&there.plans, revision(2)).related(Relation::Behind);
    let lag = Duration::from_millis(600);
    let holding = Options { on_rewind: OnRewind::Hold, lag, ..options() };
    let report = there.run(back(), &holding).unwrap();
    assert_eq!(only(&report).outcome, Outcome::Refused, "{report:?}");
    assert!(only(&report).why.contains("went back from 030303030303 to 020202020202"), "{report:?}");
    assert_eq!(there.content(), "three");
    let report = there.run(back(), &Options { lag, ..options() }).unwrap();
    assert!(report.notes[0].contains("went back"), "{report:?}");
    assert_eq!(there.content(), "two");
}

/// To the replica, the revision of the inventory is the newest, and it does not have that of the object.
#[test]
fn what_a_delivery_wrote_and_did_not_record_is_not_overwritten_by_a_replica_that_does_not_have_it_yet() {
    let there = Delivered::new();
    there.write_without_record();
    let lagging = Script::answering(&there.plans, |at| Ok(revision(if at < 4 { 2 } else { 3 })));
    let report = there.run(lagging.related(Relation::UnknownToRemote), &options()).unwrap();
    assert_eq!((report.revision, only(&report).outcome), (revision(3), Outcome::Unchanged), "{report:?}");
    assert_eq!(there.content(), "three");
}

#[test]
fn what_is_unknown_is_no_advance_and_the_ref_decides_unless_it_is_to_hold() {
    let there = Delivered::new();
    let unknown = || Script::at(&there.plans, revision(3)).related(Relation::Unknown);
    let holding = Options { on_rewind: OnRewind::Hold, ..options() };
    let report = there.run(unknown(), &holding).unwrap();
    assert_eq!(only(&report).outcome, Outcome::Refused);
    assert!(only(&report).why.contains("not known"), "{report:?}");
    assert_eq!(there.content(), "two");
    assert_eq!(only(&there.run(unknown(), &options()).unwrap()).outcome, Outcome::Replaced);
    assert_eq!(there.content(), "three");
}

#[test]
fn a_history_that_is_not_to_be_had_for_now_is_asked_for_again_by_who_holds_alone() {
    let there = Delivered::new();
    let silent = || Script::at(&there.plans, revision(3)).silent();
    let holding = Options { on_rewind: OnRewind::Hold, tries: 2, ..options() };
    let report = there.run(silent(), &holding).unwrap();
    assert_eq!(only(&report).outcome, Outcome::Failed);
    assert!(only(&report).transient && report.is_to_be_repeated(), "{report:?}");
    assert_eq!(there.content(), "two");
    assert_eq!(only(&there.run(silent(), &options()).unwrap()).outcome, Outcome::Replaced);
    assert_eq!(there.content(), "three");
}

#[test]
fn a_replica_that_lags_is_asked_again_and_a_ref_that_went_back_is_believed_in_the_end() {
    let there = Delivered::new();
    let before = Kubernetes::shared().versions(&there.namespace);
    // The first answer starts the run; some more say the same before the replica catches up.
    let lagging = Script::answering(&there.plans, |at| Ok(revision(if at < 4 { 1 } else { 2 })));
    let report = there.run(lagging.related(Relation::Behind), &options()).unwrap();
    assert_eq!((report.revision, only(&report).outcome), (revision(2), Outcome::Unchanged));
    assert_eq!(Kubernetes::shared().versions(&there.namespace), before, "nothing was written");
    let back = Script::at(&there.plans, revision(1)).related(Relation::Behind);
    let patience = Duration::from_secs(2);
    let begin = Instant::now();
    let report = there.run(back, &Options { lag: patience, ..options() }).unwrap();
    assert!(begin.elapsed() >= patience);
    assert_eq!(only(&report).outcome, Outcome::Replaced);
    assert!(report.notes[0].contains("went back from 020202020202 to 010101010101"), "{report:?}");
    assert_eq!(there.content(), "one");
}

#[test]
fn a_ref_that_moves_before_or_after_the_writes_is_followed_at_once() {
    for moves_at in [1, 2] {
        let there = Delivered::new();
        let moving =
            Script::answering(&there.plans, move |at| Ok(revision(if at < moves_at { 1 } else { 3 })));
        let report = there.run(moving, &options()).unwrap();
        assert_eq!(report.revision, revision(3));
        assert!(report.is_success());
        assert_eq!(there.content(), "three");
    }
}

/// It moves after one cluster is done and before another one has begun. The newer revision has the same files, so that
/// the next round over the first cluster finds nothing to write.
#[test]
fn what_was_written_before_the_ref_moved_for_another_cluster_is_reported_as_written() {
    let kubernetes = Kubernetes::shared();
    let [a, b] = [(); 2].map(|()| kubernetes.namespace("refs"));
    let rules = format!(
        "config_updater:\n  maps:\n    jobs/*.yaml: {{name: jobs, clusters: {{one: [{a}], two: [{b}]}}}}\n"
    );
    let same: &[(&str, &str)] = &[("jobs/a.yaml", "one")];
    let plans = plans(&rules, &a, &[(1, same), (2, same)]);
    let proxy = Proxy::start(kubernetes);
    proxy.next("GET", "", Fault::HoldBefore);
    let has_moved = Arc::new(AtomicBool::new(false));
    let moved = Arc::clone(&has_moved);
    let input =
        Script::answering(&plans, move |_| Ok(revision(if moved.load(Ordering::SeqCst) { 2 } else { 1 })));
    let clusters = load(&[("one", kubernetes.access("admin")), ("two", proxy.access("admin"))]);
    let report = std::thread::scope(|scope| {
        let delivery = scope.spawn(|| {
            let cancel = CancellationToken::new();
            runtime().block_on(deliver(Arc::new(input), &clusters, &options(), &cancel))
        });
        // The ledger is written last.
        eventually(60, "one cluster is done", || {
            (!kubernetes.configmap(&a, "treeswap-ledger-team").is_null()).then_some(())
        });
        has_moved.store(true, Ordering::SeqCst);
        runtime().block_on(proxy.held());
        proxy.release();
        delivery.join().unwrap().unwrap()
    });
    assert_eq!(report.revision, revision(2), "{report:?}");
    let outcomes: Vec<_> =
        report.targets.iter().map(|target| (target.cluster.as_str(), target.outcome)).collect();
    assert_eq!(outcomes, [("one", Outcome::Created), ("two", Outcome::Created)], "{report:?}");
}

/// It moves whenever one cluster is about to be written, while the other one has nothing to write and does not ask.
#[test]
fn clusters_that_a_ref_which_never_rests_leaves_at_different_revisions_are_no_success() {
    let kubernetes = Kubernetes::shared();
    let [a, b] = [(); 2].map(|()| kubernetes.namespace("refs"));
    let rules = format!(
        "config_updater:\n  maps:\n    jobs/*.yaml: {{name: jobs, clusters: {{one: [{a}]}}}}\n    \
         docs/*.yaml: {{name: docs, clusters: {{two: [{b}]}}}}\n"
    );
    let texts: Vec<String> = (1..=11).map(|number| number.to_string()).collect();
    let files = texts.iter().map(|text| [("jobs/a.yaml", text.as_str()), ("docs/a.yaml", "docs")]);
    let files: Vec<[(&str, &str); 2]> = files.collect();
    let revisions: Vec<(u8, &[(&str, &str)])> = (1..).zip(files.iter().map(|files| &files[..])).collect();
    let plans = plans(&rules, &a, &revisions);
    let clusters = ["one", "two"].map(|name| (name, kubernetes.access("admin")));
    let clusters = load(&clusters);
    let deliver = |input: Script| {
        let cancel = CancellationToken::new();
        runtime().block_on(deliver(Arc::new(input), &clusters, &options(), &cancel)).unwrap()
    };
    assert!(deliver(Script::at(&plans, revision(11))).is_success());
    // In each round the first answer is for both, and the other three are for the one that is written.
    let restless = Script::answering(&plans, |at| {
        let (round, question) = (at / 4, at % 4);
        Ok(revision(u8::try_from(2 * round + usize::from(question > 0) + 1).unwrap()))
    });
    let report = deliver(restless);
    assert_eq!(data(&kubernetes.configmap(&a, "jobs"))["a.yaml"], "10", "{report:?}");
    assert!(report.targets.iter().all(|target| target.outcome.is_success()), "{report:?}");
    assert_eq!(report.failures.len(), 1, "{report:?}");
    assert!(report.failures[0].contains("moves faster than it can be followed"), "{report:?}");
    assert!(deliver(Script::at(&plans, revision(10))).is_success());
}

#[test]
fn a_remote_that_does_not_answer_stops_the_writing_and_the_batch_is_done_again() {
    let there = Delivered::new();
    let hiccup = Script::answering(&there.plans, |at| if at == 1 { Err(away()) } else { Ok(revision(3)) });
    let report = there.run(hiccup, &options()).unwrap();
    assert_eq!(only(&report).outcome, Outcome::Replaced);
    assert_eq!(there.content(), "three");

    let gone = Script::answering(&there.plans, |at| if at > 0 { Err(away()) } else { Ok(revision(1)) });
    let report = there.run(gone, &Options { tries: 2, ..options() }).unwrap();
    assert_eq!(only(&report).outcome, Outcome::Failed);
    assert!(only(&report).why.contains("the remote is away") && only(&report).transient, "{report:?}");
    assert!(!report.failures.is_empty());
    assert_eq!(there.content(), "three", "nothing was written");

    let never = Script::answering(&there.plans, |_| Err(away()));
    assert_eq!(there.run(never, &options()).unwrap_err(), away());

    // It answers until the write is made: what was written is told, and that nobody confirmed it, too.
    let late = Script::answering(&there.plans, |at| if at > 1 { Err(away()) } else { Ok(revision(1)) });
    let report = there.run(late, &Options { tries: 2, ..options() }).unwrap();
    assert!(!report.is_success(), "{report:?}");
    assert_eq!(there.content(), "one");
    let marker = data(&Kubernetes::shared().configmap(&there.namespace, "treeswap-set-team"));
    assert_eq!(marker["_revision"], revision(3).to_string(), "the set is not told complete");
}
