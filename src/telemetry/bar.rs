//! A progress line on the terminal, for the first fetch. Log lines are written above it.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::time::Duration;

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

/// The process's progress bar, once one was shown.
static SHOWN: OnceLock<ProgressBar> = OnceLock::new();

/// A progress line, shown until it is dropped.
#[derive(Debug)]
pub struct ProgressLine(ProgressBar);

impl ProgressLine {
    /// Shows the line on stderr, which has to be a terminal. `what` is what is being done.
    pub fn show(what: &str) -> Self {
        let bar = SHOWN.get_or_init(ProgressBar::new_spinner).clone();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
            bar.set_style(style);
        }
        bar.reset(); // an earlier use has finished it
        bar.set_message(what.to_owned()); // before it is first drawn
        bar.enable_steady_tick(Duration::from_millis(120));
        Self(bar)
    }

    /// Updates what is being done, and how many bytes were received.
    pub fn update(&self, what: &str, bytes: u64) {
        let bytes = if bytes == 0 { String::new() } else { format!(", {}", HumanBytes(bytes)) };
        self.0.set_message(format!("{what}{bytes}"));
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// stderr, with the progress line hidden during each write.
pub(super) struct AroundProgressLine;

impl Write for AroundProgressLine {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match SHOWN.get() {
            Some(bar) => bar.suspend(|| io::stderr().write(bytes)),
            None => io::stderr().write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
