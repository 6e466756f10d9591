//! Prints the effective configuration as flags with secrets replaced, for `treeswap check` and the first line of the
//! log.

use clap::{ArgMatches, Command};

use super::env::Origins;
use super::origin::Origin;
use crate::secret;

/// One flag and its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// Its name, without dashes.
    pub flag: String,
    /// Its value, with secrets replaced.
    pub value: String,
    /// Where it came from.
    pub origin: Origin,
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "--{}={}", self.flag, self.value)
    }
}

/// One line for every value of every visible flag, in the order of the help. The command must have gone through
/// [`super::attach`].
pub fn lines(command: &Command, matches: &ArgMatches, origins: &Origins) -> Vec<Line> {
    let visible = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let lines = visible.filter_map(|arg| {
        let flag = arg.get_long().filter(|flag| !matches!(*flag, "help" | "version"))?;
        let values = matches.try_get_raw(arg.get_id().as_str()).ok().flatten()?;
        let values = values.map(|value| shown(flag, &value.to_string_lossy()));
        Some(values.map(move |value| Line {
            flag: flag.to_owned(),
            value,
            origin: origins.get(flag).clone(),
        }))
    });
    lines.flatten().collect()
}

/// A flag's value with secrets replaced.
fn shown(flag: &str, value: &str) -> String {
    match flag {
        "repo" => secret::redact(value),
        "username" => secret::shown_user(value).to_owned(), // it may be a token
        "webhook-url" | "askpass-url" if !value.is_empty() => secret::redact_path(value),
        "credential" | "git-config" | "git-config-add" if !value.is_empty() => "[secret]".to_owned(),
        _ => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_name_that_may_be_a_token_is_not_shown() {
        assert_eq!(shown("username", "ghp_16C7e42F292c6912E7710c838347Ae178B4a"), secret::REDACTED);
        assert_eq!(shown("username", "git"), "git");
    }
}
