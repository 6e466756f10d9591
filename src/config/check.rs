//! How a flag's value is checked: what is wrong with it is said under the name by which it was given.

use std::time::Duration;

use url::Url;

use super::args::Args;
use super::env::Origins;
use super::error::Error;
use super::values;
use crate::secret::redact_path;

/// What was given, on its way to become valid.
pub(super) struct Check<'a> {
    pub(super) args: &'a Args,
    pub(super) origins: &'a Origins,
}

impl Check<'_> {
    pub(super) fn wrong(&self, flag: &str, value: impl ToString, why: impl Into<String>) -> Error {
        Error::Value { name: self.origins.name(flag), value: value.to_string(), why: why.into() }
    }

    pub(super) fn value<T>(
        &self,
        flag: &str,
        text: &str,
        read: fn(&str) -> Result<T, String>,
    ) -> Result<T, Error> {
        read(text).map_err(|why| self.wrong(flag, text, why))
    }

    pub(super) fn count(&self, flag: &str, value: i64, least: u32) -> Result<u32, Error> {
        u32::try_from(value).ok().filter(|&value| value >= least).ok_or_else(|| {
            self.wrong(flag, value, format!("it is at least {least} and at most {}", u32::MAX))
        })
    }

    pub(super) fn ceiling(&self, flag: &str, bytes: u64) -> Result<u64, Error> {
        if bytes == 0 { Err(self.wrong(flag, bytes, "it is at least 1")) } else { Ok(bytes) }
    }

    pub(super) fn at_least(&self, flag: &str, value: Duration, least: Duration) -> Result<Duration, Error> {
        if value < least {
            let why = format!("it is at least {}", values::print_duration(least));
            return Err(self.wrong(flag, values::print_duration(value), why));
        }
        Ok(value)
    }

    /// A URL that may hold a secret.
    pub(super) fn http_url(&self, flag: &str, text: &str) -> Result<Url, Error> {
        let url = Url::parse(text).ok();
        url.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host()).ok_or_else(|| {
            let shown = redact_path(text);
            self.wrong(flag, shown, "it is not an http or https URL")
        })
    }
}
