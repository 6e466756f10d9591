//! `treeswap sync` with rules for ConfigMaps, from outside: every new revision is applied, drift is repaired, a webhook
//! shortens the wait, a target that fails does not delay the others, and SIGTERM ends the process.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::apply::{MAPS, Stage};
use crate::common::run::{self, Background};
use crate::common::schema::{root_status, writer_status};
use crate::common::{Files, eventually};
use crate::kubernetes::{Access, Kubernetes, kubeconfig};
use crate::proxy::Fault;

const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// A running `treeswap sync`.
struct Running {
    process: Background,
    port: u16,
}

/// `treeswap sync` that applies the stage's rules to the clusters of these contexts.
fn command(stage: &Stage, contexts: &[(&str, Access)], more: &[&str]) -> std::process::Command {
    let names: Vec<&str> = contexts.iter().map(|(name, _)| *name).collect();
    let mut command = stage.world.treeswap(&["sync", "--ref=main", "--owner=test", "--repo"]);
    command.arg(&stage.world.remote.path).arg("--rules").arg(stage.rules(&names));
    command.arg("--kubeconfig").arg(kubeconfig(&stage.world.dir().join("kubeconfig"), contexts));
    command.args(more);
    command
}

impl Running {
    fn start(stage: &Stage, contexts: &[(&str, Access)], more: &[&str]) -> Self {
        let secret = stage.world.dir().join("secret");
        std::fs::write(&secret, SECRET).unwrap();
        let mut command = command(stage, contexts, more);
        command.arg("--http-bind=127.0.0.1:0").arg("--webhook-secret-file").arg(secret);
        let process = Background::start(&mut command, &stage.world.dir().join("sync.log"));
        let port = eventually(60, "it listens", || {
            let log = process.log();
            let (_, rest) = log.split_once("listening at 127.0.0.1:")?;
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().ok()
        });
        Self { process, port }
    }

    /// Sends a request, given as method and path, with the webhook secret; returns the answer including its head.
    fn ask(&self, head: &str) -> Option<String> {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        write!(stream, "{head} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRET}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    fn status(&self) -> Option<Value> {
        let answer = self.ask("GET /status")?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        serde_json::from_str::<Value>(body).ok()?; // cut off if the process is ending
        Some(writer_status(body))
    }
}

#[test]
fn every_new_revision_is_applied_once_and_drift_is_repaired() {
    let stage = Stage::new();
    let contexts = [("test", stage.proxy.access("writer"))];
    let pace = ["--period=200ms", "--min-interval=100ms", "--resync-period=3s"];
    let mut running = Running::start(&stage, &contexts, &pace);
    for value in ["1", "2", "3"] {
        if value != "1" {
            stage.commit(value);
        }
        eventually(60, "the revision is applied", || (stage.values() == every(value)).then_some(()));
    }
    let kubernetes = Kubernetes::shared();
    eventually(60, "the status shows a complete delivery", || {
        (running.status()?["applied"]["open"] == json!([]) && running.status()?["ready"] == true)
            .then_some(())
    });
    let before = stage.writes();
    assert_eq!(before, [3, 3, 3], "each revision is applied once");
    let mut map = kubernetes.configmap(&stage.namespace, "beta");
    map["data"]["value"] = json!("by hand");
    kubernetes.put(&stage.namespace, "beta", map);
    eventually(60, "drift is repaired and counted", || {
        let status = running.status()?;
        (status["applied"]["totals"]["repaired"] == 1).then_some(())
    });
    stage.assert_all("3");
    let after = stage.writes();
    assert_eq!(
        (after[0], after[1], after[2]),
        (before[0], before[1] + 1, before[2]),
        "only the changed ConfigMap is written"
    );
    let metrics = running.ask("GET /metrics").unwrap();
    assert!(metrics.contains("treeswap_syncs_total{result=\"published\"}"), "{metrics}");
    let status = running.process.terminate();
    assert!(status.success(), "{status}");
    assert!(running.process.log().contains("drained"));
}

#[test]
fn a_webhook_shortens_the_wait_and_a_target_that_fails_is_named() {
    let stage = Stage::new();
    let contexts = [("test", stage.proxy.access("writer"))];
    let pace = ["--period=1h", "--min-interval=0s", "--max-backoff=1s"];
    let running = Running::start(&stage, &contexts, &pace);
    eventually(60, "the first delivery", || (running.status()?["ready"] == true).then_some(()));
    stage.proxy.plan("PUT", "configmaps/beta", 0, 1_000, Fault::Answer(503, Some("0"), ""));
    stage.commit("2");
    assert!(running.ask("POST /sync").unwrap().starts_with("HTTP/1.1 202"));
    eventually(120, "the others are written and this one is named", || {
        let status = running.status()?;
        let open = status["applied"]["open"].to_string();
        (open.contains("/beta: failed") && status["applied"]["targets"]["replaced"] == 2).then_some(())
    });
    assert_eq!(stage.values()["beta"], "1");
    assert_eq!(running.status().unwrap()["ready"], true, "a failing target does not make it unready");
    stage.proxy.heal();
    eventually(120, "it is retried by itself", || (stage.values()["beta"] == "2").then_some(()));
}

#[test]
fn an_unreachable_cluster_does_not_delay_the_others_or_the_shutdown() {
    let stage = Stage::new();
    let (address, _held) = crate::common::refusing();
    let mut gone = Kubernetes::shared().access("writer");
    gone.server = format!("https://{address}");
    let contexts = [("gone", gone), ("test", stage.proxy.access("writer"))];
    let mut running = Running::start(&stage, &contexts, &["--period=200ms", "--min-interval=0s"]);
    eventually(60, "the other cluster is served", || (stage.values().len() == MAPS.len()).then_some(()));
    // The process is still retrying the unreachable cluster.
    let status = running.process.terminate();
    assert!(status.success(), "{status}");
}

#[test]
fn one_time_exits_with_the_result_and_missing_rights_and_options_are_named() {
    let stage = Stage::new();
    let contexts = [("test", stage.proxy.access("writer"))];
    let once = run::to_end(&mut command(&stage, &contexts, &["--one-time"]));
    assert_eq!(once.status.code(), Some(0), "{}{}", once.stdout, once.stderr);
    stage.assert_all("1");
    let stranger = [("test", stage.proxy.access("stranger"))];
    stage.commit("2");
    let once = run::to_end(&mut command(&stage, &stranger, &["--one-time"]));
    assert_eq!(once.status.code(), Some(3), "{}{}", once.stdout, once.stderr);
    assert!(once.stderr.contains("configmaps"), "{}", once.stderr);
    let root = format!("--root={}", stage.world.dir().join("root").display());
    let both = run::to_end(&mut command(&stage, &contexts, &["--one-time", &root]));
    assert_eq!(both.status.code(), Some(2), "{}{}", both.stdout, both.stderr);
    assert!(
        both.complaint().contains("--one-time with --root and rules for ConfigMaps exclude each other"),
        "{}",
        both.stderr
    );
    let filtered = run::to_end(&mut command(&stage, &contexts, &["--filter=blob:none"]));
    assert_eq!(filtered.status.code(), Some(2), "{}", filtered.stderr);
    assert!(filtered.complaint().contains("--filter and rules for ConfigMaps"), "{}", filtered.stderr);
    let repo = format!("--repo={}", stage.world.remote.path.display());
    let neither = run::to_end(&mut stage.world.treeswap(&["sync", &repo]));
    assert_eq!(neither.status.code(), Some(2), "{}", neither.stderr);
    assert!(neither.complaint().contains("sync needs --root, or --rules"), "{}", neither.stderr);
}

#[test]
fn a_server_that_is_not_there_is_named_once_with_its_port_and_what_to_check() {
    let stage = Stage::new();
    let (address, _held) = crate::common::refusing();
    let gone = Access { server: format!("https://{address}"), ..Kubernetes::shared().access("writer") };
    let once = run::to_end(&mut command(&stage, &[("gone", gone)], &["--one-time", "--log-format=plain"]));
    assert_eq!(once.status.code(), Some(3), "{}{}", once.stdout, once.stderr);
    let named = |what: &str| once.stderr.lines().filter(|line| line.contains(what)).count();
    let connects = format!(
        "cluster gone: cannot get ConfigMap {}/treeswap-set-test: cannot connect to https://{address}: ",
        stage.namespace
    );
    assert_eq!(named(&connects), 1, "for all targets: {}", once.stderr);
    let alike = format!("gone/{}/alpha (and {} more): failed: ", stage.namespace, MAPS.len() - 1);
    assert_eq!(named(&alike), 1, "{}", once.stderr);
    assert_eq!(named("hint: is the API server of gone up"), 1, "{}", once.stderr);
    assert_eq!(named("client error"), 0, "kube's own message of each try is logged: {}", once.stderr);
}

/// A `treeswap sync` that also publishes into a root.
fn with_root(stage: &Stage, contexts: &[(&str, Access)], more: &[&str]) -> Running {
    let root = format!("--root={}", stage.world.root.display());
    Running::start(stage, contexts, &[&[root.as_str()], more].concat())
}

/// The value of a map in the root's current generation.
fn published(stage: &Stage, map: &str) -> Option<String> {
    std::fs::read_to_string(stage.world.root.join("..data").join(map).join("value")).ok()
}

/// What [`Stage::values`] returns if every map has this value.
fn every(value: &str) -> BTreeMap<String, String> {
    MAPS.map(|name| (name.to_owned(), value.to_owned())).into()
}

#[test]
fn with_a_root_each_revision_is_published_and_then_applied_and_drift_is_repaired() {
    let stage = Stage::new();
    let contexts = [("test", stage.proxy.access("writer"))];
    let gate = stage.world.dir().join("gate");
    let hook = format!("--pre-publish-exechook-command={}", gate.display());
    let script = "#!/bin/sh\ntouch \"$0.asked\"\nwhile [ -e \"$0.closed\" ]; do sleep 0.05; done\n";
    run::executable(&gate, script);
    let pace = [
        "--period=200ms",
        "--min-interval=100ms",
        "--resync-period=3s",
        "--pre-publish-gate",
        "--on-rewind=hold",
        &hook,
    ];
    let mut running = with_root(&stage, &contexts, &pace);
    eventually(60, "the first revision is applied", || (stage.values() == every("1")).then_some(()));
    for value in ["2", "3"] {
        let (asked, closed) = (gate.with_extension("asked"), gate.with_extension("closed"));
        std::fs::write(&closed, "").unwrap();
        std::fs::remove_file(&asked).unwrap();
        stage.commit(value);
        eventually(60, "the gate is asked", || asked.exists().then_some(()));
        assert_ne!(published(&stage, "alpha").as_deref(), Some(value));
        assert_ne!(stage.values(), every(value), "nothing is applied that is not published");
        std::fs::remove_file(&closed).unwrap();
        eventually(60, "the revision is applied", || (stage.values() == every(value)).then_some(()));
        assert_eq!(published(&stage, "alpha").as_deref(), Some(value));
    }
    let kubernetes = Kubernetes::shared();
    let mut map = kubernetes.configmap(&stage.namespace, "beta");
    map["data"]["value"] = json!("by hand");
    kubernetes.put(&stage.namespace, "beta", map);
    eventually(60, "drift is repaired and counted", || {
        (running.status()?["applied"]["totals"]["repaired"] == 1).then_some(())
    });
    stage.assert_all("3");
    let status = running.status().unwrap();
    assert_eq!(status["applied"]["revision"], status["current"]["revision"]);
    assert_eq!(status["last_delivery"]["error"], Value::Null, "{status}");
    let ended = running.process.terminate();
    assert!(ended.success() && running.process.log().contains("drained"), "{ended}");
    // The root records the last attempt for each target, and a new process continues from that record.
    let by_name = |targets: &Value| -> BTreeMap<String, Value> {
        let targets = targets.as_array().into_iter().flatten();
        targets.map(|target| (target["name"].as_str().unwrap().to_owned(), target.clone())).collect()
    };
    let recorded = || {
        let root = stage.world.root.to_str().unwrap();
        let ran = run::to_end(&mut stage.world.treeswap(&["status", "--json", root])).expect_ok("status");
        by_name(&root_status(&ran.stdout)["targets"])
    };
    let before = recorded();
    assert_eq!(before.keys().map(String::as_str).collect::<Vec<_>>(), MAPS);
    let revision = &status["current"]["revision"];
    assert!(before.values().all(|target| target["revision"] == *revision && target["error"].is_null()));
    assert_eq!(before["beta"]["outcome"], "repaired");
    assert_eq!(before["alpha"]["outcome"], "replaced");
    let again = with_root(&stage, &contexts, &["--period=200ms"]);
    let known = eventually(60, "the first delivery", || {
        let status = again.status()?;
        (status["applied"]["targets"]["unchanged"] == MAPS.len()).then(|| by_name(&status["targets"]))
    });
    assert!(MAPS.iter().all(|name| known[*name]["at"] == before[*name]["at"]), "{known:?}");
    assert_eq!(recorded(), before);
}

#[test]
fn with_a_root_targets_that_fail_do_not_delay_publications() {
    let stage = Stage::new();
    let (address, _held) = crate::common::refusing();
    let mut gone = Kubernetes::shared().access("writer");
    gone.server = format!("https://{address}");
    let contexts = [("gone", gone), ("test", stage.proxy.access("writer"))];
    let pace = ["--period=200ms", "--min-interval=0s", "--max-backoff=1s"];
    let mut running = with_root(&stage, &contexts, &pace);
    eventually(120, "the reachable cluster is served", || (stage.values() == every("1")).then_some(()));
    stage.proxy.plan("PUT", "configmaps/", 0, 1_000_000, Fault::Answer(503, Some("0"), ""));
    for value in ["2", "3", "4", "5"] {
        stage.commit(value);
        eventually(60, "it is published", || {
            (published(&stage, "alpha").as_deref() == Some(value)).then_some(())
        });
    }
    assert_eq!(stage.values(), every("1"));
    eventually(120, "the failing targets are named, and the sync of the root does not fail", || {
        let status = running.status()?;
        let open = status["applied"]["open"].to_string();
        let named =
            open.contains("test/") && open.contains("gone/") && status["last_delivery"]["error"].is_string();
        (named && status["ready"] == true && status["consecutive_failures"] == 0).then_some(())
    });
    let page = running.ask("GET /status.html").unwrap();
    assert!(page.contains("<h3>Delivery of ConfigMaps</h3>"), "{page}");
    assert!(page.contains("<h2>Targets</h2>"), "{page}");
    stage.proxy.heal();
    eventually(120, "the newest one is applied", || (stage.values() == every("5")).then_some(()));
    // The process is still retrying the unreachable cluster.
    let ended = running.process.terminate();
    assert!(ended.success() && running.process.log().contains("drained"), "{ended}");
}

#[test]
fn with_a_root_a_refused_revision_is_reported_and_the_next_one_is_published_and_applied() {
    let stage = Stage::new();
    let contexts = [("test", stage.proxy.access("writer"))];
    let running = with_root(&stage, &contexts, &["--period=200ms", "--min-interval=0s", "--max-backoff=1s"]);
    eventually(60, "the first revision is applied", || (stage.values() == every("1")).then_some(()));
    // A file name that is not a valid key of a ConfigMap; the root takes any name.
    let files =
        |value: &str| MAPS.into_iter().fold(Files::new(), |all, map| all.file(format!("{map}/value"), value));
    stage.world.remote.commit(&files("2").file("alpha/not a key", ""));
    eventually(60, "the ConfigMaps are refused by name", || {
        let status = running.status()?;
        let error = status["last_delivery"]["error"].as_str()?.to_owned();
        (error.contains("not a key") && status["consecutive_failures"] == 0).then_some(())
    });
    assert_eq!(published(&stage, "alpha").as_deref(), Some("2"));
    assert_eq!(stage.values(), every("1"));
    // A link that leads out of the tree: the root refuses the revision, so it is not applied either.
    stage.world.remote.commit(&files("3").link("out", "/etc/passwd"));
    eventually(60, "the revision is refused", || {
        let status = running.status()?;
        (status["last_failure"]["error"].as_str()?.contains("out")).then_some(())
    });
    assert_eq!((published(&stage, "alpha").as_deref(), stage.values()), (Some("2"), every("1")));
    stage.commit("4");
    eventually(60, "the next one is published and applied", || (stage.values() == every("4")).then_some(()));
    assert_eq!(published(&stage, "alpha").as_deref(), Some("4"));
}

/// The server's Retry-After is an hour; the shutdown does not wait for it.
#[test]
fn with_a_root_sigterm_while_every_write_is_postponed_reports_the_targets_and_ends() {
    let stage = Stage::new();
    let contexts = [("test", stage.proxy.access("writer"))];
    let mut running = with_root(&stage, &contexts, &["--period=200ms", "--min-interval=0s"]);
    eventually(60, "the first revision is applied", || (stage.values() == every("1")).then_some(()));
    eventually(60, "reported", || (running.status()?["applied"]["targets"]["created"] == 3).then_some(()));
    stage.proxy.plan("PUT", "configmaps/", 0, 1_000_000, Fault::Answer(503, Some("3600"), ""));
    stage.commit("2");
    eventually(60, "every write was refused once", || {
        let was_refused = |map| stage.proxy.count("PUT", &format!("configmaps/{map}")) > 0;
        MAPS.into_iter().all(was_refused).then_some(())
    });
    let began = std::time::Instant::now();
    let status = running.process.terminate();
    let took = began.elapsed();
    assert!(took < crate::common::allowed(std::time::Duration::from_secs(10)), "{took:?}");
    let log = running.process.log();
    assert!(status.success(), "{status}\n{log}");
    // No target of the cluster succeeded, so they have one cause and one line.
    let [first, others @ ..] = &MAPS;
    let told = format!("test/{}/{first} (and {} more): failed: ", stage.namespace, others.len());
    assert_eq!(log.matches(&told).count(), 1, "{log}");
    assert_eq!(log.matches("failed: ").count(), 1, "{log}");
    assert_eq!(stage.values(), every("1"));
    assert_eq!(published(&stage, "alpha").as_deref(), Some("2"), "the root has the new revision");
}
