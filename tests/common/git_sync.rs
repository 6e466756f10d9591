//! Runs git-sync itself, if TREESWAP_TEST_GIT_SYNC names its binary.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{World, run};

/// The path of git-sync's binary, if it is set.
pub fn program() -> Option<PathBuf> {
    std::env::var_os("TREESWAP_TEST_GIT_SYNC").map(PathBuf::from)
}

/// Returns a `PATH` whose `git` works for git-sync: a wrapper in `dir` translates `git config list`, which git has only
/// since 2.46.
pub fn path(dir: &Path) -> OsString {
    if !dir.exists() {
        std::fs::create_dir(dir).unwrap();
        let real = run::to_end(run::clean("sh", dir).args(["-c", "command -v git"])).expect_ok("git");
        let text = format!(
            "#!/bin/sh\nif [ \"$1 $2\" = 'config list' ]; then shift 2; set -- config --list \"$@\"; fi\n\
             exec {} \"$@\"\n",
            real.stdout.trim_end()
        );
        run::executable(&dir.join("git"), &text);
    }
    let mut path = dir.as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap());
    path
}

/// Returns a command that runs git-sync in a clean environment.
pub fn command(world: &World, program: &Path) -> Command {
    let path = path(&world.dir().join("bin"));
    let mut command = run::clean(program, &world.dir().join("home"));
    command.env_remove("GIT_CONFIG_GLOBAL").env("PATH", path).env("TMPDIR", world.dir());
    command.arg("--git-config=safe.directory:*");
    command
}
