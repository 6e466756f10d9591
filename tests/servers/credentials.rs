//! Redirects and certificates: what is secret goes to the server it was given for, and to nobody who only says so.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::answers::{capabilities, end, service};
use super::attempt::{CANARY, Case, Place};
use super::common::http_backend::{Authority, Canned, Hit, HttpBackend, Kind};
use super::port::{Behaviour, Port, Relay, behaviour, head, http, page, says};
use super::{Limits, SECOND, Stage, print};

#[test]
fn a_credential_goes_nowhere_else() {
    let mut stage = Stage::new();
    let password = stage.place.world.dir().join("password");
    std::fs::write(&password, CANARY[0]).unwrap();
    let flags = ["--username=bob".to_owned(), format!("--password-file={}", password.display())];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let thief = Port::open(behaviour(|mut stream| stream.write_all(&page("401 Unauthorized", "", ""))));
    let there = format!("http://{}/remote", thief.address);

    let given = Arc::new(AtomicU64::new(0));
    // A POST's only where the repository is found where it should be, or the GET's would be met first.
    for (code, question, tail) in [
        (301, "GET", "/info/refs?service=git-upload-pack"),
        (302, "GET", "/info/refs?service=git-upload-pack"),
        (307, "POST", "/git-upload-pack"),
        (308, "POST", "/git-upload-pack"),
    ] {
        let seen = given.clone();
        let redirect = page(&format!("{code} Elsewhere"), &format!("Location: {there}{tail}\r\n"), "");
        stage.port.behave(http(move |asked, stream| {
            assert_eq!(asked.authorization, format!("Basic {}", CANARY[1]));
            seen.fetch_add(1, Ordering::SeqCst);
            if asked.method == question {
                return stream.write_all(&redirect);
            }
            if asked.method == "POST" {
                return stream.write_all(&page("400 Bad Request", "", ""));
            }
            stream.write_all(head("advertisement").as_bytes())?;
            stream.write_all(&[service(), capabilities()].concat())?;
            end(stream)
        }));
        let name = format!("{code} of a {question} to another host");
        stage.attempt(&name, 1, Limits::Long, &flags, &["redirects to", &there]);
    }
    assert!(given.load(Ordering::SeqCst) >= 4, "the right server wasn't given the credential");
    let (at, round) = (stage.port.address, "/remote/info/refs?service=git-upload-pack");
    stage.port.behave(http(move |asked, stream| {
        stream.write_all(&match asked.method.as_str() {
            "GET" => page("302 Found", &format!("Location: http://{at}{round}\r\n"), ""),
            _ => page("400 Bad Request", "", ""),
        })
    }));
    stage.attempt("a redirect to itself", 1, Limits::Long, &flags, &["redirect"]);
    stage.against(
        "a redirect to nowhere",
        says(page("302 Found", "Location: :::\r\n", "")),
        1,
        Limits::Long,
        &["redirect"],
    );
    stage.against(
        "a redirect to a file",
        says(page("302 Found", "Location: file:///etc/passwd\r\n", "")),
        1,
        Limits::Long,
        &["redirect"],
    );
    assert_eq!(thief.connections(), 0, "the other host was asked");
    stage.recovers();
}

#[test]
fn tls_is_never_let_off() {
    let place = Place::new();
    let dir = place.world.dir();
    let years = |from, to| Authority::issuing(&["localhost"], (from, to));
    let (authority, stranger, expired, future) =
        (Authority::new(), Authority::new(), years(2020, 2021), years(2100, 2101));
    let elsewhere = Authority::issuing(&["git.example.org"], (2020, 2120));
    let plain = HttpBackend::start(dir, Kind::default());
    let serve = |authority: &Authority, hook| {
        HttpBackend::start(dir, Kind { tls: Some(authority.server.clone()), hook, ..Kind::default() })
    };
    let down = plain.url("remote");
    let downgrade = serve(
        &authority,
        Some(Box::new(move |hit: &Hit| {
            let tail = hit.path.strip_prefix("/remote").unwrap_or_default();
            Some(if hit.method == "GET" {
                Canned::redirect(&format!("{down}{tail}"))
            } else {
                Canned::status(400, "")
            })
        })),
    );
    let servers =
        [&authority, &stranger, &expired, &future, &elsewhere].map(|authority| serve(authority, None));
    let [good, strange, late, early, other] = servers.each_ref().map(|server| server.address);
    let ca = |authority: &Authority, name: &str| {
        format!("--ca-file={}", authority.write(&dir.join(name)).display())
    };
    let trusted = ca(&authority, "ca.pem");
    std::fs::write(dir.join("nothing.pem"), "no certificate here\n").unwrap();
    let nothing = format!("--ca-file={}", dir.join("nothing.pem").display());

    let port = Port::open(Relay::all(good).behaviour());
    let url = format!("https://localhost:{}/remote", port.address.port());
    place.publish(&url, std::slice::from_ref(&trusted));
    place.advance(&Place::newer_files());
    let silent = behaviour(|mut stream| stream.read_to_end(&mut Vec::new()).map(drop));
    let no_tls = behaviour(|mut stream| stream.write_all(&page("400 Bad Request", "", "speak plainly")));
    let through = |to| Relay::all(to).behaviour();
    type Row<'t> = (&'t str, Behaviour, Option<String>, Limits, &'t [&'t str]);
    let table: [Row<'_>; 11] = [
        ("TLS, an authority that is not given", through(good), None, Limits::Long, &["unknown issuer"]),
        (
            "TLS, an authority that is another",
            through(strange),
            Some(trusted.clone()),
            Limits::Long,
            &["its certificate"],
        ),
        (
            "TLS, a CA file that is absent",
            through(good),
            Some("--ca-file=/absent/ca.pem".into()),
            Limits::Long,
            &["/absent/ca.pem"],
        ),
        ("TLS, a CA file with nothing in it", through(good), Some(nothing), Limits::Long, &["nothing.pem"]),
        (
            "TLS, a certificate that expired",
            through(late),
            Some(ca(&expired, "expired.pem")),
            Limits::Long,
            &["expired"],
        ),
        (
            "TLS, a certificate for later",
            through(early),
            Some(ca(&future, "future.pem")),
            Limits::Long,
            &["not valid"],
        ),
        (
            "TLS, a certificate for another host",
            through(other),
            Some(ca(&elsewhere, "other.pem")),
            Limits::Long,
            &["git.example.org"],
        ),
        (
            "TLS, closed by who expected none",
            through(plain.address),
            Some(trusted.clone()),
            Limits::Short,
            &[],
        ),
        (
            "TLS, answered by who speaks none",
            no_tls,
            Some(trusted.clone()),
            Limits::Long,
            &["does not speak TLS"],
        ),
        ("TLS, silent", silent, Some(trusted.clone()), Limits::Short, &["timeout"]),
        (
            "TLS, a redirect to http",
            through(downgrade.address),
            Some(trusted.clone()),
            Limits::Long,
            &["redirects to"],
        ),
    ];
    let mut rows = Vec::new();
    for (name, behaviour, flag, limits, words) in table {
        port.behave(behaviour);
        let flags = limits.flags(&[]).into_iter().chain(flag).collect();
        rows.push(place.fails(&Case { name, url: url.clone(), flags, deadline: SECOND, words }));
    }
    let asked = plain.hits();
    assert!(asked.is_empty(), "asked in the clear: {asked:?}");
    port.behave(through(good));
    place.recovers(&url, &[trusted]);
    print(&rows);
}
