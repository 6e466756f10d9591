//! Reads a commit's subject, author and date for display. The commit's author chose every byte, so all of it is
//! sanitized and shortened.

use git2::ObjectType;
use jiff::Timestamp;

use super::odb::ObjectReader;
use super::shared::Shared;
use super::{Objects, composed};
use crate::human::sanitize;
use crate::phase::{Commit, SourceRevision};
use crate::revision::{ObjectId, Revision};
use crate::secret::quoted;

/// The largest commit object in bytes that is read.
const COMMIT_MAX: usize = 1 << 20;

/// The most characters of a subject that are shown (git recommends 50), and of an author's name.
const SUBJECT: usize = 120;
const AUTHOR: usize = 60;

impl Objects {
    /// The subject, author and date of a commit, and the sources of a composed one. `None` if the commit is not in the
    /// mirror. Blocking.
    pub fn describe(&self, revision: Revision) -> Option<Commit> {
        let _lease = self.shared.lease();
        let store = self.shared.all().ok()?;
        let reader = store.reader().ok()?;
        describe(&reader, &self.shared, &revision.0)
    }
}

fn describe(reader: &ObjectReader<'_>, shared: &Shared, id: &ObjectId) -> Option<Commit> {
    let object = reader.structure(id, ObjectType::Commit, COMMIT_MAX).ok()?;
    let sources = composed::read_parts(reader, shared, id).into_iter().map(|part| SourceRevision {
        name: part.name,
        repo: part.repo,
        ref_name: part.ref_name,
        revision: part.revision,
        path: part.path,
        to: part.to,
    });
    Some(Commit { sources: sources.collect(), ..read(object.data()) })
}

/// Parses a commit. Text that is not UTF-8 is shown with replacement characters.
fn read(data: &[u8]) -> Commit {
    let text = String::from_utf8_lossy(data);
    let (head, message) = text.split_once("\n\n").unwrap_or((&text, ""));
    let author = head.lines().find_map(|line| line.strip_prefix("author ")).unwrap_or_default();
    let (name, rest) = author.split_once(" <").unwrap_or((author, ""));
    let seconds = rest.rsplit_once('>').and_then(|(_, date)| date.split_whitespace().next()?.parse().ok());
    let subject = message.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    Commit {
        subject: sanitize(&quoted(subject.trim()), SUBJECT),
        author: sanitize(&quoted(name.trim()), AUTHOR),
        date: seconds.and_then(|seconds| Timestamp::from_second(seconds).ok()),
        sources: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_the_author_and_the_date_are_read_and_bounded() {
        let text = "tree 1\nparent 2\nauthor Ada Lovelace <ada@example.org> 1700000000 +0100\ncommitter C <c> 1 +0000\n\
                    gpgsig -----BEGIN\n author Eve <e> 5 +0000\n\n\n  Raise the quota \n\nBecause.\n";
        let commit = read(text.as_bytes());
        assert_eq!((commit.subject.as_str(), commit.author.as_str()), ("Raise the quota", "Ada Lovelace"));
        assert_eq!(commit.date, Timestamp::from_second(1_700_000_000).ok());
        crate::secret::register("canary-of-a-commit");
        let commit = read(b"author canary-of-a-c <c> 5 +0000\n\nLog in with y-of-a-commit");
        assert_eq!(
            (commit.subject.as_str(), commit.author.as_str()),
            ("Log in with [redacted]", "[redacted]")
        );
        let hostile = format!(
            "author \u{1b}[31mE\u{202e}ve <e> 99999999999999999999 +0000\n\n{}\u{7}",
            "x".repeat(500)
        );
        let commit = read(hostile.as_bytes());
        assert_eq!(commit.author, "\u{fffd}[31mE\u{fffd}ve");
        assert_eq!((commit.subject.chars().count(), commit.date), (SUBJECT, None));
        for odd in [&b""[..], b"\n\n", b"author", b"author \n\n\xff\xfe", b"author a <b\n\n"] {
            assert!(read(odd).date.is_none());
        }
    }
}
