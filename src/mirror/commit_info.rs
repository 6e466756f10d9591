//! Reads a commit's subject, author and date for display. The commit's author chose every byte, so all of it is
//! sanitized and shortened.

use std::borrow::Cow;

use git2::ObjectType;
use jiff::Timestamp;

use super::odb::{COMMIT_MAX, ObjectReader};
use super::shared::Shared;
use super::{Objects, composed};
use crate::human::sanitize;
use crate::phase::{Commit, SourceRevision};
use crate::revision::{ObjectId, Revision};
use crate::secret::quoted;

/// The most bytes of a line that are looked at, far more than are shown of it. A message may have megabytes, and one
/// line.
const LINE_MAX: usize = 16 << 10;

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

/// Parses a commit, up to its subject. Text that is not UTF-8 is shown with replacement characters.
fn read(data: &[u8]) -> Commit {
    let mut lines = data.split(|byte| *byte == b'\n');
    let mut author = None;
    // An empty line ends the header.
    for line in lines.by_ref().take_while(|line| !line.is_empty()) {
        author = author.or_else(|| line.strip_prefix(b"author "));
    }
    let author = beginning(author.unwrap_or_default());
    let (name, rest) = author.split_once(" <").unwrap_or((&author, ""));
    let seconds = rest.rsplit_once('>').and_then(|(_, date)| date.split_whitespace().next()?.parse().ok());
    let subject = lines.map(beginning).find(|line| !line.trim().is_empty()).unwrap_or_default();
    Commit {
        subject: sanitize(&quoted(subject.trim()), SUBJECT),
        author: sanitize(&quoted(name.trim()), AUTHOR),
        date: seconds.and_then(|seconds| Timestamp::from_second(seconds).ok()),
        sources: Vec::new(),
    }
}

/// The beginning of a line as text.
fn beginning(line: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(&line[..line.len().min(LINE_MAX)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::fixture::Fixture;

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

    #[test]
    fn no_more_than_the_beginning_of_a_line_is_looked_at() {
        let blank = " ".repeat(LINE_MAX);
        let commit = read(format!("author Ada <a@b> 5 +0000\n\n{blank}far\nnear\n").as_bytes());
        assert_eq!(commit.subject, "near");
        let commit = read(format!("author {} <a@b> 5 +0000\n\nx", "Ada ".repeat(LINE_MAX)).as_bytes());
        assert_eq!((commit.author.chars().count(), commit.date), (AUTHOR, None));
    }

    #[test]
    fn a_commit_with_megabytes_of_message_or_parents_is_described() {
        let fixture = Fixture::new();
        let tree = fixture.tree(&[]);
        let parents = format!("parent {tree}\n").repeat(40_000);
        let cut = "x".repeat(SUBJECT - 1) + "…";
        for (parents, message, subject) in [
            ("", format!("Raise the quota\n\n{}", "why\n".repeat(1 << 19)), "Raise the quota"),
            ("", "x".repeat(2 << 20), &*cut),
            (&*parents, "Merge\n".to_owned(), "Merge"),
        ] {
            let who = "Ada <ada@example.org> 5 +0000";
            let text = format!("tree {tree}\n{parents}author {who}\ncommitter {who}\n\n{message}");
            assert!(text.len() > 1 << 20);
            let id = fixture.write(ObjectType::Commit, text.as_bytes());
            let commit = fixture.objects().describe(Revision(id)).unwrap();
            assert_eq!((&*commit.subject, &*commit.author), (subject, "Ada"));
            assert_eq!(commit.date, Timestamp::from_second(5).ok());
        }
    }
}
