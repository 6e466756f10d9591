//! Tests that mount file systems. Each runs in its own mount namespace, which ends with the test.

use std::path::Path;
use std::process::Command;

use super::run;

const ROOT_UID: u32 = 0;

/// Runs the body in a new mount namespace: the test binary runs itself again, for the one test, through `unshare` (with
/// a user namespace unless the caller is root), so that the mounts end with the process. Its output is printed.
pub fn mounting(test: &str, body: impl FnOnce()) {
    const INSIDE: &str = "TREESWAP_TEST_INSIDE";
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let mut command = Command::new("unshare");
    if rustix::process::geteuid().as_raw() != ROOT_UID {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--mount", "--propagation=private"]).arg(std::env::current_exe().unwrap());
    let ran = run::within(
        std::time::Duration::from_secs(6 * 3600),
        command.args(["--exact", "--nocapture", test]).env(INSIDE, "1"),
    );
    print!("{}", ran.stdout);
    assert!(ran.ok() && ran.stdout.contains("1 passed"), "inside:\n{}\n{}", ran.stdout, ran.stderr);
}

/// Mounts a tmpfs with these options.
pub fn tmpfs(options: &str, at: &Path) {
    mount(&["-t", "tmpfs", "-o", options, "tmpfs"], at);
}

pub fn mount(args: &[&str], at: &Path) {
    run::to_end(Command::new("mount").args(args).arg(at)).expect_ok("mount");
}
