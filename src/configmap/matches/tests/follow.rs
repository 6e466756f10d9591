//! What is known of a tree after changes, and what the whole tree has to be matched for.

use super::*;

fn file(number: usize) -> Entry {
    Entry::File(number.into())
}

/// The path is removed if it was there, else added as an empty file.
fn change(path: &str, before: bool) -> Change {
    Change { path: path.into(), before, now: (!before).then(|| file(0)) }
}

#[test]
fn where_a_rule_matches_a_link_the_next_tree_is_matched_as_a_whole() {
    let link = || Entry::Link(b"../elsewhere/a".to_vec());
    for (path, is_followed) in [("same/a", false), ("elsewhere/b", true)] {
        let entries = BTreeMap::from([("elsewhere/a", file(1)), (path, link())]);
        let mut matches = Matches::of(rules(), Options::default(), &tree(&entries));
        assert_eq!(matches.follow(&[change("elsewhere/a", true)]), is_followed, "its target at {path}");
        let mut matches = Matches::of(rules(), Options::default(), &Tree::default());
        let added = Change { path: path.into(), before: false, now: Some(link()) };
        assert_eq!(matches.follow(&[added]), is_followed, "{path}");
    }
}

#[test]
fn matching_ends_beyond_the_memory_limit_and_no_sooner() {
    let each = key_bytes("a", b"same/a");
    assert_eq!(each, KEY_OVERHEAD as u64 + 14, "texts count twice");
    let of = |paths: &[&str]| {
        let entries = paths.iter().map(|path| (*path, file(0))).collect();
        let options = Options { memory_limit: Some(each), ..Options::default() };
        Matches::of(rules(), options, &tree(&entries))
    };
    let is_refused = |matches: &mut Matches| {
        let refused = matches.plan(&mut Texts).unwrap().refused;
        matches!(refused[..], [Finding::MemoryLimit { .. }])
    };
    let mut exact = of(&["same/a"]);
    assert!(exact.follow(&[change("same/a", true), change("same/b", false)]), "one takes the other's room");
    assert!(!is_refused(&mut exact));
    assert!(is_refused(&mut of(&["same/a", "same/b"])));
    let mut partial = of(&["same/a", "same/b", "same/c"]);
    let gone = [change("same/a", true), change("same/b", true)];
    assert!(!partial.follow(&gone), "the third one was not matched");
}

#[test]
fn values_that_are_not_made_again_count_against_the_memory_limit() {
    let options = Options { memory_limit: Some(1_000_000), ..Options::default() };
    let mut matches = Matches::of(rules(), options, &tree(&[("large/a", file(600_000))].into()));
    let is_refused = |matches: &mut Matches| {
        let refused = matches.plan(&mut Sizes).unwrap().refused;
        matches!(refused[..], [Finding::MemoryLimit { .. }])
    };
    assert!(!is_refused(&mut matches));
    for (bytes, before, expected) in [(10, false, false), (600_000, true, true)] {
        let change = Change { path: b"same/a".to_vec(), before, now: Some(file(bytes)) };
        assert!(matches.follow(&[change]));
        assert_eq!(is_refused(&mut matches), expected, "{bytes}");
    }
}

/// Records the sums and the sizes that it is given to keep.
#[derive(Default)]
struct Keeper(Vec<(u64, Vec<(ValueSource, usize)>)>);

impl Contents for Keeper {
    fn read(&mut self, file: FileRef) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
        Sizes.read(file)
    }

    fn keep(&mut self, bytes: u64, all: &mut dyn Iterator<Item = (ValueSource, &Value)>) {
        self.0.push((bytes, all.map(|(source, value)| (source, value.size())).collect()));
    }
}

#[test]
fn all_values_of_a_plan_are_kept_also_those_that_are_not_made_again() {
    let mut keeper = Keeper::default();
    assert_eq!(keeper.size(7.into()).unwrap(), 7, "it is read where nothing else tells it");
    let entries = BTreeMap::from([("large/a", file(5)), ("same/b", file(3))]);
    let mut matches = Matches::of(rules(), Options::default(), &tree(&entries));
    matches.plan(&mut keeper).unwrap();
    let change = Change { path: b"same/b".to_vec(), before: true, now: Some(file(4)) };
    assert!(matches.follow(&[change]));
    matches.plan(&mut keeper).unwrap();
    let value = |bytes: usize| (ValueSource { file: bytes.into(), compress: false }, bytes);
    assert_eq!(keeper.0, [(8, vec![value(5), value(3)]), (9, vec![value(5), value(4)])]);
}

#[test]
fn the_first_and_the_last_file_of_a_rule_change_all_of_its_partitions() {
    let options = Options { repository: Some("acme/x".to_owned()), ..Options::default() };
    let mut matches = Matches::of(rules(), options, &Tree::default());
    for (path, before, fed) in [
        ("same/a", false, 0),
        ("flat/a", false, 3),
        ("flat/b/c", false, 3),
        ("flat/a", true, 3),
        ("flat/b/c", true, 0),
    ] {
        assert!(matches.follow(&[change(path, before)]));
        let plan = matches.plan(&mut Texts).unwrap().accepted().unwrap();
        let flat = || plan.configmaps.iter().filter(|planned| planned.name.starts_with("flat-"));
        assert_eq!(flat().filter(|planned| planned.fed).count(), fed, "{path}");
        for planned in flat() {
            for key in planned.data.values().keys() {
                assert_eq!(planned.name, format!("flat-{}", partition(key, 3)), "{key}");
            }
        }
    }
}
