//! git over http and https (gitprotocol-http(5)), on a kept-alive connection.
//!
//! A poll is one POST: protocol version 2 is assumed. The advertisement (a GET) is requested if the response cannot be
//! understood or the repository may have moved, and before a fetch if the server's capabilities are not known. That
//! request follows redirects within the origin, and from http to https of the same host; the version and capabilities
//! it returns are cached, and so is the target of permanent redirects. A temporary one is asked for again at each
//! attempt. No other redirect is followed. A credential, a header and a cookie are chosen by the URL of each request: a
//! credential that was given for http is not sent to https, but one that an issuer gives out is.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use reqwest::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_TYPE, COOKIE, HeaderMap, HeaderValue, LOCATION, RETRY_AFTER,
};
use reqwest::{Method, Response, StatusCode};
use tokio::io::AsyncWrite;
use tokio::time::timeout;
use url::Url;

use crate::retry;
use crate::revision::Ref;
use crate::secret::{self, Secret, SecretFrom, redact};
use crate::tls;

use super::cookies;
use super::credential::Credentials;
use super::error::{Budget, Unfollowed, Wait};
use super::framing::{Incoming, PacketReader};
use super::issuer::Issuer;
use super::proxies;
use super::redirects::{self, Place, shown};
use super::refs::{self, Advertisement, Capabilities, FoundRefs, REFERENCES, Version};
use super::remote::Userinfo;
use super::stderr::Stderr;
use super::text::{escaped, root_cause};
use super::{Error, ExtraHeader, Options, PackResponse, Proxy, Request, Timeouts, pack};

/// The most redirects to follow for one advertisement. There can be several in a row, because a repository may be
/// renamed more than once.
const REDIRECTS: usize = 3;
/// Added to the wait for a response, so that a connection attempt reports its own timeout instead of an idle timeout.
const CONNECT_SLACK: Duration = Duration::from_millis(250);
/// Caps the pause that a server may ask for with `Retry-After`.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(600);
/// How many bytes of an error page a message shows.
const SHOWN: usize = 80;
/// Some servers and proxies accept only clients whose user agent begins with `git/`.
const USER_AGENT: &str = concat!("git/2.0 (treeswap ", env!("CARGO_PKG_VERSION"), ")");

/// A remote over http or https.
#[derive(Debug)]
pub(super) struct Http {
    name: String,
    options: Options,
    credentials: Credentials,
    issuer: Option<Issuer>,
    client: reqwest::Client,
    /// The remote's URL as given, without userinfo and trailing slash.
    given: String,
    /// The repository's URL: `given`, or the target of its redirects.
    base: String,
    /// How it was found, and for how long it holds.
    place: Place,
    /// The server's capabilities, once its advertisement was read.
    offered: Option<Capabilities>,
    /// True once the server has answered a version 2 request, until it fails like one without it.
    speaks_two: bool,
    /// True once a request was answered, so that the client may hold a kept-alive connection.
    used: bool,
    /// The secrets sent with the last request. Holding them keeps them known to the redaction of messages, as a
    /// response may repeat them.
    sent: Vec<Secret>,
}

impl Http {
    pub(super) fn new(url: &Url, userinfo: Userinfo, mut options: Options) -> Result<Self, Error> {
        // As in git, the variable is also an exception to `http.proxy`.
        if proxies::is_excepted(url) {
            options.proxy = Proxy::None;
        }
        let name = redact(url.as_str());
        let failed = |source| Error::Connect { remote: name.clone(), source };
        let tls = if options.unverified { tls::unverified() } else { tls::config(options.ca_file.clone()) };
        let tls = tls.map_err(|error| failed(Box::new(error)))?;
        let builder = match &options.proxy {
            Proxy::Environment => match proxies::unusable(url) {
                Some(name) => return Err(failed(format!("the proxy in ${name} is not a URL").into())),
                None => reqwest::Client::builder(),
            },
            Proxy::None => reqwest::Client::builder().no_proxy(),
            Proxy::To(url) => {
                // reqwest's message would repeat the URL, which may contain a password.
                let unusable = |_| failed("the proxy of the git configuration is not a URL".into());
                reqwest::Client::builder().proxy(reqwest::Proxy::all(url.expose()).map_err(unusable)?)
            }
        };
        let client = builder
            .tls_backend_preconfigured(tls)
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(options.timeouts.connect)
            .user_agent(USER_AGENT)
            .pool_max_idle_per_host(1)
            .http1_only()
            .referer(false)
            .build()
            .map_err(|error| failed(Box::new(error)))?;
        let credentials = Credentials::new(&options.credentials, url, userinfo)?;
        let issuer = Issuer::of(&options).map_err(failed)?;
        let given = url.as_str().trim_end_matches('/').to_owned();
        let base = given.clone();
        Ok(Self {
            name,
            options,
            credentials,
            issuer,
            client,
            given,
            base,
            place: Place::Given,
            offered: None,
            speaks_two: false,
            used: false,
            sent: Vec::new(),
        })
    }

    /// Starts a new attempt: a credential and a redirect that are valid for one attempt only are asked for again.
    pub(super) fn attempt_begins(&mut self) {
        if let Some(issuer) = &mut self.issuer {
            issuer.attempt_begins();
        }
        self.place = self.place.at_attempt(Instant::now());
    }

    pub(super) async fn resolve(&mut self, wanted: &[Ref]) -> Result<FoundRefs, Error> {
        let candidates = &refs::candidates(wanted);
        let may_be_two = self.offered.as_ref().is_none_or(|offered| offered.version == Version::Two);
        if may_be_two && self.is_in_place().await? {
            match self.ls_refs(candidates).await {
                Err(error) if self.may_be_explained_by_advertisement(&error) => {}
                answer => {
                    // The server may have been replaced by one without version 2: the next attempt finds out.
                    self.speaks_two &= answer.as_ref().err().is_none_or(|error| !may_lack_version_two(error));
                    return answer;
                }
            }
        }
        let advertisement = self.discover(candidates).await?;
        match advertisement.capabilities.version {
            Version::Zero => Ok(advertisement.found),
            Version::Two => self.ls_refs(candidates).await,
        }
    }

    /// Returns true if the repository is still where it was found. If that has to be confirmed, it is one request for
    /// each redirect, the last of which leads to the same place.
    async fn is_in_place(&mut self) -> Result<bool, Error> {
        if self.place != Place::Unconfirmed {
            return Ok(true);
        }
        let base = self.base.clone();
        let (_, place, response) = self.follow_redirects(Some(&base)).await?;
        let is_in_place = response.status().is_redirection();
        if is_in_place {
            self.place = place;
        }
        Ok(is_in_place)
    }

    async fn ls_refs(&mut self, candidates: &BTreeSet<String>) -> Result<FoundRefs, Error> {
        let mut reader = self.post(refs::ls_refs(candidates), REFERENCES).await?;
        reader.begin(REFERENCES, Budget::Refs, self.options.max_refs_bytes);
        let found = refs::read_ls_refs(&mut reader, &self.name, candidates).await?;
        reader.drain().await;
        self.speaks_two = true;
        Ok(found)
    }

    /// Returns true if reading the advertisement may explain the error. If the server answered the version 2 request
    /// before this one, that is so only if the repository may have moved.
    fn may_be_explained_by_advertisement(&self, error: &Error) -> bool {
        match error {
            Error::Redirect { .. } => true,
            Error::Status { status: 404 | 410, .. } => true,
            error => !self.speaks_two && may_lack_version_two(error),
        }
    }

    pub(super) async fn fetch(
        &mut self,
        request: &Request,
        sink: &mut (dyn AsyncWrite + Unpin + Send),
    ) -> Result<PackResponse, Error> {
        // A request with a filter works without one, too, so no failure would tell that the server allows it now.
        let suffices = |offered: &&Capabilities| request.filter.is_none() || offered.allows_filter();
        let offered = match self.offered.as_ref().filter(suffices) {
            Some(offered) if self.place != Place::Unconfirmed => offered.clone(),
            _ => self.discover(&BTreeSet::new()).await?.capabilities,
        };
        let response = match pack::encode(request, &offered, &self.name) {
            Ok(encoded) => self.exchange(&encoded, sink).await,
            Err(error) => Err(error),
        };
        if matches!(&response, Err(error) if !matches!(error, Error::Sink { .. })) {
            // The server's capabilities may have changed: the next attempt reads the advertisement again.
            self.offered = None;
        }
        response
    }

    async fn exchange(
        &mut self,
        encoded: &pack::EncodedRequest,
        sink: &mut (dyn AsyncWrite + Unpin + Send),
    ) -> Result<PackResponse, Error> {
        let mut reader = self.post(encoded.message.clone(), "asking for the pack").await?;
        let limits = pack::ResponseLimits::from(&self.options);
        let response = encoded.read_response(&mut reader, limits, sink, &self.name).await?;
        reader.drain().await;
        Ok(response)
    }

    /// Asks the given URL for the advertisement, and follows the redirects that [`redirects::may_follow`] allows, to
    /// their end or to the repository `expected`, which is not asked. Returns the URL, for how long it holds, and the
    /// last response: a success, or the redirect to `expected`.
    async fn follow_redirects(&mut self, expected: Option<&str>) -> Result<(Url, Place, Response), Error> {
        let mut url = self.advertisement_url()?;
        let mut left = REDIRECTS;
        let mut place = Place::Given;
        loop {
            let response = self.send(Method::GET, url.clone(), Vec::new(), REFERENCES).await?;
            if !response.status().is_redirection() {
                return Ok((url, place, self.check_success(response).await?));
            }
            url = self.redirection(&url, &response, left)?;
            left -= 1;
            place = place.redirected(response.status(), Instant::now());
            if expected.is_some() && redirects::repository(url.as_str()) == expected {
                return Ok((url, place, response));
            }
        }
    }

    /// Reads the advertisement.
    async fn discover(&mut self, candidates: &BTreeSet<String>) -> Result<Advertisement, Error> {
        let (url, place, response) = self.follow_redirects(None).await?;
        let mut reader = self.reader(response);
        reader.begin(REFERENCES, Budget::Refs, self.options.max_refs_bytes);
        let advertisement = refs::read_advertisement(&mut reader, &self.name, candidates).await?;
        reader.drain().await;
        self.base = redirects::repository(url.as_str()).unwrap_or(url.as_str()).to_owned();
        self.place = place;
        self.offered = Some(advertisement.capabilities.clone());
        Ok(advertisement)
    }

    fn advertisement_url(&self) -> Result<Url, Error> {
        let more = if self.given.contains('?') { '&' } else { '?' };
        self.url(&format!("{}/info/refs{more}service=git-upload-pack", self.given))
    }

    fn url(&self, text: &str) -> Result<Url, Error> {
        Url::parse(text).map_err(|_| Error::BadRemote { remote: self.name.clone(), why: "it is not a URL" })
    }

    /// The target of a redirect, or an error if it must not be followed. `left` is how many more redirects are allowed.
    fn redirection(&self, from: &Url, response: &Response, left: usize) -> Result<Url, Error> {
        let location =
            response.headers().get(LOCATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let refused = |to: &str, why| Err(Error::Redirect { remote: self.name.clone(), to: shown(to), why });
        let Ok(to) = from.join(location) else { return refused(location, Unfollowed::NotAUrl) };
        if !redirects::may_follow(from, &to) {
            let why = match (from.scheme(), to.scheme()) {
                ("https", "http") => Unfollowed::LeavesTls,
                _ => Unfollowed::OtherOrigin,
            };
            return refused(to.as_str(), why);
        }
        if redirects::repository(to.as_str()).is_none() {
            return refused(to.as_str(), Unfollowed::NoRepository);
        }
        if left == 0 {
            return refused(to.as_str(), Unfollowed::TooMany);
        }
        Ok(to)
    }

    async fn post(&mut self, message: Vec<u8>, doing: &'static str) -> Result<PacketReader, Error> {
        let url = self.url(&format!("{}/git-upload-pack", self.base))?;
        let response = self.send(Method::POST, url.clone(), message, doing).await?;
        if response.status().is_redirection() {
            // A POST is never sent again to a redirect's target; the advertisement tells where the repository moved.
            let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            let to =
                location.and_then(|location| url.join(location).ok()).map_or_else(String::new, String::from);
            let why = Unfollowed::AfterQuestion;
            return Err(Error::Redirect { remote: self.name.clone(), to: shown(&to), why });
        }
        let response = self.check_success(response).await?;
        Ok(self.reader(response))
    }

    fn reader(&self, response: Response) -> PacketReader {
        PacketReader::new(
            &self.name,
            Incoming::Http(Box::new(response)),
            self.options.timeouts.idle,
            Stderr::default(),
        )
    }

    /// Sends a request. If a kept-alive connection turns out to be closed, it sends the request once more: servers
    /// close connections after some idle time, or after a number of requests (nginx: 1,000).
    async fn send(
        &mut self,
        method: Method,
        url: Url,
        body: Vec<u8>,
        doing: &'static str,
    ) -> Result<Response, Error> {
        let username_password = self.credential(&url).await?;
        let cookies = self.cookies(&url).await?;
        self.sent.clear();
        if let Some((username, password)) = &username_password {
            self.sent.extend([password.clone(), secret::basic(username, password)]);
        }
        let cookies = cookies.map(|(header, values)| {
            self.sent.extend(values);
            header
        });
        let mut may_resend = self.used;
        loop {
            let mut request = self.client.request(method.clone(), url.clone()).headers(headers(&method));
            if let Some((username, password)) = &username_password {
                request = request.basic_auth(username, Some(password.expose()));
            }
            if let Some(cookies) = &cookies {
                request = request.header(COOKIE, cookies.expose());
            }
            for (name, value) in ExtraHeader::of(&self.options.headers, &url) {
                request = request.header(name, value);
            }
            if method == Method::POST {
                request = request.body(body.clone());
            }
            let request = request.build().map_err(|error| self.failed(error, doing))?;
            let Timeouts { idle, connect, .. } = self.options.timeouts;
            // The connect timeout starts a little later than this one and names the cause, so it should end first.
            let limit = if idle < connect { idle } else { idle.max(connect + CONNECT_SLACK) };
            match timeout(limit, self.client.execute(request)).await {
                Err(_) => return Err(self.timed_out(Wait::Idle, idle, doing)),
                Ok(Ok(response)) => {
                    self.used = true;
                    let cookie = cookies.is_some().then(|| "a cookie of --cookie-file".to_owned());
                    let headers = ExtraHeader::of(&self.options.headers, &url);
                    let headers = headers.into_iter().map(|(name, _)| format!("the header {name}"));
                    let with = cookie.into_iter().chain(headers).collect();
                    let username = username_password.map(|(username, _)| username);
                    return self.check_authorized(response, username, with);
                }
                Ok(Err(error))
                    if may_resend && error.is_request() && !error.is_connect() && !error.is_timeout() =>
                {
                    may_resend = false;
                }
                Ok(Err(error)) => return Err(self.failed(error, doing)),
            }
        }
    }

    /// The user name and password for the URL. The secret is read for every request.
    async fn credential(&mut self, url: &Url) -> Result<Option<(String, Secret)>, Error> {
        let Some((username, from)) = self.credentials.choose(url) else {
            // Requests go only to the remote's own host, and not from https to http, so the issued credential may be
            // sent.
            let Some(issuer) = &mut self.issuer else { return Ok(None) };
            let issued = issuer.credential().await;
            return issued
                .map(Some)
                .map_err(|source| Error::Issuer { remote: self.name.clone(), source: Box::new(source) });
        };
        let password = self.secret(from.clone()).await?;
        Ok(Some((username.to_owned(), password)))
    }

    async fn secret(&self, from: SecretFrom) -> Result<Secret, Error> {
        from.now(self.options.timeouts.idle).await.map_err(|source| self.unread(source))
    }

    /// The `Cookie` header for the URL, and the value of every cookie in the file, for redaction. The file is read
    /// again for every request. `None` if no cookie matches.
    async fn cookies(&self, url: &Url) -> Result<Option<(Secret, Vec<Secret>)>, Error> {
        let Some(path) = &self.options.cookie_file else { return Ok(None) };
        let file = secret::read_holder(path, self.options.timeouts.idle).await;
        let file = file.map_err(|source| self.unread(source))?;
        let now = jiff::Timestamp::now().as_second();
        let values = cookies::values(file.expose()).map(Secret::new).collect();
        Ok(cookies::header(file.expose(), url, now).map(|header| (Secret::new(header), values)))
    }

    /// Returns an error for 401 and 403. The request is not repeated, because another attempt with the same password
    /// could lock an account. (403 with `Retry-After` passes: some services throttle that way.)
    fn check_authorized(
        &mut self,
        response: Response,
        username: Option<String>,
        with: Vec<String>,
    ) -> Result<Response, Error> {
        match response.status() {
            StatusCode::FORBIDDEN if retry_after(response.headers()).is_some() => Ok(response),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let status = response.status().as_u16();
                if let Some(issuer) = &mut self.issuer {
                    issuer.forget();
                }
                Err(Error::Auth { remote: self.name.clone(), status, username, with })
            }
            _ => Ok(response),
        }
    }

    /// Returns the response if its status is a success, and [`Error::Status`] otherwise.
    async fn check_success(&self, mut response: Response) -> Result<Response, Error> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let retry_after = retry_after(response.headers());
        // The first chunk of the body may help the operator, but is not worth a long wait; the head of an HTML page
        // explains nothing.
        let said = match timeout(Duration::from_secs(1), response.chunk()).await {
            Ok(Ok(Some(chunk))) if !chunk.trim_ascii_start().starts_with(b"<") => {
                escaped(chunk.trim_ascii(), SHOWN)
            }
            _ => String::new(),
        };
        Err(Error::Status { remote: self.name.clone(), status: status.as_u16(), retry_after, said })
    }

    fn unread(&self, source: secret::Error) -> Error {
        Error::Credential { remote: self.name.clone(), source }
    }

    fn timed_out(&self, wait: Wait, after: Duration, doing: &'static str) -> Error {
        Error::Timeout { remote: self.name.clone(), wait, after, doing }
    }

    /// The error for a request that got no response. reqwest's own message would only repeat the URL.
    fn failed(&self, error: reqwest::Error, doing: &'static str) -> Error {
        let error = error.without_url();
        if let Some(problem) = tls::problem(&error) {
            return Error::Tls { remote: self.name.clone(), problem };
        }
        let remote = self.name.clone();
        if !error.is_connect() {
            Error::Broken { remote, doing, source: root_cause(&error) }
        } else if error.is_timeout() {
            self.timed_out(Wait::Connect, self.options.timeouts.connect, "connecting")
        } else if let Proxy::To(proxy) = &self.options.proxy {
            Error::Proxy { remote, proxy: redact(proxy.expose()), source: root_cause(&error) }
        } else {
            Error::Connect { remote, source: root_cause(&error) }
        }
    }
}

/// Returns true if a server without version 2 may answer a request in it with this error. It may answer anything: git's
/// own http-backend ends the response before its first byte. A server that throttles gets no second request.
fn may_lack_version_two(error: &Error) -> bool {
    match error {
        Error::Status { status, retry_after, .. } => *status != 429 && retry_after.is_none(),
        Error::NotGit { .. } | Error::Cut { .. } | Error::Remote { .. } => true,
        _ => false,
    }
}

/// The pause that the server asks for, capped. `None` if it asks for none, or in a way that is not understood.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?;
    Some(retry::retry_after(value, jiff::Timestamp::now())?.min(MAX_RETRY_AFTER))
}

fn headers(method: &Method) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("git-protocol", HeaderValue::from_static("version=2"));
    if *method == Method::POST {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-git-upload-pack-request"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/x-git-upload-pack-result"));
    } else {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    }
    headers
}
