//! A second record of allocated extents, independent of the allocator's own sets. It is kept if the caller asks for it (`check: true`), as
//! the tests do.
//!
//! The allocator's own sets could agree with each other and be wrong. This one knows nothing of metaslabs: an extent
//! that was handed out is in use until two txgs after it was freed, it is never allocated twice, and no write goes outside of it.

use std::collections::BTreeMap;
use std::ops::Range;

use cenote_format::ids::{Txg, VdevId};
use cenote_taskq::mutant::{self, Mutant};
use cenote_zio::OutsideExtents;
use thiserror::Error;

use crate::{Keep, RangeError, RangeSet, TXG_DEFER_SIZE};

/// The book.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExtentCheck {
    vdevs: BTreeMap<VdevId, Book>,
}

#[derive(Clone, Debug, Default)]
struct Book {
    /// Referenced by the pool's newest state.
    live: RangeSet,
    /// Freed, but still referenced by states that must stay readable: by txg.
    kept: BTreeMap<Txg, RangeSet>,
}

/// An allocation or a free contradicts the record.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CheckError {
    /// An extent was handed out that is in use.
    #[error("vdev {vdev}: allocated twice: {error}")]
    Twice {
        /// The vdev.
        vdev: VdevId,
        /// The place.
        error: RangeError,
    },
    /// An extent was freed that is not in use.
    #[error("vdev {vdev}: freed without being allocated: {error}")]
    NotAllocated {
        /// The vdev.
        vdev: VdevId,
        /// The place.
        error: RangeError,
    },
}

impl ExtentCheck {
    /// An empty book.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// A vdev is gone, and all that was on it.
    pub(crate) fn forget(&mut self, vdev: VdevId) {
        self.vdevs.remove(&vdev);
    }

    /// An extent was handed out, or was in use when the pool was opened.
    pub(crate) fn allocated(&mut self, vdev: VdevId, range: Range<u64>) -> Result<(), CheckError> {
        let book = self.vdevs.entry(vdev).or_default();
        let Range { start, end } = range;
        if book.kept.values().any(|kept| kept.overlaps(start..end)) {
            return Err(CheckError::Twice { vdev, error: RangeError::Overlap { start, end, at: start } });
        }
        book.live.add(range).map_err(|error| CheckError::Twice { vdev, error })
    }

    /// An extent was freed in the txg that syncs.
    pub(crate) fn freed(&mut self, vdev: VdevId, txg: Txg, range: Range<u64>) -> Result<(), CheckError> {
        let book = self.vdevs.entry(vdev).or_default();
        let wrong = |error| CheckError::NotAllocated { vdev, error };
        book.live.remove(range.clone()).map_err(wrong)?;
        book.kept.entry(txg).or_default().add(range).map_err(wrong)
    }

    /// An extent was given back before anything referenced it.
    pub(crate) fn unallocated(&mut self, vdev: VdevId, range: Range<u64>) -> Result<(), CheckError> {
        let book = self.vdevs.entry(vdev).or_default();
        book.live.remove(range).map_err(|error| CheckError::NotAllocated { vdev, error })
    }

    /// A txg is on disk: its frees can be used at once, or those of two txgs before, as `keep` says.
    pub(crate) fn synced(&mut self, txg: Txg, keep: &Keep<'_>) {
        let deferred = if mutant::is(Mutant::DeferOnce) { 1 } else { TXG_DEFER_SIZE as u64 };
        let due = Txg(txg.0.saturating_sub(deferred));
        for book in self.vdevs.values_mut() {
            book.kept.retain(|freed, _| keep.needs(*freed) || (*freed > due && (keep.may_defer || *freed != txg)));
        }
    }

    /// Before a device write of a pool's block: it must lie in one extent in use.
    pub(crate) fn write(&self, vdev: VdevId, range: Range<u64>) -> Result<(), OutsideExtents> {
        if self.vdevs.get(&vdev).is_some_and(|book| book.live.contains(range.clone())) {
            return Ok(());
        }
        Err(OutsideExtents { vdev, start_bytes: range.start, end_bytes: range.end })
    }
}
