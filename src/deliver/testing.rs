//! What the unit tests of a delivery share: a remote, a cluster that no request reaches, and a survey of one ConfigMap.

use std::sync::Arc;
use std::sync::atomic::AtomicIsize;

use super::Options;
use super::pauses::Ending;
use super::survey::{Item, NamespaceSurvey, SurveyContext};
use crate::cluster::{self, Cluster, Clusters, Meta};
use crate::configmap::DesiredData;
use crate::configmap::apply::{
    Decision, Desired, DesiredConfigMap, Entry, ExtraKeys, Ledger, Marker, Owner, Placement, Policy,
};
use crate::revision::{ObjectId, Relation, Revision};
use crate::sources::{DeliveryInput, Named, Recorded, SourceError};

/// Revision `number` of a story.
pub(super) fn revision(number: u8) -> Revision {
    Revision(ObjectId([number; 20]))
}

/// A remote that names revision 2, and always gives the same relation.
#[derive(Debug)]
pub(super) struct Remote(pub(super) Relation);

impl DeliveryInput for Remote {
    async fn resolve(&self) -> Result<Named, SourceError> {
        Ok(revision(2).into())
    }

    async fn desired(&self, _: Named) -> Result<Arc<Desired>, SourceError> {
        Ok(Arc::new(desired()))
    }

    async fn relation(&self, _: Recorded, _: Revision) -> Result<Relation, SourceError> {
        Ok(self.0)
    }
}

/// What the reads of a pass share that may keep nothing.
pub(super) fn context<'a>(
    cluster: &'a Cluster,
    options: &'a Options,
    policy: &'a Policy,
    cancel: &'a Ending,
) -> SurveyContext<'a> {
    static ROOM: [AtomicIsize; 2] = [AtomicIsize::new(0), AtomicIsize::new(0)];
    SurveyContext { cluster, options, policy, cancel, room: &ROOM }
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
        outdated: false,
        marker: Marker { entries: [("a".to_owned(), entry())].into(), ..Marker::default() },
        late: Default::default(),
        recorded: None,
        ledger_meta: None,
        ledger: Ledger::default(),
        items: vec![item],
        unlisted: None,
    }
}
