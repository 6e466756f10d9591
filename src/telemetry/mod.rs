//! What the program says about itself: log format and filter, metrics, build information.
//!
//! Lines go to stderr, one a fact. Their field names are fixed: `revision`, `generation`, `ref`, `remote`, `attempt`,
//! `trigger`, `duration_ms`, `bytes`, `error`. At `info` there is about one line a change of state; an attempt that
//! found nothing to do is `debug`.

mod git_sync;
pub mod git_sync_metrics;
pub mod metrics;

use std::io::IsTerminal;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::EnvFilter;

/// Of the package.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit it was built from, where the build was told (the Dockerfile does).
pub const COMMIT: Option<&str> = option_env!("TREESWAP_BUILD_COMMIT");

/// How lines look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Format {
    /// Plain on a terminal, JSON elsewhere.
    #[default]
    Auto,
    /// One JSON object a line.
    Json,
    /// For people.
    Plain,
    /// As git-sync writes them.
    GitSync,
}

/// What is said, and how.
#[derive(Clone, Debug)]
pub struct Options {
    format: Format,
    filter: String,
}

/// The text is no filter.
#[derive(Debug, thiserror::Error)]
#[error("a level is one of error, warn, info, debug, trace, off; a directive is TARGET=LEVEL")]
pub struct BadFilter;

impl Options {
    /// `filter` is a level, or directives as in `RUST_LOG`, separated by commas.
    pub fn new(format: Format, filter: &str) -> Result<Self, BadFilter> {
        // `EnvFilter` takes a word that is no level for the name of a target, and then nothing else is said at all.
        let known =
            |part: &str| !part.is_empty() && (part.contains('=') || part.parse::<LevelFilter>().is_ok());
        if !filter.split(',').all(|part| known(part.trim())) || EnvFilter::try_new(filter).is_err() {
            return Err(BadFilter);
        }
        Ok(Self { format, filter: filter.to_owned() })
    }

    /// The filter as text.
    pub fn filter(&self) -> &str {
        &self.filter
    }

    /// The format.
    pub fn format(&self) -> Format {
        self.format
    }
}

/// Sends the lines of this process to stderr from now on. A second call changes nothing.
pub fn start(options: &Options) {
    let terminal = std::io::stderr().is_terminal();
    // Whatever it complains of we report ourselves, with the cluster's name and once; who wants it names it.
    let filter = EnvFilter::new(format!("kube_client=off,{}", options.filter));
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // It would say on stderr that stderr cannot be written, and panic. Whoever reads the log may go; syncing goes on.
        .log_internal_errors(false)
        .with_target(false);
    let colours = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let started = match options.format {
        Format::GitSync => lines.event_format(git_sync::Lines).try_init(),
        Format::Auto if terminal => lines.with_ansi(colours).try_init(),
        Format::Plain => lines.with_ansi(colours).try_init(),
        Format::Auto | Format::Json => lines.json().flatten_event(true).with_span_list(false).try_init(),
    };
    // Whoever embeds the library may have a subscriber of their own; then theirs is used.
    let _ = started;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_level_is_not_taken_for_a_target() {
        for good in ["info", "WARN", "off", "treeswap=debug", "warn,treeswap=trace,hyper=off"] {
            assert!(Options::new(Format::Auto, good).is_ok(), "{good}");
        }
        for bad in ["verbose", "info,chatty", "treeswap=loud", ""] {
            assert!(Options::new(Format::Auto, bad).is_err(), "{bad:?} was accepted");
        }
    }
}
