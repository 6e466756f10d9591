//! Writes one ConfigMap as a YAML manifest for kubectl.
//!
//! A text becomes a block scalar if that preserves every byte, else a double-quoted scalar. Keys and names
//! are always quoted, so that no version of YAML reads one as a boolean.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::data::DesiredData;
use super::rules::ClusterNamespace;

/// Returns the document, from `---` to the final newline.
pub fn manifest(name: &str, place: &ClusterNamespace, data: &DesiredData) -> String {
    let mut out = format!(
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {}\n  namespace: {}\n  labels:\n    \
         app.kubernetes.io/managed-by: treeswap\n",
        quoted(name),
        quoted(&place.namespace)
    );
    let (text, binary): (Vec<_>, Vec<_>) =
        data.values().iter().partition(|(_, value)| value.text().is_some());
    for (field, values) in [("data", text), ("binaryData", binary)] {
        if values.is_empty() {
            continue;
        }
        out.push_str(field);
        out.push_str(":\n");
        for (key, value) in values {
            out.push_str("  ");
            out.push_str(&quoted(key));
            out.push_str(": ");
            match value.text() {
                Some(text) => scalar(&mut out, text),
                None if value.bytes().is_empty() => out.push_str("\"\""),
                None => STANDARD.encode_string(value.bytes(), &mut out),
            }
            out.push('\n');
        }
    }
    out
}

/// Appends a text as a YAML scalar, without a newline at the end.
fn scalar(out: &mut String, text: &str) {
    if !fits_block(text) {
        out.push_str(&quoted(text));
        return;
    }
    let lines = text.trim_end_matches('\n');
    out.push_str(match text.len() - lines.len() {
        0 => "|-",
        1 => "|",
        _ => "|+",
    });
    let body = text.strip_suffix('\n').unwrap_or(text);
    for line in body.split('\n') {
        out.push('\n');
        if !line.is_empty() {
            out.push_str("    ");
            out.push_str(line);
        }
    }
}

/// Returns true if a block scalar preserves the text: it is printable, its first line does not begin with a space, and
/// no line consists of spaces alone, which parsers disagree about.
fn fits_block(text: &str) -> bool {
    text.starts_with(|c: char| c != ' ' && c != '\n')
        && text.chars().all(|c| c == '\n' || is_printable(c))
        && text.split('\n').all(|line| line.is_empty() || !line.trim_matches(' ').is_empty())
}

/// Characters that every YAML parser accepts unescaped.
fn is_printable(c: char) -> bool {
    matches!(c, ' '..='~' | '\u{a0}'..='\u{2027}' | '\u{202a}'..='\u{d7ff}' | '\u{e000}'..='\u{fefe}')
}

/// A double-quoted YAML scalar in which every character is escaped that some YAML parser does not accept unescaped.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if is_printable(c) => out.push(c),
            c => {
                // YAML does not combine surrogates, so a code point beyond four digits needs the eight-digit escape.
                let code = u32::from(c);
                let width = if code > 0xffff { 8 } else { 4 };
                let letter = if code > 0xffff { 'U' } else { 'u' };
                let _ = write!(out, "\\{letter}{code:0width$x}"); // writing to a string does not fail
            }
        }
    }
    out.push('"');
    out
}
