//! Parses a remote: a URL, the scp form or a path, by git's rules (git-fetch(1), "GIT URLS"). It uses neither the
//! network nor the disk.

use std::path::PathBuf;

use url::Url;

use crate::secret::{Secret, percent_decoded};

use super::ssh::{DEFAULT_USER, Target};

/// The port of a git daemon.
pub(super) const GIT_PORT: u16 = 9418;

/// A remote, by transport.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Remote {
    /// https or http, without userinfo.
    Http(Url),
    /// `ssh://` or the scp form: the server, and the repository's path on it.
    Ssh(Target, String),
    /// `git://`.
    Git {
        /// The host's name or address, without brackets.
        host: String,
        /// The port; 9418 by default.
        port: u16,
        /// The path to send to the server.
        path: String,
    },
    /// `file://` or a plain path, made absolute.
    Local(PathBuf),
}

/// The user name and password from an http URL, decoded. The password is not registered for redaction: an operator's
/// was registered where the URL was read, and what a commit's author wrote into a submodule's URL is no secret of ours.
pub(super) type Userinfo = Option<(String, Secret)>;

/// Parses a remote. The error says why it is not one.
pub(super) fn parse(text: &str) -> Result<(Remote, Userinfo), &'static str> {
    if text.is_empty() {
        return Err("it is empty");
    }
    if text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
        return Err("it contains control characters");
    }
    if names_helper(text) {
        return Err("remote helpers (`name::address`) are not run");
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        return match scp_form(text)? {
            Some((target, path)) => Ok((ssh(target, path)?, None)),
            None => Ok((Remote::Local(absolute(text)?), None)),
        };
    };
    match scheme.to_ascii_lowercase().as_str() {
        "http" | "https" => http(text),
        "ssh" | "git+ssh" | "ssh+git" => {
            let (user, host, port, path) = authority(rest)?;
            let user = user.unwrap_or_else(|| DEFAULT_USER.to_owned());
            Ok((ssh(Target { host, port: port.unwrap_or(22), user }, path)?, None))
        }
        "git" => {
            let (_, host, port, path) = authority(rest)?;
            Ok((Remote::Git { host, port: port.unwrap_or(GIT_PORT), path }, None))
        }
        "file" => {
            // git treats the host of file://host/path as part of the path.
            let path = if rest.starts_with('/') { decode(rest) } else { decode(&format!("//{rest}")) };
            Ok((Remote::Local(absolute(&path)?), None))
        }
        _ => Err("only https, http, ssh, git and file remotes, user@host:path and paths are known"),
    }
}

/// Returns true if the text has the form `name::address`, for which git runs the remote helper `git-remote-name`. The
/// names are those of git (`is_urlschemechar`): letters and digits, and `+`, `-` and `.` after the first.
fn names_helper(text: &str) -> bool {
    let Some((name, _)) = text.split_once("::") else { return false };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    name.bytes().all(is_name) && !name.starts_with(['+', '-', '.'])
}

fn http(text: &str) -> Result<(Remote, Userinfo), &'static str> {
    let mut url = Url::parse(text).map_err(|_| "it is not a URL")?;
    if url.host_str().is_none_or(str::is_empty) {
        return Err("it names no host");
    }
    let userinfo = (!url.username().is_empty() || url.password().is_some())
        .then(|| (decode(url.username()), Secret::holder(decode(url.password().unwrap_or_default()))));
    // Neither fails for a URL that has a host.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_fragment(None);
    Ok((Remote::Http(url), userinfo))
}

/// Parses `[user@]host:path`, where the colon comes before the first slash. As in git's connect.c, brackets protect the
/// colons of an IPv6 address, `[host:port]` has a port, and `/~user/x` becomes `~user/x`. As in ssh(1), the user ends at
/// the last `@` before the path. Returns `None` for a path.
fn scp_form(text: &str) -> Result<Option<(Target, String)>, &'static str> {
    let Some((before, after)) = text.split_once(':').filter(|(before, _)| !before.contains('/')) else {
        return Ok(None);
    };
    let bracket = if before.starts_with('[') { Some(0) } else { before.find("@[").map(|at| at + 1) };
    let bracketed = bracket.and_then(|at| {
        let (inside, path) = text[at + 1..].split_once("]:")?;
        Some((format!("{}{inside}", &text[..at]), path))
    });
    let has_port = bracketed.is_some();
    let (login, path) = bracketed.unwrap_or_else(|| (before.to_owned(), after));
    let (user, host) = login.rsplit_once('@').unwrap_or(("", &login));
    let (host, port) = match host.rsplit_once(':') {
        Some((host, port)) if has_port && !host.contains(':') => (host, port_number(port)?),
        _ => (host, None),
    };
    let user = if user.is_empty() { DEFAULT_USER } else { user };
    let target = Target { host: host.to_owned(), port: port.unwrap_or(22), user: user.to_owned() };
    Ok(Some((target, home_relative(path.to_owned()))))
}

/// Parses a port; `None` for an empty one.
fn port_number(text: &str) -> Result<Option<u16>, &'static str> {
    if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(|_| "its port is not a number") }
}

/// `~user/x` for `/~user/x`, which is below a home directory of the server; other paths stay.
fn home_relative(path: String) -> String {
    if path.starts_with("/~") { path[1..].to_owned() } else { path }
}

/// Rejects empty parts, and parts that could be taken for an option. We pass none of them on a command line, but the
/// path is part of the server's.
fn ssh(target: Target, path: String) -> Result<Remote, &'static str> {
    if target.host.is_empty() {
        return Err("it names no host");
    }
    if path.is_empty() {
        return Err("it names no path");
    }
    if [&target.host, &target.user, &path].iter().any(|part| part.starts_with('-')) {
        return Err("its user, host or path begins with `-`");
    }
    Ok(Remote::Ssh(target, path))
}

type Authority = (Option<String>, String, Option<u16>, String);

/// Parses `[user[:password]@]host[:port]/path` of ssh and git URLs, percent-decoded. `/~user/x` becomes `~user/x`.
fn authority(rest: &str) -> Result<Authority, &'static str> {
    let (authority, path) = rest.split_at(rest.find('/').ok_or("it names no path")?);
    if authority.contains(['?', '#', '\\']) {
        return Err("its user or host contains `?`, `#` or `\\`"); // git and other programs disagree on the host then
    }
    let (user, host) = match authority.rsplit_once('@') {
        Some((userinfo, host)) => (userinfo.split(':').next().filter(|user| !user.is_empty()), host),
        None => (None, authority),
    };
    let (host, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, "")) => (address, None),
        Some((address, port)) => (address, Some(port.strip_prefix(':').ok_or("its port is not a number")?)),
        None => host.split_once(':').map_or((host, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map_or(Ok(None), port_number)?;
    if host.is_empty() {
        return Err("it names no host");
    }
    if path == "/" {
        return Err("it names no path");
    }
    let path = home_relative(decode(path));
    let user = user.map(decode);
    let host = decode(host);
    // NUL separates the parts of a git daemon's request: `%00host=other` would select another virtual host.
    let has_control = |part: &String| part.bytes().any(|byte| byte < b' ' || byte == 0x7f);
    if [Some(&host), Some(&path), user.as_ref()].into_iter().flatten().any(has_control) {
        return Err("it contains an escaped control character");
    }
    Ok((user, host, port, path))
}

/// Percent-decodes a string. Invalid escapes are kept; if the result is not UTF-8, the text is returned unchanged.
fn decode(text: &str) -> String {
    String::from_utf8(percent_decoded(text.as_bytes())).unwrap_or_else(|_| text.to_owned())
}

fn absolute(path: &str) -> Result<PathBuf, &'static str> {
    std::path::absolute(path).map_err(|_| "the working directory, from which it would be relative, is gone")
}

#[cfg(test)]
mod tests {
    use super::super::{Client, Options};
    use super::*;

    fn parsed(text: &str) -> Remote {
        parse(text).unwrap_or_else(|error| panic!("{text}: {error}")).0
    }

    #[test]
    fn ssh_urls_and_the_scp_form_are_distinguished_from_paths() {
        let of = |user: &str, host: &str, port, path: &str| {
            Remote::Ssh(Target { host: host.into(), port, user: user.into() }, path.into())
        };
        assert_eq!(parsed("bob@example.com:a/b.git"), of("bob", "example.com", 22, "a/b.git"));
        assert_eq!(parsed("example.com:/a"), of(DEFAULT_USER, "example.com", 22, "/a"));
        assert_eq!(parsed("git@[::1]:a"), of("git", "::1", 22, "a"));
        assert_eq!(parsed("[git@example.com:2222]:a"), of("git", "example.com", 2222, "a"));
        assert_eq!(parsed("[example.com:2222]:a"), of(DEFAULT_USER, "example.com", 2222, "a"));
        assert_eq!(parsed("ssh://git@example.com:2222/a%20b"), of("git", "example.com", 2222, "/a b"));
        assert_eq!(parsed("ssh://[::1]:2222/a"), of(DEFAULT_USER, "::1", 2222, "/a"));
        assert_eq!(parsed("ssh://git:pw@example.com/~bob/a"), of("git", "example.com", 22, "~bob/a"));
        assert_eq!(parsed("git+ssh://example.com/a"), of(DEFAULT_USER, "example.com", 22, "/a"));
        assert_eq!(parsed("me@corp.example@git.host:a"), of("me@corp.example", "git.host", 22, "a"));
        assert_eq!(parsed("me@corp.example@[git.host:2222]:a"), of("me@corp.example", "git.host", 2222, "a"));
        assert_eq!(parsed("[me@corp.example@git.host:2222]:a"), of("me@corp.example", "git.host", 2222, "a"));
        assert_eq!(parsed("me@h:team@corp/a@[b]:c"), of("me", "h", 22, "team@corp/a@[b]:c"));
        assert_eq!(parsed("h:team@corp/a"), of(DEFAULT_USER, "h", 22, "team@corp/a"));
        assert_eq!(parsed("@example.com:a"), of(DEFAULT_USER, "example.com", 22, "a"));
        assert_eq!(parsed("[@example.com:2222]:a"), of(DEFAULT_USER, "example.com", 2222, "a"));
        assert_eq!(parsed("[h:]:a"), of(DEFAULT_USER, "h", 22, "a"));
        assert_eq!(parsed("h:/~bob/a.git"), of(DEFAULT_USER, "h", 22, "~bob/a.git"));
        assert_eq!(parsed("[h:2222]:/~/a"), of(DEFAULT_USER, "h", 2222, "~/a"));
        assert_eq!(parsed("h:/a/~b"), of(DEFAULT_USER, "h", 22, "/a/~b"));
        assert_eq!(parsed("a/b@[h]:c"), Remote::Local(std::env::current_dir().unwrap().join("a/b@[h]:c")));
        assert_eq!(parsed("/srv/a:b"), Remote::Local("/srv/a:b".into()));
        assert_eq!(parsed("/srv/a::b"), Remote::Local("/srv/a::b".into()));
        assert_eq!(parsed("git@h::b"), of("git", "h", 22, ":b"));
        assert_eq!(parsed("./a:b"), Remote::Local(std::env::current_dir().unwrap().join("a:b")));
    }

    #[test]
    fn http_userinfo_is_removed_and_decoded() {
        let (remote, userinfo) = parse("https://bob:p%40ss@example.com:8443/a.git").unwrap();
        assert_eq!(remote, Remote::Http(Url::parse("https://example.com:8443/a.git").unwrap()));
        let (user, password) = userinfo.unwrap();
        assert_eq!((user.as_str(), password.expose()), ("bob", "p@ss"));
        assert!(parse("https://example.com/a").unwrap().1.is_none());
    }

    #[test]
    fn git_and_file_urls_become_their_parts() {
        let git = |port, path: &str| Remote::Git { host: "h".into(), port, path: path.into() };
        assert_eq!(parsed("git://h/a"), git(9418, "/a"));
        assert_eq!(parsed("git://h:1/~a"), git(1, "~a"));
        assert_eq!(parsed("file:///srv/a%20b"), Remote::Local("/srv/a b".into()));
        for odd in ["/srv/a%zz", "/srv/a%+1", "/srv/a%2"] {
            assert_eq!(parsed(&format!("file://{odd}")), Remote::Local(odd.into()));
        }
    }

    #[test]
    fn what_is_no_remote_is_refused_with_the_reason_and_without_the_secret() {
        const SCHEMES: &str = "only https, http, ssh, git and file remotes";
        const HELPERS: &str = "remote helpers";
        const DASH: &str = "begins with `-`";
        const ESCAPED: &str = "an escaped control character";
        for (text, reason) in [
            ("", "it is empty"),
            ("https://", "it is not a URL"),
            ("ftp://h/a", SCHEMES),
            ("foo://bob:s3cret@h/a", SCHEMES),
            ("ext::sh -c x://", HELPERS),
            ("ext::sh -c x", HELPERS),
            ("foo+bar::x", HELPERS),
            ("a-b.c::/srv/a", HELPERS),
            ("::x", HELPERS),
            ("ssh://-oProxyCommand=x/a", DASH),
            ("-oProxyCommand=x:a", DASH),
            ("a@-oProxyCommand=x:a", DASH),
            ("h:-x", DASH),
            ("ssh://h", "it names no path"),
            ("git://h/", "it names no path"),
            ("h:", "it names no path"),
            (":a", "it names no host"),
            ("git@:a", "it names no host"),
            ("https://bob:s3cret@/a", "it is not a URL"),
            ("ssh://h:x/a", "its port is not a number"),
            ("ssh://h:65536/a", "its port is not a number"),
            ("[h:abc]:x", "its port is not a number"),
            ("git@[h:65536]:x", "its port is not a number"),
            ("ssh://git?@h/a", "contains `?`, `#` or"),
            ("git://h#@other/a", "contains `?`, `#` or"),
            ("ssh://h/a%0ab", ESCAPED),
            ("ssh://a%0a@h/b", ESCAPED),
            ("git://h/a%00host=other", ESCAPED),
            ("a\nb", "control characters"),
        ] {
            let error = Client::new(Options::new(text)).expect_err(text).to_string();
            assert!(error.contains(reason), "{text:?}: {error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
    }
}
