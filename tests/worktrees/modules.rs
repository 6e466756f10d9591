//! git works in the submodules of a generation, too.

use treeswap::mirror::{Access, Submodules};

use super::common::Remote;
use super::*;

fn with(files: Files, module: Option<(&str, &str)>) -> Files {
    let Some((url, commit)) = module else { return files };
    let text = format!("[submodule \"lib/it\"]\n\tpath = lib/sub\n\turl = {url}\n");
    let mut files = files.file(".gitmodules", text);
    files.0.insert("lib/sub".to_owned(), ("160000", commit.into()));
    files
}

/// Writes a repository's commit below a staged directory, as the store writes a submodule's files.
fn fill(remote: &Remote, commit: &str, staged: &Path) {
    for (path, node) in remote.snapshot(commit).0 {
        write(&staged.join(std::str::from_utf8(&path).unwrap()), &node);
    }
}

#[test]
fn git_works_in_submodules_at_every_level_and_what_is_gone_is_removed() {
    let mut bench = Bench::new();
    bench.options.modules = Access { submodules: Submodules::Recursive, local: true, ..Access::default() };
    let sub = Remote::create(&bench.world.dir().join("sub"));
    let deep = Remote::create(&bench.world.dir().join("deep"));
    let deep_at = deep.commit(&Files::new().file("d", "deep"));
    let mut held = Vec::new();
    let mut mirror = bench.open();
    let mut commits = Vec::new();
    for text in ["one", "two", "three"] {
        let at = sub.commit(&with(Files::new().file("s", text), Some(("../deep", &deep_at))));
        bench.world.remote.commit(&with(Files::new().file("top", text), Some(("../sub", &at))));
        let revision = fetch(&mut mirror, &held);
        // As the store stages it: the files of all levels, then the worktrees.
        let staged = bench.world.dir().join("staged");
        for (remote, commit, path) in [
            (&bench.world.remote, revision.to_string(), ""),
            (&sub, at.clone(), "lib/sub"),
            (&deep, deep_at.clone(), "lib/sub/lib/sub"),
        ] {
            fill(remote, &commit, &staged.join(path));
        }
        std::fs::write(staged.join(".git"), format!("gitdir: ../../.git/worktrees/{revision}\n")).unwrap();
        let place = bench.place(revision);
        mirror.objects().add_worktree(revision, &selection(None), &staged, &place).unwrap();
        std::fs::rename(&staged, &place).unwrap();
        held.insert(0, revision);
        commits.push(at);
        mirror.housekeep(&held).unwrap();
        bench.assert_sane();
        for (revision, commit) in held.iter().rev().zip(&commits) {
            bench.assert_clean(*revision);
            let inner = bench.place(*revision).join("lib/sub");
            assert_eq!(bench.git(&inner, &["rev-parse", "HEAD"]).trim(), commit);
            assert_eq!(bench.git(&inner, &["rev-list", "HEAD"]).lines().count(), 1, "depth 1");
            assert_eq!(bench.git(&inner, &["status", "--porcelain"]), "");
            assert_eq!(bench.git(&inner.join("lib/sub"), &["rev-parse", "HEAD"]).trim(), deep_at);
            bench.git(&inner, &["fsck", "--no-progress"]);
        }
    }
    // Two of the three are gone: so are the worktrees of their submodules.
    for gone in held.split_off(1) {
        bench.reap(&mut mirror, gone, &held);
    }
    let modules = bench.git_dir().join("modules/lib%2fit");
    let left: Vec<_> = std::fs::read_dir(modules.join("worktrees"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(left, commits[2..]);
    // And without the submodule, its repository.
    bench.world.remote.commit(&Files::new().file("top", "alone"));
    let last = bench.update(&mut mirror, &held);
    assert!(modules.exists());
    let gone = held.remove(0);
    bench.reap(&mut mirror, gone, &[last]);
    assert!(!modules.exists());
    bench.assert_sane();
}

#[test]
fn a_submodule_that_goes_back_has_its_history_as_deep_as_asked() {
    let mut bench = at_depth(Depth::Commits(2));
    bench.options.modules = Access { submodules: Submodules::Recursive, local: true, ..Access::default() };
    let sub = Remote::create(&bench.world.dir().join("sub"));
    let commit = |n: u8| {
        let at = sub.commit(&Files::new().file("s", n.to_string()));
        (bench.world.remote.commit(&with(Files::new(), Some(("../sub", &at)))), at)
    };
    let [_, (older, of_older), _] = [1, 2, 3].map(commit);
    let mut mirror = bench.open();
    let newest = fetch(&mut mirror, &[]);
    bench.world.remote.reset(&older);
    assert_eq!(fetch(&mut mirror, &[newest]), revision(&older));
    let module = bench.git_dir().join("modules/lib%2fit");
    assert_eq!(bench.git(&module, &["rev-list", "--count", &of_older]).trim(), "2");
}

/// Somebody may have committed in one of them. A mirror of our own can be fetched again.
#[test]
fn submodules_of_a_generation_whose_tree_cannot_be_read_stay_until_it_is_gone() {
    for worktrees in [true, false] {
        let mut bench = Bench::new();
        bench.options.worktrees = worktrees;
        bench.options.modules =
            Access { submodules: Submodules::Recursive, local: true, ..Access::default() };
        let sub = Remote::create(&bench.world.dir().join("sub"));
        let at = sub.commit(&Files::new().file("s", "x"));
        bench.world.remote.commit(&with(Files::new(), Some(("../sub", &at))));
        let mut mirror = bench.open();
        let old = fetch(&mut mirror, &[]);
        let module = bench.git_dir().join("modules/lib%2fit");
        assert!(module.exists());
        for file in std::fs::read_dir(bench.git_dir().join("objects/pack")).unwrap() {
            std::fs::remove_file(file.unwrap().path()).unwrap();
        }
        bench.world.remote.commit(&Files::new().file("top", "alone"));
        let new = fetch(&mut mirror, &[old]);
        assert_eq!(module.exists(), worktrees);
        mirror.housekeep(&[new, old]).unwrap();
        assert_eq!(module.exists(), worktrees);
        mirror.housekeep(&[new]).unwrap();
        assert!(!module.exists());
    }
}

#[test]
fn a_damaged_submodule_is_fetched_again_and_its_worktrees_stay() {
    let mut bench = Bench::new();
    bench.options.modules = Access { submodules: Submodules::Recursive, local: true, ..Access::default() };
    let sub = Remote::create(&bench.world.dir().join("sub"));
    let at = sub.commit(&Files::new().file("f", super::common::noise(5, 300_000)));
    let revision = revision(&bench.world.remote.commit(&with(Files::new(), Some(("../sub", &at)))));
    let mut mirror = bench.open();
    fetch(&mut mirror, &[]);
    let module = bench.git_dir().join("modules/lib%2fit");
    let worktree = module.join("worktrees").join(&at);
    std::fs::create_dir_all(&worktree).unwrap();
    let read = |mirror: &Mirror| {
        let objects = mirror.objects();
        let payload = objects.payload(revision, &selection(None)).unwrap();
        let blobs = objects.blobs();
        let mut reader = blobs.reader().unwrap();
        payload.entries.iter().try_for_each(|entry| reader.read(&entry.id, &mut |_| Ok(())))
    };
    read(&mirror).unwrap();
    for is_open in [true, false] {
        // In the middle of the file's content: commit, tree and all headers stay readable.
        for entry in std::fs::read_dir(module.join("objects/pack")).unwrap() {
            let pack = entry.unwrap().path();
            if pack.extension().is_some_and(|suffix| suffix == "pack") {
                let mut bytes = std::fs::read(&pack).unwrap();
                bytes[150_000..151_000].fill(0xaa);
                std::fs::remove_file(&pack).unwrap();
                std::fs::write(&pack, bytes).unwrap();
            }
        }
        if !is_open {
            drop(mirror);
            mirror = bench.open();
        }
        read(&mirror).unwrap_err();
        assert_eq!(fetch(&mut mirror, &[revision]), revision);
        read(&mirror).unwrap();
        assert!(worktree.is_dir(), "generations refer to it");
    }
}
