//! What the process tries.
#![allow(unsafe_code)] // what is tried are system calls, most of which have no safe form

use std::ffi::{CString, OsString};
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::FromRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::path::{Path, PathBuf};

use libc::{EACCES, EBADF, ENOSYS, EPERM, EXDEV, c_long};
use serde::{Deserialize, Serialize};

/// What is tried, and where.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) attempt: String,
    pub(crate) mirror: PathBuf,
    /// A directory that is not the mirror's.
    pub(crate) outside: PathBuf,
    /// A file in it.
    pub(crate) secret: PathBuf,
    /// Somebody listens there; and at the socket `outside/socket`, and at the abstract one of the directory's name.
    pub(crate) tcp: SocketAddr,
    pub(crate) parent: u32,
    /// Where in the parent's memory something is.
    pub(crate) memory: usize,
    pub(crate) left_open: i32,
}

impl Plan {
    pub(crate) fn packs(&self) -> PathBuf {
        super::packs(&self.mirror)
    }

    /// What became of it.
    pub(crate) fn outcome(&self) -> PathBuf {
        self.packs().join("outcome")
    }

    pub(crate) fn write(&self) {
        fs::write(self.mirror.join("plan.json"), serde_json::to_string(self).unwrap()).unwrap();
    }
}

/// The plan, if the process is to carry one out.
pub(crate) fn plan(args: &[OsString]) -> Option<Plan> {
    #[derive(Deserialize)]
    struct Job {
        dir: PathBuf,
    }
    let job: Job = serde_json::from_str(args.get(1)?.to_str()?).ok()?;
    Some(serde_json::from_slice(&fs::read(job.dir.join("plan.json")).unwrap()).unwrap())
}

/// Tries, and never returns.
pub(crate) fn run(plan: &Plan, limited: io::Result<()>) -> ! {
    limited.unwrap();
    let all = ATTEMPTS.iter().chain([&THREADS, &OWN_SIGNALS, &ABORT]);
    let attempt = all.into_iter().find(|attempt| attempt.name == plan.attempt).expect("it is known");
    fs::write(plan.outcome(), "does not come back").unwrap();
    let outcome = match (attempt.run)(plan) {
        Ok(()) => "done".to_owned(),
        Err(error) => format!("refused: {}", error.raw_os_error().unwrap_or(0)),
    };
    fs::write(plan.outcome(), outcome).unwrap();
    std::process::exit(0)
}

pub(crate) struct Attempt {
    pub(crate) name: &'static str,
    /// What counts as a refusal. Other failures are those of a kernel that would do it.
    pub(crate) refusals: &'static [i32],
    run: fn(&Plan) -> io::Result<()>,
}

const fn attempt(name: &'static str, run: fn(&Plan) -> io::Result<()>) -> Attempt {
    Attempt { name, refusals: &[EPERM, EACCES], run }
}

/// A system call by its number, which libraries cannot hide. Arguments are taken for what they are.
macro_rules! call {
    ($number:ident $(, $argument:expr)*) => {
        answer(unsafe { libc::syscall(libc::$number $(, $argument)*) })
    };
}

fn answer(returned: c_long) -> io::Result<()> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// No pointer: a kernel that looks at it says EFAULT.
const NOWHERE: *const libc::c_char = std::ptr::without_provenance(8);

pub(crate) const THREADS: Attempt = attempt("start a thread", |_| {
    let thread = std::thread::Builder::new().spawn(|| ())?;
    thread.join().map_err(|_| io::Error::other("it panicked"))
});

pub(crate) const OWN_SIGNALS: Attempt = attempt("send a signal to itself", |_| {
    let own = std::process::id() as i32;
    call!(SYS_kill, own, libc::SIGURG)?;
    call!(SYS_tgkill, own, own, libc::SIGURG)?;
    call!(SYS_tkill, own, libc::SIGURG)
});

pub(crate) const ABORT: Attempt = attempt("abort", |_| std::process::abort());

pub(crate) const ATTEMPTS: &[Attempt] = &[
    // Files.
    attempt("make a file", |plan| fs::write(plan.outside.join("new"), "x")),
    attempt("write over a file", |plan| OpenOptions::new().write(true).open(&plan.secret).map(drop)),
    attempt("empty a file by opening it", |plan| {
        let flags = libc::O_TRUNC;
        answer(unsafe { libc::open(c(&plan.secret).as_ptr(), libc::O_RDONLY | flags) }.into())
    }),
    attempt("empty a file", |plan| call!(SYS_truncate, c(&plan.secret).as_ptr(), 0)),
    attempt("remove a file", |plan| fs::remove_file(&plan.secret)),
    attempt("read a file", |plan| fs::read(&plan.secret).map(drop)),
    attempt("read /etc/passwd", |_| fs::read("/etc/passwd").map(drop)),
    attempt("read through a link in the mirror", |plan| fs::read(plan.packs().join("planted")).map(drop)),
    attempt("read through /proc/self/root", |plan| {
        let path = plan.secret.strip_prefix("/").unwrap();
        fs::read(Path::new("/proc/self/root").join(path)).map(drop)
    }),
    attempt("read through ..", |plan| fs::read(plan.mirror.join("../outside/secret")).map(drop)),
    attempt("list a directory", |plan| fs::read_dir(&plan.outside).map(drop)),
    attempt("write to shared memory", |_| {
        let path = Path::new("/dev/shm").join(format!("treeswap-attempt-{}", std::process::id()));
        fs::write(&path, "x")?;
        fs::remove_file(&path)
    }),
    attempt("change a mode", |plan| fs::set_permissions(&plan.secret, fs::Permissions::from_mode(0o666))),
    attempt("change an owner", |plan| {
        let (own, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        std::os::unix::fs::lchown(&plan.secret, Some(own), Some(group))
    }),
    attempt("change a time", |plan| {
        call!(SYS_utimensat, libc::AT_FDCWD, c(&plan.secret).as_ptr(), std::ptr::null::<libc::timespec>(), 0)
    }),
    attempt("set an attribute", |plan| {
        call!(SYS_setxattr, c(&plan.secret).as_ptr(), c"user.treeswap".as_ptr(), c"x".as_ptr(), 1, 0)
    }),
    attempt("learn a file's handle", |plan| {
        let (mut handle, mut mount) = ([128_u32; 64], 0_i32);
        handle[0] = 128;
        let path = c(&plan.secret);
        call!(SYS_name_to_handle_at, libc::AT_FDCWD, path.as_ptr(), handle.as_mut_ptr(), &raw mut mount, 0)
    }),
    // Files of the mirror that are no objects.
    attempt("write the mirror's configuration", |plan| {
        OpenOptions::new().append(true).open(plan.mirror.join("config")).map(drop)
    }),
    attempt("replace the mirror's configuration", |plan| {
        fs::write(plan.packs().join("config"), "[core]\n")?;
        fs::rename(plan.packs().join("config"), plan.mirror.join("config"))
    })
    .or(EXDEV),
    attempt("name other object directories", |plan| {
        fs::write(plan.mirror.join("objects/info/alternates"), "/other/objects\n")
    }),
    attempt("write a ref", |plan| fs::write(plan.mirror.join("refs/heads/planted"), "0\n")),
    attempt("make a loose object", |plan| fs::write(plan.mirror.join("objects/planted"), "x")),
    attempt("make a directory", |plan| fs::create_dir(plan.packs().join("dir"))),
    attempt("make a link", |plan| std::os::unix::fs::symlink(&plan.secret, plan.packs().join("link"))),
    attempt("make a pipe with a name", |plan| {
        let path = c(&plan.packs().join("pipe"));
        call!(SYS_mknodat, libc::AT_FDCWD, path.as_ptr(), libc::S_IFIFO | 0o600, 0)
    }),
    attempt("take in another's file", |plan| fs::hard_link(&plan.secret, plan.packs().join("taken")))
        .or(EXDEV),
    attempt("move a file out", |plan| {
        fs::write(plan.packs().join("moved"), "x")?;
        fs::rename(plan.packs().join("moved"), plan.outside.join("moved"))
    })
    .or(EXDEV),
    attempt("read from what was left open", |plan| {
        let mut file = std::mem::ManuallyDrop::new(unsafe { fs::File::from_raw_fd(plan.left_open) });
        file.read_exact(&mut [0])
    })
    .or(EBADF),
    // The network, and this machine's sockets.
    attempt("connect", |plan| TcpStream::connect(plan.tcp).map(drop)),
    attempt("listen", |_| TcpListener::bind("127.0.0.1:0").map(drop)),
    attempt("send a datagram", |plan| UdpSocket::bind("127.0.0.1:0")?.send_to(b"x", plan.tcp).map(drop)),
    attempt("connect to a socket in a directory", |plan| {
        UnixStream::connect(plan.outside.join("socket")).map(drop)
    }),
    attempt("connect to a socket without a directory", |plan| {
        let name = plan.outside.display().to_string();
        let address = <UnixAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(name)?;
        UnixStream::connect_addr(&address).map(drop)
    }),
    attempt("make a pair of sockets", |_| UnixStream::pair().map(drop)),
    // Other programs.
    attempt("become another program", |_| {
        let arguments = [c"true".as_ptr(), std::ptr::null()];
        call!(SYS_execve, c"/bin/true".as_ptr(), arguments.as_ptr(), std::ptr::null::<*const i8>())
    }),
    attempt("become a program of its own making", |plan| {
        let path = plan.packs().join("program");
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
    }),
    attempt("run a program", |_| std::process::Command::new("/bin/true").status().map(drop)).or(ENOSYS),
    attempt("fork", |_| match unsafe { libc::fork() } {
        0 => unsafe { libc::_exit(0) },
        child => answer(child.into()),
    }),
    attempt("start a process in the newer way", |_| {
        let mut arguments = [0_u64; 8]; // struct clone_args
        arguments[4] = libc::SIGCHLD as u64;
        match unsafe { libc::syscall(libc::SYS_clone3, arguments.as_ptr(), size_of_val(&arguments)) } {
            0 => unsafe { libc::_exit(0) },
            child => answer(child),
        }
    })
    .or(ENOSYS),
    attempt("start a thread with a network of its own", |_| {
        // CLONE_THREAD without what has to come with it is EINVAL to a kernel that looks.
        call!(SYS_clone, libc::CLONE_THREAD | libc::CLONE_NEWNET, 0, 0, 0, 0)
    }),
    // Other processes.
    attempt("send the parent a signal", |plan| call!(SYS_kill, plan.parent, libc::SIGCONT)),
    attempt("send the parent's thread a signal", |plan| {
        call!(SYS_tgkill, plan.parent, plan.parent, libc::SIGCONT)
    }),
    attempt("send a thread of another a signal", |plan| call!(SYS_tkill, plan.parent, libc::SIGCONT)),
    attempt("send its group a signal", |_| call!(SYS_kill, 0, 0)),
    attempt("open the parent", |plan| call!(SYS_pidfd_open, plan.parent, 0)),
    attempt("debug the parent", |plan| call!(SYS_ptrace, libc::PTRACE_SEIZE, plan.parent, 0, 0)),
    attempt("read the parent's memory", |plan| {
        let mut copy = [0_u8; 16];
        let to = libc::iovec { iov_base: copy.as_mut_ptr().cast(), iov_len: copy.len() };
        let from = std::ptr::without_provenance_mut(plan.memory);
        let from = libc::iovec { iov_base: from, iov_len: copy.len() };
        call!(SYS_process_vm_readv, plan.parent, &raw const to, 1, &raw const from, 1, 0)
    }),
    attempt("open the parent's memory", |plan| {
        fs::File::open(format!("/proc/{}/mem", plan.parent)).map(drop)
    }),
    attempt("read the parent's environment", |plan| {
        fs::read(format!("/proc/{}/environ", plan.parent)).map(drop)
    }),
    attempt("read the parent's arguments", |plan| {
        fs::read(format!("/proc/{}/cmdline", plan.parent)).map(drop)
    }),
    attempt("lower the parent's limits", |plan| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        let none = std::ptr::null::<libc::rlimit>();
        call!(SYS_prlimit64, plan.parent, libc::RLIMIT_CORE, none, &raw mut limit)
    }),
    attempt("lower the parent's priority", |plan| call!(SYS_setpriority, libc::PRIO_PROCESS, plan.parent, 0)),
    attempt("look at memory that processes share", |_| call!(SYS_shmctl, -1, libc::IPC_STAT, 0)),
    // The kernel. Arguments are wrong, so that one that would do it says so: none of it is done.
    attempt("mount", |_| call!(SYS_mount, NOWHERE, NOWHERE, NOWHERE, 0, 0)),
    attempt("leave its namespaces", |_| call!(SYS_unshare, 1)),
    attempt("enter a namespace", |_| call!(SYS_setns, -1, 0)),
    attempt("load a program into the kernel", |_| call!(SYS_bpf, 9999, [0_u64; 4].as_ptr(), 32)),
    attempt("use io_uring", |_| call!(SYS_io_uring_setup, 1, NOWHERE)),
    attempt("use keys", |_| call!(SYS_keyctl, 9999, 0, 0, 0, 0)),
    attempt("measure", |_| call!(SYS_perf_event_open, NOWHERE, 0, -1, -1, 0)),
    attempt("handle page faults", |_| call!(SYS_userfaultfd, 0x101)),
    attempt("become the user that it is", |_| call!(SYS_setuid, rustix::process::getuid().as_raw())),
    attempt("ask for its personality", |_| call!(SYS_personality, u32::MAX)),
];

impl Attempt {
    /// This is a refusal, too.
    const fn or(self, errno: i32) -> Self {
        let refusals = match errno {
            EXDEV => &[EPERM, EACCES, EXDEV],
            EBADF => &[EPERM, EACCES, EBADF],
            _ => &[EPERM, EACCES, ENOSYS],
        };
        Self { refusals, ..self }
    }
}
