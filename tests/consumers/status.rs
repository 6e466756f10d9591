//! What `treeswap status` shows, and to whom.

use treeswap::configmap::apply::{LastAttempt, LedgerSet};

use super::*;

#[test]
fn the_status_of_a_root_is_open_to_any_user_and_names_who_pins() {
    let mut writer = Writer::new();
    let first = writer.publish(1);
    let mut consumer = Talker::start(&writer.pinner(writer.root()));
    consumer.line();
    let second = writer.publish(2);
    let ask = |more: &[&str]| {
        let mut words = vec![writer.program(), "status".into()];
        words.push(writer.root().to_str().unwrap().into());
        words.extend(more.iter().map(|word| (*word).to_owned()));
        let words = as_stranger(&words);
        run::to_end(Command::new(&words[0]).args(&words[1..])).expect_ok("status")
    };
    let table = ask(&[]).stdout;
    let line = |name: &Name| table.lines().find(|line| line.starts_with(name.as_str())).unwrap();
    let holder = format!("pinned by sh ({})", consumer.child.id());
    assert!(line(&first).contains(&holder) && line(&first).contains("retired"), "{table}");
    assert!(line(&second).ends_with("current"), "{table}");
    let json = schema::root_status(&ask(&["--json"]).stdout);
    assert_eq!(json["current"], second.as_str());
    assert_eq!(json["generations"][0]["revision"], "02".repeat(20));
    assert_eq!(json["generations"][1]["holders"][0]["pid"], consumer.child.id());
    assert_eq!(json["generations"][1]["pinned"], true);
    assert_eq!(writer.reap(), [], "looking at it changed nothing: the pin is still there");
}

#[test]
fn the_status_shows_the_last_attempt_and_what_fails() {
    let writer = Writer::started();
    let failed = serde_json::json!({
        "at": "2026-11-20T15:04:05Z", "trigger": "timer", "outcome": "failed", "duration_ms": 1234,
        "error": "cannot fetch https://git.example.com/x.git", "hints": ["is the host right?"],
    });
    let record = serde_json::json!({
        "ready": true, "remote": "https://git.example.com/x.git", "ref": "main", "root": "/config", "current": null,
        "retired": [], "last_attempt": failed, "last_success": null, "last_failure": failed,
        "consecutive_failures": 3, "next_attempt": "2026-11-20T15:04:15Z",
    });
    writer.store.write_status(record.to_string().as_bytes()).unwrap();
    let table = treeswap(&["status", writer.root().to_str().unwrap()]).expect_ok("status").stdout;
    for shown in ["3 in a row", "cannot fetch https://git.example.com/x.git", "is the host right?", "failed "]
    {
        assert!(table.contains(shown), "{shown} is not in\n{table}");
    }
    let json = treeswap(&["status", "--json", writer.root().to_str().unwrap()]).expect_ok("status").stdout;
    assert_eq!(schema::root_status(&json)["sync"]["last_failure"]["duration_ms"], 1234);
}

#[test]
fn what_is_not_in_the_schema_would_be_noticed() {
    let writer = Writer::started();
    let printed = treeswap(&["status", "--json", writer.root().to_str().unwrap()]).expect_ok("status").stdout;
    let good: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(schema::violations(&good, "RootStatus"), [""; 0]);
    let changed = |pointer: &str, name: &str, value: serde_json::Value| {
        let mut changed = good.clone();
        changed.pointer_mut(pointer).unwrap()[name] = value;
        schema::violations(&changed, "RootStatus")
    };
    for (pointer, name, value) in [
        ("", "new", 1.into()),
        ("/generations/0", "new", 1.into()),
        ("/generations/0", "pinned", "no".into()),
        ("/generations/0", "revision", "main".into()),
        ("/generations/0", "published", "yesterday".into()),
        ("", "writer", "asleep".into()),
        ("", "sync", serde_json::json!({"ready": true})),
    ] {
        assert!(!changed(pointer, name, value).is_empty(), "{pointer} {name}");
    }
}

#[test]
fn the_status_of_a_root_without_a_generation_is_a_failure_in_words() {
    let writer = Writer::new();
    let root = writer.root().to_str().unwrap();
    for args in [&["status", root][..], &["status", "--json", root]] {
        let ran = treeswap(args);
        assert_eq!(ran.status.code(), Some(1));
        if args.contains(&"--json") {
            schema::root_status(&ran.stdout);
        }
        assert!(ran.complaint().contains("no generation is published in"), "{}", ran.stderr);
    }
    let elsewhere = writer.dir.path().to_str().unwrap();
    treeswap(&["status", elsewhere]).expect_failure("no root");
}

#[test]
fn the_status_shows_what_was_attempted_in_clusters_and_a_damaged_ledger_is_kept() {
    let writer = Writer::started();
    let root = writer.root().to_str().unwrap();
    let ledger = writer.store.ledger();
    assert_eq!(ledger.read().unwrap(), (LedgerSet::default(), None));
    let record = |outcome: &str, error: Option<&str>| LastAttempt {
        revision: "1".repeat(40),
        digest: "2".repeat(64),
        at: "2026-11-20T15:04:05Z".parse().unwrap(),
        outcome: outcome.into(),
        attempts: 3,
        error: error.map(str::to_owned),
        repairs: Vec::new(),
        over: None,
    };
    let mut book = LedgerSet::default();
    book.ledger("prod", "ci").records.insert("plugins".into(), record("failed", Some("the server is busy")));
    book.ledger("default", "ci").records.insert("jobs".into(), record("replaced", None));
    ledger.write(&book).unwrap();
    assert_eq!(ledger.read().unwrap(), (book, None));
    let table = treeswap(&["status", root]).expect_ok("status").stdout;
    let line = |name: &str| table.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    assert!(line("prod/ci/plugins").ends_with("failed: the server is busy"), "{table}");
    assert!(line("default/ci/jobs").contains("111111111111  222222222222"), "{table}");
    assert!(line("default/ci/jobs").ends_with("replaced"), "{table}");
    let json = treeswap(&["status", "--json", root]).expect_ok("status").stdout;
    let json = schema::root_status(&json);
    assert_eq!(json["targets"][1]["error"], "the server is busy");
    assert_eq!(json["targets"][0]["name"], "jobs");
    assert_eq!(json["targets"][0]["attempts"], 3);
    let file = writer.root().join("..treeswap/ledger.json");
    fs::write(&file, "{\"prod\": 1").unwrap();
    let (empty, why) = ledger.read().unwrap();
    assert_eq!(empty, LedgerSet::default());
    assert!(why.unwrap().contains("is damaged"));
    assert_eq!(fs::read_to_string(file.with_extension("json.damaged")).unwrap(), "{\"prod\": 1");
}
