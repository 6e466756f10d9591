//! YAML as it is read and written: merge keys, and manifests.

use treeswap::configmap::{Options, manifest, plan};

use super::better::{rules, rules_ignoring_unknown};
use super::plans::tree_of;

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
