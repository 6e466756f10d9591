//! The only place that reads time.

use std::time::Duration;

use jiff::Timestamp;

/// One reading of every clock that decisions use, so that rules take time as an argument.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Now {
    /// Wall clock: for names and for people.
    pub wall: Timestamp,
    /// `CLOCK_BOOTTIME`: cannot be set, and runs through suspend.
    pub boottime: Duration,
    /// Which boot `boottime` belongs to.
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

/// The kernel's id of this boot, read once; empty where `/proc` is not mounted. An empty id equals no other: whatever
/// rests on "the same boot" is then not trusted ([`crate::generation::Record::is_trusted`]).
fn boot_id() -> String {
    static ID: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    ID.get_or_init(|| {
        fs_err::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
    })
    .clone()
}
