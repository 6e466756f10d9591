//! What a plan does with what is ambiguous or does not fit.

/// What to do when rules that do different things match one file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Overlaps {
    /// Refuse the plan.
    #[default]
    Refuse,
    /// The first rule of the file has it.
    First,
    /// The rule has it that says most of its path.
    Specific,
}

/// What to do when several files have one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Collisions {
    /// Refuse the plan.
    #[default]
    Refuse,
    /// The last in the order of paths has it.
    Last,
}

/// What to do with a file whose key is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IllegalKeys {
    /// Refuse the plan.
    #[default]
    Refuse,
    /// Leave the file out.
    Skip,
}

/// What to do with a link that gives no content.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Links {
    /// Refuse the plan.
    #[default]
    Refuse,
    /// Leave the link out.
    Skip,
}

/// What to do with a payload that is too large.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Oversize {
    /// Refuse the plan.
    #[default]
    Refuse,
    /// Split it over more ConfigMaps.
    Grow,
    /// Leave the ConfigMap out.
    Skip,
}

/// Whether to go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Policies {
    /// Rules that do different things with one file.
    pub overlaps: Overlaps,
    /// Several files for one key.
    pub collisions: Collisions,
    /// Files without a legal key.
    pub illegal_keys: IllegalKeys,
    /// Links without content.
    pub links: Links,
    /// Payloads over the limit.
    pub oversize: Oversize,
}

/// A policy's words: as flags give them, and as digests of rules have them for good.
macro_rules! words {
    ($($policy:ident { $($value:ident = $word:literal),* })*) => {
        $(impl $policy {
            /// In one word.
            pub fn word(self) -> &'static str {
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
                    _ => Err(format!("it is one of {}", Self::WORDS.join(", "))),
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
