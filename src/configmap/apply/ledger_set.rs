//! The ledgers of all namespaces in one file, which is stored beside a root.

use std::collections::BTreeMap;

use super::super::ClusterNamespace;
use super::{LastAttempt, Ledger};

/// The data of a ledger's ConfigMap.
type Data = BTreeMap<String, String>;

/// Ledgers by cluster and namespace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LedgerSet(BTreeMap<ClusterNamespace, Ledger>);

impl LedgerSet {
    /// Parses the file: a JSON object that has, by cluster and namespace, the data of the ledger's ConfigMap. Fails if
    /// the text has another shape. A single record that cannot be parsed is kept unchanged.
    pub fn read(text: &[u8]) -> Result<Self, serde_json::Error> {
        let clusters: BTreeMap<String, BTreeMap<String, Data>> = serde_json::from_slice(text)?;
        let namespaces = clusters.into_iter().flat_map(|(cluster, namespaces)| {
            let place = move |namespace| ClusterNamespace { cluster: cluster.clone(), namespace };
            namespaces.into_iter().map(move |(namespace, data)| (place(namespace), Ledger::read(&data)))
        });
        Ok(Self(namespaces.collect()))
    }

    /// The text of the file.
    pub fn text(&self) -> Vec<u8> {
        let mut clusters: BTreeMap<&str, BTreeMap<&str, Data>> = BTreeMap::new();
        for (ClusterNamespace { cluster, namespace }, ledger) in &self.0 {
            clusters.entry(cluster).or_default().insert(namespace, ledger.data());
        }
        serde_json::to_vec(&clusters).unwrap_or_default() // serializing maps of strings does not fail
    }

    /// The ledger of one namespace; created if absent.
    pub fn ledger(&mut self, cluster: &str, namespace: &str) -> &mut Ledger {
        let place = ClusterNamespace { cluster: cluster.to_owned(), namespace: namespace.to_owned() };
        self.0.entry(place).or_default()
    }

    /// Drops the records for which `keep` returns false, and the ledgers that are empty then.
    pub fn retain(&mut self, keep: impl Fn(&ClusterNamespace, &str, &LastAttempt) -> bool) {
        self.0.retain(|place, ledger| {
            ledger.records.retain(|name, record| keep(place, name, record));
            !ledger.records.is_empty() || !ledger.damaged.is_empty()
        });
    }

    /// All records, sorted by cluster, namespace and name.
    pub fn records(&self) -> impl Iterator<Item = (&ClusterNamespace, &str, &LastAttempt)> {
        self.0.iter().flat_map(|(place, ledger)| {
            ledger.records.iter().map(move |(name, record)| (place, name.as_str(), record))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> LastAttempt {
        LastAttempt {
            revision: "r".into(),
            digest: "d".into(),
            at: jiff::Timestamp::UNIX_EPOCH,
            outcome: "failed".into(),
            attempts: 2,
            error: Some("no route".into()),
            repairs: Vec::new(),
            over: None,
        }
    }

    #[test]
    fn it_is_read_as_it_was_written_and_damage_stays() {
        let mut book = LedgerSet::default();
        book.ledger("c", "n").records.insert("a".into(), record());
        book.ledger("c", "n").damaged.insert("b".into(), "nonsense".into());
        book.ledger("c", "o");
        assert_eq!(LedgerSet::read(&book.text()).unwrap(), book);
        let shown: Vec<_> = book.records().map(|(place, name, _)| (place.namespace.as_str(), name)).collect();
        assert_eq!(shown, [("n", "a")]);
        assert!(LedgerSet::read(b"{\"c\": 1}").is_err());
    }

    #[test]
    fn a_ledger_stays_while_it_has_a_record_or_damage() {
        let mut book = LedgerSet::default();
        for (namespace, name) in [("damaged", "gone"), ("empty", "gone"), ("full", "gone"), ("full", "kept")]
        {
            book.ledger("c", namespace).records.insert(name.into(), record());
        }
        book.ledger("c", "damaged").damaged.insert("b".into(), "nonsense".into());
        book.retain(|place, name, record| {
            assert_eq!((place.cluster.as_str(), record.attempts), ("c", 2));
            name == "kept"
        });
        let left: Vec<_> = book.0.keys().map(|place| place.namespace.as_str()).collect();
        assert_eq!(left, ["damaged", "full"]);
        assert_eq!(book.records().map(|(_, name, _)| name).collect::<Vec<_>>(), ["kept"]);
    }
}
