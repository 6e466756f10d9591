//! Translates git-sync v3's flags into v4's. An old flag wins over its successor even if both are given. Pure.

use super::super::error::Error;
use super::super::values::integer;
use super::{SourcedValue, Values};
use crate::secret::Secret;

/// Old flags, and what replaces each, for the deprecation notes.
const SUCCESSORS: [(&str, &str); 10] = [
    ("branch", "--ref"),
    ("change-permissions", "--group-write"),
    ("dest", "--link"),
    ("max-sync-failures", "--max-failures"),
    ("password", "$GITSYNC_PASSWORD or --password-file"),
    ("rev", "--ref"),
    ("sync-hook-command", "--exechook-command"),
    ("timeout", "--sync-timeout"),
    ("v", "--verbose"),
    ("wait", "--period"),
];

/// The flag of `sync` that replaces an old one.
pub(in crate::config) fn successor(old: &str) -> Option<&'static str> {
    SUCCESSORS.iter().find(|(name, _)| *name == old).and_then(|(_, successor)| successor.strip_prefix("--"))
}

/// What the old flags set besides v4's flags.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// The value of `--password`.
    pub(super) password: Option<Secret>,
    /// The first error.
    pub(super) first_error: Option<Error>,
}

/// Moves the values of old flags to their successors, with a deprecation note for each.
pub(super) fn translate(values: &mut Values, notes: &mut Vec<String>) -> Outcome {
    let given = |values: &Values, name| values.last(name).filter(|given| is_set(name, &given.value)).cloned();
    // --change-permissions is refused below, so what replaces it is said there.
    for (name, successor) in SUCCESSORS.into_iter().filter(|(name, _)| *name != "change-permissions") {
        if let Some(given) = given(values, name) {
            let old = given.origin.display_name(name);
            notes.push(format!("{old} is deprecated and wins over what replaces it: use {successor}"));
        }
    }
    if values.last("ssh").is_some() {
        notes.push("--ssh is deprecated and has no effect".to_owned());
    }
    let mut outcome = Outcome::default();
    match (given(values, "branch"), given(values, "rev")) {
        (Some(branch), None) => values.set("ref", branch),
        (Some(branch), Some(rev)) if rev.value == "HEAD" => values.set("ref", branch),
        (None, Some(rev)) => values.set("ref", rev),
        (Some(branch), Some(rev)) => {
            let one = branch.origin.display_name("branch");
            let other = rev.origin.display_name("rev");
            outcome.first_error = Some(Error::Conflict { one, other });
        }
        (None, None) => {}
    }
    if let Some(given) = given(values, "change-permissions") {
        let name = given.origin.display_name("change-permissions");
        let hint = "use --group-write; other modes are those of the commit";
        outcome.first_error = outcome.first_error.or(Some(Error::Unsupported { name, hint }));
    }
    for old in ["dest", "max-sync-failures", "sync-hook-command", "v"] {
        if let (Some(given), Some(new)) = (given(values, old), successor(old)) {
            values.set(new, given);
        }
    }
    if let Some(SourcedValue { value, origin }) = given(values, "wait") {
        // Validated when it was parsed; whole milliseconds, as in git-sync.
        let milliseconds = (value.parse::<f64>().unwrap_or_default() * 1e3) as i64;
        values.set("period", SourcedValue { value: format!("{milliseconds}ms"), origin });
    }
    if let Some(SourcedValue { value, origin }) = given(values, "timeout") {
        let seconds = integer(&value).unwrap_or_default();
        values.set("sync-timeout", SourcedValue { value: format!("{seconds}s"), origin });
    }
    outcome.password = given(values, "password").map(|given| Secret::new(given.value));
    outcome
}

/// Whether an old flag counts as given. As in git-sync, 0, an empty text and a negative `--v` do not.
fn is_set(name: &str, value: &str) -> bool {
    match name {
        "wait" => value.parse::<f64>().is_ok_and(|number| number != 0.0),
        "v" => integer(value).is_ok_and(|number| number >= 0),
        "change-permissions" | "max-sync-failures" | "timeout" => {
            integer(value).is_ok_and(|number| number != 0)
        }
        _ => !value.is_empty(),
    }
}
