//! Parses the JSON of `--credential`, as git-sync does with Go's encoding/json: keys in any case, of equal ones the last,
//! `null` for what is not given, and nothing behind the value is read.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// One credential, in git-sync's form.
#[derive(Default)]
pub(super) struct Json {
    pub(super) url: String,
    pub(super) username: String,
    pub(super) password: String,
    pub(super) password_file: String,
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Object)
    }
}

/// Makes a [`Json`] of an object.
struct Object;

impl<'de> Visitor<'de> for Object {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a credential")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Json, M::Error> {
        let mut json = Json::default();
        while let Some((key, value)) = map.next_entry::<String, Option<String>>()? {
            let field = match key.to_ascii_lowercase().as_str() {
                "url" => &mut json.url,
                "username" => &mut json.username,
                "password" => &mut json.password,
                "password-file" => &mut json.password_file,
                _ => return Err(serde::de::Error::custom("there is no such key")),
            };
            if let Some(value) = value {
                *field = value;
            }
        }
        Ok(json)
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(Json),
    Many(Vec<Json>),
}

/// Checks that the text is JSON of this form. An empty text is valid, and holds no credentials.
pub(super) fn is_well_formed(text: &str) -> Result<(), String> {
    parse(text).map(drop).ok_or_else(|| NO_JSON.to_owned())
}

/// The message for text that is not of this form.
pub(super) const NO_JSON: &str =
    "it is not JSON of the form {\"url\":…, \"username\":…, \"password-file\":…}, or a list of such";

/// Parses one credential or a list of them; `None` if the text is not of this form.
pub(super) fn parse(text: &str) -> Option<Vec<Json>> {
    if text.trim().is_empty() {
        return Some(Vec::new());
    }
    match first_value(text)? {
        OneOrMany::One(one) => Some(vec![one]),
        OneOrMany::Many(many) => Some(many),
    }
}

/// The value that the text begins with.
fn first_value<'t, T: Deserialize<'t>>(text: &'t str) -> Option<T> {
    T::deserialize(&mut serde_json::Deserializer::from_str(text)).ok()
}

/// The first key that a credential cannot have, if the text is JSON. Only what looks like a key is returned: anything
/// else may be a secret in the wrong place.
pub(super) fn unknown_key(text: &str) -> Option<String> {
    const KEYS: [&str; 4] = ["url", "username", "password", "password-file"];
    let value: serde_json::Value = first_value(text)?;
    let list = value.as_array().map_or(std::slice::from_ref(&value), Vec::as_slice);
    let mut keys = list.iter().filter_map(serde_json::Value::as_object).flat_map(|one| one.keys());
    let is_key = |key: &str| {
        key.len() <= 16 && key.bytes().all(|byte| byte.is_ascii_alphabetic() || matches!(byte, b'-' | b'_'))
    };
    let is_known = |key: &str| KEYS.iter().any(|known| key.eq_ignore_ascii_case(known));
    keys.find(|key| !is_known(key)).filter(|key| is_key(key)).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_is_read_as_go_reads_it() {
        let read = |text: &str| {
            let all = parse(text)?.into_iter();
            let fields = |one: Json| [one.url, one.username, one.password, one.password_file].join("|");
            Some(all.map(fields).collect::<Vec<_>>())
        };
        let is = |lines: &[&str]| Some(lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>());
        for (text, lines) in [
            (r#"{"url":"u","username":"n","password":"p","password-file":"f"}"#, &["u|n|p|f"][..]),
            (r#" {"URL":"u","Username":"n","PassWord":"p"}"#, &["u|n|p|"]),
            (r#"[{"url":"u","password":null,"password-file":"f"},{"username":"n"}]"#, &["u|||f", "|n||"]),
            (r#"{"url":"a","URL":"b","url":"c","username":"n","username":null}"#, &["c|n||"]),
            (r#"{"url":"u"} {"url":"v"}"#, &["u|||"]),
            (r#"[{"url":"u"}],"#, &["u|||"]),
            (" ", &[]),
        ] {
            assert_eq!(read(text), is(lines), "{text}");
        }
        for text in [r#"{"url":3}"#, r#"{"user":null}"#, r#"["x"]"#, r#""x""#, "3", "[1", r#"{"url":"u""#] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn a_key_that_there_is_not_is_named_unless_it_may_be_a_secret() {
        for (text, found) in [
            (r#"{"url":"https://h","user":"x"}"#, Some("user")),
            (r#"[{"url":"https://h"},{"passwordFile":"/x"}]"#, Some("passwordFile")),
            (r#"{"url":"https://h","ghp_16C7e42F292c":"x"}"#, None),
            (r#"{"url":"https://h","username":"x"}"#, None),
            (r#"{"URL":"https://h","UserName":"x","user":"x"}"#, Some("user")),
            (r#"{"url""#, None),
            ("3", None),
        ] {
            assert_eq!(unknown_key(text).as_deref(), found, "{text}");
        }
    }
}
