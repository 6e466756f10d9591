//! Matches a pattern with a path or a name, as git does (gitignore(5), "PATTERN FORMAT"; git's wildmatch.c).
//!
//! Both may be written by authors of commits, so the time is bounded: it grows with the product of their lengths.
//!
//! Git before 2.52 deviates from gitignore(5) if there are two stars after other bytes of a component: it reads
//! `a**/b` as `a`, and after it `**/b`.

/// A pattern without `!` before it, and without the slash before and after it.
#[derive(Clone, Debug)]
pub(super) struct Glob {
    /// The bytes before the first wildcard.
    prefix: Vec<u8>,
    /// What follows: nothing, or a wildcard and the rest.
    tokens: Vec<Token>,
}

#[derive(Clone, Debug)]
enum Token {
    /// This byte.
    Byte(u8),
    /// `?`: a byte other than a slash.
    Any,
    /// `[...]`: a byte of a set, other than a slash.
    Set(Box<Set>),
    /// `*`: any number of bytes other than slashes.
    Star,
    /// `**/` as whole components: any number of directories.
    Dirs,
    /// `**` as the last component: all that is left.
    Rest,
}

impl Glob {
    /// Parses a pattern. The error says why git would never match it with anything.
    pub(super) fn parse(pattern: &[u8]) -> Result<Self, &'static str> {
        let mut tokens = Vec::new();
        let mut rest = pattern;
        let mut before = b'/'; // the byte before `rest`
        while let Some(byte) = take(&mut rest) {
            let token = match byte {
                b'\\' => Token::Byte(take(&mut rest).ok_or("its last backslash escapes nothing")?),
                b'?' => Token::Any,
                b'[' => Token::Set(Box::new(Set::parse(&mut rest)?)),
                b'*' => {
                    let more_stars = rest.iter().take_while(|byte| **byte == b'*').count();
                    rest = &rest[more_stars..];
                    match rest {
                        _ if more_stars == 0 || before != b'/' => Token::Star,
                        [] => Token::Rest,
                        [b'/', below @ ..] => {
                            rest = below;
                            Token::Dirs
                        }
                        // To git, the escaped slash makes it one directory or more.
                        [b'\\', b'/', below @ ..] => {
                            rest = below;
                            tokens.extend([Token::Star, Token::Byte(b'/')]);
                            Token::Dirs
                        }
                        _ => Token::Star,
                    }
                }
                byte => Token::Byte(byte),
            };
            tokens.push(token);
            before = pattern[pattern.len() - rest.len() - 1];
        }
        let prefix: Vec<u8> = tokens.iter().map_while(Token::byte).collect();
        tokens.drain(..prefix.len());
        Ok(Self { prefix, tokens })
    }

    /// The only text that it matches; `None` if it has wildcards.
    pub(super) fn literal(&self) -> Option<&[u8]> {
        self.tokens.is_empty().then_some(&self.prefix)
    }

    pub(super) fn matches(&self, text: &[u8]) -> bool {
        text.strip_prefix(&self.prefix[..]).is_some_and(|rest| self.run(rest, false))
    }

    /// Returns true if it matches a text that begins with `dir`, which ends with a slash. May be true if it does not.
    pub(super) fn may_match_below(&self, dir: &[u8]) -> bool {
        let rest = dir.strip_prefix(&self.prefix[..]);
        rest.map_or_else(|| self.prefix.starts_with(dir), |rest| self.run(rest, true))
    }

    /// Matches the text after the prefix. Returns `at_end` if it ends before the pattern.
    fn run(&self, text: &[u8], at_end: bool) -> bool {
        let (mut token, mut at) = (0, 0);
        // Of the last `*` and the last `**/`: the token after it, and where in the text that was tried. No other way to
        // match what is before them helps: it leaves less of the text to the same tokens.
        let (mut star, mut dirs) = (None, None);
        loop {
            match (self.tokens.get(token), text.get(at)) {
                (Some(Token::Rest), _) | (None, None) => return true,
                (Some(Token::Star), _) => {
                    token += 1;
                    star = Some((token, at));
                    continue;
                }
                (Some(Token::Dirs), _) => {
                    token += 1;
                    (star, dirs) = (None, Some((token, at)));
                    continue;
                }
                (Some(_), None) => return at_end,
                (Some(single), Some(byte)) if single.is_for(*byte) => {
                    token += 1;
                    at += 1;
                    continue;
                }
                _ => {}
            }
            if let Some((after, from)) = star.filter(|(_, from)| text[*from] != b'/') {
                (token, at) = (after, from + 1);
                star = Some((token, at));
            } else if let Some((after, from)) = dirs {
                let Some(length) = text[from..].iter().position(|byte| *byte == b'/') else { return false };
                (token, at) = (after, from + length + 1);
                (star, dirs) = (None, Some((token, at)));
            } else {
                return false;
            }
        }
    }
}

impl Token {
    fn byte(&self) -> Option<u8> {
        if let Self::Byte(byte) = self { Some(*byte) } else { None }
    }

    /// Returns true if it stands for a single byte, and for this one.
    fn is_for(&self, byte: u8) -> bool {
        match self {
            Self::Byte(this) => *this == byte,
            Self::Any => byte != b'/',
            Self::Set(set) => byte != b'/' && set.contains(byte),
            Self::Star | Self::Dirs | Self::Rest => false,
        }
    }
}

/// A set of bytes.
#[derive(Clone, Debug, Default)]
struct Set([u128; 2]);

impl Set {
    /// Parses what follows a `[`, up to its `]`.
    fn parse(rest: &mut &[u8]) -> Result<Self, &'static str> {
        const OPEN: &str = "one of its brackets is not closed";
        let mut set = Self::default();
        let is_negated = matches!(rest, [b'!' | b'^', ..]);
        *rest = &rest[usize::from(is_negated)..];
        let mut first = None; // what a range may begin with
        let mut left_at_close = usize::MAX; // what was left at the `]` that was last looked for
        let mut byte = take(rest).ok_or(OPEN)?; // a `]` here is itself a member
        loop {
            // Looked for once for all `[:` before it, or a line of them would take the square of its length.
            let name = if byte == b'[' && rest.starts_with(b":") && rest.len() < left_at_close {
                let close = rest.iter().position(|byte| *byte == b']').ok_or(OPEN)?;
                left_at_close = rest.len() - close;
                rest[1..close].strip_suffix(b":")
            } else {
                None
            };
            first = if let Some(name) = name {
                let is_member = class(name).ok_or("it names a class that git does not have")?;
                *rest = &rest[name.len() + ":::".len()..];
                (0..=u8::MAX).filter(is_member).for_each(|byte| set.insert(byte));
                None
            } else if byte == b'-'
                && !rest.starts_with(b"]")
                && let Some(first) = first
            {
                let last = take(rest).and_then(|byte| unescaped(byte, rest)).ok_or(OPEN)?;
                (first..=last).for_each(|byte| set.insert(byte));
                None
            } else {
                let byte = unescaped(byte, rest).ok_or(OPEN)?;
                set.insert(byte);
                Some(byte)
            };
            byte = take(rest).ok_or(OPEN)?;
            if byte == b']' {
                return Ok(if is_negated { Self(set.0.map(|half| !half)) } else { set });
            }
        }
    }

    fn insert(&mut self, byte: u8) {
        self.0[usize::from(byte >> 7)] |= 1 << (byte & 0x7f);
    }

    fn contains(&self, byte: u8) -> bool {
        self.0[usize::from(byte >> 7)] >> (byte & 0x7f) & 1 == 1
    }
}

fn take(rest: &mut &[u8]) -> Option<u8> {
    let (byte, after) = rest.split_first()?;
    *rest = after;
    Some(*byte)
}

/// The byte, or if it is a backslash the one that follows.
fn unescaped(byte: u8, rest: &mut &[u8]) -> Option<u8> {
    if byte == b'\\' { take(rest) } else { Some(byte) }
}

/// What is in a class, as git has it (its ctype.c), whatever the locale.
fn class(name: &[u8]) -> Option<fn(&u8) -> bool> {
    let is_member: fn(&u8) -> bool = match name {
        b"alnum" => u8::is_ascii_alphanumeric,
        b"alpha" => u8::is_ascii_alphabetic,
        b"blank" => |byte| matches!(byte, b' ' | b'\t'),
        b"cntrl" => u8::is_ascii_control,
        b"digit" => u8::is_ascii_digit,
        b"graph" => u8::is_ascii_graphic,
        b"lower" => u8::is_ascii_lowercase,
        b"print" => |byte| matches!(byte, b' '..=b'~'),
        b"punct" => u8::is_ascii_punctuation,
        b"space" => |byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'),
        b"upper" => u8::is_ascii_uppercase,
        b"xdigit" => u8::is_ascii_hexdigit,
        _ => return None,
    };
    Some(is_member)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, text: &str) -> bool {
        Glob::parse(pattern.as_bytes()).unwrap().matches(text.as_bytes())
    }

    /// What git's own wildmatch answers.
    #[test]
    fn patterns_match_what_they_match_in_git() {
        for (pattern, matching, others) in [
            ("", "", "a /"),
            ("a", "a", "b aa a/a"),
            ("a/b", "a/b", "a b a/bb a/b/b"),
            ("\\a\\*\\\\", "a*\\", "a aa\\ a*"),
            ("{a,b}", "{a,b}", "a b"),
            ("?", "a b [", "/ ab"),
            ("a?c", "abc a?c", "ac a/c abbc"),
            ("*", "a ab", "a/b /"),
            ("a*", "a ab", "b a/b"),
            ("*a*b", "ab aab xaxab", "a/b ba aba"),
            ("*/b", "a/b", "b a/a/b"),
            ("***", "a ab a/b", ""),
            ("a***b", "ab axb", "a/b"),
            ("**", "a a/b a/b/c", ""),
            ("**/b", "b a/b a/a/b", "ab a/ab b/a"),
            ("**/a/b", "a/b a/a/b a/b/a/b", "b a/b/a"),
            ("**/a*/**/b", "a/b ab/b x/ac/y/z/b", "b x/b"),
            ("**/*a", "a b/ba", "b a/b"),
            ("a/**", "a/b a/b/c", "a b/a"),
            ("a/**/b", "a/b a/a/b a/c/b/b", "ab a/ab b"),
            ("a/**/**/b", "a/b a/a/b", "ab"),
            ("**\\/b", "a/b a/a/b", "b"),
            ("a/**\\/b", "a/a/b", "a/b"),
            ("a\\/**", "a/b", "a"),
            ("a**/b", "a/b ab/b", "ab a/a/b ab/a/b"),
            ("**a", "a ba", "b/a"),
            ("a/**b", "a/b a/ab", "a/a/b"),
            ("**//", "", "a a/b"),
        ] {
            for text in matching.split_whitespace() {
                assert!(matches(pattern, text), "{pattern} {text}");
            }
            for text in others.split_whitespace() {
                assert!(!matches(pattern, text), "{pattern} {text}");
            }
        }
    }

    #[test]
    fn sets_have_the_members_that_they_have_in_git() {
        let members = |pattern: &str| -> String {
            (' '..='~').filter(|char| matches(pattern, &char.to_string())).collect()
        };
        for (pattern, expected) in [
            ("[abc]", "abc"),
            ("[a-c]", "abc"),
            ("[a-b-c]", "-abc"),
            ("[a-]", "-a"),
            ("[-a]", "-a"),
            ("[c-a]", "c"),
            ("[--/]", "-."),
            ("[a\\-c]", "-ac"),
            ("[a-\\c]", "abc"),
            ("[\\]]", "]"),
            ("[]]", "]"),
            ("[]-a]", "]^_`a"),
            ("[[]", "["),
            ("[{,}]", ",{}"),
            ("[a/]", "a"),
            ("[!b-~]", " !\"#$%&'()*+,-.0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`a"),
            ("[^!-~]", " "),
            ("[!]-~]", " !\"#$%&'()*+,-.0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\"),
            ("[a!^]", "!^a"),
            ("[[:digit:]]", "0123456789"),
            ("[[:digit:]-a]", "-0123456789a"),
            ("[x[:digit:]y]", "0123456789xy"),
            ("[[:xdigit:]]", "0123456789ABCDEFabcdef"),
            ("[[:upper:]]", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
            ("[[:lower:]]", "abcdefghijklmnopqrstuvwxyz"),
            ("[[:alpha:]]", "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"),
            ("[![:alnum:][:punct:]]", " "),
            ("[[:punct:]]", "!\"#$%&'()*+,-.:;<=>?@[\\]^_`{|}~"),
            ("[![:graph:]]", " "),
            ("[![:print:]]", ""),
            ("[[:blank:]]", " "),
            ("[[:space:]]", " "),
            ("[[:cntrl:]]", ""),
            ("[[:x]", ":[x"),
            ("[[:]", ":["),
            ("[[:a[:b]", ":[ab"),
            ("[[:a\\][:digit:]]", "0123456789:[]a"),
        ] {
            assert_eq!(members(pattern), expected, "{pattern}");
        }
        for (pattern, expected) in
            [("[[:space:]]", "\t\n\r "), ("[[:blank:]]", "\t "), ("[[:cntrl:]]", "\t\n\u{b}\u{c}\r\u{7f}")]
        {
            let found: String = "\t\n\u{b}\u{c}\r \u{7f}"
                .chars()
                .filter(|char| matches(pattern, &char.to_string()))
                .collect();
            assert_eq!(found, expected, "{pattern}");
        }
        // Each byte of a character by itself.
        assert!(matches("??", "é") && matches("[é][é]", "é") && !matches("[é]", "é") && !matches("?", "é"));
    }

    #[test]
    fn a_pattern_that_git_never_matches_is_an_error() {
        for (pattern, word) in [
            ("[", "bracket"),
            ("[]", "bracket"),
            ("[!", "bracket"),
            ("[!]", "bracket"),
            ("a[b", "bracket"),
            ("[a-", "bracket"),
            ("[a-\\", "bracket"),
            ("[a\\]", "bracket"),
            ("[[:alpha:]", "bracket"),
            ("[[:beta:]]", "class"),
            ("[[:ALPHA:]]", "class"),
            ("[[::]]", "class"),
            ("\\", "backslash"),
            ("a\\\\\\", "backslash"),
        ] {
            let why = Glob::parse(pattern.as_bytes()).unwrap_err();
            assert!(why.contains(word), "{pattern} {why}");
        }
    }

    #[test]
    fn a_pattern_may_match_below_what_its_beginning_matches() {
        let may = |pattern: &str, dir: &str| {
            Glob::parse(pattern.as_bytes()).unwrap().may_match_below(dir.as_bytes())
        };
        for (pattern, dir, expected) in [
            ("a/*/c", "a/", true),
            ("a/*/c", "b/", false),
            ("a/*/c", "a/b/", true),
            ("a/*/c", "a/b/c/", false),
            ("ab/*", "a/", false),
            ("a/b/*", "a/", true),
            ("*", "a/", false),
            ("*/b", "a/", true),
            ("*b/c", "ab/", true),
            ("*b/c", "ba/", false),
            ("a/**", "a/b/c/", true),
            ("a/**/x", "a/b/c/", true),
            ("a/**/x", "b/", false),
            ("a?/[xy]/c", "ab/y/", true),
            ("a?/[xy]/c", "ab/z/", false),
        ] {
            assert_eq!(may(pattern, dir), expected, "{pattern} {dir}");
        }
    }

    /// A matcher that goes back to each star would need longer than a life for any of these.
    #[test]
    fn the_time_is_bounded() {
        for (pattern, text) in [
            ("*a".repeat(100) + "*b", "a".repeat(4_000)),
            ("**/a/".repeat(100) + "b", "a/".repeat(2_000) + "a"),
            ("**/*a*a/".repeat(50) + "b", "aaaaaaa/".repeat(500) + "a"),
            ("*/".repeat(1_000) + "**/b", "a/".repeat(2_000) + "a"),
            ("[".to_owned() + &"[:".repeat(500_000) + "x]b", "a".to_owned()),
        ] {
            assert!(!matches(&pattern, &text), "{}", &pattern[..10]);
        }
    }
}
