//! Loads private keys from files. Keys with a passphrase are refused, because there is nobody to ask for it.

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use russh::keys::{HashAlg, PrivateKey, decode_secret_key};
use secrecy::{ExposeSecret, SecretString};

use super::{Error, FILE_MAX};
use crate::fsx;

/// A private key, and the file it came from.
#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) file: PathBuf,
    pub(super) key: Arc<PrivateKey>,
}

impl Key {
    /// The file and the fingerprint, for messages.
    pub(super) fn describe(&self) -> String {
        format!("{} ({})", self.file.display(), self.key.fingerprint(HashAlg::Sha256))
    }
}

/// Loads the keys from those files that exist. A key that cannot be used is logged as a warning, and is an error only
/// if there is no usable key at all.
pub(super) fn load(files: &[PathBuf]) -> Result<Vec<Key>, Error> {
    let mut keys = Vec::new();
    let mut failed = Vec::new();
    for file in files {
        match read(file) {
            Ok(Some(key)) => keys.push(key),
            Ok(None) => tracing::debug!(file = %file.display(), "no ssh key here"),
            Err(error) => failed.push(error),
        }
    }
    if !keys.is_empty() {
        for error in failed {
            tracing::warn!(%error, "skipped an ssh key");
        }
        return Ok(keys);
    }
    Err(failed.into_iter().next().unwrap_or_else(|| Error::NoKeys { files: files.to_vec() }))
}

/// Returns why the content of a file is no key that can be used, and what to do. `None` if it is one, and if the file
/// cannot be read.
pub fn unusable_key(file: &Path) -> Option<String> {
    let error = read(file).err().filter(|error| !matches!(error, Error::ReadKey { .. }))?;
    let hint = error.hints().into_iter().next().unwrap_or_default();
    Some(format!("{error}; {hint}"))
}

/// Reads one key. Returns `None` if the file does not exist.
fn read(file: &Path) -> Result<Option<Key>, Error> {
    let text = match std::fs::File::open(file).and_then(|from| fsx::read_text(from, FILE_MAX)) {
        Ok(text) => SecretString::from(text),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        // What `read_text` refuses by itself: no text, or too much of it.
        Err(error) if matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::Other) => {
            return Err(Error::BadKey { file: file.to_owned(), why: error.to_string() });
        }
        Err(source) => return Err(Error::ReadKey { file: file.to_owned(), source }),
    };
    let mode = std::fs::metadata(file).map_or(0, |about| about.permissions().mode());
    if mode & 0o004 != 0 {
        tracing::debug!(file = %file.display(), mode = format!("{:04o}", mode & 0o7777), "this ssh key is world-readable");
    }
    let key = parse(text.expose_secret(), file)?;
    Ok(Some(Key { file: file.to_owned(), key: Arc::new(key) }))
}

fn parse(text: &str, file: &Path) -> Result<PrivateKey, Error> {
    // Checked here because russh supports only one of the several ciphers of old encrypted PEM; and whichever it is,
    // there is no terminal to ask for the passphrase.
    if text.contains("\nProc-Type: 4,ENCRYPTED") || text.contains("-----BEGIN ENCRYPTED PRIVATE KEY-----") {
        return Err(Error::EncryptedKey { file: file.to_owned() });
    }
    // Editors and templates leave blanks at line ends, which russh's parser does not accept.
    let tidy = SecretString::from(text.lines().map(str::trim).collect::<Vec<_>>().join("\n"));
    match decode_secret_key(tidy.expose_secret(), None) {
        Ok(key) if key.is_encrypted() => Err(Error::EncryptedKey { file: file.to_owned() }),
        Ok(key) => Ok(key),
        Err(russh::keys::Error::KeyIsEncrypted) => Err(Error::EncryptedKey { file: file.to_owned() }),
        Err(error) => Err(Error::BadKey { file: file.to_owned(), why: why(text, &error) }),
    }
}

/// Whether what is between the first and the last line is not what a key consists of.
fn is_cut(error: &russh::keys::Error) -> bool {
    use russh::keys::{Error as Bad, ssh_key};
    match error {
        Bad::Decode(_) | Bad::Der(_) | Bad::SshEncoding(_) | Bad::KeyIsCorrupt => true,
        Bad::SshKey(error) => matches!(error, ssh_key::Error::Encoding(_) | ssh_key::Error::FormatEncoding),
        _ => false,
    }
}

/// Explains why a file is not a private key.
fn why(text: &str, error: &russh::keys::Error) -> String {
    let text = text.trim_start();
    if text.is_empty() {
        "it is empty".to_owned()
    } else if text.starts_with("ssh-")
        || text.starts_with("ecdsa-")
        || text.starts_with("-----BEGIN PUBLIC KEY")
    {
        "it is a public key".to_owned()
    } else if !text.contains("PRIVATE KEY-----") {
        "it holds no private key".to_owned()
    } else if !text.contains("-----END ") || is_cut(error) {
        "it is cut off or damaged".to_owned()
    } else {
        error.to_string().to_lowercase()
    }
}
