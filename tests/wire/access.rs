//! Credentials, redirects, and answers that are none.

use super::*;

#[tokio::test]
async fn a_right_password_passes_and_a_wrong_one_is_tried_once() {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    let auth = Some(("bob".to_owned(), "s3cret".to_owned()));
    let backend = HttpBackend::start(world.dir(), Kind { auth, ..Kind::default() });
    let url = backend.url("remote");

    let mut right = with(&url, |options| options.credentials = vec![password("bob", "s3cret")]);
    assert_eq!(tip(&mut right, "main").await.unwrap(), commit);
    let in_url = url.replace("http://", "http://bob:s3cret@");
    let mut in_url = client(&in_url);
    assert_eq!(tip(&mut in_url, "main").await.unwrap(), commit);
    assert!(!format!("{in_url:?} {right:?} {}", in_url.remote()).contains("s3cret"));
    assert!(!in_url.remote().contains("bob"));

    backend.forget();
    let mut wrong = with(&url, |options| options.credentials = vec![password("bob", "wr0ng")]);
    let error = tip(&mut wrong, "main").await.unwrap_err();
    names(&error, &["401", "\"bob\""]);
    assert!(!chain(&error).contains("wr0ng") && !format!("{error:?}").contains("wr0ng"));
    assert!(!error.is_transient());
    assert_eq!(backend.hits().len(), 1, "one try per attempt");
    let error = tip(&mut client(&url), "main").await.unwrap_err();
    names(&error, &["without a credential"]);
}

#[tokio::test]
async fn a_server_that_repeats_the_password_does_not_bring_it_into_our_words() {
    let world = World::new();
    let encoded = base64(b"bob:s3cret");
    for canned in [
        Canned::status(400, &format!("bad header: Basic {encoded} (s3cret)")),
        Canned::status(200, &format!("s3cret {encoded}")),
        Canned::status(200, &format!("{:04x}ERR s3cret {encoded}", 15 + encoded.len())),
        Canned::redirect(&format!("https://example.com/s3cret/{encoded}")),
    ] {
        let hook = move |_: &common::http_backend::Hit| Some(canned.clone());
        let backend = HttpBackend::start(world.dir(), Kind { hook: Some(Box::new(hook)), ..Kind::default() });
        let mut client =
            with(&backend.url("x"), |options| options.credentials = vec![password("bob", "s3cret")]);
        let error = tip(&mut client, "main").await.unwrap_err();
        names(&error, &["[redacted]"]);
        assert!(
            !format!("{error:?} {client:?}").contains("s3cret") && !format!("{error:?}").contains(&encoded)
        );
    }
}

#[tokio::test]
async fn a_password_file_is_read_anew_at_every_attempt() {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    let auth = Some(("git".to_owned(), "t0ken".to_owned()));
    let backend = HttpBackend::start(world.dir(), Kind { auth, ..Kind::default() });
    let file = world.dir().join("token");
    std::fs::write(&file, "old\n").unwrap();
    let mut client = with(&backend.url("remote"), |options| {
        options.credentials =
            vec![Credential { url: None, username: None, password: SecretFrom::File(file.clone()) }];
    });
    assert!(matches!(tip(&mut client, "main").await, Err(Error::Auth { .. })));
    std::fs::write(&file, "t0ken\n").unwrap();
    assert_eq!(tip(&mut client, "main").await.unwrap(), commit);
    std::fs::remove_file(&file).unwrap();
    let error = tip(&mut client, "main").await.unwrap_err();
    names(&error, &["token", "cannot read"]);
}

#[tokio::test]
async fn no_credential_follows_a_redirect_to_another_origin() {
    let world = World::new();
    world.remote.commit(&Files::new().file("a", "1"));
    let thief = HttpBackend::start(world.dir(), Kind::default());
    let target = thief.url("remote/info/refs?service=git-upload-pack");
    let honest = HttpBackend::start(
        world.dir(),
        Kind { hook: Some(Box::new(move |_| Some(Canned::redirect(&target)))), ..Kind::default() },
    );
    let mut client = with(&honest.url("remote"), |options| {
        let thiefs = Credential { url: Some(thief.url("")), ..password("bob", "s3cret") };
        options.credentials = vec![password("bob", "s3cret"), thiefs];
    });
    let error = tip(&mut client, "main").await.unwrap_err();
    let repository = format!("redirects to {}: that is another origin", thief.url("remote"));
    names(&error, &[&repository]);
    assert!(matches!(error, Error::Redirect { .. }) && error.hints()[0].contains("--repo"));
    assert_eq!(thief.hits().len(), 0, "not even asked");
    assert_eq!(honest.hits()[0].header("authorization").unwrap(), format!("Basic {}", base64(b"bob:s3cret")));
}

#[tokio::test]
async fn a_redirect_within_the_origin_is_followed_and_remembered_if_it_is_permanent() {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    // A temporary one is asked for again by the second and the third poll, and not by the fetch after the third.
    for (status, more) in [(301, 0), (308, 0), (302, 2), (303, 2), (307, 2)] {
        let hook = move |hit: &common::http_backend::Hit| {
            let rest = hit.path.strip_prefix("/old")?;
            Some(Canned { status, ..Canned::redirect(&format!("/remote{rest}")) })
        };
        let backend = HttpBackend::start(world.dir(), Kind { hook: Some(Box::new(hook)), ..Kind::default() });
        let mut client = client(&backend.url("old"));
        for _ in 0..3 {
            assert_eq!(tip(&mut client, "main").await.unwrap(), commit);
        }
        let request = Request { wants: vec![id(&commit)], depth: Deepen::To(1), ..Request::default() };
        fetch(&mut client, &request).await;
        let old = backend.hits().iter().filter(|hit| hit.path.starts_with("/old")).count();
        assert_eq!(old, 2 + more, "{status}: the question, then the advertisement");
        assert_eq!(backend.hits().len(), 2 + more + 1 + 3 + 1, "{status}");
    }
}

#[tokio::test]
async fn each_of_several_temporary_redirects_costs_a_poll_one_request() {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    let hook = |hit: &common::http_backend::Hit| {
        let [first, second] = ["/first", "/second"].map(|prefix| hit.path.strip_prefix(prefix));
        let to = first.map(|rest| format!("/second{rest}")).or(second.map(|rest| format!("/remote{rest}")))?;
        Some(Canned::redirect(&to))
    };
    let backend = HttpBackend::start(world.dir(), Kind { hook: Some(Box::new(hook)), ..Kind::default() });
    let mut client = client(&backend.url("first"));
    assert_eq!(tip(&mut client, "main").await.unwrap(), commit);
    backend.forget();
    assert_eq!(tip(&mut client, "main").await.unwrap(), commit);
    assert_eq!(backend.hits().len(), 2 + 1);
}

#[tokio::test]
async fn a_temporary_redirect_is_not_followed_any_more_once_it_has_ended() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    let world = World::new();
    let stale = common::Remote::create(&world.dir().join("replica")).commit(&Files::new().file("a", "1"));
    let new = world.remote.commit(&Files::new().file("a", "2"));
    let redirects = Arc::new(AtomicBool::new(true));
    let does_redirect = redirects.clone();
    let hook = move |hit: &common::http_backend::Hit| {
        let rest = hit.path.strip_prefix("/remote")?;
        does_redirect.load(Ordering::SeqCst).then(|| Canned::redirect(&format!("/replica{rest}")))
    };
    let backend = HttpBackend::start(world.dir(), Kind { hook: Some(Box::new(hook)), ..Kind::default() });
    let mut client = client(&backend.url("remote"));
    assert_eq!(tip(&mut client, "main").await.unwrap(), stale);
    redirects.store(false, Ordering::SeqCst);
    assert_eq!(tip(&mut client, "main").await.unwrap(), new);
    backend.forget();
    assert_eq!(tip(&mut client, "main").await.unwrap(), new);
    assert_eq!(backend.hits().len(), 1, "a poll is one request again");
}

#[tokio::test]
async fn an_askpass_url_is_asked_at_each_attempt_also_if_no_ref_is_looked_up() {
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    let auth = Some(("bob".to_owned(), "s3cret".to_owned()));
    let backend = HttpBackend::start(world.dir(), Kind { auth, ..Kind::default() });
    let hook = |_: &common::http_backend::Hit| Some(Canned::status(200, "username=bob\npassword=s3cret\n"));
    let pass = HttpBackend::start(world.dir(), Kind { hook: Some(Box::new(hook)), ..Kind::default() });
    let mut client = with(&backend.url("remote"), |options| {
        options.issuance = Some(Issuance::Askpass(pass.url("askpass").parse().unwrap()));
    });
    let request = Request { wants: vec![id(&commit)], depth: Deepen::To(1), ..Request::default() };
    for attempts in 1..=3 {
        assert_eq!(tip(&mut client, &commit).await.unwrap(), commit);
        fetch(&mut client, &request).await;
        assert_eq!(pass.hits().len(), attempts);
    }
}

#[tokio::test]
async fn a_repository_that_moves_back_is_found_where_it_was_given() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    let world = World::new();
    let commit = world.remote.commit(&Files::new().file("a", "1"));
    let (here, there) = (world.remote.path.clone(), world.dir().join("new"));
    for status in [301, 302] {
        let moved = Arc::new(AtomicBool::new(true));
        let is_moved = moved.clone();
        let hook = move |hit: &common::http_backend::Hit| {
            let rest = hit.path.strip_prefix("/remote")?;
            let to = Canned { status, ..Canned::redirect(&format!("/new{rest}")) };
            is_moved.load(Ordering::SeqCst).then_some(to)
        };
        let backend = HttpBackend::start(world.dir(), Kind { hook: Some(Box::new(hook)), ..Kind::default() });
        let mut client = client(&backend.url("remote"));
        std::fs::rename(&here, &there).unwrap();
        assert_eq!(tip(&mut client, "main").await.unwrap(), commit);
        std::fs::rename(&there, &here).unwrap();
        moved.store(false, Ordering::SeqCst);
        assert_eq!(tip(&mut client, "main").await.unwrap(), commit);
    }
}

#[tokio::test]
async fn redirects_that_lead_nowhere_good_are_refused_in_words() {
    let world = World::new();
    for (to, words) in [
        ("/users/sign_in", "log-in page"),
        ("/x/info/refs?service=git-upload-pack", "too many redirects"),
        ("http://[", "not a URL"),
    ] {
        let hook = move |_: &common::http_backend::Hit| Some(Canned::redirect(to));
        let backend = HttpBackend::start(world.dir(), Kind { hook: Some(Box::new(hook)), ..Kind::default() });
        let error = tip(&mut client(&backend.url("x")), "main").await.unwrap_err();
        names(&error, &[words]);
        assert!(!error.hints().concat().contains("no credential was sent there"), "it is the same origin");
        assert!(backend.hits().len() <= 5);
    }
}

#[tokio::test]
async fn an_empty_repository_is_told_from_a_head_that_names_no_branch() {
    let world = World::new();
    let backend = HttpBackend::start(world.dir(), Kind::default());
    let mut client = client(&backend.url("remote"));
    let error = tip(&mut client, "HEAD").await.unwrap_err();
    names(&error, &["couldn't find remote ref HEAD"]);
    assert!(error.hints()[0].starts_with("the repository is empty, or "), "{:?}", error.hints());
    world.remote.commit(&Files::new().file("a", "1"));
    world.remote.git(&["symbolic-ref", "HEAD", "refs/heads/gone"]);
    let error = tip(&mut client, "HEAD").await.unwrap_err();
    names(&error, &["couldn't find remote ref HEAD"]);
    let hint = "its HEAD names a branch that does not exist; ";
    assert!(error.hints()[0].starts_with(hint), "{:?}", error.hints());
}

#[tokio::test]
async fn answers_that_are_no_git_are_told_in_words() {
    let world = World::new();
    for (canned, words, transient) in [
        (Canned::status(200, "<html>\x1b[1mlog in to the wifi</html>"), "<html>\\x1b[1mlog in", true),
        (Canned::status(404, "Not Found"), "404: Not Found", false),
        (Canned::status(502, "<html><body>"), "answered 502", true),
        (Canned::status(403, ""), "403", false),
        (Canned::status(403, "slow down").header("Retry-After", "60"), "403: slow down", true),
        (
            Canned::status(403, "wait").header("Retry-After", "Wed, 21 Oct 2015 07:28:00 GMT"),
            "403: wait",
            true,
        ),
        (Canned::status(403, "never").header("Retry-After", "whenever"), "403", false),
        (
            Canned::status(503, "in 2099").header("Retry-After", "Sun, 01 Nov 2099 00:00:00 GMT"),
            "503: in 2099",
            true,
        ),
        (Canned::status(500, ""), "500", true),
        (Canned::status(407, ""), "407", false),
        (Canned::status(503, "busy").header("Retry-After", "7"), "503: busy", true),
        (Canned::status(200, ""), "ended its answer early", true),
    ] {
        let hook = move |_: &common::http_backend::Hit| Some(canned.clone());
        let backend = HttpBackend::start(world.dir(), Kind { hook: Some(Box::new(hook)), ..Kind::default() });
        let error = tip(&mut client(&backend.url("x")), "main").await.unwrap_err();
        names(&error, &[words, "localhost"]);
        assert_eq!(error.is_transient(), transient, "{error}");
        assert!(!error.to_string().contains("<body>"), "{error}");
        let pause = match words {
            "503: busy" => Some(7),
            "503: in 2099" => Some(600), // the longest pause
            "403: slow down" => Some(60),
            "403: wait" => Some(0),
            _ => None,
        };
        assert_eq!(error.retry_after(), pause.map(Duration::from_secs), "{words}");
        if words.contains("404") {
            assert!(error.hints()[0].contains("permission"));
        }
    }
}
