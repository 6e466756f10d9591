use std::time::Instant;

use super::*;
use crate::mirror::fixture::Fixture;

#[test]
fn a_tree_that_is_named_often_is_counted_once_and_counting_can_be_cancelled() {
    let fixture = Fixture::new();
    let blob = fixture.blob(b"x");
    let names: Vec<_> = (0..5_000).map(|n| format!("{n:04}")).collect();
    let all = |mode: &'static str, id| {
        let lines: Vec<_> = names.iter().map(|name| (mode, name.as_bytes(), id)).collect();
        fixture.tree(&lines)
    };
    let one = all("100644", blob);
    let many = all("40000", one);
    let store = fixture.shared.store().unwrap();
    let reader = store.reader().unwrap();
    let cancel = CancellationToken::new();
    let revision = Revision(many);
    let time = |top, expected| {
        let began = Instant::now();
        assert_eq!(count(&reader, revision, &top, &cancel).unwrap(), Some(expected));
        began.elapsed()
    };
    let (one, many) = (time(one, 5_000), time(many, 5_000 + 5_000 * 5_000));
    assert!(many < one * 100, "five thousand took {many:?}, one {one:?}");
    cancel.cancel();
    let cancelled = count(&reader, revision, &revision.0, &cancel);
    assert!(matches!(cancelled, Err(Error::Cancelled)), "{cancelled:?}");
}

#[test]
fn a_directory_may_name_one_tree_more_often_than_trees_are_counted() {
    let fixture = Fixture::new();
    let one = fixture.tree(&[("100644", b"f", fixture.blob(b"x"))]);
    let names: Vec<_> = (0..=COUNTED_MAX).map(|n| format!("{n:06}")).collect();
    let lines: Vec<_> = names.iter().map(|name| ("40000", name.as_bytes(), one)).collect();
    let top = fixture.tree(&lines);
    let store = fixture.shared.store().unwrap();
    let counted = count(&store.reader().unwrap(), Revision(top), &top, &CancellationToken::new());
    assert_eq!(counted.unwrap(), Some(2 * lines.len() as u64));
}

#[test]
fn lines_are_read_as_written() {
    let mut raw = b"104755 odd\0".to_vec();
    raw.extend([7; 20]);
    raw.extend(b"40000 a/b\0");
    raw.extend([9; 20]);
    let lines: Vec<_> = entries(&raw).map(Result::unwrap).collect();
    assert_eq!(lines[0], Line { mode: 0o104_755, name: b"odd", id: ObjectId([7; 20]) });
    assert!(lines[1].is_dir() && lines[1].name == b"a/b");
}

#[test]
fn a_mode_may_begin_with_zeros_and_has_nothing_but_octal_digits() {
    let of = |mode: &str| split(&[mode.as_bytes(), b" a\0", &[7; 20]].concat()).map(|(line, _)| line.mode);
    let many = format!("{:0>64}", "100644");
    for (mode, parsed) in [("000000100644", 0o100_644), (&many, 0o100_644), ("040000", DIRECTORY), ("0", 0)] {
        assert_eq!(of(mode), Some(parsed), "{mode}");
    }
    for mode in ["", "+100644", "100648", "100644x", "40000000000"] {
        assert_eq!(of(mode), None, "{mode}");
    }
}

#[test]
fn a_cut_tree_ends_in_an_error() {
    let mut raw = b"100644 a\0".to_vec();
    raw.extend([7; 20]);
    for cut in 1..raw.len() {
        assert!(entries(&raw[..cut]).any(|line| line.is_err()), "cut at {cut}");
    }
    assert!(entries(b"100644x a\0aaaaaaaaaaaaaaaaaaaa").next().unwrap().is_err());
}
