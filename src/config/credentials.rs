//! Validates the flags for credentials: `--username`, `--credential`, `--askpass-url`, the GitHub App and cookies.
//! Which of them exclude each other follows git-sync.

use std::collections::BTreeSet;
use std::path::PathBuf;

use url::{Position, Url};

use super::args;
use super::check::Check;
use super::env::Origins;
use super::error::Error;
use super::json::credentials_in;
use super::origin::{Hidden, Origin, PASSWORDS, PRIVATE_KEYS, Variable};
use super::personality::Personality;
use super::values::boolean;
use crate::mirror::wire::{App, Credential, Issuance};
use crate::secret;

/// The fixed path from which git-sync reads cookies.
const COOKIES: &str = "/etc/git-secret/cookie_file";

/// The flags of a GitHub App.
const APPLICATION_ID: &str = "github-app-application-id";
const CLIENT_ID: &str = "github-app-client-id";
const INSTALLATION_ID: &str = "github-app-installation-id";
const PRIVATE_KEY_FILE: &str = "github-app-private-key-file";
const BASE_URL: &str = "github-base-url";

/// The flags that a GitHub App cannot do without, for messages.
fn an_id_of_app() -> String {
    format!("--{APPLICATION_ID} or --{CLIENT_ID}")
}

/// The variable that holds a secret, for messages. `names` are treeswap's and git-sync's, as in [`super::origin`].
pub(super) fn variable_for(personality: Personality, names: [&str; 2]) -> String {
    let [treeswap, git_sync] = names;
    match personality {
        Personality::Treeswap => format!("${treeswap}"),
        Personality::GitSync => format!("${git_sync}"),
    }
}

/// The credential of `--username`, if it is given. `password` is the password from the environment. As git-sync, it
/// precedes for the repository itself whatever `--credential` gives for its host.
pub(super) fn of_username_flag(
    args: &args::Args,
    origins: &Origins,
    password: Option<&Variable>,
) -> Result<Vec<Credential>, Error> {
    let given = &args.credentials;
    if given.password.is_some() {
        let variable = variable_for(origins.personality(), PASSWORDS);
        let hint = format!("put it into a file (--password-file), or into {variable}");
        return Err(Error::Password { what: "--password", hint });
    }
    let username = origins.name("username");
    let file = origins.name("password-file");
    let password = match (password, given.password_file.as_str()) {
        (None, "") if given.username.is_empty() => return Ok(Vec::new()),
        (None, "") => {
            let variable = variable_for(origins.personality(), PASSWORDS);
            return Err(Error::Needs { one: username, other: format!("--password-file or {variable}") });
        }
        (Some(Variable { name, .. }), path) if !path.is_empty() => {
            return Err(Error::Conflict { one: name.clone(), other: file });
        }
        (Some(Variable { name, value }), _) => (name.clone(), secret::SecretFrom::Value(value.clone())),
        (None, path) => (file, secret::SecretFrom::File(PathBuf::from(path))),
    };
    if given.username.is_empty() {
        return Err(Error::Needs { one: password.0, other: "--username".into() });
    }
    if has_userinfo(&args.source.repo) {
        return Err(Error::Conflict { one: username, other: "a user in the URL of --repo".into() });
    }
    let of_host = Credential { url: None, username: Some(given.username.clone()), password: password.1 };
    let repo = &args.source.repo;
    let has_own = origins.personality() == Personality::GitSync && is_http(repo);
    let of_repo = has_own.then(|| Credential { url: Some(repo.clone()), ..of_host.clone() });
    Ok(of_repo.into_iter().chain([of_host]).collect())
}

/// The credentials of all `--credential` flags; without one, those of the variable. Called as git-sync, as git keeps
/// them: see [`kept_by_git`].
pub(super) fn of_credential_flags(
    args: &args::Args,
    origins: &Origins,
    variable: Option<&Variable>,
) -> Result<Vec<Credential>, Error> {
    let given = &args.credentials.credential;
    let personality = origins.personality();
    if let (true, Some(Variable { name, value })) = (given.is_empty(), variable) {
        return credentials_in(value.expose(), name, personality, false);
    }
    let refused = *origins.get("credential") == Origin::Flag && personality == Personality::Treeswap;
    let name = origins.name("credential");
    let each = given.iter().map(|json| credentials_in(json, &name, personality, refused));
    let all = each.collect::<Result<Vec<_>, _>>()?.concat();
    if personality == Personality::Treeswap {
        return Ok(all);
    }
    // A user in the repository's URL, or a service that issues a credential for the repository, is for that host
    // already, and precedes them.
    let repo = &args.source.repo;
    let is_taken = has_userinfo(repo) || has_issuer(args);
    let taken = Url::parse(repo).ok().filter(|_| is_taken).map(|url| url.origin());
    Ok(kept_by_git(&all, taken.as_ref()))
}

/// What is left of credentials that git-sync hands to git, in the order in which they are tried. git looks at scheme,
/// host and port only, so each is also for the whole host of its URL, unless that is `taken`: submodules often lie
/// beside the URL that is given. Unlike in git, the longest path is preferred all the same. git's cache has one entry
/// for each user of a host: a later one takes the place of an earlier one, as after the rotation of a token.
fn kept_by_git(given: &[Credential], taken: Option<&url::Origin>) -> Vec<Credential> {
    let (mut of_paths, mut of_hosts) = (Vec::new(), Vec::new());
    for one in given {
        let Some(url) = one.url.as_deref().and_then(|url| Url::parse(url).ok()) else { continue }; // checked before
        if path_of(&url).is_empty() {
            put(&mut of_hosts, url, one.clone());
            continue;
        }
        if Some(&url.origin()) != taken {
            let mut host = url.clone();
            host.set_path("/");
            put(&mut of_hosts, host.clone(), Credential { url: Some(host.into()), ..one.clone() });
        }
        put(&mut of_paths, url, one.clone());
    }
    of_paths.into_iter().chain(of_hosts).map(|(_, one)| one).collect()
}

/// Appends a credential, or puts it into the place of the one for the same URL and user.
fn put(list: &mut Vec<(Url, Credential)>, url: Url, credential: Credential) {
    let is_same = |(other, before): &&mut (Url, Credential)| {
        other.origin() == url.origin()
            && path_of(other) == path_of(&url)
            && before.username == credential.username
    };
    match list.iter_mut().find(is_same) {
        Some(before) => *before = (url, credential),
        None => list.push((url, credential)),
    }
}

/// The path below which a credential is used, as the selection of one compares it.
fn path_of(url: &Url) -> &str {
    url.path().trim_end_matches('/')
}

/// Whether a service is given that issues the repository's credential.
fn has_issuer(args: &args::Args) -> bool {
    let given = &args.credentials;
    !given.askpass_url.is_empty()
        || given.github_app_application_id != 0
        || !given.github_app_client_id.is_empty()
}

/// Whether the remote is a URL with a user. The scp form (`user@host:path`) is no URL and does not count, as in
/// git-sync.
pub(super) fn has_userinfo(remote: &str) -> bool {
    Url::parse(remote)
        .is_ok_and(|url| remote.contains("://") && (!url.username().is_empty() || url.password().is_some()))
}

/// Whether the remote is reached by http or https.
fn is_http(remote: &str) -> bool {
    Url::parse(remote).is_ok_and(|url| matches!(url.scheme(), "http" | "https"))
}

impl Check<'_> {
    /// The service that issues a credential before each attempt (`--askpass-url` or a GitHub App), if one is given.
    pub(super) fn issuance(&self, hidden: &Hidden) -> Result<Option<Issuance>, Error> {
        let askpass = match self.args.credentials.askpass_url.as_str() {
            "" => None,
            url => Some(Issuance::Askpass(self.http_url("askpass-url", url)?)),
        };
        let app = self.github_app(hidden)?;
        let one = || self.origins.name("askpass-url");
        if askpass.is_some() && app.is_some() {
            return Err(Error::Conflict { one: one(), other: "a GitHub App".into() });
        }
        // The URL would never be asked. git-sync asks it, and gives git both.
        let is_idle = askpass.is_some() && !self.args.credentials.username.is_empty();
        if is_idle && self.origins.personality() == Personality::Treeswap {
            return Err(Error::Conflict { one: one(), other: self.origins.name("username") });
        }
        Ok(askpass.or(app.map(Issuance::GitHubApp)))
    }

    /// The warning about a credential for http(s) that is given for a repository which is reached otherwise. git-sync
    /// says nothing of it.
    pub(super) fn credential_without_effect(&self, remote: &str) -> Option<String> {
        let args::Args { source, credentials: given, .. } = self.args;
        let is_of_git_sync = self.origins.personality() == Personality::GitSync;
        if is_of_git_sync || !source.sources.is_empty() || is_http(remote) {
            return None;
        }
        let flags = [
            ("username", !given.username.is_empty()),
            ("askpass-url", !given.askpass_url.is_empty()),
            (APPLICATION_ID, given.github_app_application_id != 0),
            (CLIENT_ID, !given.github_app_client_id.is_empty()),
        ];
        let (flag, _) = flags.into_iter().find(|(_, is_given)| *is_given)?;
        let name = self.origins.name(flag);
        Some(format!("{name} has no effect: the repository is not reached by http or https"))
    }

    /// The GitHub App, if one is given: it needs exactly one of its ids, an installation and a key, and excludes
    /// `--username`.
    fn github_app(&self, hidden: &Hidden) -> Result<Option<App>, Error> {
        let Some((id_flag, issuer)) = self.app_id()? else {
            return self.refuse_parts_of_app(hidden).map(|()| None);
        };
        let installation = self.installation_id(id_flag)?;
        let key = self.private_key(id_flag, hidden.private_key.as_ref())?;
        self.refuse_user_beside_app(id_flag, hidden)?;
        let base = self.http_url(BASE_URL, &self.args.credentials.github_base_url)?;
        Ok(Some(App { base, issuer, installation, key }))
    }

    /// The id of the GitHub App and the flag that it was given by, if one is given.
    fn app_id(&self) -> Result<Option<(&'static str, String)>, Error> {
        let given = &self.args.credentials;
        match (given.github_app_application_id, given.github_app_client_id.as_str()) {
            (0, "") => Ok(None),
            (0, id) => Ok(Some((CLIENT_ID, id.to_owned()))),
            (id @ ..0, _) => Err(self.invalid(APPLICATION_ID, id, "must be at least 1")),
            (id, "") => Ok(Some((APPLICATION_ID, id.to_string()))),
            _ => {
                let (one, other) = (self.origins.name(APPLICATION_ID), self.origins.name(CLIENT_ID));
                Err(Error::Conflict { one, other })
            }
        }
    }

    /// Refuses what belongs to a GitHub App whose id is not given: it would have no effect. git-sync ignores such a
    /// key, so it is not refused under one of git-sync's names: see [`Check::ignored_parts_of_app`].
    fn refuse_parts_of_app(&self, hidden: &Hidden) -> Result<(), Error> {
        let installation = (self.args.credentials.github_app_installation_id != 0)
            .then(|| self.origins.name(INSTALLATION_ID));
        let own_key = || self.keys_of_app(hidden).find(|name| !self.is_of_git_sync(name));
        match installation.or_else(own_key) {
            Some(one) => Err(Error::Needs { one, other: an_id_of_app() }),
            None => Ok(()),
        }
    }

    /// The warnings about a GitHub App's key and base URL that have no effect because the App's id is not given.
    pub(super) fn ignored_parts_of_app(&self, hidden: &Hidden) -> Vec<String> {
        let given = &self.args.credentials;
        let has_id = given.github_app_application_id != 0 || !given.github_app_client_id.is_empty();
        if has_id || self.origins.personality() == Personality::GitSync {
            return Vec::new(); // git-sync says nothing about them
        }
        let key = self.keys_of_app(hidden).find(|name| self.is_of_git_sync(name));
        let base = (given.github_base_url != args::GITHUB_API).then(|| self.origins.name(BASE_URL));
        let warning = |part| format!("{part} has no effect without {}", an_id_of_app());
        key.into_iter().chain(base).map(warning).collect()
    }

    /// The names by which a private key of a GitHub App is given: the variable that holds it, and that of its file.
    fn keys_of_app(&self, hidden: &Hidden) -> impl Iterator<Item = String> {
        let variable = hidden.private_key.as_ref().map(|key| key.name.clone());
        let has_file = !self.args.credentials.github_app_private_key_file.is_empty();
        let file = has_file.then(|| self.origins.name(PRIVATE_KEY_FILE));
        variable.into_iter().chain(file)
    }

    /// Whether a value is given for git-sync: to the program that is called so, or by one of its variables, which
    /// `treeswap` reads with the same meaning.
    fn is_of_git_sync(&self, name: &str) -> bool {
        self.origins.personality() == Personality::GitSync || name.starts_with("$GITSYNC_")
    }

    /// The installation of the GitHub App whose id was given by the flag `id_flag`.
    fn installation_id(&self, id_flag: &str) -> Result<u64, Error> {
        match self.args.credentials.github_app_installation_id {
            0 => Err(Error::Needs { one: self.origins.name(id_flag), other: format!("--{INSTALLATION_ID}") }),
            number => {
                u64::try_from(number).map_err(|_| self.invalid(INSTALLATION_ID, number, "must be at least 1"))
            }
        }
    }

    /// The key of the GitHub App whose id was given by the flag `id_flag`. `variable` is the key from the environment.
    fn private_key(&self, id_flag: &str, variable: Option<&Variable>) -> Result<secret::SecretFrom, Error> {
        match (self.args.credentials.github_app_private_key_file.as_str(), variable) {
            ("", None) => {
                let variable = variable_for(self.origins.personality(), PRIVATE_KEYS);
                let other = format!("--{PRIVATE_KEY_FILE} or {variable}");
                Err(Error::Needs { one: self.origins.name(id_flag), other })
            }
            ("", Some(variable)) => Ok(secret::SecretFrom::Value(variable.value.clone())),
            (path, None) => Ok(secret::SecretFrom::File(PathBuf::from(path))),
            (_, Some(variable)) => {
                let other = self.origins.name(PRIVATE_KEY_FILE);
                Err(Error::Conflict { one: variable.name.clone(), other })
            }
        }
    }

    /// Refuses `--username`, `--password-file` and the variable of the password beside a GitHub App.
    fn refuse_user_beside_app(&self, id_flag: &str, hidden: &Hidden) -> Result<(), Error> {
        let given = &self.args.credentials;
        let users = [("username", &given.username), ("password-file", &given.password_file)];
        let user = users.into_iter().find(|(_, text)| !text.is_empty());
        let user = user.map(|(flag, _)| self.origins.name(flag));
        match user.or_else(|| hidden.password.as_ref().map(|password| password.name.clone())) {
            Some(other) => Err(Error::Conflict { one: self.origins.name(id_flag), other }),
            None => Ok(()),
        }
    }

    /// The warning about credentials of `--credential` of which none is for the repository. They may be for submodules.
    pub(super) fn unused_credentials(&self, given: &[Credential], remote: &str) -> Option<String> {
        let remote = Url::parse(remote).ok().filter(|url| matches!(url.scheme(), "http" | "https"))?;
        if self.args.source.submodules != "off" {
            return None;
        }
        // The credential of --username has no URL, and is for the repository.
        let urls: Option<Vec<Url>> = given.iter().map(|one| Url::parse(one.url.as_deref()?).ok()).collect();
        let urls = urls.filter(|urls| !urls.is_empty())?;
        // As git-sync paths hardly matter, and most URLs are in the list twice.
        let of_path = ", and the path the beginning of the repository's";
        let (end, path) = match self.origins.personality() {
            Personality::Treeswap => (Position::AfterPath, of_path),
            Personality::GitSync => (Position::BeforePath, ""),
        };
        let is_for_it = |url: &Url| {
            let rest = remote.path().strip_prefix(url.path().trim_end_matches('/'));
            let is_below = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
            (is_below || path.is_empty()) && url.origin() == remote.origin()
        };
        if urls.iter().any(is_for_it) {
            return None;
        }
        let urls: BTreeSet<String> = urls.iter().map(|url| secret::redact(&url[..end])).collect();
        Some(format!(
            "no --credential is for the repository, but for {}: scheme, host and port have to be the \
             same{path}",
            Vec::from_iter(urls).join(", ")
        ))
    }

    /// The cookie file. git-sync's flag is a boolean that turns a fixed path on; ours takes a path, too.
    pub(super) fn cookie_file(&self) -> Option<PathBuf> {
        match self.args.credentials.cookie_file.as_str() {
            "" => None,
            text => match boolean(text) {
                Ok(true) => Some(PathBuf::from(COOKIES)),
                Ok(false) => None,
                Err(_) => Some(PathBuf::from(text)),
            },
        }
    }
}

#[cfg(test)]
mod tests;
