use std::time::Duration;

use super::*;

const OVER: LimitExceeded = LimitExceeded { what: "of values", bytes: 2, limit: 1 };

/// One of each; of [`Finding::Collision`], [`Finding::OversizeKey`] and [`Finding::MatchingLimit`] one for each hint,
/// of [`Finding::Stamp`] one for each problem.
fn each() -> Vec<Finding> {
    let text = || "x".to_owned();
    let path = || b"a/b".to_vec();
    let collision = |is_fixed| {
        let paths = vec![path()];
        Finding::Collision { name: text(), key: text(), is_fixed, paths, total: 2 }
    };
    let oversize_key =
        |compressed| Finding::OversizeKey { name: text(), key: text(), path: path(), over: OVER, compressed };
    let stamp = |key, problem| Finding::Stamp { name: text(), key, problem };
    let matching_limit = |set_by| {
        let limit = TimeLimit { time: Duration::from_secs(60), set_by };
        Finding::MatchingLimit { rules: 20_000, limit }
    };
    vec![
        Finding::Overlap { path: path(), rules: vec![(text(), text())], total: 2 },
        collision(false),
        collision(true),
        Finding::BadSymlink { path: path(), why: BadLink::Dangling },
        Finding::IllegalKey { path: path(), name: text(), key: "a\nb".into(), why: InvalidKey::Characters },
        Finding::Oversize { name: text(), over: OVER, largest: vec![(text(), 2, path())] },
        oversize_key(false),
        oversize_key(true),
        stamp("x".repeat(300), StampProblem::IllegalKey(InvalidKey::Long)),
        stamp(text(), StampProblem::Taken(path())),
        Finding::MemoryLimit { limit: 1 << 20 },
        Finding::TooManyTargets { targets: 2, limit: 1 },
        matching_limit(None),
        matching_limit(Some("--sync-timeout")),
        Finding::NameTaken { name: text(), taken: text() },
        Finding::PartName { name: text(), part: "x-1".into(), why: "it is longer than 253 bytes" },
        Finding::RepositoryUnknown { pattern: text() },
        Finding::RepositoryNotPermitted {
            pattern: text(),
            files: 1,
            repository: "acme/config".into(),
            field: "allowed_repos",
            list: vec!["acme/jobs".into()],
            total: 1,
        },
        Finding::NoMatch { pattern: text(), empties: true },
    ]
}

#[test]
fn every_finding_is_one_line_and_one_that_refuses_says_what_to_do() {
    for finding in each() {
        let refuses = match &finding {
            Finding::Overlap { .. }
            | Finding::Collision { .. }
            | Finding::IllegalKey { .. }
            | Finding::BadSymlink { .. }
            | Finding::Oversize { .. }
            | Finding::OversizeKey { .. }
            | Finding::Stamp { .. }
            | Finding::MemoryLimit { .. }
            | Finding::TooManyTargets { .. }
            | Finding::MatchingLimit { .. }
            | Finding::NameTaken { .. }
            | Finding::PartName { .. }
            | Finding::RepositoryUnknown { .. } => true,
            Finding::RepositoryNotPermitted { .. } | Finding::NoMatch { .. } => false,
        };
        assert_eq!(refuses, !finding.is_harmless());
        let refused = Refused(vec![finding]);
        // What is only noted needs no hint, which `assert_message_style` requires: a stand-in.
        let hints = if refuses { refused.hints() } else { vec!["it is only noted".to_owned()] };
        crate::human::assert_message_style(&refused, &hints);
    }
}

#[test]
fn what_becomes_of_a_configmap_without_files_is_told_where_one_may_exist() {
    let policies = Policies::default();
    for finding in each() {
        let is_told = matches!(finding, Finding::NoMatch { .. } | Finding::RepositoryNotPermitted { .. });
        let consequence = finding.consequence(&policies, true);
        assert_eq!(consequence.contains("deleted with --prune"), is_told, "{finding}{consequence}");
        assert_eq!(finding.consequence(&policies, false), "", "{finding}");
    }
    let shared = Finding::NoMatch { pattern: "x".into(), empties: false };
    assert_eq!(shared.consequence(&policies, true), "", "another rule feeds the same ConfigMap");
}

#[test]
fn what_a_policy_skips_is_told_to_be_left_out() {
    let (illegal_keys, links, oversize) = (IllegalKeys::Skip, Links::Skip, Oversize::Skip);
    let policies = Policies { illegal_keys, links, oversize, ..Policies::default() };
    for finding in each() {
        let expected = match &finding {
            Finding::IllegalKey { .. } | Finding::BadSymlink { .. } => ["; it is left out"; 2],
            Finding::Oversize { .. } | Finding::OversizeKey { .. } => {
                ["; it is left out", "; the ConfigMap is left as it is"]
            }
            Finding::RepositoryNotPermitted { .. } | Finding::NoMatch { .. } => continue,
            _ => [""; 2],
        };
        let consequence = [false, true].map(|applies| finding.consequence(&policies, applies));
        assert_eq!(consequence, expected, "{finding}");
    }
}

#[test]
fn a_key_that_no_file_has_is_shown_without_one() {
    let largest = vec![("VERSION".to_owned(), 40, Vec::new()), ("a".to_owned(), 3, b"dir/a".to_vec())];
    let line = Finding::Oversize { name: "m".to_owned(), over: OVER, largest }.to_string();
    assert!(line.ends_with("; the largest keys: VERSION 40 B, a 3 B (dir/a)"), "{line}");
}

#[test]
fn what_to_do_follows_the_findings_that_it_is_for_and_is_said_once() {
    let large = |name: &str| Finding::Oversize { name: name.into(), over: OVER, largest: Vec::new() };
    let alone = |name: &str| {
        let (name, key, path) = (name.into(), "k".into(), b"f".to_vec());
        Finding::OversizeKey { name, key, path, over: OVER, compressed: true }
    };
    let refused = Refused(vec![large("a"), alone("b"), large("c"), alone("d")]);
    let hints = refused.hints();
    let begin = ["also ConfigMap c ", "gzip and ", "also key k ", "also key k ", "make the file "];
    assert!(refused.to_string().starts_with("ConfigMap a "), "{refused}");
    assert_eq!(hints.len(), begin.len(), "{hints:?}");
    assert!(hints.iter().zip(begin).all(|(hint, begin)| hint.starts_with(begin)), "{hints:?}");
    // What is not shown has no hint: it would seem to be for what is.
    let mut many = vec![large("a"); 1 + SHOWN];
    many.push(alone("b"));
    let hints = Refused(many).hints();
    assert_eq!(hints.len(), SHOWN + 1, "{hints:?}");
    assert!(hints[SHOWN].starts_with("gzip and "), "{hints:?}");
}

#[test]
fn the_key_of_a_rule_is_shown_and_not_only_the_path() {
    let (path, name) = (b"a/..data/b".to_vec(), "cm".to_owned());
    let finding = Finding::IllegalKey { path, name, key: "..data-b".into(), why: InvalidKey::Dots };
    assert_eq!(
        finding.to_string(),
        "a/..data/b cannot have the key \"..data-b\" in ConfigMap cm: it is `.` or begins with `..`"
    );
}

#[test]
fn what_a_list_leaves_out_is_counted() {
    let rules = |count: usize| (0..count).map(|at| (format!("p{at}"), "m".to_owned())).collect::<Vec<_>>();
    for (kept, total, end) in
        [(2, 2, "p1 (ConfigMap m)"), (20, 20, "p19 (ConfigMap m)"), (20, 25, "(ConfigMap m), 5 more")]
    {
        let line = Finding::Overlap { path: b"a".to_vec(), rules: rules(kept), total }.to_string();
        assert!(line.ends_with(end), "{line}");
    }
    let (name, key, paths) = ("m".to_owned(), "k".to_owned(), vec![b"a".to_vec(), b"b".to_vec()]);
    let collision = Finding::Collision { name, key, is_fixed: false, paths, total: 7 };
    let line = "key k of ConfigMap m is claimed by several files: a, b, 5 more";
    assert_eq!(collision.to_string(), line);
    let ends = [
        (1, "which is not given"),
        (3, "which is not given (and 2 more)"),
        (FINDINGS_MAX, "which is not given (and at least 1999 more)"),
    ];
    for (count, end) in ends {
        let refused = Refused(vec![Finding::RepositoryUnknown { pattern: "x".into() }; count]).to_string();
        assert!(refused.ends_with(end), "{refused}");
    }
}
