//! Foreign text in errors.

use crate::secret;

/// At most `limit` bytes of what a server or a program said, without any part of a secret, which it has just received,
/// and as printable ASCII, so that no answer can play with a terminal or a log.
pub(super) fn escaped(bytes: &[u8], limit: usize) -> String {
    let bytes = secret::quoted_bytes(bytes);
    let text = &bytes[..bytes.len().min(limit)];
    let more = if bytes.len() > limit { "..." } else { "" };
    let mut shown = String::with_capacity(text.len());
    for byte in text {
        match byte {
            b'\'' | b'"' => shown.push(char::from(*byte)), // what quotes a name is no danger, and reads better
            byte => shown.extend(std::ascii::escape_default(*byte).map(char::from)),
        }
    }
    format!("{shown}{more}")
}

/// The last of an error's causes: those above it only say which part of the client noticed it.
pub(super) fn root_cause(error: &reqwest::Error) -> Box<dyn std::error::Error + Send + Sync> {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string().into()
}
