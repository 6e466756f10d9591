//! Trees of many entries, written as git's objects. Of eight files one is a line and seven are empty, so that they have
//! room in memory: what is hostile is how they are laid out.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::Write as _;
use std::process::Stdio;

use super::common::Remote;

/// How so many entries are laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// As people lay them out: directories of fifty files, two levels.
    Usual,
    /// One directory of them all.
    Wide,
    /// All of them at the top: each gets a link in the root.
    Top,
    /// One directory of them all, below a path of 3,500 bytes.
    DeepPath,
    /// A chain of 120 directories, each with its part of them.
    Chain,
    /// Directories of one file each, in one directory.
    Directories,
    /// One directory of them all, with names as long as the limits allow for so many.
    LongNames,
}

impl Shape {
    pub const ALL: [Self; 7] =
        [Self::Usual, Self::Wide, Self::Top, Self::DeepPath, Self::Chain, Self::Directories, Self::LongNames];

    pub fn name(self) -> &'static str {
        match self {
            Self::Usual => "usual",
            Self::Wide => "wide",
            Self::Top => "top",
            Self::DeepPath => "deep-path",
            Self::Chain => "chain",
            Self::Directories => "directories",
            Self::LongNames => "long-names",
        }
    }
}

/// An entry of a tree: mode, name, id.
type Line = (&'static str, String, String);

const FILE: &str = "100644";
const DIR: &str = "40000";

/// Writes trees into a repository.
pub struct Writer<'r> {
    remote: &'r Remote,
    count: usize,
    blobs: Vec<String>,
    /// What was written already, by its content.
    known: RefCell<HashMap<Vec<u8>, String>>,
}

impl<'r> Writer<'r> {
    pub fn new(remote: &'r Remote, count: usize) -> Self {
        let mut writer = Self { remote, count, blobs: Vec::new(), known: RefCell::default() };
        writer.blobs =
            (0..8).map(|n| writer.object("blob", if n == 0 { b"content\n" } else { b"" })).collect();
        writer
    }

    /// A commit of the shape on `main`. `revision` is in its file `marker`, at the top, and in one file among the many.
    pub fn commit(&self, shape: Shape, revision: usize) -> String {
        let changed = self.object("blob", format!("revision {revision}\n").as_bytes());
        let mut top = match shape {
            Shape::Usual => self.usual(changed),
            Shape::Wide => vec![(DIR, "d".into(), self.tree(self.files(self.count, 7, changed)))],
            Shape::Top => self.files(self.count, 7, changed),
            Shape::DeepPath => {
                let mut at = self.tree(self.files(self.count, 7, changed));
                for _ in 1..14 {
                    at = self.tree(vec![(DIR, "p".repeat(249), at)]);
                }
                vec![(DIR, "p".repeat(249), at)]
            }
            Shape::Chain => {
                let mut at = self.tree(self.files(self.count / 120, 7, changed));
                for _ in 1..120 {
                    let mut files = self.files(self.count / 120, 7, self.blobs[0].clone());
                    files.push((DIR, "below".into(), at));
                    at = self.tree(files);
                }
                vec![(DIR, "chain".into(), at)]
            }
            Shape::Directories => {
                let one = self.tree(vec![(FILE, "f".into(), self.blobs[0].clone())]);
                let mut dirs: Vec<_> =
                    (0..self.count / 2).map(|n| (DIR, format!("{n:07}"), one.clone())).collect();
                dirs[0].2 = self.tree(vec![(FILE, "f".into(), changed)]);
                vec![(DIR, "d".into(), self.tree(dirs))]
            }
            Shape::LongNames => {
                // A tree object of 60 MiB at a full million: half in one directory, half in another.
                let half = |changed| self.tree(self.files(self.count / 2, 60, changed));
                vec![(DIR, "a".into(), half(changed)), (DIR, "b".into(), half(self.blobs[0].clone()))]
            }
        };
        top.push((FILE, "marker".into(), self.marker(revision)));
        self.publish(top)
    }

    /// A commit without any of them.
    pub fn nothing(&self, revision: usize) -> String {
        self.publish(vec![(FILE, "marker".into(), self.marker(revision))])
    }

    /// A commit of so many files of so many bytes each.
    pub fn large(&self, files: u8, bytes: usize) -> String {
        let file = |n| (FILE, format!("file-{n}"), self.write("blob", &vec![b'a' + n; bytes]));
        let mut top: Vec<_> = (0..files).map(file).collect();
        top.push((FILE, "marker".into(), self.marker(1)));
        self.publish(top)
    }

    /// A commit of so many merges, each of the same so many commits.
    pub fn merges(&self, merges: usize, parents: usize) {
        let tree = self.tree(vec![(FILE, "marker".into(), self.marker(1))]);
        let who = "A <a@b> 1 +0000";
        let mut stream = String::new();
        for n in 1..=parents {
            // No two have the same id.
            stream += &format!(
                "reset refs/parent\ncommit refs/parent\nmark :{n}\ncommitter A <a@b> {n} +0000\ndata 0\nM 040000 {tree} \n"
            );
        }
        let marks = self.remote.path.join("marks");
        let mut command = self.remote.command(&["fast-import", "--quiet"]);
        command.arg(format!("--export-marks={}", marks.display())).stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(stream.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
        let marks = std::fs::read_to_string(marks).unwrap();
        let ids: Vec<_> = marks.lines().filter_map(|line| line.split_once(' ')).map(|(_, id)| id).collect();
        let commit = |parents: &[&str], message: usize| {
            let parents: String = parents.iter().map(|id| format!("parent {id}\n")).collect();
            let text = format!("tree {tree}\n{parents}author {who}\ncommitter {who}\n\n{message}\n");
            self.write("commit", text.as_bytes())
        };
        let merges: Vec<_> = (0..merges).map(|n| commit(&ids, n)).collect();
        let merges: Vec<_> = merges.iter().map(String::as_str).collect();
        self.remote.reset(&commit(&merges, 0));
    }

    /// A commit of a chain of so many trees, each naming the next one by so many lines: few objects, and more paths
    /// than anybody can count.
    pub fn repeated(&self, trees: usize, lines: usize) {
        let mut at = self.tree(vec![(FILE, "f".into(), self.blobs[0].clone())]);
        for _ in 0..trees {
            at = self.tree((0..lines).map(|n| (DIR, format!("{n:07}"), at.clone())).collect());
        }
        self.publish(vec![(DIR, "d".into(), at)]);
    }

    /// A commit on top of another, with a message of so many bytes.
    pub fn long_commit(&self, parent: &str, bytes: usize) {
        let tree = self.remote.git(&["rev-parse", &format!("{parent}^{{tree}}")]);
        let who = "Author <author@example.com> 1700000000 +0000";
        let mut commit = format!("tree {}\nparent {parent}\nauthor {who}\ncommitter {who}\n\n", tree.trim());
        commit.extend(std::iter::repeat_n('x', bytes));
        let id = self.write("commit", commit.as_bytes());
        // update-ref looks at the object; the attacker's program does not.
        std::fs::write(self.remote.path.join("refs/heads/main"), format!("{id}\n")).unwrap();
    }

    fn usual(&self, changed: String) -> Vec<Line> {
        let mut outer = Vec::new();
        let per_outer = 2_500;
        for a in 0..self.count.div_ceil(per_outer) {
            // The same fifty directories everywhere: git has each once.
            let inner = (0..50).map(|b| {
                let files = (0..49).map(|n| {
                    let blob = if (a, b, n) == (0, 0, 0) { &changed } else { &self.blobs[n % 8] };
                    (FILE, format!("file-{b:02}-{n:02}.yaml"), blob.clone())
                });
                (DIR, format!("component-{b:02}"), self.tree(files.collect()))
            });
            outer.push((DIR, format!("area-{a:04}"), self.tree(inner.collect())));
        }
        outer
    }

    fn files(&self, count: usize, width: usize, changed: String) -> Vec<Line> {
        let line = |n: usize| (FILE, format!("{n:0width$}"), self.blobs[n % 8].clone());
        let mut files: Vec<_> = (0..count).map(line).collect();
        files[count / 2].2 = changed;
        files
    }

    fn marker(&self, revision: usize) -> String {
        self.object("blob", revision.to_string().as_bytes())
    }

    fn publish(&self, top: Vec<Line>) -> String {
        let tree = self.tree(top);
        let commit = self.remote.git(&["commit-tree", "-m", "x", &tree]);
        self.remote.reset(&commit);
        commit
    }

    fn tree(&self, mut lines: Vec<Line>) -> String {
        lines.sort_by_key(|(mode, name, _)| if *mode == DIR { format!("{name}/") } else { name.clone() });
        let mut raw = Vec::new();
        for (mode, name, id) in &lines {
            write!(raw, "{mode} {name}\0").unwrap();
            raw.extend((0..20).map(|at| u8::from_str_radix(&id[2 * at..2 * at + 2], 16).unwrap()));
        }
        self.object("tree", &raw)
    }

    fn object(&self, kind: &str, content: &[u8]) -> String {
        if let Some(id) = self.known.borrow().get(content) {
            return id.clone();
        }
        let id = self.write(kind, content);
        self.known.borrow_mut().insert(content.to_vec(), id.clone());
        id
    }

    fn write(&self, kind: &str, content: &[u8]) -> String {
        let mut command = self.remote.command(&["hash-object", "-w", "-t", kind, "--stdin"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(content).unwrap();
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success());
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    }
}
