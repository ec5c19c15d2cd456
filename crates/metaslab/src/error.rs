//! Errors of space accounting.
//!
//! ```text
//!   the pool's objects ── ObjectError ─┬─► SpaceError     the allocator, which writes
//!                                      └─► SpaceMapError  space maps and logs that are read; with its place a SpaceProblem
//!   Allocator::verify ──► Violation
//! ```

use std::fmt;

use cenote_format::FormatError;
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::spacemap::SpaceMapType;
use cenote_taskq::JoinError;
use thiserror::Error;

use crate::RangeError;
use crate::store::{MetaslabId, ObjectError};

/// An error of space accounting. All but [`SpaceError::Store`] mean that what was asked or what is on disk contradicts what
/// is known: the pool should stop syncing rather than write it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SpaceError {
    /// The layer that holds the objects failed.
    #[error("cannot {action} (object {object}): {error}")]
    Store {
        /// The space map; 0 if there is none yet.
        object: ObjectId,
        /// The action that failed.
        action: &'static str,
        /// The layer's error.
        #[source]
        error: ObjectError,
    },
    /// A range that a space map cannot express, or an entry that cannot be one of its.
    #[error("space map object {object} cannot hold an entry: {error}")]
    Entry {
        /// The space map.
        object: ObjectId,
        /// Why.
        #[source]
        error: FormatError,
    },
    /// Entries for a log, while none is open.
    #[error("space map object 0 cannot hold an entry: no log is open")]
    NoLog,
    /// A change that contradicts a metaslab's state.
    #[error("vdev {} metaslab {}, {tree}: {error}", .metaslab.vdev, .metaslab.index)]
    Contradiction {
        /// The metaslab.
        metaslab: MetaslabId,
        /// Which of its sets.
        tree: &'static str,
        /// How.
        #[source]
        error: RangeError,
    },
    /// The map of the checkpoint has an entry that cannot be.
    #[error("space map object {object} of the checkpoint is damaged: {what}")]
    Checkpoint {
        /// The space map.
        object: ObjectId,
        /// How.
        what: String,
    },
    /// A metaslab that is not there.
    #[error("vdev {} has no metaslab {}", .0.vdev, .0.index)]
    NoMetaslab(MetaslabId),
    /// A figure or a state that does not add up.
    #[error("vdev {} metaslab {}: {fault}", .metaslab.vdev, .metaslab.index)]
    Figures {
        /// The metaslab.
        metaslab: MetaslabId,
        /// Which, and by how much.
        #[source]
        fault: MetaslabFault,
    },
}

impl SpaceError {
    pub(crate) fn store(object: ObjectId, action: &'static str) -> impl FnOnce(ObjectError) -> Self {
        move |error| Self::Store { object, action, error }
    }

    pub(crate) fn tree(metaslab: MetaslabId, tree: &'static str) -> impl Fn(RangeError) -> Self {
        move |error| Self::Contradiction { metaslab, tree, error }
    }
}

/// The fault of a metaslab whose figures do not add up.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MetaslabFault {
    /// Its sets do not make up all of it.
    #[error("free, moving and allocated space make {sum_bytes} of {size_bytes} bytes")]
    Sum {
        /// Bytes of all its sets.
        sum_bytes: u64,
        /// Its size.
        size_bytes: u64,
    },
    /// Its map and its unflushed changes disagree with what is allocated.
    #[error("map and unflushed changes make {recorded_bytes} of {allocated_bytes} bytes allocated")]
    Allocated {
        /// Bytes allocated by map and unflushed changes.
        recorded_bytes: i64,
        /// Bytes allocated in truth.
        allocated_bytes: u64,
    },
    /// A txg frees more than there is.
    #[error("{freed_bytes} bytes are freed, more than are allocated")]
    FreedMore {
        /// Bytes that are freed.
        freed_bytes: u64,
    },
    /// A place in it is claimed, and it is not loaded.
    #[error("is not loaded, so nothing can be claimed")]
    NotLoaded,
    /// It was last flushed in a txg that the pool has not come to.
    #[error("was last flushed in txg {txg}, and the pool is at txg {synced}")]
    ToCome {
        /// When it was last flushed, as its vdev's list says.
        txg: Txg,
        /// The pool's last txg.
        synced: Txg,
    },
    /// It is to be flushed up to the open log, and none is open.
    #[error("no log is open")]
    NoLog,
    /// An entry of a log contradicts it.
    #[error("a log entry {kind:?} of bytes {start_bytes}..{end_bytes} {fault}")]
    LogEntry {
        /// Allocation or free.
        kind: SpaceMapType,
        /// From where on the vdev.
        start_bytes: u64,
        /// Up to where.
        end_bytes: u64,
        /// How.
        #[source]
        fault: LogEntryFault,
    },
}

/// How an entry of a log contradicts its metaslab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LogEntryFault {
    /// It reaches outside.
    #[error("leaves the metaslab")]
    Outside,
    /// It begins or ends within a unit.
    #[error("has no whole units")]
    NotWhole,
    /// With it less than nothing is allocated, or more than there is.
    #[error("takes the allocated bytes out of 0 to the metaslab's size")]
    Allocated,
    /// It repeats an earlier one.
    #[error("is there already")]
    Repeated,
}

/// Why a space map cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SpaceMapError {
    /// Its object cannot be read.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// Its header or an entry is not valid.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// An entry contradicts those before it.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// It contradicts what else is known of the metaslab.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// The task that read it came to nothing.
    #[error(transparent)]
    Task(#[from] JoinError),
    /// A log of a txg that the pool has not come to.
    #[error("the pool is at txg {synced} only")]
    ToCome {
        /// The pool's last txg.
        synced: Txg,
    },
    /// A vdev of more metaslabs than are read.
    #[error("{count} metaslabs are too many")]
    TooMany {
        /// Metaslabs of the vdev.
        count: u64,
    },
    /// A vdev of more or larger metaslabs than can be written to.
    #[error("{count} metaslabs of 2^{metaslab_shift} bytes are too many or too large")]
    TooLarge {
        /// Metaslabs of the vdev.
        count: u64,
        /// Size of a metaslab as a power of two.
        metaslab_shift: u32,
    },
    /// A header that has less than nothing allocated, or more than there is.
    #[error("its header has {allocated_bytes} of {size_bytes} bytes allocated")]
    Allocated {
        /// Bytes allocated by the header.
        allocated_bytes: i64,
        /// Size of the metaslab.
        size_bytes: u64,
    },
    /// An entry of a log that names no vdev.
    #[error("an entry without a vdev")]
    NoVdev,
    /// An entry of a log about a metaslab that its vdev does not have.
    #[error("an entry beyond the last metaslab")]
    NoMetaslab,
    /// It is the log of a txg.
    #[error("log of txg {txg}: {error}")]
    Log {
        /// The txg.
        txg: Txg,
        /// Why.
        #[source]
        error: Box<SpaceMapError>,
    },
    /// It is the space map of what the checkpoint keeps.
    #[error("checkpoint: {error}")]
    Checkpoint {
        /// Why.
        #[source]
        error: Box<SpaceMapError>,
    },
}

impl SpaceMapError {
    pub(crate) fn of_log(self, txg: Txg) -> Self {
        Self::Log { txg, error: Box::new(self) }
    }
}

/// An invariant of the allocator that does not hold: by [`Allocator::verify`](crate::Allocator::verify).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Violation {
    /// Logs, summary and metaslabs disagree (invariant 6).
    #[error("{figure}: {found}, expected {expected}")]
    Logs {
        /// Which figure.
        figure: LogFigure,
        /// As it was counted.
        found: u64,
        /// As it is kept.
        expected: u64,
    },
    /// A metaslab contradicts itself (invariants 4 and 5).
    #[error(transparent)]
    Metaslab(#[from] SpaceError),
    /// The memory of unflushed changes is accounted wrongly.
    #[error("unflushed changes take {memory_bytes} bytes, {accounted_bytes} are accounted")]
    Memory {
        /// Bytes that they take.
        memory_bytes: u64,
        /// Bytes that the logs account for.
        accounted_bytes: u64,
    },
}

/// A figure of the log space maps, which can be counted in another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFigure {
    /// Blocks of all logs.
    Blocks,
    /// The same by the summary.
    SummaryBlocks,
    /// Metaslabs that were flushed in the logs' txgs.
    Metaslabs,
    /// The same by the summary.
    SummaryMetaslabs,
    /// Metaslabs with unflushed changes.
    Dirty,
    /// The same by the summary.
    SummaryDirty,
    /// Logs by the summary.
    SummaryLogs,
}

impl fmt::Display for LogFigure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Blocks => "blocks",
            Self::SummaryBlocks => "blocks in the summary",
            Self::Metaslabs => "metaslabs of logs",
            Self::SummaryMetaslabs => "metaslabs in the summary",
            Self::Dirty => "dirty metaslabs",
            Self::SummaryDirty => "dirty metaslabs in the summary",
            Self::SummaryLogs => "logs in the summary",
        })
    }
}

#[cfg(test)]
mod tests {
    use cenote_format::ids::VdevId;

    use std::error::Error as StdError;

    use super::*;

    #[test]
    fn messages_name_the_place_and_the_fault() {
        let metaslab = MetaslabId { vdev: VdevId(1), index: 2 };
        let figures = |fault| SpaceError::Figures { metaslab, fault }.to_string();
        let (kind, fault) = (SpaceMapType::Alloc, LogEntryFault::Outside);
        assert_eq!(
            figures(MetaslabFault::LogEntry { kind, start_bytes: 4096, end_bytes: 8192, fault }),
            "vdev 1 metaslab 2: a log entry Alloc of bytes 4096..8192 leaves the metaslab"
        );
        assert_eq!(
            figures(MetaslabFault::Sum { sum_bytes: 5, size_bytes: 6 }),
            "vdev 1 metaslab 2: free, moving and allocated space make 5 of 6 bytes"
        );
        assert_eq!(SpaceMapError::NoVdev.of_log(Txg(7)).to_string(), "log of txg 7: an entry without a vdev");
        let violation = Violation::Logs { figure: LogFigure::SummaryBlocks, found: 3, expected: 4 };
        assert_eq!(violation.to_string(), "blocks in the summary: 3, expected 4");
    }

    #[test]
    fn the_error_of_the_layer_above_can_be_found_again() {
        let error = ObjectError::new(std::io::Error::other("gone"));
        let error = SpaceError::store(ObjectId(5), "append entries")(error);
        assert_eq!(error.to_string(), "cannot append entries (object 5): gone");
        let cause = error.source().and_then(StdError::source).and_then(<dyn StdError>::downcast_ref::<std::io::Error>);
        assert!(cause.is_some(), "{error:?}");
        assert_eq!(error, error.clone());
    }
}
