//! Owners: the name of an installation, and who owns a ConfigMap.

use std::collections::BTreeMap;

use super::names;
use crate::human::sanitize;
use crate::sha256::{hex, sha256};

/// Longest label value that Kubernetes accepts, in bytes.
const LABEL_MAX: usize = 63;
/// Longest name of an owner, in bytes.
const NAME_MAX: usize = 253;

/// The name of an installation. It has to be stable: an installation recognizes the objects it wrote by it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owner {
    name: String,
    label: String,
}

/// Why a text cannot be an owner's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadOwner {
    /// It is empty.
    #[error("it is empty")]
    Empty,
    /// It is too long.
    #[error("it is longer than 253 bytes")]
    Long,
    /// It has control characters, or spaces at its ends.
    #[error("it has control characters, or spaces at its ends")]
    Characters,
}

/// The owner that a ConfigMap's labels and annotations name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Claim {
    /// This installation.
    Ours,
    /// Another installation of treeswap, by name or label, for display: anybody may have annotated the object, with any
    /// text. Its objects are never overwritten or deleted.
    Other(String),
    /// Prow's config-updater or config-bootstrapper.
    Prow,
    /// No owner is named.
    Nobody,
}

/// Which ConfigMaps of others are adopted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Adopt {
    /// None.
    #[default]
    Nothing,
    /// Those with Prow's labels.
    Prow,
    /// Those with Prow's labels, and those without an owner.
    All,
}

impl Adopt {
    /// Returns true if a ConfigMap with this claim is ours or is adopted.
    pub fn covers(self, claim: &Claim) -> bool {
        match claim {
            Claim::Ours => true,
            Claim::Prow => self >= Self::Prow,
            Claim::Nobody => self >= Self::All,
            Claim::Other(_) => false,
        }
    }
}

impl Owner {
    /// Checks a name from the command line.
    pub fn new(name: &str) -> Result<Self, BadOwner> {
        match name {
            "" => return Err(BadOwner::Empty),
            _ if name.len() > NAME_MAX => return Err(BadOwner::Long),
            _ if name.trim() != name || name.chars().any(char::is_control) => {
                return Err(BadOwner::Characters);
            }
            _ => {}
        }
        let label = if is_label(name) { name.to_owned() } else { hashed(name) };
        Ok(Self { name: name.to_owned(), label })
    }

    /// The name as given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The label value: the name, or a readable part of it with a hash if the name is not a valid label.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The name of the ConfigMap with a namespace's marker.
    pub fn marker(&self) -> String {
        format!("treeswap-set-{}", self.label)
    }

    /// The name of the ConfigMap with a namespace's ledger.
    pub fn ledger(&self) -> String {
        format!("treeswap-ledger-{}", self.label)
    }

    /// The name of a namespace's Lease.
    pub fn lease(&self) -> String {
        format!("treeswap-{}", self.label)
    }

    /// Determines the owner from labels and annotations. The annotation takes precedence over the label.
    pub fn claim(&self, labels: &BTreeMap<String, String>, annotations: &BTreeMap<String, String>) -> Claim {
        let other = |name: &str| Claim::Other(sanitize(name, NAME_MAX));
        match (annotations.get(names::OWNER_NAME), labels.get(names::OWNER)) {
            (Some(name), _) if *name == self.name => Claim::Ours,
            (Some(name), _) => other(name),
            (None, Some(label)) if *label == self.label => Claim::Ours, // the annotation was removed by hand
            (None, Some(label)) => other(label),
            (None, None)
                if names::PROW_LABELS
                    .iter()
                    .all(|(key, value)| labels.get(*key).is_some_and(|v| v == value)) =>
            {
                Claim::Prow
            }
            (None, None) => Claim::Nobody,
        }
    }

    /// The labels of every object of this owner. Objects may have others besides.
    pub fn labels(&self) -> [(&'static str, &str); 2] {
        [(names::OWNER, &self.label), names::MANAGED_BY]
    }
}

/// Returns true if the name is a DNS label, and so is valid as a label value and as the end of an object's name.
fn is_label(name: &str) -> bool {
    let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= LABEL_MAX
        && name.bytes().all(|byte| is_alphanumeric(byte) || byte == b'-')
        && name.bytes().next().is_some_and(is_alphanumeric)
        && name.bytes().last().is_some_and(is_alphanumeric)
}

/// A label for a name that is not one: up to 32 of its letters and digits, and a hash of the whole name.
fn hashed(name: &str) -> String {
    let hash = hex(&sha256(&[name.as_bytes()])[..10]);
    let lower = name.to_ascii_lowercase();
    let readable: String = lower.chars().filter(char::is_ascii_alphanumeric).take(32).collect();
    if readable.is_empty() { format!("x-{hash}") } else { format!("{readable}-{hash}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_name_is_its_label_where_it_can_be() {
        let owner = Owner::new("platform-config").unwrap();
        assert_eq!(
            (owner.label(), owner.marker().as_str()),
            ("platform-config", "treeswap-set-platform-config")
        );
        for (name, why) in
            [("", BadOwner::Empty), (" a", BadOwner::Characters), ("a\nb", BadOwner::Characters)]
        {
            assert_eq!(Owner::new(name), Err(why));
        }
        assert_eq!(Owner::new(&"a".repeat(254)), Err(BadOwner::Long));
    }

    #[test]
    fn other_names_have_labels_of_their_own() {
        let names =
            ["Acme/Config@main", "acme/config@main", "acmeconfigmain", "Grüße", "日本", "-", &"a".repeat(64)];
        let labels: std::collections::BTreeSet<String> =
            names.iter().map(|name| Owner::new(name).unwrap().label().to_owned()).collect();
        assert_eq!(labels.len(), names.len());
        assert!(labels.iter().all(|label| is_label(label)), "{labels:?}");
    }

    #[test]
    fn a_claim_is_read_from_annotation_label_and_prows_labels() {
        let owner = Owner::new("Team A").unwrap();
        let claim = |labels: &[(&str, &str)], annotations: &[(&str, &str)]| {
            owner.claim(&map(labels), &map(annotations))
        };
        assert_eq!(claim(&[], &[(names::OWNER_NAME, "Team A")]), Claim::Ours);
        assert_eq!(claim(&[(names::OWNER, owner.label())], &[]), Claim::Ours);
        assert_eq!(claim(&[], &[(names::OWNER_NAME, "b")]), Claim::Other("b".into()));
        assert_eq!(
            claim(&[(names::OWNER, "b")], &[]),
            Claim::Other("b".into()),
            "its annotation was removed"
        );
        let both = [(names::OWNER, owner.label())];
        assert_eq!(claim(&both, &[(names::OWNER_NAME, "b")]), Claim::Other("b".into()), "the name decides");
        let long = format!("\u{1b}[31m{}", "x".repeat(1_000));
        let short = format!("\u{fffd}[31m{}…", "x".repeat(NAME_MAX - 6));
        assert_eq!(claim(&[], &[(names::OWNER_NAME, long.as_str())]), Claim::Other(short));
        assert_eq!(claim(&names::PROW_LABELS, &[]), Claim::Prow);
        assert_eq!(claim(&names::PROW_LABELS[..1], &[]), Claim::Nobody);
    }

    #[test]
    fn what_an_owner_makes_has_its_label_in_labels_and_names() {
        let owner = Owner::new("Team A").unwrap();
        assert_eq!(owner.claim(&map(&owner.labels()), &map(&[])), Claim::Ours);
        assert!(owner.labels().contains(&("app.kubernetes.io/managed-by", "treeswap")));
        let team = Owner::new("team").unwrap();
        let objects = [team.marker(), team.ledger(), team.lease()];
        assert_eq!(objects, ["treeswap-set-team", "treeswap-ledger-team", "treeswap-team"]);
    }

    #[test]
    fn another_installations_are_adopted_by_no_flag() {
        let other = Claim::Other("b".into());
        assert!([Adopt::Nothing, Adopt::Prow, Adopt::All].iter().all(|adopt| !adopt.covers(&other)));
        assert!(!Adopt::Nothing.covers(&Claim::Prow) && Adopt::Prow.covers(&Claim::Prow));
        assert!(!Adopt::Prow.covers(&Claim::Nobody) && Adopt::All.covers(&Claim::Nobody));
    }
}
