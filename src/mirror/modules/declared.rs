//! Parses `.gitmodules`, which declares a tree's submodules. Pure, and safe for hostile files.
//!
//! The syntax is that of git's configuration (git-config(1), "Syntax"). Only declarations of submodules are evaluated;
//! nothing is included, expanded or run. As git, it looks only at sections whose path is a submodule of the tree: what is
//! wrong with any other refuses nothing. A section of a submodule that git skips with a warning (its name contains `..`)
//! is an error here: otherwise the submodule would be missing from the generation, and nobody reads warnings.

use std::collections::BTreeMap;

use crate::mirror::error::excerpt;

/// The largest `.gitmodules` in bytes; a larger one is refused. A thousand submodules take some 200 KB.
pub(super) const FILE_MAX: u64 = 1 << 20;

/// The most submodules that a file may declare.
const COUNT_MAX: usize = 1_000;

/// The longest name in bytes. A name becomes the name of a directory.
const NAME_MAX: usize = 200;

/// A declared submodule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Declared {
    /// The name, from the section header.
    pub(super) name: String,
    /// The path in the tree, separated by `/`.
    pub(super) path: String,
    /// The URL, which may be relative. `None` is an error if the tree has a submodule at the path.
    pub(super) url: Option<String>,
    /// `update = none`: it is not checked out.
    pub(super) skipped: bool,
}

/// The declared submodules by path. The error is what is wrong with a declaration. It counts only if the tree has a
/// submodule at the path, and follows the file's name.
pub(super) type Declarations = BTreeMap<Vec<u8>, Result<Declared, String>>;

/// Parses a file. The error is what is wrong with the whole of it: it follows its name.
pub(super) fn read(raw: &[u8]) -> Result<Declarations, String> {
    let mut sections = sections(raw.strip_prefix(b"\xef\xbb\xbf").unwrap_or(raw))?;
    // Of several sections with one path git takes the last, of those that it does not ignore.
    sections.sort_by_key(|section| (!section.is_ignored_by_git(), section.path_at));
    let mut declared = BTreeMap::new();
    for section in sections {
        // Without a path, no entry of the tree can belong to the section.
        let Some(path) = &section.path else { continue };
        let path = path.strip_suffix(b"/").unwrap_or(path).to_owned();
        let one = section.declared(&path);
        declared.insert(path, one);
    }
    Ok(declared)
}

/// A section `[submodule "name"]`, which may be continued further below.
#[derive(Default)]
struct Section {
    name: Vec<u8>,
    path: Option<Vec<u8>>,
    /// The line of the path.
    path_at: usize,
    url: Option<Vec<u8>>,
    skipped: bool,
}

impl Section {
    /// Returns true if git acts as if the section, or its path, were not there.
    fn is_ignored_by_git(&self) -> bool {
        let is_ignored = |path: &[u8]| path.starts_with(b"-") || path.ends_with(b"/");
        self.name.is_empty() || climbs(&self.name) || self.path.as_deref().is_some_and(is_ignored)
    }

    /// Checks what is declared for `path`, which is the section's. The error is what is wrong with it.
    fn declared(&self, path: &[u8]) -> Result<Declared, String> {
        let name = checked(&self.name, check_name)
            .map_err(|why| format!("submodule name {:?} {why}", shown(&self.name)))?;
        let of = || format!("of submodule {:?}", excerpt(&name));
        let path =
            checked(path, check_path).map_err(|why| format!("path {:?} {} {why}", shown(path), of()))?;
        let url = self.url.as_deref().map(|url| checked(url, |_| Ok(())));
        let url = url.filter(|url| url.is_ok() || !self.skipped); // it is not fetched then
        let url = url.transpose().map_err(|why| format!("url {} {why}", of()))?;
        Ok(Declared { name, path, url, skipped: self.skipped })
    }
}

/// A text of the file if it is UTF-8 and `check` accepts it; otherwise the reason, in words that follow it.
fn checked(raw: &[u8], check: impl Fn(&str) -> Result<(), &'static str>) -> Result<String, &'static str> {
    let text = std::str::from_utf8(raw).map_err(|_| "is not UTF-8")?;
    check(text).map(|()| text.to_owned())
}

/// A text of the file, cut for a message.
fn shown(raw: &[u8]) -> String {
    excerpt(&String::from_utf8_lossy(raw))
}

fn check_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() {
        return Err("is empty");
    }
    if name.len() > NAME_MAX {
        return Err("is too long");
    }
    if name.chars().any(char::is_control) {
        return Err("has control characters in it");
    }
    if name.starts_with('-') {
        return Err("begins with `-`");
    }
    if climbs(name.as_bytes()) {
        return Err("has `..` in it");
    }
    Ok(())
}

/// Returns true if a name would lead out of a directory.
fn climbs(name: &[u8]) -> bool {
    name.split(|byte| matches!(byte, b'/' | b'\\')).any(|part| part == b"..")
}

fn check_path(path: &str) -> Result<(), &'static str> {
    if path.is_empty() {
        return Err("is empty");
    }
    if path.starts_with('/') {
        return Err("is absolute");
    }
    if path.starts_with('-') {
        return Err("begins with `-`");
    }
    if path.chars().any(char::is_control) {
        return Err("has control characters in it");
    }
    match path.split('/').find(|part| matches!(*part, "" | "." | "..") || part.eq_ignore_ascii_case(".git")) {
        Some(_) => Err("has an empty component, `.`, `..` or `.git` in it"),
        None => Ok(()),
    }
}

/// All sections of submodules that have a setting. As in git's configuration, the last of several values counts. Of a
/// section whose name is too long only the path is kept: it may be that of a submodule.
fn sections(text: &[u8]) -> Result<Vec<Section>, String> {
    let mut cursor = Cursor { rest: text, line: 1 };
    let mut all: Vec<Section> = Vec::new();
    let mut by_name: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    // The name of the section that the cursor is in, and its position in `all` once it has a setting.
    let mut within: Option<Vec<u8>> = None;
    let mut position = None;
    loop {
        cursor.skip_blank();
        match cursor.peek() {
            None => return Ok(all),
            Some(b'#' | b';') => cursor.skip_line(),
            Some(b'[') => (within, position) = (cursor.header()?, None),
            Some(_) => {
                let line = cursor.line;
                let (key, value) = cursor.setting()?;
                let Some(name) = &within else { continue };
                if name.len() > NAME_MAX && key != b"path" {
                    continue;
                }
                let at = match position.or_else(|| by_name.get(name).copied()) {
                    Some(at) => at,
                    None if all.len() == COUNT_MAX => {
                        return Err(format!("it declares more than {COUNT_MAX} submodules"));
                    }
                    None => {
                        by_name.insert(name.clone(), all.len());
                        all.push(Section { name: name.clone(), ..Section::default() });
                        all.len() - 1
                    }
                };
                position = Some(at);
                let section = &mut all[at];
                match &*key {
                    b"path" => (section.path, section.path_at) = (Some(value), line),
                    b"url" => section.url = Some(value),
                    b"update" => section.skipped = value == b"none",
                    _ => {}
                }
            }
        }
    }
}

struct Cursor<'a> {
    rest: &'a [u8],
    line: usize,
}

impl Cursor<'_> {
    fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    fn next(&mut self) -> Option<u8> {
        let (next, rest) = self.rest.split_first()?;
        self.rest = rest;
        if *next == b'\r' && self.peek() == Some(b'\n') {
            return self.next(); // CRLF is one line end
        }
        self.line += usize::from(*next == b'\n');
        Some(*next)
    }

    fn skip_blank(&mut self) {
        while self.peek().is_some_and(|next| next.is_ascii_whitespace()) {
            self.next();
        }
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t')) {
            self.next();
        }
    }

    fn skip_line(&mut self) {
        while self.next().is_some_and(|next| next != b'\n') {}
    }

    fn wrong(&self) -> String {
        format!("line {} is not git's configuration syntax", self.line)
    }

    fn take_while(&mut self, accept: impl Fn(u8) -> bool) -> Vec<u8> {
        let mut taken = Vec::new();
        while let Some(next) = self.peek().filter(|next| accept(*next)) {
            taken.push(next);
            self.next();
        }
        taken
    }

    /// Parses `[section]` or `[section "name"]`. Returns the name if the section is `submodule`. In git's old form,
    /// `[submodule.name]`, the name has lower case.
    fn header(&mut self) -> Result<Option<Vec<u8>>, String> {
        self.next();
        let mut full = self.take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'));
        full.make_ascii_lowercase();
        let is_empty = full.is_empty();
        self.skip_space();
        if self.peek() == Some(b'"') {
            self.next();
            full.push(b'.');
            loop {
                match self.next() {
                    Some(b'"') => break,
                    // Unlike in a value, the escaped character is taken literally.
                    Some(b'\\') => match self.next() {
                        None | Some(b'\n') => return Err(self.wrong()),
                        Some(escaped) => full.push(escaped),
                    },
                    None | Some(b'\n') => return Err(self.wrong()),
                    Some(other) => full.push(other),
                }
            }
        }
        if self.next() != Some(b']') || is_empty {
            return Err(self.wrong());
        }
        Ok(full.strip_prefix(b"submodule.").map(<[u8]>::to_owned))
    }

    /// Parses `key = value` or `key`, up to the end of the line. The key is returned in lower case.
    fn setting(&mut self) -> Result<(Vec<u8>, Vec<u8>), String> {
        if !self.peek().is_some_and(|first| first.is_ascii_alphabetic()) {
            return Err(self.wrong());
        }
        let mut key = self.take_while(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        key.make_ascii_lowercase();
        self.skip_space();
        match self.next() {
            Some(b'=') => Ok((key, self.value()?)),
            None | Some(b'\n') => Ok((key, b"true".to_vec())), // a key without a value is a boolean
            Some(b'#' | b';') => {
                self.skip_line();
                Ok((key, b"true".to_vec()))
            }
            Some(_) => Err(self.wrong()),
        }
    }

    fn value(&mut self) -> Result<Vec<u8>, String> {
        self.skip_space();
        let mut value = Vec::new();
        let mut quoted = false;
        // The length without trailing blanks, which are dropped unless quoted.
        let mut kept = 0;
        loop {
            match self.next() {
                None | Some(b'\n') if quoted => return Err(self.wrong()),
                None | Some(b'\n') => break,
                Some(b'"') => {
                    quoted = !quoted;
                    kept = value.len();
                    continue;
                }
                Some(b'#' | b';') if !quoted => {
                    self.skip_line();
                    break;
                }
                Some(b'\\') => match self.next() {
                    Some(b'\n') => continue, // the value continues on the next line
                    Some(b'n') => value.push(b'\n'),
                    Some(b't') => value.push(b'\t'),
                    Some(b'b') => value.push(8),
                    Some(same @ (b'"' | b'\\')) => value.push(same),
                    _ => return Err(self.wrong()),
                },
                Some(blank @ (b' ' | b'\t')) if !quoted => {
                    value.push(blank);
                    continue;
                }
                Some(other) => value.push(other),
            }
            kept = value.len();
        }
        value.truncate(kept);
        Ok(value)
    }
}

#[cfg(test)]
mod tests;
