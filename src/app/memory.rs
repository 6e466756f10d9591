//! What the memory limit has room for. A process that uses more than its limit is killed, so what is too large is
//! refused instead: a plan with more values than fit, and, where the root is in memory and counts as the container's
//! that wrote it, a revision with more files.

use rustix::process::{Resource, getrlimit};

use crate::config::Settings;
use crate::fsx::is_in_memory;
use crate::human;

/// What the process itself may need beside what it keeps: docs/sizing.md, "Memory".
const OWN: u64 = 128 << 20;

/// Where a container sees its own limit: cgroup version 2, then 1.
const LIMITS: [&str; 2] = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];

/// Version 1 has a number for no limit, too, and no machine has so much.
const NONE: u64 = 1 << 60;

/// The container's limit.
fn of_container() -> Option<u64> {
    let limit = LIMITS.iter().find_map(|path| std::fs::read_to_string(path).ok()?.trim().parse().ok());
    limit.filter(|bytes| *bytes < NONE)
}

/// Bytes of memory for the keys and values of one plan, where the container or the process itself (`ulimit -d`) has a
/// limit. The last plan is held while the next one is made.
pub fn of_plan() -> Option<u64> {
    let limit = of_container().into_iter().chain(getrlimit(Resource::Data).current).min()?;
    Some(limit.saturating_sub(OWN.min(limit / 2)) / 3)
}

/// Lowers the ceilings to what there is memory for; in words, if any was higher. Blocking.
pub(super) fn bound(settings: &mut Settings) -> Option<String> {
    let limit = of_container()?;
    let root = is_in_memory(&settings.store.root);
    let mirror = is_in_memory(&settings.mirror.dir);
    let (for_root, for_mirror) = shares(limit);
    let mut lowered = Vec::new();
    let mut lower = |applies: bool, flag: &str, ceiling: &mut u64, most: u64| {
        if applies && *ceiling > most {
            *ceiling = most;
            lowered.push(format!("{flag} is {}", human::bytes(most)));
        }
    };
    let mut bytes = settings.store.retention.max_bytes.unwrap_or(u64::MAX);
    lower(root, "--max-bytes", &mut bytes, for_root);
    lower(mirror, "--max-mirror-bytes", &mut settings.mirror.max_bytes, for_mirror);
    lower(mirror, "--max-fetch-bytes", &mut settings.mirror.wire.max_fetch_bytes, for_mirror);
    settings.store.retention.max_bytes = (bytes != u64::MAX).then_some(bytes);
    (!lowered.is_empty()).then(|| {
        format!(
            "{} is in memory, of which this container may use {}: {}; a higher limit of the container raises them",
            settings.store.root.display(),
            human::bytes(limit),
            lowered.join(", ")
        )
    })
}

/// Of the container's limit: what generations and what the mirror may take, as three quarters and one quarter.
fn shares(limit: u64) -> (u64, u64) {
    let room = limit - OWN.min(limit / 2);
    (room - room / 4, room / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_generations_and_mirror_may_take_leaves_room_for_the_process() {
        let mib = |bytes: u64| bytes >> 20;
        for (limit, expected) in [(64, (24, 8)), (256, (96, 32)), (640, (384, 128))] {
            let (root, mirror) = shares(limit << 20);
            assert_eq!((mib(root), mib(mirror)), expected);
        }
    }
}
