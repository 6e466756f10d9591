//! Settings of git, as git-sync's users give them: `--git-config`, `--git-config-add`, and the variables that git itself
//! reads. What is about reaching the remote is applied; what we have no use for is passed over; the rest is named, and
//! never its value: an `http.extraHeader` is a password as often as not. Pure.

use std::path::PathBuf;

use url::Url;

use super::error::Error;
use crate::mirror::wire::{ExtraHeader, Proxy};
use crate::secret::Secret;

/// One setting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) value: String,
}

/// Reads git-sync's list: `KEY:VALUE`, separated by commas. A key is quoted, or goes up to the first colon; a value is
/// quoted, or goes up to the first comma that is not escaped. `\n`, `\t`, `\"`, `\,` and `\\` are escapes in what is
/// quoted and in values.
pub(super) fn parse(text: &str) -> Result<Vec<Entry>, String> {
    let (mut entries, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let (key, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted_text(quoted)?,
            None => match rest.find(':') {
                Some(colon) => (rest[..colon].to_owned(), &rest[colon..]),
                None => return Err("a key needs a colon and a value behind it".to_owned()),
            },
        };
        let after = after.strip_prefix(':').ok_or("a key needs a colon behind it")?;
        if after.is_empty() {
            return Err("a key needs a value".to_owned());
        }
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted_text(quoted)?,
            None => plain_text(after)?,
        };
        rest = match after.strip_prefix(',') {
            Some(next) => next,
            None if after.is_empty() => "",
            None => return Err("after a quoted value there is a comma or nothing".to_owned()),
        };
        entries.push(Entry { key, value });
    }
    Ok(entries)
}

/// Up to the closing quote, and what follows it.
fn quoted_text(text: &str) -> Result<(String, &str), String> {
    scan(text, '"')?.ok_or_else(|| "a quote is not closed".to_owned())
}

/// Up to a comma, which stays, or to the end.
fn plain_text(text: &str) -> Result<(String, &str), String> {
    // As in git-sync the first character stands for itself.
    let first = text.chars().next().map_or(0, char::len_utf8);
    let (head, tail) = text.split_at(first);
    Ok(match scan(tail, ',')? {
        Some((value, after)) => (format!("{head}{value}"), &tail[tail.len() - after.len() - 1..]),
        None => (format!("{head}{}", unescaped(tail)?), ""),
    })
}

/// Up to a character that is not escaped, which is passed over; none if it never comes.
fn scan(text: &str, end: char) -> Result<Option<(String, &str)>, String> {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == end => return Ok(Some((unescaped(&text[..at])?, &text[at + c.len_utf8()..]))),
            _ => {}
        }
    }
    Ok(None)
}

fn unescaped(text: &str) -> Result<String, String> {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        plain.push(match c {
            '\\' => match rest.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some(c @ ('"' | ',' | '\\')) => c,
                _ => return Err("only \\n, \\t, \\\", \\, and \\\\ are escapes".to_owned()),
            },
            c => c,
        });
    }
    Ok(plain)
}

/// What the settings come to.
#[derive(Debug, Default)]
pub(super) struct Effect {
    /// Headers to send.
    pub(super) headers: Vec<ExtraHeader>,
    /// Whether a server's certificate is not to be checked.
    pub(super) unverified: bool,
    /// Authorities to trust.
    pub(super) ca_file: Option<PathBuf>,
    /// Cookies to send.
    pub(super) cookie_file: Option<PathBuf>,
    /// The way out.
    pub(super) proxy: Proxy,
    /// Submodules may come from this machine.
    pub(super) local_submodules: bool,
    /// The remote under the name that it is to be reached by.
    pub(super) remote: String,
    /// Keys that are git's and have no effect here.
    pub(super) unused: Vec<String>,
}

/// Sections that git needs and we don't: what they are about does not exist here, or is bounded by flags of ours.
const POINTLESS: [&str; 8] = ["safe", "credential", "gc", "core", "advice", "init", "user", "pack"];

/// Applies settings to the way to a remote. Later ones win.
pub(super) fn apply(entries: &[Entry], remote: &str) -> Result<Effect, Error> {
    let mut effect = Effect { remote: rewritten(entries, remote), ..Effect::default() };
    let url = Url::parse(&effect.remote).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    for Entry { key, value } in entries {
        let (section, below, name) = split(key)?;
        let concerns = match (&url, below) {
            (_, None) => true,
            (Some(url), Some(prefix)) => is_below(url, prefix),
            (None, Some(_)) => false,
        };
        match (section.as_str(), name.as_str()) {
            ("http", "extraheader") if value.is_empty() => effect.headers.clear(),
            ("http", "extraheader") => {
                let to = match (&url, below) {
                    (_, Some(prefix)) => {
                        Some(Url::parse(prefix).map_err(|_| wrong(key, "the URL in the key is none"))?)
                    }
                    // git sends it to every host; here to the one that is followed.
                    (Some(url), None) => Some(origin(url)),
                    (None, None) => None,
                };
                effect.headers.extend(header(key, value, to)?);
            }
            ("http", "sslverify") if concerns => effect.unverified = !truth(key, value)?,
            ("http", "sslcainfo") if concerns => effect.ca_file = super::values::path(value),
            ("http", "cookiefile") if concerns => effect.cookie_file = super::values::path(value),
            ("http", "proxy") if concerns => {
                effect.proxy = match value.as_str() {
                    "" => Proxy::None,
                    text => Proxy::To(Secret::new(text)),
                };
            }
            ("http", "sslverify" | "sslcainfo" | "cookiefile" | "proxy") => {}
            ("protocol", "allow") => {
                if below.is_none_or(|protocol| protocol == "file") {
                    effect.local_submodules = value == "always";
                }
            }
            ("url", "insteadof") => {}
            (section, _) if POINTLESS.contains(&section) => {}
            _ => effect.unused.push(key.clone()),
        }
    }
    effect.unused.sort();
    effect.unused.dedup();
    Ok(effect)
}

/// Section and name in lower case, and what stands between them, as it is.
fn split(key: &str) -> Result<(String, Option<&str>, String), Error> {
    let parts = key.split_once('.').filter(|(section, rest)| !section.is_empty() && !rest.is_empty());
    let (section, rest) =
        parts.ok_or_else(|| wrong(key, "a key of git has a section and a name: http.proxy"))?;
    let (below, name) = match rest.rsplit_once('.') {
        Some((below, name)) => (Some(below), name),
        None => (None, rest),
    };
    Ok((section.to_ascii_lowercase(), below, name.to_ascii_lowercase()))
}

/// git's booleans.
fn truth(key: &str, value: &str) -> Result<bool, Error> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" | "" => Ok(false),
        _ => Err(wrong(key, "it is either true or false")),
    }
}

/// `Name: value`, for what is at a URL or below it. It is judged even where it is sent nowhere.
fn header(key: &str, value: &str, to: Option<Url>) -> Result<Option<ExtraHeader>, Error> {
    let (name, value) = value.split_once(':').ok_or_else(|| wrong(key, "a header is NAME: VALUE"))?;
    let Some(url) = to else { return Ok(None) };
    let header = ExtraHeader::new(url, name.trim(), value.trim());
    header.map(Some).ok_or_else(|| wrong(key, "a header is NAME: VALUE"))
}

fn origin(url: &Url) -> Url {
    let mut origin = url.clone();
    origin.set_path("/");
    origin.set_query(None);
    origin
}

fn wrong(key: &str, why: &str) -> Error {
    Error::HiddenValue { name: format!("git's {key}"), why: why.to_owned() }
}

/// Whether a URL is the one given, or below it.
fn is_below(url: &Url, prefix: &str) -> bool {
    let Ok(given) = Url::parse(prefix) else { return false };
    let path = given.path().trim_end_matches('/');
    let rest = url.path().strip_prefix(path);
    given.origin() == url.origin() && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The remote after `url.<base>.insteadOf`: the longest beginning that fits is replaced, once.
fn rewritten(entries: &[Entry], remote: &str) -> String {
    let rules = entries.iter().filter_map(|Entry { key, value }| {
        let (section, base, name) = split(key).ok()?;
        let rest = remote.strip_prefix(value.as_str()).filter(|_| !value.is_empty())?;
        (section == "url" && name == "insteadof").then_some((value.len(), base?, rest))
    });
    match rules.max_by_key(|(length, ..)| *length) {
        Some((_, base, rest)) => format!("{base}{rest}"),
        None => remote.to_owned(),
    }
}

/// What `GIT_SSH_COMMAND` says besides the program, as far as it is understood.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct SshCommand {
    /// `-i`, `-o IdentityFile`.
    pub(super) keys: Vec<PathBuf>,
    /// `-o UserKnownHostsFile`.
    pub(super) known_hosts: Option<PathBuf>,
    /// `-o StrictHostKeyChecking=no`.
    pub(super) trusting: bool,
    /// What has no effect here.
    pub(super) unused: Vec<String>,
}

/// Reads the words of the variable; quotes are left to shells.
pub(super) fn ssh_command(text: &str) -> SshCommand {
    let mut found = SshCommand::default();
    let mut words = text.split_whitespace().skip(1);
    while let Some(word) = words.next() {
        let (flag, value) = match (word.get(..2), word.get(2..)) {
            (Some(flag @ ("-i" | "-o")), Some("")) => (flag, words.next().unwrap_or_default()),
            (Some(flag @ ("-i" | "-o")), Some(value)) => (flag, value),
            _ => {
                found.unused.push(word.to_owned());
                continue;
            }
        };
        let (name, setting) = match flag {
            "-i" => ("identityfile".to_owned(), value),
            _ => value
                .split_once('=')
                .map_or((value.to_owned(), ""), |(name, setting)| (name.to_ascii_lowercase(), setting)),
        };
        match name.as_str() {
            "identityfile" => found.keys.push(setting.into()),
            "userknownhostsfile" if setting != "/dev/null" => found.known_hosts = Some(setting.into()),
            "userknownhostsfile" | "identitiesonly" | "batchmode" | "loglevel" => {}
            "stricthostkeychecking" => found.trusting = matches!(setting, "no" | "off" | "accept-new"),
            _ => found.unused.push(word.to_owned()),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(text: &str) -> Result<Vec<(String, String)>, String> {
        parse(text).map(|all| all.into_iter().map(|entry| (entry.key, entry.value)).collect())
    }

    #[test]
    fn the_grammar_is_git_syncs() {
        let cases: &[(&str, &[(&str, &str)])] = &[
            ("", &[]),
            ("k:v", &[("k", "v")]),
            ("k:v,", &[("k", "v")]),
            ("a.b:1,c.d:2", &[("a.b", "1"), ("c.d", "2")]),
            ("k:v:w", &[("k", "v:w")]),
            ("k:v w\tx", &[("k", "v w\tx")]),
            (r"k:a\,b,l:c", &[("k", "a,b"), ("l", "c")]),
            (r#"k:a\nb\tc\"d\\e"#, &[("k", "a\nb\tc\"d\\e")]),
            (r#""k:1":"v,w",l:x"#, &[("k:1", "v,w"), ("l", "x")]),
            (r#""a\"b":"c\"d""#, &[("a\"b", "c\"d")]),
            ("http.https://h/.proxy:x", &[("http.https", "//h/.proxy:x")]),
            ("k:é,l:ü", &[("k", "é"), ("l", "ü")]),
        ];
        for (text, wanted) in cases {
            let wanted = wanted.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            assert_eq!(entries(text), Ok(wanted.collect()), "{text:?}");
        }
        for text in ["k", "k:", r"k:a\xb", r#""k:v"#, r#"k:"v"#, r#"k:"v"w"#, r#""k"v"#, "a:b,c", r"k:a\"] {
            assert!(entries(text).is_err(), "{text:?} was accepted: {:?}", entries(text));
        }
    }

    fn effect(pairs: &[(&str, &str)], remote: &str) -> Effect {
        let entry =
            |(key, value): &(&str, &str)| Entry { key: (*key).to_owned(), value: (*value).to_owned() };
        apply(&pairs.iter().map(entry).collect::<Vec<_>>(), remote).unwrap()
    }

    #[test]
    fn settings_about_the_remote_are_applied_and_others_named_without_their_values() {
        let remote = "https://git.example.com/team/x.git";
        let found = effect(
            &[
                ("http.extraHeader", "X-One: 1"),
                ("HTTP.ExtraHeader", ""),
                ("http.extraheader", "Authorization: Bearer s3cret"),
                ("http.https://other.example.com/.extraHeader", "X-Two: 2"),
                ("http.https://git.example.com/team.sslVerify", "no"),
                ("http.https://git.example.com/elsewhere.sslCAInfo", "/not/this"),
                ("http.sslCAInfo", "/ca.pem"),
                ("http.proxy", "http://proxy:3128"),
                ("http.cookieFile", "/cookies"),
                ("protocol.file.allow", "always"),
                ("safe.directory", "*"),
                ("gc.auto", "0"),
                ("lfs.url", "https://s3cret"),
                ("lfs.url", "again"),
            ],
            remote,
        );
        let origins: Vec<&str> = found.headers.iter().map(|header| header.url.as_str()).collect();
        assert_eq!(origins, ["https://git.example.com/", "https://other.example.com/"]);
        assert!(found.unverified && found.local_submodules && matches!(found.proxy, Proxy::To(_)));
        assert_eq!(found.ca_file, Some("/ca.pem".into()));
        assert_eq!(found.cookie_file, Some("/cookies".into()));
        assert_eq!(found.unused, ["lfs.url"]);
        assert!(!format!("{found:?}").contains("s3cret"), "{found:?}");
        assert!(effect(&[("http.extraHeader", "A: b")], "git@example.com:x").headers.is_empty());
    }

    #[test]
    fn the_longest_instead_of_wins() {
        let rules = [
            ("url.https://mirror/.insteadOf", "https://git.example.com/"),
            ("url.git@example.com:.insteadof", "https://git.example.com/team/"),
        ];
        assert_eq!(effect(&rules, "https://git.example.com/team/x").remote, "git@example.com:x");
        assert_eq!(effect(&rules, "https://git.example.com/x").remote, "https://mirror/x");
        assert_eq!(effect(&rules, "https://elsewhere/x").remote, "https://elsewhere/x");
    }

    #[test]
    fn what_is_no_setting_is_named_without_its_value() {
        for (key, value) in [
            ("nonsense", "s3cret"),
            ("http.sslVerify", "s3cret"),
            ("http.extraHeader", "s3cret"),
            (".x", "s3cret"),
        ] {
            let entry = Entry { key: key.to_owned(), value: value.to_owned() };
            let error = apply(&[entry], "https://h/x").unwrap_err().to_string();
            assert!(error.contains(key) && !error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn the_ssh_command_is_understood_as_far_as_keys_and_hosts_go() {
        let found = ssh_command(
            "ssh -i /a -o IdentityFile=/b -oStrictHostKeyChecking=no -o UserKnownHostsFile=/k -v -p 22",
        );
        let keys = vec![PathBuf::from("/a"), "/b".into()];
        let unused = vec!["-v".to_owned(), "-p".to_owned(), "22".to_owned()];
        assert_eq!(found, SshCommand { keys, known_hosts: Some("/k".into()), trusting: true, unused });
        assert_eq!(ssh_command("ssh"), SshCommand::default());
    }
}
