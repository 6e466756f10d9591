//! The JSON of `--credential`.

use serde::Deserialize;

/// The JSON of `--credential`, as git-sync has it.
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

/// Whether the text is JSON of credentials, as far as the form goes. Empty is none.
pub(super) fn is_well_formed(text: &str) -> Result<(), String> {
    parse(text).map(drop).ok_or_else(|| NO_JSON.to_owned())
}

/// What is wrong with other text.
pub(super) const NO_JSON: &str =
    "it is not JSON of the form {\"url\":…, \"username\":…, \"password-file\":…}, or a list of such";

/// Reads it; nothing where the form is another.
pub(super) fn parse(text: &str) -> Option<Vec<Json>> {
    if text.trim().is_empty() {
        return Some(Vec::new());
    }
    match serde_json::from_str(text).ok()? {
        OneOrMany::One(one) => Some(vec![one]),
        OneOrMany::Many(many) => Some(many),
    }
}
