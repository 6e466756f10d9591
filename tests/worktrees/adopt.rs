//! Repositories that git-sync made, sound and broken.

use super::*;

/// Makes what git-sync makes: a repository with one commit fetched, and a worktree of it. Returns the commit.
fn git_sync(bench: &Bench, filter: &[&str]) -> Revision {
    let (root, remote) = (&bench.world.root, format!("file://{}", bench.world.remote.path.display()));
    let git = |args: &[&str]| bench.git(root, args);
    git(&["init", "-q", "-b", "git-sync"]);
    git(&["remote", "add", "origin", &remote]);
    git(&[&["fetch", "-q", "--depth=1"], filter, &[remote.as_str(), "main"]].concat());
    let tip = git(&["rev-parse", "FETCH_HEAD^{}"]).trim().to_owned();
    git(&["reset", "-q", "--soft", &tip, "--"]);
    let place = format!(".worktrees/{tip}");
    git(&["worktree", "add", "-q", "--force", "--detach", &place, &tip, "--no-checkout"]);
    let place = root.join(place);
    std::fs::write(place.join(".git"), format!("gitdir: ../../.git/worktrees/{tip}\n")).unwrap();
    bench.git(&place, &["reset", "-q", "--hard", &tip, "--"]);
    revision(&tip)
}

/// Puts what people and crashes leave into a repository.
fn litter(bench: &Bench, tip: Revision) -> [PathBuf; 3] {
    let dir = bench.git_dir();
    let worktree = dir.join("worktrees").join(tip.to_string());
    for lock in ["HEAD.lock", "index.lock", "shallow.lock", "packed-refs.lock", "refs/heads/git-sync.lock"] {
        std::fs::write(dir.join(lock), "").unwrap();
    }
    for lock in ["index.lock", "HEAD.lock"] {
        std::fs::write(worktree.join(lock), "").unwrap();
    }
    std::fs::write(dir.join("objects/pack/tmp_pack_x"), "PACK").unwrap();
    bench.git(&bench.world.root, &["config", "user.note", "stays"]);
    std::fs::create_dir_all(dir.join("hooks")).unwrap();
    std::fs::write(dir.join("hooks/post-commit"), "#!/bin/sh\n").unwrap();
    ["hooks/post-commit", "FETCH_HEAD", "logs/HEAD"].map(|name| dir.join(name))
}

fn assert_no_locks(bench: &Bench) {
    let mut locks = Vec::new();
    let mut dirs = vec![bench.git_dir().to_path_buf()];
    while let Some(dir) = dirs.pop() {
        // What was set aside is being deleted meanwhile, with everything in it.
        let entries = match std::fs::read_dir(&dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            entries => entries.unwrap(),
        };
        for path in entries.map(|entry| entry.unwrap().path()) {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if name.starts_with("broken-") {
                continue;
            }
            if name.ends_with(".lock") || name.starts_with("tmp_") {
                locks.push(path.clone());
            }
            if path.is_dir() && !path.is_symlink() {
                dirs.push(path);
            }
        }
    }
    assert!(locks.is_empty(), "{locks:?}");
}

#[test]
fn a_repository_of_git_sync_is_taken_over_as_it_is() {
    let bench = Bench::new();
    bench.world.remote.commit(&varied().file("older", "x"));
    bench.world.remote.commit(&varied());
    let tip = git_sync(&bench, &[]);
    bench.age();
    let theirs = litter(&bench, tip);
    let before = theirs.clone().map(|path| std::fs::read(path).unwrap());
    let mut mirror = bench.open();
    assert_no_locks(&bench);
    assert_eq!(theirs.map(|path| std::fs::read(path).unwrap()), before);
    assert_eq!(bench.git(&bench.world.root, &["config", "user.note"]).trim(), "stays");
    assert_eq!(mirror.objects().worktree_head(tip), Some(tip));
    assert!(mirror.objects().holds(tip));
    bench.assert_clean(tip);
    bench.assert_sane();
    // The next commit is fetched as a difference.
    bench.world.remote.commit(&varied().file("new", "x"));
    let new = bench.update(&mut mirror, &[tip]);
    assert!(mirror.complete_pack_bytes() < 1_500, "{} bytes", mirror.complete_pack_bytes());
    bench.assert_clean(new);
    bench.assert_clean(tip);
    bench.reap(&mut mirror, tip, &[new]);
    let gone = bench.try_git(&bench.world.root, &["cat-file", "-e", &format!("{tip}^{{tree}}")]);
    assert!(!gone.status.success(), "what git-sync's reflog names does not keep it");
    bench.assert_sane();
}

#[test]
fn a_broken_repository_is_fetched_afresh_and_keeps_what_is_not_objects() {
    for damage in ["lost", "empty", "torn"] {
        let bench = Bench::new();
        bench.world.remote.commit(&varied());
        let tip = git_sync(&bench, &[]);
        bench.git(&bench.world.root, &["repack", "-qad"]);
        let [hook, ..] = litter(&bench, tip);
        let objects = bench.git_dir().join("objects/pack");
        let pack = std::fs::read_dir(objects).unwrap().map(|entry| entry.unwrap().path());
        let pack = pack.into_iter().find(|path| path.extension().is_some_and(|e| e == "pack")).unwrap();
        let whole = std::fs::read(&pack).unwrap();
        std::fs::remove_file(&pack).unwrap();
        match damage {
            "lost" => {}
            "empty" => std::fs::write(&pack, "").unwrap(),
            _ => std::fs::write(&pack, &whole[..whole.len() / 2]).unwrap(),
        }
        let mut mirror = bench.open();
        assert_no_locks(&bench);
        assert!(bench.place(tip).join("dir1/sub/file1").exists(), "what is published stays");
        assert_eq!(mirror.objects().worktree_head(tip), Some(tip), "{damage}");
        assert_eq!(fetch(&mut mirror, &[tip]), tip);
        bench.assert_clean(tip);
        bench.world.remote.commit(&varied().file("new", "x"));
        let new = bench.update(&mut mirror, &[tip]);
        bench.assert_clean(new);
        bench.assert_sane();
        assert!(hook.exists());
        assert_eq!(bench.git(&bench.world.root, &["config", "user.note"]).trim(), "stays");
    }
}

#[test]
fn a_repository_of_git_sync_v3_is_taken_over() {
    let bench = Bench::new();
    let old = revision(&bench.world.remote.commit(&varied()));
    let (root, remote) = (&bench.world.root, format!("file://{}", bench.world.remote.path.display()));
    bench.git(root, &["clone", "-q", "--no-checkout", "-b", "main", &remote, "clone"]);
    std::fs::rename(root.join("clone/.git"), bench.git_dir()).unwrap();
    std::fs::remove_dir(root.join("clone")).unwrap();
    bench.git(root, &["worktree", "add", "-q", "--detach", &old.to_string(), &old.to_string()]);
    let mut mirror = bench.open();
    assert_eq!(bench.update(&mut mirror, &[]), old);
    bench.assert_clean(old);
    bench.world.remote.commit(&varied().file("new", "x"));
    let new = bench.update(&mut mirror, &[old]);
    std::fs::remove_dir_all(root.join(old.to_string())).unwrap();
    bench.reap(&mut mirror, old, &[new]);
    bench.assert_clean(new);
    assert_eq!(bench.git(root, &["worktree", "list"]).lines().count(), 2);
    bench.assert_sane();
}

#[test]
fn a_partial_clone_of_git_sync_opens() {
    let bench = Bench::new();
    bench.world.remote.commit(&varied());
    let tip = git_sync(&bench, &["--filter=blob:none"]);
    assert_eq!(bench.git(&bench.world.root, &["config", "core.repositoryformatversion"]).trim(), "1");
    let mut mirror = bench.open();
    assert_eq!(fetch(&mut mirror, &[tip]), tip);
    mirror.objects().payload(tip, &selection(None)).unwrap();
    bench.publish(&mirror.objects(), tip, None);
    mirror.housekeep(&[tip]).unwrap();
    bench.assert_clean(tip);
    bench.assert_sane();
}

#[test]
fn a_file_in_the_way_and_an_unreadable_configuration_are_named() {
    let bench = Bench::new();
    std::fs::write(bench.git_dir(), "gitdir: ../elsewhere\n").unwrap();
    let error = Mirror::open(bench.options.clone()).unwrap_err();
    assert!(error.to_string().contains(".git"), "{error}");
    std::fs::remove_file(bench.git_dir()).unwrap();
    bench.world.remote.commit(&varied());
    let tip = git_sync(&bench, &[]);
    std::fs::write(bench.git_dir().join("config"), "[core\n").unwrap();
    std::fs::write(bench.git_dir().join("HEAD"), "ref: refs/heads/nowhere\n").unwrap();
    let mut mirror = bench.open();
    assert_eq!(bench.update(&mut mirror, &[tip]), tip);
    bench.assert_clean(tip);
    bench.assert_sane();
    assert!(bench.git_dir().join("config.broken").exists());
}
