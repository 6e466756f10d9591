//! git-sync itself, where TREESWAP_TEST_GIT_SYNC names the program.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{World, run};

/// The program, if there is one.
pub fn program() -> Option<PathBuf> {
    std::env::var_os("TREESWAP_TEST_GIT_SYNC").map(PathBuf::from)
}

/// A `PATH` with a `git` that git-sync understands, in this directory: where git is older than 2.46, what it asks for in
/// newer words is translated.
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

/// git-sync with nothing of the caller's environment.
pub fn command(world: &World, program: &Path) -> Command {
    let path = path(&world.dir().join("bin"));
    let mut command = run::clean(program, &world.dir().join("home"));
    command.env_remove("GIT_CONFIG_GLOBAL").env("PATH", path).env("TMPDIR", world.dir());
    command.arg("--git-config=safe.directory:*");
    command
}
