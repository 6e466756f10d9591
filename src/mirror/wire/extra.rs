//! What git's configuration adds to http requests: extra headers limited to URLs, and a proxy.

use std::fmt;

use reqwest::header::{HeaderName, HeaderValue};
use url::Url;

use crate::secret::{self, Secret, redact};

/// How closely the URL in a setting's key matches another URL, in git's ranking (git-config(1), `http.<url>.*`): the
/// length of the host, then of the path, then whether the user is named. A key without a URL ranks lowest, as the
/// default.
pub type Closeness = (usize, usize, bool);

/// The URL in a setting's key, which limits where the setting applies. A `*` stands for one label of a host.
#[derive(Clone, PartialEq, Eq)]
pub struct Scope {
    url: Url,
    /// The key has no URL; `url` is the remote's origin, to which the setting is limited.
    implied: bool,
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Scope").field(&redact(self.url.as_str())).finish()
    }
}

impl Scope {
    /// Parses the URL in a key. Returns `None` if it is not a URL with a host.
    pub fn parse(text: &str) -> Option<Self> {
        let url = Url::parse(text).ok().filter(|url| url.host_str().is_some_and(|host| !host.is_empty()))?;
        Some(Self { url, implied: false })
    }

    /// The origin of a remote, as the scope of a key without a URL.
    pub fn origin(remote: &Url) -> Self {
        let mut url = remote.clone();
        url.set_path("/");
        url.set_query(None);
        // Neither call fails if the URL has a host.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        Self { url, implied: true }
    }

    /// Ranks a URL that is equal to this one or below it. Returns `None` for any other URL.
    pub fn closeness(&self, url: &Url) -> Option<Closeness> {
        let host = self.url.host_str()?;
        let user = self.url.username();
        let same = self.url.scheme() == url.scheme()
            && self.url.port_or_known_default() == url.port_or_known_default()
            && (user.is_empty() || user == url.username())
            && is_host(host, url.host_str()?);
        let path = self.url.path().trim_end_matches('/');
        let rest = url.path().strip_prefix(path).filter(|_| same)?;
        let below = rest.is_empty() || rest.starts_with('/');
        let close =
            if self.implied { Closeness::default() } else { (host.len(), path.len(), !user.is_empty()) };
        below.then_some(close)
    }

    /// Removes the user name, because request URLs have none. Returns `None` if the scope names another user than the
    /// remote's URL.
    pub fn without_user(mut self, remote: Option<&Url>) -> Option<Self> {
        let user = self.url.username();
        if !user.is_empty() && remote.is_none_or(|remote| remote.username() != user) {
            return None;
        }
        let _ = self.url.set_username(""); // does not fail: the URL has a host
        Some(self)
    }
}

/// Compares a host with a pattern, label by label.
fn is_host(given: &str, host: &str) -> bool {
    let mut given = given.split('.');
    let mut host = host.split('.');
    loop {
        match (given.next(), host.next()) {
            (None, None) => return true,
            (Some(one), Some(other)) if one == "*" || one == other => {}
            _ => return false,
        }
    }
}

/// A setting `http.extraHeader`: adds a header for the URLs in its scope, or drops the headers added before it.
#[derive(Clone)]
pub struct ExtraHeader {
    scope: Scope,
    header: Option<(HeaderName, HeaderValue)>,
}

impl fmt::Debug for ExtraHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtraHeader").field("scope", &self.scope).finish_non_exhaustive()
    }
}

impl ExtraHeader {
    /// Adds a header. Returns `None` if the name or the value is not valid in a header.
    pub fn new(scope: Scope, name: &str, value: &str) -> Option<Self> {
        secret::register_name(name);
        secret::register_header(value);
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        let mut value = HeaderValue::from_str(value).ok()?;
        value.set_sensitive(true);
        Some(Self { scope, header: Some((name, value)) })
    }

    /// Drops the headers of earlier settings (an empty value).
    pub fn none(scope: Scope) -> Self {
        Self { scope, header: None }
    }

    /// The headers for a request. As in git, a setting is ignored if an earlier one matches the URL more closely.
    pub fn of<'a>(settings: &'a [Self], url: &Url) -> Vec<&'a (HeaderName, HeaderValue)> {
        let mut closest = Closeness::default();
        let mut headers = Vec::new();
        for Self { scope, header } in settings {
            match (scope.closeness(url).filter(|close| *close >= closest), header) {
                (None, _) => continue,
                (Some(close), Some(header)) => {
                    closest = close;
                    headers.push(header);
                }
                (Some(close), None) => {
                    closest = close;
                    headers.clear();
                }
            }
        }
        headers
    }
}

/// The proxy for http and https remotes.
#[derive(Clone, Debug, Default)]
pub enum Proxy {
    /// The one that the environment names (`HTTPS_PROXY` and the like).
    #[default]
    Environment,
    /// No proxy, whatever the environment says.
    None,
    /// The proxy with this URL, which may contain a password.
    To(Secret),
}
