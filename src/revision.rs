//! Refs, revisions and object ids.
//!
//! A [`Ref`] is what the command line asks for: a branch, a tag, `HEAD`, any full ref name, or a full commit id. A
//! [`Revision`] is the full commit id it resolved to. They are different types so that one is never taken for the
//! other.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The relation of the revision that a ref names now to the one recorded before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relation {
    /// The recorded revision is an ancestor of the new one: a fast-forward.
    Ahead,
    /// The new revision is an ancestor of the recorded one: the ref was reset, or a replica lags.
    Behind,
    /// Neither is an ancestor of the other: the ref was force-pushed.
    Diverged,
    /// The remote does not have the recorded revision, so this is not a fast-forward: a replica lags, or history was
    /// rewritten and garbage collected since.
    UnknownToRemote,
    /// The history needed to decide is not available. Must not be taken for a fast-forward.
    Unknown,
}

/// A git object id: 20 bytes of SHA-1. (The mirror refuses SHA-256 repositories with an error that says so.)
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(with = "String", inline, extend("pattern" = "^[0-9a-f]{40}$")))]
pub struct ObjectId(pub [u8; 20]);

/// The order of the bytes. Compares the first eight as one integer, which is one instruction and nearly always decides:
/// a first sync does a hundred thousand binary searches for ids.
impl Ord for ObjectId {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let head = |id: &Self| u64::from_be_bytes(*id.0.first_chunk().unwrap_or(&[0; 8])); // an id has twenty bytes
        head(self).cmp(&head(other)).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for ObjectId {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl ObjectId {
    /// Parses exactly 40 hexadecimal digits of either case. Returns `None` for anything else, including short ids.
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

/// A text is not a full object id.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a full object id (40 hexadecimal digits)")]
pub struct NotAnId(String);

/// The full id of a commit that a [`Ref`] resolved to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(inline))]
#[serde(transparent)]
pub struct Revision(pub ObjectId);

impl Revision {
    /// The first twelve digits, for messages. Never parsed.
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

/// What to follow in a repository.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Ref {
    /// `HEAD`: the remote's default branch.
    Head,
    /// A full commit id.
    Commit(ObjectId),
    /// A full or abbreviated ref name: `main`, `v1.2`, `heads/main`, `refs/pull/7/head`.
    Named(String),
}

impl Ref {
    /// The full ref names that this may stand for, in the order in which `git fetch` tries them (gitrevisions(7)): the
    /// name itself, then below `refs/`, `refs/tags/` (a tag takes precedence over a branch of the same name),
    /// `refs/heads/`, `refs/remotes/`, and a remote's `HEAD`. Empty for a commit id.
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

/// A text is not a valid ref.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a ref: {why}")]
pub struct BadRef {
    text: String,
    why: &'static str,
}

impl BadRef {
    /// The reason, as a phrase.
    pub fn why(&self) -> &'static str {
        self.why
    }
}

impl FromStr for Ref {
    type Err = BadRef;

    /// Accepts what git-check-ref-format(1) accepts, plus `HEAD` and full commit ids. Refuses relative forms (`HEAD~1`,
    /// `a:b`) with the reason, because the git protocol cannot ask a remote for them.
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
