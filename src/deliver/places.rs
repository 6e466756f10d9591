//! The names of the Leases that make up a pool, as parsed from `NAMESPACE/NAME:COUNT`.

use std::str::FromStr;

/// The largest pool. No fleet needs more places, and a waiting process reads every Lease of the pool at each poll.
const MAX_LEASES: u16 = 100;

/// The Leases NAMESPACE/NAME-0, NAMESPACE/NAME-1 and so on, of the cluster that is called `default`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolSpec {
    pub(super) namespace: String,
    pub(super) leases: Vec<String>,
}

/// Why a text is not a valid pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadPlaces {
    /// It is not of the form `NAMESPACE/NAME:COUNT`.
    #[error("it is not of the form NAMESPACE/NAME:COUNT")]
    Form,
    /// The namespace or the name is no DNS label, so the API server would refuse it.
    #[error(
        "a name consists of a-z, 0-9 and -, begins and ends with a letter or digit, and has at most 63 of them"
    )]
    Name,
    /// The count is no number, zero, or above the maximum.
    #[error("the count is a number from 1 to {MAX_LEASES}")]
    Count,
}

impl FromStr for PoolSpec {
    type Err = BadPlaces;

    fn from_str(text: &str) -> Result<Self, BadPlaces> {
        let (namespace, rest) = text.split_once('/').ok_or(BadPlaces::Form)?;
        let (name, count) = rest.split_once(':').ok_or(BadPlaces::Form)?;
        if !is_name(namespace) || !is_name(name) {
            return Err(BadPlaces::Name);
        }
        let count =
            count.parse().ok().filter(|count| (1..=MAX_LEASES).contains(count)).ok_or(BadPlaces::Count)?;
        let leases = (0..count).map(|number| format!("{name}-{number}")).collect();
        Ok(Self { namespace: namespace.to_owned(), leases })
    }
}

/// Returns true if the text is a DNS label (RFC 1123).
fn is_name(text: &str) -> bool {
    let ends = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let inner = |byte: u8| ends(Some(byte)) || byte == b'-';
    text.len() <= 63 && text.bytes().all(inner) && ends(text.bytes().next()) && ends(text.bytes().next_back())
}

impl std::fmt::Display for PoolSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let first = self.leases.first();
        let last = self.leases.last();
        let named = |name: Option<&String>| name.cloned().unwrap_or_default();
        match self.leases.len() {
            1 => write!(f, "{}/{}", self.namespace, named(first)),
            _ => write!(f, "{}/{} to {}", self.namespace, named(first), named(last)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_a_valid_pool_is() {
        for error in [BadPlaces::Form, BadPlaces::Name, BadPlaces::Count] {
            let line = crate::human::one_line(&error);
            let says = ["it is", "consists of", "a number from"];
            assert!(says.iter().any(|words| line.contains(words)), "{line}");
        }
    }

    #[test]
    fn a_pool_is_named_by_namespace_name_and_count() {
        let places: PoolSpec = "ci/treeswap-pool:3".parse().unwrap();
        assert_eq!(places.leases, ["treeswap-pool-0", "treeswap-pool-1", "treeswap-pool-2"]);
        assert_eq!(places.to_string(), "ci/treeswap-pool-0 to treeswap-pool-2");
        assert_eq!("ci/x:1".parse::<PoolSpec>().unwrap().to_string(), "ci/x-0");
        for (text, why) in [
            ("treeswap-pool:3", BadPlaces::Form),
            ("ci/treeswap-pool", BadPlaces::Form),
            ("/x:3", BadPlaces::Name),
            ("ci/X:3", BadPlaces::Name),
            ("ci/-x:3", BadPlaces::Name),
            ("ci/x:0", BadPlaces::Count),
            ("ci/x:101", BadPlaces::Count),
            ("ci/x:many", BadPlaces::Count),
        ] {
            assert_eq!(text.parse::<PoolSpec>(), Err(why), "{text}");
        }
    }
}
