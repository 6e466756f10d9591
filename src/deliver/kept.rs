//! How much a pass keeps in memory of what one cluster answers. The server, and everybody who may write to it, decide on
//! the size of objects and on their number.

use std::sync::atomic::{AtomicIsize, Ordering};

/// The most that a pass keeps of what a cluster answers about one namespace, in bytes: that of some 2,000 ConfigMaps,
/// as many as an inventory can list, takes a quarter.
const KEPT_MAX: usize = 32 << 20;
/// The most that a pass keeps of all namespaces that rules name, besides [`KEPT_OF_EACH`] for each of their ConfigMaps,
/// and the most of all other namespaces: anybody can make inventories there, and they must not take the room of the
/// former.
const ALL_KEPT_MAX: usize = 64 << 20;
/// How much a pass may keep of each ConfigMap that is desired, in bytes: of most a few KiB, but all annotations of those
/// that it replaces.
const KEPT_OF_EACH: usize = 64 << 10;

/// How many bytes a pass may keep of what a cluster answers: of namespaces that rules name, which have so many
/// ConfigMaps, and of others.
pub(super) fn room(config_maps: usize) -> [AtomicIsize; 2] {
    [ALL_KEPT_MAX + KEPT_OF_EACH * config_maps, ALL_KEPT_MAX]
        .map(|bytes| AtomicIsize::new(bytes.cast_signed()))
}

/// What one survey keeps. It is given back to the room of all surveys unless the survey succeeds.
#[derive(Debug)]
pub(super) struct Kept<'a> {
    room: &'a AtomicIsize,
    here: usize,
}

/// More bytes than may be kept.
#[derive(Debug)]
pub(super) struct TooMuch;

impl<'a> Kept<'a> {
    /// Of one namespace, which rules name or not.
    pub(super) fn of_namespace(room: &'a [AtomicIsize; 2], is_named: bool) -> Self {
        Self { room: &room[usize::from(!is_named)], here: 0 }
    }

    /// Adds so many bytes. Fails if that is more than may be kept.
    pub(super) fn add(&mut self, bytes: usize) -> Result<(), TooMuch> {
        self.here += bytes;
        let bytes = bytes.cast_signed();
        if self.room.fetch_sub(bytes, Ordering::Relaxed) >= bytes && self.here <= KEPT_MAX {
            return Ok(());
        }
        Err(TooMuch)
    }

    /// Ends a survey that succeeded: all but so many bytes stays in memory.
    pub(super) fn end(mut self, dropped: usize) {
        self.here = dropped;
    }
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        self.room.fetch_add(self.here.cast_signed(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_a_cluster_has_a_limit_and_a_survey_that_fails_keeps_nothing() {
        let [named, others] = room(1);
        let left = || others.load(Ordering::Relaxed).cast_unsigned();
        let kept = || Kept { room: &others, here: 0 };
        let mut one = kept();
        one.add(KEPT_MAX).unwrap();
        assert!(one.add(1).is_err(), "of one namespace");
        drop(one);
        assert_eq!(left(), ALL_KEPT_MAX);
        assert_eq!(named.load(Ordering::Relaxed).cast_unsigned(), ALL_KEPT_MAX + KEPT_OF_EACH);
        let mut surveys: Vec<_> = (0..ALL_KEPT_MAX / KEPT_MAX).map(|_| kept()).collect();
        surveys.iter_mut().for_each(|one| one.add(KEPT_MAX).unwrap());
        assert!(kept().add(1).is_err(), "of all together");
        drop(surveys);
        let mut one = kept();
        one.add(3).unwrap();
        one.end(1);
        assert_eq!(left(), ALL_KEPT_MAX - 2);
    }
}
