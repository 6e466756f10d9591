//! The inputs besides the tree that determine what is written to clusters; the rules digest is computed over them.

use super::super::{Options, RuleSet, Setting};
use super::desired_state::ExtraKeys;

/// Everything besides the tree that determines what is written.
#[derive(Clone, Copy, Debug)]
pub struct DigestInputs<'a> {
    /// The rules.
    pub rules: &'a RuleSet,
    /// The settings they were read with.
    pub setting: Setting<'a>,
    /// The options they are applied with. The stamp is not part of the digest: it only names the revision.
    pub options: &'a Options,
    /// The keys that are written besides payloads.
    pub shape: &'a ExtraKeys,
}
