//! The messages of git-sync that are said here, too: their words, levels and keys.

use std::path::Path;
use std::process::Command;

use super::common::run::Background;
use super::common::{self, Files, World, eventually};
use super::{git_sync, sync};

/// A message of git-sync, as `docs/migrating/git-sync-log.md` lists it.
struct Message {
    level: String,
    text: String,
    keys: Vec<String>,
    /// It is the same here.
    same: bool,
}

fn messages() -> Vec<Message> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/migrating/git-sync-log.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, table) =
        page.split_once("| level | message of git-sync | keys | here |").expect("the table is there");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let message = |row: &str| {
        let [_, level, text, keys, here, _] = row.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            panic!("no row: {row}")
        };
        Message {
            level: level.to_owned(),
            text: text.trim_matches('`').to_owned(),
            keys: keys.split_whitespace().map(|key| key.trim_matches('`').to_owned()).collect(),
            same: here.starts_with("the same"),
        }
    };
    let messages: Vec<_> = rows.map(message).collect();
    assert!(messages.len() > 90, "the table was not found");
    messages
}

/// What makes messages be said that are the same in both programs: arguments, whether that ends by itself, and which
/// messages.
type Provoked = (&'static [&'static str], bool, &'static [&'static str]);

const PROVOKED: &[Provoked] = &[
    (
        &["--one-time", "--exechook-command=/bin/true", "--touch-file=touched", "-v=3", "--period=20s"],
        true,
        &[
            "starting up",
            "update required",
            "updated successfully",
            "touched touch-file",
            "running exechook",
            "exechook succeeded",
            "exiting after one sync",
        ],
    ),
    (
        &["--ref=missing", "--max-failures=2", "--period=10ms", "-v=3"],
        true,
        &["error syncing repo, will retry", "next sync", "too many failures, aborting"],
    ),
    (&["--ref=missing"], true, &["too many failures, aborting"]),
    (
        &["--one-time", "--webhook-url=http://127.0.0.1:1/", "--webhook-backoff=2s"],
        true,
        &["sending webhook", "hook failed"],
    ),
    (
        &[
            "--webhook-url=http://RECEIVER/",
            "--http-bind=127.0.0.1:0",
            "--period=10ms",
            "--init-period=20ms",
            "-v=2",
        ],
        false,
        &[
            "serving HTTP",
            "initial sync complete, switching to normal period",
            "update not required",
            "webhook succeeded",
        ],
    ),
    (&["--one-time", "--touch-file=/dev/null/touched"], true, &["failed to touch touch-file"]),
    (&["--sync-on-signal=HUP", "-v=1"], false, &["installing signal handler", "caught signal"]),
    (&["--max-failures=-1", "--period=10ms", "-v=4"], false, &["resetting failure count"]),
    (&["--ref=COMMIT"], false, &["ref appears to be a git hash, no further sync needed"]),
    (&["--http-bind=192.0.2.1:80"], true, &["can't bind HTTP endpoint"]),
    (&["--root=/dev/null/root"], true, &["FATAL: can't make root dir"]),
];

/// Answers every request with 200.
fn receiver() -> std::net::SocketAddr {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]); // as much as comes
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    address
}

/// What a program logs, run with these arguments until it ends or has said these messages.
fn said_by(program: &impl Fn(&World) -> Command, (args, ends, texts): Provoked) -> Vec<serde_json::Value> {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    let log = world.dir().join("log");
    let mut command = program(&world);
    let receiver = receiver().to_string();
    command.arg("--repo").arg(format!("file://{}", world.remote.path.display()));
    command.arg("--root").arg(&world.root).args(["--ref=main", "--link=link"]);
    command.args(args.iter().map(|arg| arg.replace("COMMIT", &commit).replace("RECEIVER", &receiver)));
    let mut away = texts.contains(&"resetting failure count").then(|| world.remote.away());
    let mut child = command.stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap();
    let text = || std::fs::read_to_string(&log).unwrap();
    let has = |message: &str| text().contains(&format!("\"msg\":\"{message}\""));
    eventually(60, "all of it is said", || {
        if has("error syncing repo, will retry") {
            away.take();
        }
        if texts.contains(&"caught signal") && has("updated successfully") {
            let pid = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
        }
        let over =
            if ends { child.try_wait().unwrap().is_some() } else { texts.iter().all(|text| has(text)) };
        over.then_some(())
    });
    let _ = child.kill();
    child.wait().unwrap();
    let text = text();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Runs each of these with a program, and looks for the messages in its log.
fn says_each(program: impl Fn(&World) -> Command) {
    let known = messages();
    for provoked in PROVOKED {
        let (args, _, texts) = *provoked;
        let lines = said_by(&program, *provoked);
        for text in texts {
            let Message { level, keys, .. } = known.iter().find(|message| message.text == *text).unwrap();
            let line = lines.iter().find(|line| line["msg"] == *text);
            let line = line.unwrap_or_else(|| panic!("{args:?}: {text} is not in\n{lines:#?}"));
            for key in keys {
                assert!(line.get(key).is_some(), "{text} has no {key}: {line}");
            }
            for list in ["flags", "reasons"].iter().filter(|list| keys.iter().any(|key| key == *list)) {
                assert!(line[list].as_array().is_some_and(|list| !list.is_empty()), "{line}");
            }
            match level.as_str() {
                "error" => assert!(line["error"].is_string() && line.get("level").is_none(), "{line}"),
                level => assert_eq!(line["level"].to_string(), level, "{line}"),
            }
        }
        // `-v` is a ceiling.
        let most =
            args.iter().find_map(|arg| arg.strip_prefix("-v=")?.parse::<i64>().ok()).unwrap_or_default();
        for line in &lines {
            let is_known = known.iter().any(|message| line["msg"] == *message.text);
            assert!(!is_known || line["level"].as_i64().unwrap_or_default() <= most, "{args:?}: {line}");
        }
        let gave_up = lines.iter().find(|line| line["msg"] == "too many failures, aborting");
        if let Some(line) = gave_up {
            let limit = args.iter().find_map(|arg| arg.strip_prefix("--max-failures=")?.parse().ok());
            assert_eq!(line["maxFailures"], limit.unwrap_or(0), "{line}");
        }
        // What is left of a pause depends on the machine; its form does not.
        for shown in lines.iter().filter_map(|line| line.get("waitTime")) {
            let number = shown
                .as_str()
                .and_then(|shown| shown.trim_end_matches("ms").trim_end_matches('s').parse().ok());
            assert!(number.is_some_and(|number: f64| number <= 20.0), "waitTime={shown}");
        }
        for key in ["timeout", "retry", "period", "initPeriod"] {
            let shown = lines.iter().filter_map(|line| line.get(key));
            for shown in shown {
                // Unlike git-sync's, a hook that is not run again names no pause.
                let known = ["30s", "1s", "3s", "2s", "10ms", "20ms", "10s", "20s", "none"];
                assert!(known.contains(&shown.as_str().unwrap_or_default()), "{key}={shown}");
            }
        }
    }
}

#[test]
fn what_git_sync_says_is_said_in_its_words_with_its_keys() {
    says_each(|world| git_sync(world, &[]));
}

#[test]
fn a_touch_file_that_cannot_be_touched_is_named_once_and_touched_when_it_can_be() {
    let world = World::new();
    world.remote.commit(&Files::new().file("a", "1"));
    let blocked = world.dir().join("blocked");
    std::fs::write(&blocked, "").unwrap();
    let touched = blocked.join("touched");
    let flag = format!("--touch-file={}", touched.display());
    let mut command = sync(&world, &["--period=10ms", "-v=3", &flag]);
    let process = Background::start(&mut command, &world.dir().join("log"));
    let said = |message: &str| process.log().matches(&format!("\"msg\":\"{message}\"")).count();
    eventually(60, "a few attempts", || (said("update not required") >= 5).then_some(()));
    assert_eq!(said("failed to touch touch-file"), 1, "{}", process.log());
    std::fs::remove_file(&blocked).unwrap();
    eventually(30, "it is touched", || (said("touched touch-file") >= 1).then_some(()));
    assert!(touched.exists());
}

#[test]
fn next_sync_counts_every_pass_that_succeeded() {
    let world = World::new();
    world.remote.commit(&Files::new().file("a", "1"));
    let mut command = sync(&world, &["--period=10ms", "-v=3"]);
    let process = Background::start(&mut command, &world.dir().join("log"));
    eventually(30, "passes without news are counted", || {
        let log = process.log();
        let mut lines = log.lines().filter(|line| line.contains("\"msg\":\"next sync\""));
        lines.any(|line| line.contains("\"syncCount\":3")).then_some(())
    });
}

#[test]
fn every_message_that_is_said_to_be_the_same_is_looked_for() {
    let provoked: Vec<&str> = PROVOKED.iter().flat_map(|(_, _, texts)| *texts).copied().collect();
    for message in messages().iter().filter(|message| message.same) {
        let text = message.text.as_str();
        assert!(provoked.contains(&text), "{text}");
    }
}

#[test]
#[ignore = "needs git-sync's own binary, named by TREESWAP_TEST_GIT_SYNC"]
fn git_sync_itself_says_so() {
    let theirs = std::env::var_os("TREESWAP_TEST_GIT_SYNC").expect("TREESWAP_TEST_GIT_SYNC names git-sync");
    let binary = std::fs::read(&theirs).unwrap();
    // Of what came after v4.7.1.
    let newer = ["can't list git config", "unexpected stderr reading git config"];
    for Message { text, .. } in messages().iter().filter(|message| !newer.contains(&message.text.as_str())) {
        assert!(binary.windows(text.len()).any(|part| part == text.as_bytes()), "{text}");
    }
    says_each(|world| common::git_sync::command(world, Path::new(&theirs)));
}
