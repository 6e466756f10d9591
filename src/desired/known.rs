//! A cache of ConfigMap values by the blob they were made from. In memory it has the values of plans that still exist;
//! a file in the mirror keeps those of the last plan for the next process.
//!
//! The file is replaced as a whole by rename and never appended to, so it has the values of one plan only; the old one
//! is removed before the new one is written, so there is never more than one. Each entry has a checksum; reading stops
//! at the first wrong one. There is no protection against a malicious writer of the file: such a writer could change
//! the mirror's packs, too, which are not hashed again on reading either.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, BufWriter, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::fs::OFlags;

use crate::configmap::{Value, ValueEncoding};
use crate::revision::ObjectId;
use crate::sha256::sha256;

/// What a value is made from: a blob, and whether the value is compressed.
pub(super) type Key = (ObjectId, bool);

/// The file's first line. Another release may compress differently, so it does not use the file.
const FORMAT: &str = concat!("treeswap values 1 ", env!("CARGO_PKG_VERSION"), "\n");

/// Most bytes of values in the file. The values of a larger plan are not written.
const FILE_MAX: u64 = 256 << 20;

/// Largest value in the file, in bytes. A ConfigMap holds no more, and no larger value has its bytes.
const VALUE_MAX: usize = 1 << 20;

/// The file is rewritten when at least 1/64 of a plan's bytes are missing from it.
const STALE_PART: u64 = 64;

/// Length of an entry's header: object id, whether compressed, encoding, length, digest.
const HEAD: usize = 20 + 1 + 1 + 4 + 32;

/// Length of an entry's checksum, which follows its bytes: SHA-256 of header and bytes.
const SUM: usize = 32;

/// The cache. It does not keep values alive in memory: a value stays known while a plan holds it.
#[derive(Debug, Default)]
pub struct KnownValues {
    in_memory: Mutex<HashMap<Key, Weak<Value>>>,
    file: Option<PathBuf>,
    /// Whether this process has read the file.
    is_read: AtomicBool,
    /// Bytes of values that were made since the file was read or written.
    unwritten: AtomicU64,
}

impl KnownValues {
    /// A cache with a file in which values outlive the process.
    pub fn with_file(path: PathBuf) -> Self {
        Self { file: Some(path), ..Self::default() }
    }

    fn in_memory(&self) -> MutexGuard<'_, HashMap<Key, Weak<Value>>> {
        self.in_memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops the entries of values that no plan holds any more.
    pub(super) fn forget_dropped(&self) {
        self.in_memory().retain(|_, value| value.strong_count() > 0);
    }

    /// The value for a key, if a plan still holds it.
    pub(super) fn get(&self, key: &Key) -> Option<Arc<Value>> {
        self.in_memory().get(key).and_then(Weak::upgrade)
    }

    /// Adds a value that was made. It stays known while anybody holds it.
    pub(super) fn insert(&self, key: Key, value: &Arc<Value>) {
        self.unwritten.fetch_add(value.bytes().len() as u64, Ordering::Relaxed);
        self.in_memory().insert(key, Arc::downgrade(value));
    }

    /// Reads the wanted values from the file, at most `room` bytes of them, and adds them to the cache for as long as
    /// the caller holds the result. Reads the file only once per process; later calls return nothing.
    pub(super) fn read_file(&self, wanted: impl Iterator<Item = Key>, room: u64) -> Vec<Arc<Value>> {
        let Some(path) = self.file.as_ref().filter(|_| !self.is_read.swap(true, Ordering::Relaxed)) else {
            return Vec::new();
        };
        let mut in_memory = self.in_memory();
        let mut missing: HashSet<Key> = wanted.collect();
        missing.retain(|key| in_memory.get(key).is_none_or(|value| value.strong_count() == 0));
        let mut found = Vec::new();
        let take = |key, value| {
            let value = Arc::new(value);
            in_memory.insert(key, Arc::downgrade(&value));
            found.push(value);
        };
        match read(path, room, |key| missing.remove(key), take) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::info!("{} is rewritten: {error}", path.display());
                self.unwritten.store(u64::MAX / 2, Ordering::Relaxed);
            }
        }
        found
    }

    /// Replaces the file by the values of a plan, `bytes` in total. Does nothing if the file has most of them already
    /// or if they exceed [`FILE_MAX`].
    pub(super) fn write_file<'v>(&self, bytes: u64, all: impl Iterator<Item = (Key, &'v Value)>) {
        let Some(path) = &self.file else { return };
        let unwritten = self.unwritten.load(Ordering::Relaxed);
        if unwritten == 0 || unwritten < bytes / STALE_PART || bytes > FILE_MAX {
            return;
        }
        self.unwritten.store(0, Ordering::Relaxed); // before writing: a failure is not retried at every plan
        if let Err(error) = write(path, all) {
            tracing::debug!("{} cannot be written: {error}", path.display());
        }
    }
}

/// Passes the wanted values of the file to `take`. Fails if the file is of another release, truncated or damaged; the
/// intact entries before the damage were passed on by then.
fn read(
    path: &Path,
    mut room: u64,
    mut is_wanted: impl FnMut(&Key) -> bool,
    mut take: impl FnMut(Key, Value),
) -> io::Result<()> {
    let damaged = || io::Error::other("it is damaged");
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(damaged());
    }
    let mut file = BufReader::with_capacity(1 << 17, file);
    let mut format = [0; FORMAT.len()];
    file.read_exact(&mut format)?;
    if format != FORMAT.as_bytes() {
        return Err(io::Error::other("another release wrote it"));
    }
    while !file.fill_buf()?.is_empty() {
        let mut head = [0; HEAD];
        file.read_exact(&mut head)?;
        let entry = Entry::parse(&head).ok_or_else(damaged)?;
        if !is_wanted(&entry.key) {
            file.seek_relative((entry.length + SUM) as i64)?;
            continue;
        }
        let Some(left) = room.checked_sub(entry.length as u64) else { return Ok(()) };
        room = left;
        let mut bytes = vec![0; entry.length];
        file.read_exact(&mut bytes)?;
        let mut sum = [0; SUM];
        file.read_exact(&mut sum)?;
        if sum != sha256(&[&head, &bytes]) {
            return Err(damaged());
        }
        take(entry.key, Value::restored(bytes, entry.encoding, entry.digest).ok_or_else(damaged)?);
    }
    Ok(())
}

/// Replaces the file by one with these values. The old one goes first: the volume has room for one.
fn write<'v>(path: &Path, all: impl Iterator<Item = (Key, &'v Value)>) -> io::Result<()> {
    // The mirror removes stale `.lock` files. An existing one belongs to another process or was left by a crash; then
    // `create_new` fails.
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".lock");
    let temporary = PathBuf::from(temporary);
    let file = File::options().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let _ = std::fs::remove_file(path); // if it fails, the rename replaces it or says why not
    let mut seen = HashSet::new();
    let fill = || -> io::Result<()> {
        let mut file = BufWriter::with_capacity(1 << 17, file);
        file.write_all(FORMAT.as_bytes())?;
        for (key, value) in all.filter(|(key, value)| value.has_bytes() && seen.insert(*key)) {
            let length = value.bytes().len();
            let head = Entry { key, encoding: value.form(), length, digest: *value.digest() }.head();
            file.write_all(&head)?;
            file.write_all(value.bytes())?;
            file.write_all(&sha256(&[&head, value.bytes()]))?;
        }
        file.flush()?;
        std::fs::rename(&temporary, path)
    };
    fill().inspect_err(|_| drop(std::fs::remove_file(&temporary)))
}

/// The header of an entry.
struct Entry {
    key: Key,
    encoding: ValueEncoding,
    length: usize,
    digest: [u8; 32],
}

impl Entry {
    fn head(&self) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..20].copy_from_slice(&self.key.0.0);
        head[20] = self.key.1.into();
        head[21] = self.encoding as u8;
        head[22..26].copy_from_slice(&(self.length as u32).to_be_bytes()); // at most VALUE_MAX
        head[26..].copy_from_slice(&self.digest);
        head
    }

    /// Parses a header; `None` if it is invalid.
    fn parse(head: &[u8; HEAD]) -> Option<Self> {
        let encodings = [ValueEncoding::Text, ValueEncoding::Binary, ValueEncoding::Gzip];
        let encoding = encodings.into_iter().find(|encoding| *encoding as u8 == head[21])?;
        let (id, rest) = head.split_first_chunk::<20>()?;
        let length = u32::from_be_bytes(*rest[2..].first_chunk()?) as usize;
        let digest = *rest.last_chunk()?;
        (length <= VALUE_MAX).then_some(Self {
            key: (ObjectId(*id), head[20] != 0),
            encoding,
            length,
            digest,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8, compress: bool) -> Key {
        (ObjectId([number; 20]), compress)
    }

    fn values() -> Vec<(Key, Arc<Value>)> {
        let of = |number: u8, content: &[u8], compress| {
            (key(number, compress), Arc::new(Value::new(content.to_vec(), compress)))
        };
        vec![of(1, b"text \"\n", false), of(1, b"text \"\n", true), of(2, b"\xff", false), of(3, b"", true)]
    }

    /// What another process finds, with room for so many bytes.
    fn found(path: &Path, wanted: &[Key], room: u64) -> (KnownValues, Vec<Arc<Value>>) {
        let known = KnownValues::with_file(path.to_owned());
        let found = known.read_file(wanted.iter().copied(), room);
        (known, found)
    }

    fn written(dir: &Path) -> PathBuf {
        let path = dir.join("values");
        let known = KnownValues::with_file(path.clone());
        let all = values();
        all.iter().for_each(|(key, value)| known.insert(*key, value));
        known.write_file(100, all.iter().map(|(key, value)| (*key, &**value)));
        path
    }

    #[test]
    fn another_process_finds_what_it_wants_as_it_was_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = written(dir.path());
        let all = values();
        let keys: Vec<Key> = all.iter().map(|(key, _)| *key).collect();
        let (known, alive) = found(&path, &keys, 1_000);
        assert!(all.iter().all(|(key, value)| known.get(key).as_ref() == Some(value)));
        assert_eq!(alive.len(), 4);
        assert!(known.read_file(keys.iter().copied(), 1_000).is_empty(), "once");
        let (known, alive) = found(&path, &[key(2, false), key(9, false)], 1_000);
        assert_eq!((alive.len(), known.get(&key(1, false))), (1, None));
        assert!(found(&path, &keys, 6).1.len() < 4, "no more than there is room for");
    }

    #[test]
    fn nothing_is_used_that_was_cut_or_changed_and_the_file_is_written_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = written(dir.path());
        let whole = std::fs::read(&path).unwrap();
        let all = values();
        let keys: Vec<Key> = all.iter().map(|(key, _)| *key).collect();
        let right = |value: &Arc<Value>| all.iter().any(|(_, right)| right == value);
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            for bytes in [&changed, &whole[..at]] {
                std::fs::write(&path, bytes).unwrap();
                let (known, alive) = found(&path, &keys, 1_000);
                assert!(alive.iter().all(right), "at {at}");
                for (key, value) in &all {
                    assert!(known.get(key).is_none_or(|found| found == *value), "at {at}");
                }
            }
        }
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        let (known, _alive) = found(&path, &keys, 1_000);
        known.write_file(1_000_000, all.iter().map(|(key, value)| (*key, &**value)));
        assert_eq!(std::fs::read(&path).unwrap(), whole);
    }

    #[test]
    fn the_file_is_written_where_enough_is_new_and_never_beyond_its_bound() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("values");
        let known = KnownValues::with_file(path.clone());
        let (key, value) = values().remove(0);
        let all = || std::iter::once((key, &*value));
        known.write_file(0, all());
        assert!(!path.exists(), "nothing is new");
        known.insert(key, &value);
        known.write_file(7 * STALE_PART + STALE_PART, all());
        assert!(!path.exists(), "too little is new");
        known.write_file(FILE_MAX + 1, all());
        assert!(!path.exists(), "it is too much");
        known.write_file(7, all());
        assert!(path.exists());
        let large = Arc::new(Value::new(vec![7; VALUE_MAX + 1], false));
        known.insert(key, &value);
        let one = std::iter::once((key, &*large));
        known.write_file(7, one.inspect(|_| assert!(!path.exists(), "the volume has room for one")));
        assert_eq!(std::fs::read(&path).unwrap(), FORMAT.as_bytes(), "no ConfigMap holds it");
        std::fs::write(dir.path().join("values.lock"), "").unwrap();
        known.insert(key, &value);
        known.write_file(7, all());
        assert_eq!(std::fs::read(&path).unwrap(), FORMAT.as_bytes(), "another process writes it");
    }
}
