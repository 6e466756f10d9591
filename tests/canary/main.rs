//! Secrets of every kind, against servers that repeat what they were sent, cut at every byte: of none of them six
//! characters in a row may be in anything that leaves the process, in any of the encodings that `encodings.rs` lists.
//! In base64 and base32 it takes ten, because fewer leave too few digits that do not depend on what is beside them.
#![allow(missing_docs, unreachable_pub)]

mod children;
#[path = "../common/mod.rs"]
mod common;
mod echo;
#[path = "../../src/secret/encodings.rs"]
mod encodings;
mod kinds;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use common::run::{self, Background};
use common::{World, eventually};

/// So many characters are a leak.
const LEAK: usize = 6;

/// Every kind of secret that a run is made with. [`Canaries::add`] refuses another one.
const KINDS: &[&str] = &[
    "$GITSYNC_PASSWORD",
    "$GIT_CONFIG_VALUE_0",
    "$TREESWAP_GIT_CONFIG",
    "$TREESWAP_PASSWORD",
    "--password-file",
    "--username",
    "Bearer",
    "a URL in a setting that has no effect",
    "a URL in the name of a setting",
    "a URL with a secret in its middle, in the name of a setting",
    "a part of a setting's name",
    "a setting's name",
    "a value behind a setting's name",
    "the name of a header",
    "the fragment of a URL",
    "the parameter of a URL",
    "the only parameter of a URL",
    "a broken private key of ssh",
    "a cookie",
    "a cookie for another host",
    "a file that is no private key of ssh",
    "a header",
    "a header with signs",
    "a kubeconfig's client-key",
    "a kubeconfig's client-key-data",
    "a kubeconfig's exec",
    "a kubeconfig's password",
    "a kubeconfig's token",
    "a kubeconfig's tokenFile",
    "a kubeconfig's user",
    "a password in a malformed URL",
    "a variable of another name",
    "a webhook secret",
    "an issued password",
    "an issued user",
    "another cookie",
    "git-sync's --git-config",
    "git-sync's --password",
    "git-sync's --username",
    "signs",
    "the base of insteadOf",
    "the file of an App's key",
    "the next webhook secret",
    "the password in a URL",
    "the password of a Basic header",
    "the password of a proxy",
    "the password of an askpass URL",
    "the password of git-sync's --credential",
    "the password of http.proxy",
    "the password-file of --credential",
    "the path of --webhook-url",
    "the path of an askpass URL",
    "the private key of ssh",
    "the query of --webhook-url",
    "the query of a URL",
    "the query of an askpass URL",
    "the signature of a token",
    "the user in a URL",
    "the user of --credential",
    "the user of a Basic header",
    "the user of a proxy",
    "the user of git-sync's --credential",
    "the user of http.proxy",
    "the variable with an App's key",
];

/// In the source, because no test knows when all others are over. A kind is made by the test that names it.
#[test]
fn each_kind_is_listed_once_and_named_by_a_test() {
    let tests = concat!(include_str!("children.rs"), include_str!("kinds.rs"));
    let kinds: HashSet<_> = KINDS.iter().collect();
    assert_eq!(kinds.len(), KINDS.len());
    for kind in kinds {
        assert!(tests.contains(&format!("\"{kind}\"")), "no test has {kind}");
    }
}

/// What the other tests rely on: a secret is found in each encoding, and nothing is found where none is.
#[test]
fn a_secret_is_found_in_each_encoding() {
    let mut canaries = Canaries::new();
    let secret = canaries.make("a header");
    let text = |secret: &str| format!("{{\"name\": \"not published\", \"error\": \"{secret}\"}}\n");
    canaries.assert_absent("an error without it", &text("x"));
    let is_missed = |(name, encode): &&encodings::Encoding| {
        let text = text(&encode(secret.as_bytes()));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| canaries.assert_absent(name, &text))).is_ok()
    };
    let missed: Vec<&str> = encodings::ENCODINGS.iter().filter(is_missed).map(|(name, _)| *name).collect();
    assert_eq!(missed, [""; 0]);
}

/// The secrets of a run, and how they are looked for.
#[derive(Default)]
pub struct Canaries {
    made: u64,
    known: Vec<(String, String)>,
    traces: OnceCell<Traces>,
}

/// What is left of secrets in other encodings, by its first bytes, and the letters and digits of secrets.
struct Traces {
    encoded: HashMap<Vec<u8>, Vec<(String, String)>>,
    letters: HashMap<Vec<u8>, String>,
}

impl Traces {
    fn of(known: &[(String, String)]) -> Self {
        let (mut encoded, mut letters) = (HashMap::<_, Vec<_>>::new(), HashMap::new());
        for (kind, secret) in known {
            for trace in encodings::traces(secret.as_bytes()) {
                encoded.entry(trace.as_bytes()[..LEAK].to_vec()).or_default().push((trace, kind.clone()));
            }
            for part in encodings::letters_of(secret).as_bytes().windows(encodings::LETTERS) {
                letters.insert(part.to_vec(), kind.clone());
            }
        }
        Self { encoded, letters }
    }

    /// What of a secret is in a text, and of which kind.
    fn find(&self, text: &str) -> Option<(String, String)> {
        let plain = text.replace("[redacted]", "\u{fffd}");
        let plain = encodings::collapsed(&plain);
        // Base64 may be broken into lines anywhere.
        let joined = plain.replace(['\r', '\n'], "");
        let encoded = [plain.as_bytes(), joined.as_bytes()].into_iter().find_map(|bytes| {
            bytes.windows(LEAK).enumerate().find_map(|(at, part)| {
                let traces = self.encoded.get(part)?;
                traces.iter().find(|(trace, _)| bytes[at..].starts_with(trace.as_bytes()))
            })
        });
        let letters = encodings::letters_of(&plain);
        let spread = letters.as_bytes().windows(encodings::LETTERS);
        let spread =
            spread.map(|part| (part, self.letters.get(part))).find_map(|(part, kind)| Some((part, kind?)));
        encoded.cloned().or_else(|| Some((String::from_utf8_lossy(spread?.0).into(), spread?.1.clone())))
    }
}

impl Canaries {
    pub fn new() -> Self {
        Self::default()
    }

    /// A secret of its own: 20 letters and digits that stand in no word of ours.
    pub fn make(&mut self, kind: &str) -> String {
        self.made += 1;
        let mut state = self.made.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let letters = b"ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz23456789";
        let text: String = (0..20)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                letters[(state >> 33) as usize % letters.len()] as char
            })
            .collect();
        self.add(kind, &text);
        text
    }

    /// Looks for this, too.
    #[track_caller]
    pub fn add(&mut self, kind: &str, text: &str) {
        assert!(KINDS.contains(&kind), "{kind} is not counted");
        self.known.push((kind.to_owned(), text.to_owned()));
        self.traces = OnceCell::new();
    }

    /// A user name and a password go over the wire in base64. What pads it says nothing.
    pub fn pair(&mut self, username: &str, password: &str) {
        let text = STANDARD.encode(format!("{username}:{password}"));
        self.known.push((format!("base64 of {username}"), text.trim_end_matches('=').to_owned()));
        self.traces = OnceCell::new();
    }

    /// Fails the test if six characters of any of them are there, as they are or in an encoding of `encodings.rs`; in
    /// base64 and base32 ten.
    #[track_caller]
    pub fn assert_absent(&self, place: &str, text: &str) {
        let windows: HashSet<&[u8]> = text.as_bytes().windows(LEAK).collect();
        for (kind, secret) in &self.known {
            if let Some(part) = secret.as_bytes().windows(LEAK).find(|part| windows.contains(*part)) {
                let part = String::from_utf8_lossy(part).into_owned();
                let at = text.find(&part).unwrap_or_default();
                let from = (0..=at.saturating_sub(300)).rev().find(|at| text.is_char_boundary(*at)).unwrap();
                let to = (at + 100..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
                panic!("{part:?} of {kind} ({secret}) is in {place}:\n{}", &text[from..to]);
            }
        }
        if let Some((trace, kind)) = self.traces.get_or_init(|| Traces::of(&self.known)).find(text) {
            let lines = text.lines().filter(|line| encodings::collapsed(line).contains(&trace));
            panic!("{trace:?} of {kind} is in {place}:\n{}", lines.collect::<Vec<_>>().join("\n"));
        }
    }
}

/// Files that a run writes, and its process.
pub struct Run<'w> {
    world: &'w World,
    process: Background,
    port: u16,
    /// So much of the log was looked at.
    seen: Cell<usize>,
    /// The places that had something to look at.
    looked_at: RefCell<BTreeSet<&'static str>>,
}

/// What a run answers: a path, the type that is asked for, and what tells an answer from another page or none.
const PAGES: [(&str, &str, &str, &str); 5] = [
    ("/status", "/status", "*/*", "application/json"),
    ("/metrics", "/metrics", "*/*", "# TYPE treeswap_"),
    ("/readyz", "/readyz?verbose", "*/*", "HTTP/1.1 "),
    ("/livez", "/livez", "*/*", "HTTP/1.1 "),
    ("the page", "/status", "text/html", "text/html"),
];

/// What was looked at is looked at again so far back: a line may have been written in two pieces.
const AGAIN: usize = 64 << 10;

impl<'w> Run<'w> {
    /// Starts a command that listens, with everything that it can say switched on.
    pub fn start(world: &'w World, command: &mut Command) -> Self {
        std::fs::write(world.dir().join("last-words"), "").unwrap();
        command.arg("--log-level=trace").arg("--http-bind=127.0.0.1:0");
        command.arg(format!("--termination-log={}", world.dir().join("last-words").display()));
        command.arg(format!("--error-file={}", world.dir().join("error-file").display()));
        let process = Background::start(command, &world.dir().join("log"));
        let port = eventually(60, "it says where it listens", || {
            let log = process.log();
            let (_, rest) = log.split_once("listening at 127.0.0.1:")?;
            rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        });
        Self { world, process, port, seen: Cell::new(0), looked_at: RefCell::default() }
    }

    /// What is answered; nothing if the process is about to end.
    fn ask(&self, path: &str, accept: &str) -> String {
        use std::io::{Read as _, Write as _};
        let Ok(mut stream) = std::net::TcpStream::connect(("127.0.0.1", self.port)) else {
            return String::new();
        };
        let mut answer = Vec::new();
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: h\r\nAccept: {accept}\r\nConnection: close\r\n\r\n");
        let _ = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_end(&mut answer));
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Everything that can be seen from outside, now.
    #[track_caller]
    pub fn look(&self, canaries: &Canaries) {
        // All are asked before any answer is searched, which takes long, and the process may end meanwhile.
        for (name, answer, sign) in
            PAGES.map(|(name, path, accept, sign)| (name, self.ask(path, accept), sign))
        {
            if answer.starts_with("HTTP/1.1 ") && answer.contains(sign) {
                self.looked_at.borrow_mut().insert(name);
            }
            canaries.assert_absent(name, &answer);
        }
        self.look_at_files(canaries);
    }

    #[track_caller]
    fn look_at_files(&self, canaries: &Canaries) {
        for name in ["error-file", "last-words", "log"] {
            let text = std::fs::read(self.world.dir().join(name)).unwrap_or_default();
            let from = if name == "log" { self.seen.replace(text.len()).saturating_sub(AGAIN) } else { 0 };
            if !text.is_empty() {
                self.looked_at.borrow_mut().insert(name);
            }
            canaries.assert_absent(name, &String::from_utf8_lossy(&text[from.min(text.len())..]));
        }
        canaries.assert_absent("the root", &everything_below(&self.world.root.join("..treeswap")));
    }

    /// Looks again and again until it ends by itself.
    #[track_caller]
    pub fn watch(mut self, canaries: &Canaries) {
        let end = std::time::Instant::now()
            + std::time::Duration::from_secs(if common::full() { 1800 } else { 300 });
        while self.process.is_running() {
            assert!(std::time::Instant::now() < end, "it does not end");
            self.look(canaries);
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        self.look_at_files(canaries);
        let words = std::fs::read_to_string(self.world.dir().join("last-words")).unwrap();
        assert!(words.starts_with("treeswap: "), "no last words: {words}");
        let looked_at = self.looked_at.borrow();
        for name in PAGES.map(|(name, ..)| name).into_iter().chain(["error-file", "last-words", "log"]) {
            assert!(looked_at.contains(name), "{name} was never there: {looked_at:?}");
        }
    }
}

/// The content of every small file below a directory.
pub fn everything_below(dir: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(about) = entry.path().symlink_metadata() else { continue };
        if about.is_dir() {
            text.push_str(&everything_below(&entry.path()));
        } else if about.is_file() && about.len() < 1 << 20 {
            text.push_str(&String::from_utf8_lossy(&std::fs::read(entry.path()).unwrap_or_default()));
        }
    }
    text
}

/// How many failures a run lasts.
pub fn failures() -> String {
    format!("--max-failures={}", if common::full() { 6_000 } else { 100 })
}

/// A command to its end; nothing that it says, or writes, holds a secret.
#[track_caller]
pub fn ends_without(command: &mut Command, canaries: &Canaries) -> common::Ran {
    let ran = run::to_end(command);
    canaries.assert_absent("stdout", &ran.stdout);
    canaries.assert_absent("stderr", &ran.stderr);
    ran
}
