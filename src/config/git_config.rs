//! Settings of git, as git-sync's users give them: `--git-config`, `--git-config-add`, and the variables that git
//! itself reads. `table` says which are applied; the others are named, each with what to give instead, and never with
//! its value: an `http.extraHeader` is a password as often as not. Pure.

mod table;

use std::collections::BTreeMap;
use std::path::PathBuf;

use url::Url;

use super::error::Error;
use table::{Setting, Use};

use crate::mirror::wire::{Closeness, ExtraHeader, Proxy, Scope};
use crate::secret::{self, Secret};

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

/// Up to a character that is not escaped, which is skipped; none if it never comes.
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
    /// Headers to send, and where those before are taken back.
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
    /// Settings without effect.
    unused: BTreeMap<String, Unused>,
}

/// A setting without effect.
#[derive(Debug)]
struct Unused {
    /// As people may see it.
    key: String,
    /// What becomes of it, or what is wrong with it.
    becomes: Result<Use, &'static str>,
}

impl Effect {
    /// A line for each setting without effect. `by_git`: git itself asks and fetches, with all settings.
    pub(super) fn remarks(&self, by_git: bool) -> impl Iterator<Item = String> {
        self.unused.values().filter_map(move |Unused { key, becomes }| {
            let why = becomes.map_or_else(Some, |becomes| table::instead(becomes, by_git))?;
            Some(format!("git's {key} has no effect here: {why}"))
        })
    }

    fn unused(&mut self, key: &str, becomes: Result<Use, &'static str>) {
        let unused = Unused { key: shown(key), becomes };
        self.unused.entry(key.to_ascii_lowercase()).or_insert(unused);
    }
}

/// Applies settings to the way to a remote. As in git the one whose key names the remote most closely wins, and the
/// later one of two that are alike.
pub(super) fn apply(entries: &[Entry], remote: &str) -> Result<Effect, Error> {
    let mut effect = Effect { remote: rewritten(entries, remote), ..Effect::default() };
    let url = Url::parse(&effect.remote).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    let mut closest: BTreeMap<(String, String), Closeness> = BTreeMap::new();
    for Entry { key, value } in entries {
        know(key, value);
        let (section, below, name) = split(key)?;
        let becomes = table::of(&section, below, &name);
        let Use::Applied(setting, _) = becomes else {
            effect.unused(key, Ok(becomes));
            continue;
        };
        let scope = below.filter(|_| section == "http").map(Scope::parse);
        if setting == Setting::ExtraHeader {
            let scope = match (&url, scope) {
                (_, Some(scope)) => {
                    scope.ok_or_else(|| wrong(key, "the URL in the key is none"))?.without_user(url.as_ref())
                }
                // git sends it to every host; here to the one that is followed.
                (url, None) => url.as_ref().map(Scope::origin),
            };
            effect.headers.extend(header(key, value, scope)?);
            continue;
        }
        if scope == Some(None) {
            effect.unused(key, Err("the URL in it is none"));
            continue;
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
                    text => Proxy::To(Secret::holder(text)), // a URL: its credential is known, its host no secret
                };
            }
            Setting::Allow => effect.local_submodules = value == "always",
            Setting::InsteadOf | Setting::ExtraHeader => {} // `remote`, and above
        }
    }
    Ok(effect)
}

/// Makes known what may be secret in a setting: what URLs hold, and what a program is to print as a credential.
fn know(key: &str, value: &str) {
    secret::know_urls(key);
    secret::know_urls(value);
    if !key.contains("://") {
        key.split('.').for_each(secret::know_name);
    }
    let key = key.to_ascii_lowercase();
    if key.ends_with("extraheader") {
        secret::know_header(value.split_once(':').map_or(value, |(_, value)| value.trim()));
    } else if key.starts_with("credential.") && value.starts_with('!') {
        value.split(['=', ' ', '"', '\'', ';', '\n']).for_each(secret::know);
    }
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

/// `Name: value`, or nothing, which takes back those before. It is judged even where it is sent nowhere.
fn header(key: &str, value: &str, scope: Option<Scope>) -> Result<Option<ExtraHeader>, Error> {
    if value.is_empty() {
        return Ok(scope.map(ExtraHeader::none));
    }
    let (name, value) = value.split_once(':').ok_or_else(|| wrong(key, "a header is NAME: VALUE"))?;
    let Some(scope) = scope else { return Ok(None) };
    let header = ExtraHeader::new(scope, name.trim(), value.trim());
    header.map(Some).ok_or_else(|| wrong(key, "a header is NAME: VALUE"))
}

fn wrong(key: &str, why: &str) -> Error {
    Error::HiddenValue { name: format!("git's {}", shown(key)), why: why.to_owned() }
}

/// A key as people may see it: a secret may be where a name belongs, and a URL may hold one.
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

/// The remote after `url.<base>.insteadOf`: the longest beginning that fits is replaced, once; of equal ones
/// the first, as in git.
fn rewritten(entries: &[Entry], remote: &str) -> String {
    let rules = entries.iter().rev().filter_map(|Entry { key, value }| {
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

/// Reads the words of the variable; quotes are left to shells. As in ssh_config(5) the first value of an option counts.
pub(super) fn ssh_command(text: &str) -> SshCommand {
    let mut found = SshCommand::default();
    let mut hosts = None;
    let mut checking = None;
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
            "userknownhostsfile" => drop(hosts.get_or_insert(setting)),
            "identitiesonly" | "batchmode" | "loglevel" => {}
            // Unknown hosts are not learned: with it only known ones are accepted.
            "stricthostkeychecking" if setting.eq_ignore_ascii_case("accept-new") => {
                checking.get_or_insert(setting);
                found.unused.push(value.to_owned());
            }
            "stricthostkeychecking" => drop(checking.get_or_insert(setting)),
            _ => found.unused.push(word.to_owned()),
        }
    }
    found.known_hosts = hosts.filter(|file| *file != "/dev/null").map(PathBuf::from);
    found.trusting =
        checking.is_some_and(|said| ["no", "off"].iter().any(|off| said.eq_ignore_ascii_case(off)));
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
                ("Core.autoCRLF", "true"),
                ("core.autocrlf", "s3cret"),
                ("credential.helper", "store"),
            ],
            remote,
        );
        assert_eq!(sent(&found, remote), ["Bearer s3cret"]);
        assert_eq!(sent(&found, "https://other.example.com/x"), ["2"]);
        assert!(found.unverified && found.local_submodules && matches!(found.proxy, Proxy::To(_)));
        assert_eq!(found.ca_file, Some("/ca.pem".into()));
        assert_eq!(found.cookie_file, Some("/cookies".into()));
        let remarks: Vec<String> = found.remarks(false).collect();
        assert_eq!(
            remarks,
            [
                "git's Core.autoCRLF has no effect here: files are published as they are committed",
                "git's credential.helper has no effect here: give --credential, --password-file or --askpass-url",
                "git's gc.auto has no effect here: give --git-gc",
                "git's lfs.url has no effect here: Git LFS is not supported: its pointer files are published as they are \
                 committed",
                "git's safe.directory has no effect here: nothing here needs it",
            ]
        );
        // git itself fetches, and has the settings; what is published is not its doing.
        assert!(found.remarks(true).all(|line| !line.contains("credential.helper")));
        assert!(found.remarks(true).any(|line| line.contains("autoCRLF")));
        assert!(!format!("{found:?}").contains("s3cret"), "{found:?}");
        assert!(effect(&[("http.extraHeader", "A: b")], "git@example.com:x").headers.is_empty());
    }

    /// What git itself finds, of pairs of settings in either order.
    #[test]
    fn the_closest_url_wins_and_the_later_one_of_two_that_are_alike_as_in_git() {
        let url = "https://bob@git.example.com/team/x.git";
        let keys = [
            "http.sslVerify",
            "http.https://git.example.com.sslVerify",
            "http.https://git.example.com/.sslVerify",
            "http.https://git.example.com:443/team.sslVerify",
            "http.https://git.example.com/tea.sslVerify",
            "http.https://GIT.example.com/team/x.git.sslVerify",
            "http.https://bob@git.example.com/.sslVerify",
            "http.https://amy@git.example.com/team/x.git.sslVerify",
            "http.https://*.example.com/team/.sslVerify",
            "http.https://*.com/.sslVerify",
            "http.http://git.example.com/.sslVerify",
            "http.https://git.example.com:8443/.sslVerify",
            "http.https://other.example.com/.sslVerify",
        ];
        for (first, second) in keys.iter().flat_map(|first| keys.iter().map(move |second| (first, second))) {
            for (one, other) in [("true", "false"), ("false", "true")] {
                let said = std::process::Command::new("git")
                    .env("GIT_CONFIG_NOSYSTEM", "1")
                    .env("GIT_CONFIG_GLOBAL", "/dev/null")
                    .current_dir("/")
                    .args(["-c", &format!("{first}={one}"), "-c", &format!("{second}={other}")])
                    .args(["config", "--get-urlmatch", "http.sslVerify", url])
                    .output()
                    .unwrap();
                let found = effect(&[(first, one), (second, other)], url);
                let theirs = String::from_utf8(said.stdout).unwrap().trim() == "false";
                assert_eq!(found.unverified, theirs, "{first}={one} {second}={other}");
                assert!(found.unused.is_empty(), "{:?}", found.unused);
            }
        }
    }

    #[test]
    fn a_protocols_own_setting_beats_that_for_all_protocols() {
        let all = "protocol.allow";
        let file = "protocol.file.allow";
        for (first, second, allowed) in [
            ((file, "never"), (all, "always"), false),
            ((all, "always"), (file, "never"), false),
            ((file, "always"), (all, "never"), true),
            ((all, "never"), (all, "always"), true),
            ((file, "always"), (file, "never"), false),
            ((all, "never"), ("protocol.https.allow", "always"), false),
        ] {
            let found = effect(&[first, second], "https://h/x");
            assert_eq!(found.local_submodules, allowed, "{first:?} {second:?}");
        }
    }

    #[test]
    fn a_url_that_is_none_is_named_as_without_effect() {
        let found = effect(&[("http.example.com.proxy", "http://proxy")], "https://h/x");
        let remarks: Vec<String> = found.remarks(true).collect();
        assert_eq!(remarks, ["git's http.[redacted].proxy has no effect here: the URL in it is none"]);
    }

    #[test]
    fn a_key_is_named_without_what_may_be_a_secret() {
        for (key, named) in [
            ("http.sslVerify", "http.sslVerify"),
            ("protocol.file.allow", "protocol.file.allow"),
            ("lfs.https://bob:s3cret@h/s3cret.locksverify", "lfs.https://h/[redacted].locksverify"),
            ("http.s3cret.foo", "http.[redacted].foo"),
            ("http.extraHeader=s3cret", "http.[redacted]"),
            ("s3cret", "[redacted]"),
            ("s3cret.foo", "[redacted].foo"),
        ] {
            assert_eq!(shown(key), named);
        }
    }

    fn sent(effect: &Effect, url: &str) -> Vec<String> {
        let headers = ExtraHeader::of(&effect.headers, &Url::parse(url).unwrap());
        headers.into_iter().map(|(_, value)| value.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn headers_are_taken_back_only_where_the_url_matches() {
        let remote = "https://bob@git.example.com/team/x.git";
        let followed = "https://git.example.com/team/x.git/info/refs";
        let (any, other) = ("http.extraHeader", "http.https://other.example.com/.extraHeader");
        let (host, team) =
            ("http.https://git.example.com/.extraHeader", "http.https://git.example.com/team/.extraHeader");
        let (bob, amy) =
            ("http.https://bob@git.example.com.extraHeader", "http.https://amy@git.example.com.extraHeader");
        type Case<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str]);
        let cases: [Case<'_>; 9] = [
            (&[(any, "A: 1"), (other, "")], &["1"]),
            (&[(any, "A: 1"), (host, "")], &[]),
            (&[(host, "A: 1"), (any, "")], &["1"]), // names it less closely
            (&[(host, "A: 1"), (any, "A: 2")], &["1"]),
            (&[(any, "A: 1"), (team, "A: 2"), (host, "A: 3")], &["1", "2"]),
            (&[(host, "A: 1"), (host, ""), (host, "A: 2")], &["2"]),
            (&[("http.https://*.example.com/.extraHeader", "A: 1")], &["1"]),
            (&[("http.https://*.com/.extraHeader", "A: 1")], &[]),
            (&[(bob, "A: 1"), (amy, "A: 2")], &["1"]),
        ];
        for (settings, wanted) in cases {
            assert_eq!(sent(&effect(settings, remote), followed), wanted, "{settings:?}");
        }
        let found = effect(&[(host, "A: 1"), (team, "")], remote);
        assert_eq!(sent(&found, followed), [""; 0]);
        assert_eq!(
            sent(&found, "https://git.example.com/shared/y.git"),
            ["1"],
            "a submodule elsewhere on the host"
        );
    }

    #[test]
    fn of_two_options_of_ssh_the_first_counts_and_accept_new_still_checks() {
        let found = ssh_command(
            "ssh -o StrictHostKeyChecking=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/a -o UserKnownHostsFile=/b",
        );
        assert_eq!((found.trusting, found.known_hosts), (false, Some("/a".into())));
        let found = ssh_command("ssh -oStrictHostKeyChecking=accept-new -o StrictHostKeyChecking=no");
        assert!(!found.trusting);
        assert_eq!(found.unused, ["StrictHostKeyChecking=accept-new"]);
        let found = ssh_command(
            "ssh -o UserKnownHostsFile=/dev/null -o UserKnownHostsFile=/b -o stricthostkeychecking=NO",
        );
        assert_eq!((found.trusting, found.known_hosts), (true, None));
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
        let alike = [("url.https://a/.insteadOf", "x:"), ("url.https://b/.insteadOf", "x:")];
        assert_eq!(effect(&alike, "x:foo").remote, "https://a/foo");
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
