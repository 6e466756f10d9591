//! Sparse patterns, and what they use of the mirror.

pub mod sparse;

pub mod error {
    pub(super) fn excerpt(text: &str) -> String {
        text.to_owned()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{line}: {why}")]
    Sparse { line: String, why: String },
}
