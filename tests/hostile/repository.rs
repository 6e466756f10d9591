//! A repository on this machine whose owner wants more than to be read.

use super::common::run;
use super::{PathBuf, Yard};

/// A git as it was before 2.45.1 (2.39.4): asked for an object that the repository lacks, it fetches that from where the
/// repository's configuration says, by the command that stands there.
fn old_git(yard: &Yard) -> PathBuf {
    let mut which = run::clean("sh", yard.dir.path());
    let git = run::to_end(which.args(["-c", "command -v git"])).expect_ok("git is looked for").stdout;
    let bin = yard.dir.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let script = format!("#!/bin/sh\nexport GIT_NO_LAZY_FETCH=0\nexec {} \"$@\"\n", git.trim_end());
    run::executable(&bin.join("git"), &script);
    bin
}

#[test]
fn what_a_local_repositorys_configuration_names_is_never_run() {
    let yard = Yard::new();
    let bin = old_git(&yard);
    let ran = yard.dir.path().join("ran");
    let blob = yard.remote.git(&["rev-parse", "main:honest"]);
    let object = yard.remote.path.join("objects").join(&blob[..2]).join(&blob[2..]);
    std::fs::remove_file(&object).expect("git fast-import leaves few objects loose");
    let command = format!(": > {}; exit 1; :", ran.display());
    for (key, value) in [
        ("remote.origin.promisor", "true"),
        ("remote.origin.url", yard.remote.path.to_str().unwrap()),
        ("remote.origin.uploadpack", &command),
    ] {
        yard.remote.git(&["config", key, value]);
    }

    // Whoever clones it with that git runs the command: else this test would show nothing.
    let mut clone = run::clean(bin.join("git"), yard.dir.path());
    clone.args(["clone", "--quiet", "--bare", "--no-local"]).arg(&yard.remote.path);
    let cloned = run::to_end(clone.arg(yard.dir.path().join("clone")));
    assert!(!cloned.ok() && ran.exists(), "this git does not do what it is to stand for: {}", cloned.stderr);
    std::fs::remove_file(&ran).unwrap();

    for path in [bin, PathBuf::from("/nowhere")] {
        yard.sync(&yard.place(), Some(&path), &[]).expect_failure("the object is nowhere");
        assert!(!ran.exists(), "with programs in {}", path.display());
    }
}
