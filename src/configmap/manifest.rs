//! One ConfigMap as the YAML that kubectl takes.
//!
//! Text is written as a block where it comes back byte for byte from one, else as a JSON string, which is YAML, too.
//! Keys and names are always quoted, so that none of them is a boolean to any version of YAML.

use std::fmt::Write as _;

use super::payload::Payload;
use super::rules::ClusterNamespace;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// A document, from `---` to its last newline.
pub fn manifest(name: &str, place: &ClusterNamespace, payload: &Payload) -> String {
    let mut out = format!(
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {}\n  namespace: {}\n  labels:\n    \
         app.kubernetes.io/managed-by: treeswap\n",
        quoted(name),
        quoted(&place.namespace)
    );
    let (text, binary): (Vec<_>, Vec<_>) =
        payload.values().iter().partition(|(_, value)| value.text().is_some());
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
                None => base64(&mut out, value.bytes()),
            }
            out.push('\n');
        }
    }
    out
}

/// A text as YAML, without a newline after it.
fn scalar(out: &mut String, text: &str) {
    if !is_plain(text) {
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

/// Whether a block gives the text back as it is: printable, its first line begins with no space, and no line is
/// spaces alone, which parsers differ about.
fn is_plain(text: &str) -> bool {
    let printable = |c: char| matches!(c, '\n' | ' '..='~' | '\u{a0}'..='\u{2027}' | '\u{202a}'..='\u{d7ff}' | '\u{e000}'..='\u{fefe}');
    text.starts_with(|c: char| c != ' ' && c != '\n')
        && text.chars().all(printable)
        && text.split('\n').all(|line| line.is_empty() || !line.trim_matches(' ').is_empty())
}

/// A JSON string in which everything is escaped that some YAML parser does not take as it is.
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
            ' '..='~' | '\u{a0}'..='\u{2027}' | '\u{202a}'..='\u{d7ff}' | '\u{e000}'..='\u{fefe}' => {
                out.push(c);
            }
            c => {
                // YAML has no surrogates: beyond four digits there is a longer escape.
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

fn base64(out: &mut String, bytes: &[u8]) {
    for chunk in bytes.chunks(3) {
        let word = u32::from(chunk[0]) << 16
            | u32::from(*chunk.get(1).unwrap_or(&0)) << 8
            | u32::from(*chunk.get(2).unwrap_or(&0));
        for place in 0..4 {
            let letter = ALPHABET[(word >> (18 - 6 * place)) as usize & 63];
            out.push(if place <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    if bytes.is_empty() {
        out.push_str("\"\"");
    }
}
