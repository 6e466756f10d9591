//! Parses the JSON of `--credential`, as git-sync does with Go's encoding/json: keys in any case, of equal ones the
//! last, `null` for what is not given. As git-sync, nothing behind the value is read; otherwise text there is refused.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use url::Url;

use super::error::Error;
use super::origin::CREDENTIALS;
use super::personality::Personality;
use crate::mirror::wire::Credential;
use crate::secret;

/// One credential, in git-sync's form.
#[derive(Default)]
struct Json {
    url: String,
    username: String,
    password: String,
    password_file: String,
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

/// The credentials of one `--credential`, called `name`; a password in it may be refused. Errors never repeat its
/// content, which may hold a password.
pub(super) fn credentials_in(
    text: &str,
    name: &str,
    personality: Personality,
    refuse_password: bool,
) -> Result<Vec<Credential>, Error> {
    let wrong = |why: &str| Error::HiddenValue { name: name.to_owned(), why: why.to_owned() };
    let list = parse(text, personality).ok_or_else(|| match unknown_key(text) {
        Some(key) => {
            wrong(&format!("there is no key {key}; the keys are url, username, password and password-file"))
        }
        None => wrong(NO_JSON),
    })?;
    let convert = |json: Json| {
        if json.url.is_empty() || json.username.is_empty() {
            return Err(wrong("each credential needs a url and a username"));
        }
        // Checked here, because the remote's own check could only blame the remote.
        if !Url::parse(&json.url).is_ok_and(|url| url.has_host()) {
            return Err(wrong(
                "the url of each credential needs a scheme and a host, as https://git.example.com",
            ));
        }
        let password = match (json.password, json.password_file) {
            (value, file) if value.is_empty() && !file.is_empty() => secret::SecretFrom::File(file.into()),
            (value, file) if !value.is_empty() && file.is_empty() => {
                if refuse_password {
                    let variable = format!("${}", CREDENTIALS[0]); // git-sync refuses none
                    let hint = format!("name a file (\"password-file\"), or give the JSON in {variable}");
                    return Err(Error::Password { what: "a password in --credential", hint });
                }
                secret::SecretFrom::Value(secret::Secret::new(value))
            }
            _ => return Err(wrong("each credential needs exactly one of password and password-file")),
        };
        Ok(Credential { url: Some(json.url), username: Some(json.username), password })
    };
    list.into_iter().map(convert).collect()
}

/// Checks that git-sync takes the text. An empty text is valid, and holds no credentials.
pub(super) fn check(text: &str) -> Result<(), String> {
    parse(text, Personality::GitSync).map(drop).ok_or_else(|| NO_JSON.to_owned())
}

/// The message for text that is not of this form.
const NO_JSON: &str =
    "it is not JSON of the form {\"url\":…, \"username\":…, \"password-file\":…}, or a list of such";

/// Parses one credential or a list of them; `None` if the text is not of this form.
fn parse(text: &str, personality: Personality) -> Option<Vec<Json>> {
    if text.trim().is_empty() {
        return Some(Vec::new());
    }
    let found: Option<OneOrMany> = match personality {
        Personality::Treeswap => serde_json::from_str(text).ok(),
        Personality::GitSync => first_value(text),
    };
    match found? {
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
fn unknown_key(text: &str) -> Option<String> {
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
        let read = |text: &str, personality: Personality| {
            let all = parse(text, personality)?.into_iter();
            let fields = |one: Json| [one.url, one.username, one.password, one.password_file].join("|");
            Some(all.map(fields).collect::<Vec<_>>())
        };
        let both = [Personality::Treeswap, Personality::GitSync];
        let is = |lines: &[&str]| Some(lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>());
        for (text, lines) in [
            (r#"{"url":"u","username":"n","password":"p","password-file":"f"}"#, &["u|n|p|f"][..]),
            (r#" {"URL":"u","Username":"n","PassWord":"p"}"#, &["u|n|p|"]),
            (r#"[{"url":"u","password":null,"password-file":"f"},{"username":"n"}]"#, &["u|||f", "|n||"]),
            (r#"{"url":"a","URL":"b","url":"c","username":"n","username":null}"#, &["c|n||"]),
            (" ", &[]),
        ] {
            assert_eq!(both.map(|personality| read(text, personality)), [is(lines), is(lines)], "{text}");
        }
        for text in [r#"{"url":3}"#, r#"{"user":null}"#, r#"["x"]"#, r#""x""#, "3", "[1", r#"{"url":"u""#] {
            assert_eq!(both.map(|personality| read(text, personality)), [None, None], "{text}");
        }
        for text in [r#"{"url":"u"} {"url":"v"}"#, r#"{"url":"u"},{"url":"v"}"#, r#"[{"url":"u"}],"#] {
            let found = both.map(|personality| read(text, personality));
            assert_eq!(found, [None, is(&["u|||"])], "without brackets the second is lost: {text}");
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
