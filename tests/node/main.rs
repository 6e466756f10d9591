//! treeswap in Pods of a real Kubernetes node, deployed as `deploy/` ships it: started by `tests/cluster/run`, which
//! builds what this needs and gives it namespaces of its own.
#![allow(unreachable_pub)] // modules of one test program

mod applier;
#[path = "../common/mod.rs"]
mod common;
mod git_sync;
mod kube;
mod machine;
mod scenes;
mod shop;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use scenes::{
    beside, chart, consumers, crash, cronjob, latency, manifests, migrate, rights, rollout, set, shared,
    sources, start, volumes,
};
use shop::{Node, Programs, Shop};

/// With whom a scene is played.
#[derive(Clone, Copy, PartialEq)]
enum With {
    /// Others at the same time: nothing it does reaches further than its namespace and its repository.
    Others,
    /// The same, where there is git-sync's own program, which TREESWAP_TEST_GIT_SYNC names.
    GitSync,
    /// Nobody: the node's kubelet is killed, or its power cut.
    Nobody,
}
use With::{GitSync, Nobody, Others};

type Scene = (With, &'static str, fn(&Shop));

/// Those that take long begin first.
const SCENES: [Scene; 21] = [
    (
        Others,
        "commits become visible through treeswap, a ConfigMap volume and git-sync",
        latency::side_by_side,
    ),
    (
        Others,
        "the applier's CronJob ends what cannot go on, and lets go of what it missed",
        cronjob::job_limits_take_effect,
    ),
    (
        Others,
        "a volume too small for a revision gets its Pod evicted, and the next one recovers",
        volumes::too_small,
    ),
    (
        Others,
        "the applier uses every right that it is given, and names the one that is missing",
        rights::narrow,
    ),
    (
        Others,
        "a file larger than the memory limit gets the sidecar killed, and the next revision heals it",
        crash::out_of_memory,
    ),
    (
        Others,
        "a reader of several ConfigMaps takes complete sets only, and without the marker mixed ones too",
        set::complete,
    ),
    (
        Others,
        "two sources of one sidecar are one set and one event, two ConfigMaps and two git-syncs are not",
        beside::two_places,
    ),
    (
        Others,
        "two places under one directory are one event, and what would kill their reader is refused",
        sources::one_directory,
    ),
    (Others, "a rolling update under load ends every sidecar with exit code 0", rollout::drains),
    (
        GitSync,
        "git-sync's image in a Deployment becomes treeswap's, and git-sync's again",
        migrate::deployment,
    ),
    (GitSync, "git-sync's image in a running Pod becomes treeswap's, and git-sync's again", migrate::pod),
    (Others, "ten services share a node's directory, and a second writer is refused", shared::reads),
    (Others, "Helm installs the chart, and leaves nothing when it takes it away", chart::installed),
    (
        Others,
        "the API server takes every manifest, every example, and the chart with every value",
        manifests::accepted,
    ),
    (
        Others,
        "a volume in memory is full before the memory limit is: a revision is refused, and nobody killed",
        volumes::full_memory,
    ),
    (Others, "a volume on the disk, of a group, read by another user", volumes::on_disk),
    (Others, "a volume in memory, of a group, read by another user", volumes::in_memory),
    (
        Others,
        "Go, Python and shell programs load from a ConfigMap volume and from treeswap's",
        consumers::load,
    ),
    (
        Others,
        "an application starts after the first publication, and describe says what it waits for",
        start::waits,
    ),
    (Nobody, "a killed container, kubelet and node leave the consumer with complete sets", crash::survives),
    (
        Nobody,
        "the applier's CronJob writes each revision once, through a power cut and beside another",
        cronjob::writes_each_revision_once,
    ),
];

/// So many at the same time: they wait more than they compute.
const SIDE_BY_SIDE: usize = 4;

/// No scene takes a third as long on a machine with ten times as much to do as it can.
const LIMIT: Duration = Duration::from_secs(900);

fn variable(name: &str) -> PathBuf {
    std::env::var_os(name).unwrap_or_else(|| panic!("${name} is not set: run tests/cluster/run")).into()
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    if words.iter().any(|word| word == "list") {
        SCENES.iter().for_each(|(_, name, _)| println!("{name}"));
        return;
    }
    let git_sync = std::env::var_os("TREESWAP_TEST_GIT_SYNC").map(PathBuf::from);
    let wanted =
        |(_, name, _): &&Scene| words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
    let (scenes, left_out): (Vec<&Scene>, Vec<&Scene>) =
        SCENES.iter().filter(wanted).partition(|(with, ..)| *with != GitSync || git_sync.is_some());
    assert!(
        !scenes.is_empty(),
        "no scenario's name contains one of {words:?}, or TREESWAP_TEST_GIT_SYNC is not set"
    );

    let begun = Instant::now();
    let up = || {
        let programs = Programs {
            kubernetes: variable("TREESWAP_NODE_PROGRAMS"),
            helm: variable("TREESWAP_NODE_HELM"),
            consumers: variable("TREESWAP_NODE_CONSUMERS"),
            treeswap: variable("TREESWAP_TEST_STATIC"),
            git_sync,
        };
        Node::up(&variable("TREESWAP_NODE_DIR"), programs)
    };
    let node: Node = within_limit("the node comes up", up).unwrap_or_else(|why| {
        println!("FAILED: the node comes up: {why}");
        std::process::exit(1);
    });
    println!("the node is up after {:.1} s", begun.elapsed().as_secs_f64());
    let (alone, beside): (Vec<_>, Vec<_>) = scenes.into_iter().partition(|(with, ..)| *with == Nobody);
    play(&node, beside, SIDE_BY_SIDE);
    play(&node, alone, 1);
    for (_, name, _) in left_out {
        println!("left out: TREESWAP_TEST_GIT_SYNC names no git-sync  {name}");
    }
    println!("everything held; {:.0} s with the node", begun.elapsed().as_secs_f64());
    // Whatever still runs ends with us.
    std::process::exit(0);
}

/// Plays the scenes, so many at a time, and ends everything at the first that fails.
fn play(node: &Node, scenes: Vec<&'static Scene>, at_a_time: usize) {
    let next = Mutex::new(scenes.into_iter());
    let take = || next.lock().unwrap().next();
    std::thread::scope(|scope| {
        for _ in 0..at_a_time {
            scope.spawn(|| {
                while let Some((_, name, scene)) = take() {
                    let (begun, shop) = (Instant::now(), node.shop());
                    let ended = within_limit(name, move || {
                        scene(&shop);
                        shop.said()
                    });
                    let seconds = begun.elapsed().as_secs_f64();
                    match ended {
                        Ok(said) => print!("ok      {seconds:6.1} s  {name}\n{said}"),
                        Err(why) => {
                            let _last = next.lock().unwrap(); // one is enough
                            let failed = format!("FAILED  {seconds:6.1} s  {name}: {why}");
                            println!("{failed}\n");
                            explain(node);
                            // Again, since a log is cut off at its middle or at its end, and this must be in it.
                            println!("{failed}");
                            std::process::exit(1);
                        }
                    }
                }
            });
        }
    });
}

/// Does something in a thread of that name; or says why there is no result.
fn within_limit<T: Send + 'static>(
    name: &str,
    act: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (result, results) = channel();
    let act = move || {
        let _ = result.send(catch_unwind(AssertUnwindSafe(act)));
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(act).expect("a thread starts");
    match results.recv_timeout(LIMIT) {
        Ok(ended) => ended.map_err(|panic| match panic.downcast::<String>() {
            Ok(message) => *message,
            Err(panic) => {
                panic.downcast_ref::<&str>().map_or("the reason is above", |message| message).to_owned()
            }
        }),
        Err(_) => Err(format!("no end after {LIMIT:?}")),
    }
}

/// Shows the Pods, which is what a person would look at first, and writes everything else to a file: it is long.
fn explain(node: &Node) {
    let kube = node.machine.kube();
    println!("{}", kube.try_run(&["get", "pods", "--all-namespaces", "--output=wide"]).stdout);
    let mut more = kube.try_run(&["get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"]).stdout;
    for (namespace, pod, container) in kube.containers() {
        let said = ["logs", "--namespace", &namespace, &pod, "--container", &container, "--tail=30"];
        more += &format!("--- {namespace} {pod} {container}\n{}\n", kube.try_run(&said).stdout);
    }
    for log in ["kubelet.log", "containerd.log"] {
        more += &format!("--- {log}\n{}\n", machine::last_words(&node.machine.dir.join(log)));
    }
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("node-failed.txt");
    std::fs::write(&file, more).expect("the directory of tests can be written");
    println!("events and logs are in {}", file.display());
}
