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

use std::path::PathBuf;
use std::time::Instant;

use shop::Shop;

type Scene = (&'static str, fn(&mut Shop));

const SCENES: [Scene; 14] = [
    (
        "an application starts after the first publication, and describe says what it waits for",
        scenes::start::waits,
    ),
    ("ten services share a node's directory, and a second writer is refused", scenes::shared::reads),
    ("a killed container, kubelet and node leave the consumer with complete sets", scenes::crash::survives),
    (
        "a file larger than the memory limit gets the sidecar killed, and the next revision heals it",
        scenes::crash::out_of_memory,
    ),
    ("a rolling update under load ends every sidecar with exit code 0", scenes::rollout::drains),
    (
        "Go, Python and shell programs load from a ConfigMap volume and from treeswap's",
        scenes::consumers::load,
    ),
    ("a volume in memory, of a group, read by another user", scenes::volumes::in_memory),
    ("a volume on the disk, of a group, read by another user", scenes::volumes::on_disk),
    (
        "a volume too small for a revision gets its Pod evicted, and the next one recovers",
        scenes::volumes::too_small,
    ),
    (
        "the applier's CronJob writes each revision once, through a power cut and beside another",
        scenes::cronjob::applies,
    ),
    ("the applier's CronJob ends what cannot go on, and lets go of what it missed", scenes::cronjob::ends),
    (
        "the applier uses every right that it is given, and names the one that is missing",
        scenes::rights::narrow,
    ),
    (
        "a reader of several ConfigMaps takes complete sets only, and without the marker mixed ones too",
        scenes::set::complete,
    ),
    (
        "commits become visible through treeswap, a ConfigMap volume and git-sync",
        scenes::latency::side_by_side,
    ),
];

/// These need git-sync's own program, which TREESWAP_TEST_GIT_SYNC names.
const WITH_GIT_SYNC: [Scene; 2] = [
    ("git-sync's image in a running Pod becomes treeswap's, and git-sync's again", scenes::migrate::pod),
    (
        "git-sync's image in a Deployment becomes treeswap's, and git-sync's again",
        scenes::migrate::deployment,
    ),
];

fn variable(name: &str) -> PathBuf {
    std::env::var_os(name).unwrap_or_else(|| panic!("${name} is not set: run tests/cluster/run")).into()
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    if words.iter().any(|word| word == "list") {
        SCENES.iter().chain(&WITH_GIT_SYNC).for_each(|(name, _)| println!("{name}"));
        return;
    }
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
    let git_sync = std::env::var_os("TREESWAP_TEST_GIT_SYNC").map(PathBuf::from);
    let chosen =
        |scenes: &'static [Scene]| scenes.iter().filter(|(name, _)| wanted(name)).collect::<Vec<_>>();
    let (mut scenes, mut left_out) = (chosen(&SCENES), chosen(&WITH_GIT_SYNC));
    if git_sync.is_some() {
        scenes.append(&mut left_out);
    }
    assert!(
        !scenes.is_empty(),
        "no scenario's name contains one of {words:?}, or TREESWAP_TEST_GIT_SYNC is not set"
    );

    let begun = Instant::now();
    let mut shop = Shop::open(
        &variable("TREESWAP_NODE_DIR"),
        &variable("TREESWAP_NODE_PROGRAMS"),
        &variable("TREESWAP_NODE_CONSUMERS"),
        &variable("TREESWAP_TEST_STATIC"),
        git_sync,
    );
    println!("the node is up after {:.1} s", begun.elapsed().as_secs_f64());
    for (name, play) in scenes {
        let begun = Instant::now();
        let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| play(&mut shop)));
        let seconds = begun.elapsed().as_secs_f64();
        match played {
            Ok(()) => println!("ok      {seconds:6.1} s  {name}"),
            Err(_) => {
                println!("FAILED  {seconds:6.1} s  {name}");
                explain(&shop);
                std::process::exit(1);
            }
        }
    }
    for (name, _) in left_out {
        println!("left out: TREESWAP_TEST_GIT_SYNC names no git-sync  {name}");
    }
    println!("everything held; {:.0} s with the node", begun.elapsed().as_secs_f64());
}

/// What a person would look at first.
fn explain(shop: &Shop) {
    for what in [
        &["get", "pods", "--all-namespaces", "--output=wide"][..],
        &["get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"],
    ] {
        eprintln!("{}", shop.kube.try_run(what).stdout);
    }
    for (namespace, pod, container) in shop.kube.containers() {
        let said = ["logs", "--namespace", &namespace, &pod, "--container", &container, "--tail=8"];
        eprintln!("--- {namespace} {pod} {container}\n{}", shop.kube.try_run(&said).stdout);
    }
    for log in ["kubelet.log", "containerd.log"] {
        eprintln!("--- {log}\n{}", machine::last_words(&shop.machine.dir.join(log)));
    }
}
