//! The objects that are read and written, as our own types, and their conversion from and to those of Kubernetes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::coordination::v1::{Lease as KubeLease, LeaseSpec};
use k8s_openapi::api::core::v1::ConfigMap as KubeConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};

use crate::configmap::ConfigMapData;

/// An object's metadata. A write takes the metadata that was read as its precondition.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Meta {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Differs between an object and one that was created later under the same name.
    pub uid: String,
    /// Changes with every write. Empty after a creation in a dry run, which no write can follow.
    pub resource_version: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// True if it was deleted and waits for its finalizers.
    pub deleting: bool,
    /// Finalizers and owner references belong to others; a replacement keeps them.
    finalizers: Option<Vec<String>>,
    owner_references: Option<Vec<OwnerReference>>,
}

impl Meta {
    /// Converts metadata as received; `None` without a namespace, a name or a uid.
    pub(super) fn from_kube(meta: ObjectMeta) -> Option<Self> {
        Some(Self {
            namespace: meta.namespace?,
            name: meta.name?,
            uid: meta.uid.filter(|uid| !uid.is_empty())?,
            resource_version: meta.resource_version.unwrap_or_default(),
            labels: meta.labels.unwrap_or_default(),
            annotations: meta.annotations.unwrap_or_default(),
            deleting: meta.deletion_timestamp.is_some(),
            finalizers: meta.finalizers,
            owner_references: meta.owner_references,
        })
    }

    /// Returns how many bytes of text it holds, and a little for each object.
    pub(super) fn bytes(&self) -> usize {
        let of_map = |map: &BTreeMap<String, String>| -> usize {
            map.iter().map(|(key, value)| key.len() + value.len()).sum()
        };
        let finalizers = self.finalizers.iter().flatten().map(String::len).sum::<usize>();
        let owners = self.owner_references.iter().flatten();
        let owners = owners.map(|owner| {
            let OwnerReference { api_version, kind, name, uid, .. } = owner;
            size_of::<OwnerReference>() + api_version.len() + kind.len() + name.len() + uid.len()
        });
        let names = self.namespace.len() + self.name.len() + self.uid.len() + self.resource_version.len();
        let maps = of_map(&self.labels) + of_map(&self.annotations);
        size_of::<Self>() + names + maps + finalizers + owners.sum::<usize>()
    }
}

/// A ConfigMap with its content.
#[derive(Clone, PartialEq, Debug)]
pub struct ConfigMap {
    /// Its metadata.
    pub meta: Meta,
    /// Its keys and values.
    pub content: ConfigMapData,
    /// True if the server refuses every change of its content.
    pub immutable: bool,
}

impl ConfigMap {
    pub(super) fn from_kube(object: KubeConfigMap) -> Option<Self> {
        let binary_data = object.binary_data.unwrap_or_default();
        Some(Self {
            meta: Meta::from_kube(object.metadata)?,
            content: ConfigMapData {
                data: object.data.unwrap_or_default(),
                binary_data: binary_data.into_iter().map(|(key, bytes)| (key, bytes.0)).collect(),
            },
            immutable: object.immutable.unwrap_or(false),
        })
    }
}

/// A ConfigMap to be written, with all of its labels, annotations, keys and values.
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
    pub content: ConfigMapData,
}

impl Draft {
    /// Converts to the object to send. With `replaces`, the write succeeds only if that version is still the live one.
    pub(super) fn into_kube(self, replaces: Option<&Meta>) -> KubeConfigMap {
        let Self { namespace, name, labels, annotations, content } = self;
        let binary_data = content.binary_data.into_iter().map(|(key, bytes)| (key, ByteString(bytes)));
        KubeConfigMap {
            metadata: metadata(namespace, name, labels, annotations, replaces),
            data: Some(content.data),
            binary_data: Some(binary_data.collect()),
            immutable: None,
        }
    }
}

/// A Lease.
#[derive(Clone, PartialEq, Debug)]
pub struct Lease {
    /// Its metadata.
    pub meta: Meta,
    /// The identity of its holder; `None` if it is free.
    pub holder: Option<String>,
    /// How long it is valid without being renewed.
    pub duration_seconds: Option<i32>,
    /// When the holder acquired it, by the holder's clock.
    pub acquired: Option<Timestamp>,
    /// When the holder last renewed it, by the holder's clock: only a change of it means something to others.
    pub renewed: Option<Timestamp>,
    /// How often its holder changed.
    pub transitions: i32,
}

impl Lease {
    pub(super) fn from_kube(object: KubeLease) -> Option<Self> {
        let spec = object.spec.unwrap_or_default();
        Some(Self {
            meta: Meta::from_kube(object.metadata)?,
            holder: spec.holder_identity.filter(|holder| !holder.is_empty()),
            duration_seconds: spec.lease_duration_seconds,
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
    /// The identity of its holder; `None` to release it.
    pub holder: Option<String>,
    /// How long it is valid without being renewed: at least 1.
    pub duration_seconds: i32,
    /// When the holder acquired it.
    pub acquired: Option<Timestamp>,
    /// When it is renewed, which is now.
    pub renewed: Option<Timestamp>,
    /// How often its holder changed.
    pub transitions: i32,
}

impl LeaseDraft {
    /// Converts to the object to send. With `replaces`, the write succeeds only if that version is still the live one.
    pub(super) fn into_kube(self, replaces: Option<&Meta>) -> KubeLease {
        KubeLease {
            metadata: metadata(self.namespace, self.name, self.labels, self.annotations, replaces),
            spec: Some(LeaseSpec {
                holder_identity: Some(self.holder.unwrap_or_default()),
                lease_duration_seconds: Some(self.duration_seconds),
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
    replaces: Option<&Meta>,
) -> ObjectMeta {
    ObjectMeta {
        namespace: Some(namespace),
        name: Some(name),
        labels: Some(labels),
        annotations: Some(annotations),
        uid: replaces.map(|meta| meta.uid.clone()),
        resource_version: replaces.map(|meta| meta.resource_version.clone()),
        finalizers: replaces.and_then(|meta| meta.finalizers.clone()),
        owner_references: replaces.and_then(|meta| meta.owner_references.clone()),
        ..ObjectMeta::default()
    }
}
