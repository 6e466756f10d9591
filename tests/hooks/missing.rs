//! What is named and not there is said at the start and by `check`; webhooks that are turned away are not said one by one.

use super::common::{Files, Sidecar, World, run};

#[test]
fn a_program_or_a_secret_that_is_not_there_is_said_at_the_start_and_by_check() {
    let world = World::new();
    world.remote.commit(&Files::new().file("file", "text"));
    let (empty, plain) = (world.dir().join("empty"), world.dir().join("plain"));
    std::fs::write(&empty, "\n\n").unwrap();
    std::fs::write(&plain, "no program\n").unwrap();
    let flags = [
        "--exechook-command=no-such-program".to_owned(),
        format!("--pre-publish-exechook-command={}", plain.display()),
        format!("--webhook-secret-file={}", empty.display()),
        "--webhook-secret-file=/absent/secret".to_owned(),
        "--git=/absent/git -c x=y".to_owned(),
        "--cookie-file=/absent/cookies".to_owned(),
    ];
    let expected = [
        "there is no no-such-program in $PATH".to_owned(),
        format!("{} is not executable", plain.display()),
        format!("{} is empty", empty.display()),
        "/absent/secret".to_owned(),
        "--git: there is no program /absent/git -c x=y: it is one program, without arguments".to_owned(),
        "--cookie-file: /absent/cookies cannot be read".to_owned(),
    ];
    let mut check = world.treeswap(&["check", "--repo=/x", "--root=/r", "--http-bind=127.0.0.1:0"]);
    let said = run::to_end(check.args(&flags)).expect_ok("check");
    let sidecar = Sidecar::start(&world, &flags.each_ref().map(String::as_str));
    for line in expected {
        assert!(said.stderr.contains(&line), "{line} is not in {}", said.stderr);
        assert!(sidecar.process.log().contains(&line), "{line} is not in {}", sidecar.process.log());
    }
    let directory = format!("--exechook-command={}", world.dir().display());
    let mut wrong = world.treeswap(&["check", "--repo=/x", "--root=/r"]);
    let said = run::to_end(wrong.arg(directory)).expect_ok("check");
    assert!(said.stderr.contains("is a directory: name a program in it"), "{}", said.stderr);
    let mut good = world.treeswap(&["check", "--repo=/x", "--root=/r", "--exechook-command=true"]);
    let said = run::to_end(good.arg("--pre-publish-exechook-command=./in/the/tree")).expect_ok("check");
    assert!(!said.stderr.contains("the hook will fail"), "{}", said.stderr);
}

#[test]
fn webhooks_that_are_turned_away_are_not_said_one_by_one() {
    let world = World::new();
    world.remote.commit(&Files::new().file("file", "text"));
    let secret = world.dir().join("secret");
    std::fs::write(&secret, "a-webhook-secret\n").unwrap();
    let sidecar = Sidecar::start(&world, &[&format!("--webhook-secret-file={}", secret.display())]);
    for _ in 0..20 {
        assert!(sidecar.request("POST", "/sync").unwrap().starts_with("HTTP/1.1 403"));
    }
    std::fs::write(&secret, "").unwrap();
    for _ in 0..20 {
        let said = sidecar.request_with("POST", "/sync", "Authorization: Bearer x\r\n").unwrap();
        assert!(said.starts_with("HTTP/1.1 503"), "{said}");
    }
    let log = sidecar.process.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("rejected a webhook request")).collect();
    assert_eq!(lines.len(), 2, "one of each kind: {lines:#?}");
    assert!(lines[1].contains("hold no secret"), "{lines:#?}");
}
