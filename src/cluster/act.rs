//! What a request does to which object.

use std::fmt;

/// What is done to an object, in the words of Kubernetes' access rules.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Verb {
    /// Read all of a namespace.
    List,
    /// Read one.
    Get,
    /// Write a new one.
    Create,
    /// Write over one.
    Update,
    /// Remove one.
    Delete,
}

impl Verb {
    /// As a Role spells it.
    pub fn label(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Get => "get",
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }

    /// Whether it changes anything.
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
    /// As a manifest spells it.
    pub fn label(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Lease => "Lease",
        }
    }

    /// As a Role spells it.
    pub fn resource(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmaps",
            Self::Lease => "leases",
        }
    }

    /// The group a Role names it in.
    pub fn group(self) -> &'static str {
        match self {
            Self::ConfigMap => "",
            Self::Lease => "coordination.k8s.io",
        }
    }
}

/// What was tried.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Act {
    /// The verb.
    pub verb: Verb,
    /// The kind of object.
    pub kind: Kind,
    /// Its namespace; empty for all of them.
    pub namespace: String,
    /// Its name; empty for all of the namespace.
    pub name: String,
}

impl Act {
    pub(super) fn of(verb: Verb, kind: Kind, namespace: &str, name: &str) -> Self {
        Self { verb, kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

impl fmt::Display for Act {
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
