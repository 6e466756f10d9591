//! Kept connections, and whom TLS trusts.

use super::*;

#[tokio::test]
async fn a_connection_that_the_server_closed_is_opened_again_in_silence() {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    let kind = Kind { requests_per_connection: Some(3), ..Kind::default() };
    let backend = HttpBackend::start(world.dir(), kind);
    let mut client = client(&backend.url("remote"));
    for _ in 0..12 {
        assert_eq!(tip(&mut client, "main").await.unwrap(), commit);
    }
    assert_eq!(backend.hits().last().unwrap().connection, 3);
}

#[tokio::test]
async fn a_connection_that_closes_upon_the_question_is_tried_once_more_and_no_more() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    let count = std::sync::Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    // The second question finds the connection closed once; from the third on, always.
    let hook = move |_: &common::http_backend::Hit| {
        let n = counted.fetch_add(1, Ordering::Relaxed);
        (n == 1 || n > 2).then(Canned::hang_up)
    };
    let backend = HttpBackend::start(world.dir(), Kind { hook: Some(Box::new(hook)), ..Kind::default() });
    let mut client = client(&backend.url("remote"));
    assert_eq!(tip(&mut client, "main").await.unwrap(), commit);
    assert_eq!(tip(&mut client, "main").await.unwrap(), commit);
    let error = tip(&mut client, "main").await.unwrap_err();
    assert!(matches!(error, Error::Broken { .. }) && error.is_transient(), "{error}");
    assert_eq!(count.load(Ordering::Relaxed), 5);
}

#[tokio::test]
async fn a_private_authority_is_trusted_by_its_file_which_is_read_for_every_connection() {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    let authority = Authority::new();
    let kind =
        Kind { tls: Some(authority.server.clone()), requests_per_connection: Some(2), ..Kind::default() };
    let backend = HttpBackend::start(world.dir(), kind);
    let url = backend.url("remote");

    let error = tip(&mut client(&url), "main").await.unwrap_err();
    names(&error, &["unknown issuer"]);
    assert!(error.hints()[0].contains("--ca-file") && !error.is_transient());

    let file = authority.write(&world.dir().join("ca.pem"));
    let mut client = with(&url, |options| options.ca_file = Some(file.clone()));
    for _ in 0..2 {
        assert_eq!(tip(&mut client, "main").await.unwrap(), commit);
    }
    // The kept connection is used up; the next one sees another file.
    Authority::new().write(&file);
    names(&tip(&mut client, "main").await.unwrap_err(), &["another key"]);
    std::fs::remove_file(&file).unwrap();
    names(&tip(&mut client, "main").await.unwrap_err(), &["ca.pem", "cannot be read"]);
    authority.write(&file);
    assert_eq!(tip(&mut client, "main").await.unwrap(), commit);
}

#[tokio::test]
async fn a_certificate_of_another_name_or_time_is_named_as_such() {
    let world = World::new();
    for (names_, years, words) in [
        (["git.example.com"], (2020, 2120), ["localhost", "git.example.com"]),
        (["localhost"], (2020, 2021), ["expired on 2021-01-01", ""]),
        (["localhost"], (2100, 2120), ["not valid before 2100-01-01", ""]),
    ] {
        let authority = Authority::issuing(&names_, years);
        let backend =
            HttpBackend::start(world.dir(), Kind { tls: Some(authority.server.clone()), ..Kind::default() });
        let file = authority.write(&world.dir().join("ca.pem"));
        let mut client = with(&backend.url("remote"), |options| options.ca_file = Some(file));
        names(&tip(&mut client, "main").await.unwrap_err(), &words);
    }
}

#[tokio::test]
async fn plain_http_behind_https_is_said() {
    let address = server(|mut socket| {
        question(&mut socket);
        let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        question(&mut socket);
    });
    names(
        &tip(&mut client(&format!("https://{address}/x")), "main").await.unwrap_err(),
        &["does not speak TLS"],
    );
}

#[tokio::test]
async fn tls_is_not_left_by_a_redirect() {
    let world = World::new();
    let plain = HttpBackend::start(world.dir(), Kind::default());
    let target = plain.url("remote/info/refs?service=git-upload-pack");
    let authority = Authority::new();
    let kind = Kind {
        tls: Some(authority.server.clone()),
        hook: Some(Box::new(move |_| Some(Canned::redirect(&target)))),
        ..Kind::default()
    };
    let backend = HttpBackend::start(world.dir(), kind);
    let file = authority.write(&world.dir().join("ca.pem"));
    let mut client = with(&backend.url("remote"), |options| options.ca_file = Some(file));
    names(&tip(&mut client, "main").await.unwrap_err(), &["leave TLS"]);
    assert_eq!(plain.hits().len(), 0);
}

#[tokio::test]
async fn a_self_signed_certificate_is_accepted_if_it_is_itself_the_configured_one() {
    // What `openssl req -x509` makes unless told otherwise, which git accepts as well.
    let now = (2020, 2120);
    let (pem, server) = Authority::self_signed("localhost", now);
    let (twin, _) = Authority::self_signed("localhost", now); // the same subject with another key
    let (expired, expired_server) = Authority::self_signed("localhost", (2020, 2021));
    let (other, other_server) = Authority::self_signed("git.example.com", now);
    let refused: &[&str] = &["that of a certificate authority", "CA:TRUE"];
    for (trusted, server, words) in [
        (format!("{twin}{pem}"), &server, None),
        (twin, &server, Some(refused)),
        (expired, &expired_server, Some(&["expired on 2021-01-01"][..])),
        (other, &other_server, Some(&["not for the name localhost but for git.example.com"][..])),
    ] {
        let world = World::new();
        let commit = world.remote.commit(&Files::new().file("a", "1"));
        let kind = Kind { tls: Some(server.clone()), ..Kind::default() };
        let backend = HttpBackend::start(world.dir(), kind);
        let file = world.dir().join("ca.pem");
        std::fs::write(&file, trusted).unwrap();
        let mut client = with(&backend.url("remote"), |options| options.ca_file = Some(file));
        match (tip(&mut client, "main").await, words) {
            (Ok(found), None) => assert_eq!(found, commit),
            (Err(error), Some(words)) => names(&error, words),
            (found, words) => panic!("{found:?}, but expected {words:?}"),
        }
    }
}

#[tokio::test]
async fn a_self_signed_certificate_that_is_not_configured_is_refused() {
    let world = World::new();
    let (_, server) = Authority::self_signed("localhost", (2020, 2120));
    let backend = HttpBackend::start(world.dir(), Kind { tls: Some(server), ..Kind::default() });
    let mut client = client(&backend.url("remote"));
    let error = tip(&mut client, "main").await.unwrap_err();
    names(&error, &["that of a certificate authority"]);
    assert!(
        error.hints()[0].contains("--ca-file") && error.hints()[0].contains("CA:FALSE"),
        "{:?}",
        error.hints()
    );
}
