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
