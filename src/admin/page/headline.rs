//! The headline of the status page.

use super::count;
use crate::clock;
use crate::phase::Status;

/// The overall state in a word, a sentence and a colour (a CSS class).
pub(super) struct Headline {
    pub(super) class: &'static str,
    pub(super) word: &'static str,
    pub(super) sentence: String,
}

/// Returns the headline for a status.
pub(super) fn headline(status: &Status, now: &clock::Now) -> Headline {
    let of = |class, word, sentence| Headline { class, word, sentence };
    let failures = match status.consecutive_failures {
        1 => "the last attempt failed".to_owned(),
        n => format!("the last {n} attempts failed"),
    };
    let delivery = status.last_delivery.as_ref().filter(|_| status.consecutive_failures == 0);
    if let Some(error) =
        delivery.and_then(|delivery| delivery.error.as_ref()).filter(|_| status.is_alive(now))
    {
        return of("warn", "incomplete", format!("Not every target has the published revision: {error}."));
    }
    if let Some(applied) = status.applied.as_ref().filter(|_| status.is_alive(now)) {
        return match (applied.open.len(), status.consecutive_failures) {
            (0, 0) => of("good", "up to date", "Every target matches the newest revision.".into()),
            (0, _) => of("warn", "sync fails", format!("Every target matched its revision, but {failures}.")),
            (n, _) => {
                let what = count(n as u64, "target is", "targets are");
                of("warn", "incomplete", format!("{what} not in the desired state."))
            }
        };
    }
    match (&status.current, status.consecutive_failures) {
        _ if !status.is_alive(now) => {
            of("bad", "hangs", "The sync loop hangs: it missed its liveness deadline.".into())
        }
        (Some(_), _) if status.stale.is_some() => {
            let why = status.stale.as_deref().unwrap_or_default();
            of("bad", "stale", format!("The last published revision is still served, but {why}."))
        }
        (Some(_), 0) if status.hooks.iter().any(|hook| hook.consecutive_failures > 0) => {
            let failing = status.hooks.iter().filter(|hook| hook.consecutive_failures > 0);
            let names: Vec<&str> = failing.map(|hook| hook.hook.as_str()).collect();
            let (names, verb) = (names.join(" and the "), if names.len() == 1 { "fails" } else { "fail" });
            let sentence = format!("The newest known revision is published, but the {names} {verb}.");
            of("warn", "a hook fails", sentence)
        }
        (Some(_), 0) if status.sources.iter().any(|source| source.error.is_some()) => {
            let failing = status.sources.iter().filter(|source| source.error.is_some());
            let names: Vec<&str> = failing.map(|source| source.name.as_str()).collect();
            let sentence =
                format!("The published generation does not have the newest commit of {}.", names.join(", "));
            of("warn", "incomplete", sentence)
        }
        (Some(_), 0) => of("good", "up to date", "The newest known revision is published.".into()),
        (Some(_), _) => {
            of("warn", "sync fails", format!("The last published revision is still served, but {failures}."))
        }
        (None, 0) => {
            let what = status.starting.as_deref().unwrap_or("the first attempt is under way");
            of("wait", "starting", format!("Nothing is published yet: {what}."))
        }
        (None, _) => of("bad", "not serving", format!("Nothing is published yet, and {failures}.")),
    }
}
