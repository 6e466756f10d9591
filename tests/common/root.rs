//! The rules of a root: what `..data` may name, which links must exist next to it, and what may be in a root while no
//! attempt is running. The same for git-sync's layout, with the link `live`.

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use super::tree::{Node, Snapshot};

/// The arguments for git-sync's layout with the link that these rules expect.
pub const GIT_SYNC: &[&str] = &["--layout=git-sync", "--link=live"];

fn is_git_sync(root: &Path) -> bool {
    root.join(".worktrees").exists()
}

/// Returns the directory that the link names. Its name must be a single component of a generation's form, or a commit
/// in `.worktrees`, and it must not be a symbolic link itself. `None`: there is no link.
pub fn current(root: &Path) -> Result<Option<PathBuf>, String> {
    let link = if is_git_sync(root) { "live" } else { "..data" };
    let target = match std::fs::read_link(root.join(link)) {
        Ok(target) => target,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{link} is no link: {error}")),
    };
    let name = target.to_str().unwrap_or_default();
    let is_one = match name.strip_prefix(".worktrees/") {
        Some(commit) => is_git_sync(root) && is_commit(commit),
        None => is_generation(name),
    };
    if !is_one {
        return Err(format!("{link} names {target:?}, which is no generation's name"));
    }
    let dir = root.join(name);
    match dir.symlink_metadata() {
        Ok(meta) if meta.is_dir() => Ok(Some(dir)),
        Ok(_) => Err(format!("{name} is no directory")),
        Err(error) => Err(format!("{link} names {name}: {error}")),
    }
}

fn is_commit(name: &str) -> bool {
    name.len() == 40 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Reads a generation. In git-sync's layout, checks its `.git` file and leaves it out.
fn read(root: &Path, dir: &Path) -> Result<Snapshot, String> {
    let mut found = Snapshot::read(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    if is_git_sync(root) {
        let commit = dir.file_name().unwrap_or_default().to_string_lossy();
        let content = format!("gitdir: ../../.git/worktrees/{commit}\n").into_bytes();
        let right = Node::File { executable: false, content };
        match found.0.remove(&b".git"[..]) {
            Some(file) if file == right => {}
            other => return Err(format!("{}: .git is {other:?}", dir.display())),
        }
    }
    Ok(found)
}

/// Returns true if the name has a generation's form, `..2026_11_20_15_04_05.123456789`.
pub fn is_generation(name: &str) -> bool {
    let Some((date, fraction)) = name.strip_prefix("..").and_then(|rest| rest.split_once('.')) else {
        return false;
    };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    date.len() == 19 && date.split('_').count() == 6 && date.split('_').all(digits) && digits(fraction)
}

/// Returns the name of the candidate that equals the current generation. It is an error if none does.
pub fn which<'a>(root: &Path, candidates: &[(&'a str, &Snapshot)]) -> Result<Option<&'a str>, String> {
    let Some(dir) = current(root)? else { return Ok(None) };
    let actual = read(root, &dir)?;
    if let Some((name, _)) = candidates.iter().find(|(_, candidate)| **candidate == actual) {
        return Ok(Some(name));
    }
    let mut lines = vec![format!("what ..data names is a mixture ({})", dir.display())];
    for (name, candidate) in candidates {
        lines.push(format!("against {name}:"));
        lines.extend(candidate.differences(&actual).into_iter().map(|line| format!("  {line}")));
    }
    Err(lines.join("\n"))
}

/// What is wrong with the published tree and the links in the root; empty if nothing is.
pub fn differences(root: &Path, expected: &Snapshot) -> Vec<String> {
    let dir = match current(root) {
        Ok(Some(dir)) => dir,
        Ok(None) => return vec!["nothing is published".into()],
        Err(wrong) => return vec![wrong],
    };
    let mut lines = match read(root, &dir) {
        Ok(actual) => expected.differences(&actual),
        Err(wrong) => vec![wrong],
    };
    lines.extend(wrong_links(root, expected));
    lines
}

/// What is wrong with the links in the root that readers use; empty if nothing is.
pub fn wrong_links(root: &Path, expected: &Snapshot) -> Vec<String> {
    let mut lines = Vec::new();
    if is_git_sync(root) {
        let known = ["..treeswap", ".git", ".worktrees", "live"].map(str::as_bytes);
        let others = names(root).into_iter().filter(|name| !known.contains(&&name[..]));
        return others.map(|name| format!("in the root: {}", name.escape_ascii())).collect();
    }
    for name in expected.top() {
        let path = root.join(std::ffi::OsStr::from_bytes(name));
        let wanted = Path::new("..data").join(std::ffi::OsStr::from_bytes(name));
        match std::fs::read_link(&path) {
            Ok(target) if target == wanted => {}
            Ok(target) => lines.push(format!("link {} goes to {target:?}", name.escape_ascii())),
            Err(error) => lines.push(format!("link {}: {error}", name.escape_ascii())),
        }
    }
    let wanted: Vec<&[u8]> = expected.top().collect();
    for name in names(root) {
        if !name.starts_with(b"..") && !wanted.contains(&name.as_slice()) {
            lines.push(format!("in the root, but not of the tree: {}", name.escape_ascii()));
        }
    }
    lines
}

/// Returns an error if a top-level name of the tree does not resolve into the current generation. If the last steps of
/// a publication failed, links may name the generation itself: that is correct for now, and repaired in the next cycle.
pub fn unreachable(root: &Path, expected: &Snapshot) -> Result<(), String> {
    let dir = current(root)?.ok_or("nothing is published")?;
    if is_git_sync(root) {
        return Ok(()); // there is no other link
    }
    for name in expected.top().map(std::ffi::OsStr::from_bytes) {
        let target =
            std::fs::read_link(root.join(name)).map_err(|error| format!("{}: {error}", name.display()))?;
        if target != Path::new("..data").join(name) && root.join(&target) != dir.join(name) {
            return Err(format!("link {} goes to {}", name.display(), target.display()));
        }
    }
    Ok(())
}

/// Lists what must not be in an idle root that retains this many generations.
pub fn left_behind(root: &Path, generations: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut found = 0;
    for name in names(root) {
        let text = String::from_utf8_lossy(&name);
        if is_generation(&text) {
            found += 1;
        } else if text.starts_with("..") && text != "..data" && text != "..treeswap" {
            lines.push(text.into_owned());
        }
    }
    let mirror = if is_git_sync(root) {
        found = names(&root.join(".worktrees")).len();
        let known = names(&root.join(".git/worktrees")).len();
        if known != generations {
            lines.push(format!("{known} worktrees in .git, not {generations}"));
        }
        ".git"
    } else {
        "..treeswap/mirror"
    };
    if found != generations {
        lines.push(format!("{found} generations, not {generations}"));
    }
    let ours = root.join("..treeswap");
    for name in names(&ours) {
        let text = String::from_utf8_lossy(&name).into_owned();
        match text.as_str() {
            "lock" | "state" | "status.json" | "mirror" | "mirrors" => {}
            // The socket of a running writer.
            "status.sock" if UnixStream::connect(ours.join("status.sock")).is_ok() => {}
            "staging" | "trash" => {
                lines.extend(
                    names(&ours.join(&text))
                        .iter()
                        .map(|inner| format!("..treeswap/{text}/{}", String::from_utf8_lossy(inner))),
                );
            }
            // The spare and its record.
            "spare"
                if names(&ours.join("spare"))
                    .iter()
                    .all(|name| [&b"tree"[..], b"ready"].contains(&&name[..])) => {}
            _ => lines.push(format!("..treeswap/{text}")),
        }
    }
    mirror_left_behind(&root.join(mirror), &mut lines);
    mirror_left_behind(&root.join("..treeswap/mirrors"), &mut lines);
    lines
}

/// Adds git's lock files and temporary files.
fn mirror_left_behind(dir: &Path, lines: &mut Vec<String>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let temporary =
            ["tmp_", "pack_git2_", "incoming-", ".tmp"].iter().any(|prefix| name.starts_with(prefix));
        if temporary || name.ends_with(".lock") || name.ends_with(".tmp") {
            lines.push(entry.path().display().to_string());
        } else if entry.path().is_dir() {
            mirror_left_behind(&entry.path(), lines);
        }
    }
}

/// The names in a directory, sorted; empty if it cannot be read.
pub fn names(dir: &Path) -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = std::fs::read_dir(dir)
        .map(|entries| entries.flatten().map(|entry| entry.file_name().as_bytes().to_vec()).collect())
        .unwrap_or_default();
    names.sort();
    names
}
