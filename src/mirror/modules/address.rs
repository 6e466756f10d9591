//! Resolves the URL that a submodule is fetched from, and decides whether it is allowed. Pure. A commit's author writes
//! the URL; the operator's options decide.

use std::fmt;

use url::Url;

use crate::mirror::error::excerpt;
use crate::mirror::wire::RemoteHost;
use crate::secret::{quoted, redact};

/// The longest URL in bytes, as it is written and after it is resolved. What parses or sends one holds copies of it.
const URL_MAX: usize = 4 << 10;

/// Which hosts submodules may be fetched from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Hosts {
    /// Any host.
    Any,
    /// The host of the followed repository, the hosts that credentials are configured for, and these.
    Known(Vec<String>),
}

/// git's `url.BASE.insteadOf`: URLs that the operator wants to be fetched from elsewhere.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct InsteadOf {
    /// What URLs begin with, and what takes its place.
    rules: Vec<(String, String)>,
}

impl fmt::Debug for InsteadOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A URL may contain a password.
        let rules = self.rules.iter().map(|(prefix, base)| (redact(prefix), redact(base)));
        f.debug_list().entries(rules).finish()
    }
}

impl InsteadOf {
    /// Each rule is what URLs begin with, and what takes its place. A rule for an empty text has no effect.
    pub fn new(rules: impl IntoIterator<Item = (String, String)>) -> Self {
        Self { rules: rules.into_iter().filter(|(prefix, _)| !prefix.is_empty()).collect() }
    }

    /// A URL after the rules. As in git, the longest matching text is replaced, once; of equally long ones the first.
    pub fn rewritten(&self, url: &str) -> String {
        let matching = self.rules.iter().rev().filter_map(|(prefix, base)| {
            let rest = url.strip_prefix(prefix.as_str())?;
            Some((prefix.len(), base, rest))
        });
        match matching.max_by_key(|(length, ..)| *length) {
            Some((_, base, rest)) => format!("{base}{rest}"),
            None => url.to_owned(),
        }
    }
}

/// Where a submodule is fetched from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Address {
    /// The resolved URL as its author means it. The URLs of submodules in it are relative to this one.
    pub(super) written: String,
    /// The URL that it is fetched from, after the operator's [`InsteadOf`].
    pub(super) url: String,
}

/// The URLs that the operator allows.
#[derive(Clone, Debug)]
pub(super) struct Policy<'a> {
    /// The configured hosts.
    pub(super) hosts: &'a Hosts,
    /// The hosts that [`Hosts::Known`] allows implicitly.
    pub(super) known: &'a [String],
    /// Repositories on this machine are allowed.
    pub(super) local: bool,
    /// Which URLs are fetched from elsewhere. What is allowed is decided about where they are fetched from.
    pub(super) instead_of: &'a InsteadOf,
}

/// Resolves `url` of a submodule in a repository with the URL `base`, rewrites it, and checks it against the policy. As
/// in git, `base` is the URL before it was rewritten. The error says why the URL is refused; it follows the submodule's
/// path.
pub(super) fn address(base: &str, url: Option<&str>, policy: &Policy<'_>) -> Result<Address, String> {
    let url = url.filter(|url| !url.is_empty()).ok_or("`.gitmodules` has no url for it")?;
    let too_long = || format!("its url has more than {URL_MAX} bytes");
    if url.len() > URL_MAX {
        return Err(too_long());
    }
    let written =
        if url.starts_with("./") || url.starts_with("../") { relative(base, url)? } else { url.to_owned() };
    if written.len() > URL_MAX {
        return Err(too_long());
    }
    let url = policy.instead_of.rewritten(&written);
    check(&url, policy)?;
    Ok(Address { written, url })
}

/// Checks a URL to fetch from against the policy.
fn check(full: &str, policy: &Policy<'_>) -> Result<(), String> {
    let malformed = |why: &str| format!("its url {:?} is not a remote: {why}", shown(full));
    match RemoteHost::of(full).map_err(malformed)? {
        RemoteHost::Here if !is_absolute(full) => {
            Err(malformed("a path in a submodule's url must be absolute"))
        }
        RemoteHost::Here if policy.local => Ok(()),
        RemoteHost::Here => Err(format!(
            "its url {:?} is on this machine, which --git-config=protocol.file.allow:always would allow",
            shown(full)
        )),
        RemoteHost::Host(host) => {
            let is = |known: &String| known.eq_ignore_ascii_case(&host);
            let allowed = match policy.hosts {
                Hosts::Any => true,
                Hosts::Known(more) => policy.known.iter().chain(more).any(is),
            };
            if allowed {
                return Ok(());
            }
            let host = excerpt(&host);
            Err(format!("its host {host:?} is not among the hosts that submodules may come from"))
        }
    }
}

/// A URL from a commit, cut for display and without secrets.
pub(super) fn shown(url: &str) -> String {
    excerpt(&redact(&quoted(url)))
}

fn is_absolute(url: &str) -> bool {
    url.starts_with('/') || url.contains("://")
}

/// Resolves leading `./` and `../` of `url` as git does (`relative_url` in its remote.c): by textual components of the
/// base, where the colon of the scp form counts as a separator. Unlike git, it never goes above the host. Further `..`,
/// which git leaves to the server, are resolved as a URL's.
fn relative(base: &str, url: &str) -> Result<String, String> {
    let climbs =
        || format!("its url {:?} climbs out of {:?}, which it is relative to", shown(url), shown(base));
    let base = base.strip_suffix('/').unwrap_or(base);
    // The length of the part of the base that `../` must not remove: `scheme://host`. It is 0 for a path and for the
    // scp form: there the loop below fails at the first component, or at the host.
    let floor = match base.find("://") {
        Some(at) => base[at + 3..].find('/').map_or(base.len(), |slash| at + 3 + slash),
        None => 0,
    };
    let (ups, rest) = steps(url);
    let mut kept = base;
    let mut separator = "/";
    for _ in 0..ups {
        let path = &kept[floor..];
        match (path.rfind('/'), path.rfind(':')) {
            (Some(slash), _) => kept = &kept[..floor + slash],
            (None, Some(colon)) if floor == 0 && separator == "/" => {
                kept = &kept[..colon];
                separator = ":";
            }
            _ => return Err(climbs()),
        }
    }
    Ok(format!("{kept}{separator}{rest}"))
}

/// Splits a relative URL into the number of components that it leads up, and the path from there. Without further `..`
/// the path is as it was written.
fn steps(url: &str) -> (usize, String) {
    let (mut ups, mut rest) = (0, url);
    loop {
        if let Some(after) = rest.strip_prefix("../") {
            (ups, rest) = (ups + 1, after);
        } else if let Some(after) = rest.strip_prefix("./") {
            rest = after;
        } else {
            break;
        }
    }
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.split('/').all(|part| part != "..") {
        return (ups, rest.to_owned());
    }
    let mut parts = Vec::new();
    for part in rest.split('/') {
        match part {
            "." => {}
            ".." => ups += usize::from(parts.pop().is_none()),
            part => parts.push(part),
        }
    }
    (ups, parts.join("/"))
}

/// The host of a credential's URL, if it has one.
pub(super) fn host_of(url: &str) -> Option<String> {
    Url::parse(url).ok()?.host_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(base: &str, url: &str, hosts: &Hosts, local: bool) -> Result<String, String> {
        let known = ["example.com".to_owned()];
        let policy = Policy { hosts, known: &known, local, instead_of: &InsteadOf::default() };
        address(base, Some(url), &policy).map(|found| found.url)
    }

    #[test]
    fn relative_urls_resolve_against_what_was_written_and_only_where_they_lead_is_judged() {
        let rules = [
            ("hub:", "https://example.com/"),
            ("https://github.com/", "https://example.com/mirror/"),
            ("https://example.com/far/", "https://evil.example/"),
            ("https://example.com/near/", "/srv/"),
        ];
        let owned = |(prefix, base): (&str, &str)| (prefix.to_owned(), base.to_owned());
        let (instead_of, known) = (InsteadOf::new(rules.map(owned)), ["example.com".to_owned()]);
        let hosts = Hosts::Known(Vec::new());
        let policy = Policy { hosts: &hosts, known: &known, local: false, instead_of: &instead_of };
        for (base, url, written, expected) in [
            ("hub:team/a", "../b", "hub:team/b", "https://example.com/team/b"),
            ("hub:a", "../b", "hub:b", "https://example.com/b"),
            (
                "https://github.com/team/a",
                "../../other/b",
                "https://github.com/other/b",
                "https://example.com/mirror/other/b",
            ),
            ("https://example.com/a", "hub:b", "hub:b", "https://example.com/b"),
            ("https://example.com/a", "../b", "https://example.com/b", "https://example.com/b"),
        ] {
            let expected = Address { written: written.to_owned(), url: expected.to_owned() };
            assert_eq!(address(base, Some(url), &policy), Ok(expected), "{base} {url}");
        }
        for (url, expected) in [("../far/b", "not among the hosts"), ("../near/b", "on this machine")] {
            let refused = address("https://example.com/a", Some(url), &policy).unwrap_err();
            assert!(refused.contains(expected), "{url}: {refused}");
        }
    }

    #[test]
    fn the_longest_text_is_replaced_once_and_no_password_is_shown() {
        let rules = [
            ("", "nothing"),
            ("x:", "https://bob:s3cret@a.example/"),
            ("x:", "https://b.example/"),
            ("x:y/", "x:z/"),
        ];
        let instead_of = InsteadOf::new(rules.map(|(prefix, base)| (prefix.to_owned(), base.to_owned())));
        assert_eq!(instead_of.rewritten("x:foo"), "https://bob:s3cret@a.example/foo");
        assert_eq!(instead_of.rewritten("x:y/foo"), "x:z/foo");
        assert_eq!(instead_of.rewritten("ax:foo"), "ax:foo");
        assert!(!format!("{instead_of:?}").contains("s3cret"), "{instead_of:?}");
    }

    #[test]
    fn relative_urls_resolve_as_git_resolves_them() {
        for (base, url, expected) in [
            ("https://example.com/team/a.git", "../b.git", "https://example.com/team/b.git"),
            ("https://example.com/team/a.git/", "../b.git/", "https://example.com/team/b.git"),
            ("https://example.com/team/a.git", "../../other/b", "https://example.com/other/b"),
            ("https://example.com/team/a.git", "./b", "https://example.com/team/a.git/b"),
            ("https://example.com/team/a.git", ".././../b", "https://example.com/b"),
            ("https://example.com/team/a.git", "../x/../b.git", "https://example.com/team/b.git"),
            ("https://example.com/team/a.git", "../x/./y/../../b", "https://example.com/team/b"),
            ("https://example.com/team/a.git", "../x/../../other/b", "https://example.com/other/b"),
            ("https://example.com/team/a.git", "../x/./b", "https://example.com/team/x/./b"),
            ("git@example.com:team/a.git", "../../x/../b.git", "git@example.com:b.git"),
            ("git@example.com:team/a.git", "../b.git", "git@example.com:team/b.git"),
            ("git@example.com:a.git", "../b.git", "git@example.com:b.git"),
            ("ssh://git@example.com:22/a", "../b", "ssh://git@example.com:22/b"),
            ("file:///srv/a", "../b", "file:///srv/b"),
            ("/srv/x/a", "../b", "/srv/x/b"),
            ("/srv/x/a", "../../b", "/srv/b"),
        ] {
            assert_eq!(checked(base, url, &Hosts::Any, true).as_deref(), Ok(expected), "{base} {url}");
        }
    }

    #[test]
    fn what_climbs_out_of_the_host_is_refused() {
        for (base, url) in [
            ("https://example.com/a.git", "../../evil.example/b"),
            ("https://example.com/a.git", "../b/../../../c"),
            ("git@example.com:team/a.git", "../x/../../../c"),
            ("git@example.com:a.git", "../../evil.example:b"),
            ("https://example.com", "../x"),
            ("/a", "../../b"),
        ] {
            let refused = checked(base, url, &Hosts::Any, true).unwrap_err();
            assert!(refused.contains("climbs out of"), "{base} {url}: {refused}");
        }
    }

    #[test]
    fn schemes_hosts_and_this_machine_are_the_operators_to_allow() {
        let known = Hosts::Known(vec!["Mirror.example".into()]);
        let base = "https://example.com/a.git";
        for allowed in [
            "https://example.com/b",
            "ssh://git@mirror.example/b",
            "git@EXAMPLE.com:b",
            "git://example.com/b",
        ] {
            assert_eq!(checked(base, allowed, &known, false).as_deref(), Ok(allowed));
        }
        for (url, expected) in [
            ("https://evil.example/b", "not among the hosts"),
            ("git@evil.example:b", "not among the hosts"),
            ("file:///etc", "on this machine"),
            ("/etc", "on this machine"),
            ("ext::sh -c id", "not a remote"),
            ("ext::sh://x", "not a remote"),
            ("foo+bar::x", "remote helpers"),
            ("remote-ext.1::example.com", "remote helpers"),
            ("ftp://example.com/x", "not a remote"),
            ("-uevil:x", "not a remote"),
            ("ssh://-oProxyCommand=id/x", "not a remote"),
            ("https://example.com/x\nhost: y", "not a remote"),
            ("", "has no url"),
        ] {
            for hosts in [&known, &Hosts::Any] {
                let refused = match checked(base, url, hosts, false) {
                    Err(refused) => refused,
                    Ok(_) if *hosts == Hosts::Any && expected == "not among the hosts" => continue,
                    Ok(taken) => panic!("{url} was taken as {taken}"),
                };
                assert!(refused.contains(expected), "{url}: {refused}");
            }
        }
        assert!(checked("/srv/a", "b/c", &Hosts::Any, true).is_err(), "relative to what?");
        for url in ["../".repeat(300_000), format!("https://{}/b", "h".repeat(900_000)), "x".repeat(900_000)]
        {
            let refused = checked(base, &url, &known, false).unwrap_err();
            assert!(refused.len() < 1_000, "{} bytes", refused.len());
        }
        for (bytes, is_allowed) in [(URL_MAX, true), (URL_MAX + 1, false)] {
            let url = format!("{base}/{}", "b".repeat(bytes - base.len() - 1));
            assert_eq!(checked(base, &url, &known, false).is_ok(), is_allowed, "{bytes}");
            let relative = format!("./{}", "b".repeat(bytes - base.len() - 1));
            assert_eq!(checked(base, &relative, &known, false).is_ok(), is_allowed, "{bytes}");
        }
        let secret = checked(base, "https://bob:s3cret@/x", &known, false).unwrap_err();
        assert!(!secret.contains("s3cret"), "{secret}");
        assert_eq!(host_of("https://h.example:8443/x").as_deref(), Some("h.example"));
    }

    #[test]
    fn a_password_that_an_author_wrote_is_no_secret_of_ours() {
        let word = "uN7q-zK4x-of-an-author";
        for host in ["example.com", "evil.example"] {
            let url = format!("https://x:{word}@{host}/b");
            let checked = checked("https://example.com/a.git", &url, &Hosts::Known(Vec::new()), false);
            assert_eq!(checked.is_ok(), host == "example.com", "{checked:?}");
        }
        assert_eq!(quoted(word), word);
    }
}
