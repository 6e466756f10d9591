//! The seccomp(2) filter: which system calls are refused, and the BPF program that refuses them.
//!
//! The list denies instead of allowing: which calls a C library makes differs between libraries, versions and
//! processors, and a call that is missing from an allow list breaks a user. It refuses calls that reach beyond the
//! process's own memory and its open files, changes to files that Landlock does not control (modes, owners,
//! attributes), locks on files, memory that no limit counts, and changes of the process's limits. A call that is newer
//! than the list fails with `ENOSYS`, as on a kernel that does not have it.

use std::io;

use libc::{
    SYS_clone, SYS_clone3, SYS_fcntl, SYS_kill, SYS_openat, SYS_openat2, SYS_prlimit64, SYS_tgkill,
    SYS_tkill, sock_filter, sock_fprog,
};

/// System calls from this number on are unknown to this list, which is that of Linux 6.17. Numbers have been the same
/// on all processors since 424. The calls of x86_64's x32 ABI have numbers beyond it, too.
const UNKNOWN: u32 = 470;

/// `AUDIT_ARCH_*` of Linux's `linux/audit.h`: the architecture whose system call numbers are listed.
#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xc000_00b7;

/// Refused on every processor.
const REFUSED: &[i64] = &[
    // Executing programs.
    libc::SYS_execve,
    libc::SYS_execveat,
    // The network, and local sockets.
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_kcmp,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_setpriority,
    libc::SYS_ioprio_set,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setscheduler,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    // Memory that no limit counts, and semaphores and queues shared between processes.
    libc::SYS_memfd_create,
    libc::SYS_memfd_secret,
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
    // Limits that the process has set itself: changing them, and space beyond the limit on a file's size. For
    // prlimit64 see `by_arguments`.
    libc::SYS_setrlimit,
    libc::SYS_fallocate,
    // What is limited for the user or the machine as a whole, so that other processes would lack it.
    libc::SYS_io_setup,
    libc::SYS_epoll_create1,
    // Locks, for which other processes wait.
    libc::SYS_flock,
    // Namespaces and mounts.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    OPEN_TREE_ATTR,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    // Kernel subsystems and administration.
    libc::SYS_bpf,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_fanotify_init,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_add_watch,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    KEXEC_FILE_LOAD,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_personality,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    // Changing the user, the group or capabilities.
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_setgroups,
    libc::SYS_capset,
    // Changes to files: those that Landlock does not control at all or only in later versions, and special files and
    // symbolic links, which are never needed.
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    FCHMODAT2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_truncate,
    libc::SYS_utimensat,
    libc::SYS_mknodat,
    libc::SYS_symlinkat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    SETXATTRAT,
    REMOVEXATTRAT,
    FILE_SETATTR,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
];

/// Numbers that `libc` does not define for every C library.
const FCHMODAT2: i64 = 452;
const SETXATTRAT: i64 = 463;
const REMOVEXATTRAT: i64 = 466;
const OPEN_TREE_ATTR: i64 = 467;
const FILE_SETATTR: i64 = 469;
#[cfg(target_arch = "x86_64")]
const KEXEC_FILE_LOAD: i64 = 320;
#[cfg(target_arch = "aarch64")]
const KEXEC_FILE_LOAD: i64 = 294;

/// Refused calls that only x86_64 has: older forms of those above and of open(2), and I/O ports, segments and shared
/// libraries.
#[cfg(target_arch = "x86_64")]
const OLD: &[i64] = &[
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_creat,
    libc::SYS_epoll_create,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_inotify_init,
    libc::SYS_mknod,
    libc::SYS_symlink,
    libc::SYS_uselib,
    libc::SYS_ioperm,
    libc::SYS_iopl,
    libc::SYS_modify_ldt,
];
#[cfg(target_arch = "aarch64")]
const OLD: &[i64] = &[];

/// Commands of fcntl(2) that are refused.
const REFUSED_COMMANDS: &[u32] = &[
    // Who gets the signals of O_ASYNC: it may be any process of the user, and Landlock does not control that before
    // Linux 6.12.
    libc::F_SETOWN as u32,
    F_SETOWN_EX,
    // Locks and leases, for which other processes wait.
    libc::F_SETLK as u32,
    libc::F_SETLKW as u32,
    libc::F_OFD_SETLK as u32,
    libc::F_OFD_SETLKW as u32,
    libc::F_SETLEASE as u32,
    // Watching a directory.
    libc::F_NOTIFY as u32,
];
const F_SETOWN_EX: u32 = 15; // `libc` does not define it for every C library

/// Settings of prctl(2) that are refused: the process has made them itself.
const REFUSED_SETTINGS: &[u32] = &[libc::PR_SET_PDEATHSIG as u32, libc::PR_SET_DUMPABLE as u32];

/// Offsets into the filter's input (`struct seccomp_data`), on a little-endian processor.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const FIRST_ARGUMENT: u32 = 16;
const SECOND_ARGUMENT: u32 = 24;
const THIRD_ARGUMENT: u32 = 32;
const FOURTH_ARGUMENT: u32 = 40;

const ALLOW: sock_filter = answer(libc::SECCOMP_RET_ALLOW);
const REFUSE: sock_filter = answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
/// Answers as a kernel without the call does. Used for `clone3`, whose flags are in memory that a filter cannot read: C
/// libraries then fall back to `clone`.
const ABSENT: sock_filter = answer(libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32);

/// Ends the filter with this action.
const fn answer(value: u32) -> sock_filter {
    sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: value }
}

/// Loads the 32-bit word at an offset of the input.
const fn load(place: u32) -> sock_filter {
    sock_filter { code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, jt: 0, jf: 0, k: place }
}

/// Tests the loaded word against `value`, and skips `jt` instructions if the test holds and `jf` if it does not.
const fn skip_if(test: u32, value: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: (libc::BPF_JMP | test | libc::BPF_K) as u16, jt, jf, k: value }
}

/// Runs `body` for the system call of this number and skips it for any other. `body` must end with an answer.
fn on(number: i64, body: &[sock_filter]) -> impl Iterator<Item = sock_filter> {
    let first = skip_if(libc::BPF_JEQ, number as u32, 0, body.len() as u8);
    std::iter::once(first).chain(body.iter().copied())
}

/// Refuses these values of the argument at this offset.
fn refusing(argument: u32, values: &[u32]) -> Vec<sock_filter> {
    let each = values.iter().flat_map(|value| [skip_if(libc::BPF_JEQ, *value, 0, 1), REFUSE]);
    std::iter::once(load(argument)).chain(each).chain([ALLOW]).collect()
}

/// Refuses two ways of opening a file. `flags` and `mode` are the offsets of the call's arguments.
///
/// * Creating one with a set-user-ID, set-group-ID or sticky bit: who executes it would run as its owner.
/// * `O_TRUNC` without write access. Linux truncates even then, and Landlock does not control truncation before 6.2.
fn opening(flags: u32, mode: u32) -> [sock_filter; 11] {
    /// Only with these flags is there a mode; without them, the register may have any value.
    const CREATES: u32 = (libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY)) as u32;
    const SPECIAL_BITS: u32 = 0o7000;
    let access_mode = sock_filter {
        code: (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: libc::O_ACCMODE as u32,
    };
    [
        load(flags),
        skip_if(libc::BPF_JSET, CREATES, 0, 3),
        load(mode),
        skip_if(libc::BPF_JSET, SPECIAL_BITS, 6, 0),
        load(flags),
        skip_if(libc::BPF_JSET, libc::O_TRUNC as u32, 0, 3),
        access_mode,
        skip_if(libc::BPF_JEQ, libc::O_WRONLY as u32, 1, 0),
        skip_if(libc::BPF_JEQ, libc::O_RDWR as u32, 0, 1),
        ALLOW,
        REFUSE,
    ]
}

/// Refuses memory that `RLIMIT_DATA` does not count: anonymous memory that can be shared, which is a file of tmpfs, and
/// stacks. Allocators map private memory, and libgit2 maps files. `MAP_SHARED_VALIDATE` has the bit of `MAP_SHARED`.
const COUNTED_MEMORY: [sock_filter; 6] = [
    load(FOURTH_ARGUMENT),
    skip_if(libc::BPF_JSET, libc::MAP_GROWSDOWN as u32, 2, 0),
    skip_if(libc::BPF_JSET, libc::MAP_SHARED as u32, 0, 2),
    skip_if(libc::BPF_JSET, libc::MAP_ANONYMOUS as u32, 0, 1),
    REFUSE,
    ALLOW,
];

/// Allows only the ioctls of terminals and pipes, which C libraries use (all are `0x54..`). Those of file systems set
/// attributes, and on btrfs make directories, without asking Landlock.
const NO_ATTRIBUTES: [sock_filter; 5] = [
    load(SECOND_ARGUMENT),
    skip_if(libc::BPF_JGE, 0x5400, 0, 2),
    skip_if(libc::BPF_JGE, 0x5500, 1, 0),
    ALLOW,
    REFUSE,
];

/// The flags with which `clone` makes namespaces: CLONE_NEWNS, and from CLONE_NEWCGROUP to CLONE_NEWNET. It has none
/// for a time namespace.
const NAMESPACES: u32 = 0x7e02_0000;

/// Allows `clone` only to start a thread.
const THREAD: [sock_filter; 5] = [
    load(FIRST_ARGUMENT),
    skip_if(libc::BPF_JSET, NAMESPACES, 2, 0),
    skip_if(libc::BPF_JSET, libc::CLONE_THREAD as u32, 0, 1),
    ALLOW,
    REFUSE,
];

/// The rules for calls that are allowed only with some arguments, in the process with the id `own`.
fn by_arguments(own: u32) -> Vec<sock_filter> {
    // A process may signal itself, as abort(3) does. The process id 0 means the caller to prlimit(2), but the caller's
    // whole process group to kill(2), so it is allowed only to the former.
    let to_itself = [load(FIRST_ARGUMENT), skip_if(libc::BPF_JEQ, own, 0, 1), ALLOW, REFUSE];
    // The third argument points to a new limit. Null, in both halves, only reads the limit.
    let own_limits = [
        load(FIRST_ARGUMENT),
        skip_if(libc::BPF_JEQ, own, 1, 0),
        skip_if(libc::BPF_JEQ, 0, 0, 5),
        load(THIRD_ARGUMENT),
        skip_if(libc::BPF_JEQ, 0, 0, 3),
        load(THIRD_ARGUMENT + 4),
        skip_if(libc::BPF_JEQ, 0, 0, 1),
        ALLOW,
        REFUSE,
    ];
    let mut rules: Vec<_> = on(libc::SYS_mmap, &COUNTED_MEMORY).collect();
    rules.extend(on(SYS_openat, &opening(THIRD_ARGUMENT, FOURTH_ARGUMENT)));
    #[cfg(target_arch = "x86_64")]
    rules.extend(on(libc::SYS_open, &opening(SECOND_ARGUMENT, THIRD_ARGUMENT)));
    rules.extend(on(SYS_openat2, &[ABSENT])); // its flags are in memory that a filter cannot read
    rules.extend(on(SYS_fcntl, &refusing(SECOND_ARGUMENT, REFUSED_COMMANDS)));
    rules.extend(on(libc::SYS_ioctl, &NO_ATTRIBUTES));
    rules.extend(on(libc::SYS_prctl, &refusing(FIRST_ARGUMENT, REFUSED_SETTINGS)));
    for number in [SYS_kill, SYS_tkill, SYS_tgkill] {
        rules.extend(on(number, &to_itself));
    }
    rules.extend(on(SYS_prlimit64, &own_limits));
    rules.extend(on(SYS_clone, &THREAD));
    rules.extend(on(SYS_clone3, &[ABSENT]));
    rules
}

/// Builds the filter for the process with the id `own`.
fn filter(own: u32) -> Vec<sock_filter> {
    let mut filter = vec![
        load(ARCHITECTURE),
        skip_if(libc::BPF_JEQ, ARCH, 1, 0),
        REFUSE,
        load(NUMBER),
        skip_if(libc::BPF_JGE, UNKNOWN, 0, 1),
        ABSENT,
    ];
    filter.extend(by_arguments(own)); // first: their answers are not cached by the kernel, and mmap is frequent
    for number in REFUSED.iter().chain(OLD) {
        filter.extend(on(*number, &[REFUSE]));
    }
    filter.push(ALLOW);
    filter
}

/// Whether the kernel has seccomp filters.
#[expect(unsafe_code, reason = "prctl(PR_SET_SECCOMP) has no safe form")]
pub(super) fn is_supported() -> bool {
    let none = std::ptr::null::<sock_fprog>();
    // SAFETY: the kernel only reads through the pointer. The null pointer is the probe: a kernel with filters fails
    // with EFAULT, any other with EINVAL, and neither changes anything.
    let _ = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, none) };
    io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
}

/// Installs the filter for this thread and all threads that it starts from now on. It cannot be removed.
#[expect(unsafe_code, reason = "prctl(PR_SET_SECCOMP) has no safe form")]
pub(super) fn install_filter() -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?; // required of unprivileged processes
    let mut filter = filter(std::process::id());
    let program = sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program lives until after the call; the kernel validates and copies it.
    let done = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
