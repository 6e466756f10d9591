//! Sparse patterns, and what they use of the mirror.

pub mod sparse;

pub mod error {
    pub(super) fn excerpt(text: &str) -> String {
        text.to_owned()
    }
}

/// The types of entries in git's trees (inode(7)).
pub mod tree {
    pub const FORMAT: u32 = 0o170_000;
    pub const DIRECTORY: u32 = 0o040_000;
    pub const REGULAR: u32 = 0o100_000;
    pub const SUBMODULE: u32 = 0o160_000;
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{line}: {why}")]
    Sparse { line: String, why: String },
}
