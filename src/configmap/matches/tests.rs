mod follow;
mod limits;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use proptest::prelude::*;

use super::super::data::FILE_MAX;
use super::super::{Collisions, Dialect, Oversize, Policies, Setting, TimeLimit};
use super::*;

const RULES: &str = r#"maps:
  "jobs/**/*.yaml": {name: jobs, clusters: {one: [a, b], two: [a]}}
  "jobs/x/*": {name: jobs, clusters: {one: [a]}}
  "jobs/x/a.yaml": {name: special}
  "same/*": {name: same}
  "same/a*": {name: same}
  "flat/**/*": {partitioned_names: [flat-0, flat-1, flat-2], use_full_path_as_key: true}
  "one/*": {name: one, key: KEY, gzip: true}
  "large/*": {name: large}
  "denied/*": {name: denied, denied_repos: [acme/config]}
  "none/*": {name: jobs}
"#;

const PATHS: &[&str] = &[
    "jobs/a.yaml",
    "jobs/x/a.yaml",
    "jobs/x/b.yaml",
    "jobs/y/a.yaml",
    "jobs/x/VERSION",
    "same/a",
    "same/b",
    "flat/a",
    "flat/b/c",
    "flat/ö",
    "one/a",
    "one/b",
    "one/c",
    "large/a",
    "large/b",
    "large/c",
    "denied/a",
    "elsewhere/a",
    "none/..a",
];

/// Contents by number; those of the last numbers fill a ConfigMap.
struct Texts;

impl Contents for Texts {
    fn read(&mut self, file: FileRef) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
        let FileRef::Index(number) = file else { panic!("no blob was added") };
        Ok(vec![b'a' + number as u8; if number < 6 { number } else { 600_000 }])
    }
}

/// Files of as many bytes as their number.
struct Sizes;

impl Contents for Sizes {
    fn size(&mut self, file: FileRef) -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
        let FileRef::Index(bytes) = file else { panic!("no blob was added") };
        Ok(bytes as u64)
    }

    fn read(&mut self, file: FileRef) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
        let bytes = self.size(file)?;
        assert!(bytes <= FILE_MAX, "it need not be read");
        Ok(vec![b'x'; bytes as usize])
    }
}

fn rules() -> Arc<RuleSet> {
    rules_of(RULES)
}

fn rules_of(text: &str) -> Arc<RuleSet> {
    let setting = Setting {
        file: "rules.yaml",
        default_namespace: "default",
        dialect: Dialect::Zglob,
        ignore_unknown: false,
    };
    Arc::new(RuleSet::read(text, &setting, &|_| None).unwrap())
}

fn tree(entries: &BTreeMap<&str, Entry>) -> Tree {
    let mut tree = Tree::default();
    entries.iter().for_each(|(path, entry)| tree.add(path.as_bytes().to_vec(), entry.clone()));
    tree
}

fn entry() -> impl Strategy<Value = Option<Entry>> {
    prop_oneof![
        4 => Just(None),
        12 => (0_usize..8).prop_map(|number| Some(Entry::File(number.into()))),
        1 => Just(Some(Entry::Other)),
        1 => Just(Some(Entry::Link(b"../jobs/a.yaml".to_vec()))),
    ]
}

fn options() -> impl Strategy<Value = Options> {
    let policies = (0_usize..3, 0_usize..2, 0_usize..2, 0_usize..2, 0_usize..3).prop_map(
        |(overlaps, collisions, keys, links, oversize)| Policies {
            overlaps: [Overlaps::Refuse, Overlaps::First, Overlaps::Specific][overlaps],
            collisions: [Collisions::Refuse, Collisions::Last][collisions],
            illegal_keys: [IllegalKeys::Refuse, IllegalKeys::Skip][keys],
            links: [Links::Refuse, Links::Skip][links],
            oversize: [Oversize::Refuse, Oversize::Grow, Oversize::Skip][oversize],
        },
    );
    let most = prop_oneof![3 => Just(None), 1 => (2_000_u64..2_000_000).prop_map(Some)];
    (policies, prop::bool::ANY, prop::bool::ANY, most).prop_map(
        |(policies, repository, stamp, memory_limit)| Options {
            repository: repository.then(|| "acme/config".to_owned()),
            stamp: stamp.then(|| "r1".to_owned()),
            stamp_key: stamp.then(|| ".{name}.stamp".to_owned()),
            policies,
            memory_limit,
            matching_limit: None,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn following_changes_gives_the_plan_of_the_whole_tree(
        options in options(),
        steps in prop::collection::vec(
            prop::collection::vec((prop::sample::select(PATHS), entry()), 0..6),
            1..12,
        ),
    ) {
        let rules = rules();
        let mut entries: BTreeMap<&str, Entry> = BTreeMap::new();
        let whole = |entries: &_| Matches::of(Arc::clone(&rules), options.clone(), &tree(entries));
        let mut followed = whole(&entries);
        for step in steps {
            let step: HashMap<&str, Option<Entry>> = step.into_iter().collect();
            let mut changes = Vec::new();
            for (path, now) in step {
                let before = match &now {
                    Some(entry) => entries.insert(path, entry.clone()),
                    None => entries.remove(path),
                };
                changes.push(Change { path: path.into(), before: before.is_some(), now });
            }
            let mut expected = whole(&entries);
            let plan = expected.plan(&mut Texts).unwrap();
            let was_followed = followed.follow(&changes);
            let links = entries.values().any(|entry| matches!(entry, Entry::Link(_)));
            prop_assert!(was_followed || links || options.memory_limit.is_some() || followed.has_links);
            let made = if was_followed { followed.plan(&mut Texts).unwrap() } else { Plan::default() };
            let too_much = |plan: &Plan| matches!(plan.refused[..], [Finding::MemoryLimit { .. }]);
            if was_followed && !too_much(&made) {
                prop_assert_eq!(&made, &plan);
                prop_assert_eq!(followed.key_bytes, expected.key_bytes);
            }
            if !was_followed || !made.refused.is_empty() {
                followed = expected;
            }
        }
    }
}

#[test]
fn of_several_files_for_a_key_the_last_path_has_it_in_whatever_order_they_come() {
    let policies = Policies { collisions: Collisions::Last, ..Policies::default() };
    let mut matches = Matches::of(rules(), Options { policies, ..Options::default() }, &Tree::default());
    for (path, number) in [("one/b", 2), ("one/c", 3), ("one/a", 1)] {
        let now = Some(Entry::File(number.into()));
        assert!(matches.follow(&[Change { path: path.into(), before: false, now }]));
    }
    let plan = matches.plan(&mut Texts).unwrap();
    let one = plan.configmaps.iter().find(|planned| planned.name == "one").unwrap();
    assert_eq!(*one.files["KEY"], *b"one/c");
}

#[test]
fn where_more_was_found_than_a_plan_tells_the_next_tree_is_looked_at_as_a_whole() {
    let policies = Policies { illegal_keys: IllegalKeys::Skip, ..Policies::default() };
    let entry = |number: usize| (format!("same/..{number}"), Entry::File(1.into()));
    let entries = |count: usize| {
        let mut tree = Tree::default();
        (0..count).map(entry).for_each(|(path, entry)| tree.add(path.into(), entry));
        Matches::of(rules(), Options { policies, ..Options::default() }, &tree)
    };
    let change = [Change { path: b"same/..1".to_vec(), before: true, now: None }];
    assert!(entries(FINDINGS_MAX).follow(&change));
    assert!(!entries(FINDINGS_MAX + 1).follow(&change));
}

#[test]
fn what_is_refused_is_found_behind_whatever_is_only_noted() {
    let policies = Policies { illegal_keys: IllegalKeys::Skip, ..Policies::default() };
    let mut all = Tree::default();
    (0..3 * FINDINGS_MAX).for_each(|at| all.add(format!("same/..{at}").into(), Entry::File(1.into())));
    all.add(b"same/z".to_vec(), Entry::Link(b"nothing".to_vec()));
    let mut matches = Matches::of(rules(), Options { policies, ..Options::default() }, &all);
    let plan = matches.plan(&mut Texts).unwrap();
    assert_eq!(plan.noted.len(), FINDINGS_MAX);
    assert!(plan.refused.iter().any(|finding| matches!(finding, Finding::BadSymlink { .. })));
}

#[test]
fn a_commit_makes_just_the_configmaps_again_that_it_feeds() {
    let options = Options { stamp: Some("r1".into()), ..Options::default() };
    let entries = ["jobs/a.yaml", "same/a", "one/a"].map(|path| (path, Entry::File(1.into())));
    let mut matches = Matches::of(rules(), options, &tree(&entries.into()));
    let first = matches.plan(&mut Texts).unwrap();
    let change = Change { path: b"same/b".to_vec(), before: false, now: Some(Entry::File(2.into())) };
    assert!(matches.follow(&[change]));
    let second = matches.plan(&mut Texts).unwrap();
    let changed: Vec<&str> = first
        .configmaps
        .iter()
        .zip(&second.configmaps)
        .filter(|(old, new)| !Arc::ptr_eq(old, new))
        .map(|(_, new)| new.name.as_str())
        .collect();
    assert_eq!(changed, ["same"]);
}

#[test]
fn a_configmap_that_is_left_out_stays_in_the_plan_and_a_file_that_is_left_out_counts_as_absent() {
    type Case<'c> = (&'c str, bool, &'c [(&'c str, Entry)]);
    let policies = Policies {
        illegal_keys: IllegalKeys::Skip,
        links: Links::Skip,
        oversize: Oversize::Skip,
        ..Policies::default()
    };
    let file = |number: usize| Entry::File(number.into());
    let cases: [Case<'_>; 3] = [
        ("large", true, &[("large/a", file(6)), ("large/b", file(7))]),
        ("same", false, &[("same/..a", file(1))]),
        ("one", false, &[("one/a", Entry::Other)]),
    ];
    for (name, is_left_out, entries) in cases {
        let repository = Some("acme/config".to_owned());
        let options = Options { policies, repository, ..Options::default() };
        let all: BTreeMap<&str, Entry> = entries.iter().cloned().collect();
        let mut matches = Matches::of(rules(), options, &tree(&all));
        let mut planned = |changes: &[Change]| {
            assert!(matches.follow(changes));
            let plan = matches.plan(&mut Texts).unwrap().accepted().unwrap();
            let planned = plan.configmaps.iter().find(|planned| planned.name == name).unwrap();
            (planned.fed, planned.left_out, planned.data.values().len())
        };
        assert_eq!(planned(&[]), (false, is_left_out, 0), "{name}");
        let gone = |(path, _): &(&str, Entry)| Change { path: (*path).into(), before: true, now: None };
        let gone: Vec<Change> = entries.iter().map(gone).collect();
        assert_eq!(planned(&gone), (false, false, 0), "{name}: no file matches it any more");
        let path: Vec<u8> = [name, "/z"].concat().into();
        let keyed = Change { path: path.clone(), before: false, now: Some(file(1)) };
        let (again, now) = (entries[0].0.into(), Some(entries[0].1.clone()));
        let again = Change { path: again, before: false, now };
        let (fed, left_out, _) = planned(&[keyed, again]);
        assert!(fed && !left_out, "{name}: a file has a key");
    }
}

#[test]
fn of_a_configmap_that_is_too_large_no_more_is_held_than_of_one_that_fits() {
    let mut all = Tree::default();
    let mut add = |path: String, bytes: usize| all.add(path.into(), Entry::File(bytes.into()));
    (0..10_usize).for_each(|n| add(format!("large/{n}"), 600_000 + n));
    add("flat/a".to_owned(), 5 << 20);
    add("same/b".to_owned(), 600_009); // the content of large/9, which fits here
    let every: usize = (0..10_usize).map(|n| 600_000 + n).sum();
    for (oversize, expected) in
        [(Oversize::Refuse, 1_200_009), (Oversize::Skip, 1_200_009), (Oversize::Grow, every)]
    {
        let policies = Policies { oversize, ..Policies::default() };
        let repository = Some("acme/config".to_owned());
        let of = |memory_limit| {
            let options = Options { policies, repository: repository.clone(), ..Options::default() };
            Matches::of(rules(), Options { memory_limit, ..options }, &all)
        };
        // What is too large by itself counts nowhere, but what is only not needed does.
        let mut matches = of(Some(every as u64 + 100_000));
        let values = matches.values(&mut Sizes, u64::MAX).unwrap().unwrap();
        let held: usize = values.values().map(|value| value.bytes().len()).sum();
        assert_eq!(held, expected, "{oversize:?}");
        let plan = matches.plan(&mut Sizes).unwrap();
        let told: Vec<String> = plan.refused.iter().chain(&plan.noted).map(ToString::to_string).collect();
        for words in [
            "ConfigMap large has 6000045 bytes of values, the limit is 1048576; the largest keys: 9 586 KiB",
            " alone has 5242880 bytes of values, the limit is 1048576",
        ] {
            assert!(told.iter().any(|line| line.contains(words)), "{words}: {told:?}");
        }
        assert_eq!(plan.refused.is_empty(), oversize == Oversize::Skip, "{told:?}");
        let same = plan.configmaps.iter().find(|planned| planned.name == "same").unwrap();
        assert!(same.data.values()["b"].has_bytes());
        let refused = of(Some(every as u64)).plan(&mut Sizes).unwrap().refused;
        assert!(matches!(refused[..], [Finding::MemoryLimit { .. }]), "{refused:?}");
    }
}

#[test]
fn a_split_that_multiplies_the_configmaps_beyond_what_rules_may_name_is_refused() {
    let names =
        |word: &str, count: usize| (0..count).map(|n| format!("{word}-{n}")).collect::<Vec<_>>().join(", ");
    let file = |bytes: usize| Entry::File(bytes.into());
    let entries = BTreeMap::from([("large/a", file(600_000)), ("large/b", file(600_001))]);
    let planned = |clusters: usize, namespaces: usize| {
        let rules = rules_of(&format!(
            "cluster_groups:\n  all: {{clusters: [{}], namespaces: [{}]}}\n\
             maps:\n  'large/*': {{name: large, cluster_groups: [all]}}\n",
            names("cluster", clusters),
            names("namespace", namespaces)
        ));
        let policies = Policies { oversize: Oversize::Grow, ..Policies::default() };
        let options = Options { policies, ..Options::default() };
        Matches::of(rules, options, &tree(&entries)).plan(&mut Sizes).unwrap()
    };
    let plan = planned(250, 200);
    assert_eq!(plan.configmaps.len() * 250 * 200, TARGETS_MAX, "it is split in two");
    assert!(plan.refused.is_empty(), "{:?}", plan.refused);
    let plan = planned(300, 300);
    let [Finding::TooManyTargets { targets, limit: TARGETS_MAX }] = &plan.refused[..] else {
        panic!("{:?}", plan.refused)
    };
    assert!(*targets >= 180_000, "{targets}");
    let [first, second, ..] = &plan.configmaps[..] else { panic!("it was not split") };
    assert!(Arc::ptr_eq(&first.places, &second.places), "no part has places of its own");
}

#[test]
fn matching_that_takes_too_long_is_refused_and_so_is_following() {
    let entries = BTreeMap::from([("one/a", Entry::File(1.into()))]);
    let limit = |time| Some(TimeLimit { time, set_by: Some("--sync-timeout") });
    let limited = |time| Options { matching_limit: limit(time), ..Options::default() };
    let refusal = |plan: Plan| matches!(plan.refused[..], [Finding::MatchingLimit { .. }]);
    let mut late = Matches::of(rules(), limited(Duration::ZERO), &tree(&entries));
    let refused = late.plan(&mut Texts).unwrap().accepted().unwrap_err();
    let rules_count = rules().rules.len();
    let what = format!("(--sync-timeout), while matching the files against {rules_count} rules");
    assert!(refused.to_string().ends_with(&what), "{refused}");
    assert!(refused.hints()[0].contains("raise that timeout"), "{:?}", refused.hints());
    let mut in_time = Matches::of(rules(), limited(Duration::from_secs(600)), &tree(&entries));
    assert!(!refusal(in_time.plan(&mut Texts).unwrap()));
    in_time.options.matching_limit = limit(Duration::ZERO);
    let change = Change { path: b"one/b".to_vec(), before: false, now: Some(Entry::File(2.into())) };
    assert!(!in_time.follow(&[change]), "the whole tree is matched instead, and refused");
}

#[test]
fn what_only_rules_for_other_repositories_name_is_not_in_the_plan() {
    let rules = rules_of(
        "maps:\n  'a/*': {name: shared, denied_repos: [acme]}\n  'b/*': {name: shared}\n  'c/*': {name: foreign, \
         allowed_repos: [acme/jobs, other]}\n  'd/*': {name: own, allowed_repos: [acme/config]}\n  'e/*': \
         {partitioned_names: [p-0, p-1], denied_repos: [acme/config]}\n",
    );
    let file = Entry::File(1.into());
    let entries = ["a/1", "b/2", "c/3", "d/4", "e/5"].map(|path| (path, file.clone()));
    let planned = |repository: &str, entries: &BTreeMap<&str, Entry>| {
        let options = Options { repository: Some(repository.to_owned()), ..Options::default() };
        let plan = Matches::of(Arc::clone(&rules), options, &tree(entries)).plan(&mut Texts).unwrap();
        let plan = plan.accepted().unwrap();
        let maps = plan.configmaps.iter().map(|planned| {
            let keys: Vec<&str> = planned.data.values().keys().map(String::as_str).collect();
            format!("{}: {}", planned.name, keys.join(" "))
        });
        (maps.collect::<Vec<_>>(), plan.noted)
    };
    let (maps, noted) = planned("acme/config", &entries.into());
    assert_eq!(maps, ["own: 4", "shared: 2"]);
    let told: Vec<String> = noted.iter().map(ToString::to_string).collect();
    let left_out = "does not take files from this repository: 1 left out, as --repository=acme/config is";
    assert_eq!(
        told,
        [
            format!("the rule a/* {left_out} in its denied_repos: acme"),
            format!("the rule c/* {left_out} not in its allowed_repos: acme/jobs, other"),
            format!("the rule e/* {left_out} in its denied_repos: acme/config"),
        ]
    );
    // Without a file, a rule for another repository is no reason to say anything.
    let (maps, noted) = planned("acme/config", &BTreeMap::from([("b/2", file.clone())]));
    assert_eq!(maps, ["own: ", "shared: 2"]);
    let no_match = |pattern: &str, empties| vec![Finding::NoMatch { pattern: pattern.to_owned(), empties }];
    assert_eq!(noted, no_match("d/*", true));
    let (maps, noted) = planned("third/x", &BTreeMap::from([("a/1", file.clone()), ("e/5", file)]));
    assert_eq!(maps.len(), 3, "{maps:?}");
    assert_eq!(noted, no_match("b/*", false), "another rule feeds the same ConfigMap");
}

#[test]
fn a_part_of_a_split_takes_no_name_that_another_rule_has_in_the_same_place() {
    let file = |bytes: usize| Entry::File(bytes.into());
    let entries = BTreeMap::from([("large/a", file(600_000)), ("large/b", file(600_001))]);
    let policies = Policies { oversize: Oversize::Grow, ..Policies::default() };
    let planned = |repository: &str, namespace: &str| {
        let rules = rules_of(&format!(
            "maps:\n  'large/*': {{name: big}}\n  'x/*': {{name: big-1, allowed_repos: [{repository}], clusters: \
             {{default: [{namespace}]}}}}\n"
        ));
        let options = Options { policies, repository: Some("acme/config".into()), ..Options::default() };
        Matches::of(rules, options, &tree(&entries)).plan(&mut Sizes).unwrap()
    };
    let apart = planned("acme/other", "elsewhere");
    let names: Vec<&str> = apart.configmaps.iter().map(|planned| planned.name.as_str()).collect();
    assert_eq!(names, ["big", "big-1"]);
    assert!(apart.refused.is_empty(), "{:?}", apart.refused);
    let taken = Finding::NameTaken { name: "big".into(), taken: "big-1".into() };
    assert!(planned("acme/config", "elsewhere").refused.is_empty());
    for repository in ["acme/other", "acme/config"] {
        assert_eq!(planned(repository, "default").refused, std::slice::from_ref(&taken), "of {repository}");
    }
}

#[test]
fn a_fixed_key_of_two_files_is_told_apart_from_one_that_both_have_as_their_name() {
    for (path, hint) in [("one/c", "or remove key"), ("jobs/x.yaml", "use_full_path_as_key")] {
        let other = if path == "one/c" { "one/d" } else { "jobs/y/x.yaml" };
        let entries = BTreeMap::from([path, other].map(|path| (path, Entry::File(1.into()))));
        let options = Options { repository: Some("acme/config".into()), ..Options::default() };
        let plan = Matches::of(rules(), options, &tree(&entries)).plan(&mut Texts).unwrap();
        let hints = plan.accepted().unwrap_err().hints();
        assert!(hints.iter().any(|line| line.contains(hint)), "{hints:?}");
    }
}

#[test]
fn the_most_specific_rule_gets_a_file_and_of_equal_ones_the_first() {
    let policies = Policies { overlaps: Overlaps::Specific, ..Policies::default() };
    for (rules, expected) in [
        ("{'a/*': {name: one}, '*/b': {name: two}}", "one"),
        ("{'*/b': {name: two}, 'a/*': {name: one}}", "two"),
        ("{'a/*': {name: one}, '*/b': {name: two}, 'a/b*': {name: three}}", "three"),
        ("{'a/b*': {name: three}, 'a/b': {name: whole}}", "whole"),
    ] {
        let rules = rules_of(&format!("maps: {rules}\n"));
        let options = Options { policies, ..Options::default() };
        let entries = BTreeMap::from([("a/b", Entry::File(1.into()))]);
        let plan = Matches::of(rules, options, &tree(&entries)).plan(&mut Texts).unwrap();
        let fed = plan.configmaps.iter().filter(|planned| planned.fed).map(|planned| planned.name.as_str());
        assert_eq!(fed.collect::<Vec<_>>(), [expected]);
    }
}

#[test]
fn a_rule_that_depends_on_the_repository_is_refused_without_one() {
    let rules = rules_of("maps: {'a/*': {name: a, allowed_repos: [acme/config]}, 'b/*': {name: b}}\n");
    let refused = |repository: Option<&str>| {
        let options = Options { repository: repository.map(str::to_owned), ..Options::default() };
        plan(&rules, &Tree::default(), &mut Texts, &options).unwrap().refused
    };
    assert_eq!(refused(None), [Finding::RepositoryUnknown { pattern: "a/*".to_owned() }]);
    assert!(refused(Some("acme/config")).is_empty());
}

#[test]
fn a_configmap_has_the_stamp_unless_a_file_has_its_key() {
    let options = Options { stamp: Some("r1".to_owned()), ..Options::default() };
    let entries = ["same/b", "large/VERSION"].map(|path| (path, Entry::File(1.into())));
    let plan = plan(&rules(), &tree(&entries.into()), &mut Texts, &options).unwrap();
    let version = |name: &str| {
        let planned = plan.configmaps.iter().find(|planned| planned.name == name).unwrap();
        planned.content().values()["VERSION"].text().unwrap().to_owned()
    };
    assert_eq!([version("same"), version("large")], ["r1", "b"]);
}
