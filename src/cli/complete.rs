//! `treeswap completions`: from the same tree as the help.

use std::io::Write;
use std::process::ExitCode;

use super::Exit;

/// Arguments of `treeswap completions`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// The shell
    shell: clap_complete::Shell,
}

/// Prints a completion script.
pub(super) fn completions(args: Args, mut tree: clap::Command) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut tree, "treeswap", &mut script);
    print(&script)
}

fn print(bytes: &[u8]) -> anyhow::Result<ExitCode> {
    // A reader that closes the pipe early (`| head`) has seen what it wanted.
    let _ = std::io::stdout().lock().write_all(bytes);
    Ok(Exit::Done.into())
}
