//! Every command in a block of shell is run here or by another test, or this file says why not.

use std::collections::BTreeSet;
use std::path::Path;

use super::common::run::{self, Background};
use super::common::{Files, World, binary, eventually};
use super::{Document, documents, home};

/// What keeps a command true.
enum Kept {
    /// It is run here, after the commands of the same block that are run, with ours for what is only an example.
    Run,
    /// It is run here until it has printed these words, and then ended by SIGTERM.
    Until(&'static str),
    /// It would go on for ever: its options are checked here, and the test of this name plays it.
    Check(&'static str, &'static str),
    /// It needs a cluster: it is run here without one, which is all that it complains of, and the test of this name plays it.
    Cluster(&'static str, &'static str),
    /// The test of this name in this file.
    By(&'static str, &'static str),
    /// Nothing, for this reason.
    Not(&'static str),
}
use Kept::{By, Check, Cluster, Not, Run, Until};

const DOCKER: Kept =
    Not("no test has Docker; tests/deploy/image.rs has what an image holds, the node's scenes run one");
const NETWORK: Kept = Not("it installs from the network");
const RELEASE: Kept = Not("tests/nightly and tests/cluster/run build like that, before their tests");
const WATCHES: &str = "tests/consumers/watches.rs";

/// Commands by how they begin.
const COMMANDS: &[(&str, Kept)] = &[
    ("cargo build --release", RELEASE),
    ("cargo doc ", Not("it opens a browser")),
    ("cargo install ", NETWORK),
    ("cd -P /proc/self/fd/9", Run),
    ("deploy/image ", By("tests/deploy/image.rs", "the_image_holds_only_the_binary_and_etc_passwd")),
    ("deploy/release", Not("tests/nightly release makes two")),
    ("deploy/static", Not("tests/cluster/run deploys what it makes")),
    ("docker ", DOCKER),
    ("kubectl exec POD ", Not("the startup probe of every scene on a node runs the same")),
    ("kubectl set image ", By("tests/node/scenes/migrate.rs", "pod")),
    ("ls /tmp/config", Run),
    ("readlink /tmp/config/..data", Run),
    (
        "treeswap apply --owner=acme --rules-in-tree=",
        Cluster("tests/deliver/command.rs", "a_revision_is_read_by_its_own_rules"),
    ),
    (
        "treeswap apply --owner=acme --rules=",
        Cluster("tests/deliver/command.rs", "a_repository_is_planned_applied_and_then_unchanged"),
    ),
    (
        "treeswap apply --sources=",
        Cluster(
            "tests/deliver/sources.rs",
            "what_two_repositories_hold_is_applied_and_each_commit_is_recorded",
        ),
    ),
    ("treeswap check --sources=", Run),
    ("treeswap pin ", Run),
    ("treeswap render ", Run),
    (
        "treeswap sync --owner=acme ",
        Cluster("tests/cluster/follow.rs", "every_new_revision_is_applied_once_and_drift_is_repaired"),
    ),
    (
        "treeswap sync --repo=https://a.example.com",
        Check("tests/credentials.rs", "check_shows_where_secrets_come_from_and_none_of_them"),
    ),
    (
        "treeswap sync --repo=https://git.example.com/platform/config.git --root=/config --exechook",
        Check("tests/hooks/web.rs", "a_request_is_sent_once_a_revision"),
    ),
    (
        "treeswap sync --repo=https://git.example.com/platform/config.git --root=/config --http",
        Check(
            "tests/admin/webhook.rs",
            "genuine_senders_of_every_kind_are_answered_at_once_and_cause_a_look_each",
        ),
    ),
    (
        "treeswap sync --repo=https://git.example.com/platform/config.git --root=/config --pre",
        Check("tests/hooks/gate.rs", "a_closed_gate_is_tried_again_and_opens"),
    ),
    ("treeswap sync --repo=https://github.com/kubernetes/git-sync --root=/tmp/config --one-time", Run),
    (
        "treeswap sync --sources=/etc/treeswap/sources.yaml --root=/config --pre",
        Check("tests/sources/guide.rs", "two_places_under_one_directory_as_the_guide_has_them"),
    ),
    (
        "treeswap sync --sources=",
        Check("tests/sources/main.rs", "directories_files_and_patterns_of_several_repositories_are_one_tree"),
    ),
    ("treeswap watch --skip-first ", By(WATCHES, "the_first_run_can_be_left_out")),
    (
        "treeswap watch /config -- ./reindex",
        By(WATCHES, "the_watching_command_runs_at_the_start_and_once_a_swap"),
    ),
    (
        "treeswap watch /config -- pkill -HUP -x gateway",
        By(WATCHES, "a_process_is_told_of_every_swap_by_its_name"),
    ),
    ("treeswap watch /tmp/config -- echo", Until("now at ")),
    ("until exec 9</config/..data", Run),
];

fn kept(command: &str) -> Option<usize> {
    COMMANDS.iter().position(|(begin, _)| command.starts_with(begin))
}

/// The commands of each block of shell, without comments, continued lines joined.
fn blocks(document: &Document) -> Vec<Vec<String>> {
    assert!(!document.text.contains(" ```"), "{}: an indented block", document.path.display());
    let fences = document.text.split("\n```").skip(1).step_by(2);
    let shell = fences.filter_map(|block| block.strip_prefix("sh\n").or(block.strip_prefix("console\n")));
    let joined = shell.map(|block| block.replace("\\\n", ""));
    let command = |line: &str| {
        let line = line.split("  #").next().unwrap().trim();
        let words: Vec<&str> = line.split_whitespace().collect();
        (!line.is_empty() && !line.starts_with('#')).then(|| words.join(" "))
    };
    joined.map(|block| block.lines().filter_map(command).collect()).collect()
}

/// What is there where a command is run.
struct Place {
    world: World,
}

impl Place {
    fn new() -> Self {
        let world = World::new();
        let rules = "maps:\n  config/*:\n    name: job-config\n    clusters: {default: [ci]}\n";
        let files = Files::new().file("README.md", "1\n").file("config/a", "1\n").file("plugins.yaml", rules);
        world.remote.commit(&files.file("ci/plugins.yaml", rules));
        world.sync_once(&[]).expect_ok("the first sync");
        let dir = world.dir().join("work");
        for name in ["bin", "config", "hooks"] {
            std::fs::create_dir_all(dir.join(name)).unwrap();
        }
        std::os::unix::fs::symlink(binary(), dir.join("bin/treeswap")).unwrap();
        std::fs::write(dir.join("plugins.yaml"), rules).unwrap();
        std::fs::write(dir.join("config/a"), "1\n").unwrap();
        std::fs::write(dir.join("secret"), "a secret of some length\n").unwrap();
        let remote = world.remote.path.display();
        let source = format!("{{name: config, repo: {remote}, path: config, to: config}}");
        let sources = format!("version: 1\nsources:\n  - {source}\nend: true\n");
        std::fs::write(dir.join("sources.yaml"), sources).unwrap();
        for hook in ["reload", "validate"] {
            run::executable(&dir.join("hooks").join(hook), "#!/bin/sh\n");
        }
        Self { world }
    }

    /// The command with what is here for what is an example.
    fn ours(&self, command: &str) -> String {
        let (dir, root) = (self.world.dir().join("work"), self.world.root.display().to_string());
        let file = |name: &str| dir.join(name).display().to_string();
        let remote = self.world.remote.path.display().to_string();
        [
            ("https://github.com/kubernetes/git-sync", &remote),
            ("https://git.example.com/platform/config.git", &remote),
            ("/tmp/config", &file("fresh")),
            ("=/config", &format!("={root}")),
            (" /config", &format!(" {root}")),
            ("</config", &format!("<{root}")),
            ("/hooks/", &(file("hooks") + "/")),
            ("/etc/treeswap/sources.yaml", &file("sources.yaml")),
            ("/etc/treeswap/webhook", &file("secret")),
            ("/etc/a", &file("secret")),
            ("-- CMD", &"-- true".to_owned()),
            ("exec CMD", &"exec true".to_owned()),
            ("| kubectl apply --server-side -f -", &"| grep --quiet job-config".to_owned()),
        ]
        .iter()
        .fold(command.to_owned(), |command, (example, ours)| command.replace(example, ours))
    }

    fn shell(&self, script: &str) -> std::process::Command {
        let dir = self.world.dir().join("work");
        let path = std::env::var("PATH").unwrap();
        let mut shell = run::clean("bash", &self.world.dir().join("home"));
        shell.current_dir(&dir).env("PATH", format!("{}:{path}", dir.join("bin").display()));
        shell.args(["-euo", "pipefail", "-c", script]);
        shell
    }

    /// Runs what is to be run of a block.
    fn play(&self, block: &[String]) {
        let mut script = String::new();
        for command in block {
            let ours = self.ours(command);
            match &COMMANDS[kept(command).unwrap()].1 {
                Run => script += &(ours + "\n"),
                Until(words) => {
                    run::to_end(&mut self.shell(&script)).expect_ok(&script);
                    let log = self.world.dir().join("log");
                    let mut running = Background::start(&mut self.shell(&format!("exec {ours}")), &log);
                    eventually(20, words, || running.log().contains(words).then_some(()));
                    assert!(running.terminate().success(), "{ours}: {}", running.log());
                }
                Check(..) => {
                    let check = ours.replacen("treeswap sync", "treeswap check", 1);
                    run::to_end(&mut self.shell(&check)).expect_ok(&check);
                }
                Cluster(..) => {
                    let ran = run::to_end(&mut self.shell(&ours)).expect_failure(&ours);
                    assert_eq!(ran.complaint(), "treeswap: no cluster is configured", "{ours}");
                }
                By(..) | Not(_) => {}
            }
        }
        run::to_end(&mut self.shell(&script)).expect_ok(&script);
    }
}

#[test]
fn every_command_that_is_shown_works() {
    let mut used = BTreeSet::new();
    for document in documents() {
        for block in blocks(&document) {
            for command in &block {
                let number = kept(command);
                let where_ = document.path.display();
                used.insert(
                    number.unwrap_or_else(|| panic!("{where_}: nothing in this file keeps `{command}` true")),
                );
            }
            Place::new().play(&block);
        }
    }
    for (number, (begin, _)) in COMMANDS.iter().enumerate() {
        assert!(used.contains(&number), "no page shows `{begin}` any more");
    }
}

#[test]
fn the_tests_that_play_commands_exist() {
    for (begin, kept) in COMMANDS {
        match kept {
            By(file, test) | Check(file, test) | Cluster(file, test) => {
                let text = std::fs::read_to_string(home().join(Path::new(file))).unwrap();
                assert!(text.contains(&format!("fn {test}(")), "{begin}: {file} has no test {test}");
            }
            Not(why) => assert!(why.contains(' '), "{begin} is not run, and nothing says why"),
            Run | Until(_) => {}
        }
    }
}
