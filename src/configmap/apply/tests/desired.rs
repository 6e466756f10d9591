//! What a plan makes desired: its ConfigMaps with their stamps, and what is left out.

use super::*;
use crate::configmap::{ClusterNamespace, Finding, Plan, Planned, Refused};
use crate::revision::{ObjectId, Revision};

/// A ConfigMap of a plan.
fn planned(name: &str, data: DesiredData) -> Planned {
    Planned {
        rules: vec![0],
        name: name.to_owned(),
        places: [ClusterNamespace { cluster: "c".into(), namespace: "n".into() }].into(),
        data,
        files: BTreeMap::new(),
        fed: true,
        left_out: false,
        stamp: None,
        stamp_key: None,
    }
}

/// Asserts that a problem of the stamp is told as such: no policy for files accepts it, so no hint names one.
#[track_caller]
fn assert_blames_stamp(finding: Finding, words: &str) {
    let refused = Refused(vec![finding]);
    assert!(refused.to_string().contains(words), "{refused}");
    let hints = refused.hints();
    crate::human::assert_message_style(&refused, &hints);
    assert!(hints.iter().any(|hint| hint.contains("--stamp-key")), "{hints:?}");
    for policy in ["--illegal-keys", "--collisions", "--oversize", "use_full_path_as_key"] {
        assert!(!hints.iter().any(|hint| hint.contains(policy)), "{policy} does not help: {hints:?}");
    }
}

fn desired_of(plan: &Plan, shape: ExtraKeys) -> Result<Desired, Finding> {
    let made_of = (Revision(ObjectId([1; 20])), Placement::default());
    Desired::new(plan, made_of, "rules".into(), shape, |_| b"")
}

#[test]
fn the_parts_of_what_is_left_out_are_told_by_their_names() {
    let planned = |name: &str| planned(name, DesiredData::default());
    let large = Planned { fed: false, left_out: true, ..planned("large") };
    let all = [large, planned("large-01"), planned("small")];
    let plan = Plan { configmaps: all.into_iter().map(Arc::new).collect(), ..Plan::default() };
    let desired = desired_of(&plan, ExtraKeys::default()).unwrap();
    for (name, is_part) in [("large-1", true), ("large-001", true), ("large-01", false), ("small-1", false)] {
        assert_eq!(desired.is_part_of_left_out(("c", "n"), name), is_part, "{name}");
    }
    assert!(!desired.is_part_of_left_out(("c", "elsewhere"), "large-1"));
    let reason = DecisionReason::PartOfLeftOut.phrase("large-001");
    assert_eq!(reason, "it may be a part of large, which is left out");
}

#[test]
fn a_stamp_holds_the_digest_and_is_outside_of_it() {
    let shape = ExtraKeys { version_key: VersionKey::Changed, stamp_key: Some("stamp".into()) };
    let desired_of = |shape: ExtraKeys| {
        let planned = Planned {
            files: [("a".to_owned(), b"dir/a"[..].into())].into(),
            stamp: Some(R2.into()),
            stamp_key: shape.stamp_key.as_ref().map(|key| key.replace("{name}", "m")),
            ..planned("m", data(&[("a", "1")]))
        };
        desired_of(&Plan { configmaps: vec![planned.into()], ..Plan::default() }, shape)
    };
    let desired = desired_of(shape.clone()).unwrap();
    let wanted = &desired.of("c", "n").unwrap()["m"];
    assert_eq!(wanted.digest, data(&[("a", "1")]).digest());
    let content = wanted.content(&shape, R2);
    assert_eq!(content.data["stamp"], wanted.digest);
    assert_eq!((content.data["VERSION"].as_str(), content.data["a"].as_str()), (R2, "1"));
    assert_eq!(desired.clusters().collect::<Vec<_>>(), ["c"]);
    let clash = ExtraKeys { stamp_key: Some("a".into()), ..shape.clone() };
    let claimed = "key a of ConfigMap m is claimed by the stamp (--stamp-key) and by a file: dir/a";
    assert_blames_stamp(desired_of(clash).unwrap_err(), claimed);
    let named = ExtraKeys { stamp_key: Some(".{name}.stamp".into()), ..shape.clone() };
    assert_eq!(named.check(), Ok(()));
    let named = desired_of(named.clone()).unwrap().of("c", "n").unwrap()["m"].content(&named, R2);
    assert_eq!(named.data[".m.stamp"], content.data["stamp"], "the same data");
    let long = ExtraKeys { stamp_key: Some(format!("{}{{name}}{{name}}", "x".repeat(252))), ..shape.clone() };
    let too_long = "(--stamp-key): it is longer than 253 bytes";
    assert_blames_stamp(desired_of(long).unwrap_err(), too_long);
    assert!(ExtraKeys { stamp_key: Some("VERSION".into()), ..shape.clone() }.check().is_err());
    assert!(ExtraKeys { stamp_key: Some("..x".into()), ..shape }.check().is_err());
}

#[test]
fn the_namespaces_of_a_cluster_are_its_own() {
    let place = |(cluster, namespace): (&str, &str)| ClusterNamespace {
        cluster: cluster.to_owned(),
        namespace: namespace.to_owned(),
    };
    let places = [("a", "x"), ("ab", ""), ("ab", "n"), ("ab", "x"), ("abc", "n"), ("b", "n")].map(place);
    let planned = Planned { places: places.into(), ..planned("m", DesiredData::default()) };
    let plan = Plan { configmaps: vec![planned.into()], ..Plan::default() };
    let desired = desired_of(&plan, ExtraKeys::default()).unwrap();
    for (cluster, expected) in [("ab", &["", "n", "x"][..]), ("a", &["x"]), ("b", &["n"]), ("aa", &[])] {
        assert_eq!(desired.namespaces(cluster).collect::<Vec<_>>(), expected, "{cluster}");
    }
}
