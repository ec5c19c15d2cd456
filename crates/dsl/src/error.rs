//! Errors about datasets, each with the dataset's name where it is known.

use cenote_dmu::DmuError;
use cenote_format::FormatError;
use thiserror::Error;

/// Why something about a dataset failed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum DslError {
    /// An object of the MOS, or of the dataset, could not be read.
    #[error("{0}")]
    Dmu(#[from] DmuError),
    /// A structure is not valid.
    #[error("MOS object {object}: {error}")]
    Format {
        /// The object of the MOS.
        object: u64,
        /// The fault.
        error: FormatError,
    },
    /// No dataset has this name.
    #[error("cannot open '{0}': dataset does not exist")]
    NoSuchDataset(String),
    /// The name is not legal.
    #[error("'{name}': {reason}")]
    BadName {
        /// The name.
        name: String,
        /// The rule that it breaks.
        reason: NameError,
    },
    /// Structures contradict each other.
    #[error("MOS object {object}: {what}")]
    Corrupt {
        /// The object of the MOS.
        object: u64,
        /// The contradiction.
        what: String,
    },
    /// A dataset is half received or half destroyed: its contents are incomplete.
    #[error(
        "'{0}': dataset is busy: it is half received or half destroyed ('zfs receive -s' goes on with it, 'zfs receive -A' gives it up)"
    )]
    Inconsistent(String),
    /// The dataset is not encrypted.
    #[error("'{0}' is not encrypted")]
    NotEncrypted(String),
    /// The key given is not the dataset's.
    #[error("Key load error: incorrect key provided for '{0}'")]
    WrongKey(String),
    /// The key does not have the form of the dataset's `keyformat`.
    #[error("Key load error for '{dataset}': {reason}")]
    BadKeyForm {
        /// The dataset.
        dataset: String,
        /// The fault found in it.
        reason: String,
    },
    /// The dataset's key is needed and not loaded.
    #[error("'{0}' is encrypted and its key is not loaded")]
    KeyNotLoaded(String),
    /// This version does not support an operation.
    #[error("not supported yet: {0}")]
    Unsupported(String),
}

/// A rule that a name breaks. The text is OpenZFS's if OpenZFS has the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// There is no name.
    #[error("a name must not be empty")]
    Empty,
    /// A name has more than [`NAME_MAX_BYTES`](crate::name::NAME_MAX_BYTES), or a pool's name is so long that the names of its own datasets would.
    #[error("name is too long")]
    TooLong,
    /// A dataset is more than 50 levels deep.
    #[error("maximum name nesting depth exceeded")]
    TooDeep,
    /// The name begins with a slash.
    #[error("leading slash in name")]
    LeadingSlash,
    /// The name ends with a slash.
    #[error("trailing slash in name")]
    TrailingSlash,
    /// A part between two delimiters is empty, or a delimiter precedes a slash.
    #[error("empty component or misplaced '@' or '#' delimiter in name")]
    EmptyPart,
    /// There is more than one delimiter of a snapshot or bookmark.
    #[error("multiple '@' and/or '#' delimiters in name")]
    ManyDelimiters,
    /// A dataset's name has the delimiter of a snapshot.
    #[error("snapshot delimiter '@' is not expected here")]
    SnapshotDelimiter,
    /// A dataset's or snapshot's name has the delimiter of a bookmark.
    #[error("bookmark delimiter '#' is not expected here")]
    BookmarkDelimiter,
    /// A snapshot's name has no delimiter.
    #[error("missing '@' delimiter in snapshot name")]
    NoSnapshotDelimiter,
    /// A bookmark's name has no delimiter.
    #[error("missing '#' delimiter in bookmark name")]
    NoBookmarkDelimiter,
    /// A new name contains an illegal character.
    #[error("invalid character '{0}' in name")]
    BadCharacter(char),
    /// The name of a new pool contains an illegal character.
    #[error("invalid character '{0}' in pool name{hint}", hint = if *.0 == '/' { "\nuse 'zfs create' to create a dataset" } else { "" })]
    BadPoolCharacter(char),
    /// The name of a new pool does not begin with a letter.
    #[error("name must begin with a letter")]
    NoLetter,
    /// The name of a new pool is reserved for a kind of vdev.
    #[error("name is reserved")]
    Reserved,
    /// A part of a new name is `.`.
    #[error("self reference, '.' is found in name")]
    SelfReference,
    /// A part of a new name is `..`.
    #[error("parent reference, '..' is found in name")]
    ParentReference,
    /// The name looked up contains a character that no name has, not even one that other software made.
    #[error("invalid character in name")]
    IllegalCharacter,
    /// The name to be opened is a bookmark's.
    #[error("a bookmark has no contents")]
    NoContents,
    /// A part of the name looked up is `.` or `..`.
    #[error("'.' and '..' are no names")]
    PathReference,
}
