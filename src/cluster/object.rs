//! What is read and written, in our own words.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::coordination::v1::{Lease as KubeLease, LeaseSpec};
use k8s_openapi::api::core::v1::ConfigMap as KubeConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};

use crate::configmap::Current;

/// What the server says about an object without its content. A write proves with it what was read.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Meta {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Differs between two objects that had the same name one after the other.
    pub uid: String,
    /// Changes with every write, by whomever. Empty after a dry run's creation, which no write can follow.
    pub resource_version: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// Whether it waits for its finalizers to be gone.
    pub deleting: bool,
    /// Kept as they are by a replacement: they belong to others.
    finalizers: Option<Vec<String>>,
    owners: Option<Vec<OwnerReference>>,
}

impl Meta {
    /// Metadata as the server sent them. An object without a uid is none.
    pub(super) fn read(meta: ObjectMeta) -> Option<Self> {
        Some(Self {
            namespace: meta.namespace?,
            name: meta.name?,
            uid: meta.uid.filter(|uid| !uid.is_empty())?,
            resource_version: meta.resource_version.unwrap_or_default(),
            labels: meta.labels.unwrap_or_default(),
            annotations: meta.annotations.unwrap_or_default(),
            deleting: meta.deletion_timestamp.is_some(),
            finalizers: meta.finalizers,
            owners: meta.owner_references,
        })
    }
}

/// A ConfigMap with its content.
#[derive(Clone, PartialEq, Debug)]
pub struct ConfigMap {
    /// About it.
    pub meta: Meta,
    /// Its keys and values.
    pub content: Current,
    /// Whether the server refuses any other content.
    pub immutable: bool,
}

impl ConfigMap {
    pub(super) fn read(object: KubeConfigMap) -> Option<Self> {
        let binary = object.binary_data.unwrap_or_default();
        Some(Self {
            meta: Meta::read(object.metadata)?,
            content: Current {
                data: object.data.unwrap_or_default(),
                binary: binary.into_iter().map(|(key, bytes)| (key, bytes.0)).collect(),
            },
            immutable: object.immutable.unwrap_or(false),
        })
    }
}

/// A ConfigMap to be written: all of its labels, annotations, keys and values.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Draft {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Every label it will have.
    pub labels: BTreeMap<String, String>,
    /// Every annotation it will have.
    pub annotations: BTreeMap<String, String>,
    /// Every key it will have.
    pub content: Current,
}

impl Draft {
    /// As it is sent; over `read`, which must still be there.
    pub(super) fn into_kube(self, read: Option<&Meta>) -> KubeConfigMap {
        let Self { namespace, name, labels, annotations, content } = self;
        let binary = content.binary.into_iter().map(|(key, bytes)| (key, ByteString(bytes)));
        KubeConfigMap {
            metadata: metadata(namespace, name, labels, annotations, read),
            data: Some(content.data),
            binary_data: Some(binary.collect()),
            immutable: None,
        }
    }
}

/// A Lease.
#[derive(Clone, PartialEq, Debug)]
pub struct Lease {
    /// About it.
    pub meta: Meta,
    /// Its holder; it is free when absent or empty.
    pub holder: Option<String>,
    /// How long the holder may be silent, in seconds.
    pub duration: Option<i32>,
    /// When the holder took it, by the holder's clock.
    pub acquired: Option<Timestamp>,
    /// When the holder last spoke, by the holder's clock: compare for change only.
    pub renewed: Option<Timestamp>,
    /// How often it changed hands.
    pub transitions: i32,
}

impl Lease {
    pub(super) fn read(object: KubeLease) -> Option<Self> {
        let spec = object.spec.unwrap_or_default();
        Some(Self {
            meta: Meta::read(object.metadata)?,
            holder: spec.holder_identity.filter(|holder| !holder.is_empty()),
            duration: spec.lease_duration_seconds,
            acquired: spec.acquire_time.map(|time| time.0),
            renewed: spec.renew_time.map(|time| time.0),
            transitions: spec.lease_transitions.unwrap_or(0),
        })
    }
}

/// A Lease to be written.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LeaseDraft {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Every label it will have.
    pub labels: BTreeMap<String, String>,
    /// Every annotation it will have.
    pub annotations: BTreeMap<String, String>,
    /// Its holder; absent to release it.
    pub holder: Option<String>,
    /// How long the holder may be silent, in seconds: at least 1.
    pub duration: i32,
    /// When the holder took it.
    pub acquired: Option<Timestamp>,
    /// Now.
    pub renewed: Option<Timestamp>,
    /// How often it changed hands.
    pub transitions: i32,
}

impl LeaseDraft {
    /// As it is sent; over `read`, which must still be there.
    pub(super) fn into_kube(self, read: Option<&Meta>) -> KubeLease {
        KubeLease {
            metadata: metadata(self.namespace, self.name, self.labels, self.annotations, read),
            spec: Some(LeaseSpec {
                holder_identity: Some(self.holder.unwrap_or_default()),
                lease_duration_seconds: Some(self.duration),
                acquire_time: self.acquired.map(MicroTime),
                renew_time: self.renewed.map(MicroTime),
                lease_transitions: Some(self.transitions),
                ..LeaseSpec::default()
            }),
        }
    }
}

fn metadata(
    namespace: String,
    name: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    read: Option<&Meta>,
) -> ObjectMeta {
    ObjectMeta {
        namespace: Some(namespace),
        name: Some(name),
        labels: Some(labels),
        annotations: Some(annotations),
        uid: read.map(|read| read.uid.clone()),
        resource_version: read.map(|read| read.resource_version.clone()),
        finalizers: read.and_then(|read| read.finalizers.clone()),
        owner_references: read.and_then(|read| read.owners.clone()),
        ..ObjectMeta::default()
    }
}
