//! What an operator can do about an error of the wire client.

use std::error::Error as _;
use std::path::Path;

use super::{ANY_WANT, Error, FILTER, Unfollowed, ssh};

/// The environment variables that name a proxy.
const PROXIES: [&str; 6] =
    ["https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"];

impl Error {
    /// Hints for the operator, one line each.
    pub fn hints(&self) -> Vec<String> {
        let hint = |text: &str| vec![text.to_owned()];
        match self {
            _ if self.is_of_descriptors() => {
                hint("raise the limit of open files (ulimit -n): each submodule takes a few")
            }
            Self::NoSuchRef { name, has_others: true, .. } if name == "HEAD" => hint(
                "its HEAD names a branch that does not exist; `git ls-remote` lists those that do: name the one to follow with --ref",
            ),
            Self::NoSuchRef { name, .. } if name == "HEAD" => hint(
                "the repository is empty, or its HEAD names a branch that does not exist (`git ls-remote` lists those that do): push a commit, or name the ref to follow with --ref",
            ),
            Self::NoSuchRef { name, .. } if name.len() < 40 && is_hex(name) => hint(
                "check --ref; a commit id is followed only if it is complete (40 digits, as in `treeswap status --json`)",
            ),
            Self::Start { .. } => {
                hint("--git names a program that this user can run; without --git none is needed")
            }
            Self::NoSuchRef { .. } => hint("check --ref; `git ls-remote` lists what the remote has"),
            Self::Timeout { wait, .. } => vec![format!("raise {} if the remote is merely slow", wait.flag())],
            Self::Connect { .. } => match PROXIES.iter().find(|name| std::env::var_os(name).is_some()) {
                Some(name) => vec![format!(
                    "${name} names a proxy, which may be unreachable; $NO_PROXY lists hosts that are reached without it"
                )],
                None => hint(
                    "check the URL's host and port, and that name resolution and network policies let this machine reach \
                     it",
                ),
            },
            Self::Proxy { .. } => hint(
                "check http.proxy in --git-config, and that the proxy may connect to the repository's host",
            ),
            Self::TooMuch { budget, .. } => {
                vec![format!("raise {} if the repository is really that large", budget.flag())]
            }
            Self::Tls { problem, .. } => hint(problem.hint),
            Self::Status { status: 404 | 410, .. } => {
                hint("the repository does not exist, or the credential has no permission to see it")
            }
            Self::Status { status: 407, .. } => hint("the proxy named by the environment wants a credential"),
            Self::Status { status: 408 | 425 | 429, .. } => {
                hint("the server limits the request rate: ask less often (--period, or the schedule)")
            }
            Self::Status { status: 500.., .. } => hint("check the server, and proxies in front of it"),
            Self::Status { .. } => {
                hint("check the URL: it is what `git clone` takes, not a page's or a file's")
            }
            Self::Auth { username: None, with, .. } if !with.is_empty() => vec![format!(
                "check that {} is valid and may read, or give a credential with --username and --password-file",
                with.join(" or ")
            )],
            Self::Auth { username: None, .. } => hint(
                "give a credential with --username and --password-file, or with --credential for this URL",
            ),
            Self::Auth { .. } => hint(
                "check the user name, and that the password or token is valid and may read, and its file not empty",
            ),
            Self::Credential { .. } => hint(
                "the file must exist, and the user treeswap runs as must be able to read it; it is read at every attempt",
            ),
            Self::Remote { said, .. } if said.contains("not our ref") => hint(
                "the remote has no such commit, or does not hand out commits that no branch or tag leads to",
            ),
            Self::Remote { .. } => hint("this is the server's own message; its log may have more"),
            Self::Broken { .. } | Self::Cut { .. } => hint(
                "if it persists, check the server's log, and proxies in between that cut off long responses",
            ),
            Self::BadRemote { .. } => hint(
                "write https://HOST/PATH, ssh://USER@HOST/PATH, USER@HOST:PATH, git://HOST/PATH or a local path",
            ),
            Self::Program { .. } => {
                hint("run the same command by hand as this user; without --git no program is needed")
            }
            Self::Unsupported { feature, .. } => hint(match *feature {
                FILTER => {
                    "set uploadpack.allowFilter=true on the server (with --git no filter can be relied on)"
                }
                ANY_WANT => {
                    "set uploadpack.allowAnySHA1InWant=true on the server, or let it speak protocol version 2"
                }
                _ => "the server needs git 2.26 or newer, with protocol version 2 allowed",
            }),
            Self::Sink { .. } => {
                hint("the process that indexes the pack ended: check memory and the mirror's volume")
            }
            Self::Redirect { why, .. } => hint(why.hint()),
            Self::NotGit { said, .. } if is_ref_list(said) => hint(
                "the server hands out the repository's files only (\"dumb\" HTTP): let it run git-http-backend(1)",
            ),
            Self::NotGit { .. } => hint("check the URL; a log-in page or a proxy may be answering"),
            Self::ObjectFormat { .. } => hint("the server must offer a sha1 repository"),
            Self::Local { path, source } if source.0.code() == git2::ErrorCode::NotFound => {
                let url = std::env::current_dir().ok().and_then(|dir| without_scheme(path, &dir));
                match url {
                    Some(url) => vec![format!("did you mean https://{url}?")],
                    None => hint("check the path, and that the user treeswap runs as may read it"),
                }
            }
            Self::Local { .. } | Self::LocalDenied { .. } => {
                hint("check the path, and that the user treeswap runs as may read it")
            }
            Self::Ssh { remote, source } => {
                let not_there = matches!(**source, ssh::Error::Connect { .. } | ssh::Error::Timeout { .. });
                let url = if not_there { as_url_with_port(remote) } else { None };
                let meant = url.map(|url| format!("host:path has no port: write {url}"));
                meant.into_iter().chain(source.hints()).collect()
            }
            Self::Issuer { source, .. } => source.hints(),
        }
    }
}

impl Error {
    /// Returns true if a file or socket could not be opened because the process, or the machine, has too many open.
    fn is_of_descriptors(&self) -> bool {
        let mut cause = self.source();
        while let Some(error) = cause {
            // By the numbers of EMFILE and ENFILE: reqwest's errors are kept as text, which differs between C libraries.
            if ["(os error 24)", "(os error 23)"].iter().any(|number| error.to_string().ends_with(number)) {
                return true;
            }
            cause = error.source();
        }
        false
    }
}

impl Unfollowed {
    fn hint(self) -> &'static str {
        match self {
            Self::LeavesTls | Self::OtherOrigin => {
                "no credential was sent there; if it is right, give that URL as --repo"
            }
            Self::NoRepository => {
                "check the URL and the credential; a log-in page or a proxy may be answering"
            }
            Self::TooMany => "check the server, and proxies in front of it: the redirects may go in a circle",
            Self::NotAUrl => "check the server, and proxies in front of it",
            Self::AfterQuestion => "if it is right, give that URL as --repo",
        }
    }
}

/// A path that was given relative to the directory `dir` and looks like a URL without its scheme: a host, and more.
fn without_scheme<'p>(path: &'p Path, dir: &Path) -> Option<&'p str> {
    let given = path.strip_prefix(dir).ok()?.to_str()?;
    let (host, rest) = given.split_once('/')?;
    let is_url = host.contains('.') && !host.starts_with('.') && !host.ends_with('.') && !rest.is_empty();
    is_url.then_some(given)
}

/// The URL that may be meant by a remote of the form `[user@]host:path` whose path begins with digits and a slash.
fn as_url_with_port(remote: &str) -> Option<String> {
    let (login, rest) = remote.split_once(':').filter(|(login, _)| !login.contains(['/', '[']))?;
    let (port, path) = rest.split_once('/').filter(|(_, path)| !path.is_empty())?;
    let is_port = port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    is_port.then(|| format!("ssh://{login}:{port}/{path}"))
}

/// Returns true if an answer is a list of refs as `git update-server-info` writes it: ids, tabs and names.
fn is_ref_list(said: &str) -> bool {
    let id = said.bytes().take_while(u8::is_ascii_hexdigit).count();
    id >= 40 && ["\trefs/", "\\trefs/"].iter().any(|after| said[id..].starts_with(after))
}

/// Returns true if the name may be an abbreviated commit id: four or more hex digits.
fn is_hex(name: &str) -> bool {
    name.len() >= 4 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_its_scheme_is_not_taken_for_any_other_path() {
        let of = |path: &'static str| without_scheme(Path::new(path), Path::new("/work"));
        assert_eq!(of("/work/github.com/foo/bar"), Some("github.com/foo/bar"));
        for other in ["/work/foo/bar", "/work/.cache/bar", "/work/repo.git", "/elsewhere/github.com/foo/bar"]
        {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn a_port_in_the_form_that_has_none_is_not_taken_for_any_other_path() {
        let of = |remote: &str| {
            let source = std::io::ErrorKind::ConnectionRefused.into();
            let source = ssh::Error::Connect { host: "h".to_owned(), port: 22, source };
            Error::Ssh { remote: remote.to_owned(), source: Box::new(source) }.hints()
        };
        let hints = of("root@h:20222/srv/x.git");
        assert_eq!(hints[0], "host:path has no port: write ssh://root@h:20222/srv/x.git");
        assert_eq!(hints.len(), 2, "{hints:?}");
        let paths = ["root@h:srv/x.git", "h:70000/x", "h:/22/x", "h:22/", "h:2x/y"];
        for other in paths.into_iter().chain(["[h:22]:1/x", "ssh://h:22/x"]) {
            assert_eq!(of(other).len(), 1, "{other}");
        }
    }
}
