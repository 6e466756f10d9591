//! Which repositories the next attempt polls. A webhook or a signal names sources (or all); an answer, an opened mirror
//! or the end of a pause only notes that some are due. An attempt with neither polls all, as does one that a delivery
//! waits for.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The pending requests, until an attempt takes them. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Requests(Arc<Mutex<Requested>>);

/// What the next attempt polls.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) enum Requested {
    /// No source was named or noted, as when the timer or a delivery began the attempt: every repository that is not
    /// paused.
    #[default]
    Unrestricted,
    /// The repositories of these sources, whose pauses get shorter, and those that are due. Empty: only those that are
    /// due.
    Sources(BTreeSet<String>),
    /// Every repository, and all pauses get shorter.
    All,
}

impl Requests {
    /// Requests these sources, or all if the list is empty.
    pub fn request(&self, sources: &[String]) {
        let mut requested = self.lock();
        *requested = match (std::mem::take(&mut *requested), sources) {
            (Requested::All, _) | (_, []) => Requested::All,
            (Requested::Unrestricted, named) => Requested::Sources(named.iter().cloned().collect()),
            (Requested::Sources(before), named) => {
                Requested::Sources(before.into_iter().chain(named.iter().cloned()).collect())
            }
        };
    }

    /// Records that a source is due, so that the next attempt polls only those that are, unless more is requested.
    pub(super) fn note_due(&self) {
        let mut requested = self.lock();
        if *requested == Requested::Unrestricted {
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
        assert_eq!(requests.take(), Requested::Unrestricted);
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
        assert_eq!(requests.take(), Requested::Unrestricted);
    }
}
