//! A YAML document that keeps what serde_yaml's own types lose: order and repetition of keys, and whether a word was
//! quoted.
//!
//! Prow reads YAML 1.1, where an unquoted `on` is a boolean and `010` is eight; this parser reads both as text. To
//! report such words, one has to know whether they were quoted. Where the parser borrows a text from the source, the
//! byte before the text tells.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

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
        let quoted = matches!(source.as_bytes()[..offset].last(), Some(b'"' | b'\''));
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
            && (plain
                .strip_prefix("0b")
                .is_some_and(|bits| bits.bytes().all(|bit| matches!(bit, b'0' | b'1')))
                || plain.parse::<f64>().is_ok());
        number.then_some(Self::Number)
    }
}

/// Largest document, in bytes of text and [`VALUE_SIZE`] bytes for each value. Rules that do not repeat values by
/// aliases are far below it: their text is limited, too.
const EXPANDED_MAX: usize = 4 << 20;
/// What a value counts besides its text, in bytes.
const VALUE_SIZE: usize = 8;

/// Reads nodes. Aliases repeat values, so that a text may stand for any number of them; the cell holds how many bytes
/// are left for them.
#[derive(Clone, Copy)]
struct NodeReader<'r>(&'r Cell<usize>);

impl NodeReader<'_> {
    /// Takes the room for a value with a text of this length.
    fn take<E: de::Error>(self, text: usize) -> Result<(), E> {
        let left = self.0.get().checked_sub(VALUE_SIZE + text);
        self.0.set(left.ok_or_else(|| {
            let limit = crate::human::bytes(EXPANDED_MAX as u64);
            E::custom(format_args!("with all that its aliases (*) repeat, it has more than {limit}"))
        })?);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for NodeReader<'_> {
    type Value = Node<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NodeReader<'_> {
    type Value = Node<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value without a tag")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        self.take(0)?;
        Ok(Node::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Self::Value, E> {
        self.take(0)?;
        Ok(Node::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
        self.take(0)?;
        Ok(Node::Number(Some(value.to_string())))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
        self.take(0)?;
        Ok(Node::Number(Some(value.to_string())))
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Self::Value, E> {
        self.take(0)?;
        Ok(Node::Number(None))
    }

    fn visit_borrowed_str<E: de::Error>(self, value: &'de str) -> Result<Self::Value, E> {
        self.take(value.len())?;
        Ok(Node::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Self::Value, E> {
        self.take(value.len())?;
        Ok(Node::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        self.take(0)?;
        let mut nodes = Vec::new();
        while let Some(node) = list.next_element_seed(self)? {
            nodes.push(node);
        }
        Ok(Node::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        self.take(0)?;
        let mut entries = Vec::new();
        let mut merged = Vec::new();
        while let Some((key, value)) = map.next_entry_seed(self, self)? {
            match (&key, value) {
                (Node::Text(text), Node::Map(others)) if text == "<<" => merged.extend(others),
                (Node::Text(text), Node::List(lists)) if text == "<<" => {
                    for list in lists {
                        let Node::Map(others) = list else {
                            return Err(de::Error::custom("a merge key (<<) takes mappings"));
                        };
                        merged.extend(others);
                    }
                }
                (_, value) => entries.push((key, value)),
            }
        }
        if !merged.is_empty() {
            merge(&mut entries, merged);
        }
        Ok(Node::Map(entries))
    }
}

/// Adds the entries of merge keys whose names are not there already, of several with one name the first.
fn merge<'a>(entries: &mut Vec<(Node<'a>, Node<'a>)>, merged: Vec<(Node<'a>, Node<'a>)>) {
    let name = |(key, _): &(Node<'a>, Node<'a>)| match key {
        Node::Text(text) => Some(text.clone()),
        _ => None,
    };
    let mut there: HashSet<Cow<'a, str>> = entries.iter().filter_map(name).collect();
    let is_new = |entry: &_| name(entry).is_none_or(|name| there.insert(name));
    entries.extend(merged.into_iter().filter(is_new));
}

/// The top-level entries of a document. Values of entries that rules do not use are skipped and may have any type.
pub(super) struct Top<'a>(pub(super) Vec<(Node<'a>, Node<'a>)>);

/// Names of the top-level entries whose values are read; compared without case.
const WANTED: [&str; 5] = ["config_updater", "maps", "cluster_groups", "gzip", "dialect"];

impl<'a> Top<'a> {
    /// Parses a document. Refuses one that is too large when its aliases are replaced by what they repeat.
    pub(super) fn read(source: &'a str) -> Result<Self, serde_yaml::Error> {
        let left = Cell::new(EXPANDED_MAX);
        serde_yaml::Deserializer::from_str(source).deserialize_any(TopVisitor(NodeReader(&left)))
    }
}

struct TopVisitor<'r>(NodeReader<'r>);

impl<'de> Visitor<'de> for TopVisitor<'_> {
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
        while let Some(key) = map.next_key_seed(self.0)? {
            let wanted = matches!(&key, Node::Text(text)
                if WANTED.iter().any(|name| text.eq_ignore_ascii_case(name)));
            if wanted {
                entries.push((key, map.next_value_seed(self.0)?));
            } else {
                map.next_value::<IgnoredAny>()?;
                entries.push((key, Node::Null));
            }
        }
        Ok(Top(entries))
    }
}
