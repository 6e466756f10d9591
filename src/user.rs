//! Adds the current user to `/etc/passwd` (`--add-user`): some programs that hooks run, ssh among them, refuse to work
//! for a user without an entry.

use std::io::Write;
use std::path::Path;

/// The user name; git-sync uses the same.
const NAME: &str = "git-sync";

/// Adds an entry for the effective user id unless the file has one. Returns whether an entry was added.
///
/// # Errors
/// When the file cannot be read or written. Most images allow writing only to root, so callers should not treat this as
/// fatal.
pub fn add(passwd: &Path, home: &str) -> std::io::Result<bool> {
    let user = rustix::process::geteuid().as_raw().to_string();
    let group = rustix::process::getegid().as_raw();
    let text = fs_err::read_to_string(passwd)?;
    if text.lines().any(|line| line.split(':').nth(2) == Some(&user)) {
        return Ok(false);
    }
    let start = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    // Without $HOME, the working directory, as in git-sync.
    let current = || std::env::current_dir().ok()?.into_os_string().into_string().ok();
    let home = if home.is_empty() { current().unwrap_or_default() } else { home.to_owned() };
    // A colon or newline would inject fields or a whole entry.
    let home = if home.is_empty() || home.contains([':', '\n']) { "/" } else { &home };
    let mut file = fs_err::OpenOptions::new().append(true).open(passwd)?;
    file.write_all(format!("{start}{NAME}:x:{user}:{group}:,,,:{home}:/sbin/nologin\n").as_bytes())?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_added_once_and_on_a_line_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let passwd = dir.path().join("passwd");
        let user = rustix::process::geteuid().as_raw();
        std::fs::write(&passwd, format!("other:x:{}:1::/:/bin/sh", user + 1)).unwrap();
        assert!(add(&passwd, "/tmp\nx:x:0:0").unwrap());
        assert!(!add(&passwd, "/tmp").unwrap());
        let text = std::fs::read_to_string(&passwd).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[1].starts_with(&format!("git-sync:x:{user}:")) && lines[1].contains(":/:"), "{text}");
        assert!(add(&dir.path().join("absent"), "/").is_err());
        std::fs::write(&passwd, "").unwrap();
        assert!(add(&passwd, "").unwrap());
        let text = std::fs::read_to_string(&passwd).unwrap();
        let home = text.split(':').nth(5).map(str::to_owned);
        assert_eq!(home, std::env::current_dir().unwrap().into_os_string().into_string().ok(), "{text}");
    }
}
