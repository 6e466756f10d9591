//! Limits all submodules of one revision together, nested ones included, and their bytes together with those of kept
//! revisions that this one does not have. Pure.
//!
//! A few small repositories that name each other can expand to any number of submodules, each of which is fetched and
//! stored separately. So they are counted before they are fetched, and the first submodule that exceeds a limit is
//! refused. What is below a commit is the same at each of its paths, so in a first pass each commit is fetched for one
//! of them and only counted for the others: a repository that contains itself twice is refused after one fetch for each
//! level, and not after a thousand, which may take longer than an attempt. The second pass fetches the others, and
//! looks at nothing again that the first has fetched.

use std::collections::BTreeMap;

use crate::mirror::Options;
use crate::payload::{Limits, Rule};
use crate::revision::{ObjectId, Revision};

/// The deepest nesting of submodules.
pub(super) const NESTED_MAX: usize = 16;

/// The most submodules of a revision, on all levels together. Each has a mirror of some twenty files.
pub(super) const COUNT_MAX: usize = 1_000;

/// All submodules together may have this many times the entries that a payload may have, because when they are fetched
/// it is not known which entries will be selected.
const FETCHED_PER_SELECTED: u64 = 8;

/// A submodule that was fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fetched {
    /// Its commit. What the tree names may be a tag of it.
    pub(super) commit: Revision,
    /// Bytes of its mirror's packs, garbage included.
    pub(super) bytes: u64,
    /// Entries of its tree.
    pub(super) entries: u64,
}

/// What submodules use.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Usage {
    /// The number of them that were found.
    declared: usize,
    /// Bytes of the packs of those that were fetched, garbage included.
    bytes: u64,
    /// Bytes of the packs of those that only kept revisions have.
    kept: u64,
    /// Entries of their trees.
    entries: u64,
}

/// Where a submodule is: its number among the submodules of the repository that contains it, after the numbers of those
/// that it is in. Unlike its path it is short whatever an author writes.
type Place = Vec<usize>;

/// A submodule that was left.
#[derive(Debug)]
struct Known {
    /// The submodule itself.
    own: Option<Fetched>,
    /// What it uses with all submodules in it, without its own declaration.
    usage: Usage,
    /// Nothing in it was skipped.
    is_whole: bool,
}

/// What the submodules of one revision have used so far, and their limits.
#[derive(Debug)]
pub(in crate::mirror) struct Allowance {
    limits: Limits,
    /// The most bytes that all mirrors may have together (`--max-mirror-bytes`).
    max_bytes: u64,
    usage: Usage,
    /// The number of submodules below each commit that was left, on all levels.
    below: BTreeMap<ObjectId, usize>,
    /// The submodules that were left, in this pass or in the one before.
    known: BTreeMap<Place, Known>,
    /// Each commit is fetched only once.
    is_first_pass: bool,
    /// The number of submodules that the first pass counted without entering them.
    skipped: usize,
    /// A submodule was refused because of the bytes.
    is_spent: bool,
    /// The submodules that are currently entered, outermost first.
    levels: Vec<Level>,
}

/// A submodule that is entered.
#[derive(Debug)]
struct Level {
    /// Its number among the submodules of the repository that contains it.
    number: usize,
    /// The number of components of its path.
    components: u32,
    /// What was used before it was entered.
    usage: Usage,
    /// The number of submodules that were skipped before it was entered.
    skipped: usize,
    /// The submodule itself, once it is fetched.
    own: Option<Fetched>,
}

impl Allowance {
    /// An unused allowance.
    pub(in crate::mirror) fn of(options: &Options) -> Self {
        let limits = options.modules.limits;
        let max_bytes = options.max_bytes;
        Self {
            limits,
            max_bytes,
            usage: Usage::default(),
            below: BTreeMap::new(),
            known: BTreeMap::new(),
            is_first_pass: false,
            skipped: 0,
            is_spent: false,
            levels: Vec::new(),
        }
    }

    /// The same for a first pass, in which each commit is fetched only once.
    pub(super) fn of_first_pass(options: &Options) -> Self {
        Self { is_first_pass: true, ..Self::of(options) }
    }

    /// The same for the second pass, after the first.
    pub(super) fn of_second_pass(options: &Options, first: Self) -> Self {
        Self { known: first.known, ..Self::of(options) }
    }

    /// Returns true if the first pass left out a submodule, so that a second one is needed.
    pub(super) fn has_skipped(&self) -> bool {
        self.skipped > 0
    }

    /// Returns true if a submodule need not be entered: in the first pass if its commit was fetched for another path,
    /// in the second if the first has fetched it at this path with everything in it. What is below it is counted.
    /// `number` is its place among the submodules of the repository that contains it.
    pub(super) fn skip(&mut self, number: usize, commit: ObjectId) -> Result<bool, Rule> {
        let Usage { declared, bytes, kept, entries } = if self.is_first_pass {
            let Some(&declared) = self.below.get(&commit) else { return Ok(false) };
            self.skipped += 1;
            Usage { declared, ..Usage::default() }
        } else {
            let mut place = self.place();
            place.push(number);
            match self.known.get(&place) {
                Some(Known { usage, is_whole: true, .. }) => *usage,
                _ => return Ok(false),
            }
        };
        self.count(declared)?;
        self.add_kept(kept);
        self.add(bytes, entries)?;
        Ok(true)
    }

    /// The place of the submodule that was entered last.
    fn place(&self) -> Place {
        self.levels.iter().map(|level| level.number).collect()
    }

    /// The submodule that was entered last, if the first pass has fetched it at this path.
    pub(super) fn fetched_before(&self) -> Option<Fetched> {
        self.known.get(&self.place())?.own
    }

    /// Counts the submodules that were found in a tree, before they are entered.
    pub(super) fn declare(&mut self, more: usize) -> Result<(), Rule> {
        self.count(more)?;
        if self.levels.len() >= NESTED_MAX {
            return Err(too_many(format!("there are more than {NESTED_MAX} submodules one in the other")));
        }
        Ok(())
    }

    fn count(&mut self, more: usize) -> Result<(), Rule> {
        self.usage.declared += more; // no overflow: each time at most as many as `.gitmodules` or the limit allows
        let count = COUNT_MAX.min(usize::try_from(self.limits.entries).unwrap_or(usize::MAX));
        if self.usage.declared > count {
            return Err(too_many(format!("the revision has more than {count} submodules")));
        }
        Ok(())
    }

    /// Counts the bytes of mirrors that only kept revisions need: on all levels together they may have as much again as
    /// the revision's own, so that one large submodule can take the place of another. It refuses nothing: a revision
    /// without submodules can always be published.
    pub(super) fn add_kept(&mut self, bytes: u64) {
        self.usage.kept = self.usage.kept.saturating_add(bytes);
    }

    /// The bytes that count: the revision's own, and what those that only kept revisions have beyond their own share.
    fn bytes(&self) -> u64 {
        self.usage.bytes.saturating_add(self.usage.kept.saturating_sub(self.max_bytes))
    }

    /// Enters a submodule, which will be fetched if it was not before. `number` is its place among the submodules of
    /// the repository that contains it.
    pub(super) fn enter(&mut self, number: usize, path: &str) -> Result<(), Rule> {
        let components = path.split('/').count() as u32; // fits: `.gitmodules` has one megabyte at most
        let Self { usage, skipped, .. } = *self;
        self.levels.push(Level { number, components, usage, skipped, own: None });
        // `>=`, because the content of the submodule is one level deeper.
        if self.levels.iter().map(|level| level.components).sum::<u32>() >= self.limits.depth {
            return Err(Rule::Depth { limit: self.limits.depth });
        }
        Ok(())
    }

    /// Leaves a submodule after it was fetched with all its own submodules.
    pub(super) fn leave(&mut self, commit: ObjectId) {
        let place = self.place();
        let Some(Level { usage: before, skipped, own, .. }) = self.levels.pop() else { return };
        let usage = Usage {
            declared: self.usage.declared - before.declared,
            bytes: self.usage.bytes - before.bytes,
            kept: self.usage.kept - before.kept,
            entries: self.usage.entries - before.entries,
        };
        self.below.insert(commit, usage.declared);
        self.known.insert(place, Known { own, usage, is_whole: self.skipped == skipped });
    }

    /// The most bytes that the next submodule's fetch may receive; `usual` is the limit of any fetch.
    pub(super) fn fetch_bytes(&self, usual: u64) -> u64 {
        usual.min(self.max_bytes.saturating_sub(self.bytes()))
    }

    /// Returns true if a submodule was refused because no bytes are left for it.
    pub(in crate::mirror) fn is_spent(&self) -> bool {
        self.is_spent
    }

    /// Returns true if what only kept revisions have takes bytes from the revision's own, and these are not too many by
    /// themselves, as far as they were fetched. Then it is no fault of the revision: what others have goes with them.
    pub(super) fn is_crowded(&self) -> bool {
        self.usage.kept > self.max_bytes && self.usage.bytes <= self.max_bytes
    }

    /// Returns true if the first submodule that was fetched had the whole limit, and exceeded it: so no garbage did.
    pub(super) fn is_too_large_alone(&self) -> bool {
        self.is_spent && self.usage.bytes == 0 && self.usage.kept <= self.max_bytes
    }

    /// The rule that refuses a submodule for which no bytes are left.
    pub(super) fn spent(&mut self) -> Rule {
        self.is_spent = true;
        let limit = self.max_bytes;
        too_many(format!(
            "with it all submodules have more than {limit} bytes, or more than twice that with those that only kept \
             revisions have (--max-mirror-bytes)"
        ))
    }

    /// Adds the size of the submodule that was entered last, without its own submodules.
    pub(super) fn take(&mut self, fetched: Fetched) -> Result<(), Rule> {
        if let Some(level) = self.levels.last_mut() {
            level.own = Some(fetched);
        }
        self.add(fetched.bytes, fetched.entries)
    }

    fn add(&mut self, bytes: u64, entries: u64) -> Result<(), Rule> {
        self.usage.bytes = self.usage.bytes.saturating_add(bytes);
        self.usage.entries = self.usage.entries.saturating_add(entries);
        if self.bytes() > self.max_bytes {
            return Err(self.spent());
        }
        if self.usage.entries > self.limits.entries.saturating_mul(FETCHED_PER_SELECTED) {
            return Err(Rule::Entries { limit: self.limits.entries });
        }
        Ok(())
    }
}

fn too_many(why: String) -> Rule {
    Rule::Submodule { why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::wire;
    use crate::revision::Ref;

    fn allowance(change: impl FnOnce(&mut Options)) -> Allowance {
        let mut options = Options::new("/nowhere", Ref::Head, wire::Options::new("/nowhere"));
        change(&mut options);
        Allowance::of(&options)
    }

    #[test]
    fn submodules_are_counted_when_they_are_found_not_when_they_were_fetched() {
        let mut four = allowance(|_| {});
        let fetched = (0..).take_while(|_| four.declare(4).is_ok()).count();
        assert_eq!(fetched, COUNT_MAX / 4);
        let mut few = allowance(|options| options.modules.limits.entries = 10);
        assert!(few.declare(10).is_ok() && few.declare(1).is_err());
    }

    fn fetched(bytes: u64, entries: u64) -> Fetched {
        Fetched { commit: Revision(ObjectId([0; 20])), bytes, entries }
    }

    /// Goes through commits each of which contains the one below it twice, `a` and `b`, and appends the paths that are
    /// fetched.
    fn go_through(
        allowance: &mut Allowance,
        height: u8,
        at: &str,
        fetched_paths: &mut Vec<String>,
    ) -> Result<(), Rule> {
        if height == 0 {
            return Ok(());
        }
        let inner = ObjectId([height - 1; 20]);
        allowance.declare(2)?;
        for (number, name) in ["a", "b"].into_iter().enumerate() {
            if allowance.skip(number, inner)? {
                continue;
            }
            let path = format!("{at}/{name}");
            allowance.enter(number, name)?;
            let before = allowance.fetched_before();
            if before.is_none() {
                fetched_paths.push(path.clone());
            }
            allowance.take(before.unwrap_or(fetched(10, 1)))?;
            go_through(allowance, height - 1, &path, fetched_paths)?;
            allowance.leave(inner);
        }
        Ok(())
    }

    #[test]
    fn the_first_pass_counts_a_commit_at_each_path_and_fetches_it_once_and_the_second_fetches_the_others() {
        let options = Options::new("/nowhere", Ref::Head, wire::Options::new("/nowhere"));
        let pass = |allowance: &mut Allowance, height| {
            let mut paths = Vec::new();
            go_through(allowance, height, "", &mut paths).map(|()| paths)
        };
        let mut first = Allowance::of_first_pass(&options);
        let mut paths = pass(&mut first, 8).unwrap();
        assert_eq!((paths.len(), paths[7].as_str()), (8, "/a/a/a/a/a/a/a/a"));
        assert_eq!((first.usage.declared, first.has_skipped()), (510, true));
        let mut second = Allowance::of_second_pass(&options, first);
        paths.extend(pass(&mut second, 8).unwrap());
        assert_eq!(second.usage, Usage { declared: 510, bytes: 5_100, kept: 0, entries: 510 });
        assert!(!second.has_skipped());
        assert_eq!(paths.len(), 510);
        paths.sort();
        paths.dedup();
        assert_eq!(paths.len(), 510, "none is fetched twice");
        // Nothing in it was skipped, so all of it is passed over, and counted.
        let mut third = Allowance::of_second_pass(&options, second);
        assert_eq!(pass(&mut third, 8), Ok(Vec::new()));
        assert_eq!(third.usage, Usage { declared: 510, bytes: 5_100, kept: 0, entries: 510 });
        for height in [9, 15] {
            let refused = pass(&mut Allowance::of_first_pass(&options), height).unwrap_err();
            assert!(refused.to_string().contains("more than 1000 submodules"), "{refused}");
        }
    }

    #[test]
    fn what_the_second_pass_fetches_is_limited_together_with_what_the_first_has_fetched() {
        let mut options = Options::new("/nowhere", Ref::Head, wire::Options::new("/nowhere"));
        options.max_bytes = 50;
        let mut first = Allowance::of_first_pass(&options);
        go_through(&mut first, 2, "", &mut Vec::new()).unwrap();
        assert_eq!(first.usage.bytes, 20);
        let mut second = Allowance::of_second_pass(&options, first);
        let mut paths = Vec::new();
        let refused = go_through(&mut second, 2, "", &mut paths).unwrap_err();
        assert!(refused.to_string().contains("--max-mirror-bytes") && second.is_spent(), "{refused}");
        assert_eq!(paths, ["/a/b", "/b", "/b/a", "/b/b"], "six of ten bytes each");
    }

    #[test]
    fn depth_bytes_and_entries_are_those_of_the_revision() {
        let mut deep = allowance(|options| options.modules.limits.depth = 5);
        assert!(deep.enter(0, "a/b").is_ok());
        assert_eq!(deep.enter(0, "c/d/e"), Err(Rule::Depth { limit: 5 }));
        let mut nested = allowance(|_| {});
        let levels = (0..).take_while(|_| nested.declare(1).is_ok() && nested.enter(0, "x").is_ok()).count();
        assert_eq!(levels, NESTED_MAX);
        let mut small = allowance(|options| options.max_bytes = 100);
        assert!(small.take(fetched(60, 0)).is_ok());
        assert_eq!((small.fetch_bytes(1_000), small.fetch_bytes(10)), (40, 10));
        assert!(small.take(fetched(60, 0)).unwrap_err().to_string().contains("--max-mirror-bytes"));
        let mut renamed = allowance(|options| options.max_bytes = 100);
        renamed.add_kept(160);
        assert_eq!(renamed.fetch_bytes(1_000), 40);
        assert!(renamed.take(fetched(40, 0)).is_ok() && renamed.take(fetched(1, 0)).is_err());
        assert!(renamed.is_crowded(), "it has room once the kept revisions are gone");
        assert!(renamed.take(fetched(60, 0)).is_err() && !renamed.is_crowded(), "too large by itself");
        let mut full = allowance(|options| options.max_bytes = 100);
        full.add_kept(300);
        assert!(full.declare(0).is_ok() && !full.is_spent(), "no submodule is refused before it is entered");
        let mut many = allowance(|options| options.modules.limits.entries = 10);
        assert!(many.take(fetched(0, 80)).is_ok());
        assert_eq!(many.take(fetched(0, 1)), Err(Rule::Entries { limit: 10 }));
    }

    #[test]
    fn what_only_kept_revisions_have_is_one_sum_of_all_levels_and_both_passes() {
        let commit = ObjectId([1; 20]);
        let mut options = Options::new("/nowhere", Ref::Head, wire::Options::new("/nowhere"));
        options.max_bytes = 100;
        let mut first = Allowance::of_first_pass(&options);
        first.add_kept(60);
        first.enter(0, "sub").unwrap();
        first.take(fetched(10, 0)).unwrap();
        assert!(!first.is_crowded());
        first.add_kept(60);
        assert_eq!(first.fetch_bytes(1_000), 70);
        first.leave(commit);
        let mut second = Allowance::of_second_pass(&options, first);
        second.add_kept(60);
        assert_eq!(second.skip(0, commit), Ok(true));
        assert_eq!((second.fetch_bytes(1_000), second.is_crowded()), (70, true));
    }
}
