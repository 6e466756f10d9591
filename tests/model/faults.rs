//! The faults of a life: kills, failing system calls, a sick remote, a full disk, clock changes, foreign writes.

use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;

use crate::common::Random;
use crate::judge::Judge;
use crate::life::Life;
use crate::port::{Cut, Relay, behaviour};
use crate::tracer::{Act, Trace};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// SIGKILL, then a new start.
    Kill,
    /// SIGTERM, then a new start.
    Term,
    /// A run that is killed before one of its system calls.
    KillAtCall,
    /// A run in which one system call fails.
    ErrorOfCall,
    /// The remote is unreachable.
    Gone,
    /// The remote's ref, or bytes of its answers, are garbage.
    Rubbish,
    /// The connection is cut, hangs or is slow.
    Sick,
    /// The disk is full or nearly full.
    Full,
    /// A new start with clocks in the past or the future.
    Clock,
    /// SIGSTOP for longer than the grace period.
    Stop,
    /// A foreign write into a generation: a file is added, edited, chmodded or removed, or a directory replaced.
    Write,
    /// A foreign write, some steps later, to a file that was opened now.
    LateWrite,
}

const KINDS: [(Kind, usize); 12] = [
    (Kind::Kill, 5),
    (Kind::Term, 2),
    (Kind::KillAtCall, 2),
    (Kind::ErrorOfCall, 2),
    (Kind::Gone, 2),
    (Kind::Rubbish, 3),
    (Kind::Sick, 3),
    (Kind::Full, 4),
    (Kind::Clock, 2),
    (Kind::Stop, 2),
    (Kind::Write, 6),
    (Kind::LateWrite, 1),
];

#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub kind: Kind,
    /// The time after the last push.
    pub delay: Duration,
    pub lasts: Duration,
    pub number: usize,
}

impl Fault {
    pub fn random(random: &mut Random) -> Self {
        let mut chance = random.below(KINDS.iter().map(|(_, weight)| weight).sum());
        let (kind, _) = KINDS
            .into_iter()
            .find(|(_, weight)| {
                let hit = chance < *weight;
                chance = chance.saturating_sub(*weight);
                hit
            })
            .unwrap();
        let most = if random.below(3) == 0 { 2_000 } else { 45_000 };
        let delay = Duration::from_micros(random.below(most) as u64);
        let lasts = Duration::from_millis(random.below(80) as u64);
        Self { kind, delay, lasts, number: random.below(1 << 20) }
    }
}

/// What the spare is made of, which decides whether generations share files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spare {
    /// New files.
    New,
    /// Hard links to the files of the current generation.
    Links,
    /// The files of a retired generation.
    UsedAgain,
}

/// Errors that any system call may return.
const ERRORS: [i32; 5] = [libc::ENOSPC, libc::EIO, libc::EACCES, libc::EMFILE, libc::EROFS];

/// Carries out the fault. On return its cause is gone, but its effects may remain.
pub fn happen(fault: &Fault, life: &mut Life<'_>) {
    std::thread::sleep(fault.delay);
    let number = fault.number;
    match fault.kind {
        Kind::Kill => {
            life.service.kill();
            life.start();
        }
        Kind::Term => {
            life.service.terminate();
            life.start();
        }
        Kind::KillAtCall => call(fault, life, Act::Kill),
        Kind::ErrorOfCall => call(fault, life, Act::Fail(ERRORS[number % ERRORS.len()])),
        Kind::Gone => {
            let remotes = Arc::clone(&life.remotes);
            let away = remotes[number % remotes.len()].away();
            lasts(fault, life);
            drop(away);
        }
        Kind::Rubbish => rubbish(fault, life),
        Kind::Sick => sick(fault, life),
        Kind::Full => {
            let fill = life.judge.root.with_file_name("fill");
            let disk = rustix::fs::statvfs(life.judge.root.parent().unwrap()).unwrap();
            let left = if number.is_multiple_of(5) { 0 } else { (number % 50) as u64 * 4096 };
            let size = (disk.f_bavail * disk.f_frsize).saturating_sub(left);
            let file = std::fs::File::create(&fill).unwrap();
            let all = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, size.max(1));
            assert!(all.is_ok() || all == Err(rustix::io::Errno::NOSPC), "filling the disk: {all:?}");
            lasts(fault, life);
            std::fs::remove_file(fill).unwrap();
        }
        Kind::Clock => {
            if number.is_multiple_of(2) {
                life.service.kill();
            } else {
                life.service.terminate();
            }
            let steps: [i64; 6] = [-86_400 * 400, -3_600, -1, 2, 3_600, 86_400 * 400];
            life.service.wall = steps[number / 2 % 6];
            // CLOCK_BOOTTIME does not go back within a boot.
            life.service.boot = life.service.boot.max([0, 60, 90_000, 40_000_000][number / 12 % 4]);
            life.start();
        }
        Kind::Stop => {
            life.service.signal(Signal::STOP);
            std::thread::sleep(fault.lasts * 3);
            life.service.signal(Signal::CONT);
        }
        Kind::Write => write(number, &life.judge, life.spare()),
        Kind::LateWrite => {
            if life.spare() != Spare::Links
                && let Some(late) = LateWrite::open(number, &life.judge)
            {
                life.late.push(late);
            }
        }
    }
}

/// Waits for the duration of the fault, in the middle of which the program is sometimes restarted.
fn lasts(fault: &Fault, life: &mut Life<'_>) {
    if fault.number.is_multiple_of(3) {
        std::thread::sleep(fault.lasts / 2);
        life.service.kill();
        life.start();
    }
    std::thread::sleep(fault.lasts);
}

/// Runs the program once instead of the service, with the fault at a random system call.
fn call(fault: &Fault, life: &mut Life<'_>, act: Act) {
    life.service.kill();
    let command = life.command(&["--one-time"]);
    let root = &life.judge.root;
    let dir = life.world.dir();
    let limit = Duration::from_secs(60);
    let at = 1 + fault.number / 8 % 160;
    // On a separate thread, because a tracer waits for all children of its thread.
    let traced = std::thread::scope(|scope| {
        scope.spawn(|| Trace { limit, ..Trace::at(root, at, act) }.run(command, dir)).join().unwrap()
    });
    assert!(!traced.unwrap().timed_out, "a run with {act:?} at call {at} does not end");
    life.start();
}

fn rubbish(fault: &Fault, life: &mut Life<'_>) {
    let number = fault.number;
    if let Some(port) = &life.port {
        let to = life.behind.as_ref().unwrap().address;
        let at = number / 4 % 4_000;
        port.behave(match number % 4 {
            0 => behaviour(|mut client| client.write_all(b"HTTP/1.1 200 OK\r\n\r\n<html>")),
            1 => behaviour(|mut client| client.write_all(&[b'0'; 70_000])),
            _ => behaviour(move |client| flipping(client, TcpStream::connect(to)?, at)),
        });
        lasts(fault, life);
        life.heal();
        return;
    }
    let which = number % life.remotes.len();
    let text = match number / 4 % 4 {
        0 => String::new(),
        1 => "rubbish\n".into(),
        2 => format!("{number:040x}\n"),
        _ => "ref: refs/heads/main\n".into(),
    };
    life.set_ref(which, &text);
    lasts(fault, life);
    let right = life.named[which].clone();
    life.set_ref(which, &right);
}

/// Relays a connection, and flips one bit of the server's answer at offset `at`.
fn flipping(mut client: TcpStream, mut server: TcpStream, at: usize) -> std::io::Result<()> {
    let mut from = client.try_clone()?;
    let mut to = server.try_clone()?;
    std::thread::spawn(move || std::io::copy(&mut from, &mut to));
    let mut passed = 0;
    let mut buffer = [0; 4096];
    loop {
        let came = server.read(&mut buffer)?;
        if (passed..passed + came).contains(&at) {
            buffer[at - passed] ^= 1 << (at % 8);
        }
        passed += came;
        if came == 0 {
            return client.shutdown(std::net::Shutdown::Both);
        }
        client.write_all(&buffer[..came])?;
    }
}

fn sick(fault: &Fault, life: &mut Life<'_>) {
    let Some(port) = &life.port else {
        // A local path cannot hang, so its objects are made unreachable.
        let objects = life.remotes[fault.number % life.remotes.len()].path.join("objects");
        let aside = objects.with_extension("away");
        std::fs::rename(&objects, &aside).unwrap();
        lasts(fault, life);
        return std::fs::rename(aside, objects).unwrap();
    };
    let to = life.behind.as_ref().unwrap().address;
    let at = (fault.number / 4 % 3_000) as u64;
    let pause = Some(Duration::from_millis(1));
    port.behave(match fault.number % 4 {
        0 => behaviour(|mut client| client.read_to_end(&mut Vec::new()).map(drop)),
        1 => Relay { pause, ..Relay::all(to) }.behaviour(),
        2 => Relay::cut_at(to, at, Cut::Reset).behaviour(),
        _ => Relay::cut_at(to, at, Cut::Fin).behaviour(),
    });
    lasts(fault, life);
    life.heal();
}

/// The paths of all files, or of all directories, below a directory.
fn paths(dir: &Path, directories: bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            found.extend(paths(&entry.path(), directories));
        }
        if kind.is_dir() == directories && !kind.is_symlink() {
            found.push(entry.path());
        }
    }
    found.sort();
    found
}

/// One of these paths, chosen by the number.
fn picked(dir: &Path, directories: bool, number: usize) -> Option<PathBuf> {
    let all = paths(dir, directories);
    all.get(number % all.len().max(1)).cloned()
}

/// Writes into the generation that was seen last, without a pin, so that it may be removed meanwhile.
fn write(number: usize, judge: &Judge, spare: Spare) {
    let Some(name) = judge.last() else { return };
    let dir = judge.directory(&name);
    let mut kept = judge.writing.lock().unwrap();
    judge.mark_tampered(&name);
    let pick = number / 5;
    // If the spare is made of links, generations share files, and an edit would change several of them.
    let role = if spare == Spare::Links { [0, 0, 4, 3, 4][number % 5] } else { number % 5 };
    let _gone: Option<std::io::Result<()>> = match role {
        0 => {
            let parent = picked(&dir, true, pick).unwrap_or(dir);
            Some(std::fs::write(parent.join("foreign"), "foreign"))
        }
        1 => picked(&dir, false, pick).map(|file| {
            let file = OpenOptions::new().write(true).open(file)?;
            file.write_all_at(b"foreign", 0)?;
            if !judge.mark_tampered_file(&file) && spare == Spare::UsedAgain {
                kept.push(file);
            }
            Ok(())
        }),
        2 => picked(&dir, pick.is_multiple_of(2), pick / 2).map(|path| {
            let mode = [0o600, 0o777, 0o700, 0o4755][pick % 4];
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        }),
        3 => picked(&dir, false, pick).map(std::fs::remove_file),
        _ => picked(&dir, true, pick).map(|path| {
            std::fs::rename(&path, judge.root.with_file_name("taken"))?;
            std::fs::create_dir(&path)?;
            std::fs::write(path.join("foreign"), "foreign")
        }),
    };
    let _ = std::fs::remove_dir_all(judge.root.with_file_name("taken"));
}

/// A file of a generation that is open for writing.
pub struct LateWrite {
    file: std::fs::File,
    /// The number of steps until it is written to.
    pub steps: usize,
}

impl LateWrite {
    fn open(number: usize, judge: &Judge) -> Option<Self> {
        let dir = judge.directory(&judge.last()?);
        let file = OpenOptions::new().write(true).open(picked(&dir, false, number / 32)?).ok()?;
        Some(Self { file, steps: 1 + number % 32 })
    }

    /// Writes to the file, and marks the generation that contains it now: if generations are recycled, that may be a
    /// newer one.
    pub fn write(self, judge: &Judge, spare: Spare) {
        let mut kept = judge.writing.lock().unwrap();
        let _ = self.file.write_all_at(b"late", 0);
        if !judge.mark_tampered_file(&self.file) && spare == Spare::UsedAgain {
            kept.push(self.file);
        }
    }
}
