//! Hashes objects on a second thread while the first one inflates the following ones: each is half of the work.
//!
//! Contents are sent to the thread in batches. Contents that do not fill a batch, as with an ordinary commit, are
//! hashed without a thread; and so is a large content, because the cache's budget does not count contents that wait.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::JoinHandle;

use git2::ObjectType;

use super::{IndexError, Object, SMALL, hash};
use crate::revision::ObjectId;

/// A batch is sent when it has so many contents, or at least so many bytes.
const CONTENTS: usize = 256;
const BYTES: usize = 256 << 10;

/// How many batches may be queued, so that the threads do not wait for each other at every batch.
const WAITING: usize = 2;

/// The thread's stack size. Hashing needs less than half of it, and all of it counts as memory of the process.
const STACK: usize = 128 << 10;

/// The content of an object whose id is not computed yet.
struct Unhashed {
    position: u32,
    kind: ObjectType,
    content: Arc<Vec<u8>>,
}

/// The ids of a batch, with the positions of their objects.
type Ids = Result<Vec<(u32, ObjectId)>, IndexError>;

/// Hashes contents and sets the ids of their objects.
pub(super) struct Hashes {
    batch: Vec<Unhashed>,
    bytes: usize,
    thread: Option<HashThread>,
}

struct HashThread {
    to: SyncSender<Vec<Unhashed>>,
    from: Receiver<Ids>,
    thread: JoinHandle<()>,
}

impl Hashes {
    pub(super) fn new() -> Self {
        Self { batch: Vec::new(), bytes: 0, thread: None }
    }

    /// Adds the content of an object, which must be in `objects` already. Its id is set later, by [`Hashes::finish`] at
    /// the latest.
    pub(super) fn add(
        &mut self,
        objects: &mut [Object],
        position: u32,
        kind: ObjectType,
        content: Arc<Vec<u8>>,
    ) -> Result<(), IndexError> {
        if content.len() as u64 > SMALL {
            return assign_ids(objects, hash_batch(vec![Unhashed { position, kind, content }]));
        }
        self.bytes += content.len();
        self.batch.push(Unhashed { position, kind, content });
        if self.batch.len() < CONTENTS && self.bytes < BYTES {
            return Ok(());
        }
        let batch = std::mem::take(&mut self.batch);
        self.bytes = 0;
        if self.thread.is_none() {
            self.thread = HashThread::start(hash_batch);
        }
        let Some(running) = &self.thread else {
            return assign_ids(objects, hash_batch(batch)); // no thread could be started
        };
        // Fails only if the thread has ended with an error, which is received below.
        let _ = running.to.send(batch);
        running.from.try_iter().try_for_each(|ids| assign_ids(objects, ids))
    }

    /// Sets the ids that are still missing.
    pub(super) fn finish(self, objects: &mut [Object]) -> Result<(), IndexError> {
        assign_ids(objects, hash_batch(self.batch))?;
        let Some(HashThread { to, from, thread }) = self.thread else { return Ok(()) };
        drop(to); // lets the thread end
        from.into_iter().try_for_each(|ids| assign_ids(objects, ids))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok(())
    }
}

impl HashThread {
    /// Starts a thread that runs `hash` for each batch, until one fails. Returns `None` if no thread can be started.
    fn start(hash: impl Fn(Vec<Unhashed>) -> Ids + Send + 'static) -> Option<Self> {
        let (to, batches) = mpsc::sync_channel::<Vec<Unhashed>>(WAITING);
        let (ids, from) = mpsc::channel();
        let work = move || {
            for batch in batches {
                let hashed = hash(batch);
                let is_last = hashed.is_err();
                if ids.send(hashed).is_err() || is_last {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().stack_size(STACK).spawn(work).ok()?;
        Some(Self { to, from, thread })
    }
}

fn hash_batch(batch: Vec<Unhashed>) -> Ids {
    let id = |Unhashed { position, kind, content }: Unhashed| Ok((position, hash(kind, &content)?));
    batch.into_iter().map(id).collect()
}

fn assign_ids(objects: &mut [Object], ids: Ids) -> Result<(), IndexError> {
    for (position, id) in ids? {
        objects[position as usize].line.id = id;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Line, NO_BASE};
    use super::*;

    fn objects(count: usize) -> Vec<Object> {
        let object = |_| Object {
            line: Line { id: ObjectId([0; 20]), offset: 0, crc: 0 },
            base: NO_BASE,
            kind: Some(ObjectType::Blob),
            size: 0,
        };
        (0..count).map(object).collect()
    }

    fn add(hashes: &mut Hashes, objects: &mut [Object], at: usize, content: &[u8]) -> Result<(), IndexError> {
        hashes.add(objects, at as u32, ObjectType::Blob, Arc::new(content.to_vec()))
    }

    #[test]
    fn every_object_gets_its_id_and_a_thread_is_started_only_for_many() {
        for count in [0, 1, CONTENTS - 1, CONTENTS, 10 * CONTENTS + 7] {
            let (mut objects, mut hashes) = (objects(count), Hashes::new());
            for at in 0..count {
                add(&mut hashes, &mut objects, at, &at.to_be_bytes()).unwrap();
            }
            assert_eq!(hashes.thread.is_some(), count >= CONTENTS, "{count} objects");
            hashes.finish(&mut objects).unwrap();
            for (at, object) in objects.iter().enumerate() {
                let right = git2::Oid::hash_object(ObjectType::Blob, &at.to_be_bytes()).unwrap();
                assert_eq!(object.line.id.0, right.as_bytes(), "object {at} of {count}");
            }
        }
    }

    #[test]
    fn many_bytes_are_sent_to_the_thread_but_not_a_large_content() {
        let (mut objects, mut hashes) = (objects(3), Hashes::new());
        add(&mut hashes, &mut objects, 0, &vec![0; SMALL as usize + 1]).unwrap();
        assert!(hashes.thread.is_none() && hashes.batch.is_empty(), "it would wait in memory");
        assert_ne!(objects[0].line.id.0, [0; 20]);
        add(&mut hashes, &mut objects, 1, &vec![1; BYTES - 1]).unwrap();
        assert!(hashes.thread.is_none());
        add(&mut hashes, &mut objects, 2, &[2]).unwrap();
        assert!(hashes.thread.is_some());
        hashes.finish(&mut objects).unwrap();
        assert!(objects.iter().all(|object| object.line.id.0 != [0; 20]));
    }

    /// Hashes so many objects with a thread that reports a collision in its second batch.
    fn colliding(count: usize) -> Result<(), IndexError> {
        let batches = std::sync::atomic::AtomicUsize::new(0);
        let hash = move |batch| match batches.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => hash_batch(batch),
            _ => Err(IndexError::collision("an object")),
        };
        let mut hashes = Hashes { thread: HashThread::start(hash), ..Hashes::new() };
        let mut objects = objects(count);
        (0..count).try_for_each(|at| add(&mut hashes, &mut objects, at, &at.to_be_bytes()))?;
        hashes.finish(&mut objects)
    }

    #[test]
    fn a_collision_that_the_thread_finds_is_an_error() {
        colliding(2 * CONTENTS - 1).unwrap(); // the last batch is not full, and not hashed by the thread
        assert!(matches!(colliding(2 * CONTENTS), Err(IndexError::Bad(_))), "it is found at the end");
        assert!(
            matches!(colliding(50 * CONTENTS), Err(IndexError::Bad(_))),
            "a thread that ended is waited for"
        );
    }
}
