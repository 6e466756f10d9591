//! Which servers are trusted: host keys, certificates, and the file that knows them.

use super::*;

fn host_keygen(args: &[&str], last: &Path) {
    run::to_end(run::clean("ssh-keygen", last.parent().unwrap()).arg("-q").args(args).arg(last))
        .expect_ok("ssh-keygen");
}

#[tokio::test]
async fn an_unknown_host_is_refused_before_anything_is_offered() {
    let place = Place::new(&["ed25519"]);
    place.knows(Sshd::line("somebody.else", &place.sshd.host_key("ed25519")));
    let (why, hints) = place.distrusted("ed25519").await;
    assert!(matches!(why, UntrustedReason::Unknown { .. }), "{why:?}");
    let scan =
        format!("`ssh-keyscan -p {} 127.0.0.1` prints to {}", place.sshd.port, place.known_hosts.display());
    assert!(hints.contains(&scan), "{hints}");
    let log = place.sshd.log();
    assert!(log.contains("Connection") && !log.contains("publickey"), "{log}");
}

#[tokio::test]
async fn what_the_command_in_the_hint_prints_makes_the_host_known() {
    let place = Place::new(&["ed25519"]);
    place.knows("");
    let (_, hints) = place.distrusted("ed25519").await;
    let command = hints.split('`').nth(1).unwrap();
    let ran = run::to_end(run::clean("sh", place.world.dir()).args(["-c", command])).expect_ok(command);
    place.knows(ran.stdout);
    place.connect().await.unwrap();
}

#[tokio::test]
async fn a_changed_host_key_is_refused_with_both_fingerprints() {
    let place = Place::new(&["ed25519"]);
    place.connect().await.unwrap();
    place.sshd.change_host_key("ed25519");
    let (why, hints) = place.distrusted("ed25519").await;
    assert!(
        matches!(&why, UntrustedReason::Changed { line: 1, known } if known.starts_with("SHA256:")),
        "{why:?}"
    );
    assert!(hints.contains("man-in-the-middle"), "{hints}");
    // The file is read anew, so that mending it is enough.
    place.knows(place.sshd.known("ed25519"));
    place.connect().await.unwrap();
}

#[tokio::test]
async fn a_revoked_host_key_is_refused() {
    let place = Place::new(&["ed25519"]);
    let known = place.sshd.known("ed25519");
    place.knows(format!("{known}{}", Sshd::line("@revoked *", &place.sshd.host_key("ed25519"))));
    let (why, _) = place.distrusted("ed25519").await;
    assert_eq!(why, UntrustedReason::Revoked { line: 2 });
}

#[tokio::test]
async fn hashed_hosts_are_known() {
    let place = Place::new(&["ed25519"]);
    host_keygen(&["-H", "-f"], &place.known_hosts);
    let text = std::fs::read_to_string(&place.known_hosts).unwrap();
    assert!(text.starts_with("|1|") && !text.contains("127.0.0.1"), "{text}");
    place.connect().await.unwrap();
}

#[tokio::test]
async fn the_kind_of_host_key_that_the_file_holds_is_asked_for() {
    let kinds = ["ed25519", "ecdsa", "rsa"];
    let place = Place::new(&kinds);
    for kind in kinds {
        place.knows(place.sshd.known(kind));
        place.connect().await.unwrap_or_else(|error| panic!("{kind}: {error:?}"));
    }
    place.sshd.configure(&["ecdsa"], "");
    let (why, _) = place.distrusted("ecdsa").await;
    assert!(matches!(&why, UntrustedReason::OtherKind { known } if known.contains("ssh-rsa")), "{why:?}");
}

#[tokio::test]
async fn a_host_certificate_is_trusted_by_its_authority() {
    let place = Place::new(&["ed25519"]);
    let authority = place.path("authority");
    keygen(&authority, &["-t", "ecdsa"]);
    place.knows(Sshd::line("@cert-authority *", &authority));
    let host_key = place.sshd.host_key("ed25519");
    let certificate = PathBuf::from(format!("{}-cert.pub", host_key.display()));
    let sign = |args: &[&str]| {
        let mut all = vec!["-s", authority.to_str().unwrap(), "-I", "id"];
        all.extend_from_slice(args);
        host_keygen(&all, &sshd::public(&host_key));
        place.sshd.configure(&["ed25519"], &format!("HostCertificate {}", certificate.display()));
    };

    let (why, _) = place.distrusted("ed25519").await;
    assert!(matches!(why, UntrustedReason::Unknown { .. }), "a bare key: {why:?}");
    sign(&["-h", "-n", "127.0.0.1"]);
    place.connect().await.unwrap();
    for (args, words) in [
        (["-h", "-n", "git.example.org"].as_slice(), "it names git.example.org"),
        (&["-h", "-n", "127.0.0.1", "-V", "20200101:20200102"], "no longer valid"),
        (&["-h", "-n", "127.0.0.1", "-V", "20990101:20990102"], "not valid yet"),
    ] {
        sign(args);
        let (why, _) = place.distrusted("ed25519").await;
        assert!(
            matches!(&why, UntrustedReason::Certificate { fault } if fault.contains(words)),
            "{words}: {why:?}"
        );
    }
}

#[tokio::test]
async fn without_the_file_nothing_is_trusted_and_without_the_check_everything() {
    let place = Place::new(&["ed25519"]);
    std::fs::remove_file(&place.known_hosts).unwrap();
    let error = place.connect().await.unwrap_err();
    assert!(matches!(error, Error::ReadKnownHosts { .. }), "{error:?}");
    assert!(error.hints()[0].contains("ssh-keyscan"), "{:?}", error.hints());
    assert!(!error.hints()[0].contains(">"), "the file's directory may be read-only: {:?}", error.hints());
    assert_eq!(place.sshd.connections(), 0);

    let options = Options { keys: vec![place.key.clone()], known_hosts: KnownHosts::Off };
    Session::connect(&place.target(), &options, timeouts()).await.unwrap();
}
