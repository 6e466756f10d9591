//! What goes wrong in between.

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
    /// SIGKILL at a moment, and a new start.
    Kill,
    /// SIGTERM, and a new start.
    Term,
    /// A run that is killed before one of its system calls.
    KillAtCall,
    /// A run of which one system call fails.
    ErrorOfCall,
    /// The remote is away.
    Gone,
    /// The remote answers rubbish: its ref, or bytes of the connection.
    Rubbish,
    /// The connection is cut, hangs, or is slow.
    Sick,
    /// No room on the disk, or a little.
    Full,
    /// A new start, by other clocks: this long ago, or in the future.
    Clock,
    /// SIGSTOP across the grace period, while the ref moves.
    Stop,
    /// Somebody writes into a generation: adds a file, edits one, chmods, removes, replaces a directory.
    Write,
    /// Somebody who had a file open writes to it, some time later.
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
    /// After the last push.
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

/// What the next generation is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spare {
    /// New files only.
    New,
    /// Links to the files of the one before.
    Links,
    /// The files of one that nobody uses any more.
    UsedAgain,
}

/// Errors that a system call may have at any time.
const ERRORS: [i32; 5] = [libc::ENOSPC, libc::EIO, libc::EACCES, libc::EMFILE, libc::EROFS];

/// Makes it happen; when this returns the cause is gone, and what it did may remain.
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
            // The time since a boot does not go back in it.
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

/// The fault goes on for its time, in which sometimes a new start comes as well.
fn lasts(fault: &Fault, life: &mut Life<'_>) {
    if fault.number.is_multiple_of(3) {
        std::thread::sleep(fault.lasts / 2);
        life.service.kill();
        life.start();
    }
    std::thread::sleep(fault.lasts);
}

/// One run with the fault at a call by chance, instead of the service.
fn call(fault: &Fault, life: &mut Life<'_>, act: Act) {
    life.service.kill();
    let command = life.command(&["--one-time"]);
    let (root, dir) = (&life.judge.root, life.world.dir());
    let limit = Duration::from_secs(60);
    let at = 1 + fault.number / 8 % 160;
    // A thread of its own: a tracer waits for every child of its thread.
    let traced = std::thread::scope(|scope| {
        scope.spawn(|| Trace { limit, ..Trace::at(root, at, act) }.run(command, dir)).join().unwrap()
    });
    assert!(!traced.unwrap().timed_out, "a run with {act:?} at call {at} does not end");
    life.start();
}

fn rubbish(fault: &Fault, life: &mut Life<'_>) {
    let number = fault.number;
    if let Some(port) = &life.port {
        let (to, at) = (life.behind.as_ref().unwrap().address, number / 4 % 4_000);
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

/// One bit of what the server says is another one.
fn flipping(client: TcpStream, server: TcpStream, at: usize) -> std::io::Result<()> {
    let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
    std::thread::spawn(move || std::io::copy(&mut from, &mut to));
    let (mut server, mut client, mut passed) = (server, client, 0);
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
        // A local path cannot hang: its objects are out of reach.
        let objects = life.remotes[fault.number % life.remotes.len()].path.join("objects");
        let aside = objects.with_extension("away");
        std::fs::rename(&objects, &aside).unwrap();
        lasts(fault, life);
        return std::fs::rename(aside, objects).unwrap();
    };
    let (to, at) = (life.behind.as_ref().unwrap().address, (fault.number / 4 % 3_000) as u64);
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

/// Everything below a directory, relative to it.
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

fn picked(dir: &Path, directories: bool, number: usize) -> Option<PathBuf> {
    let all = paths(dir, directories);
    all.get(number % all.len().max(1)).cloned()
}

/// Somebody writes into the generation that was seen last, who neither pins nor asks. It may go away meanwhile.
fn write(number: usize, judge: &Judge, spare: Spare) {
    let Some(name) = judge.last() else { return };
    let dir = judge.directory(&name);
    let mut kept = judge.writing.lock().unwrap();
    judge.is_tampered_with(&name);
    let pick = number / 5;
    // A file that two generations share, as they do where the spare is made of links, cannot be spoilt in one of them.
    let role = if spare == Spare::Links { [0, 0, 4, 3, 4][number % 5] } else { number % 5 };
    let _gone: Option<std::io::Result<()>> = match role {
        0 => {
            let parent = picked(&dir, true, pick).unwrap_or(dir);
            Some(std::fs::write(parent.join("foreign"), "foreign"))
        }
        1 => picked(&dir, false, pick).map(|file| {
            let file = OpenOptions::new().write(true).open(file)?;
            file.write_all_at(b"foreign", 0)?;
            if !judge.note(&file) && spare == Spare::UsedAgain {
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

/// A file of a generation that somebody has open.
pub struct LateWrite {
    file: std::fs::File,
    /// Steps until it is written.
    pub steps: usize,
}

impl LateWrite {
    fn open(number: usize, judge: &Judge) -> Option<Self> {
        let dir = judge.directory(&judge.last()?);
        let file = OpenOptions::new().write(true).open(picked(&dir, false, number / 32)?).ok()?;
        Some(Self { file, steps: 1 + number % 32 })
    }

    /// Writes, and notes what it has written into. Where a generation's files are used again it may be the next one.
    pub fn write(self, judge: &Judge, spare: Spare) {
        let mut kept = judge.writing.lock().unwrap();
        let _ = self.file.write_all_at(b"late", 0);
        if !judge.note(&self.file) && spare == Spare::UsedAgain {
            kept.push(self.file);
        }
    }
}
