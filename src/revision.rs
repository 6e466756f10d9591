//! What the command line asks for, and what it resolved to.
//!
//! A [`Ref`] is what was asked: a branch, a tag, `HEAD`, any full ref name, or a full commit id. A [`Revision`] is
//! the full commit id it resolved to. They are different types so that one is never taken for the other.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How the revision that a ref names stands to one that was recorded before, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relation {
    /// The recorded one is an ancestor: an advance.
    Ahead,
    /// It is an ancestor of the recorded one: the ref went back, or a replica lags.
    Behind,
    /// Neither: the ref was forced elsewhere.
    Diverged,
    /// The remote does not have the recorded one, so it is no advance: a replica lags, or history was rewritten and
    /// cleaned up since.
    UnknownToRemote,
    /// The history that would show it cannot be had. That never means that it is an advance.
    Unknown,
}

/// The id of a git object: 20 bytes of SHA-1. (SHA-256 repositories are refused by the mirror, by name.)
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(with = "String", inline, extend("pattern" = "^[0-9a-f]{40}$")))]
pub struct ObjectId(pub [u8; 20]);

/// As bytes compare. The first eight decide nearly always, and comparing them is one instruction: ids are looked up by
/// halving, a hundred thousand of them in a first sync.
impl Ord for ObjectId {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let head = |id: &Self| u64::from_be_bytes(*id.0.first_chunk().unwrap_or(&[0; 8])); // an id has twenty
        head(self).cmp(&head(other)).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for ObjectId {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl ObjectId {
    /// Reads exactly 40 hexadecimal digits of either case; anything else, short ids included, is `None`.
    pub fn from_hex(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 40 {
            return None;
        }
        let mut id = [0u8; 20];
        for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
            let high = (pair[0] as char).to_digit(16)?;
            let low = (pair[1] as char).to_digit(16)?;
            *byte = (high * 16 + low) as u8; // two hexadecimal digits never exceed 255
        }
        Some(Self(id))
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ObjectId {
    type Err = NotAnId;
    fn from_str(text: &str) -> Result<Self, NotAnId> {
        Self::from_hex(text).ok_or_else(|| NotAnId(text.to_owned()))
    }
}

impl Serialize for ObjectId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ObjectId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The text was not a full object id.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a full object id (40 hexadecimal digits)")]
pub struct NotAnId(String);

/// The full id of a commit: what a [`Ref`] resolved to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(inline))]
#[serde(transparent)]
pub struct Revision(pub ObjectId);

impl Revision {
    /// The first twelve digits, for lines that people read. Never parsed.
    pub fn short(&self) -> String {
        let mut text = self.0.to_string();
        text.truncate(12);
        text
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// What was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ref {
    /// `HEAD`: whatever branch the remote considers its default.
    Head,
    /// A full commit id.
    Commit(ObjectId),
    /// A name: `main`, `v1.2`, `heads/main`, `refs/pull/7/head`.
    Named(String),
}

impl Ref {
    /// The full ref names this may mean, best first, in the order `git fetch` tries them: the name itself, then below
    /// `refs/`, `refs/tags/` (a tag beats a branch of the same name), `refs/heads/`, `refs/remotes/`, and a remote's
    /// `HEAD` (gitrevisions(7)). Empty for a commit id.
    pub fn candidates(&self) -> Vec<String> {
        match self {
            Self::Head => vec!["HEAD".into()],
            Self::Commit(_) => Vec::new(),
            Self::Named(name) => vec![
                name.clone(),
                format!("refs/{name}"),
                format!("refs/tags/{name}"),
                format!("refs/heads/{name}"),
                format!("refs/remotes/{name}"),
                format!("refs/remotes/{name}/HEAD"),
            ],
        }
    }
}

impl fmt::Display for Ref {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Head => f.write_str("HEAD"),
            Self::Commit(id) => fmt::Display::fmt(id, f),
            Self::Named(name) => f.write_str(name),
        }
    }
}

/// The text cannot be a ref.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a ref: {why}")]
pub struct BadRef {
    text: String,
    why: &'static str,
}

impl BadRef {
    /// What is wrong with it, in words.
    pub fn why(&self) -> &'static str {
        self.why
    }
}

impl FromStr for Ref {
    type Err = BadRef;

    /// Accepts what git-check-ref-format(1) accepts, plus `HEAD` and full commit ids. Relative forms (`HEAD~1`,
    /// short ids, `a:b`) are refused with the reason, because a remote cannot be asked for them.
    fn from_str(text: &str) -> Result<Self, BadRef> {
        let bad = |why| Err(BadRef { text: text.to_owned(), why });
        if text.is_empty() {
            return bad("it is empty");
        }
        if text == "HEAD" || text == "@" {
            return Ok(Self::Head);
        }
        if let Some(id) = ObjectId::from_hex(text) {
            return Ok(Self::Commit(id));
        }
        if text.bytes().any(|b| b <= b' ' || b == 0x7f || b"~^:?*[\\".contains(&b)) {
            return bad("only a branch, a tag, a full ref name or a full commit id can be followed");
        }
        if text.contains("..") || text.contains("@{") || text.contains("//") {
            return bad("it contains `..`, `@{` or `//`");
        }
        if text.starts_with('/') || text.starts_with('-') || text.ends_with('/') || text.ends_with('.') {
            return bad("it starts with `/` or `-`, or ends with `/` or `.`");
        }
        if text.split('/').any(|part| part.starts_with('.') || part.ends_with(".lock")) {
            return bad("a part of it starts with `.` or ends with `.lock`");
        }
        Ok(Self::Named(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_tried_before_a_branch_of_the_same_name() {
        let names = "v1".parse::<Ref>().unwrap().candidates();
        let at = |wanted: &str| names.iter().position(|name| name == wanted).unwrap();
        assert!(at("refs/tags/v1") < at("refs/heads/v1"));
    }

    #[test]
    fn relative_and_malformed_refs_are_refused() {
        for text in ["", "HEAD~1", "a:b", "a..b", "-x", "a b", "x.lock", ".x", "a//b", "main^{}"] {
            assert!(text.parse::<Ref>().is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn ids_are_in_the_order_of_their_bytes() {
        for at in 0..20 {
            for (less, more) in [(0, 1), (0x7f, 0x80), (0, 0xff)] {
                let id = |byte, rest: u8| {
                    let mut id = [0x55; 20];
                    id[at] = byte;
                    id[at + 1..].fill(rest);
                    ObjectId(id)
                };
                assert!(id(less, 0xff) < id(more, 0), "byte {at}: {less} and {more}");
                assert_eq!(id(more, 3).cmp(&id(more, 3)), std::cmp::Ordering::Equal);
            }
        }
    }

    #[test]
    fn ids_are_full_and_of_either_case() {
        let hex = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(ObjectId::from_hex(&hex.to_uppercase()).unwrap().to_string(), hex);
        assert_eq!(ObjectId::from_hex(&hex[..39]), None);
        assert!(matches!(hex.parse(), Ok(Ref::Commit(_))));
        assert!(matches!("0123456".parse(), Ok(Ref::Named(_))), "a short id can only be a branch name");
    }
}
