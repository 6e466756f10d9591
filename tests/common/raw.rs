//! Writes git objects as raw bytes, including those that no git program would write but an attacker would.

use std::path::Path;

use git2::{ObjectType, Odb, Oid, Repository};

/// Writes unchecked objects into a repository.
pub struct Raw {
    repository: Repository,
}

impl Raw {
    pub fn open(path: &Path) -> Self {
        // Otherwise libgit2 refuses trees and commits that name missing objects.
        git2::opts::strict_object_creation(false);
        Self { repository: Repository::open(path).unwrap() }
    }

    fn odb(&self) -> Odb<'_> {
        self.repository.odb().unwrap()
    }

    pub fn object(&self, kind: ObjectType, bytes: &[u8]) -> Oid {
        self.odb().write(kind, bytes).unwrap()
    }

    pub fn blob(&self, bytes: impl AsRef<[u8]>) -> Oid {
        self.object(ObjectType::Blob, bytes.as_ref())
    }

    /// A tree with exactly these entries in this order: mode as text, name, id.
    pub fn tree<N: AsRef<[u8]>>(&self, entries: &[(&str, N, Oid)]) -> Oid {
        let mut bytes = Vec::new();
        for (mode, name, id) in entries {
            bytes.extend_from_slice(mode.as_bytes());
            bytes.push(b' ');
            bytes.extend_from_slice(name.as_ref());
            bytes.push(0);
            bytes.extend_from_slice(id.as_bytes());
        }
        self.object(ObjectType::Tree, &bytes)
    }

    /// A commit of the tree, without parents.
    pub fn commit(&self, tree: Oid) -> Oid {
        let who = "Author <author@example.com> 1700000000 +0000";
        let text = format!("tree {tree}\nauthor {who}\ncommitter {who}\n\nraw\n");
        self.object(ObjectType::Commit, text.as_bytes())
    }

    /// Points `main` at any object.
    pub fn set_main(&self, id: Oid) {
        std::fs::write(self.repository.path().join("refs/heads/main"), format!("{id}\n")).unwrap();
    }
}
