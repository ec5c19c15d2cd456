//! Errors of space accounting.

use cenote_format::ids::ObjectId;
use thiserror::Error;

use crate::{MetaslabId, RangeError};

/// An error of space accounting. All but [`SpaceError::Store`] mean that what was asked or what is on disk contradicts what
/// is known: the pool should stop syncing rather than write it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SpaceError {
    /// The layer that holds the objects failed.
    #[error("cannot {action} (object {object}): {reason}")]
    Store {
        /// The space map; 0 if there is none yet.
        object: ObjectId,
        /// The action that failed.
        action: &'static str,
        /// The layer's error message.
        reason: String,
    },
    /// A range that a space map cannot express.
    #[error("space map object {object} cannot hold an entry: {reason}")]
    Entry {
        /// The space map.
        object: ObjectId,
        /// Why.
        reason: String,
    },
    /// A change that contradicts a metaslab's state.
    #[error("vdev {} metaslab {}, {tree}: {error}", .metaslab.vdev, .metaslab.index)]
    Contradiction {
        /// The metaslab.
        metaslab: MetaslabId,
        /// Which of its sets.
        tree: &'static str,
        /// How.
        error: RangeError,
    },
    /// A metaslab that is not there.
    #[error("vdev {} has no metaslab {}", .0.vdev, .0.index)]
    NoMetaslab(MetaslabId),
    /// A figure that does not add up.
    #[error("vdev {} metaslab {}: {what}", .metaslab.vdev, .metaslab.index)]
    Figures {
        /// The metaslab.
        metaslab: MetaslabId,
        /// Which, and by how much.
        what: String,
    },
}

impl SpaceError {
    pub(crate) fn store(object: ObjectId, action: &'static str) -> impl FnOnce(String) -> Self {
        move |reason| Self::Store { object, action, reason }
    }

    pub(crate) fn tree(metaslab: MetaslabId, tree: &'static str) -> impl Fn(RangeError) -> Self {
        move |error| Self::Contradiction { metaslab, tree, error }
    }
}
