//! Makes text from servers and programs safe for error messages.

use crate::secret;

/// Returns the first `limit` bytes of a response, with known secrets redacted (the sender has just received one and may
/// repeat it), as printable ASCII, so that no response can inject control sequences into a terminal or a log.
pub(super) fn escaped(bytes: &[u8], limit: usize) -> String {
    let bytes = secret::quoted_bytes(bytes);
    let text = &bytes[..bytes.len().min(limit)];
    let more = if bytes.len() > limit { "..." } else { "" };
    let mut shown = String::with_capacity(text.len());
    for byte in text {
        match byte {
            b'\'' | b'"' => shown.push(char::from(*byte)), // harmless, and easier to read unescaped
            byte => shown.extend(std::ascii::escape_default(*byte).map(char::from)),
        }
    }
    format!("{shown}{more}")
}

/// A text of a server or a program as one line of at most 400 characters, without control characters and secrets.
/// Returns `None` if nothing is left.
pub(super) fn clean_message(words: &str) -> Option<String> {
    let lines = words.lines().map(|line| line.chars().filter(|c| !c.is_control()).collect::<String>());
    let line = lines
        .map(|line| line.trim().to_owned())
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join("; ");
    let short: String = secret::quoted(&line).chars().take(400).collect();
    (!short.is_empty()).then_some(short)
}

/// The innermost cause of an error. The outer ones only say which layer of reqwest reported it.
pub(super) fn root_cause(error: &reqwest::Error) -> Box<dyn std::error::Error + Send + Sync> {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string().into()
}
