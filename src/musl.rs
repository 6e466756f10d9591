//! Replacements for slow parts of musl in the static binary: the allocator and, on x86-64, `memcpy`, `memmove` and
//! `memcmp`. With musl's own, a first sync of many small files takes twice the processor time.

#[cfg(all(target_arch = "x86_64", any(test, not(debug_assertions))))]
mod memory;

/// The allocator of the whole program, C code included. musl's allocator maps and unmaps the 40 KB of state that
/// zlib-ng allocates for every object it inflates.
#[cfg(target_env = "musl")]
#[global_allocator]
static JEMALLOC: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// jemalloc's options, as documented in jemalloc(3).
///
/// One arena, as with glibc. Free pages are returned to the kernel after 10 ms, and their address space with them, so
/// that memory at rest is small and the limit of `--index-memory` counts only memory in use. Returning them
/// immediately would unmap and map the same pages again for every object. The thread cache holds allocations of up to
/// 64 KiB, which includes zlib-ng's state.
///
/// jemalloc purges on the next allocation, which may never come at rest; its background thread purges a few times a
/// second. One such thread is enough, and only the service starts it (`configure` in src/app/allocator.rs): the
/// child that reads packs must not have a second thread before it has entered its sandbox.
#[cfg(target_env = "musl")]
#[expect(unsafe_code, reason = "jemalloc looks for a symbol of this name")]
#[unsafe(export_name = "malloc_conf")]
static OPTIONS: &[u8; 127] = b"narenas:1,max_background_threads:1,dirty_decay_ms:10,muzzy_decay_ms:0,\
    retain:false,oversize_threshold:1048576,tcache_max:65536\0";
