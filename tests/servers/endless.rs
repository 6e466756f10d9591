//! Answers that never end.

use std::io::Write;
use std::time::Duration;

use super::answers::{FLUSH, band, end, first_ref, line, service};
use super::port::{Behaviour, head, http, page, without_end};
use super::{Limits, NOBODY, Stage};

#[test]
fn answers_without_end_meet_their_budget() {
    let mut stage = Stage::new();
    let budget = ["--max-refs-bytes=8Mi", "--sync-timeout=100s"];
    let refs = || line(format!("{NOBODY} refs/heads/main\n"));
    let other = || line(format!("{NOBODY} refs/heads/other-and-of-no-interest\n"));
    let http_table: [(&str, Behaviour); 5] = [
        (
            "refs without end, version 2",
            http(move |_, stream| {
                stream.write_all(head("result").as_bytes())?;
                without_end(stream, &refs())
            }),
        ),
        (
            "refs without end, version 0",
            http(move |asked, stream| {
                if asked.method == "POST" {
                    return stream.write_all(&page("400 Bad Request", "", ""));
                }
                stream.write_all(head("advertisement").as_bytes())?;
                stream.write_all(&[service(), first_ref(NOBODY)].concat())?;
                without_end(stream, &other())
            }),
        ),
        (
            "capabilities without end",
            http(|asked, stream| {
                if asked.method == "POST" {
                    return stream.write_all(&page("400 Bad Request", "", ""));
                }
                stream.write_all(head("advertisement").as_bytes())?;
                stream.write_all(&[service(), line("version 2\n")].concat())?;
                without_end(stream, &line("filler=of-no-interest\n"))
            }),
        ),
        (
            "progress without end",
            http(|_, stream| {
                stream.write_all(head("result").as_bytes())?;
                without_end(stream, &band(2, b"still counting\r"))
            }),
        ),
        (
            "shallow lines without end",
            http(|asked, stream| {
                stream.write_all(head("result").as_bytes())?;
                if asked.body.contains("command=ls-refs") {
                    stream
                        .write_all(&[line(format!("{NOBODY} refs/heads/main\n")), FLUSH.to_vec()].concat())?;
                    return end(stream);
                }
                stream.write_all(&line("shallow-info\n"))?;
                without_end(stream, &line(format!("shallow {NOBODY}")))
            }),
        ),
    ];
    for (name, behaviour) in http_table {
        stage.port.behave(behaviour);
        stage.attempt(name, 100, Limits::Short, &budget, &[]);
    }
    stage.against(
        "a head without end",
        http(|_, stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\n")?;
            without_end(stream, b"X-Filler: of no interest\r\n")
        }),
        1,
        Limits::Short,
        &[],
    );
    stage.against(
        "interim answers without end",
        // Paced, because hyper takes all that it can get before it looks at anything else: some 50 MB, for which it
        // needs half a second, but twenty where it isn't optimised.
        http(|_, stream| {
            loop {
                stream.write_all(&b"HTTP/1.1 103 Early Hints\r\n\r\n".repeat(100))?;
                std::thread::sleep(Duration::from_millis(5));
            }
        }),
        3,
        Limits::Short,
        &[],
    );
    stage.against(
        "a page without end",
        http(|_, stream| {
            stream.write_all(head("result").as_bytes())?;
            without_end(stream, b"<p>of no interest</p>")
        }),
        3,
        Limits::Long,
        &["git's protocol"],
    );

    // With the budget as it is by default.
    stage.port.behave(http(move |_, stream| {
        stream.write_all(head("result").as_bytes())?;
        without_end(stream, &line(format!("{NOBODY} refs/heads/main\n")))
    }));
    stage.attempt(
        "refs without end, 64 MiB of them",
        200,
        Limits::Long,
        &["--sync-timeout=200s"],
        &["--max-refs-bytes"],
    );
    stage.recovers();
}
