//! Secrets and redaction.
//!
//! A [`Secret`] prints as a placeholder, and is read from its file each time it is needed. Its value is registered when
//! it is made, unless it is a [`Secret::holder`]. What the process says about its work goes through [`redacted`]: the
//! log, stderr, responses of the listener, the status, the errors in the ledgers. What it publishes stays as its author
//! wrote it. Text of a server or a program goes through [`quoted`] before it is quoted or shortened.
//!
//! A [`Secret`] is overwritten when it is dropped, but the copies that are made of it are not: by reading its file, by
//! parsing it, by encoding and sending it. Memory is not protected against a debugger or a core dump. Files are not
//! watched: the code that needs a secret reads it again.

mod json;
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

pub use json::redacted_json;
#[cfg(any(test, fuzzing))]
pub(crate) use registry::fuzz;
pub(crate) use registry::percent_decoded;
pub use registry::{REDACTED, Redacting, is_public, quoted, quoted_bytes, redacted, redacted_bytes};
pub use remote::{
    redact, redact_path, register_arguments_and_environment, register_proxy, register_remote, register_url,
    register_urls, shown_user,
};

/// Largest secret file, in bytes. A larger file is probably the wrong one.
const MAX_FILE: u64 = 64 << 10;

/// A password, a token, a webhook key.
#[derive(Clone)]
pub struct Secret {
    value: Arc<SecretString>,
    is_registered: bool,
}

impl Secret {
    /// Wraps a value and registers it for redaction, for as long as it is held and for some time after: a server may
    /// still repeat a password that was rotated.
    pub fn new(value: impl AsRef<str>) -> Self {
        Self { value: registry::add_while_held(value.as_ref()), is_registered: true }
    }

    /// Wraps a text without registering it: one that contains secrets among other things, which the code that extracts
    /// them has to register; or the password in a URL, which was registered where it was read if it is the operator's,
    /// and is no secret of ours if a commit's author wrote it.
    pub fn holder(text: impl Into<String>) -> Self {
        Self { value: Arc::new(SecretString::from(text.into())), is_registered: false }
    }

    /// Returns false for a [`Self::holder`]. What is made of it must not be registered either: an author could fill the
    /// registry, and take words from the log and variables from hooks.
    pub fn is_registered(&self) -> bool {
        self.is_registered
    }

    /// The value itself. An audit has to look at every call.
    pub fn expose(&self) -> &str {
        self.value.expose_secret()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// Registers a value for redaction until the process ends; for values in the configuration.
pub fn register(value: &str) {
    registry::add_for_process(value);
}

/// Registers a value that surely is a password, until the process ends.
fn register_password(value: &str) {
    register(value);
    registry::add_short_password(value);
}

/// Registers a user name, unless it is [public](is_public) or too short for a token.
pub fn register_user(name: &str) {
    if name.len() >= readings::MIN_LENGTH {
        register(name);
    }
}

/// Registers the value of a header and each word of it: a server may repeat only the `x` of `Bearer x`, and `Basic` is
/// followed by user name and password in base64.
pub fn register_header(value: &str) {
    register(value);
    for word in value.split([' ', '\t', ',', ';']).filter(|word| !word.is_empty()) {
        register(word);
        word.split('=').for_each(register);
        let decoded = STANDARD.decode(word).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        if let Some((username, password)) = decoded.as_deref().and_then(|pair| pair.split_once(':')) {
            register_user(username);
            register(password);
        }
    }
}

/// Registers the password in a command that runs ssh through another program: `sshpass -p PASSWORD ssh`, or
/// `env SSHPASS=PASSWORD sshpass -e ssh`. A git program that runs it may repeat it. After `ssh`, `-p` is a port; if no
/// word is `ssh`, a wrapper of another name runs it, and any `-p` may be a password.
pub fn register_ssh_command(command: &str) {
    let words = shell_words(command);
    let ssh = words.iter().position(|word| word == "ssh" || word.ends_with("/ssh")).unwrap_or(words.len());
    let mut before = "";
    for word in &words[..ssh] {
        match word.split_once('=') {
            _ if before == "-p" => register(word),
            Some((name, value)) if name.to_ascii_lowercase().contains("pass") => register(value),
            _ => register(word.strip_prefix("-p").unwrap_or_default()),
        }
        if word.contains(BLANKS) {
            register_ssh_command(word); // as in `sh -c 'sshpass -p PASSWORD ssh'`
        }
        before = word;
    }
}

/// The characters that separate words in a shell.
const BLANKS: [char; 3] = [' ', '\t', '\n'];

/// Splits a command into words as a shell does, without quotes and the backslashes of escapes. A word that contains a
/// blank is shorter than the command, as it was quoted there.
pub(crate) fn shell_words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = command.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (None, c) if BLANKS.contains(&c) => words.extend(word.take()),
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (Some(end), c) if c == end => quote = None,
            (None, '\\') => word.get_or_insert_default().extend(chars.next()),
            (Some('"'), '\\') => {
                let next = chars.next();
                let is_escape = matches!(next, Some('"' | '\\' | '$' | '`'));
                word.get_or_insert_default().extend((!is_escape).then_some('\\').into_iter().chain(next));
            }
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// Registers the name of a header or of a setting unless it [looks like a name](is_name): it may be a misplaced secret.
pub fn register_name(name: &str) {
    if !is_name(name) {
        register(name);
    }
}

/// Returns true if a text looks like the name of a header or of a setting (short, or only letters and dashes), and not
/// like a secret in the wrong place.
pub fn is_name(name: &str) -> bool {
    name.len() < readings::MIN_LENGTH
        || (name.len() <= 32 && name.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-'))
}

/// The credentials of HTTP Basic authentication: `username:password` in base64. What is sent as a password surely is
/// one, wherever it came from. They are registered if the password is.
pub fn basic(username: &str, password: &Secret) -> Secret {
    let pair = STANDARD.encode(format!("{username}:{}", password.expose()));
    if !password.is_registered() {
        return Secret::holder(pair);
    }
    registry::add_short_password(password.expose());
    Secret::new(pair)
}

/// Where a secret comes from.
#[derive(Clone, Debug)]
pub enum SecretFrom {
    /// The value itself (from an environment variable or the userinfo of a URL).
    Value(Secret),
    /// A file, read each time: rotating it needs no restart.
    File(PathBuf),
}

impl SecretFrom {
    /// The current value. One trailing line end of a file is dropped: editors and `echo` add it, and no protocol that
    /// we use could transmit it. Fails if the file cannot be read within `limit`.
    pub async fn now(&self, limit: Duration) -> Result<Secret, Error> {
        match self {
            Self::Value(secret) => Ok(secret.clone()),
            Self::File(path) => within(limit, path, read_file).await,
        }
    }
}

/// Reads a file that contains secrets among other things, within `limit`. See [`Secret::holder`].
pub async fn read_holder(path: &Path, limit: Duration) -> Result<Secret, Error> {
    within(limit, path, |path| Ok(Secret::holder(read_text(path)?))).await
}

/// Reads a file on another thread, for `limit` at most.
async fn within(
    limit: Duration,
    path: &Path,
    read: fn(&Path) -> Result<Secret, Error>,
) -> Result<Secret, Error> {
    let owned_path = path.to_owned();
    let late = || Error::Late { path: path.to_owned(), after: limit };
    let read = tokio::time::timeout(limit, detached_io::run(path, move || read(&owned_path))).await;
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
    registry::add_short_password(&text);
    Ok(Secret::new(text))
}

/// Reads a file as every secret is read, without registering its content. Blocking.
pub(crate) fn read_text(path: &Path) -> Result<String, Error> {
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
    /// The file system returned an error.
    #[error("cannot read the secret in {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// Reading takes too long, for example on an unreachable network file system.
    #[error("{} could not be read within {after:?}", path.display())]
    Late {
        /// The file.
        path: PathBuf,
        /// The limit.
        after: Duration,
    },
    /// The file is longer than any secret.
    #[error("{} is longer than {} KiB, too long for a secret", path.display(), MAX_FILE >> 10)]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// The file is not UTF-8.
    #[error("{} is not UTF-8 text, so it is not a secret", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
    },
}

/// Environment variables that may hold a secret, without their prefix.
const SECRETS: [&str; 7] = [
    "PASSWORD",
    "CREDENTIAL",
    "GITHUB_APP_PRIVATE_KEY",
    "ASKPASS_URL",
    "WEBHOOK_URL",
    "GIT_CONFIG",
    "GIT_CONFIG_ADD",
];

/// Prefixes of our and of git-sync's environment variables.
const PREFIXES: [&str; 3] = ["TREESWAP_", "GITSYNC_", "GIT_SYNC_"];

/// Variables that contain the name of our own user. That name may also be the user name of a credential, so its
/// occurrence does not count as a secret.
const OWN_NAME: [&str; 5] = ["USER", "LOGNAME", "USERNAME", "HOME", "PWD"];

/// Returns true if, judging by its name, a variable of our environment holds a secret that other programs must not get.
pub fn in_variable(name: &OsStr, value: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let value = value.to_string_lossy();
    let Some(flag) = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)) else { return false };
    SECRETS.contains(&flag) || (flag == "REPO" && redact(&value) != value)
}

/// Removes the variables from a child program's environment that may hold one of our secrets. Call it before variables
/// are set: it removes those, too, if ours of the same name holds a secret.
pub fn withhold_from(command: &mut std::process::Command) {
    for (name, _) in std::env::vars_os().filter(|(name, value)| is_withheld(name, value)) {
        command.env_remove(name);
    }
}

/// Returns true if a child program must not get a variable of our environment: it holds a secret
/// [by its name](in_variable), it is one of those that pass settings to git or a password to ssh, it is the URL of a
/// proxy with a user name, or its value contains a registered secret or is a password that is too short to be looked
/// for in other text.
fn is_withheld(name: &OsStr, value: &OsStr) -> bool {
    let git = ["GIT_CONFIG_KEY_", "GIT_CONFIG_VALUE_", "GIT_CONFIG_COUNT", "GIT_CONFIG_PARAMETERS"];
    let text = name.to_string_lossy();
    in_variable(name, value)
        || text == "SSHPASS"
        || git.iter().any(|setting| text.starts_with(setting))
        || (remote::is_proxy(&text) && value.as_encoded_bytes().contains(&b'@'))
        || (!OWN_NAME.contains(&&*text) && registry::is_within(value.as_encoded_bytes()))
}

#[cfg(test)]
mod tests;
