//! Every request of a run, times everything that an API server, or what lies before it, does wrong: what is written is
//! the old revision's or the new one's, nothing is written twice, and the next run brings everything right. Of one
//! repository and of several sources. `TREESWAP_TESTS=full`: all of them, and pairs of faults; else a sample.

use std::collections::BTreeMap;

use crate::apply::{MAPS, Stage};
use crate::common::{Files, Ran, Random, full, run};
use crate::proxy::Fault;

fn status(code: u16, message: &str) -> &'static str {
    let text = serde_json::json!({ "kind": "Status", "status": "Failure", "message": message, "code": code });
    text.to_string().leak()
}

fn faults() -> Vec<(&'static str, Fault)> {
    let before = |code, wait: Option<&'static str>| Fault::Answer(code, wait, status(code, "so it is"));
    vec![
        ("cut before", Fault::CutBefore),
        ("cut after", Fault::CutAfter),
        ("half an answer", Fault::CutAnswer),
        ("401", before(401, None)),
        ("403", before(403, None)),
        ("404", before(404, None)),
        ("409", before(409, None)),
        ("410", before(410, None)),
        ("422", before(422, None)),
        ("429", before(429, Some("1"))),
        ("500", before(500, None)),
        ("503", before(503, Some("1"))),
        ("500 after", Fault::AnswerAfter(500, None, status(500, "etcdserver: request timed out"))),
        ("504 after", Fault::AnswerAfter(504, None, status(504, "too late"))),
        ("a page", Fault::Answer(200, None, "<html>please log in</html>")),
        ("a page after", Fault::AnswerAfter(200, None, "<html>please log in</html>")),
        ("nothing", Fault::Answer(200, None, "")),
        ("another kind", Fault::Answer(200, None, "{\"kind\":\"Table\",\"apiVersion\":\"meta.k8s.io/v1\"}")),
    ]
}

/// What is applied, from one repository or from two.
struct Applied {
    stage: Stage,
    of_sources: bool,
    revision: usize,
}

impl Applied {
    fn new(of_sources: bool) -> Self {
        Self { stage: Stage::new(), of_sources, revision: 1 }
    }

    fn run(&self) -> Ran {
        let access = [("test", self.stage.proxy.access("writer"))];
        if !self.of_sources {
            return run::to_end(&mut self.stage.command(&access, &["--timeout=60s"]));
        }
        let world = &self.stage.world;
        let file = world.dir().join("sources.yaml");
        let remote = world.remote.path.display();
        let text = format!(
            "version: 1\nsources:\n  - {{name: one, repo: {remote}, ref: main}}\n  - {{name: two, repo: {remote}, \
             ref: other, to: two}}\nend: true\n"
        );
        std::fs::write(&file, text).unwrap();
        let mut command = world.treeswap(&["apply", "--owner=test", "--output=lines", "--timeout=60s"]);
        command.arg("--sources").arg(&file).arg("--rules").arg(self.stage.rules(&["test"]));
        command
            .arg("--kubeconfig")
            .arg(crate::kubernetes::kubeconfig(&world.dir().join("kubeconfig"), &access));
        run::to_end(&mut command)
    }

    fn commit(&mut self) -> String {
        self.revision += 1;
        let value = self.revision.to_string();
        self.stage.commit(&value);
        if self.of_sources {
            self.stage
                .world
                .remote
                .commit_on("refs/heads/other", &Files::new().file("other", value.as_str()));
        }
        value
    }

    /// A revision whose run meets these faults, each at a request by its number.
    #[track_caller]
    fn meets(&mut self, faults: &[(usize, &(&'static str, Fault))]) {
        let what = || {
            let each = faults.iter().map(|(at, (name, _))| format!("{name} at request {at}"));
            each.collect::<Vec<_>>().join(", ")
        };
        let before = self.stage.values();
        let writes = self.stage.writes();
        let value = self.commit();
        for (at, (_, fault)) in faults {
            self.stage.proxy.plan("", "/", *at, 1, fault.clone());
        }
        let ran = self.run();
        let not_met = self.stage.proxy.heal();
        assert!(faults.len() > 1 || not_met == 0, "{}: no such request", what());
        if !ran.ok() {
            assert!(ran.status.code().is_some(), "{}: {}\n{}", what(), ran.status, ran.stderr);
            let says = ran.stderr.lines().any(|line| line.starts_with("treeswap: "));
            assert!(says, "{}: nothing is said\n{}{}", what(), ran.stdout, ran.stderr);
        }
        let old_or_new = |(name, now): (&String, &String)| *now == value || before.get(name) == Some(now);
        let now: BTreeMap<_, _> = self.stage.values();
        assert!(now.len() == MAPS.len() && now.iter().all(old_or_new), "{}: {now:?} of {before:?}", what());
        self.run().expect_ok(&format!("after {}", what()));
        self.stage.assert_all(&value);
        let each: Vec<_> =
            self.stage.writes().iter().zip(writes).map(|(after, before)| after - before).collect();
        assert_eq!(each, [1, 1, 1], "{}: effective writes\n{}{}", what(), ran.stdout, ran.stderr);
    }
}

fn meets_every_fault(of_sources: bool) {
    let mut applied = Applied::new(of_sources);
    applied.commit();
    applied.run().expect_ok("the first run");
    applied.commit();
    let before = applied.stage.proxy.seen().len();
    applied.run().expect_ok("the second run");
    let requests = applied.stage.proxy.seen().len() - before;
    assert!(requests >= 15, "{requests}");
    let faults = faults();
    let mut met = 0;
    for at in 0..requests {
        for (number, fault) in faults.iter().enumerate() {
            if full() || (at * 7 + number) % 29 == 0 {
                applied.meets(&[(at, fault)]);
                met += 1;
            }
        }
    }
    let (mut random, pairs) = (Random::new(14), if full() { 150 } else { 3 });
    for _ in 0..pairs {
        let mut one = || (random.below(requests), &faults[random.below(faults.len())]);
        let (first, second) = (one(), one());
        applied.meets(&[first, second]);
    }
    println!(
        "faults sources={of_sources} requests={requests} kinds={} met={met} pairs={pairs}",
        faults.len()
    );
}

#[test]
fn every_request_meets_every_fault() {
    meets_every_fault(false);
}

#[test]
fn every_request_meets_every_fault_where_there_are_several_sources() {
    meets_every_fault(true);
}
