//! What a root or a mirror may take at most fits the volume that holds it.

use std::path::PathBuf;

use serde_yaml::Value;

use super::{Ours, deploy, documents, kustomized, list, ours};

/// The bytes of a size, as the program and Kubernetes read it.
fn bytes(text: &str) -> u64 {
    let units = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40)];
    let found = units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let (number, shift) = found.unwrap_or((text, 0));
    number.parse::<u64>().unwrap_or_else(|_| panic!("{text} is no size")) << shift
}

/// What a container is told by a flag or by its variable.
fn told(container: &Value, option: &str) -> Option<String> {
    let flag = format!("--{option}=");
    let variable = format!("TREESWAP_{}", option.replace('-', "_").to_uppercase());
    let by_flag = list(container, "args").iter().find_map(|arg| arg.as_str()?.strip_prefix(&flag));
    let mut variables = list(container, "env").iter();
    let by_variable = || variables.find(|one| one["name"].as_str() == Some(&variable))?["value"].as_str();
    by_flag.or_else(by_variable).map(str::to_owned)
}

/// How many repositories the sources among these documents name: sources share a mirror if URL and credentials are the
/// same. Without any, one is followed.
fn repositories(documents: &[(PathBuf, Value)]) -> u64 {
    let mut named = std::collections::BTreeSet::new();
    for text in documents.iter().filter_map(|(_, one)| one["data"]["sources.yaml"].as_str()) {
        let file: Value = serde_yaml::from_str(text).unwrap();
        let of = |one: &Value| format!("{} {:?}", one["repo"].as_str().unwrap(), one["credentials"]);
        named.extend(list(&file, "sources").iter().map(of));
    }
    named.len().max(1) as u64
}

/// Fails unless all that may be in an emptyDir at once is within its limit, as docs/sizing.md says: the kubelet evicts
/// the Pod whose volume is larger. Returns how many such volumes there are.
pub(crate) fn assert_ceilings_fit(documents: &[(PathBuf, Value)]) -> usize {
    let mut seen = 0;
    for Ours { at, pod, container } in ours(documents) {
        let is_written = |volume: &&Value| {
            let mut mounts = list(container, "volumeMounts").iter();
            mounts.any(|mount| mount["name"] == volume["name"] && mount["readOnly"].as_bool() != Some(true))
        };
        let empty = list(pod, "volumes").iter().filter(|volume| !volume["emptyDir"].is_null());
        for volume in empty.filter(is_written) {
            let limit = volume["emptyDir"]["sizeLimit"].as_str();
            let limit = bytes(limit.unwrap_or_else(|| panic!("{at}: {volume:?} has no limit")));
            let most = |option: &str| {
                bytes(&told(container, option).unwrap_or_else(|| panic!("{at}: no --{option}")))
            };
            let (fetch, subcommand) = (most("max-fetch-bytes"), container["args"][0].as_str());
            // A run fetches once. What runs on has a mirror that is larger by half than a fresh pack at the limit, the
            // pack that makes it renewed, and then a fresh one.
            let mirror = if subcommand == Some("apply") { 0 } else { most("max-mirror-bytes") };
            assert!(mirror == 0 || fetch <= mirror, "{at}: one pack is over the limit of the mirror");
            let root = told(container, "root").map_or(0, |_| most("max-bytes"));
            let values: u64 = told(container, "owner").map_or(0, |_| 256 << 20);
            let sum = root + values + repositories(documents) * (5 * mirror / 2 + fetch);
            assert!(sum <= limit, "{at}: {sum} bytes in a volume of {limit}");
            seen += 1;
        }
    }
    seen
}

#[test]
fn ceilings_fit_the_volumes_that_are_empty_at_first() {
    assert_eq!(assert_ceilings_fit(&documents()), 4, "the sidecar twice, the appliers");
    for example in ["one-service", "two-places"] {
        let made = kustomized(&deploy().join("kustomize/examples").join(example));
        assert_eq!(assert_ceilings_fit(&made), 1, "{example}");
    }
}

#[test]
#[should_panic(expected = "bytes in a volume of 2147483648")]
fn a_ceiling_that_does_not_fit_would_be_noticed() {
    let mut documents = documents();
    documents.retain(|(path, _)| path.ends_with("sidecar/sidecar.yaml"));
    let container = &mut documents[0].1["spec"]["template"]["spec"]["initContainers"][0];
    let all = container["env"].as_sequence_mut().unwrap();
    let generations = all.iter_mut().find(|one| one["name"].as_str() == Some("TREESWAP_MAX_BYTES")).unwrap();
    generations["value"] = "1536Mi".into();
    assert_ceilings_fit(&documents);
}
