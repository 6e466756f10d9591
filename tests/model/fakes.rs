//! Fake publishers, each of which violates one promise. The judge must detect all of them: a checker that cannot fail
//! proves nothing.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::tree::{Node, Snapshot};
use crate::common::{Remote, run};

/// How long a temporary violation lasts, so that a reader on a busy machine sees it.
const LONG_ENOUGH: Duration = Duration::from_secs(1);

/// The violation of a fake.
#[derive(Clone, Copy)]
pub enum Wrong {
    /// None.
    No,
    /// The published tree is changed. The function gets the previous tree as well.
    Tree(fn(&mut Snapshot, &Snapshot)),
    /// After the publication, the root or the new generation is changed.
    Root(fn(&Path, &Path)),
    /// The previous generation is changed, which a reader may have pinned.
    Before(fn(&Path)),
    /// Nothing is published after the second push.
    Stale,
    /// The first revision is published again before the new one.
    Back,
    /// Something is published for a revision that must be refused.
    Refused,
    /// A file in the current generation is overwritten.
    InPlace,
    /// `git checkout` in the current generation.
    Checkout,
    /// The link is missing for a moment.
    Gap,
}

pub struct Fake {
    pub wrong: Wrong,
    /// The published trees and their directories.
    published: Vec<(Snapshot, PathBuf)>,
}

/// The violations. The reader must detect each, or the wait for the newest revision must. [`Wrong::Checkout`] has a
/// test of its own.
pub const WRONG: &[(&str, Wrong)] = &[
    ("a file cut to nothing", Wrong::Tree(|new, _| set(new, "f", file(false, "")))),
    ("a byte that is another", Wrong::Tree(|new, _| set(new, "d/e/g", file(false, "deef\n")))),
    (
        "a file of the revision before",
        Wrong::Tree(|new, old| set(new, "stamp", old.0[&b"stamp"[..]].clone())),
    ),
    (
        "a directory of the revision before",
        Wrong::Tree(|new, old| {
            new.0.retain(|path, _| !path.starts_with(b"d/"));
            let before = old.0.iter().filter(|(path, _)| path.starts_with(b"d/"));
            new.0.extend(before.map(|(path, node)| (path.clone(), node.clone())));
        }),
    ),
    ("a file that is missing", Wrong::Tree(|new, _| drop(new.0.remove(&b"d/e/g"[..])))),
    ("a foreign file", Wrong::Tree(|new, _| set(new, "d/foreign", file(false, "x")))),
    ("what was removed", Wrong::Tree(|new, _| set(new, "0", file(false, "removed later\n")))),
    ("an empty directory", Wrong::Tree(|new, _| set(new, "d/empty", Node::Directory))),
    ("an executable bit lost", Wrong::Tree(|new, _| set(new, "run", file(false, "#!/bin/sh\n")))),
    ("an executable bit too many", Wrong::Tree(|new, _| set(new, "d/e/g", file(true, "deep\n")))),
    ("a link elsewhere", Wrong::Tree(|new, _| set(new, "link", Node::Link(b"d".to_vec())))),
    ("a link that was followed", Wrong::Tree(|new, _| set(new, "link", file(true, "#!/bin/sh\n")))),
    ("a link as a file with its text", Wrong::Tree(|new, _| set(new, "link", file(false, "run")))),
    (
        "a directory that should be a file",
        Wrong::Tree(|new, _| {
            set(new, "f", Node::Directory);
            set(new, "f/x", file(false, "x"));
        }),
    ),
    ("a submodule without its directory", Wrong::Tree(|new, _| drop(new.0.remove(&b"mod"[..])))),
    (
        "a mode that git has not",
        Wrong::Root(|_, dir| {
            fs::set_permissions(dir.join("run"), fs::Permissions::from_mode(0o4755)).unwrap();
        }),
    ),
    ("a root link that is missing", Wrong::Root(|root, _| fs::remove_file(root.join("f")).unwrap())),
    (
        "a root link past the link",
        Wrong::Root(|root, dir| {
            fs::remove_file(root.join("f")).unwrap();
            symlink(dir.join("f"), root.join("f")).unwrap();
        }),
    ),
    ("a root link too many", Wrong::Root(|root, _| symlink("..data/x", root.join("x")).unwrap())),
    ("a pinned generation that goes", Wrong::Before(|dir| fs::remove_dir_all(dir).unwrap())),
    ("a pinned generation that changes", Wrong::Before(|dir| fs::write(dir.join("f"), "recycled").unwrap())),
    ("nothing new any more", Wrong::Stale),
    ("an older revision after a newer one", Wrong::Back),
    ("a revision that must be refused", Wrong::Refused),
    ("files written where they are read", Wrong::InPlace),
    ("the link away for a moment", Wrong::Gap),
];

fn file(executable: bool, content: &str) -> Node {
    Node::File { executable, content: content.into() }
}

fn set(tree: &mut Snapshot, path: &str, node: Node) {
    tree.0.insert(path.into(), node);
}

fn os(path: &[u8]) -> &std::ffi::OsStr {
    std::ffi::OsStr::from_bytes(path)
}

/// Writes a tree below a directory.
fn write(tree: &Snapshot, dir: &Path) {
    for (path, node) in &tree.0 {
        let path = dir.join(os(path));
        match node {
            Node::Directory => fs::create_dir_all(path).unwrap(),
            Node::Link(target) => symlink(os(target), path).unwrap(),
            Node::File { executable, content } => {
                fs::write(&path, content).unwrap();
                let mode = if *executable { 0o755 } else { 0o644 };
                fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            }
            Node::Odd(what) => panic!("{what}"),
        }
    }
}

impl Fake {
    pub fn new(wrong: Wrong) -> Self {
        Self { wrong, published: Vec::new() }
    }

    /// Publishes after a push of `tree`, which is `None` if the revision must be refused.
    pub fn pushed(&mut self, root: &Path, tree: Option<Snapshot>, remote: &Remote, id: &str) {
        let shown_refused = tree.is_none();
        let tree = match (tree, self.wrong) {
            (Some(tree), _) => tree,
            (None, Wrong::Refused) => {
                let mut tree = self.published.last().unwrap().0.clone();
                set(&mut tree, "out", Node::Link(b"../out".to_vec()));
                tree
            }
            (None, _) => return,
        };
        let begun = self.published.len() > 1;
        match self.wrong {
            Wrong::Stale if begun => return,
            Wrong::InPlace | Wrong::Checkout if !self.published.is_empty() => {
                let dir = self.published[0].1.clone();
                if matches!(self.wrong, Wrong::InPlace) {
                    fs::write(dir.join("stamp"), "in place").unwrap();
                    return;
                }
                return checkout(remote, id, &dir);
            }
            Wrong::Gap if begun => {
                fs::remove_file(root.join("..data")).unwrap();
                std::thread::sleep(LONG_ENOUGH);
            }
            Wrong::Back if begun => {
                let (before, _) = self.published[0].clone();
                self.publish(root, before);
                std::thread::sleep(LONG_ENOUGH);
            }
            _ => {}
        }
        let mut shown = tree;
        if let (Wrong::Tree(change), Some((before, _))) = (self.wrong, self.published.last()) {
            change(&mut shown, before);
        }
        let dir = self.publish(root, shown);
        match self.wrong {
            Wrong::Root(act) if begun => act(root, &dir),
            // The history does not wait for refused revisions, and the next push comes at once.
            Wrong::Refused if shown_refused => std::thread::sleep(LONG_ENOUGH),
            Wrong::Before(act) if begun => act(&self.published[self.published.len() - 2].1),
            _ => {}
        }
    }

    fn publish(&mut self, root: &Path, tree: Snapshot) -> PathBuf {
        let name = format!("..2026_11_21_09_00_00.{:09}", self.published.len() + 1);
        let dir = root.join(&name);
        fs::create_dir_all(&dir).unwrap();
        write(&tree, &dir);
        for top in tree.top() {
            let _ = symlink(Path::new("..data").join(os(top)), root.join(os(top)));
        }
        symlink(&name, root.join("..data_tmp")).unwrap();
        fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
        let gone = |name: &std::ffi::OsStr| {
            !name.as_bytes().starts_with(b"..") && !tree.0.contains_key(name.as_bytes())
        };
        for entry in fs::read_dir(root).unwrap().flatten().filter(|entry| gone(&entry.file_name())) {
            fs::remove_file(entry.path()).unwrap();
        }
        self.published.push((tree, dir.clone()));
        dir
    }
}

/// Checks out the commit with git over the directory's content.
fn checkout(remote: &Remote, id: &str, dir: &Path) {
    let mut git = remote.command(&["-c", "core.bare=false", "--work-tree"]);
    run::to_end(git.arg(dir).args(["checkout", "--quiet", "-f", id])).expect_ok("git checkout");
}
