//! The house stands: a module uses only modules with a lower number, only the modules that may name a foreign crate do,
//! and the lower floors do without clocks, I/O and async code, but for what is listed.

mod circles;
mod purity;

use std::path::{Path, PathBuf};

/// Number of each module. The tens digit is its floor in the drawing of lib.rs; the units digit orders modules of one
/// floor that use each other.
const FLOORS: &[(&str, u8)] = &[
    ("main", 53),
    ("cli", 52),
    ("app", 51),
    ("config", 50),
    ("sync", 40),
    ("deliver", 40),
    ("sources", 32),
    ("desired", 31),
    ("mirror", 30),
    ("store", 30),
    ("cluster", 30),
    ("hooks", 30),
    ("watch", 30),
    ("pin", 30),
    ("admin", 30),
    ("telemetry", 30),
    ("phase", 20),
    ("retention", 20),
    ("configmap", 20),
    ("revision", 10),
    ("generation", 11),
    ("payload", 11),
    ("marker", 11),
    ("detached_io", 0),
    ("descendants", 0),
    ("threads", 0),
    ("fsx", 0),
    ("clock", 0),
    ("human", 0),
    ("repeats", 0),
    ("retry", 0),
    ("sandbox", 0),
    ("secret", 1),
    ("sha256", 0),
    ("shutdown", 0),
    ("tls", 2),
    ("user", 0),
];

/// Foreign crates, each with the modules that may name it.
const HOMES: &[(&str, &[&str])] = &[
    ("git2", &["mirror"]),
    ("libgit2_sys", &["mirror"]),
    ("gix_packetline", &["mirror"]),
    ("russh", &["mirror"]),
    ("sha1dc", &["mirror"]),
    ("kube", &["cluster"]),
    ("k8s_openapi", &["cluster"]),
    ("notify", &["watch"]),
    ("axum", &["admin"]),
    ("landlock", &["sandbox"]),
    ("globset", &["configmap"]),
    ("rustls_native_certs", &["tls"]),
    ("anyhow", &["cli"]),
    ("clap_complete", &["cli"]),
    ("clap_mangen", &["cli"]),
    // What follows has several homes.
    ("clap", &["cli", "config"]),
    ("hyper", &["admin", "cluster"]),
    ("prometheus_client", &["admin", "app", "telemetry"]),
    ("reqwest", &["config", "hooks", "mirror"]),
    ("rustls", &["mirror", "tls"]),
];

fn sources(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

fn floor(module: &str) -> u8 {
    FLOORS
        .iter()
        .find(|(name, _)| *name == module)
        .unwrap_or_else(|| panic!("module `{module}` has no number; put it into FLOORS and lib.rs"))
        .1
}

/// Names that stand right after `prefix` in the text, up to the first character that cannot be part of a name.
fn names_after<'a>(text: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    text.match_indices(prefix).flat_map(move |(at, _)| {
        let rest = &text[at + prefix.len()..];
        let group = rest.strip_prefix('{').and_then(|group| group.split_once("};")).map(|(group, _)| group);
        let list: Vec<&str> = match group {
            Some(group) => top_level_items(group),
            None => vec![rest],
        };
        list.into_iter()
            .map(|item| {
                let item = item.trim_start();
                let end = item.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(item.len());
                &item[..end]
            })
            .filter(|name| !name.is_empty())
            .collect::<Vec<_>>()
    })
}

/// Splits `a::{b, c}, d` at the commas that are not inside braces.
fn top_level_items(group: &str) -> Vec<&str> {
    let (mut depth, mut start, mut items) = (0usize, 0, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                items.push(&group[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    items.push(&group[start..]);
    items
}

/// Code without its line comments: the docs may name anything.
fn code(path: &Path) -> String {
    std::fs::read_to_string(path)
        .unwrap()
        .lines()
        .map(|line| line.split("//").next().unwrap_or(""))
        .collect::<Vec<_>>()
        .join("\n")
}

fn all() -> Vec<(String, PathBuf, String)> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    assert!(files.len() > 15, "the sources were not found");
    files
        .into_iter()
        .map(|path| {
            let first = path
                .strip_prefix(&src)
                .unwrap()
                .components()
                .next()
                .unwrap()
                .as_os_str()
                .to_str()
                .unwrap()
                .trim_end_matches(".rs")
                .to_owned();
            let text = code(&path);
            (first, path, text)
        })
        .collect()
}

#[test]
fn arrows_only_point_down() {
    for (module, path, text) in all() {
        if module == "lib" {
            continue;
        }
        for used in names_after(&text, "crate::").chain(names_after(&text, "treeswap::")) {
            assert!(
                used == module || floor(used) < floor(&module),
                "{}: {module} must not use {used}: its number is not lower",
                path.display()
            );
        }
    }
}

#[test]
fn foreign_crates_stay_in_their_module() {
    // A module's own tests may look at its work through any crate.
    let is_test = |path: &Path| {
        path.strip_prefix(env!("CARGO_MANIFEST_DIR"))
            .unwrap()
            .iter()
            .any(|part| part == "tests" || part == "tests.rs")
    };
    for (module, path, text) in all().into_iter().filter(|(_, path, _)| !is_test(path)) {
        for (foreign, homes) in HOMES {
            let is_home = homes.contains(&module.as_str());
            assert!(
                is_home || !names(&text, foreign),
                "{}: only {homes:?} may name {foreign}",
                path.display()
            );
        }
    }
}

/// Returns true if the code names a crate.
fn names(text: &str, foreign: &str) -> bool {
    let begins = |at: usize| !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
    let path = format!("{foreign}::");
    text.contains(&format!("use {foreign};")) || text.match_indices(&path).any(|(at, _)| begins(at))
}

#[test]
fn the_reader_of_crates_sees_names_and_no_parts_of_names() {
    for (text, named) in [
        ("use git2::{Oid, Odb};", true),
        ("fn f() -> Result<(), git2::Error>", true),
        ("use git2;", true),
        ("use libgit2::Oid;", false),
        ("let git2 = 1;", false),
    ] {
        assert_eq!(names(text, "git2"), named, "{text}");
    }
}

#[test]
fn the_reader_of_arrows_sees_groups_and_paths() {
    let text = "use crate::store;\nuse crate::{a::{b, c}, d};\nlet x = crate::e::f();";
    assert_eq!(names_after(text, "crate::").collect::<Vec<_>>(), ["store", "a", "d", "e"]);
}

/// What a person reads is written for people: no event of the log holds a value as Rust would print it.
#[test]
fn no_event_prints_a_rust_value() {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    let events = ["trace!(", "debug!(", "info!(", "warn!(", "error!("];
    for path in files {
        let text = code(&path);
        for event in events.iter().flat_map(|event| names_from(&text, event)) {
            let fields = event.split('"').next().unwrap_or_default(); // those that stand before the message
            let is_debug = fields.contains('?') || event.contains(":?}") || event.contains(":#?}");
            assert!(!is_debug, "{}: {event}", path.display());
        }
    }
}

/// What follows each `start`, up to the end of the statement.
fn names_from<'a>(text: &'a str, start: &'a str) -> impl Iterator<Item = &'a str> {
    text.match_indices(start).map(move |(at, _)| {
        let rest = &text[at + start.len()..];
        let end = ["\"),", ");"].iter().filter_map(|end| rest.find(end)).min();
        &rest[..end.unwrap_or(rest.len())]
    })
}

/// What a consumer's own program links.
#[test]
fn the_library_for_consumers_has_fewer_than_forty_crates() {
    let args = [
        "tree",
        "--locked",
        "--offline",
        "--no-default-features",
        "--edges=normal",
        "--prefix=none",
        "--format={p}",
    ];
    let ran = std::process::Command::new(env!("CARGO"))
        .args(args)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let text = String::from_utf8(ran.stdout).expect("names are text");
    let crates: std::collections::BTreeSet<&str> =
        text.lines().map(|line| line.trim_end_matches(" (*)")).filter(|line| !line.is_empty()).collect();
    assert!((2..40).contains(&crates.len()), "{crates:#?}");
}
