//! Which of several sources somebody asked for since the last attempt: a webhook, a signal, or a repository whose pause is
//! over. Attempts that begin for another reason ask all of them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is asked for, until an attempt takes it; any number of clones.
#[derive(Clone, Debug, Default)]
pub struct Requests(Arc<Mutex<Requested>>);

/// What the next attempt asks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) enum Requested {
    /// Nobody asked: all of them, when their time has come.
    #[default]
    Nothing,
    /// These sources now, and others whose time has come.
    Sources(BTreeSet<String>),
    /// All of them now.
    All,
}

impl Requests {
    /// Asks for these sources; for all of them where none is named.
    pub fn ask(&self, sources: &[String]) {
        let mut requested = self.lock();
        *requested = match (std::mem::take(&mut *requested), sources) {
            (Requested::All, _) | (_, []) => Requested::All,
            (Requested::Nothing, named) => Requested::Sources(named.iter().cloned().collect()),
            (Requested::Sources(before), named) => {
                Requested::Sources(before.into_iter().chain(named.iter().cloned()).collect())
            }
        };
    }

    /// The time of one has come.
    pub(super) fn note_due(&self) {
        let mut requested = self.lock();
        if *requested == Requested::Nothing {
            *requested = Requested::Sources(BTreeSet::new());
        }
    }

    pub(super) fn take(&self) -> Requested {
        std::mem::take(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Requested> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner) // whole after every step
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
        requests.ask(&named(&["a"]));
        requests.note_due();
        requests.ask(&named(&["b", "a"]));
        assert_eq!(requests.take(), Requested::Sources(named(&["a", "b"]).into_iter().collect()));
        requests.ask(&named(&["a"]));
        requests.ask(&[]);
        requests.ask(&named(&["b"]));
        requests.note_due();
        assert_eq!(requests.take(), Requested::All);
        requests.note_due();
        assert_eq!(requests.take(), Requested::Sources(BTreeSet::new()));
        assert_eq!(requests.take(), Requested::Nothing);
    }
}
