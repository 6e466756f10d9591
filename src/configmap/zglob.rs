//! Prow's glob dialect: what `Match` of go-zglob v0.0.2 answers, which Prow pins.
//!
//! It differs from ordinary globs: without any `*` a pattern is compared as a string; `**/` may be anywhere, and a
//! `**` that no `/` follows is a `*`; `?` and brackets are literal; braces do not nest, and what is inside is literal.

use regex::bytes::{Regex, RegexBuilder};

/// A pattern, read once.
#[derive(Clone, Debug)]
pub(super) enum Zglob {
    /// Without `*`: the pattern as it was written.
    Whole(Vec<u8>),
    /// Everything else.
    Parts {
        /// Bytes before the first component with a `*`; no path as short as that matches.
        root: usize,
        /// What to match, left to right, anchored at both ends.
        parts: Vec<Part>,
        /// The same, compiled.
        regex: Regex,
    },
}

/// A piece of a pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// These bytes.
    Literal(String),
    /// Anything without a `/`.
    Star,
    /// Nothing, or anything without a newline that ends in `/`.
    Deep,
    /// One of these.
    OneOf(Vec<String>),
}

impl Zglob {
    /// Reads a pattern. `variable` looks up the variable that a component `$NAME` names.
    ///
    /// # Errors
    /// It is so long that its compiled form has over 10 MiB.
    pub(super) fn new(
        pattern: &str,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, regex::Error> {
        let mut mask = String::new();
        let mut root = None;
        for (at, component) in pattern.split('/').enumerate() {
            if root.is_none() && component.contains('*') {
                root = Some(if mask.is_empty() { ".".to_owned() } else { mask.clone() });
            }
            mask = join(&mask, &expanded(at, component, variable));
            if at == 0 && mask.is_empty() {
                mask.push('/');
            }
        }
        let Some(root) = root else { return Ok(Self::Whole(pattern.as_bytes().to_vec())) };
        let parts = parts(&clean(&mask));
        Ok(Self::Parts { root: clean(&root).len(), regex: regex(&parts)?, parts })
    }

    /// Whether a path matches, whole.
    pub(super) fn matches(&self, path: &[u8]) -> bool {
        match self {
            Self::Whole(text) => text == path,
            Self::Parts { root, parts, regex } => {
                // Of the many patterns that begin alike, most end otherwise.
                let ends =
                    !matches!(parts.last(), Some(Part::Literal(end)) if !path.ends_with(end.as_bytes()));
                ends && path != b"." && path.len() > *root && regex.is_match(path)
            }
        }
    }

    /// What every path that matches begins with.
    pub(super) fn prefix(&self) -> &[u8] {
        match self {
            Self::Whole(text) => text,
            Self::Parts { parts, .. } => match parts.first() {
                Some(Part::Literal(text)) => text.as_bytes(),
                _ => b"",
            },
        }
    }
}

/// What a component means: the home directory, a variable, or itself.
fn expanded(at: usize, component: &str, variable: &dyn Fn(&str) -> Option<String>) -> String {
    let component = match component {
        "~" if at == 0 => variable("HOME").unwrap_or_default(),
        other => other.to_owned(),
    };
    let Some(name) = component.strip_prefix('$') else { return component };
    let bare = name.strip_prefix('(').and_then(|name| name.strip_suffix(')')).unwrap_or(name);
    let mut letters = bare.chars();
    let is_name = letters.next().is_some_and(|c| c.is_ascii_alphabetic())
        && bare.len() > 1
        && letters.all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !is_name {
        return component;
    }
    // In parentheses it is looked up with them, and so never found: as in the original.
    let value = variable(name).unwrap_or_default();
    value.trim_matches(['(', ')']).trim_matches('"').to_owned()
}

/// Go's `path.Join` of two elements.
fn join(a: &str, b: &str) -> String {
    match (a, b) {
        ("", "") => String::new(),
        ("", one) | (one, "") => clean(one),
        (a, b) => clean(&format!("{a}/{b}")),
    }
}

/// Go's `path.Clean`.
fn clean(path: &str) -> String {
    let rooted = path.starts_with('/');
    let mut kept: Vec<&str> = Vec::new();
    for component in path.split('/') {
        match component {
            "" | "." => {}
            ".." if kept.last().is_some_and(|last| *last != "..") => drop(kept.pop()),
            ".." if rooted => {}
            other => kept.push(other),
        }
    }
    match (rooted, kept.is_empty()) {
        (true, _) => format!("/{}", kept.join("/")),
        (false, true) => ".".to_owned(),
        (false, false) => kept.join("/"),
    }
}

/// Cuts a cleaned pattern into its parts.
fn parts(mask: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut rest = mask;
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("**/") {
            parts.push(Part::Deep);
            rest = after;
        } else if c == '*' {
            parts.push(Part::Star);
            rest = &rest[1..];
        } else if c == '{' {
            let (inner, close) = match rest.find('}') {
                Some(close) => (&rest[1..close], Some(close)),
                None => (&rest[1..], None),
            };
            let one_of = || inner.split(',').map(str::to_owned).collect();
            match (inner.is_empty(), close) {
                (false, Some(close)) => {
                    parts.push(Part::OneOf(one_of()));
                    rest = &rest[close + 1..];
                }
                // Unclosed: the alternatives, and then their text once more.
                (false, None) => {
                    parts.push(Part::OneOf(one_of()));
                    rest = inner;
                }
                (true, Some(close)) => {
                    literal(&mut parts, "}");
                    rest = &rest[close + 1..];
                }
                (true, None) => {
                    literal(&mut parts, "{");
                    rest = inner;
                }
            }
        } else {
            literal(&mut parts, &rest[..c.len_utf8()]);
            rest = &rest[c.len_utf8()..];
        }
    }
    if matches!(parts.last(), Some(Part::Literal(text)) if text.ends_with('/')) {
        parts.push(Part::Star);
    }
    parts
}

fn literal(parts: &mut Vec<Part>, text: &str) {
    match parts.last_mut() {
        Some(Part::Literal(last)) => last.push_str(text),
        _ => parts.push(Part::Literal(text.to_owned())),
    }
}

/// What the parts match, whole; the time it takes is linear in the path's length.
fn regex(parts: &[Part]) -> Result<Regex, regex::Error> {
    let mut text = String::from(r"\A");
    for part in parts {
        match part {
            Part::Literal(literal) => text.push_str(&regex::escape(literal)),
            Part::Star => text.push_str("[^/]*"),
            Part::Deep => text.push_str("(?:[^\n]*/)?"),
            Part::OneOf(alternatives) => {
                let alternatives: Vec<String> = alternatives.iter().map(|text| regex::escape(text)).collect();
                text.push_str(&format!("(?:{})", alternatives.join("|")));
            }
        }
    }
    text.push_str(r"\z");
    // Bytes: a path need not be UTF-8.
    RegexBuilder::new(&text).unicode(false).build()
}
