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
    /// The file does not hold `book`.
    unsaved: bool,
    failing: Repeats,
}

impl Keeper {
    /// Goes on with a file. One that cannot be read is not written either: nobody knows what would be lost.
    pub(super) fn of(file: LedgerFile) -> Self {
        match file.read() {
            Ok((book, damage)) => {
                damage.iter().for_each(|why| warn!("{why}"));
                Self { book, file: Some(file), ..Self::default() }
            }
            Err(error) => {
                warn!(error = human::one_line(&error), "the ledger is not kept in the root");
                Self::default()
            }
        }
    }

    /// Takes in what a delivery came to. Blocking, where there is a file.
    pub(super) fn note(&mut self, report: &Report) {
        self.keep(deliver::noted(&self.book, report, Timestamp::now()));
    }

    fn keep(&mut self, book: Book) {
        if book == self.book && !self.unsaved {
            return;
        }
        self.book = book;
        let Some(file) = &self.file else { return };
        let written = file.write(&self.book);
        self.unsaved = written.is_err();
        match written {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::retention;
    use crate::store::{Durability, Options, Spare, Store, Style};

    #[test]
    fn what_could_not_be_written_is_written_with_the_next_delivery_though_nothing_changed() {
        let root = tempfile::tempdir().unwrap();
        let retention = retention::Options {
            grace: Duration::ZERO,
            max_pin: Duration::ZERO,
            max_generations: 8,
            max_bytes: None,
        };
        let options = Options {
            root: root.path().to_owned(),
            style: Style::Kubelet,
            durability: Durability::None,
            spare: Spare::Off,
            group_write: false,
            writers: 1,
            retention,
        };
        let (store, _) = Store::open(options).unwrap();
        let mut keeper = Keeper::of(store.ledger().unwrap());
        let in_the_way = root.path().join("..treeswap/ledger.json");
        std::fs::create_dir(&in_the_way).unwrap();
        let mut book = Book::default();
        book.ledger("default", "ci");
        keeper.keep(book.clone());
        std::fs::remove_dir(&in_the_way).unwrap();
        keeper.keep(book.clone());
        assert_eq!(store.ledger().unwrap().read().unwrap(), (book, None));
    }
}
