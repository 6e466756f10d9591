//! The origin of a flag's value, and the secrets that only variables can hold.

use crate::secret::Secret;

/// Where a value came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The flag on the command line.
    Flag,
    /// The environment variable with this name.
    Variable(String),
    /// The default: neither flag nor variable was given.
    Default,
}

impl Origin {
    /// The name under which a flag with this origin was given, for messages: `--ref`, or `$GITSYNC_REF`.
    pub(super) fn display_name(&self, flag: &str) -> String {
        match self {
            Self::Variable(name) => format!("${name}"),
            Self::Flag | Self::Default => format!("--{flag}"),
        }
    }
}

/// The variables for a password, in order of precedence. No flag has them.
pub(super) const PASSWORDS: [&str; 2] = ["TREESWAP_PASSWORD", "GITSYNC_PASSWORD"];

/// The variables for a GitHub App's private key, in order of precedence. No flag has them.
pub(super) const PRIVATE_KEYS: [&str; 2] =
    ["TREESWAP_GITHUB_APP_PRIVATE_KEY", "GITSYNC_GITHUB_APP_PRIVATE_KEY"];

/// Values that are given by variables only, most of them secrets.
#[derive(Clone, Default)]
pub struct Hidden {
    /// The password that goes with `--username`.
    pub password: Option<Variable>,
    /// A GitHub App's private key.
    pub private_key: Option<Variable>,
    /// Settings of git, key and value, from the variables that git itself reads, in order. Only read as git-sync.
    pub git: Vec<(String, String)>,
    /// `GIT_SSH_COMMAND`. Only read as git-sync.
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

/// A secret and the name of the variable that holds it.
#[derive(Clone, Debug)]
pub struct Variable {
    /// The variable's name as in messages: `$TREESWAP_PASSWORD`.
    pub name: String,
    /// Its value, not empty.
    pub value: Secret,
}

impl Hidden {
    /// Reads the secrets with `value_of`, which looks an environment variable up. Empty variables count as not set.
    pub fn read(value_of: impl Fn(&str) -> Option<String>) -> Self {
        let first = |names: [&'static str; 2]| {
            let found = names.into_iter().find_map(|name| Some((name, value_of(name)?)));
            let set = found.filter(|(_, value)| !value.is_empty());
            set.map(|(name, value)| Variable { name: format!("${name}"), value: Secret::new(value) })
        };
        Self { password: first(PASSWORDS), private_key: first(PRIVATE_KEYS), ..Self::default() }
    }
}
