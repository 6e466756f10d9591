//! The cases of `atomic_writer*.json`: paths and payloads by the rules, everything else by the binary on a repository.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use git2::Oid;
use serde_json::{Map, Value};
use treeswap::payload::{Builder, DirIndex, Payload, Refusal, Rules};
use treeswap::revision::{ObjectId, Revision};

use super::common::tree::Node;
use super::common::{Ran, Raw, Remote, Snapshot, root, run};
use super::{Outcome, cases, files};

/// What does not apply to a tree, and why.
const EXCUSES: &[(&str, &str)] = &[(
    "user_visible_links/nested",
    "no tree holds foo/bar as a file and as a directory; type_conflicts/file-and-dir-in-one-payload says what happens",
)];

type Check = fn(&Value) -> Result<(), String>;

pub(crate) fn check() {
    let files = files("atomic_writer");
    let mut outcome = Outcome::default();
    let sections: [(&str, Check); 7] = [
        ("path_validation", path_validation),
        ("payload_validation", payload_validation),
        ("paths_to_remove", paths_to_remove),
        ("user_visible_links", user_visible_links),
        ("sequences", sequence),
        ("type_conflicts", type_conflict),
        ("fixtures", fixture),
    ];
    for (section, check) in sections {
        for case in cases(&files, section) {
            let id = format!("{section}/{}", case["id"].as_str().unwrap());
            outcome.case(&id, EXCUSES, || check(&case));
        }
    }
    outcome.finish("atomic_writer", EXCUSES);
}

// Paths.

/// A string of the file: as it is, `{"repeat": [text, count]}` or `{"join": [piece, count, separator, tail]}`.
fn text(value: &Value) -> String {
    if let Some(text) = value.as_str() {
        return text.to_owned();
    }
    let count = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
    if let Some(repeat) = value["repeat"].as_array() {
        return text(&repeat[0]).repeat(count(&repeat[1]));
    }
    let join = value["join"].as_array().unwrap_or_else(|| panic!("no text: {value}"));
    let (piece, separator) = (text(&join[0]), text(&join[2]));
    let mut pieces = vec![piece; count(&join[1])];
    pieces.push(text(&join[3]));
    pieces.join(&separator)
}

/// The components of a path as a git tree holds them. A tree has no unclean paths: `./` and doubled slashes vanish, as
/// upstream's cleaning makes them vanish. An absolute path keeps its empty first component, and a path of nothing is
/// one empty component.
fn components(path: &str) -> Vec<&str> {
    let mut parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if path.starts_with('/') || parts.is_empty() {
        parts.insert(0, "");
    }
    parts
}

/// A payload of files at these paths, by the rules.
fn build(paths: &[String]) -> Result<Payload, Refusal> {
    let id = ObjectId([1; 20]);
    let mut builder = Builder::new(Revision(id), id, Rules { reserve_dotdot: true, ..Rules::default() });
    let mut dirs: BTreeMap<Vec<&str>, DirIndex> = BTreeMap::new();
    for path in paths {
        let parts = components(path);
        let (name, above) = parts.split_last().unwrap();
        let mut dir = DirIndex::TOP;
        for depth in 1..=above.len() {
            dir = match dirs.get(&above[..depth]) {
                Some(known) => *known,
                None => builder.dir(dir, above[depth - 1].as_bytes())?,
            };
            dirs.insert(above[..depth].to_vec(), dir);
        }
        builder.file(dir, name.as_bytes(), false, id, 0)?;
    }
    builder.finish()
}

/// Compares what the rules say with what the case says, `treeswap` before `valid`.
fn judge(case: &Value, paths: &[String], clean: BTreeSet<String>) -> Result<(), String> {
    let accept = match case["treeswap"].as_str() {
        Some(ours) => ours.starts_with("accept"),
        None => case["valid"].as_bool().unwrap(),
    };
    match build(paths) {
        Err(refusal) if accept => Err(format!("refused: {refusal}")),
        Err(_) => Ok(()),
        Ok(_) if !accept => Err("accepted".into()),
        Ok(payload) => {
            let found: BTreeSet<String> = (payload.entries.iter())
                .map(|entry| String::from_utf8(payload.path_of(entry)).unwrap())
                .collect();
            if found == clean { Ok(()) } else { Err(format!("{found:?} instead of {clean:?}")) }
        }
    }
}

fn path_validation(case: &Value) -> Result<(), String> {
    let clean = if case["clean"].is_null() { BTreeSet::new() } else { [text(&case["clean"])].into() };
    judge(case, &[text(&case["path"])], clean)
}

fn payload_validation(case: &Value) -> Result<(), String> {
    judge(case, &list(&case["paths"]), list(&case["clean"]).into_iter().collect())
}

fn list(value: &Value) -> Vec<String> {
    value.as_array().map(|list| list.iter().map(text).collect()).unwrap_or_default()
}

// Trees, through the binary.

/// A remote, and a root that is synchronised with it.
struct Place {
    dir: tempfile::TempDir,
    remote: Remote,
    root: PathBuf,
}

impl Place {
    fn new() -> Self {
        let dir =
            tempfile::Builder::new().prefix("treeswap-vector-").tempdir_in(super::common::scratch()).unwrap();
        let remote = Remote::create(&dir.path().join("remote"));
        std::fs::create_dir(dir.path().join("home")).unwrap();
        let root = dir.path().join("root");
        Self { dir, remote, root }
    }

    fn sync(&self) -> Ran {
        let mut command = run::clean(env!("CARGO_BIN_EXE_treeswap"), &self.dir.path().join("home"));
        command.args(["sync", "--one-time", "--ref=main", "--grace=0s", "--repo"]).arg(&self.remote.path);
        run::to_end(command.arg("--root").arg(&self.root))
    }

    /// Makes a commit of the tree the tip, and synchronises.
    fn publish(&self, tree: &Tree) -> Ran {
        let raw = Raw::open(&self.remote.path);
        raw.set_main(raw.commit(tree.write(&raw)));
        self.sync()
    }

    fn published(&self) -> Result<Snapshot, String> {
        let dir = root::current(&self.root)?.ok_or("nothing is published")?;
        Snapshot::read(&dir).map_err(|error| error.to_string())
    }

    fn link(&self) -> Option<PathBuf> {
        std::fs::read_link(self.root.join("..data")).ok()
    }

    /// Links in the root that begin with anything but `..`.
    fn root_links(&self) -> BTreeMap<String, String> {
        root::names(&self.root)
            .into_iter()
            .map(|name| String::from_utf8(name).unwrap())
            .filter(|name| !name.starts_with(".."))
            .filter_map(|name| {
                let target = std::fs::read_link(self.root.join(&name)).ok()?;
                Some((name, target.to_string_lossy().into_owned()))
            })
            .collect()
    }
}

/// What a git tree can hold of a payload: in every directory, names in order; two entries may have one name.
#[derive(Default)]
struct Tree {
    files: Vec<(String, bool, Vec<u8>)>,
    dirs: BTreeMap<String, Self>,
}

impl Tree {
    fn of(payload: &Map<String, Value>, executable: impl Fn(&str) -> bool) -> Self {
        let mut tree = Self::default();
        for (path, file) in payload {
            let content = match file["hex"].as_str() {
                Some(hex) => (0..hex.len() / 2)
                    .map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap())
                    .collect(),
                None => text(&file["text"]).into_bytes(),
            };
            tree.insert(&components(path), executable(file["mode"].as_str().unwrap_or("0644")), content);
        }
        tree
    }

    fn of_paths(paths: &[String]) -> Self {
        let mut tree = Self::default();
        for path in paths {
            tree.insert(&components(path), false, path.clone().into_bytes());
        }
        tree
    }

    fn insert(&mut self, path: &[&str], executable: bool, content: Vec<u8>) {
        match path {
            [name] => self.files.push(((*name).to_owned(), executable, content)),
            [dir, below @ ..] => {
                self.dirs.entry((*dir).to_owned()).or_default().insert(below, executable, content);
            }
            [] => panic!("an empty path"),
        }
    }

    fn write(&self, raw: &Raw) -> Oid {
        let files = self.files.iter().map(|(name, executable, content)| {
            (if *executable { "100755" } else { "100644" }, name.clone(), raw.blob(content))
        });
        let dirs = self.dirs.iter().map(|(name, tree)| ("40000", name.clone(), tree.write(raw)));
        let mut entries: Vec<_> = files.chain(dirs).collect();
        // git's order: a directory sorts as if its name ended in a slash.
        entries
            .sort_by_key(|(mode, name, _)| if *mode == "40000" { format!("{name}/") } else { name.clone() });
        raw.tree(&entries)
    }
}

/// A mode of the file in the one bit that git keeps.
fn executable(mode: &str) -> bool {
    u32::from_str_radix(mode, 8).unwrap() & 0o100 != 0
}

/// What must be published, from the `files` and `dirs` of an expectation.
fn wanted(expect: &Value, executable: impl Fn(&str) -> bool) -> Snapshot {
    let mut wanted = Snapshot::default();
    for dir in list(&expect["dirs"]) {
        wanted.0.insert(dir.into_bytes(), Node::Directory);
    }
    for (path, file) in expect["files"].as_object().unwrap() {
        let tree = Tree::of(&Map::from_iter([("f".to_owned(), file.clone())]), &executable);
        let (_, executable, content) = tree.files.into_iter().next().unwrap();
        wanted.0.insert(path.clone().into_bytes(), Node::File { executable, content });
    }
    wanted
}

fn same(what: &str, wanted: &Snapshot, found: &Snapshot) -> Result<(), String> {
    let lines = wanted.differences(found);
    if lines.is_empty() { Ok(()) } else { Err(format!("{what}: {}", lines.join("; "))) }
}

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, wanted: &T, found: &T) -> Result<(), String> {
    if wanted == found { Ok(()) } else { Err(format!("{what}: {found:?} instead of {wanted:?}")) }
}

fn succeeded(ran: &Ran) -> Result<(), String> {
    if ran.ok() { Ok(()) } else { Err(format!("failed: {}", ran.stderr)) }
}

/// An error in words, not a crash.
fn failed(ran: &Ran) -> Result<(), String> {
    let in_words = matches!(ran.status.code(), Some(1..=100)) && ran.stderr.contains("treeswap: ");
    if in_words { Ok(()) } else { Err(format!("should have failed in words: {} {}", ran.status, ran.stderr)) }
}

fn paths_to_remove(case: &Value) -> Result<(), String> {
    let place = Place::new();
    succeeded(&place.publish(&Tree::of_paths(&list(&case["before"]))))?;
    let (before, links_before) = (place.published()?, place.root_links());
    succeeded(&place.publish(&Tree::of_paths(&list(&case["after"]))))?;
    let (after, links_after) = (place.published()?, place.root_links());
    let removed: BTreeSet<String> = (before.0.keys())
        .filter(|path| !after.0.contains_key(*path))
        .map(|path| String::from_utf8(path.clone()).unwrap())
        .collect();
    equal("removed", &list(&case["to_remove"]).into_iter().collect(), &removed)?;
    let gone = links_before.keys().filter(|name| !links_after.contains_key(*name)).cloned().collect();
    equal(
        "root links removed",
        &list(&case["root_links_to_remove"]).into_iter().collect::<BTreeSet<_>>(),
        &gone,
    )
}

fn links_of(value: &Value) -> BTreeMap<String, String> {
    let links = value.as_object().unwrap();
    links.iter().map(|(name, target)| (name.clone(), target.as_str().unwrap().to_owned())).collect()
}

fn user_visible_links(case: &Value) -> Result<(), String> {
    let place = Place::new();
    succeeded(&place.publish(&Tree::of_paths(&list(&case["paths"]))))?;
    equal("root links", &links_of(&case["links"]), &place.root_links())
}

fn sequence(case: &Value) -> Result<(), String> {
    let place = Place::new();
    // git keeps one bit of a mode. Where the case is about modes alone, another mode is another bit.
    let by_mode = case["treeswap"].as_str().is_some_and(|ours| ours.starts_with("mode"));
    let bit = move |mode: &str| if by_mode { mode != "0644" } else { executable(mode) };
    for (number, step) in case["steps"].as_array().unwrap().iter().enumerate() {
        let payload = step["payload"].as_object().unwrap();
        let last = number + 1 == case["steps"].as_array().unwrap().len();
        step_of(&place, payload, &step["expect"], bit, by_mode && last)
            .map_err(|why| format!("step {}: {why}", number + 1))?;
    }
    Ok(())
}

fn step_of(
    place: &Place,
    payload: &Map<String, Value>,
    expect: &Value,
    bit: impl Fn(&str) -> bool + Copy,
    ours: bool,
) -> Result<(), String> {
    let (link, before) = (place.link(), place.published().unwrap_or_default());
    let ran = place.publish(&Tree::of(payload, bit));
    if expect["result"] != "ok" {
        failed(&ran)?;
        equal("the link", &link, &place.link())?;
        return same("after the refusal", &before, &place.published().unwrap_or_default());
    }
    succeeded(&ran)?;
    let new = ours || expect["new_generation"].as_bool().unwrap();
    equal("a new generation", &new, &(link != place.link()))?;
    let wanted = if ours {
        wanted(
            &Value::from_iter([("files", Value::Object(payload.clone())), ("dirs", expect["dirs"].clone())]),
            bit,
        )
    } else {
        wanted(expect, bit)
    };
    same("published", &wanted, &place.published()?)?;
    equal("root links", &links_of(&expect["root_links"]), &place.root_links())
}

fn type_conflict(case: &Value) -> Result<(), String> {
    let place = Place::new();
    let steps = case["steps"].as_array().unwrap();
    let ok = case["treeswap"].as_str().unwrap().starts_with("ok");
    for (number, step) in steps.iter().enumerate() {
        let payload = step.as_object().unwrap();
        let (link, links) = (place.link(), place.root_links());
        let ran = place.publish(&Tree::of(payload, executable));
        if number + 1 < steps.len() || ok {
            succeeded(&ran)?;
            equal("a new generation", &true, &(link != place.link()))?;
            if number > 0 {
                equal("root links", &links, &place.root_links())?;
            }
            for (path, file) in payload {
                let found =
                    std::fs::read(place.root.join(path)).map_err(|error| format!("{path}: {error}"))?;
                equal(path, &text(&file["text"]).into_bytes(), &found)?;
            }
        } else {
            failed(&ran)?;
            equal("the link", &link, &place.link())?;
            let generations = root::names(&place.root);
            let left = generations.iter().any(|name| root::is_generation(&String::from_utf8_lossy(name)));
            equal("something was created", &link.is_some(), &left)?;
        }
    }
    Ok(())
}

// Roots that somebody else left.

fn lay_out(at: &Path, initial: &[Value]) {
    for entry in initial {
        let path = at.join(text(&entry["path"]));
        match entry["type"].as_str().unwrap() {
            "dir" => std::fs::create_dir_all(path).unwrap(),
            "file" => std::fs::write(path, text(&entry["text"])).unwrap(),
            "link" => std::os::unix::fs::symlink(text(&entry["target"]), path).unwrap(),
            other => panic!("unknown type {other}"),
        }
    }
}

/// Where the link names a complete generation, the scene is a root that our writer left, not one that upstream's did:
/// that generation is published first, and the rest is laid out around it. Returns what is still to be laid out.
fn publish_initial(place: &Place, initial: &[Value]) -> Result<Vec<Value>, String> {
    let is = |entry: &Value, path: &str, kind: &str| text(&entry["path"]) == path && entry["type"] == kind;
    let link = initial.iter().find(|entry| is(entry, "..data", "link")).map(|entry| text(&entry["target"]));
    let Some(name) =
        link.filter(|name| root::is_generation(name) && initial.iter().any(|entry| is(entry, name, "dir")))
    else {
        return Ok(initial.to_vec());
    };
    let mut payload = Map::new();
    let mut rest = Vec::new();
    for entry in initial {
        let path = text(&entry["path"]);
        match path.strip_prefix(&format!("{name}/")) {
            Some(inner) if entry["type"] == "file" => drop(payload.insert(inner.to_owned(), entry.clone())),
            Some(_) => {}
            None if path != name && path != "..data" => rest.push(entry.clone()),
            None => {}
        }
    }
    succeeded(&place.publish(&Tree::of(&payload, executable)))?;
    for name in place.root_links().keys() {
        std::fs::remove_file(place.root.join(name)).unwrap(); // the scene has its own, or lacks them
    }
    Ok(rest)
}

fn fixture(case: &Value) -> Result<(), String> {
    let mut place = Place::new();
    let volume = case["upstream_1_33"]["volume"].as_str();
    let laid_out = match volume {
        Some(name) => {
            place.root = place.dir.path().join("surroundings").join(name);
            place.dir.path().join("surroundings")
        }
        None => place.root.clone(),
    };
    std::fs::create_dir_all(&laid_out).unwrap();
    let initial = case["initial"].as_array().unwrap();
    let rest = if volume.is_none() { publish_initial(&place, initial)? } else { initial.clone() };
    lay_out(&laid_out, &rest);
    let before = Snapshot::read(&laid_out).unwrap();
    let link = place.link();
    let payload = case["payload"].as_object().unwrap();
    let ran = place.publish(&Tree::of(payload, executable));
    let expect = &case["treeswap"];
    if expect["result"] != "ok" {
        return nothing_lost(&place, &laid_out, &before, expect, &ran);
    }
    succeeded(&ran)?;
    equal("a new generation", &expect["new_generation"].as_bool().unwrap(), &(link != place.link()))?;
    let files = Value::from_iter([("files", Value::Object(payload.clone()))]);
    same("published", &wanted(&files, executable), &place.published()?)?;
    let names: BTreeSet<String> = match expect["root_links"].as_array() {
        Some(_) => list(&expect["root_links"]).into_iter().collect(),
        None => payload.keys().cloned().collect(),
    };
    equal("root links", &names, &place.root_links().into_keys().collect())?;
    succeeded(&place.sync())?; // what a generation was replaced by is reaped by the next cycle at the latest
    let kept = [place.link().unwrap().to_string_lossy().into_owned(), "..data".into(), "..treeswap".into()];
    let left: BTreeSet<String> = (root::names(&place.root).into_iter())
        .map(|name| String::from_utf8(name).unwrap())
        .filter(|name| !kept.contains(name) && !names.contains(name))
        .collect();
    equal("left behind", &list(&expect["left_behind"]).into_iter().collect(), &left)
}

/// An error leaves everything as it was. A link that names no generation may also be moved aside, unread: what it
/// names stays as it was, and the root serves again.
fn nothing_lost(
    place: &Place,
    laid_out: &Path,
    before: &Snapshot,
    expect: &Value,
    ran: &Ran,
) -> Result<(), String> {
    let heals = expect["error_class"].as_str().is_some_and(|class| class.starts_with("..data does not name"));
    let healed = heals && ran.ok();
    if healed {
        place.published()?;
    } else {
        failed(ran)?;
    }
    let prefix = place.root.strip_prefix(laid_out).unwrap().to_str().unwrap();
    let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
    let ours = |path: &[u8]| {
        let inner = path.strip_prefix(prefix.as_bytes());
        inner.is_some_and(|inner| healed || inner.starts_with(b"..treeswap"))
    };
    let without = |snapshot: &Snapshot| {
        let kept = snapshot.0.iter().filter(|(path, _)| !ours(path));
        Snapshot(kept.map(|(path, node)| (path.clone(), node.clone())).collect())
    };
    same("what was there", &without(before), &without(&Snapshot::read(laid_out).unwrap()))
}
