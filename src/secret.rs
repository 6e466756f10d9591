//! Values that must not be seen: they print as a placeholder, are read from their file each time they are needed, and
//! are wiped when dropped. And [`redact`], through which every URL goes before anyone reads it.
//!
//! It doesn't protect memory against a debugger, and it doesn't watch files: who needs a secret reads it anew.

use std::ffi::OsStr;
use std::fmt;
use std::io::Read;
use std::path::PathBuf;

use secrecy::{ExposeSecret, SecretString};

/// A secret file larger than this is none: somebody mounted the wrong file.
const MAX_FILE: u64 = 64 << 10;

/// A password, a token, a webhook key.
#[derive(Clone)]
pub struct Secret(SecretString);

impl Secret {
    /// Wraps a value.
    pub fn new(value: impl Into<String>) -> Self {
        Self(SecretString::from(value.into()))
    }

    /// The value itself. Every call is a place to look at when auditing.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// Where a secret comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// Given as it is (an environment variable, userinfo of a URL).
    Value(Secret),
    /// A file, read each time: rotating it needs no restart.
    File(PathBuf),
}

impl Source {
    /// The secret as it is now. Blocking. Of a file, one trailing line end is not part of the secret: editors and
    /// `echo` add it, and no protocol we speak could carry it.
    pub fn read(&self) -> Result<Secret, Error> {
        match self {
            Self::Value(secret) => Ok(secret.clone()),
            Self::File(path) => read_file(path),
        }
    }
}

fn read_file(path: &std::path::Path) -> Result<Secret, Error> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::with_capacity(256);
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(Error::TooLong { path: path.to_owned() });
    }
    let mut text = String::from_utf8(bytes).map_err(|_| Error::NotText { path: path.to_owned() })?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(Secret::new(text))
}

/// A secret could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file system said no.
    #[error("cannot read the secret in {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Nobody has such a long password.
    #[error("{} is longer than {} KiB and so no secret", path.display(), MAX_FILE >> 10)]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// Not UTF-8.
    #[error("{} is not text and so no secret", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
    },
}

/// Variables that may hold a secret, without their prefix.
const SECRETS: [&str; 5] = ["PASSWORD", "CREDENTIAL", "GITHUB_APP_PRIVATE_KEY", "ASKPASS_URL", "WEBHOOK_URL"];

/// The prefixes that we and git-sync give to variables.
const PREFIXES: [&str; 3] = ["TREESWAP_", "GITSYNC_", "GIT_SYNC_"];

/// Whether a variable of our own environment may hold a secret, so that a program that is none of our business should
/// not see it.
pub fn in_variable(name: &OsStr, value: &OsStr) -> bool {
    let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
    let Some(flag) = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)) else { return false };
    SECRETS.contains(&flag) || (flag == "REPO" && redact(&value) != value)
}

/// A URL as people may see it. Of http and https all userinfo goes, for a user name is often a token; elsewhere only a
/// password does, because `ssh://git@host` without `git` is another remote. The values in a query string go, too.
/// Text that is no URL (a path, the scp form) comes back as it is.
pub fn redact(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    // The last `@` ends the userinfo: a password with an unescaped `@` must not spill into the host.
    let authority = match authority.rsplit_once('@') {
        None => authority.to_owned(),
        Some((_, host)) if scheme.to_ascii_lowercase().starts_with("http") => host.to_owned(),
        Some((userinfo, host)) => format!("{}@{host}", userinfo.split(':').next().unwrap_or_default()),
    };
    let (path, query) = path.split_once('?').map_or((path, ""), |(path, _)| (path, "?[redacted]"));
    format!("{scheme}://{authority}{path}{query}")
}

/// A URL as people may see it whose path may be a secret, too, as those of chat services' webhooks are.
pub fn redact_path(url: &str) -> String {
    let shown = redact(url);
    let Some((scheme, rest)) = shown.split_once("://") else { return "[redacted]".to_owned() };
    match rest.split_once(['/', '?']) {
        None | Some((_, "")) => shown,
        Some((authority, _)) => format!("{scheme}://{authority}/[redacted]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_print() {
        let source = Source::Value(Secret::new("hunter2"));
        assert_eq!(format!("{source:?}"), "Value([secret])");
    }

    #[test]
    fn one_line_end_is_stripped_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("password");
        for (written, read) in [("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), (" a ", " a "), ("", "")] {
            std::fs::write(&path, written).unwrap();
            assert_eq!(Source::File(path.clone()).read().unwrap().expose(), read, "{written:?}");
        }
        std::fs::write(&path, vec![b'x'; 70_000]).unwrap();
        assert!(matches!(Source::File(path.clone()).read(), Err(Error::TooLong { .. })));
        std::fs::remove_file(&path).unwrap();
        let error = Source::File(path).read().unwrap_err();
        assert!(error.to_string().contains("password"), "{error}");
    }

    #[test]
    fn urls_lose_what_nobody_may_see() {
        for (url, shown) in [
            ("https://bob:s3cret@example.com/x.git", "https://example.com/x.git"),
            ("https://s3cret@example.com:8443/x.git", "https://example.com:8443/x.git"),
            ("HTTPS://bob:s3c@ret@example.com/x", "HTTPS://example.com/x"),
            ("https://hooks.example.com/x?token=s3cret", "https://hooks.example.com/x?[redacted]"),
            ("https://example.com?token=s3cret", "https://example.com?[redacted]"),
            ("https://example.com/a@b", "https://example.com/a@b"),
            ("ssh://git@example.com/x", "ssh://git@example.com/x"),
            ("ssh://git:s3cret@example.com/x", "ssh://git@example.com/x"),
            ("socks5://bob:s3cret@proxy:1080", "socks5://bob@proxy:1080"),
            ("git@example.com:x.git", "git@example.com:x.git"),
            ("/srv/x.git", "/srv/x.git"),
        ] {
            assert_eq!(redact(url), shown);
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
}
