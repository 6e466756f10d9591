//! Derives ceilings from the container's memory limit. The kernel kills a process that exceeds the limit, so work that
//! does not fit is refused instead: a plan of ConfigMaps whose values are too large and, where the root is on tmpfs
//! (whose pages are charged to the container that wrote them), a revision whose files are too large.

use rustix::process::{Resource, getrlimit};

use crate::config::Settings;
use crate::fsx::is_in_memory;
use crate::human;

/// What a process keeps equal to the remote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Content {
    /// A root.
    Root,
    /// ConfigMaps.
    Rules,
    /// A root and ConfigMaps.
    Both,
}

/// Bytes of memory reserved for the process itself: docs/sizing.md, "Memory".
const RESERVED: u64 = 128 << 20;

/// The files in which a container sees its own memory limit: cgroup version 2, then version 1.
const LIMIT_FILES: [&str; 2] = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];

/// Cgroup version 1 writes "no limit" as a huge number; from this many bytes on a limit counts as none.
const UNLIMITED: u64 = 1 << 60;

/// The container's memory limit in bytes; `None` if it has none or cannot be read.
fn container_limit() -> Option<u64> {
    let limit = LIMIT_FILES.iter().find_map(|path| std::fs::read_to_string(path).ok()?.trim().parse().ok());
    limit.filter(|bytes| *bytes < UNLIMITED)
}

/// The ceiling in bytes on the keys and values of one plan of ConfigMaps; `None` if neither the container nor the
/// process (`ulimit -d`) has a memory limit. `has_root`: the process publishes into a root, too.
pub fn plan_limit(has_root: bool) -> Option<u64> {
    let limit = container_limit().into_iter().chain(getrlimit(Resource::Data).current).min()?;
    Some(plan_share(limit, has_root))
}

/// The share of one plan. As much again is for the last plan, which is held while the next one is made. The rest, a
/// third, is for a root in memory; without a root, a quarter for the mirror.
fn plan_share(limit: u64, has_root: bool) -> u64 {
    let room = room(limit);
    if has_root { room / 3 } else { (room - room / 4) / 2 }
}

/// What a memory limit leaves beside the process itself.
fn room(limit: u64) -> u64 {
    limit - RESERVED.min(limit / 2)
}

/// Lowers `--max-bytes`, `--max-mirror-bytes` and `--max-fetch-bytes` to what the container has memory for, where root
/// or mirror are in memory. Returns a warning that names the lowered ceilings, if there are any. Blocking.
pub(super) fn lower_ceilings(settings: &mut Settings, content: Content) -> Option<String> {
    let limit = container_limit()?;
    let root = content != Content::Rules && is_in_memory(&settings.store.root);
    let mirror = is_in_memory(&settings.mirror.dir);
    let (for_root, for_mirror) = shares(limit, content);
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
            "{} is on tmpfs and this container's memory limit is {}: {}; a higher memory limit raises them",
            if root { &settings.store.root } else { &settings.mirror.dir }.display(),
            human::bytes(limit),
            lowered.join(", ")
        )
    })
}

/// The ceilings of generations and of a mirror in memory: half and an eighth of their room. For while it is renewed, a
/// mirror takes up to two and a half times its ceiling, and what one fetch may bring (docs/sizing.md, "Disk"). With
/// rules they have what [`plan_share`] leaves.
fn shares(limit: u64, content: Content) -> (u64, u64) {
    let room = match content {
        Content::Root => room(limit),
        Content::Both => room(limit) / 3,
        Content::Rules => return (0, room(limit) / 14),
    };
    (room / 2, room / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_generations_and_mirror_may_take_leaves_room_for_the_process() {
        let mib = |bytes: u64| bytes >> 20;
        for (limit, expected) in [(64, (16, 4)), (256, (64, 16)), (640, (256, 64))] {
            let (root, mirror) = shares(limit << 20, Content::Root);
            assert_eq!((mib(root), mib(mirror)), expected);
            for (content, has_root) in [(Content::Both, true), (Content::Rules, false)] {
                let (root, mirror) = shares(limit << 20, content);
                let taken = root + 7 * mirror / 2 + 2 * plan_share(limit << 20, has_root);
                assert!(taken <= room(limit << 20), "{limit} MiB, {content:?}: {taken}");
            }
        }
    }
}
