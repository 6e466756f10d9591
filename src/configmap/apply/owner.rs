//! Whose a ConfigMap is.

use std::collections::BTreeMap;

use aws_lc_rs::digest;

use super::names;

/// What a label's value may hold at most.
const MOST_LABEL: usize = 63;

/// An installation's name: explicit and stable, for what it writes is known by it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owner {
    name: String,
    label: String,
}

/// A name that cannot be an owner's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadOwner {
    /// Nothing at all.
    #[error("it is empty")]
    Empty,
    /// Too long.
    #[error("it is longer than 253 bytes")]
    Long,
    /// Spaces at its ends, or control characters.
    #[error("it has control characters, or spaces at its ends")]
    Characters,
}

/// Who a ConfigMap says it belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Claim {
    /// This installation.
    Ours,
    /// Another installation of treeswap: never overwritten, never deleted.
    Other(String),
    /// Prow's config-updater or config-bootstrapper.
    Prow,
    /// An owner without a name.
    Nobody,
}

/// Which ConfigMaps of others become ours.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Adopt {
    /// None.
    #[default]
    Nothing,
    /// Those with Prow's labels.
    Prow,
    /// Also those without an owner.
    All,
}

impl Adopt {
    /// Whether it covers a ConfigMap with this claim.
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
    /// By a name from the command line.
    pub fn new(name: &str) -> Result<Self, BadOwner> {
        match name {
            "" => return Err(BadOwner::Empty),
            _ if name.len() > 253 => return Err(BadOwner::Long),
            _ if name.trim() != name || name.chars().any(char::is_control) => {
                return Err(BadOwner::Characters);
            }
            _ => {}
        }
        let label = if is_label(name) { name.to_owned() } else { hashed(name) };
        Ok(Self { name: name.to_owned(), label })
    }

    /// As it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// As a label's value: the name, or a hash of it where it is none.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// What the ConfigMap is called that holds the marker of a namespace.
    pub fn marker(&self) -> String {
        format!("treeswap-set-{}", self.label)
    }

    /// What the ConfigMap is called that holds the ledger of a namespace.
    pub fn ledger(&self) -> String {
        format!("treeswap-ledger-{}", self.label)
    }

    /// What the Lease of a namespace is called.
    pub fn lease(&self) -> String {
        format!("treeswap-{}", self.label)
    }

    /// Whose a ConfigMap is, by its labels and annotations.
    pub fn claim(&self, labels: &BTreeMap<String, String>, annotations: &BTreeMap<String, String>) -> Claim {
        match (annotations.get(names::OWNER_NAME), labels.get(names::OWNER)) {
            (Some(name), _) if *name == self.name => Claim::Ours,
            (Some(name), _) => Claim::Other(name.clone()),
            (None, Some(label)) if *label == self.label => Claim::Ours, // the annotation was taken off by hand
            (None, Some(label)) => Claim::Other(label.clone()),
            (None, None)
                if names::PROW.iter().all(|(key, value)| labels.get(*key).is_some_and(|v| v == value)) =>
            {
                Claim::Prow
            }
            (None, None) => Claim::Nobody,
        }
    }

    /// The labels that say so, besides which others may be there.
    pub fn labels(&self) -> [(&'static str, &str); 2] {
        [(names::OWNER, &self.label), names::MANAGED_BY]
    }
}

/// Whether it is a DNS label, and so fits a label's value and the end of an object's name.
fn is_label(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= MOST_LABEL
        && name.bytes().all(|byte| inner(byte) || byte == b'-')
        && name.bytes().next().is_some_and(inner)
        && name.bytes().last().is_some_and(inner)
}

/// Its readable letters and a hash of all of it.
fn hashed(name: &str) -> String {
    let hash = digest::digest(&digest::SHA256, name.as_bytes());
    let hash: String = hash.as_ref().iter().take(10).map(|byte| format!("{byte:02x}")).collect();
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
        let both = [(names::OWNER, owner.label())];
        assert_eq!(claim(&both, &[(names::OWNER_NAME, "b")]), Claim::Other("b".into()), "the name decides");
        assert_eq!(claim(&names::PROW, &[]), Claim::Prow);
        assert_eq!(claim(&names::PROW[..1], &[]), Claim::Nobody);
    }

    #[test]
    fn another_installations_are_adopted_by_no_flag() {
        let other = Claim::Other("b".into());
        assert!([Adopt::Nothing, Adopt::Prow, Adopt::All].iter().all(|adopt| !adopt.covers(&other)));
        assert!(!Adopt::Nothing.covers(&Claim::Prow) && Adopt::Prow.covers(&Claim::Prow));
        assert!(!Adopt::Prow.covers(&Claim::Nobody) && Adopt::All.covers(&Claim::Nobody));
    }
}
