//! What the unit tests of a delivery share: a remote, a cluster that no request reaches, and a survey of one ConfigMap.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Options;
use super::memory_budget::MemoryBudget;
use super::pauses::Cancellation;
use super::survey::{Item, NamespaceSurvey, PassContext};
use crate::cluster::{self, Cluster, Clusters, Meta};
use crate::configmap::DesiredData;
use crate::configmap::apply::{
    Decision, Desired, DesiredConfigMap, Entry, ExtraKeys, Ledger, Marker, Owner, Placement, Policy,
};
use crate::revision::{ObjectId, Relation, Revision};
use crate::sources::{DeliveryInput, Named, Recorded, SourceError};

/// Revision `number`.
pub(super) fn revision(number: u8) -> Revision {
    Revision(ObjectId([number; 20]))
}

/// A remote that names revision 2, and always gives the same relation.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) relation: Result<Relation, SourceError>,
    /// The recorded revisions whose relation was asked for.
    pub(super) asked: Mutex<Vec<Recorded>>,
    /// When its ref moves on to revision 3.
    pub(super) moves: Option<Instant>,
    /// How long it takes to say which revision its ref names.
    pub(super) answer_takes: Duration,
    /// How long a plan takes.
    pub(super) plan_takes: Duration,
}

impl Remote {
    pub(super) fn new(relation: Result<Relation, SourceError>) -> Self {
        let (answer_takes, plan_takes) = (Duration::ZERO, Duration::ZERO);
        Self { relation, asked: Mutex::default(), moves: None, answer_takes, plan_takes }
    }
}

impl DeliveryInput for Remote {
    async fn resolve(&self) -> Result<Named, SourceError> {
        if !self.answer_takes.is_zero() {
            sleep(self.answer_takes).await;
        }
        let has_moved = self.moves.is_some_and(|at| Instant::now() >= at);
        Ok(revision(if has_moved { 3 } else { 2 }).into())
    }

    async fn desired(&self, _: Named) -> Result<Arc<Desired>, SourceError> {
        if !self.plan_takes.is_zero() {
            sleep(self.plan_takes).await;
        }
        Ok(Arc::new(desired()))
    }

    async fn relation(&self, recorded: Recorded, _: Revision) -> Result<Relation, SourceError> {
        self.asked.lock().unwrap().push(recorded);
        self.relation.clone()
    }
}

/// What a pass over a cluster that no request reaches refers to.
pub(super) struct PassFixture {
    cluster: Cluster,
    desired: Desired,
    options: Options,
    policy: Policy,
    cancel: Cancellation,
    memory: MemoryBudget,
}

impl PassFixture {
    pub(super) fn new(desired: Desired, options: Options) -> Self {
        let policy = options.policy(&desired);
        let (cancel, memory) = (Cancellation::default(), MemoryBudget::new(0));
        Self { cluster: cluster(), desired, options, policy, cancel, memory }
    }

    pub(super) fn pass(&self) -> PassContext<'_> {
        let Self { cluster, desired, options, policy, cancel, memory } = self;
        PassContext { cluster_name: "test", cluster, desired, options, policy, cancel, memory }
    }
}

/// The desired state of revision 2, without a ConfigMap.
pub(super) fn desired() -> Desired {
    Desired {
        revision: revision(2),
        sources: Placement::default(),
        rules: "rules".into(),
        shape: ExtraKeys::default(),
        config_maps: Default::default(),
    }
}

pub(super) fn options() -> Options {
    Options::new(Owner::new("team").unwrap())
}

/// A cluster whose kubeconfig is gone, so that every request fails.
pub(super) fn cluster() -> Cluster {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config");
    let text = "contexts: [{name: test, context: {cluster: test, user: test}}]";
    std::fs::write(&path, text).unwrap();
    let options = cluster::Options { kubeconfigs: vec![path], ..cluster::Options::default() };
    Clusters::load(&options).unwrap().get("test").unwrap().clone()
}

/// The entry of the ConfigMap of [`survey`] in the inventory: an earlier content of it was verified.
pub(super) fn entry() -> Entry {
    let [digest, uid, version, revision] = ["before", "u1", "7", "r1"].map(str::to_owned);
    Entry { digest, uid, version, revision, wanted: None }
}

/// A namespace with one ConfigMap, `a`, which exists and is listed; `after` is the digest of what is desired.
pub(super) fn survey(namespace: &str, decision: Decision) -> NamespaceSurvey {
    let mut meta = Meta::default();
    meta.uid = entry().uid;
    let wanted = DesiredConfigMap {
        data: DesiredData::default(),
        digest: "after".to_owned(),
        fed: true,
        left_out: false,
        versioned: false,
        stamp: None,
        held: None,
    };
    let item = Item { name: "a".to_owned(), wanted: Some(wanted), meta: Some(meta), decision };
    NamespaceSurvey {
        namespace: namespace.to_owned(),
        orphaned: false,
        marker_meta: None,
        marker_outdated: false,
        marker: Marker { entries: [("a".to_owned(), entry())].into(), ..Marker::default() },
        late: Default::default(),
        recorded: None,
        ledger_meta: None,
        ledger: Ledger::default(),
        items: vec![item],
        announce_failure: None,
    }
}
