//! The state of scrub and resilver, kept as arrays of words in the pool's directory: 24 under `scan`, 9 under
//! `error_scrub`.

use crate::endian::Endian;
use crate::error::FormatError;
use crate::ids::{ObjectId, ObjsetId, Txg};
use crate::words::{bytes_to_words, fixed_struct, one_field, word_struct, words_to_bytes};

fixed_struct! {
    /// A block's place in the pool's tree.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    ZBookmark {
        /// The objset.
        0 objset: ObjsetId,
        /// The object.
        8 object: ObjectId,
        /// The level; -1 the objset's own block, -2 an intent log block, and so on.
        16 level: i64,
        /// The block.
        24 block: u64,
    }
}

fixed_struct! {
    /// A place in the dedup tables.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    DdtBookmark {
        /// Class of table.
        0 class: u64,
        /// Type of table.
        8 table_type: u64,
        /// Checksum of table.
        16 checksum: u64,
        /// ZAP cursor.
        24 cursor: u64,
    }
}

bitflags::bitflags! {
    /// `scn_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ScanFlags: u64 {
        /// The present dataset is to be visited again.
        const VISIT_DATASET_AGAIN = 1 << 0;
        /// A paused scrub.
        const SCRUB_PAUSED = 1 << 1;
        /// A scrub that covers all of the pool, not a range of txgs.
        const SCRUB_THOROUGH = 1 << 2;
        /// Unknown bits are kept.
        const _ = !0;
    }
}

/// The function of a scan (`pool_scan_func_t`). Unknown numbers are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ScanFunction(pub u64);

impl ScanFunction {
    /// Never scanned.
    pub const NONE: Self = Self(0);
    /// Scrub.
    pub const SCRUB: Self = Self(1);
    /// Resilver.
    pub const RESILVER: Self = Self(2);
    /// Scrub of known errors.
    pub const ERROR_SCRUB: Self = Self(3);
}

/// The state of a scan (`dsl_scan_state_t`). Unknown numbers are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ScanState(pub u64);

impl ScanState {
    /// None.
    pub const NONE: Self = Self(0);
    /// Under way.
    pub const SCANNING: Self = Self(1);
    /// Done.
    pub const FINISHED: Self = Self(2);
    /// Given up.
    pub const CANCELED: Self = Self(3);
    /// A scrub of known errors that is under way.
    pub const ERROR_SCRUBBING: Self = Self(4);
}

one_field! {
    ScanFlags as u64: |word| Self::from_bits_retain(word), |value| value.bits();
    ScanFunction as u64: |word| Self(word), |value| value.0;
    ScanState as u64: |word| Self(word), |value| value.0;
}

word_struct! {
    /// A scrub or resilver.
    #[derive(Copy, Default)]
    ScanPhys("scan", 192) {
        /// Its function.
        function: ScanFunction,
        /// How far it is.
        state: ScanState,
        /// ZAP: datasets yet to visit.
        queue: ObjectId,
        /// Blocks born after this txg are visited,
        min_txg: Txg,
        /// and before this one.
        max_txg: Txg,
        /// The same for the dataset at hand.
        current_min_txg: Txg,
        /// The same for the dataset at hand.
        current_max_txg: Txg,
        /// Start in seconds.
        start_time: u64,
        /// End in seconds.
        end_time: u64,
        /// Bytes to scan.
        to_examine_bytes: u64,
        /// Bytes scanned.
        examined_bytes: u64,
        /// Bytes skipped.
        skipped_bytes: u64,
        /// Bytes repaired or resilvered.
        processed_bytes: u64,
        /// Errors.
        error_count: u64,
        /// The last class of dedup table to scan.
        ddt_class_max: u64,
        /// Where it is in the dedup tables.
        ddt_bookmark: DdtBookmark,
        /// Where it is in the tree.
        bookmark: ZBookmark,
        /// Flags.
        flags: ScanFlags,
    }
}

word_struct! {
    /// A scrub of known errors.
    #[derive(Copy, Default)]
    ErrorScrubPhys("error scrub", 72) {
        /// Its function.
        function: ScanFunction,
        /// How far it is.
        state: ScanState,
        /// The place in the ZAP of the error log's datasets, as a cursor: the hash in the low bits, and the differentiator above.
        cursor: u64,
        /// Start in seconds.
        start_time: u64,
        /// End in seconds.
        end_time: u64,
        /// Blocks still to be read.
        to_examine_count: u64,
        /// Blocks read.
        examined_count: u64,
        /// Errors.
        error_count: u64,
        /// Paused or not.
        paused_flags: u64,
    }
}

impl ScanPhys {
    /// True where the scan has gone through the deduplication tables: of their classes up to `ddt_class_max` none is left.
    #[must_use]
    pub const fn has_walked_tables(&self) -> bool {
        self.ddt_bookmark.class > self.ddt_class_max
    }

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

impl ErrorScrubPhys {
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
