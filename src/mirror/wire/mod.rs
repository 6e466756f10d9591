//! A small client for git's smart protocol. It resolves refs and fetches packs of missing objects, over http(s), ssh,
//! git:// and local repositories.
//!
//! It promises that every wait has a timeout (connecting, silence, the whole operation), that every response has a size
//! limit (ref advertisement, pack bytes), that a credential is sent only to the origin it was given for, and that an
//! error names the limit that was hit and the flag that raises it. It stores nothing: a pack goes, unverified, to the
//! sink that the caller passes in.

mod cookies;
mod credential;
mod dial;
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
mod proxies;
mod redirects;
mod refs;
mod remote;
pub mod ssh;
mod stderr;
mod stream;
mod text;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWrite;
use tokio::time::timeout;

use crate::mirror::index_limiter::TurnWait;
use crate::mirror::received::Received;
use crate::revision::{ObjectId, Ref};
use crate::secret::redact;

pub use credential::Credential;
pub use error::{Budget, Error, Unfollowed, Wait};
pub use extra::{Closeness, ExtraHeader, Proxy, Scope};
pub use github::App;
pub use issuer::{Issuance, IssueError, Issued};
pub use refs::FoundRefs;

use refs::REFERENCES;
use remote::Remote;

/// How to reach a remote: its URL, credentials, TLS, timeouts and size limits.
#[derive(Clone)]
pub struct Options {
    /// The remote as given: URL, scp form or path.
    pub remote: String,
    /// Credentials for http and https, each limited to one origin.
    pub credentials: Vec<Credential>,
    /// Where to request a credential for the remote's own origin if none of `credentials` matches it.
    pub issuance: Option<Issuance>,
    /// Cookies for http and https, in Netscape's format; the file is read again for every request.
    pub cookie_file: Option<PathBuf>,
    /// Keys and known hosts for ssh.
    pub ssh: ssh::Options,
    /// A PEM bundle trusted in addition to the system's certificates; read again for every connection.
    pub ca_file: Option<PathBuf>,
    /// Skips verification of the server's certificate (git's `http.sslVerify=false`).
    pub unverified: bool,
    /// Extra request headers that the operator configured.
    pub headers: Vec<ExtraHeader>,
    /// The proxy for http and https.
    pub proxy: Proxy,
    /// What the file, the flag and the proxy are for other remotes, such as a submodule's, if they differ there: keys
    /// such as `http.URL.sslVerify` are limited to URLs.
    pub by_url: Option<ByUrl>,
    /// Is called with the outcome of every request for a credential.
    pub issued: Issued,
    /// Limits on waiting.
    pub timeouts: Timeouts,
    /// The most bytes of a ref advertisement to read (`--max-refs-bytes`).
    pub max_refs_bytes: u64,
    /// The most bytes of a pack to read (`--max-fetch-bytes`).
    pub max_fetch_bytes: u64,
    /// The git program that serves a local repository; without one the repository is read in place.
    pub git: PathBuf,
    /// A git program that fetches instead of this client (`--git`).
    pub program: Option<Program>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("remote", &redact(&self.remote)) // the URL may contain a password
            .finish_non_exhaustive()
    }
}

/// What git's configuration says about connections to one remote.
#[derive(Clone, Debug, Default)]
pub struct Connection {
    /// See [`Options::ca_file`].
    pub ca_file: Option<PathBuf>,
    /// See [`Options::unverified`].
    pub unverified: bool,
    /// See [`Options::proxy`].
    pub proxy: Proxy,
}

/// What git's configuration says about connections, by the remote's URL.
#[derive(Clone)]
pub struct ByUrl(Arc<dyn Fn(&str) -> Connection + Send + Sync>);

impl ByUrl {
    /// The function is called with the URL of each remote.
    pub fn new(of: impl Fn(&str) -> Connection + Send + Sync + 'static) -> Self {
        Self(Arc::new(of))
    }

    /// What holds for a remote.
    pub fn of(&self, remote: &str) -> Connection {
        (self.0)(remote)
    }
}

impl fmt::Debug for ByUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ByUrl").finish_non_exhaustive()
    }
}

/// A git program that fetches instead of this client (`--git`), with its own transports and configuration.
#[derive(Clone)]
pub struct Program {
    /// The program's path; a bare name is searched in `PATH`.
    pub path: PathBuf,
    /// Git configuration to pass on in addition to ours: names and values, which may contain secrets.
    pub config: Vec<(String, String)>,
    /// The repository it fetches for; its objects serve as an alternate. The mirror fills this in itself.
    pub mirror: PathBuf,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.config.iter().map(|(name, _)| name).collect();
        f.debug_struct("Program").field("path", &self.path).field("config", &names).finish()
    }
}

/// The host of a remote, for deciding whether a submodule's URL may be fetched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum RemoteHost {
    /// A repository on this machine.
    Here,
    /// The name or address of another host.
    Host(String),
}

impl RemoteHost {
    /// Parses a remote. The error says why it is not one.
    pub(super) fn of(remote: &str) -> Result<Self, &'static str> {
        Ok(match remote::parse(remote)?.0 {
            Remote::Http(url) => Self::Host(url.host_str().unwrap_or_default().to_owned()),
            Remote::Ssh(target, _) => Self::Host(target.host),
            Remote::Git { host, .. } => Self::Host(host),
            Remote::Local(_) => Self::Here,
        })
    }
}

/// How long to wait for a remote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeouts {
    /// For a connection to be established (`--connect-timeout`).
    pub connect: Duration,
    /// For the next byte to arrive (`--idle-timeout`).
    pub idle: Duration,
    /// For one operation as a whole (`--sync-timeout`).
    pub overall: Duration,
}

impl Options {
    /// These options for another remote, such as a submodule's. Credentials that belonged to the first remote's origin
    /// stay limited to that origin, and what the configuration says about URLs holds for those.
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
            let password = crate::secret::SecretFrom::Value(password);
            credentials.push(Credential { url: Some(own.to_string()), username: Some(username), password });
        }
        let same = matches!((remote::parse(remote), &own),
            (Ok((Remote::Http(url), _)), Some(own)) if url.origin() == own.origin());
        let issuance = self.issuance.clone().filter(|_| same);
        let options = Self { remote: remote.to_owned(), credentials, issuance, ..self.clone() };
        match &self.by_url {
            Some(by_url) => {
                let Connection { ca_file, unverified, proxy } = by_url.of(remote);
                Self { ca_file, unverified, proxy, ..options }
            }
            None => options,
        }
    }

    /// The default options for a remote.
    pub fn new(remote: impl Into<String>) -> Self {
        Self {
            remote: remote.into(),
            credentials: Vec::new(),
            issuance: None,
            cookie_file: None,
            // git-sync's default paths.
            ssh: ssh::Options {
                keys: vec!["/etc/git-secret/ssh".into()],
                known_hosts: ssh::KnownHosts::Strict("/etc/git-secret/known_hosts".into()),
            },
            ca_file: None,
            unverified: false,
            headers: Vec::new(),
            proxy: Proxy::default(),
            by_url: None,
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

/// What a ref of the remote resolved to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tip {
    /// The full name of the ref that matched; `None` for a commit id.
    pub name: Option<String>,
    /// The object it names: a commit, or an annotated tag.
    pub object: ObjectId,
    /// The tag's peeled target, if the remote advertised it.
    pub peeled: Option<ObjectId>,
}

/// How deep a fetch reaches into history. The boundary is the set of shallow commits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Deepen {
    /// Keep the boundary that the request's `shallow` lines state.
    #[default]
    No,
    /// Fetch this many commits, counted from the wanted ones; the response says how the boundary moved.
    To(u32),
    /// Fetch the complete history: the response removes the boundary.
    Full,
}

/// A request for one fetch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Request {
    /// Objects to send, with everything reachable from them.
    pub wants: Vec<ObjectId>,
    /// Commits whose history is complete here down to the boundary.
    pub haves: Vec<ObjectId>,
    /// Our boundary: shallow commits, treated as having no parents.
    pub shallow: Vec<ObjectId>,
    /// How deep to fetch.
    pub depth: Deepen,
    /// A partial-clone filter such as `blob:none`; see [`PackResponse::filtered`].
    pub filter: Option<String>,
    /// Fail instead of fetching everything if the remote cannot apply the filter.
    pub only_filtered: bool,
    /// Allow a thin pack, with deltas against objects of `haves`. With a boundary this also decides what a git server
    /// assumes we have: without it, everything in a wanted commit's tree is sent again (pack-objects looks at the trees
    /// of `haves` across a boundary only with `--thin`).
    pub thin: bool,
}

impl Request {
    /// Returns true if it asks for the objects that a filter left out of an earlier fetch, and claims none as present.
    fn is_by_id(&self) -> bool {
        self.filter.is_some() && self.haves.is_empty() && self.depth == Deepen::No
    }
}

/// What a fetch returned besides the pack itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PackResponse {
    /// Commits that joined the boundary, and those at which the remote's own history ends, unless the request states
    /// them; some of them may be of other histories.
    pub shallow: Vec<ObjectId>,
    /// Commits that left the boundary.
    pub unshallow: Vec<ObjectId>,
    /// True if the remote applied the filter, and single objects can be wanted by id afterwards. If it supports only
    /// one of the two, or neither, the filter was not sent and the pack is complete.
    pub filtered: bool,
    /// Bytes of pack written to the sink.
    pub bytes: u64,
}

/// A client for one remote, with its kept-alive connection.
///
/// Dropping the future of an operation cancels it: the connection is closed, a child process is killed.
#[derive(Debug)]
pub struct Client {
    name: String,
    overall: Duration,
    /// The waiting that does not count for `overall`.
    turn_wait: TurnWait,
    transport: Transport,
    /// Runs the git program that fetches instead (`--git`), unless that is the transport.
    fetcher: Option<Box<program::Fetcher>>,
    /// Some of the pack of the last fetch arrived.
    pack_began: bool,
}

#[derive(Debug)]
enum Transport {
    Http(Box<http::Http>),
    Stream(Box<stream::Streams>),
    Local(Box<local::Local>),
    /// The remote's URL has a form that only the git program understands.
    Program(Box<program::Fetcher>),
}

impl Client {
    /// Parses the remote. It uses neither the network nor the disk.
    pub fn new(options: Options) -> Result<Self, Error> {
        let name = redact(&options.remote);
        let overall = options.timeouts.overall;
        let fetcher = options.program.clone().map(|program| program::Fetcher::new(program, options.clone()));
        let mut fetcher = fetcher.transpose()?.map(Box::new);
        let transport = match remote::parse(&options.remote) {
            Ok((Remote::Http(url), userinfo)) => {
                Transport::Http(Box::new(http::Http::new(&url, userinfo, options)?))
            }
            Ok((Remote::Local(path), _)) => {
                Transport::Local(Box::new(local::Local::new(name.clone(), path, options)))
            }
            Ok((remote, _)) => {
                Transport::Stream(Box::new(stream::Streams::new(name.clone(), remote, options)))
            }
            Err(why) => {
                let bad = Error::BadRemote { remote: name.clone(), why };
                Transport::Program(fetcher.take().ok_or(bad)?)
            }
        };
        Ok(Self { name, overall, turn_wait: TurnWait::default(), transport, fetcher, pack_began: false })
    }

    /// Leaves out of the overall time limit how long this client's mirror waits for its turns to index packs.
    #[must_use]
    pub(super) fn excluding(self, turn_wait: TurnWait) -> Self {
        Self { turn_wait, ..self }
    }

    /// The remote without its secrets, for messages.
    pub fn remote(&self) -> &str {
        &self.name
    }

    /// Starts a new attempt, which [`Self::resolve`] does, too: what is valid for one attempt only is requested again.
    pub(super) fn attempt_begins(&mut self) {
        match &mut self.transport {
            Transport::Http(http) => http.attempt_begins(),
            Transport::Program(fetcher) => fetcher.attempt_begins(),
            Transport::Stream(_) | Transport::Local(_) => {}
        }
        if let Some(fetcher) = &mut self.fetcher {
            fetcher.attempt_begins();
        }
    }

    /// Resolves all refs in one request. If all of them are commit ids, no request is sent. A missing ref is not an
    /// error here but in [`FoundRefs::tip`]; an error here concerns the whole repository.
    pub async fn resolve(&mut self, wanted: &[Ref]) -> Result<FoundRefs, Error> {
        self.attempt_begins();
        self.resolve_again(wanted).await
    }

    /// The same once more within an attempt.
    pub(super) async fn resolve_again(&mut self, wanted: &[Ref]) -> Result<FoundRefs, Error> {
        if wanted.iter().all(|one| matches!(one, Ref::Commit(_))) {
            return Ok(FoundRefs::none(&self.name));
        }
        let overall = self.overall;
        let resolved = async {
            let mut found = self.look_up(wanted).await?;
            if found.may_have_others(wanted) {
                // For the hint: an empty repository, or a HEAD that names no branch. As a prefix this matches every branch.
                let branches = Ref::Named("refs/heads/".to_owned());
                if let Ok(answer) = self.look_up(&[branches]).await {
                    found.note_others(&answer);
                }
            }
            Ok(found)
        };
        match timeout(overall, resolved).await {
            Ok(resolved) => resolved,
            Err(_) => Err(self.past_deadline(REFERENCES)),
        }
    }

    async fn look_up(&mut self, wanted: &[Ref]) -> Result<FoundRefs, Error> {
        match &mut self.transport {
            Transport::Http(http) => http.resolve(wanted).await,
            Transport::Stream(streams) => streams.resolve(wanted).await,
            Transport::Local(local) => local.resolve(wanted).await,
            Transport::Program(fetcher) => fetcher.resolve(wanted).await,
        }
    }

    /// Fetches a pack and writes it to `pack`, which is flushed at the end. Closing the sink and verifying the pack are
    /// up to the caller. `request.wants` must not be empty.
    pub async fn fetch(
        &mut self,
        request: &Request,
        pack: &mut (dyn AsyncWrite + Unpin + Send),
    ) -> Result<PackResponse, Error> {
        debug_assert!(!request.wants.is_empty(), "a fetch of nothing has no answer in the protocol");
        let overall = self.overall;
        let turn_wait = self.turn_wait.clone();
        self.pack_began = false;
        let arrived = Received::default();
        let mut pack = arrived.counting(pack);
        let fetched = async {
            if let Some(fetcher) = &mut self.fetcher {
                return fetcher.fetch(request, &mut pack).await;
            }
            match &mut self.transport {
                Transport::Program(fetcher) => fetcher.fetch(request, &mut pack).await,
                Transport::Http(http) => http.fetch(request, &mut pack).await,
                Transport::Stream(streams) => streams.fetch(request, &mut pack).await,
                Transport::Local(local) => local.fetch(request, &mut pack).await,
            }
        };
        let fetched = turn_wait.within(overall, fetched).await;
        self.pack_began = arrived.bytes() > 0;
        match fetched {
            Some(fetched) => fetched,
            None => Err(self.past_deadline("fetching")),
        }
    }

    /// Returns true if some of the pack of the last [`Self::fetch`] arrived, also if that failed.
    pub(super) fn pack_began(&self) -> bool {
        self.pack_began
    }

    fn past_deadline(&self, doing: &'static str) -> Error {
        Error::Timeout { remote: self.name.clone(), wait: Wait::Overall, after: self.overall, doing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_limited_to_urls_holds_for_each_remote_as_if_it_were_the_first() {
        let own = Options {
            ca_file: Some("/own.pem".into()),
            unverified: true,
            proxy: Proxy::None,
            ..Options::new("https://git.example.com/team/x")
        };
        let by_url = ByUrl::new(|url| {
            if url.starts_with("https://git.example.com/") {
                Connection { ca_file: Some("/own.pem".into()), unverified: true, proxy: Proxy::None }
            } else {
                Connection { ca_file: Some("/all.pem".into()), ..Connection::default() }
            }
        });
        let limited = Options { by_url: Some(by_url), ..own.clone() };
        let seen = |options: &Options| {
            let is_environment = matches!(options.proxy, Proxy::Environment);
            (options.ca_file.clone().unwrap().display().to_string(), options.unverified, is_environment)
        };
        let (its_own, all) = (("/own.pem".to_owned(), true, false), ("/all.pem".to_owned(), false, true));
        let back = "https://git.example.com/team/y";
        assert_eq!(seen(&limited.for_remote(back)), its_own);
        for other in
            ["https://other.example.com/x", "https://git.example.com:8443/x", "http://git.example.com/x"]
        {
            let there = limited.for_remote(other);
            assert_eq!(seen(&there), all, "{other}");
            assert_eq!(seen(&there.for_remote(back)), its_own, "{other}: a submodule of a submodule");
            assert_eq!(seen(&own.for_remote(other)), its_own, "{other}: nothing is limited");
        }
    }
}
