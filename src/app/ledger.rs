//! What became of each target, kept from delivery to delivery: for the status, and where there is a root, in a file.

use jiff::Timestamp;
use tracing::warn;

use crate::configmap::apply::Book;
use crate::deliver::{self, Report};
use crate::human;
use crate::phase::TargetStatus;
use crate::repeats::{Repeats, unsaid};
use crate::store::LedgerFile;

/// Who keeps it.
#[derive(Default)]
pub(super) struct Keeper {
    book: Book,
    file: Option<LedgerFile>,
    failing: Repeats,
}

impl Keeper {
    /// Goes on with a file. One that cannot be read is not written either: nobody knows what would be lost.
    pub(super) fn of(file: LedgerFile) -> Self {
        match file.read() {
            Ok((book, damage)) => {
                damage.iter().for_each(|why| warn!("{why}"));
                Self { book, file: Some(file), failing: Repeats::default() }
            }
            Err(error) => {
                warn!(error = human::one_line(&error), "the ledger is not kept in the root");
                Self::default()
            }
        }
    }

    /// Takes in what a delivery came to. Blocking, where there is a file.
    pub(super) fn note(&mut self, report: &Report) {
        let book = deliver::noted(&self.book, report, Timestamp::now());
        if book == self.book {
            return;
        }
        self.book = book;
        let Some(file) = &self.file else { return };
        match file.write(&self.book) {
            Ok(()) => self.failing.forget(),
            Err(error) => {
                let error = human::one_line(&error);
                if let Some(times) = self.failing.say(&error) {
                    warn!("{error}{}", unsaid(times));
                }
            }
        }
    }

    /// Each target's last attempt.
    pub(super) fn targets(&self) -> Vec<TargetStatus> {
        let target =
            |(place, name, record): (&crate::configmap::Place, &str, &crate::configmap::apply::Record)| {
                TargetStatus {
                    cluster: place.cluster.clone(),
                    namespace: place.namespace.clone(),
                    name: name.to_owned(),
                    revision: record.revision.clone(),
                    digest: record.digest.clone(),
                    at: record.at,
                    outcome: record.outcome.clone(),
                    error: record.error.clone(),
                }
            };
        self.book.records().map(target).collect()
    }
}
