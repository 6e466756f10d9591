//! The seccomp program that selects the system calls at which a traced process stops: those that change a file system.
//!
//! Other calls run at full speed. `openat` stops only if it may create or truncate a file.

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
}

/// A call: number, name, and which arguments name files.
pub type Call = (c_long, &'static str, Names);

/// The calls that change a file system.
pub const CALLS: &[Call] = &[
    (libc::SYS_write, "write", Names::Fd),
    (libc::SYS_pwrite64, "pwrite64", Names::Fd),
    (libc::SYS_writev, "writev", Names::Fd),
    (libc::SYS_pwritev, "pwritev", Names::Fd),
    (libc::SYS_pwritev2, "pwritev2", Names::Fd),
    (libc::SYS_ftruncate, "ftruncate", Names::Fd),
    (libc::SYS_fallocate, "fallocate", Names::Fd),
    (libc::SYS_fsync, "fsync", Names::Fd),
    (libc::SYS_fdatasync, "fdatasync", Names::Fd),
    (libc::SYS_syncfs, "syncfs", Names::Fd),
    (libc::SYS_fchmod, "fchmod", Names::Fd),
    (libc::SYS_fchown, "fchown", Names::Fd),
    (libc::SYS_flock, "flock", Names::Fd),
    (libc::SYS_sendfile, "sendfile", Names::Fd),
    (libc::SYS_copy_file_range, "copy_file_range", Names::Fd2),
    (libc::SYS_ioctl, "ioctl", Names::Fd), // only FICLONE, see `program`
    (libc::SYS_openat, "openat", Names::At), // only with O_CREAT or O_TRUNC
    (libc::SYS_openat2, "openat2", Names::At),
    (libc::SYS_mkdirat, "mkdirat", Names::At),
    (libc::SYS_mknodat, "mknodat", Names::At),
    (libc::SYS_unlinkat, "unlinkat", Names::At),
    (libc::SYS_fchmodat, "fchmodat", Names::At),
    (libc::SYS_fchownat, "fchownat", Names::At),
    (libc::SYS_utimensat, "utimensat", Names::At),
    (libc::SYS_truncate, "truncate", Names::Path),
    (libc::SYS_renameat2, "renameat2", Names::TwoAt),
    (libc::SYS_renameat, "renameat", Names::TwoAt),
    (libc::SYS_linkat, "linkat", Names::TwoAt),
    (libc::SYS_symlinkat, "symlinkat", Names::TextAt),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, "open", Names::Path), // only with O_CREAT or O_TRUNC
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_creat, "creat", Names::Path),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mkdir, "mkdir", Names::Path),
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
    (libc::SYS_rename, "rename", Names::TwoPaths),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_link, "link", Names::TwoPaths),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_symlink, "symlink", Names::TextPath),
];

/// `FICLONE`, the ioctl request that makes a file a reflink of another.
const FICLONE: u32 = 0x4004_9409;

/// The filter program. `struct seccomp_data`: nr at 0, arch at 4, arguments (64 bits each) from 16.
pub fn program() -> Vec<sock_filter> {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let op = |code: u32, jt: u8, jf: u8, k: u32| sock_filter { code: code as u16, jt, jf, k };
    let argument = |n: u32| op(LOAD, 0, 0, 16 + 8 * n);
    let stop = op(RETURN, 0, 0, libc::SECCOMP_RET_TRACE);
    let pass = op(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW);

    let mut program = vec![op(LOAD, 0, 0, 0)];
    for &(number, name, _) in CALLS {
        let number = number as u32;
        let creating = (libc::O_CREAT | libc::O_TRUNC) as u32;
        match name {
            "openat" => program.extend([
                op(EQUAL, 0, 4, number),
                argument(2),
                op(ANY_BIT, 0, 1, creating),
                stop,
                pass,
            ]),
            "open" => program.extend([
                op(EQUAL, 0, 4, number),
                argument(1),
                op(ANY_BIT, 0, 1, creating),
                stop,
                pass,
            ]),
            "ioctl" => {
                program.extend([op(EQUAL, 0, 4, number), argument(1), op(EQUAL, 0, 1, FICLONE), stop, pass]);
            }
            _ => program.extend([op(EQUAL, 0, 1, number), stop]),
        }
    }
    program.push(pass);
    program
}
