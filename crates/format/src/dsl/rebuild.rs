//! The state of a sequential rebuild, kept as an array of 12 words in the ZAP of the top-level vdev, under [`RebuildPhys::ENTRY`].

use crate::endian::Endian;
use crate::error::FormatError;
use crate::ids::Txg;
use crate::words::{bytes_to_words, one_field, word_struct, words_to_bytes};

/// The state of a rebuild (`vdev_rebuild_state_t`). Unknown numbers are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RebuildState(pub u64);

impl RebuildState {
    /// None, or forgotten.
    pub const NONE: Self = Self(0);
    /// Under way.
    pub const ACTIVE: Self = Self(1);
    /// Given up.
    pub const CANCELED: Self = Self(2);
    /// Done.
    pub const COMPLETE: Self = Self(3);
}

one_field! {
    RebuildState as u64: |word| Self(word), |value| value.0;
}

word_struct! {
    /// A sequential rebuild of a top-level vdev (`vdev_rebuild_phys_t`).
    #[derive(Copy, Default)]
    RebuildPhys("rebuild", 96) {
        /// How far it is.
        state: RebuildState,
        /// All before this offset of the vdev is rebuilt.
        last_offset_bytes: u64,
        /// Leaves have missed blocks born after this txg,
        min_txg: Txg,
        /// and before this one.
        max_txg: Txg,
        /// Start in seconds.
        start_time: u64,
        /// End in seconds.
        end_time: u64,
        /// Milliseconds that it has taken.
        scan_time_ms: u64,
        /// Bytes in use that it has come to.
        scanned_bytes: u64,
        /// Bytes of these that were copied.
        issued_bytes: u64,
        /// Bytes that were written to devices.
        rebuilt_bytes: u64,
        /// Bytes that were expected to be scanned.
        estimated_bytes: u64,
        /// Errors.
        error_count: u64,
    }
}

impl RebuildPhys {
    /// The entry of the vdev's ZAP (`VDEV_TOP_ZAP_VDEV_REBUILD_PHYS`).
    pub const ENTRY: &str = "org.openzfs:vdev_rebuild";

    /// From the words of the ZAP value.
    pub fn from_words(words: &[u64]) -> Result<Self, FormatError> {
        Self::parse(&words_to_bytes(words), Endian::Little)
    }

    /// The words of the ZAP value.
    #[must_use]
    pub fn words(&self) -> Vec<u64> {
        bytes_to_words(&self.emit(Endian::Little), Endian::Little)
    }
}
