//! The rules digest: identifies the rules and options that a ConfigMap was written by. Clusters store it and other
//! releases compare with it, so it is computed over a canonical, versioned form that is independent of Rust types.
//! docs/reference/digests.md defines the form, and `testdata/vectors/digests.json` has examples.

use serde::Serialize;

use super::super::{Names, Options, RuleSet};
use super::desired_state::{ExtraKeys, VersionKey};
use crate::sha256::{hex, sha256};

/// The version of the canonical form; it prefixes the digest.
const VERSION: u32 = 2;

/// The digest of what determines, besides the tree, what is written to clusters: the rules, the options that they are
/// applied with and the keys besides the data. The stamp of `options` is left out: it only names the revision.
pub fn rules_digest(rules: &RuleSet, options: &Options, shape: &ExtraKeys) -> String {
    format!("v{VERSION}-{}", hex(&sha256(&[text(rules, options, shape).as_bytes()])))
}

/// The canonical form: JSON as in RFC 8785, with fields sorted by name.
#[derive(Serialize)]
struct DigestInput<'a> {
    dialect: String,
    policies: Policies,
    repository: Option<&'a str>,
    rules: Vec<Rule<'a>>,
    stamp_key: Option<&'a str>,
    version: u32,
    version_key: &'static str,
}

#[derive(Serialize)]
struct Policies {
    collisions: &'static str,
    illegal_keys: &'static str,
    links: &'static str,
    overlaps: &'static str,
    oversize: &'static str,
}

#[derive(Serialize)]
struct Rule<'a> {
    allowed: &'a [String],
    compress: bool,
    denied: &'a [String],
    full_path: bool,
    key: Option<&'a str>,
    name: Option<&'a str>,
    partitions: &'a [String],
    pattern: &'a str,
    /// Pairs of cluster and namespace.
    places: Vec<[&'a str; 2]>,
}

/// The text that the digest is computed over.
fn text(rules: &RuleSet, options: &Options, shape: &ExtraKeys) -> String {
    let policies = options.policies;
    let form = DigestInput {
        dialect: rules.dialect.to_string(),
        policies: Policies {
            collisions: policies.collisions.label(),
            illegal_keys: policies.illegal_keys.label(),
            links: policies.links.label(),
            overlaps: policies.overlaps.label(),
            oversize: policies.oversize.label(),
        },
        repository: options.repository.as_deref(),
        rules: rules.rules.iter().map(rule).collect(),
        stamp_key: shape.stamp_key.as_deref(),
        version: VERSION,
        version_key: match shape.version_key {
            VersionKey::Off => "off",
            VersionKey::Changed => "changed",
            VersionKey::Every => "every",
        },
    };
    #[expect(clippy::expect_used, reason = "strings, numbers and lists of them are JSON")]
    serde_json::to_string(&form).expect("strings, numbers and lists of them serialize")
}

fn rule(rule: &super::super::Rule) -> Rule<'_> {
    let (name, partitions) = match &rule.names {
        Names::One(name) => (Some(name.as_str()), &[][..]),
        Names::Partitions(names) => (None, &names[..]),
    };
    Rule {
        allowed: &rule.allowed,
        compress: rule.compress,
        denied: &rule.denied,
        full_path: rule.full_path,
        key: rule.key.as_deref(),
        name,
        partitions,
        pattern: &rule.pattern,
        places: rule.places.iter().map(|place| [&*place.cluster, &*place.namespace]).collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::super::{
        Collisions, DesiredData, IllegalKeys, Links, Options, Overlaps, Oversize, Policies, RuleSet, Setting,
        Value as Content,
    };
    use super::super::{ExtraKeys, Owner};
    use super::*;

    fn cases(section: &str) -> Vec<Value> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/vectors/digests.json");
        let all: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        all[section].as_array().unwrap().clone()
    }

    fn word<T: Copy>(case: &Value, policy: &str, values: &[(T, &str)]) -> T {
        let word = case["policies"][policy].as_str().unwrap_or("refuse");
        values.iter().find(|(_, name)| *name == word).unwrap().0
    }

    macro_rules! policy {
        ($case:ident, $name:literal, $($value:expr),*) => {
            word($case, $name, &[$(($value, $value.label())),*])
        };
    }

    fn digest_of(case: &Value) -> (String, String) {
        let text = |field: &str| case[field].as_str();
        let setting = Setting {
            file: "rules.yaml",
            default_namespace: text("default_namespace").unwrap_or("default"),
            dialect: Default::default(),
            ignore_unknown: case["policies"]["unknown_fields"] == "ignore",
        };
        let rules = RuleSet::read(text("rules").unwrap(), &setting, &|_| None).unwrap();
        let options = Options {
            repository: text("repository").map(str::to_owned),
            stamp: None,
            policies: Policies {
                overlaps: policy!(case, "overlaps", Overlaps::Refuse, Overlaps::First, Overlaps::Specific),
                collisions: policy!(case, "collisions", Collisions::Refuse, Collisions::Last),
                illegal_keys: policy!(case, "illegal_keys", IllegalKeys::Refuse, IllegalKeys::Skip),
                links: policy!(case, "links", Links::Refuse, Links::Skip),
                oversize: policy!(case, "oversize", Oversize::Refuse, Oversize::Grow, Oversize::Skip),
            },
            ..Options::default()
        };
        let version_key = match text("version_key") {
            Some("changed") => VersionKey::Changed,
            Some("every") => VersionKey::Every,
            _ => VersionKey::Off,
        };
        let shape = ExtraKeys { version_key, stamp_key: text("stamp_key").map(str::to_owned) };
        (rules_digest(&rules, &options, &shape), super::text(&rules, &options, &shape))
    }

    #[test]
    fn rules_have_the_digests_of_the_vectors() {
        for case in cases("rules") {
            let (digest, text) = digest_of(&case);
            assert_eq!(text, case["text"], "{case}");
            assert_eq!(digest, case["digest"], "{case}");
        }
    }

    #[test]
    fn each_thing_that_decides_changes_the_digest_and_what_does_not_decide_leaves_it() {
        let all: Vec<String> = cases("rules").iter().map(|case| digest_of(case).0).collect();
        let first = cases("rules")[0].clone();
        let with = |field: &str, value: Value| {
            let mut case = first.clone();
            case[field] = value;
            digest_of(&case).0
        };
        assert_eq!(with("policies", serde_json::json!({ "unknown_fields": "ignore" })), all[0]);
        for changed in [
            with("policies", serde_json::json!({ "overlaps": "first" })),
            with("repository", "acme/config".into()),
            with("version_key", "changed".into()),
            with("stamp_key", "STAMP".into()),
            with("default_namespace", "ci".into()),
        ] {
            assert!(!all.contains(&changed));
        }
    }

    #[test]
    fn data_and_owners_have_the_digests_of_the_vectors() {
        for case in cases("data") {
            let value = |(key, value): (&String, &Value)| {
                let content = match value["hex"].as_str() {
                    Some(hex) => (0..hex.len() / 2)
                        .map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap())
                        .collect(),
                    None => value["text"].as_str().unwrap().as_bytes().to_vec(),
                };
                (key.clone(), std::sync::Arc::new(Content::new(content, value["gzip"] == true)))
            };
            let values = case["values"].as_object().unwrap().iter().map(value).collect();
            assert_eq!(DesiredData::new(values).digest(), case["digest"], "{case}");
        }
        for case in cases("owners") {
            assert_eq!(Owner::new(case["name"].as_str().unwrap()).unwrap().label(), case["label"], "{case}");
        }
    }
}
