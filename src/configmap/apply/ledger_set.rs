//! The ledgers of every place in one text, as they are kept beside a root.

use std::collections::BTreeMap;

use super::super::ClusterNamespace;
use super::{LastAttempt, Ledger};

/// What a ledger's ConfigMap holds.
type Data = BTreeMap<String, String>;

/// The ledgers of clusters and their namespaces.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LedgerSet(BTreeMap<ClusterNamespace, Ledger>);

impl LedgerSet {
    /// From its text: by cluster and namespace what the ledger's ConfigMap there holds, too.
    ///
    /// # Errors
    /// When it is no such text. A record that cannot be read is kept unchanged.
    pub fn read(text: &[u8]) -> Result<Self, serde_json::Error> {
        let clusters: BTreeMap<String, BTreeMap<String, Data>> = serde_json::from_slice(text)?;
        let namespaces = clusters.into_iter().flat_map(|(cluster, namespaces)| {
            let place = move |namespace| ClusterNamespace { cluster: cluster.clone(), namespace };
            namespaces.into_iter().map(move |(namespace, data)| (place(namespace), Ledger::read(&data)))
        });
        Ok(Self(namespaces.collect()))
    }

    /// As text.
    pub fn text(&self) -> Vec<u8> {
        let mut clusters: BTreeMap<&str, BTreeMap<&str, Data>> = BTreeMap::new();
        for (ClusterNamespace { cluster, namespace }, ledger) in &self.0 {
            clusters.entry(cluster).or_default().insert(namespace, ledger.data());
        }
        serde_json::to_vec(&clusters).unwrap_or_default() // maps of strings always become JSON
    }

    /// The ledger of one namespace, to be written in.
    pub fn ledger(&mut self, cluster: &str, namespace: &str) -> &mut Ledger {
        let place = ClusterNamespace { cluster: cluster.to_owned(), namespace: namespace.to_owned() };
        self.0.entry(place).or_default()
    }

    /// Every record, in the order of cluster, namespace and name.
    pub fn records(&self) -> impl Iterator<Item = (&ClusterNamespace, &str, &LastAttempt)> {
        self.0.iter().flat_map(|(place, ledger)| {
            ledger.records.iter().map(move |(name, record)| (place, name.as_str(), record))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_it_was_written_and_damage_stays() {
        let record = LastAttempt {
            revision: "r".into(),
            digest: "d".into(),
            at: jiff::Timestamp::UNIX_EPOCH,
            outcome: "failed".into(),
            attempts: 2,
            error: Some("no route".into()),
            repairs: Vec::new(),
            over: None,
        };
        let mut book = LedgerSet::default();
        book.ledger("c", "n").records.insert("a".into(), record.clone());
        book.ledger("c", "n").damaged.insert("b".into(), "nonsense".into());
        book.ledger("c", "o");
        assert_eq!(LedgerSet::read(&book.text()).unwrap(), book);
        let shown: Vec<_> = book.records().map(|(place, name, _)| (place.namespace.as_str(), name)).collect();
        assert_eq!(shown, [("n", "a")]);
        assert!(LedgerSet::read(b"{\"c\": 1}").is_err());
    }
}
