//! Values that must not be seen: they print as a placeholder, are read from their file each time they are needed, and
//! are wiped when dropped. Every one of them is known from the moment it is made, and what leaves the process goes
//! through [`redacted`]: the log, stderr, answers of the listener, files. What a server or a program said goes through
//! [`quoted`] where it is quoted, before anything of it is cut off.
//!
//! It doesn't protect memory against a debugger, and it doesn't watch files: who needs a secret reads it anew.

mod readings;
mod registry;
mod remote;

use std::ffi::OsStr;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use secrecy::{ExposeSecret, SecretString};

use crate::detached_io;

#[cfg(any(test, fuzzing))]
pub(crate) use registry::fuzz;
pub use registry::{REDACTED, Redacting, is_public, quoted, quoted_bytes, redacted, redacted_bytes};
pub use remote::{know_remote, know_url, know_urls, learn, redact, redact_path, shown_user};

/// A secret file larger than this is none: the wrong file is mounted.
const MAX_FILE: u64 = 64 << 10;

/// A password, a token, a webhook key.
#[derive(Clone)]
pub struct Secret(Arc<SecretString>);

impl Secret {
    /// Wraps a value, which is known from now on for as long as it is held and for some time after: a server may
    /// repeat a password that was rotated.
    pub fn new(value: impl AsRef<str>) -> Self {
        Self(registry::held(value.as_ref()))
    }

    /// Wraps a text that has secrets in it and other things, too. The code that takes a secret out of it makes it
    /// known.
    pub fn holder(text: impl Into<String>) -> Self {
        Self(Arc::new(SecretString::from(text.into())))
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

/// Makes a value known for as long as the process runs: what the configuration holds.
pub fn know(value: &str) {
    registry::add_for_process(value);
}

/// Makes a user name known, unless it is [public](is_public) or too short for a token.
pub fn know_user(name: &str) {
    if name.len() >= readings::SHORTEST {
        know(name);
    }
}

/// Makes the value of a header known, and each word of it: `Bearer x` is repeated as `x`, too, and `Basic` is a user
/// name and a password in base64.
pub fn know_header(value: &str) {
    know(value);
    for word in value.split([' ', '\t', ',', ';']).filter(|word| !word.is_empty()) {
        know(word);
        word.split('=').for_each(know);
        let decoded = STANDARD.decode(word).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        if let Some((username, password)) = decoded.as_deref().and_then(|pair| pair.split_once(':')) {
            know_user(username);
            know(password);
        }
    }
}

/// Makes the name of a header or of a setting known, unless it looks like one: letters and dashes.
pub fn know_name(name: &str) {
    if !is_name(name) {
        know(name);
    }
}

/// Whether a name of a header or of a setting says what it is, and is not a secret that was put in its place.
pub fn is_name(name: &str) -> bool {
    name.len() < readings::SHORTEST
        || (name.len() <= 32 && name.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-'))
}

/// A user name and its password as they are sent over http.
pub fn basic(username: &str, password: &Secret) -> Secret {
    Secret::new(STANDARD.encode(format!("{username}:{}", password.expose())))
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
    /// The secret as it is now. Of a file, one trailing line end is not part of the secret: editors and `echo` add it,
    /// and no protocol we speak could carry it.
    ///
    /// # Errors
    /// When the file cannot be read, or not within `limit`.
    pub async fn now(&self, limit: Duration) -> Result<Secret, Error> {
        match self {
            Self::Value(secret) => Ok(secret.clone()),
            Self::File(path) => within(limit, path, read_file).await,
        }
    }
}

/// Reads a file that has secrets in it and other things, too, within `limit`.
pub async fn read_holder(path: &Path, limit: Duration) -> Result<Secret, Error> {
    within(limit, path, |path| Ok(Secret::holder(read_text(path)?))).await
}

async fn within(
    limit: Duration,
    path: &Path,
    read: fn(&Path) -> Result<Secret, Error>,
) -> Result<Secret, Error> {
    let own = path.to_owned();
    let late = || Error::Late { path: path.to_owned(), after: limit };
    let read = tokio::time::timeout(limit, detached_io::run(path, move || read(&own))).await;
    read.map_err(|_| late())?.unwrap_or_else(|| Err(late()))
}

fn read_file(path: &Path) -> Result<Secret, Error> {
    let mut text = read_text(path)?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(Secret::new(text))
}

fn read_text(path: &Path) -> Result<String, Error> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::with_capacity(256);
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(Error::TooLong { path: path.to_owned() });
    }
    String::from_utf8(bytes).map_err(|_| Error::NotText { path: path.to_owned() })
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
    /// It hangs, as a file on a network that is gone may.
    #[error("{} could not be read within {after:?}", path.display())]
    Late {
        /// The file.
        path: PathBuf,
        /// The limit.
        after: Duration,
    },
    /// No password is that long.
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
const SECRETS: [&str; 7] = [
    "PASSWORD",
    "CREDENTIAL",
    "GITHUB_APP_PRIVATE_KEY",
    "ASKPASS_URL",
    "WEBHOOK_URL",
    "GIT_CONFIG",
    "GIT_CONFIG_ADD",
];

/// The prefixes that we and git-sync give to variables.
const PREFIXES: [&str; 3] = ["TREESWAP_", "GITSYNC_", "GIT_SYNC_"];

/// The names of our own user; they may be the user name of a credential, too.
const OWN_NAME: [&str; 5] = ["USER", "LOGNAME", "USERNAME", "HOME", "PWD"];

/// Whether a variable of our own environment holds a secret by its name, so that a program that is none of our
/// business should not see it.
pub fn in_variable(name: &OsStr, value: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let value = value.to_string_lossy();
    let Some(flag) = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)) else { return false };
    SECRETS.contains(&flag) || (flag == "REPO" && redact(&value) != value)
}

/// Whether a hook must not have a variable: it holds a secret [by its name](in_variable), it is one of those in which
/// git gets its settings, or a secret stands in its value, whatever it is called.
pub fn in_variable_of_hook(name: &OsStr, value: &OsStr) -> bool {
    let git = ["GIT_CONFIG_KEY_", "GIT_CONFIG_VALUE_", "GIT_CONFIG_COUNT", "GIT_CONFIG_PARAMETERS"];
    let text = name.to_string_lossy();
    in_variable(name, value)
        || git.iter().any(|setting| text.starts_with(setting))
        || (!OWN_NAME.contains(&&*text) && registry::is_within(value.as_encoded_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_print() {
        let source = Source::Value(Secret::new("hunter2"));
        assert_eq!(format!("{source:?}"), "Value([secret])");
    }

    #[tokio::test]
    async fn one_line_end_is_stripped_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("password");
        let read = async |path: &Path| Source::File(path.to_owned()).now(Duration::from_secs(60)).await;
        for (written, secret) in [("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), (" a ", " a "), ("", "")] {
            std::fs::write(&path, written).unwrap();
            assert_eq!(read(&path).await.unwrap().expose(), secret, "{written:?}");
        }
        std::fs::write(&path, vec![b'x'; 70_000]).unwrap();
        assert!(matches!(read(&path).await, Err(Error::TooLong { .. })));
        std::fs::remove_file(&path).unwrap();
        let error = read(&path).await.unwrap_err();
        assert!(error.to_string().contains("password"), "{error}");
    }

    #[tokio::test]
    async fn a_file_that_hangs_is_named_and_holds_nothing_up() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let before = threads();
        for _ in 0..50 {
            let error = Source::File(fifo.clone()).now(Duration::from_millis(2)).await.unwrap_err();
            assert!(matches!(error, Error::Late { .. }) && error.to_string().contains("fifo"), "{error}");
        }
        assert!(threads() < before + 40, "a thread for every attempt: {before} became {}", threads());
        std::fs::write(&fifo, "of-a-fifo\n").unwrap(); // the reader that hangs gets it and ends
        let _ = rustix::fs::unlink(&fifo);
    }

    #[test]
    fn a_hook_gets_no_variable_with_a_secret_in_it() {
        know("canary-of-the-environment");
        let withheld = |name: &str, value: &str| in_variable_of_hook(name.as_ref(), value.as_ref());
        for (name, value) in [
            ("TREESWAP_PASSWORD", "x"),
            ("GITSYNC_GIT_CONFIG", "x"),
            ("TREESWAP_GIT_CONFIG_ADD", "x"),
            ("GIT_SYNC_PASSWORD", "x"),
            ("GIT_CONFIG_COUNT", "1"),
            ("GIT_CONFIG_KEY_0", "http.extraHeader"),
            ("GIT_CONFIG_VALUE_0", "x"),
            ("GIT_CONFIG_PARAMETERS", "x"),
            ("TREESWAP_REPO", "https://bob:pw@h/x"),
            ("HTTPS_PROXY", "http://bob:canary-of-the-environment@proxy"),
            ("SOMETHING_ELSE", "canary-of-the-environment"),
            ("HEX", "63616e6172792d6f662d7468652d656e7669726f6e6d656e74"),
            ("HEX", "63616E6172792D6F662D7468652D656E7669726F6E6D656E74"),
            ("PERCENT", "%63%61%6e%61%72%79%2D%6f%66%2D%74%68%65%2D%65%6e%76%69%72%6f%6e%6d%65%6e%74"),
            ("AUTH", "eyJhdXRoIjoiYm9iOmNhbmFyeS1vZi10aGUtZW52aXJvbm1lbnQifQ=="),
        ] {
            assert!(withheld(name, value), "{name}={value}");
        }
        for (name, value) in [
            ("PATH", "/bin:/usr/bin"),
            ("TREESWAP_REPO", "https://h/x"),
            ("TREESWAP_PASSWORD_FILE", "/etc/git-secret/password"),
            ("GIT_SSH_COMMAND", "ssh -i /key"),
            ("HTTPS_PROXY", "http://proxy:3128"),
            ("USER", "canary-of-the-environment"),
        ] {
            assert!(!withheld(name, value), "{name}={value}");
        }
    }
}
