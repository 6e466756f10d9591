//! Names: of refs, generations and objects.

use jiff::Timestamp;

use super::Target;
use crate::generation::Name;
use crate::revision::{ObjectId, Ref};

pub(super) const TARGETS: &[Target] = &[Target::new("refs", refs), Target::new("generations", generations)];

/// What git says of a name (git-check-ref-format(1)), by libgit2.
fn refs(data: &[u8]) {
    let text = String::from_utf8_lossy(data).into_owned();
    assert_eq!(
        ObjectId::from_hex(&text).is_some(),
        text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    );
    let Ok(asked) = text.parse::<Ref>() else { return };
    match &asked {
        Ref::Named(name) => {
            assert!(crate::mirror::fuzz::is_ref_name(&format!("refs/heads/{name}")), "{name:?}");
            assert_eq!(*name, text);
            assert!(asked.candidates().iter().all(|candidate| candidate.contains(name)));
            assert!(!text.bytes().any(|byte| byte <= b' ' || byte == 0x7f), "{name:?}");
        }
        Ref::Commit(id) => assert_eq!(id.to_string(), text.to_ascii_lowercase()),
        Ref::Head => assert!(text == "HEAD" || text == "@"),
    }
    if asked != Ref::Head {
        assert_eq!(asked.to_string().parse::<Ref>().as_ref(), Ok(&asked));
    }
}

/// A name of a generation is one component, or one below where worktrees are; and the next one comes after it.
fn generations(data: &[u8]) {
    let text = String::from_utf8_lossy(data).into_owned();
    let Some(name) = Name::parse(&text) else { return };
    assert_eq!(name.as_str(), text);
    assert!(!text.contains('/') && text != "." && text != ".." && !text.contains(|c: char| c.is_control()));
    assert_eq!(name.relative_path().components().count(), if name.commit().is_some() { 2 } else { 1 });
    let at: Timestamp = "2026-11-20T15:04:05.5Z".parse().unwrap();
    let next = Name::new(at, [&name]);
    assert_eq!(Name::parse_timestamp(next.as_str()).as_ref(), Some(&next));
    assert!(next.timestamp().is_some());
    let is_last = text.starts_with("..9999_12_3");
    assert!(name.timestamp().is_none() || is_last || next > name, "{next} is to come after {name}");
    if name.commit().is_some() {
        assert_eq!(Name::parse(name.numbered(3).as_str()).unwrap().commit(), name.commit());
    }
}
