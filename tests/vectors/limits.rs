//! The limits of what is read and planned, and what is done where a ConfigMap exceeds those of the API server.

use treeswap::configmap::{Finding, Options, Overlaps, Oversize, Plan, Policies, Problem, plan};

use super::better::{rules, rules_ignoring_unknown};
use super::plans::tree_of;

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

/// Files of 100 kB that do not compress.
fn large(count: usize) -> Vec<(String, Vec<u8>)> {
    let mut state = 1u64;
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..count).map(|at| (format!("big/f{at}"), (0..100_000).map(|_| byte()).collect())).collect()
}

/// The plan of one ConfigMap of so many of these files.
fn plan_of_large(count: usize, oversize: Oversize) -> Plan {
    let rules = rules("maps:\n  big/*: {name: big}\n").unwrap();
    let files = large(count);
    let (tree, mut contents) = tree_of(files.iter().map(|(path, bytes)| (path.as_str(), bytes.clone())));
    let policies = Policies { oversize, ..Policies::default() };
    plan(&rules, &tree, &mut contents, &Options { policies, ..Options::default() }).unwrap()
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
    assert_eq!(problems(&format!("maps:\n{unknown}")).len(), 2_000, "PROBLEMS_MAX");
}

#[test]
fn findings_are_bounded_and_those_that_refuse_are_not_left_out() {
    // A hundred spellings of one pattern: every file matches all of them.
    let many: String =
        (0..100).map(|rule| format!("  'b/**/*{}': {{name: n{rule}}}\n", "*".repeat(rule))).collect();
    let rules = rules(&format!("maps:\n{many}")).unwrap();
    let names: Vec<String> = (0..3_000).map(|file| format!("b/f{file}")).collect();
    let (tree, mut contents) = tree_of(names.iter().map(|name| (name.as_str(), b"x".to_vec())));
    for overlaps in [Overlaps::First, Overlaps::Refuse] {
        let policies = Policies { overlaps, ..Policies::default() };
        let plan = plan(&rules, &tree, &mut contents, &Options { policies, ..Options::default() }).unwrap();
        let list = if overlaps == Overlaps::First { &plan.noted } else { &plan.refused };
        assert_eq!(list.len(), 2_000, "FINDINGS_MAX");
        // Each has the first SHOWN of the rules.
        assert!(
            list.iter()
                .all(|one| matches!(one, Finding::Overlap { rules, total: 100, .. } if rules.len() == 20))
        );
        assert!(list[0].to_string().ends_with(", 80 more"), "{}", list[0]);
    }
}

#[test]
fn a_configmap_over_the_limit_is_refused_with_its_five_largest_keys_and_files() {
    let plan = plan_of_large(11, Oversize::Refuse);
    let [Finding::Oversize { over, largest, .. }] = &plan.refused[..] else { panic!() };
    assert_eq!((over.bytes, over.limit, largest.len()), (1_100_000, 1_048_576, 5));
    assert!(plan.accepted().unwrap_err().to_string().contains("(big/f0)"));
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
        let is_large =
            |one: &Finding| matches!(one, Finding::OversizeKey { over, .. } if over.bytes == expected);
        let (noted, refused) = (&plan.noted[0], &plan.refused[0]);
        assert!(is_large(noted) && is_large(refused), "{noted:?} {refused:?}");
    }
}

#[test]
fn partitions_grow_by_halves_and_a_key_that_moves_goes_to_a_part_of_its_own_configmap() {
    let place = |plan: &Plan| -> std::collections::BTreeMap<String, String> {
        let each = plan.configmaps.iter();
        each.flat_map(|one| one.data.values().keys().map(|key| (key.clone(), one.name.clone()))).collect()
    };
    let plans: Vec<_> = [10, 24, 40].into_iter().map(|count| plan_of_large(count, Oversize::Grow)).collect();
    assert_eq!(plans[0].configmaps.len(), 1);
    for (before, after) in plans.iter().zip(&plans[1..]) {
        assert_eq!(after.refused, []);
        assert!(after.configmaps.iter().all(|one| one.data.size() <= 1 << 20));
        let (old, new) = (place(before), place(after));
        let moved: Vec<_> = old.iter().filter(|(key, name)| new[*key] != **name).collect();
        // One ConfigMap may become four at once; the one that keeps the name keeps about a quarter of the keys.
        assert!(moved.len() * 4 <= old.len() * 3, "{} of {} moved", moved.len(), old.len());
        // A key that moved went to a part of the ConfigMap it was in.
        assert!(moved.iter().all(|(key, name)| new[*key].starts_with(name.as_str())));
    }
}
