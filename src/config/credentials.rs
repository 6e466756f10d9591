//! Validates the flags for credentials: `--username`, `--credential`, `--askpass-url`, the GitHub App and cookies.
//! Which of them exclude each other follows git-sync.

use std::path::PathBuf;

use super::args;
use super::check::Check;
use super::env::Origins;
use super::error::Error;
use super::json::{Json, NO_JSON, parse};
use super::origin::{Hidden, Origin, Variable};
use super::personality::Personality;
use super::values::boolean;
use crate::mirror::wire::{App, Credential, Issuance};
use crate::secret;

/// The fixed path from which git-sync reads cookies.
const COOKIES: &str = "/etc/git-secret/cookie_file";

/// The credential of `--username`, if it is given. `password` is the password from the environment.
pub(super) fn named(
    args: &args::Args,
    origins: &Origins,
    password: Option<&Variable>,
) -> Result<Vec<Credential>, Error> {
    let given = &args.credentials;
    if given.password.is_some() {
        return Err(Error::Password {
            what: "--password",
            hint: "put it into a file (--password-file), or into $TREESWAP_PASSWORD",
        });
    }
    let username = origins.name("username");
    let file = origins.name("password-file");
    let password = match (password, given.password_file.as_str()) {
        (None, "") if given.username.is_empty() => return Ok(Vec::new()),
        (None, "") => {
            let variable = password_variable(origins.personality());
            return Err(Error::Needs { one: username, other: format!("--password-file or {variable}") });
        }
        (Some(Variable { name, .. }), path) if !path.is_empty() => {
            return Err(Error::Conflict { one: name.clone(), other: file });
        }
        (Some(Variable { name, value }), _) => (name.clone(), secret::Source::Value(value.clone())),
        (None, path) => (file, secret::Source::File(PathBuf::from(path))),
    };
    if given.username.is_empty() {
        return Err(Error::Needs { one: password.0, other: "--username".into() });
    }
    if has_userinfo(&args.source.repo) {
        return Err(Error::Conflict { one: username, other: "a user in the URL of --repo".into() });
    }
    Ok(vec![Credential { url: None, username: Some(given.username.clone()), password: password.1 }])
}

/// The variable for the password, for messages.
pub(super) fn password_variable(personality: Personality) -> &'static str {
    match personality {
        Personality::Treeswap => "$TREESWAP_PASSWORD",
        Personality::GitSync => "$GITSYNC_PASSWORD",
    }
}

/// The credentials of all `--credential` flags; without one, those of the variable.
pub(super) fn listed(
    args: &args::Args,
    origins: &Origins,
    variable: Option<&Variable>,
) -> Result<Vec<Credential>, Error> {
    let given = &args.credentials.credential;
    if let (true, Some(Variable { name, value })) = (given.is_empty(), variable) {
        return parse_credentials(value.expose(), name, false);
    }
    let refused =
        *origins.get("credential") == Origin::Flag && origins.personality() == Personality::Treeswap;
    let each = given.iter().map(|json| parse_credentials(json, &origins.name("credential"), refused));
    Ok(each.collect::<Result<Vec<_>, _>>()?.concat())
}

/// The credentials of one `--credential`, called `name`; a password in it may be refused. Errors never repeat its
/// content, which may hold a password.
fn parse_credentials(text: &str, name: &str, refuse_password: bool) -> Result<Vec<Credential>, Error> {
    let wrong = |why: &str| Error::HiddenValue { name: name.to_owned(), why: why.to_owned() };
    let list = parse(text).ok_or_else(|| wrong(NO_JSON))?;
    let convert = |json: Json| {
        if json.url.is_empty() || json.username.is_empty() {
            return Err(wrong("each credential needs a url and a username"));
        }
        let password = match (json.password, json.password_file) {
            (value, file) if value.is_empty() && !file.is_empty() => secret::Source::File(file.into()),
            (value, file) if !value.is_empty() && file.is_empty() => {
                if refuse_password {
                    return Err(Error::Password {
                        what: "a password in --credential",
                        hint: "name a file (\"password-file\"), or give the JSON in $TREESWAP_CREDENTIAL",
                    });
                }
                secret::Source::Value(secret::Secret::new(value))
            }
            _ => return Err(wrong("each credential needs exactly one of password and password-file")),
        };
        Ok(Credential { url: Some(json.url), username: Some(json.username), password })
    };
    list.into_iter().map(convert).collect()
}

/// Whether the remote is a URL with a user. The scp form (`user@host:path`) is no URL and does not count, as in
/// git-sync.
fn has_userinfo(remote: &str) -> bool {
    url::Url::parse(remote)
        .is_ok_and(|url| remote.contains("://") && (!url.username().is_empty() || url.password().is_some()))
}

impl Check<'_> {
    /// The service that issues a credential before each attempt (`--askpass-url` or a GitHub App), if one is given.
    pub(super) fn issuance(&self, hidden: &Hidden) -> Result<Option<Issuance>, Error> {
        let askpass = match self.args.credentials.askpass_url.as_str() {
            "" => None,
            url => Some(Issuance::Askpass(self.http_url("askpass-url", url)?)),
        };
        match (askpass, self.github(hidden)?) {
            (Some(_), Some(_)) => {
                let one = self.origins.name("askpass-url");
                Err(Error::Conflict { one, other: "a GitHub App".into() })
            }
            (askpass, app) => Ok(askpass.or(app.map(Issuance::GitHubApp))),
        }
    }

    /// The GitHub App, if one is given: it needs exactly one of its ids, an installation and a key, and excludes
    /// `--username`.
    fn github(&self, hidden: &Hidden) -> Result<Option<App>, Error> {
        let given = &self.args.credentials;
        let name = |flag: &str| self.origins.name(flag);
        let application = "github-app-application-id";
        let client = "github-app-client-id";
        let installation = "github-app-installation-id";
        let key = "github-app-private-key-file";
        let (id, issuer) = match (given.github_app_application_id, given.github_app_client_id.as_str()) {
            (0, "") => {
                let alone = [
                    (installation, given.github_app_installation_id != 0),
                    (key, !given.github_app_private_key_file.is_empty()),
                ];
                return match alone.into_iter().find(|(_, given)| *given) {
                    Some((flag, _)) => {
                        Err(Error::Needs { one: name(flag), other: format!("--{application} or --{client}") })
                    }
                    None => Ok(None),
                };
            }
            (0, id) => (client, id.to_owned()),
            (..0, _) => {
                return Err(self.invalid(application, given.github_app_application_id, "must be at least 1"));
            }
            (id, "") => (application, id.to_string()),
            _ => return Err(Error::Conflict { one: name(application), other: name(client) }),
        };
        let number = match given.github_app_installation_id {
            0 => return Err(Error::Needs { one: name(id), other: format!("--{installation}") }),
            number => {
                u64::try_from(number).map_err(|_| self.invalid(installation, number, "must be at least 1"))?
            }
        };
        let source = match (given.github_app_private_key_file.as_str(), &hidden.private_key) {
            ("", None) => {
                let other = format!("--{key} or $TREESWAP_GITHUB_APP_PRIVATE_KEY");
                return Err(Error::Needs { one: name(id), other });
            }
            ("", Some(variable)) => secret::Source::Value(variable.value.clone()),
            (path, None) => secret::Source::File(PathBuf::from(path)),
            (_, Some(Variable { name: variable, .. })) => {
                return Err(Error::Conflict { one: variable.clone(), other: name(key) });
            }
        };
        let users = [("username", &given.username), ("password-file", &given.password_file)];
        let user = users.into_iter().find(|(_, text)| !text.is_empty()).map(|(flag, _)| name(flag));
        if let Some(other) = user.or_else(|| hidden.password.as_ref().map(|set| set.name.clone())) {
            return Err(Error::Conflict { one: name(id), other });
        }
        let base = self.http_url("github-base-url", &given.github_base_url)?;
        Ok(Some(App { base, issuer, installation: number, key: source }))
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
