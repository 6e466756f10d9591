//! A record that the tip was found complete, so that the next opening need not walk its whole tree again: in a
//! repository of 90,000 files that is a third of the time that a plan takes.
//!
//! It holds a digest of what the check depended on: the tip, and the names, inodes, sizes and times of change of all
//! files in `objects/pack`. It counts within one boot only: nothing but a power cut takes from a file what was written
//! to it without any of these being different afterwards. A block that the disk returns wrongly is not noticed by it,
//! nor is one of a blob by the check itself. Then an object cannot be read when it is needed, and the file says
//! [`DAMAGED`] instead until the mirror is rebuilt: by the next fetch of this process, or by the next opening.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fs_err as fs;

use super::error::Error;
use super::files::{COMPLETE, ignore_absent, replace};
use crate::clock;
use crate::human::one_line;
use crate::repeats::{Repeats, suppressed};
use crate::revision::ObjectId;
use crate::sha256::{hex, sha256};

/// The content of the file of a mirror that must be rebuilt.
const DAMAGED: &str = "damaged";

/// By mirror, what the log says of a file that cannot be changed.
type Failing = BTreeMap<PathBuf, Repeats>;

/// Held while the file of any mirror is changed: several threads may find at once that an object cannot be read, while
/// another one records what it fetched.
static CHANGE: Mutex<Failing> = Mutex::new(BTreeMap::new());

fn begin_change() -> MutexGuard<'static, Failing> {
    CHANGE.lock().unwrap_or_else(PoisonError::into_inner) // what it holds is consistent after every step
}

/// Returns true if the mirror in `dir` is as it was when `tip` was found complete: with what is filtered out absent if
/// `partial`.
pub(super) fn is_recorded(dir: &Path, tip: ObjectId, partial: bool) -> bool {
    let recorded = fs::read_to_string(dir.join(COMPLETE));
    recorded.is_ok_and(|recorded| digest(dir, tip, partial).is_ok_and(|digest| recorded == digest))
}

/// Records that `tip` was found complete, unless an object could not be read since. Without a record, the next opening
/// checks it: an error does not matter.
pub(super) fn record(dir: &Path, tip: ObjectId, partial: bool) {
    let path = dir.join(COMPLETE);
    let digest = digest(dir, tip, partial).map_err(|error| error.to_string());
    let _change = begin_change();
    if is_damaged(dir) {
        return;
    }
    let write = |digest: String| replace(&path, digest.as_bytes(), false).map_err(|error| error.to_string());
    if let Err(error) = digest.and_then(write) {
        tracing::debug!("{} is not written: {error}", path.display());
    }
}

/// Makes the next opening check the tip.
pub(super) fn forget(dir: &Path) {
    let mut failing = begin_change();
    if !is_damaged(dir) {
        log_result(dir, remove(dir), &mut failing);
    }
}

/// Makes the next opening rebuild the mirror, because an object could not be read.
pub(super) fn note_damage(dir: &Path) {
    let mut failing = begin_change();
    let noted = replace(&dir.join(COMPLETE), DAMAGED.as_bytes(), false).map_err(|error| {
        let kind = match &error {
            Error::Local { source, .. } => source.kind(),
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, one_line(&error))
    });
    // Without the file the next opening checks the tip, at least.
    let done = noted.or_else(|error| remove(dir).and(Err(error)));
    log_result(dir, done, &mut failing);
}

/// Returns true if an object could not be read since the mirror was made.
pub(super) fn is_damaged(dir: &Path) -> bool {
    fs::read_to_string(dir.join(COMPLETE)).is_ok_and(|text| text == DAMAGED)
}

/// Removes the file: after the mirror was rebuilt.
pub(super) fn clear(dir: &Path) {
    let mut failing = begin_change();
    log_result(dir, remove(dir), &mut failing);
}

fn remove(dir: &Path) -> io::Result<()> {
    let advice = "remove it, or a restart does not notice damage of the mirror";
    let removed = ignore_absent(fs::remove_file(dir.join(COMPLETE)));
    removed.map_err(|error| io::Error::new(error.kind(), format!("{error}; {advice}")))
}

/// Warns that the file could not be changed: when that begins, and then at growing intervals. Not of a read-only file
/// system, where nobody can follow the advice: a fetch fails there, too, and its error says what to do.
fn log_result(dir: &Path, done: io::Result<()>, failing: &mut Failing) {
    match done {
        Ok(()) => _ = failing.remove(dir),
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => tracing::debug!("{error}"),
        Err(error) => {
            let why = error.to_string();
            if let Some(times) = failing.entry(dir.to_owned()).or_default().should_log(&why) {
                tracing::warn!("{why}{}", suppressed(times));
            }
        }
    }
}

/// Fails if the check depends on more than the files in `objects/pack`.
fn digest(dir: &Path, tip: ObjectId, partial: bool) -> io::Result<String> {
    let boot = clock::now().boot_id;
    if boot.is_empty() {
        return Err(io::Error::other("the boot has no id"));
    }
    let objects = dir.join("objects");
    for entry in fs::read_dir(&objects)? {
        let name = entry?.file_name();
        if name != "pack" && name != "info" {
            return Err(io::Error::other("there are loose objects"));
        }
    }
    if fs::symlink_metadata(objects.join("info/alternates")).is_ok() {
        return Err(io::Error::other("there are alternates"));
    }
    let mut files = fs::read_dir(objects.join("pack"))?
        .map(|entry| {
            let entry = entry?;
            let found = entry.metadata()?;
            let changed = (found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec());
            Ok((entry.file_name(), found.dev(), found.ino(), found.len(), changed))
        })
        .collect::<io::Result<Vec<_>>>()?;
    files.sort_unstable();
    let mut text = format!("{boot} {tip} {partial}\n");
    // Quoted, so that no name can pass for several lines.
    files.iter().try_for_each(|file| writeln!(text, "{file:?}")).map_err(io::Error::other)?;
    Ok(hex(&sha256(&[text.as_bytes()])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_for_the_same_tip_and_the_same_files_only() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let packs = dir.join("objects/pack");
        std::fs::create_dir_all(&packs).unwrap();
        let [pack, index] = ["pack", "idx"].map(|suffix| packs.join(format!("pack-1.{suffix}")));
        std::fs::write(&pack, "12345").unwrap();
        std::fs::write(&index, "1").unwrap();
        let tip = ObjectId([1; 20]);
        assert!(!is_recorded(dir, tip, false));
        record(dir, tip, false);
        assert!(is_recorded(dir, tip, false));
        assert!(!is_recorded(dir, ObjectId([2; 20]), false));
        assert!(!is_recorded(dir, tip, true), "complete but for what is filtered out");
        let modified = std::fs::metadata(&pack).unwrap().modified().unwrap();

        let changes: [(&str, &dyn Fn()); 6] = [
            ("its content, and the time set back", &|| {
                std::thread::sleep(std::time::Duration::from_millis(20)); // longer than a tick of the kernel's clock
                std::fs::write(&pack, "54321").unwrap();
                std::fs::File::options().write(true).open(&pack).unwrap().set_modified(modified).unwrap();
            }),
            ("its size", &|| std::fs::write(&pack, "1234").unwrap()),
            ("another pack", &|| std::fs::write(packs.join("pack-2.pack"), "").unwrap()),
            ("a pack less", &|| std::fs::remove_file(packs.join("pack-2.pack")).unwrap()),
            ("loose objects", &|| std::fs::create_dir(dir.join("objects/aa")).unwrap()),
            ("alternates", &|| {
                std::fs::remove_dir(dir.join("objects/aa")).unwrap();
                std::fs::create_dir(dir.join("objects/info")).unwrap();
                std::fs::write(dir.join("objects/info/alternates"), "/x\n").unwrap();
            }),
        ];
        for (what, change) in changes {
            change();
            assert!(!is_recorded(dir, tip, false), "{what}");
            record(dir, tip, false);
        }
        std::fs::remove_file(dir.join("objects/info/alternates")).unwrap();
        record(dir, tip, false);
        assert!(is_recorded(dir, tip, false));
        forget(dir);
        assert!(!is_recorded(dir, tip, false) && !is_damaged(dir));
        note_damage(dir);
        record(dir, tip, false);
        forget(dir);
        assert!(is_damaged(dir) && !is_recorded(dir, tip, false), "until it is rebuilt");
        clear(dir);
        record(dir, tip, false);
        assert!(is_recorded(dir, tip, false));
    }

    #[test]
    fn a_file_that_cannot_be_changed_is_warned_of_once_and_a_read_only_file_system_never() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let subscriber = tracing_subscriber::fmt().with_writer(std::fs::File::create(&log).unwrap());
        let _logging = tracing::subscriber::set_default(subscriber.finish());
        let warnings =
            || fs::read_to_string(&log).unwrap().matches("a restart does not notice damage").count();
        std::fs::create_dir_all(dir.path().join(COMPLETE).join("below")).unwrap();
        for _ in 0..3 {
            forget(dir.path());
            note_damage(dir.path());
            clear(dir.path());
            assert_eq!(warnings(), 1);
        }
        std::fs::remove_dir_all(dir.path().join(COMPLETE)).unwrap();
        clear(dir.path());
        std::fs::create_dir(dir.path().join(COMPLETE)).unwrap();
        clear(dir.path());
        assert_eq!(warnings(), 2, "the first failure had ended");
        let read_only = io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "a restart does not notice damage");
        log_result(dir.path(), Err(read_only), &mut Failing::new());
        assert_eq!(warnings(), 2);
    }

    #[test]
    fn damage_that_several_threads_find_at_once_is_noted() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        std::fs::create_dir_all(dir.join("objects/pack")).unwrap();
        for _ in 0..200 {
            clear(dir);
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| note_damage(dir));
                }
                scope.spawn(|| record(dir, ObjectId([1; 20]), false));
            });
            assert!(is_damaged(dir));
        }
    }
}
