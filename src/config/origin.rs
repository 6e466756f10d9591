//! Where a value came from, and what only variables hold.

use crate::secret::Secret;

/// Where a value came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The command line.
    Flag,
    /// A variable, by name.
    Variable(String),
    /// None was given.
    Default,
}

impl Origin {
    /// What to call a flag that was given like this: `--ref`, or `$GITSYNC_REF`.
    pub(super) fn called(&self, flag: &str) -> String {
        match self {
            Self::Variable(name) => format!("${name}"),
            Self::Flag | Self::Default => format!("--{flag}"),
        }
    }
}

/// Variables that are read although they belong to no flag.
pub(super) const PASSWORDS: [&str; 2] = ["TREESWAP_PASSWORD", "GITSYNC_PASSWORD"];

/// The same for a GitHub App's private key.
pub(super) const PRIVATE_KEYS: [&str; 2] =
    ["TREESWAP_GITHUB_APP_PRIVATE_KEY", "GITSYNC_GITHUB_APP_PRIVATE_KEY"];

/// Secrets that are given by variables only.
#[derive(Clone, Default)]
pub struct Hidden {
    /// A password.
    pub password: Option<Variable>,
    /// A GitHub App's private key.
    pub private_key: Option<Variable>,
    /// Settings of git that git itself reads from variables, in order; only git-sync's users expect that of us.
    pub git: Vec<(String, String)>,
    /// `GIT_SSH_COMMAND`, likewise.
    pub ssh_command: Option<String>,
}

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hidden")
            .field("password", &self.password)
            .field("private_key", &self.private_key)
            .finish()
    }
}

/// A variable with its value.
#[derive(Clone, Debug)]
pub struct Variable {
    /// Where it was given, towards people: `$TREESWAP_PASSWORD`.
    pub name: String,
    /// What it holds, not empty.
    pub value: Secret,
}

impl Hidden {
    /// Of the environment.
    pub fn read(value_of: impl Fn(&str) -> Option<String>) -> Self {
        let first = |names: [&'static str; 2]| {
            let found = names.into_iter().find_map(|name| Some((name, value_of(name)?)));
            let set = found.filter(|(_, value)| !value.is_empty());
            set.map(|(name, value)| Variable { name: format!("${name}"), value: Secret::new(value) })
        };
        Self { password: first(PASSWORDS), private_key: first(PRIVATE_KEYS), ..Self::default() }
    }
}
