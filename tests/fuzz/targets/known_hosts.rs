//! Known hosts, against a simple reading of sshd(8).

use std::path::Path;

use russh::keys::PublicKey;

use super::super::target::Target as Host;
use super::HostKeys;
use crate::fuzz::{Input, Target};

pub(crate) const TARGETS: &[Target] = &[Target::new("known_hosts", known_hosts)];

const KEYS: [&str; 2] = [
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBnPPH4rMVR3hlz5YC/pXS0uceKj9fsHCzU/sXWJlfye",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFGcyCkkkx/YKa4X14u/C/WNP+g3oFeEp9nWultES0DD",
];

/// Whether a pattern names a host, by trying every length for each star.
fn names(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, rest) => rest.is_none(),
        (Some((b'*', more)), _) => (0..=name.len()).any(|taken| names(more, &name[taken..])),
        (Some((b'?', more)), Some((_, rest))) => names(more, rest),
        (Some((one, more)), Some((other, rest))) => one.eq_ignore_ascii_case(other) && names(more, rest),
        (Some(_), None) => false,
    }
}

/// A file of lines that are built of patterns and the keys, between lines of anything.
fn known_hosts(data: &[u8]) {
    let input = &mut Input::new(data);
    let port = if input.byte() & 1 == 0 { 22 } else { 2222 };
    let name = if port == 22 { "git.example.org" } else { "[git.example.org]:2222" };
    let mut text = String::new();
    let (mut trusted, mut revoked) = (Vec::new(), false);
    let mut is_all_ours = true;
    for _ in 0..12 {
        if input.is_empty() {
            break;
        }
        let op = input.byte();
        let pattern: String = match op % 4 {
            0 => name.to_owned(),
            _ => {
                let mut stars = 0; // each is tried at every length
                let mut few = |c: char| {
                    stars += usize::from(c == '*');
                    c != '*' || stars < 4
                };
                let text = input.text();
                let fit = text.chars().filter(|c| c.is_ascii_graphic() && !"#@|".contains(*c));
                fit.filter(|c| few(*c)).take(24).collect()
            }
        };
        if op % 4 == 3 || pattern.is_empty() {
            // A line of anything may be any of those, but is hardly one that is whole.
            let line = input.text().replace(['\n', '\r'], " ");
            is_all_ours &= line.trim().is_empty() || line.trim_start().starts_with('#');
            text += &format!("{line}\n");
            continue;
        }
        let key = usize::from(op >> 7);
        let marker = if op & 0x70 == 0x70 { "@revoked " } else { "" };
        text += &format!("{marker}{pattern} {}\n", KEYS[key]);
        let split = || pattern.split(',').filter(|one| !one.is_empty());
        let hit = |name: &str| {
            split().any(|one| !one.starts_with('!') && names(one.as_bytes(), name.as_bytes()))
                && !split().any(|one| {
                    one.strip_prefix('!').is_some_and(|one| names(one.as_bytes(), name.as_bytes()))
                })
        };
        let (exact, bare) = (hit(name), hit("git.example.org"));
        match () {
            () if marker.is_empty() && (exact || bare) => trusted.push((key, exact)),
            () if exact || bare => revoked |= key == 0,
            () => {}
        }
    }
    let target = Host { host: "git.example.org".to_owned(), port, user: "git".to_owned() };
    let Ok(hosts) = HostKeys::parse(&text, Path::new("known_hosts"), &target) else { return };
    let shown = PublicKey::from_openssh(KEYS[0]).unwrap().into();
    let answer = hosts.check(&shown);
    // Keys of the name with its port decide; without any of them those of the bare name do.
    let any_exact = trusted.iter().any(|(_, exact)| *exact);
    let expected = !revoked && trusted.iter().any(|(key, exact)| *key == 0 && *exact == any_exact);
    if is_all_ours {
        assert_eq!(answer.is_ok(), expected, "{text}");
    }
    let other = PublicKey::from_openssh(
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEGcyCkkkx/YKa4X14u/C/WNP+g3oFeEp9nWultES0DD",
    )
    .unwrap();
    assert!(hosts.check(&other.into()).is_err(), "a key that no line has is trusted: {text}");
}
