//! Servers that can't be reached, say nothing, or say it slowly.

use std::io::{Read, Write};
use std::time::Duration;

use super::answers::{band, line, pack_header, smart};
use super::attempt::Case;
use super::common::{refusing, swallowing};
use super::port::{Cut, Relay, behaviour, head, http, page};
use super::{Limits, NOBODY, SECOND, Stage};

#[test]
fn servers_that_cannot_be_reached_or_say_nothing_are_left_at_the_deadline() {
    let mut stage = Stage::new();
    stage.against(
        "accepts, and stays silent",
        behaviour(|mut stream| stream.read_to_end(&mut Vec::new()).map(drop)),
        1,
        Limits::Short,
        &["silence", "--idle-timeout"],
    );
    stage.against("accepts, and closes", behaviour(|_| Ok(())), 1, Limits::Long, &["broke"]);
    stage.against(
        "accepts, and resets",
        behaviour(|stream| {
            Cut::Reset.carry_out(&stream);
            Ok(())
        }),
        1,
        Limits::Long,
        &["http://127.0.0.1"],
    );
    stage.against(
        "a byte of the head every 100 ms",
        http(|_, stream| {
            page("200 OK", "Content-Type: x\r\n", &"x".repeat(1000)).iter().try_for_each(|byte| {
                std::thread::sleep(Duration::from_millis(100));
                stream.write_all(&[*byte])
            })
        }),
        3,
        Limits::Short,
        &["timeout"],
    );
    stage.against(
        "a byte of the references every 100 ms",
        http(|_, stream| {
            stream.write_all(head("result").as_bytes())?;
            let refs = line(format!("{NOBODY} refs/heads/main\n")).repeat(100);
            refs.iter().try_for_each(|byte| {
                std::thread::sleep(Duration::from_millis(100));
                stream.write_all(&[*byte])
            })
        }),
        3,
        Limits::Short,
        &["--sync-timeout"],
    );
    let slow = Relay { pause: Some(Duration::from_millis(5)), ..Relay::all(stage.good.address) };
    stage.against("a good server, a byte every 5 ms", slow.behaviour(), 3, Limits::Short, &["timeout"]);
    stage.against(
        "a pack that stalls",
        smart(NOBODY, |stream| {
            stream.write_all(&band(1, &pack_header(3)))?;
            stream.read_to_end(&mut Vec::new()).map(drop)
        }),
        1,
        Limits::Short,
        &["silence", "--idle-timeout"],
    );
    stage.against(
        "keep-alive lines instead of a pack",
        smart(NOBODY, |stream| {
            loop {
                stream.write_all(&band(2, b"."))?;
                std::thread::sleep(Duration::from_millis(200));
            }
        }),
        3,
        Limits::Short,
        &["--sync-timeout"],
    );
    let ((swallows, _full), (refuses, _taken)) = (swallowing(), refusing());
    let elsewhere: [(&str, String, Limits, &[&str]); 3] = [
        ("swallows the connection", swallows.to_string(), Limits::Short, &["--connect-timeout"]),
        ("refuses", refuses.to_string(), Limits::Long, &["cannot connect", "refused"]),
        ("has no address", "treeswap.invalid".into(), Limits::Long, &["http://treeswap.invalid"]),
    ];
    for (name, host, limits, words) in elsewhere {
        let (url, flags) = (format!("http://{host}/remote"), limits.flags(&[]));
        stage.rows.push(stage.place.fails(&Case { name, url, flags, deadline: 3 * SECOND, words }));
    }
    stage.recovers();
}
