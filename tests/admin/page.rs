//! The status as JSON and as a page: which of them is sent, and what is on the page.

use treeswap::phase::{HookStatus, Progress, TargetStatus};

use super::*;

#[test]
fn the_status_is_the_record_as_json_and_a_page_for_browsers() {
    let server = Server::start();
    server.status.send_replace(serving());
    let json = server.get("/status");
    assert_eq!(json.header("content-type"), Some("application/json"));
    schema::writer_status(&json.body);
    let read: Status = serde_json::from_str(&json.body).unwrap();
    assert_eq!(read, Status { alive_until_ms: 0, ..serving() }, "the promise is for the probe only");
    for page in [server.browse("/status"), server.get("/status.html")] {
        assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
        for shown in ["up to date", &"01".repeat(20), "..2026_11_20_15_04_05.000000002", "pinned", "5.0 MiB"]
        {
            assert!(page.body.contains(shown), "the page does not show {shown}");
        }
        for loading in ["<script", "src=", "url(", "@import", "<link"] {
            assert!(!page.body.contains(loading), "the page stands alone, but has {loading}");
        }
    }
}

#[test]
fn a_pin_is_told_as_it_is_when_the_status_is_asked_for() {
    let server = Server::start();
    let root = tempfile::tempdir().unwrap();
    let at = |n| root.path().join(generation(n, "").name.as_str());
    (1..=2).for_each(|n| std::fs::create_dir(at(n)).unwrap());
    let held = std::fs::File::open(at(1)).unwrap();
    held.lock_shared().unwrap();
    server.status.send_replace(Status { root: root.path().display().to_string(), ..serving() });
    let json: Status = serde_json::from_value(schema::writer_status(&server.get("/status").body)).unwrap();
    let current = json.current.unwrap();
    assert!(current.pinned, "a reader has pinned the current generation, of which the store does not ask");
    assert_eq!(current.holders[0].pid, std::process::id());
    assert!(!json.retired[0].pinned, "its reader has left since the last attempt");
}

#[test]
fn accept_decides_about_page_or_json_by_quality_and_then_by_name() {
    let server = Server::start();
    server.status.send_replace(serving());
    for (accept, page) in [
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", true),
        ("text/html, */*", true),
        ("text/*", true),
        ("TEXT/HTML", true),
        ("application/json;q=0.5, text/html;q=0.7", true),
        ("*/*", false),
        ("application/json", false),
        ("application/json, text/html", false),
        ("application/json, text/html;q=0.9", false),
        ("text/html;q=0", false),
        ("text/html;q=0, */*", false),
        ("*/*, text/html;q=0.1", false),
        ("text/plain", false),
        ("", false),
    ] {
        let answer = server.ask("GET", "/status", &[("accept", accept)], b"");
        let kind = if page { "text/html; charset=utf-8" } else { "application/json" };
        assert_eq!(answer.header("content-type"), Some(kind), "{accept:?}");
        assert_eq!(answer.header("vary"), Some("accept"), "caches need to know");
    }
    let page = server.browse("/");
    let link = page.body.split("<a href=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let json = server.browse(link);
    assert_eq!(json.header("content-type"), Some("application/json"), "{link} in a browser");
    serde_json::from_str::<Status>(&json.body).unwrap();
}

#[test]
fn the_page_says_who_holds_a_pin_what_fails_and_what_runs() {
    let server = Server::start();
    let root = tempfile::tempdir().unwrap();
    let pinned = root.path().join(generation(2, "").name.as_str());
    std::fs::create_dir(&pinned).unwrap();
    let held = std::fs::File::open(&pinned).unwrap();
    held.lock_shared().unwrap();
    let failing = HookStatus {
        hook: "exechook".into(),
        at: Some("2026-11-20T15:04:05Z".parse().unwrap()),
        error: Some("it ended with 7".into()),
        hints: vec!["look at its output".into()],
        consecutive_failures: 12,
        failing_since: Some("2026-11-20T14:00:00Z".parse().unwrap()),
        ..HookStatus::default()
    };
    let progress = Progress {
        since: Timestamp::now(),
        stage: "fetch".into(),
        what: "fetching objects".into(),
        fetched_bytes: 3 << 20,
    };
    server.status.send_replace(Status {
        root: root.path().display().to_string(),
        hooks: vec![failing, HookStatus { hook: "webhook".into(), ..HookStatus::default() }],
        progress: Some(progress),
        ..serving()
    });
    let page = server.browse("/status").body;
    let me = format!("({})", std::process::id());
    for shown in [
        "a hook fails",
        "<h1>",
        "role=\"status\"",
        "<th scope=\"col\">Directory</th>",
        "Change 1",
        "by Ada Lovelace",
        "it ended with 7",
        "look at its output",
        "12 in a row",
        "not yet",
        "fetching objects, 3.0 MiB received",
        &me,
    ] {
        assert!(page.contains(shown), "{shown} is not on the page:\n{page}");
    }
    let json: Status = serde_json::from_value(schema::writer_status(&server.get("/status").body)).unwrap();
    assert_eq!(json.retired[0].holders[0].pid, std::process::id());
    assert_eq!(json.hooks[0].consecutive_failures, 12);
}

#[test]
fn whatever_comes_from_outside_is_escaped_on_the_page() {
    const HOSTILE: &str = "\"'><script>alert(1)</script>&amp;";
    let server = Server::start();
    let failure = Attempt {
        at: Timestamp::UNIX_EPOCH,
        trigger: Trigger::Timer,
        outcome: Outcome::Failed,
        duration_ms: 1,
        error: Some(HOSTILE.into()),
        hints: vec![HOSTILE.into()],
    };
    let progress = Progress {
        since: Timestamp::UNIX_EPOCH,
        stage: HOSTILE.into(),
        what: HOSTILE.into(),
        fetched_bytes: 1,
    };
    server.status.send_replace(Status {
        remote: HOSTILE.into(),
        ref_name: HOSTILE.into(),
        root: HOSTILE.into(),
        current: Some(generation(1, HOSTILE)),
        retired: vec![generation(2, HOSTILE)],
        last_attempt: Some(failure.clone()),
        last_delivery: Some(failure.clone()),
        hooks: vec![HookStatus {
            hook: HOSTILE.into(),
            at: Some(Timestamp::UNIX_EPOCH),
            error: Some(HOSTILE.into()),
            hints: vec![HOSTILE.into()],
            consecutive_failures: 1,
            ..HookStatus::default()
        }],
        progress: Some(progress.clone()),
        delivery_progress: Some(progress),
        targets: vec![TargetStatus {
            cluster: HOSTILE.into(),
            namespace: "ci".into(),
            name: "plugins".into(),
            revision: "1".repeat(40),
            digest: "2".repeat(64),
            at: Timestamp::UNIX_EPOCH,
            outcome: "failed".into(),
            error: Some(HOSTILE.into()),
        }],
        last_failure: Some(failure),
        consecutive_failures: 1,
        ..serving()
    });
    schema::writer_status(&server.get("/status").body);
    let page = server.get("/status.html");
    assert!(!page.body.contains("<script") && !page.body.contains("\"'>"), "{}", page.body);
    let escaped = "&quot;&#39;&gt;&lt;script&gt;alert(1)&lt;/script&gt;&amp;amp;";
    assert_eq!(
        page.body.matches(escaped).count(),
        22,
        "title, remote, ref, root, errors, hints, reasons, commits, a hook, what runs, and of a target cluster and error"
    );
    assert!(page.header("content-security-policy").unwrap().starts_with("default-src 'none'"));
}
