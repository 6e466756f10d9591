//! Links between the pages.

use std::collections::BTreeSet;

use super::{documents, home};

/// Prose, without blocks of code.
fn prose(text: &str) -> String {
    text.split("\n```").step_by(2).collect()
}

/// The name that a heading has in a link, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text);
    headings
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| anchor(line.trim_start_matches('#').trim()))
        .collect()
}

#[test]
fn every_link_leads_somewhere() {
    let mut links = 0;
    for document in documents() {
        for link in prose(&document.text).split("](").skip(1) {
            let target = link.split(')').next().unwrap();
            if target.starts_with("http") {
                continue;
            }
            links += 1;
            let (path, place) = target.split_once('#').unwrap_or((target, ""));
            let file = match path {
                "" => document.path.clone(),
                path => document.path.parent().unwrap().join(path),
            };
            assert!(file.exists(), "{}: {target} does not exist", document.path.display());
            let text = || std::fs::read_to_string(&file).unwrap();
            assert!(
                place.is_empty() || anchors(&text()).contains(place),
                "{}: {target} is no heading",
                document.path.display()
            );
        }
    }
    assert!(links > 20, "the links were not found");
}

#[test]
fn every_document_is_reached_from_the_readme() {
    let (mut reached, mut next) = (BTreeSet::new(), vec![home().join("README.md")]);
    while let Some(path) = next.pop() {
        if !reached.insert(path.clone()) || path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let links = text.split("](").skip(1).filter_map(|link| link.split([')', '#']).next());
        let files = links.filter_map(|link| path.parent().unwrap().join(link).canonicalize().ok());
        next.extend(files.filter(|file| file.is_file()));
    }
    for document in documents() {
        assert!(reached.contains(&document.path), "no link leads to {}", document.path.display());
    }
}
