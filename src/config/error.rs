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
    /// What a person can do, a line each.
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::Password { hint, .. } | Self::Unsupported { hint, .. } => vec![(*hint).to_owned()],
            Self::Required { hint, .. } => vec![hint.clone()],
            Self::Remote { source, .. } => source.hints(),
            Self::Value { .. } | Self::HiddenValue { .. } | Self::Conflict { .. } | Self::Needs { .. } => {
                Vec::new()
            }
        }
    }
}
