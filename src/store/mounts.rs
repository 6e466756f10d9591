//! Maps a path to its location inside its file system, independent of mount points: `/proc/self/mountinfo`
//! (proc_pid_mountinfo(5)) names the directory of the file system that each mount shows.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// Returns the path relative to the root of a resolved path that is reached through another mount of a directory in the
/// root. `None` if it is not in the root, or mountinfo cannot be read. Blocking.
pub(super) fn below(root: &Path, resolved: &Path) -> Option<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    below_by(&table, &std::fs::canonicalize(root).ok()?, resolved)
}

/// Like [`below`], with the content of mountinfo given.
fn below_by(table: &str, root: &Path, resolved: &Path) -> Option<PathBuf> {
    let (device, root) = on_disk(table, root)?;
    let (other, path) = on_disk(table, resolved)?;
    (device == other).then(|| path.strip_prefix(root).ok().map(Path::to_owned))?
}

/// Returns the device of a path and the path inside that file system. Of several mounts on one mount point the last
/// hides the others.
fn on_disk<'t>(table: &'t str, path: &Path) -> Option<(&'t str, PathBuf)> {
    let mut best: Option<(usize, &str, PathBuf)> = None;
    for line in table.lines() {
        let mut fields = line.split(' ').skip(2);
        let device = fields.next()?;
        let shown = unescaped(fields.next()?);
        let at = unescaped(fields.next()?);
        let Ok(rest) = path.strip_prefix(&at) else { continue };
        let depth = at.components().count();
        if best.as_ref().is_none_or(|(deepest, ..)| depth >= *deepest) {
            best = Some((depth, device, shown.join(rest)));
        }
    }
    best.map(|(_, device, path)| (device, path))
}

/// Decodes a mountinfo field, in which blanks and similar bytes are written as a backslash and three octal digits.
fn unescaped(text: &str) -> PathBuf {
    let raw = text.as_bytes();
    let mut bytes = Vec::new();
    let mut at = 0;
    while let Some(&byte) = raw.get(at) {
        let code = raw
            .get(at + 1..at + 4)
            .filter(|_| byte == b'\\')
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(code.unwrap_or(byte));
        at += if code.is_some() { 4 } else { 1 };
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
21 1 8:1 / / rw - ext4 /dev/sda1 rw
30 21 8:2 /pods/1/volumes/config /config rw - ext4 /dev/sdb1 rw
31 21 8:2 /pods/1/volumes/config/..gen/a\\040b /mnt/x\\040y rw - ext4 /dev/sdb1 rw
32 21 8:2 /pods/1/volumes/configs /mnt/near rw - ext4 /dev/sdb1 rw
33 21 0:9 /pods/1/volumes/config /mnt/other rw - tmpfs tmpfs rw
34 31 0:9 / /mnt/x\\040y/over rw - tmpfs tmpfs rw
";

    #[test]
    fn another_mount_of_a_directory_in_the_root_is_found() {
        let below = |path: &str| below_by(TABLE, Path::new("/config"), Path::new(path));
        assert_eq!(below("/mnt/x y/err.json").unwrap(), Path::new("..gen/a b/err.json"));
        assert_eq!(below("/config/a").unwrap(), Path::new("a"));
        for outside in ["/mnt/near/a", "/mnt/other/a", "/mnt/x y/over/a", "/etc/a"] {
            assert_eq!(below(outside), None, "{outside}");
        }
        assert_eq!(
            below_by(TABLE, Path::new("/srv/root"), Path::new("/srv/root/a")).unwrap(),
            Path::new("a")
        );
        assert_eq!(below_by("", Path::new("/config"), Path::new("/config/a")), None);
    }
}
