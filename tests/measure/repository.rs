//! Generates a repository like a large CI configuration: many small, similar YAML files and scripts in a deep tree, and
//! a series of commits that each change a few of them.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::Random;

/// The file whose content is the number of its commit.
pub const NUMBER: &str = "NUMBER";

/// The repository, and its commits on `main`, oldest first.
pub struct Repository {
    pub path: PathBuf,
    pub commits: Vec<String>,
    /// The path and content of every file of the first commit.
    pub files: Vec<(String, Vec<u8>)>,
}

fn path_of(index: usize) -> String {
    let org = index / 60;
    let repo = index / 5;
    match index % 10 {
        0..5 => format!(
            "ci-operator/config/org-{org:04}/repo-{repo}/org-{org}-repo-{repo}-branch-{}.yaml",
            index % 5
        ),
        5..7 => format!("ci-operator/jobs/org-{org}/repo-{repo}/jobs-{index}.yaml"),
        7 => format!("ci-operator/step-registry/area-{org}/step-{repo}/step-{index}-commands.sh"),
        8 => format!("ci-operator/step-registry/area-{org}/step-{repo}/step-{index}-ref.yaml"),
        _ => format!("core-services/service-{org}/part-{repo}/OWNERS-{index}"),
    }
}

pub fn content_of(index: usize, round: usize, random: &mut Random) -> Vec<u8> {
    let mut text = format!("# file {index}, round {round}\nname: component-{index}\ntests:\n");
    // Most files are small, a few are large: about 5 kB on average.
    let lines = 20 + random.below(100) * if random.below(20) == 0 { 12 } else { 1 };
    for line in 0..lines {
        text.push_str(&format!(
            "- as: e2e-{}-{}\n  steps: {{workflow: w-{}}}\n",
            line,
            random.below(40),
            random.below(900)
        ));
    }
    text.into_bytes()
}

impl Repository {
    /// Generates a first commit with `count` files, and `tail` commits after it.
    pub fn generate(path: &Path, count: usize, tail: usize) -> Self {
        git(path, &["init", "--quiet", "--bare", "--initial-branch=main", "."]);
        for setting in ["uploadpack.allowAnySHA1InWant", "uploadpack.allowFilter"] {
            git(path, &["config", setting, "true"]);
        }
        std::fs::write(path.join("git-daemon-export-ok"), "").expect("the repository is writable");
        let mut random = Random::new(7);
        let files: Vec<_> =
            (0..count).map(|index| (path_of(index), content_of(index, 0, &mut random))).collect();
        let mut child = Command::new("git")
            .arg("-C")
            .arg(path)
            .args(["fast-import", "--quiet"])
            .stdin(Stdio::piped())
            .spawn()
            .expect("git runs");
        let mut input = BufWriter::new(child.stdin.take().expect("it is piped"));
        write_all(&mut input, &files, count, tail, &mut random).expect("fast-import listens");
        drop(input);
        assert!(child.wait().expect("git runs").success(), "git fast-import failed");
        git(path, &["repack", "-adq"]);
        let list = git(path, &["rev-list", "--reverse", "main"]);
        Self { path: path.to_owned(), commits: list.lines().map(str::to_owned).collect(), files }
    }

    pub fn describe(&self) -> String {
        let bytes: usize = self.files.iter().map(|(_, content)| content.len()).sum();
        let (files, commits) = (self.files.len(), self.commits.len());
        format!("{files} files, {} MB, {commits} commits", bytes / 1_000_000)
    }

    /// Points `main` at one of the commits.
    pub fn publish(&self, index: usize) {
        git(&self.path, &["update-ref", "refs/heads/main", &self.commits[index]]);
    }
}

fn write_all(
    input: &mut impl Write,
    files: &[(String, Vec<u8>)],
    count: usize,
    tail: usize,
    random: &mut Random,
) -> std::io::Result<()> {
    let head = "commit refs/heads/main\ncommitter A <a@example.com> 1700000000 +0000\ndata 1\nx\n";
    input.write_all(head.as_bytes())?;
    one(input, NUMBER, b"0\n")?;
    for (path, content) in files {
        one(input, path, content)?;
    }
    for round in 1..=tail {
        input.write_all(head.as_bytes())?;
        one(input, NUMBER, format!("{round}\n").as_bytes())?;
        // 1 to 40 files; in the median, 3.
        let changed = if random.below(5) == 0 { 1 + random.below(40) } else { 1 + random.below(5) };
        for _ in 0..changed {
            let index = random.below(count);
            one(input, &path_of(index), &content_of(index, round, random))?;
        }
    }
    input.flush()
}

fn one(input: &mut impl Write, path: &str, content: &[u8]) -> std::io::Result<()> {
    let mode = if path.ends_with(".sh") { "100755" } else { "100644" };
    writeln!(input, "M {mode} inline {path}\ndata {}", content.len())?;
    input.write_all(content)?;
    input.write_all(b"\n")
}

pub fn git(dir: &Path, args: &[&str]) -> String {
    let out = Command::new("git").arg("-C").arg(dir).args(args).output().expect("git runs");
    assert!(out.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).trim().to_owned()
}
