//! The webhook: who may ask for a look, and how often.

use super::*;

#[test]
fn genuine_senders_of_every_kind_are_answered_at_once_and_cause_a_look_each() {
    let server = Server::with_secrets(&[SECRET]);
    let plain = signature(SECRET, BODY);
    let bearer = format!("Bearer {SECRET}");
    let senders: [&[(&str, &str)]; 5] = [
        &[("x-hub-signature-256", &github(SECRET)), ("x-github-event", "push"), ("x-github-delivery", "1")],
        &[("x-gitlab-token", SECRET), ("idempotency-key", "2")],
        &[("authorization", &bearer)],
        &[("authorization", &bearer), ("x-github-event", "ping")],
        &[("authorization", &bearer.replace("Bearer", "bearer"))],
    ];
    for (n, headers) in senders.iter().enumerate() {
        assert_eq!(server.post(headers).code, 202, "{headers:?}");
        assert_eq!(server.looks(), n + 1);
    }
    for header in ["x-gitea-signature", "x-forgejo-signature"] {
        // A listener of its own: the same signature a second time is a replay.
        let server = Server::with_secrets(&[SECRET]);
        assert_eq!(server.post(&[(header, &plain)]).code, 202, "{header}");
        assert_eq!(server.looks(), 1);
    }
}

#[test]
fn every_kind_of_forgery_gets_the_same_refusal_and_no_look() {
    let server = Server::with_secrets(&[SECRET]);
    let good = signature(SECRET, BODY);
    let sha1 = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, SECRET.as_bytes()), BODY);
    let flipped = {
        let last = if good.ends_with('0') { '1' } else { '0' };
        format!("sha256={}{last}", &good[..63])
    };
    let forgeries: Vec<(&str, Vec<(&str, String)>)> = vec![
        ("nothing at all", vec![]),
        ("signed with another secret", vec![("x-hub-signature-256", github("guess"))]),
        ("signed with an empty secret", vec![("x-hub-signature-256", github(""))]),
        ("of another body", vec![("x-hub-signature-256", format!("sha256={}", signature(SECRET, b"{}")))]),
        ("one digit wrong", vec![("x-hub-signature-256", flipped)]),
        ("cut short", vec![("x-hub-signature-256", format!("sha256={}", &good[..62]))]),
        ("too long", vec![("x-hub-signature-256", format!("sha256={good}00"))]),
        ("empty", vec![("x-hub-signature-256", "sha256=".into())]),
        ("without its prefix", vec![("x-hub-signature-256", good.clone())]),
        ("not hexadecimal", vec![("x-hub-signature-256", format!("sha256={}", "zz".repeat(32)))]),
        ("SHA-1, which GitHub sends too", vec![("x-hub-signature", format!("sha1={}", hex(sha1.as_ref())))]),
        (
            "SHA-1 in the place of SHA-256",
            vec![("x-hub-signature-256", format!("sha1={}", hex(sha1.as_ref())))],
        ),
        ("Gitea's with GitHub's prefix", vec![("x-gitea-signature", format!("sha256={good}"))]),
        (
            "twice, one of them good",
            vec![("x-hub-signature-256", format!("sha256={good}")), ("x-hub-signature-256", github("guess"))],
        ),
        ("GitLab's token, wrong", vec![("x-gitlab-token", "guess".into())]),
        ("GitLab's token, a beginning", vec![("x-gitlab-token", SECRET[..20].into())]),
        ("GitLab's token, empty", vec![("x-gitlab-token", String::new())]),
        ("bearer, wrong", vec![("authorization", "Bearer guess".into())]),
        ("bearer, empty", vec![("authorization", "Bearer ".into())]),
        ("basic", vec![("authorization", format!("Basic {SECRET}"))]),
        ("the secret, bare", vec![("authorization", SECRET.into())]),
        ("the secret in the query", vec![("x-token", SECRET.into())]),
    ];
    for (what, headers) in &forgeries {
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let answer = server.post(&headers);
        assert_eq!(answer.code, 403, "{what}");
        assert_eq!(
            answer.body, "forbidden: no valid signature or token\n",
            "{what}: the refusal says no more"
        );
    }
    assert_eq!(server.looks(), 0);
}

#[test]
fn a_replay_causes_no_second_look_even_under_another_delivery_id() {
    let server = Server::with_secrets(&[SECRET]);
    let signed = github(SECRET);
    assert_eq!(server.post(&[("x-hub-signature-256", &signed), ("x-github-delivery", "a")]).code, 202);
    for n in 0..1000 {
        let id = if n % 2 == 0 { "a".to_owned() } else { n.to_string() };
        let answer = server.post(&[("x-hub-signature-256", &signed), ("x-github-delivery", &id)]);
        assert_eq!(answer.code, 200, "{}", answer.body);
    }
    assert_eq!(server.looks(), 1);
    let token = [("x-gitlab-token", SECRET), ("idempotency-key", "b")];
    assert_eq!([server.post(&token).code, server.post(&token).code], [202, 200]);
}

/// GitLab's event id names the chain of webhooks that began with one event; what each delivery is known by, and what its
/// retries repeat, is the idempotency key.
#[test]
fn gitlabs_deliveries_of_one_chain_of_events_each_cause_a_look_and_a_retry_does_not() {
    let server = Server::with_secrets(&[SECRET]);
    let post = |key: &str| {
        let event = ("x-gitlab-event-uuid", "13792a34-cac6-4fda-95a8-c58e00a3954e");
        server.post(&[("x-gitlab-token", SECRET), event, ("idempotency-key", key)]).code
    };
    assert_eq!(["a", "b", "a"].map(post), [202, 202, 200]);
    // Before GitLab 17.4 there is no key, and nothing to know a retry by.
    let bare = [("x-gitlab-token", SECRET), ("x-gitlab-event-uuid", "c")];
    assert_eq!([server.post(&bare).code, server.post(&bare).code], [202, 202]);
}

#[test]
fn a_forged_delivery_id_cannot_silence_the_genuine_one() {
    let server = Server::with_secrets(&[SECRET]);
    server.post(&[("x-hub-signature-256", &github("guess")), ("x-github-delivery", "a")]);
    let genuine = server.post(&[("x-hub-signature-256", &github(SECRET)), ("x-github-delivery", "a")]);
    assert_eq!(genuine.code, 202);
}

#[test]
fn secrets_are_read_anew_and_two_are_active_while_one_is_rotated() {
    let server = Server::with_secrets(&["old\n", "another sender's\r\n"]);
    let file = server.dir.path().join("0");
    let open = |secret: &str| server.post(&[("x-gitlab-token", secret)]).code;
    assert_eq!([open("old"), open("another sender's"), open("new")], [202, 202, 403]);
    std::fs::write(&file, "old\nnew\n").unwrap();
    assert_eq!([open("old"), open("new")], [202, 202]);
    std::fs::write(&file, "\nnew\n\n").unwrap();
    assert_eq!([open("old"), open("new"), open("")], [403, 202, 403]);
    std::fs::remove_file(&file).unwrap();
    let answer = server.post(&[("x-gitlab-token", "new")]);
    assert_eq!(answer.code, 503, "{}", answer.body);
    assert!(!answer.body.contains(file.to_str().unwrap()), "the path is for the log, not for the sender");
}

#[test]
fn without_a_secret_the_route_is_closed_and_says_so() {
    let server = Server::start();
    let answer = server.post(&[("authorization", "Bearer ")]);
    assert_eq!(answer.code, 403);
    assert!(answer.body.contains("no webhook secret is configured"), "{}", answer.body);
    let counted = "treeswap_webhooks_total{result=\"no_secret\"} 1";
    assert!(server.get("/metrics").body.contains(counted), "{}", server.get("/metrics").body);
    let server = Server::with_secrets(&["\n"]);
    assert_eq!(server.post(&[("authorization", "Bearer x")]).code, 503, "an empty file holds no secret");
    assert_eq!(server.looks(), 0);
}

#[test]
fn a_flood_of_genuine_requests_is_slowed_down_with_a_time_to_come_back() {
    let server = Server::with_secrets(&[SECRET]);
    let answers: Vec<Answer> = (0..60).map(|_| server.post(&[("x-gitlab-token", SECRET)])).collect();
    let limited: Vec<&Answer> = answers.iter().filter(|answer| answer.code == 429).collect();
    assert!(answers[..20].iter().all(|answer| answer.code == 202), "a burst of twenty is let through");
    assert!(!limited.is_empty() && limited.iter().all(|answer| answer.header("retry-after") == Some("1")));
    let accepted = answers.len() - limited.len();
    // Those over the limit cause a look together, as soon as it allows.
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while server.looks() <= accepted {
        assert!(std::time::Instant::now() < end, "no more looks than {accepted}");
        std::thread::yield_now();
    }
    assert!(server.looks() < answers.len(), "and not one each");
}

#[test]
fn what_a_request_is_for_is_checked_after_its_signature_and_is_bounded() {
    let server = Server::with_secrets(&[SECRET]);
    let post = |names: usize, secret: &str| {
        let query = vec!["source=a"; names].join("&");
        server.ask("POST", &format!("/sync?{query}"), &[("x-gitlab-token", secret)], BODY)
    };
    assert_eq!(post(65, "guess").code, 403);
    assert_eq!(post(64, SECRET).code, 202, "before the first attempt the names are not known");
    let many = post(65, SECRET);
    assert_eq!((many.code, many.body.contains("at most 64")), (404, true), "{}", many.body);
    assert_eq!(server.looks(), 1);
    let attempt = Attempt {
        at: "2026-11-20T15:04:05Z".parse().unwrap(),
        trigger: Trigger::Timer,
        outcome: Outcome::Failed,
        duration_ms: 1,
        error: Some("the file of --sources is invalid".into()),
        hints: Vec::new(),
    };
    server.status.send_replace(Status { last_attempt: Some(attempt), ..serving() });
    assert_eq!(post(1, SECRET).code, 202, "nor are they while their file is invalid");
    assert_eq!(server.looks(), 2);
}
