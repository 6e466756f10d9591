//! Recognizes failures that many requests of a delivery share, so that each is reported once.

use crate::cluster::{Error, Failure};
use crate::human;

/// What fails all requests to a cluster, or those to one of its namespaces.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Cause {
    /// The cluster's name in messages about requests.
    pub(super) cluster: String,
    /// The failure, without the request that met it.
    pub(super) why: String,
    /// True if single requests may fail by it as well: then it is shared only where none of the cluster succeeded.
    pub(super) may_be_of_one_request: bool,
}

impl Cause {
    /// Returns what a request failed by; `None` if that may be about the one object only, or the right to it.
    pub(super) fn of(error: &Error) -> Option<Self> {
        let may_be_of_one_request = match error.why {
            Failure::Busy { .. }
            | Failure::Timeout { .. }
            | Failure::ConnectionLost { .. }
            | Failure::Server { .. } => true,
            Failure::NamespaceNotFound { .. }
            | Failure::NamespaceTerminating { .. }
            | Failure::Unauthorized
            | Failure::Unreachable { .. }
            | Failure::Config(_) => false,
            _ => return None,
        };
        Some(Self { cluster: error.cluster.clone(), why: human::one_line(&error.why), may_be_of_one_request })
    }

    /// Returns true if a line says that a request failed by this.
    pub(super) fn is_repeated_by(&self, line: &str) -> bool {
        let rest = line.strip_prefix("cluster ").and_then(|rest| rest.strip_prefix(self.cluster.as_str()));
        let rest = rest.and_then(|rest| rest.strip_prefix(": cannot "));
        rest.is_some_and(|rest| rest.contains(&self.why))
    }
}
