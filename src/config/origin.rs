//! The origin of a flag's value, and the secrets that only variables can hold.

use std::ffi::OsString;

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

/// The variables for `--credential` in commands whose flags have no variables, in order of precedence.
pub(super) const CREDENTIALS: [&str; 2] = ["TREESWAP_CREDENTIAL", "GITSYNC_CREDENTIAL"];

/// Values that are given by variables only, most of them secrets.
#[derive(Clone, Default)]
pub struct Hidden {
    /// The password that goes with `--username`.
    pub password: Option<Variable>,
    /// A GitHub App's private key.
    pub private_key: Option<Variable>,
    /// Credentials as JSON. Only used without `--credential`.
    pub credential: Option<Variable>,
    /// The first of these variables that cannot be read, as it is not UTF-8.
    pub unreadable: Option<String>,
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
    pub fn read(value_of: impl Fn(&str) -> Option<OsString>) -> Self {
        let mut unreadable = None;
        let mut first = |names: [&'static str; 2], secret: fn(String) -> Secret| {
            let is_set = |name: &&'static str| value_of(name).is_some_and(|value| !value.is_empty());
            let name = names.into_iter().find(is_set)?;
            match value_of(name)?.into_string() {
                Ok(value) => Some(Variable { name: format!("${name}"), value: secret(value) }),
                Err(_) => {
                    unreadable.get_or_insert(format!("${name}"));
                    None
                }
            }
        };
        Self {
            password: first(PASSWORDS, Secret::new),
            private_key: first(PRIVATE_KEYS, Secret::new),
            credential: first(CREDENTIALS, Secret::holder), // its parser registers what is secret in it
            unreadable,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_variable_hides_no_other_and_one_that_is_no_text_is_named() {
        use std::os::unix::ffi::OsStringExt as _;
        let read = |set: &[(&str, &[u8])]| {
            let value =
                |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_vec());
            Hidden::read(|name| value(name).map(OsString::from_vec))
        };
        let both = read(&[("TREESWAP_PASSWORD", b""), ("GITSYNC_PASSWORD", b"s3cret")]);
        assert_eq!(both.password.unwrap().name, "$GITSYNC_PASSWORD");
        let odd = read(&[("TREESWAP_GITHUB_APP_PRIVATE_KEY", b"\xff")]);
        assert_eq!(odd.unreadable.as_deref(), Some("$TREESWAP_GITHUB_APP_PRIVATE_KEY"));
        assert!(odd.private_key.is_none() && read(&[]).unreadable.is_none());
    }
}
