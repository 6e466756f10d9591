//! The thin edge: everything is in the library.

#[cfg(any(test, target_env = "musl"))]
mod musl;

fn main() -> std::process::ExitCode {
    treeswap::cli::main()
}
