//! A YAML document that keeps what serde_yaml's own types lose: order and repetition of keys, and whether a word was
//! quoted.
//!
//! Prow reads YAML 1.1, where an unquoted `on` is a boolean and `010` is eight; this parser reads both as text. To
//! report such words, one has to know whether they were quoted. Where the parser borrows a text from the source, the
//! byte before the text tells.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A value of the document.
#[derive(Clone, Debug)]
pub(super) enum Node<'a> {
    Null,
    Bool(bool),
    /// A number; for an integer its text in decimal.
    Number(Option<String>),
    Text(Cow<'a, str>),
    List(Vec<Self>),
    Map(Vec<(Self, Self)>),
}

impl Node<'_> {
    /// The value's type, for messages.
    pub(super) fn what(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::Text(_) => "text",
            Self::List(_) => "a list",
            Self::Map(_) => "a mapping",
        }
    }

    /// The byte offset in the source. Only known for text that the parser borrows from the source.
    pub(super) fn offset(&self, source: &str) -> Option<usize> {
        let Self::Text(Cow::Borrowed(text)) = self else { return None };
        let offset = (text.as_ptr() as usize).checked_sub(source.as_ptr() as usize)?;
        (offset <= source.len()).then_some(offset)
    }

    /// The line, counted from 1.
    pub(super) fn line(&self, source: &str) -> Option<usize> {
        let before = &source.as_bytes()[..self.offset(source)?];
        Some(before.iter().filter(|&&byte| byte == b'\n').count() + 1)
    }

    /// The type that YAML 1.1 reads this unquoted text as; `None` if that is text.
    pub(super) fn implicit_type(&self, source: &str) -> Option<ImplicitType> {
        let (Self::Text(text), Some(offset)) = (self, self.offset(source)) else { return None };
        let quoted = offset > 0 && matches!(source.as_bytes()[offset - 1], b'"' | b'\'');
        if quoted { None } else { ImplicitType::of(text) }
    }
}

/// The type other than text that YAML 1.1 reads an unquoted word as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ImplicitType {
    Bool(bool),
    Number,
}

impl ImplicitType {
    fn of(text: &str) -> Option<Self> {
        match text {
            "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => return Some(Self::Bool(true)),
            "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => return Some(Self::Bool(false)),
            _ => {}
        }
        let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
        let plain = digits.replace('_', "");
        let number = digits.starts_with(|c: char| c.is_ascii_digit())
            && (plain.bytes().all(|byte| byte.is_ascii_digit())
                || plain
                    .strip_prefix("0b")
                    .is_some_and(|bits| bits.bytes().all(|bit| matches!(bit, b'0' | b'1')))
                || plain.parse::<f64>().is_ok());
        number.then_some(Self::Number)
    }
}

impl fmt::Display for ImplicitType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bool(_) => "a boolean",
            Self::Number => "a number",
        })
    }
}

impl<'de> Deserialize<'de> for Node<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value without a tag")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Node::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Node::Number(Some(value.to_string())))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Node::Number(Some(value.to_string())))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Node::Number(None))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Self::Value, E> {
        Ok(Node::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
        Ok(Node::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = list.next_element()? {
            nodes.push(node);
        }
        Ok(Node::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        let mut merged = Vec::new();
        while let Some((key, value)) = map.next_entry::<Node<'de>, Node<'de>>()? {
            match (&key, value) {
                (Node::Text(text), Node::Map(others)) if text == "<<" => merged.extend(others),
                (Node::Text(text), Node::List(lists)) if text == "<<" => {
                    for list in lists {
                        let Node::Map(others) = list else {
                            return Err(A::Error::custom("a merge key (<<) takes mappings"));
                        };
                        merged.extend(others);
                    }
                }
                (_, value) => entries.push((key, value)),
            }
        }
        for (key, value) in merged {
            let there = |(other, _): &(Node<'_>, Node<'_>)| match (other, &key) {
                (Node::Text(other), Node::Text(key)) => other == key,
                _ => false,
            };
            if !entries.iter().any(there) {
                entries.push((key, value));
            }
        }
        Ok(Node::Map(entries))
    }
}

/// The top-level entries of a document. Values of entries that rules do not use are skipped and may have any type.
pub(super) struct Top<'a>(pub(super) Vec<(Node<'a>, Node<'a>)>);

/// Names of the top-level entries whose values are read; compared without case.
const WANTED: [&str; 5] = ["config_updater", "maps", "cluster_groups", "gzip", "dialect"];

impl<'de> Deserialize<'de> for Top<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TopVisitor;
        impl<'de> Visitor<'de> for TopVisitor {
            type Value = Top<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping with config_updater, or with maps")
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Top(Vec::new()))
            }

            /// serde_yaml calls this for an empty document.
            fn visit_none<E>(self) -> Result<Self::Value, E> {
                Ok(Top(Vec::new()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(key) = map.next_key::<Node<'de>>()? {
                    let wanted = matches!(&key, Node::Text(text)
                        if WANTED.iter().any(|name| text.eq_ignore_ascii_case(name)));
                    if wanted {
                        entries.push((key, map.next_value()?));
                    } else {
                        map.next_value::<IgnoredAny>()?;
                        entries.push((key, Node::Null));
                    }
                }
                Ok(Top(entries))
            }
        }
        deserializer.deserialize_any(TopVisitor)
    }
}
