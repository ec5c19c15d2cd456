//! The state of scrub and resilver, kept as arrays of words in the pool's directory: 24 under `scan`, 9 under
//! `error_scrub`.

use crate::endian::{Endian, Fields, put_u64};
use crate::error::FormatError;
use crate::ids::{ObjectId, ObjsetId, Txg};
use crate::words::{DiskWords, bytes_to_words, one_word, word_struct, words_to_bytes};

/// A block's place in the pool's tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ZBookmark {
    /// The objset.
    pub objset: ObjsetId,
    /// The object.
    pub object: ObjectId,
    /// The level; -1 the objset's own block, -2 an intent log block, and so on.
    pub level: i64,
    /// The block.
    pub block: u64,
}

impl DiskWords for ZBookmark {
    const WORDS: usize = 4;

    fn read(fields: &Fields<'_>, offset: usize) -> Result<Self, FormatError> {
        Ok(Self {
            objset: DiskWords::read(fields, offset)?,
            object: DiskWords::read(fields, offset + 8)?,
            level: DiskWords::read(fields, offset + 16)?,
            block: DiskWords::read(fields, offset + 24)?,
        })
    }

    fn write(&self, buffer: &mut [u8], offset: usize, endian: Endian) {
        self.objset.write(buffer, offset, endian);
        self.object.write(buffer, offset + 8, endian);
        self.level.write(buffer, offset + 16, endian);
        self.block.write(buffer, offset + 24, endian);
    }
}

/// A place in the dedup tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DdtBookmark {
    /// Class of table.
    pub class: u64,
    /// Type of table.
    pub table_type: u64,
    /// Checksum of table.
    pub checksum: u64,
    /// ZAP cursor.
    pub cursor: u64,
}

impl DiskWords for DdtBookmark {
    const WORDS: usize = 4;

    fn read(fields: &Fields<'_>, offset: usize) -> Result<Self, FormatError> {
        let [class, table_type, checksum, cursor] = DiskWords::read(fields, offset)?;
        Ok(Self { class, table_type, checksum, cursor })
    }

    fn write(&self, buffer: &mut [u8], offset: usize, endian: Endian) {
        [self.class, self.table_type, self.checksum, self.cursor].write(buffer, offset, endian);
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
}

one_word! {
    ScanFlags: |word| Self::from_bits_retain(word), |value| value.bits();
    ScanFunction: |word| Self(word), |value| value.0;
    ScanState: |word| Self(word), |value| value.0;
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
    ErrorScrubPhys("error scrub", 72) {
        /// Its function.
        function: ScanFunction,
        /// How far it is.
        state: ScanState,
        /// ZAP cursor in the error log.
        cursor: u64,
        /// Start in seconds.
        start_time: u64,
        /// End in seconds.
        end_time: u64,
        /// Blocks to read.
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
