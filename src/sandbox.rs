//! What a process that reads what strangers sent can still do, should they get hold of it: the kernel refuses the rest.
//!
//! Landlock decides which files it reaches, seccomp which system calls it has. Both are for good, and for every thread
//! that is started afterwards, so that they are called for before any is.

#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), path = "sandbox/no_filter.rs")]
mod system_calls;

use std::io;
use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Errno, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use serde::{Deserialize, Serialize};

/// The rights that are known here, of which the kernel takes those that it knows, too.
const KNOWN: ABI = ABI::V7;

/// How much of a sandbox there has to be (`--sandbox`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sandbox {
    /// What the kernel has. What it has must work: nothing is read with less than was said at the start.
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

    /// Limits this process to these files and to itself. Called before it starts a thread. Fails where the kernel has a
    /// part and does not limit this process by it; [`hints_about`] knows what to do then.
    pub fn enter(self, files: &Files) -> io::Result<()> {
        let has = self.check().map_err(io::Error::other)?;
        // Each of the two takes the way to new privileges by executing first, as the kernel wants it.
        if has.landlock {
            files.enter().map_err(|why| self.not_entered(LANDLOCK, &why))?;
        }
        if has.seccomp {
            system_calls::refuse().map_err(|why| self.not_entered(SECCOMP, &why.to_string()))?;
        }
        Ok(())
    }

    fn not_entered(self, part: &str, why: &str) -> io::Error {
        let name = self.name();
        io::Error::other(format!("--sandbox={name}: {NOT_ENTERED} {part}, which this kernel has: {why}"))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Require => "require",
            Self::Off => "off",
        }
    }
}

const NOT_ENTERED: &str = "cannot enter";

/// What an operator can do, a line each, where a process ended because [`Sandbox::enter`] failed. Its words are all that
/// comes of it; `None` where `words` are about something else.
pub fn hints_about(words: &str) -> Option<Vec<String>> {
    let says = |asked: Sandbox| words.contains(&format!("--sandbox={}: {NOT_ENTERED} ", asked.name()));
    let around =
        "look at what starts treeswap: a container's runtime or a wrapper may limit how it limits itself";
    let without = "--sandbox=off does without";
    match (says(Sandbox::Auto), says(Sandbox::Require)) {
        (true, _) => Some(vec![around.to_owned(), without.to_owned()]),
        // Who requires it does not want to do without.
        (false, true) => Some(vec![around.to_owned()]),
        (false, false) => None,
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
    /// Limits this process to them, or says why not.
    fn enter(&self) -> Result<(), String> {
        match self.ruleset().and_then(RulesetCreated::restrict_self) {
            Ok(status) if status.ruleset == RulesetStatus::NotEnforced => {
                Err("it enforces nothing".to_owned())
            }
            Ok(_) => Ok(()),
            // The system's own words for it are of a list of arguments.
            Err(error) if *Errno::from(&error) == libc::E2BIG => {
                Err("this process has as many layers of it as there can be".to_owned())
            }
            Err(error) => Err(error.to_string()),
        }
    }

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

/// By the version that the kernel names. That a ruleset cannot be made, as for want of memory, does not count as none.
fn has_landlock() -> bool {
    let asked = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    asked.handle_access(AccessFs::from_all(ABI::V1)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_does_not_require_it_is_told_to_do_without() {
        let hints = |asked: Sandbox| {
            let error = asked.not_entered(LANDLOCK, "this process has as many layers of it as there can be");
            hints_about(&format!("set limits: {error}")).unwrap().join("\n")
        };
        assert!(hints(Sandbox::Auto).contains("--sandbox=off"));
        assert!(!hints(Sandbox::Require).contains("--sandbox=off"));
        assert_eq!(hints_about("index a pack in /--sandbox=auto: No space left on device"), None);
    }
}
