//! Parses `.gitmodules`, which declares a tree's submodules. Pure, and safe for hostile files.
//!
//! The syntax is that of git's configuration (git-config(1), "Syntax"). Only declarations of submodules are evaluated;
//! nothing is included, expanded or run. Entries that git skips with a warning (a name that contains `..`) are errors
//! here: otherwise the submodule would be missing from the generation, and nobody reads warnings.

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

/// Parses a file. The submodules are sorted by path. The error is what is wrong with the file: it follows its name.
pub(super) fn read(raw: &[u8]) -> Result<Vec<Declared>, String> {
    let text = std::str::from_utf8(raw).map_err(|_| "it is not UTF-8")?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut sections: BTreeMap<String, Section> = BTreeMap::new();
    each_setting(text, |name, key, value| {
        if sections.len() == COUNT_MAX && !sections.contains_key(name) {
            return Err(format!("it declares more than {COUNT_MAX} submodules"));
        }
        let section = sections.entry(name.to_owned()).or_default();
        // As in git's configuration, the last of several values counts.
        match key {
            "path" => section.path = Some(value),
            "url" => section.url = Some(value),
            "update" => section.skipped = value == "none",
            _ => {}
        }
        Ok(())
    })?;
    let mut by_path: BTreeMap<String, Declared> = BTreeMap::new();
    for (name, section) in sections {
        // Without a path, no entry of the tree can belong to the section.
        let Some(path) = section.path else { continue };
        check_name(&name).map_err(|why| format!("submodule name {:?} {why}", excerpt(&name)))?;
        let path = path.strip_suffix('/').map_or(path.as_str(), |path| path).to_owned();
        check_path(&path)
            .map_err(|why| format!("path {:?} of submodule {:?} {why}", excerpt(&path), excerpt(&name)))?;
        let declared = Declared { name, path, url: section.url, skipped: section.skipped };
        if let Some(other) = by_path.get(&declared.path) {
            let [first, second] = [&other.name, &declared.name].map(|name| excerpt(name));
            let path = excerpt(&declared.path);
            return Err(format!("submodules {first:?} and {second:?} both have the path {path:?}"));
        }
        by_path.insert(declared.path.clone(), declared);
    }
    Ok(by_path.into_values().collect())
}

#[derive(Default)]
struct Section {
    path: Option<String>,
    url: Option<String>,
    skipped: bool,
}

fn check_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() {
        return Err("is empty");
    }
    if name.chars().any(char::is_control) {
        return Err("has control characters in it");
    }
    if name.starts_with('-') {
        return Err("begins with `-`");
    }
    if name.split(['/', '\\']).any(|part| part == "..") {
        return Err("has `..` in it");
    }
    Ok(())
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

/// Parses all settings in sections `[submodule "name"]`. Calls `take` with the name, the key in lower case, and the
/// value of each. Keeps none of them: a section may have any number of settings.
fn each_setting(
    text: &str,
    mut take: impl FnMut(&str, &str, String) -> Result<(), String>,
) -> Result<(), String> {
    let mut cursor = Cursor { rest: text, line: 1 };
    let mut within: Option<String> = None;
    loop {
        cursor.skip_blank();
        match cursor.peek() {
            None => return Ok(()),
            Some('#' | ';') => cursor.skip_line(),
            Some('[') => within = cursor.header()?,
            Some(_) => {
                let (key, value) = cursor.setting()?;
                match &within {
                    Some(name) if name.len() <= NAME_MAX => take(name, &key, value)?,
                    // A section without a path declares no submodule; its other settings would each copy the name.
                    Some(name) if key == "path" => {
                        return Err(format!("submodule name {:?} is too long", excerpt(name)));
                    }
                    _ => {}
                }
            }
        }
    }
}

struct Cursor<'a> {
    rest: &'a str,
    line: usize,
}

impl Cursor<'_> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.rest = &self.rest[next.len_utf8()..];
        if next == '\r' && self.peek() == Some('\n') {
            return self.next(); // CRLF is one line end
        }
        self.line += usize::from(next == '\n');
        Some(next)
    }

    fn skip_blank(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.next();
        }
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(' ' | '\t')) {
            self.next();
        }
    }

    fn skip_line(&mut self) {
        while self.next().is_some_and(|next| next != '\n') {}
    }

    fn wrong(&self) -> String {
        format!("line {} is not git's configuration syntax", self.line)
    }

    fn take_while(&mut self, accept: impl Fn(char) -> bool) -> String {
        let mut taken = String::new();
        while let Some(next) = self.peek().filter(|next| accept(*next)) {
            taken.push(next);
            self.next();
        }
        taken
    }

    /// Parses `[section]` or `[section "name"]`. Returns the name if the section is `submodule`.
    fn header(&mut self) -> Result<Option<String>, String> {
        self.next();
        let section = self.take_while(|c| c.is_ascii_alphanumeric() || c == '-' || c == '.');
        self.skip_space();
        let mut name = None;
        if self.peek() == Some('"') {
            self.next();
            let mut quoted = String::new();
            loop {
                match self.next() {
                    Some('"') => break,
                    // Unlike in a value, the escaped character is taken literally.
                    Some('\\') => match self.next() {
                        None | Some('\n') => return Err(self.wrong()),
                        Some(escaped) => quoted.push(escaped),
                    },
                    None | Some('\n') => return Err(self.wrong()),
                    Some(other) => quoted.push(other),
                }
            }
            name = Some(quoted);
        }
        if self.next() != Some(']') || section.is_empty() {
            return Err(self.wrong());
        }
        Ok(name.filter(|_| section.eq_ignore_ascii_case("submodule")))
    }

    /// Parses `key = value` or `key`, up to the end of the line.
    fn setting(&mut self) -> Result<(String, String), String> {
        if !self.peek().is_some_and(|first| first.is_ascii_alphabetic()) {
            return Err(self.wrong());
        }
        let key = self.take_while(|c| c.is_ascii_alphanumeric() || c == '-').to_ascii_lowercase();
        self.skip_space();
        match self.next() {
            Some('=') => Ok((key, self.value()?)),
            None | Some('\n') => Ok((key, "true".to_owned())), // a key without a value is a boolean
            Some('#' | ';') => {
                self.skip_line();
                Ok((key, "true".to_owned()))
            }
            Some(_) => Err(self.wrong()),
        }
    }

    fn value(&mut self) -> Result<String, String> {
        self.skip_space();
        let mut value = String::new();
        let mut quoted = false;
        // The length without trailing blanks, which are dropped unless quoted.
        let mut kept = 0;
        loop {
            match self.next() {
                None | Some('\n') if quoted => return Err(self.wrong()),
                None | Some('\n') => break,
                Some('"') => {
                    quoted = !quoted;
                    kept = value.len();
                    continue;
                }
                Some('#' | ';') if !quoted => {
                    self.skip_line();
                    break;
                }
                Some('\\') => match self.next() {
                    Some('\n') => continue, // the value continues on the next line
                    Some('n') => value.push('\n'),
                    Some('t') => value.push('\t'),
                    Some('b') => value.push('\u{8}'),
                    Some(same @ ('"' | '\\')) => value.push(same),
                    _ => return Err(self.wrong()),
                },
                Some(blank @ (' ' | '\t')) if !quoted => {
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
mod tests {
    use std::process::Command;

    use super::*;

    fn one(text: &str) -> Declared {
        let mut all = read(text.as_bytes()).unwrap();
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    #[test]
    fn what_git_writes_is_read() {
        let text = "[submodule \"lib/foo\"]\n\tpath = lib/foo\n\turl = ../foo.git\n\
                    [submodule \"a b\"]\n\tpath = sub dir\n\turl = https://example.com/b.git\n\tbranch = main\n";
        let all = read(text.as_bytes()).unwrap();
        let short: Vec<_> =
            all.iter().map(|d| (d.name.as_str(), d.path.as_str(), d.url.as_deref().unwrap())).collect();
        let expected =
            [("lib/foo", "lib/foo", "../foo.git"), ("a b", "sub dir", "https://example.com/b.git")];
        assert_eq!(short, expected);
    }

    #[test]
    fn the_last_setting_wins_and_update_none_is_seen() {
        let found =
            one("[submodule \"x\"]\npath=x\nurl=a\n[other]\nurl=b\n[Submodule \"x\"]\nURL=c\nupdate=none\n");
        assert_eq!((found.url.as_deref(), found.skipped), (Some("c"), true));
    }

    #[test]
    fn values_mean_what_they_mean_to_git() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config");
        for value in [
            "plain",
            "  spaced  out  ",
            "\"quoted  \"  ",
            "a\"b c\"d",
            "half # comment",
            "half;comment",
            "\"not # a comment\"",
            "back\\\\slash\\\"quote",
            "tab\\there",
            "goes\\\n  on",
            "",
            "\"\"",
            "x\r",
            "a = b",
        ] {
            let text = format!("[submodule \"x\"]\n\tpath = p\n\turl = {value}\n");
            std::fs::write(&file, &text).unwrap();
            let git = Command::new("git")
                .args(["config", "-z", "--file"])
                .arg(&file)
                .args(["--get", "submodule.x.url"])
                .env("GIT_CONFIG_NOSYSTEM", "1")
                .output()
                .unwrap();
            let theirs = String::from_utf8(git.stdout).unwrap();
            assert_eq!(one(&text).url.as_deref(), theirs.strip_suffix('\0'), "{value:?}");
        }
    }

    #[test]
    fn hostile_files_are_refused_by_name_and_reason() {
        let module = |name: &str, path: &str| format!("[submodule \"{name}\"]\npath = {path}\nurl = u\n");
        for (text, expected) in [
            (module("../../evil", "p"), "has `..`"),
            (module("a\\\\..\\\\b", "p"), "has `..`"),
            (module("-u", "p"), "begins with `-`"),
            (module("", "p"), "is empty"),
            (module(&"n".repeat(201), "p"), "too long"),
            (module("a\u{1}b", "p"), "control characters"),
            (module("a", "../p"), "`..`"),
            (module("a", "p/../../q"), "`..`"),
            (module("a", "/etc"), "is absolute"),
            (module("a", ".git/hooks"), "`.git`"),
            (module("a", "x/.GIT"), "`.git`"),
            (module("a", "-x"), "begins with `-`"),
            (module("a", "x//y"), "empty component"),
            (module("a", "\"x\\ny\""), "control characters"),
            (module("a", "\"x\r\""), "control characters"),
            (format!("{}{}", module("a", "p"), module("b", "p/")), "both have the path"),
            ("[submodule \"a\npath = p".to_owned(), "line 2"),
            ("[submodule \"a\"\npath = p".to_owned(), "line 2"),
            ("path = p\n=x".to_owned(), "line 2"),
            ("[submodule \"a\"]\npath = \"p\n".to_owned(), "line"),
            ("[submodule \"a\"]\npath = \\q\n".to_owned(), "line 2"),
        ] {
            let error = read(text.as_bytes()).expect_err(&text);
            assert!(error.contains(expected), "{text:?}: {error}");
        }
        assert_eq!(read(b"\xff"), Err("it is not UTF-8".to_owned()));
        let long = module(&"n".repeat(1_000), "p").replace("path = p\n", "");
        assert_eq!(read(long.as_bytes()), Ok(Vec::new()), "without a path, the name is of no submodule");
        let many: String = (0..=COUNT_MAX).map(|n| module(&n.to_string(), &n.to_string())).collect();
        assert_eq!(read(many.as_bytes()), Err("it declares more than 1000 submodules".to_owned()));
    }

    #[test]
    fn an_error_quotes_no_more_than_the_beginning() {
        let long = "\u{1}".repeat(500_000);
        let same = format!("path = {}\nurl = u\n", "p/".repeat(500_000) + "p");
        for text in [
            format!("[submodule \"{long}\"]\npath = p\n"),
            format!("[submodule \"a\"]\npath = {long}\n"),
            format!("[submodule \"a\"]\n{same}[submodule \"b\"]\n{same}"),
        ] {
            let error = read(text.as_bytes()).unwrap_err();
            assert!(error.len() < 3_000, "{} bytes", error.len());
        }
    }

    #[test]
    fn any_bytes_end_in_an_answer() {
        use proptest::prelude::*;
        let piece = prop::sample::select(vec![
            "[",
            "]",
            "\"",
            "submodule",
            " ",
            "=",
            "\n",
            "\\",
            "path",
            "url",
            "#",
            ";",
            "..",
            "/",
            "\r",
            "a",
        ]);
        let config = ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() };
        proptest::test_runner::TestRunner::new(config)
            .run(&prop::collection::vec(piece, 0..40), |pieces| {
                if let Ok(all) = read(pieces.concat().as_bytes()) {
                    for declared in all {
                        prop_assert!(!declared.path.starts_with('/') && !declared.path.contains(".."));
                    }
                }
                Ok(())
            })
            .unwrap();
    }
}
