//! What `sync` and `check` share: how the flags were given, and the step to valid settings.

use clap::ArgMatches;

use crate::config::{self, Line, Origins, Settings};

/// How the flags were given.
pub(super) struct Given {
    origins: Origins,
    /// The configuration as flags, safe to show.
    pub(super) lines: Vec<Line>,
    /// Variables that look like ours and have no effect.
    pub(super) warnings: Vec<String>,
}

impl Given {
    /// Of the subcommand that was called.
    pub(super) fn of(tree: &clap::Command, matches: &ArgMatches) -> Self {
        let called =
            matches.subcommand().and_then(|(name, matches)| Some((tree.find_subcommand(name)?, matches)));
        let Some((command, matches)) = called else {
            return Self { origins: Origins::default(), lines: Vec::new(), warnings: Vec::new() };
        };
        let origins = Origins::of(command, matches);
        let lines = config::lines(command, matches, &origins);
        let set = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        Self { lines, warnings: config::warnings(command, set), origins }
    }

    /// The valid side, or what is wrong.
    pub(super) fn settings(&self, args: &config::Args) -> Result<Settings, config::Error> {
        Settings::new(args, &self.origins, &hidden())
    }
}

/// Secrets that only variables hold.
pub(super) fn hidden() -> config::Hidden {
    config::Hidden::read(|name| std::env::var(name).ok())
}
