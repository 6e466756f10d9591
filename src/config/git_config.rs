//! Settings of git, which git-sync's users give by `--git-config`, `--git-config-add` and git's own variables. `table`
//! lists the settings that have an effect. For each other setting the log has a line that names it and what to give
//! instead, without its value: the value of `http.extraHeader`, for example, is often a password. Pure.

mod ssh_command;
mod table;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use url::Url;

use super::error::Error;
pub(super) use ssh_command::{SshCommand, ssh_command};
use table::{Setting, Use};

use crate::mirror::InsteadOf;
use crate::mirror::wire::{ByUrl, Closeness, Connection, ExtraHeader, Proxy, Scope};
use crate::secret::{self, Secret};

/// One setting of git: a dotted key and its value.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) value: String,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The value may be a header with a token, or a URL with a password.
        f.debug_struct("Entry").field("key", &secret::redact(&self.key)).finish_non_exhaustive()
    }
}

/// Parses git-sync's list of `KEY:VALUE` pairs, separated by commas. A key is quoted, or ends at the first colon; a
/// value is quoted, or ends at the first comma that is not escaped. Quoted text and values have the escapes `\n`,
/// `\t`, `\"`, `\,` and `\\`.
pub(super) fn parse(text: &str) -> Result<Vec<Entry>, String> {
    let mut entries = Vec::new();
    let mut rest = text;
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

/// Splits after the closing quote: the unescaped text before it, and the rest.
fn quoted_text(text: &str) -> Result<(String, &str), String> {
    scan(text, '"')?.ok_or_else(|| "a quote is not closed".to_owned())
}

/// Splits before the first unescaped comma, or at the end: the unescaped text, and the rest, comma included.
fn plain_text(text: &str) -> Result<(String, &str), String> {
    // As in git-sync, the first character is taken literally, even if it is a comma or a backslash.
    let first = text.chars().next().map_or(0, char::len_utf8);
    let (head, tail) = text.split_at(first);
    Ok(match scan(tail, ',')? {
        Some((value, after)) => (format!("{head}{value}"), &tail[tail.len() - after.len() - 1..]),
        None => (format!("{head}{}", unescaped(tail)?), ""),
    })
}

/// Splits at the first unescaped `end`: the unescaped text before it, and the rest after it. `None` if there is no
/// `end`.
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

/// The effect of all settings on how the remote is reached.
#[derive(Debug, Default)]
pub(super) struct Effect {
    /// Extra request headers, in order; an empty `http.extraHeader` removes those before it.
    pub(super) headers: Vec<ExtraHeader>,
    /// `http.sslVerify=false`: server certificates are not verified.
    pub(super) unverified: bool,
    /// `http.sslCAInfo`: a file with certificate authorities to trust.
    pub(super) ca_file: Option<PathBuf>,
    /// `http.cookieFile`: a file with cookies to send.
    pub(super) cookie_file: Option<PathBuf>,
    /// `http.proxy`.
    pub(super) proxy: Proxy,
    /// The settings that decide about connections, for other remotes, such as a submodule's.
    about_connections: Vec<Entry>,
    /// `protocol.file.allow=always`: submodules may be repositories of this machine.
    pub(super) local_submodules: bool,
    /// The remote's URL after `url.<base>.insteadOf`.
    pub(super) remote: String,
    /// The same for other remotes, such as a submodule's.
    pub(super) instead_of: InsteadOf,
    /// Settings without effect, by their key in lower case.
    unused: BTreeMap<String, Unused>,
}

/// A setting without effect.
#[derive(Debug)]
struct Unused {
    /// The key, with secrets replaced.
    key: String,
    /// Its entry in the table, or why a setting of the table has no effect.
    reason: Result<Use, &'static str>,
}

impl Effect {
    /// One line for each setting without effect. With `by_git` (`--git`), git itself lists refs and fetches, and
    /// settings that it then obeys are left out.
    pub(super) fn warnings(&self, by_git: bool) -> impl Iterator<Item = String> {
        self.unused.values().filter_map(move |Unused { key, reason }| {
            let why = reason.map_or_else(Some, |entry| table::replacement(entry, by_git))?;
            Some(format!("git's {key} has no effect here: {why}"))
        })
    }

    /// What the settings say about connections to any remote. `ca_file` is from a flag, which precedes the settings.
    pub(super) fn by_url(&self, ca_file: Option<PathBuf>) -> ByUrl {
        let entries = self.about_connections.clone();
        ByUrl::new(move |remote| {
            // Does not fail: `apply` has parsed the same values.
            let found = effect_on(&entries, remote.to_owned()).unwrap_or_default();
            let ca_file = ca_file.clone().or(found.ca_file);
            Connection { ca_file, unverified: found.unverified, proxy: found.proxy }
        })
    }

    fn unused(&mut self, key: &str, reason: Result<Use, &'static str>) {
        let unused = Unused { key: shown(key), reason };
        self.unused.entry(key.to_ascii_lowercase()).or_insert(unused);
    }
}

/// Computes the effect of the settings on a remote. As in git, of several entries of one setting the one whose key
/// matches the remote's URL most closely wins, and the later one of two that match equally.
pub(super) fn apply(entries: &[Entry], remote: &str) -> Result<Effect, Error> {
    let instead_of = InsteadOf::new(entries.iter().filter_map(rewriting));
    let mut effect = effect_on(entries, instead_of.rewritten(remote))?;
    effect.instead_of = instead_of;
    effect.about_connections = entries.iter().filter(|entry| is_about_connections(entry)).cloned().collect();
    Ok(effect)
}

/// Returns true for those settings that [`Connection`] is made of.
fn is_about_connections(entry: &Entry) -> bool {
    let Ok((section, below, name)) = split(&entry.key) else { return false };
    let found = table::of(&section, below, &name);
    matches!(found, Use::Applied(Setting::SslVerify | Setting::SslCaInfo | Setting::Proxy, _))
}

/// The files that the settings name, for any remote, each with its key.
pub(super) fn files(entries: &[Entry]) -> Vec<(String, PathBuf)> {
    let file = |Entry { key, value }: &Entry| {
        let (section, below, name) = split(key).ok()?;
        let found = table::of(&section, below, &name);
        let is_file = matches!(found, Use::Applied(Setting::SslCaInfo | Setting::CookieFile, _));
        is_file.then(|| Some((shown(key), super::values::path(value)?)))?
    };
    entries.iter().filter_map(file).collect()
}

/// The effect on a remote, whose URL is used as it is.
fn effect_on(entries: &[Entry], remote: String) -> Result<Effect, Error> {
    let mut effect = Effect { remote, ..Effect::default() };
    let url = Url::parse(&effect.remote).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    let mut closest: BTreeMap<(String, String), Closeness> = BTreeMap::new();
    for Entry { key, value } in entries {
        register_secrets(key, value);
        let (section, below, name) = split(key)?;
        let entry = table::of(&section, below, &name);
        let Use::Applied(setting, _) = entry else {
            effect.unused(key, Ok(entry));
            continue;
        };
        let scope = below.filter(|_| section == "http").map(Scope::parse);
        if setting == Setting::ExtraHeader {
            let scope = match (&url, scope) {
                (_, Some(scope)) => scope
                    .ok_or_else(|| invalid(key, "the URL in the key is invalid"))?
                    .without_user(url.as_ref()),
                // git sends it to every host; we send it only to the remote's.
                (url, None) => url.as_ref().map(Scope::origin),
            };
            effect.headers.extend(header(key, value, scope)?);
            continue;
        }
        if scope == Some(None) {
            effect.unused(key, Err("the URL in it is invalid"));
            continue;
        }
        if setting == Setting::InsteadOf && below.is_none() {
            effect.unused(key, Err("it is url.BASE.insteadOf"));
            continue;
        }
        if setting == Setting::SslVerify {
            truth(key, value)?; // also for the URLs of other remotes
        }
        let closeness = match (scope.flatten(), below) {
            (Some(scope), _) => url.as_ref().and_then(|url| scope.closeness(url)),
            (None, Some(_)) if setting == Setting::Allow => Some((1, 0, false)), // protocol.file.allow
            (None, _) => Some(Closeness::default()),
        };
        let before = closest.entry((section.clone(), name.clone())).or_default();
        let Some(close) = closeness.filter(|close| *close >= *before) else { continue };
        *before = close;
        match setting {
            Setting::SslVerify => effect.unverified = !truth(key, value)?,
            Setting::SslCaInfo => effect.ca_file = super::values::path(value),
            Setting::CookieFile => effect.cookie_file = super::values::path(value),
            Setting::Proxy => {
                effect.proxy = match value.as_str() {
                    "" => Proxy::None,
                    text => Proxy::To(Secret::holder(text)), // its credential is registered already, its host no secret
                };
            }
            Setting::Allow => effect.local_submodules = value == "always",
            Setting::InsteadOf | Setting::ExtraHeader => {} // handled by `apply`, and above
        }
    }
    Ok(effect)
}

/// Registers what may be secret in a setting, so that no output shows it: credentials in URLs, header values, the words
/// of a `credential.helper` shell command, and the password in a `core.sshCommand`.
fn register_secrets(key: &str, value: &str) {
    secret::register_urls(key);
    secret::register_urls(value);
    if !key.contains("://") {
        key.split('.').for_each(secret::register_name);
    }
    let key = key.to_ascii_lowercase();
    if key.ends_with("extraheader") {
        secret::register_header(value.split_once(':').map_or(value, |(_, value)| value.trim()));
    } else if key.starts_with("credential.") && value.starts_with('!') {
        value.split(['=', ' ', '"', '\'', ';', '\n']).for_each(secret::register);
    } else if key == "core.sshcommand" {
        secret::register_ssh_command(value);
    } else if key.ends_with(".proxy") {
        secret::register_proxy(value);
    }
}

/// Splits a key into section, subsection and name. Section and name are case-insensitive and returned in lower case;
/// the subsection is returned as it is.
fn split(key: &str) -> Result<(String, Option<&str>, String), Error> {
    let parts = key.split_once('.').filter(|(section, rest)| !section.is_empty() && !rest.is_empty());
    let (section, rest) =
        parts.ok_or_else(|| invalid(key, "a key of git has a section and a name: http.proxy"))?;
    let (below, name) = match rest.rsplit_once('.') {
        Some((below, name)) => (Some(below), name),
        None => (None, rest),
    };
    Ok((section.to_ascii_lowercase(), below, name.to_ascii_lowercase()))
}

/// Parses a boolean of git.
fn truth(key: &str, value: &str) -> Result<bool, Error> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" | "" => Ok(false),
        _ => Err(invalid(key, "must be true or false")),
    }
}

/// Parses `Name: value`. An empty value removes the headers before it. The value is validated even if there is no
/// `scope`, which is when the remote is not reached by http(s) and the header is never sent.
fn header(key: &str, value: &str, scope: Option<Scope>) -> Result<Option<ExtraHeader>, Error> {
    if value.is_empty() {
        return Ok(scope.map(ExtraHeader::none));
    }
    let (name, value) = value.split_once(':').ok_or_else(|| invalid(key, "a header is NAME: VALUE"))?;
    let Some(scope) = scope else { return Ok(None) };
    let header = ExtraHeader::new(scope, name.trim(), value.trim());
    header.map(Some).ok_or_else(|| invalid(key, "a header is NAME: VALUE"))
}

fn invalid(key: &str, why: &str) -> Error {
    Error::HiddenValue { name: format!("git's {}", shown(key)), why: why.to_owned() }
}

/// A key with secrets replaced: a URL in it may hold one, and so may a part that is not a valid name.
fn shown(key: &str) -> String {
    let name = |text: &str| if secret::is_name(text) { text.to_owned() } else { secret::REDACTED.to_owned() };
    let Some((section, rest)) = key.split_once('.') else { return name(key) };
    match rest.rsplit_once('.') {
        None => format!("{}.{}", name(section), name(rest)),
        Some((below, last)) => {
            let below = if below.contains("://") { secret::redact_path(below) } else { name(below) };
            format!("{}.{below}.{}", name(section), name(last))
        }
    }
}

/// What a `url.<base>.insteadOf` replaces, and by what; `None` for another setting.
fn rewriting(Entry { key, value }: &Entry) -> Option<(String, String)> {
    let (section, base, name) = split(key).ok()?;
    let base = base.filter(|_| section == "url" && name == "insteadof")?;
    Some((value.clone(), base.to_owned()))
}

/// Returns true for a `url.<base>.insteadOf`. The program of `--git` is not given one: the URLs that it gets are
/// rewritten already, and would be again.
pub(super) fn is_rewriting(entry: &Entry) -> bool {
    rewriting(entry).is_some()
}

#[cfg(test)]
mod tests;
