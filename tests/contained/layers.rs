//! A process that cannot enter Landlock although the kernel has it: it already has the maximum number of layers.
#![allow(unsafe_code)] // limits for a child have no safe form

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use landlock::{AccessFs, PathBeneath, PathFd, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _};

use crate::common::{Files, World, run};

/// The maximum number of layers (LANDLOCK_MAX_NUM_LAYERS).
const LAYERS: usize = 16;

/// The command, started with the maximum number of layers, which forbid nothing that it does.
fn below_all_layers(command: &mut Command) -> &mut Command {
    // Renaming between directories is forbidden by any layer that does not allow it.
    let rights = AccessFs::Refer | AccessFs::MakeBlock;
    let ruleset = Ruleset::default().handle_access(rights).unwrap().create().unwrap();
    let ruleset = ruleset.add_rule(PathBeneath::new(PathFd::new("/").unwrap(), rights)).unwrap();
    let ruleset = Option::<OwnedFd>::from(ruleset).expect("this kernel has Landlock");
    let stack = move || {
        unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        for _ in 0..LAYERS {
            if unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    unsafe { command.pre_exec(stack) }
}

pub(crate) fn what_the_kernel_has_and_cannot_be_entered_is_an_error() {
    for (how, goes_on, is_told_to) in [("auto", false, true), ("require", false, false), ("off", true, false)]
    {
        let world = World::new();
        world.remote.commit(&Files::new().file("a", "1"));
        let sandbox = format!("--sandbox={how}");
        let ran = run::to_end(below_all_layers(&mut world.sync(&[&sandbox, "--one-time"])));
        if goes_on {
            ran.expect_ok(&sandbox);
            continue;
        }
        let ran = ran.expect_failure(&sandbox);
        ran.names(&[&sandbox, "cannot enter Landlock", "the maximum number of Landlock layers"]);
        assert_eq!(ran.stderr.contains("hint: --sandbox=off"), is_told_to, "{}", ran.stderr);
        assert!(!ran.stderr.contains("volume"), "{}", ran.stderr);
    }
}
