//! The seccomp program that selects the system calls at which a traced process stops: those that change, lock or sync
//! files.
//!
//! Other calls run at full speed. Calls that do so only with certain flags, as `openat` with `O_CREAT`, stop only with
//! these. What no call can be stopped for are writes through a shared mapping of a file.

use libc::{c_long, sock_filter};

/// Which arguments of a call name the files it changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Names {
    /// Argument 0 is a descriptor.
    Fd,
    /// Argument 0 is a path.
    Path,
    /// Arguments 0 and 1: a directory's descriptor and a path below it.
    At,
    /// Arguments 0 to 3: two pairs of a directory's descriptor and a path below it.
    TwoAt,
    /// Arguments 0 and 1 are paths.
    TwoPaths,
    /// Argument 0 is a symbolic link's target, argument 1 the path of the link.
    TextPath,
    /// Argument 0 is a symbolic link's target, arguments 1 and 2 are a directory's descriptor and the path of the link.
    TextAt,
    /// Argument 2 is the descriptor that is written to.
    Fd2,
    /// Argument 1 is the address of a Unix socket: its file is made.
    Socket,
}

/// A call: number, name, and which arguments name files.
pub type Call = (c_long, &'static str, Names);

/// The calls at which to stop: those that change, lock or sync files. All that Linux 6.17 has, except those of
/// [`UNTRACEABLE`].
pub const CALLS: &[Call] = &[
    (libc::SYS_write, "write", Names::Fd),
    (libc::SYS_pwrite64, "pwrite64", Names::Fd),
    (libc::SYS_writev, "writev", Names::Fd),
    (libc::SYS_pwritev, "pwritev", Names::Fd),
    (libc::SYS_pwritev2, "pwritev2", Names::Fd),
    (libc::SYS_sendfile, "sendfile", Names::Fd),
    (libc::SYS_splice, "splice", Names::Fd2),
    (libc::SYS_copy_file_range, "copy_file_range", Names::Fd2),
    (libc::SYS_ftruncate, "ftruncate", Names::Fd),
    (libc::SYS_truncate, "truncate", Names::Path),
    (libc::SYS_fallocate, "fallocate", Names::Fd),
    (libc::SYS_ioctl, "ioctl", Names::Fd), // see `condition`
    // Syncing and locking.
    (libc::SYS_fsync, "fsync", Names::Fd),
    (libc::SYS_fdatasync, "fdatasync", Names::Fd),
    (libc::SYS_syncfs, "syncfs", Names::Fd),
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    (SYNC_FILE_RANGE, "sync_file_range", Names::Fd),
    (libc::SYS_flock, "flock", Names::Fd),
    (libc::SYS_fcntl, "fcntl", Names::Fd), // see `condition`
    // Modes, owners, times and attributes.
    (libc::SYS_fchmod, "fchmod", Names::Fd),
    (libc::SYS_fchmodat, "fchmodat", Names::At),
    (FCHMODAT2, "fchmodat2", Names::At),
    (libc::SYS_fchown, "fchown", Names::Fd),
    (libc::SYS_fchownat, "fchownat", Names::At),
    (libc::SYS_utimensat, "utimensat", Names::At),
    (libc::SYS_setxattr, "setxattr", Names::Path),
    (libc::SYS_lsetxattr, "lsetxattr", Names::Path),
    (libc::SYS_fsetxattr, "fsetxattr", Names::Fd),
    (SETXATTRAT, "setxattrat", Names::At),
    (libc::SYS_removexattr, "removexattr", Names::Path),
    (libc::SYS_lremovexattr, "lremovexattr", Names::Path),
    (libc::SYS_fremovexattr, "fremovexattr", Names::Fd),
    (REMOVEXATTRAT, "removexattrat", Names::At),
    (FILE_SETATTR, "file_setattr", Names::At),
    // Names. For openat see `condition`; the tracer ignores an openat2 that creates nothing.
    (libc::SYS_openat, "openat", Names::At),
    (libc::SYS_openat2, "openat2", Names::At),
    (libc::SYS_mkdirat, "mkdirat", Names::At),
    (libc::SYS_mknodat, "mknodat", Names::At),
    (libc::SYS_bind, "bind", Names::Socket),
    (libc::SYS_unlinkat, "unlinkat", Names::At),
    (libc::SYS_renameat2, "renameat2", Names::TwoAt),
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    (RENAMEAT, "renameat", Names::TwoAt),
    (libc::SYS_linkat, "linkat", Names::TwoAt),
    (libc::SYS_symlinkat, "symlinkat", Names::TextAt),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, "open", Names::Path), // see `condition`
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_creat, "creat", Names::Path),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mkdir, "mkdir", Names::Path),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mknod, "mknod", Names::Path),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_rmdir, "rmdir", Names::Path),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_unlink, "unlink", Names::Path),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, "chmod", Names::Path),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chown, "chown", Names::Path),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_lchown, "lchown", Names::Path),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_utime, "utime", Names::Path),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_utimes, "utimes", Names::Path),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_futimesat, "futimesat", Names::At),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_rename, "rename", Names::TwoPaths),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_link, "link", Names::TwoPaths),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_symlink, "symlink", Names::TextPath),
];

/// Numbers that `libc` does not define for every C library and processor.
const FCHMODAT2: c_long = 452;
const SETXATTRAT: c_long = 463;
const REMOVEXATTRAT: c_long = 466;
const FILE_SETATTR: c_long = 469;
#[cfg(target_arch = "x86_64")]
const RENAMEAT: c_long = 264;
#[cfg(target_arch = "aarch64")]
const RENAMEAT: c_long = 38;
#[cfg(target_arch = "x86_64")]
const SYNC_FILE_RANGE: c_long = 277;
#[cfg(target_arch = "aarch64")]
const SYNC_FILE_RANGE: c_long = 84;

/// Calls that may change files in a way that a tracer cannot see at the call: a traced program must not make them.
const UNTRACEABLE: &[c_long] = &[libc::SYS_io_uring_setup, libc::SYS_io_submit, libc::SYS_open_by_handle_at];

/// System calls from this number on are newer than the list, so a traced program must not make them either: they may be
/// what a C library uses now in place of one of the list. Whoever raises it adds those that change files. Numbers have
/// been the same on all processors since 424.
const UNKNOWN: u32 = 470;

/// Requests of `ioctl` that change a file: it becomes a reflink of another, or its flags are set.
pub const FICLONE: u32 = 0x4004_9409;
const FICLONERANGE: u32 = 0x4020_940d;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;

/// When a call is one at which to stop.
enum Condition {
    Always,
    /// The argument has any of these bits.
    AnyBit(u32, u32),
    /// The argument is one of these.
    OneOf(u32, &'static [u32]),
}

fn condition(name: &str) -> Condition {
    /// An `openat` that may create or truncate a file. (`O_TMPFILE` contains `O_DIRECTORY`, which changes nothing.)
    const CREATING: u32 = (libc::O_CREAT | libc::O_TRUNC | (libc::O_TMPFILE & !libc::O_DIRECTORY)) as u32;
    const LOCKING: &[u32] =
        &[libc::F_SETLK as u32, libc::F_SETLKW as u32, libc::F_OFD_SETLK as u32, libc::F_OFD_SETLKW as u32];
    const CHANGING: &[u32] = &[FICLONE, FICLONERANGE, FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR];
    match name {
        "open" => Condition::AnyBit(1, CREATING),
        "openat" => Condition::AnyBit(2, CREATING),
        "ioctl" => Condition::OneOf(1, CHANGING),
        "fcntl" => Condition::OneOf(1, LOCKING),
        _ => Condition::Always,
    }
}

/// The filter program. `struct seccomp_data`: nr at 0, arch at 4, arguments (64 bits each) from 16.
pub fn program() -> Vec<sock_filter> {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
    const ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let op = |code: u32, jt: u8, jf: u8, k: u32| sock_filter { code: code as u16, jt, jf, k };
    let argument = |n: u32| op(LOAD, 0, 0, 16 + 8 * n);
    let stop = op(RETURN, 0, 0, libc::SECCOMP_RET_TRACE);
    let pass = op(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW);

    let mut program = vec![op(LOAD, 0, 0, 0), op(AT_LEAST, 0, 1, UNKNOWN), stop];
    for number in UNTRACEABLE {
        program.extend([op(EQUAL, 0, 1, *number as u32), stop]);
    }
    for &(number, name, _) in CALLS {
        let body = match condition(name) {
            Condition::Always => vec![stop],
            Condition::AnyBit(n, bits) => vec![argument(n), op(ANY_BIT, 0, 1, bits), stop, pass],
            Condition::OneOf(n, values) => {
                let tests = values.iter().flat_map(|value| [op(EQUAL, 0, 1, *value), stop]);
                std::iter::once(argument(n)).chain(tests).chain([pass]).collect()
            }
        };
        program.push(op(EQUAL, 0, body.len() as u8, number as u32));
        program.extend(body);
    }
    program.push(pass);
    program
}
