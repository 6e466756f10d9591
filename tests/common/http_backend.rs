//! A small HTTP/1.1 server in front of git's own `http-backend`: optionally with TLS, a password, or canned answers
//! such as redirects. It records every request with its size. Uses blocking threads.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A recorded request.
#[derive(Clone, Debug, Default)]
pub struct Hit {
    /// The number of its connection, from 0.
    pub connection: usize,
    pub method: String,
    /// The path with the query.
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub status: u16,
    /// Bytes of the request and of the answer, including headers, without TLS.
    pub up: u64,
    pub down: u64,
}

impl Hit {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// An answer that is not git's.
#[derive(Clone, Debug)]
pub struct Canned {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Close the connection without an answer.
    pub hang_up: bool,
}

impl Canned {
    pub fn status(status: u16, body: &str) -> Self {
        Self { status, headers: Vec::new(), body: body.into(), hang_up: false }
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub fn redirect(to: &str) -> Self {
        Self::status(302, "").header("Location", to)
    }

    pub fn hang_up() -> Self {
        Self { hang_up: true, ..Self::status(0, "") }
    }
}

type Hook = Box<dyn Fn(&Hit) -> Option<Canned> + Send + Sync>;

/// The behaviour of a server.
#[derive(Default)]
pub struct Kind {
    /// The user name and password that every request must have.
    pub auth: Option<(String, String)>,
    /// Behave like a server without protocol version 2: the `Git-Protocol` header is not passed on.
    pub only_v0: bool,
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Close a connection after this many requests, as nginx does after 1,000.
    pub requests_per_connection: Option<usize>,
    /// Called before git. A canned answer replaces git's.
    pub hook: Option<Hook>,
}

#[derive(Default)]
struct Hits {
    done: Mutex<Vec<Hit>>,
    /// Requests that are not recorded yet, although their answer may have arrived.
    busy: AtomicUsize,
}

/// A running server, which stops when dropped.
pub struct HttpBackend {
    pub address: SocketAddr,
    hits: Arc<Hits>,
    stop: Arc<AtomicBool>,
    scheme: &'static str,
}

impl HttpBackend {
    /// Serves all repositories below the directory, at a free port of the loopback interface.
    pub fn start(directory: &Path, kind: Kind) -> Self {
        Self::start_at(([127, 0, 0, 1], 0).into(), directory, kind)
    }

    /// Serves all repositories below the directory, at this address.
    pub fn start_at(address: SocketAddr, directory: &Path, kind: Kind) -> Self {
        let listener = TcpListener::bind(address).unwrap_or_else(|error| panic!("{address}: {error}"));
        let address = listener.local_addr().unwrap();
        let hits: Arc<Hits> = Arc::default();
        let stop = Arc::new(AtomicBool::new(false));
        let scheme = if kind.tls.is_some() { "https" } else { "http" };
        let shared = Arc::new((directory.to_owned(), kind, hits.clone()));
        let stopping = stop.clone();
        std::thread::spawn(move || {
            for (connection, socket) in listener.incoming().enumerate() {
                if stopping.load(Ordering::Relaxed) {
                    return;
                }
                let shared = shared.clone();
                let socket = socket.unwrap();
                std::thread::spawn(move || {
                    let (directory, kind, hits) = &*shared;
                    let _ = serve(socket, connection, directory, kind, hits);
                });
            }
        });
        Self { address, hits, stop, scheme }
    }

    /// The URL of a repository, by its path below the directory.
    pub fn url(&self, path: &str) -> String {
        format!("{}://localhost:{}/{path}", self.scheme, self.address.port())
    }

    /// The requests answered so far. Waits for running ones.
    pub fn hits(&self) -> Vec<Hit> {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(120);
        while self.hits.busy.load(Ordering::SeqCst) > 0 {
            assert!(std::time::Instant::now() < end, "a request is answered without an end");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        self.hits.done.lock().unwrap().clone()
    }

    /// Clears the record of requests.
    pub fn forget(&self) {
        self.hits();
        self.hits.done.lock().unwrap().clear();
    }
}

impl Drop for HttpBackend {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address); // wakes the listener
    }
}

/// Counts the bytes read and written.
struct Counted<S> {
    stream: S,
    up: Arc<AtomicU64>,
    down: Arc<AtomicU64>,
}

impl<S: Read> Read for Counted<S> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let taken = self.stream.read(buf)?;
        self.up.fetch_add(taken as u64, Ordering::Relaxed);
        Ok(taken)
    }
}

impl<S: Write> Write for Counted<S> {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        let given = self.stream.write(buf)?;
        self.down.fetch_add(given as u64, Ordering::Relaxed);
        Ok(given)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

struct Done<'a>(&'a AtomicUsize);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

trait Both: Read + Write + Send {}
impl<T: Read + Write + Send> Both for T {}

fn serve(
    socket: TcpStream,
    connection: usize,
    directory: &Path,
    kind: &Kind,
    hits: &Hits,
) -> std::io::Result<()> {
    socket.set_read_timeout(Some(std::time::Duration::from_secs(60)))?;
    socket.set_nodelay(true)?;
    let stream: Box<dyn Both> = match &kind.tls {
        None => Box::new(socket),
        Some(config) => {
            let session = rustls::ServerConnection::new(config.clone()).map_err(std::io::Error::other)?;
            Box::new(rustls::StreamOwned::new(session, socket))
        }
    };
    let up = Arc::new(AtomicU64::new(0));
    let down = Arc::new(AtomicU64::new(0));
    let mut stream = BufReader::new(Counted { stream, up: up.clone(), down: down.clone() });
    for served in 1.. {
        let Some((mut hit, body)) = read_request(&mut stream)? else { break };
        hits.busy.fetch_add(1, Ordering::SeqCst);
        let _done = Done(&hits.busy);
        hit.connection = connection;
        let last = kind.requests_per_connection.is_some_and(|most| served >= most);
        let canned = match (&kind.auth, &kind.hook) {
            (Some((user, password)), _) if !authorized(&hit, user, password) => {
                Some(Canned::status(401, "no").header("WWW-Authenticate", "Basic realm=\"git\""))
            }
            (_, Some(hook)) => hook(&hit),
            _ => None,
        };
        let hang_up = canned.as_ref().is_some_and(|canned| canned.hang_up);
        if hang_up {
            hits.done.lock().unwrap().push(hit);
            break;
        }
        let out = stream.get_mut();
        hit.status = match canned {
            Some(canned) => answer(out, &canned)?,
            None => backend(out, &hit, body, directory, kind)?,
        };
        out.flush()?;
        hit.up = up.swap(0, Ordering::Relaxed);
        hit.down = down.swap(0, Ordering::Relaxed);
        hits.done.lock().unwrap().push(hit);
        // Like nginx, without `Connection: close` in the last answer.
        if last {
            break;
        }
    }
    Ok(())
}

fn authorized(hit: &Hit, user: &str, password: &str) -> bool {
    hit.header("authorization")
        == Some(format!("Basic {}", base64(format!("{user}:{password}").as_bytes())).as_str())
}

/// Base64 with padding, as in HTTP Basic authentication.
pub fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits =
            group.iter().enumerate().fold(0u32, |bits, (at, byte)| bits | u32::from(*byte) << (16 - 8 * at));
        for at in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * at)) as usize & 63] as char;
            text.push(if at <= group.len() { digit } else { '=' });
        }
    }
    text
}

fn read_request(stream: &mut impl BufRead) -> std::io::Result<Option<(Hit, Vec<u8>)>> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_ascii_whitespace().map(str::to_owned);
    let mut hit = Hit {
        method: words.next().unwrap_or_default(),
        path: words.next().unwrap_or_default(),
        ..Hit::default()
    };
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        hit.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length: usize = hit.header("content-length").map_or(0, |length| length.parse().unwrap());
    assert!(hit.header("transfer-encoding").is_none(), "the client sends its questions with their length");
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    hit.body.clone_from(&body);
    Ok(Some((hit, body)))
}

fn answer(out: &mut impl Write, canned: &Canned) -> std::io::Result<u16> {
    let mut head = format!("HTTP/1.1 {} x\r\nContent-Length: {}\r\n", canned.status, canned.body.len());
    for (name, value) in &canned.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    out.write_all(format!("{head}\r\n").as_bytes())?;
    out.write_all(&canned.body)?;
    Ok(canned.status)
}

/// Runs `git http-backend` as a CGI program and sends its answer with chunked encoding.
fn backend(
    out: &mut impl Write,
    hit: &Hit,
    body: Vec<u8>,
    directory: &Path,
    kind: &Kind,
) -> std::io::Result<u16> {
    // A request to a proxy has an absolute URL; the host is ignored.
    let path = hit.path.strip_prefix("http://").and_then(|rest| rest.find('/').map(|at| &rest[at..]));
    let path = path.unwrap_or(&hit.path);
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let mut command = Command::new("git");
    command
        .arg("http-backend")
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_PROJECT_ROOT", directory)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("REQUEST_METHOD", &hit.method)
        .env("PATH_INFO", path)
        .env("QUERY_STRING", query)
        .env("CONTENT_TYPE", hit.header("content-type").unwrap_or_default())
        .env("CONTENT_LENGTH", body.len().to_string())
        // git compresses requests of more than 1 KiB.
        .env("HTTP_CONTENT_ENCODING", hit.header("content-encoding").unwrap_or_default())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    if let (Some(version), false) = (hit.header("git-protocol"), kind.only_v0) {
        command.env("GIT_PROTOCOL", version);
    }
    let mut child = command.spawn()?;
    let mut stdin = child.stdin.take().unwrap();
    let feeding = std::thread::spawn(move || {
        let _ = stdin.write_all(&body); // the program may exit without reading all of it
    });
    let mut from = BufReader::new(child.stdout.take().unwrap());
    let mut status = 200;
    let mut headers = String::new();
    loop {
        let mut line = String::new();
        from.read_line(&mut line)?;
        let line = line.trim_end();
        let Some((name, value)) = line.split_once(':') else { break };
        if name.eq_ignore_ascii_case("status") {
            status = value.trim().split(' ').next().unwrap_or_default().parse().unwrap_or(500);
        } else {
            headers.push_str(&format!("{line}\r\n"));
        }
    }
    write!(out, "HTTP/1.1 {status} x\r\n{headers}Transfer-Encoding: chunked\r\n\r\n")?;
    let mut piece = vec![0; 32 << 10];
    let passed = loop {
        let taken = from.read(&mut piece)?;
        if taken == 0 {
            break out.write_all(b"0\r\n\r\n");
        }
        let mut chunk = format!("{taken:x}\r\n").into_bytes();
        chunk.extend_from_slice(&piece[..taken]);
        chunk.extend_from_slice(b"\r\n");
        if let Err(error) = out.write_all(&chunk).and_then(|()| out.flush()) {
            let _ = child.kill();
            break Err(error);
        }
    };
    let _ = child.wait();
    let _ = feeding.join();
    passed.map(|()| status)
}

/// A test certificate authority and a server certificate that it issued.
pub struct Authority {
    /// The CA's certificate, PEM.
    pub pem: String,
    pub server: Arc<rustls::ServerConfig>,
}

impl Authority {
    /// A server certificate for `localhost` that is valid now.
    pub fn new() -> Self {
        Self::issuing(&["localhost"], (2020, 2120))
    }

    /// A server certificate for these names, valid from January 1 of one year to that of the other.
    pub fn issuing(names: &[&str], (from, to): (i32, i32)) -> Self {
        let ca_key = rcgen::KeyPair::generate().unwrap();
        let mut ca = rcgen::CertificateParams::new(Vec::new()).unwrap();
        ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        ca.distinguished_name.push(rcgen::DnType::CommonName, "a test's authority");
        let pem = ca.self_signed(&ca_key).unwrap().pem();
        let issuer = rcgen::Issuer::new(ca, ca_key);

        let key = rcgen::KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut server = rcgen::CertificateParams::new(names).unwrap();
        server.not_before = rcgen::date_time_ymd(from, 1, 1);
        server.not_after = rcgen::date_time_ymd(to, 1, 1);
        let certificate = server.signed_by(&key, &issuer).unwrap();
        Self { pem, server: server_config(&certificate, &key) }
    }

    /// A self-signed server certificate as `openssl req -x509` makes it (CA:TRUE), valid from January 1 of one year to
    /// that of the other. The subject is always the same. As PEM and as a server's configuration.
    pub fn self_signed(name: &str, (from, to): (i32, i32)) -> (String, Arc<rustls::ServerConfig>) {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.not_before = rcgen::date_time_ymd(from, 1, 1);
        params.not_after = rcgen::date_time_ymd(to, 1, 1);
        let certificate = params.self_signed(&key).unwrap();
        (certificate.pem(), server_config(&certificate, &key))
    }

    /// Writes the CA's certificate to a file and returns its path.
    pub fn write(&self, path: &Path) -> PathBuf {
        std::fs::write(path, &self.pem).unwrap();
        path.to_owned()
    }
}

fn server_config(certificate: &rcgen::Certificate, key: &rcgen::KeyPair) -> Arc<rustls::ServerConfig> {
    let key = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    Arc::new(config)
}
