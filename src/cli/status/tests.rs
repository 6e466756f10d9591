mod schema;

use super::*;
use crate::phase::{Attempt, GenerationStatus, HookStatus, Outcome, Trigger};

fn inspection() -> Inspection {
    Inspection {
        root: "/config".into(),
        current: None,
        link_problem: Some("there is no ..data".into()),
        generations: Vec::new(),
        status: None,
        socket: "/config/..treeswap/status.sock".into(),
        ledger: None,
    }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn failing(error: &str) -> Status {
    let failure = Attempt {
        at: at(200),
        trigger: Trigger::Timer,
        outcome: Outcome::Failed,
        duration_ms: 1,
        error: Some(error.into()),
        hints: vec!["look at the token".into()],
    };
    Status {
        last_attempt: Some(failure.clone()),
        last_failure: Some(failure),
        consecutive_failures: 38,
        failing_since: Some(at(100)),
        next_attempt: Some(at(300)),
        recorded: Some(at(250)),
        ..Status::default()
    }
}

#[test]
fn a_probe_sees_two_lines_that_change_with_the_trouble_and_not_with_the_time() {
    let found = inspection();
    let status = failing("the server answered 401");
    let report = |status: Status| {
        let live = status_socket::LiveStatus { alive: true, status };
        Report::new(&found, WriterState::Answers(Box::new(live)))
    };
    let later = report(Status { next_attempt: Some(at(600)), consecutive_failures: 39, ..status.clone() });
    let report = report(status.clone());
    let failure = report.failure(None, at(260)).unwrap();
    assert_eq!(
        failure,
        "no generation is published in /config; the sync fails since 1970-01-01 00:01:40 UTC: the server answered 401"
    );
    assert_eq!(report.hints().unwrap(), "hint: look at the token");
    assert_eq!((later.failure(None, at(9_000)), later.hints()), (Some(failure), report.hints()));
    let found = Inspection { status: Some(status), ..inspection() };
    let killed = Report::new(&found, WriterState::Absent).failure(None, at(260)).unwrap();
    assert!(killed.contains("last seen at 1970-01-01 00:04:10 UTC; its sync fails"), "{killed}");
}

#[test]
fn age_is_that_of_the_last_success() {
    let name = Name::parse("..2026_11_20_15_04_05.000000001").unwrap();
    let status = Status { last_success: Some(at(1_000)), ended: Some(at(1_001)), ..Status::default() };
    let found = Inspection { current: Some(name), status: Some(status), ..inspection() };
    let report = Report::new(&found, WriterState::Absent);
    assert_eq!(report.failure(None, at(1_000_000)), None, "it is published, and no more was asked for");
    let hour = Some(Duration::from_secs(3_600));
    assert_eq!(report.failure(hour, at(4_600)), None);
    let old = report.failure(hour, at(4_601)).unwrap();
    assert!(old.contains("--max-age=1h") && old.contains("no writer is running since"), "{old}");
    assert_eq!(report.failure(hour, at(995)), None, "clocks differ by seconds");
    let early = report.failure(hour, at(900)).unwrap();
    assert!(early.contains("the last success is in the future, at 1970-01-01 00:16:40 UTC"), "{early}");
    let found = Inspection { status: None, ..found };
    assert!(
        Report::new(&found, WriterState::Silent)
            .failure(hour, at(0))
            .unwrap()
            .contains("no success is on record")
    );
}

#[test]
fn what_the_writer_says_of_pins_is_shown_only_where_pins_cannot_be_seen() {
    let root = tempfile::tempdir().unwrap();
    let name = |n: u32| Name::parse(&format!("..2026_11_20_15_04_05.{n:09}")).unwrap();
    let recorded = |n: u32| GenerationStatus {
        name: name(n),
        revision: None,
        commit: None,
        entries: 0,
        bytes: 0,
        published: at(1),
        retired: Some(at(2)),
        pinned: n != 3,
        holders: Vec::new(),
        reason: "pinned".into(),
    };
    let inspected = |n: u32, pinned: Option<bool>| Inspected {
        name: name(n),
        record: None,
        disk_bytes: None,
        current: false,
        pinned,
    };
    let held = root.path().join(name(3).relative_path());
    std::fs::create_dir(&held).unwrap();
    let held = fsx::open_dir_at_path(&held).unwrap();
    assert_eq!(fsx::try_lock_shared(&held).unwrap(), fsx::Lock::Taken);
    let found = Inspection {
        root: root.path().to_owned(),
        generations: vec![inspected(1, None), inspected(2, Some(false)), inspected(3, Some(true))],
        status: Some(Status { retired: (1..=4).map(recorded).collect(), ..Status::default() }),
        ..inspection()
    };
    let shown = Report::new(&found, WriterState::Absent).sync.unwrap().retired;
    let pinned: Vec<_> = shown.iter().map(|one| one.pinned).collect();
    assert_eq!(pinned, [true, false, true, false], "unknown; unpinned; pinned; gone");
    let holds = |one: &GenerationStatus| one.holders.iter().any(|holder| holder.pid == std::process::id());
    assert_eq!(shown.iter().map(holds).collect::<Vec<_>>(), [false, false, true, false]);
}

#[test]
fn what_a_record_holds_moves_no_terminals_cursor() {
    let evil = "\u{1b}[2J\u{202e}";
    let mut status = failing(evil);
    status.remote = evil.into();
    status.last_failure.as_mut().unwrap().hints = vec![evil.into()];
    status.hooks = vec![HookStatus {
        hook: "exechook".into(),
        at: Some(at(1)),
        error: Some(evil.into()),
        hints: vec![evil.into()],
        ..HookStatus::default()
    }];
    let found = Inspection {
        status: Some(status),
        link_problem: Some(evil.into()),
        root: evil.into(),
        ..inspection()
    };
    let mut report = Report::new(&found, WriterState::Unknown(evil.into()));
    let record = Attempted {
        revision: evil.into(),
        digest: evil.into(),
        outcome: evil.into(),
        error: Some(evil.into()),
        at: at(1),
        attempts: 1,
        repairs: Vec::new(),
        over: None,
    };
    report.targets.push(Target { cluster: evil, namespace: evil, name: evil, record: &record });
    let text =
        [table(&report, at(2)), report.failure(None, at(2)).unwrap(), report.hints().unwrap()].concat();
    assert!(text.contains("[2J"), "{text}");
    assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text:?}");
}
