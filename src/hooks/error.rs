//! Errors of hooks, with hints for the operator.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use rustix::io::Errno;

use super::Kind;
use crate::revision::Revision;

/// A hook failed for a revision.
#[derive(Debug, thiserror::Error)]
#[error("{} failed for {}", kind.label(), revision.short())]
pub struct Error {
    /// The hook.
    pub kind: Kind,
    /// The revision.
    pub revision: Revision,
    /// The cause.
    #[source]
    pub why: Failure,
}

/// Why a hook failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The program could not be started.
    #[error("cannot run {} in {}", program.display(), dir.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The generation's directory, in which it was to run.
        dir: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The program ended with another exit status than 0.
    #[error("{} ended with {status}{}", program.display(), with_output(output))]
    Ended {
        /// The program.
        program: PathBuf,
        /// The exit status.
        status: ExitStatus,
        /// The end of its output.
        output: String,
    },
    /// The program took too long and was killed.
    #[error("{} was killed after {after:?}{}", program.display(), with_output(output))]
    Timeout {
        /// The program.
        program: PathBuf,
        /// Its timeout.
        after: Duration,
        /// The end of its output.
        output: String,
    },
    /// The receiver did not respond in time.
    #[error("no response from {url} within {after:?}")]
    NoResponse {
        /// The receiver's URL, redacted.
        url: String,
        /// The timeout.
        after: Duration,
    },
    /// There was no connection, or it broke before the response.
    #[error("cannot send to {url}: {why}")]
    Send {
        /// The receiver's URL, redacted.
        url: String,
        /// The cause.
        why: String,
    },
    /// The receiver answered with another status than the one that counts as success.
    #[error("{url} answered {status}, not {wanted}")]
    Status {
        /// The receiver's URL, redacted.
        url: String,
        /// The HTTP status.
        status: u16,
        /// The status that counts as success.
        wanted: u16,
    },
    /// The hook was stopped, or not begun, because the process shuts down.
    #[error("it was cut short, or not begun, because treeswap is shutting down")]
    ShutDown,
    /// A system call failed: no pipe could be made, or the process not be waited for.
    #[error("cannot {act}")]
    System {
        /// What was tried.
        act: &'static str,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

/// Returns true if a program that is named by its path exists.
fn exists(program: &Path, dir: &Path) -> bool {
    program.components().count() > 1 && dir.join(program).exists()
}

/// Returns true if what is named by its path as a program is a directory.
fn is_directory(program: &Path, dir: &Path) -> bool {
    program.components().count() > 1 && dir.join(program).is_dir()
}

fn with_output(output: &str) -> String {
    if output.is_empty() { String::new() } else { format!(": {output}") }
}

impl Error {
    /// What an operator can do, a line each.
    pub fn hints(&self) -> Vec<String> {
        let name = self.kind.label();
        let hint = match &self.why {
            Failure::Start { program, dir, source }
                if source.kind() == std::io::ErrorKind::NotFound && exists(program, dir) =>
            {
                format!(
                    "the file exists, but not what runs it: the interpreter in a script's first line (or that line ends \
                     in CR), or a binary's dynamic loader; make --{name}-command a static binary, or add that to the image"
                )
            }
            Failure::Start { source, .. } if source.kind() == std::io::ErrorKind::NotFound => format!(
                "--{name}-command is one program, without arguments and without a shell; a path with a slash is relative to \
                 the generation"
            ),
            Failure::Start { program, dir, .. } if is_directory(program, dir) => {
                "it is a directory: name a program in it".to_owned()
            }
            Failure::Start { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
                "it must be executable for the user treeswap runs as, on a file system without noexec"
                    .to_owned()
            }
            Failure::Start { source, .. } if Errno::from_io_error(source) == Some(Errno::NOEXEC) => {
                "a script needs its interpreter in its first line, as in #!/bin/sh; a binary must be for this processor"
                    .to_owned()
            }
            Failure::Start { .. } => format!("--{name}-command names a program that can be run here"),
            Failure::Timeout { .. } if self.kind == Kind::PrePublish => {
                format!("raise --{name}-timeout, and with a gate --sync-timeout, if it may take that long")
            }
            Failure::Timeout { .. } | Failure::NoResponse { .. } => {
                format!("raise --{name}-timeout if it may take that long")
            }
            Failure::Status { status: 404, .. } => {
                format!("check the path in --{name}-url, and --{name}-method")
            }
            Failure::Status { .. } => {
                format!("--{name}-success-status sets the status that counts as success; 0 accepts any")
            }
            Failure::Ended { output, .. } => {
                let printed = if output.is_empty() {
                    "the program printed nothing"
                } else {
                    "the text after the exit status is what the program printed"
                };
                format!(
                    "{printed}; to see it fail, check out that revision and run the program there, as this user"
                )
            }
            Failure::Send { .. } => {
                format!("check --{name}-url, and that what listens there can be reached from here")
            }
            Failure::ShutDown if self.kind == Kind::PrePublish => {
                "the next publication runs it; for what is already published it does not run again".to_owned()
            }
            Failure::ShutDown => "nothing to do: the next start runs it for what is current then".to_owned(),
            Failure::System { .. } => {
                "the system is short of processes, memory or descriptors: raise the container's limits"
                    .to_owned()
            }
        };
        vec![hint]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variant_is_one_line_and_says_what_to_do() {
        let program = || PathBuf::from("/hook");
        let started = |kind: std::io::ErrorKind| Failure::Start {
            program: program(),
            dir: "/g".into(),
            source: kind.into(),
        };
        let status: ExitStatus = std::os::unix::process::ExitStatusExt::from_raw(0x100);
        let after = Duration::from_secs(30);
        let url = || "http://127.0.0.1/".to_owned();
        let each = [
            started(std::io::ErrorKind::NotFound),
            started(std::io::ErrorKind::PermissionDenied),
            started(std::io::ErrorKind::Other),
            Failure::Ended { program: program(), status, output: "no".into() },
            Failure::Ended { program: program(), status, output: String::new() },
            Failure::Timeout { program: program(), after, output: String::new() },
            Failure::NoResponse { url: url(), after },
            Failure::Send { url: url(), why: "connection refused".into() },
            Failure::Status { url: url(), status: 500, wanted: 200 },
            Failure::Status { url: url(), status: 404, wanted: 200 },
            Failure::ShutDown,
            Failure::System { act: "make a pipe", source: std::io::ErrorKind::Other.into() },
        ];
        for why in each {
            match why {
                Failure::Start { .. }
                | Failure::Ended { .. }
                | Failure::Timeout { .. }
                | Failure::NoResponse { .. }
                | Failure::Send { .. }
                | Failure::Status { .. }
                | Failure::ShutDown
                | Failure::System { .. } => {}
            }
            let revision = Revision(crate::revision::ObjectId([0xab; 20]));
            let mut error = Error { kind: Kind::Exec, revision, why };
            crate::human::assert_message_style(&error, &error.hints());
            error.kind = Kind::PrePublish;
            crate::human::assert_message_style(&error, &error.hints());
        }
    }

    #[test]
    fn only_a_program_that_may_be_a_gate_is_said_to_need_a_longer_attempt() {
        for (kind, names_attempt) in [(Kind::Exec, false), (Kind::PrePublish, true)] {
            let after = Duration::from_secs(30);
            let why = Failure::Timeout { program: "/hook".into(), after, output: String::new() };
            let error = Error { kind, revision: Revision(crate::revision::ObjectId([1; 20])), why };
            assert_eq!(error.hints().concat().contains("--sync-timeout"), names_attempt, "{kind:?}");
        }
    }

    #[test]
    fn only_a_hook_that_runs_after_publications_runs_at_the_next_start_in_any_case() {
        for (kind, at_start) in [(Kind::Exec, true), (Kind::Web, true), (Kind::PrePublish, false)] {
            let revision = Revision(crate::revision::ObjectId([1; 20]));
            let error = Error { kind, revision, why: Failure::ShutDown };
            crate::human::assert_message_style(&error, &error.hints());
            assert_eq!(error.hints().concat().contains("the next start"), at_start, "{kind:?}");
        }
    }

    #[test]
    fn a_program_that_printed_nothing_is_not_quoted() {
        let failed = |output: &str| {
            let status: ExitStatus = std::os::unix::process::ExitStatusExt::from_raw(0x300);
            let why = Failure::Ended { program: "/gate".into(), status, output: output.into() };
            let revision = Revision(crate::revision::ObjectId([1; 20]));
            let error = Error { kind: Kind::PrePublish, revision, why };
            (crate::human::one_line(&error), error.hints().concat())
        };
        let (line, hint) = failed("");
        assert!(line.ends_with("/gate ended with exit status: 3"), "{line}");
        assert!(hint.starts_with("the program printed nothing; "), "{hint}");
        let (line, hint) = failed("no such key");
        assert!(line.ends_with(" exit status: 3: no such key"), "{line}");
        assert!(hint.starts_with("the text after the exit status "), "{hint}");
    }

    #[test]
    fn a_script_without_a_first_line_is_told_what_it_needs() {
        let why = Failure::Start { program: "/hook".into(), dir: "/g".into(), source: Errno::NOEXEC.into() };
        let error = Error { kind: Kind::Exec, revision: Revision(crate::revision::ObjectId([1; 20])), why };
        assert!(error.hints().concat().contains("#!/bin/sh"), "{:?}", error.hints());
    }

    #[test]
    fn a_script_without_its_interpreter_is_not_said_to_be_missing() {
        let dir = tempfile::tempdir().unwrap();
        fs_err::write(dir.path().join("reload"), "#!/bin/nosh\n").unwrap();
        let hints = |program: &str| {
            let source = std::io::ErrorKind::NotFound.into();
            let why = Failure::Start { program: program.into(), dir: dir.path().to_owned(), source };
            let error =
                Error { kind: Kind::Exec, revision: Revision(crate::revision::ObjectId([1; 20])), why };
            error.hints().join(" ")
        };
        for there in ["./reload", dir.path().join("reload").to_str().unwrap()] {
            assert!(hints(there).contains("interpreter"), "{there}");
        }
        for absent in ["./other", "reload"] {
            assert!(hints(absent).contains("without arguments"), "{absent}");
        }
    }

    #[test]
    fn a_directory_is_not_told_to_be_executable() {
        let dir = tempfile::tempdir().unwrap();
        fs_err::create_dir(dir.path().join("hooks")).unwrap();
        let source = std::io::ErrorKind::PermissionDenied.into();
        let why = Failure::Start { program: "./hooks".into(), dir: dir.path().to_owned(), source };
        let error = Error { kind: Kind::Exec, revision: Revision(crate::revision::ObjectId([1; 20])), why };
        assert_eq!(error.hints(), ["it is a directory: name a program in it"]);
    }
}
