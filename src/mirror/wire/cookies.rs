//! Cookies from a file in Netscape's format, like git's `http.cookieFile`: lines of seven fields, separated by tabs.
//! Cookies that a server sets are ignored.

use url::{Host, Url};

/// The value of the `Cookie` header for a URL, or `None` if no cookie applies. `now` is in seconds since 1970.
pub(super) fn header(file: &str, url: &Url, now: i64) -> Option<String> {
    let mut chosen: Vec<Cookie<'_>> =
        file.lines().filter_map(Cookie::parse).filter(|cookie| cookie.belongs_to(url, now)).collect();
    chosen.sort_by_key(|cookie| std::cmp::Reverse(cookie.path.len())); // RFC 6265, 5.4; stable
    let pairs: Vec<String> =
        chosen.iter().map(|cookie| format!("{}={}", cookie.name, cookie.value)).collect();
    (!pairs.is_empty()).then(|| pairs.join("; "))
}

/// The value of every cookie in the file.
pub(super) fn values(file: &str) -> impl Iterator<Item = &str> {
    file.lines().filter_map(Cookie::parse).map(|cookie| cookie.value)
}

struct Cookie<'a> {
    domain: &'a str,
    /// It also applies to sub-domains.
    with_subdomains: bool,
    path: &'a str,
    /// It is sent over TLS only.
    secure: bool,
    /// In seconds since 1970; 0 for a session cookie, which is treated as not expiring.
    expires: i64,
    name: &'a str,
    value: &'a str,
}

impl<'a> Cookie<'a> {
    /// Parses a line. Returns `None` for a comment, and for a cookie that is malformed or not valid in a header.
    fn parse(line: &'a str) -> Option<Self> {
        // The prefix hides a cookie from scripts, which does not concern us.
        let line = line.strip_prefix("#HttpOnly_").unwrap_or(line);
        if line.starts_with('#') {
            return None;
        }
        let mut fields = line.split('\t');
        let mut next = || fields.next();
        let cookie = Self {
            domain: next()?.trim_start_matches('.'),
            with_subdomains: next()?.eq_ignore_ascii_case("true"),
            path: next()?,
            secure: next()?.eq_ignore_ascii_case("true"),
            expires: next()?.parse().ok()?,
            name: next()?,
            value: next().unwrap_or_default(),
        };
        let clean = |text: &str| text.bytes().all(|byte| byte > b' ' && byte != b';' && byte != 0x7f);
        (!cookie.domain.is_empty() && clean(cookie.name) && clean(cookie.value)).then_some(cookie)
    }

    fn belongs_to(&self, url: &Url, now: i64) -> bool {
        let host = url.host_str().unwrap_or_default();
        // An IP address has no sub-domains.
        let with_subdomains = self.with_subdomains && matches!(url.host(), Some(Host::Domain(_)));
        let is_host = host.eq_ignore_ascii_case(self.domain)
            || (with_subdomains && strip_end(host, self.domain).is_some_and(|head| head.ends_with('.')));
        let rest = url.path().strip_prefix(self.path);
        let is_path =
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || self.path.ends_with('/'));
        // Like curl, treat a connection that never leaves the machine as secure.
        let is_secure = url.scheme() == "https" || matches!(host, "localhost" | "127.0.0.1" | "[::1]");
        is_host && is_path && (is_secure || !self.secure) && (self.expires == 0 || self.expires > now)
    }
}

/// Strips `end` from a host name, ignoring case.
fn strip_end<'a>(host: &'a str, end: &str) -> Option<&'a str> {
    let at = host.len().checked_sub(end.len())?;
    let (head, tail) = host.split_at_checked(at)?;
    tail.eq_ignore_ascii_case(end).then_some(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# Netscape HTTP Cookie File\n\
        .example.com\tTRUE\t/\tTRUE\t0\twide\t1\n\
        git.example.com\tFALSE\t/team\tFALSE\t2000\tnarrow\t2\n\
        #HttpOnly_git.example.com\tFALSE\t/team/a\tFALSE\t0\tdeep\t3\n\
        git.example.com\tFALSE\t/\tFALSE\t1000\told\t4\n\
        git.example.com\tFALSE\t/\tFALSE\t0\tevil\ta; b=c\n\
        127.0.0.1\tTRUE\t/\tTRUE\t0\tlocal\t5\n\
        not a cookie\n\n";

    fn chosen(url: &str) -> Option<String> {
        header(FILE, &Url::parse(url).unwrap(), 1500)
    }

    #[test]
    fn a_cookie_is_sent_to_its_host_and_path_and_a_secure_one_only_over_tls() {
        assert_eq!(chosen("https://git.example.com/team/a/x").as_deref(), Some("deep=3; narrow=2; wide=1"));
        assert_eq!(chosen("http://git.example.com/team").as_deref(), Some("narrow=2"));
        assert_eq!(chosen("https://git.example.com/teams").as_deref(), Some("wide=1"));
        assert_eq!(chosen("https://other.example.com/").as_deref(), Some("wide=1"));
        assert_eq!(chosen("https://example.com/").as_deref(), Some("wide=1"));
        assert_eq!(chosen("https://evilexample.com/team"), None);
        assert_eq!(chosen("https://sub.git.example.com/team").as_deref(), Some("wide=1"));
        assert_eq!(chosen("http://127.0.0.1:8080/x").as_deref(), Some("local=5"));
        assert_eq!(chosen("https://1.127.0.0.1.example.org/"), None);
    }
}
