//! Confines a process that parses untrusted data, so that code execution through a bug in the parser gains little.
//!
//! Landlock restricts which files the process can access, seccomp which system calls it can make. Both restrictions are
//! irrevocable, and a thread inherits them from the thread that starts it, so they are entered before any thread is
//! started. Refused accesses fail with `EACCES` or `EPERM`, a rename to another directory with `EXDEV`, and some calls
//! with `ENOSYS`, as on an older kernel.

#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), path = "sandbox/no_filter.rs")]
mod system_calls;

use std::io;
use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Errno, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use serde::{Deserialize, Serialize};

/// The newest Landlock ABI whose access rights are handled. The crate leaves out rights that the kernel does not know.
const KNOWN: ABI = ABI::V7;

/// Which parts of the sandbox have to be there (`--sandbox`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sandbox {
    /// The parts that the kernel has. If it has a part and entering it fails, that is an error: nothing is read with
    /// fewer restrictions than were logged at the start.
    #[default]
    Auto,
    /// All parts; a kernel without one of them is an error at the start.
    Require,
    /// No sandbox.
    Off,
}

/// The kernel does not have all parts that [`Sandbox::Require`] asks for.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("--sandbox=require: this kernel has no {}", parts.join(" and no "))]
pub struct Missing {
    /// The names of the missing parts.
    pub parts: Vec<&'static str>,
}

impl Missing {
    /// What an operator can do about it, one line per hint.
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

/// Which parts of the sandbox a process gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parts {
    /// File access is restricted by Landlock.
    pub landlock: bool,
    /// System calls are filtered by seccomp.
    pub seccomp: bool,
}

impl Parts {
    /// The names of the missing parts.
    pub fn missing(&self) -> Vec<&'static str> {
        let parts = [(LANDLOCK, self.landlock), (SECCOMP, self.seccomp)];
        parts.into_iter().filter(|(_, there)| !there).map(|(name, _)| name).collect()
    }
}

impl Sandbox {
    /// The parts that [`enter`](Self::enter) would restrict a process with. Probes the kernel and changes nothing.
    pub fn parts(self) -> Parts {
        let on = self != Self::Off;
        Parts { landlock: on && has_landlock(), seccomp: on && system_calls::is_supported() }
    }

    /// The same, or an error if all parts are required and the kernel does not have one of them.
    pub fn check(self) -> Result<Parts, Missing> {
        let parts = self.parts();
        let missing = parts.missing();
        if self == Self::Require && !missing.is_empty() { Err(Missing { parts: missing }) } else { Ok(parts) }
    }

    /// Closes all inherited descriptors except the standard streams. Must be called before this process opens anything.
    /// Linux before 5.9 has no close_range(2) and leaves them open; all descriptors that this program opens itself are
    /// close-on-exec anyway.
    #[expect(unsafe_code, reason = "close_range(2) has no safe form")]
    pub fn close_inherited(self) {
        if self != Self::Off {
            // SAFETY: nothing in this process uses a descriptor besides the standard streams yet, as promised by the
            // caller.
            let _ = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) };
        }
    }

    /// Restricts this process to these files and to itself, for good. Must be called before it starts a thread. Fails
    /// if the kernel has a part of the sandbox and does not let this process enter it ([`hints_about`] has hints for
    /// that error), and if a part is missing that is required.
    pub fn enter(self, files: &Files) -> io::Result<()> {
        let has = self.check().map_err(io::Error::other)?;
        // Both set `no_new_privs` first, without which the kernel refuses an unprivileged process.
        if has.landlock {
            files.enter().map_err(|why| self.not_entered(LANDLOCK, &why))?;
        }
        if has.seccomp {
            system_calls::install_filter().map_err(|why| self.not_entered(SECCOMP, &why.to_string()))?;
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

/// What an operator can do if a child process ended because [`Sandbox::enter`] failed, one line per hint. The child's
/// message is all that is known of the failure; `None` if `words` is not a message of that failure.
pub fn hints_about(words: &str) -> Option<Vec<String>> {
    let says = |asked: Sandbox| words.contains(&format!("--sandbox={}: {NOT_ENTERED} ", asked.name()));
    let environment =
        "check what starts treeswap: a container runtime or a wrapper may forbid Landlock or seccomp";
    let without = "--sandbox=off runs without it";
    match (says(Sandbox::Auto), says(Sandbox::Require)) {
        (true, _) => Some(vec![environment.to_owned(), without.to_owned()]),
        // An operator who requires the sandbox does not want to turn it off.
        (false, true) => Some(vec![environment.to_owned()]),
        (false, false) => None,
    }
}

/// The files that a restricted process may access. A path that does not exist grants nothing.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// Files that may be read, and directories beneath which everything may be listed and read.
    pub read: Vec<PathBuf>,
    /// Directories beneath which files may also be written, created and removed, and renamed or hard-linked (linkat)
    /// within their directory. Directories, symbolic links, devices, FIFOs and sockets cannot be created.
    pub write: Vec<PathBuf>,
    /// Directories beneath which files may be removed.
    pub remove: Vec<PathBuf>,
}

impl Files {
    /// Restricts this process to these files by Landlock. The error says why the kernel refused.
    fn enter(&self) -> Result<(), String> {
        match self.ruleset().and_then(RulesetCreated::restrict_self) {
            Ok(status) if status.ruleset == RulesetStatus::NotEnforced => {
                Err("it enforces nothing".to_owned())
            }
            Ok(_) => Ok(()),
            // strerror(3) of E2BIG is about a list of arguments; here it means the limit of 16 stacked rulesets.
            Err(error) if *Errno::from(&error) == libc::E2BIG => {
                Err("this process already has the maximum number of Landlock layers".to_owned())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// The ruleset that handles all known rights and grants those of the three lists.
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
                Ok(fd) => ruleset.add_rule(PathBeneath::new(fd, rights)),
                Err(_) => Ok(ruleset),
            },
        )
    }
}

/// Whether the kernel has Landlock, by the ABI version that it reports. No ruleset is created for this: a failure to
/// create one, such as for want of memory, must not count as a kernel without Landlock.
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
            let error =
                asked.not_entered(LANDLOCK, "this process already has the maximum number of Landlock layers");
            hints_about(&format!("set limits: {error}")).unwrap().join("\n")
        };
        assert!(hints(Sandbox::Auto).contains("--sandbox=off"));
        assert!(!hints(Sandbox::Require).contains("--sandbox=off"));
        assert_eq!(hints_about("index a pack in /--sandbox=auto: No space left on device"), None);
    }
}
