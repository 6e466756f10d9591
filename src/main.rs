//! The thin edge: everything is in the library.

fn main() -> std::process::ExitCode {
    treeswap::cli::main()
}
