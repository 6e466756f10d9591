//! The pre-publish program as a gate.

use std::time::{Duration, Instant};

use super::common::{Sidecar, World, allowed, eventually};
use super::{Hook, current, files};

const GATE: &str = "--pre-publish-gate";

#[test]
fn a_gate_sees_the_whole_generation_before_anybody_else_and_lets_it_pass() {
    let world = World::new();
    let line = "$GITSYNC_HASH $(cat file jobs/nightly.yaml | head -1) $(readlink ../../../..data || echo nothing) \
                ${TREESWAP_GENERATION-unnamed}";
    let hook = Hook::new(&world, "gate", line, "test \"$(pwd -P)\" = \"$TREESWAP_DIR\"");
    let first = world.remote.commit(&files("first\n"));
    world.sync_once(&[GATE, &hook.flag("pre-publish-exechook")]).expect_ok("the first");
    let before = std::fs::read_link(world.root.join("..data")).unwrap();
    let second = world.remote.commit(&files("second\n"));
    world.sync_once(&[GATE, &hook.flag("pre-publish-exechook")]).expect_ok("the second");
    let expected =
        [format!("{first} first nothing unnamed"), format!("{second} second {} unnamed", before.display())];
    assert_eq!(hook.runs(), expected);
    world.assert_published(&second);
}

#[test]
fn a_gate_that_stays_closed_publishes_nothing_and_leaves_nothing_behind() {
    let world = World::new();
    world.remote.commit(&files("bad"));
    let hook = Hook::new(&world, "gate", "$GITSYNC_HASH", "echo refused by policy; ! grep -q bad file");
    let flag = hook.flag("pre-publish-exechook");
    let ran = world.sync_once(&[GATE, &flag]);
    assert_eq!(ran.status.code(), Some(1), "{}", ran.stderr);
    for word in ["not published", "pre-publish-exechook failed", "exit status: 1", "refused by policy"] {
        assert!(ran.complaint().contains(word), "{word}: {}", ran.complaint());
    }
    assert!(ran.stderr.contains("\"retry\":\"none\""), "nothing runs it again: {}", ran.stderr);
    assert!(!world.root.join("..data").exists());
    // Not even where there is nothing else to serve, by whoever starts next.
    let next = Hook::new(&world, "next", "run", "exit 1");
    world.sync_once(&[GATE, &next.flag("pre-publish-exechook")]).expect_failure("still closed");
    assert!(!world.root.join("..data").exists());
    world.assert_clean(0);

    let good = world.remote.commit(&files("good"));
    world.sync_once(&[GATE, &flag]).expect_ok("open");
    world.assert_published(&good);
    world.remote.commit(&files("bad again"));
    world.sync_once(&[GATE, &flag]).expect_failure("closed");
    world.assert_published(&good);
    world.assert_clean(1);
}

#[test]
fn a_closed_gate_is_tried_again_and_opens() {
    let world = World::new();
    let commit = world.remote.commit(&files("first"));
    let hook = Hook::new(&world, "gate", "$GITSYNC_HASH", "test -e ../../../../open");
    let flags = [GATE, "--pre-publish-gate-retry", &hook.flag("pre-publish-exechook"), "--max-backoff=100ms"];
    let sidecar = Sidecar::start(&world, &flags);
    eventually(30, "tried again", || (hook.runs().len() >= 4).then_some(()));
    assert!(!world.root.join("..data").exists());
    let log = sidecar.process.log();
    assert_eq!(log.matches("\"pre-publish-exechook failed\"").count(), 1, "the same each time: {log}");
    std::fs::write(world.dir().join("open"), "").unwrap();
    sidecar.publishes(&world, &commit);
}

#[test]
fn a_gate_is_not_asked_again_about_what_it_refused() {
    let world = World::new();
    world.remote.commit(&files("bad"));
    let hook = Hook::new(&world, "gate", "$GITSYNC_HASH", "! grep -q bad file");
    let flags = [GATE, &hook.flag("pre-publish-exechook"), "--max-backoff=100ms", "--log-level=debug"];
    let sidecar = Sidecar::start(&world, &flags);
    eventually(30, "refused, and several attempts later", || {
        (sidecar.metric("treeswap_syncs_total{result=\"failed\"}")? >= 4.0).then_some(())
    });
    assert_eq!(hook.runs().len(), 1, "{}", sidecar.process.log());
    let good = world.remote.commit(&files("good"));
    sidecar.publishes(&world, &good);
    assert_eq!(hook.runs().len(), 2);
}

#[test]
fn a_gate_is_not_failing_once_the_ref_is_set_back() {
    let world = World::new();
    let good = world.remote.commit(&files("good"));
    let hook = Hook::new(&world, "gate", "$GITSYNC_HASH", "! grep -q bad file");
    let sidecar = Sidecar::start(&world, &[GATE, &hook.flag("pre-publish-exechook"), "--max-backoff=100ms"]);
    sidecar.publishes(&world, &good);
    let bad = world.remote.commit(&files("bad"));
    let failures = || sidecar.metric("treeswap_hook_consecutive_failures");
    let is_refused = || eventually(30, "it is refused", || (failures()? >= 1.0).then_some(()));
    let is_forgotten = || eventually(30, "no failure is left", || (failures()? < 1.0).then_some(()));
    is_refused();
    world.remote.reset(&good);
    is_forgotten();
    world.remote.reset(&bad);
    is_refused();
    world.remote.commit(&files("good"));
    is_forgotten();
    assert_eq!(hook.runs().len(), 3, "it is not run for the tree that is published: {:?}", hook.runs());
    let gate = &sidecar.status()["hooks"][0];
    assert!(gate["consecutive_failures"] == 0 && gate["error"].is_string(), "{gate}");
}

#[test]
fn a_gate_that_takes_too_long_or_is_in_the_way_of_the_end_is_killed() {
    let world = World::new();
    world.remote.commit(&files("first"));
    let hook = Hook::new(&world, "gate", "$$", "sleep 1000");
    let flag = hook.flag("pre-publish-exechook");
    let ran = world.sync_once(&[GATE, &flag, "--pre-publish-exechook-timeout=1s"]);
    assert!(ran.complaint().contains("was killed after 1s"), "{}", ran.stderr);
    let ran = world.sync_once(&[GATE, &flag, "--sync-timeout=1s"]);
    assert!(ran.complaint().contains("waiting for the pre-publish hook"), "{}", ran.stderr);
    let runs = hook.runs().len();
    let mut sidecar = Sidecar::start(&world, &[GATE, &flag]);
    eventually(30, "the gate runs", || (hook.runs().len() > runs).then_some(()));
    let began = Instant::now();
    assert_eq!(sidecar.process.terminate().code(), Some(0), "{}", sidecar.process.log());
    assert!(began.elapsed() < allowed(Duration::from_secs(5)), "{:?}", began.elapsed());
    for pid in hook.runs() {
        assert!(!std::path::Path::new("/proc").join(&pid).exists(), "{pid} is still there");
    }
    assert!(!world.root.join("..data").exists());
}

#[test]
fn a_gate_that_hangs_until_its_attempt_ends_is_a_run_that_failed() {
    let world = World::new();
    world.remote.commit(&files("first"));
    let hook = Hook::new(&world, "gate", "$GITSYNC_HASH", "echo waits for the database; sleep 1000");
    let flag = hook.flag("pre-publish-exechook");
    let flags = [GATE, &flag, "--pre-publish-exechook-timeout=5m", "--sync-timeout=2s"];
    let sidecar = Sidecar::start(&world, &flags);
    // What precedes the gate may leave too little of an attempt for a word.
    let gate = eventually(60, "it has failed and said why", || {
        let gate = sidecar.status()["hooks"][0].clone();
        let says_why = gate["error"].as_str()?.ends_with(": waits for the database");
        says_why.then_some(gate)
    });
    assert!(sidecar.metric("treeswap_hook_consecutive_failures").unwrap() >= 1.0);
    let failures = gate["consecutive_failures"].as_u64().unwrap();
    assert!(failures >= 1 && gate["error"].as_str().unwrap().contains("was killed after"), "{gate}");
    eventually(60, "the attempt has failed", || {
        let status = sidecar.status();
        let error = status["last_failure"]["error"].as_str()?;
        error.contains("--sync-timeout=2s, while waiting for the pre-publish hook").then_some(())
    });
    let log = sidecar.process.log();
    assert!(log.contains("5m0s is not below --sync-timeout=2s"), "{log}");
}

#[test]
fn a_gate_needs_a_program() {
    let ran = World::new().sync_once(&[GATE]);
    assert_eq!(ran.status.code(), Some(2));
    assert!(
        ran.complaint().contains("--pre-publish-gate needs --pre-publish-exechook-command"),
        "{}",
        ran.stderr
    );
}

#[test]
fn what_the_gate_let_pass_is_published_again_without_asking_it() {
    let world = World::new();
    let commit = world.remote.commit(&files("good"));
    let hook = Hook::new(&world, "gate", "$GITSYNC_HASH", "! test -e ../../../../closed");
    let flags = [GATE, &hook.flag("pre-publish-exechook")];
    world.sync_once(&flags).expect_ok("the first");
    std::fs::write(world.dir().join("closed"), "").unwrap();
    std::fs::write(world.root.join("..data/file"), "damaged").unwrap();
    world.sync_once(&flags).expect_ok("damage is repaired");
    world.assert_published(&commit);
    assert_eq!(hook.runs().len(), 1, "{:?}", hook.runs());

    // The same while it runs: the whole generation is gone.
    let mut all = flags.to_vec();
    all.push("--period=50ms");
    let _sidecar = Sidecar::start(&world, &all);
    eventually(30, "it runs", || world.root.join("..treeswap/status.sock").exists().then_some(()));
    std::fs::remove_dir_all(current(&world).unwrap()).unwrap();
    eventually(30, "it is published again", || world.differences(&commit).is_empty().then_some(()));
    assert_eq!(hook.runs().len(), 1, "{:?}", hook.runs());
    // Another revision has to pass.
    world.remote.commit(&files("other"));
    eventually(30, "the gate is asked", || (hook.runs().len() == 2).then_some(()));
    world.assert_published(&commit);
}
