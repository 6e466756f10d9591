//! Files that people write: rules and lists of sources.

use std::collections::BTreeSet;

use super::{Input, SECRET, Target};
use crate::configmap::{Dialect, Names, RuleSet, Setting};
use crate::sources::SourcesFile;

pub(super) const TARGETS: &[Target] = &[Target::new("rules", rules), Target::new("sources", sources)];

/// A DNS subdomain, or where there is no dot in it, a label (RFC 1123).
fn is_name(text: &str, longest: usize, dots: bool) -> bool {
    let label = |label: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !label.is_empty() && label.chars().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    text.len() <= longest && text.split('.').all(label) && (dots || !text.contains('.'))
}

/// Rules that are taken name only what a cluster takes.
fn rules(data: &[u8]) {
    let input = &mut Input::new(data);
    let shape = input.byte();
    let text = String::from_utf8_lossy(input.rest());
    let setting = Setting {
        file: "plugins.yaml",
        default_namespace: "default",
        dialect: Dialect::default(),
        ignore_unknown: shape & 1 == 0,
    };
    let variable = |name: &str| (name.len() < 3).then(|| "value".to_owned());
    match RuleSet::read(&text, &setting, &variable) {
        Ok(set) => {
            for (at, rule) in set.rules.iter().enumerate() {
                let names = match &rule.names {
                    Names::One(name) => std::slice::from_ref(name),
                    other => other.all(),
                };
                assert!(!names.is_empty() && names.iter().all(|name| is_name(name, 253, true)), "{names:?}");
                assert!(
                    rule.places.iter().all(|place| is_name(&place.namespace, 63, false)),
                    "{:?}",
                    rule.places
                );
                assert!(rule.places.windows(2).all(|pair| pair[0] <= pair[1]), "sorted");
                let key = rule.key.as_deref().unwrap_or("key");
                let is_key = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
                assert!(
                    !key.is_empty() && key.len() <= 253 && key.chars().all(is_key) && !key.starts_with(".."),
                    "{key:?}"
                );
                for path in [&b"config/prow/config.yaml"[..], b"a", b"a/b.yaml", rule.pattern.as_bytes()] {
                    let by_set = set.patterns.matching(path).contains(&at);
                    assert_eq!(by_set, set.patterns.get(at).matches(path), "{:?}", rule.pattern);
                    assert!(!by_set || path.starts_with(set.patterns.get(at).prefix()), "{:?}", rule.pattern);
                }
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A list that is taken leads nowhere out of the root, and one that was cut is not taken for another one.
fn sources(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let list = match SourcesFile::parse(&text) {
        Ok(list) => list,
        Err(why) => {
            let is_password = text.contains(&format!("https://bob:{SECRET}@"));
            let elsewhere = text.matches(SECRET).count() > 1;
            assert!(!is_password || elsewhere || !crate::secret::redacted(&why).contains(SECRET), "{why}");
            return;
        }
    };
    let names: BTreeSet<&str> = list.sources.iter().map(|source| source.name.as_str()).collect();
    assert!(names.len() == list.sources.len() && !names.is_empty() && names.len() <= 64);
    for source in &list.sources {
        assert!(!source.name.is_empty() && source.name.len() <= 63);
        for path in [&source.to, &source.path] {
            let is_odd = |part: &str| matches!(part, "" | "." | "..") || part.contains('\0');
            assert!(path.is_empty() || !path.split('/').any(is_odd), "{path:?}");
        }
        let is_git = |part: &str| part.eq_ignore_ascii_case(".git") || part.starts_with("..");
        assert!(!source.to.split('/').any(is_git), "{:?}", source.to);
    }
    let cut = data.iter().fold(0_usize, |sum, byte| sum.wrapping_mul(31) + usize::from(*byte)) % text.len();
    if let Some(head) = text.get(..cut) {
        let read = SourcesFile::parse(head);
        assert!(read.is_err() || read == Ok(list), "cut at {cut}, and another list");
    }
}
