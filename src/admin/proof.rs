//! The signatures and tokens of a webhook request, and the secrets that they are verified with.

use std::path::PathBuf;

use aws_lc_rs::hmac;
use axum::http::{HeaderMap, HeaderValue, header};

use crate::fsx;
use crate::secret::Secret;

/// The largest file of secrets, in bytes.
const MAX_SECRET_FILE: u64 = 64 << 10;

/// An active secret.
pub(super) struct Key {
    key: hmac::Key,
    /// The HMAC of the secret under itself, which a token's HMAC is compared with.
    self_tag: hmac::Tag,
}

impl Key {
    pub(super) fn new(secret: &[u8]) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let self_tag = hmac::sign(&key, secret);
        Self { key, self_tag }
    }

    /// Starts the HMAC of a body.
    pub(super) fn context(&self) -> hmac::Context {
        hmac::Context::with_key(&self.key)
    }

    /// Returns true if the token is the secret. Compares their HMACs, so that the time it takes reveals neither content
    /// nor length of the secret.
    fn matches(&self, token: &[u8]) -> bool {
        hmac::verify(&self.key, token, self.self_tag.as_ref()).is_ok()
    }
}

/// Reads the secrets of all files, one a line; empty lines are skipped. A file that is too large is an error: the part
/// of a line before a cut would be accepted as a secret. Blocking.
pub(super) fn read_keys(files: &[PathBuf]) -> std::io::Result<Vec<Key>> {
    let mut keys = Vec::new();
    for path in files {
        let read = std::fs::File::open(path).and_then(|file| fsx::read_whole(file, MAX_SECRET_FILE));
        let content =
            read.map_err(|error| std::io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        keys.extend(
            content.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty()).map(
                |line| {
                    Secret::new(String::from_utf8_lossy(line)); // registers it for redaction
                    Key::new(line)
                },
            ),
        );
    }
    Ok(keys)
}

/// The signatures, tokens and delivery ids in a request's headers. A header that is given twice is ignored.
pub(super) struct Claims {
    signatures: Vec<[u8; 32]>,
    tokens: Vec<Vec<u8>>,
    deliveries: Vec<String>,
}

impl Claims {
    pub(super) fn read(headers: &HeaderMap) -> Self {
        let once = |name: &str| {
            let mut values = headers.get_all(name).iter();
            values.next().filter(|_| values.next().is_none()).map(HeaderValue::as_bytes)
        };
        let hub = once("x-hub-signature-256").and_then(|value| value.strip_prefix(b"sha256="));
        let gitea = [once("x-gitea-signature"), once("x-forgejo-signature")];
        let bearer = once(header::AUTHORIZATION.as_str()).and_then(|value| {
            let (scheme, token) = value.split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
        });
        // GitLab's X-Gitlab-Event-UUID is no id of a delivery: webhooks that an earlier webhook caused carry that one's
        // (its recursion detection). A retry has the same Idempotency-Key.
        let deliveries = ["x-github-delivery", "x-gitea-delivery", "x-forgejo-delivery", "idempotency-key"];
        Self {
            signatures: std::iter::once(hub).chain(gitea).flatten().filter_map(hex).collect(),
            tokens: [once("x-gitlab-token"), bearer].into_iter().flatten().map(<[u8]>::to_vec).collect(),
            deliveries: deliveries
                .into_iter()
                .filter_map(|name| Some(format!("{name} {}", String::from_utf8_lossy(once(name)?))))
                .filter(|delivery| delivery.len() <= 256)
                .collect(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.signatures.is_empty() && self.tokens.is_empty()
    }

    /// Returns false if the request cannot be genuine. Before the body is read a token can be verified, a signature
    /// cannot.
    pub(super) fn may_be_valid(&self, keys: &[Key]) -> bool {
        !self.signatures.is_empty() || self.token_valid(keys)
    }

    /// Returns true if a token is one of the secrets.
    fn token_valid(&self, keys: &[Key]) -> bool {
        self.tokens.iter().any(|token| keys.iter().any(|key| key.matches(token)))
    }

    /// Returns true if a signature is one of the body's HMACs, or a token is one of the secrets.
    pub(super) fn valid(&self, keys: &[Key], tags: &[hmac::Tag]) -> bool {
        let signed = |signature: &[u8; 32]| {
            tags.iter()
                .any(|tag| aws_lc_rs::constant_time::verify_slices_are_equal(tag.as_ref(), signature).is_ok())
        };
        self.signatures.iter().any(signed) || self.token_valid(keys)
    }

    /// Returns the delivery ids and signatures, by which a replay is recognized.
    pub(super) fn traces(self) -> Vec<String> {
        let signatures = self.signatures.iter().map(|signature| format!("{signature:02x?}"));
        self.deliveries.into_iter().chain(signatures).collect()
    }
}

/// Parses 64 hexadecimal digits of either case.
fn hex(text: &[u8]) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        let high = (pair[0] as char).to_digit(16)?;
        let low = (pair[1] as char).to_digit(16)?;
        *byte = (high * 16 + low) as u8; // two hexadecimal digits never exceed 255
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_signature_matches_githubs_documented_example() {
        // https://docs.github.com/webhooks/using-webhooks/validating-webhook-deliveries
        let key = Key::new(b"It's a Secret to Everybody");
        let tag = hmac::sign(&key.key, b"Hello, World!");
        let documented = b"757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        assert_eq!(hex(documented).unwrap(), tag.as_ref());
    }

    #[test]
    fn a_file_that_is_too_large_has_no_secret() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let files = [file.path().to_owned()];
        std::fs::write(file.path(), "x\n".repeat(MAX_SECRET_FILE as usize / 2)).unwrap();
        assert_eq!(read_keys(&files).ok().map(|keys| keys.len()), Some(MAX_SECRET_FILE as usize / 2));
        std::fs::write(file.path(), "x\n".repeat(MAX_SECRET_FILE as usize / 2) + "y").unwrap();
        let error = read_keys(&files).err().unwrap().to_string();
        assert_eq!(error, format!("{}: it has more than 64 KiB", file.path().display()));
    }

    #[test]
    fn a_token_is_compared_whole() {
        let key = Key::new(b"correct horse");
        assert!(key.matches(b"correct horse"));
        for other in [&b""[..], b"correct hors", b"correct horse ", b"Correct horse"] {
            assert!(!key.matches(other));
        }
    }
}
