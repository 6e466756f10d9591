//! The program `treeswap`: a thin wrapper around [`treeswap::cli::main`].

#[cfg(any(test, target_env = "musl"))]
mod musl;

fn main() -> std::process::ExitCode {
    treeswap::cli::main()
}
