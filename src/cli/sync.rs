//! `treeswap sync`.

use std::path::Path;
use std::process::ExitCode;

use super::Exit;
use super::flags::Given;
use crate::{app, config, human};

/// Runs it.
pub(super) fn run(args: &config::Args, given: &Given) -> anyhow::Result<ExitCode> {
    let settings = given.settings(args).inspect_err(|error| {
        let path = Path::new(&args.logging.termination_log);
        app::last_words(path, &human::one_line(error), &error.hints());
    })?;
    app::sync(settings, &given.lines, &given.warnings)?;
    Ok(Exit::Done.into())
}
