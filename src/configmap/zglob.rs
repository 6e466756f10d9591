//! Prow's glob dialect. Matches exactly what `Match` of go-zglob v0.0.2 matches, the version that Prow pins.
//!
//! It differs from ordinary globs. A pattern without any `*` is compared as a string. `**/` may occur anywhere, and a
//! `**` without a `/` after it is the same as `*`. `?` and brackets are literal. Braces do not nest, and their content
//! is literal.

/// A parsed pattern.
#[derive(Clone, Debug)]
pub(super) enum Zglob {
    /// Without `*`: the pattern as it was written.
    Whole(Vec<u8>),
    /// A pattern with a `*`.
    Parts {
        /// Length of the pattern up to the first component with a `*`; 1 if that is the first one. Only longer paths
        /// match.
        root: usize,
        /// The parts, left to right. Together they have to match the whole path.
        parts: Vec<Part>,
    },
}

/// A piece of a pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// These bytes.
    Literal(Vec<u8>),
    /// `*`: any text without a `/`.
    Star,
    /// `**/`: nothing, or any text without a newline that ends in `/`.
    Deep,
    /// `{a,b}`: one of these texts.
    OneOf(Vec<Vec<u8>>),
}

impl Zglob {
    /// Parses a pattern. `variable` looks up an environment variable, for a component `$NAME` and for `~` (`HOME`).
    /// `None` if the pattern has more than `most` bytes with the variables' values in it.
    pub(super) fn new(pattern: &str, most: usize, variable: &dyn Fn(&str) -> Option<String>) -> Option<Self> {
        if !pattern.contains('*') {
            return Some(Self::Whole(pattern.as_bytes().to_vec()));
        }
        let mut mask = String::new();
        let mut root = None;
        for (at, component) in pattern.split('/').enumerate() {
            if root.is_none() && component.contains('*') {
                root = Some(clean(&mask).len()); // of an empty one: that of `.`
            }
            mask = join(&mask, &expand(at, component, variable));
            if at == 0 && mask.is_empty() {
                mask.push('/');
            }
            if mask.len() > most {
                return None;
            }
        }
        root.map(|root| Self::Parts { root, parts: parts(&clean(&mask)) })
    }

    /// Returns true if the whole path matches.
    pub(super) fn matches(&self, path: &[u8]) -> bool {
        match self {
            Self::Whole(text) => text == path,
            Self::Parts { root, parts } => path != b"." && path.len() > *root && match_parts(parts, path),
        }
    }

    /// The literal text that every matching path begins with.
    pub(super) fn prefix(&self) -> &[u8] {
        match self {
            Self::Whole(text) => text,
            Self::Parts { parts, .. } => match parts.first() {
                Some(Part::Literal(text)) => text,
                _ => b"",
            },
        }
    }

    /// Literal texts such that every matching path begins with one of them. More specific than [`Self::prefix`] if
    /// braces follow the literal beginning.
    pub(super) fn prefixes(&self) -> Vec<Vec<u8>> {
        let prefix = self.prefix();
        let Self::Parts { parts, .. } = self else { return vec![prefix.to_vec()] };
        match &parts[usize::from(!prefix.is_empty())..] {
            [Part::OneOf(texts), ..] => texts.iter().map(|text| [prefix, text].concat()).collect(),
            _ => vec![prefix.to_vec()],
        }
    }
}

/// Expands a component that is `~` (only the first one of a pattern) or `$NAME`; returns any other one unchanged.
fn expand(at: usize, component: &str, variable: &dyn Fn(&str) -> Option<String>) -> String {
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
    // go-zglob looks up `$(NAME)` with the parentheses, so it never finds the variable. This does the same.
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

/// Splits a cleaned pattern into its parts.
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
            let one_of = || inner.split(',').map(|text| text.as_bytes().to_vec()).collect();
            match (inner.is_empty(), close) {
                (false, Some(close)) => {
                    parts.push(Part::OneOf(one_of()));
                    rest = &rest[close + 1..];
                }
                // go-zglob reads an unclosed brace as the alternatives followed by their text.
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
    if matches!(parts.last(), Some(Part::Literal(text)) if text.ends_with(b"/")) {
        parts.push(Part::Star);
    }
    parts
}

fn literal(parts: &mut Vec<Part>, text: &str) {
    match parts.last_mut() {
        Some(Part::Literal(last)) => last.extend_from_slice(text.as_bytes()),
        _ => parts.push(Part::Literal(text.as_bytes().to_vec())),
    }
}

/// Returns true if the parts match the whole path. First strips the parts at both ends that can match in only one way;
/// for most patterns nothing remains.
fn match_parts(mut parts: &[Part], mut path: &[u8]) -> bool {
    while let [before @ .., Part::Literal(text)] = parts {
        let Some(rest) = path.strip_suffix(text.as_slice()) else { return false };
        (parts, path) = (before, rest);
    }
    loop {
        let (text, after) = match parts {
            [] => return path.is_empty(),
            [Part::Star] => return !path.contains(&b'/'),
            [Part::Deep, Part::Star] => {
                let directory = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                return !path[..directory].contains(&b'\n');
            }
            [Part::Literal(text), after @ ..] => (text, after),
            [Part::OneOf(texts), after @ ..] => {
                let mut ways = texts.iter().filter(|text| path.starts_with(text));
                let (Some(text), None) = (ways.next(), ways.next()) else { break };
                (text, after)
            }
            _ => break,
        };
        let Some(rest) = path.strip_prefix(text.as_slice()) else { return false };
        (parts, path) = (after, rest);
    }
    match_ambiguous(parts, path)
}

/// Matches by tracking the set of all reachable positions in the path, so that no pattern takes more time than its
/// length times the path's length.
fn match_ambiguous(parts: &[Part], path: &[u8]) -> bool {
    let mut at = vec![false; path.len() + 1]; // `at[n]`: the parts so far can match the first `n` bytes
    let mut next = at.clone();
    at[0] = true;
    for part in parts {
        next.fill(false);
        let reached = (0..=path.len()).filter(|&start| at[start]);
        match part {
            Part::Literal(text) => {
                for start in reached.filter(|&start| path[start..].starts_with(text)) {
                    next[start + text.len()] = true;
                }
            }
            Part::OneOf(texts) => {
                for start in reached {
                    for text in texts.iter().filter(|text| path[start..].starts_with(text)) {
                        next[start + text.len()] = true;
                    }
                }
            }
            Part::Star => {
                let mut is_open = false;
                for end in 0..=path.len() {
                    is_open = at[end] || (is_open && path[end - 1] != b'/');
                    next[end] = is_open;
                }
            }
            Part::Deep => {
                let mut is_open = false;
                for end in 0..=path.len() {
                    is_open = is_open && path[end - 1] != b'\n';
                    next[end] = at[end] || (is_open && path[end - 1] == b'/');
                    is_open = is_open || at[end];
                }
            }
        }
        if !next.contains(&true) {
            return false;
        }
        std::mem::swap(&mut at, &mut next);
    }
    at[path.len()]
}
