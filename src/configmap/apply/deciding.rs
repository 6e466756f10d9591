//! What decides what is written to clusters, besides the tree.

use super::super::{Options, RuleSet, Setting};
use super::desired_state::ExtraKeys;

/// What decides what is written, besides the tree.
#[derive(Clone, Copy, Debug)]
pub struct Deciding<'a> {
    /// The rules.
    pub rules: &'a RuleSet,
    /// How they were read.
    pub setting: Setting<'a>,
    /// How they are applied; the stamp says which revision, and decides nothing.
    pub options: &'a Options,
    /// What is written besides payloads.
    pub shape: &'a ExtraKeys,
}
