//! What treeswap does instead where it differs from Prow on purpose (`Defect` in `maps`), and its limits.

use treeswap::configmap::{
    Entry, Finding, InvalidKey, Options, Overlaps, Oversize, Plan, Policies, Problem, ProblemKind, RuleSet,
    RulesError, Tree, manifest, plan,
};

use super::maps::read;
use super::plans::{gunzip, tree_of};

fn rules(yaml: &str) -> Result<RuleSet, RulesError> {
    read(yaml, "default", false)
}

fn rules_ignoring_unknown(yaml: &str) -> Result<RuleSet, RulesError> {
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

/// Each line refers to the one before it nine times: 3.5 billion words in half a kilobyte.
#[test]
fn references_that_multiply_are_refused() {
    let mut yaml = "bomb:\n  a: &a [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (last, this) in ('a'..='i').zip('b'..='j') {
        yaml += &format!("  {this}: &{this} [{}]\n", vec![format!("*{last}"); 9].join(", "));
    }
    yaml += "maps:\n  a/*: {name: a, clusters: {default: *j}}\n";
    let error = rules_ignoring_unknown(&yaml).unwrap_err().to_string();
    assert!(error.contains("repetition limit exceeded"), "{error}");
}

fn problems(yaml: &str) -> Vec<Problem> {
    rules(yaml).unwrap_err().problems().to_vec()
}

/// So many names, as the items of a list.
fn names(count: usize) -> String {
    (0..count).map(|at| format!("n{at}")).collect::<Vec<_>>().join(", ")
}

/// The group `g` of so many clusters, each with as many namespaces, and the beginning of the rules.
fn group(count: usize) -> String {
    format!("cluster_groups: {{g: {{clusters: [{0}], namespaces: [{0}]}}}}\nmaps:\n", names(count))
}

fn rule_of_group(at: usize) -> String {
    format!("  a{at}/*: {{name: a, cluster_groups: [g]}}\n")
}

/// One alias may stand for many values.
#[test]
fn what_aliases_repeat_is_limited() {
    let list = format!("x: &x [{}]\n", names(10_000));
    let yaml = format!("{list}maps:\n  a/*: {{name: a, allowed_repos: [{}]}}\n", vec!["*x"; 100].join(", "));
    let error = rules(&yaml).unwrap_err().to_string();
    assert!(error.contains("with all that its aliases (*) repeat, it has more than 4.0 MiB"), "{error}");
}

/// A group has each namespace in each cluster.
#[test]
fn the_targets_of_a_group_are_limited() {
    let yaml = format!("{}{}{}", group(3_000), rule_of_group(1), rule_of_group(2));
    let [problem] = &problems(&yaml)[..] else { panic!() };
    assert_eq!(problem.field, "maps[\"a1/*\"]");
    assert_eq!(
        problem.kind.to_string(),
        "the rules up to this one name 9000000 ConfigMaps in all clusters and namespaces, the limit is 100000"
    );
    let rules = rules(&format!("{}{}", group(100), rule_of_group(1))).unwrap();
    assert_eq!(rules.rules[0].places.len(), 10_000);
}

#[test]
fn the_targets_of_all_rules_together_are_limited() {
    let several: String = (0..11).map(rule_of_group).collect();
    assert_eq!(problems(&format!("{}{several}", group(100)))[0].field, "maps[\"a10/*\"]");
}

#[test]
fn the_targets_of_all_partitions_together_are_limited() {
    let partitions = format!("  a/*: {{partitioned_names: [{}], cluster_groups: [g]}}\n", names(11));
    assert_eq!(problems(&format!("{}{partitions}", group(100))).len(), 1);
}

#[test]
fn no_more_problems_are_listed_than_anybody_reads() {
    let unknown: String = (0..3_000).map(|at| format!("  a{at}: {{name: a, nmae: a}}\n")).collect();
    assert_eq!(problems(&format!("maps:\n{unknown}")).len(), 2_000);
}

#[test]
fn merge_keys_do_not_override_and_the_first_one_wins() {
    let yaml = "x: &x {name: x, key: x}\ny: &y {key: y, gzip: true}\nmaps:\n  a/b: {<<: [*x, *y], name: a}\n";
    let rules = rules_ignoring_unknown(yaml).unwrap();
    let rule = &rules.rules[0];
    assert_eq!((rule.names.all(), rule.key.as_deref()), (&["a".to_owned()][..], Some("x")));
    assert!(rule.compress);
}

/// However many there are, each is looked up once and not compared with all others.
#[test]
fn a_merge_key_may_add_many_fields() {
    let clusters =
        |from: usize| (from..from + 30_000).map(|at| format!("c{at}: [ns]")).collect::<Vec<_>>().join(", ");
    let rule = format!("{{name: a, clusters: {{<<: *x, {}}}}}", clusters(15_000));
    let yaml = format!("x: &x {{{}}}\nmaps:\n  a/b: {rule}\n", clusters(0));
    assert_eq!(rules_ignoring_unknown(&yaml).unwrap().rules[0].places.len(), 45_000);
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
    assert!(denied.configmaps.iter().all(|planned| !planned.fed));
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
    let error = read("maps:\n  a/x: {name: cm}\n", "", false).unwrap_err();
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

/// Files of 100 kB that do not compress.
fn large(count: usize) -> Vec<(String, Vec<u8>)> {
    let mut state = 1u64;
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..count).map(|at| (format!("big/f{at}"), (0..100_000).map(|_| byte()).collect())).collect()
}

fn grown(count: usize, oversize: Oversize) -> Plan {
    let rules = rules("maps:\n  big/*: {name: big}\n").unwrap();
    let files = large(count);
    let (tree, mut contents) = tree_of(files.iter().map(|(path, bytes)| (path.as_str(), bytes.clone())));
    let policies = Policies { oversize, ..Policies::default() };
    plan(&rules, &tree, &mut contents, &Options { policies, ..Options::default() }).unwrap()
}

#[test]
fn a_configmap_over_the_limit_is_refused_with_its_five_largest_keys_and_files() {
    let plan = grown(11, Oversize::Refuse);
    let [Finding::Oversize { bytes, limit, largest, .. }] = &plan.refused[..] else { panic!() };
    assert_eq!((*bytes, *limit, largest.len()), (1_100_000, 1_048_576, 5));
    assert!(plan.accepted().unwrap_err().to_string().contains("(big/f0)"));
}

#[test]
fn findings_are_bounded_and_those_that_refuse_are_not_left_out() {
    let many: String =
        (0..100).map(|rule| format!("  'b/**/*{}': {{name: n{rule}}}\n", "*".repeat(rule))).collect();
    let rules = rules(&format!("maps:\n{many}")).unwrap();
    let names: Vec<String> = (0..3_000).map(|file| format!("b/f{file}")).collect();
    let (tree, mut contents) = tree_of(names.iter().map(|name| (name.as_str(), b"x".to_vec())));
    for overlaps in [Overlaps::First, Overlaps::Refuse] {
        let policies = Policies { overlaps, ..Policies::default() };
        let plan = plan(&rules, &tree, &mut contents, &Options { policies, ..Options::default() }).unwrap();
        let list = if overlaps == Overlaps::First { &plan.noted } else { &plan.refused };
        assert_eq!(list.len(), 2_000);
        assert!(
            list.iter()
                .all(|one| matches!(one, Finding::Overlap { rules, total: 100, .. } if rules.len() == 20))
        );
        assert!(list[0].to_string().ends_with(", 80 more"), "{}", list[0]);
    }
}

#[test]
fn a_key_over_the_limit_cannot_be_split() {
    let rules = rules("maps:\n  big/*: {name: big}\n").unwrap();
    // The last one fits, but not beside the key VERSION, which every part of a split has.
    for (size, stamp, expected) in [(2_000_000, None, 2_000_000), (1 << 20, Some("r1"), (1 << 20) + 2)] {
        let (tree, mut contents) = tree_of([("big/f", vec![b'x'; size])]);
        let policies = Policies { oversize: Oversize::Grow, ..Policies::default() };
        let options = Options { policies, stamp: stamp.map(str::to_owned), ..Options::default() };
        let plan = plan(&rules, &tree, &mut contents, &options).unwrap();
        let is_oversize =
            |finding: &Finding| matches!(finding, Finding::OversizeKey { bytes, .. } if *bytes == expected);
        assert!(
            is_oversize(&plan.noted[0]) && is_oversize(&plan.refused[0]),
            "{:?} {:?}",
            plan.noted,
            plan.refused
        );
    }
}

#[test]
fn partitions_grow_by_halves_so_that_most_keys_stay() {
    let place = |plan: &Plan| -> std::collections::BTreeMap<String, String> {
        let each = plan.configmaps.iter();
        each.flat_map(|one| one.data.values().keys().map(|key| (key.clone(), one.name.clone()))).collect()
    };
    let plans: Vec<_> = [10, 24, 40].into_iter().map(|count| grown(count, Oversize::Grow)).collect();
    assert_eq!(plans[0].configmaps.len(), 1);
    for (before, after) in plans.iter().zip(&plans[1..]) {
        assert_eq!(after.refused, []);
        assert!(after.configmaps.iter().all(|one| one.data.size() <= 1 << 20));
        let (old, new) = (place(before), place(after));
        let moved: Vec<_> = old.iter().filter(|(key, name)| new[*key] != **name).collect();
        assert!(moved.len() * 4 <= old.len() * 3, "{} of {} moved", moved.len(), old.len());
        // A key that moved went to a part of the ConfigMap it was in.
        assert!(moved.iter().all(|(key, name)| new[*key].starts_with(name.as_str())));
    }
}

#[test]
fn manifests_give_every_text_back_as_it_was() {
    let texts = [
        "",
        "a",
        "a\n",
        "a\n\n\n",
        "\na\n",
        " a\n",
        "a\n  \nb\n",
        "a\tb\n",
        "a\r\n",
        "\u{0}\u{7f}\u{85}",
        "é 日本 😀\n",
        "\u{feff}x",
        "\u{2028}\n",
        "- a: [1, {b: c}]\n# no\n---\n...\n",
        "'\"\\\n",
    ];
    for text in texts {
        let rules = rules("maps:\n  f: {name: cm}\n").unwrap();
        let (tree, mut contents) = tree_of([("f", text.as_bytes().to_vec())]);
        let plan = plan(&rules, &tree, &mut contents, &Options::default()).unwrap();
        let one = &plan.configmaps[0];
        let yaml = manifest(&one.name, &one.places[0], &one.content());
        let value: serde_yaml::Value =
            serde_yaml::from_str(&yaml).unwrap_or_else(|error| panic!("{error}: {yaml}"));
        assert_eq!(value["data"]["f"].as_str(), Some(text), "{yaml}");
    }
}
