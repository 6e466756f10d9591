//! Credentials that have to be asked for: of an askpass URL before every attempt, of GitHub for an App until the token
//! expires. Both are for the remote's own origin.
//!
//! Neither follows redirects, both have seconds and not minutes, and what they answer is in none of our messages.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use reqwest::{Client, RequestBuilder, Response};
use url::Url;

use crate::secret::{self, Secret, redact_path};
use crate::tls;

use super::github::{self, App};
use super::text::{escaped, root_cause};

/// How long the askpass URL may take: git-sync's limit.
const ASKPASS: Duration = Duration::from_secs(1);

/// How long GitHub may take.
const GITHUB: Duration = Duration::from_secs(10);

/// A token that ends so soon is not used any more.
const SPARE: SignedDuration = SignedDuration::from_secs(30);

/// How much of an answer is read.
const ANSWER: usize = 64 << 10;

/// How much of an answer that is no credential is shown.
const SHOWN: usize = 120;

const USER_AGENT: &str = concat!("treeswap/", env!("CARGO_PKG_VERSION"));

/// Whom to ask.
#[derive(Clone, Debug)]
pub enum Issuance {
    /// A URL that answers with lines `username=` and `password=`.
    Askpass(Url),
    /// GitHub, for an installation of an App.
    GitHubApp(App),
}

impl Issuance {
    /// The flag it was given with.
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

/// Hears how each request for a credential ended.
#[derive(Clone, Default)]
pub struct Issued(Option<Arc<dyn Fn(bool) + Send + Sync>>);

impl Issued {
    /// Calls this with whether it was issued.
    pub fn to(hear: impl Fn(bool) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hear)))
    }

    fn report(&self, well: bool) {
        if let Some(hear) = &self.0 {
            hear(well);
        }
    }
}

impl fmt::Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Issued")
    }
}

/// No credential was issued.
#[derive(Debug, thiserror::Error)]
#[error("{url} ({flag}) {why}")]
pub struct Unissued {
    url: String,
    flag: &'static str,
    why: IssueFailure,
    #[source]
    source: Option<secret::Error>,
}

#[derive(Debug)]
enum IssueFailure {
    /// Not answered, or not as it should.
    Answer(String),
    /// The private key.
    Key(&'static str),
}

impl fmt::Display for IssueFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answer(why) => f.write_str(why),
            Self::Key(why) => write!(f, "cannot be asked: {why}"),
        }
    }
}

/// Asks, and remembers the answer for as long as it is good.
#[derive(Debug)]
pub struct Issuer {
    from: Issuance,
    client: Client,
    held: Option<CachedToken>,
    issued: Issued,
}

#[derive(Debug)]
struct CachedToken {
    username: Secret,
    password: Secret,
    /// None: until the next attempt.
    until: Option<Timestamp>,
}

impl Issuer {
    /// No network. `ca_file`: authorities trusted besides the system's.
    pub fn new(
        from: Issuance,
        ca_file: Option<PathBuf>,
    ) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let client = Client::builder()
            .tls_backend_preconfigured(tls::config(ca_file)?)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(USER_AGENT)
            .referer(false)
            .pool_max_idle_per_host(0) // asked once a minute or an hour: no connection is worth keeping
            .build()?;
        Ok(Self { from, client, held: None, issued: Issued::default() })
    }

    /// Reports how each request ended.
    #[must_use]
    pub fn reporting_to(self, issued: Issued) -> Self {
        Self { issued, ..self }
    }

    /// An attempt begins: what is good for one attempt only is forgotten.
    pub fn attempt_begins(&mut self) {
        self.held = self.held.take().filter(|held| held.until.is_some());
    }

    /// The credential was of no use.
    pub fn forget(&mut self) {
        self.held = None;
    }

    /// User name and password, asked for where none is held.
    ///
    /// # Errors
    /// When there was no proper answer.
    pub async fn credential(&mut self) -> Result<(String, Secret), Unissued> {
        let good = |held: &CachedToken| {
            held.until.is_none_or(|until| until.duration_since(Timestamp::now()) > SPARE)
        };
        let held = match self.held.take().filter(good) {
            Some(held) => held,
            None => {
                let asked = match &self.from {
                    Issuance::Askpass(url) => self.askpass(url).await,
                    Issuance::GitHubApp(app) => self.github(app).await,
                };
                self.issued.report(asked.is_ok());
                asked?
            }
        };
        let credential = (held.username.expose().to_owned(), held.password.clone());
        self.held = Some(held);
        Ok(credential)
    }

    async fn askpass(&self, url: &Url) -> Result<CachedToken, Unissued> {
        let text = self.answer(self.client.get(url.clone()).timeout(ASKPASS), 200).await?;
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
        Ok(CachedToken { username: secret(username), password: secret(password), until: None })
    }

    async fn github(&self, app: &App) -> Result<CachedToken, Unissued> {
        let key = app.key.clone();
        let no_key = |why, source| Unissued { source, why: IssueFailure::Key(why), ..self.unissued("") };
        let key = key.now(GITHUB).await;
        let key = key.map_err(|error| no_key("the private key cannot be read", Some(error)))?;
        let token = github::sign(app, &key, Timestamp::now()).map_err(|why| no_key(why, None))?;
        let url = app.endpoint().ok_or_else(|| self.unissued("cannot be the beginning of a URL"))?;
        let request = self.client.post(url).timeout(GITHUB).bearer_auth(token.expose());
        let request = request.header("Accept", "application/vnd.github+json").body("");
        let answer = self.answer(request, 201).await?;
        let issued = github::read(answer.expose()).map_err(|why| self.unissued(why))?;
        // GitHub does not look at the name.
        Ok(CachedToken {
            username: Secret::holder("-"),
            password: issued.token,
            until: Some(issued.expires_at),
        })
    }

    /// The text of an answer with the right status.
    async fn answer(&self, request: RequestBuilder, wanted: u16) -> Result<Secret, Unissued> {
        let mut answer = request.send().await.map_err(|error| self.failed(error))?;
        let status = answer.status().as_u16();
        let text = self.text(&mut answer).await?;
        if status == wanted {
            return Ok(text);
        }
        // What the askpass URL says may be secret whatever its status is; what GitHub says is why.
        let said = match &self.from {
            Issuance::GitHubApp(_) => format!(": {}", escaped(text.expose().trim().as_bytes(), SHOWN)),
            Issuance::Askpass(_) => String::new(),
        };
        Err(self.unissued(format!("answered {status}, not {wanted}{said}")))
    }

    async fn text(&self, answer: &mut Response) -> Result<Secret, Unissued> {
        let mut bytes = Vec::new();
        while let Some(piece) = answer.chunk().await.map_err(|error| self.failed(error))? {
            bytes.extend_from_slice(&piece);
            if bytes.len() > ANSWER {
                return Err(self.unissued(format!("answered with more than {} KiB", ANSWER >> 10)));
            }
        }
        let text = String::from_utf8(bytes).map_err(|_| self.unissued("answered with what is not text"))?;
        Ok(Secret::holder(text))
    }

    fn failed(&self, error: reqwest::Error) -> Unissued {
        let error = error.without_url();
        match tls::problem(&error) {
            Some(problem) => self.unissued(format!("is not to be trusted: {}", problem.text)),
            None if error.is_timeout() => self.unissued("did not answer in time"),
            None => self.unissued(format!("cannot be asked: {}", root_cause(&error))),
        }
    }

    fn unissued(&self, why: impl Into<String>) -> Unissued {
        let why = IssueFailure::Answer(why.into());
        Unissued { url: self.from.url(), flag: self.from.flag(), why, source: None }
    }
}

impl Unissued {
    /// What an operator can do, a line each.
    pub fn hints(&self) -> Vec<String> {
        match self.why {
            IssueFailure::Key(_) => vec![
                "--github-app-private-key-file is the .pem file that GitHub gives for the App".to_owned(),
            ],
            IssueFailure::Answer(_) if self.flag == "--askpass-url" => {
                vec![
                    "it answers a GET within a second with 200 and lines username=… and password=…"
                        .to_owned(),
                ]
            }
            IssueFailure::Answer(_) => {
                vec!["check the App's id, that its key is this one, and the installation's id".to_owned()]
            }
        }
    }
}
