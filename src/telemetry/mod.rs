//! Logging (format and filter), metrics, and build information.
//!
//! Log lines go to stderr, one per event. Their field names are fixed: `revision`, `generation`, `ref`, `remote`,
//! `attempt`, `trigger`, `duration_ms`, `bytes`, `error`. At `info` there is about one line per change of state; an
//! attempt that found nothing to do is `debug`.

mod bar;
mod git_sync;
pub mod git_sync_metrics;
pub mod metrics;
pub mod optional_gauge;
mod replaced_gauges;

use std::io::IsTerminal;
use std::sync::OnceLock;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

use crate::secret::Redacting;

pub use bar::ProgressLine;
pub use git_sync::error_file;

/// The version of the package.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Returns the commit that the program was built from: the one that `git archive` wrote into the source, else that of
/// the build's variable `TREESWAP_BUILD_COMMIT`. `None` if neither is set.
pub fn commit() -> Option<&'static str> {
    let from_build = option_env!("TREESWAP_BUILD_COMMIT").filter(|commit| !commit.is_empty());
    archived(include_str!("commit.txt")).or(from_build)
}

/// Extracts the commit from `commit.txt`, in which `git archive` replaces a placeholder by commit and time
/// (`export-subst`). `None` if the placeholder is still there.
fn archived(text: &str) -> Option<&str> {
    text.split_whitespace().next().filter(|word| !word.starts_with('$'))
}

/// The format of log lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Format {
    /// Plain on a terminal, JSON elsewhere.
    #[default]
    Auto,
    /// One JSON object a line.
    Json,
    /// Plain text.
    Plain,
    /// git-sync's JSON.
    GitSync,
}

/// Options of the log.
#[derive(Clone, Debug)]
pub struct Options {
    format: Format,
    filter: String,
    verbosity: Option<i64>,
}

/// The text is no valid log filter.
#[derive(Debug, thiserror::Error)]
#[error("a level is one of error, warn, info, debug, trace, off; a directive is TARGET=LEVEL")]
pub struct BadFilter;

impl Options {
    /// `filter` is a level, or directives as in `RUST_LOG`, separated by commas.
    pub fn new(format: Format, filter: &str) -> Result<Self, BadFilter> {
        // `EnvFilter` takes a word that is no level for the name of a target, and then logs nothing else.
        let is_directive =
            |part: &str| !part.is_empty() && (part.contains('=') || part.parse::<LevelFilter>().is_ok());
        if !filter.split(',').all(|part| is_directive(part.trim())) || EnvFilter::try_new(filter).is_err() {
            return Err(BadFilter);
        }
        Ok(Self { format, filter: filter.to_owned(), verbosity: None })
    }

    /// Sets git-sync's `-v`, if the filter was derived from it: the highest level of git-sync's messages to log.
    #[must_use]
    pub fn verbose(self, verbosity: Option<i64>) -> Self {
        Self { verbosity, ..self }
    }

    /// Returns the filter as text.
    pub fn filter(&self) -> &str {
        &self.filter
    }

    /// Returns true if the log is plain text on a terminal.
    pub fn is_watched(&self) -> bool {
        matches!(self.format, Format::Auto | Format::Plain) && std::io::stderr().is_terminal()
    }

    /// Returns the format.
    pub fn format(&self) -> Format {
        self.format
    }
}

/// The target of lines that are logged only in git-sync's format.
pub const GIT_SYNC: &str = "git-sync";

/// The format of log lines; set by [`start`].
static FORMAT: OnceLock<Format> = OnceLock::new();

/// Starts logging to stderr. A second call has no effect.
pub fn start(options: &Options) {
    let git_sync = match (options.format, options.verbosity) {
        (Format::GitSync, Some(_)) => "git-sync=trace,", // `Lines` then filters by git-sync's levels
        (Format::GitSync, None) => "",
        _ => "git-sync=off,",
    };
    // We report the errors that kube_client logs ourselves, once and with the cluster's name. A filter that names the
    // target turns it on again.
    let filter = EnvFilter::new(format!("kube_client=off,{git_sync}{}", options.filter));
    // A program that embeds the library may have installed its own subscriber, which is then used.
    if dispatch(options.format, options.verbosity, filter).try_init().is_err()
        || FORMAT.set(options.format).is_err()
    {
        return;
    }
    let format = options.format;
    // As plain text, the command line's own hook prints it, with a backtrace.
    if matches!(format, Format::Json | Format::GitSync) {
        std::panic::set_hook(Box::new(move |panic| {
            let error = panic.to_string().replace('\n', " ");
            // Whatever the filter: it may be the last word of the process.
            tracing::dispatcher::with_default(&dispatch(format, None, EnvFilter::new("error")), || {
                tracing::error!(error, hints = "this is a bug in treeswap: please report it", "panicked");
            });
        }));
    }
}

/// Why the process ends, as far as git-sync has a message of its own for it.
#[derive(Clone, Copy, Debug)]
pub enum ExitReason<'a> {
    /// The root cannot be made.
    NoRoot(&'a std::path::Path),
    /// The address cannot be bound.
    NoListener(&'a str),
    /// Another reason.
    Other,
}

impl ExitReason<'_> {
    /// Returns git-sync's message, or a general one.
    pub fn message(self) -> &'static str {
        match self {
            Self::NoRoot(_) => "FATAL: can't make root dir",
            Self::NoListener(_) => "can't bind HTTP endpoint",
            Self::Other => "treeswap ends",
        }
    }
}

/// Logs why the process ends, whatever the filter, if the format is JSON or git-sync's. Returns false with another
/// format; the caller then prints it as text. `fallback` is the format to assume if [`start`] was not called.
pub fn ends(fallback: Option<Format>, exit_reason: ExitReason<'_>, error: &str, hints: &[String]) -> bool {
    let format = FORMAT.get().copied().or(fallback);
    let Some(format @ (Format::Json | Format::GitSync)) = format else { return false };
    let hints = Some(hints.join("; ")).filter(|hints| !hints.is_empty());
    tracing::dispatcher::with_default(
        &dispatch(format, None, EnvFilter::new("error")),
        || match exit_reason {
            ExitReason::NoRoot(path) => {
                tracing::error!(name: "no_root", error, path = %path.display(), hints, "treeswap ends");
            }
            ExitReason::NoListener(endpoint) => {
                tracing::error!(name: "no_listener", error, endpoint, hints, "treeswap ends");
            }
            ExitReason::Other => tracing::error!(error, hints, "treeswap ends"),
        },
    );
    true
}

fn dispatch(format: Format, verbosity: Option<i64>, filter: EnvFilter) -> tracing::Dispatch {
    let terminal = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Redacting(bar::AroundProgressLine))
        // Otherwise a failed write to stderr would be reported on stderr, and panic. Syncing goes on even if the log's
        // reader is gone.
        .log_internal_errors(false)
        .with_target(false);
    let colours = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    match format {
        Format::GitSync => lines.event_format(git_sync::Lines { verbosity }).finish().into(),
        Format::Auto if terminal => lines.with_ansi(colours).finish().into(),
        Format::Plain => lines.with_ansi(colours).finish().into(),
        Format::Auto | Format::Json => lines.json().flatten_event(true).with_span_list(false).finish().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_names_its_commit_and_a_checkout_does_not() {
        assert_eq!(archived("7f4f91be4e1c0a2b 1795428819\n"), Some("7f4f91be4e1c0a2b"));
        assert_eq!(archived("$Format:%H %ct$\n"), None);
        assert_eq!(archived(""), None);
    }

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
