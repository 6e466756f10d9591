//! ssh against a real sshd: keys, host keys, commands, and connections that end.
#![allow(missing_docs)]

#[path = "../common/mod.rs"]
mod common;
mod hosts;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::sshd::{self, Sshd, keygen};
use common::{Files, World, run};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use treeswap::mirror::wire::Timeouts;
use treeswap::mirror::wire::ssh::{Error, KnownHosts, Options, Session, Target, UntrustedReason, quote};

/// A world with an sshd in it, one key that it lets in, and a file that knows its host key.
struct Place {
    world: World,
    sshd: Sshd,
    key: PathBuf,
    known_hosts: PathBuf,
}

impl Place {
    fn new(host_keys: &[&str]) -> Self {
        let world = World::new();
        world.remote.commit(&Files::new().file("a", "1\n"));
        let sshd = Sshd::start(&world.dir().join("sshd"), host_keys);
        let key = world.dir().join("key");
        keygen(&key, &["-t", "ed25519"]);
        sshd.authorize(&key);
        let known_hosts = world.dir().join("known_hosts");
        std::fs::write(&known_hosts, sshd.known(host_keys[0])).unwrap();
        Self { world, sshd, key, known_hosts }
    }

    /// A file in this world's directory.
    fn path(&self, name: &str) -> PathBuf {
        self.world.dir().join(name)
    }

    fn knows(&self, text: impl AsRef<str>) {
        std::fs::write(&self.known_hosts, text.as_ref()).unwrap();
    }

    fn target(&self) -> Target {
        Target { host: "127.0.0.1".into(), port: self.sshd.port, user: sshd::user() }
    }

    async fn connect_with(&self, keys: &[&Path]) -> Result<Session, Error> {
        let keys = keys.iter().map(|key| key.to_path_buf()).collect();
        let options = Options { keys, known_hosts: KnownHosts::Strict(self.known_hosts.clone()) };
        Session::connect(&self.target(), &options, timeouts()).await
    }

    async fn connect(&self) -> Result<Session, Error> {
        self.connect_with(&[&self.key]).await
    }

    /// Why the server isn't trusted; the error's line must name what it showed.
    async fn distrusted(&self, host_key: &str) -> (UntrustedReason, String) {
        let error = self.connect().await.expect_err("connected to a server that must not be trusted");
        let listing = run::to_end(
            run::clean("ssh-keygen", self.world.dir()).arg("-lf").arg(self.sshd.host_key(host_key)),
        )
        .expect_ok("ssh-keygen");
        let fingerprint = listing.stdout.split(' ').nth(1).unwrap().to_owned();
        assert!(error.to_string().contains(&fingerprint), "{error} does not show {fingerprint}");
        assert!(!error.is_transient(), "{error}");
        let hints = error.hints();
        assert!(!hints.is_empty(), "{error}");
        match error {
            Error::HostKey(distrust) => (distrust.why, hints.join("\n")),
            other => panic!("{other:?}"),
        }
    }

    fn upload_pack(&self) -> String {
        format!("git-upload-pack {}", quote(self.world.remote.path.to_str().unwrap()))
    }

    /// The first line of git's answer: it proves that the session works, and tells the protocol's version.
    async fn greeting(&self, session: &Session, protocol_v2: bool) -> String {
        let mut channel = session.exec(&self.upload_pack(), protocol_v2).await.unwrap();
        let mut length = [0; 4];
        channel.read_exact(&mut length).await.unwrap();
        let length = usize::from_str_radix(std::str::from_utf8(&length).unwrap(), 16).unwrap();
        let mut line = vec![0; length - 4];
        channel.read_exact(&mut line).await.unwrap();
        String::from_utf8(line).unwrap()
    }
}

fn timeouts() -> Timeouts {
    let long = Duration::from_secs(30);
    Timeouts { connect: long, idle: long, overall: long }
}

#[tokio::test]
async fn the_right_key_is_let_in_and_speaks_version_2_where_the_server_takes_the_wish() {
    let place = Place::new(&["ed25519"]);
    let session = place.connect().await.unwrap();
    assert_eq!(place.greeting(&session, true).await, "version 2\n");
    let tip = place.world.remote.tip("main").unwrap();
    assert!(place.greeting(&session, false).await.starts_with(&format!("{tip} HEAD\0")));

    place.sshd.configure(&["ed25519"], "");
    let session = place.connect().await.unwrap();
    assert!(place.greeting(&session, true).await.starts_with(&tip), "not asked to speak version 2");
}

#[tokio::test]
async fn one_session_serves_many_commands_and_forgotten_ones_end() {
    let place = Place::new(&["ed25519"]);
    let session = place.connect().await.unwrap();
    // OpenSSH allows ten at a time (MaxSessions): a dropped channel that stayed open would be missed here.
    for _ in 0..25 {
        place.greeting(&session, true).await;
    }
    assert_eq!(place.sshd.connections(), 1);
    assert!(session.is_alive());
}

#[tokio::test]
async fn a_key_that_the_server_does_not_know_is_denied_and_named() {
    let place = Place::new(&["ed25519"]);
    let stranger = place.path("stranger");
    keygen(&stranger, &["-t", "ed25519"]);
    let error = place.connect_with(&[&stranger]).await.unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    assert!(error.to_string().contains(stranger.to_str().unwrap()), "{error}");
    assert!(error.to_string().contains("SHA256:"), "{error}");
    assert!(!error.is_transient());
}

#[tokio::test]
async fn keys_are_tried_in_order_and_files_that_are_absent_or_useless_are_passed_over() {
    let place = Place::new(&["ed25519"]);
    let (first, second, locked) = (place.path("first"), place.path("second"), place.path("locked"));
    keygen(&first, &["-t", "ecdsa"]);
    keygen(&second, &["-t", "rsa"]);
    keygen(&locked, &["-t", "ed25519", "-N", "secret"]);
    let absent = place.path("absent");
    let session = place.connect_with(&[&absent, &first, &second, &locked, &place.key]).await.unwrap();
    assert_eq!(place.greeting(&session, true).await, "version 2\n");
}

#[tokio::test]
async fn a_server_that_hangs_up_after_too_many_keys_is_quoted() {
    let place = Place::new(&["ed25519"]);
    place.sshd.configure(&["ed25519"], "MaxAuthTries 2");
    let keys: Vec<PathBuf> = (0..4).map(|n| place.path(&format!("stranger{n}"))).collect();
    for key in &keys {
        keygen(key, &["-t", "ed25519"]);
    }
    let keys: Vec<&Path> = keys.iter().map(PathBuf::as_path).collect();
    let error = place.connect_with(&keys).await.unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    assert!(error.to_string().contains("Too many authentication failures"), "{error}");
}

#[tokio::test]
async fn without_a_usable_key_nothing_is_connected_and_the_file_is_named() {
    let place = Place::new(&["ed25519"]);
    let write = |name: &str, text: &str| {
        std::fs::write(place.path(name), text).unwrap();
        place.path(name)
    };
    let locked = place.path("locked");
    keygen(&locked, &["-t", "ed25519", "-N", "secret"]);
    let locked_pem = place.path("locked_pem");
    keygen(&locked_pem, &["-t", "rsa", "-m", "PEM", "-N", "secret"]);
    let locked_pkcs8 = place.path("locked_pkcs8");
    keygen(&locked_pkcs8, &["-t", "ecdsa", "-m", "PKCS8", "-N", "secret"]);
    let good = std::fs::read_to_string(&place.key).unwrap();
    let lines: Vec<&str> = good.lines().collect();
    let short = [lines[0], lines[1], lines[lines.len() - 1]].join("\n");
    let table = [
        (place.path("absent"), "not found"),
        (locked, "is encrypted"),
        (locked_pem, "is encrypted"),
        (locked_pkcs8, "is encrypted"),
        (sshd::public(&place.key), "it is a public key"),
        (write("empty", ""), "it is empty"),
        (write("prose", "hello\n"), "it holds no private key"),
        (write("half", &good[..good.len() / 2]), "it is cut off or damaged"),
        (write("short", &short), "it is cut off or damaged"),
        (write("one_line", &good.replace('\n', " ")), "as a private key"),
        (place.world.dir().to_owned(), "cannot read"),
    ];
    for (key, words) in table {
        let error = place.connect_with(&[&key]).await.unwrap_err();
        let line = error.to_string();
        assert!(line.contains(words) && line.contains(key.to_str().unwrap()), "{words}: {line}");
        assert!(!error.hints().is_empty(), "{line}");
        assert!(!error.is_transient(), "{line}");
    }
    assert_eq!(place.sshd.connections(), 0);
}

#[tokio::test]
async fn keys_of_every_usual_kind_and_format_work() {
    let place = Place::new(&["ed25519"]);
    let table: [&[&str]; 10] = [
        &["-t", "ed25519"],
        &["-t", "ecdsa", "-b", "256"],
        &["-t", "ecdsa", "-b", "384"],
        &["-t", "ecdsa", "-b", "521"],
        &["-t", "ecdsa", "-b", "256", "-m", "PEM"],
        &["-t", "ecdsa", "-b", "384", "-m", "PKCS8"],
        &["-t", "ecdsa", "-b", "521", "-m", "PKCS8"],
        &["-t", "rsa", "-b", "2048"],
        &["-t", "rsa", "-b", "2048", "-m", "PEM"],
        &["-t", "rsa", "-b", "2048", "-m", "PKCS8"],
    ];
    for (number, args) in table.iter().enumerate() {
        let key = place.path(&format!("kind{number}"));
        keygen(&key, args);
        place.sshd.authorize(&key);
        if let Err(error) = place.connect_with(&[&key]).await {
            panic!("{args:?}: {error:?}");
        }
    }
    // As a Secret may hold it: other line ends, blanks at line ends, no line end at the end.
    let text = std::fs::read_to_string(&place.key).unwrap();
    for (name, text) in [
        ("crlf", text.replace('\n', "\r\n")),
        ("blanks", text.replace('\n', " \n")),
        ("unended", text.trim_end().to_owned()),
    ] {
        let key = place.path(name);
        std::fs::write(&key, text).unwrap();
        place.connect_with(&[&key]).await.unwrap_or_else(|error| panic!("{name}: {error:?}"));
    }
}

#[tokio::test]
async fn rsa_keys_sign_with_sha_2_and_never_with_sha_1() {
    let place = Place::new(&["ed25519"]);
    let key = place.path("rsa");
    keygen(&key, &["-t", "rsa"]);
    place.sshd.authorize(&key);
    place.sshd.configure(&["ed25519"], "PubkeyAcceptedAlgorithms rsa-sha2-512");
    place.connect_with(&[&key]).await.unwrap();
    place.sshd.configure(&["ed25519"], "PubkeyAcceptedAlgorithms ssh-rsa");
    let error = place.connect_with(&[&key]).await.unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
}

#[tokio::test]
async fn a_cut_session_is_noticed_and_the_next_one_works() {
    let place = Place::new(&["ed25519"]);
    let session = place.connect().await.unwrap();
    let mut channel = session.exec(&place.upload_pack(), true).await.unwrap();
    let mut start = [0; 4];
    channel.read_exact(&mut start).await.unwrap();
    place.sshd.cut();
    let error = channel.read_to_end(&mut Vec::new()).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    let failure = channel.end().failure().expect("a cut session is a failure");
    assert!(matches!(failure, Error::Broken { .. }) && failure.is_transient(), "{failure:?}");
    assert!(!session.is_alive());
    let error = session.exec("true", true).await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");

    let session = place.connect().await.unwrap();
    assert_eq!(place.greeting(&session, true).await, "version 2\n");
}

/// Passes one connection on to the server, and cuts it after so many pieces of the server's answers.
async fn cut_after(listener: &tokio::net::TcpListener, port: u16, pieces: usize) {
    let (mut client, _) = listener.accept().await.unwrap();
    let mut server = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let answers = async {
        let mut piece = [0; 4096];
        for _ in 0..pieces {
            match from_server.read(&mut piece).await {
                Ok(bytes @ 1..) => to_client.write_all(&piece[..bytes]).await.unwrap(),
                _ => return,
            }
        }
        let _ = from_server.read(&mut piece).await; // lost
    };
    tokio::select! {
        () = answers => {}
        _ = tokio::io::copy(&mut from_client, &mut to_server) => {}
    }
}

#[tokio::test]
async fn a_connection_that_is_lost_at_any_step_can_be_tried_again() {
    let place = Place::new(&["ed25519"]);
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let target = Target { port: listener.local_addr().unwrap().port(), ..place.target() };
    let rsa = place.path("rsa");
    keygen(&rsa, &["-t", "rsa"]);
    let options = Options { keys: vec![rsa, place.key.clone()], known_hosts: KnownHosts::Off };
    let mut lost_in_authentication = 0;
    for pieces in 0.. {
        let connecting = Session::connect(&target, &options, timeouts());
        let (result, ()) = tokio::join!(connecting, cut_after(&listener, place.sshd.port, pieces));
        let Err(error) = result else { break };
        assert!(error.is_transient(), "after {pieces} pieces: {error:?}");
        lost_in_authentication += usize::from(error.to_string().starts_with("the authentication"));
    }
    assert!(lost_in_authentication > 1);
}

#[tokio::test]
async fn a_command_that_fails_is_quoted() {
    let place = Place::new(&["ed25519"]);
    let session = place.connect().await.unwrap();
    let command = format!("git-upload-pack {}", quote("/no such repository"));
    let mut channel = session.exec(&command, true).await.unwrap();
    let end = channel.end();
    let mut all = Vec::new();
    channel.read_to_end(&mut all).await.unwrap();
    assert!(all.is_empty());
    let failure = end.failure().unwrap();
    let line = failure.to_string();
    assert!(line.contains("exit status 128") && line.contains("/no such repository"), "{line}");
    assert!(line.contains("does not appear to be a git repository"), "{line}");

    let mut channel = session.exec("kill -9 $$", false).await.unwrap();
    channel.read_to_end(&mut all).await.unwrap();
    let line = channel.end().failure().unwrap().to_string();
    assert!(line.contains("signal KILL"), "{line}");
}

#[tokio::test]
async fn bytes_pass_unchanged_in_both_directions() {
    let place = Place::new(&["ed25519"]);
    let session = place.connect().await.unwrap();
    let mut channel = session.exec("cat; echo end >&2", false).await.unwrap();
    // More than the window of either side, so that both must be extended on the way.
    let sent: Vec<u8> = (0..6_000_000u32).map(|n| (n ^ (n >> 8)) as u8).collect();
    let end = channel.end();
    let (mut from, mut to) = tokio::io::split(&mut channel);
    let mut came = Vec::new();
    let write = async {
        to.write_all(&sent).await.unwrap();
        to.shutdown().await.unwrap();
    };
    tokio::join!(write, async { from.read_to_end(&mut came).await.unwrap() });
    assert!(came == sent, "{} bytes came of {}", came.len(), sent.len());
    assert!(end.failure().is_none(), "{:?}", end.failure());
}

#[tokio::test]
async fn paths_are_quoted_for_the_shell() {
    let place = Place::new(&["ed25519"]);
    let session = place.connect().await.unwrap();
    for path in ["/plain", "/with blank", "it's", "!bang", "$HOME `id` \"x\" \\ * ;", "'", "ü\n"] {
        let mut channel = session.exec(&format!("printf %s {}", quote(path)), false).await.unwrap();
        let mut came = String::new();
        channel.read_to_string(&mut came).await.unwrap();
        assert_eq!(came, path);
    }
}

#[tokio::test]
async fn servers_that_do_not_answer_are_left_at_the_deadline() {
    let place = Place::new(&["ed25519"]);
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let target = Target { port: listener.local_addr().unwrap().port(), ..place.target() };
    let options = Options { keys: vec![place.key.clone()], known_hosts: KnownHosts::Off };
    let short = Timeouts { idle: Duration::from_millis(300), ..timeouts() };
    let error = Session::connect(&target, &options, short).await.unwrap_err();
    assert!(
        matches!(error, Error::Timeout { step: "the key exchange", .. }) && error.is_transient(),
        "{error:?}"
    );
    assert!(error.to_string().contains("300ms (--idle-timeout)"), "{error}");

    // Speaks, and falls silent within the exchange: the task that reads must not outlive the attempt.
    drop(listener.accept().unwrap());
    let speak = tokio::task::spawn_blocking(move || {
        let mut server = listener.accept().unwrap().0;
        server.write_all(b"SSH-2.0-Silence\r\n").unwrap();
        server
    });
    let (silent, server) = tokio::join!(Session::connect(&target, &options, short), speak);
    assert!(matches!(silent.unwrap_err(), Error::Timeout { .. }));
    let mut server = server.unwrap();
    let server = tokio::task::spawn_blocking(move || {
        server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut all = Vec::new();
        server.read_to_end(&mut all).map(|_| all)
    });
    let said = server.await.unwrap().expect("the socket stayed open after the attempt was given up");
    assert!(said.starts_with(b"SSH-2.0-"));
}

#[tokio::test]
async fn something_that_is_no_ssh_server_is_said_to_be_none() {
    let place = Place::new(&["ed25519"]);
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let target = Target { port: listener.local_addr().unwrap().port(), ..place.target() };
    let options = Options { keys: vec![place.key.clone()], known_hosts: KnownHosts::Off };
    let serve = async {
        let (mut server, _) = listener.accept().await.unwrap();
        server.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
    };
    let (result, ()) = tokio::join!(Session::connect(&target, &options, timeouts()), serve);
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Broken { step: "the key exchange", .. }), "{error:?}");
    assert!(std::error::Error::source(&error).is_some());

    let (refusing, _port) = common::refusing();
    let target = Target { port: refusing.port(), ..target };
    let error = Session::connect(&target, &options, timeouts()).await.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }) && error.is_transient(), "{error:?}");
}

#[tokio::test]
async fn a_key_that_everybody_can_read_works_all_the_same() {
    let place = Place::new(&["ed25519"]);
    std::fs::set_permissions(&place.key, std::fs::Permissions::from_mode(0o644)).unwrap();
    place.connect().await.unwrap();
}
