//! A line on the terminal that says how far a first fetch is. Lines of the log are written around it.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::time::Duration;

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

/// The one that is shown.
static SHOWN: OnceLock<ProgressBar> = OnceLock::new();

/// A line that moves, until it is dropped.
#[derive(Debug)]
pub struct Bar(ProgressBar);

impl Bar {
    /// Shows it on stderr, which has to be a terminal, with what is done.
    pub fn show(what: &str) -> Self {
        let bar = SHOWN.get_or_init(ProgressBar::new_spinner).clone();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
            bar.set_style(style);
        }
        bar.reset(); // an earlier one has ended
        bar.set_message(what.to_owned()); // before it is drawn
        bar.enable_steady_tick(Duration::from_millis(120));
        Self(bar)
    }

    /// What is done, and how much has come of it.
    pub fn say(&self, what: &str, bytes: u64) {
        let bytes = if bytes == 0 { String::new() } else { format!(", {}", HumanBytes(bytes)) };
        self.0.set_message(format!("{what}{bytes}"));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// stderr, without the line while something is written.
pub(super) struct Around;

impl Write for Around {
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
