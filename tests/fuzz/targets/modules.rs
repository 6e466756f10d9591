//! `.gitmodules`, and where a submodule is fetched from: both are written by whoever writes a commit.

use std::collections::BTreeSet;

use super::address::{Policy, address};
use super::declared::{Declared, read};
use super::{Hosts, InsteadOf};
use crate::fuzz::{Input, SECRET, Scratch, Target};
use crate::mirror::wire::RemoteHost;

pub(crate) const TARGETS: &[Target] =
    &[Target::new("gitmodules", gitmodules), Target::new("addresses", addresses)];

/// As git would write it.
fn quoted(text: &str) -> String {
    let inner = text
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
        .replace('\t', "\\t")
        .replace('\u{8}', "\\b");
    format!("\"{inner}\"")
}

fn gitmodules(data: &[u8]) {
    let all = match read(data) {
        Ok(all) => all,
        Err(error) => {
            assert!(!error.contains('\n'));
            return;
        }
    };
    for (path, one) in &all {
        match one {
            Ok(one) => assert!(one.path.as_bytes() == path),
            Err(error) => assert!(!error.contains('\n')),
        }
    }
    let declared: Vec<Declared> = all.into_values().flatten().collect();
    let paths: BTreeSet<&str> = declared.iter().map(|one| one.path.as_str()).collect();
    let names: BTreeSet<&str> = declared.iter().map(|one| one.name.as_str()).collect();
    assert!(paths.len() == declared.len() && names.len() == declared.len());
    let mut written = String::new();
    for one in &declared {
        for part in one.path.split('/') {
            assert!(!matches!(part, "" | "." | "..") && !part.eq_ignore_ascii_case(".git"), "{:?}", one.path);
        }
        assert!(!one.path.starts_with('-') && !one.name.starts_with('-') && !one.name.is_empty());
        assert!(!one.name.split(['/', '\\']).any(|part| part == ".."), "{:?}", one.name);
        assert!(!one.path.chars().chain(one.name.chars()).any(char::is_control));
        let name = one.name.replace('\\', "\\\\").replace('"', "\\\"");
        written += &format!("[submodule \"{name}\"]\n\tpath = {}\n", quoted(&one.path));
        if let Some(url) = &one.url {
            written += &format!("\turl = {}\n", quoted(url));
        }
        if one.skipped {
            written += "\tupdate = none\n";
        }
    }
    // A line end of Windows within a value is one of the file's.
    if !written.contains('\r') {
        let again = read(written.as_bytes()).unwrap().into_values().collect::<Result<Vec<_>, _>>();
        assert_eq!(again.as_ref(), Ok(&declared), "{written}");
    }
    // Of these libgit2 reads some otherwise than git, which the tests beside the code are held against.
    let is_clear = !data.iter().any(|byte| matches!(byte, 0 | 11 | 12 | 13 | b'\\'));
    if data.len().is_multiple_of(8) && is_clear {
        as_libgit2_reads(data, &declared);
    }
}

/// Where libgit2 understands the file, too, it says the same of what is declared.
fn as_libgit2_reads(data: &[u8], declared: &[Declared]) {
    Scratch::with(|dir| {
        let file = dir.join("gitmodules");
        std::fs::write(&file, data).unwrap();
        let Ok(config) = git2::Config::open(&file) else { return };
        for one in declared {
            // Its keys cannot be asked for with these in them.
            if one.name.contains(['\n', '\0']) {
                continue;
            }
            let path = config.get_string(&format!("submodule.{}.path", one.name));
            // A key alone is true for us, and nothing for libgit2.
            if let Some(path) = path.ok().filter(|path| !path.is_empty()) {
                assert_eq!(path.strip_suffix('/').unwrap_or(&path), one.path, "{:?}", one.name);
            }
            if let (Ok(url), Some(ours)) =
                (config.get_string(&format!("submodule.{}.url", one.name)), &one.url)
            {
                assert!(url == *ours || url.is_empty(), "{url:?} {ours:?}");
            }
        }
    });
}

const BASES: [&str; 6] = [
    "https://git.example.com/team/a.git",
    "git@git.example.com:team/a.git",
    "ssh://git@git.example.com:22/a",
    "git://git.example.com/a",
    "https://git.example.com",
    "git.example.com:a",
];

/// Whatever a commit says, what is fetched from is a host that is allowed.
fn addresses(data: &[u8]) {
    let input = &mut Input::new(data);
    let base = *input.of(&BASES);
    let hide = input.byte() & 1 == 0;
    let mut url = String::from_utf8_lossy(input.rest()).into_owned();
    if hide {
        url = url.replacen('@', &format!(":{SECRET}@"), 1);
    }
    let hosts = Hosts::Known(Vec::new());
    let known = ["git.example.com".to_owned()];
    let policy = Policy { hosts: &hosts, known: &known, local: false, instead_of: &InsteadOf::default() };
    match address(base, Some(&url), &policy).map(|found| found.url) {
        Ok(full) => match RemoteHost::of(&full) {
            Ok(RemoteHost::Host(host)) => {
                assert!(
                    host.eq_ignore_ascii_case("git.example.com"),
                    "{url:?} of {base} is {full:?}, at {host:?}"
                );
                let of_url = url::Url::parse(&full).ok().filter(|url| url.has_host());
                if let Some(parsed) = of_url.filter(|_| full.contains("://")) {
                    let host = parsed.host_str().unwrap();
                    assert!(host.eq_ignore_ascii_case("git.example.com"), "{full:?} is at {host:?}");
                }
            }
            _ => panic!("{url:?} of {base} is {full:?}"),
        },
        Err(why) => {
            assert!(!why.contains(|c: char| c.is_control()), "{why:?}");
            assert!(
                !hide || url.matches('@').count() != 1 || !url.contains("://") || !why.contains(SECRET),
                "{why:?}"
            );
        }
    }
}
