//! Renders the status as an HTML page for operators. It has no script and loads nothing; all data goes through
//! [`Text`], which escapes it.

mod headline;

use std::fmt::{self, Write};

use jiff::Timestamp;

use crate::clock;
use crate::human::{self, clock_time, short};
use crate::phase::{
    Applied, Attempt, Commit, GenerationStatus, HookStatus, Outcome, Status, TargetStatus, Trigger,
    unknown_revision,
};
use crate::secret;
use headline::{Headline, headline};

/// Text with secrets redacted that is safe between tags and inside quoted attributes. The page as a whole is not
/// redacted: a user name may also be that of a tag.
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
        write!(Escape(f), "{}", secret::redacted(&self.0.to_string()))
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
    let Headline { class, word, sentence } = headline(status);
    let title = if status.remote.is_empty() { "treeswap" } else { status.remote.as_str() };
    write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"refresh\" content=\"10\">\n\
         <title>{word}: {title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <header class=\"{class}\">\n<div role=\"status\">\n<h1><span class=\"dot\"></span>{word}</h1>\n<p>{sentence}</p>\n\
         </div>\n</header>\n",
        title = Text(title),
        sentence = Text(&sentence),
    )?;
    write_failures(page, status, now.wall)?;
    write_current(page, status, now.wall)?;
    write_sources(page, status)?;
    write_generations(page, status, now.wall)?;
    write_hooks(page, status, now.wall)?;
    write_targets(page, status, now.wall)?;
    write_past_failure(page, status, now.wall)?;
    write!(
        page,
        "<footer>treeswap {version}, as of {at}. This page refreshes every ten seconds. Also as \
         <a href=\"/status.json\">JSON</a>; <a href=\"/metrics\">metrics</a>.</footer>\n</main>\n</body>\n</html>\n",
        version = env!("CARGO_PKG_VERSION"),
        at = clock_time(now.wall),
    )
}

fn write_current(page: &mut String, status: &Status, now: Timestamp) -> fmt::Result {
    page.push_str("<section>\n");
    if let Some(current) = &status.current {
        write_revision(page, current, now)?;
    }
    page.push_str("<dl>\n");
    if let Some(progress) = &status.progress {
        let fetched = match progress.fetched_bytes {
            0 => String::new(),
            bytes => format!(", {} received", human::bytes(bytes)),
        };
        row(
            page,
            "Now",
            &format!("{}{fetched}; started {}", Text(&progress.what), when(progress.since, now)),
        )?;
    }
    if let Some(current) = &status.current {
        row(page, "Published", &when(current.published, now))?;
        row(
            page,
            "Holds",
            &format!("{}, {}", count(current.entries, "entry", "entries"), human::bytes(current.bytes)),
        )?;
    }
    if status.sources.is_empty() {
        row(page, "Remote", &Text(&status.remote).to_string())?;
        row(page, "Ref", &Text(&status.ref_name).to_string())?;
    } else {
        row(page, "Sources", &Text(&status.remote).to_string())?;
    }
    if let Some(applied) = &status.applied {
        write_applied(page, applied, now)?;
    }
    if let Some(progress) = &status.delivery_progress {
        row(page, "Delivery", &format!("{}; started {}", Text(&progress.what), when(progress.since, now)))?;
    }
    if let Some(delivery) = &status.last_delivery {
        row(page, "Last delivery", &attempt_line(delivery, now))?;
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

fn write_revision(page: &mut String, current: &GenerationStatus, now: Timestamp) -> fmt::Result {
    write!(
        page,
        "<h2 class=\"label\">Current revision</h2>\n<p class=\"revision\">{}</p>\n",
        current.revision.map_or_else(unknown_revision, |revision| revision.to_string())
    )?;
    if let Some(commit) = &current.commit {
        writeln!(page, "<p class=\"commit\">{}</p>", commit_line(commit, now))?;
    }
    Ok(())
}

fn write_applied(page: &mut String, applied: &Applied, now: Timestamp) -> fmt::Result {
    let counts: Vec<String> =
        applied.targets.iter().map(|(outcome, count)| format!("{count} {outcome}")).collect();
    row(page, "Applied", &format!("{}, {}", applied.revision.0, when(applied.at, now)))?;
    row(page, "Targets", &Text(counts.join(", ")).to_string())?;
    for line in &applied.open {
        row(page, "Not as desired", &Text(line).to_string())?;
    }
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
        Trigger::Source => "by a source that answered late",
    };
    format!("{outcome} {}, {trigger}, in {}", when(attempt.at, now), human::milliseconds(attempt.duration_ms))
}

/// Returns a commit's subject, author and date, as HTML.
fn commit_line(commit: &Commit, now: Timestamp) -> String {
    let date = commit.date.map(|date| format!(", {}", when(date, now))).unwrap_or_default();
    format!("{} <span class=\"quiet\">by {}{date}</span>", Text(&commit.subject), Text(&commit.author))
}

/// Something that currently fails: the sync, the delivery, or a hook.
struct Failing<'a> {
    name: &'a str,
    error: Option<&'a str>,
    hints: &'a [String],
    at: Option<Timestamp>,
    times: u64,
    since: Option<Timestamp>,
}

fn failing(status: &Status) -> Vec<Failing<'_>> {
    let sync =
        status.last_failure.as_ref().filter(|_| status.consecutive_failures > 0).map(|failure| Failing {
            name: "Sync",
            error: failure.error.as_deref(),
            hints: &failure.hints,
            at: Some(failure.at),
            times: status.consecutive_failures,
            since: status.failing_since,
        });
    let delivery = status.last_delivery.as_ref().filter(|last| last.error.is_some()).map(|failure| Failing {
        name: "Delivery of ConfigMaps",
        error: failure.error.as_deref(),
        hints: &failure.hints,
        at: Some(failure.at),
        times: 1,
        since: None,
    });
    let hooks = status.hooks.iter().filter(|hook| hook.consecutive_failures > 0).map(|hook| Failing {
        name: &hook.hook,
        error: hook.error.as_deref(),
        hints: &hook.hints,
        at: hook.at,
        times: hook.consecutive_failures,
        since: hook.failing_since,
    });
    sync.into_iter().chain(delivery).chain(hooks).collect()
}

/// What currently fails, prominently.
fn write_failures(page: &mut String, status: &Status, now: Timestamp) -> fmt::Result {
    let failing = failing(status);
    if failing.is_empty() {
        return Ok(());
    }
    page.push_str("<section class=\"failure present\">\n<h2>Current failure</h2>\n");
    for Failing { name, error, hints, at, times, since } in failing {
        writeln!(page, "<h3>{}</h3>", Text(name))?;
        write_error(page, error, hints)?;
        let since = since.filter(|_| times > 1).map(|since| format!(", the first {}", when(since, now)));
        let at = at.map(|at| when(at, now)).unwrap_or_default();
        let since = since.unwrap_or_default();
        let often =
            if times == 1 { String::new() } else { format!("{} in a row{since}, the last ", grouped(times)) };
        writeln!(page, "<p class=\"quiet\">{often}{at}</p>")?;
    }
    page.push_str("</section>\n");
    Ok(())
}

fn write_error(page: &mut String, error: Option<&str>, hints: &[String]) -> fmt::Result {
    writeln!(page, "<p class=\"error\">{}</p>", Text(error.unwrap_or("no reason was recorded")))?;
    if !hints.is_empty() {
        page.push_str("<ul>\n");
        for hint in hints {
            writeln!(page, "<li>{}</li>", Text(hint))?;
        }
        page.push_str("</ul>\n");
    }
    Ok(())
}

/// The last failure if the sync has succeeded since, less prominently.
fn write_past_failure(page: &mut String, status: &Status, now: Timestamp) -> fmt::Result {
    let Some(failure) = status.last_failure.as_ref().filter(|_| status.consecutive_failures == 0) else {
        return Ok(());
    };
    page.push_str("<section class=\"failure\">\n<h2>Last failure (recovered)</h2>\n");
    write_error(page, failure.error.as_deref(), &failure.hints)?;
    writeln!(page, "<p class=\"quiet\">{}</p>\n</section>", when(failure.at, now))
}

/// Opens a section with a table. `columns` has each column's name and whether it holds numbers.
fn open_table(page: &mut String, title: &str, columns: &[(&str, bool)]) -> fmt::Result {
    write!(page, "<section>\n<h2>{title}</h2>\n<table>\n<thead><tr>")?;
    for (name, number) in columns {
        let class = if *number { " class=\"number\"" } else { "" };
        write!(page, "<th scope=\"col\"{class}>{name}</th>")?;
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    Ok(())
}

fn write_hooks(page: &mut String, status: &Status, now: Timestamp) -> fmt::Result {
    if status.hooks.is_empty() {
        return Ok(());
    }
    open_table(page, "Hooks", &[("Hook", false), ("Last run", false), ("For", false), ("Outcome", false)])?;
    for HookStatus { hook, revision, at, duration_ms, error, consecutive_failures, .. } in &status.hooks {
        let (ran, outcome) = match at {
            None => ("not yet".to_owned(), String::new()),
            Some(at) => (
                format!("{}, in {}", when(*at, now), human::milliseconds(*duration_ms)),
                match error {
                    None => "done".to_owned(),
                    Some(_) if *consecutive_failures == 0 => "failed, no longer wanted".to_owned(),
                    Some(_) => format!("<span class=\"bad\">failed, {consecutive_failures} in a row</span>"),
                },
            ),
        };
        let revision = revision.map(|revision| revision.short()).unwrap_or_default();
        writeln!(
            page,
            "<tr><th scope=\"row\">{}</th><td data-label=\"Last run\"><span>{ran}</span></td>\
             <td data-label=\"For\" class=\"code\">{revision}</td><td data-label=\"Outcome\">{outcome}</td></tr>",
            Text(hook)
        )?;
    }
    page.push_str("</tbody>\n</table>\n</section>\n");
    Ok(())
}

fn write_sources(page: &mut String, status: &Status) -> fmt::Result {
    if status.sources.is_empty() {
        return Ok(());
    }
    let head = [("Source", false), ("Place", false), ("Commit", false), ("Ref", false), ("State", false)];
    open_table(page, "Sources", &head)?;
    for source in &status.sources {
        let revision = source.revision.map(|revision| revision.short()).unwrap_or_default();
        let state = match &source.error {
            Some(error) => format!("<span class=\"bad\">{}</span>", Text(error)),
            None if source.is_late => "its remote has not answered yet".to_owned(),
            None => "up to date".to_owned(),
        };
        writeln!(
            page,
            "<tr><th scope=\"row\" class=\"name\">{}</th><td data-label=\"Place\" class=\"code\">/{}</td>\
             <td data-label=\"Commit\" class=\"code\">{revision}</td>\
             <td data-label=\"Ref\"><span>{} of {}</span></td><td data-label=\"State\"><span>{state}</span></td></tr>",
            Text(&source.name),
            Text(&source.to),
            Text(&source.ref_name),
            Text(&source.repo),
        )?;
    }
    page.push_str("</tbody>\n</table>\n</section>\n");
    Ok(())
}

fn write_generations(page: &mut String, status: &Status, now: Timestamp) -> fmt::Result {
    let mut all = status.current.iter().chain(&status.retired).peekable();
    if all.peek().is_none() {
        return Ok(());
    }
    let columns = [
        ("Revision", false),
        ("Directory", false),
        ("Published", false),
        ("Entries", true),
        ("Size", true),
        ("Kept because it is", false),
    ];
    open_table(page, "Generations", &columns)?;
    for (at, generation) in all.enumerate() {
        write_generation(page, generation, at == 0 && status.current.is_some(), now)?;
    }
    page.push_str("</tbody>\n</table>\n</section>\n");
    Ok(())
}

/// How many targets the page lists.
const MAX_TARGETS: usize = 200;

/// The targets, failed ones first.
fn write_targets(page: &mut String, status: &Status, now: Timestamp) -> fmt::Result {
    if status.targets.is_empty() {
        return Ok(());
    }
    let mut targets: Vec<&TargetStatus> = status.targets.iter().collect();
    targets.sort_by_key(|target| target.error.is_none());
    let columns = ["ConfigMap", "Revision", "Digest", "Last attempt", "Outcome"].map(|name| (name, false));
    open_table(page, "Targets", &columns)?;
    for target in targets.iter().take(MAX_TARGETS) {
        let error = target.error.as_ref().map(|error| format!(": {}", Text(error))).unwrap_or_default();
        writeln!(
            page,
            "<tr><th scope=\"row\" class=\"code\">{}/{}/{}</th><td data-label=\"Revision\" class=\"code\" title=\"{revision}\">{}</td>\
             <td data-label=\"Digest\" class=\"code\">{}</td><td data-label=\"Last attempt\">{}</td><td data-label=\"Outcome\"><span>{}{error}</span></td></tr>",
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
    page.push_str("</tbody>\n</table>\n");
    if let Some(more) = targets.len().checked_sub(MAX_TARGETS).filter(|more| *more > 0) {
        writeln!(page, "<p class=\"quiet\">and {} more, in the JSON</p>", grouped(more as u64))?;
    }
    page.push_str("</section>\n");
    Ok(())
}

fn write_generation(
    page: &mut String,
    generation: &GenerationStatus,
    current: bool,
    now: Timestamp,
) -> fmt::Result {
    let unsaid = generation.pinned && !generation.reason.contains("pinned");
    let pinned = if unsaid { " <span class=\"tag\">pinned</span>" } else { "" };
    let holders: Vec<String> = generation.holders.iter().map(ToString::to_string).collect();
    let holders = if holders.is_empty() {
        String::new()
    } else {
        format!(" <span class=\"quiet\">by {}</span>", Text(holders.join(", ")))
    };
    let commit = generation
        .commit
        .as_ref()
        .map(|commit| format!("<br><span class=\"quiet\">{}</span>", Text(&commit.subject)));
    let retired =
        generation.retired.map(|at| format!(" <span class=\"quiet\">retired {}</span>", when(at, now)));
    writeln!(
        page,
        "<tr{class}><th scope=\"row\" title=\"{full}\"><span class=\"code\">{short}</span>{commit}</th>\
         <td data-label=\"Directory\" class=\"code\">{name}</td><td data-label=\"Published\">{published}</td>\
         <td data-label=\"Entries\" class=\"number\">{entries}</td><td data-label=\"Size\" class=\"number\">{size}</td>\
         <td data-label=\"Kept because it is\"><span>{reason}{pinned}{holders}{retired}</span></td></tr>",
        class = if current { " class=\"current\"" } else { "" },
        full = generation.revision.map_or_else(unknown_revision, |revision| revision.to_string()),
        short = generation.revision.map_or_else(|| "?".to_owned(), |revision| revision.short()),
        name = Text(&generation.name),
        published = when(generation.published, now),
        entries = grouped(generation.entries),
        size = human::bytes(generation.bytes),
        reason = Text(&generation.reason),
        retired = retired.unwrap_or_default(),
        commit = commit.unwrap_or_default(),
    )
}

/// A time relative to now, as HTML with the exact time on hover.
fn when(at: Timestamp, now: Timestamp) -> String {
    format!("<time datetime=\"{at}\" title=\"{}\">{}</time>", clock_time(at), human::relative(at, now))
}

fn count(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(n), if n == 1 { one } else { many })
}

/// Formats a number with its digits in groups of three, separated by narrow spaces.
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
mod tests;
