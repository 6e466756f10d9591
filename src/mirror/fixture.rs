//! A mirror whose objects are written by hand, for unit tests.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use git2::ObjectType;
use tokio_util::sync::CancellationToken;

use super::layout::Layout;
use super::odb::{Settings, oid, to_object_id};
use super::repo_kind::RepoKind;
use super::shared::Shared;
use super::{Objects, Part, Selection};
use crate::payload::{Delta, Kind, Payload};
use crate::revision::{ObjectId, Revision};

pub(crate) struct Fixture {
    _dir: tempfile::TempDir,
    pub(super) layout: Layout,
    pub(super) shared: Arc<Shared>,
    repository: git2::Repository,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Settings { verify: false, durable: false, max_objects: None }.apply().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::open(&dir.path().join("mirror"), RepoKind::Bare, false, None).unwrap();
        let shared = Arc::new(Shared::new(layout.dir().to_owned(), super::Submodules::Off, false, false));
        let repository = git2::Repository::open_bare(layout.dir()).unwrap();
        Self { _dir: dir, layout, shared, repository }
    }

    pub(crate) fn objects(&self) -> Objects {
        Objects { shared: Arc::clone(&self.shared), cancel: CancellationToken::new() }
    }

    pub(super) fn write(&self, kind: ObjectType, data: &[u8]) -> ObjectId {
        to_object_id(self.repository.odb().unwrap().write(kind, data).unwrap())
    }

    pub(super) fn blob(&self, data: &[u8]) -> ObjectId {
        self.write(ObjectType::Blob, data)
    }

    /// Writes a tree with exactly these entries in this order, even if git would not accept it.
    pub(super) fn tree(&self, lines: &[(&str, &[u8], ObjectId)]) -> ObjectId {
        let mut raw = Vec::new();
        for (mode, name, id) in lines {
            raw.extend_from_slice(mode.as_bytes());
            raw.push(b' ');
            raw.extend_from_slice(name);
            raw.push(0);
            raw.extend_from_slice(&id.0);
        }
        self.write(ObjectType::Tree, &raw)
    }

    /// Writes `levels` directories `d`, each in the next one, with `tree` as the innermost. Returns the tree that the
    /// outermost is in.
    pub(super) fn nested(&self, tree: ObjectId, levels: u32) -> ObjectId {
        (0..levels).fold(tree, |tree, _| self.tree(&[("40000", b"d", tree)]))
    }

    /// Writes `levels` trees, each with the one before it at ten names, beginning with `tree`. Returns the last one.
    pub(super) fn bomb(&self, tree: ObjectId, levels: u32) -> ObjectId {
        let names: Vec<_> = (b'a'..=b'j').map(|name| [name]).collect();
        (0..levels).fold(tree, |tree, _| {
            let lines: Vec<_> = names.iter().map(|name| ("40000", &name[..], tree)).collect();
            self.tree(&lines)
        })
    }

    pub(super) fn commit(&self, tree: ObjectId, parents: &[Revision]) -> Revision {
        let parents: String = parents.iter().map(|parent| format!("parent {parent}\n")).collect();
        let who = "a <a@example.com> 0 +0000";
        let text = format!("tree {tree}\n{parents}author {who}\ncommitter {who}\n\nx\n");
        Revision(self.write(ObjectType::Commit, text.as_bytes()))
    }

    pub(super) fn tag(&self, target: ObjectId, kind: &str) -> ObjectId {
        let text = format!("object {target}\ntype {kind}\ntag t\ntagger a <a@example.com> 0 +0000\n\nx\n");
        self.write(ObjectType::Tag, text.as_bytes())
    }

    /// Deletes the file of an object.
    pub(super) fn lose(&self, id: ObjectId) {
        let hex = oid(&id).to_string();
        std::fs::remove_file(self.layout.dir().join("objects").join(&hex[..2]).join(&hex[2..])).unwrap();
    }

    /// Writes the tree of a model, with nested directories as git writes them. `None` is an empty directory.
    pub(super) fn tree_of(&self, model: &Model) -> ObjectId {
        let mut top = Dir::default();
        for (path, node) in model {
            top.insert(path, node.clone());
        }
        top.write(self)
    }

    pub(crate) fn commit_of(&self, model: &Model) -> Revision {
        self.commit(self.tree_of(model), &[])
    }
}

/// The kind and content of the file at each path; `None` is an empty directory.
pub(crate) type Model = BTreeMap<String, Option<(Kind, Vec<u8>)>>;

#[derive(Default)]
struct Dir {
    dirs: BTreeMap<String, Self>,
    leaves: BTreeMap<String, (Kind, Vec<u8>)>,
}

impl Dir {
    fn insert(&mut self, path: &str, node: Option<(Kind, Vec<u8>)>) {
        match (path.split_once('/'), node) {
            (Some((dir, rest)), node) => self.dirs.entry(dir.into()).or_default().insert(rest, node),
            (None, None) => {
                self.dirs.entry(path.into()).or_default();
            }
            (None, Some(node)) => {
                self.leaves.insert(path.into(), node);
            }
        }
    }

    fn write(&self, fixture: &Fixture) -> ObjectId {
        let mut lines: Vec<(String, &str, &str, ObjectId)> = Vec::new();
        for (name, dir) in &self.dirs {
            lines.push((format!("{name}/"), "40000", name, dir.write(fixture)));
        }
        for (name, (kind, content)) in &self.leaves {
            let mode = match kind {
                Kind::File => "100644",
                Kind::Executable => "100755",
                Kind::Symlink => "120000",
                Kind::Submodule => "160000",
            };
            let id = match kind {
                Kind::Submodule => ObjectId([content.len() as u8 + 1; 20]),
                _ => fixture.blob(content),
            };
            lines.push((name.clone(), mode, name, id));
        }
        lines.sort();
        let lines: Vec<_> = lines.iter().map(|(_, mode, name, id)| (*mode, name.as_bytes(), *id)).collect();
        fixture.tree(&lines)
    }
}

/// A payload as plain data for comparison: directories, and entries by path.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Plain {
    pub(super) dirs: Vec<Vec<u8>>,
    pub(super) entries: BTreeMap<Vec<u8>, (Kind, ObjectId, u64)>,
}

impl Plain {
    pub(super) fn of(payload: &Payload) -> Self {
        let mut dirs: Vec<_> = payload.dir_paths().collect();
        dirs.sort();
        let entries = payload
            .entries
            .iter()
            .map(|entry| (payload.path_of(entry), (entry.kind, entry.id, entry.size)))
            .collect();
        Self { dirs, entries }
    }

    /// Applies a delta as the writer does, and panics where the file system would fail.
    pub(super) fn apply(&mut self, delta: &Delta) {
        for path in &delta.removed {
            assert!(self.entries.remove(&**path).is_some(), "{} was not there", path.escape_ascii());
        }
        for path in &delta.removed_dirs {
            let below = [&**path, b"/"].concat();
            assert!(!self.entries.keys().chain(&self.dirs).any(|other| other.starts_with(&below)));
            let at = self.dirs.binary_search(&path.to_vec()).expect("the directory was there");
            self.dirs.remove(at);
        }
        for path in &delta.added_dirs {
            let at = self.dirs.binary_search(&path.to_vec()).expect_err("the directory is new");
            self.assert_free(path);
            self.dirs.insert(at, path.to_vec());
        }
        for entry in &delta.written {
            self.assert_free(&entry.path);
            self.entries.insert(entry.path.to_vec(), (entry.kind, entry.id, entry.size));
        }
    }

    fn assert_free(&self, path: &[u8]) {
        let shown = path.escape_ascii();
        assert!(!self.entries.contains_key(path), "{shown} is in the way");
        let parent = path.iter().rposition(|byte| *byte == b'/').map(|at| path[..at].to_vec());
        assert!(parent.is_none_or(|dir| self.dirs.contains(&dir)), "{shown} has no directory");
    }
}

/// The id of a blob, which need not exist.
pub(super) fn blob_id(content: &[u8]) -> ObjectId {
    to_object_id(git2::Oid::hash_object(ObjectType::Blob, content).unwrap())
}

/// A source's part of a set.
pub(crate) fn part(name: &str, revision: Revision, to: &str) -> Part {
    Part {
        name: name.to_owned(),
        repo: "https://git.example.com/x.git".to_owned(),
        ref_name: "main".to_owned(),
        revision,
        path: String::new(),
        to: to.to_owned(),
        sparse: Vec::new(),
        mirror: "m".to_owned(),
    }
}

/// Runs git with the words of `line` as its arguments, and returns what it prints.
pub(super) fn git(dir: &Path, line: &str, input: &[u8]) -> Vec<u8> {
    let mut command = Command::new("git");
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    command.arg("-C").arg(dir).args(line.split(' ')).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(input).unwrap());
        child.wait_with_output().unwrap()
    });
    assert!(output.status.success(), "git {line}");
    output.stdout
}

/// A selection of everything, with symbolic links kept.
pub(super) fn everything() -> Selection {
    let mut selection = Selection::default();
    selection.rules.symlinks = crate::payload::Symlinks::Keep;
    selection
}
