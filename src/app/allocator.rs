//! Settings of the C library's allocator that keep the memory at rest small: one for each C library.

/// Limits glibc to one malloc arena, so that the memory at rest does not grow. By default glibc makes an arena for
/// each of a process's first threads, up to eight per processor, and every publication fragments all of them a little.
/// The few threads that share the one arena mostly wait for files.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "mallopt(3) has no safe form")]
pub(super) fn configure() {
    // SAFETY: mallopt(3) is called before other threads are started. If it fails, the default stays.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// Starts jemalloc's background thread, which returns freed memory to the kernel (src/musl.rs says why). If the thread
/// cannot be started, memory is returned on later allocations.
#[cfg(target_env = "musl")]
#[expect(unsafe_code, reason = "mallctl(3) has no safe form")]
pub(super) fn configure() {
    let set = |mut on: bool| {
        let value = (&raw mut on).cast();
        let none = std::ptr::null_mut();
        // SAFETY: the name ends with NUL, and jemalloc(3) documents this setting as a bool.
        unsafe {
            let name = c"background_thread".as_ptr();
            tikv_jemalloc_sys::mallctl(name, none, std::ptr::null_mut(), value, size_of::<bool>())
        }
    };
    if set(true) != 0 {
        set(false); // else every thread would leave the purging to a background thread that does not run
    }
}

#[cfg(not(any(target_env = "gnu", target_env = "musl")))]
pub(super) fn configure() {}
