//! Objects that are not there, or not as they should be.

use crate::revision::ObjectId;

/// Why an object that was asked for cannot be had.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize, thiserror::Error)]
pub(super) enum Lack {
    /// The database does not have it.
    #[error("{expected} {id} is missing")]
    Missing {
        /// Which.
        id: ObjectId,
        /// What it should have been.
        expected: String,
    },
    /// It is something else.
    #[error("{id} is a {found} where a {expected} was expected")]
    OtherKind {
        /// Which.
        id: ObjectId,
        /// What it should have been.
        expected: String,
        /// What it is.
        found: String,
    },
    /// It is larger than anything of its kind may be. It was not read.
    #[error("{expected} {id} has {bytes} bytes, more than {limit}")]
    TooLarge {
        /// Which.
        id: ObjectId,
        /// What it is.
        expected: String,
        /// How large it is.
        bytes: u64,
        /// How large it may be.
        limit: u64,
    },
    /// It is there but cannot be decoded or understood.
    #[error("{expected} {id} cannot be read: {why}")]
    Unreadable {
        /// Which.
        id: ObjectId,
        /// What it should have been.
        expected: String,
        /// What the database or the parser said.
        why: String,
    },
}
