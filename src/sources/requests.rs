//! The sources that were requested since the last attempt: by a webhook, a signal, or the end of a repository's pause.
//! Attempts that begin for another reason poll all sources.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The pending requests, until an attempt takes them. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Requests(Arc<Mutex<Requested>>);

/// What the next attempt polls.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) enum Requested {
    /// No request: all sources that are due.
    #[default]
    Nothing,
    /// These sources at once, and others that are due.
    Sources(BTreeSet<String>),
    /// All sources at once.
    All,
}

impl Requests {
    /// Requests these sources, or all if the list is empty.
    pub fn request(&self, sources: &[String]) {
        let mut requested = self.lock();
        *requested = match (std::mem::take(&mut *requested), sources) {
            (Requested::All, _) | (_, []) => Requested::All,
            (Requested::Nothing, named) => Requested::Sources(named.iter().cloned().collect()),
            (Requested::Sources(before), named) => {
                Requested::Sources(before.into_iter().chain(named.iter().cloned()).collect())
            }
        };
    }

    /// Records that a source is due, so that the next attempt polls only those that are, unless more is requested.
    pub(super) fn note_due(&self) {
        let mut requested = self.lock();
        if *requested == Requested::Nothing {
            *requested = Requested::Sources(BTreeSet::new());
        }
    }

    /// Takes the pending requests.
    pub(super) fn take(&self) -> Requested {
        std::mem::take(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Requested> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner) // consistent after every step, so a panic does no harm
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_stays_until_it_is_taken() {
        let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let requests = Requests::default();
        assert_eq!(requests.take(), Requested::Nothing);
        requests.request(&named(&["a"]));
        requests.note_due();
        requests.request(&named(&["b", "a"]));
        assert_eq!(requests.take(), Requested::Sources(named(&["a", "b"]).into_iter().collect()));
        requests.request(&named(&["a"]));
        requests.request(&[]);
        requests.request(&named(&["b"]));
        requests.note_due();
        assert_eq!(requests.take(), Requested::All);
        requests.note_due();
        assert_eq!(requests.take(), Requested::Sources(BTreeSet::new()));
        assert_eq!(requests.take(), Requested::Nothing);
    }
}
