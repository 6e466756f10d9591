use std::io;
use std::time::Duration;

use super::*;
use crate::human::assert_message_style;

fn libgit2() -> Libgit2 {
    Libgit2(git2::Repository::open("/nowhere/at/all").err().unwrap())
}

/// One error of each variant. The match below fails to compile if a variant is added.
fn each() -> Vec<Error> {
    let remote = || "https://git.example.com/x".to_owned();
    let refused = || Box::new(io::Error::from(io::ErrorKind::ConnectionRefused));
    let problem =
        tls::Problem { text: "it does not speak TLS".into(), transient: true, hint: "check the port" };
    vec![
        Error::BadRemote { remote: remote(), why: "it has no host" },
        Error::Start { act: "run", program: "/bin/no".into(), source: io::ErrorKind::NotFound.into() },
        Error::Program {
            program: "git".into(),
            remote: remote(),
            status: std::os::unix::process::ExitStatusExt::from_raw(0x100),
            said: String::new(),
        },
        Error::Credential {
            remote: remote(),
            source: secret::Error::Read { path: "/password".into(), source: io::ErrorKind::NotFound.into() },
        },
        Error::NoSuchRef { name: "nope".into(), remote: remote(), has_others: false },
        Error::Timeout {
            remote: remote(),
            wait: Wait::Idle,
            after: Duration::from_secs(30),
            doing: "asking",
        },
        Error::TooMuch { remote: remote(), budget: Budget::Pack, limit: 4 << 30 },
        Error::Connect { remote: remote(), source: refused() },
        Error::Proxy { remote: remote(), proxy: "http://proxy.example.com:3128".into(), source: refused() },
        Error::Tls { remote: remote(), problem },
        Error::Broken { remote: remote(), doing: "asking", source: refused() },
        Error::Cut { remote: remote(), doing: "asking", said: String::new() },
        Error::Status { remote: remote(), status: 418, retry_after: None, said: String::new() },
        Error::Auth { remote: remote(), status: 401, username: None, with: Vec::new() },
        Error::Redirect { remote: remote(), to: "http://h/".into(), why: Unfollowed::LeavesTls },
        Error::NotGit { remote: remote(), said: "<html>".into() },
        Error::Remote { remote: remote(), said: "no".into() },
        Error::ObjectFormat { remote: remote(), format: "sha256".into() },
        Error::Unsupported { remote: remote(), feature: "fetch" },
        Error::Local { path: "/nowhere/at/all".into(), source: libgit2() },
        Error::LocalDenied { path: "/srv/x".into(), source: io::ErrorKind::PermissionDenied.into() },
        Error::Ssh { remote: remote(), source: Box::new(ssh::Error::NoKeys { files: vec!["/key".into()] }) },
        Error::Sink { remote: remote(), source: io::ErrorKind::BrokenPipe.into() },
    ]
}

#[test]
fn every_variant_is_one_line_without_a_librarys_noise_and_says_what_to_do() {
    let named = |error: &Error| match error {
        Error::BadRemote { .. }
        | Error::Start { .. }
        | Error::Program { .. }
        | Error::Credential { .. }
        | Error::Issuer { .. } // tested in the module that makes it
        | Error::NoSuchRef { .. }
        | Error::Timeout { .. }
        | Error::TooMuch { .. }
        | Error::Connect { .. }
        | Error::Proxy { .. }
        | Error::Tls { .. }
        | Error::Broken { .. }
        | Error::Cut { .. }
        | Error::Status { .. }
        | Error::Auth { .. }
        | Error::Redirect { .. }
        | Error::NotGit { .. }
        | Error::Remote { .. }
        | Error::ObjectFormat { .. }
        | Error::Unsupported { .. }
        | Error::Local { .. }
        | Error::LocalDenied { .. }
        | Error::Ssh { .. }
        | Error::Sink { .. } => std::mem::discriminant(error),
    };
    let each = each();
    assert_eq!(each.iter().map(named).collect::<std::collections::HashSet<_>>().len(), 23);
    for error in &each {
        assert_message_style(error, &error.hints());
    }
    for status in [400, 403, 404, 407, 410, 429, 500, 503] {
        let error = Error::Status { remote: "h".into(), status, retry_after: None, said: String::new() };
        assert_message_style(&error, &error.hints());
    }
}

#[test]
fn hints_about_redirects_and_credentials_are_true_of_them() {
    let remote = || "https://git.example.com/x".to_owned();
    let redirect = |why| Error::Redirect { remote: remote(), to: "https://git.example.com/x".into(), why };
    for (why, is_elsewhere) in [
        (Unfollowed::NotAUrl, false),
        (Unfollowed::LeavesTls, true),
        (Unfollowed::OtherOrigin, true),
        (Unfollowed::NoRepository, false),
        (Unfollowed::TooMany, false),
        (Unfollowed::AfterQuestion, false),
    ] {
        let error = redirect(why);
        assert_message_style(&error, &error.hints());
        assert_eq!(error.hints()[0].contains("no credential was sent there"), is_elsewhere, "{why:?}");
    }
    let auth = |with: &[&str]| Error::Auth {
        remote: remote(),
        status: 403,
        username: None,
        with: with.iter().map(|&with| with.to_owned()).collect(),
    };
    assert!(auth(&[]).to_string().ends_with("answered 403 to a request without a credential"));
    let error = auth(&["a cookie of --cookie-file", "the header authorization"]);
    let words = "to a request with a cookie of --cookie-file and the header authorization";
    assert!(error.to_string().ends_with(words), "{error}");
    assert!(error.hints()[0].starts_with("check that a cookie"), "{:?}", error.hints());
    assert_message_style(&error, &error.hints());
}

#[test]
fn a_lack_of_descriptors_is_not_blamed_on_the_network() {
    for number in [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE] {
        let io = || io::Error::from(number);
        let remote = || "h".to_owned();
        let as_text = io().to_string(); // as the transport for http keeps it
        let ssh = ssh::Error::Connect { host: remote(), port: 22, source: io() };
        for error in [
            Error::Connect { remote: remote(), source: as_text.into() },
            Error::Connect { remote: remote(), source: Box::new(io()) },
            Error::Ssh { remote: remote(), source: Box::new(ssh) },
        ] {
            let hints = error.hints();
            assert_message_style(&error, &hints);
            assert!(error.is_transient() && hints.concat().contains("ulimit"), "{error}: {hints:?}");
        }
    }
    // Over http, a password file is opened before any socket.
    let source = secret::Error::Read { path: "/password".into(), source: rustix::io::Errno::MFILE.into() };
    let error = Error::Credential { remote: "h".to_owned(), source };
    assert!(error.hints().concat().contains("ulimit"), "{error}: {:?}", error.hints());
    let refused = Box::new(io::Error::from(rustix::io::Errno::CONNREFUSED));
    let error = Error::Connect { remote: "h".to_owned(), source: refused };
    assert!(!error.hints().concat().contains("ulimit"));
}

#[test]
fn what_a_server_lacks_is_hinted_at_by_the_setting_that_allows_it() {
    for (feature, words) in [
        ("fetch", "git 2.26"),
        ("shallow", "git 2.26"),
        (FILTER, "uploadpack.allowFilter=true"),
        (ANY_WANT, "uploadpack.allowAnySHA1InWant=true"),
    ] {
        let error = Error::Unsupported { remote: "https://git.example.com/x".to_owned(), feature };
        assert_message_style(&error, &error.hints());
        assert!(error.hints()[0].contains(words), "{feature}: {:?}", error.hints());
    }
}

#[test]
fn a_boundary_that_is_rejected_is_known_by_words_or_silence() {
    let remote = || "git.example.com/x".to_owned();
    let cut = |said: &str| Error::Cut { remote: remote(), doing: "waiting", said: said.to_owned() };
    let reported = |said: &str| Error::Remote { remote: remote(), said: said.to_owned() };
    let over_ssh = |said: Option<&str>| Error::Ssh {
        remote: remote(),
        source: Box::new(ssh::Error::Command {
            server: remote(),
            command: "git-upload-pack".into(),
            status: "exit status 128".into(),
            stderr: said.map(str::to_owned),
        }),
    };
    let words = "fatal: invalid shallow object 70dce20f";
    for error in [cut(""), cut(words), reported(words), over_ssh(Some(words)), over_ssh(None)] {
        assert!(error.may_be_about_boundary(), "{error}");
    }
    for error in [cut("fatal: no memory"), reported("not our ref"), over_ssh(Some("no such repository"))] {
        assert!(!error.may_be_about_boundary(), "{error}");
    }
}

#[test]
fn errors_that_need_an_operator_are_not_transient() {
    let transient = |error: &Error| error.is_transient();
    let lasting: Vec<_> =
        each().into_iter().filter(|error| !transient(error)).map(|error| error.to_string()).collect();
    for words in ["couldn't find remote ref", "no credential", "cannot run", "answered 401"] {
        assert!(lasting.iter().any(|line| line.contains(words)), "{words} is not in {lasting:?}");
    }
    assert!(!lasting.iter().any(|line| line.contains("cannot connect")), "{lasting:?}");
}

#[test]
fn a_list_of_refs_is_known_as_that_of_a_server_of_files() {
    let hints = |said: String| {
        Error::NotGit { remote: "https://git.example.com/x".to_owned(), said }.hints().join(" ")
    };
    let id = "d5f13c06".repeat(5);
    assert!(hints(format!("{id}\\trefs/heads/main")).contains("git-http-backend"));
    assert!(hints("<html>".to_owned()).contains("log-in page"));
}
