//! Keeps the ledger, the last attempt at each target, from delivery to delivery: in memory for the status and, with a
//! root, in a file.

use jiff::Timestamp;
use tracing::warn;

use crate::configmap::apply::LedgerSet;
use crate::deliver::{self, Report};
use crate::human;
use crate::phase::TargetStatus;
use crate::repeats::{Repeats, suppressed};
use crate::store::LedgerFile;

/// The ledger in memory, and the file that it is written to.
#[derive(Default)]
pub(super) struct LedgerKeeper {
    ledgers: LedgerSet,
    file: Option<LedgerFile>,
    /// The last write failed, so the file does not hold `ledgers`.
    unsaved: bool,
    failing: Repeats,
}

impl LedgerKeeper {
    /// Loads the ledger from a file and keeps it there. If the file cannot be read, it is never written, so that its
    /// content is not lost: the ledger is in memory only, until a process that can read the file is started. It is not
    /// read again before: the attempts of both would have to be merged then.
    pub(super) fn with_file(file: LedgerFile) -> Self {
        match file.read() {
            Ok((ledgers, damage)) => {
                damage.iter().for_each(|why| warn!("{why}"));
                Self { ledgers, file: Some(file), ..Self::default() }
            }
            Err(error) => {
                warn!(error = human::one_line(&error), "the ledger is in memory only until the next start");
                Self::default()
            }
        }
    }

    /// Records the outcomes of a delivery. Blocking if there is a file.
    pub(super) fn record(&mut self, report: &Report) {
        self.keep(deliver::updated_ledgers(&self.ledgers, report, Timestamp::now()));
    }

    /// Replaces the ledger, and writes it if it changed or the last write failed. A failed write is logged only.
    fn keep(&mut self, ledgers: LedgerSet) {
        if ledgers == self.ledgers && !self.unsaved {
            return;
        }
        self.ledgers = ledgers;
        let Some(file) = &self.file else { return };
        let written = file.write(&self.ledgers);
        self.unsaved = written.is_err();
        match written {
            Ok(()) => self.failing.forget(),
            Err(error) => {
                let error = human::one_line(&error);
                if let Some(times) = self.failing.should_log(&error) {
                    warn!("{error}{}", suppressed(times));
                }
            }
        }
    }

    /// The last attempt at each target, for the status.
    pub(super) fn targets(&self) -> Vec<TargetStatus> {
        let records = self.ledgers.records().map(|(place, name, record)| TargetStatus {
            cluster: place.cluster.clone(),
            namespace: place.namespace.clone(),
            name: name.to_owned(),
            revision: record.revision.clone(),
            digest: record.digest.clone(),
            at: record.at,
            outcome: record.outcome.clone(),
            error: record.error.clone(),
        });
        records.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::tests::store_options;
    use crate::store::Store;

    #[test]
    fn what_could_not_be_written_is_written_with_the_next_delivery_though_nothing_changed() {
        let root = tempfile::tempdir().unwrap();
        let gone = tempfile::tempdir().unwrap();
        let nowhere = Store::open(store_options(gone.path())).unwrap().0.ledger();
        drop(gone);
        let (store, _) = Store::open(store_options(root.path())).unwrap();
        let mut keeper = LedgerKeeper::with_file(store.ledger());
        let there = keeper.file.replace(nowhere);
        let mut ledgers = LedgerSet::default();
        ledgers.ledger("default", "ci");
        keeper.keep(ledgers.clone());
        keeper.file = there;
        keeper.keep(ledgers.clone());
        assert_eq!(store.ledger().read().unwrap(), (ledgers, None));
    }
}
