//! One port whose behaviour changes: first a good server behind it, then something else.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// What happens to a connection.
pub type Behaviour = Arc<dyn Fn(TcpStream) -> io::Result<()> + Send + Sync>;

/// Makes a behaviour.
pub fn behaviour(f: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static) -> Behaviour {
    Arc::new(f)
}

/// A listening port of the kernel's choice.
pub struct Port {
    pub address: SocketAddr,
    now: Arc<Mutex<Behaviour>>,
    stop: Arc<AtomicBool>,
    connections: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Port {
    pub fn open(first: Behaviour) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (now, stop) = (Arc::new(Mutex::new(first)), Arc::new(AtomicBool::new(false)));
        let connections = Arc::new(AtomicU64::new(0));
        let thread = std::thread::spawn({
            let (now, stop, connections) = (now.clone(), stop.clone(), connections.clone());
            move || {
                for stream in listener.incoming() {
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                    let (behaviour, stream) = (now.lock().unwrap().clone(), stream.unwrap());
                    connections.fetch_add(1, Ordering::SeqCst);
                    // The client may leave at any time, which is its right.
                    std::thread::spawn(move || behaviour(stream));
                }
            }
        });
        Self { address, now, stop, connections, thread: Some(thread) }
    }

    /// From now on, for new connections.
    pub fn behave(&self, behaviour: Behaviour) {
        *self.now.lock().unwrap() = behaviour;
    }

    /// Connections so far.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.stop.store(true, Ordering::SeqCst);
            let _ = TcpStream::connect(self.address);
            thread.join().unwrap();
        }
    }
}

/// How a connection is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    Fin,
    Reset,
    /// It stays open, and nothing comes any more, until the client leaves.
    Silence,
}

impl Cut {
    pub fn carry_out(self, stream: &TcpStream) {
        match self {
            Self::Fin => drop(stream.shutdown(Shutdown::Both)),
            Self::Reset => {
                // Closing with a linger time of nothing sends RST instead of FIN. Threads that still read let go, too.
                let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
                let _ = stream.shutdown(Shutdown::Read);
            }
            Self::Silence => {}
        }
    }
}

/// What a relay does to the bytes from the server.
#[derive(Clone, Debug)]
pub struct Relay {
    pub to: SocketAddr,
    /// So many bytes pass, over all connections together.
    pub limit: u64,
    /// So many of them have not passed yet.
    pub left: Arc<AtomicU64>,
    pub cut: Cut,
    /// Every byte in a segment of its own, with a pause after it.
    pub pause: Option<Duration>,
}

impl Relay {
    /// Everything passes.
    pub fn all(to: SocketAddr) -> Self {
        Self::cut_at(to, u64::MAX, Cut::Fin)
    }

    /// So many bytes pass.
    pub fn cut_at(to: SocketAddr, at: u64, cut: Cut) -> Self {
        Self { to, limit: at, left: Arc::new(AtomicU64::new(at)), cut, pause: None }
    }

    /// Bytes that passed.
    pub fn passed(&self) -> u64 {
        self.limit - self.left.load(Ordering::SeqCst)
    }

    pub fn behaviour(&self) -> Behaviour {
        let relay = self.clone();
        behaviour(move |client| relay.carry(client))
    }

    fn carry(&self, client: TcpStream) -> io::Result<()> {
        let server = TcpStream::connect(self.to)?;
        client.set_nodelay(true)?;
        let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
        let asking = std::thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
        let (mut server, mut client) = (server, client);
        let mut buffer = vec![0; if self.pause.is_some() { 1 } else { 16 << 10 }];
        loop {
            let came = server.read(&mut buffer)? as u64;
            let before = self
                .left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| Some(left.saturating_sub(came)));
            let passes = came.min(before.unwrap_or(0)) as usize;
            client.write_all(&buffer[..passes])?;
            if came == 0 || passes < came as usize {
                if came > 0 && self.cut == Cut::Silence {
                    let _ = asking.join(); // the client's side ends when it leaves
                }
                self.cut.carry_out(&client);
                let _ = server.shutdown(Shutdown::Both);
                return Ok(());
            }
            if let Some(pause) = self.pause {
                std::thread::sleep(pause);
            }
        }
    }
}

/// A good git daemon for the repositories below a directory.
pub fn daemon(directory: &Path) -> Behaviour {
    let directory = directory.to_owned();
    behaviour(move |stream| {
        let end = || Ok::<_, io::Error>(Stdio::from(std::os::fd::OwnedFd::from(stream.try_clone()?)));
        Command::new("git")
            .args(["daemon", "--inetd", "--export-all"])
            .arg(format!("--base-path={}", directory.display()))
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .stdin(end()?)
            .stdout(end()?)
            .stderr(Stdio::null())
            .status()?;
        Ok(())
    })
}

/// A request over HTTP.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    pub authorization: String,
    pub body: String,
}

/// Answers requests over HTTP, raw: whatever is written goes out as it is.
pub fn http(answer: impl Fn(&Asked, &mut TcpStream) -> io::Result<()> + Send + Sync + 'static) -> Behaviour {
    behaviour(move |mut stream| {
        let mut reader = BufReader::new(stream.try_clone()?);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let mut words = line.split(' ').map(str::to_owned);
            let method = words.next().unwrap_or_default();
            let (mut length, mut authorization) = (0, String::new());
            loop {
                let mut line = String::new();
                reader.read_line(&mut line)?;
                let Some((name, value)) = line.trim_end().split_once(':') else { break };
                if name.eq_ignore_ascii_case("content-length") {
                    length = value.trim().parse().map_err(io::Error::other)?;
                } else if name.eq_ignore_ascii_case("authorization") {
                    authorization = value.trim().to_owned();
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body)?;
            let body = String::from_utf8_lossy(&body).into_owned();
            answer(&Asked { method, authorization, body }, &mut stream)?;
        }
    })
}

/// The same answer to every request over HTTP.
pub fn says(answer: impl Into<Vec<u8>>) -> Behaviour {
    let answer = answer.into();
    http(move |_, stream| stream.write_all(&answer))
}

/// An answer over HTTP with a length.
pub fn page(status: &str, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// The head of an answer that goes on until the connection ends.
pub fn head(kind: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/x-git-upload-pack-{kind}\r\nConnection: close\r\n\r\n"
    )
}

/// Writes the same again and again, until the other side leaves.
pub fn without_end(stream: &mut TcpStream, piece: &[u8]) -> io::Result<()> {
    let many = piece.repeat((64 << 10) / piece.len().max(1) + 1);
    loop {
        stream.write_all(&many)?;
    }
}
