//! What Prow's config-updater and config-bootstrapper write, held against the plan of the same files.
//!
//! A plan has no events: the files that a list of changes leaves behind are the tree, and what Prow's updates come to
//! in the end is compared with it, key for key. Of a write, the content and the size are compared; whether it is a
//! create or an update, its labels, and errors of single clusters are decided by who applies a plan.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};

use serde_json::Value;
use treeswap::configmap::{
    Collisions, ConfigMapData, Contents, Entry, FileRef, Finding, IllegalKeys, Links, Options, Overlaps,
    Plan, Planned, Policies, RuleSet, Tree, ValueEncoding, plan,
};

use super::maps::{Defect, Held, Ledger, defect_of, read};
use super::{cases, files};

/// Files in memory.
#[derive(Default)]
pub(crate) struct Memory(Vec<Vec<u8>>);

impl Contents for Memory {
    fn read(&mut self, file: FileRef) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
        let FileRef::Index(index) = file else { panic!("no blob was added") };
        Ok(self.0[index].clone())
    }
}

/// A tree of these files, and their contents.
pub(crate) fn tree_of<'f>(files: impl IntoIterator<Item = (&'f str, Vec<u8>)>) -> (Tree, Memory) {
    let (mut tree, mut memory) = (Tree::default(), Memory::default());
    for (path, content) in files {
        tree.add(path.as_bytes().to_vec(), Entry::File(memory.0.len().into()));
        memory.0.push(content);
    }
    (tree, memory)
}

fn lenient() -> Policies {
    Policies {
        overlaps: Overlaps::First,
        collisions: Collisions::Last,
        illegal_keys: IllegalKeys::Skip,
        links: Links::Skip,
        ..Policies::default()
    }
}

/// The strict plan's first reason to refuse, as the defect it avoids.
fn refused(plan: &Plan) -> Option<Defect> {
    plan.refused.first().map(|finding| match finding {
        Finding::Overlap { .. } => Defect::Overlap,
        Finding::Collision { .. } => Defect::Collision,
        Finding::IllegalKey { .. } => Defect::IllegalKey,
        Finding::BadSymlink { .. } => Defect::BadLink,
        Finding::RepositoryUnknown { .. } => Defect::RestrictedRuleSkipped,
        other => panic!("{other}"),
    })
}

/// Reads the rules of a case; the defect that strictness avoids, if reading them as Prow does goes around it.
fn rules_of(case: &Value) -> Result<(RuleSet, Option<Defect>), Result<Held, String>> {
    let (yaml, namespace) =
        (case["config_yaml"].as_str().unwrap(), case["default_namespace"].as_str().unwrap());
    match read(yaml, namespace, false) {
        Ok(rules) => Ok((rules, None)),
        Err(error) => match (defect_of(&error), read(yaml, namespace, true)) {
            (Some(defect), Ok(rules)) => Ok((rules, Some(defect))),
            (Some(defect), Err(_)) => Err(Ok(Held::Better(defect))),
            (None, _) => Err(Err(error.to_string())),
        },
    }
}

fn better_or_same(defect: Option<Defect>) -> Result<Held, String> {
    Ok(defect.map_or(Held::Same, Held::Better))
}

const FILTER: &[(&str, Defect)] = &[
    ("case-insensitive-yaml-fields", Defect::UnknownField),
    ("cluster-groups-lose-acl", Defect::GroupsLoseFields),
    ("default-namespace-itself-empty", Defect::EmptyNamespace),
    ("default-namespace-itself-empty-explicit", Defect::EmptyNamespace),
    ("deprecated-namespace-fields-ignored", Defect::UnknownField),
    ("full-path-key-collision", Defect::Collision),
    ("illegal-key-dotdot", Defect::IllegalKey),
    ("illegal-key-non-ascii", Defect::IllegalKey),
    ("illegal-key-space", Defect::IllegalKey),
    ("literal-and-glob-overlap", Defect::Overlap),
    ("move-seen-as-add-and-remove", Defect::LiveKeyDeleted),
    ("no-name-and-no-partitions", Defect::IllegalName),
    ("overlapping-globs", Defect::Overlap),
    ("partition-fixed-key", Defect::Collision),
    ("same-basename-twice", Defect::Collision),
    ("yaml11-boolean-cluster-key", Defect::UnquotedBoolean),
];

pub(crate) fn filter_changes() {
    let mut ledger = Ledger::default();
    for case in cases(&files("filter_changes"), "cases") {
        ledger.case(case["id"].as_str().unwrap(), filtered(&case));
    }
    ledger.finish("filter_changes", FILTER);
}

/// What updates come to: target to key to the file and whether it is compressed, or nothing for a deletion.
type Outcome = BTreeMap<String, BTreeMap<String, Option<(String, bool)>>>;

fn filtered(case: &Value) -> Result<Held, String> {
    let (rules, defect) = match rules_of(case) {
        Ok(rules) => rules,
        Err(held) => return held,
    };
    let changes = case["changes"].as_array().unwrap();
    let live = changes.iter().filter(|change| change["status"] != "removed");
    let live = live.map(|change| change["filename"].as_str().unwrap());
    let planned = |policies| {
        let (tree, mut contents) = tree_of(live.clone().map(|path| (path, b"content".to_vec())));
        let repository = case["repo"].as_str().map(str::to_owned);
        plan(&rules, &tree, &mut contents, &Options { repository, policies, ..Options::default() }).unwrap()
    };
    if let Some(defect) = refused(&planned(Policies::default())) {
        return Ok(Held::Better(defect));
    }
    let ours = outcome_of(&planned(lenient()));
    let expected = match case["expected_one_of"].as_array() {
        Some(any) => any.clone(),
        None => vec![case["expected"].clone()],
    };
    let differences: Vec<_> = expected.iter().map(|one| differing(&ours, &outcome(one))).collect();
    if differences.iter().any(Result::is_ok) {
        return better_or_same(defect);
    }
    match differences.into_iter().next().unwrap().unwrap_err() {
        (_, true) => Ok(Held::Better(Defect::LiveKeyDeleted)),
        (_, false)
            if case["config_yaml"].as_str().unwrap().contains("cluster_groups") && restricts(&rules) =>
        {
            Ok(Held::Better(Defect::GroupsLoseFields))
        }
        (why, false) => Err(why),
    }
}

fn restricts(rules: &RuleSet) -> bool {
    rules.rules.iter().any(|rule| rule.full_path || !rule.allowed.is_empty() || !rule.denied.is_empty())
}

fn outcome(expected: &Value) -> Outcome {
    let mut outcome = Outcome::new();
    for (target, updates) in expected.as_object().unwrap() {
        let keys = outcome.entry(target.clone()).or_default();
        for update in updates.as_array().unwrap() {
            let set = update["file"].as_str().map(|file| (file.to_owned(), update["gzip"] == true));
            keys.insert(update["key"].as_str().unwrap().to_owned(), set);
        }
    }
    outcome
}

fn outcome_of(plan: &Plan) -> Outcome {
    let mut outcome = Outcome::new();
    for (target, planned) in targets(plan) {
        let keys = outcome.entry(target).or_default();
        for (key, value) in planned.data.values() {
            let path = String::from_utf8(planned.files[key].to_vec()).unwrap();
            keys.insert(key.clone(), Some((path, value.form() == ValueEncoding::Gzip)));
        }
    }
    outcome
}

fn targets(plan: &Plan) -> impl Iterator<Item = (String, &Planned)> {
    plan.configmaps.iter().flat_map(|planned| {
        let target = move |place: &treeswap::configmap::ClusterNamespace| {
            (format!("{}/{}/{}", place.cluster, place.namespace, planned.name), &**planned)
        };
        planned.places.iter().map(target)
    })
}

/// The first difference, and whether it is a deletion of a key whose file is there.
fn differing(ours: &Outcome, theirs: &Outcome) -> Result<(), (String, bool)> {
    let none = BTreeMap::new();
    for (target, keys) in theirs {
        let own = ours.get(target).ok_or((format!("{target} is not planned"), false))?;
        for (key, set) in keys {
            let own = own.get(key).cloned().flatten();
            if own != *set {
                return Err((format!("{target} {key}: {own:?} is not {set:?}"), set.is_none()));
            }
        }
    }
    for (target, keys) in ours {
        let known = theirs.get(target).unwrap_or(&none);
        if let Some(key) = keys.keys().find(|key| !known.contains_key(*key)) {
            return Err((format!("{target} {key} is ours alone"), false));
        }
    }
    Ok(())
}

const BOOTSTRAP: &[(&str, Defect)] = &[
    ("allowed-repos-skipped", Defect::RestrictedRuleSkipped),
    ("broken-symlink-becomes-empty-key", Defect::BadLink),
    ("git-directory-is-walked", Defect::GitDirectory),
    ("map-removed-from-config", Defect::OrphanStays),
    ("no-file-left-keeps-old-content", Defect::LastFileStays),
    ("overlapping-globs", Defect::Overlap),
    ("partition-all-files-gone", Defect::LastFileStays),
    ("partition-count-reduced", Defect::OrphanStays),
    ("same-basename-two-directories", Defect::Collision),
    ("symlink-to-directory-fails-configmap", Defect::BadLink),
    ("version-file-second-run", Defect::StampLost),
];

pub(crate) fn bootstrap() {
    let mut ledger = Ledger::default();
    for case in cases(&files("bootstrap"), "cases") {
        ledger.case(case["id"].as_str().unwrap(), bootstrapped(&case));
    }
    ledger.finish("bootstrap", BOOTSTRAP);
}

fn bootstrapped(case: &Value) -> Result<Held, String> {
    let (rules, defect) = match rules_of(case) {
        Ok(rules) => rules,
        Err(held) => return held,
    };
    let roots: Vec<_> = case["sources"].as_array().unwrap().iter().map(|r| r.as_object().unwrap()).collect();
    let mut all: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
    for (path, content) in roots.iter().flat_map(|root| root.iter()) {
        all.entry(path).or_insert_with(|| bytes(content)); // the first root has it
    }
    let stamp = all.get("VERSION").map(|version| String::from_utf8(version.clone()).unwrap());
    let git = all.keys().any(|path| path.starts_with(".git/"));
    all.retain(|path, _| !path.starts_with(".git/"));
    let planned = |policies| {
        let (mut tree, mut contents) = tree_of(all.clone());
        let links =
            case["symlinks"].as_array().into_iter().flatten().flat_map(|root| root.as_object().unwrap());
        for (path, target) in links {
            let target = target.as_str().unwrap().as_bytes().to_vec();
            tree.add(path.clone().into_bytes(), Entry::Link(target));
        }
        plan(&rules, &tree, &mut contents, &Options { stamp: stamp.clone(), policies, ..Options::default() })
            .unwrap()
    };
    if let Some(defect) = refused(&planned(Policies::default())) {
        return Ok(Held::Better(defect));
    }
    let plan = planned(lenient());
    let known = |target: &str| {
        let cluster = target.split('/').next().unwrap();
        cluster == "default" || case["known_clusters"].as_array().unwrap().iter().any(|one| one == cluster)
    };
    let ours: BTreeMap<String, &Planned> = targets(&plan).filter(|(target, _)| known(target)).collect();
    let named = |one: &Value| {
        let text = |field: &str| one[field].as_str().unwrap().to_owned();
        format!("{}/{}/{}", text("cluster"), text("namespace"), text("name"))
    };
    let mut held = defect;
    let expected = case["expected"]["configmaps"].as_array().unwrap();
    for one in expected {
        let target = named(one);
        match ours.get(&target) {
            None => held = Some(Defect::OrphanStays),
            Some(planned) if !planned.fed => held = Some(Defect::LastFileStays),
            Some(planned) => match same_content(planned, one) {
                Ok(()) => {}
                Err(_) if git => held = Some(Defect::GitDirectory),
                Err((_, Some(defect))) => held = Some(defect),
                Err((why, None)) => return Err(format!("{target}: {why}")),
            },
        }
    }
    let missing = ours
        .iter()
        .find(|(target, planned)| planned.fed && !expected.iter().any(|one| named(one) == **target));
    match missing {
        Some((target, _)) => Err(format!("{target} is ours alone")),
        None => better_or_same(held),
    }
}

const UPDATE: &[(&str, Defect)] =
    &[("version-binary-stamp-clash", Defect::StampTwice), ("version-deleted-by-update", Defect::StampLost)];

pub(crate) fn update() {
    let mut ledger = Ledger::default();
    for case in cases(&files("update"), "cases") {
        ledger.case(case["id"].as_str().unwrap(), updated(&case));
    }
    ledger.finish("update", UPDATE);
}

/// The tree is what the updates set, and, where they do not replace everything, what they leave alone.
fn updated(case: &Value) -> Result<Held, String> {
    let version = case["version"].as_str().unwrap();
    let mut keys: BTreeMap<String, Option<(Vec<u8>, bool)>> = BTreeMap::new();
    let old = &case["initial"];
    if case["bootstrap"] != true {
        let fields = [&old["data"], &old["binaryData"]].into_iter().filter_map(Value::as_object).flatten();
        for (key, value) in fields.filter(|(key, _)| version.is_empty() || *key != "VERSION") {
            keys.insert(key.clone(), Some((bytes(value), false)));
        }
    }
    for update in case["updates"].as_array().unwrap() {
        let set = update["file"].as_str().map(|file| (bytes(&case["files"][file]), update["gzip"] == true));
        keys.insert(update["key"].as_str().unwrap().to_owned(), set);
    }
    let mut yaml = "maps:\n  none: {name: cm}\n".to_owned();
    let mut tree = Vec::new();
    for (at, (key, set)) in keys.iter().enumerate() {
        if let Some((content, gzip)) = set {
            yaml.push_str(&format!("  f/{at}: {{name: cm, key: {key:?}, gzip: {gzip}}}\n"));
            tree.push((format!("f/{at}"), content.clone()));
        }
    }
    let rules = read(&yaml, "default", false).map_err(|error| error.to_string())?;
    let (tree, mut contents) = tree_of(tree.iter().map(|(path, content)| (path.as_str(), content.clone())));
    let stamp = (!version.is_empty()).then(|| version.to_owned());
    let plan = plan(&rules, &tree, &mut contents, &Options { stamp, ..Options::default() }).unwrap();
    let [planned] = &plan.accepted().map_err(|refused| refused.to_string())?.configmaps[..] else {
        return Err("not one ConfigMap".into());
    };
    let expected = &case["expected"];
    match same_content(planned, expected) {
        Ok(()) => {}
        Err((_, Some(defect))) => return Ok(Held::Better(defect)),
        Err((why, None)) => return Err(why),
    }
    let size = expected["size_metric"].as_u64().unwrap() as usize;
    // A file that the vector gives by what is compressed in it has another size here than where it was measured.
    let measured = case["size_note"].is_null() && !case["files"].to_string().contains("gzip_of");
    if measured && planned.content().size() != size {
        return Err(format!("{} bytes are not {size}", planned.content().size()));
    }
    let field = |field: &str| old[field].as_object().into_iter().flatten();
    let live = ConfigMapData {
        data: field("data").map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned())).collect(),
        binary_data: field("binaryData").map(|(key, value)| (key.clone(), bytes(value))).collect(),
    };
    let same = |field: &str| match (&old[field], &expected[field]) {
        (Value::Null, new) => new.as_object().is_none_or(serde_json::Map::is_empty),
        (old, new) => old == new,
    };
    let difference = live.difference(&planned.content());
    if difference.is_empty() != (same("data") && same("binaryData")) {
        return Err(format!("{difference:?}"));
    }
    Ok(Held::Same)
}

/// The first difference to `data` and `binaryData`, and the defect that it avoids.
fn same_content(planned: &Planned, expected: &Value) -> Result<(), (String, Option<Defect>)> {
    let (mut text, mut binary) = (BTreeMap::new(), BTreeMap::new());
    let content = planned.content();
    for (key, value) in content.values() {
        match value.text() {
            Some(value) => drop(text.insert(key.as_str(), value)),
            None => drop(binary.insert(key.as_str(), value)),
        }
    }
    let empty = serde_json::Map::new();
    let (data, binary_data) = (
        expected["data"].as_object().unwrap_or(&empty),
        expected["binaryData"].as_object().unwrap_or(&empty),
    );
    let both = data.contains_key("VERSION") && binary_data.contains_key("VERSION");
    for (key, value) in &text {
        match data.get(*key).map(|one| one.as_str() == Some(value)) {
            Some(true) => {}
            None if *key == "VERSION" && planned.stamp.is_some() => {
                return Err(("the stamp is ours alone".into(), Some(Defect::StampLost)));
            }
            _ => return Err((format!("{key} is {value:?}"), None)),
        }
    }
    for (key, value) in &binary {
        let there = match binary_data.get(*key) {
            None => false,
            Some(one) if one["gzip_of"].is_null() => bytes(one) == value.bytes(),
            Some(one) => gunzip(value.bytes()) == bytes(&one["gzip_of"]),
        };
        if !there {
            return Err((format!("{key} is binary"), None));
        }
    }
    let lost = data.keys().find(|key| !text.contains_key(key.as_str()));
    let lost = lost.or_else(|| binary_data.keys().find(|key| !binary.contains_key(key.as_str())));
    match lost {
        Some(key) if key == "VERSION" && both => Err(("VERSION is twice".into(), Some(Defect::StampTwice))),
        Some(key) => Err((format!("{key} is theirs alone"), None)),
        None => Ok(()),
    }
}

/// A value as the vectors write one: text, `{"base64": …}` or `{"gzip_of": value}`.
fn bytes(value: &Value) -> Vec<u8> {
    match (value.as_str(), value["base64"].as_str()) {
        (Some(text), _) => text.as_bytes().to_vec(),
        (None, Some(text)) => unbase64(text),
        (None, None) => {
            let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            writer.write_all(&bytes(&value["gzip_of"])).unwrap();
            writer.finish().unwrap()
        }
    }
}

pub(crate) fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    flate2::read::GzDecoder::new(bytes).read_to_end(&mut content).unwrap();
    content
}

pub(crate) fn unbase64(text: &str) -> Vec<u8> {
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = text.bytes().filter_map(|byte| letters.iter().position(|&letter| letter == byte));
    let (mut out, mut word, mut held) = (Vec::new(), 0u32, 0);
    for six in bits {
        word = (word << 6 | six as u32) & 0xffff;
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push((word >> held) as u8);
        }
    }
    out
}
