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
