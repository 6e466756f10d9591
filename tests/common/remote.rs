//! The remote: a bare repository whose commits are written with `git fast-import` (one process per commit, any mode and
//! path).

use std::collections::{BTreeMap, HashMap};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use super::run;
use super::tree::{Node, Snapshot};

/// The files of a commit: by path, mode and content. The content of a symbolic link is its target.
#[derive(Clone, Default, Debug)]
pub struct Files(pub BTreeMap<String, (&'static str, Vec<u8>)>);

impl Files {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn file(mut self, path: impl Into<String>, content: impl Into<Vec<u8>>) -> Self {
        self.0.insert(path.into(), ("100644", content.into()));
        self
    }

    pub fn script(mut self, path: impl Into<String>, content: impl Into<Vec<u8>>) -> Self {
        self.0.insert(path.into(), ("100755", content.into()));
        self
    }

    pub fn link(mut self, path: impl Into<String>, target: &str) -> Self {
        self.0.insert(path.into(), ("120000", target.into()));
        self
    }

    pub fn without(mut self, path: &str) -> Self {
        assert!(self.0.remove(path).is_some(), "no such path: {path}");
        self
    }
}

/// Returns pseudo-random bytes, which do not compress. `Random` would divide for each byte, and these are megabytes.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = 88_172_645_463_325_252_u64 ^ (seed << 20);
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// A bare repository.
pub struct Remote {
    pub path: PathBuf,
    home: PathBuf,
    known: Mutex<HashMap<String, Snapshot>>,
}

impl Remote {
    pub fn create(path: &Path) -> Self {
        let home = path.parent().unwrap().to_owned();
        let remote = Self { path: path.to_owned(), home, known: Mutex::default() };
        run::to_end(
            run::clean("git", &remote.home)
                .args(["init", "--quiet", "--bare", "--initial-branch=main"])
                .arg(path),
        )
        .expect_ok("git init");
        // Hosting services allow shallow fetches by commit id, and filtered fetches.
        for (key, value) in [("uploadpack.allowAnySHA1InWant", "true"), ("uploadpack.allowFilter", "true")] {
            remote.git(&["config", key, value]);
        }
        remote
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = run::clean("git", &self.home);
        command.arg("-C").arg(&self.path).args(args);
        command
    }

    /// Runs git in the repository and returns its output without the trailing newline.
    #[track_caller]
    pub fn git(&self, args: &[&str]) -> String {
        run::to_end(&mut self.command(args)).expect_ok(&format!("git {args:?}")).stdout.trim_end().to_owned()
    }

    /// Commits exactly these files to `main`; returns the commit's id.
    pub fn commit(&self, files: &Files) -> String {
        self.commit_on("refs/heads/main", files)
    }

    /// Commits exactly these files to a ref, with its tip as the parent if it exists; returns the commit's id.
    pub fn commit_on(&self, name: &str, files: &Files) -> String {
        let before = self.tip(name);
        let mut input = Vec::new();
        let stamp = "Committer <committer@example.com> 1700000000 +0000";
        writeln!(input, "commit {name}\ncommitter {stamp}\ndata 1\nx").unwrap();
        if let Some(before) = before {
            writeln!(input, "from {before}").unwrap();
        }
        writeln!(input, "deleteall").unwrap();
        for (path, (mode, content)) in &files.0 {
            if *mode == "160000" {
                writeln!(input, "M {mode} {} {path}", String::from_utf8_lossy(content)).unwrap();
                continue;
            }
            writeln!(input, "M {mode} inline {path}\ndata {}", content.len()).unwrap();
            input.extend_from_slice(content);
            input.push(b'\n');
        }
        let mut child = self
            .command(&["fast-import", "--quiet", "--force"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&input).unwrap();
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success(), "git fast-import: {}", String::from_utf8_lossy(&out.stderr));
        self.tip(name).unwrap()
    }

    /// The object id that a ref names.
    pub fn tip(&self, name: &str) -> Option<String> {
        let ran = run::to_end(&mut self.command(&["rev-parse", "--quiet", "--verify", name]));
        ran.ok().then(|| ran.stdout.trim_end().to_owned())
    }

    /// Points `main` at an existing commit. A hook that updates the ref may hold its locks, or was killed holding them:
    /// that of the ref, and that of `HEAD`, which names it.
    pub fn reset(&self, commit: &str) {
        let update = ["-c", "core.filesRefLockTimeout=2000", "update-ref", "refs/heads/main", commit];
        if !run::to_end(&mut self.command(&update)).ok() {
            for lock in ["refs/heads/main.lock", "HEAD.lock"] {
                let _ = std::fs::remove_file(self.path.join(lock));
            }
            self.git(&update);
        }
    }

    /// A commit's tree as git reads it, to compare the published tree with.
    pub fn snapshot(&self, commit: &str) -> Snapshot {
        if let Some(snapshot) = self.known.lock().unwrap().get(commit) {
            return snapshot.clone();
        }
        let listing = self.command(&["ls-tree", "-r", "-t", "-z", "--full-tree", commit]).output().unwrap();
        assert!(listing.status.success(), "{}", String::from_utf8_lossy(&listing.stderr));
        let mut snapshot = Snapshot::default();
        for line in listing.stdout.split(|byte| *byte == 0).filter(|line| !line.is_empty()) {
            let tab = line.iter().position(|byte| *byte == b'\t').unwrap();
            let (head, path) = (String::from_utf8_lossy(&line[..tab]), line[tab + 1..].to_vec());
            let fields: Vec<&str> = head.split(' ').collect();
            let content = || self.command(&["cat-file", "blob", fields[2]]).output().unwrap().stdout;
            let node = match fields[0] {
                "040000" | "160000" => Node::Directory,
                "120000" => Node::Link(content()),
                "100755" => Node::File { executable: true, content: content() },
                _ => Node::File { executable: false, content: content() },
            };
            snapshot.0.insert(path, node);
        }
        self.known.lock().unwrap().insert(commit.to_owned(), snapshot.clone());
        snapshot
    }

    /// Makes the remote unreachable until the guard is dropped.
    pub fn away(&self) -> Away<'_> {
        let aside = self.path.with_extension("away");
        std::fs::rename(&self.path, &aside).unwrap();
        Away { remote: self, aside }
    }
}

pub struct Away<'a> {
    remote: &'a Remote,
    aside: PathBuf,
}

impl Drop for Away<'_> {
    fn drop(&mut self) {
        let _ = std::fs::rename(&self.aside, &self.remote.path);
    }
}
