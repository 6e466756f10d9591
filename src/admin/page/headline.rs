//! The headline of the status page.

use super::count;
use crate::phase::Status;

/// The overall state in a word, a sentence and a colour (a CSS class).
pub(super) struct Headline {
    pub(super) class: &'static str,
    pub(super) word: &'static str,
    pub(super) sentence: String,
}

/// Outcomes of targets that are not in their desired state.
const OPEN: [&str; 4] = ["refused", "held", "failed", "skipped"];

fn of(class: &'static str, word: &'static str, sentence: String) -> Headline {
    Headline { class, word, sentence }
}

/// Returns the headline for a status. What makes probes fail comes first.
pub(super) fn headline(status: &Status) -> Headline {
    if !status.is_alive() {
        return of("bad", "hangs", "The sync loop hangs: it missed its liveness deadline.".into());
    }
    if let Some(why) = &status.stale {
        let kept = match status.current {
            Some(_) => "The last published revision is still served",
            None => "The ConfigMaps stay as they were last applied",
        };
        return of("bad", "stale", format!("{kept}, but {why}."));
    }
    let failures = match status.consecutive_failures {
        1 => "the last attempt failed".to_owned(),
        n => format!("the last {n} attempts failed"),
    };
    let is_published = status.current.is_some() || status.applied.is_some();
    let incomplete = match status.consecutive_failures {
        0 if is_published => incomplete(status),
        _ => None,
    };
    if let Some(incomplete) = incomplete {
        return incomplete;
    }
    if let Some(applied) = &status.applied {
        let open = |outcome: &&str| applied.targets.get(*outcome).copied().unwrap_or_default();
        // What failed besides targets is only listed.
        let open = OPEN.iter().map(open).sum::<u64>().max(applied.open.len() as u64);
        return match (open, status.consecutive_failures) {
            (0, 0) => of("good", "up to date", "Every target matches the newest revision.".into()),
            (0, _) => of("warn", "sync fails", format!("Every target matched its revision, but {failures}.")),
            (open, _) => {
                let what = count(open, "target is", "targets are");
                of("warn", "incomplete", format!("{what} not in the desired state."))
            }
        };
    }
    match (&status.current, status.consecutive_failures) {
        (Some(_), 0) if status.starting.is_some() => {
            let what = status.starting.as_deref().unwrap_or_default();
            of("wait", "starting", format!("What was published before is served; {what}."))
        }
        (Some(_), 0) => of("good", "up to date", "The newest known revision is published.".into()),
        (Some(_), _) => {
            of("warn", "sync fails", format!("The last published revision is still served, but {failures}."))
        }
        (None, 0) => {
            let what = status.starting.as_deref().unwrap_or("the first attempt is under way");
            of("wait", "starting", format!("Nothing is published yet: {what}."))
        }
        (None, _) => match &status.starting {
            Some(what) => of("bad", "cannot start", format!("What was published before stays, but {what}.")),
            None => of("bad", "not serving", format!("Nothing is published yet, and {failures}.")),
        },
    }
}

/// What is not as it should be although attempts succeed.
fn incomplete(status: &Status) -> Option<Headline> {
    let delivery = status.last_delivery.as_ref().and_then(|delivery| delivery.error.as_ref());
    if let Some(error) = delivery {
        let sentence = format!("Not every target has the published revision: {error}.");
        return Some(of("warn", "incomplete", sentence));
    }
    let failing = status.hooks.iter().filter(|hook| hook.consecutive_failures > 0);
    let names: Vec<&str> = failing.map(|hook| hook.hook.as_str()).collect();
    if !names.is_empty() {
        let (names, verb) = (names.join(" and the "), if names.len() == 1 { "fails" } else { "fail" });
        let sentence = format!("The newest known revision is published, but the {names} {verb}.");
        return Some(of("warn", "a hook fails", sentence));
    }
    let failing = status.sources.iter().filter(|source| source.error.is_some());
    let names: Vec<&str> = failing.map(|source| source.name.as_str()).collect();
    if names.is_empty() {
        return None;
    }
    let what = if status.current.is_some() { "published generation" } else { "applied revision" };
    let sentence = format!("The {what} does not have the newest commit of {}.", names.join(", "));
    Some(of("warn", "incomplete", sentence))
}
