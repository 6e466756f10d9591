//! The origin of a command's flags (flag, variable or default), and the step from flags to valid settings. Shared by
//! the commands that read a repository.

use std::ffi::OsString;
use std::time::Duration;

use clap::ArgMatches;

use crate::config::gitsync::Call;
use crate::config::{self, Line, Origin, Origins, Settings};

/// Flags that refine others and have no effect without one of them.
const REFINEMENTS: [(&[&str], &[&str]); 4] = [
    (&["exechook-timeout", "exechook-backoff"], &["exechook-command"]),
    (&["pre-publish-exechook-timeout", "pre-publish-exechook-backoff"], &["pre-publish-exechook-command"]),
    (&["pre-publish-gate-retry"], &["pre-publish-gate"]),
    (&["webhook-method", "webhook-success-status", "webhook-timeout", "webhook-backoff"], &["webhook-url"]),
];

/// The flags of a command, as far as their origin matters.
pub(super) struct FlagOrigins {
    pub(super) origins: Origins,
    /// Name and help heading of each flag whose value differs from its default.
    flags: Vec<(String, String)>,
    /// Name and text of each flag that is a duration, for messages: `0` and `0s` are the same value.
    durations: Vec<(String, String)>,
    /// Secrets that only variables can hold.
    hidden: config::Hidden,
    /// The effective configuration as flags, with secrets replaced.
    pub(super) lines: Vec<Line>,
    /// Warnings about variables that have no effect.
    pub(super) warnings: Vec<String>,
}

impl FlagOrigins {
    /// The origins for the subcommand that was called.
    pub(super) fn of(tree: &clap::Command, matches: &ArgMatches) -> Self {
        let called =
            matches.subcommand().and_then(|(name, matches)| Some((tree.find_subcommand(name)?, matches)));
        let (command, matches) = called.unwrap_or((tree, matches)); // clap requires a subcommand
        Self::with(Origins::of(command, matches), hidden(), command, matches)
    }

    /// The origins for a command line of git-sync.
    pub(super) fn of_git_sync(call: Call, command: &clap::Command, matches: &ArgMatches) -> Self {
        let given = call.settings.into_iter().map(|given| (given.flag, given.origin));
        Self::with(Origins::of(command, matches).as_git_sync(given), call.hidden, command, matches)
    }

    fn with(origins: Origins, hidden: config::Hidden, command: &clap::Command, matches: &ArgMatches) -> Self {
        let warnings = config::warnings(command, &origins, variables());
        let flag = |arg: &clap::Arg| {
            let name = arg.get_long()?;
            let heading = arg.get_help_heading().unwrap_or_default();
            let values = matches.try_get_raw(arg.get_id().as_str()).ok()??;
            // A flag that is given with its default value does not count: `check` prints every flag, and its output
            // must mean the same as its input.
            let defaults = arg.get_default_values().iter().map(|value| value.as_os_str());
            let is_default = Iterator::eq(values, defaults);
            let given = *origins.get(name) != Origin::Default && !is_default;
            given.then(|| (name.to_owned(), heading.to_owned()))
        };
        let flags = command.get_arguments().filter_map(flag).collect();
        let duration = |arg: &clap::Arg| {
            let id = arg.get_id().as_str();
            matches.try_get_one::<Duration>(id).ok()??; // other values may be secret
            let text = matches.try_get_raw(id).ok()??.next_back()?.to_str()?.to_owned();
            Some((arg.get_long()?.to_owned(), text))
        };
        let durations = command.get_arguments().filter_map(duration).collect();
        Self { lines: config::lines(command, matches, &origins), flags, durations, warnings, hidden, origins }
    }

    /// Refuses given flags that have no effect because the flag `other` is absent. `needs_other` selects them by name
    /// and help heading.
    pub(super) fn refuse_without(
        &self,
        other: &str,
        needs_other: impl Fn(&str, &str) -> bool,
    ) -> Result<(), config::Error> {
        match self.flags.iter().find(|(flag, heading)| needs_other(flag, heading)) {
            Some((flag, _)) => {
                Err(config::Error::Needs { one: self.origins.name(flag), other: other.to_owned() })
            }
            None => Ok(()),
        }
    }

    /// Refuses given flags that refine a flag that is absent.
    pub(super) fn refuse_refinements(&self) -> Result<(), config::Error> {
        let is_given = |flag: &&str| self.flags.iter().any(|(given, _)| given == flag);
        let lacking = REFINEMENTS.into_iter().filter(|(_, others)| !others.iter().any(is_given));
        for (refinements, others) in lacking {
            let others: Vec<String> = others.iter().map(|flag| format!("--{flag}")).collect();
            self.refuse_without(&others.join(" or "), |flag, _| refinements.contains(&flag))?;
        }
        Ok(())
    }

    /// Whether a flag was given, as such or by its variable.
    pub(super) fn is_given(&self, flag: &str) -> bool {
        *self.origins.get(flag) != Origin::Default
    }

    /// Validates the arguments.
    pub(super) fn settings(&self, args: &config::Args) -> Result<Settings, config::Error> {
        Settings::new(args, &self.origins, &self.hidden).map_err(|error| self.as_given(error))
    }

    /// Refuses files that would be read from what the root publishes.
    pub(super) fn refuse_published(
        &self,
        args: &config::Args,
        files: &[config::NamedFile],
    ) -> Result<(), config::Error> {
        Settings::refuse_published(args, &self.origins, files)
    }

    /// Shows the value of a duration as it was given.
    fn as_given(&self, error: config::Error) -> config::Error {
        match error {
            config::Error::Value { name, value, why } => {
                let given = self.durations.iter().find(|(flag, _)| self.origins.name(flag) == name);
                let value = given.map_or(value, |(_, text)| text.clone());
                config::Error::Value { name, value, why }
            }
            error => error,
        }
    }
}

/// Warnings about variables that have no effect, for a command line that cannot be parsed and calls a command whose
/// flags have no variables.
pub(super) fn unread_variables(tree: &clap::Command, arguments: &[OsString]) -> Vec<String> {
    let called = arguments.get(1).and_then(|name| tree.find_subcommand(name));
    let called = called.filter(|command| super::usage::has_rules_only(command.get_name()));
    called.map(|command| config::warnings(command, &Origins::default(), variables())).unwrap_or_default()
}

/// The names of all variables that are set.
fn variables() -> impl Iterator<Item = String> {
    std::env::vars_os().filter_map(|(name, _)| name.into_string().ok())
}

/// Reads the secrets that only variables can hold.
pub(super) fn hidden() -> config::Hidden {
    config::Hidden::read(|name| std::env::var_os(name))
}
