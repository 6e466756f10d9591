//! Reads the clocks that decisions depend on, and detects steps of the wall clock.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

/// One reading of all clocks, which is passed to the pure rules as an argument.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Now {
    /// The wall clock, for generation names and for people.
    pub wall: Timestamp,
    /// `CLOCK_BOOTTIME`: nobody can set it, and it includes time in suspend.
    pub boottime: Duration,
    /// The kernel's id of the boot that `boottime` counts from.
    pub boot_id: String,
}

/// Reads the clocks.
pub fn now() -> Now {
    let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Now {
        wall: Timestamp::now(),
        boottime: Duration::new(boot.tv_sec.unsigned_abs(), boot.tv_nsec.unsigned_abs() as u32),
        boot_id: boot_id(),
    }
}

/// `CLOCK_MONOTONIC`, on which timers run: nobody can set it, and it stands still in suspend.
pub fn monotonic() -> Duration {
    let at = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(at.tv_sec.unsigned_abs(), at.tv_nsec.unsigned_abs() as u32)
}

/// The kernel's id of this boot, read once; empty if `/proc` is not mounted. Callers must not treat two empty ids as
/// the same boot ([`crate::generation::GenerationRecord::is_trusted`] does not).
fn boot_id() -> String {
    static ID: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    ID.get_or_init(|| {
        fs_err::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
    })
    .clone()
}

/// Counts how many times the wall clock was set (`settimeofday(2)`, a step by an NTP daemon, a resume). Timestamps of
/// inodes are only comparable as long as it was not. Slewing never runs backwards and is not counted.
#[derive(Debug)]
pub struct ClockSteps {
    /// A timer that never fires; a read fails with ECANCELED after each step (timerfd_create(2),
    /// `TFD_TIMER_CANCEL_ON_SET`).
    timer: OwnedFd,
    /// The steps counted so far.
    seen: AtomicU64,
}

impl ClockSteps {
    /// Starts counting. Fails if the kernel has no such timers.
    pub fn watch() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Realtime, flags)?;
        let never = Timespec { tv_sec: 1 << 33, tv_nsec: 0 }; // the year 2242
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: never };
        timerfd_settime(&timer, TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET, &once)?;
        Ok(Self { timer, seen: AtomicU64::new(0) })
    }

    /// The number of steps so far. Two steps between calls may count as one.
    pub fn count(&self) -> u64 {
        match rustix::io::read(&self.timer, &mut [0; 8]) {
            Err(Errno::AGAIN | Errno::INTR) => self.seen.load(Ordering::SeqCst),
            // ECANCELED is a step. Any other result was never seen; counting it as a step is the safe side.
            _ => self.seen.fetch_add(1, Ordering::SeqCst) + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_of_the_clock_is_counted_once() {
        assert_eq!(ClockSteps::watch().unwrap().count(), 0, "nobody set it");
        // Setting the clock is not for a test. Whatever ends a read otherwise than by "nothing happened" is a step.
        let flags = rustix::event::EventfdFlags::NONBLOCK;
        let steps = ClockSteps { timer: rustix::event::eventfd(1, flags).unwrap(), seen: AtomicU64::new(0) };
        assert_eq!((steps.count(), steps.count()), (1, 1));
    }
}
