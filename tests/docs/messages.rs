//! The messages that troubleshooting quotes are those of the source.

use std::path::Path;

use super::{document, home};

/// All of the source and of what is deployed, with strings that are broken over lines joined.
fn source() -> String {
    fn read(dir: &Path, into: &mut String) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.extension().is_some_and(|extension| extension == "rs") {
                _ if path.is_dir() => read(&path, into),
                true => *into += &std::fs::read_to_string(&path).unwrap(),
                false => {}
            }
        }
    }
    let mut text = String::new();
    read(&home().join("src"), &mut text);
    let lines: Vec<&str> = text.split("\\\n").collect();
    let (first, rest) = lines.split_first().unwrap();
    rest.iter().fold((*first).to_owned(), |text, line| text + line.trim_start())
}

/// The parts of a message that it always has: what is between `…` and words in capitals, which stand for something.
fn literal_parts(message: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for word in message.split_inclusive(|c: char| !c.is_alphanumeric()) {
        let end = word.trim_end_matches(|c: char| !c.is_alphanumeric());
        let stands_for_something = !end.is_empty() && end.chars().all(|c| c.is_ascii_uppercase());
        let literal = if stands_for_something { &word[end.len()..] } else { word };
        if stands_for_something {
            parts.push(String::new());
        }
        for (number, part) in literal.split('…').enumerate() {
            if number > 0 {
                parts.push(String::new());
            }
            parts.last_mut().unwrap().push_str(part);
        }
    }
    let trimmed = parts.iter().map(|part| part.trim_start_matches([' ', ':', ',']).trim_end().to_owned());
    trimmed.filter(|part| part.chars().any(char::is_alphabetic)).collect()
}

#[test]
fn messages_are_cut_at_what_stands_for_something() {
    assert_eq!(literal_parts("refusing ROOT: with --layout=LAYOUT"), ["refusing", "with --layout="]);
    assert_eq!(literal_parts("… it was created by Prow"), ["it was created by Prow"]);
    assert_eq!(literal_parts("TLS with X: …"), ["with"]);
}

#[test]
fn every_message_that_is_quoted_is_one() {
    let (source, page) = (source(), document("docs/troubleshooting.md"));
    let headings = page.lines().filter_map(|line| line.strip_prefix("### "));
    let quoted = headings.filter(|heading| heading.starts_with('`'));
    let messages: Vec<&str> = quoted.flat_map(|heading| heading.split('`').skip(1).step_by(2)).collect();
    assert!(messages.len() > 40, "the messages were not found");
    let mut wrong = Vec::new();
    for message in messages {
        let parts = literal_parts(message);
        assert!(!parts.is_empty(), "`{message}` quotes nothing");
        // Many begin with "cannot", and what could not be done is a text of its own.
        let act = |part: &str| {
            part.strip_prefix("cannot ").is_some_and(|act| source.contains(&format!("\"{act}\"")))
        };
        let missing = |part: &String| !source.contains(part.as_str()) && !act(part);
        wrong.extend(parts.into_iter().filter(missing).map(|part| (message, part)));
    }
    assert!(wrong.is_empty(), "no message has these words: {wrong:#?}");
}
