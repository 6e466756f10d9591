//! What people do in a generation with git.

use super::*;

#[test]
fn git_takes_a_generation_for_an_unchanged_checkout() {
    let bench = Bench::new();
    let tip = revision(&bench.world.remote.commit(&varied()));
    let mut mirror = bench.open();
    assert_eq!(bench.update(&mut mirror, &[]), tip);
    bench.assert_clean(tip);
    bench.assert_sane();
    let place = bench.place(tip);
    assert_eq!(bench.git(&place, &["log", "--format=%H"]).trim(), tip.to_string());
    assert_eq!(bench.git(&place, &["rev-parse", "git-sync", "HEAD"]), format!("{tip}\n{tip}\n"));
    assert_eq!(bench.git(&place, &["remote", "get-url", "origin"]).trim(), bench.options.wire.remote);
    assert_eq!(bench.git(&place, &["ls-files"]).lines().count(), 60 + 9);
    bench.git(&place, &["archive", "--output", "../out.tar", "HEAD"]);
    bench.git(&bench.world.root, &["worktree", "list"]);
    assert_eq!(bench.git(&bench.world.root, &["worktree", "prune", "--dry-run", "--verbose"]), "");
}

#[test]
fn the_index_is_the_one_that_git_would_write() {
    let bench = Bench::new();
    let tip = revision(&bench.world.remote.commit(&varied()));
    let mut mirror = bench.open();
    let place = bench.publish(&mirror_at(&mut mirror).objects(), tip, None);
    let ours = std::fs::read(bench.git_dir().join("worktrees").join(tip.to_string()).join("index")).unwrap();
    // git's own, of the same files.
    std::fs::remove_file(bench.git_dir().join("worktrees").join(tip.to_string()).join("index")).unwrap();
    bench.git(&place, &["read-tree", "--reset", "HEAD"]);
    bench.git(&place, &["update-index", "--refresh"]);
    let theirs =
        std::fs::read(bench.git_dir().join("worktrees").join(tip.to_string()).join("index")).unwrap();
    assert!(ours == theirs, "{}\n\nis not\n\n{}", ours.escape_ascii(), theirs.escape_ascii());
}

fn mirror_at(mirror: &mut Mirror) -> &mut Mirror {
    fetch(mirror, &[]);
    mirror
}

#[test]
fn what_patterns_leave_out_is_not_missed() {
    let bench = Bench::new();
    let tip = revision(&bench.world.remote.commit(&varied()));
    let mut mirror = bench.open();
    fetch(&mut mirror, &[]);
    let place = bench.publish(&mirror.objects(), tip, Some("/dir3/\n"));
    bench.assert_clean(tip);
    assert!(place.join("dir3/sub/file3").exists() && !place.join("bin").exists());
    // As for git-sync, git reads the patterns in cone mode: the files at the top belong to them.
    assert!(place.join("a").exists());
    assert_eq!(bench.git(&place, &["sparse-checkout", "list"]), "dir3\n");
    let kept = bench.git(&place, &["ls-files", "-t"]);
    assert_eq!(kept.lines().filter(|line| line.starts_with("S ")).count(), 60 - 9 + 4);
    // Another worktree is not sparse for that.
    let next = revision(&bench.world.remote.commit(&varied().file("next", "x")));
    fetch(&mut mirror, &[tip]);
    bench.publish(&mirror.objects(), next, None);
    bench.assert_clean(next);
    bench.assert_sane();
}

#[test]
fn a_worktree_goes_with_its_generation_and_others_stay() {
    let bench = Bench::new();
    let old = revision(&bench.world.remote.commit(&varied()));
    let mut mirror = bench.open();
    bench.update(&mut mirror, &[]);
    let elsewhere = bench.world.dir().join("elsewhere");
    let name = elsewhere.to_str().unwrap();
    bench.git(&bench.world.root, &["worktree", "add", "-q", "-b", "mine", name, &old.to_string()]);
    let new = revision(&bench.world.remote.commit(&varied().file("next", "x")));
    bench.update(&mut mirror, &[old]);
    bench.assert_clean(old);
    bench.assert_clean(new);
    bench.reap(&mut mirror, old, &[new]);
    let worktrees = bench.git(&bench.world.root, &["worktree", "list", "--porcelain"]);
    assert_eq!(worktrees.matches("worktree ").count(), 3, "the root's, ours, theirs: {worktrees}");
    assert_eq!(bench.git(&elsewhere, &["status", "--porcelain"]), "", "its objects stay, too");
    assert_eq!(bench.git(&elsewhere, &["log", "--format=%H"]).trim(), old.to_string());
    bench.assert_sane();
}

#[test]
fn people_work_in_generations_while_updates_go_on() {
    let bench = Bench::new();
    let first = revision(&bench.world.remote.commit(&varied()));
    let mut mirror = bench.open();
    bench.update(&mut mirror, &[]);
    let place = bench.place(first);
    let before = common::Snapshot::read(&place).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    // git's own fsck lists objects before it reads reflogs: a commit in between is missing to it, in any repository.
    let committing = std::sync::Mutex::new(());
    std::thread::scope(|scope| {
        let stop = StopOnDrop(&stop);
        let work = scope.spawn(|| {
            let mut rounds = 0;
            while !stop.0.load(std::sync::atomic::Ordering::Relaxed) || rounds == 0 {
                rounds += 1;
                std::thread::sleep(std::time::Duration::from_millis(5)); // a lock that is taken again at once is never anybody else's
                let _busy = committing.lock().unwrap();
                assert_eq!(bench.git(&place, &["status", "--porcelain"]), "");
                bench.git(&place, &["commit", "-q", "--allow-empty", "-m", &format!("round {rounds}")]);
                let log = bench.git(&place, &["log", "--format=%s"]);
                assert_eq!(log.lines().count(), rounds + 1, "{log}");
                assert!(bench.git(&place, &["archive", "HEAD", "a"]).contains("file a"));
            }
            rounds
        });
        let mut held = vec![first];
        for n in 0..6 {
            bench.world.remote.commit(&varied().file("n", n.to_string()));
            let at = bench.update(&mut mirror, &held);
            assert!(!work.is_finished(), "git failed in the generation");
            held.insert(0, at);
            bench.assert_clean(at);
            if held.len() > 3 {
                let gone = held.remove(1);
                bench.reap(&mut mirror, gone, &held);
            }
            held.iter().filter(|at| **at != first).for_each(|at| bench.assert_clean(*at));
            let _quiet = committing.lock().unwrap();
            for at in &held {
                bench.git(&bench.place(*at), &["fsck", "--no-progress", "--connectivity-only"]);
            }
        }
        drop(stop);
        work.join().unwrap();
    });
    assert_eq!(
        before.differences(&common::Snapshot::read(&place).unwrap()),
        [""; 0],
        "its files are untouched"
    );
    bench.assert_sane();
    bench.git(&place, &["fsck", "--no-progress"]);
}

/// Ends the other thread on every way out, a failed assertion included.
struct StopOnDrop<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn a_volume_that_is_mounted_elsewhere_works_the_same() {
    let bench = Bench::new();
    let old = revision(&bench.world.remote.commit(&varied()));
    let mut mirror = bench.open();
    bench.update(&mut mirror, &[]);
    let new = revision(&bench.world.remote.commit(&varied().file("new", "x")));
    bench.update(&mut mirror, &[old]);
    drop(mirror);
    let mut bench = bench;
    let elsewhere = bench.world.dir().join("elsewhere");
    std::fs::rename(&bench.world.root, &elsewhere).unwrap();
    bench.world.root = elsewhere.clone();
    bench.options.dir = elsewhere.join(".git");
    bench.assert_clean(old);
    bench.assert_clean(new);
    bench.git(&bench.place(old), &["commit", "-q", "--allow-empty", "-m", "from elsewhere"]);
    // Who keeps house there knows its worktrees still.
    let mut mirror = bench.open();
    bench.reap(&mut mirror, old, &[new]);
    bench.assert_clean(new);
    assert!(!bench.git_dir().join("worktrees").join(old.to_string()).exists());
    bench.assert_sane();
}

#[test]
fn another_user_may_read_history() {
    let bench = Bench::new();
    let tip = revision(&bench.world.remote.commit(&varied()));
    let mut mirror = bench.open();
    bench.update(&mut mirror, &[]);
    let (uid, status) = (rustix::process::getuid(), ["status", "--porcelain"]);
    let mut git = run::clean("git", bench.world.dir());
    git.current_dir(bench.place(tip)).env("GIT_OPTIONAL_LOCKS", "0");
    let config = bench.world.dir().join("gitconfig");
    std::fs::write(&config, "[safe]\n\tdirectory = *\n").unwrap();
    git.env("GIT_CONFIG_GLOBAL", &config);
    if uid.is_root() {
        std::os::unix::process::CommandExt::uid(&mut git, 65_533);
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(bench.world.dir(), open).unwrap();
    }
    assert_eq!(run::to_end(git.args(status)).expect_ok("git status").stdout, "");
}

#[test]
fn a_worktree_that_is_made_again_replaces_what_was_left_in_it() {
    let bench = Bench::new();
    let tip = revision(&bench.world.remote.commit(&varied()));
    let mut mirror = bench.open();
    bench.update(&mut mirror, &[]);
    let admin = bench.git_dir().join("worktrees").join(tip.to_string());
    let place = bench.place(tip);
    bench.git(&place, &["switch", "-q", "-c", "mine"]);
    assert_eq!(mirror.objects().worktree_head(tip), Some(tip), "through a branch");
    bench.git(&place, &["commit", "-q", "--allow-empty", "-m", "x"]);
    assert_ne!(mirror.objects().worktree_head(tip), Some(tip));
    std::fs::write(admin.join("index.lock"), "").unwrap();
    bench.publish(&mirror.objects(), tip, None);
    assert_eq!(mirror.objects().worktree_head(tip), Some(tip));
    bench.assert_clean(tip);
    // Without one of its files it is none.
    std::fs::remove_file(admin.join("index")).unwrap();
    assert_eq!(mirror.objects().worktree_head(tip), None);
    bench.update(&mut mirror, &[tip]);
    bench.assert_clean(tip);
    // With a damaged one it is none either; git says `index file smaller than expected`, or finds no repository.
    let index = std::fs::read(admin.join("index")).unwrap();
    for (name, left) in [
        ("index", &index[..0]),
        ("index", &vec![0; index.len()]),
        ("index", &index[..index.len() / 2]),
        ("commondir", &[]),
        ("gitdir", &[0; 9]),
    ] {
        let whole = std::fs::read(admin.join(name)).unwrap();
        std::fs::write(admin.join(name), left).unwrap();
        assert_eq!(mirror.objects().worktree_head(tip), None, "{name} of {} bytes", left.len());
        std::fs::write(admin.join(name), whole).unwrap();
        assert_eq!(mirror.objects().worktree_head(tip), Some(tip), "{name} is whole");
    }
    // Whatever git writes is sound.
    for args in [
        &["update-index", "--index-version=4"][..],
        &["update-index", "--split-index"],
        &["read-tree", "--empty"],
    ] {
        bench.git(&place, args);
        assert_eq!(mirror.objects().worktree_head(tip), Some(tip), "{args:?}");
    }
    // What a crash left half made is swept.
    let half = bench.git_dir().join("tmp_worktree-1-1");
    std::fs::create_dir(&half).unwrap();
    std::fs::write(half.join("HEAD"), "").unwrap();
    drop(mirror);
    bench.open();
    assert!(!half.exists());
    bench.assert_sane();
}
