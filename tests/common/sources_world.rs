//! Tests with several sources in one root (`--sources`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::run::{Ran, to_end};
use super::{Remote, Sidecar, World};

/// Reads the published tree: by path, a file's content, or `-> ` and a symbolic link's target.
pub fn published(root: &Path) -> BTreeMap<String, String> {
    fn walk(dir: &Path, prefix: &str, into: &mut BTreeMap<String, String>) {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                walk(&entry.path(), &format!("{path}/"), into);
            } else if kind.is_symlink() {
                into.insert(path, format!("-> {}", entry.path().read_link().unwrap().display()));
            } else {
                into.insert(path, std::fs::read_to_string(entry.path()).unwrap());
            }
        }
    }
    let mut all = BTreeMap::new();
    walk(&root.join("..data"), "", &mut all);
    all
}

fn tree(files: &[(&str, &str)]) -> BTreeMap<String, String> {
    files.iter().map(|(path, content)| ((*path).to_owned(), (*content).to_owned())).collect()
}

/// A world with several remotes and a sources file.
pub struct SourcesWorld {
    pub world: World,
}

impl SourcesWorld {
    pub fn new() -> Self {
        Self { world: World::new() }
    }

    /// Creates a remote of this name.
    pub fn remote(&self, name: &str) -> Remote {
        Remote::create(&self.world.dir().join(name))
    }

    /// The path of the sources file.
    pub fn file(&self) -> PathBuf {
        self.world.dir().join("sources.yaml")
    }

    /// Replaces the sources file. Each source is a YAML flow mapping without its braces.
    pub fn list(&self, sources: &[String]) {
        self.list_with("", sources);
    }

    /// The same with more lines before the sources.
    pub fn list_with(&self, more: &str, sources: &[String]) {
        let sources: String = sources.iter().map(|source| format!("  - {{{source}}}\n")).collect();
        self.write(&format!("version: 1\n{more}sources:\n{sources}end: true\n"));
    }

    /// Replaces the sources file by this text.
    pub fn write(&self, text: &str) {
        let new = self.file().with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.file()).unwrap();
    }

    /// The command that syncs the sources into the world's root, with more arguments.
    pub fn sync(&self, more: &[&str]) -> Command {
        let mut command = self.world.treeswap(&["sync", "--sources"]);
        command.arg(self.file()).arg("--root").arg(&self.world.root).args(more);
        command
    }

    /// Syncs once.
    pub fn once(&self) -> Ran {
        to_end(&mut self.sync(&["--one-time"]))
    }

    /// Starts a sidecar at a quick pace.
    pub fn sidecar(&self, more: &[&str]) -> Sidecar {
        let fast = ["--period=10ms", "--min-interval=0s", "--max-backoff=100ms", "--http-bind=127.0.0.1:0"];
        Sidecar::of(&self.world, self.sync(&fast).args(more))
    }

    /// Waits until exactly these files are published.
    #[track_caller]
    pub fn assert_shows(&self, files: &[(&str, &str)]) {
        let expected = tree(files);
        let mut seen = BTreeMap::new();
        let deadline = Instant::now() + super::allowed(Duration::from_secs(30));
        while Instant::now() < deadline {
            seen = published(&self.world.root);
            if seen == expected {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(seen, expected);
    }
}

/// A source that follows `main`, as a YAML flow mapping without its braces.
pub fn source(name: &str, remote: &Remote, more: &str) -> String {
    format!("name: {name}, repo: {}, ref: main{more}", remote.path.display())
}

/// The sources in the status.
pub fn rows(sidecar: &Sidecar) -> Vec<serde_json::Value> {
    sidecar.status()["sources"].as_array().cloned().unwrap_or_default()
}
