//! Remotes and other URLs: redacts them for display, and registers the secrets in them.

use std::ffi::OsString;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::readings::MIN_LENGTH;
use super::registry::{REDACTED, add_short_password, is_public, percent_decoded};
use super::{PREFIXES, register, register_password, register_ssh_command, register_user};

/// Redacts a remote for display. Returns only a placeholder if it is uncertain which part is a credential.
///
/// From http and https URLs all userinfo is removed, because a user name is often a token. From others the password is
/// removed, and the user name if it may be a token; `git` in `ssh://git@host` stays, because without it the remote
/// would be another one. Parameters, query string and fragment are removed, too. Text without an `@` that is not a URL
/// (a path, the scp form) is returned unchanged.
pub fn redact(text: &str) -> String {
    match text.split_once("://") {
        Some((scheme, rest)) if is_scheme(scheme) => format!("{scheme}://{}", redact_rest(scheme, rest)),
        Some(_) => REDACTED.to_owned(),
        None => redact_plain(text),
    }
}

fn is_scheme(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// Characters that end the path of a URL: parameters, query string or fragment follow.
const AFTER_PATH: [char; 3] = [';', '?', '#'];

/// Redacts the part of a URL after `scheme://`.
fn redact_rest(scheme: &str, rest: &str) -> String {
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    // A password with an unescaped `/`, `?` or `#` ends the authority too early; then its `@` is in the rest.
    if path.contains('@') {
        return REDACTED.to_owned();
    }
    // Split at the last `@`, so that no part of a password with an unescaped `@` is taken for the host.
    let authority = match authority.rsplit_once('@') {
        None => authority.to_owned(),
        Some((_, host)) if scheme.to_ascii_lowercase().starts_with("http") => host.to_owned(),
        Some((userinfo, host)) => {
            format!("{}@{host}", shown_user(userinfo.split(':').next().unwrap_or_default()))
        }
    };
    let (path, more) = path.split_at(path.find(AFTER_PATH).unwrap_or(path.len()));
    let more = more.get(..1).map(|sign| format!("{sign}{REDACTED}")).unwrap_or_default();
    format!("{authority}{path}{more}")
}

/// Redacts a text without a scheme: a path, `[user@]host:path`, or a mistyped URL.
fn redact_plain(text: &str) -> String {
    let Some((before, after)) = text.split_once('@') else { return text.to_owned() };
    let is_path = text.starts_with(['/', '.']) && !text.starts_with("//");
    match () {
        () if after.contains('@') || before.contains(':') => REDACTED.to_owned(),
        () if is_path => text.to_owned(),
        () if before.contains(['/', '?', '#']) || !after.contains(':') => REDACTED.to_owned(),
        () => format!("{}@{after}", shown_user(before)),
    }
}

/// A user name for display; redacted if it may be a token.
pub fn shown_user(name: &str) -> &str {
    if name.len() < MIN_LENGTH || is_public(name) { name } else { REDACTED }
}

/// Redacts a URL whose path may be secret as well, like the webhook URLs of chat services.
pub fn redact_path(url: &str) -> String {
    let shown = redact(url);
    let Some((scheme, rest)) = shown.split_once("://") else { return REDACTED.to_owned() };
    match rest.split_once(['/', '?', '#', ';']) {
        None | Some((_, "")) => shown,
        Some((authority, _)) => format!("{scheme}://{authority}/[redacted]"),
    }
}

/// Registers everything in the URLs of a text that may be a credential. Whatever is before any `@` may be user name and
/// password.
pub fn register_urls(text: &str) {
    if let Some(userinfo) = userinfo_of_url(text) {
        register_pair(userinfo);
        // Elsewhere, as in `image:main@sha256:…`, it is uncertain that it is one.
        let (_, password) = userinfo.split_once(':').unwrap_or_default();
        add_short_password(&plain(password));
    }
    for (start, end) in urls(text) {
        let url = &text[start..end];
        for (at, _) in url.match_indices('@') {
            register_pair(&url[..at]);
        }
        // We never show the query and the like, but a server may repeat them.
        let more = url.find(AFTER_PATH).map_or("", |at| &url[at..]);
        let is_query = url.contains('?');
        for pair in more.split(['&', ';', '#', '?']) {
            match pair.split_once('=') {
                Some((_, value)) => register(value),
                None if is_query || !is_word(pair) => register(pair),
                None => {}
            }
        }
    }
}

/// The userinfo of a text that is a URL as a whole. It may have blanks and quotes, which end a URL in other texts.
fn userinfo_of_url(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("://").filter(|(scheme, _)| is_scheme(scheme))?;
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    authority.rsplit_once('@').map(|(userinfo, _)| userinfo)
}

/// Registers the secrets of a remote, which may be mistyped.
pub fn register_remote(text: &str) {
    register_urls(text);
    register_mistyped(text);
}

/// Registers the credentials of a proxy: everything before the last `@`. The URL may lack its scheme, and a password in
/// it may contain characters that end a URL in other texts.
pub fn register_proxy(url: &str) {
    register_urls(url);
    let with_scheme = url.split_once("://").filter(|(scheme, _)| is_scheme(scheme));
    let rest = with_scheme.map_or(url, |(_, rest)| rest);
    if let Some((userinfo, _)) = rest.rsplit_once('@') {
        register_pair(userinfo);
    }
}

/// Registers the credentials of a mistyped remote, in which it is uncertain which part is a credential: everything
/// before any `@` may be one.
fn register_mistyped(text: &str) {
    if redact(text) == REDACTED {
        text.match_indices('@').for_each(|(at, _)| register_pair(&text[..at]));
    }
}

/// Registers the user name, the password and the HTTP Basic credentials of a userinfo `user:password`.
fn register_pair(userinfo: &str) {
    let (username, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
    register_user(username);
    register(password);
    register(&plain(password));
    register(&STANDARD.encode(format!("{}:{}", plain(username), plain(password))));
}

/// A part of a URL without percent-escapes.
fn plain(text: &str) -> String {
    String::from_utf8_lossy(&percent_decoded(text.as_bytes())).into_owned()
}

/// The byte ranges of URLs in a text, from behind `://` to a blank, a quote or the end.
fn urls(text: &str) -> impl Iterator<Item = (usize, usize)> {
    let starts = text.match_indices("://").map(|(at, found)| at + found.len());
    starts.map(|start| {
        let ends = |c: char| c.is_whitespace() || c.is_control() || "\"'`<>\\".contains(c);
        (start, text[start..].find(ends).map_or(text.len(), |length| start + length))
    })
}

/// Registers a URL that is secret as a whole: userinfo, path and query.
pub fn register_url(url: &str) {
    register_remote(url);
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    if let Some(at) = rest.find(['/', '?', '#', ';']) {
        let path = &rest[at..];
        if !path.split(['/', '?', '&', '=', '#', ';']).all(is_word) {
            register(path);
        }
    }
}

/// Returns true if a component of a path is an ordinary word and no secret. A hook's URL is often like
/// `http://localhost:9090/-/reload`, and messages about reloading must stay readable.
fn is_word(piece: &str) -> bool {
    piece.len() < MIN_LENGTH
        || (piece.len() <= 16
            && piece.bytes().all(|byte| byte.is_ascii_lowercase() || b"-_.".contains(&byte)))
}

/// Environment variables that name a proxy.
const PROXIES: [&str; 4] = ["http_proxy", "https_proxy", "all_proxy", "ftp_proxy"];

/// Returns true if a variable of this name is the URL of a proxy.
pub(super) fn is_proxy(name: &str) -> bool {
    PROXIES.iter().any(|proxy| name.eq_ignore_ascii_case(proxy))
}

/// Registers the secrets in the command line and the environment. To be called before any of these can be in a message.
pub fn register_arguments_and_environment(
    arguments: impl IntoIterator<Item = OsString>,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) {
    let mut before = String::new();
    for argument in arguments {
        let argument = argument.to_string_lossy().into_owned();
        let (flag, value) = match argument.split_once('=').filter(|_| argument.starts_with('-')) {
            Some((flag, value)) => (flag.to_owned(), value),
            None => (before, argument.as_str()),
        };
        register_urls(value);
        // These have several parts; the code that parses them registers their secrets.
        if !flag.contains("config") && !flag.contains("credential") {
            register_mistyped(value);
        }
        before = argument;
    }
    for (name, value) in variables {
        let text = value.to_string_lossy();
        let name = name.to_string_lossy();
        let flag = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix));
        match flag {
            Some("PASSWORD" | "GITHUB_APP_PRIVATE_KEY") => register_password(&text),
            Some("WEBHOOK_URL" | "ASKPASS_URL") => register_url(&text),
            Some("REPO") => register_mistyped(&text),
            None if name == "GIT_SSH_COMMAND" => register_ssh_command(&text),
            None if name == "SSHPASS" => register_password(&text),
            None if is_proxy(&name) => register_proxy(&text),
            _ => {}
        }
        if flag.is_some() || name.starts_with("GIT_") {
            register_urls(&text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::registry::is_within;
    use crate::secret::{quoted, redacted};

    #[test]
    fn urls_lose_what_nobody_may_see() {
        for (url, shown) in [
            ("https://bob:s3cret@example.com/x.git", "https://example.com/x.git"),
            ("https://s3cret@example.com:8443/x.git", "https://example.com:8443/x.git"),
            ("HTTPS://bob:s3c@ret@example.com/x", "HTTPS://example.com/x"),
            ("https://hooks.example.com/x?token=s3cret", "https://hooks.example.com/x?[redacted]"),
            ("https://example.com?token=s3cret", "https://example.com?[redacted]"),
            ("https://example.com/x#s3cret", "https://example.com/x#[redacted]"),
            ("https://example.com/x;token=s3cret/y", "https://example.com/x;[redacted]"),
            ("https://example.com/x;a=b?token=s3cret#s3cret", "https://example.com/x;[redacted]"),
            ("ssh://git@example.com/x?s3cret", "ssh://git@example.com/x?[redacted]"),
            ("ssh://git@example.com/x", "ssh://git@example.com/x"),
            ("ssh://git:s3cret@example.com/x", "ssh://git@example.com/x"),
            ("ssh://s3cret@example.com/x", "ssh://[redacted]@example.com/x"),
            ("socks5://bob:s3cret@proxy:1080", "socks5://bob@proxy:1080"),
            ("git@example.com:x.git", "git@example.com:x.git"),
            ("s3cret@example.com:x.git", "[redacted]@example.com:x.git"),
            ("example.com:x.git", "example.com:x.git"),
            ("/srv/x.git", "/srv/x.git"),
            ("./team@corp/x.git", "./team@corp/x.git"),
        ] {
            assert_eq!(redact(url), shown);
        }
    }

    #[test]
    fn where_a_credential_cannot_be_told_from_the_rest_nothing_is_shown() {
        for url in [
            "http://bob:s3/cret@h/x",
            "http://bob:s3#cret@h/x",
            "http://bob:s3?cret@h/x",
            "http://bob:80/cret@h/x",
            "http://s3cret/x@h/x",
            "bob:s3cret@h:x",
            "bob@corp:s3cret@h:x",
            "http:/bob:s3cret@h/x",
            "http:bob:s3cret@h/x",
            "//bob:s3cret@h/x",
            "/bob:s3cret@h/x",
            "s3cret@h/x",
            "bob:s3cret@http://h/x",
            "https:\\\\bob:s3cret@h\\x",
            "https://h/x?a=s3@cret",
            "no scheme://s3cret/x",
        ] {
            let shown = redact(url);
            assert!(shown.ends_with(REDACTED), "{shown}");
            for shown in [shown, redact_path(url)] {
                let shown = shown.replace(REDACTED, "");
                assert!(!shown.contains("s3") && !shown.contains("cret"), "{shown}");
            }
        }
    }

    #[test]
    fn where_the_path_is_secret_only_the_origin_is_shown() {
        for (url, shown) in [
            (
                "https://bob:pw@hooks.example.com:8443/services/s3cret",
                "https://hooks.example.com:8443/[redacted]",
            ),
            ("https://hooks.example.com?token=s3cret", "https://hooks.example.com/[redacted]"),
            ("http://localhost:8080/", "http://localhost:8080/"),
            ("s3cret", "[redacted]"),
        ] {
            assert_eq!(redact_path(url), shown);
        }
    }

    #[test]
    fn the_password_of_a_proxy_is_registered_with_or_without_a_scheme() {
        let variable = |name: &str, value: &str| (name.into(), value.into());
        register_arguments_and_environment(
            [],
            [
                variable("HTTPS_PROXY", "bob:canary-pR7-1@proxy:3128"),
                variable("http_proxy", r#"http://bob:canary"pR7-2@proxy:3128"#),
                variable("ALL_PROXY", "socks5://bob:canary@pR7-3@proxy"),
                variable("SSHPASS", "canary-pR7-4"),
            ],
        );
        for password in ["canary-pR7-1", r#"canary"pR7-2"#, "canary@pR7-3", "canary-pR7-4"] {
            assert_eq!(redacted(password), REDACTED);
        }
        assert_eq!(redacted("proxy:3128 refused"), "proxy:3128 refused");
    }

    #[test]
    fn a_path_of_words_is_no_secret() {
        for url in
            ["http://127.0.0.1:9090/-/rereadrules", "http://h/api/v1/rereadrules", "http://h/rereadrules"]
        {
            register_url(url);
        }
        assert_eq!(quoted("rereadrules: connection refused"), "rereadrules: connection refused");
        register_url("https://hooks.example.com/services/T0AB12/B9xYz81kQ");
        assert_eq!(quoted("no B9xYz81kQ here"), "no [redacted] here");
        assert_eq!(redact_path("http://127.0.0.1:9090/-/rereadrules"), "http://127.0.0.1:9090/[redacted]");
    }

    #[test]
    fn the_secrets_in_urls_are_registered_and_the_words_in_them_are_not() {
        register_urls(
            "'https://uR4k-zQ8x:uR5k@zQ8x@h/xqzv-stays#stays-wqzv' http://h/x#uR6k-zQ8x \
             <ssh://h/x?plainquerykey&k=uR7k-zQ8x;uR8k-zQ8x#uR9k-zQ8x>",
        );
        for secret in
            ["uR4k-zQ8x", "uR5k@zQ8x", "uR6k-zQ8x", "uR7k-zQ8x", "uR8k-zQ8x", "uR9k-zQ8x", "plainquerykey"]
        {
            assert_eq!(redacted(secret), REDACTED, "{secret}");
        }
        assert_eq!(quoted("xqzv-stays stays-wqzv"), "xqzv-stays stays-wqzv");
        for (piece, expected) in [
            ("T0AB1", true),
            ("T0AB12", false),
            ("re-read_all.now1", false),
            ("re-read_all.nowx", true),
            ("re-read_all.nowxy", false),
        ] {
            assert_eq!(is_word(piece), expected, "{piece}");
        }
    }

    #[test]
    fn a_password_is_registered_whatever_signs_and_however_few_it_has() {
        register_urls("https://bob:qS4k'zQ8x \"qS5k@h/x");
        register_urls("url.https://bob:qS6k`zQ8x@h/.insteadOf");
        register_urls("https://bob:qS%37x@h/x");
        for password in ["qS4k'zQ8x \"qS5k", "qS6k`zQ8x"] {
            assert_eq!(redacted(password), REDACTED);
        }
        assert!(is_within(b"qS7x"), "a child program must not get it in a variable");
        register_urls("https://h/x:qS8x@v1");
        assert!(!is_within(b"qS8x"), "it is no password");
        register_urls("see https://h/x-kept-as-it-is of bob@corp");
        assert_eq!(quoted("h/x-kept-as-it-is of bob"), "h/x-kept-as-it-is of bob");
    }

    #[test]
    fn a_url_ends_where_the_text_around_it_goes_on() {
        let text = "a://b\u{1b}[0m <http://c/d>, 'e://f g' \"h://i";
        let found: Vec<&str> = urls(text).map(|(start, end)| &text[start..end]).collect();
        assert_eq!(found, ["b", "c/d", "f", "i"]);
    }

    #[test]
    fn what_may_be_a_credential_in_a_remote_is_registered() {
        register_remote("rM4k-zQ8x:rM5k-zQ8x@h:x");
        register_remote("https://rM6k-zQ8x@h/x");
        register_remote("/srv/zvwq-stays@corp/x.git");
        for secret in ["rM4k-zQ8x", "rM5k-zQ8x", "rM6k-zQ8x"] {
            assert_eq!(redacted(secret), REDACTED);
        }
        assert_eq!(quoted("/srv/zvwq-stays"), "/srv/zvwq-stays");
    }

    #[test]
    fn the_secrets_of_the_command_line_and_of_variables_are_registered() {
        let variable = |name: &str, value: &str| (name.into(), value.into());
        let arguments = [
            "--repo",
            "aG1k-zQ8x:pw@h:x",
            "--repo=aG2k-zQ8x:pw@h:x",
            "https://aG3k-zQ8x@h/x",
            "--git-config",
            "xC1q-stays:x@h:y",
            "--credential=xC2q-stays:x@h:y",
        ];
        register_arguments_and_environment(
            arguments.map(OsString::from),
            [
                variable("TREESWAP_PASSWORD", "aE1k"),
                variable("GITSYNC_PASSWORD", "aE2k-zQ8x"),
                variable("GIT_SYNC_WEBHOOK_URL", "https://h/aE3k-zQ8x"),
                variable("TREESWAP_REPO", "aE4k-zQ8x:pw@h:x"),
                variable("GIT_SSH_COMMAND", "sshpass -p aE5k-zQ8x ssh"),
                variable("TREESWAP_ROOT", "https://aE6k-zQ8x@h/x"),
                variable("GIT_OF_OTHERS", "https://aE7k-zQ8x@h/x"),
                variable("OTHER", "https://xO3q-stays@h/x"),
            ],
        );
        let secrets = (1..=3).map(|number| format!("aG{number}k-zQ8x"));
        for secret in secrets.chain((2..=7).map(|number| format!("aE{number}k-zQ8x"))) {
            assert_eq!(quoted(&secret), REDACTED, "{secret}");
        }
        assert!(is_within(b"aE1k"), "it surely is a password");
        let other = "xC1q-stays xC2q-stays xO3q-stays";
        assert_eq!(quoted(other), other);
    }
}
