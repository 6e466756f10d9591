//! Scenarios with several publications in one process, of which the third recycles a retired generation.

use std::os::unix::fs::PermissionsExt;

use crate::common::{Files, Snapshot, World, run};
use crate::scenario::{ONCE, Stage, new, old};

/// Generations share files: the spare for the third commit is made of links.
pub fn sharing(world: &World) -> Stage {
    recycle(world, "--spare=link")
}

/// Generations share no files: the spare for the third commit is a copy.
pub fn copying(world: &World) -> Stage {
    recycle(world, "--spare=recycle")
}

/// Four commits, the first of which is published. A hook moves the ref to the next one when the spare is ready; for the
/// fourth commit the spare is a recycled generation.
fn recycle(world: &World, spare: &'static str) -> Stage {
    let files = [old(), new(), old().file("README", "third"), new().file("same/other", "fourth")];
    let commits: Vec<String> = files.iter().map(|files: &Files| world.remote.commit(files)).collect();
    world.remote.reset(&commits[0]);
    run::to_end(&mut world.sync(ONCE)).expect_ok("preparing");
    world.assert_published(&commits[0]);
    let snapshots = commits.iter().map(|commit| world.remote.snapshot(commit));
    let acceptable: Vec<(&str, Snapshot)> =
        ["first", "second", "third", "fourth"].into_iter().zip(snapshots).collect();
    let tip = acceptable[3].1.clone();
    let hook = hook(world, &commits);
    let run = [LOOP, &[spare, "--exechook-command", hook.leak()]].concat();
    Stage {
        run: run.leak(),
        idle: Some(std::time::Duration::from_millis(500)),
        says: Some("a retired generation, carried forward"),
        ref_moves: Some((commits[1].clone(), commits[3].clone())),
        ..Stage::of(acceptable, tip)
    }
}

const LOOP: &[&str] = &["--period=10ms", "--min-interval=0s", "--grace=0s", "--log-level=debug"];

/// Writes a hook that moves the ref from the revision just published to the next one. It does nothing if the ref is
/// elsewhere, so that a hook that outlives its run has no effect.
fn hook(world: &World, commits: &[String]) -> String {
    let [_, second, third, fourth] = commits else { unreachable!("there are four") };
    let path = world.dir().join("move-the-ref");
    let spare = world.root.join("..treeswap/spare");
    let (spare, remote) = (spare.display(), world.remote.path.display());
    let script = format!(
        "#!/bin/sh
case $TREESWAP_REVISION in
{second}) next={third} ;;
{third}) next={fourth} ;;
*) exit 0 ;;
esac
for try in $(seq 100); do
    if [ -e {spare}/ready ]; then break; fi
    sleep 0.02
done
git -C {remote} update-ref refs/heads/main $next $TREESWAP_REVISION || true
"
    );
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().expect("a name of ours").to_owned()
}
