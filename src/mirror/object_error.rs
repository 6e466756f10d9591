//! Why an object could not be read: missing, of the wrong type, too large, or damaged.

use crate::revision::ObjectId;

/// Why an object could not be read.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize, thiserror::Error)]
pub enum ObjectError {
    /// The database does not have it.
    #[error("{expected} {id} is missing")]
    Missing {
        /// The object.
        id: ObjectId,
        /// The expected type.
        expected: String,
    },
    /// It is of another type. Its hash is right, so its author named it like this.
    #[error("{id} is a {found} where a {expected} was expected")]
    OtherKind {
        /// The object.
        id: ObjectId,
        /// The expected type.
        expected: String,
        /// The type found.
        found: String,
    },
    /// It exceeds the size limit for its type. It was not read.
    #[error("{expected} {id} has {bytes} bytes, more than {limit}")]
    TooLarge {
        /// The object.
        id: ObjectId,
        /// Its type.
        expected: String,
        /// Its size in bytes.
        bytes: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// Its content is not that of such an object. Its hash is right, so its author wrote it like this.
    #[error("{expected} {id} is malformed: {why}")]
    Malformed {
        /// The object.
        id: ObjectId,
        /// Its type.
        expected: String,
        /// The message of the parser.
        why: String,
    },
    /// It is present but cannot be decoded.
    #[error("{expected} {id} cannot be read: {why}")]
    Unreadable {
        /// The object.
        id: ObjectId,
        /// The expected type.
        expected: String,
        /// The message of the database.
        why: String,
    },
}
