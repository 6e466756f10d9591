//! A small client of git's smart protocol: what a ref names, and packs of what we lack. One client, four byte streams.
//!
//! It promises that every wait is bounded (connecting, silence, the whole operation), that every answer is bounded
//! (references, pack bytes), that a credential goes to the origin it was given for and nowhere else, and that an error
//! says which of these limits was met and which flag moves it. It doesn't store anything: a pack goes to the sink that
//! the caller gives, unverified.

mod cookies;
mod credential;
mod error;
mod extra;
mod framing;
#[cfg(any(test, fuzzing))]
#[path = "../../../tests/fuzz/targets/wire.rs"]
pub(crate) mod fuzz;
mod github;
mod http;
mod issuer;
mod local;
mod local_pack;
mod pack;
mod packing;
pub(super) mod program;
mod refs;
mod remote;
pub mod ssh;
mod stderr;
mod stream;
mod text;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use tokio::io::AsyncWrite;
use tokio::time::timeout;

use crate::revision::{ObjectId, Ref};
use crate::secret::redact;

pub use credential::Credential;
pub use error::{Budget, Error, Wait};
pub use extra::{Closeness, ExtraHeader, Proxy, Scope};
pub use github::App;
pub use issuer::{Issuance, Issued, Issuer, Unissued};
pub use refs::FoundRefs;

use remote::Remote;

/// Everything about reaching the remote.
#[derive(Clone)]
pub struct Options {
    /// The remote as given: URL, scp form or path.
    pub remote: String,
    /// Credentials for http and https, each for one origin.
    pub credentials: Vec<Credential>,
    /// Who issues one for the remote's own origin where none of those is for it.
    pub issuance: Option<Issuance>,
    /// Cookies for http and https, in Netscape's format; read anew for every request.
    pub cookie_file: Option<PathBuf>,
    /// Keys and known hosts for ssh.
    pub ssh: ssh::Options,
    /// A PEM bundle trusted besides the system's certificates; read anew for every connection.
    pub ca_file: Option<PathBuf>,
    /// Whether a server's certificate goes unchecked (git's `http.sslVerify=false`).
    pub unverified: bool,
    /// Headers of the operator's.
    pub headers: Vec<ExtraHeader>,
    /// The way out for http.
    pub proxy: Proxy,
    /// Hears whether a credential was issued, each time one was asked for.
    pub issued: Issued,
    /// How long to wait.
    pub timeouts: Timeouts,
    /// How much of a reference advertisement to read (`--max-refs-bytes`).
    pub max_refs_bytes: u64,
    /// How much of a pack to read (`--max-fetch-bytes`).
    pub max_fetch_bytes: u64,
    /// The git program that serves a local repository; where there is none, the repository is read in place.
    pub git: PathBuf,
    /// A git program that fetches in our place.
    pub program: Option<Program>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("remote", &redact(&self.remote)) // as given it may hold a password
            .field("credentials", &self.credentials)
            .field("issuance", &self.issuance)
            .field("cookie_file", &self.cookie_file)
            .field("ssh", &self.ssh)
            .field("ca_file", &self.ca_file)
            .field("unverified", &self.unverified)
            .field("headers", &self.headers)
            .field("proxy", &self.proxy)
            .field("timeouts", &self.timeouts)
            .field("max_refs_bytes", &self.max_refs_bytes)
            .field("max_fetch_bytes", &self.max_fetch_bytes)
            .field("git", &self.git)
            .field("program", &self.program)
            .finish()
    }
}

/// A git program that fetches in our place (`--git`), by its own means and with its own configuration.
#[derive(Clone)]
pub struct Program {
    /// Which; a name is looked for in `PATH`.
    pub path: PathBuf,
    /// Configuration that it gets besides ours: names and values, which may hold secrets.
    pub config: Vec<(String, String)>,
    /// The repository that it fetches for, whose objects it may build on. A mirror says so itself.
    pub mirror: PathBuf,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.config.iter().map(|(name, _)| name).collect();
        f.debug_struct("Program").field("path", &self.path).field("config", &names).finish()
    }
}

/// Where a remote is, for who decides whether it may be asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum RemoteHost {
    /// On this machine.
    Here,
    /// On a host.
    Host(String),
}

impl RemoteHost {
    /// Reads a remote's form; in words why it has none.
    pub(super) fn of(remote: &str) -> Result<Self, &'static str> {
        // git takes `name::address` for the call of a program, git-remote-name; we would take it for the scp form.
        if remote.split_once("::").is_some_and(|(name, _)| name.bytes().all(|b| b.is_ascii_alphanumeric())) {
            return Err("programs that fetch (`name::address`) are not run");
        }
        match remote::parse(remote) {
            Ok((Remote::Http(url), _)) => Ok(Self::Host(url.host_str().unwrap_or_default().to_owned())),
            Ok((Remote::Ssh(target, _), _)) => Ok(Self::Host(target.host)),
            Ok((Remote::Git { host, .. }, _)) => Ok(Self::Host(host)),
            Ok((Remote::Local(_), _)) => Ok(Self::Here),
            Err(Error::BadRemote { why, .. }) => Err(why),
            Err(_) => Err("it is not understood"),
        }
    }
}

/// How long to wait for the remote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeouts {
    /// For a connection (`--connect-timeout`).
    pub connect: Duration,
    /// For the next byte (`--idle-timeout`).
    pub idle: Duration,
    /// For one operation as a whole (`--sync-timeout`).
    pub overall: Duration,
}

impl Options {
    /// The same for another remote, a submodule's. What was for the first one's origin stays for that origin.
    #[must_use]
    pub fn for_remote(&self, remote: &str) -> Self {
        let (own, userinfo) = match remote::parse(&self.remote) {
            Ok((Remote::Http(mut url), userinfo)) => {
                url.set_path("/");
                url.set_query(None);
                (Some(url), userinfo)
            }
            _ => (None, None),
        };
        let mut credentials: Vec<_> = self
            .credentials
            .iter()
            .filter_map(|credential| {
                let url = credential.url.clone().or_else(|| Some(own.as_ref()?.to_string()))?;
                Some(Credential { url: Some(url), ..credential.clone() })
            })
            .collect();
        if let (Some(own), Some((username, password))) = (&own, userinfo) {
            let password = crate::secret::Source::Value(password);
            credentials.push(Credential { url: Some(own.to_string()), username: Some(username), password });
        }
        let same = matches!((remote::parse(remote), &own),
            (Ok((Remote::Http(url), _)), Some(own)) if url.origin() == own.origin());
        let issuance = self.issuance.clone().filter(|_| same);
        Self { remote: remote.to_owned(), credentials, issuance, ..self.clone() }
    }

    /// The defaults for a remote.
    pub fn new(remote: impl Into<String>) -> Self {
        Self {
            remote: remote.into(),
            credentials: Vec::new(),
            issuance: None,
            cookie_file: None,
            // Where git-sync looks for them.
            ssh: ssh::Options {
                keys: vec!["/etc/git-secret/ssh".into()],
                known_hosts: ssh::KnownHosts::Strict("/etc/git-secret/known_hosts".into()),
            },
            ca_file: None,
            unverified: false,
            headers: Vec::new(),
            proxy: Proxy::default(),
            issued: Issued::default(),
            timeouts: Timeouts {
                connect: Duration::from_secs(10),
                idle: Duration::from_secs(30),
                overall: Duration::from_secs(120),
            },
            max_refs_bytes: 64 << 20,
            max_fetch_bytes: 4 << 30,
            git: "git".into(),
            program: None,
        }
    }
}

/// What the remote's ref names right now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tip {
    /// The full name of the ref that answered; none for a commit id.
    pub name: Option<String>,
    /// The object it names: a commit, or an annotated tag.
    pub object: ObjectId,
    /// The tag's target, where the remote said it.
    pub peeled: Option<ObjectId>,
}

/// Where the history of a fetch ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Deepen {
    /// The boundary stays where the request's `shallow` lines say it is.
    #[default]
    No,
    /// So many commits from the wanted ones; the answer says where the boundary moved.
    To(u32),
    /// All of it: the answer lifts the boundary.
    Full,
}

/// What is asked of one fetch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Request {
    /// Objects to send, with everything reachable from them.
    pub wants: Vec<ObjectId>,
    /// Commits that we hold completely down to the boundary.
    pub haves: Vec<ObjectId>,
    /// Our boundary: commits taken as having no parents.
    pub shallow: Vec<ObjectId>,
    /// Where history ends.
    pub depth: Deepen,
    /// A partial-clone filter such as `blob:none`; see [`Answer::filtered`].
    pub filter: Option<String>,
    /// Where the filter cannot be applied, ask for nothing.
    pub only_filtered: bool,
    /// Whether the pack may hold deltas against objects of `haves`. With a boundary it also decides what a git server
    /// takes as held: without it, all that a wanted commit's tree holds is sent again (pack-objects looks at the trees
    /// of `haves` across a boundary only with `--thin`).
    pub thin: bool,
}

/// What came besides the pack.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PackResponse {
    /// Commits that became boundary.
    pub shallow: Vec<ObjectId>,
    /// Commits that are boundary no longer.
    pub unshallow: Vec<ObjectId>,
    /// Whether the remote applied the filter, and single objects can be wanted by id afterwards. Where it can do
    /// either not, the filter was left out and the pack is whole.
    pub filtered: bool,
    /// Bytes of pack written to the sink.
    pub bytes: u64,
}

/// A client of one remote, with its kept connection.
///
/// Every operation is cancelled by dropping its future: the connection closes, a process is killed.
#[derive(Debug)]
pub struct Client {
    name: String,
    overall: Duration,
    way: Transport,
    /// What fetches in our place.
    fetcher: Option<Box<program::Fetcher>>,
}

#[derive(Debug)]
enum Transport {
    Http(Box<http::Http>),
    Stream(Box<stream::Streams>),
    Local(Box<local::Local>),
    /// Of a form that only the program understands.
    Program,
}

impl Client {
    /// Reads the remote's form. No network, no disk.
    pub fn new(options: Options) -> Result<Self, Error> {
        let name = redact(&options.remote);
        let overall = options.timeouts.overall;
        let fetcher = options.program.clone().map(|program| program::Fetcher::new(program, options.clone()));
        let fetcher = fetcher.transpose()?.map(Box::new);
        let (remote, userinfo) = match remote::parse(&options.remote) {
            Err(Error::BadRemote { .. }) if fetcher.is_some() => {
                return Ok(Self { name, overall, way: Transport::Program, fetcher });
            }
            parsed => parsed?,
        };
        let way = match remote {
            Remote::Http(url) => Transport::Http(Box::new(http::Http::new(&url, userinfo, options)?)),
            Remote::Local(path) => Transport::Local(Box::new(local::Local::new(name.clone(), path, options))),
            remote => Transport::Stream(Box::new(stream::Streams::new(name.clone(), remote, options))),
        };
        Ok(Self { name, overall, way, fetcher })
    }

    /// The remote without secrets, for messages.
    pub fn remote(&self) -> &str {
        &self.name
    }

    /// Asks once what all of the refs name now. A commit id answers for itself, without asking. That there is no such
    /// ref is that ref's own error ([`FoundRefs::tip`]); an error here is about the repository.
    pub async fn resolve(&mut self, asked: &[Ref]) -> Result<FoundRefs, Error> {
        if asked.iter().all(|asked| matches!(asked, Ref::Commit(_))) {
            return Ok(FoundRefs::none(&self.name));
        }
        let overall = self.overall;
        let resolved = async {
            match &mut self.way {
                Transport::Http(http) => http.resolve(asked).await,
                Transport::Stream(streams) => streams.resolve(asked).await,
                Transport::Local(local) => local.resolve(asked).await,
                Transport::Program => match &mut self.fetcher {
                    Some(fetcher) => fetcher.resolve(asked).await,
                    None => unreachable!("only a client with a program goes this way"),
                },
            }
        };
        match timeout(overall, resolved).await {
            Ok(resolved) => resolved,
            Err(_) => Err(self.past_deadline("looking up references")),
        }
    }

    /// Fetches a pack into the sink, which is flushed at its end; closing it is the caller's part, and so is verifying
    /// what it got. There must be wants.
    pub async fn fetch(
        &mut self,
        request: &Request,
        pack: &mut (dyn AsyncWrite + Unpin + Send),
    ) -> Result<PackResponse, Error> {
        debug_assert!(!request.wants.is_empty(), "a fetch of nothing has no answer in the protocol");
        let overall = self.overall;
        let fetched = async {
            if let Some(fetcher) = &mut self.fetcher {
                return fetcher.fetch(request, pack).await;
            }
            match &mut self.way {
                Transport::Program => unreachable!("only a client with a program goes this way"),
                Transport::Http(http) => http.fetch(request, pack).await,
                Transport::Stream(streams) => streams.fetch(request, pack).await,
                Transport::Local(local) => local.fetch(request, pack).await,
            }
        };
        match timeout(overall, fetched).await {
            Ok(fetched) => fetched,
            Err(_) => Err(self.past_deadline("fetching")),
        }
    }

    fn past_deadline(&self, doing: &'static str) -> Error {
        Error::Timeout { remote: self.name.clone(), wait: Wait::Overall, after: self.overall, doing }
    }
}
