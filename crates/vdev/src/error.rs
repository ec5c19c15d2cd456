//! Why a vdev operation failed.

use cenote_format::ids::{Guid, VdevId};

use crate::fault::{Fault, FaultKind};
use crate::layout::LayoutError;

/// Why a vdev operation failed.
#[derive(Debug, thiserror::Error)]
pub enum VdevError {
    /// The pool's configuration has no top-level vdev of this id, or a hole where one was.
    #[error("the pool has no vdev {0}")]
    NoSuchVdev(VdevId),
    /// The top-level vdev is known but was not found (a missing log device imported with `-m`, for example).
    #[error("vdev {0} is missing")]
    Missing(VdevId),
    /// The range does not lie within the vdev, or no block can have it.
    #[error("vdev {vdev}: {source}")]
    BadRange {
        /// The top-level vdev.
        vdev: VdevId,
        /// The reason why the range is invalid.
        source: LayoutError,
    },
    /// No copy or reconstruction could be had that passes verification.
    #[error("vdev {vdev}: {} at offset {offset_bytes:#x}, {size_bytes:#x} bytes{}", worst(faults), list(faults))]
    Unreadable {
        /// The top-level vdev.
        vdev: VdevId,
        /// Offset on it, as DVAs count.
        offset_bytes: u64,
        /// Bytes asked for.
        size_bytes: u64,
        /// The fault of each device involved, at most [`VdevError::FAULTS_MAX`].
        faults: Vec<Fault>,
    },
    /// Too few devices took a write for it to be there afterwards.
    #[error("vdev {vdev}: cannot write at offset {offset_bytes:#x}, {size_bytes:#x} bytes{}", list(faults))]
    Unwritable {
        /// The top-level vdev.
        vdev: VdevId,
        /// Offset on it, as DVAs count.
        offset_bytes: u64,
        /// Bytes to write.
        size_bytes: u64,
        /// The fault of each device involved, at most [`VdevError::FAULTS_MAX`].
        faults: Vec<Fault>,
    },
    /// The vdev was removed and its mapping has no entry for this place.
    #[error("vdev {vdev} was removed and its mapping does not cover offset {offset_bytes:#x}")]
    Unmapped {
        /// The removed vdev.
        vdev: VdevId,
        /// Where the mapping has a gap.
        offset_bytes: u64,
    },
    /// The mapping of a removed vdev cannot be read, is not loaded, or loops.
    #[error("vdev {vdev} was removed and its mapping is unusable: {reason}")]
    BadMapping {
        /// The removed vdev.
        vdev: VdevId,
        /// Why.
        reason: String,
    },
    /// The configuration of the pool's devices is invalid.
    #[error("invalid vdev configuration{}: {reason}", guid.map_or_else(String::new, |guid| format!(" (guid {guid})")))]
    BadConfig {
        /// The vdev, where it is known.
        guid: Option<Guid>,
        /// The fault found in it.
        reason: String,
    },
    /// The pool is suspended and was given up, or could not be resumed.
    #[error("the pool is suspended: {0}")]
    Suspended(String),
    /// Something that this version cannot do.
    #[error("not supported yet: {0}")]
    Unsupported(String),
}

impl VdevError {
    /// The error in words; where the pool is suspended, the reason alone.
    #[must_use]
    pub fn why(&self) -> String {
        match self {
            Self::Suspended(reason) => reason.clone(),
            other => other.to_string(),
        }
    }

    /// How many faults an error carries at most; the pool's fault log has the others.
    pub(crate) const FAULTS_MAX: usize = 256;

    /// Whether a device was given up on that had not failed: it may still be waited for.
    #[must_use]
    pub fn is_overdue(&self) -> bool {
        match self {
            Self::Unreadable { faults, .. } => faults.iter().any(|fault| fault.kind == FaultKind::Overdue),
            _ => false,
        }
    }

    /// Whether bytes could not be read since devices failed or are not there, in contrast to bytes that were wrong.
    #[must_use]
    pub fn is_of_devices(&self) -> bool {
        let failed =
            |fault: &Fault| matches!(fault.kind, FaultKind::Read(_) | FaultKind::Unavailable | FaultKind::Overdue);
        match self {
            Self::Unreadable { faults, .. } => !faults.is_empty() && faults.iter().all(failed),
            _ => false,
        }
    }

    /// Whether bytes may be right that could not be read, while none were wrong that should have been right. Bytes of a device that has
    /// missed a write say nothing.
    #[must_use]
    pub fn may_be_elsewhere(&self) -> bool {
        let failed =
            |fault: &Fault| matches!(fault.kind, FaultKind::Read(_) | FaultKind::Unavailable | FaultKind::Overdue);
        match self {
            Self::Unreadable { faults, .. } => faults.iter().any(failed) && !self.is_checksum(),
            _ => true,
        }
    }

    /// Whether bytes could be read but none were right, in contrast to bytes that could not be read.
    #[must_use]
    pub fn is_checksum(&self) -> bool {
        match self {
            Self::Unreadable { faults, .. } => faults.iter().any(|fault| fault.kind == FaultKind::Checksum),
            _ => false,
        }
    }
}

/// The first faults in words, and how many more there are.
fn list(faults: &[Fault]) -> String {
    const SHOWN: usize = 8;
    let mut text: String = faults.iter().take(SHOWN).map(|fault| format!("; {fault}")).collect();
    if faults.len() > SHOWN {
        text.push_str(&format!("; and {} more", faults.len() - SHOWN));
    }
    text
}

/// The one word for what several faults amount to.
fn worst(faults: &[Fault]) -> &'static str {
    if faults.iter().any(|fault| fault.kind == FaultKind::Checksum) {
        "checksum error"
    } else if faults.iter().any(|fault| matches!(fault.kind, FaultKind::Read(_))) {
        "read error"
    } else {
        "too many devices unavailable"
    }
}
