//! The README stays true: its table of options is the binary's own help, its commands and paths exist.

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use common::{Files, Sidecar, World, eventually};

const BINARY: &str = env!("CARGO_BIN_EXE_treeswap");

fn readme() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap()
}

fn help(arguments: &[&str]) -> String {
    let output = Command::new(BINARY).env_clear().args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// One option as `--help` prints it: `      --name <VALUE>`, then indented prose, then bracketed facts.
struct Flag {
    name: String,
    default: String,
    meaning: String,
}

/// The options of a command below their headings.
fn sections(command: &str) -> Vec<(String, Vec<Flag>)> {
    let mut sections: Vec<(String, Vec<Flag>)> = Vec::new();
    let mut paragraph_ended = false;
    for line in help(&[command, "--help"]).lines() {
        let indent = line.len() - line.trim_start().len();
        let text = line.trim();
        match (indent, text) {
            (_, "") => paragraph_ended = true,
            (0, heading) if heading.ends_with(':') => {
                sections.push((heading.trim_end_matches(':').to_owned(), Vec::new()));
            }
            (0, _) => {}
            (2..=6, option) => {
                let flag = Flag { name: option.to_owned(), default: String::new(), meaning: String::new() };
                sections.last_mut().unwrap().1.push(flag);
            }
            (_, text) => {
                let flag = sections.last_mut().unwrap().1.last_mut().unwrap();
                match text.strip_prefix("[default: ").and_then(|rest| rest.strip_suffix(']')) {
                    Some(default) => flag.default = format!("`{default}`"),
                    None if text.starts_with("[env: ") || text.starts_with("[possible values: ") => {}
                    None => {
                        let separator = match (flag.meaning.is_empty(), paragraph_ended) {
                            (true, _) => "",
                            (false, true) if !flag.meaning.ends_with('.') => ". ",
                            (false, _) => " ",
                        };
                        flag.meaning = format!("{}{separator}{text}", flag.meaning);
                        paragraph_ended = false;
                    }
                }
            }
        }
    }
    sections.retain(|(heading, _)| heading != "Options");
    assert!(sections.len() >= 5, "the help of {command} lost its headings");
    sections
}

fn table(command: &str) -> String {
    let mut table = String::from("| option | default | meaning |\n| --- | --- | --- |\n");
    for (heading, flags) in sections(command) {
        table += &format!("| **{heading}** | | |\n");
        for Flag { name, default, meaning } in flags {
            let cell = |text: &str| text.replace('|', "\\|").replace('<', "&lt;");
            table += &format!("| `{name}` | {default} | {} |\n", cell(&meaning));
        }
    }
    table
}

#[test]
fn the_tables_of_options_are_the_help() {
    let readme = readme();
    for (command, mark) in [("sync", "options"), ("apply", "apply options")] {
        let begin = format!("<!-- {mark}: begin -->\n");
        let (_, rest) = readme.split_once(&begin).expect("the README has a table of options");
        let (shown, _) = rest.split_once(&format!("<!-- {mark}: end -->")).unwrap();
        let expected = table(command);
        if shown != expected {
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.md", mark.replace(' ', "-")));
            std::fs::write(&path, &expected).unwrap();
            panic!(
                "the README's table of options is not what `treeswap {command} --help` says; it should be {}",
                path.display()
            );
        }
    }
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
    let text = sidecar.ask("/metrics").unwrap() + &applying.ask("/metrics").unwrap();
    let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let served: BTreeSet<String> = families
        .map(|family| match family.split_once(' ') {
            Some((name, "counter")) => format!("{name}_total"),
            Some((name, "info")) => format!("{name}_info"),
            Some((name, _)) => name.to_owned(),
            None => family.to_owned(),
        })
        .collect();
    let readme = readme();
    let named = readme.split('`').filter(|word| word.starts_with("treeswap_") && !word.contains('…'));
    assert_eq!(named.map(str::to_owned).collect::<BTreeSet<_>>(), served);
}

#[test]
fn every_subcommand_is_in_the_readme() {
    let readme = readme();
    let commands = help(&["--help"]);
    let list = commands.split("Commands:").nth(1).unwrap().split("Options:").next().unwrap();
    let names: Vec<&str> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.len() >= 7, "{names:?}");
    for name in names {
        assert!(
            readme.contains(&format!("`treeswap {name}")) || readme.contains(&format!("treeswap {name} ")),
            "treeswap {name}"
        );
    }
}

#[test]
fn every_option_that_the_readme_shows_exists() {
    let known = format!(
        "{}{}{}{}{}{}",
        help(&["sync", "--help"]),
        help(&["apply", "--help"]),
        help(&["render", "--help"]),
        help(&["watch", "--help"]),
        help(&["pin", "--help"]),
        help(&["status", "--help"])
    );
    let readme = readme();
    // What follows the migration heading names git-sync's options, too.
    let ours = readme.split("## Migrating").next().unwrap();
    let words = ours.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    let others = ["--release", "--locked", "--path", "--server-side", "--"];
    for option in words.filter(|word| word.starts_with("--") && !others.contains(word) && word.len() > 3) {
        assert!(known.contains(option), "{option} is in the README and in no help text");
    }
}

#[test]
fn every_path_that_the_readme_shows_exists() {
    let readme = readme();
    for word in readme.split(['`', ' ', '\n', '(', ')', ']', '"']) {
        let path = word.trim_end_matches(['.', ',', ':']).trim_start_matches("path/to/treeswap/");
        if ["deploy/", "tests/", "testdata/", "src/"].iter().any(|top| path.starts_with(top)) {
            let full = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
            assert!(full.exists(), "the README names {path}, which does not exist");
        }
    }
}
