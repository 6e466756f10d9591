//! The objects that are read and written, as our own types, and their conversion from and to those of Kubernetes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::coordination::v1::{Lease as KubeLease, LeaseSpec};
use k8s_openapi::api::core::v1::ConfigMap as KubeConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::configmap::{ConfigMapData, check_key};

/// The most that a ConfigMap holds, in bytes, with its metadata and [`ENTRY`] for each key: the API server takes 1 MiB
/// of values, and 3 MiB as a whole. One with more is refused; from a real server it would have some 60,000 keys or
/// labels.
const CONTENT_MAX: usize = 4 << 20;

/// What a key costs in memory besides its text, in bytes.
const ENTRY: usize = 64;

/// The longest annotation that is kept, in bytes, of an object that is not written again. `kubectl apply` leaves a copy
/// of the object in one, of up to 256 KiB.
const ANNOTATION_MAX: usize = 4 << 10;

/// The longest uid and resourceVersion: real ones have some 40 bytes, and both are kept and written to inventories.
const ID_MAX: usize = 253;

/// An object's metadata. A write takes the metadata that was read as its precondition.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(try_from = "ReceivedMeta")]
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
    /// Returns what identifies the object and its version, without what others may have written at any length.
    pub fn identity(&self) -> Self {
        Self {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            resource_version: self.resource_version.clone(),
            ..Self::default()
        }
    }

    /// Drops annotations of more than [`ANNOTATION_MAX`], on which no decision depends. Not for an object that is
    /// written again: it would lose them.
    #[must_use]
    pub fn without_long_annotations(mut self) -> Self {
        self.annotations.retain(|_, text| text.len() <= ANNOTATION_MAX);
        self
    }

    /// Returns about how many bytes it takes in memory: most for its texts, and [`ENTRY`] for each.
    pub fn bytes(&self) -> usize {
        let of_map = |map: &BTreeMap<String, String>| -> usize {
            map.iter().map(|(key, value)| ENTRY + key.len() + value.len()).sum()
        };
        let finalizers = self.finalizers.iter().flatten().map(|name| ENTRY + name.len()).sum::<usize>();
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

/// What is used of metadata as it is received. The rest is skipped: the values of `managedFields` can take a hundred
/// times as much memory as their text.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReceivedMeta {
    namespace: Option<String>,
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    deletion_timestamp: Option<IgnoredAny>,
    finalizers: Option<Vec<String>>,
    owner_references: Option<Vec<ReceivedOwner>>,
}

impl TryFrom<ReceivedMeta> for Meta {
    type Error = &'static str;

    /// Fails without a uid, and without a namespace and a name that can be one. Both go into requests and messages.
    fn try_from(received: ReceivedMeta) -> Result<Self, Self::Error> {
        let is_name = |name: &String| check_key(name.as_bytes()).is_ok();
        let is_id = |id: &String| id.len() <= ID_MAX;
        let owners = received.owner_references;
        Ok(Self {
            namespace: received.namespace.filter(is_name).ok_or("it has no namespace")?,
            name: received.name.filter(is_name).ok_or("it has no name")?,
            uid: received.uid.filter(|uid| !uid.is_empty() && is_id(uid)).ok_or("it has no uid")?,
            resource_version: Some(received.resource_version.unwrap_or_default())
                .filter(is_id)
                .ok_or("it has no resourceVersion that can be one")?,
            labels: received.labels.unwrap_or_default(),
            annotations: received.annotations.unwrap_or_default(),
            deleting: received.deletion_timestamp.is_some(),
            finalizers: received.finalizers,
            owner_references: owners.map(|owners| owners.into_iter().map(|owner| owner.0).collect()),
        })
    }
}

/// An owner reference. The API server stores only complete ones, and others are refused: a list of empty ones would
/// take far more memory than its text.
#[derive(Deserialize)]
#[serde(try_from = "OwnerReference")]
struct ReceivedOwner(OwnerReference);

impl TryFrom<OwnerReference> for ReceivedOwner {
    type Error = &'static str;

    fn try_from(owner: OwnerReference) -> Result<Self, Self::Error> {
        let fields = [&owner.api_version, &owner.kind, &owner.name, &owner.uid];
        if fields.into_iter().any(String::is_empty) { Err("it is incomplete") } else { Ok(Self(owner)) }
    }
}

/// A ConfigMap with its content.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(try_from = "ReceivedConfigMap")]
pub struct ConfigMap {
    /// Its metadata.
    pub meta: Meta,
    /// Its keys and values.
    pub content: ConfigMapData,
    /// True if the server refuses every change of its content.
    pub immutable: bool,
}

impl ConfigMap {
    /// Returns about how many bytes it takes in memory, as [`Meta::bytes`] does.
    pub fn bytes(&self) -> usize {
        let ConfigMapData { data, binary_data } = &self.content;
        let keys = self.content.keys().map(|key| ENTRY + key.len()).sum::<usize>();
        let values = data.values().map(String::len).chain(binary_data.values().map(Vec::len));
        self.meta.bytes() + keys + values.sum::<usize>()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReceivedConfigMap {
    metadata: Meta,
    data: Option<BTreeMap<String, String>>,
    binary_data: Option<BTreeMap<String, ByteString>>,
    immutable: Option<bool>,
}

impl TryFrom<ReceivedConfigMap> for ConfigMap {
    type Error = &'static str;

    /// Fails if it holds more than a ConfigMap can, or has a key that cannot be one. Keys are shown, and records are
    /// kept as long as a delivery takes.
    fn try_from(received: ReceivedConfigMap) -> Result<Self, Self::Error> {
        let binary_data = received.binary_data.unwrap_or_default();
        let content = ConfigMapData {
            data: received.data.unwrap_or_default(),
            binary_data: binary_data.into_iter().map(|(key, bytes)| (key, bytes.0)).collect(),
        };
        let immutable = received.immutable.unwrap_or(false);
        let found = Self { meta: received.metadata, content, immutable };
        if found.bytes() > CONTENT_MAX {
            return Err("it has more than a ConfigMap can hold");
        }
        if found.content.keys().any(|key| check_key(key.as_bytes()).is_err()) {
            return Err("it has a key that cannot be one");
        }
        Ok(found)
    }
}

/// A ConfigMap to be written, with all of its labels, annotations, keys and values.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ConfigMapDraft {
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

impl ConfigMapDraft {
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
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(from = "ReceivedLease")]
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

#[derive(Deserialize)]
struct ReceivedLease {
    metadata: Meta,
    spec: Option<LeaseSpec>,
}

impl From<ReceivedLease> for Lease {
    fn from(ReceivedLease { metadata, spec }: ReceivedLease) -> Self {
        let spec = spec.unwrap_or_default();
        Self {
            meta: metadata,
            holder: spec.holder_identity.filter(|holder| !holder.is_empty()),
            duration_seconds: spec.lease_duration_seconds,
            acquired: spec.acquire_time.map(|time| time.0),
            renewed: spec.renew_time.map(|time| time.0),
            transitions: spec.lease_transitions.unwrap_or(0),
        }
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn meta(change: &Value) -> Result<Meta, serde_json::Error> {
        let mut meta = json!({ "namespace": "ci", "name": "jobs.x", "uid": "u1" });
        meta.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        serde_json::from_value(meta)
    }

    #[test]
    fn metadata_is_received_with_what_is_used_of_it() {
        let owner = json!({ "apiVersion": "v1", "kind": "Job", "name": "a", "uid": "2", "controller": true });
        let all = json!({
            "resourceVersion": "7", "labels": { "a": "1" }, "annotations": { "b": "2" },
            "finalizers": ["x/y"], "ownerReferences": [owner], "deletionTimestamp": "2026-01-01T00:00:00Z",
            "creationTimestamp": null, "managedFields": [{ "fieldsV1": { "f:data": { "f:a": {} } } }],
        });
        let found = meta(&all).unwrap();
        assert_eq!([&found.namespace, &found.name, &found.uid], ["ci", "jobs.x", "u1"]);
        assert_eq!((found.labels["a"].as_str(), found.annotations["b"].as_str()), ("1", "2"));
        assert!(found.deleting && found.resource_version == "7");
        let sent = metadata("ci".into(), "jobs.x".into(), BTreeMap::new(), BTreeMap::new(), Some(&found));
        let sent = serde_json::to_value(sent).unwrap();
        assert_eq!((&sent["finalizers"], &sent["ownerReferences"]), (&json!(["x/y"]), &json!([owner])));
        let least = meta(&json!({ "labels": null, "deletionTimestamp": null })).unwrap();
        assert!(!least.deleting && least.labels.is_empty() && least.resource_version.is_empty());
    }

    #[test]
    fn what_takes_far_more_memory_than_its_text_counts_as_such() {
        let many: BTreeMap<String, &str> = (0..1_000).map(|key| (key.to_string(), "")).collect();
        let names = vec![""; 1_000];
        for change in
            [json!({ "labels": many }), json!({ "annotations": many }), json!({ "finalizers": names })]
        {
            assert!(meta(&change).unwrap().bytes() > 1_000 * ENTRY, "{change}");
        }
    }

    #[test]
    fn metadata_that_no_server_stores_is_refused() {
        let name = |text: &str| json!({ "name": text });
        for change in [
            json!({ "uid": "" }),
            json!({ "uid": null }),
            json!({ "uid": "x".repeat(300) }),
            json!({ "resourceVersion": "1".repeat(300) }),
            json!({ "namespace": null }),
            json!({ "namespace": "x".repeat(65_000) }),
            json!({ "namespace": ".." }),
            name(""),
            name("."),
            name("a/b"),
            name("a\n\u{1b}[31m"),
            json!({ "ownerReferences": [{}] }),
        ] {
            assert!(meta(&change).is_err(), "{change}");
        }
    }

    #[test]
    fn a_config_map_holds_no_more_than_the_server_takes_and_has_no_other_keys() {
        let received = |data: Value, binary: Value| {
            let metadata = json!({ "namespace": "ci", "name": "jobs", "uid": "u1" });
            let object = json!({ "metadata": metadata, "data": data, "binaryData": binary });
            serde_json::from_value::<ConfigMap>(object)
        };
        let found = received(json!({ "_a-b.c": "1" }), json!({ "b": "AQI=" })).unwrap();
        assert_eq!((found.content.data["_a-b.c"].as_str(), found.content.binary_data["b"][1]), ("1", 2));
        assert!(!found.immutable && received(Value::Null, Value::Null).is_ok());
        let most = |bytes: usize| received(json!({ "a": "x".repeat(bytes) }), Value::Null);
        let rest = CONTENT_MAX - found.meta.bytes() - ENTRY - 1;
        assert!(most(1 << 20).is_ok() && most(rest).is_ok() && most(rest + 1).is_err());
        let many: serde_json::Map<String, Value> =
            (0..=CONTENT_MAX / ENTRY).map(|key| (key.to_string(), json!(""))).collect();
        assert!(received(Value::Object(many.clone()), Value::Null).is_err());
        let metadata = json!({ "namespace": "ci", "name": "jobs", "uid": "u1", "annotations": many });
        assert!(serde_json::from_value::<ConfigMap>(json!({ "metadata": metadata })).is_err());
        for key in ["", "..", "a\nb", "a\u{1b}[31m", "a b", &"x".repeat(254)] {
            assert!(received(json!({ key: "1" }), Value::Null).is_err(), "{key:?}");
            assert!(received(Value::Null, json!({ key: "AQI=" })).is_err(), "{key:?}");
        }
    }
}
