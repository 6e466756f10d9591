//! README and `docs/` stay true: tables of options are the binary's own help, the table of metrics is what is served, and
//! links, paths and options that they name exist.

#[path = "../common/mod.rs"]
mod common;

mod commands;
mod cves;
mod links;
mod messages;
mod options;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Files, Sidecar, World, eventually};

const BINARY: &str = env!("CARGO_BIN_EXE_treeswap");

/// A file of the documentation.
struct Document {
    path: PathBuf,
    text: String,
}

impl Document {
    /// Whether it speaks of other programs' options, too.
    fn is_about_migrating(&self) -> bool {
        self.path.starts_with(home().join("docs/migrating"))
    }
}

fn home() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn markdown(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            markdown(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            into.push(path);
        }
    }
}

/// The files at the top and everything below `docs/`.
fn documents() -> Vec<Document> {
    let mut paths = Vec::new();
    markdown(&home().join("docs"), &mut paths);
    let top = std::fs::read_dir(home()).unwrap().map(|entry| entry.unwrap().path());
    paths.extend(top.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    paths.sort();
    assert!(paths.len() > 10, "the documentation was not found");
    paths.into_iter().map(|path| Document { text: std::fs::read_to_string(&path).unwrap(), path }).collect()
}

fn document(path: &str) -> String {
    std::fs::read_to_string(home().join(path)).unwrap()
}

/// What a command prints that ends well.
fn help(arguments: &[&str]) -> String {
    let output = Command::new(BINARY).env_clear().args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_table_of_metrics_is_what_is_served() {
    let world = World::new();
    world.remote.commit(&Files::new().file("a", "1"));
    let sidecar = Sidecar::start(&world, &["--exechook-command=true"]);
    // What has never been counted is not shown.
    eventually(20, "a success", || (sidecar.attempts() > 0).then_some(()));
    eventually(20, "a hook", || (sidecar.metric("treeswap_hooks_total")? > 0.0).then_some(()));
    let _away = world.remote.away();
    let failures = || sidecar.metric("treeswap_sync_consecutive_failures");
    eventually(20, "a failure", || (failures()? > 0.0).then_some(()));
    assert!(sidecar.request("POST", "/sync").unwrap().starts_with("HTTP/1.1 403"));
    let other = World::new();
    other.remote.commit(&Files::new().file("key", "1"));
    let (applying, _held) = Sidecar::applying(&other);
    eventually(60, "a target", || (applying.metric("treeswap_applied_total")? > 0.0).then_some(()));
    let third = World::new();
    third.remote.commit(&Files::new().file("a", "1"));
    let several = Sidecar::of_sources(&third);
    let served = [&sidecar, &applying, &several].map(|one| one.ask("/metrics").unwrap());
    let text = served.concat();
    let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let served: BTreeSet<String> = families
        .map(|family| match family.split_once(' ') {
            Some((name, "counter")) => format!("{name}_total"),
            Some((name, "info")) => format!("{name}_info"),
            Some((name, _)) => name.to_owned(),
            None => family.to_owned(),
        })
        .collect();
    let named = |text: &str| -> BTreeSet<String> {
        let words = text.split('`').filter(|word| word.starts_with("treeswap_"));
        words
            .filter(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(named(&document("docs/reference/metrics.md")), served);
    for document in documents() {
        let unknown: Vec<String> = named(&document.text).difference(&served).cloned().collect();
        assert!(unknown.is_empty(), "{} names {unknown:?}", document.path.display());
    }
}

#[test]
fn every_field_of_the_status_is_documented() {
    let schema = document("docs/reference/status.schema.json");
    let schema: serde_json::Value = serde_json::from_str(&schema).unwrap();
    let parts = schema["$defs"].as_object().unwrap().values();
    let mut names: BTreeSet<&String> = parts
        .flat_map(|part| part["properties"].as_object().into_iter().flatten())
        .map(|(name, _)| name)
        .collect();
    assert!(names.len() > 50, "the fields were not found");
    let page = document("docs/reference/status.md");
    let words: BTreeSet<&str> = page.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).collect();
    names.retain(|name| !words.contains(name.as_str()));
    assert!(names.is_empty(), "docs/reference/status.md does not name {names:?}");
}

/// The schema is made of the same types (`the_schema_of_the_status`); here is what is really printed.
#[test]
fn the_schema_of_the_status_has_every_field() {
    let world = World::new();
    world.remote.commit(&Files::new().file("a", "1"));
    let sidecar = Sidecar::start(&world, &["--exechook-command=true", "--pre-publish-exechook-command=true"]);
    eventually(20, "a success", || (sidecar.attempts() > 0).then_some(()));
    let root = world.root.to_str().unwrap();
    let status = help(&["pin", root, "--", BINARY, "status", "--json", root]); // with a holder in it
    common::schema::root_status(&status);
    sidecar.status();
}

#[test]
fn the_exit_codes_are_those_of_the_help() {
    let help = help(&["--help"]);
    let (_, line) = help.split_once("Exit codes:").expect("the help has exit codes");
    let codes: BTreeSet<&str> = line.split(',').filter_map(|part| part.split_whitespace().next()).collect();
    let page = document("docs/reference/exit-codes.md");
    let (table, _) = page.split_once("\n\nSome commands").unwrap();
    let cells = table.lines().filter_map(|line| line.strip_prefix("| ")?.split(' ').next());
    let shown: BTreeSet<&str> = cells.filter(|cell| cell.contains(|c: char| c.is_ascii_digit())).collect();
    assert_eq!(shown, codes);
}

#[test]
fn every_subcommand_is_documented() {
    let all: String = documents().into_iter().map(|document| document.text).collect();
    let commands = help(&["--help"]);
    let list = commands.split("Commands:").nth(1).unwrap().split("Options:").next().unwrap();
    let names: Vec<&str> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.len() >= 7, "{names:?}");
    for name in names {
        let shown = [format!("`treeswap {name}`"), format!("treeswap {name} ")];
        assert!(shown.iter().any(|shown| all.contains(shown)), "treeswap {name}");
    }
}

#[test]
fn every_option_that_is_shown_exists() {
    let commands = ["sync", "apply", "render", "watch", "pin", "status"];
    let known: String = commands.iter().map(|command| help(&[command, "--help=all"])).collect();
    let known = known + &help(&["--help"]) + &help(&["man", "--help"]);
    let known: BTreeSet<&str> = known.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).collect();
    let others = [
        "--delete-emptydir-data",
        "--csv", // this and the next ones are tests/bench's
        "--files",
        "--git-sync",
        "--plots",
        "--rounds",
        "--scale",
        "--lib",
        "--locked",
        "--open",
        "--path",
        "--release",
        "--rm",
        "--server-side",
        "--show-managed-fields",
        "--target",
        "--test",
    ];
    for document in documents().iter().filter(|document| !document.is_about_migrating()) {
        let words = document.text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
        for option in words.filter(|word| word.starts_with("--") && word.trim_matches('-').len() > 1) {
            let exists = known.contains(option) || others.contains(&option);
            assert!(exists, "{option} is in {} and in no help text", document.path.display());
        }
    }
}

#[test]
fn every_path_that_is_shown_exists() {
    for document in documents() {
        for word in document.text.split(['`', ' ', '\n', '(', ')', ']', '"']) {
            let path = word.trim_end_matches(['.', ',', ':', ';']).trim_start_matches("path/to/treeswap/");
            if ["deploy/", "tests/", "testdata/", "src/"].iter().any(|top| path.starts_with(top)) {
                let full = home().join(path);
                assert!(full.exists(), "{} names {path}, which does not exist", document.path.display());
            }
        }
    }
}

#[test]
fn the_floors_are_those_of_the_library() {
    let library = std::fs::read_to_string(home().join("src/lib.rs")).unwrap();
    let block = library.split("//! ```text\n").nth(1).and_then(|rest| rest.split("//! ```").next()).unwrap();
    let floors: String =
        block.lines().map(|line| line.trim_start_matches("//!").replacen(' ', "", 1) + "\n").collect();
    assert!(floors.contains("5 edges") && document("docs/architecture.md").contains(&floors), "{floors}");
}

/// The blocks of YAML of a page, read.
fn yaml(page: &str) -> Vec<serde_yaml::Value> {
    let fences = page.split("\n```").skip(1).step_by(2).filter_map(|block| block.strip_prefix("yaml\n"));
    fences
        .map(|block| serde_yaml::from_str(block).unwrap_or_else(|error| panic!("{error}:\n{block}")))
        .collect()
}

/// A scene on a real node deploys the guide's, word for word.
#[test]
fn the_readme_deploys_as_the_guide_does() {
    let kustomization =
        |page: &str| yaml(&document(page)).into_iter().find(|block| !block["components"].is_null());
    let shown = kustomization("README.md").expect("README has a kustomization");
    assert_eq!(Some(shown), kustomization("docs/guides/sidecar.md"));
    assert!(documents().iter().map(|document| yaml(&document.text).len()).sum::<usize>() > 5);
}

#[test]
fn the_readme_has_the_numbers_of_the_page_on_performance() {
    let table = |page: &str, head: &str| -> Vec<Vec<String>> {
        let text = document(page);
        let lines = text.lines().skip_while(|line| *line != head).skip(2);
        // What a cell begins with: the number, without its unit or range.
        let numbers = |row: &str| -> Vec<String> {
            let cells = row.split('|').skip(2).take(2);
            cells.map(|cell| cell.split_whitespace().next().unwrap_or_default().to_owned()).collect()
        };
        lines.take_while(|line| line.starts_with('|')).map(numbers).collect()
    };
    let shown = table("README.md", "| | treeswap | git-sync |");
    let all = "| | treeswap, tmpfs | git-sync, tmpfs | treeswap, ext4 | git-sync, ext4 |";
    let measured = table("docs/performance.md", all);
    assert!(shown.len() >= 4 && measured.len() > 10, "{shown:?} {measured:?}");
    for row in shown {
        assert!(measured.contains(&row), "{row:?} is in README.md and not in docs/performance.md");
    }
}

#[test]
fn lines_are_short() {
    for document in documents() {
        let mut generated = false;
        for (number, line) in document.text.lines().enumerate() {
            generated = (generated || line.ends_with(": begin -->")) && !line.ends_with(": end -->");
            assert!(
                generated || line.chars().count() <= 200,
                "{}:{} is longer than 200 characters",
                document.path.display(),
                number + 1
            );
        }
    }
}

#[test]
fn the_readme_is_a_front_door() {
    let readme = document("README.md");
    assert!(readme.len() <= 10_240, "README.md has {} bytes: put what it says into docs/", readme.len());
}
