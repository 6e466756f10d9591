//! What `deploy/release` puts beside the binary, and what it refuses. `tests/nightly release` makes whole ones.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::common::run;
use super::{BINARY, deploy};

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What `deploy/sbom` wrote for a target.
struct Written {
    dir: TempDir,
    sbom: Value,
    licences: String,
}

impl Written {
    fn of(target: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut sbom = Command::new(deploy().join("sbom"));
        sbom.arg(target).arg(dir.path()).env("SOURCE_DATE_EPOCH", "1795428819");
        run::to_end(sbom.env("TREESWAP_BUILD_COMMIT", "7f4f91b")).expect_ok("deploy/sbom");
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        let sbom = serde_json::from_str(&read("treeswap.cdx.json")).unwrap();
        let licences = read("LICENSES.txt");
        Self { dir, sbom, licences }
    }

    fn components(&self) -> &[Value] {
        self.sbom["components"].as_array().unwrap()
    }

    /// By name and version: the C code of a crate may have the version of another one.
    fn names(&self) -> BTreeSet<String> {
        let names = self.components().iter();
        names.map(|one| format!("{} {}", text(&one["name"]), text(&one["version"]))).collect()
    }

    fn has(&self, name: &str) -> bool {
        self.components().iter().any(|one| one["name"] == name)
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

/// The target that the tests are built for, and the same processor's with musl.
fn targets() -> (String, String) {
    let said = run::to_end(Command::new("rustc").arg("-vV")).expect_ok("rustc -vV").stdout;
    let host = said.lines().find_map(|line| line.strip_prefix("host: ")).unwrap().to_owned();
    let (processor, _) = host.split_once('-').unwrap();
    let musl = format!("{processor}-unknown-linux-musl");
    (host, musl)
}

#[test]
fn the_sbom_names_what_is_linked_and_nothing_else() {
    let written = Written::of(&targets().1);
    for name in [
        "rustls",
        "libgit2-sys",
        "libgit2",
        "aws-lc",
        "zlib-ng",
        "jemalloc",
        "musl",
        "llvm-libunwind",
        "rust-std",
    ] {
        assert!(written.has(name), "{name}");
    }
    // Of tests, of builds, of other systems.
    for name in ["proptest", "rcgen", "cc", "cmake", "serde_derive", "windows-sys", "treeswap"] {
        assert!(!written.has(name), "{name}");
    }
    assert_eq!(written.sbom["metadata"]["timestamp"], "2026-11-23T10:13:39Z");
    let lock = std::fs::read_to_string(top().join("Cargo.lock")).unwrap();
    for one in written.components() {
        let (name, version) = (text(&one["name"]), text(&one["version"]));
        assert!(version.starts_with(|first: char| first.is_ascii_digit()), "{name}: {version}");
        if text(&one["purl"]).starts_with("pkg:cargo/") {
            let locked = format!("name = \"{name}\"\nversion = \"{version}\"\n");
            let sum = lock.split_once(&locked).and_then(|(_, rest)| rest.split("checksum = \"").nth(1));
            assert!(sum.unwrap().starts_with(text(&one["hashes"][0]["content"])), "{name}");
        }
    }
}

#[test]
fn every_component_is_reached_from_the_program() {
    let written = Written::of(&targets().1);
    let edges: BTreeMap<&str, Vec<&str>> = written.sbom["dependencies"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (text(&one["ref"]), one["dependsOn"].as_array().unwrap().iter().map(text).collect()))
        .collect();
    let mut reached = BTreeSet::new();
    let mut next = vec![text(&written.sbom["metadata"]["component"]["bom-ref"])];
    while let Some(name) = next.pop() {
        if reached.insert(name) {
            next.extend(edges.get(name).into_iter().flatten());
        }
    }
    let all = written.components().iter().map(|one| text(&one["bom-ref"]));
    let all: BTreeSet<&str> = all.chain(["treeswap"]).collect();
    assert_eq!(reached, all);
    assert_eq!(all.len(), written.components().len() + 1, "each once");
}

/// Where something may panic, the program says in which crate's file.
#[test]
fn every_crate_that_the_program_names_is_in_its_sbom() {
    let written = Written::of(&targets().0);
    let names = written.names();
    assert!(!written.has("musl") && !written.has("jemalloc"), "a build for glibc has neither");
    let program = std::fs::read(BINARY).unwrap();
    let program = String::from_utf8_lossy(&program);
    let mut seen = BTreeSet::new();
    for rest in program.split("/registry/src/").skip(1) {
        let Some((_, directory)) = rest.split_once('/') else { continue };
        let of_a_name = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
        let directory = directory.split(|c| !of_a_name(c)).next().unwrap_or_default();
        let is_version =
            |(at, _): &(usize, &str)| directory[at + 1..].starts_with(|c: char| c.is_ascii_digit());
        let Some((at, _)) = directory.match_indices('-').find(is_version) else { continue };
        seen.insert(format!("{} {}", &directory[..at], &directory[at + 1..]));
    }
    assert!(seen.len() > 50, "the program names {} crates: {seen:?}", seen.len());
    let missing: Vec<&String> = seen.difference(&names).collect();
    assert!(missing.is_empty(), "not in the SBOM: {missing:?}");
}

#[test]
fn every_component_has_the_text_of_its_licence() {
    let written = Written::of(&targets().1);
    for one in written.components() {
        let (name, version) = (text(&one["name"]), text(&one["version"]));
        let line = format!("\n{name} {version}: {}\n", text(&one["licenses"][0]["expression"]));
        assert!(written.licences.contains(&line), "{line}");
    }
    let parts = [
        "linking exception",               // libgit2's
        "Rich Felker",                     // musl's
        "Jason Evans",                     // jemalloc's
        "Jean-loup Gailly and Mark Adler", // zlib-ng's
        "The OpenSSL Project",             // what AWS-LC was made of
        "The Rust Project Developers",     // the standard library's
        "PCRE2 is a library of functions", // in libgit2
        "Licensed under the Apache License, Version 2.0",
    ];
    for part in parts {
        assert!(written.licences.to_lowercase().contains(&part.to_lowercase()), "{part}");
    }
}

#[test]
fn the_same_commit_has_the_same_sbom() {
    let (one, two) = (Written::of(&targets().1), Written::of(&targets().1));
    for name in ["treeswap.cdx.json", "LICENSES.txt"] {
        let read = |written: &Written| std::fs::read(written.dir.path().join(name)).unwrap();
        assert!(read(&one) == read(&two), "{name}");
    }
}

/// As little of the project as `deploy/release` looks at before it builds.
fn source() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    for name in ["deploy/release", "src/telemetry/commit.txt", ".gitattributes", "Cargo.toml"] {
        std::fs::create_dir_all(source.join(name).parent().unwrap()).unwrap();
        std::fs::copy(top().join(name), source.join(name)).unwrap();
    }
    (dir, source)
}

fn git(at: &Path, args: &[&str]) -> String {
    let mut git = Command::new("git");
    git.arg("-C").arg(at).args(["-c", "user.name=x", "-c", "user.email=x@example.com"]).args(args);
    git.env("GIT_CONFIG_GLOBAL", "/dev/null");
    run::to_end(&mut git).expect_ok("git").stdout
}

fn commit(at: &Path) -> String {
    git(at, &["init", "--quiet"]);
    git(at, &["add", "."]);
    git(at, &["commit", "--quiet", "--message=x"]);
    git(at, &["log", "-1", "--format=%H %ct"])
}

fn release(source: &Path) -> run::Ran {
    let mut release = Command::new(source.join("deploy/release"));
    release.current_dir(source).env("GIT_CEILING_DIRECTORIES", source.parent().unwrap());
    run::to_end(&mut release)
}

#[test]
fn an_archive_of_the_source_names_its_commit() {
    let (dir, source) = source();
    let id = commit(&source);
    git(&source, &["archive", "--format=tar", "--output=../source.tar", "HEAD"]);
    let mut tar = Command::new("tar");
    tar.arg("-xOf").arg(dir.path().join("source.tar")).arg("src/telemetry/commit.txt");
    assert_eq!(run::to_end(&mut tar).expect_ok("tar").stdout, id);
}

#[test]
fn a_release_is_of_a_commit() {
    let (_dir, source) = source();
    let ran = release(&source);
    assert!(!ran.ok() && ran.stderr.contains("neither a git checkout nor an archive"), "{}", ran.stderr);
    commit(&source);
    std::fs::write(source.join("new.rs"), "").unwrap();
    let ran = release(&source);
    assert!(
        !ran.ok() && ran.stderr.contains("commit or remove") && ran.stderr.contains("new.rs"),
        "{}",
        ran.stderr
    );
    assert!(!source.join("target").exists(), "nothing was begun");
}

#[test]
fn a_release_does_not_mix_with_what_is_there() {
    let (dir, source) = source();
    commit(&source);
    let out = dir.path().join("out");
    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join("older"), "").unwrap();
    let mut again = Command::new(source.join("deploy/release"));
    let ran = run::to_end(again.arg(&out).current_dir(&source));
    assert!(!ran.ok() && ran.stderr.contains("is not empty"), "{}", ran.stderr);
}
