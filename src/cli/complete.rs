//! `treeswap completions`: prints a completion script for a shell, made from clap's tree.

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
    super::print(&script);
    Ok(Exit::Done.into())
}
