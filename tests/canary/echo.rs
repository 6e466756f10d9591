//! A server that repeats what it was sent, in every field of its answers, in every encoding, cut at every byte.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::encodings::ENCODINGS;

/// What a server knows and does.
#[derive(Default)]
struct State {
    /// Every word that anybody sent, and what it decodes to if it is base64.
    words: Mutex<BTreeSet<String>>,
    /// How many were answered of each kind of request. Counted apart, because a client that always sends two kinds in
    /// turn would else get every other answer for each of them only.
    answers: Mutex<BTreeMap<String, usize>>,
    stop: AtomicBool,
}

/// A running server; it stops when dropped.
pub struct Echo {
    pub address: SocketAddr,
    state: Arc<State>,
}

impl Echo {
    pub fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (address, state) = (listener.local_addr().unwrap(), Arc::<State>::default());
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if shared.stop.load(Ordering::SeqCst) {
                    return;
                }
                let (shared, stream) = (shared.clone(), stream.unwrap());
                // The client may leave at any time, which is its right.
                std::thread::spawn(move || serve(&shared, stream));
            }
        });
        Self { address, state }
    }

    /// How many requests with this method and path came; those to the API count together, as `/api`. Eight in a row get
    /// eight kinds of answers.
    pub fn answers(&self, request: &str) -> usize {
        self.state.answers.lock().unwrap().get(request).copied().unwrap_or(0)
    }

    /// A word that was sent and begins like this.
    pub fn sent(&self, beginning: &str) -> String {
        let words = self.state.words.lock().unwrap();
        words.iter().find(|word| word.starts_with(beginning)).cloned().expect("it was sent")
    }

    /// Whether somebody sent this, or it in base64.
    pub fn was_sent(&self, text: &str) -> bool {
        self.state.words.lock().unwrap().iter().any(|word| word.contains(text))
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(state: &State, mut stream: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut first = String::new();
        if reader.read_line(&mut first)? == 0 {
            return Ok(());
        }
        let (mut length, mut sent) = (0, first.clone());
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().unwrap_or(0);
            }
            sent.push_str(value);
            sent.push('\n');
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        state.learn(&sent);
        let number = state.count(&first);
        stream.write_all(&state.answer(number, &first))?;
        if number % 7 == 6 {
            return Ok(()); // some connections are closed after an answer
        }
    }
}

impl State {
    fn learn(&self, sent: &str) {
        let mut words = self.words.lock().unwrap();
        for word in sent.split([' ', '\n', '\r', ';']) {
            let plain = STANDARD.decode(word.as_bytes()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            let parts =
                word.split(['=', '?', '&', ',']).chain(plain.iter().flat_map(|plain| plain.split(':')));
            let all = parts.chain(plain.as_deref()).chain([word]);
            words.extend(all.filter(|part| part.len() >= 6).map(str::to_owned));
        }
    }

    /// What is said this time: one of the words, begun or ended at one of its bytes, or whole across the place where
    /// an answer that is shown is cut off, `cuts`.
    fn said(&self, number: usize, cuts: [usize; 2]) -> String {
        let words = self.words.lock().unwrap();
        let all: Vec<&String> = words.iter().collect();
        let bounds: Vec<(usize, usize)> = all
            .iter()
            .enumerate()
            .flat_map(|(which, word)| (0..=word.len()).map(move |at| (which, at)))
            .collect();
        // Each step leads far away, and all of them everywhere. The number of encodings has no divisor in common with
        // that of the kinds of answers (8) and of pieces (7), so that each comes with each.
        const { assert!(!ENCODINGS.len().is_multiple_of(2) && !ENCODINGS.len().is_multiple_of(7)) };
        let (which, at) = bounds[number.wrapping_mul(7919) % bounds.len()];
        let word = all[which].as_bytes();
        let (_, encode) = ENCODINGS[number % ENCODINGS.len()];
        let written = encode(word).into_bytes();
        let piece = match number / 7 % 7 {
            0 => encode(&word[..at]).into_bytes(),
            1 => [encode(&word[at..]).as_bytes(), b" and more"].concat(),
            2 => [b"x".repeat(cuts[0] - at.min(cuts[0])).as_slice(), &written].concat(),
            3 => [b"x".repeat(cuts[1] - at.min(cuts[1])).as_slice(), &written].concat(),
            4 => written[..written.len() * at / word.len()].to_vec(),
            5 => written[written.len() * at / word.len()..].to_vec(),
            _ => [&word[..at], b"\"", &word[at..], b"/", &written].concat(),
        };
        String::from_utf8_lossy(&piece).into_owned()
    }

    /// Counts a request with this first line. Returns how many of its kind came before.
    fn count(&self, first: &str) -> usize {
        let request = first.split(" HTTP/").next().and_then(|request| request.split('?').next());
        let kind = if first.contains("/api") { "/api" } else { request.unwrap_or_default() };
        let mut answers = self.answers.lock().unwrap();
        let count = answers.entry(kind.to_owned()).or_default();
        *count += 1;
        *count - 1
    }

    fn answer(&self, number: usize, first: &str) -> Vec<u8> {
        let is_api = first.contains("/api");
        let said = self.said(number, if is_api { [120, 300] } else { [80, 400] });
        let git = "Content-Type: application/x-git-upload-pack-result\r\n";
        let listing = "Content-Type: application/x-git-upload-pack-advertisement\r\n";
        match number % 8 {
            _ if is_api => {
                let status = [403, 409, 422, 429, 500, 503, 404, 400][number % 8];
                let message = serde_json::json!({
                    "kind": "Status", "status": "Failure", "message": said, "reason": said, "code": status,
                    "details": { "name": said, "causes": [{ "reason": said, "field": said, "message": said }] },
                });
                page(
                    &format!("{status} {}", line(&said)),
                    "Content-Type: application/json\r\n",
                    &message.to_string(),
                )
            }
            0 => page("500 Broken", "Content-Type: text/plain\r\n", &said),
            1 => page(&format!("503 {}", line(&said)), "", &said),
            2 => page("302 Found", &format!("Location: http://elsewhere/{}\r\n", line(&said)), ""),
            3 => page("302 Found", &format!("Location: http://{}@elsewhere/x\r\n", line(&said)), ""),
            4 => page("200 OK", git, &packet(&format!("ERR {said}"))),
            5 => page("200 OK", listing, &said),
            6 => {
                let service = packet("# service=git-upload-pack\n") + "0000" + &packet("version 2\n");
                page("200 OK", listing, &(service + &packet(&format!("object-format={said}\n")) + "0000"))
            }
            _ => page("401 Unauthorized", &format!("WWW-Authenticate: {}\r\n", line(&said)), &said),
        }
    }
}

/// What may stand in a header.
fn line(text: &str) -> String {
    text.chars().filter(|c| c.is_ascii_graphic()).collect()
}

fn packet(content: &str) -> String {
    format!("{:04x}{content}", content.len() + 4)
}

fn page(status: &str, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}
