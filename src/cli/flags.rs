//! What `sync` and `check` share: how the flags were given, and the step to valid settings.

use clap::ArgMatches;

use crate::config::gitsync::Call;
use crate::config::{self, Line, Origins, Settings};

/// How the flags were given.
pub(super) struct Given {
    origins: Origins,
    /// Secrets that only variables hold.
    hidden: config::Hidden,
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
            return Self {
                origins: Origins::default(),
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
        Self { lines: config::lines(command, matches, &origins), warnings, hidden, origins }
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
