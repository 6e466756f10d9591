//! What treeswap does instead where it differs from Prow on purpose: a test for each `Defect` in `maps`, in its order
//! (one for both of the stamp). `GitDirectory` and `OrphanStays` have none: a commit has no `.git`, and a plan has no
//! place for what no rule names.

use treeswap::configmap::{
    Entry, Finding, InvalidKey, Options, Plan, ProblemKind, RuleSet, RulesError, Tree, plan,
};

use super::maps::read;
use super::plans::{gunzip, tree_of};

/// Reads rules for the namespace `default`.
pub(crate) fn rules(yaml: &str) -> Result<RuleSet, RulesError> {
    read(yaml, "default", false)
}

/// The same; fields that do not exist are no problem.
pub(crate) fn rules_ignoring_unknown(yaml: &str) -> Result<RuleSet, RulesError> {
    read(yaml, "default", true)
}

/// A plan of files whose content is their path.
fn planned(yaml: &str, paths: &[&str], options: &Options) -> Plan {
    let rules = rules(yaml).unwrap();
    let (tree, mut contents) = tree_of(paths.iter().map(|path| (*path, path.as_bytes().to_vec())));
    plan(&rules, &tree, &mut contents, options).unwrap()
}

fn keys(plan: &Plan, name: &str) -> Vec<String> {
    let found = plan.configmaps.iter().find(|planned| planned.name == name).unwrap();
    found.data.values().keys().cloned().collect()
}

fn problem(yaml: &str) -> (String, ProblemKind) {
    let error = rules(yaml).unwrap_err();
    let problem = &error.problems()[0];
    (problem.field.clone(), problem.kind.clone())
}

#[test]
fn globs_that_only_look_alike_feed_one_configmap() {
    let yaml = "maps:\n  a/**/*.yaml: {name: cm}\n  b/**/*.yaml: {name: cm}\n";
    let plan = planned(yaml, &["a/x.yaml", "b/y.yaml"], &Options::default());
    assert_eq!(plan.refused, []);
    assert_eq!(keys(&plan, "cm"), ["x.yaml", "y.yaml"]);
}

#[test]
fn two_files_for_one_key_are_seen_through_groups_and_the_default_namespace() {
    let groups = "cluster_groups: {g: {clusters: [c], namespaces: [ns]}}\nmaps:\n  \
                  a/x: {name: cm, cluster_groups: [g]}\n  b/x: {name: cm, cluster_groups: [g]}\n";
    let namespace = "maps:\n  a/x: {name: cm}\n  b/x: {name: cm, clusters: {default: [default]}}\n";
    for yaml in [groups, namespace] {
        let (field, kind) = problem(yaml);
        assert_eq!(field, "maps[\"b/x\"]");
        assert!(matches!(kind, ProblemKind::SameKey { other, .. } if other == "a/x"));
    }
}

#[test]
fn names_that_the_api_server_refuses_are_named_with_their_field_and_line() {
    let error = rules("maps:\n  a/x:\n    name: Not_Valid\n").unwrap_err();
    assert_eq!(error.problems()[0].field, "maps[\"a/x\"].name");
    assert_eq!(error.problems()[0].line, Some(2));
    assert!(matches!(problem("maps:\n  a/x: {key: k}\n").1, ProblemKind::NoName));
}

#[test]
fn unknown_and_removed_fields_are_named_and_can_be_ignored() {
    let yaml = "config_updater:\n  maps:\n    a/x: {name: cm, nmae: y, namespace: boskos}\n";
    let error = rules(yaml).unwrap_err();
    let problems: Vec<_> = error.problems().iter().map(|problem| problem.kind.clone()).collect();
    assert!(
        matches!(problems[..], [ProblemKind::Unknown(Some("name")), ProblemKind::Removed(_)]),
        "{problems:?}"
    );
    assert!(error.hints().iter().any(|hint| hint.contains("--unknown-fields=ignore")));
    assert_eq!(rules_ignoring_unknown(yaml).unwrap().warnings.len(), 2);
}

#[test]
fn duplicate_fields_and_patterns_are_refused() {
    let (field, found) = problem("maps:\n  a/*: {name: one}\n  a/*: {name: two}\n");
    assert_eq!((field.as_str(), found), ("maps[\"a/*\"]", ProblemKind::Duplicate));
    assert_eq!(problem("maps:\n  a/*: {name: one, Name: two}\n").1, ProblemKind::Duplicate);
}

#[test]
fn words_that_yaml_1_1_reads_otherwise_are_named_unless_they_are_quoted() {
    let (_, found) = problem("maps:\n  a/x: {name: cm, clusters: {on: [n1]}}\n");
    assert!(matches!(found, ProblemKind::ImplicitType { word, what: "a boolean" } if word == "on"));
    let (field, found) = problem("maps:\n  a/x: {name: cm, clusters: {c: [010]}}\n");
    assert_eq!(field, "maps[\"a/x\"].clusters.c[0]");
    assert!(matches!(found, ProblemKind::ImplicitType { word, what: "a number" } if word == "010"));
    rules("maps:\n  a/x: {name: cm, clusters: {\"on\": ['off']}}\n").unwrap();
    let rules = rules("gzip: yes\nmaps:\n  a/x: {name: cm}\n").unwrap();
    assert!(rules.rules[0].compress);
    assert!(matches!(rules.warnings[0].kind, ProblemKind::OldBoolean(..)));
}

#[test]
fn cluster_groups_keep_every_field() {
    let yaml = "cluster_groups: {g: {clusters: [c], namespaces: [ns]}}\nmaps:\n  'a/**/*': {name: cm, \
                cluster_groups: [g], use_full_path_as_key: true, denied_repos: [bad/repo]}\n";
    let from = |repository: &str| Options { repository: Some(repository.into()), ..Options::default() };
    assert_eq!(keys(&planned(yaml, &["a/b/x"], &from("good/repo")), "cm"), ["a-b-x"]);
    let denied = planned(yaml, &["a/b/x"], &from("bad/repo"));
    assert!(denied.configmaps.is_empty());
    assert!(matches!(denied.noted[..], [Finding::RepositoryNotPermitted { files: 1, .. }]));
}

#[test]
fn a_file_of_two_rules_is_refused_with_both() {
    let yaml = "maps:\n  jobs/**/*.yaml: {name: all}\n  jobs/special/*.yaml: {name: special}\n";
    let plan = planned(yaml, &["jobs/special/a.yaml", "jobs/b.yaml"], &Options::default());
    let refused = plan.accepted().unwrap_err().to_string();
    for word in ["jobs/special/a.yaml", "jobs/**/*.yaml (ConfigMap all)", "(ConfigMap special)"] {
        assert!(refused.contains(word), "{refused}");
    }
}

#[test]
fn files_with_one_key_are_refused_with_all_their_paths() {
    let yaml = "maps:\n  '**/*.yaml': {name: cm, use_full_path_as_key: true}\n";
    let plan = planned(yaml, &["a/b-c.yaml", "a-b/c.yaml"], &Options::default());
    let [Finding::Collision { key, paths, .. }] = &plan.refused[..] else { panic!("{:?}", plan.refused) };
    assert_eq!((key.as_str(), paths.len()), ("a-b-c.yaml", 2));
}

#[test]
fn each_file_with_an_illegal_key_is_reported() {
    let yaml = "maps:\n  a/*: {name: cm}\n";
    let plan = planned(yaml, &["a/b c", "a/..x", "a/é", "a/ok"], &Options::default());
    assert_eq!(plan.refused.len(), 3);
    let is_dots =
        |one: &Finding| matches!(one, Finding::IllegalKey { key, why: InvalidKey::Dots, .. } if key == "..x");
    assert!(plan.refused.iter().any(is_dots), "{:?}", plan.refused);
    assert_eq!(keys(&plan, "cm"), ["ok"]);
}

#[test]
fn an_empty_default_namespace_is_refused() {
    let ignore_unknown = false;
    let error = read("maps:\n  a/x: {name: cm}\n", "", ignore_unknown).unwrap_err();
    assert!(matches!(error, RulesError::DefaultNamespace { .. }));
}

#[test]
fn a_moved_file_keeps_its_key_whatever_the_order_of_paths_is() {
    let yaml = "maps:\n  jobs/**/*.yaml: {name: jobs}\n";
    for path in ["jobs/a/x.yaml", "jobs/z/x.yaml"] {
        assert_eq!(keys(&planned(yaml, &[path], &Options::default()), "jobs"), ["x.yaml"]);
    }
}

#[test]
fn a_rule_that_asks_for_the_repository_is_not_passed_over() {
    let yaml = "maps:\n  a/x: {name: cm, allowed_repos: [org/repo]}\n";
    let plan = planned(yaml, &["a/x"], &Options::default());
    assert!(matches!(&plan.refused[..], [Finding::RepositoryUnknown { pattern }] if pattern == "a/x"));
}

#[test]
fn links_give_a_files_content_or_are_named() {
    let rules = rules("maps:\n  jobs/*: {name: jobs}\n").unwrap();
    let (mut tree, mut contents): (Tree, _) = tree_of([("data/f", b"content".to_vec())]);
    for (path, target) in
        [("jobs/good", "../data/f"), ("jobs/none", "/x"), ("jobs/dir", "../data"), ("jobs/me", "me")]
    {
        tree.add(path.into(), Entry::Link(target.into()));
    }
    let plan = plan(&rules, &tree, &mut contents, &Options::default()).unwrap();
    assert_eq!(plan.refused.len(), 3);
    let [planned] = &plan.configmaps[..] else { panic!() };
    assert_eq!(planned.data.values()["good"].bytes(), b"content");
}

#[test]
fn version_is_in_every_configmap_unless_a_file_has_that_key() {
    let yaml = "gzip: true\nmaps:\n  a/*: {name: a}\n  b/*: {name: b}\n";
    let options = Options { stamp: Some("r1".into()), ..Options::default() };
    let plan = planned(yaml, &["a/x", "b/VERSION"], &options);
    assert_eq!(plan.configmaps[0].content().values()["VERSION"].text(), Some("r1"));
    let file = &plan.configmaps[1].data.values()["VERSION"];
    assert_eq!((file.text(), gunzip(file.bytes())), (None, b"b/VERSION".to_vec()));
}

#[test]
fn rules_that_lost_their_last_file_are_in_the_plan() {
    let plan = planned("maps:\n  jobs/*: {name: jobs}\n", &["docs/x"], &Options::default());
    assert!(!plan.configmaps[0].fed);
    assert!(matches!(&plan.noted[..], [Finding::NoMatch { .. }]));
}
