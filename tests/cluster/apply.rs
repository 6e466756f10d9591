//! `treeswap apply` while the API server, the network or the remote fails: what is written, what is said, the exit
//! code, and that the next run brings everything right.
//!
//! `cargo test --test cluster apply -- --nocapture` prints the table.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::common::run::Background;
use crate::common::{Files, Ran, World, eventually, run};
use crate::kubernetes::{Access, Audited, Kubernetes, kubeconfig};
use crate::proxy::{Fault, Proxy};

/// Three maps of one key each in a namespace of their own, behind a proxy, to be applied with the rights of
/// `deploy/apply/rbac.yaml` and no others.
pub struct Stage {
    pub world: World,
    pub proxy: Proxy,
    pub namespace: String,
}

pub const MAPS: [&str; 3] = ["alpha", "beta", "gamma"];

impl Stage {
    pub fn new() -> Self {
        Self::with(&crate::rights::shipped())
    }

    /// With other rights.
    pub fn with(rules: &Value) -> Self {
        let kubernetes = Kubernetes::shared();
        let namespace = kubernetes.namespace("apply");
        kubernetes.grant(&namespace, "writer", rules);
        let stage = Self { world: World::new(), proxy: Proxy::start(kubernetes), namespace };
        stage.commit("1");
        stage
    }

    /// Every map's value becomes this.
    pub fn commit(&self, value: &str) {
        let file = |files: Files, map: &str| files.file(format!("{map}/value"), value);
        self.world.remote.commit(&MAPS.into_iter().fold(Files::new(), file));
    }

    pub fn rules(&self, clusters: &[&str]) -> PathBuf {
        let targets: BTreeMap<_, _> = clusters.iter().map(|cluster| (cluster, [&self.namespace])).collect();
        let map = |name: &str| (format!("{name}/*"), json!({ "name": name, "clusters": targets }));
        let maps: serde_json::Map<String, Value> = MAPS.into_iter().map(map).collect();
        let path = self.world.dir().join("plugins.yaml");
        std::fs::write(&path, json!({ "config_updater": { "maps": maps } }).to_string()).unwrap();
        path
    }

    pub fn command(&self, contexts: &[(&str, Access)], more: &[&str]) -> std::process::Command {
        let names: Vec<&str> = contexts.iter().map(|(name, _)| *name).collect();
        let mut command =
            self.world.treeswap(&["apply", "--ref=main", "--owner=test", "--output=lines", "--repo"]);
        command.arg(&self.world.remote.path);
        command.arg("--rules").arg(self.rules(&names));
        command.arg("--kubeconfig").arg(kubeconfig(&self.world.dir().join("kubeconfig"), contexts));
        command.args(more);
        command
    }

    /// One run through the proxy.
    pub fn apply(&self, more: &[&str]) -> Ran {
        run::to_end(&mut self.command(&[("test", self.proxy.access("writer"))], more))
    }

    /// The value of each map that is there.
    pub fn values(&self) -> BTreeMap<String, String> {
        let all = Kubernetes::shared().configmaps(&self.namespace).into_iter();
        let value = |object: &Value| object["data"]["value"].as_str().unwrap_or("none").to_owned();
        all.filter(|(name, _)| MAPS.contains(&name.as_str())).map(|(name, map)| (name, value(&map))).collect()
    }

    #[track_caller]
    pub fn assert_all(&self, value: &str) {
        let wanted = MAPS.map(|name| (name.to_owned(), value.to_owned()));
        assert_eq!(self.values(), BTreeMap::from(wanted));
    }

    /// What the rights' holder asked of the server so far.
    pub fn requests(&self) -> Vec<Audited> {
        let all = Kubernetes::shared().requests(&self.namespace).into_iter();
        all.filter(|request| request.user == "writer").collect()
    }

    /// Effective writes of each of the three so far.
    pub fn writes(&self) -> Vec<usize> {
        let writes = Kubernetes::shared().writes(&self.namespace);
        MAPS.iter().map(|name| writes.get(*name).copied().unwrap_or(0)).collect()
    }
}

/// One row of the table.
#[track_caller]
fn row(fault: &str, ran: &Ran, code: i32, words: &[&str]) {
    let said = format!("{}{}", ran.stdout, ran.stderr);
    let first = said.lines().find(|line| words.first().is_some_and(|word| line.contains(word))).unwrap_or("");
    println!("| {fault} | exit {} | {first} |", ran.status.code().unwrap_or(-1));
    assert_eq!(ran.status.code(), Some(code), "{fault}:\n{said}");
    for word in words {
        assert!(said.contains(word), "{fault}: `{word}` is not in\n{said}");
    }
}

#[test]
fn what_passes_by_itself_is_got_over_within_the_run() {
    let etcd = r#"{"kind":"Status","status":"Failure","message":"etcdserver: leader changed","code":500}"#;
    let faults: [(&str, Fault); 7] = [
        ("429 with Retry-After", Fault::Answer(429, Some("1"), "")),
        ("503 without", Fault::Answer(503, None, "")),
        ("500 before the effect", Fault::Answer(500, None, etcd)),
        ("500 after the effect", Fault::AnswerAfter(500, None, etcd)),
        ("cut before the effect", Fault::CutBefore),
        ("cut after the effect", Fault::CutAfter),
        ("half an answer", Fault::CutAnswer),
    ];
    let stage = Stage::new();
    row("first run", &stage.apply(&[]), 0, &["3 created"]);
    for (number, (name, fault)) in faults.into_iter().enumerate() {
        let value = format!("new {number}");
        stage.commit(&value);
        let before = stage.writes();
        stage.proxy.next("PUT", "configmaps/beta", fault.clone());
        row(&format!("{name}, of a write"), &stage.apply(&[]), 0, &["revision "]);
        stage.assert_all(&value);
        let each: Vec<usize> =
            stage.writes().iter().zip(before).map(|(after, before)| after - before).collect();
        assert_eq!(each, [1, 1, 1], "{name}: one effective write each");
        stage.proxy.next("GET", "limit=", fault);
        row(&format!("{name}, of a read"), &stage.apply(&[]), 0, &["revision "]);
    }
    assert!(stage.writes().iter().all(|&count| count == 8), "{:?}", stage.writes());
}

#[test]
fn a_deadline_before_and_after_the_effect_is_settled_by_reading() {
    let stage = Stage::new();
    row("first run", &stage.apply(&[]), 0, &["3 created"]);
    for (name, fault) in
        [("silence before the effect", Fault::HoldBefore), ("silence after the effect", Fault::HoldAfter)]
    {
        stage.commit(name);
        stage.proxy.next("PUT", "configmaps/beta", fault);
        row(name, &stage.apply(&["--request-timeout=6s"]), 0, &["revision "]);
        stage.proxy.release(); // what was given up arrives late, and changes nothing
        stage.assert_all(name);
    }
    assert_eq!(stage.writes(), [3, 3, 3]);
}

#[test]
fn a_server_that_stays_busy_is_named_and_the_next_run_goes_on() {
    let stage = Stage::new();
    row("first run", &stage.apply(&[]), 0, &["3 created"]);
    stage.commit("2");
    stage.proxy.plan("PUT", "configmaps/beta", 0, 1_000, Fault::Answer(503, Some("0"), ""));
    row("503 for ever, of one map", &stage.apply(&[]), 3, &["beta", "busy", "alpha: replaced"]);
    assert_eq!(stage.values()["beta"], "1");
    assert_eq!((&*stage.values()["alpha"], &*stage.values()["gamma"]), ("2", "2"));
    stage.proxy.heal();
    row("the next run", &stage.apply(&[]), 0, &["1 replaced"]);
    stage.assert_all("2");
    assert_eq!(stage.writes(), [2, 2, 2]);
}

#[test]
fn a_server_that_dies_in_the_middle_is_waited_for() {
    // One of its own, without the proxy: the connections are those of the real server.
    let kubernetes = Kubernetes::start(&[]);
    let stage = Stage::new();
    kubernetes.must("POST", "/api/v1/namespaces", Some(&json!({ "metadata": { "name": stage.namespace } })));
    let proxy = Proxy::start(&kubernetes);
    proxy.next("POST", "configmaps?", Fault::HoldAfter);
    let mut command = stage.command(&[("test", proxy.access("admin"))], &["--request-timeout=20s"]);
    let mut process = Background::start(&mut command, &stage.world.dir().join("apply.log"));
    eventually(120, "a write took effect", || {
        proxy.seen().iter().any(|seen| seen.method == "POST" && seen.status == Some(201)).then_some(())
    });
    kubernetes.kill();
    proxy.release();
    kubernetes.resume();
    eventually(300, "it ends", || (!process.is_running()).then_some(()));
    let code = process.terminate().code();
    // It may give up before the server is back; then it says so, and nothing is half done.
    assert!(matches!(code, Some(0 | 1 | 3)), "{code:?}\n{}", process.log());
    println!("| restart of the server in the middle | exit {} | |", code.unwrap_or(-1));
    let again = run::to_end(&mut stage.command(&[("test", kubernetes.access("admin"))], &[]));
    row("the next run", &again, 0, &["revision "]);
    for name in MAPS {
        assert_eq!(kubernetes.configmap(&stage.namespace, name)["data"]["value"], "1", "{name}");
    }
    let created = kubernetes.requests(&stage.namespace).into_iter();
    let created = created.filter(|request| request.verb == "create" && request.is_write());
    let created = created.filter(|request| request.resource == "configmaps").count();
    assert!(created <= MAPS.len() + 2, "each once, the marker and the ledger with them: {created}");
}

#[test]
fn an_immutable_map_is_named_and_the_others_are_written() {
    let stage = Stage::new();
    row("first run", &stage.apply(&[]), 0, &["3 created"]);
    let kubernetes = Kubernetes::shared();
    let mut map = kubernetes.configmap(&stage.namespace, "beta");
    map["immutable"] = json!(true);
    kubernetes.put(&stage.namespace, "beta", map);
    stage.commit("2");
    row("an immutable map", &stage.apply(&[]), 3, &["beta", "immutable", "alpha: replaced"]);
    assert_eq!((&*stage.values()["alpha"], &*stage.values()["beta"]), ("2", "1"));
    let ran = stage.apply(&["--recreate-immutable"]);
    row("the same, without the right to delete", &ran, 3, &["beta", "delete configmaps"]);
    let delete = json!([{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["delete"] }]);
    kubernetes.grant_more(&stage.namespace, "writer", &delete);
    row("the same, with it", &stage.apply(&["--recreate-immutable"]), 0, &["beta"]);
    stage.assert_all("2");
}

#[test]
fn a_namespace_that_terminates_or_is_absent_is_named() {
    let stage = Stage::new();
    let kubernetes = Kubernetes::shared();
    row("first run", &stage.apply(&[]), 0, &["3 created"]);
    kubernetes.must("DELETE", &format!("/api/v1/namespaces/{}/configmaps/beta", stage.namespace), None);
    kubernetes.must("DELETE", &format!("/api/v1/namespaces/{}", stage.namespace), None);
    eventually(60, "the server refuses new objects", || {
        let object = json!({ "metadata": { "name": "probe" } });
        let path = format!("/api/v1/namespaces/{}/configmaps?dryRun=All", stage.namespace);
        (kubernetes.ask("POST", &path, Some(&object)).0 == 403).then_some(())
    });
    row("a namespace that terminates", &stage.apply(&[]), 3, &["beta", "is being deleted"]);

    let absent = Stage { namespace: "nowhere".to_owned(), ..Stage::new() };
    let ran = run::to_end(&mut absent.command(&[("test", absent.proxy.access("admin"))], &[]));
    row(
        "a namespace that is absent",
        &ran,
        3,
        &["alpha", "the namespace nowhere does not exist", "hint: create"],
    );
    let count = |text: &str| text.lines().filter(|line| line.contains("nowhere does not exist")).count();
    assert_eq!((count(&ran.stdout), count(&ran.stderr)), (MAPS.len(), 1), "{}", ran.stderr);
}

#[test]
fn one_of_three_clusters_is_down_and_the_others_are_served() {
    let stage = Stage::new();
    let kubernetes = Kubernetes::start(&[]);
    kubernetes.must("POST", "/api/v1/namespaces", Some(&json!({ "metadata": { "name": stage.namespace } })));
    let (address, _held) = crate::common::refusing();
    let mut down = kubernetes.access("admin");
    down.server = format!("https://{address}");
    let contexts = [
        ("build01", stage.proxy.access("writer")),
        ("build02", down),
        ("build03", kubernetes.access("admin")),
    ];
    let ran = run::to_end(&mut stage.command(&contexts, &[]));
    row("one of three clusters down", &ran, 3, &["cannot connect", "build02", "6 created"]);
    stage.assert_all("1");
    for name in MAPS {
        assert_eq!(kubernetes.configmap(&stage.namespace, name)["data"]["value"], "1", "{name}");
    }
    let contexts = [("build01", stage.proxy.access("writer")), ("build03", kubernetes.access("admin"))];
    row("the next run, two of them", &run::to_end(&mut stage.command(&contexts, &[])), 0, &["6 unchanged"]);
    assert_eq!(stage.writes(), [1, 1, 1]);

    // Nor does one whose server answers without measure take the process, or its memory, from the others.
    let token = json!({ "continue": "x".repeat(70_000) });
    let page = json!({ "kind": "PartialObjectMetadataList", "metadata": token, "items": [] });
    let padded = json!({ "kind": "PartialObjectMetadataList", "metadata": {}, "x": "x".repeat(16 << 20) });
    for (name, answer, said) in [
        ("a token without measure", page, "the response is not the expected list of metadata"),
        ("a page without measure", padded, "the answer is longer than 10 MiB"),
    ] {
        kubernetes.must("DELETE", &format!("/api/v1/namespaces/{}/configmaps/alpha", stage.namespace), None);
        stage.proxy.plan("GET", "limit=", 0, 1_000, Fault::Answer(200, None, answer.to_string().leak()));
        row(name, &run::to_end(&mut stage.command(&contexts, &[])), 3, &[said, "build01", "1 repaired"]);
        assert_eq!(kubernetes.configmap(&stage.namespace, "alpha")["data"]["value"], "1", "{name}");
        stage.proxy.heal();
    }
    assert_eq!(stage.writes(), [1, 1, 1]);
}

#[test]
fn a_missing_right_is_named_with_the_verb() {
    let stage = Stage::new();
    let ran = run::to_end(&mut stage.command(&[("test", stage.proxy.access("stranger"))], &[]));
    row(
        "no right at all",
        &ran,
        3,
        &["the right to get configmaps", "hint: grant stranger get, list, create and update on configmaps"],
    );
    assert!(stage.values().is_empty());
}

#[test]
fn three_thousand_long_keys_are_found_before_anything_is_written() {
    let stage = Stage::new();
    let value = "x".repeat(300);
    let file = |files: Files, key: usize| files.file(format!("beta/{key:0>250}"), value.as_str());
    let files = Files::new().file("alpha/value", "1");
    stage.world.remote.commit(&(0..3_000).fold(files, file));
    let ran = stage.apply(&[]);
    row("3,000 long keys", &ran, 1, &["beta", "the largest keys: 000000000000000000000000…", "hint: "]);
    let longest = ran.stderr.lines().map(str::len).max();
    assert!(longest.is_some_and(|longest| longest < 1_000), "lines a person can read: {}", ran.stderr);
    assert!(stage.values().is_empty(), "nothing was written");
    assert!(stage.proxy.seen().iter().all(|seen| seen.method == "GET"), "{:?}", stage.proxy.seen());
}

#[test]
fn what_the_server_finds_too_large_is_named_with_its_largest_keys() {
    let stage = Stage::new();
    row("first run", &stage.apply(&[]), 0, &["3 created"]);
    let file = |files: Files, map: &str| files.file(format!("{map}/value"), "2");
    let files = Files::new().file("beta/larger", "x".repeat(2_048));
    stage.world.remote.commit(&MAPS.into_iter().fold(files, file));
    let etcd =
        r#"{"kind":"Status","status":"Failure","message":"etcdserver: request is too large","code":500}"#;
    let refusals =
        [("500 of etcd", Fault::Answer(500, None, etcd)), ("413 of a proxy", Fault::Answer(413, None, ""))];
    for (name, fault) in refusals {
        stage.proxy.next("PUT", "configmaps/beta", fault);
        let before = stage.proxy.count("PUT", "configmaps/beta");
        let words = ["too large", "beta: failed", "the largest keys: larger 2.0 KiB, value 1 B", "gzip"];
        row(name, &stage.apply(&[]), 3, &words);
        assert_eq!(stage.proxy.count("PUT", "configmaps/beta") - before, 1, "it is not tried again");
    }
    row("the next run", &stage.apply(&[]), 0, &["1 replaced"]);
    stage.assert_all("2");
}

#[test]
fn a_remote_that_goes_away_in_the_middle_ends_the_writing() {
    let stage = Stage::new();
    // The last thing before the first write is a question to the remote; the first read is before that.
    stage.proxy.next("GET", "configmaps", Fault::HoldBefore);
    let mut command = stage.command(&[("test", stage.proxy.access("writer"))], &["--timeout=20s"]);
    let mut process = Background::start(&mut command, &stage.world.dir().join("apply.log"));
    eventually(120, "it reads", || (stage.proxy.count("GET", "configmaps") > 0).then_some(()));
    let away = stage.world.dir().join("away");
    std::fs::rename(&stage.world.remote.path, &away).unwrap();
    stage.proxy.release();
    eventually(300, "it ends", || (!process.is_running()).then_some(()));
    let code = process.terminate().code();
    println!("| remote down in mid-batch | exit {} | |", code.unwrap_or(-1));
    assert!(matches!(code, Some(1 | 3)), "{code:?}\n{}", process.log());
    assert!(stage.values().is_empty() && stage.proxy.count("POST", "configmaps") == 0, "nothing was written");
    std::fs::rename(&away, &stage.world.remote.path).unwrap();
    row("the next run", &stage.apply(&[]), 0, &["3 created"]);
    stage.assert_all("1");
}

#[test]
fn a_proxy_of_the_environment_is_not_for_a_server_on_a_loopback_address() {
    let stage = Stage::new();
    let direct = [("test", Kubernetes::shared().access("writer"))];
    let (address, _held) = crate::common::refusing();
    let mut command = stage.command(&direct, &[]);
    let ran = run::to_end(command.env("HTTPS_PROXY", format!("http://{address}")));
    row("a proxy that is down, and a server on a loopback address", &ran, 0, &["3 created"]);
}

#[test]
fn a_proxy_of_the_environment_is_asked_for_a_server_elsewhere() {
    let stage = Stage::new();
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    proxy.set_nonblocking(true).unwrap();
    let server = "https://kubernetes.invalid:6443".to_owned();
    let elsewhere = Access { server, ..Kubernetes::shared().access("writer") };
    let mut command = stage.command(&[("test", elsewhere)], &[]);
    command.env("HTTPS_PROXY", format!("http://{}", proxy.local_addr().unwrap()));
    let _process = Background::start(&mut command, &stage.world.dir().join("apply.log"));
    let (stream, _) = eventually(120, "the proxy is asked", || proxy.accept().ok());
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    assert!(line.starts_with("CONNECT kubernetes.invalid:6443 "), "{line}");
}
