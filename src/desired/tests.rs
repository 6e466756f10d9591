use std::cell::Cell;

use super::*;
use crate::mirror::fixture::{Fixture, Model};
use crate::payload::Kind;

const RULES: &str = "maps:\n  jobs/**/*: {name: jobs}\n  other/*: {name: other}\n";

/// A revision, and how often it was listed as a whole, the rules' way apart.
struct Counted<'m> {
    commit: Commit<'m>,
    listed: Cell<u32>,
}

impl Tree for Counted<'_> {
    fn list(&self, enter: &dyn Fn(&[u8]) -> bool) -> Result<Listing<'_>, Error> {
        self.listed.set(self.listed.get() + u32::from(enter(b"jobs") || enter(b"a")));
        self.commit.list(enter)
    }

    fn changes(&self, since: Revision, enter: &dyn Fn(&[u8]) -> bool) -> Result<Option<Changes<'_>>, Error> {
        self.commit.changes(since, enter)
    }
}

fn planner(memory_limit: Option<u64>) -> Planner {
    let options = Options {
        default_namespace: "default".into(),
        dialect: Dialect::default(),
        ignore_unknown: false,
        repository: None,
        policies: Policies::default(),
        memory_limit,
        shape: ExtraKeys { version_key: VersionKey::Every, stamp_key: Some("{name}.stamp".into()) },
        warn: |_| {},
    };
    Planner::new(options, Rules::InTree("ci/rules.yaml".into()))
}

#[test]
fn each_commit_gives_what_its_whole_tree_gives_and_costs_what_it_changed() {
    let fixture = Fixture::new();
    let (objects, planner, known) = (fixture.objects(), planner(None), KnownValues::default());
    let file = |text: &str| Some(Some((Kind::File, text.as_bytes().to_vec())));
    let link = |to: &str| Some(Some((Kind::Symlink, to.as_bytes().to_vec())));
    let more_rules = format!("{RULES}  flat/*: {{name: flat}}\n");
    // What a commit changes, and how often the whole tree is listed for it.
    let story = [
        (vec![("ci/rules.yaml", file(RULES)), ("jobs/a", file("1")), ("docs/x", file("1"))], 1),
        (vec![("jobs/b/c", file("2")), ("jobs/a", None)], 0),
        (vec![("other/a", file("1")), ("docs/x", file("2"))], 0),
        (vec![("docs/link", link("x"))], 0),
        (vec![("jobs/b/c", None), ("jobs/b", file("a directory was here"))], 0),
        (vec![("top", link("docs/x"))], 0),
        (vec![("other/a", link("../docs/x"))], 2),
        (vec![("docs/x", file("3"))], 2),
        (vec![("other/a", file("1"))], 1),
        (vec![("docs/x", file("4")), ("jobs/e", file("5"))], 0),
        (vec![("ci/rules.yaml", file(&more_rules)), ("flat/a", file("1"))], 1),
        (vec![("flat/b", file("1"))], 0),
    ];
    let (mut model, mut last) = (Model::new(), None);
    for (at, (changes, expected)) in story.into_iter().enumerate() {
        for (path, node) in changes {
            match node {
                Some(node) => drop(model.insert(path.into(), node)),
                None => drop(model.remove(path)),
            }
        }
        let revision = fixture.commit_of(&model);
        let tree = Counted { commit: Commit::new(&objects, revision, &known), listed: Cell::new(0) };
        let (desired, next) = planner.desired(&tree, revision, &Placement::default(), last).unwrap();
        assert_eq!(tree.listed.get(), expected, "commit {at}");
        let (whole, _) = planner.desired(&tree, revision, &Placement::default(), None).unwrap();
        assert_eq!(format!("{:?}", desired.config_maps), format!("{:?}", whole.config_maps), "commit {at}");
        last = Some(next);
    }
}

#[test]
fn a_link_that_nothing_leads_through_lists_no_more_of_the_tree() {
    let fixture = Fixture::new();
    let (objects, planner, known) = (fixture.objects(), planner(None), KnownValues::default());
    let node = |kind, text: &str| Some((kind, text.as_bytes().to_vec()));
    type Node = Option<(Kind, Vec<u8>)>;
    let listed = |entries: &[(&str, Node)]| {
        let model: Model = entries.iter().map(|(path, node)| ((*path).to_owned(), node.clone())).collect();
        let revision = fixture.commit_of(&model);
        let tree = Counted { commit: Commit::new(&objects, revision, &known), listed: Cell::new(0) };
        let found = planner.desired(&tree, revision, &Placement::default(), None).is_ok();
        (found, tree.listed.get())
    };
    let rules = || ("ci/rules.yaml", node(Kind::File, RULES));
    let job = ("jobs/a", node(Kind::File, "1"));
    let top = || ("top", node(Kind::Symlink, "docs/x"));
    let beside = ("jobs.yaml", node(Kind::Symlink, "docs/x"));
    assert_eq!(listed(&[rules(), job.clone(), top(), beside]), (true, 1));
    let matched = ("other/a", node(Kind::Symlink, "../docs/x"));
    assert_eq!(listed(&[rules(), ("docs/x", node(Kind::File, "1")), matched]), (true, 2));
    // The rules' file is a link, or is in a directory that is one; the whole tree is then listed for them, too.
    let real = ("real/rules.yaml", node(Kind::File, RULES));
    let file = ("ci/rules.yaml", node(Kind::Symlink, "../real/rules.yaml"));
    assert_eq!(listed(&[real.clone(), file, job.clone()]), (true, 2));
    assert_eq!(listed(&[real.clone(), ("ci", node(Kind::Symlink, "real")), job.clone()]), (true, 2));
    for elsewhere in ["c", "ci-2", "ci/rules.yaml.old", "top"] {
        let link = (elsewhere, node(Kind::Symlink, "real"));
        assert_eq!(listed(&[real.clone(), link, job.clone()]), (false, 0), "{elsewhere}");
    }
}

#[test]
fn a_plan_that_seems_to_need_too_much_memory_is_made_of_the_whole_tree() {
    let fixture = Fixture::new();
    let (objects, known) = (fixture.objects(), KnownValues::default());
    let planner = planner(Some(1_000_000));
    // One file in two ConfigMaps: what followed a commit counts its value twice.
    let rules = "maps:\n  a/*: {name: one, clusters: {east: [ci], west: [ci]}}\n  b/*: {name: one, clusters: {east: [ci]}}\n";
    let file = |text: &str| Some((Kind::File, text.as_bytes().to_vec()));
    let mut model =
        Model::from([("ci/rules.yaml".into(), file(rules)), ("a/a".into(), file(&"x".repeat(600_000)))]);
    let mut last = None;
    for (path, lists) in [("b/b", 1), ("b/c", 1)] {
        model.insert(path.into(), file("1"));
        let revision = fixture.commit_of(&model);
        let tree = Counted { commit: Commit::new(&objects, revision, &known), listed: Cell::new(0) };
        let (desired, next) = planner.desired(&tree, revision, &Placement::default(), last).unwrap();
        assert_eq!(tree.listed.get(), lists, "{path}");
        assert!(desired.of("east", "ci").unwrap()["one"].data.values().contains_key(&path[2..]));
        last = Some(next);
    }
}

#[test]
fn matching_ends_at_the_shorter_limit_and_the_error_names_what_sets_it() {
    let limit = |seconds| TimeLimit { time: Duration::from_secs(seconds), set_by: Some("--sync-timeout") };
    let limited = |seconds| planner(None).within(limit(seconds)).matching_limit;
    assert_eq!((limited(59), limited(61)), (limit(59), MATCHING_LIMIT));
    let fixture = Fixture::new();
    let (objects, known) = (fixture.objects(), KnownValues::default());
    let file = |text: &str| Some((Kind::File, text.as_bytes().to_vec()));
    let model = Model::from([("ci/rules.yaml".into(), file(RULES)), ("jobs/a".into(), file("1"))]);
    let revision = fixture.commit_of(&model);
    let tree = Commit::new(&objects, revision, &known);
    let desired = |seconds| {
        let planner = planner(None).within(limit(seconds));
        planner.desired(&tree, revision, &Placement::default(), None)
    };
    assert!(desired(59).is_ok());
    let error = desired(0).unwrap_err();
    let what =
        "computing the plan takes longer than 0ns (--sync-timeout), while matching the files against 2 rules";
    assert_eq!(error.to_string(), what);
    assert!(error.hints()[0].contains("`**/`; or raise that timeout") && !error.is_transient());
}
