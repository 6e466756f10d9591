//! git-sync's image and the one that takes its place.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use super::common::run;
use super::machine::Machine;

/// git-sync itself, in an image like its own.
pub const ORIGINAL: &str = "registry.example.com/platform/git-sync:4";
/// treeswap under git-sync's name, as `deploy/image` packs it.
pub const DROP_IN: &str = "registry.example.com/platform/treeswap-git-sync:0.1.0";

/// Brings the original in: this program, this machine's git, and git-sync's own user, variables and directories.
pub fn pack(machine: &Machine, program: &Path) {
    let root = tempfile::tempdir_in(&machine.dir).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/node/git-sync-image");
    run::to_end(Command::new(script).arg(program).arg(root.path())).expect_ok("tests/node/git-sync-image");
    let config = json!({
        "Entrypoint": ["/git-sync"], "User": "65533:65533", "WorkingDir": "/tmp",
        "Env": ["PATH=/usr/bin:/bin", "HOME=/tmp", "GITSYNC_ROOT=/git"],
    });
    machine.pack(ORIGINAL, root.path(), ".", config);
}
