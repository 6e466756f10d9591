//! The file that lists the sources of a root (`--sources`): reading, syntax and limits. Nothing is asked of a remote.

mod keys;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde_yaml::Value;

use self::keys::Keys;
use crate::fsx;
use crate::human::one_line;
use crate::mirror::{self, UniqueBaseNames};
use crate::revision::{BadRef, Ref};
use crate::secret;

/// The maximum number of sources of a root.
const MAX_SOURCES: usize = 64;

/// The maximum size of the file, more than any real one has. It is read at every attempt.
const MAX_BYTES: u64 = 1 << 20;

/// The maximum bytes of one path component, as in file systems (`NAME_MAX`).
const MAX_NAME: usize = 255;

/// The maximum bytes of `repo`, `ref`, `path` and `to` of all sources together. The size of the file does not limit
/// them, because a YAML alias repeats a value. They are in the message of every composed commit, whose size is limited.
const MAX_NAMED: usize = 512 << 10;

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
pub struct SourcesFile {
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
    /// The ref that is followed, as written.
    pub ref_text: String,
    /// The same, parsed.
    pub reference: Ref,
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
        let Self { name, repo, ref_text, reference: _, path, to, sparse, optional, credentials } = self;
        f.debug_struct("SourceSpec")
            .field("name", name)
            .field("repo", &secret::redact(repo))
            .field("ref_text", ref_text)
            .field("path", path)
            .field("to", to)
            .field("sparse", sparse)
            .field("optional", optional)
            .field("credentials", credentials)
            .finish()
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
    pub(super) fn unread(path: &Path, why: &str) -> Self {
        Self { path: path.to_owned(), why: format!("cannot read it: {why}") }
    }
}

/// The valid keys of the file.
const KEYS: &[&str] = &["version", "on-failure", "unique-base-names", "sources", "end"];
const SOURCE_KEYS: &[&str] = &["name", "repo", "ref", "path", "to", "sparse", "optional", "credentials"];
const CREDENTIALS_KEYS: &[&str] = &["username", "password-file", "ssh-key-file", "ssh-known-hosts-file"];

/// Why a file is refused that may have been cut short.
const NO_END: &str = "its last line must be `end: true`, with a line break and nothing else: a file that was cut short \
                      would mean something else";

impl SourcesFile {
    /// Reads and checks the file. Blocking.
    pub fn read(path: &Path) -> Result<Self, BadFile> {
        let text = Self::text(path).map_err(|error| {
            let again = match error.kind() {
                io::ErrorKind::ResourceBusy => "; it is read again at the next attempt",
                _ => "",
            };
            BadFile::unread(path, &format!("{error}{again}"))
        })?;
        Self::of(path, &text)
    }

    /// Reads the text of the file. Blocking. Fails if two reads differ: somebody may be writing the file in place.
    pub fn text(path: &Path) -> io::Result<String> {
        read_twice(|| read_once(path))
    }

    /// Parses and checks the text of the file `path`.
    pub fn of(path: &Path, text: &str) -> Result<Self, BadFile> {
        Self::parse(text).map_err(|why| BadFile { path: path.to_owned(), why })
    }

    /// Parses and checks the text. An error says in one line what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        secret::register_urls(text); // so that no message shows a secret of the file
        check_last_line(text)?;
        let raw = keys::read(text)?;
        let raw = Keys::of(&raw, KEYS)?;
        check_version(&raw)?;
        if !raw.flag("end")? {
            return Err(NO_END.to_owned());
        }
        let unique = UniqueBaseNames::parse(globs(&raw)?);
        let unique = unique.map_err(|why| format!("unique-base-names: {why}"))?;
        Ok(Self { on_failure: on_failure(&raw)?, unique, sources: sources(&raw)? })
    }
}

/// Reads a file with `read`. Fails if two reads differ: somebody may be writing the file in place.
fn read_twice(mut read: impl FnMut() -> io::Result<String>) -> io::Result<String> {
    let text = read()?;
    if read()? != text {
        let why = "it changed while it was read, as if somebody is writing it";
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
    }
    Ok(text)
}

fn read_once(path: &Path) -> io::Result<String> {
    // Without O_NONBLOCK, opening a FIFO without a writer would block this thread, and with it all later reads.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    fsx::read_text(file, MAX_BYTES)
}

/// Checks that the text ends with the line `end: true`. Lines without content may follow it: a file that is truncated
/// within them still has the same meaning.
fn check_last_line(text: &str) -> Result<(), String> {
    let is_blank = |line: &&str| matches!(line.trim(), "" | "...") || line.trim_start().starts_with('#');
    let last = text.lines().rev().find(|line| !is_blank(line));
    if last.map(str::trim_end) != Some("end: true") || !text.ends_with('\n') {
        return Err(NO_END.to_owned());
    }
    Ok(())
}

fn check_version(raw: &Keys<'_>) -> Result<(), String> {
    match raw.get("version") {
        None => Err("add `version: 1` at its top".to_owned()),
        Some(Value::Number(version)) if version.as_u64() == Some(1) => Ok(()),
        Some(Value::Number(version)) if !version.is_f64() => {
            Err(format!("version {version} is not known: this treeswap reads version 1"))
        }
        Some(_) => Err("version: write 1, without quotes or decimals".to_owned()),
    }
}

fn sources(raw: &Keys<'_>) -> Result<Vec<SourceSpec>, String> {
    let listed = match raw.get("sources") {
        Some(Value::Sequence(list)) => list,
        Some(_) => return Err("sources: write a list, a line `- {name: …, repo: …}` each".to_owned()),
        None => return Err("add `sources:`, a list with a line `- {name: …, repo: …}` each".to_owned()),
    };
    if listed.is_empty() || listed.len() > MAX_SOURCES {
        return Err(format!("it lists {} sources; 1 to {MAX_SOURCES} make a root", listed.len()));
    }
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
    let bytes =
        |source: &SourceSpec| source.repo.len() + source.ref_text.len() + source.path.len() + source.to.len();
    if sources.iter().map(bytes).sum::<usize>() > MAX_NAMED {
        let limit = MAX_NAMED >> 10;
        return Err(format!("repo, ref, path and to of all sources together exceed {limit} KiB"));
    }
    Ok(sources)
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
        None | Some(Value::Sequence(_)) => raw.strings(KEY),
        Some(_) => Err(format!("{KEY}: write one glob, or a list of globs")),
    }
}

impl Credentials {
    fn read(value: &Value) -> Result<Self, String> {
        let keys = Keys::of(value, CREDENTIALS_KEYS)?;
        let file = |key| Ok::<_, String>(PathBuf::from(keys.string(key)?.unwrap_or_default()));
        let credentials = Self {
            username: keys.string("username")?.unwrap_or_default(),
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
        let keys = Keys::of(value, SOURCE_KEYS)?;
        let name = keys.string("name")?.ok_or("it has no name")?;
        let is_label = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || name.len() > 63 || !name.chars().all(is_label) {
            return Err("a name has 1 to 63 lower-case letters, digits and `-`".to_owned());
        }
        let repo = keys.string("repo")?.filter(|repo| !repo.is_empty()).ok_or("it has no repo")?;
        secret::register_remote(&repo);
        let ref_text = keys.string("ref")?.unwrap_or_else(|| "HEAD".to_owned());
        let reference: Result<Ref, BadRef> = ref_text.parse();
        let reference = reference.map_err(|error| format!("ref {ref_text:?}: {}", error.why()))?;
        let (path, to) = placement(&keys)?;
        let credentials = keys.get("credentials").map(Credentials::read).transpose();
        let credentials = credentials.map_err(|why| format!("credentials: {why}"))?.unwrap_or_default();
        let sparse = sparse(&keys)?;
        let optional = keys.flag("optional")?;
        Ok(Self { name, repo, ref_text, reference, path, to, sparse, optional, credentials })
    }
}

/// `path` and `to`.
fn placement(keys: &Keys<'_>) -> Result<(String, String), String> {
    let path = relative_path("path", &keys.string("path")?.unwrap_or_default())?;
    let to = keys.string("to")?.unwrap_or_default();
    // As in cp(1), it would say that a file is placed in this directory.
    if to.len() > 1 && to.ends_with('/') {
        let why = "`to` is the new name of what `path` names, not a directory to put it in";
        return Err(format!("to: remove the `/` at the end: {why}"));
    }
    let to = relative_path("to", &to)?;
    if to.split('/').any(|part| part.eq_ignore_ascii_case(".git") || part.starts_with("..")) {
        return Err("to: no part of it may be `.git` or begin with `..`".to_owned());
    }
    if to.chars().any(char::is_control) || to.split('/').any(|part| part.len() > MAX_NAME) {
        return Err(format!("to: no part of it may have a control character or more than {MAX_NAME} bytes"));
    }
    if to.split('/').count() > MAX_DEPTH || path.split('/').count() > MAX_DEPTH {
        return Err(format!("path and to have at most {MAX_DEPTH} parts"));
    }
    Ok((path, to))
}

fn sparse(keys: &Keys<'_>) -> Result<Vec<String>, String> {
    let sparse = keys.strings("sparse")?;
    if sparse.iter().map(String::len).sum::<usize>() > MAX_PATTERNS {
        return Err(format!("sparse: the patterns have more than {} KiB", MAX_PATTERNS >> 10));
    }
    if sparse.iter().any(|pattern| pattern.contains(['\n', '\0'])) {
        return Err("sparse: each entry must be one pattern, without line breaks".to_owned());
    }
    mirror::check_sparse(&sparse).map_err(|error| one_line(&error))?;
    Ok(sparse)
}

/// Checks a relative path without `.`, `..` or empty components, and removes a slash at its end. An empty path is the
/// top.
fn relative_path(key: &str, text: &str) -> Result<String, String> {
    let path = text.strip_suffix('/').unwrap_or(text);
    let is_name = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
    if path.is_empty() && text.is_empty() || path.split('/').all(is_name) {
        return Ok(path.to_owned());
    }
    Err(format!(
        "{key}: write a path below the top, as in `services/gateway`: no `/` in front, no `.` or `..`"
    ))
}
