//! What fields mean, and what is wrong with them.

use super::*;

#[test]
fn each_problem_is_told_with_its_field() {
    let map = |fields: &str| format!("maps: {{a: {{{fields}}}}}\n");
    let partitions = format!("partitioned_names: [{}]", names(257));
    for (fields, field, what) in [
        ("name: a, partitioned_names: [b]", "", "name and partitioned_names exclude each other"),
        ("", "", "neither name nor partitioned_names is given"),
        ("name: ''", "", "neither name nor partitioned_names is given"),
        ("name: 1", ".name", "it is a number, where text belongs"),
        (partitions.as_str(), ".partitioned_names", "257 partitions; the hash that chooses among them"),
        ("partitioned_names: [b, b]", ".partitioned_names[\"b\"]", "it is given twice"),
        (
            "name: a, partitioned_names: b",
            ".partitioned_names",
            "it is text, where a list such as [a, b] belongs",
        ),
        ("name: A_", ".name", "\"A_\" cannot be the name of a ConfigMap: only lower-case letters"),
        ("name: a, key: b/c", ".key", "\"b/c\" cannot be a key: only letters"),
        ("name: a, key: on", ".key", "Prow's YAML 1.1 reads the unquoted on as a boolean; quote it"),
        ("name: a, gzip: 3", ".gzip", "it is a number, where true or false belongs"),
        ("name: a, clusters: {c: [ns, ns]}", ".clusters.c", "namespace \"ns\" is listed twice"),
        ("name: a, cluster_groups: [g]", ".cluster_groups[0]", "there is no cluster group \"g\""),
        ("name: a, nmae: b", ".nmae", "there is no such field; did you mean name?"),
        ("name: a, colour: b", ".colour", "there is no such field"),
        ("name: a, namespace: b", ".namespace", "this field was removed from Prow"),
        ("name: a, Name: b", ".Name", "it is given twice"),
    ] {
        let (at, told) = problem(&map(fields));
        assert_eq!(at, format!("maps[\"a\"]{field}"), "{told}");
        assert!(told.starts_with(what), "{fields}: {told}");
    }
    // `name` has as many letters, and a word of three has too few to be known by two of them.
    for field in ["wxyz", "kex"] {
        let (_, told) = problem(&map(&format!("name: a, {field}: b")));
        assert!(!told.contains("did you mean"), "{told}");
    }
    let most = format!("partitioned_names: [{}]", names(256));
    assert_eq!(rules(&map(&most))[0].names.all().len(), 256);
}

#[test]
fn each_problem_of_a_document_is_told_with_its_field() {
    for (yaml, field, what) in [
        ("maps: []\n", "maps", "it is a list, where a mapping belongs"),
        ("maps: {a: {name: a}, a: {name: b}}\n", "maps[\"a\"]", "it is given twice"),
        ("dialect: x\nmaps: {a: {name: a}}\n", "dialect", "there is no dialect \"x\""),
        ("config_updater: {}\nconfig_updater: {}\n", "config_updater", "it is given twice"),
        ("config_updator: {}\n", "config_updator", "there is no such field; did you mean config_updater?"),
        (
            "cluster_groups: {g: {clusters: [c], namespaces: [ns]}}\n\
             maps: {a: {name: a, clusters: {c: [ns]}, cluster_groups: [g]}}\n",
            "maps[\"a\"]",
            "clusters and cluster_groups exclude each other",
        ),
    ] {
        let (at, told) = problem(yaml);
        assert_eq!(at, field, "{told}");
        assert!(told.starts_with(what), "{yaml}: {told}");
    }
}

#[test]
fn two_rules_that_surely_write_one_key_are_told() {
    for (maps, told) in [
        ("{x/a: {name: m}, y/a: {name: m}}", Some("it and \"x/a\" both write key \"a\" of ConfigMap m")),
        ("{x/*: {name: m, key: k}, y/*: {name: m, key: k}}", Some("it and \"x/*\" both write key \"k\"")),
        ("{x/*: {name: m}, y/*: {name: m}}", None),
        ("{x/a: {name: m}, y/a: {name: p}}", None),
        ("{x/a: {name: m}, y/a: {name: m, clusters: {c: [ns]}}}", None),
        ("{x/a: {name: m}, y/a: {name: m, denied_repos: [o]}}", None),
    ] {
        let yaml = format!("maps: {maps}\n");
        match told {
            Some(told) => assert!(problem(&yaml).1.starts_with(told), "{:?}", problem(&yaml)),
            None => assert_eq!(rules(&yaml).len(), 2, "{maps}"),
        }
    }
}

#[test]
fn what_is_only_warned_of_is_told_with_its_field() {
    for (fields, field) in [
        ("clusters: {c: []}", Some(".clusters.c")),
        ("allowed_repos: [a/b/c]", Some(".allowed_repos")),
        ("denied_repos: [/b]", Some(".denied_repos")),
        ("denied_repos: [b/]", Some(".denied_repos")),
        ("gzip: yes", Some(".gzip")),
        ("allowed_repos: [a, a/b], gzip: true, clusters: {c: [ns]}", None),
    ] {
        let set = read(&format!("maps: {{a: {{name: a, {fields}}}}}\n"), false).unwrap();
        let told: Vec<&str> = set.warnings.iter().map(|warning| warning.field.as_str()).collect();
        let expected = field.map(|field| format!("maps[\"a\"]{field}"));
        assert_eq!(told, expected.as_deref().into_iter().collect::<Vec<_>>(), "{fields}");
    }
}

#[test]
fn a_word_that_yaml_reads_as_another_type_has_to_be_quoted() {
    for (word, what) in [
        ("yes", Some("a boolean")),
        ("1_000", Some("a number")),
        ("-5", Some("a number")),
        ("1e3", Some("a number")),
        ("0b101", Some("a number")),
        ("\"yes\"", None),
        ("'1'", None),
        ("5x", None),
        ("0b12", None),
        ("x1", None),
    ] {
        let yaml = format!("maps: {{a: {{name: a, clusters: {{c: [{word}]}}}}}}\n");
        let error = read(&yaml, false).err().map(|error| error.to_string());
        let is_type = |what: &str| error.as_ref().is_some_and(|error| error.contains(what));
        assert!(what.map_or(error.is_none(), is_type), "{word}: {error:?}");
    }
    assert!(read("1: {}\n", false).is_err(), "nothing is before it");
    assert!(problem("maps: {yes: {name: a}}\n").1.contains("a boolean"), "a key");
}

#[test]
fn a_tag_and_a_list_are_refused_in_words() {
    let error = read("maps: {a: !x {name: a}}\n", false).unwrap_err().to_string();
    assert!(error.contains("expected a value without a tag at line 1"), "{error}");
    let error = read("- a\n", false).unwrap_err().to_string();
    assert!(error.contains("expected a mapping with config_updater, or with maps"), "{error}");
}

#[test]
fn a_group_that_names_no_place_is_warned_of() {
    for (group, warnings) in [
        ("clusters: [c], namespaces: [ns]", 0),
        ("clusters: [], namespaces: [ns]", 1),
        ("clusters: [c], namespaces: []", 1),
    ] {
        let yaml = format!("cluster_groups: {{g: {{{group}}}}}\nmaps: {{a: {{name: a}}}}\n");
        assert_eq!(read(&yaml, false).unwrap().warnings.len(), warnings, "{group}");
    }
}

#[test]
fn no_more_problems_are_listed_than_the_limit() {
    let maps: String = (0..=PROBLEMS_MAX).map(|at| format!("  a{at}: {{}}\n")).collect();
    let error = read(&format!("maps:\n{maps}"), false).unwrap_err();
    assert_eq!(error.problems().len(), PROBLEMS_MAX);
}

#[test]
fn a_rule_goes_to_each_namespace_of_its_clusters() {
    let places = |fields: &str| {
        let groups = "cluster_groups: {g: {clusters: [d, c], namespaces: [o, '']}}\n";
        let rules = rules(&format!("{groups}maps: {{a: {{name: a{fields}}}}}\n"));
        let place = |place: &ClusterNamespace| format!("{}/{}", place.cluster, place.namespace);
        rules[0].places.iter().map(place).collect::<Vec<_>>()
    };
    assert_eq!(places(""), ["default/default"]);
    assert_eq!(places(", clusters: {c: [ns, m], b: ['']}"), ["b/default", "c/m", "c/ns"]);
    assert_eq!(places(", cluster_groups: [g]"), ["c/default", "c/o", "d/default", "d/o"]);
}

#[test]
fn the_gzip_of_a_file_is_that_of_its_rules_that_have_none() {
    let compress = |yaml: &str| rules(yaml).iter().map(|rule| rule.compress).collect::<Vec<_>>();
    let maps = "maps: {a: {name: a}, b: {name: b, gzip: false}, c: {name: c, gzip: true}}\n";
    assert_eq!(compress(maps), [false, false, true]);
    assert_eq!(compress(&format!("gzip: true\n{maps}")), [true, false, true]);
    assert_eq!(compress(&format!("gzip: off\n{maps}")), [false, false, true]);
    assert_eq!(compress("config_updater: {gzip: true}\n"), [true, true], "Prow's defaults");
}

#[test]
fn rules_name_as_many_configmaps_as_the_limit_and_the_first_one_beyond_is_told() {
    let clusters = names(1_000);
    let groups = format!("cluster_groups: {{g: {{clusters: [{clusters}], namespaces: [{}]}}}}\n", names(100));
    let maps = |more: &str| format!("{groups}maps: {{a: {{name: a, cluster_groups: [g]}}{more}}}\n");
    assert_eq!(rules(&maps(""))[0].places.len(), TARGETS_MAX);
    let (field, told) = problem(&maps(", b: {name: b}, c: {name: c}"));
    assert_eq!(field, "maps[\"b\"]");
    assert!(told.starts_with("the rules up to this one name 100001 ConfigMaps"), "{told}");
}

#[test]
fn a_merge_key_gives_the_fields_that_are_not_there() {
    let yaml = "maps:\n  a: &a {name: m, gzip: true}\n  b: &b {name: p, key: k}\n  c: {<<: *a, gzip: false}\n  \
                d: {<<: [*a, *b]}\n";
    let rules = rules(yaml);
    let told = rules.iter().map(|rule| (&rule.names.all()[0][..], rule.key.as_deref(), rule.compress));
    let expected = [("m", None, true), ("p", Some("k"), false), ("m", None, false), ("m", Some("k"), true)];
    assert_eq!(told.collect::<Vec<_>>(), expected);
    let error = read("maps: {a: {<<: [x]}}\n", false).unwrap_err().to_string();
    assert!(error.contains("a merge key (<<) takes mappings"), "{error}");
}

#[test]
fn what_aliases_repeat_is_limited() {
    let repeated = |times: usize| {
        let (long, aliases) = ("x".repeat(60_000), ", *x".repeat(times));
        read(&format!("maps: {{a: {{name: a, allowed_repos: [&x {long}{aliases}]}}}}\n"), false)
    };
    assert_eq!(repeated(60).unwrap().rules[0].allowed.len(), 61);
    let error = repeated(100).unwrap_err().to_string();
    assert!(error.contains("with all that its aliases (*) repeat, it has more than 4.0 MiB"), "{error}");
}
