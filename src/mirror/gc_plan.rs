//! Plans garbage collection from the sizes of packs. Pure.

use std::time::Duration;

use super::layout::Pack;

/// A mirror of up to this many bytes is not renewed because of garbage: it would not be worth a fetch.
const RENEWAL_MIN: u64 = 64 << 20;

/// A pack is large if it has at least this fraction (1/16) of all bytes. Large packs are not merged.
const LARGE_FRACTION: u64 = 16;

/// A pack below this many bytes is always small.
const SMALL: u64 = 1 << 20;

/// A child process copies at least so many bytes in a second, the search for deltas included.
const BYTES_PER_SECOND: u64 = 1 << 20;

/// How long a child process may take that copies packs of so many bytes. A fetch, which may take `overall`, brings
/// little; here all that was ever fetched may be rewritten, and what was cut short would begin anew each time.
pub(crate) fn time_limit(overall: Duration, bytes: u64) -> Duration {
    overall.saturating_add(Duration::from_secs(bytes / BYTES_PER_SECOND))
}

/// What is to be done about the packs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum GcPlan {
    /// Nothing.
    Nothing,
    /// Merge these packs into one.
    Merge(Vec<String>),
    /// Let the next fetch bring everything, and remove all older packs.
    Renew {
        /// The bytes of all packs.
        bytes: u64,
    },
}

/// Plans what to do. `fresh` is the size in bytes of the mirror when it was last complete and without garbage, if
/// known.
pub(super) fn plan_gc(packs: &[Pack], fresh: Option<u64>, max_packs: u32, max_bytes: u64) -> GcPlan {
    let bytes: u64 = packs.iter().map(|pack| pack.bytes).sum();
    let least = fresh.unwrap_or_else(|| packs.iter().map(|pack| pack.bytes).max().unwrap_or(0));
    let grown = bytes > least.saturating_mul(3).max(RENEWAL_MIN);
    // A repository whose own size is near the limit must not be fetched repeatedly, so there must be some garbage. If
    // `fresh` is unknown, even a single pack may be garbage; after one collection it is known.
    let over = bytes > max_bytes && fresh.is_none_or(|fresh| has_outgrown(bytes, fresh));
    // Merging failed repeatedly, or there were always readers.
    let crowded = packs.len() as u64 > u64::from(max_packs) * 4;
    if grown || over || crowded {
        return GcPlan::Renew { bytes };
    }
    too_many(packs, max_packs).map_or(GcPlan::Nothing, GcPlan::Merge)
}

/// Returns true if a mirror of so many bytes has grown by more than half since it was without garbage, when it had
/// `fresh` bytes. After a collection it has not, whatever its size.
pub(super) fn has_outgrown(bytes: u64, fresh: u64) -> bool {
    bytes > fresh.saturating_add(fresh / 2)
}

/// Returns the small packs, which should be merged, if there are more than `max_packs` packs.
pub(super) fn too_many(packs: &[Pack], max_packs: u32) -> Option<Vec<String>> {
    let bytes: u64 = packs.iter().map(|pack| pack.bytes).sum();
    let small = packs.iter().filter(|pack| pack.bytes < SMALL.max(bytes / LARGE_FRACTION));
    let small: Vec<_> = small.map(|pack| pack.name.clone()).collect();
    (packs.len() > max_packs as usize && small.len() > 1).then_some(small)
}

/// How much of a pack is needed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PackUsage {
    pub(super) name: String,
    /// The bytes of its objects.
    pub(super) bytes: u64,
    /// The bytes of its needed objects.
    pub(super) needed: u64,
    /// The pack must not be removed or rewritten, because it has a `.keep` file.
    pub(super) pinned: bool,
}

/// Which packs to remove and to rewrite.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct RepackPlan {
    /// Packs without needed objects, to be removed.
    pub(super) gone: Vec<String>,
    /// Packs to be removed after their needed objects are copied into a new pack.
    pub(super) rewrite: Vec<String>,
}

/// Plans which packs to rewrite. A large pack is kept as long as three quarters of it are needed: copying it for every
/// commit would cost more than it frees.
pub(super) fn plan_repack(packs: &[PackUsage], one_pack: bool, max_packs: u32) -> RepackPlan {
    let total: u64 = packs.iter().map(|pack| pack.bytes).sum();
    let mut plan = RepackPlan::default();
    let (gone, rest): (Vec<_>, Vec<_>) =
        packs.iter().filter(|pack| !pack.pinned).partition(|pack| pack.needed == 0);
    plan.gone = gone.into_iter().map(|pack| pack.name.clone()).collect();
    let is_small = |pack: &PackUsage| pack.bytes < SMALL.max(total / LARGE_FRACTION);
    let crowded = rest.len() > max_packs as usize;
    let garbage = |pack: &PackUsage| pack.bytes - pack.needed;
    let is_worthwhile =
        |pack: &PackUsage| garbage(pack) > 0 && (is_small(pack) || garbage(pack) > pack.bytes / 4);
    let rewrite: Vec<_> = rest
        .into_iter()
        .filter(|pack| one_pack || is_worthwhile(pack) || crowded && is_small(pack))
        .collect();
    // A single pack without garbage is left alone: rewriting it would change nothing.
    if rewrite.len() > 1 || rewrite.iter().any(|pack| garbage(pack) > 0) {
        plan.rewrite = rewrite.into_iter().map(|pack| pack.name.clone()).collect();
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packs(sizes: &[u64]) -> Vec<Pack> {
        sizes.iter().enumerate().map(|(n, bytes)| Pack { name: format!("pack-{n}"), bytes: *bytes }).collect()
    }

    #[test]
    fn a_large_mirror_is_given_the_time_that_it_takes_to_copy_it() {
        let overall = Duration::from_millis(300);
        assert_eq!(time_limit(overall, 1 << 10), overall);
        assert_eq!(time_limit(Duration::from_secs(120), 10 << 30), Duration::from_secs(120 + 10 * 1024));
        assert_eq!(time_limit(Duration::MAX, u64::MAX), Duration::MAX);
    }

    fn usage(packs: &[(u64, u64)]) -> Vec<PackUsage> {
        let name = |n| format!("pack-{n}");
        let each = packs.iter().enumerate();
        each.map(|(n, (bytes, needed))| PackUsage {
            name: name(n),
            bytes: *bytes,
            needed: *needed,
            pinned: false,
        })
        .collect()
    }

    #[test]
    fn packs_are_rewritten_for_what_it_gives_back() {
        let plan = |packs: &[(u64, u64)]| plan_repack(&usage(packs), false, 50);
        let mb = 1 << 20;
        let is = |gone: &[&str], rewrite: &[&str]| RepackPlan {
            gone: gone.iter().map(ToString::to_string).collect(),
            rewrite: rewrite.iter().map(ToString::to_string).collect(),
        };
        assert_eq!(plan(&[(60 * mb, 60 * mb), (1_000, 1_000)]), is(&[], &[]), "nothing is garbage");
        assert_eq!(plan(&[(60 * mb, 60 * mb), (1_000, 0)]), is(&["pack-1"], &[]));
        assert_eq!(plan(&[(60 * mb, 59 * mb), (1_000, 900)]), is(&[], &["pack-1"]), "the large one stays");
        assert_eq!(plan(&[(60 * mb, 40 * mb), (1_000, 1_000)]), is(&[], &["pack-0"]));
    }

    #[test]
    fn one_pack_is_made_of_all_unless_it_is_one() {
        let one = |packs: &[(u64, u64)]| plan_repack(&usage(packs), true, 50).rewrite.len();
        assert_eq!((one(&[(9, 9), (8, 8)]), one(&[(9, 9)]), one(&[(9, 8)])), (2, 0, 1));
    }

    #[test]
    fn many_packs_become_one_and_one_that_somebody_pinned_stays() {
        let mut packs = usage(&[(10, 10); 60]);
        packs[7].pinned = true;
        packs[8] = PackUsage { pinned: true, needed: 0, ..packs[8].clone() };
        let plan = plan_repack(&packs, false, 50);
        assert_eq!((plan.rewrite.len(), plan.gone.len()), (58, 0));
    }

    #[test]
    fn few_packs_are_left_alone() {
        assert_eq!(plan_gc(&packs(&[60 << 20, 1_000, 1_000]), Some(60 << 20), 50, 4 << 30), GcPlan::Nothing);
    }

    #[test]
    fn small_packs_become_one_and_large_ones_stay() {
        let mut sizes = vec![1_000; 60];
        sizes.push(60 << 20);
        sizes.push(20 << 20);
        let GcPlan::Merge(names) = plan_gc(&packs(&sizes), Some(60 << 20), 50, 4 << 30) else {
            panic!("no merge")
        };
        assert_eq!(names.len(), 60);
        assert!(!names.contains(&"pack-60".to_owned()) && !names.contains(&"pack-61".to_owned()));
    }

    #[test]
    fn garbage_that_outweighs_the_rest_is_renewed() {
        assert_eq!(plan_gc(&packs(&[60 << 20, 119 << 20]), Some(60 << 20), 50, 4 << 30), GcPlan::Nothing);
        assert_eq!(
            plan_gc(&packs(&[60 << 20, 121 << 20]), Some(60 << 20), 50, 4 << 30),
            GcPlan::Renew { bytes: 181 << 20 }
        );
        assert_eq!(
            plan_gc(&packs(&[1 << 20, 20 << 20]), Some(1 << 20), 50, 4 << 30),
            GcPlan::Nothing,
            "not worth it yet"
        );
    }

    #[test]
    fn a_ceiling_below_the_repository_does_not_renew_for_ever() {
        assert_eq!(plan_gc(&packs(&[100 << 20]), Some(100 << 20), 50, 50 << 20), GcPlan::Nothing);
        assert!(matches!(plan_gc(&packs(&[151 << 20]), Some(100 << 20), 50, 50 << 20), GcPlan::Renew { .. }));
    }

    #[test]
    fn past_the_ceiling_what_nothing_is_known_of_is_looked_through_once() {
        let one = packs(&[100 << 20, 1_000]);
        assert!(matches!(plan_gc(&one, None, 50, 50 << 20), GcPlan::Renew { .. }));
        assert_eq!(plan_gc(&one, Some(100 << 20), 50, 50 << 20), GcPlan::Nothing);
        assert_eq!(plan_gc(&one, None, 50, 4 << 30), GcPlan::Nothing);
    }

    #[test]
    fn what_was_just_collected_has_not_outgrown_itself_whatever_its_size() {
        for (bytes, fresh, expected) in
            [(0, 0, false), (1, 0, true), (150, 100, false), (151, 100, true), (u64::MAX, u64::MAX, false)]
        {
            assert_eq!(has_outgrown(bytes, fresh), expected, "{bytes} {fresh}");
        }
    }

    #[test]
    fn packs_that_will_not_merge_are_renewed() {
        assert!(matches!(plan_gc(&packs(&[1_000; 201]), Some(1_000), 50, 4 << 30), GcPlan::Renew { .. }));
    }
}
