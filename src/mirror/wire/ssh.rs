//! The ssh transport: a session with one server, and commands run in it.
//!
//! It promises that no credential or command is sent to a server whose host key is not trusted by `known_hosts`, that
//! the key and known_hosts files are read again for every connection, that every wait has a timeout, and that dropping
//! a session in any state closes its socket. It does not read `~/.ssh`, use an agent, or prompt on a terminal.

mod channel;
mod distrust;
mod error;
mod keys;
mod known_hosts;
mod target;
mod verifier;

use std::borrow::Cow;
use std::io;
use std::net::Shutdown;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use russh::client::{AuthResult, Handle, connect_stream};
use russh::keys::{Algorithm, HashAlg, PrivateKeyWithHashAlg};
use russh::{MethodKind, Preferred};
use tokio::net::TcpStream;
use tokio::time::timeout;

pub use channel::{Channel, End};
pub use distrust::{Distrust, UntrustedReason};
pub use error::Error;
pub use keys::unusable_key;
#[cfg(any(test, fuzzing))]
pub(crate) use known_hosts::fuzz;
pub use target::{DEFAULT_USER, Target};

use crate::{detached_io, secret};

use super::Timeouts;
use super::dial::{DialError, dial};
use super::text::clean_message;
use keys::Key;
use known_hosts::HostKeys;
use verifier::{SessionError, Verifier};

/// A key file or a known_hosts file may have so many bytes.
const FILE_MAX: u64 = 16 << 20;

/// The interval of keepalive requests on an idle connection; the session ends after three unanswered ones.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// How to authenticate to the server, and which servers to trust.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Private key files, tried in this order (`--ssh-key-file`). Missing files are ignored unless all are missing.
    pub keys: Vec<PathBuf>,
    /// Which servers to trust.
    pub known_hosts: KnownHosts,
}

/// Which servers to trust.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KnownHosts {
    /// The servers in this file (`--ssh-known-hosts-file`).
    Strict(PathBuf),
    /// Any server (`--ssh-known-hosts=false`).
    Off,
}

/// An authenticated connection, kept between polls. Dropping it closes the socket, even in the middle of an operation.
pub struct Session {
    handle: Handle<Verifier>,
    server: String,
    disconnect: DisconnectMessage,
    /// The limit on every wait for the server.
    idle: Duration,
    /// True once the server failed to answer a command in time.
    stuck: AtomicBool,
    _socket: CloseOnDrop,
}

impl Session {
    /// Connects, checks the host key, and authenticates. Each step has its own deadline: `timeouts.connect` for
    /// connecting, `timeouts.idle` for the key exchange and for each key that is tried.
    pub async fn connect(target: &Target, options: &Options, timeouts: Timeouts) -> Result<Self, Error> {
        let (keys, hosts) = read_files(target.clone(), options.clone(), timeouts.idle).await?;
        let (stream, socket) = connect(target, timeouts.connect).await?;

        let disconnect = DisconnectMessage::default();
        let config = config(hosts.as_ref());
        let verifier = Verifier { hosts, disconnect: disconnect.clone() };
        let server = target.server();
        let handle = match timeout(timeouts.idle, connect_stream(Arc::new(config), stream, verifier)).await {
            Ok(Ok(handle)) => handle,
            Ok(Err(SessionError::HostKey(error))) => return Err(*error),
            Ok(Err(SessionError::Protocol(error))) => {
                return Err(session_error("the key exchange", server, &disconnect, error));
            }
            Err(_) => return Err(timed_out("the key exchange", server, timeouts.idle)),
        };

        let mut this = Self {
            handle,
            server,
            disconnect,
            idle: timeouts.idle,
            stuck: AtomicBool::new(false),
            _socket: socket,
        };
        this.authenticate(&target.user, &keys).await?;
        Ok(this)
    }

    /// Offers the keys one after the other.
    async fn authenticate(&mut self, user: &str, keys: &[Key]) -> Result<(), Error> {
        let mut offered = Vec::new();
        for key in keys {
            offered.push(key.describe());
            match timeout(self.idle, self.offer(user, key)).await {
                Err(_) => return Err(timed_out("the authentication", self.server.clone(), self.idle)),
                Ok(Ok(KeyReply::Accepted)) => return Ok(()),
                Ok(Ok(KeyReply::Next)) => {}
                Ok(Ok(KeyReply::Last)) => break,
                Ok(Err(error)) => {
                    // The session's task records why it ended.
                    let ended = timeout(self.idle, &mut self.handle).await.is_ok();
                    // Servers disconnect after some failures (OpenSSH: MaxAuthTries, six by default).
                    if self.disconnect.is_refusal() {
                        break;
                    }
                    let error = if ended { russh::Error::Disconnect } else { error };
                    let server = self.server.clone();
                    return Err(session_error("the authentication", server, &self.disconnect, error));
                }
            }
        }
        let server = self.server.clone();
        let user = secret::shown_user(user).to_owned();
        Err(Error::Denied { server, user, keys: offered, said: self.disconnect.get() })
    }

    async fn offer(&mut self, user: &str, key: &Key) -> Result<KeyReply, russh::Error> {
        // RSA keys sign with SHA-2 only. If the server does not announce which hashes it accepts, both are tried.
        let hashes: &[Option<HashAlg>] = if !key.key.algorithm().is_rsa() {
            &[None]
        } else {
            match self.handle.best_supported_rsa_hash().await? {
                Some(Some(HashAlg::Sha256)) => &[Some(HashAlg::Sha256)],
                Some(Some(_)) => &[Some(HashAlg::Sha512)],
                Some(None) => &[],
                None => &[Some(HashAlg::Sha512), Some(HashAlg::Sha256)],
            }
        };
        for hash in hashes {
            let key = PrivateKeyWithHashAlg::new(key.key.clone(), *hash);
            match self.handle.authenticate_publickey(user, key).await? {
                AuthResult::Success => return Ok(KeyReply::Accepted),
                // russh also reports a lost connection as a failure without remaining methods.
                AuthResult::Failure { remaining_methods, .. } if remaining_methods.is_empty() => {
                    return Err(russh::Error::Disconnect);
                }
                AuthResult::Failure { remaining_methods, .. } => {
                    if !remaining_methods.contains(&MethodKind::PublicKey) {
                        return Ok(KeyReply::Last);
                    }
                }
            }
        }
        Ok(KeyReply::Next)
    }

    /// Returns false if the connection is known to be dead: it was closed, keepalives went unanswered, or the server
    /// did not answer a command in time.
    pub fn is_alive(&self) -> bool {
        !self.handle.is_closed() && !self.stuck.load(Ordering::Relaxed)
    }

    /// Starts a command. With `protocol_v2` the server is asked to set `GIT_PROTOCOL=version=2`; it may ignore that, as
    /// the first line of the response then shows. If the command cannot be run, the first read fails.
    pub async fn exec(&self, command: &str, protocol_v2: bool) -> Result<Channel, Error> {
        let opened = async {
            let channel = self.handle.channel_open_session().await?;
            if protocol_v2 {
                channel.set_env(false, "GIT_PROTOCOL", "version=2").await?;
            }
            channel.exec(true, command).await?;
            Ok(channel)
        };
        match timeout(self.idle, opened).await {
            Ok(Ok(channel)) => {
                Ok(Channel::new(channel, self.server.clone(), command.to_owned(), self.disconnect.clone()))
            }
            Ok(Err(error)) => Err(session_error("the session", self.server.clone(), &self.disconnect, error)),
            Err(_) => {
                self.stuck.store(true, Ordering::Relaxed);
                Err(timed_out("the session", self.server.clone(), self.idle))
            }
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("server", &self.server).finish_non_exhaustive()
    }
}

/// The server's reply to an offered key.
enum KeyReply {
    Accepted,
    /// Rejected; another key may be offered.
    Next,
    /// Rejected; the server accepts no more keys.
    Last,
}

/// Closes the socket when dropped. This is needed because russh reads the socket in its own task, which does not end
/// when its handle, or the future that waits for the key exchange, is dropped.
struct CloseOnDrop(std::net::TcpStream);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Both); // fails if the server closed it first
    }
}

/// Reads the key and known_hosts files on a separate thread, because that may block, for at most `limit`.
async fn read_files(
    target: Target,
    options: Options,
    limit: Duration,
) -> Result<(Vec<Key>, Option<HostKeys>), Error> {
    let late = timed_out("reading the key and known_hosts files for the connection", target.server(), limit);
    let any = options.keys.first().cloned().unwrap_or_default();
    let read = move || {
        let hosts = match &options.known_hosts {
            KnownHosts::Strict(file) => Some(HostKeys::read(file, &target)?),
            KnownHosts::Off => None,
        };
        Ok((keys::load(&options.keys)?, hosts))
    };
    match timeout(limit, detached_io::run(&any, read)).await {
        Ok(Some(result)) => result,
        Ok(None) | Err(_) => Err(late),
    }
}

/// Connects to the server.
async fn connect(target: &Target, within: Duration) -> Result<(TcpStream, CloseOnDrop), Error> {
    let failed = |source| Error::Connect { host: target.host.clone(), port: target.port, source };
    match dial(&target.host, target.port, within).await {
        Ok(stream) => prepare(stream).map_err(failed),
        Err(DialError::Failed(source)) => Err(failed(source)),
        Err(DialError::Late) => Err(Error::Timeout {
            step: "connecting",
            server: target.server(),
            after: within,
            flag: "--connect-timeout",
        }),
    }
}

fn prepare(stream: TcpStream) -> io::Result<(TcpStream, CloseOnDrop)> {
    stream.set_nodelay(true)?;
    let stream = stream.into_std()?;
    let socket = CloseOnDrop(stream.try_clone()?);
    Ok((TcpStream::from_std(stream)?, socket))
}

fn config(hosts: Option<&HostKeys>) -> russh::client::Config {
    // SHA-1 signatures are forgeable in principle, and OpenSSH stopped accepting them in 8.8.
    let algorithms: Vec<Algorithm> = Preferred::DEFAULT
        .key
        .iter()
        .filter(|kind| **kind != Algorithm::Rsa { hash: None })
        .cloned()
        .collect();
    let mut preferred = Preferred::DEFAULT;
    if hosts.is_some_and(HostKeys::wants_certificates) {
        preferred.host_key_certificates = Cow::Owned(algorithms.clone());
    }
    preferred.key = Cow::Owned(hosts.map_or_else(|| algorithms.clone(), |hosts| hosts.prefer(&algorithms)));
    russh::client::Config { preferred, keepalive_interval: Some(KEEPALIVE), ..Default::default() }
}

/// The server's disconnect message, if it sent one, or else the error that ended the session.
#[derive(Clone, Debug, Default)]
struct DisconnectMessage(Arc<Mutex<Disconnected>>);

#[derive(Debug, Default)]
struct Disconnected {
    is_refusal: bool,
    text: Option<String>,
}

impl DisconnectMessage {
    fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).text.clone()
    }

    /// Returns true if the server ended the session in order to refuse the client, false if the connection was lost.
    fn is_refusal(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_refusal
    }

    /// The disconnect message, or a generic one.
    fn text(&self) -> String {
        self.get().unwrap_or_else(|| "the server closed the connection".to_owned())
    }

    fn set(&self, is_refusal: bool, text: &str) {
        let text = clean_message(text);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Disconnected { is_refusal, text };
    }
}

fn timed_out(step: &'static str, server: String, after: Duration) -> Error {
    Error::Timeout { step, server, after, flag: "--idle-timeout" }
}

fn session_error(
    step: &'static str,
    server: String,
    disconnect: &DisconnectMessage,
    error: russh::Error,
) -> Error {
    match error {
        russh::Error::NoCommonAlgo { kind, theirs, .. } => Error::NoCommonAlgorithm {
            server,
            kind: format!("{kind:?}").to_lowercase(),
            theirs: clean_message(&theirs.join(", ")).unwrap_or_default(),
        },
        russh::Error::Disconnect | russh::Error::HUP | russh::Error::SendError | russh::Error::RecvError => {
            Error::Broken { step, server, source: disconnect.text().into() }
        }
        error => Error::Broken { step, server, source: Box::new(error) },
    }
}

/// Quotes a path for the remote's shell, as git does: in single quotes, with `'` and `!` escaped outside of them.
pub fn quote(path: &str) -> String {
    format!("'{}'", path.replace('\'', r"'\''").replace('!', r"'\!'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_offers_is_shown_without_control_characters_and_cut() {
        let error = russh::Error::NoCommonAlgo {
            kind: russh::AlgorithmKind::Kex,
            ours: Vec::new(),
            theirs: vec!["\u{1b}[31mFAKE".to_owned(), "x".repeat(30_000)],
        };
        let error = session_error("a test", "h:22".to_owned(), &DisconnectMessage::default(), error);
        let text = error.to_string();
        assert!(text.contains(": [31mFAKE, xxx") && text.len() < 500, "{text}");
        assert!(!text.contains(char::is_control), "{text:?}");
    }
}
