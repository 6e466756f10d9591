//! Real rule files over generated repositories, by `treeswap apply`: what lands in the clusters is what Prow's
//! bootstrapper would have put there, a second run writes nothing, and a commit writes exactly what it touches. What is
//! expected is computed here, from the rule file's text alone.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use serde_json::{Value, json};
use treeswap::configmap::{Dialect, Pattern};

use crate::common::{Files, World, run};
use crate::kubernetes::{Kubernetes, kubeconfig, text};

/// A rule, as far as the expectation needs it.
struct Rule {
    pattern: Pattern,
    text: String,
    name: String,
    key: Option<String>,
    full_path: bool,
    gzip: bool,
    /// Our namespaces, one for each cluster and namespace of the file.
    places: BTreeSet<(String, String)>,
}

/// A rule file with every cluster's namespaces made different ones of one real cluster.
struct Maps {
    rules: Vec<Rule>,
    yaml: String,
    clusters: BTreeSet<String>,
    namespaces: BTreeSet<String>,
}

impl Maps {
    fn read(file: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/vectors").join(file);
        let document: Value = serde_yaml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let section = &document["config_updater"];
        let base = Kubernetes::shared().namespace("maps");
        let list = |value: &Value| value.as_array().into_iter().flatten().map(text).collect::<Vec<_>>();
        let mut clusters: Vec<String> = Vec::new();
        let (mut maps, mut rules, mut namespaces) = (serde_json::Map::new(), Vec::new(), BTreeSet::new());
        for (pattern, map) in section["maps"].as_object().unwrap() {
            let mut places: BTreeSet<(String, String)> = BTreeSet::new();
            for (cluster, names) in map["clusters"].as_object().into_iter().flatten() {
                places.extend(list(names).into_iter().map(|name| (cluster.clone(), name)));
            }
            for group in list(&map["cluster_groups"]) {
                let group = &section["cluster_groups"][group];
                for cluster in list(&group["clusters"]) {
                    places.extend(list(&group["namespaces"]).into_iter().map(|name| (cluster.clone(), name)));
                }
            }
            let mut own: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for (cluster, namespace) in &places {
                let index = clusters.iter().position(|one| one == cluster).unwrap_or_else(|| {
                    clusters.push(cluster.clone());
                    clusters.len() - 1
                });
                own.entry(cluster.clone()).or_default().push(format!("{base}-{index}-{namespace}"));
            }
            if own.is_empty() {
                continue; // a group of clusters without namespaces: Prow never writes it, and we refuse it by name
            }
            let flat = own
                .iter()
                .flat_map(|(cluster, names)| names.iter().map(move |one| (cluster.clone(), one.clone())));
            let flat: BTreeSet<(String, String)> = flat.collect();
            namespaces.extend(flat.iter().map(|(_, namespace)| namespace.clone()));
            let mut map = map.clone();
            map.as_object_mut().unwrap().remove("cluster_groups");
            map["clusters"] = json!(own);
            rules.push(Rule {
                pattern: Pattern::new(Dialect::Zglob, pattern, &|_| None).unwrap(),
                text: pattern.clone(),
                name: text(&map["name"]),
                key: map["key"].as_str().map(str::to_owned),
                full_path: map["use_full_path_as_key"] == true,
                gzip: map["gzip"].as_bool().unwrap_or(section["gzip"] == true),
                places: flat,
            });
            maps.insert(pattern.clone(), map);
        }
        let section = json!({ "config_updater": { "gzip": section["gzip"] == true, "maps": maps } });
        let yaml = serde_yaml::to_string(&section).unwrap();
        Self { rules, yaml, clusters: clusters.into_iter().collect(), namespaces }
    }

    /// A few files for each pattern, none of them by one name.
    fn tree(&self) -> BTreeMap<String, String> {
        let mut files = BTreeMap::new();
        for (at, rule) in self.rules.iter().enumerate() {
            let many = rule.key.is_none() && rule.text.rsplit('/').next().unwrap().contains('*');
            for copy in 0..if many { 3 } else { 1 } {
                let deep = rule.text.replace("**/", &format!("org{at}/repo{copy}/"));
                let path = deep.replace('*', &format!("p{at}f{copy}"));
                files.insert(path, format!("# {at} {copy}\n{}", "line: of text\n".repeat(at % 40)));
            }
        }
        files
    }

    /// The rule that has a file, where no other claims it.
    fn sole(&self, path: &str) -> Option<&Rule> {
        let mut all = self.rules.iter().filter(|rule| rule.pattern.matches(path.as_bytes()));
        all.next().filter(|_| all.next().is_none())
    }

    fn key(rule: &Rule, path: &str) -> String {
        match &rule.key {
            Some(key) => key.clone(),
            None if rule.full_path => path.replace('/', "-"),
            None => path.rsplit('/').next().unwrap().to_owned(),
        }
    }

    /// Every ConfigMap of all namespaces, by namespace and name.
    fn versions(&self) -> BTreeMap<(String, String), String> {
        let of = |namespace: &String| {
            let versions = Kubernetes::shared().versions(namespace);
            versions
                .into_iter()
                .map(|(name, version)| ((namespace.clone(), name), version))
                .collect::<Vec<_>>()
        };
        self.namespaces.iter().flat_map(of).collect()
    }

    /// The rules and the kubeconfig as `treeswap apply` takes them.
    fn write(&self, dir: &Path) -> [PathBuf; 2] {
        let rules = dir.join("plugins.yaml");
        std::fs::write(&rules, &self.yaml).unwrap();
        let access = || Kubernetes::shared().access("admin");
        let contexts: Vec<_> = self.clusters.iter().map(|name| (name.as_str(), access())).collect();
        [rules, kubeconfig(&dir.join("kubeconfig"), &contexts)]
    }
}

/// The targets of one run by their outcome, whose exit code is as promised.
fn apply(world: &World, [rules, kubeconfig]: &[PathBuf; 2], dry: bool) -> BTreeMap<String, usize> {
    let mut command =
        world.treeswap(&["apply", "--owner=team", "--ref=main", "--overlaps=first", "-o", "json"]);
    command.arg("--rules").arg(rules).arg("--kubeconfig").arg(kubeconfig);
    command.arg("--repo").arg(&world.remote.path).args(dry.then_some("--dry-run"));
    let ran = run::to_end(&mut command);
    let code = if dry { 4 } else { 0 };
    assert_eq!(ran.status.code(), Some(code), "{}\n{}", ran.stdout, ran.stderr);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let mut outcomes = BTreeMap::new();
    for target in report["targets"].as_array().unwrap() {
        *outcomes.entry(text(&target["outcome"])).or_default() += 1;
    }
    outcomes
}

/// What a reader finds under a key.
fn read(object: &Value, key: &str, gzip: bool) -> Option<String> {
    if let Some(plain) = object["data"][key].as_str() {
        return (!gzip).then(|| plain.to_owned());
    }
    let bytes =
        base64::engine::general_purpose::STANDARD.decode(object["binaryData"][key].as_str()?).unwrap();
    let mut unpacked = String::new();
    flate2::read::GzDecoder::new(bytes.as_slice()).read_to_string(&mut unpacked).unwrap();
    gzip.then_some(unpacked)
}

fn shows(file: &str) {
    let kubernetes = Kubernetes::shared();
    let maps = Maps::read(file);
    for namespace in &maps.namespaces {
        kubernetes.must("POST", "/api/v1/namespaces", Some(&json!({ "metadata": { "name": namespace } })));
    }
    let tree = maps.tree();
    let mut touched = tree.clone();
    let sole: Vec<&String> = tree.keys().filter(|path| maps.sole(path).is_some()).collect();
    let changed: Vec<String> = (0..5).map(|at| sole[at * sole.len() / 5].clone()).collect();
    changed.iter().for_each(|path| drop(touched.insert(path.clone(), "changed\n".into())));
    let world = World::new();
    let access = maps.write(world.dir());
    let commit = |tree: &BTreeMap<String, String>| {
        let file = |files: Files, (path, text): (&String, &String)| files.file(path, text.as_str());
        world.remote.commit(&tree.iter().fold(Files::new(), file))
    };
    commit(&tree);
    let planned = apply(&world, &access, true);
    assert!(planned.keys().eq(["created"]), "{planned:?}");
    assert!(maps.versions().is_empty(), "a plan writes nothing");
    assert_eq!(apply(&world, &access, false), planned);
    let targets = planned["created"];

    let objects: BTreeMap<&String, BTreeMap<String, Value>> =
        maps.namespaces.iter().map(|namespace| (namespace, kubernetes.configmaps(namespace))).collect();
    let mut compared = 0;
    for (path, content) in &tree {
        let Some(rule) = maps.sole(path) else { continue };
        for (_, namespace) in &rule.places {
            let object = &objects[namespace][&rule.name];
            let found = read(object, &Maps::key(rule, path), rule.gzip);
            assert_eq!(found.as_ref(), Some(content), "{namespace}/{}: {path}", rule.name);
            compared += 1;
        }
    }
    assert!(compared >= sole.len(), "{compared}");

    let before = maps.versions();
    assert_eq!(apply(&world, &access, false), BTreeMap::from([("unchanged".to_owned(), targets)]));
    assert_eq!(maps.versions(), before, "a second run writes nothing");

    commit(&touched);
    let replaced = apply(&world, &access, false);
    let after = maps.versions();
    let written: BTreeSet<&(String, String)> =
        after.iter().filter(|(at, version)| before.get(*at) != Some(*version)).map(|(at, _)| at).collect();
    let affected = |path: &String| {
        let rule = maps.sole(path).unwrap();
        rule.places.iter().map(|(_, namespace)| (namespace.clone(), rule.name.clone())).collect::<Vec<_>>()
    };
    let affected: BTreeSet<(String, String)> = changed.iter().flat_map(affected).collect();
    let records = affected.iter().flat_map(|(namespace, _)| {
        ["treeswap-set-team", "treeswap-ledger-team"].map(|name| (namespace.clone(), name.to_owned()))
    });
    let expected: BTreeSet<(String, String)> = affected.iter().cloned().chain(records).collect();
    assert_eq!(written, expected.iter().collect(), "exactly what the commit touches, and the records of it");
    assert_eq!(replaced["replaced"], affected.len(), "{replaced:?}");
    println!(
        "{file}: {} rules, {} files, {targets} targets, {} of them written by a commit",
        maps.rules.len(),
        tree.len(),
        affected.len()
    );
}

#[test]
fn the_rules_of_openshift_in_2020() {
    shows("openshift-release-maps.yaml");
}

#[test]
fn the_rules_of_openshift_in_2023() {
    shows("openshift-release-maps-2023.yaml");
}

#[test]
fn the_rules_of_kubernetes() {
    shows("kubernetes-test-infra-maps.yaml");
}
