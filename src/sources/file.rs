//! The file that lists the sources of a root (`--sources`): reading, syntax and limits. Nothing is asked of a remote.

mod keys;

use std::collections::BTreeSet;
use std::fmt;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use serde_yaml::Value;

use self::keys::Keys;
use crate::fsx;
use crate::human::one_line;
use crate::mirror::{self, UniqueBaseNames};
use crate::revision::Ref;
use crate::secret;

/// The maximum number of sources of a root.
const MOST: usize = 64;

/// The maximum size of the file, more than any real one has. It is read at every attempt.
const MAX_BYTES: u64 = 1 << 20;

/// The maximum bytes of one path component, as in file systems (`NAME_MAX`).
const MAX_NAME: usize = 255;

/// The maximum number of components of `path` and `to`.
const MAX_DEPTH: usize = 64;

/// The maximum bytes of one source's sparse patterns: they are stored with every set.
const MAX_PATTERNS: usize = 8 << 10;

/// What happens to the set when one of its sources fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnFailure {
    /// The source stays at its last published revision, and the others are updated.
    #[default]
    Keep,
    /// No source is updated.
    Hold,
}

/// The checked content of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct List {
    /// What happens to the set when a source fails.
    pub on_failure: OnFailure,
    /// The files of the root that must not share a base name.
    pub unique: UniqueBaseNames,
    /// The sources, in the file's order.
    pub sources: Vec<SourceSpec>,
}

/// One source, as listed.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SourceSpec {
    /// Its name in status, metrics and errors.
    pub name: String,
    /// Its repository, as in `--repo`. It may contain a secret.
    pub repo: String,
    /// The ref that is followed.
    pub ref_name: String,
    /// The directory or file of the repository that is placed; empty for the whole tree.
    pub path: String,
    /// Where it is placed; empty for the top of the root.
    pub to: String,
    /// git's sparse patterns, relative to `path`; empty for everything.
    pub sparse: Vec<String>,
    /// True if the first publication does not need it.
    pub optional: bool,
    /// Credentials for its repository, which replace those of the flags.
    pub credentials: Credentials,
}

impl fmt::Debug for SourceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, repo, ref_name, path, to, sparse, optional, credentials } = self;
        f.debug_struct("SourceSpec")
            .field("name", name)
            .field("repo", &secret::redact(repo))
            .field("ref_name", ref_name)
            .field("path", path)
            .field("to", to)
            .field("sparse", sparse)
            .field("optional", optional)
            .field("credentials", credentials)
            .finish()
    }
}

impl SourceSpec {
    /// The parsed ref.
    pub fn parsed_ref(&self) -> Ref {
        self.ref_name.parse().unwrap_or(Ref::Head) // it was checked when the file was parsed
    }
}

/// Credentials of one source. Empty values are not set.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Credentials {
    /// As in `--username`.
    pub username: String,
    /// As in `--password-file`.
    pub password_file: PathBuf,
    /// As in `--ssh-key-file`.
    pub ssh_key_file: PathBuf,
    /// As in `--ssh-known-hosts-file`.
    pub ssh_known_hosts_file: PathBuf,
}

/// The file cannot be read, or its content is invalid.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct BadFile {
    /// The file.
    pub path: PathBuf,
    /// What is wrong, in one line.
    pub why: String,
}

impl BadFile {
    /// What an operator can do.
    pub fn hints(&self) -> Vec<String> {
        let check = format!("`treeswap check --sources={} --root=DIR` validates it", self.path.display());
        vec!["fix the file, or its path".to_owned(), check]
    }

    /// The error for a file that could not be read.
    pub(super) fn unread(path: &std::path::Path, why: &str) -> Self {
        Self { path: path.to_owned(), why: format!("cannot read it: {why}") }
    }
}

/// The valid keys of the file.
const KEYS: &[&str] = &["version", "on-failure", "unique-base-names", "sources", "end"];
const OF_SOURCE: &[&str] = &["name", "repo", "ref", "path", "to", "sparse", "optional", "credentials"];
const OF_CREDENTIALS: &[&str] = &["username", "password-file", "ssh-key-file", "ssh-known-hosts-file"];

impl List {
    /// Reads and checks the file. Blocking. The file is read twice, and it is an error if the two reads differ:
    /// somebody may be writing it in place.
    pub fn read(path: &std::path::Path) -> Result<Self, BadFile> {
        let bad = |why: String| BadFile { path: path.to_owned(), why };
        let read = || -> std::io::Result<String> {
            // Without O_NONBLOCK, opening a FIFO without a writer would block this thread, and with it all later reads.
            let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
            let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
            if !file.metadata()?.is_file() {
                return Err(std::io::Error::other("it is not a regular file"));
            }
            fsx::read_text(file, MAX_BYTES)
        };
        let text = read().map_err(|error| bad(format!("cannot read it: {error}")))?;
        match read() {
            Ok(again) if again == text => Self::parse(&text).map_err(bad),
            _ => Err(bad("it changed while it was read; it is read again at the next attempt".to_owned())),
        }
    }

    /// Parses and checks the text. An error says in one line what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        const END: &str = "its last line must be `end: true`, with a line break and nothing else: a file that was cut \
                           short would mean something else";
        secret::register_urls(text); // so that no message shows a secret of the file
        // Lines without content may follow `end: true`: a file that is truncated within them still has the same
        // meaning.
        let is_blank = |line: &&str| matches!(line.trim(), "" | "...") || line.trim_start().starts_with('#');
        let last = text.lines().rev().find(|line| !is_blank(line));
        if last.map(str::trim_end) != Some("end: true") || !text.ends_with('\n') {
            return Err(END.to_owned());
        }
        let raw = keys::read(text)?;
        let raw = Keys::of(&raw, KEYS)?;
        match raw.get("version").map(Value::as_u64) {
            None => return Err("add `version: 1` at its top".to_owned()),
            Some(Some(1)) => {}
            Some(version) => {
                let version = version.map_or_else(|| "that is not a number".to_owned(), |n| n.to_string());
                return Err(format!("version {version} is not known: this treeswap reads version 1"));
            }
        }
        if !raw.flag("end")? {
            return Err(END.to_owned());
        }
        let listed = match raw.get("sources") {
            Some(Value::Sequence(list)) => list,
            Some(_) => return Err("sources: write a list, a line `- {name: …, repo: …}` each".to_owned()),
            None => return Err("add `sources:`, a list with a line `- {name: …, repo: …}` each".to_owned()),
        };
        if listed.is_empty() || listed.len() > MOST {
            return Err(format!("it lists {} sources; 1 to {MOST} make a root", listed.len()));
        }
        let unique = UniqueBaseNames::parse(globs(&raw)?);
        let unique = unique.map_err(|why| format!("unique-base-names: {why}"))?;
        let mut names = BTreeSet::new();
        let mut sources = Vec::new();
        for (place, source) in listed.iter().enumerate() {
            let called = match source.get("name").and_then(Value::as_str) {
                Some(name) => format!("source {name:?}"),
                None => format!("source {} of the list", place + 1),
            };
            let source = SourceSpec::read(source).map_err(|why| format!("{called}: {why}"))?;
            if !names.insert(source.name.clone()) {
                return Err(format!("two sources are called {:?}", source.name));
            }
            sources.push(source);
        }
        let bytes = |source: &SourceSpec| {
            source.repo.len() + source.ref_name.len() + source.path.len() + source.to.len()
        };
        if sources.iter().map(bytes).sum::<usize>() > MAX_BYTES as usize / 2 {
            return Err("its sources together are written in more than 512 KiB".to_owned());
        }
        Ok(Self { on_failure: on_failure(&raw)?, unique, sources })
    }
}

fn on_failure(raw: &Keys<'_>) -> Result<OnFailure, String> {
    match raw.get("on-failure").map(Value::as_str) {
        None => Ok(OnFailure::default()),
        Some(Some("keep")) => Ok(OnFailure::Keep),
        Some(Some("hold")) => Ok(OnFailure::Hold),
        Some(_) => Err("on-failure: write keep or hold".to_owned()),
    }
}

/// The globs of `unique-base-names`: one, or a list.
fn globs(raw: &Keys<'_>) -> Result<Vec<String>, String> {
    const KEY: &str = "unique-base-names";
    match raw.get(KEY) {
        Some(Value::String(glob)) => Ok(vec![glob.clone()]),
        None | Some(Value::Sequence(_)) => raw.texts(KEY),
        Some(_) => Err(format!("{KEY}: write one glob, or a list of globs")),
    }
}

impl Credentials {
    fn read(value: &Value) -> Result<Self, String> {
        let keys = Keys::of(value, OF_CREDENTIALS)?;
        let file = |key| Ok::<_, String>(PathBuf::from(keys.text(key)?.unwrap_or_default()));
        let credentials = Self {
            username: keys.text("username")?.unwrap_or_default(),
            password_file: file("password-file")?,
            ssh_key_file: file("ssh-key-file")?,
            ssh_known_hosts_file: file("ssh-known-hosts-file")?,
        };
        if credentials.username.is_empty() != credentials.password_file.as_os_str().is_empty() {
            return Err("username and password-file need each other".to_owned());
        }
        Ok(credentials)
    }

    /// The credential files that are set, each with its key.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, &PathBuf)> {
        let files = [
            ("password-file", &self.password_file),
            ("ssh-key-file", &self.ssh_key_file),
            ("ssh-known-hosts-file", &self.ssh_known_hosts_file),
        ];
        files.into_iter().filter(|(_, file)| !file.as_os_str().is_empty())
    }
}

impl SourceSpec {
    fn read(value: &Value) -> Result<Self, String> {
        let keys = Keys::of(value, OF_SOURCE)?;
        let name = keys.text("name")?.ok_or("it has no name")?;
        let is_label = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || name.len() > 63 || !name.chars().all(is_label) {
            return Err("a name has 1 to 63 lower-case letters, digits and `-`".to_owned());
        }
        let repo = keys.text("repo")?.filter(|repo| !repo.is_empty()).ok_or("it has no repo")?;
        secret::register_remote(&repo);
        let ref_name = keys.text("ref")?.unwrap_or_else(|| "HEAD".to_owned());
        let checked: Result<Ref, _> = ref_name.parse();
        checked.map_err(|error: crate::revision::BadRef| format!("ref {ref_name:?}: {}", error.why()))?;
        let path = below("path", &keys.text("path")?.unwrap_or_default())?;
        let to = keys.text("to")?.unwrap_or_default();
        if to.len() > 1 && to.ends_with('/') {
            let why = "a directory is placed there, and a file gets that name";
            return Err(format!("to: leave out the `/` at the end: {why}"));
        }
        let to = below("to", &to)?;
        if to.split('/').any(|part| part.eq_ignore_ascii_case(".git") || part.starts_with("..")) {
            return Err("to: no part of it may be `.git` or begin with `..`".to_owned());
        }
        if to.chars().any(char::is_control) || to.split('/').any(|part| part.len() > MAX_NAME) {
            return Err(format!(
                "to: no part of it may have a control character or more than {MAX_NAME} bytes"
            ));
        }
        if to.split('/').count() > MAX_DEPTH || path.split('/').count() > MAX_DEPTH {
            return Err(format!("path and to have at most {MAX_DEPTH} parts"));
        }
        let credentials = keys.get("credentials").map(Credentials::read).transpose();
        let credentials = credentials.map_err(|why| format!("credentials: {why}"))?.unwrap_or_default();
        let sparse = sparse(&keys)?;
        let optional = keys.flag("optional")?;
        Ok(Self { name, repo, ref_name, path, to, sparse, optional, credentials })
    }
}

fn sparse(keys: &Keys<'_>) -> Result<Vec<String>, String> {
    let sparse = keys.texts("sparse")?;
    if sparse.iter().map(String::len).sum::<usize>() > MAX_PATTERNS {
        return Err("sparse: the patterns have more than 8 KiB".to_owned());
    }
    if sparse.iter().any(|pattern| pattern.contains(['\n', '\0'])) {
        return Err("sparse: one pattern an entry".to_owned());
    }
    mirror::check_sparse(&sparse).map_err(|error| one_line(&error))?;
    Ok(sparse)
}

/// Checks a relative path without `.`, `..` or empty components, and removes a slash at its end. An empty path is the
/// top.
fn below(key: &str, text: &str) -> Result<String, String> {
    let path = text.strip_suffix('/').unwrap_or(text);
    let is_name = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
    if path.is_empty() && text.is_empty() || path.split('/').all(is_name) {
        return Ok(path.to_owned());
    }
    Err(format!(
        "{key}: write a path below the top, as in `services/gateway`: no `/` in front, no `.` or `..`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = r#"version: 1
on-failure: hold
unique-base-names: ["jobs/**/*.yaml", "steps/**"]
sources:
  - {name: jobs, repo: https://git.example.com/release.git, ref: main, path: ci-operator/jobs/, to: jobs}
  - {name: steps, repo: https://git.example.com/release.git, to: steps, sparse: ["/a/", "!b"]}
  - {name: team-a, repo: git@git.example.com:a.git, to: teams/a, optional: true, credentials: {ssh-key-file: /etc/a/key}}
end: true
"#;

    #[test]
    fn the_password_of_a_repository_is_not_in_the_debug_output() {
        let text = EXAMPLE.replace("https://git", "https://bob:s3cret@git");
        let shown = format!("{:?}", List::parse(&text).unwrap());
        assert!(shown.contains("git.example.com/release.git") && !shown.contains("s3cret"), "{shown}");
    }

    #[test]
    fn a_file_is_read_as_it_is_written() {
        let list = List::parse(EXAMPLE).unwrap();
        assert_eq!(list.on_failure, OnFailure::Hold);
        assert_eq!(list.unique.globs(), ["jobs/**/*.yaml", "steps/**"]);
        let jobs = &list.sources[0];
        assert_eq!(
            (jobs.path.as_str(), jobs.to.as_str(), jobs.ref_name.as_str()),
            ("ci-operator/jobs", "jobs", "main")
        );
        assert_eq!((list.sources[1].ref_name.as_str(), list.sources[1].sparse.len()), ("HEAD", 2));
        assert!(list.sources[2].optional && !list.sources[1].optional);
        assert_eq!(list.sources[2].credentials.ssh_key_file, PathBuf::from("/etc/a/key"));
    }

    #[test]
    fn a_byte_order_mark_before_the_text_is_nothing() {
        assert_eq!(List::parse(&format!("\u{feff}{EXAMPLE}")).unwrap().sources.len(), 3);
    }

    #[test]
    fn no_file_that_was_cut_short_is_read() {
        for end in 0..EXAMPLE.len() {
            assert!(List::parse(&EXAMPLE[..end]).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn a_file_that_is_too_large_is_said_to_be_wherever_the_limit_falls() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for start in ["# ", "#"] {
            // With one of the two the limit is inside a character.
            let text = format!("{start}{}", "ü".repeat(MAX_BYTES as usize / 2));
            std::fs::write(file.path(), text).unwrap();
            let error = List::read(file.path()).unwrap_err().to_string();
            assert!(error.ends_with("it has more than 1 MiB"), "{error}");
        }
    }

    #[test]
    fn below_the_last_line_may_be_what_means_nothing() {
        for more in ["", "\n", "# the end\n", "...\n", "\n# one\n\n# two\n...\n"] {
            let text = format!("{EXAMPLE}{more}");
            assert_eq!(List::parse(&text), List::parse(EXAMPLE), "{more:?}");
        }
        assert!(List::parse(&format!("{EXAMPLE}on-failure: keep\n")).is_err());
        assert!(List::parse(&format!("{EXAMPLE}# unfinished")).is_err());
    }

    #[test]
    fn what_is_wrong_is_said_with_the_sources_name() {
        let one = |source: &str| format!("version: 1\nsources:\n  - {{{source}}}\nend: true\n");
        let with = |top: &str| format!("version: 1\n{top}\nsources:\n  - {{name: a, repo: x}}\nend: true\n");
        for (text, words) in [
            (one("name: A, repo: x"), "source \"A\": a name has 1 to 63 lower-case letters"),
            (one("name: a, repo: ''"), "source \"a\": it has no repo"),
            (one("name: a, repo: x, ref: 'a b'"), "ref \"a b\": only a branch"),
            (one("name: a, repo: x, to: /y"), "to: write a path below the top"),
            (one("name: a, repo: x, to: a/../b"), "to: write a path below the top"),
            (one("name: a, repo: x, path: /"), "path: write a path below the top"),
            (one("name: a, repo: x, to: a/.GIT"), "no part of it may be `.git`"),
            (one("name: a, repo: x, to: ..data"), "begin with `..`"),
            (one("name: a, repo: x, to: \"a\\nb\""), "control character"),
            (one(&format!("name: a, repo: x, to: {}", "x".repeat(256))), "more than 255 bytes"),
            (
                one("name: a, repo: x, branch: y"),
                "source \"a\": there is no key \"branch\"; did you mean `ref`?",
            ),
            (one("name: a, repo: x, spare: []"), "there is no key \"spare\"; did you mean `sparse`?"),
            (one("name: a, repo: x, colour: y"), "there is no key \"colour\"; there are name, repo, ref, "),
            (one("name: a, repo: x, to: conf/"), "to: leave out the `/` at the end"),
            (one("name: a, repo: x, to: "), "to: there is nothing after it"),
            (one("name: a, repo: x, ref: 1.4"), "ref: put it in quotes"),
            (one("name: a, repo: x, optional: yes please"), "source \"a\": optional: write true or false"),
            (one("name: a, repo: x, sparse: y"), "source \"a\": sparse: write a list"),
            (one("name: a, repo: [x]"), "source \"a\": repo: write one text"),
            (one("repo: x"), "source 1 of the list: it has no name"),
            (one("name: a, repo: x, credentials: {user: y}"), "credentials: there is no key \"user\""),
            (one("name: a, repo: x, credentials: y"), "source \"a\": credentials: write `key: value`"),
            (
                one("name: a, repo: x}\n\t- {name: b, repo: y"),
                "line 4 is indented with a tab; YAML indents with",
            ),
            (one("name: a, repo: x}\n  - just words #{"), "source 2 of the list: write `key: value`"),
            (with("on-failure: stop"), "on-failure: write keep or hold"),
            (with("onfailure: hold"), "there is no key \"onfailure\"; did you mean `on-failure`?"),
            ("sources: []\nend: true\n".to_owned(), "add `version: 1` at its top"),
            ("version: 1\nend: true\n".to_owned(), "add `sources:`, a list"),
            ("version: 1\nsources: a\nend: true\n".to_owned(), "sources: write a list"),
            (
                "version: one\nsources: []\nend: true\n".to_owned(),
                "version that is not a number is not known",
            ),
            ("version: 1\nsources: []\nend: true # all\n".to_owned(), "with a line break and nothing else"),
            ("version: 1\nsources: []\nend: true".to_owned(), "with a line break and nothing else"),
            (one("name: a, repo: x, sparse: [ok, '[z-a]']"), "source \"a\": sparse pattern \"[z-a]\": "),
            (with("unique-base-names: 'a/[z-a]'"), "unique-base-names: \"a/[z-a]\": invalid range"),
            (with("unique-base-names: {a: b}"), "unique-base-names: write one glob, or a list of globs"),
            (with("unique-base-names: ['']"), "unique-base-names: a glob has 1 to 4096 bytes"),
            (
                one("name: a, repo: x, credentials: {username: y}"),
                "username and password-file need each other",
            ),
            (one("name: a, repo: x}\n  - {name: a, repo: y"), "two sources are called \"a\""),
            ("version: 2\nsources: []\nend: true\n".to_owned(), "version 2 is not known"),
            ("version: 1\nsources: []\nend: true\n".to_owned(), "it lists 0 sources; 1 to 64"),
            ("version: 1\nend: true\nsources: []\n".to_owned(), "its last line must be `end: true`"),
        ] {
            let why = List::parse(&text).unwrap_err();
            assert!(why.contains(words), "{text}: {why}");
        }
        let many: String = (0..65).map(|n| format!("  - {{name: s{n}, repo: x}}\n")).collect();
        let why = List::parse(&format!("version: 1\nsources:\n{many}end: true\n")).unwrap_err();
        assert!(why.contains("it lists 65 sources; 1 to 64"), "{why}");
    }
}
