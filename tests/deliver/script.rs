//! A remote whose every answer is scripted, and what its revisions ask for, made by the real rules.

use std::collections::BTreeMap;
use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use treeswap::cluster::{Cluster, Clusters, ConfigError};
use treeswap::configmap::apply::{Adopt, Desired, ExtraKeys, Owner, PruneLimit, VersionKey};
use treeswap::configmap::{Contents, Dialect, Entry, FileRef, Policies, Tree};
use treeswap::deliver::{Directory, Options, Relation, Report, Target, deliver};
use treeswap::desired::{self, Listing, Planner, Rules};
use treeswap::revision::{ObjectId, Revision};
use treeswap::sources::{DeliveryInput, Named, Recorded, SourceError};

use crate::kubernetes::{Kubernetes, kubeconfig};

pub type Answer = Pin<Box<dyn Future<Output = Result<Named, SourceError>> + Send>>;

/// What each revision asks for.
pub type Plans = BTreeMap<Revision, Arc<Desired>>;

/// A remote.
pub struct Script {
    /// What it answers when it is asked for the n-th time, from 0.
    pub answer: Box<dyn Fn(usize) -> Answer + Send + Sync>,
    pub asked: AtomicUsize,
    pub plans: Arc<Plans>,
    pub relation: Result<Relation, SourceError>,
}

impl Script {
    /// One that always names the same revision.
    pub fn at(plans: &Arc<Plans>, revision: Revision) -> Self {
        Self::answering(plans, move |_| Ok(revision))
    }

    /// One that answers at once.
    pub fn answering(
        plans: &Arc<Plans>,
        answer: impl Fn(usize) -> Result<Revision, SourceError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            answer: Box::new(move |at| Box::pin(std::future::ready(answer(at).map(Named::from)))),
            asked: AtomicUsize::new(0),
            plans: Arc::clone(plans),
            relation: Ok(Relation::Ahead),
        }
    }

    pub fn related(self, relation: Relation) -> Self {
        Self { relation: Ok(relation), ..self }
    }

    /// Its history is not to be had for now.
    pub fn silent(self) -> Self {
        Self { relation: Err(away()), ..self }
    }
}

impl DeliveryInput for Script {
    async fn resolve(&self) -> Result<Named, SourceError> {
        (self.answer)(self.asked.fetch_add(1, Ordering::SeqCst)).await
    }

    async fn desired(&self, named: Named) -> Result<Arc<Desired>, SourceError> {
        Ok(Arc::clone(&self.plans[&named.revision]))
    }

    async fn relation(&self, _: Recorded, _: Revision) -> Result<Relation, SourceError> {
        self.relation.clone()
    }
}

/// A remote that does not answer.
pub fn away() -> SourceError {
    SourceError {
        what: "the remote is away".into(),
        hints: Vec::new(),
        class: treeswap::retry::ErrorClass::Transient,
    }
}

/// Revision `rN` of a story.
pub fn revision(number: u8) -> Revision {
    Revision(ObjectId([number; 20]))
}

/// Files in memory.
struct Memory<'f>(&'f BTreeMap<String, String>);

impl desired::Tree for Memory<'_> {
    fn list(&self, _: &dyn Fn(&[u8]) -> bool) -> Result<Listing<'_>, desired::Error> {
        let mut tree = Tree::default();
        let mut add = |(at, path): (usize, &String)| tree.add(path.clone().into(), Entry::File(at.into()));
        self.0.keys().enumerate().for_each(&mut add);
        Ok((tree, Box::new(Texts(self.0.values().collect()))))
    }
}

struct Texts<'f>(Vec<&'f String>);

impl Contents for Texts<'_> {
    fn read(&mut self, file: FileRef) -> Result<Vec<u8>, Box<dyn Error + Send + Sync>> {
        let FileRef::Index(index) = file else { panic!("no blob was added") };
        Ok(self.0[index].clone().into_bytes())
    }
}

/// Plans by rules, with the key `VERSION`.
pub fn planner(rules: &str, namespace: &str) -> Planner {
    let options = desired::Options {
        default_namespace: namespace.to_owned(),
        dialect: Dialect::default(),
        ignore_unknown: false,
        repository: None,
        policies: Policies::default(),
        memory_limit: None,
        shape: ExtraKeys { version_key: VersionKey::Changed, stamp_key: None },
        warn: |_| {},
    };
    let rules = options.read("plugins.yaml", rules).unwrap();
    Planner::new(options, Rules::Given(rules.into()))
}

/// What rules make of files.
pub fn desired(
    revision: Revision,
    rules: &str,
    namespace: &str,
    files: &BTreeMap<String, String>,
) -> Arc<Desired> {
    desired_of(&revision.into(), rules, namespace, files)
}

/// What rules make of files of several sources.
pub fn desired_of(
    named: &Named,
    rules: &str,
    namespace: &str,
    files: &BTreeMap<String, String>,
) -> Arc<Desired> {
    let planner = planner(rules, namespace);
    Arc::new(planner.desired(&Memory(files), named.revision, &named.sources, None).unwrap().0)
}

pub fn files(list: &[(&str, &str)]) -> BTreeMap<String, String> {
    list.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
}

/// Plans of simple revisions: `rN` with these files.
pub fn plans(rules: &str, namespace: &str, revisions: &[(u8, &[(&str, &str)])]) -> Arc<Plans> {
    let plan = |(number, list): &(u8, &[(&str, &str)])| {
        let revision = revision(*number);
        (revision, desired(revision, rules, namespace, &files(list)))
    };
    Arc::new(revisions.iter().map(plan).collect())
}

/// One cluster by every name.
pub struct Everywhere(pub Cluster);

impl Directory for Everywhere {
    fn find(&self, _: &str) -> Result<Cluster, ConfigError> {
        Ok(self.0.clone())
    }

    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The shared cluster as a user who may do what is needed in this namespace, and nothing else.
pub fn clusters(namespace: &str) -> Clusters {
    let kubernetes = Kubernetes::shared();
    let verbs = ["get", "list", "create", "update", "delete"];
    let rules = serde_json::json!([{ "apiGroups": [""], "resources": ["configmaps"], "verbs": verbs }]);
    kubernetes.grant(namespace, "writer", &rules);
    load(&[("test", kubernetes.access("writer"))])
}

pub fn load(contexts: &[(&str, crate::kubernetes::Access)]) -> Clusters {
    let dir = tempfile::tempdir().unwrap();
    let kubeconfigs = vec![kubeconfig(&dir.keep().join("kubeconfig"), contexts)];
    let timeout = Duration::from_secs(60);
    let options = treeswap::cluster::Options { kubeconfigs, timeout, ..Default::default() };
    Clusters::load(&options).unwrap()
}

/// Adopting what Prow made, whatever that takes away.
pub fn options() -> Options {
    Options {
        adopt: Adopt::Prow,
        prune_limit: PruneLimit { percent: 100 },
        lag: Duration::from_secs(120),
        ..Options::new(Owner::new("team").unwrap())
    }
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A delivery to its end.
pub fn run(input: Script, clusters: &Clusters, options: &Options) -> Result<Report, SourceError> {
    let cluster = Everywhere(clusters.get("default").unwrap().clone());
    runtime().block_on(deliver(Arc::new(input), &cluster, options, &CancellationToken::new()))
}

/// The one target of a report.
#[track_caller]
pub fn only(report: &Report) -> &Target {
    assert_eq!(report.targets.len(), 1, "{report:?}");
    &report.targets[0]
}

/// The text of a ConfigMap, key by key.
pub fn data(object: &Value) -> BTreeMap<String, String> {
    let data = object["data"].as_object().cloned().unwrap_or_default();
    data.into_iter().map(|(key, value)| (key, crate::kubernetes::text(&value))).collect()
}
