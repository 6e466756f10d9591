//! What git's settings add to a request over http.

use std::fmt;

use reqwest::header::{HeaderName, HeaderValue};
use url::Url;

use crate::secret::{self, Secret, redact};

/// How closely the URL in a setting's key names another one, as git ranks it (git-config(1), `http.<url>.*`): the length
/// of the host, then that of the path, then whether the user is named. A key without a URL has the default, the least.
pub type Closeness = (usize, usize, bool);

/// The URL in a setting's key: what the setting is about. A `*` stands for one label of a host.
#[derive(Clone, PartialEq, Eq)]
pub struct Scope {
    url: Url,
    /// The key has no URL, and this one is the origin that the setting is kept to.
    implied: bool,
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Scope").field(&redact(self.url.as_str())).finish()
    }
}

impl Scope {
    /// Of the text in a key; none where it is no URL with a host.
    pub fn parse(text: &str) -> Option<Self> {
        let url = Url::parse(text).ok().filter(|url| url.host_str().is_some_and(|host| !host.is_empty()))?;
        Some(Self { url, implied: false })
    }

    /// The whole origin of a remote, for a key without a URL.
    pub fn origin(remote: &Url) -> Self {
        let mut url = remote.clone();
        url.set_path("/");
        url.set_query(None);
        // Neither fails for a URL that has a host.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        Self { url, implied: true }
    }

    /// How closely it names a URL that is at it or below it; none for others.
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

    /// The same for requests, in whose URLs there are no users: none where it is about another user than the remote's.
    pub fn without_user(mut self, remote: Option<&Url>) -> Option<Self> {
        let user = self.url.username();
        if !user.is_empty() && remote.is_none_or(|remote| remote.username() != user) {
            return None;
        }
        let _ = self.url.set_username(""); // it has a host
        Some(self)
    }
}

/// Whether a host is the one given, label by label.
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

/// A setting `http.extraHeader`: one header more for whatever its URL is about, or none of those before.
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
    /// None where name or value are not what a header can be made of.
    pub fn new(scope: Scope, name: &str, value: &str) -> Option<Self> {
        secret::know_name(name);
        secret::know_header(value);
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        let mut value = HeaderValue::from_str(value).ok()?;
        value.set_sensitive(true);
        Some(Self { scope, header: Some((name, value)) })
    }

    /// Takes back those before.
    pub fn none(scope: Scope) -> Self {
        Self { scope, header: None }
    }

    /// The headers of a request for a URL. As in git a setting counts unless one before it named the URL more closely.
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

/// The way out to an http remote.
#[derive(Clone, Debug, Default)]
pub enum Proxy {
    /// What the environment says (`HTTPS_PROXY` and its like).
    #[default]
    Environment,
    /// None, whatever the environment says.
    None,
    /// This one; its URL may hold a password.
    To(Secret),
}
