//! The status as one page that a person reads at a glance. No script, nothing loaded from elsewhere; whatever comes
//! from outside passes through [`Text`], which escapes it.

use std::fmt::{self, Write};

use jiff::Timestamp;

use crate::clock;
use crate::human;
use crate::phase::{Attempt, GenerationStatus, Outcome, Status, TargetStatus, Trigger};

/// Text that is safe between tags and inside quoted attributes.
struct Text<T>(T);

impl<T: fmt::Display> fmt::Display for Text<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Escape<'a, 'b>(&'a mut fmt::Formatter<'b>);
        impl Write for Escape<'_, '_> {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                text.chars().try_for_each(|c| match c {
                    '&' => self.0.write_str("&amp;"),
                    '<' => self.0.write_str("&lt;"),
                    '>' => self.0.write_str("&gt;"),
                    '"' => self.0.write_str("&quot;"),
                    '\'' => self.0.write_str("&#39;"),
                    c => self.0.write_char(c),
                })
            }
        }
        write!(Escape(f), "{}", self.0)
    }
}

/// The whole situation in a word, a sentence and a colour.
struct Verdict {
    class: &'static str,
    word: &'static str,
    sentence: String,
}

fn verdict(status: &Status, now: &clock::Now) -> Verdict {
    let of = |class, word, sentence| Verdict { class, word, sentence };
    let failures = match status.consecutive_failures {
        1 => "the last attempt failed".to_owned(),
        n => format!("the last {n} attempts failed"),
    };
    let delivery = status.last_delivery.as_ref().filter(|_| status.consecutive_failures == 0);
    if let Some(error) =
        delivery.and_then(|delivery| delivery.error.as_ref()).filter(|_| status.is_alive(now))
    {
        return of("warn", "incomplete", format!("What is published is not everywhere: {error}."));
    }
    if let Some(applied) = status.applied.as_ref().filter(|_| status.is_alive(now)) {
        return match (applied.open.len(), status.consecutive_failures) {
            (0, 0) => of("good", "up to date", "Every target is as the newest revision has it.".into()),
            (0, _) => {
                of("warn", "out of touch", format!("Every target was as it should be, but {failures}."))
            }
            (n, _) => {
                let what = count(n as u64, "target is", "targets are");
                of("warn", "incomplete", format!("{what} not as the revision has it."))
            }
        };
    }
    match (&status.current, status.consecutive_failures) {
        _ if !status.is_alive(now) => {
            of("bad", "hangs", "The sync loop has not been heard of as promised.".into())
        }
        (Some(_), 0) => {
            of("good", "up to date", "The newest revision that was found is being served.".into())
        }
        (Some(_), _) => {
            of("warn", "out of touch", format!("What was published is being served, but {failures}."))
        }
        (None, 0) => {
            let what = status.starting.as_deref().unwrap_or("the first attempt is under way");
            of("wait", "starting", format!("Nothing is published yet: {what}."))
        }
        (None, _) => of("bad", "not serving", format!("Nothing is published yet, and {failures}.")),
    }
}

/// Renders the page.
pub(super) fn render(status: &Status, now: &clock::Now) -> String {
    let mut page = String::with_capacity(16 << 10);
    #[expect(clippy::expect_used, reason = "writing to a String never fails")]
    write_page(&mut page, status, now).expect("a String takes everything");
    page
}

fn write_page(page: &mut String, status: &Status, now: &clock::Now) -> fmt::Result {
    let Verdict { class, word, sentence } = verdict(status, now);
    let title = if status.remote.is_empty() { "treeswap" } else { status.remote.as_str() };
    write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"refresh\" content=\"10\">\n\
         <title>{word}: {title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <header class=\"{class}\">\n<p class=\"state\"><span class=\"dot\"></span>{word}</p>\n<p>{sentence}</p>\n</header>\n",
        title = Text(title),
        sentence = Text(&sentence),
    )?;
    let failing = status.consecutive_failures > 0;
    if failing {
        write_failure(page, status, now.wall)?;
    }
    write_current(page, status, now.wall)?;
    write_generations(page, status, now.wall)?;
    write_targets(page, status, now.wall)?;
    if !failing {
        write_failure(page, status, now.wall)?;
    }
    write!(
        page,
        "<footer>treeswap {version}, as of {at}. The page renews itself every ten seconds; \
         the same as <a href=\"/status\">JSON</a>, and <a href=\"/metrics\">metrics</a>.</footer>\n</main>\n</body>\n</html>\n",
        version = env!("CARGO_PKG_VERSION"),
        at = clock_time(now.wall),
    )
}

fn write_current(page: &mut String, status: &Status, now: Timestamp) -> fmt::Result {
    page.push_str("<section>\n");
    if let Some(current) = &status.current {
        write!(
            page,
            "<p class=\"label\">Current revision</p>\n<p class=\"revision\">{}</p>\n",
            current.revision.0
        )?;
    }
    page.push_str("<dl>\n");
    if let Some(current) = &status.current {
        row(page, "Published", &when(current.published, now))?;
        row(
            page,
            "Holds",
            &format!("{}, {}", count(current.entries, "entry", "entries"), human::bytes(current.bytes)),
        )?;
    }
    row(page, "Remote", &Text(&status.remote).to_string())?;
    row(page, "Ref", &Text(&status.asked).to_string())?;
    if let Some(applied) = &status.applied {
        let counts: Vec<String> =
            applied.targets.iter().map(|(outcome, count)| format!("{count} {outcome}")).collect();
        row(page, "Applied", &format!("{}, {}", applied.revision.0, when(applied.at, now)))?;
        row(page, "Targets", &Text(counts.join(", ")).to_string())?;
        for line in &applied.open {
            row(page, "Not right", &Text(line).to_string())?;
        }
    }
    if let Some(delivery) = &status.last_delivery {
        row(page, "Last delivery", &attempt_line(delivery, now))?;
        row(page, "Delivery fails", &Text(delivery.error.as_deref().unwrap_or_default()).to_string())?;
        for hint in &delivery.hints {
            row(page, "Hint", &Text(hint).to_string())?;
        }
    }
    row(page, "Root", &Text(&status.root).to_string())?;
    if let Some(attempt) = &status.last_attempt {
        row(page, "Last attempt", &attempt_line(attempt, now))?;
    }
    if let Some(success) = status.last_success.filter(|_| status.consecutive_failures > 0) {
        row(page, "Last success", &when(success, now))?;
    }
    if let Some(next) = status.next_attempt {
        row(page, "Next attempt", &when(next, now))?;
    }
    page.push_str("</dl>\n</section>\n");
    Ok(())
}

/// One row of the list of facts; `value` is HTML.
fn row(page: &mut String, name: &str, value: &str) -> fmt::Result {
    if value.is_empty() {
        return Ok(());
    }
    writeln!(page, "<div><dt>{name}</dt><dd>{value}</dd></div>")
}

fn attempt_line(attempt: &Attempt, now: Timestamp) -> String {
    let outcome = match attempt.outcome {
        Outcome::Published => "published",
        Outcome::Unchanged => "found nothing new",
        Outcome::Failed => "failed",
    };
    let trigger = match attempt.trigger {
        Trigger::StartUp => "at start-up",
        Trigger::Timer => "by the timer",
        Trigger::Signal => "by a signal",
        Trigger::Webhook => "by a webhook",
        Trigger::Delivery => "for the ConfigMaps",
    };
    format!("{outcome} {}, {trigger}, in {}", when(attempt.at, now), human::milliseconds(attempt.duration_ms))
}

/// The newest failure: loud while it lasts, quiet once it is over.
fn write_failure(page: &mut String, status: &Status, now: Timestamp) -> fmt::Result {
    let Some(failure) = &status.last_failure else { return Ok(()) };
    let over = status.consecutive_failures == 0;
    let (class, title) =
        if over { ("past", "Last failure, since overcome") } else { ("present", "What fails") };
    write!(
        page,
        "<section class=\"failure {class}\">\n<h2>{title}</h2>\n<p class=\"error\">{}</p>\n",
        Text(failure.error.as_deref().unwrap_or("no reason was recorded"))
    )?;
    if !failure.hints.is_empty() {
        page.push_str("<ul>\n");
        for hint in &failure.hints {
            writeln!(page, "<li>{}</li>", Text(hint))?;
        }
        page.push_str("</ul>\n");
    }
    write!(page, "<p class=\"quiet\">{}</p>\n</section>\n", when(failure.at, now))
}

fn write_generations(page: &mut String, status: &Status, now: Timestamp) -> fmt::Result {
    let mut all = status.current.iter().chain(&status.retired).peekable();
    if all.peek().is_none() {
        return Ok(());
    }
    page.push_str(
        "<section>\n<h2>Generations</h2>\n<div class=\"wide\"><table>\n<thead><tr><th>Revision</th><th>Directory</th>\
         <th>Published</th><th class=\"number\">Entries</th><th class=\"number\">Size</th><th>Kept because it is</th></tr></thead>\n<tbody>\n",
    );
    for (at, generation) in all.enumerate() {
        write_generation(page, generation, at == 0 && status.current.is_some(), now)?;
    }
    page.push_str("</tbody>\n</table></div>\n</section>\n");
    Ok(())
}

/// Targets that a page lists.
const MOST_TARGETS: usize = 200;

/// What failed comes first.
fn write_targets(page: &mut String, status: &Status, now: Timestamp) -> fmt::Result {
    if status.targets.is_empty() {
        return Ok(());
    }
    let mut targets: Vec<&TargetStatus> = status.targets.iter().collect();
    targets.sort_by_key(|target| target.error.is_none());
    page.push_str(
        "<section>\n<h2>Targets</h2>\n<div class=\"wide\"><table>\n<thead><tr><th>ConfigMap</th><th>Revision</th>\
         <th>Digest</th><th>Last attempt</th><th>Outcome</th></tr></thead>\n<tbody>\n",
    );
    for target in targets.iter().take(MOST_TARGETS) {
        let error = target.error.as_ref().map(|error| format!(": {}", Text(error))).unwrap_or_default();
        writeln!(
            page,
            "<tr><td class=\"code\">{}/{}/{}</td><td class=\"code\" title=\"{revision}\">{}</td><td class=\"code\">{}</td>\
             <td>{}</td><td>{}{error}</td></tr>",
            Text(&target.cluster),
            Text(&target.namespace),
            Text(&target.name),
            Text(short(&target.revision)),
            Text(short(&target.digest)),
            when(target.at, now),
            Text(&target.outcome),
            revision = Text(&target.revision),
        )?;
    }
    page.push_str("</tbody>\n</table></div>\n");
    if let Some(more) = targets.len().checked_sub(MOST_TARGETS).filter(|more| *more > 0) {
        writeln!(page, "<p class=\"quiet\">and {} more, in the JSON</p>", grouped(more as u64))?;
    }
    page.push_str("</section>\n");
    Ok(())
}

/// As much of an id or a digest as tells it from others.
fn short(text: &str) -> &str {
    text.get(..12).unwrap_or(text)
}

fn write_generation(
    page: &mut String,
    generation: &GenerationStatus,
    current: bool,
    now: Timestamp,
) -> fmt::Result {
    let unsaid = generation.pinned && !generation.reason.contains("pinned");
    let pinned = if unsaid { " <span class=\"tag\">pinned</span>" } else { "" };
    let retired =
        generation.retired.map(|at| format!(" <span class=\"quiet\">retired {}</span>", when(at, now)));
    writeln!(
        page,
        "<tr{class}><td class=\"code\" title=\"{full}\">{short}</td><td class=\"code\">{name}</td><td>{published}</td>\
         <td class=\"number\">{entries}</td><td class=\"number\">{size}</td><td>{reason}{pinned}{retired}</td></tr>",
        class = if current { " class=\"current\"" } else { "" },
        full = generation.revision.0,
        short = generation.revision.short(),
        name = Text(&generation.name),
        published = when(generation.published, now),
        entries = grouped(generation.entries),
        size = human::bytes(generation.bytes),
        reason = Text(&generation.reason),
        retired = retired.unwrap_or_default(),
    )
}

/// A moment, relative to now, with the exact time on hover.
fn when(at: Timestamp, now: Timestamp) -> String {
    format!("<time datetime=\"{at}\" title=\"{}\">{}</time>", clock_time(at), human::relative(at, now))
}

fn clock_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

fn count(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(n), if n == 1 { one } else { many })
}

/// Digits in groups of three, apart by a narrow space.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

const STYLE: &str = include_str!("page.css");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_numbers_are_grouped() {
        assert_eq!(
            [0, 999, 1_000, 1_234_567].map(grouped),
            ["0", "999", "1\u{202f}000", "1\u{202f}234\u{202f}567"]
        );
    }

    #[test]
    fn every_state_has_its_word() {
        let now = clock::now();
        let alive = Status { alive_until_ms: u64::MAX, ..Status::default() };
        assert_eq!(verdict(&Status::default(), &now).word, "hangs");
        assert_eq!(verdict(&alive, &now).word, "starting");
        assert_eq!(verdict(&Status { consecutive_failures: 2, ..alive }, &now).word, "not serving");
    }
}
