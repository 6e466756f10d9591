//! Names a request for errors: the verb, the kind of object, and which object.

use std::fmt;

/// What is done to an object, as Kubernetes RBAC names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Verb {
    /// Read all objects of a namespace or the cluster (GET).
    List,
    /// Read one object (GET).
    Get,
    /// Create an object (POST).
    Create,
    /// Replace an object (PUT).
    Update,
    /// Delete an object (DELETE).
    Delete,
}

impl Verb {
    /// Returns the verb as a Role spells it.
    pub fn label(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Get => "get",
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }

    /// Returns true if the verb changes an object.
    pub fn is_write(self) -> bool {
        matches!(self, Self::Create | Self::Update | Self::Delete)
    }
}

/// A kind of object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// `v1`.
    ConfigMap,
    /// `coordination.k8s.io/v1`.
    Lease,
}

impl Kind {
    /// Returns the kind as a manifest spells it.
    pub fn label(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Lease => "Lease",
        }
    }

    /// Returns the resource as a Role spells it.
    pub fn resource(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmaps",
            Self::Lease => "leases",
        }
    }
}

/// What a request does to which object. Displayed as in "update ConfigMap ci/jobs".
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operation {
    /// The verb.
    pub verb: Verb,
    /// The kind of object.
    pub kind: Kind,
    /// The object's namespace; empty for all namespaces.
    pub namespace: String,
    /// The object's name; empty for all objects of the namespace.
    pub name: String,
}

impl Operation {
    pub(super) fn of(verb: Verb, kind: Kind, namespace: &str, name: &str) -> Self {
        Self { verb, kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, kind, namespace, name } = self;
        let verb = verb.label();
        let kind = kind.label();
        match name.as_str() {
            "" => write!(f, "{verb} the {kind}s of namespace {namespace}"),
            _ if namespace.is_empty() => write!(f, "{verb} the {kind}s {name} of all namespaces"),
            _ => write!(f, "{verb} {kind} {namespace}/{name}"),
        }
    }
}
