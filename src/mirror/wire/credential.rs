//! Selects the credential for a URL. A credential is sent only to the origin (scheme, host and port) it was given for,
//! and a secret in a file is read again for every use.

use std::fmt;

use url::Url;

use crate::secret::{self, Secret, SecretFrom, redact, shown_user};

use super::Error;

/// The user name for a token that was given without one. Services that accept tokens require some name and ignore it.
pub(super) const TOKEN_USER: &str = "git";

/// A user name with its password, or a token.
#[derive(Clone)]
pub struct Credential {
    /// The URL it may be sent to: an origin, and optionally a path prefix. `None` means the remote's own origin.
    pub url: Option<String>,
    /// The user name; not needed for a token.
    pub username: Option<String>,
    /// The password or token.
    pub password: SecretFrom,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential")
            .field("url", &self.url.as_deref().map(redact)) // it may contain a password
            .field("username", &self.username.as_deref().map(shown_user)) // it may be a token
            .field("password", &self.password)
            .finish()
    }
}

/// The credentials of one remote, with their URLs parsed.
#[derive(Clone)]
pub(super) struct Credentials(Vec<(Url, String, SecretFrom)>);

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |(url, username, from): &(Url, String, SecretFrom)| {
            (redact(url.as_str()), shown_user(username).to_owned(), from.clone())
        };
        f.debug_list().entries(self.0.iter().map(shown)).finish()
    }
}

impl Credentials {
    pub(super) fn new(
        given: &[Credential],
        remote: &Url,
        userinfo: Option<(String, Secret)>,
    ) -> Result<Self, Error> {
        let mut own = remote.clone();
        own.set_path("/");
        let mut all = Vec::with_capacity(given.len() + 1);
        // Those without a URL are for the remote itself, and come first where there are any.
        let for_remote = given.iter().take_while(|one| one.url.is_none()).count();
        for credential in given {
            let url = match &credential.url {
                None => own.clone(),
                Some(text) => match Url::parse(text) {
                    Ok(url) if url.has_host() => url,
                    _ => {
                        let why = "a credential is for it, but it is not a URL with a host";
                        return Err(Error::BadRemote { remote: redact(text), why });
                    }
                },
            };
            let username = credential.username.clone().unwrap_or_else(|| TOKEN_USER.to_owned());
            // A user name may be a token, so it is redacted, unless it is part of the remote's path, or from a URL: an
            // operator's is registered already, and an author's is no secret of ours.
            let is_of_url =
                matches!(&credential.password, SecretFrom::Value(password) if !password.is_registered());
            if !is_of_url && !remote.path().contains(&username) {
                secret::register_user(&username);
            }
            all.push((url, username, credential.password.clone()));
        }
        if let Some((username, password)) = userinfo {
            // As in git, a password in the URL precedes what is given for the host; a user alone is no credential.
            let at = if password.expose().is_empty() { all.len() } else { for_remote };
            all.insert(at, (own, username, SecretFrom::Value(password)));
        }
        Ok(Self(all))
    }

    /// Returns the credential for a URL: of those for the same origin, the one with the longest matching path prefix,
    /// and the first of several such ones.
    pub(super) fn choose(&self, url: &Url) -> Option<(&str, &SecretFrom)> {
        let mut best: Option<(usize, &str, &SecretFrom)> = None;
        for (given, username, password) in &self.0 {
            let path = given.path().trim_end_matches('/');
            let rest = url.path().strip_prefix(path);
            let below = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
            if given.origin() == url.origin() && below && best.is_none_or(|(length, ..)| path.len() > length)
            {
                best = Some((path.len(), username, password));
            }
        }
        best.map(|(_, username, password)| (username, password))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Options, remote};
    use super::*;

    fn of(url: Option<&str>, username: &str) -> Credential {
        Credential {
            url: url.map(str::to_owned),
            username: (!username.is_empty()).then(|| username.to_owned()),
            password: SecretFrom::Value(Secret::new("pw")),
        }
    }

    #[test]
    fn only_the_same_origin_gets_one_and_the_longest_path_wins() {
        let remote = Url::parse("https://example.com/team/a.git").unwrap();
        let given = [
            of(None, "own"),
            of(Some("https://example.com/team"), "team"),
            of(Some("https://example.com/team/"), "second"),
            of(Some("https://other.example.com"), "other"),
            of(Some("http://example.com/team/a.git"), "plain"),
        ];
        let all = Credentials::new(&given, &remote, Some(("url".into(), Secret::new("pw")))).unwrap();
        let chosen = |url: &str| all.choose(&Url::parse(url).unwrap()).map(|(name, _)| name.to_owned());
        assert_eq!(chosen("https://example.com/team/a.git").as_deref(), Some("team"));
        assert_eq!(chosen("https://example.com:443/teams/a.git").as_deref(), Some("own"));
        assert_eq!(chosen("https://other.example.com/x").as_deref(), Some("other"));
        assert_eq!(chosen("https://example.com:8443/team/a.git"), None);
        assert_eq!(chosen("https://evil.example/team/a.git"), None);
        assert_eq!(chosen("http://example.com/b.git"), None);
    }

    #[test]
    fn a_password_in_the_url_precedes_what_is_given_for_its_host() {
        let remote = Url::parse("https://example.com/team/a.git").unwrap();
        let chosen = |given: &[Credential], password: &str| {
            let userinfo = Some(("url".to_owned(), Secret::new(password)));
            let all = Credentials::new(given, &remote, userinfo).unwrap();
            all.choose(&remote).unwrap().0.to_owned()
        };
        let host = [of(Some("https://example.com/"), "host"), of(Some("https://example.com"), "second")];
        assert_eq!(chosen(&host, "pw"), "url");
        assert_eq!(chosen(&host, ""), "host", "a user without a password");
        assert_eq!(chosen(&[of(None, "own"), of(Some("https://example.com"), "host")], "pw"), "own");
        assert_eq!(chosen(&[of(Some("https://example.com/team"), "team")], "pw"), "team");
    }

    #[test]
    fn a_password_in_a_submodules_url_precedes_what_is_given_for_the_first_remote() {
        let first = Options { credentials: vec![of(None, "own")], ..Options::new("https://h/a") };
        let submodule = first.for_remote("https://dep:pw@h/b");
        let Ok((remote::Remote::Http(url), userinfo)) = remote::parse(&submodule.remote) else {
            panic!("it is an http URL")
        };
        let all = Credentials::new(&submodule.credentials, &url, userinfo).unwrap();
        assert_eq!(all.choose(&url).unwrap().0, "dep");
    }

    #[test]
    fn neither_a_password_nor_a_token_is_in_the_debug_output() {
        let token = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";
        let given = [of(Some("https://bob:s3cret@example.com/"), token)];
        let remote = Url::parse("https://example.com/a.git").unwrap();
        let all = Credentials::new(&given, &remote, Some((token.to_owned(), Secret::new("s3cret")))).unwrap();
        let shown = format!("{given:?} {all:?}");
        assert!(!shown.contains(token) && !shown.contains("s3cret"), "{shown}");
        assert!(shown.contains("example.com"), "{shown}");
    }

    #[test]
    fn userinfo_is_the_fallback_and_a_token_needs_no_user_name() {
        let remote = Url::parse("https://example.com/a.git").unwrap();
        let userinfo = Some(("bob".to_owned(), Secret::new("pw")));
        let all = Credentials::new(&[], &remote, userinfo).unwrap();
        assert_eq!(all.choose(&remote).unwrap().0, "bob");
        let all = Credentials::new(&[of(None, "")], &remote, None).unwrap();
        assert_eq!(all.choose(&remote).unwrap().0, "git");
        assert!(Credentials::new(&[of(Some("example.com"), "")], &remote, None).is_err());
    }
}
