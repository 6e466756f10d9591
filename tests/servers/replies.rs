//! Replies over HTTP that are none of git's, and refusals.

use std::io::Write;

use super::answers::{line, smart};
use super::port::{page, says};
use super::{Limits, NOBODY, Stage};

#[test]
fn answers_over_http_that_are_none_of_gits_are_named() {
    let mut stage = Stage::new();
    let html = "<html><body>Please log in \u{1b}[31m</body></html>";
    stage.against(
        "a page instead of git",
        says(page("200 OK", "Content-Type: text/html\r\n", html)),
        1,
        Limits::Long,
        &["does not speak git's protocol", "<html>"],
    );
    for (status, words) in [
        ("500 Internal Server Error", "500"),
        ("502 Bad Gateway", "502"),
        ("404 Not Found", "404"),
        ("401 Unauthorized", "401"),
        ("403 Forbidden", "403"),
        ("407 Proxy Authentication Required", "407"),
    ] {
        stage.against(
            &format!("answers {status}"),
            says(page(status, "", "oh\n")),
            1,
            Limits::Long,
            &[words],
        );
    }
    for status in ["503 Service Unavailable", "429 Too Many Requests"] {
        let answer = page(status, "Retry-After: 3600\r\n", "later");
        stage.against(
            &format!("answers {status}, in an hour"),
            says(answer),
            1,
            Limits::Long,
            &[&status[..3]],
        );
    }
    stage.against("an empty answer", says(page("200 OK", "", "")), 1, Limits::Short, &[]);
    stage.against("no HTTP", says("220 mail ESMTP\r\n"), 1, Limits::Short, &[]);
    stage.against(
        "a length that is a lie",
        says("HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\n0000"),
        1,
        Limits::Short,
        &[],
    );
    stage.against(
        "chunks that are none",
        says("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
        1,
        Limits::Short,
        &[],
    );
    stage.against(
        "packet lines that are none",
        says(page("200 OK", "", "0003zzzz")),
        1,
        Limits::Long,
        &["git's protocol"],
    );
    let said = line("ERR no such thing \u{1b}]0;x\u{7}");
    let said = page("200 OK", "", &String::from_utf8(said).unwrap());
    stage.against("an error of git's", says(said), 1, Limits::Long, &["no such thing"]);
    stage.against(
        "refs that are none",
        says(page("200 OK", "", "0019zzzz refs/heads/main\n0000")),
        1,
        Limits::Short,
        &[],
    );
    stage.against(
        "a ref that nobody has",
        smart(NOBODY, |stream| stream.write_all(&line(format!("ERR upload-pack: not our ref {NOBODY}")))),
        1,
        Limits::Short,
        &[],
    );
    stage.recovers();
}
