//! The operator's choices for cases that rules leave ambiguous or that the API server does not accept,
//! and the type of a time limit.

use std::time::Duration;

/// What to do when rules that do different things match one file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Overlaps {
    /// Refuse the plan.
    #[default]
    Refuse,
    /// The rule that comes first in the rules file gets it.
    First,
    /// The rule whose pattern has the most literal bytes gets it.
    Specific,
}

/// What to do when several files map to the same key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Collisions {
    /// Refuse the plan.
    #[default]
    Refuse,
    /// The file whose path sorts last provides the value.
    Last,
}

/// What to do with a file whose key the API server would not accept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IllegalKeys {
    /// Refuse the plan.
    #[default]
    Refuse,
    /// Leave the file out.
    Skip,
}

/// What to do with a symbolic link that does not resolve to a regular file of the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Links {
    /// Refuse the plan.
    #[default]
    Refuse,
    /// Leave the link out.
    Skip,
}

/// What to do with a ConfigMap whose data exceeds a limit of the API server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Oversize {
    /// Refuse the plan.
    #[default]
    Refuse,
    /// Split it across several ConfigMaps.
    Grow,
    /// Leave the ConfigMap out: it is neither written nor deleted.
    Skip,
}

/// One policy for each case.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Policies {
    /// For rules that do different things with the same file.
    pub overlaps: Overlaps,
    /// For several files with the same key.
    pub collisions: Collisions,
    /// For files without a valid key.
    pub illegal_keys: IllegalKeys,
    /// For links that do not resolve to a file.
    pub links: Links,
    /// For data over a limit.
    pub oversize: Oversize,
}

/// A limit on the time for matching the files of a tree against the rules.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TimeLimit {
    /// The time.
    pub time: Duration,
    /// What an operator sets it by, as a phrase for messages ("--sync-timeout"); `None` if nobody can change it.
    pub set_by: Option<&'static str>,
}

/// Defines each policy's words. Flags take them, and rules digests that clusters store contain them, so they must never
/// change.
macro_rules! words {
    ($($policy:ident { $($value:ident = $word:literal),* })*) => {
        $(impl $policy {
            /// The policy as a word.
            pub fn label(self) -> &'static str {
                match self { $(Self::$value => $word),* }
            }

            /// All words.
            pub const WORDS: &'static [&'static str] = &[$($word),*];
        }

        impl std::str::FromStr for $policy {
            type Err = String;

            fn from_str(word: &str) -> Result<Self, String> {
                match word {
                    $($word => Ok(Self::$value),)*
                    _ => Err(format!("must be one of {}", Self::WORDS.join(", "))),
                }
            }
        })*
    };
}

words! {
    Overlaps { Refuse = "refuse", First = "first", Specific = "specific" }
    Collisions { Refuse = "refuse", Last = "last" }
    IllegalKeys { Refuse = "refuse", Skip = "skip" }
    Links { Refuse = "refuse", Skip = "skip" }
    Oversize { Refuse = "refuse", Grow = "grow", Skip = "skip" }
}
