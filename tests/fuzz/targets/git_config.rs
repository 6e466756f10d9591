//! Settings of git, as the command line and the environment give them.

use super::git_config::{Entry, apply, parse, ssh_command};
use super::values;
use crate::fuzz::{Input, SECRET, Target};
use crate::human::one_line;

pub(crate) const TARGETS: &[Target] =
    &[Target::new("git_config", git_config), Target::new("values", options)];

/// As git-sync writes it.
fn quoted(text: &str) -> String {
    format!(
        "\"{}\"",
        text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n").replace('\t', "\\t")
    )
}

const KEYS: [&str; 12] = [
    "http.extraHeader",
    "http.https://git.example.com/.extraHeader",
    "http.proxy",
    "http.sslVerify",
    "http.cookieFile",
    "url.https://git.example.com/.insteadOf",
    "protocol.file.allow",
    "credential.helper",
    "core.sshCommand",
    "lfs.url",
    "http.https://*.example.com/.sslCAInfo",
    "user.name",
];

/// A list is read as it was written, and no message shows a value.
fn git_config(data: &[u8]) {
    let input = &mut Input::new(data);
    let remote = *input.of(&["https://git.example.com/team/a.git", "git@git.example.com:a", "/srv/a"]);
    if input.byte() & 1 == 0 {
        let text = String::from_utf8_lossy(input.rest()).into_owned();
        if let Ok(entries) = parse(&text) {
            let written: Vec<String> = entries
                .iter()
                .map(|Entry { key, value }| format!("{}:{}", quoted(key), quoted(value)))
                .collect();
            assert_eq!(parse(&written.join(",")), Ok(entries.clone()));
            let _ = apply(&entries, remote).map(|effect| effect.warnings(true).count());
        }
        let _ = ssh_command(&text);
        return;
    }
    let mut entries = Vec::new();
    while entries.len() < 8 && !input.is_empty() {
        // A fuzzer that sees what is compared puts the secret into names, which are shown.
        let key =
            if input.byte() < 200 { (*input.of(&KEYS)).to_owned() } else { input.text().replace(SECRET, "") };
        let (one, two) = (input.text(), input.text());
        let value = match input.byte() % 4 {
            0 => format!("{one}{SECRET}{two}"),
            1 => format!("X-Auth: Bearer {SECRET}"),
            2 => format!("http://bob:{SECRET}@proxy:3128/{one}"),
            _ => one,
        };
        entries.push(Entry { key, value });
    }
    match apply(&entries, remote) {
        Ok(effect) => {
            for remark in effect.warnings(false) {
                assert!(!remark.contains(SECRET), "{remark}");
            }
            let shown = format!("{:?} {:?}", effect.headers, effect.proxy);
            assert!(!shown.contains(SECRET), "{shown}");
        }
        Err(error) => assert!(!one_line(&error).contains(SECRET), "{error}"),
    }
}

/// Values of options: what is understood is written as what is understood again.
fn options(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(duration) = values::duration(&text) {
        let written = values::print_duration(duration);
        let again = values::duration(&written).unwrap();
        // Of what takes weeks the number that it is read as has no nanoseconds.
        let is_near = duration.as_secs() >> 20 > 0 && again.abs_diff(duration).as_nanos() < 1_000;
        assert!(again == duration || is_near, "{text:?} is printed as {written:?}");
    }
    if let Ok(percent) = values::percent(&text) {
        assert!(percent <= 100);
    }
    if let Ok(fraction) = values::fraction(&text) {
        assert!((0.0..=1.0).contains(&fraction), "{fraction}");
    }
    let _ = (values::bytes(&text), values::integer(&text), values::boolean(&text), values::signal(&text));
}
