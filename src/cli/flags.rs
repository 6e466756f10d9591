//! What `sync` and `check` share: how the flags were given, and the step to valid settings.

use clap::ArgMatches;

use crate::config::gitsync::Call;
use crate::config::{self, Line, Origin, Origins, Settings};

/// How the flags were given.
pub(super) struct FlagOrigins {
    origins: Origins,
    /// Each flag that was given another value than its default, and the heading that it has in the help.
    flags: Vec<(String, String)>,
    /// Secrets that only variables hold.
    hidden: config::Hidden,
    /// The configuration as flags, safe to show.
    pub(super) lines: Vec<Line>,
    /// Variables that look like ours and have no effect.
    pub(super) warnings: Vec<String>,
}

impl FlagOrigins {
    /// Of the subcommand that was called.
    pub(super) fn of(tree: &clap::Command, matches: &ArgMatches) -> Self {
        let called =
            matches.subcommand().and_then(|(name, matches)| Some((tree.find_subcommand(name)?, matches)));
        let Some((command, matches)) = called else {
            return Self {
                origins: Origins::default(),
                flags: Vec::new(),
                hidden: hidden(),
                lines: Vec::new(),
                warnings: Vec::new(),
            };
        };
        Self::with(Origins::of(command, matches), hidden(), command, matches)
    }

    /// Of a command line that was git-sync's.
    pub(super) fn of_git_sync(call: Call, command: &clap::Command, matches: &ArgMatches) -> Self {
        let given = call.settings.into_iter().map(|given| (given.flag, given.origin));
        Self::with(Origins::of(command, matches).as_git_sync(given), call.hidden, command, matches)
    }

    fn with(origins: Origins, hidden: config::Hidden, command: &clap::Command, matches: &ArgMatches) -> Self {
        let set = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let warnings = config::warnings(command, origins.personality(), set);
        let flag = |arg: &clap::Arg| {
            let name = arg.get_long()?;
            let heading = arg.get_help_heading().unwrap_or_default();
            let values = matches.try_get_raw(arg.get_id().as_str()).ok()??;
            // What `check` prints is every flag, and means the same as what was given to it.
            let defaults = arg.get_default_values().iter().map(|value| value.as_os_str());
            let is_default = Iterator::eq(values, defaults);
            let given = *origins.get(name) != Origin::Default && !is_default;
            given.then(|| (name.to_owned(), heading.to_owned()))
        };
        let flags = command.get_arguments().filter_map(flag).collect();
        Self { lines: config::lines(command, matches, &origins), flags, warnings, hidden, origins }
    }

    /// Refuses flags that have no effect without `other`, which is absent. Which those are, `idle` says by their name
    /// and heading.
    pub(super) fn without(
        &self,
        other: &str,
        idle: impl Fn(&str, &str) -> bool,
    ) -> Result<(), config::Error> {
        match self.flags.iter().find(|(flag, heading)| idle(flag, heading)) {
            Some((flag, _)) => {
                Err(config::Error::Needs { one: self.origins.name(flag), other: other.to_owned() })
            }
            None => Ok(()),
        }
    }

    /// The valid side, or what is wrong.
    pub(super) fn settings(&self, args: &config::Args) -> Result<Settings, config::Error> {
        Settings::new(args, &self.origins, &self.hidden)
    }
}

/// Secrets that only variables hold.
pub(super) fn hidden() -> config::Hidden {
    config::Hidden::read(|name| std::env::var(name).ok())
}
