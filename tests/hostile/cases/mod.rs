//! The table.

mod contents;
mod entries;

use git2::Oid;

use super::common::tree::Node;
use super::common::{Raw, Snapshot};

/// What must come of a case.
pub(crate) enum Expect {
    /// An error with these words in its one line.
    Refused(Vec<String>),
    /// Exactly this.
    Written(Snapshot),
}

/// How the commit gets from the remote to us.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Served {
    /// By git, which refuses to send some objects itself.
    Git,
    /// There is no git program: we read the remote's repository.
    InPlace,
    /// By a server that sends what it has without looking at it.
    AsItIs,
}

/// One commit.
pub(crate) struct Case {
    pub(crate) name: String,
    /// Makes the object that `main` will name.
    pub(crate) make: Box<dyn Fn(&Raw) -> Oid + Send + Sync>,
    pub(crate) served: Served,
    /// The remote may refuse to send it: then nobody here sees the entry.
    pub(crate) unseen: bool,
    /// Flags of the synchronisation.
    pub(crate) flags: &'static [&'static str],
    pub(crate) expect: Expect,
}

/// The id of an object that is nowhere.
pub(crate) const MISSING: &str = "0303030303030303030303030303030303030303";

/// Collects cases.
#[derive(Default)]
struct Table(Vec<Case>);

fn file(content: impl Into<Vec<u8>>) -> Node {
    Node::File { executable: false, content: content.into() }
}

fn executable(content: impl Into<Vec<u8>>) -> Node {
    Node::File { executable: true, content: content.into() }
}

fn link(target: impl Into<Vec<u8>>) -> Node {
    Node::Link(target.into())
}

fn snapshot<P: AsRef<[u8]>>(entries: Vec<(P, Node)>) -> Snapshot {
    Snapshot(entries.into_iter().map(|(path, node)| (path.as_ref().to_vec(), node)).collect())
}

/// A name as an error shows it.
fn shown(name: &[u8]) -> String {
    treeswap::payload::escaped(name)
}

impl Table {
    fn add(
        &mut self,
        name: &str,
        make: impl Fn(&Raw) -> Oid + Send + Sync + 'static,
        expect: Expect,
    ) -> &mut Case {
        self.0.push(Case {
            name: name.to_owned(),
            make: Box::new(make),
            served: Served::Git,
            unseen: false,
            flags: &[],
            expect,
        });
        let last = self.0.len() - 1;
        &mut self.0[last]
    }

    fn refused(
        &mut self,
        name: &str,
        words: &[&str],
        make: impl Fn(&Raw) -> Oid + Send + Sync + 'static,
    ) -> &mut Case {
        self.add(name, make, Expect::Refused(words.iter().map(|word| (*word).to_owned()).collect()))
    }

    fn written<P: AsRef<[u8]>>(
        &mut self,
        name: &str,
        entries: Vec<(P, Node)>,
        make: impl Fn(&Raw) -> Oid + Send + Sync + 'static,
    ) -> &mut Case {
        self.add(name, make, Expect::Written(snapshot(entries)))
    }

    /// Objects that cannot be what they should be: refused however they come. `entry` names the bad one, unless it is the
    /// commit itself or its whole tree that is bad.
    fn broken(
        &mut self,
        name: &str,
        entry: Option<&str>,
        make: impl Fn(&Raw) -> Oid + Copy + Send + Sync + 'static,
    ) {
        let entry = entry.map(|entry| format!("`{entry}`"));
        let words: Vec<&str> = entry.iter().map(String::as_str).collect();
        self.refused(name, &words, make).unseen = true;
        let in_place = self.refused(&format!("{name}, read in place"), &words, make);
        (in_place.served, in_place.unseen) = (Served::InPlace, true);
        self.refused(&format!("{name}, sent as it is"), &words, make).served = Served::AsItIs;
    }

    /// A file of this name at the top is refused, and the error shows the name.
    fn refused_name(&mut self, what: &str, name: &[u8]) {
        let (owned, word) = (name.to_vec(), shown(name));
        self.refused(what, &[&word], move |raw| {
            let blob = raw.blob("x");
            raw.commit(raw.tree(&[("100644", &owned[..], blob)]))
        });
    }

    /// A file of this name is written, at the top and one level down.
    fn written_name(&mut self, what: &str, name: &[u8]) {
        let owned = name.to_vec();
        let below = [b"sub/", name].concat();
        let entries =
            vec![(owned.clone(), file("x")), (b"sub".to_vec(), Node::Directory), (below, file("x"))];
        self.written(what, entries, move |raw| {
            let blob = raw.blob("x");
            let sub = raw.tree(&[("100644", &owned[..], blob)]);
            raw.commit(raw.tree(&[("100644", &owned[..], blob), ("40000", b"sub", sub)]))
        });
    }
}

/// All of them.
pub(crate) fn all() -> Vec<Case> {
    let mut table = Table::default();
    entries::names(&mut table);
    entries::dot_git(&mut table);
    entries::reserved(&mut table);
    entries::odd_names(&mut table);
    entries::modes(&mut table);
    contents::links(&mut table);
    entries::twice(&mut table);
    contents::depth_and_length(&mut table);
    contents::sizes(&mut table);
    contents::filters(&mut table);
    contents::broken_objects(&mut table);
    contents::tips(&mut table);
    table.0
}
