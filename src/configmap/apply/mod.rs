//! What has to happen to the ConfigMaps of a cluster so that they are what a revision says: who owns them, what was
//! recorded of them, the decision for each, and the order of writing. Pure: what was read comes in, a plan with reasons
//! comes out, and the driver carries it out.
//!
//! Files: `owner` who owns a ConfigMap; `desired_state` what is desired, `placement` of which sources; `decision` the
//! decision on one; `order` which write comes before which; `prune_limit` how much may be taken away at once; `marker`
//! the inventory of what we wrote, which a consumer reads, too; `ledger` what was attempted and how it ended,
//! `ledger_set` those of many places; `lease` whose turn it is to write; `deciding` and `digest` by which rules something
//! was written, `legacy_digest` the same as earlier releases had it.

mod deciding;
mod decision;
mod desired_state;
mod digest;
mod lease;
mod ledger;
mod ledger_set;
mod legacy_digest;
mod order;
mod owner;
mod placement;
mod prune_limit;
#[cfg(test)]
mod tests;

pub use crate::marker::{Entry, Marker, RulesDigest, TooLong};
pub use deciding::Deciding;
pub use decision::{Action, Decision, DecisionReason, LiveConfigMap, Policy, Refusal, is_proven_by_record};
pub use desired_state::{Desired, DesiredConfigMap, ExtraKeys, VersionKey};
pub use lease::{Holding, SlotChoice, Standing, Watch, choose};
pub use ledger::{LastAttempt, Ledger, RepairLimit};
pub use ledger_set::LedgerSet;
pub use order::{Moves, Order, order};
pub use owner::{Adopt, BadOwner, Claim, Owner};
pub use placement::{PlacedSource, Placement};
pub use prune_limit::{PruneLimit, PruneLimitExceeded};

/// Annotations and the label of what treeswap writes.
pub mod names {
    /// Label: the owner, or a hash of a name that is no label.
    pub const OWNER: &str = "treeswap.dev/owner";
    /// Annotation: the owner's name as it was given. (Labels and annotations are apart, so it may be the same.)
    pub const OWNER_NAME: &str = OWNER;
    /// Annotation: the revision that last changed the payload.
    pub const REVISION: &str = "treeswap.dev/revision";
    /// Annotation: the digest of what was written. It names that, and is no evidence of what is there.
    pub const DIGEST: &str = "treeswap.dev/digest";
    /// Annotation: where the revision is from, without userinfo, query and whatever else may be secret.
    pub const REPOSITORY: &str = "treeswap.dev/repository";
    /// Annotation of the marker: of several sources the commit of each, by its name, as JSON.
    pub const SOURCES: &str = "treeswap.dev/sources";
    /// Annotation: the digest of the rules it was written by.
    pub const RULES: &str = "treeswap.dev/rules";
    /// Annotation of the marker: the cluster, by the name of its context. Two contexts may lead to one server, and what
    /// the one wrote is not for the other to forget.
    pub const CLUSTER: &str = "treeswap.dev/cluster";
    /// Label: `set` for the marker, `ledger` for the ledger.
    pub const ROLE: &str = "treeswap.dev/role";
    /// The label that says which program manages an object.
    pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "treeswap");
    /// The labels of what Prow's config-updater made.
    pub const PROW: [(&str, &str); 2] =
        [("app.kubernetes.io/name", "prow"), ("app.kubernetes.io/component", "updateconfig-plugin")];
}
