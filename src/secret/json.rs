//! Redacts JSON documents of ours.

use std::borrow::Cow;

use super::redacted;

/// Fields whose values are words of ours. A reader of the document could not parse it without them.
const WORDS: [&str; 2] = ["trigger", "outcome"];

/// Redacts the values of a serialized document, and not the names of its fields: a user name that is also one of them
/// (`remote`, `source`) would make the document unreadable.
pub fn redacted_json(json: &str) -> String {
    let mut clean = String::with_capacity(json.len());
    let mut field = "";
    let mut rest = json;
    while let Some(quote) = rest.find('"') {
        let (before, text) = rest.split_at(quote);
        let (string, after) = text.split_at(string_end(text));
        clean.push_str(before);
        rest = after;
        if after.starts_with(':') {
            field = string.trim_matches('"');
        } else if !WORDS.contains(&field) {
            clean.push_str(&redacted_string(string));
            continue;
        }
        clean.push_str(string);
    }
    clean.push_str(rest);
    clean
}

/// Redacts a string with its quotes. It is redacted unescaped: of an escape, nothing may remain but the whole.
fn redacted_string(quoted: &str) -> Cow<'_, str> {
    let Ok(plain) = serde_json::from_str::<String>(quoted) else { return redacted(quoted) };
    match redacted(&plain) {
        Cow::Borrowed(_) => Cow::Borrowed(quoted),
        Cow::Owned(clean) => Cow::Owned(serde_json::Value::String(clean).to_string()),
    }
}

/// The length of the string that a text begins with, with its quotes.
fn string_end(text: &str) -> usize {
    let mut escaped = true; // the first quote begins it
    let is_end = |byte: u8| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    };
    text.bytes().position(is_end).map_or(text.len(), |quote| quote + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::{REDACTED, register};

    #[test]
    fn values_are_redacted_and_the_document_stays_what_it_is() {
        register("canary-of-a-field");
        let document = serde_json::json!({
            "canary-of-a-field": "a \"canary-of-a-field\": \\",
            "list": ["\\", "canary-of-a-field", 1, null],
            "trigger": "canary-of-a-field",
        });
        for text in [document.to_string(), serde_json::to_string_pretty(&document).unwrap()] {
            let clean: serde_json::Value = serde_json::from_str(&redacted_json(&text)).unwrap();
            let expected = serde_json::json!({
                "canary-of-a-field": format!("a \"{REDACTED}\": \\"),
                "list": ["\\", REDACTED, 1, null],
                "trigger": "canary-of-a-field",
            });
            assert_eq!(clean, expected, "{text}");
        }
    }
}
