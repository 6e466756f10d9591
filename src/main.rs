//! The thin edge: everything is in the library.

/// The allocator of the static binary, for its C parts as well. musl's own maps and unmaps the 32 KiB window of every
/// object that is inflated, which made a first sync cost half as much processor time again.
#[cfg(target_env = "musl")]
mod allocator {
    #[global_allocator]
    static JEMALLOC: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

    /// Options as jemalloc(3) has them. One heap, as with glibc; what is free goes back to the system within milliseconds,
    /// and its address space with it, so that memory at rest is small and what `--index-memory` counts is what is used.
    /// At once would be too soon: zlib-ng allocates 40 KB for every object that is inflated, more than a thread keeps for
    /// itself, and mapping them afresh made a first sync take twice the time.
    #[expect(unsafe_code, reason = "jemalloc looks for a symbol of this name")]
    #[unsafe(export_name = "malloc_conf")]
    static OPTIONS: &[u8; 85] =
        b"narenas:1,dirty_decay_ms:10,muzzy_decay_ms:0,retain:false,oversize_threshold:1048576\0";
}

fn main() -> std::process::ExitCode {
    treeswap::cli::main()
}
