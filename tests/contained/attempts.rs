//! The attempts of the hostile child.
#![allow(unsafe_code)] // they are system calls, most of which have no safe form

use std::ffi::{CString, OsString};
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::path::{Path, PathBuf};

use libc::{EACCES, EBADF, EFAULT, EINVAL, ENOSYS, ENOTTY, EOPNOTSUPP, EPERM, EXDEV, c_long};
use serde::{Deserialize, Serialize};

use Outcome::{Done, Errno, NeverReturned};

/// Which attempt the child makes, and on what.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Scene {
    /// The attempt's name.
    pub(crate) escape: String,
    pub(crate) mirror: PathBuf,
    /// A directory outside of the mirror.
    pub(crate) outside: PathBuf,
    /// A file in it.
    pub(crate) secret: PathBuf,
    /// The parent listens there, at the socket `outside/socket`, and at the abstract socket named like `outside`.
    pub(crate) tcp: SocketAddr,
    pub(crate) parent: u32,
    /// The address of a secret in the parent's memory.
    pub(crate) memory: usize,
    /// A descriptor that the parent left open.
    pub(crate) left_open: i32,
}

impl Scene {
    pub(crate) fn packs(&self) -> PathBuf {
        super::packs(&self.mirror)
    }

    /// The file into which the child writes the [`Outcome`].
    pub(crate) fn outcome(&self) -> PathBuf {
        self.packs().join("outcome")
    }

    pub(crate) fn write(&self) {
        fs::write(self.mirror.join("scene.json"), serde_json::to_string(self).unwrap()).unwrap();
    }
}

/// The scene, if the process is the child; `args` are its arguments.
pub(crate) fn scene(args: &[OsString]) -> Option<Scene> {
    #[derive(Deserialize)]
    struct Job {
        dir: PathBuf,
    }
    let job: Job = serde_json::from_str(args.get(1)?.to_str()?).ok()?;
    Some(serde_json::from_slice(&fs::read(job.dir.join("scene.json")).unwrap()).unwrap())
}

/// Makes the attempt, records its outcome and exits. `limited` says whether the child could enter the sandbox.
pub(crate) fn run(scene: &Scene, limited: io::Result<()>) -> ! {
    limited.unwrap();
    let all = ESCAPES.iter().chain([&THREADS, &OWN_SIGNALS, &ABORT]);
    let escape = all.into_iter().find(|escape| escape.name == scene.escape).expect("it is one of them");
    let record = |outcome: Outcome| {
        let text = serde_json::to_string(&outcome).unwrap();
        fs::write(scene.outcome(), text).unwrap();
    };
    record(NeverReturned);
    record(match (escape.run)(scene) {
        Ok(()) => Done,
        Err(error) => Errno(error.raw_os_error().unwrap_or(0)),
    });
    std::process::exit(0)
}

/// What came of an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// It succeeded.
    Done,
    /// It failed with this errno.
    Errno(i32),
    /// The process became another program, or ended.
    NeverReturned,
}

pub(crate) struct Escape {
    pub(crate) name: &'static str,
    /// The errnos that count as a refusal.
    refusals: &'static [i32],
    /// The outcomes that show, without the sandbox, that nothing else refuses it.
    pub(crate) unconfined: &'static [Outcome],
    run: fn(&Scene) -> io::Result<()>,
}

/// An attempt that succeeds without the sandbox.
const fn escape(name: &'static str, run: fn(&Scene) -> io::Result<()>) -> Escape {
    Escape { name, refusals: &[EPERM, EACCES], unconfined: &[Done], run }
}

impl Escape {
    pub(crate) fn is_refused(&self, outcome: Outcome) -> bool {
        matches!(outcome, Errno(errno) if self.refusals.contains(&errno))
    }

    /// Without the sandbox, the outcome is one of these.
    const fn unconfined(self, unconfined: &'static [Outcome]) -> Self {
        Self { unconfined, ..self }
    }

    /// This errno counts as a refusal, too.
    const fn or(self, errno: i32) -> Self {
        let refusals = match errno {
            EXDEV => &[EPERM, EACCES, EXDEV],
            EBADF => &[EPERM, EACCES, EBADF],
            ENOSYS => &[EPERM, EACCES, ENOSYS],
            _ => panic!("add it here"),
        };
        Self { refusals, ..self }
    }
}

/// Makes a system call by its number, so that no library emulates it. Each argument is widened: the kernel reads whole
/// registers, and an `i32` among variadic arguments need not fill one.
macro_rules! call {
    ($number:ident $(, $argument:expr)*) => {
        answer(unsafe { libc::syscall(libc::$number $(, $argument as c_long)*) })
    };
}

fn answer(returned: c_long) -> io::Result<()> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes a pipe, has `own` choose who gets the signals about its input, and writes to it.
fn signal_at_input(own: impl FnOnce(i32) -> io::Result<()>) -> io::Result<()> {
    let (end, mut input) = io::pipe()?;
    call!(SYS_fcntl, end.as_raw_fd(), F_SETSIG, libc::SIGCONT)?;
    own(end.as_raw_fd())?;
    call!(SYS_fcntl, end.as_raw_fd(), libc::F_SETFL, libc::O_ASYNC)?;
    input.write_all(b"x")
}

/// Maps more memory than the limit allows, and touches none of it.
fn map_beyond_the_limit(flags: i32) -> io::Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Data).maximum.expect("it is set");
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = flags | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    call!(SYS_mmap, std::ptr::null::<u8>(), limit + 1, access, flags, -1, 0)
}

/// Makes fcntl(2) do this with a file that others open, too.
fn command_about_a_file(scene: &Scene, command: i32, argument: c_long) -> io::Result<()> {
    let file = fs::File::open(scene.mirror.join("config"))?;
    call!(SYS_fcntl, file.as_raw_fd(), command, argument)
}

/// Commands that `libc` does not define.
const F_SETSIG: i32 = 10;
const F_SETOWN_EX: i32 = 15;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;

fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// An address at which nothing is mapped: a call that reads from it fails with EFAULT.
const NOWHERE: *const libc::c_char = std::ptr::without_provenance(8);

pub(crate) const THREADS: Escape = escape("start a thread", |_| {
    let thread = std::thread::Builder::new().spawn(|| ())?;
    thread.join().map_err(|_| io::Error::other("it panicked"))
});

pub(crate) const OWN_SIGNALS: Escape = escape("send a signal to itself", |_| {
    let own = std::process::id() as i32;
    call!(SYS_kill, own, libc::SIGURG)?;
    call!(SYS_tgkill, own, own, libc::SIGURG)?;
    call!(SYS_tkill, own, libc::SIGURG)
});

pub(crate) const ABORT: Escape = escape("abort", |_| std::process::abort());

pub(crate) const ESCAPES: &[Escape] = &[
    // Files.
    escape("make a file", |scene| fs::write(scene.outside.join("new"), "x")),
    escape("write over a file", |scene| OpenOptions::new().write(true).open(&scene.secret).map(drop)),
    escape("empty a file by opening it", |scene| {
        let flags = libc::O_TRUNC;
        answer(unsafe { libc::open(c(&scene.secret).as_ptr(), libc::O_RDONLY | flags) }.into())
    }),
    escape("empty a file", |scene| call!(SYS_truncate, c(&scene.secret).as_ptr(), 0)),
    escape("remove a file", |scene| fs::remove_file(&scene.secret)),
    escape("read a file", |scene| fs::read(&scene.secret).map(drop)),
    escape("read /etc/passwd", |_| fs::read("/etc/passwd").map(drop)),
    escape("read through a link in the mirror", |scene| fs::read(scene.packs().join("planted")).map(drop)),
    escape("read through /proc/self/root", |scene| {
        let path = scene.secret.strip_prefix("/").unwrap();
        fs::read(Path::new("/proc/self/root").join(path)).map(drop)
    }),
    escape("read through ..", |scene| fs::read(scene.mirror.join("../outside/secret")).map(drop)),
    escape("list a directory", |scene| fs::read_dir(&scene.outside).map(drop)),
    escape("watch a directory", |scene| {
        let watcher = unsafe { libc::syscall(libc::SYS_inotify_init1, 0) };
        answer(watcher)?;
        call!(SYS_inotify_add_watch, watcher, c(&scene.outside).as_ptr(), libc::IN_ALL_EVENTS)
    }),
    escape("watch a directory by what was left open", |scene| {
        call!(SYS_inotify_add_watch, scene.left_open, c(&scene.outside).as_ptr(), libc::IN_ALL_EVENTS)
    })
    .unconfined(&[Errno(EINVAL)]), // the descriptor is no inotify instance
    escape("write to shared memory", |_| {
        let path = Path::new("/dev/shm").join(format!("treeswap-escape-{}", std::process::id()));
        fs::write(&path, "x")?;
        fs::remove_file(&path)
    }),
    escape("change a mode", |scene| fs::set_permissions(&scene.secret, fs::Permissions::from_mode(0o666))),
    escape("change the mode of an open directory", |scene| {
        let dir = fs::File::open(scene.packs())?;
        call!(SYS_fchmod, dir.as_raw_fd(), dir.metadata()?.permissions().mode())
    }),
    escape("make a program that runs as its owner", |scene| {
        let path = scene.packs().join("owner");
        OpenOptions::new().write(true).create_new(true).mode(0o4755).open(path).map(drop)
    }),
    escape("change an owner", |scene| {
        let (own, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        std::os::unix::fs::lchown(&scene.secret, Some(own), Some(group))
    }),
    escape("change a time", |scene| {
        call!(SYS_utimensat, libc::AT_FDCWD, c(&scene.secret).as_ptr(), std::ptr::null::<libc::timespec>(), 0)
    }),
    escape("set an attribute", |scene| {
        call!(SYS_setxattr, c(&scene.secret).as_ptr(), c"user.treeswap".as_ptr(), c"x".as_ptr(), 1, 0)
    })
    .unconfined(&[Done, Errno(EOPNOTSUPP)]), // tmpfs has had such attributes since Linux 6.6
    escape("set the flags of an open directory", |scene| {
        let dir = fs::File::open(scene.packs())?;
        call!(SYS_ioctl, dir.as_raw_fd(), FS_IOC_SETFLAGS, NOWHERE)
    })
    .unconfined(&[Errno(EFAULT), Errno(ENOTTY)]), // not every file system has flags
    escape("lock a file", |scene| {
        let file = fs::File::open(scene.mirror.join("config"))?;
        call!(SYS_flock, file.as_raw_fd(), libc::LOCK_SH | libc::LOCK_NB)
    }),
    escape("lock a part of a file", |scene| {
        let whole: libc::flock = unsafe { std::mem::zeroed() }; // F_RDLCK, from the first byte to the last
        command_about_a_file(scene, libc::F_SETLK, &raw const whole as c_long)
    }),
    escape("take a lease, for which others wait", |scene| {
        command_about_a_file(scene, libc::F_SETLEASE, 9999)
    })
    .unconfined(&[Errno(EINVAL)]), // there is no such lease
    escape("watch an open directory", |scene| {
        let dir = fs::File::open(scene.packs())?;
        call!(SYS_fcntl, dir.as_raw_fd(), libc::F_NOTIFY, 0)
    })
    .unconfined(&[Done, Errno(EINVAL)]), // a kernel can be built without it
    escape("take space beyond the limit of a file", |scene| {
        let file = fs::File::create(scene.packs().join("large"))?;
        call!(SYS_fallocate, file.as_raw_fd(), libc::FALLOC_FL_KEEP_SIZE, 0, 1)
    })
    .unconfined(&[Done, Errno(EOPNOTSUPP)]), // not every file system has it
    escape("name_to_handle_at", |scene| {
        let (mut handle, mut mount) = ([128_u32; 64], 0_i32);
        handle[0] = 128;
        let path = c(&scene.secret);
        call!(SYS_name_to_handle_at, libc::AT_FDCWD, path.as_ptr(), handle.as_mut_ptr(), &raw mut mount, 0)
    })
    .unconfined(&[Done, Errno(EOPNOTSUPP)]), // not every file system has handles: overlayfs does not by default
    // Files of the mirror that are not objects.
    escape("write the mirror's configuration", |scene| {
        OpenOptions::new().append(true).open(scene.mirror.join("config")).map(drop)
    }),
    escape("replace the mirror's configuration", |scene| {
        fs::write(scene.packs().join("config"), "[core]\n")?;
        fs::rename(scene.packs().join("config"), scene.mirror.join("config"))
    })
    .or(EXDEV),
    escape("name other object directories", |scene| {
        fs::write(scene.mirror.join("objects/info/alternates"), "/other/objects\n")
    }),
    escape("write a ref", |scene| fs::write(scene.mirror.join("refs/heads/planted"), "0\n")),
    escape("make a loose object", |scene| fs::write(scene.mirror.join("objects/planted"), "x")),
    escape("make a directory", |scene| fs::create_dir(scene.packs().join("dir"))),
    escape("make a link", |scene| std::os::unix::fs::symlink(&scene.secret, scene.packs().join("link"))),
    escape("make a FIFO", |scene| {
        let path = c(&scene.packs().join("pipe"));
        call!(SYS_mknodat, libc::AT_FDCWD, path.as_ptr(), libc::S_IFIFO | 0o600, 0)
    }),
    escape("take in another's file", |scene| fs::hard_link(&scene.secret, scene.packs().join("taken")))
        .or(EXDEV),
    escape("move a file out", |scene| {
        fs::write(scene.packs().join("moved"), "x")?;
        fs::rename(scene.packs().join("moved"), scene.outside.join("moved"))
    })
    .or(EXDEV),
    escape("read from what was left open", |scene| {
        let mut file = std::mem::ManuallyDrop::new(unsafe { fs::File::from_raw_fd(scene.left_open) });
        file.read_exact(&mut [0])
    })
    .or(EBADF),
    // The network, and this machine's sockets.
    escape("connect", |scene| TcpStream::connect(scene.tcp).map(drop)),
    escape("listen", |_| TcpListener::bind("127.0.0.1:0").map(drop)),
    escape("send a datagram", |scene| UdpSocket::bind("127.0.0.1:0")?.send_to(b"x", scene.tcp).map(drop)),
    escape("connect to a socket in a directory", |scene| {
        UnixStream::connect(scene.outside.join("socket")).map(drop)
    }),
    escape("connect to an abstract socket", |scene| {
        let name = scene.outside.display().to_string();
        let address = <UnixAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(name)?;
        UnixStream::connect_addr(&address).map(drop)
    }),
    escape("make a pair of sockets", |_| UnixStream::pair().map(drop)),
    // Other programs.
    escape("execve", |_| {
        let arguments = [c"true".as_ptr(), std::ptr::null()];
        call!(SYS_execve, c"/bin/true".as_ptr(), arguments.as_ptr(), std::ptr::null::<*const i8>())
    })
    .unconfined(&[NeverReturned]),
    escape("become a program of its own making", |scene| {
        let path = scene.packs().join("program");
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o755).open(&path)?;
        file.write_all(b"#!/bin/true\n")?;
        drop(file);
        let (path, none) = (c(&path), std::ptr::null::<*const i8>());
        call!(
            SYS_execveat,
            libc::AT_FDCWD,
            path.as_ptr(),
            [path.as_ptr(), std::ptr::null()].as_ptr(),
            none,
            0
        )
    })
    .unconfined(&[NeverReturned]),
    escape("run a program", |_| std::process::Command::new("/bin/true").status().map(drop)).or(ENOSYS),
    escape("fork", |_| match unsafe { libc::fork() } {
        0 => unsafe { libc::_exit(0) },
        child => answer(child.into()),
    }),
    escape("fork with clone3", |_| {
        let mut arguments = [0_u64; 8]; // struct clone_args
        arguments[4] = libc::SIGCHLD as u64;
        match unsafe { libc::syscall(libc::SYS_clone3, arguments.as_ptr(), size_of_val(&arguments)) } {
            0 => unsafe { libc::_exit(0) },
            child => answer(child),
        }
    })
    .or(ENOSYS),
    escape("start a thread with a network of its own", |_| {
        call!(SYS_clone, libc::CLONE_THREAD | libc::CLONE_NEWNET, 0, 0, 0, 0)
    })
    .unconfined(&[Errno(EINVAL)]), // CLONE_THREAD needs CLONE_SIGHAND
    // Other processes.
    escape("send the parent a signal", |scene| call!(SYS_kill, scene.parent, libc::SIGCONT)),
    escape("send the parent's thread a signal", |scene| {
        call!(SYS_tgkill, scene.parent, scene.parent, libc::SIGCONT)
    }),
    escape("send a thread of another a signal", |scene| call!(SYS_tkill, scene.parent, libc::SIGCONT)),
    escape("make the kernel signal the parent", |scene| {
        signal_at_input(|end| call!(SYS_fcntl, end, libc::F_SETOWN, scene.parent))
    }),
    escape("make the kernel signal the parent's thread", |scene| {
        let owner = [0, scene.parent]; // struct f_owner_ex, F_OWNER_TID
        signal_at_input(|end| call!(SYS_fcntl, end, F_SETOWN_EX, owner.as_ptr()))
    }),
    escape("send its group a signal", |_| call!(SYS_kill, 0, 0)),
    escape("open the parent", |scene| call!(SYS_pidfd_open, scene.parent, 0)),
    escape("debug the parent", |scene| call!(SYS_ptrace, libc::PTRACE_SEIZE, scene.parent, 0, 0)),
    escape("read the parent's memory", |scene| {
        let mut copy = [0_u8; 16];
        let to = libc::iovec { iov_base: copy.as_mut_ptr().cast(), iov_len: copy.len() };
        let from = std::ptr::without_provenance_mut(scene.memory);
        let from = libc::iovec { iov_base: from, iov_len: copy.len() };
        call!(SYS_process_vm_readv, scene.parent, &raw const to, 1, &raw const from, 1, 0)
    }),
    escape("open the parent's memory", |scene| {
        fs::File::open(format!("/proc/{}/mem", scene.parent)).map(drop)
    }),
    escape("read the parent's environment", |scene| {
        fs::read(format!("/proc/{}/environ", scene.parent)).map(drop)
    }),
    escape("read the parent's arguments", |scene| {
        fs::read(format!("/proc/{}/cmdline", scene.parent)).map(drop)
    }),
    escape("read the parent's resource limits", |scene| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        let none = std::ptr::null::<libc::rlimit>();
        call!(SYS_prlimit64, scene.parent, libc::RLIMIT_CORE, none, &raw mut limit)
    }),
    escape("set the parent's priority", |scene| call!(SYS_setpriority, libc::PRIO_PROCESS, scene.parent, 0)),
    escape("look at memory that processes share", |_| call!(SYS_shmctl, -1, libc::IPC_STAT, 0))
        .unconfined(&[Errno(EINVAL)]), // there is no segment -1
    // Its own limits.
    escape("map shared memory beyond the limit", |_| map_beyond_the_limit(libc::MAP_SHARED)),
    escape("map a stack beyond the limit", |_| map_beyond_the_limit(libc::MAP_PRIVATE | libc::MAP_GROWSDOWN)),
    escape("make a file of memory", |_| call!(SYS_memfd_create, c"treeswap".as_ptr(), 0)),
    escape("make a file of secret memory", |_| call!(SYS_memfd_secret, 1))
        .unconfined(&[Errno(EINVAL), Errno(ENOSYS)]), // there is no such flag; it may also be turned off
    escape("set a limit of its own", |_| {
        let (limit, none) = (libc::rlimit { rlim_cur: 0, rlim_max: 0 }, std::ptr::null::<libc::rlimit>());
        call!(SYS_prlimit64, 0, libc::RLIMIT_CORE, &raw const limit, none)
    }),
    escape("set a limit of its own by the older call", |_| {
        let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        call!(SYS_setrlimit, libc::RLIMIT_CORE, &raw const limit)
    }),
    escape("outlive the parent", |_| call!(SYS_prctl, libc::PR_SET_PDEATHSIG, 0, 0, 0, 0)),
    escape("let its memory be dumped", |_| call!(SYS_prctl, libc::PR_SET_DUMPABLE, 1, 0, 0, 0)),
    escape("use up asynchronous I/O", |_| call!(SYS_io_setup, 1, NOWHERE))
        .unconfined(&[Errno(EFAULT), Errno(ENOSYS)]),
    escape("use up the user's watches", |_| call!(SYS_epoll_create1, 0)),
    // The kernel. The arguments are wrong, so that nothing happens on a kernel that does not refuse the call.
    escape("mount", |_| call!(SYS_mount, NOWHERE, NOWHERE, NOWHERE, 0, 0)).unconfined(&[Errno(EFAULT)]),
    escape("leave its namespaces", |_| call!(SYS_unshare, 1)).unconfined(&[Errno(EINVAL)]),
    escape("enter a namespace", |_| call!(SYS_setns, -1, 0)).unconfined(&[Errno(EBADF)]),
    // These may also be ENOSYS: a kernel can be built without them.
    escape("load a program into the kernel", |_| call!(SYS_bpf, 9999, [0_u64; 4].as_ptr(), 32))
        .unconfined(&[Errno(EINVAL), Errno(ENOSYS)]),
    escape("use io_uring", |_| call!(SYS_io_uring_setup, 1, NOWHERE))
        .unconfined(&[Errno(EFAULT), Errno(ENOSYS)]),
    escape("use the kernel keyring", |_| call!(SYS_keyctl, 9999, 0, 0, 0, 0))
        .unconfined(&[Errno(EOPNOTSUPP), Errno(ENOSYS)]),
    escape("open a performance counter", |_| call!(SYS_perf_event_open, NOWHERE, 0, -1, -1, 0))
        .unconfined(&[Errno(EFAULT), Errno(ENOSYS)]),
    escape("use userfaultfd", |_| call!(SYS_userfaultfd, 0x101)).unconfined(&[Errno(EINVAL), Errno(ENOSYS)]),
    escape("become the user that it is", |_| call!(SYS_setuid, rustix::process::getuid().as_raw())),
    escape("ask for its personality", |_| call!(SYS_personality, u32::MAX)),
];
