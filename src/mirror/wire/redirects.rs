//! Redirects of the advertisement: which of them are followed, and for how long the repository is taken to be where
//! they lead.

use std::time::{Duration, Instant};

use reqwest::StatusCode;
use url::Url;

use crate::secret::redact;

use super::text::escaped;

/// How long a permanent redirect holds before the given URL is asked again. A forge drops the redirect of a renamed
/// repository when another one takes the name.
const HOLDS: Duration = Duration::from_secs(600);
/// How many bytes of a redirect's target a message shows.
const SHOWN: usize = 400;
/// The suffixes of an advertisement's URL; the second one follows a query string in the remote's URL.
const TAILS: [&str; 2] = ["/info/refs?service=git-upload-pack", "/info/refs&service=git-upload-pack"];

/// Where the repository was found last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// At the given URL, or it was not looked for yet.
    Given,
    /// Where redirects led, which is not questioned until then; `None`: until the next attempt.
    Moved(Option<Instant>),
    /// Where redirects led. Before it is used again, the given URL has to be asked whether they still do.
    Unconfirmed,
}

impl Place {
    /// The place after one more redirect. It holds for some time if all of them are permanent.
    pub(super) fn redirected(self, status: StatusCode, now: Instant) -> Self {
        let is_permanent = matches!(status, StatusCode::MOVED_PERMANENTLY | StatusCode::PERMANENT_REDIRECT);
        Self::Moved((is_permanent && self != Self::Moved(None)).then(|| now + HOLDS))
    }

    /// The place at the beginning of an attempt.
    pub(super) fn at_attempt(self, now: Instant) -> Self {
        match self {
            Self::Moved(until) if until.is_none_or(|until| until <= now) => Self::Unconfirmed,
            place => place,
        }
    }
}

/// Returns true if a redirect leads to the same origin, or from http to https of the same host, both at their default
/// ports. Many servers answer so at port 80. Other ports may belong to somebody else.
pub(super) fn may_follow(from: &Url, to: &Url) -> bool {
    let is_default = |url: &Url, scheme: &str| url.scheme() == scheme && url.port().is_none();
    let is_upgrade = is_default(from, "http") && is_default(to, "https") && from.host() == to.host();
    from.origin() == to.origin() || is_upgrade
}

/// The URL of the repository that an advertisement's URL belongs to; `None` for any other URL.
pub(super) fn repository(url: &str) -> Option<&str> {
    TAILS.iter().find_map(|tail| url.strip_suffix(tail))
}

/// A redirect's target for messages: redacted, shortened, and without the suffix of the advertisement request, so that
/// it is the URL a user would give as the remote.
pub(super) fn shown(to: &str) -> String {
    redact(&escaped(repository(to).unwrap_or(to).as_bytes(), SHOWN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_stays_within_the_origin_or_turns_tls_on() {
        for (from, to, expected) in [
            ("http://h/x", "http://h/y", true),
            ("http://h/x", "https://h/y", true),
            ("http://h:80/x", "https://H:443/y", true),
            ("http://[::1]/x", "https://[::1]/y", true),
            ("https://h/x", "http://h/y", false),
            ("http://h/x", "https://www.h/y", false),
            ("http://h/x", "https://h:8443/y", false),
            ("http://h:8080/x", "https://h/y", false),
            ("http://h:443/x", "https://h/y", false),
            ("http://h/x", "http://h:8080/y", false),
            ("http://h/x", "ftp://h/y", false),
        ] {
            let [source, target] = [from, to].map(|url| Url::parse(url).unwrap());
            assert_eq!(may_follow(&source, &target), expected, "{from} to {to}");
        }
    }

    #[test]
    fn only_permanent_redirects_hold_beyond_the_attempt_and_not_for_ever() {
        let now = Instant::now();
        let place_after = |statuses: &[u16]| {
            let status = |status: &u16| StatusCode::from_u16(*status).unwrap();
            statuses.iter().map(status).fold(Place::Given, |place, status| place.redirected(status, now))
        };
        let table: [(&[u16], bool); 8] = [
            (&[301], true),
            (&[308], true),
            (&[301, 308], true),
            (&[302], false),
            (&[303], false),
            (&[307], false),
            (&[301, 302], false),
            (&[302, 301], false),
        ];
        for (statuses, holds) in table {
            let place = place_after(statuses);
            let next = if holds { place } else { Place::Unconfirmed };
            assert_eq!(place.at_attempt(now), next, "{statuses:?}");
            assert_eq!(place.at_attempt(now + HOLDS), Place::Unconfirmed, "{statuses:?}");
        }
        assert_eq!(Place::Given.at_attempt(now + HOLDS), Place::Given);
    }
}
