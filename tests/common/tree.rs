//! A tree as a value, read from a directory by plain system calls or from a commit by git, and the differences of two.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

/// One entry of a tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Node {
    Directory,
    File {
        executable: bool,
        content: Vec<u8>,
    },
    Link(Vec<u8>),
    /// Something that git cannot represent: a device, a socket, a file with another mode.
    Odd(String),
}

/// The entries by relative path, in bytes.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Snapshot(pub BTreeMap<Vec<u8>, Node>);

impl Snapshot {
    /// Reads a directory recursively. Files with modes other than 0644 and 0755 are [`Node::Odd`].
    pub fn read(dir: &Path) -> io::Result<Self> {
        let mut snapshot = Self::default();
        snapshot.read_into(dir, &[])?;
        Ok(snapshot)
    }

    fn read_into(&mut self, dir: &Path, prefix: &[u8]) -> io::Result<()> {
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            let mut path = prefix.to_vec();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(entry.file_name().as_bytes());
            let meta = entry.path().symlink_metadata()?;
            let mode = meta.permissions().mode() & 0o7777;
            let node = if meta.is_symlink() {
                Node::Link(std::fs::read_link(entry.path())?.into_os_string().into_vec())
            } else if meta.is_dir() {
                self.read_into(&entry.path(), &path)?;
                if mode == 0o755 { Node::Directory } else { Node::Odd(format!("directory of mode {mode:o}")) }
            } else if meta.is_file() && matches!(mode, 0o644 | 0o755) {
                Node::File { executable: mode == 0o755, content: std::fs::read(entry.path())? }
            } else {
                Node::Odd(format!("mode {:o}, {} bytes", meta.mode(), meta.len()))
            };
            self.0.insert(path, node);
        }
        Ok(())
    }

    /// The top-level names.
    pub fn top(&self) -> impl Iterator<Item = &[u8]> {
        self.0.keys().map(Vec::as_slice).filter(|path| !path.contains(&b'/'))
    }

    /// The differences of `actual` from this tree, one line each.
    pub fn differences(&self, actual: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        for (path, node) in &self.0 {
            match actual.0.get(path) {
                None => lines.push(format!("missing: {}", path.escape_ascii())),
                Some(other) if other != node => {
                    lines.push(format!(
                        "different: {}: {}, not {}",
                        path.escape_ascii(),
                        short(other),
                        short(node)
                    ));
                }
                Some(_) => {}
            }
        }
        for (path, node) in &actual.0 {
            if !self.0.contains_key(path) {
                lines.push(format!("too much: {}: {}", path.escape_ascii(), short(node)));
            }
        }
        lines
    }
}

fn short(node: &Node) -> String {
    let text = |bytes: &[u8]| format!("\"{}\"", bytes[..bytes.len().min(40)].escape_ascii());
    match node {
        Node::Directory => "a directory".into(),
        Node::File { executable, content } => {
            let kind = if *executable { "executable" } else { "file" };
            format!("{kind} of {} bytes {}", content.len(), text(content))
        }
        Node::Link(target) => format!("link to {}", text(target)),
        Node::Odd(what) => what.clone(),
    }
}
