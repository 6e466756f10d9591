//! One cluster's client. Sends requests, each with a deadline, and limits how many are in flight.
//!
//! The client is created when it is first needed, and created anew (kubeconfig, plugin and certificates are all read
//! again) when its credentials expire, when the server does not accept them, or when a connection fails.

use std::path::PathBuf;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::http;
use jiff::{SignedDuration, Timestamp};
use kube::client::{Body, Client};
use kube::config::Config;
use secrecy::ExposeSecret;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use crate::secret::{self, Secret};

use super::answer::{self, Expect, HttpResponse, MetadataList};
use super::error::{Error, Failure};
use super::object::Meta;
use super::operation::{Kind, Operation, Verb};
use super::{ConfigError, FIELD_MANAGER, Mode, Options, plugin};

/// Credentials are renewed this long before they expire, as in client-go.
const EXPIRY_MARGIN: SignedDuration = SignedDuration::from_secs(60);

/// How long a token from a file is used before it is read again, as in client-go.
const TOKEN_FILE_PERIOD: SignedDuration = SignedDuration::from_secs(60);

/// The largest response, in bytes: a ConfigMap with 1 MiB of values, of which JSON may take six bytes for each, and
/// with the metadata of others. Where a page of a list has more, smaller ones are asked for.
const RESPONSE_MAX: usize = 10 << 20;

/// The largest Lease, in bytes: a few hundred, and what others annotate. Those of all namespaces that are written are
/// in memory at once.
const LEASE_MAX: usize = 64 << 10;

/// The largest response that says why a request failed, in bytes. Of a longer one only the status counts.
const ERROR_MAX: usize = 1 << 20;

/// Of responses with more bytes than this, a cluster has one in memory at a time: parsed it may be ten times as large,
/// and the process must have room for those of other clusters, whatever one API server answers.
const LARGE: usize = 2 << 20;

/// The longest path and query of a request. A token of a list has a few hundred bytes. kube panics, as `http` takes no
/// URL, if there are more than 64 KiB together with the path in the server's address.
const URI_MAX: usize = 16 << 10;

/// The most requests about Leases in flight, besides [`Options::concurrency`] for ConfigMaps: enough to renew the
/// Leases of 1,000 namespaces within 5 seconds if each takes 200 ms, with room to spare. A Lease is a few hundred
/// bytes.
const LEASE_REQUESTS: usize = 64;

/// A request. It can be sent again with new credentials.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) operation: Operation,
    query: Vec<(&'static str, String)>,
    body: Bytes,
}

impl Request {
    pub(super) fn new(verb: Verb, kind: Kind, namespace: &str, name: &str) -> Self {
        let operation = Operation::of(verb, kind, namespace, name);
        let mut request = Self { operation, query: Vec::new(), body: Bytes::new() };
        if matches!(verb, Verb::Create | Verb::Update) {
            request.query("fieldManager", FIELD_MANAGER);
        }
        request
    }

    pub(super) fn query(&mut self, name: &'static str, value: &str) {
        self.query.push((name, value.to_owned()));
    }

    pub(super) fn mode(mut self, mode: Mode) -> Self {
        if mode == Mode::DryRun {
            self.query("dryRun", "All");
        }
        self
    }

    #[expect(clippy::expect_used, reason = "maps of strings and numbers are JSON")]
    pub(super) fn body<T: Serialize>(self, object: &T) -> Self {
        let json = serde_json::to_vec(object).expect("an object that is JSON");
        Self { body: Bytes::from(json), ..self }
    }

    /// Adds the preconditions of a deletion: the uid and resourceVersion that were read. The dry run goes into the
    /// body, as the server ignores the query of a deletion that has a body.
    pub(super) fn deletion(self, read: &Meta, mode: Mode) -> Self {
        let seen = json!({ "uid": read.uid, "resourceVersion": read.resource_version });
        let mut options = json!({ "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": seen });
        if mode == Mode::DryRun {
            options["dryRun"] = json!(["All"]);
        }
        self.body(&options)
    }

    /// Returns the request that asks for the representation `accept`. Fails if the path or the query is too long, which
    /// only a name or a token that the server gave can make it.
    #[expect(clippy::expect_used, reason = "the URL is a constant, what is put into it gets encoded")]
    fn to_http(&self, accept: &str, left: Duration) -> Result<http::Request<Body>, Failure> {
        let Operation { verb, kind, namespace, name } = &self.operation;
        let api = match kind {
            Kind::ConfigMap => "api/v1",
            Kind::Lease => "apis/coordination.k8s.io/v1",
        };
        // The host is a placeholder, used to encode path and query: the client adds the server's address.
        let mut url = url::Url::parse("https://cluster/").expect("a constant URL");
        let object = matches!(verb, Verb::Get | Verb::Update | Verb::Delete).then_some(name.as_str());
        if let Ok(mut path) = url.path_segments_mut() {
            path.clear().extend(api.split('/'));
            if !namespace.is_empty() {
                path.extend(["namespaces", namespace]);
            }
            path.push(kind.resource()).extend(object);
        }
        url.query_pairs_mut()
            .extend_pairs(&self.query)
            .append_pair("timeout", &format!("{}ms", left.as_millis().max(1)));
        let method = match verb {
            Verb::List | Verb::Get => http::Method::GET,
            Verb::Create => http::Method::POST,
            Verb::Update => http::Method::PUT,
            Verb::Delete => http::Method::DELETE,
        };
        let uri = &url[url::Position::BeforePath..];
        let unexpected = || Failure::UnexpectedResponse { expected: MetadataList::NAME };
        if uri.len() > URI_MAX {
            return Err(unexpected());
        }
        http::Request::builder()
            .method(method)
            .uri(uri)
            .header(http::header::ACCEPT, accept)
            .header(http::header::CONTENT_TYPE, "application/json")
            .header(http::header::USER_AGENT, concat!("treeswap/", env!("CARGO_PKG_VERSION")))
            .body(Body::from(self.body.clone()))
            .map_err(|_| unexpected())
    }
}

/// A client and its credentials' expiry.
#[derive(Clone)]
struct ActiveClient {
    client: Client,
    server: String,
    /// When its credentials expire; `None`: not known, or never.
    expires: Option<Timestamp>,
    /// The number of the client, so that a late response does not discard a newer client than the one it came from.
    number: u64,
    /// Kept registered for redaction: a server may quote them.
    _secrets: Arc<[Secret]>,
}

/// Where a cluster's address and credentials are read from, each time a client is created.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    InCluster,
    Context { path: PathBuf, name: String },
}

/// The connection to one cluster.
pub(super) struct Connection {
    pub(super) name: String,
    pub(super) origin: Origin,
    limit: Duration,
    longest_pause: Duration,
    slots: Semaphore,
    lease_slots: Semaphore,
    /// Has one permit, for responses of more than [`LARGE`] bytes.
    large: Semaphore,
    /// Has as many permits as `slots`, one for each list in progress.
    pub(super) lists: Semaphore,
    /// The client in use. The lock is never held across an await.
    active: std::sync::Mutex<Option<ActiveClient>>,
    /// Locked while a client is created, as that may run a credential plugin.
    creating: Mutex<Creations>,
}

/// What is known of the clients that were created.
#[derive(Default)]
struct Creations {
    /// How many there were.
    count: u64,
    /// If the last creation that failed did so because a file or a plugin gave no answer: when, and the error.
    last_timeout: Option<(Instant, ConfigError)>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("name", &self.name)
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

impl Connection {
    pub(super) fn new(name: &str, origin: Origin, options: &Options) -> Self {
        Self {
            name: name.to_owned(),
            origin,
            limit: options.timeout,
            longest_pause: options.longest_pause,
            slots: Semaphore::new(options.concurrency.max(1)),
            lease_slots: Semaphore::new(LEASE_REQUESTS),
            large: Semaphore::new(1),
            lists: Semaphore::new(options.concurrency.max(1)),
            active: std::sync::Mutex::default(),
            creating: Mutex::default(),
        }
    }

    /// Sends a request and parses its response. After a 401 it is sent again, once, with the credentials read anew.
    pub(super) async fn call<T: DeserializeOwned + Expect>(&self, request: &Request) -> Result<T, Error> {
        let failed = |why| self.failed(request, why);
        // A Lease that is not renewed in time is lost, so Leases do not wait in line with ConfigMaps.
        let slots = match request.operation.kind {
            Kind::ConfigMap => &self.slots,
            Kind::Lease => &self.lease_slots,
        };
        // The deadline does not cover the wait for a slot: nothing is sent before it ends, and the requests ahead end by
        // deadlines of their own. An error means that the semaphore was closed, which it never is.
        let _slot = slots.acquire().await;
        let deadline = Instant::now() + self.limit;
        let (mut response, mut permit) = self.send(request, T::ACCEPT, deadline).await.map_err(failed)?;
        if response.status == http::StatusCode::UNAUTHORIZED {
            // The request had no effect, and the credentials may have been rotated since they were read.
            (response, permit) = self.send(request, T::ACCEPT, deadline).await.map_err(failed)?;
        }
        let parsed = response.read(&request.operation, self.longest_pause).map_err(failed);
        drop(permit); // only now, as parsing needs far more memory
        parsed
    }

    /// Sends a request for one object; `None` if there is no such object or namespace.
    pub(super) async fn find<T: DeserializeOwned + Expect>(
        &self,
        request: &Request,
    ) -> Result<Option<T>, Error> {
        match self.call(request).await {
            Ok(found) => Ok(Some(found)),
            Err(Error { why: Failure::NotFound | Failure::NamespaceNotFound { .. }, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn failed(&self, request: &Request, why: Failure) -> Error {
        Error { cluster: self.name.clone(), operation: Box::new(request.operation.clone()), why }
    }

    /// Sends a request once and returns its response, of whatever status, with the permit that it needs.
    async fn send(
        &self,
        request: &Request,
        accept: &str,
        deadline: Instant,
    ) -> Result<(HttpResponse, Option<SemaphorePermit<'_>>), Failure> {
        let late = |_| Failure::Timeout { after: self.limit };
        let active = timeout_at(deadline, self.client()).await.map_err(late)??;
        let exchange = async {
            let left = deadline.saturating_duration_since(Instant::now());
            let response = active.client.send(request.to_http(accept, left)?).await;
            let response = response.map_err(|error| answer::connection_failure(&error, &active.server))?;
            let (head, body) = response.into_parts();
            let most = match request.operation.kind {
                _ if !head.status.is_success() => ERROR_MAX,
                Kind::Lease => LEASE_MAX,
                Kind::ConfigMap => RESPONSE_MAX,
            };
            let (body, permit) = match self.read_body(body, most).await {
                Err(Failure::LongAnswer { .. }) if !head.status.is_success() => (Vec::new(), None),
                read => read?,
            };
            Ok((HttpResponse { status: head.status, headers: head.headers, body }, permit))
        };
        let result = timeout_at(deadline, exchange).await.map_err(late).flatten();
        let stale = match &result {
            Ok((response, _)) => response.status == http::StatusCode::UNAUTHORIZED,
            // It may be the credentials: a server that refuses a client certificate just closes the connection.
            Err(failure) => matches!(failure, Failure::Unreachable { .. } | Failure::ConnectionLost { .. }),
        };
        if stale {
            self.discard(active.number);
        }
        result
    }

    /// Reads a response's body of at most `most` bytes. If it is large, it comes with the permit for that.
    async fn read_body(
        &self,
        mut body: Body,
        most: usize,
    ) -> Result<(Vec<u8>, Option<SemaphorePermit<'_>>), Failure> {
        let mut bytes = Vec::new();
        if answer::read_up_to(most.min(LARGE), &mut body, &mut bytes).await? {
            return Ok((bytes, None));
        }
        // The wait is a part of the request's time: what is waited for ends by a deadline of its own.
        let permit = if most > LARGE { self.large.acquire().await.ok() } else { None };
        let is_whole = answer::read_up_to(most, &mut body, &mut bytes).await?;
        if is_whole { Ok((bytes, permit)) } else { Err(Failure::LongAnswer { most }) }
    }

    /// Returns the client. Creates one if there is none, or if its credentials expire soon. While another request does
    /// that, which may take a credential plugin's time, the client is used as long as its credentials are valid.
    async fn client(&self) -> Result<ActiveClient, Failure> {
        if let Some(active) = self.active(EXPIRY_MARGIN) {
            return Ok(active);
        }
        let began = Instant::now();
        let mut creations = match self.creating.try_lock() {
            Ok(creations) => creations,
            Err(_) => match self.active(SignedDuration::ZERO) {
                Some(active) => return Ok(active),
                None => self.creating.lock().await,
            },
        };
        if let Some(active) = self.active(EXPIRY_MARGIN) {
            return Ok(active); // another request created it meanwhile
        }
        // If each waiting request tried again in turn, the last ones would run out of time, and blame the server.
        if let Some((at, error)) = &creations.last_timeout
            && *at > began
            && let Some(error) = error.copy_of_timeout()
        {
            return Err(error.into());
        }
        let created = self.create_client(creations.count + 1).await;
        match &created {
            Ok(active) => {
                creations.count += 1;
                *self.lock_active() = Some(active.clone());
            }
            Err(error) => {
                creations.last_timeout = error.copy_of_timeout().map(|error| (Instant::now(), error));
            }
        }
        Ok(created?)
    }

    /// Reads address and credentials, running the credential plugin if there is one, and creates the client.
    async fn create_client(&self, number: u64) -> Result<ActiveClient, ConfigError> {
        let mut config = self.origin.config_within(self.limit).await?;
        let mut expires = plugin::resolve(&mut config.auth_info, self.limit / 2).await?;
        if config.auth_info.token_file.is_some() {
            expires = expires.or(Some(Timestamp::now() + TOKEN_FILE_PERIOD + EXPIRY_MARGIN));
        }
        // kube must not retry: a request may have taken effect, which the caller finds out by reading.
        config.default_retry = false;
        // Half of the deadline, so that an unreachable server is not reported as a slow one.
        config.connect_timeout = Some(self.limit / 2);
        config.read_timeout = None;
        config.write_timeout = None;
        let server = address(&config.cluster_url);
        let secrets = secrets(&config);
        let client = Client::try_from(config)
            .map_err(|error| self.origin.unusable(answer::describe_client_error(&error)))?;
        Ok(ActiveClient { client, server, expires, number, _secrets: secrets.into() })
    }

    /// The client, if there is one whose credentials are valid for longer than `margin`.
    fn active(&self, margin: SignedDuration) -> Option<ActiveClient> {
        let is_valid =
            |active: &&ActiveClient| active.expires.is_none_or(|at| Timestamp::now() + margin < at);
        self.lock_active().as_ref().filter(is_valid).cloned()
    }

    /// Locks the client in use. Poisoning is harmless: it is replaced as a whole.
    fn lock_active(&self) -> MutexGuard<'_, Option<ActiveClient>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops the client with this number, unless it was replaced already.
    fn discard(&self, number: u64) {
        self.lock_active().take_if(|active| active.number == number);
    }
}

/// Registers the credentials that the client uses as secrets, so that they are redacted wherever they would be printed.
fn secrets(config: &Config) -> Vec<Secret> {
    let user = &config.auth_info;
    let given = [&user.token, &user.password, &user.client_key_data];
    let given = given.into_iter().flatten().map(|value| Secret::new(value.expose_secret()));
    let mut secrets: Vec<Secret> = given.collect();
    let key = user.client_key_data.as_ref().and_then(|key| STANDARD.decode(key.expose_secret()).ok());
    secrets.extend(key.and_then(|key| String::from_utf8(key).ok()).map(Secret::new));
    if let (Some(name), Some(password)) = (&user.username, &user.password) {
        let password = Secret::new(password.expose_secret());
        secrets.extend([secret::basic(name, &password), Secret::new(name)]);
    }
    if let Some(proxy) = &config.proxy_url {
        secret::register_urls(&proxy.to_string());
    }
    secrets
}

/// Returns a server's URL for messages: with its port, even if that is the default, and without user name and password.
fn address(url: &http::Uri) -> String {
    let scheme = url.scheme_str().unwrap_or("https");
    let port = url.port_u16().unwrap_or(if scheme == "http" { 80 } else { 443 });
    format!("{scheme}://{}:{port}", url.host().unwrap_or_default())
}

#[cfg(test)]
mod tests;
