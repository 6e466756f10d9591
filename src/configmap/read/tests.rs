//! The limits of rules, and the message for each rule that is over one. `tests/vectors` has the rest.

mod fields;

use super::*;

fn read(yaml: &str, ignore_unknown: bool) -> Result<RuleSet, RulesError> {
    let setting = Setting {
        file: "plugins.yaml",
        default_namespace: "default",
        dialect: Dialect::Zglob,
        ignore_unknown,
    };
    RuleSet::read(yaml, &setting, &|_| None)
}

fn rules(yaml: &str) -> Vec<Rule> {
    read(yaml, false).unwrap().rules
}

/// The one problem of rules: its field, and what is wrong.
fn problem(yaml: &str) -> (String, String) {
    let error = read(yaml, false).unwrap_err();
    let [problem] = error.problems() else { panic!("{:?}", error.problems()) };
    (problem.field.clone(), problem.kind.to_string())
}

/// So many names, as the items of a list.
fn names(count: usize) -> String {
    (0..count).map(|at| format!("n{at}")).collect::<Vec<_>>().join(", ")
}

/// A compiled pattern takes some kilobytes, whatever its length.
#[test]
fn the_number_of_rules_is_limited() {
    let maps = |count: usize| {
        let rules: String = (0..count).map(|at| format!("  a{at}: {{name: a}}\n")).collect();
        format!(" maps:\n{rules}")
    };
    assert_eq!(rules(&maps(10_000)).len(), 10_000);
    for (yaml, field) in
        [(maps(10_001), "maps"), (format!("config_updater:\n{}", maps(10_001)), "config_updater.maps")]
    {
        let (at, what) = problem(&yaml);
        assert_eq!(at, field);
        assert!(what.starts_with("it has 10001 rules, the limit is 10000; one pattern may match"), "{what}");
    }
    let hints = read(&maps(10_001), true).unwrap_err().hints();
    assert!(!hints.iter().any(|hint| hint.contains("--unknown-fields")), "{hints:?}");
}

/// Each place of a ConfigMap has a copy of it.
#[test]
fn the_names_of_clusters_are_limited() {
    let of_group = |name: &str| {
        let group = format!("{{clusters: [{name}, b], namespaces: [{}]}}", names(100));
        format!("cluster_groups: {{g: {group}}}\nmaps:\n  a: {{name: a, cluster_groups: [g]}}\n")
    };
    let of_rule = |name: &str| {
        let clusters = format!("{{? {name} : [{}]}}", names(100));
        format!("maps:\n  a: {{name: a, clusters: {clusters}}}\n")
    };
    let longest = "x".repeat(253);
    assert_eq!(rules(&of_group(&longest))[0].places.len(), 200);
    assert_eq!(rules(&of_rule(&longest))[0].places[99].cluster, longest);
    for (yaml, field) in [
        (of_group(&"x".repeat(254)), "cluster_groups.g.clusters".to_owned()),
        (of_rule(&"x".repeat(254)), format!("maps[\"a\"].clusters.{}", "x".repeat(254))),
        (of_rule(&"x".repeat(100_000)), format!("maps[\"a\"].clusters.{0}…{0}", "x".repeat(24))),
    ] {
        let (at, what) = problem(&yaml);
        assert_eq!(at, field);
        assert!(what.ends_with(" cannot be the name of a cluster: it is longer than 253 bytes"), "{what}");
    }
}

/// A copy for each place would take gigabytes.
#[test]
fn what_cannot_be_a_cluster_or_a_namespace_is_in_no_place() {
    let yaml = format!(
        "maps:\n  a: {{name: a, clusters: {{c: [ok, '', {0}], {1}: [ok]}}}}\n",
        "x".repeat(64),
        "x".repeat(254)
    );
    let setting = Setting {
        file: "plugins.yaml",
        default_namespace: "default",
        dialect: Dialect::Zglob,
        ignore_unknown: false,
    };
    let mut parser = RulesParser {
        source: &yaml,
        setting: &setting,
        problems: Vec::new(),
        warnings: Vec::new(),
        certain: HashMap::new(),
        targets: 0,
    };
    let set = parser.document(&Top::read(&yaml).unwrap(), &|_| None);
    let place = |namespace| parser.place("c", namespace);
    assert_eq!(set.rules[0].places, [place("default"), place("ok")]);
    let told: Vec<String> = parser.problems.iter().map(|problem| problem.kind.to_string()).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].ends_with(" cannot be a namespace: it is longer than 63 bytes"), "{told:?}");
    assert!(told[1].ends_with(" cannot be the name of a cluster: it is longer than 253 bytes"), "{told:?}");
}

/// The section would have no maps, and the two default maps of Prow would take their place.
#[test]
fn maps_beside_the_section_are_named_with_their_line() {
    let yaml = "config_updater:\nMaps:\n  jobs/*: {name: jobs}\ngzip: true\nplugins: {}\n";
    let error = read(yaml, false).unwrap_err();
    let places: Vec<_> = error.problems().iter().map(|one| (one.field.as_str(), one.line)).collect();
    assert_eq!(places, [("Maps", Some(2)), ("gzip", Some(4))]);
    let beside = ProblemKind::BesideSection;
    assert!(error.problems().iter().all(|one| one.kind == beside), "{:?}", error.problems());
    assert!(error.to_string().contains("is beside config_updater, where Prow ignores it; indent"), "{error}");
    assert!(error.hints().iter().any(|hint| hint.contains("--unknown-fields=ignore")));
    let warnings = read(yaml, true).unwrap().warnings;
    assert_eq!(warnings.iter().filter(|one| one.kind == beside).count(), 2, "{warnings:?}");
    let dialect = problem("config_updater:\n  maps: {jobs/*: {name: jobs}}\ndialect: globset\n");
    assert_eq!(dialect, ("dialect".to_owned(), "there is no such field".to_owned()), "nor is it one below");
    assert_eq!(rules("config_updater:\n  maps: {jobs/*: {name: jobs}}\nplugins: {}\n").len(), 1);
    assert_eq!(rules("plugins: {}\n").len(), 2, "Prow's defaults");
    assert_eq!(rules("gzip: true\nmaps: {jobs/*: {name: jobs}}\n").len(), 1, "a file of its own");
}
