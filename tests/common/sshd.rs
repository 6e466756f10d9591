//! A real sshd for one test, which also works without root.
//!
//! The test listens itself, at a port of the kernel's choice, and starts an `sshd -i` for each connection, which reads
//! its configuration and host keys anew. So both can be changed between connections, and a session can be cut at any
//! time.

use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::run;

/// A running sshd.
pub struct Sshd {
    dir: PathBuf,
    pub port: u16,
    shared: Arc<Shared>,
    listener: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    connections: AtomicUsize,
    sessions: Mutex<Vec<(Child, TcpStream)>>,
}

impl Sshd {
    /// Starts with host keys of these kinds (`ed25519`, `ecdsa`, `rsa`) and without authorized keys.
    pub fn start(dir: &Path, host_keys: &[&str]) -> Self {
        std::fs::create_dir(dir).unwrap();
        if rustix::process::geteuid().is_root() {
            // As root, sshd needs its privilege separation directory, which the service manager would create.
            std::fs::create_dir_all("/run/sshd").unwrap();
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared::default());
        let thread = std::thread::spawn({
            let (dir, shared) = (dir.to_owned(), shared.clone());
            move || accept(&listener, &dir, &shared)
        });
        let this = Self { dir: dir.to_owned(), port, shared, listener: Some(thread) };
        std::fs::write(dir.join("authorized_keys"), "").unwrap();
        this.configure(host_keys, "AcceptEnv GIT_PROTOCOL");
        this
    }

    /// Writes the configuration of connections from now on, and creates missing host keys. A shell that sshd starts
    /// reads no `.bashrc` of who runs the tests, which can take a second, and git none of their settings.
    pub fn configure(&self, host_keys: &[&str], more: &str) {
        let dir = self.dir.display();
        let mut config = format!(
            "SetEnv HOME={dir}\nAuthorizedKeysFile {dir}/authorized_keys\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n\
             KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nLogLevel VERBOSE\n{more}\n"
        );
        for kind in host_keys {
            if !self.host_key(kind).exists() {
                keygen(&self.host_key(kind), &["-t", kind]);
            }
            config.push_str(&format!("HostKey {}\n", self.host_key(kind).display()));
        }
        std::fs::write(self.dir.join("config"), config).unwrap();
    }

    /// The path of the private host key of this kind; the public key is next to it.
    pub fn host_key(&self, kind: &str) -> PathBuf {
        self.dir.join(format!("host_{kind}"))
    }

    /// Replaces the host key of this kind.
    pub fn change_host_key(&self, kind: &str) {
        std::fs::remove_file(self.host_key(kind)).unwrap();
        keygen(&self.host_key(kind), &["-t", kind]);
    }

    /// Authorizes a key.
    pub fn authorize(&self, key: &Path) {
        let line = std::fs::read_to_string(public(key)).unwrap();
        let file = self.dir.join("authorized_keys");
        let before = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, before + &line).unwrap();
    }

    /// A `known_hosts` line with the public half of a key.
    pub fn line(hosts: &str, key: &Path) -> String {
        format!("{hosts} {}", std::fs::read_to_string(public(key)).unwrap())
    }

    /// The `known_hosts` line of this server with its key of this kind.
    pub fn known(&self, kind: &str) -> String {
        Self::line(&format!("[127.0.0.1]:{}", self.port), &self.host_key(kind))
    }

    /// The number of connections so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Cuts all sessions.
    pub fn cut(&self) {
        for (mut child, stream) in self.shared.sessions.lock().unwrap().drain(..) {
            let _ = child.kill();
            let _ = stream.shutdown(Shutdown::Both);
            let _ = child.wait();
        }
    }

    /// What sshd logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        let _ = self.listener.take().unwrap().join();
        self.cut();
        if std::thread::panicking() {
            eprintln!("--- what sshd said:\n{}---", self.log());
        }
    }
}

fn accept(listener: &TcpListener, dir: &Path, shared: &Shared) {
    for stream in listener.incoming() {
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        let stream = stream.unwrap();
        shared.connections.fetch_add(1, Ordering::SeqCst);
        let child = serve(&stream, dir)
            .unwrap_or_else(|error| panic!("sshd: {error} (Debian's package is openssh-server)"));
        let mut sessions = shared.sessions.lock().unwrap();
        // Thousands of sessions that have ended would use up all descriptors.
        sessions.retain_mut(|(child, _)| !matches!(child.try_wait(), Ok(Some(_))));
        sessions.push((child, stream));
    }
}

fn serve(stream: &TcpStream, dir: &Path) -> io::Result<Child> {
    let end = || Ok::<_, io::Error>(Stdio::from(OwnedFd::from(stream.try_clone()?)));
    // sshd re-executes itself and requires an absolute path for that.
    let program = ["/usr/sbin/sshd", "/usr/local/sbin/sshd", "/usr/bin/sshd"];
    let program = program.iter().find(|path| Path::new(path).exists()).ok_or(io::ErrorKind::NotFound)?;
    Command::new(program)
        .args(["-i", "-e", "-f"])
        .arg(dir.join("config"))
        .stdin(end()?)
        .stdout(end()?)
        .stderr(std::fs::OpenOptions::new().create(true).append(true).open(dir.join("log"))?)
        .spawn()
}

/// Creates a key pair, without a passphrase unless the arguments set one.
pub fn keygen(file: &Path, args: &[&str]) {
    let mut command = run::clean("ssh-keygen", file.parent().unwrap());
    command.args(["-q", "-C", "", "-f"]).arg(file).args(args);
    if !args.contains(&"-N") {
        command.args(["-N", ""]);
    }
    run::to_end(&mut command).expect_ok("ssh-keygen");
}

/// The path of a key's public half.
pub fn public(key: &Path) -> PathBuf {
    PathBuf::from(format!("{}.pub", key.display()))
}

/// The user that can log in: the one that runs the test.
pub fn user() -> String {
    run::to_end(Command::new("id").arg("-un")).expect_ok("id").stdout.trim().to_owned()
}
