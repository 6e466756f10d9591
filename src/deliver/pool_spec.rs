//! The names of the Leases that make up a pool, as parsed from `NAMESPACE/NAME:COUNT`.

use std::str::FromStr;

use crate::configmap::check_namespace;

/// The largest pool. No fleet needs more, and a waiting process reads every Lease of the pool at each poll.
const MAX_LEASES: u16 = 100;

/// The Leases NAMESPACE/NAME-0, NAMESPACE/NAME-1 and so on, of the cluster that is called `default`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolSpec {
    pub(super) namespace: String,
    pub(super) leases: Vec<String>,
}

/// Why a text is not a valid pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadPoolSpec {
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
    type Err = BadPoolSpec;

    fn from_str(text: &str) -> Result<Self, BadPoolSpec> {
        let (namespace, rest) = text.split_once('/').ok_or(BadPoolSpec::Form)?;
        let (name, count) = rest.split_once(':').ok_or(BadPoolSpec::Form)?;
        // Both are DNS labels.
        if check_namespace(namespace).and(check_namespace(name)).is_err() {
            return Err(BadPoolSpec::Name);
        }
        let count =
            count.parse().ok().filter(|count| (1..=MAX_LEASES).contains(count)).ok_or(BadPoolSpec::Count)?;
        let leases = (0..count).map(|number| format!("{name}-{number}")).collect();
        Ok(Self { namespace: namespace.to_owned(), leases })
    }
}

impl std::fmt::Display for PoolSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.leases.as_slice() {
            [first, .., last] => write!(f, "{}/{first} to {last}", self.namespace),
            one => write!(f, "{}/{}", self.namespace, one.concat()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_a_valid_pool_is() {
        for error in [BadPoolSpec::Form, BadPoolSpec::Name, BadPoolSpec::Count] {
            let line = crate::human::one_line(&error);
            let says = ["it is", "consists of", "a number from"];
            assert!(says.iter().any(|words| line.contains(words)), "{line}");
        }
    }

    #[test]
    fn a_pool_is_named_by_namespace_name_and_count() {
        let pool: PoolSpec = "ci/treeswap-pool:3".parse().unwrap();
        assert_eq!(pool.leases, ["treeswap-pool-0", "treeswap-pool-1", "treeswap-pool-2"]);
        assert_eq!(pool.to_string(), "ci/treeswap-pool-0 to treeswap-pool-2");
        assert_eq!("ci/x:1".parse::<PoolSpec>().unwrap().to_string(), "ci/x-0");
        for (text, why) in [
            ("treeswap-pool:3", BadPoolSpec::Form),
            ("ci/treeswap-pool", BadPoolSpec::Form),
            ("/x:3", BadPoolSpec::Name),
            ("ci/X:3", BadPoolSpec::Name),
            ("ci/-x:3", BadPoolSpec::Name),
            ("ci/x:0", BadPoolSpec::Count),
            ("ci/x:101", BadPoolSpec::Count),
            ("ci/x:many", BadPoolSpec::Count),
        ] {
            assert_eq!(text.parse::<PoolSpec>(), Err(why), "{text}");
        }
    }
}
