//! Parses the JSON of `--credential`.

use serde::Deserialize;

/// One credential, in git-sync's form.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Json {
    #[serde(default)]
    pub(super) url: String,
    #[serde(default)]
    pub(super) username: String,
    #[serde(default)]
    pub(super) password: String,
    #[serde(default)]
    pub(super) password_file: String,
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
    match serde_json::from_str(text).ok()? {
        OneOrMany::One(one) => Some(vec![one]),
        OneOrMany::Many(many) => Some(many),
    }
}

/// The first key that a credential cannot have, if the text is JSON. Only what looks like a key is returned: anything
/// else may be a secret in the wrong place.
pub(super) fn unknown_key(text: &str) -> Option<String> {
    const KEYS: [&str; 4] = ["url", "username", "password", "password-file"];
    let value: serde_json::Value = serde_json::from_str(text).ok()?;
    let list = value.as_array().map_or(std::slice::from_ref(&value), Vec::as_slice);
    let mut keys = list.iter().filter_map(serde_json::Value::as_object).flat_map(|one| one.keys());
    let is_key = |key: &str| {
        key.len() <= 16 && key.bytes().all(|byte| byte.is_ascii_alphabetic() || matches!(byte, b'-' | b'_'))
    };
    keys.find(|key| !KEYS.contains(&key.as_str())).filter(|key| is_key(key.as_str())).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_there_is_not_is_named_unless_it_may_be_a_secret() {
        for (text, found) in [
            (r#"{"url":"https://h","user":"x"}"#, Some("user")),
            (r#"[{"url":"https://h"},{"passwordFile":"/x"}]"#, Some("passwordFile")),
            (r#"{"url":"https://h","ghp_16C7e42F292c":"x"}"#, None),
            (r#"{"url":"https://h","username":"x"}"#, None),
            (r#"{"url""#, None),
            ("3", None),
        ] {
            assert_eq!(unknown_key(text).as_deref(), found, "{text}");
        }
    }
}
