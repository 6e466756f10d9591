//! Limits all submodules of one revision together, nested ones included. Pure.
//!
//! A few small repositories that name each other can expand to any number of submodules, each of which is fetched and
//! stored separately. So they are counted before they are fetched, and the first submodule that exceeds a limit is
//! refused.

use crate::mirror::Options;
use crate::payload::{Limits, Rule};

/// The deepest nesting of submodules.
pub(super) const NESTED_MAX: usize = 16;

/// The most submodules of a revision.
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
    /// Bytes of their mirrors' packs, garbage included.
    bytes: u64,
    /// A submodule was refused because of those bytes.
    is_spent: bool,
    /// Entries of their trees.
    entries: u64,
    /// The submodules that are currently entered, outermost first: the number of components of each one's path.
    levels: Vec<u32>,
}

impl Allowance {
    /// An unused allowance.
    pub(in crate::mirror) fn of(options: &Options) -> Self {
        let limits = options.modules.limits;
        let max_bytes = options.max_bytes;
        Self { limits, max_bytes, declared: 0, bytes: 0, is_spent: false, entries: 0, levels: Vec::new() }
    }

    /// Counts the submodules that were found in a tree, before they are entered.
    pub(super) fn declare(&mut self, more: usize) -> Result<(), Rule> {
        self.declared += more;
        let count = COUNT_MAX.min(usize::try_from(self.limits.entries).unwrap_or(usize::MAX));
        if self.declared > count {
            return Err(too_many(format!("the revision has more than {count} submodules")));
        }
        if self.levels.len() >= NESTED_MAX {
            return Err(too_many(format!("there are more than {NESTED_MAX} submodules one in the other")));
        }
        Ok(())
    }

    /// Enters a submodule, which will be fetched.
    pub(super) fn enter(&mut self, path: &str) -> Result<(), Rule> {
        self.levels.push(path.split('/').count() as u32); // fits: `.gitmodules` has one megabyte at most
        // `>=`, because the content of the submodule is one level deeper.
        if self.levels.iter().sum::<u32>() >= self.limits.depth {
            return Err(Rule::Depth { limit: self.limits.depth });
        }
        Ok(())
    }

    /// Leaves a submodule after it was fetched with all its own submodules.
    pub(super) fn leave(&mut self) {
        self.levels.pop();
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
