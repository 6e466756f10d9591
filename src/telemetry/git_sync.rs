//! git-sync's log format: one JSON object a line, with `logger`, `ts`, `caller`, `level`, `msg`, and a key for every
//! value. A failure has `error` in place of `level`. Lines about a hook have its name as the logger.
//!
//! git-sync's levels are numbers: 0 is `info` and `warn` here, 1 to 4 are `debug`, 5 and up are `trace`.
//!
//! Also the content of its error file, which is JSON, too.

use std::fmt::{self, Write as _};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::secret;

/// git-sync's time format: local time without a zone.
const TIME: &str = "%Y-%m-%d %H:%M:%S.%6f";

/// git-sync's message for one of our events.
struct Words {
    /// The name of our event.
    event: &'static str,
    message: &'static str,
    /// The `-v` from which on git-sync logs it. It prints no level in lines with an error.
    level: u8,
    /// Our fields that git-sync calls otherwise, with its names. All other fields keep theirs.
    keys: &'static [(&'static str, &'static str)],
}

type Keys = &'static [(&'static str, &'static str)];

const fn words(event: &'static str, level: u8, message: &'static str, keys: Keys) -> Words {
    Words { event, message, level, keys }
}

const HASH: Keys = &[("revision", "hash")];
const COUNTS: Keys = &[("git_ref", "ref"), ("updates", "syncCount")];

/// git-sync v4's messages, kept so that searches in its log still match. `docs/migrating/git-sync-log.md` lists all
/// of its messages.
const WORDS: &[Words] = &[
    words("start", 0, "starting up", &[]),
    words("no_root", 0, "FATAL: can't make root dir", &[]),
    words("no_listener", 0, "can't bind HTTP endpoint", &[]),
    words("listening", 0, "serving HTTP", &[("serves", "reasons")]),
    words("listens_for", 1, "installing signal handler", &[]),
    words("signal", 1, "caught signal", &[]),
    words("gave_up", 0, "too many failures, aborting", &[]),
    words("failed", 0, "error syncing repo, will retry", &[("failures", "failCount")]),
    words("settled", 0, "initial sync complete, switching to normal period", &[]),
    words("untouched", 0, "failed to touch touch-file", &[]),
    words("touched", 3, "touched touch-file", &[]),
    words("once", 0, "exiting after one sync", &[]),
    words("parked", 0, "ref appears to be a git hash, no further sync needed", &[("git_ref", "ref")]),
    words("forgiven", 4, "resetting failure count", &[]),
    words("pause", 3, "next sync", &[]),
    words("update", 0, "update required", COUNTS),
    words("updated", 0, "updated successfully", COUNTS),
    words("unchanged", 2, "update not required", COUNTS),
    words("exec_runs", 0, "running exechook", HASH),
    words("exec_done", 1, "exechook succeeded", HASH),
    words("web_runs", 0, "sending webhook", HASH),
    words("web_done", 1, "webhook succeeded", HASH),
    words("hook_failed", 0, "hook failed", HASH),
];

/// Our event with the output of a hook, which git-sync has in `exechook succeeded`: one line with it is enough.
const HOOK_OUTPUT: &str = "hook_output";

/// The format.
#[derive(Debug)]
pub(super) struct Lines {
    /// The highest of git-sync's levels whose messages are logged; `None`: the filter alone decides.
    pub(super) verbosity: Option<i64>,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let known = WORDS.iter().find(|words| words.event == metadata.name());
        let most = self.verbosity.map_or(i64::MAX, |verbosity| verbosity.max(0));
        if metadata.name() == HOOK_OUTPUT || known.is_some_and(|words| i64::from(words.level) > most) {
            return Ok(());
        }
        let mut fields = EventFields::default();
        event.record(&mut fields);
        let file = metadata.file().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
        let now = jiff::Zoned::now().strftime(TIME).to_string();
        let logger = fields.take("hook").unwrap_or_else(|| "".into());
        let error = fields.take("error");
        write!(
            writer,
            "{{\"logger\":{logger},\"ts\":{},\"caller\":{{\"file\":{},\"line\":{}}}",
            Value::from(now),
            Value::from(file),
            metadata.line().unwrap_or_default()
        )?;
        if let Some(words) = known {
            fields.translate(words);
        }
        let level = match *metadata.level() {
            _ if known.is_some() => known.map_or(0, |words| words.level),
            Level::ERROR | Level::WARN | Level::INFO => 0,
            Level::DEBUG => 1,
            Level::TRACE => 5,
        };
        match (error, *metadata.level()) {
            (Some(error), _) => write!(writer, ",\"msg\":{},\"error\":{error}", fields.message)?,
            (None, Level::ERROR) => write!(writer, ",\"msg\":{},\"error\":null", fields.message)?,
            (None, _) => write!(writer, ",\"level\":{level},\"msg\":{}", fields.message)?,
        }
        for (name, value) in &fields.values {
            write!(writer, ",{}:{value}", Value::from(*name))?;
        }
        writer.write_str("}\n")
    }
}

/// The content of the error file, which programs may parse: git-sync's message for the error, the error and the keys of
/// git-sync's log line. Secrets are redacted.
pub fn error_file(message: &str, error: &str, arguments: &Map<String, Value>) -> String {
    #[derive(serde::Serialize)]
    struct Content<'a> {
        #[serde(rename = "Msg")]
        message: &'a str,
        #[serde(rename = "Err")]
        error: &'a str,
        #[serde(rename = "Args")]
        arguments: &'a Map<String, Value>,
    }
    let text = serde_json::to_string(&Content { message, error, arguments });
    secret::redacted_json(&text.unwrap_or_default()) // serializing strings and numbers cannot fail
}

/// The message and the fields of an event.
#[derive(Default)]
struct EventFields {
    message: Value,
    values: Vec<(&'static str, Value)>,
}

impl EventFields {
    /// Removes a field and returns its value.
    fn take(&mut self, name: &str) -> Option<Value> {
        let at = self.values.iter().position(|(known, _)| *known == name)?;
        Some(self.values.remove(at).1)
    }

    /// Replaces the message and the names of fields by git-sync's.
    fn translate(&mut self, words: &Words) {
        self.message = words.message.into();
        for (name, value) in &mut self.values {
            if let Some((_, theirs)) = words.keys.iter().find(|(ours, _)| ours == name) {
                *name = theirs;
            }
            match (*name, value.as_str()) {
                ("flags", Some(text)) => *value = serde_json::from_str(text).unwrap_or_default(),
                ("reasons", Some(text)) => *value = text.split(' ').collect(),
                _ => {}
            }
        }
    }

    fn add(&mut self, field: &Field, value: Value) {
        match field.name() {
            "message" => self.message = value,
            name => self.values.push((name, value)),
        }
    }
}

impl Visit for EventFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = String::new();
        let _ = write!(text, "{value:?}"); // writing to a String never fails
        self.add(field, text.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::{Arc, Mutex};
    use tracing_subscriber::fmt::MakeWriter;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Kept {
        type Writer = Self;
        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    #[test]
    fn the_documentation_lists_the_messages_that_equal_git_syncs() {
        let page = include_str!("../../docs/migrating/git-sync-log.md");
        let rows = page.lines().filter(|line| line.contains("` |") && line.contains("| the same"));
        let cells = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
        let mut listed: Vec<_> = cells.filter(|cells| cells.len() == 6).map(|cells| cells[2]).collect();
        let mut ours: Vec<_> = WORDS.iter().map(|words| format!("`{}`", words.message)).collect();
        listed.sort_unstable();
        ours.sort_unstable();
        assert_eq!(listed, ours);
    }

    #[test]
    fn lines_have_git_syncs_keys() {
        let kept = Kept::default();
        let lines =
            tracing_subscriber::fmt().with_writer(kept.clone()).event_format(Lines { verbosity: None });
        tracing::subscriber::with_default(lines.with_max_level(Level::TRACE).finish(), || {
            tracing::info!(hash = "abc", files = 3, "updated \"it\"");
            tracing::debug!("a step");
            tracing::warn!(error = "no route", "sync failed");
            tracing::error!("over");
            tracing::info!(hook = "webhook", "done");
        });
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let [update, step, failure, last, hook] = &lines[..] else { panic!("{text}") };
        assert_eq!((&update["level"], &update["msg"]), (&0.into(), &"updated \"it\"".into()));
        assert_eq!(
            (&update["hash"], &update["files"], &update["logger"]),
            (&"abc".into(), &3.into(), &"".into())
        );
        assert_eq!(update["caller"]["file"], "git_sync.rs");
        assert!(update["caller"]["line"].is_u64());
        let time = update["ts"].as_str().unwrap();
        assert_eq!((time.len(), &time[10..11], &time[19..20]), (26, " ", "."), "{time}");
        assert_eq!(step["level"], 1);
        assert_eq!((failure.get("level"), &failure["error"]), (None, &"no route".into()));
        assert!(last.get("error").is_some_and(Value::is_null) && last.get("level").is_none());
        assert_eq!(hook["logger"], "webhook");
    }
}
