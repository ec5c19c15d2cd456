//! Faults that a walk meets and goes on after. Each becomes a line of the report, which names the place before the fault.

use cenote_dmu::DmuError;
use cenote_format::FormatError;
use cenote_format::blkptr::Dva;
use cenote_format::ids::{ObjectId, VdevId};
use cenote_spa::SpaError;
use cenote_taskq::JoinError;
use cenote_zio::{ZioError, ZioErrorKind};
use thiserror::Error;

/// An object of the MOS cannot be read.
#[derive(Debug, Error)]
pub(crate) enum ReadError {
    /// The pool's directory, or its feature counts.
    #[error(transparent)]
    Spa(Box<SpaError>),
    /// The object, or the ZAP in it.
    #[error(transparent)]
    Dmu(#[from] DmuError),
}

/// A table of references to shared blocks cannot be read to its end: the block reference table, the dedup table or its log.
#[derive(Debug, Error)]
pub(crate) enum TableError {
    /// The pool's directory.
    #[error(transparent)]
    Spa(Box<SpaError>),
    /// The table's object, or the ZAP in it.
    #[error(transparent)]
    Dmu(#[from] DmuError),
    /// A header, a key, a value or a record of the log is not valid.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// An entry of the table has a name for a key.
    #[error("keys are not words")]
    KeyNotWords {
        /// The table.
        table: ObjectId,
    },
    /// An entry of a dedup table has words for a value.
    #[error("a value that is not bytes")]
    ValueNotBytes {
        /// The table.
        table: ObjectId,
    },
    /// A value of a dedup table is compressed in a way that there is not.
    #[error("an unknown compression")]
    UnknownCompression {
        /// Its number.
        number: u8,
    },
    /// A value of a dedup table is neither a traditional nor a flat entry.
    #[error("an entry of neither form")]
    UnknownForm {
        /// Bytes of the value as it is stored.
        size_bytes: usize,
    },
}

/// The blocks that are still to be freed of destroyed datasets and clones cannot be told.
#[derive(Debug, Error)]
pub(crate) enum FreeingError {
    /// The pool's directory.
    #[error(transparent)]
    Spa(Box<SpaError>),
    /// A list's object, or the ZAP in it.
    #[error(transparent)]
    Dmu(#[from] DmuError),
    /// An entry of the list of destroyed datasets is not valid.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The bookmark of a destroyed dataset is none that freeing leaves.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// Two entries of the list of deleted clones lead to one livelist.
    #[error("livelist {livelist} is listed twice")]
    ListedTwice {
        /// The livelist's object.
        livelist: ObjectId,
    },
    /// The livelists of deleted clones have more parts than are looked at.
    #[error("more than {lists_max} lists")]
    TooManyLists {
        /// Parts that are looked at.
        lists_max: usize,
    },
}

/// The freeing of a destroyed dataset says that it stopped where it never does: it stops at blocks of level 0 only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("stopped at a block of level {level}, which it cannot")]
pub(crate) struct StopError {
    /// The level in the bookmark.
    pub(crate) level: i64,
}

/// A pointer does not fit the place where it stands.
#[derive(Debug, Error)]
pub(crate) enum PointerError {
    /// It names an unknown algorithm, or has a size that no block has.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Its level is not the one that its parent implies.
    #[error("a pointer of level {level} where level {expected} belongs")]
    Level {
        /// The pointer's level.
        level: u8,
        /// The level that its parent implies.
        expected: i8,
    },
}

/// A block cannot be visited: it is bad in every copy, its contents are not valid, or the ranges that it takes cannot be told.
#[derive(Debug, Error)]
pub(crate) enum VisitError {
    /// Its pointer is not one that is followed.
    #[error(transparent)]
    Pointer(#[from] PointerError),
    /// The task that read it came to nothing.
    #[error(transparent)]
    Task(#[from] JoinError),
    /// No copy is good, or the contents cannot be decoded.
    #[error(transparent)]
    Zio(#[from] ZioError),
    /// The objset in it is not valid.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A dnode in it is not valid.
    #[error("object {object}: {source}")]
    Dnode {
        /// The dnode's object.
        object: ObjectId,
        /// The fault of the dnode.
        source: FormatError,
    },
    /// A range lies on a removed vdev whose mapping cannot be read.
    #[error(transparent)]
    Mapping(Box<SpaError>),
    /// No copy of a gang's header can be read.
    #[error(transparent)]
    GangHeader(#[from] ZioErrorKind),
    /// Gang headers lead to gang headers, further than any are written.
    #[error("gang headers nested too deep")]
    GangTooDeep {
        /// The first copy of the header that goes too far.
        header: Dva,
    },
    /// The pieces of a gang are larger than the block that they make up.
    #[error("the pieces of a gang exceed the block's size")]
    GangTooLarge {
        /// The first copy of the header.
        header: Dva,
        /// The sum of the sizes of the pieces.
        pieces_bytes: u64,
        /// The size of the block.
        psize_bytes: u64,
    },
    /// A copy lies on a vdev that the pool does not have.
    #[error("vdev {vdev} does not exist")]
    NoSuchVdev {
        /// The vdev in the pointer.
        vdev: VdevId,
    },
}

/// The pool's errors are large.
macro_rules! boxed {
    ($($of:ident::$variant:ident),*) => {
        $(impl From<SpaError> for $of {
            fn from(error: SpaError) -> Self {
                Self::$variant(Box::new(error))
            }
        })*
    };
}

boxed!(ReadError::Spa, TableError::Spa, FreeingError::Spa, VisitError::Mapping);
