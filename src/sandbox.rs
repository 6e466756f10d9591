//! What a process that reads what strangers sent can still do, should they get hold of it: the kernel refuses the rest.
//!
//! Landlock decides which files it reaches, seccomp which system calls it has. Both are for good, and for every thread
//! that is started afterwards, so that they are called for before any is.

#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), path = "sandbox/no_filter.rs")]
mod system_calls;

use std::io;
use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use serde::{Deserialize, Serialize};

/// The rights that are known here, of which the kernel takes those that it knows, too.
const KNOWN: ABI = ABI::V7;

/// How much of a sandbox there has to be (`--sandbox`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sandbox {
    /// What the kernel has.
    #[default]
    Auto,
    /// All of it, or nothing is begun.
    Require,
    /// None.
    Off,
}

/// Something that [`Sandbox::Require`] asks for is not there.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("--sandbox=require: this kernel has no {}", parts.join(" and no "))]
pub struct Missing {
    /// By their names.
    pub parts: Vec<&'static str>,
}

impl Missing {
    /// What an operator can do, a line each.
    pub fn hints(&self) -> Vec<String> {
        let about = |part: &&str| match *part {
            LANDLOCK => {
                "Landlock needs Linux 5.13, and `landlock` among the security modules (`lsm=` of the kernel)"
            }
            _ => {
                "seccomp needs CONFIG_SECCOMP_FILTER, and a processor that runs this program itself, not an emulator"
            }
        };
        let mut hints: Vec<String> = self.parts.iter().map(about).map(str::to_owned).collect();
        hints.push("--sandbox=auto goes on with what there is".to_owned());
        hints
    }
}

const LANDLOCK: &str = "Landlock";
const SECCOMP: &str = "seccomp";

/// What of it a process has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parts {
    /// Files are limited.
    pub landlock: bool,
    /// System calls are.
    pub seccomp: bool,
}

impl Parts {
    /// Those that are not there, by their names.
    pub fn missing(&self) -> Vec<&'static str> {
        let parts = [(LANDLOCK, self.landlock), (SECCOMP, self.seccomp)];
        parts.into_iter().filter(|(_, there)| !there).map(|(name, _)| name).collect()
    }
}

impl Sandbox {
    /// What a process gets that is limited so. Asks the kernel, and changes nothing.
    pub fn parts(self) -> Parts {
        let on = self != Self::Off;
        Parts { landlock: on && has_landlock(), seccomp: on && system_calls::can_be_filtered() }
    }

    /// Fails where something is required and not there.
    pub fn check(self) -> Result<Parts, Missing> {
        let parts = self.parts();
        let missing = parts.missing();
        if self == Self::Require && !missing.is_empty() { Err(Missing { parts: missing }) } else { Ok(parts) }
    }

    /// Closes what was inherited besides the standard streams. Called before this process opens anything. A kernel
    /// without the call (before 5.9) leaves it open: all that this program opens is closed when another one starts anyway.
    #[expect(unsafe_code, reason = "close_range(2) has no safe form")]
    pub fn close_inherited(self) {
        if self != Self::Off {
            // SAFETY: nothing in this process uses a descriptor yet but the standard streams, as the caller says.
            let _ = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) };
        }
    }

    /// Limits this process to these files and to itself. Called before it starts a thread.
    pub fn enter(self, files: &Files) -> io::Result<()> {
        if self == Self::Off {
            return Ok(());
        }
        // Each of the two takes the way to new privileges by executing first, as the kernel wants it.
        let limited = files.ruleset().and_then(RulesetCreated::restrict_self);
        let limited = limited.map(|status| status.ruleset != RulesetStatus::NotEnforced);
        let refused = system_calls::refuse();
        match (self, limited, refused) {
            (Self::Require, Err(error), _) => Err(io::Error::other(error)),
            (Self::Require, Ok(false), _) => Err(io::Error::other("this kernel has no Landlock")),
            (Self::Require, _, refused) => refused,
            _ => Ok(()),
        }
    }
}

/// The files that a process may use. What is named need not be there; then there is nothing to use.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// These files it may read; beneath those that are directories it may list and read all.
    pub read: Vec<PathBuf>,
    /// Beneath these it may also write, make, rename and remove files; no directories, links or devices.
    pub write: Vec<PathBuf>,
    /// Beneath these it may remove files.
    pub remove: Vec<PathBuf>,
}

impl Files {
    fn ruleset(&self) -> Result<RulesetCreated, RulesetError> {
        use AccessFs::{MakeReg, ReadDir, ReadFile, RemoveFile, Truncate, WriteFile};
        let ruleset = Ruleset::default()
            .handle_access(AccessFs::from_all(KNOWN))?
            .handle_access(AccessNet::from_all(KNOWN))?
            .scope(Scope::from_all(KNOWN))?
            .create()?;
        let read = ReadFile | ReadDir;
        let write = read | WriteFile | Truncate | MakeReg | RemoveFile;
        let all = [(&self.read, read), (&self.write, write), (&self.remove, RemoveFile.into())];
        all.into_iter().flat_map(|(paths, rights)| paths.iter().map(move |path| (path, rights))).try_fold(
            ruleset,
            |ruleset, (path, rights)| match PathFd::new(path) {
                Ok(place) => ruleset.add_rule(PathBeneath::new(place, rights)),
                Err(_) => Ok(ruleset),
            },
        )
    }
}

fn has_landlock() -> bool {
    let asked = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    asked.handle_access(AccessFs::from_all(ABI::V1)).and_then(Ruleset::create).is_ok()
}
