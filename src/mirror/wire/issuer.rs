//! Requests credentials: from an askpass URL for every attempt, or from GitHub for an App, whose token is cached until
//! it expires. Both are for the remote's own host.
//!
//! Redirects are not followed, the time limits are seconds, and no credential appears in a message.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use reqwest::{Client, RequestBuilder, Response};
use url::Url;

use crate::secret::{self, Secret, redact_path};
use crate::tls;

use super::Options;
use super::github::{self, App};
use super::text::{escaped, root_cause};

/// The timeout for the askpass URL, the same as git-sync's.
const ASKPASS_TIMEOUT: Duration = Duration::from_secs(1);

/// The timeout for GitHub, and for reading the App's private key.
const GITHUB_TIMEOUT: Duration = Duration::from_secs(10);

/// A token that expires within this time is replaced.
const EXPIRY_MARGIN: SignedDuration = SignedDuration::from_secs(30);

/// The largest response body to read, in bytes.
const ANSWER_MAX: usize = 64 << 10;

/// How many bytes of GitHub's error response a message shows.
const SHOWN: usize = 120;

const USER_AGENT: &str = concat!("treeswap/", env!("CARGO_PKG_VERSION"));

/// Where to request a credential.
#[derive(Clone)]
pub enum Issuance {
    /// A URL whose response has lines `username=` and `password=`.
    Askpass(Url),
    /// GitHub, for an installation of an App.
    GitHubApp(App),
}

impl fmt::Debug for Issuance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URLs may contain passwords or tokens.
        f.debug_struct("Issuance").field("flag", &self.flag()).field("url", &self.url()).finish()
    }
}

impl Issuance {
    /// The flag that configures it.
    fn flag(&self) -> &'static str {
        match self {
            Self::Askpass(_) => "--askpass-url",
            Self::GitHubApp(_) => "--github-app-installation-id",
        }
    }

    fn url(&self) -> String {
        match self {
            Self::Askpass(url) => redact_path(url.as_str()),
            Self::GitHubApp(app) => secret::redact(app.base.as_str()),
        }
    }
}

/// A callback for the outcome of each credential request.
#[derive(Clone, Default)]
pub struct Issued(Option<Arc<dyn Fn(bool) + Send + Sync>>);

impl Issued {
    /// Makes a callback that gets true if the credential was issued.
    pub fn to(callback: impl Fn(bool) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(callback)))
    }

    fn report(&self, is_issued: bool) {
        if let Some(callback) = &self.0 {
            callback(is_issued);
        }
    }
}

impl fmt::Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Issued")
    }
}

/// Why no credential was issued.
#[derive(Debug, thiserror::Error)]
#[error("{url} ({flag}) {why}")]
pub struct IssueError {
    url: String,
    flag: &'static str,
    why: String,
    hint: &'static str,
    #[source]
    source: Option<secret::Error>,
}

/// Requests credentials, and caches each for as long as it is valid.
#[derive(Debug)]
pub(super) struct Issuer {
    from: Issuance,
    client: Client,
    cached: Option<CachedToken>,
    issued: Issued,
}

#[derive(Debug)]
struct CachedToken {
    username: Secret,
    password: Secret,
    /// When it expires; `None` if it is valid for the current attempt only.
    expires_at: Option<Timestamp>,
}

impl Issuer {
    /// Makes the issuer for a remote's options, without a request. `None` if they have no [`Options::issuance`].
    pub(super) fn of(options: &Options) -> Result<Option<Self>, Box<dyn std::error::Error + Send + Sync>> {
        let Some(from) = options.issuance.clone() else { return Ok(None) };
        // Requests come once a minute or an hour: keeping a connection is not worthwhile.
        let client = Client::builder()
            .tls_backend_preconfigured(tls::config(options.ca_file.clone())?)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(USER_AGENT)
            .referer(false)
            .pool_max_idle_per_host(0);
        let url = match &from {
            Issuance::Askpass(url) => url,
            Issuance::GitHubApp(app) => &app.base,
        };
        let client = if url.host_str().is_some_and(tls::is_local) { client.no_proxy() } else { client };
        let client = client.build()?;
        Ok(Some(Self { from, client, cached: None, issued: options.issued.clone() }))
    }

    /// Starts a new attempt: drops a credential that is valid for one attempt only.
    pub(super) fn attempt_begins(&mut self) {
        self.cached.take_if(|token| token.expires_at.is_none());
    }

    /// Drops the cached credential, because the remote rejected it.
    pub(super) fn forget(&mut self) {
        self.cached = None;
    }

    /// Returns the user name and password; requests them if none are cached.
    pub(super) async fn credential(&mut self) -> Result<(String, Secret), IssueError> {
        let is_valid = |token: &CachedToken| {
            token.expires_at.is_none_or(|end| end.duration_since(Timestamp::now()) > EXPIRY_MARGIN)
        };
        let token = match self.cached.take().filter(is_valid) {
            Some(token) => token,
            None => {
                let asked = match &self.from {
                    Issuance::Askpass(url) => self.askpass(url).await,
                    Issuance::GitHubApp(app) => self.github(app).await,
                };
                self.issued.report(asked.is_ok());
                asked?
            }
        };
        let credential = (token.username.expose().to_owned(), token.password.clone());
        self.cached = Some(token);
        Ok(credential)
    }

    async fn askpass(&self, url: &Url) -> Result<CachedToken, IssueError> {
        let text = self.request_text(self.client.get(url.clone()).timeout(ASKPASS_TIMEOUT), 200).await?;
        let value = |name: &str| {
            let lines = text.expose().lines().filter_map(|line| line.split_once('='));
            lines.filter(|(key, _)| *key == name).map(|(_, value)| value.trim_end_matches('\r')).next_back()
        };
        let username = value("username");
        let password = value("password");
        if username.is_none() && password.is_none() {
            return Err(self.unissued("answered without a line username= or password="));
        }
        let secret = |text: Option<&str>| Secret::new(text.unwrap_or_default());
        Ok(CachedToken { username: secret(username), password: secret(password), expires_at: None })
    }

    async fn github(&self, app: &App) -> Result<CachedToken, IssueError> {
        let no_key = |why, source| IssueError {
            source,
            hint: "--github-app-private-key-file is the .pem file that GitHub gives for the App",
            ..self.unissued(format!("cannot be used: {why}"))
        };
        let key = app.key.clone().now(GITHUB_TIMEOUT).await;
        let key = key.map_err(|error| no_key("the private key cannot be read", Some(error)))?;
        let token = github::sign(app, &key, Timestamp::now()).map_err(|why| no_key(why, None))?;
        let url = app.endpoint().ok_or_else(|| self.unissued("cannot be the beginning of a URL"))?;
        let request = self.client.post(url).timeout(GITHUB_TIMEOUT).bearer_auth(token.expose());
        let request = request.header("Accept", "application/vnd.github+json").body("");
        let answer = self.request_text(request, 201).await?;
        let issued = github::read(answer.expose()).map_err(|why| self.unissued(why))?;
        // GitHub ignores the user name.
        Ok(CachedToken {
            username: Secret::holder("-"),
            password: issued.token,
            expires_at: Some(issued.expires_at),
        })
    }

    /// Sends the request and returns the response's text. Any other status than `wanted` is an error.
    async fn request_text(&self, request: RequestBuilder, wanted: u16) -> Result<Secret, IssueError> {
        let mut answer = request.send().await.map_err(|error| self.failed(error))?;
        let status = answer.status().as_u16();
        let text = self.read_body(&mut answer).await?;
        if status == wanted {
            return Ok(text);
        }
        // The askpass URL's text may be a secret whatever its status; GitHub's text is the reason.
        let said = match &self.from {
            Issuance::GitHubApp(_) => format!(": {}", escaped(text.expose().trim().as_bytes(), SHOWN)),
            Issuance::Askpass(_) => String::new(),
        };
        Err(self.unissued(format!("answered {status}, not {wanted}{said}")))
    }

    async fn read_body(&self, answer: &mut Response) -> Result<Secret, IssueError> {
        let mut bytes = Vec::new();
        while let Some(piece) = answer.chunk().await.map_err(|error| self.failed(error))? {
            bytes.extend_from_slice(&piece);
            if bytes.len() > ANSWER_MAX {
                return Err(self.unissued(format!("answered with more than {} KiB", ANSWER_MAX >> 10)));
            }
        }
        let text = String::from_utf8(bytes).map_err(|_| self.unissued("answered with invalid UTF-8"))?;
        Ok(Secret::holder(text))
    }

    fn failed(&self, error: reqwest::Error) -> IssueError {
        let error = error.without_url();
        match tls::problem(&error) {
            Some(problem) => self.unissued(format!("is not trusted: {}", problem.text)),
            None if error.is_timeout() => self.unissued("did not answer in time"),
            None => self.unissued(format!("cannot be reached: {}", root_cause(&error))),
        }
    }

    fn unissued(&self, why: impl Into<String>) -> IssueError {
        let hint = match self.from {
            Issuance::Askpass(_) => {
                "it answers a GET within a second with 200 and lines username=… and password=…"
            }
            Issuance::GitHubApp(_) => {
                "check the App's id, that its key is this one, and the installation's id"
            }
        };
        IssueError { url: self.from.url(), flag: self.from.flag(), why: why.into(), hint, source: None }
    }
}

impl IssueError {
    /// Hints for the operator, one line each.
    pub fn hints(&self) -> Vec<String> {
        vec![self.hint.to_owned()]
    }
}
