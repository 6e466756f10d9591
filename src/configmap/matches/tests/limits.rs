//! How much findings keep, and what becomes of ConfigMaps that are too large.

use super::*;
use crate::configmap::InvalidKey;
use crate::configmap::data::{LimitExceeded, VALUES_MAX};

/// A commit's author chooses how long paths, patterns and names are.
#[test]
fn findings_are_bounded_by_their_texts_as_well_and_the_first_that_refuses_is_kept() {
    // With the path that it is sorted by, each has 8 KiB.
    let path = |at: usize| format!("{at:04096}").into_bytes();
    let finding = |at: usize| Finding::BadSymlink { path: path(at), why: BadLink::Dangling };
    let mut found = PathFindings::default();
    let most = FINDINGS_BYTES_MAX / 8_192;
    for refuse in [false, true] {
        for at in 0..most {
            found.add(&path(2 * at + usize::from(refuse)), vec![(finding(at), refuse)]);
        }
    }
    assert_eq!((found.by_path.len(), found.is_truncated), (2 * most, false), "noted and refused apart");
    let before = found.kept;
    found.remove(&path(0));
    found.remove(b"elsewhere");
    assert_eq!(found.kept[0].count + 1, before[0].count);
    assert_eq!((found.kept[0].bytes + 8_192, found.kept[1].bytes), (before[0].bytes, before[1].bytes));
    found.add(&path(0), vec![(finding(0), false)]);
    assert!(!found.is_truncated, "there was room again");
    found.add(b"one more", vec![(finding(0), false)]);
    assert!(found.is_truncated && !found.by_path.contains_key(&b"one more"[..]));

    let mut found = PathFindings::default();
    let large = vec![b'x'; 2 * FINDINGS_BYTES_MAX];
    for path in [&large[..], b"next"] {
        found.add(path, vec![(finding(0), true)]);
    }
    assert_eq!(found.by_path.into_keys().collect::<Vec<_>>(), [large]);

    let rules = vec![("pattern".to_owned(), "name".to_owned()); 2];
    let overlap = Finding::Overlap { path: b"12".to_vec(), rules, total: 9 };
    let (path, name, key) = (b"1".to_vec(), "name".to_owned(), "key".to_owned());
    let illegal = Finding::IllegalKey { path, name, key, why: InvalidKey::Dots };
    let unmatched = Finding::NoMatch { pattern: "pattern".to_owned(), empties: true };
    let bytes = [overlap, illegal, unmatched].map(|finding| text_bytes(b"the path", &(finding, true)));
    assert_eq!(bytes, [8 + 2 + 22, 8 + 1 + 4 + 3, 8]);
}

#[test]
fn a_finding_keeps_no_more_of_a_path_and_of_names_than_a_message_needs() {
    let names: Vec<String> = (0..200).map(|at| format!("p{at}")).collect();
    let rules = rules_of(&format!(
        "maps:\n  '**/*': {{use_full_path_as_key: true, partitioned_names: [{}]}}\n  a/*/*: {{name: one}}\n",
        names.join(", ")
    ));
    let long = format!("a/{}/\u{e9}", "\u{e9}".repeat(20_000));
    let short = "b/\u{e9}";
    let entries = BTreeMap::from([long.as_str(), short].map(|path| (path, Entry::File(1.into()))));
    let plan = Matches::of(rules, Options::default(), &tree(&entries)).plan(&mut Texts).unwrap();
    let [Finding::Overlap { path, rules, total: 2 }, first, second] = &plan.refused[..] else {
        panic!("{:?}", plan.refused)
    };
    assert_eq!(path[..], long.as_bytes()[..8 << 10]);
    let named = [("**/*", "p0 and 199 more"), ("a/*/*", "one")];
    assert_eq!(*rules, named.map(|(pattern, name)| (pattern.to_owned(), name.to_owned())));
    let Finding::IllegalKey { path, key, name, .. } = first else { panic!("{first:?}") };
    assert_eq!((path.len(), key.chars().count(), name.as_str()), (8 << 10, 8 << 10, "p0 and 199 more"));
    let Finding::IllegalKey { path, key, .. } = second else { panic!("{second:?}") };
    assert_eq!((&path[..], key.as_str()), (short.as_bytes(), "b-\u{e9}"));
}

#[test]
fn findings_about_configmaps_keep_no_more_of_a_path_either() {
    let rules = rules_of("maps:\n  '**/*': {name: all}\n");
    let long = ["b", "c"].map(|name| format!("{name}/{}/x", "y".repeat(20_000)));
    let entries = long.iter().map(|path| (path.as_str(), Entry::File((VALUES_MAX + 1).into()))).collect();
    let plan = Matches::of(rules, Options::default(), &tree(&entries)).plan(&mut Sizes).unwrap();
    let [Finding::Collision { paths, .. }, Finding::OversizeKey { path, .. }] = &plan.refused[..] else {
        panic!("{:?}", plan.refused)
    };
    let kept = paths.iter().chain([path]).map(Vec::len).collect::<Vec<_>>();
    assert_eq!(kept, [8 << 10; 3]);
}

#[test]
fn a_file_that_no_configmap_can_hold_is_too_large_whatever_its_size() {
    let most = FILE_MAX as usize;
    for (path, bytes, compressed) in
        [("large/a", VALUES_MAX + 1, false), ("large/a", most + 1, false), ("one/a", most + 1, true)]
    {
        for (oversize, is_refused) in [(Oversize::Refuse, true), (Oversize::Skip, false)] {
            let policies = Policies { oversize, ..Policies::default() };
            let repository = Some("acme/x".to_owned());
            let options = Options { policies, repository, ..Options::default() };
            let entries = [(path, Entry::File(bytes.into())), ("same/b", Entry::File(1.into()))];
            let plan = Matches::of(rules(), options, &tree(&entries.into())).plan(&mut Sizes).unwrap();
            let found = if is_refused { &plan.refused } else { &plan.noted };
            let (what, limit) = if compressed { ("in its file", most) } else { ("of values", VALUES_MAX) };
            let over = LimitExceeded { what, bytes, limit };
            let is_it = |finding: &Finding| {
                matches!(finding, Finding::OversizeKey { over: it, compressed: is, .. }
                    if (*it, *is) == (over, compressed))
            };
            assert!(found.iter().any(is_it), "{found:?}");
            assert_eq!(plan.refused.len(), usize::from(is_refused));
            let same = plan.configmaps.iter().find(|planned| planned.name == "same").unwrap();
            assert_eq!(same.data.values()["b"].bytes(), b"x");
        }
    }
    let wanted = [ValueSource { file: most.into(), compress: true }];
    let values = Sizes.values(&wanted, VALUES_MAX as u64, &|_, _| true).unwrap();
    assert!(values[0].has_bytes(), "it may fit if it is compressed");
}

#[test]
fn a_part_whose_name_would_be_too_long_is_refused_before_anything_is_written() {
    let file = |bytes: usize| Entry::File(bytes.into());
    let entries = BTreeMap::from([("large/a", file(600_000)), ("large/b", file(600_001))]);
    let policies = Policies { oversize: Oversize::Grow, ..Policies::default() };
    let planned = |name: &str| {
        let rules = rules_of(&format!("maps:\n  'large/*': {{name: {name}}}\n"));
        let options = Options { policies, ..Options::default() };
        Matches::of(rules, options, &tree(&entries)).plan(&mut Sizes).unwrap()
    };
    let plan = planned(&"x".repeat(251));
    let names: Vec<usize> = plan.configmaps.iter().map(|planned| planned.name.len()).collect();
    assert_eq!((names, plan.refused), (vec![251, 253], Vec::new()));
    let name = "x".repeat(252);
    let refused = planned(&name).refused;
    let expected = Finding::PartName { part: format!("{name}-1"), name, why: "it is longer than 253 bytes" };
    assert_eq!(refused, [expected]);
}

#[test]
fn each_part_of_a_split_names_the_files_of_its_keys_and_what_is_not_written_names_none() {
    let file = |bytes: usize| Entry::File(bytes.into());
    let entries = BTreeMap::from([("large/a", file(600_000)), ("large/b", file(600_001))]);
    for (oversize, expected) in [
        (Oversize::Grow, &["large: b", "large-1: a"][..]),
        (Oversize::Refuse, &["large: "]),
        (Oversize::Skip, &["large: "]),
    ] {
        let policies = Policies { oversize, ..Policies::default() };
        let options = Options { policies, ..Options::default() };
        let plan = Matches::of(rules(), options, &tree(&entries)).plan(&mut Sizes).unwrap();
        let large = plan.configmaps.iter().filter(|planned| planned.name.starts_with("large"));
        let files = large.map(|planned| {
            let keys: Vec<&str> = planned.files.keys().map(String::as_str).collect();
            format!("{}: {}", planned.name, keys.join(" "))
        });
        assert_eq!(files.collect::<Vec<_>>(), expected, "{oversize:?}");
    }
}

/// The policy decides before the stamp is refused.
#[test]
fn stamps_count_where_the_policy_for_what_is_too_large_decides() {
    let file = |bytes: usize| Entry::File(bytes.into());
    let planned = |oversize, bytes: usize, stamp_key: Option<&str>| {
        let entries = BTreeMap::from([("large/a", file(1_000)), ("large/b", file(bytes - 1_000))]);
        let policies = Policies { oversize, ..Policies::default() };
        let (stamp_key, repository) = (stamp_key.map(str::to_owned), Some("acme/x".to_owned()));
        let options = Options { policies, stamp_key, repository, ..Options::default() };
        let mut plan = Matches::of(rules(), options, &tree(&entries)).plan(&mut Sizes).unwrap();
        plan.configmaps.retain(|planned| planned.name.starts_with("large"));
        plan
    };
    let most = VALUES_MAX - 64;
    for stamp_key in [".{name}.stamp", "stamp"] {
        for oversize in [Oversize::Refuse, Oversize::Skip, Oversize::Grow] {
            let fits = planned(oversize, most, Some(stamp_key));
            assert_eq!((fits.configmaps.len(), fits.refused), (1, Vec::new()));
            assert!(fits.configmaps[0].fed && !fits.configmaps[0].left_out);
        }
        let refused = planned(Oversize::Refuse, most + 1, Some(stamp_key)).refused;
        let [Finding::Oversize { over, .. }] = &refused[..] else { panic!("{refused:?}") };
        assert_eq!((over.bytes, over.limit), (VALUES_MAX + 1, VALUES_MAX));
        let skipped = planned(Oversize::Skip, most + 1, Some(stamp_key));
        assert!(skipped.refused.is_empty() && skipped.configmaps[0].left_out);
    }
    let grown = planned(Oversize::Grow, most + 1, Some(".{name}.stamp"));
    let parts = grown.configmaps.iter().map(|part| (part.name.as_str(), part.stamp_key.as_deref()));
    let expected = [("large", Some(".large.stamp")), ("large-1", Some(".large-1.stamp"))];
    assert_eq!((parts.collect::<Vec<_>>(), &grown.refused[..]), (expected.to_vec(), &[][..]));
    let alone = planned(Oversize::Grow, VALUES_MAX, None);
    assert_eq!((alone.configmaps.len(), alone.configmaps[0].stamp_key.as_deref()), (1, None));
}
