//! Checks a server's host key against a `known_hosts` file (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT").
//!
//! It supports plain, wildcard, negated and hashed names, `[host]:port`, `@revoked` and `@cert-authority`, and decides
//! like OpenSSH: a key for the bare name is also accepted on other ports, unless the file has keys of that algorithm
//! for the port; a certificate whose authority is not listed counts as the plain key within it. A line that cannot be
//! parsed is ignored, and named in the error if the server turns out to be unknown; but if it begins with `@revoked`,
//! no server is trusted until it is fixed. Not supported: hardware keys (`sk-*`) as host keys, and ssh-dss.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use russh::keys::ssh_key::certificate::CertType;
use russh::keys::ssh_key::known_hosts::{HostPatterns, Marker};
use russh::keys::{Algorithm, Certificate, HashAlg, PublicKey, PublicKeyOrCertificate};

use super::FILE_MAX;
use super::distrust::{Distrust, UntrustedReason};
use super::error::Error;
use super::target::Target;
use crate::fsx;

#[cfg(any(test, fuzzing))]
#[path = "../../../../tests/fuzz/targets/known_hosts.rs"]
pub(crate) mod fuzz;

/// The entries of a known_hosts file for one server.
#[derive(Clone, Debug)]
pub(super) struct HostKeys {
    target: Target,
    file: PathBuf,
    entries: Vec<Entry>,
    /// The numbers of lines that cannot be parsed.
    unread: Vec<usize>,
}

/// A line that applies to the server.
#[derive(Clone, Debug)]
struct Entry {
    line: usize,
    marker: Option<Marker>,
    key: PublicKey,
    /// True if it names the server with its port, and not only the bare name.
    exact: bool,
}

impl HostKeys {
    /// Reads and parses the file.
    pub(super) fn read(file: &Path, target: &Target) -> Result<Self, Error> {
        let read = std::fs::File::open(file).and_then(|from| fsx::read_whole(from, FILE_MAX));
        let text = read.map_err(|source| Error::ReadKnownHosts {
            file: file.to_owned(),
            source,
            scan: scan(target),
        })?;
        Self::parse(&String::from_utf8_lossy(&text), file, target)
    }

    fn parse(text: &str, file: &Path, target: &Target) -> Result<Self, Error> {
        let mut this =
            Self { target: target.clone(), file: file.to_owned(), entries: Vec::new(), unread: Vec::new() };
        for (index, content) in text.lines().enumerate() {
            let line = index + 1;
            match this.parse_line(line, content.trim()) {
                Ok(entry) => this.entries.extend(entry),
                Err(why) if content.trim_start().starts_with("@revoked") => {
                    return Err(Error::BadKnownHosts { file: file.to_owned(), line, why: why.to_owned() });
                }
                Err(why) => {
                    tracing::warn!(file = %file.display(), line, why, "skipped a line of known_hosts");
                    this.unread.push(line);
                }
            }
        }
        Ok(this)
    }

    /// Parses a line. Returns `None` if it does not apply to the server.
    fn parse_line(&self, line: usize, content: &str) -> Result<Option<Entry>, &'static str> {
        let mut fields = content.split_ascii_whitespace();
        let Some(mut hosts) = fields.next().filter(|field| !field.starts_with('#')) else { return Ok(None) };
        let mut marker = None;
        if hosts.starts_with('@') {
            marker = Some(Marker::from_str(hosts).map_err(|_| "an unknown marker")?);
            hosts = fields.next().ok_or("no host")?;
        }
        let kind = fields.next().ok_or("no key")?;
        let key = fields.next().ok_or("no key")?;
        let patterns = HostPatterns::from_str(hosts).map_err(|_| "a hashed host that can't be read")?;
        let host = self.target.host.to_ascii_lowercase();
        let exact = matches(&patterns, &name(&host, self.target.port));
        if !exact && !matches(&patterns, &host) {
            return Ok(None);
        }
        if kind == "ssh-dss" {
            return Ok(None); // not supported; so not even a revoked one can be presented to us
        }
        let key =
            PublicKey::from_openssh(&format!("{kind} {key}")).map_err(|_| "a key that can't be read")?;
        Ok(Some(Entry { line, marker, key, exact }))
    }

    /// The entries with a plain host key.
    fn keys(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.marker.is_none())
    }

    /// The entries with the key of a certificate authority.
    fn authorities(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.marker == Some(Marker::CertAuthority))
    }

    /// Moves the algorithms of known keys to the front, so that a server with several keys presents one that is known.
    pub(super) fn prefer(&self, algorithms: &[Algorithm]) -> Vec<Algorithm> {
        let known = |algorithm: &Algorithm| {
            self.keys().any(|entry| {
                let kind = entry.key.algorithm();
                kind == *algorithm || (kind.is_rsa() && matches!(algorithm, Algorithm::Rsa { .. }))
            })
        };
        let (mut first, rest): (Vec<_>, Vec<_>) = algorithms.iter().cloned().partition(known);
        first.extend(rest);
        first
    }

    /// Returns true if certificates should be requested: if the file lists an authority.
    pub(super) fn wants_certificates(&self) -> bool {
        self.authorities().next().is_some()
    }

    /// Checks the key or certificate that the server presented.
    pub(super) fn check(&self, shown: &PublicKeyOrCertificate) -> Result<(), Error> {
        let key = shown.public_key();
        self.refuse_revoked(&key)?;
        if let Some(certificate) = shown.certificate() {
            let authority = PublicKey::new(certificate.signature_key().clone(), "");
            self.refuse_revoked(&authority)?;
            if self.authorities().any(|entry| same(&entry.key, &authority)) {
                return self.check_certificate(certificate);
            }
        }
        self.check_key(&key)
    }

    fn distrust(&self, key: &PublicKey, why: UntrustedReason) -> Error {
        Error::HostKey(Box::new(Distrust {
            server: self.target.server(),
            file: self.file.clone(),
            shown: format!("{} {}", key.algorithm(), fingerprint(key)),
            scan: scan(&self.target),
            why,
        }))
    }

    fn refuse_revoked(&self, key: &PublicKey) -> Result<(), Error> {
        let mut revoked = self.entries.iter().filter(|entry| entry.marker == Some(Marker::Revoked));
        match revoked.find(|entry| same(&entry.key, key)) {
            Some(entry) => Err(self.distrust(key, UntrustedReason::Revoked { line: entry.line })),
            None => Ok(()),
        }
    }

    fn check_key(&self, key: &PublicKey) -> Result<(), Error> {
        let mut exact = self.keys().filter(|entry| entry.exact);
        if let Some(other) = exact.find(|entry| entry.key.algorithm() == key.algorithm()) {
            if self.keys().any(|entry| entry.exact && same(&entry.key, key)) {
                return Ok(());
            }
            let known = fingerprint(&other.key);
            return Err(self.distrust(key, UntrustedReason::Changed { line: other.line, known }));
        }
        if self.keys().any(|entry| same(&entry.key, key)) {
            return Ok(());
        }
        let known: Vec<String> = self
            .keys()
            .filter(|entry| entry.exact)
            .map(|entry| format!("{} (line {})", entry.key.algorithm(), entry.line))
            .collect();
        Err(self.distrust(
            key,
            if known.is_empty() {
                UntrustedReason::Unknown { unread: self.unread.clone() }
            } else {
                UntrustedReason::OtherKind { known: known.join(", ") }
            },
        ))
    }

    /// Checks a certificate of a known authority: it must be a host certificate, for this host, and valid now
    /// (PROTOCOL.certkeys). As in OpenSSH, a certificate without principals is valid for every host.
    fn check_certificate(&self, certificate: &Certificate) -> Result<(), Error> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let host = self.target.host.to_ascii_lowercase();
        let principals = certificate.valid_principals();
        let authority = certificate.signature_key().fingerprint(HashAlg::Sha256);
        let fault = if certificate.cert_type() != CertType::Host {
            "it is not a host certificate".to_owned()
        } else if now < certificate.valid_after() {
            "it is not valid yet".to_owned()
        } else if now >= certificate.valid_before() {
            "it is no longer valid".to_owned()
        } else if !principals.is_empty() && !principals.iter().any(|pattern| glob(pattern, &host)) {
            format!("it names {}", principals.join(", "))
        } else if certificate.critical_options().iter().next().is_some() {
            "it has an unknown critical option".to_owned()
        } else if certificate.signature().algorithm() == (Algorithm::Rsa { hash: None }) {
            "its signature uses SHA-1".to_owned()
        } else if certificate.validate_at(now, [&authority]).is_err() {
            "its signature is wrong".to_owned()
        } else {
            return Ok(());
        };
        Err(self.distrust(
            &PublicKey::new(certificate.public_key().clone(), ""),
            UntrustedReason::Certificate { fault },
        ))
    }
}

/// Compares two keys, ignoring their comments.
fn same(one: &PublicKey, other: &PublicKey) -> bool {
    one.key_data() == other.key_data()
}

/// The name under which the file lists a server.
fn name(host: &str, port: u16) -> String {
    if port == 22 { host.to_owned() } else { format!("[{host}]:{port}") }
}

/// The command that prints a server's keys.
fn scan(target: &Target) -> String {
    let port = if target.port == 22 { String::new() } else { format!("-p {} ", target.port) };
    format!("ssh-keyscan {port}{}", target.host)
}

fn fingerprint(key: &PublicKey) -> String {
    key.fingerprint(HashAlg::Sha256).to_string()
}

/// Returns true if a list of patterns matches the host. A negated pattern that matches takes precedence.
fn matches(patterns: &HostPatterns, name: &str) -> bool {
    match patterns {
        HostPatterns::Patterns(patterns) => {
            let (refused, wanted): (Vec<&str>, Vec<&str>) =
                patterns.iter().map(String::as_str).partition(|pattern| pattern.starts_with('!'));
            wanted.iter().any(|pattern| glob(pattern, name))
                && !refused.iter().any(|pattern| glob(&pattern[1..], name))
        }
        HostPatterns::HashedName { salt, hash } => {
            // The file format requires HMAC-SHA1. It only hides names; no security depends on it.
            let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, salt);
            hmac::verify(&key, name.as_bytes(), hash).is_ok()
        }
    }
}

/// Matches `*` and `?`; brackets are literal.
fn glob(pattern: &str, name: &str) -> bool {
    let pattern = pattern.to_ascii_lowercase();
    let pattern = pattern.as_bytes();
    let name = name.as_bytes();
    let mut p = 0;
    let mut n = 0;
    let mut star = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == b'?' || c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match star {
                // Backtrack: the last star takes one more byte.
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    p = at + 1;
                    n = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    const ED25519: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBnPPH4rMVR3hlz5YC/pXS0uceKj9fsHCzU/sXWJlfye";
    const OTHER: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFGcyCkkkx/YKa4X14u/C/WNP+g3oFeEp9nWultES0DD";
    const ECDSA: &str = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBITJIun9gi8EBaMZfwjwy0fadY6VxfX2vtacU4B5XWbm3aWGO0LQ88AX61cMdlV7reXdMBNl4c99J7dqySDhl78=";
    // Made with `ssh-keygen -H`.
    const HASHED: &str = "|1|D7ugwARLfBZOOmIDA5gw0XTjVko=|bGCA5cgPQEk7lksz3WJKJIc2E94=";
    const HASHED_2222: &str = "|1|8wR1hlZafekcGiyXcpkT9LpDk6E=|EEjGPWjTH105o/pReGxxjHIH/60=";
    // Made with `ssh-keygen -s other -I id -h -n git.example.org`: the key is ED25519, the authority OTHER.
    const CERTIFICATE: &str = "ssh-ed25519-cert-v01@openssh.com AAAAIHNzaC1lZDI1NTE5LWNlcnQtdjAxQG9wZW5zc2guY29tAAAAIEBt75ga6sdtrkFVCA3b455vt3pyhRQWdO90RUjL4xieAAAAIBnPPH4rMVR3hlz5YC/pXS0uceKj9fsHCzU/sXWJlfyeAAAAAAAAAAAAAAACAAAAAmlkAAAAEwAAAA9naXQuZXhhbXBsZS5vcmcAAAAAAAAAAP//////////AAAAAAAAAAAAAAAAAAAAMwAAAAtzc2gtZWQyNTUxOQAAACBRnMgpJJMf2CmuF9eLvwv1jT/oN6BXhKfZ1rpbREtAwwAAAFMAAAALc3NoLWVkMjU1MTkAAABATncf1qtFqWBUFYO0W4NREPc2y+yZxTTlP6IAWxJv64FQYTHH6ApfdkOKo2IAtah2UCYfLv7+m5wGhAGMIfmiAw==";

    fn read(text: &str, host: &str, port: u16) -> Result<HostKeys, Error> {
        let target = Target { host: host.into(), port, user: "git".into() };
        HostKeys::parse(text, Path::new("known_hosts"), &target)
    }

    /// The outcome of the check in one word.
    fn answer(text: &str, host: &str, port: u16, shown: &PublicKeyOrCertificate) -> &'static str {
        match read(text, host, port).and_then(|hosts| hosts.check(shown)) {
            Ok(()) => "trusted",
            Err(Error::HostKey(distrust)) => match distrust.why {
                UntrustedReason::Unknown { .. } => "unknown",
                UntrustedReason::OtherKind { .. } => "other kind",
                UntrustedReason::Changed { .. } => "changed",
                UntrustedReason::Revoked { .. } => "revoked",
                UntrustedReason::Certificate { .. } => "certificate",
            },
            Err(_) => "error",
        }
    }

    fn key(text: &str) -> PublicKeyOrCertificate {
        PublicKey::from_openssh(text).unwrap().into()
    }

    #[test]
    fn a_server_is_trusted_if_a_line_has_its_name_and_key() {
        let table = [
            (format!("git.example.org {ED25519}"), 22, "trusted"),
            (format!("git.example.org {ED25519} a comment"), 22, "trusted"),
            (format!("  git.example.org\t{ED25519}\r"), 22, "trusted"),
            (format!("GIT.example.ORG {ED25519}"), 22, "trusted"),
            (format!("192.0.2.1,git.example.org {ED25519}"), 22, "trusted"),
            (format!("# git.example.org {OTHER}\n\ngit.example.org {ED25519}"), 22, "trusted"),
            (format!("git.example.org {OTHER}\ngit.example.org {ED25519}"), 22, "trusted"),
            (format!("*.example.org {ED25519}"), 22, "trusted"),
            (format!("git.example.??? {ED25519}"), 22, "trusted"),
            (format!("*.example.org,!git.example.org {ED25519}"), 22, "unknown"),
            (format!("!git.example.org,*.example.org {ED25519}"), 22, "unknown"),
            (format!("!other.example.org {ED25519}"), 22, "unknown"),
            (format!("git.example.com {ED25519}"), 22, "unknown"),
            (format!("example.org {ED25519}"), 22, "unknown"),
            (String::new(), 22, "unknown"),
            (format!("git.example.org {OTHER}"), 22, "changed"),
            (format!("git.example.org {ECDSA}"), 22, "other kind"),
            (format!("{HASHED} {ED25519}"), 22, "trusted"),
            (format!("{HASHED} {OTHER}"), 22, "changed"),
            (format!("{HASHED_2222} {ED25519}"), 22, "unknown"),
            (format!("{HASHED_2222} {ED25519}"), 2222, "trusted"),
            (format!("[git.example.org]:2222 {ED25519}"), 2222, "trusted"),
            (format!("[git.example.org]:2222 {ED25519}"), 22, "unknown"),
            (format!("[git.example.org]:2222 {ED25519}"), 2223, "unknown"),
            (format!("[*.example.org]:2222 {ED25519}"), 2222, "trusted"),
            // OpenSSH also looks up the bare name, but a different key there does not count as a changed one.
            (format!("git.example.org {ED25519}"), 2222, "trusted"),
            (format!("git.example.org {OTHER}"), 2222, "unknown"),
            (format!("git.example.org {ED25519}\n[git.example.org]:2222 {OTHER}"), 2222, "changed"),
            (format!("git.example.org {ED25519}\n[git.example.org]:2222 {ECDSA}"), 2222, "trusted"),
            (format!("git.example.org {ED25519}\n@revoked * {ED25519}"), 22, "revoked"),
            (format!("@revoked git.example.org {ED25519}\ngit.example.org {ED25519}"), 22, "revoked"),
            (format!("git.example.org {ED25519}\n@revoked * {OTHER}"), 22, "trusted"),
            (format!("@revoked other.example.org {ED25519}\ngit.example.org {ED25519}"), 22, "trusted"),
            (format!("@cert-authority git.example.org {ED25519}"), 22, "unknown"),
            (format!("nonsense\ngit.example.org {ED25519}"), 22, "trusted"),
            ("git.example.org ssh-ed25519 AAAA".to_owned(), 22, "unknown"),
            (format!("git.example.org {ED25519}\n@revoked * ssh-ed25519 AAAA"), 22, "error"),
            (format!("@unheard-of git.example.org {ED25519}"), 22, "unknown"),
        ];
        for (text, port, expected) in table {
            assert_eq!(
                answer(&text, "git.example.org", port, &key(ED25519)),
                expected,
                "port {port}:\n{text}"
            );
        }
    }

    #[test]
    fn a_certificate_is_trusted_by_its_authority_or_its_own_key() {
        let shown: PublicKeyOrCertificate = Certificate::from_openssh(CERTIFICATE).unwrap().into();
        let table = [
            (format!("@cert-authority *.example.org {OTHER}"), "git.example.org", "trusted"),
            (format!("@cert-authority * {OTHER}"), "GIT.example.org", "trusted"),
            (format!("@cert-authority * {OTHER}"), "other.example.org", "certificate"),
            (format!("@cert-authority *.example.com {OTHER}"), "git.example.org", "unknown"),
            (format!("@cert-authority * {ECDSA}"), "git.example.org", "unknown"),
            (format!("git.example.org {OTHER}"), "git.example.org", "changed"),
            (format!("git.example.org {ED25519}"), "git.example.org", "trusted"),
            (format!("@cert-authority * {OTHER}\n@revoked * {OTHER}"), "git.example.org", "revoked"),
            (format!("@cert-authority * {OTHER}\n@revoked * {ED25519}"), "git.example.org", "revoked"),
        ];
        for (text, host, expected) in table {
            assert_eq!(answer(&text, host, 22, &shown), expected, "{host}:\n{text}");
        }
    }

    #[test]
    fn a_certificate_with_a_wrong_signature_is_not_trusted() {
        let mut bytes = Certificate::from_openssh(CERTIFICATE).unwrap().to_bytes().unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        let shown: PublicKeyOrCertificate = Certificate::from_bytes(&bytes).unwrap().into();
        let text = format!("@cert-authority * {OTHER}");
        assert_eq!(answer(&text, "git.example.org", 22, &shown), "certificate");
    }

    #[test]
    fn lines_that_cannot_be_read_are_named() {
        let text = format!("nonsense\n\ngit.example.org ssh-ed25519 AAAA\nelse {ED25519}\n|1|x|y {ED25519}");
        let error = read(&text, "git.example.org", 22).unwrap().check(&key(ED25519)).unwrap_err();
        assert_eq!(error.hints()[1], "known_hosts has lines that cannot be read: 1, 3, 5");
        let error = read("# fine\n@revoked", "git.example.org", 22).unwrap_err();
        assert_eq!(error.to_string(), "known_hosts line 2: no host");
    }

    #[test]
    fn algorithms_of_known_keys_are_preferred() {
        let offered =
            [Algorithm::Ed25519, "ecdsa-sha2-nistp256".parse().unwrap(), "rsa-sha2-512".parse().unwrap()];
        let preferred = |text: &str| {
            let order = read(text, "h", 22).unwrap().prefer(&offered);
            order.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(preferred(""), ["ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512"]);
        assert_eq!(preferred(&format!("h {ECDSA}")), ["ecdsa-sha2-nistp256", "ssh-ed25519", "rsa-sha2-512"]);
        assert_eq!(preferred(&format!("@revoked h {ECDSA}"))[0], "ssh-ed25519");
    }

    #[test]
    fn stars_in_patterns_backtrack() {
        let table = [
            ("*", "", true),
            ("a*c", "abcbc", true),
            ("a*b*c", "axxbyyc", true),
            ("a*b", "abc", false),
            ("[a]", "a", false),
            ("**", "x", true),
            ("?", "", false),
        ];
        for (pattern, name, expected) in table {
            assert_eq!(glob(pattern, name), expected, "{pattern} {name}");
        }
    }
}
