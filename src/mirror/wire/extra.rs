//! What git's settings add to a request over http.

use std::fmt;

use reqwest::header::{HeaderName, HeaderValue};
use url::Url;

use crate::secret::{Secret, redact};

/// A header (`http.extraHeader`) for whatever is at a URL or below it.
#[derive(Clone)]
pub struct ExtraHeader {
    /// Where it is sent; nowhere else.
    pub url: Url,
    name: HeaderName,
    value: HeaderValue,
}

impl fmt::Debug for ExtraHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtraHeader")
            .field("url", &redact(self.url.as_str()))
            .field("name", &self.name)
            .finish()
    }
}

impl ExtraHeader {
    /// None where name or value are not what a header can be made of.
    pub fn new(url: Url, name: &str, value: &str) -> Option<Self> {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        let mut value = HeaderValue::from_str(value).ok()?;
        value.set_sensitive(true);
        Some(Self { url, name, value })
    }

    /// Name and value, if it belongs to a request for this URL.
    pub(super) fn of(&self, url: &Url) -> Option<(&HeaderName, &HeaderValue)> {
        let rest = url.path().strip_prefix(self.url.path().trim_end_matches('/'))?;
        let below = rest.is_empty() || rest.starts_with('/');
        (self.url.origin() == url.origin() && below).then_some((&self.name, &self.value))
    }

    /// What nobody may see of it.
    pub(super) fn secret(&self) -> Option<Secret> {
        let text = self.value.to_str().ok()?;
        // A scheme is none: `Bearer x` is repeated as `x`, too.
        let word = text.rsplit(' ').next().filter(|word| word.len() > 3)?;
        Some(Secret::new(word))
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
