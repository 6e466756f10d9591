//! Decides what to do with the ConfigMaps of a cluster so that they match a revision. The module is pure: it takes what
//! was read from the cluster and returns decisions with reasons; the driver carries them out.
//!
//! - `desired_state`: what every namespace should hold; `placement`: the sources of a composed tree, and what is held
//!   while one of them does not answer.
//! - `owner`: which installation a ConfigMap belongs to; `decide`: decides on one ConfigMap; `decision`: the result, an
//!   action and why; `order`: the order of writes; `prune_limit`: how much one run may delete or empty.
//! - `ledger`: what was last attempted, and the outcome; `ledger_set`: the ledgers of many namespaces; `lease`: which
//!   instance writes a namespace.
//! - `digest`: the rules digest, which identifies the rules that a ConfigMap was written by.
//!
//! The inventory of what was written is [`crate::marker`], because consumers read it, too.

mod decide;
mod decision;
mod desired_state;
mod digest;
mod lease;
mod ledger;
mod ledger_set;
mod order;
mod owner;
mod placement;
mod prune_limit;
#[cfg(test)]
mod tests;

pub use crate::marker::{Entry, Marker, TooLong};
pub use decide::{LiveConfigMap, Policy, is_proven_by_record};
pub use decision::{Action, Decision, DecisionReason, Refusal};
pub use desired_state::{Desired, DesiredConfigMap, ExtraKeys, VersionKey};
pub use digest::rules_digest;
pub use lease::{LeaseAvailability, LeaseChoice, LeaseObserver, LiveLease, choose};
pub use ledger::{LastAttempt, Ledger, RepairLimit};
pub use ledger_set::LedgerSet;
pub use order::{Moves, Order, order};
pub use owner::{Adopt, BadOwner, Claim, Owner};
pub use placement::{PlacedSource, Placement};
pub use prune_limit::{PruneLimit, PruneLimitExceeded};

/// Labels and annotations of the objects that treeswap writes.
pub mod names {
    /// Label: the owner's name, shortened and hashed if it is not a valid label.
    pub const OWNER: &str = "treeswap.dev/owner";
    /// Annotation: the owner's full name. Labels and annotations are separate maps, so it can have the label's key.
    pub const OWNER_NAME: &str = OWNER;
    /// Annotation: the revision that last changed the data.
    pub const REVISION: &str = "treeswap.dev/revision";
    /// Annotation: the digest of the data that was written. It does not prove that the object still holds that data.
    pub const DIGEST: &str = "treeswap.dev/digest";
    /// Annotation: the repository's URL without userinfo, query or anything else that may be secret.
    pub const REPOSITORY: &str = "treeswap.dev/repository";
    /// Annotation of the marker, with several sources: the commit of each source by name, as JSON.
    pub const SOURCES: &str = "treeswap.dev/sources";
    /// Annotation: the digest of the rules that the object was written by.
    pub const RULES: &str = "treeswap.dev/rules";
    /// Annotation of the marker: the cluster's kubeconfig context. Two contexts may point to one server, and neither
    /// may prune what was written through the other.
    pub const CLUSTER: &str = "treeswap.dev/cluster";
    /// Label: `set` for the marker, `ledger` for the ledger.
    pub const ROLE: &str = "treeswap.dev/role";
    /// Label: the program that manages an object.
    pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "treeswap");
    /// The labels of ConfigMaps that Prow's config-updater wrote.
    pub const PROW_LABELS: [(&str, &str); 2] =
        [("app.kubernetes.io/name", "prow"), ("app.kubernetes.io/component", "updateconfig-plugin")];
}
