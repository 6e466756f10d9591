use super::*;
use crate::retry::Backoff;

/// A set of the sources `one` and `two`, neither of which is published.
pub(super) fn two_sources(dir: &Path) -> SourceSet {
    let file = dir.join("sources.yaml");
    let source =
        |name| format!("  - {{name: {name}, repo: {}/{name}, ref: main, to: {name}}}\n", dir.display());
    let text = format!("version: 1\nsources:\n{}{}end: true\n", source("one"), source("two"));
    std::fs::write(&file, text).unwrap();
    let mirrors = dir.join("mirrors");
    let second = Duration::from_secs(1);
    SourceSet::open(SetOptions {
        file,
        dir: mirrors.clone(),
        mirror: mirror::Options::new(&mirrors, Ref::Head, wire::Options::new("")),
        wire: Arc::new(|source| Ok(wire::Options::new(source.repo.clone()))),
        period: second,
        backoff: Backoff { first: second, ceiling: second },
        timeout: second,
        one_time: false,
        attempt_is_bounded: false,
        rules: true,
        root: false,
    })
    .unwrap()
}

/// Makes attempts until the set is as expected. They fail, because nothing can be fetched.
pub(super) async fn resolve_until(set: &mut SourceSet, is_expected: impl Fn(&SourceSet) -> bool) {
    let attempts = async {
        while !is_expected(set) {
            assert!(set.resolve(None, &[]).await.is_err());
        }
    };
    tokio::time::timeout(Duration::from_secs(60), attempts).await.unwrap();
}

#[tokio::test]
async fn only_a_single_unbounded_attempt_waits_longer_than_the_timeout() {
    let dir = tempfile::tempdir().unwrap();
    let mut set = two_sources(dir.path());
    let (start, second) = (Instant::now(), set.options.timeout);
    assert!(set.answers_deadline(start) < start + second);
    set.options.one_time = true;
    assert_eq!(set.answers_deadline(start), start + 2 * second, "`apply` and `render`");
    assert!(set.not_answered().hints[0].contains("--sync-timeout"));
    set.options.attempt_is_bounded = true;
    assert!(set.answers_deadline(start) < start + second, "`sync --one-time`");
}
