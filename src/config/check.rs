//! Common checks of flag values. Errors name the flag or the variable by which the value was given.

use std::ops::RangeInclusive;
use std::time::Duration;

use url::Url;

use super::args::Args;
use super::env::Origins;
use super::error::Error;
use super::values;
use crate::secret::{self, redact_path};

/// Validates the arguments. Each file of this module adds the checks of its flags.
pub(super) struct Check<'a> {
    pub(super) args: &'a Args,
    pub(super) origins: &'a Origins,
}

impl Check<'_> {
    /// The error for an invalid value of a flag.
    pub(super) fn invalid(&self, flag: &str, value: impl ToString, why: impl Into<String>) -> Error {
        Error::Value { name: self.origins.name(flag), value: value.to_string(), why: why.into() }
    }

    /// Parses a value with `read`.
    pub(super) fn value<T>(
        &self,
        flag: &str,
        text: &str,
        read: fn(&str) -> Result<T, String>,
    ) -> Result<T, Error> {
        read(text).map_err(|why| self.invalid(flag, text, why))
    }

    /// Looks a word up in a table of choices.
    pub(super) fn one_of<T: Copy>(&self, flag: &str, text: &str, choices: &[(&str, T)]) -> Result<T, Error> {
        let found = choices.iter().find(|(choice, _)| *choice == text);
        found.map(|(_, value)| *value).ok_or_else(|| {
            let names: Vec<&str> = choices.iter().map(|(choice, _)| *choice).collect();
            self.invalid(flag, text, format!("must be one of {}", names.join(", ")))
        })
    }

    /// A number of at least `least`.
    pub(super) fn count(&self, flag: &str, value: i64, least: u32) -> Result<u32, Error> {
        self.within(flag, value, least..=u32::MAX)
    }

    /// A number in a range.
    pub(super) fn within(&self, flag: &str, value: i64, range: RangeInclusive<u32>) -> Result<u32, Error> {
        u32::try_from(value).ok().filter(|value| range.contains(value)).ok_or_else(|| {
            let (least, most) = (range.start(), range.end());
            self.invalid(flag, value, format!("must be at least {least} and at most {most}"))
        })
    }

    /// A number of bytes of at least 1.
    pub(super) fn ceiling(&self, flag: &str, bytes: u64) -> Result<u64, Error> {
        if bytes == 0 { Err(self.invalid(flag, bytes, "must be at least 1")) } else { Ok(bytes) }
    }

    /// A duration of at least `least`.
    pub(super) fn at_least(&self, flag: &str, value: Duration, least: Duration) -> Result<Duration, Error> {
        if value < least {
            let why = format!("must be at least {}", values::print_duration(least));
            return Err(self.invalid(flag, values::print_duration(value), why));
        }
        Ok(value)
    }

    /// An http(s) URL with a host. Registers the secrets in it, so that no output shows them, before it is parsed.
    pub(super) fn http_url(&self, flag: &str, text: &str) -> Result<Url, Error> {
        secret::register_url(text);
        let url = Url::parse(text).ok();
        url.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host()).ok_or_else(|| {
            let shown = redact_path(text);
            self.invalid(flag, shown, "must begin with http:// or https://, and name a host")
        })
    }
}

/// What becomes of a password in the URL of a remote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum UrlPassword {
    /// It is sent to the server, over http(s).
    Sent,
    /// ssh does not use it.
    OfSsh,
    /// The transport has no passwords.
    Unused,
}

impl UrlPassword {
    /// The password of a URL, if it contains one or, for http(s), a user name that looks like a token.
    pub(super) fn of(repo: &str) -> Option<Self> {
        let url = Url::parse(repo).ok()?;
        let kind = match url.scheme() {
            "http" | "https" => Self::Sent,
            "ssh" | "git+ssh" | "ssh+git" => Self::OfSsh,
            _ => Self::Unused,
        };
        let is_token = || kind == Self::Sent && secret::shown_user(url.username()) == secret::REDACTED;
        (url.password().is_some() || is_token()).then_some(kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_a_url_is_recognized() {
        for (with, kind) in [
            ("https://me:pw@h/x", UrlPassword::Sent),
            ("https://ghp_16C7e42F292c6912E7710c838347Ae178B4a@h/x", UrlPassword::Sent),
            ("ssh://git:pw@h/x", UrlPassword::OfSsh),
            ("GIT+SSH://git:pw@h/x", UrlPassword::OfSsh),
            ("git://git:pw@h/x", UrlPassword::Unused),
        ] {
            assert_eq!(UrlPassword::of(with), Some(kind), "{with}");
        }
        for without in ["https://h/x", "https://git@h/x", "ssh://git@h/x", "git@h:x", "/srv/a@b:c", ""] {
            assert_eq!(UrlPassword::of(without), None, "{without}");
        }
    }
}
