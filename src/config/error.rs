//! What is wrong with a configuration: one line that names the flag or variable, and what to do.

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value is none.
    #[error("invalid value {value:?} for {name}: {why}")]
    Value {
        /// The flag or variable.
        name: String,
        /// What was given.
        value: String,
        /// What is wrong with it.
        why: String,
    },
    /// A value that must not be repeated is wrong.
    #[error("invalid value for {name}: {why}")]
    HiddenValue {
        /// The flag or variable.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// The remote's form.
    #[error("invalid value for {name}")]
    Remote {
        /// The flag or variable.
        name: String,
        /// What is wrong with it.
        #[source]
        source: Box<crate::mirror::wire::Error>,
    },
    /// The file that lists several repositories.
    #[error("{name}={file}")]
    Sources {
        /// The flag or variable.
        name: String,
        /// What is wrong with it.
        file: crate::sources::BadFile,
    },
    /// A path that cannot be used: nothing is there, or it leads through what a commit can shape or what is ours.
    #[error("invalid value {value:?} for {name}: {why}")]
    Place {
        /// The flag or variable.
        name: String,
        /// What was given.
        value: String,
        /// What is wrong with it.
        why: String,
        /// Where it can be.
        hint: &'static str,
    },
    /// Two things were given where one belongs.
    #[error("{one} and {other} exclude each other")]
    Conflict {
        /// The one.
        one: String,
        /// The other.
        other: String,
    },
    /// One thing makes no sense without the other.
    #[error("{one} needs {other}")]
    Needs {
        /// What was given.
        one: String,
        /// What is missing.
        other: String,
    },
    /// What nothing works without.
    #[error("{name} is required")]
    Required {
        /// The flag.
        name: String,
        /// How else it can be given.
        hint: String,
    },
    /// A password was given where everybody can read it.
    #[error("{what} is refused: every process of the machine can read it")]
    Password {
        /// Where it was given.
        what: &'static str,
        /// What to do instead.
        hint: &'static str,
    },
    /// git-sync could do it once, or can, and we can't.
    #[error("{name} is not supported")]
    Unsupported {
        /// The flag and its value.
        name: String,
        /// What to do instead.
        hint: &'static str,
    },
}

impl Error {
    /// What an operator can do, a line each.
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::Password { hint, .. } | Self::Unsupported { hint, .. } | Self::Place { hint, .. } => {
                vec![(*hint).to_owned()]
            }
            Self::Required { hint, .. } => vec![hint.clone()],
            Self::Remote { source, .. } => source.hints(),
            Self::Sources { file, .. } => file.hints(),
            // The line itself says what is right.
            Self::Value { .. } | Self::HiddenValue { .. } | Self::Needs { .. } => Vec::new(),
            Self::Conflict { one, other } => vec![format!("leave out {one} or {other}")],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::human::{one_line, reads_well};

    #[test]
    fn every_variant_is_one_line_that_says_what_is_right_or_has_a_hint() {
        let text = || "--ref".to_owned();
        let source =
            || Box::new(crate::mirror::wire::Error::BadRemote { remote: text(), why: "it has no host" });
        let bad_file = crate::sources::BadFile {
            path: "sources.yaml".into(),
            why: "two sources are called \"a\"".into(),
        };
        let each = [
            Error::Value { name: text(), value: text(), why: "it is empty".into() },
            Error::HiddenValue { name: text(), why: "it is no JSON".into() },
            Error::Remote { name: text(), source: source() },
            Error::Sources { name: "--sources".into(), file: bad_file },
            Error::Place { name: text(), value: text(), why: "a commit could".into(), hint: "elsewhere" },
            Error::Conflict { one: text(), other: text() },
            Error::Needs { one: text(), other: text() },
            Error::Required { name: text(), hint: text() },
            Error::Password { what: "a password", hint: "use a file" },
            Error::Unsupported { name: text(), hint: "leave it out" },
        ];
        for error in each {
            match error {
                Error::Value { .. } | Error::HiddenValue { .. } => {
                    assert!(one_line(&error).contains(": it is "), "{error}");
                }
                Error::Needs { .. } => assert!(one_line(&error).contains(" needs "), "{error}"),
                Error::Remote { .. }
                | Error::Sources { .. }
                | Error::Place { .. }
                | Error::Conflict { .. }
                | Error::Required { .. }
                | Error::Password { .. }
                | Error::Unsupported { .. } => reads_well(&error, &error.hints()),
            }
        }
    }
}
