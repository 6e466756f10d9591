//! A family of gauges of which all series are replaced together. Series that are gone are removed after the others are
//! set: a scrape in between may find an old one, but never none.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// The family. Clones share its series.
#[derive(Clone, Debug)]
pub(super) struct ReplacedGauges<L: Clone + Hash + Eq> {
    family: Family<L, Gauge>,
    /// The labels of the last [`Self::replace`].
    shown: Arc<Mutex<Vec<L>>>,
}

impl<L: Clone + Hash + Eq> Default for ReplacedGauges<L> {
    fn default() -> Self {
        Self { family: Family::default(), shown: Arc::default() }
    }
}

impl<L: Clone + Hash + Eq> ReplacedGauges<L> {
    /// The family, to be registered.
    pub(super) fn family(&self) -> Family<L, Gauge> {
        self.family.clone()
    }

    /// Sets these series, and removes all others.
    pub(super) fn replace(&self, samples: impl IntoIterator<Item = (L, i64)>) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *shown);
        for (label, value) in samples {
            self.family.get_or_create(&label).set(value);
            shown.push(label);
        }
        before.iter().filter(|label| !shown.contains(label)).for_each(|label| _ = self.family.remove(label));
    }
}
