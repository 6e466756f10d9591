//! Limits all submodules of one revision together, nested ones included. Pure.
//!
//! A few small repositories that name each other can expand to any number of submodules, each of which is fetched and
//! stored separately. So they are counted before they are fetched, and the first submodule that exceeds a limit is
//! refused. What is below a commit is the same at each of its paths, so in a first pass each commit is fetched for one
//! of them and only counted for the others: a repository that contains itself twice is refused after one fetch for each
//! level, and not after a thousand, which may take longer than an attempt.

use std::collections::BTreeMap;

use crate::mirror::Options;
use crate::payload::{Limits, Rule};
use crate::revision::ObjectId;

/// The deepest nesting of submodules.
pub(super) const NESTED_MAX: usize = 16;

/// The most submodules of a revision, on all levels together. Each has a mirror of some twenty files.
pub(super) const COUNT_MAX: usize = 1_000;

/// All submodules together may have this many times the entries that a payload may have, because when they are fetched
/// it is not known which entries will be selected.
const FETCHED_PER_SELECTED: u64 = 8;

/// What the submodules of one revision have used so far, and their limits.
#[derive(Debug)]
pub(in crate::mirror) struct Allowance {
    limits: Limits,
    /// The most bytes that all mirrors may have together (`--max-mirror-bytes`).
    max_bytes: u64,
    /// Submodules found so far.
    declared: usize,
    /// The number of submodules below each commit that was left, on all levels.
    below: BTreeMap<ObjectId, usize>,
    /// Each commit is fetched only once.
    is_first_pass: bool,
    /// A submodule was counted without being fetched.
    has_skipped: bool,
    /// Bytes of their mirrors' packs, garbage included.
    bytes: u64,
    /// A submodule was refused because of those bytes.
    is_spent: bool,
    /// Entries of their trees.
    entries: u64,
    /// The submodules that are currently entered, outermost first.
    levels: Vec<Level>,
}

/// A submodule that is entered.
#[derive(Debug)]
struct Level {
    /// The number of components of its path.
    components: u32,
    /// The number of submodules that were found before it was entered.
    declared: usize,
}

impl Allowance {
    /// An unused allowance.
    pub(in crate::mirror) fn of(options: &Options) -> Self {
        let limits = options.modules.limits;
        let max_bytes = options.max_bytes;
        Self {
            limits,
            max_bytes,
            declared: 0,
            below: BTreeMap::new(),
            is_first_pass: false,
            has_skipped: false,
            bytes: 0,
            is_spent: false,
            entries: 0,
            levels: Vec::new(),
        }
    }

    /// The same for a first pass, in which each commit is fetched only once.
    pub(super) fn of_first_pass(options: &Options) -> Self {
        Self { is_first_pass: true, ..Self::of(options) }
    }

    /// Returns true if the first pass left out a submodule, so that a second one is needed.
    pub(super) fn has_skipped(&self) -> bool {
        self.has_skipped
    }

    /// Returns true if the first pass has fetched the commit for another path. What is below it is counted again.
    pub(super) fn skip(&mut self, commit: ObjectId) -> Result<bool, Rule> {
        let Some(below) = self.below.get(&commit).copied().filter(|_| self.is_first_pass) else {
            return Ok(false);
        };
        self.has_skipped = true;
        self.count(below)?;
        Ok(true)
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
        self.declared += more; // no overflow: each time at most as many as `.gitmodules` or the limit allows
        let count = COUNT_MAX.min(usize::try_from(self.limits.entries).unwrap_or(usize::MAX));
        if self.declared > count {
            return Err(too_many(format!("the revision has more than {count} submodules")));
        }
        Ok(())
    }

    /// Enters a submodule, which will be fetched.
    pub(super) fn enter(&mut self, path: &str) -> Result<(), Rule> {
        let components = path.split('/').count() as u32; // fits: `.gitmodules` has one megabyte at most
        self.levels.push(Level { components, declared: self.declared });
        // `>=`, because the content of the submodule is one level deeper.
        if self.levels.iter().map(|level| level.components).sum::<u32>() >= self.limits.depth {
            return Err(Rule::Depth { limit: self.limits.depth });
        }
        Ok(())
    }

    /// Leaves a submodule after it was fetched with all its own submodules.
    pub(super) fn leave(&mut self, commit: ObjectId) {
        if let Some(level) = self.levels.pop() {
            self.below.insert(commit, self.declared - level.declared);
        }
    }

    /// The most bytes that the next submodule's fetch may receive; `usual` is the limit of any fetch.
    pub(super) fn fetch_bytes(&self, usual: u64) -> u64 {
        usual.min(self.max_bytes.saturating_sub(self.bytes))
    }

    /// Returns true if a submodule was refused because no bytes are left for it.
    pub(in crate::mirror) fn is_spent(&self) -> bool {
        self.is_spent
    }

    /// The rule that refuses a submodule for which no bytes are left.
    pub(super) fn spent(&mut self) -> Rule {
        self.is_spent = true;
        let limit = self.max_bytes;
        too_many(format!("with it all submodules have more than {limit} bytes (--max-mirror-bytes)"))
    }

    /// Adds the size of a fetched submodule, without its own submodules.
    pub(super) fn take(&mut self, bytes: u64, entries: u64) -> Result<(), Rule> {
        self.bytes = self.bytes.saturating_add(bytes);
        self.entries = self.entries.saturating_add(entries);
        if self.bytes > self.max_bytes {
            return Err(self.spent());
        }
        if self.entries > self.limits.entries.saturating_mul(FETCHED_PER_SELECTED) {
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

    /// Goes through commits each of which contains the one below it twice. Returns the number of fetches.
    fn go_through(allowance: &mut Allowance, height: u8) -> Result<usize, Rule> {
        if height == 0 {
            return Ok(0);
        }
        let inner = ObjectId([height - 1; 20]);
        let mut fetched = 0;
        allowance.declare(2)?;
        for path in ["a", "b"] {
            if allowance.skip(inner)? {
                continue;
            }
            allowance.enter(path)?;
            fetched += 1 + go_through(allowance, height - 1)?;
            allowance.leave(inner);
        }
        Ok(fetched)
    }

    #[test]
    fn the_first_pass_counts_a_commit_at_each_path_and_fetches_it_once() {
        let options = Options::new("/nowhere", Ref::Head, wire::Options::new("/nowhere"));
        let mut first = Allowance::of_first_pass(&options);
        assert_eq!(go_through(&mut first, 8), Ok(8));
        assert_eq!((first.declared, first.has_skipped()), (510, true));
        let mut second = Allowance::of(&options);
        assert_eq!(go_through(&mut second, 8), Ok(510));
        assert_eq!((second.declared, second.has_skipped()), (510, false));
        for height in [9, 15] {
            let refused = go_through(&mut Allowance::of_first_pass(&options), height).unwrap_err();
            assert!(refused.to_string().contains("more than 1000 submodules"), "{refused}");
        }
    }

    #[test]
    fn depth_bytes_and_entries_are_those_of_the_revision() {
        let mut deep = allowance(|options| options.modules.limits.depth = 5);
        assert!(deep.enter("a/b").is_ok());
        assert_eq!(deep.enter("c/d/e"), Err(Rule::Depth { limit: 5 }));
        let mut nested = allowance(|_| {});
        let levels = (0..).take_while(|_| nested.declare(1).is_ok() && nested.enter("x").is_ok()).count();
        assert_eq!(levels, NESTED_MAX);
        let mut small = allowance(|options| options.max_bytes = 100);
        assert!(small.take(60, 0).is_ok());
        assert_eq!((small.fetch_bytes(1_000), small.fetch_bytes(10)), (40, 10));
        assert!(small.take(60, 0).unwrap_err().to_string().contains("--max-mirror-bytes"));
        let mut many = allowance(|options| options.modules.limits.entries = 10);
        assert!(many.take(0, 80).is_ok());
        assert_eq!(many.take(0, 1), Err(Rule::Entries { limit: 10 }));
    }
}
