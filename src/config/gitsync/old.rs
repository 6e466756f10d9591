//! What v3's flags become. Each wins over its successor, even where that was given, too. Pure.

use super::super::error::Error;
use super::super::values::integer;
use super::{SourcedValue, Values};
use crate::secret::Secret;

/// How an old flag is called towards people, with the name that has its place.
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

/// What came of them.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// The password of `--password`.
    pub(super) password: Option<Secret>,
    /// What makes no sense.
    pub(super) wrong: Option<Error>,
}

/// Puts what the old flags say into the place of their successors, and says so.
pub(super) fn succeed(values: &mut Values, notes: &mut Vec<String>) -> Outcome {
    let taken = |values: &Values, name| values.last(name).filter(|given| is_set(name, &given.value)).cloned();
    for (name, successor) in SUCCESSORS {
        if let Some(given) = taken(values, name) {
            let old = given.origin.called(name);
            notes.push(format!("{old} is deprecated and wins over what replaces it: use {successor}"));
        }
    }
    if values.last("ssh").is_some() {
        notes.push("--ssh is deprecated and has no effect".to_owned());
    }
    let mut outcome = Outcome::default();
    match (taken(values, "branch"), taken(values, "rev")) {
        (Some(branch), None) => values.set("ref", branch),
        (Some(branch), Some(rev)) if rev.value == "HEAD" => values.set("ref", branch),
        (None, Some(rev)) => values.set("ref", rev),
        (Some(branch), Some(rev)) => {
            let one = branch.origin.called("branch");
            let other = rev.origin.called("rev");
            outcome.wrong = Some(Error::Conflict { one, other });
        }
        (None, None) => {}
    }
    if let Some(given) = taken(values, "change-permissions") {
        let name = given.origin.called("change-permissions");
        let hint = "use --group-write; other modes are those of the commit";
        outcome.wrong = outcome.wrong.or(Some(Error::Unsupported { name, hint }));
    }
    for (old, new) in [
        ("dest", "link"),
        ("max-sync-failures", "max-failures"),
        ("sync-hook-command", "exechook-command"),
        ("v", "verbose"),
    ] {
        if let Some(given) = taken(values, old) {
            values.set(new, given);
        }
    }
    if let Some(SourcedValue { value, origin }) = taken(values, "wait") {
        // Parsed when it was taken in; whole milliseconds, as in git-sync.
        let milliseconds = (value.parse::<f64>().unwrap_or_default() * 1e3) as i64;
        values.set("period", SourcedValue { value: format!("{milliseconds}ms"), origin });
    }
    if let Some(SourcedValue { value, origin }) = taken(values, "timeout") {
        let seconds = integer(&value).unwrap_or_default();
        values.set("sync-timeout", SourcedValue { value: format!("{seconds}s"), origin });
    }
    outcome.password = taken(values, "password").map(|given| Secret::new(given.value));
    outcome
}

/// As in git-sync: 0 and the empty text count as not given, and so does a negative `--v`.
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
