//! Measures ConfigMaps: a plan alone; with `--cluster`, also a run that has nothing to do, and the cost of a commit for
//! a daemon.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::json;

use crate::kubernetes::{Kubernetes, kubeconfig};
use crate::subject::{OURS, Running, ticks, treeswap};
use crate::table::Table;
use crate::{Bench, directory};

/// The number of rules of a large Prow installation.
const RULES: usize = 129;

const MAPS: usize = 1_000;

/// The least number of files with which every rule matches some: ten organisations for each of the [`RULES`], sixty
/// files for each organisation.
const LEAST: usize = RULES * 10 * 60;

pub fn measure(bench: &Bench, table: &mut Table) {
    if !bench.wants("plan") {
        return;
    }
    if bench.options.files < LEAST {
        table.note(format!("plans: below {LEAST} files (--files) some rules have none"));
        return;
    }
    bench.repository.publish(0);
    let world = directory(&bench.options);
    let rules = world.path().join("rules.yaml");
    write(&rules, RULES, "default");
    let render = || {
        let mut command = program(bench, world.path(), "render", &rules);
        command
            .arg("--output")
            .arg(tempfile::TempDir::with_prefix_in("maps-", world.path()).expect("space").keep());
        timed(command)
    };
    render(); // fetches
    let (seconds, processor) = render();
    let row = format!("plan of {RULES} rules, a process");
    table.add(&row, "s", OURS, seconds);
    table.add(&format!("{row}: processor"), "s", OURS, processor);
    if bench.options.cluster {
        cluster(bench, table);
    } else {
        table.note("ConfigMaps on an API server: --cluster measures them");
    }
}

fn cluster(bench: &Bench, table: &mut Table) {
    let world = directory(&bench.options);
    let kubernetes = Kubernetes::shared();
    kubeconfig(&world.path().join("kubeconfig"), &[("default", kubernetes.access("writer"))]);
    let namespace = |count: usize, file: &Path| {
        let namespace = kubernetes.namespace("bench");
        let verbs = ["get", "list", "create", "update", "delete"];
        kubernetes.grant(
            &namespace,
            "writer",
            &json!([{ "apiGroups": [""], "resources": ["configmaps"], "verbs": verbs }]),
        );
        write(file, count, &namespace);
    };
    let many = world.path().join("many.yaml");
    let few = world.path().join("few.yaml");
    namespace(MAPS, &many);
    namespace(RULES, &few);
    let with_cluster = |command: &mut Command| {
        command.arg("--owner=bench").arg("--kubeconfig").arg(world.path().join("kubeconfig"));
    };
    let apply = || {
        let mut command = program(bench, world.path(), "apply", &many);
        with_cluster(&mut command);
        timed(command)
    };
    table.add(&format!("plan: {MAPS} ConfigMaps made"), "s", OURS, apply().0);
    let (seconds, processor) = apply();
    table.add(&format!("plan: {MAPS} ConfigMaps, nothing to do"), "s", OURS, seconds);
    table.add(&format!("plan: {MAPS} ConfigMaps, nothing to do: processor"), "s", OURS, processor);

    let mut command = program(bench, world.path(), "sync", &few);
    with_cluster(&mut command);
    command.args(["--period=1h", "--min-interval=0s", "--lease-duration=0s"]);
    let mut process = Running::spawn(command, world.path(), "no link".into(), OURS);
    process.settle();
    for number in 1..=bench.options.updates {
        let before = process.processor();
        bench.server.forget();
        bench.repository.publish(number);
        process.poll();
        process.settle();
        assert!(bench.server.hits().len() > 1, "commit {number} was not fetched");
        let spent = (process.processor() - before) * 1e3;
        table.add(&format!("plan of {RULES} rules after a commit, a daemon: processor"), "ms", OURS, spent);
    }
}

/// Returns a command that runs treeswap with a persistent mirror.
fn program(bench: &Bench, dir: &Path, command: &str, rules: &Path) -> Command {
    let mut program = Command::new(treeswap());
    program.args([command, "--ref=main", "--repo", &bench.url(), "--rules"]).arg(rules);
    program.arg("--mirror").arg(dir.join("mirror"));
    program
}

/// Runs the command, and returns its duration and its processor time in seconds.
fn timed(mut command: Command) -> (f64, f64) {
    let start = Instant::now();
    let out = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let mut child = out.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let processor = processor_at_the_end(&child);
    let status = child.wait().expect("it was started");
    assert!(status.success(), "{command:?}: {status}");
    (start.elapsed().as_secs_f64(), processor)
}

/// Waits for the end of the child without reaping it, and returns its whole processor time.
fn processor_at_the_end(child: &std::process::Child) -> f64 {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
    let pid = Pid::from_child(child);
    waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).expect("it was started");
    ticks(child.id(), 11..15)
}

/// Writes `count` rules with compressed maps, one for each organisation, or for each ten if there are fewer than a
/// thousand.
fn write(path: &Path, count: usize, namespace: &str) {
    let mut text = String::from("maps:\n");
    for rule in 0..count {
        let organisation = if count > 999 { format!("{rule:04}") } else { format!("{rule:03}*") };
        let _ = writeln!(
            text,
            "  'ci-operator/config/org-{organisation}/**/*.yaml': \
             {{name: map-{rule}, gzip: true, clusters: {{default: [{namespace}]}}}}"
        );
    }
    std::fs::write(path, text).expect("space");
}
