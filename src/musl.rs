//! What the static binary has instead of musl's own: an allocator and, on x86-64, the functions that copy and compare
//! memory. With musl's, a first sync of many small files takes twice the processor time.

#[cfg(all(target_arch = "x86_64", any(test, not(debug_assertions))))]
mod memory;

/// The allocator, for the C parts as well. musl's own maps and unmaps the 40 KB of state that zlib-ng allocates for every
/// object it inflates.
#[cfg(target_env = "musl")]
#[global_allocator]
static JEMALLOC: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Options as jemalloc(3) has them. One heap, as with glibc. What is free goes back to the system soon, and its address
/// space with it, so that memory at rest is small, and what `--index-memory` counts is what is used. At once would be too
/// soon: pages that each object needs again would be mapped afresh. A thread keeps pieces of up to 64 KiB for itself,
/// zlib-ng's among them.
///
/// jemalloc gives back when somebody allocates next, which at rest may be never; a thread of its own does it some times a
/// second. One is enough, and only the service asks for it (`limit_heaps` in src/app.rs): the child that reads packs must
/// not have a second thread before it has limited itself.
#[cfg(target_env = "musl")]
#[expect(unsafe_code, reason = "jemalloc looks for a symbol of this name")]
#[unsafe(export_name = "malloc_conf")]
static OPTIONS: &[u8; 127] = b"narenas:1,max_background_threads:1,dirty_decay_ms:10,muzzy_decay_ms:0,\
    retain:false,oversize_threshold:1048576,tcache_max:65536\0";
