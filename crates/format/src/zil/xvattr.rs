//! Extended attributes of a file (the DOS-like flags, creation time, project) within log records.
//!
//! ```text
//!   0            4                 4+4n         12+4n              28+4n          60+4n
//!   +------------+-----------------+------------+------------------+--------------+
//!   | n          | bitmap          | attributes | creation time    | scan stamp   |
//!   | u32 (3)    | n x u32: which  | u64: values| 2 x u64          | 32 bytes     |
//!   +------------+-----------------+------------+------------------+--------------+
//! ```
//!
//! The bitmap says which attributes the operation sets; a flag's value is its bit in the attributes word. A project id
//! shares the place of the virus scanner's stamp: its first eight bytes.

use crate::endian::{Endian, Fields};
use crate::error::FormatError;

bitflags::bitflags! {
    /// The attributes (`XAT0_*`), both as "is being set" in the bitmap's first word and as values.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct XvattrFlags: u64 {
        /// Creation time.
        const CREATETIME = 1 << 0;
        /// Archive.
        const ARCHIVE = 1 << 1;
        /// System.
        const SYSTEM = 1 << 2;
        /// Read-only.
        const READONLY = 1 << 3;
        /// Hidden.
        const HIDDEN = 1 << 4;
        /// Not to be unlinked.
        const NOUNLINK = 1 << 5;
        /// Immutable.
        const IMMUTABLE = 1 << 6;
        /// Append-only.
        const APPENDONLY = 1 << 7;
        /// Not to be dumped.
        const NODUMP = 1 << 8;
        /// Opaque.
        const OPAQUE = 1 << 9;
        /// Quarantined by a virus scanner.
        const AV_QUARANTINED = 1 << 10;
        /// Modified since the last scan.
        const AV_MODIFIED = 1 << 11;
        /// The scanner's stamp.
        const AV_SCANSTAMP = 1 << 12;
        /// A reparse point.
        const REPARSE = 1 << 13;
        /// Generation number.
        const GEN = 1 << 14;
        /// Offline.
        const OFFLINE = 1 << 15;
        /// Sparse.
        const SPARSE = 1 << 16;
        /// Children inherit the project.
        const PROJINHERIT = 1 << 17;
        /// Project id.
        const PROJID = 1 << 18;

        const _ = !0;
    }
}

/// Extended attributes in a log record (`lr_attr_t`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xvattr {
    /// Which attributes are set, [`Xvattr::requested`] names those of the first word. Three words in all logs so far.
    pub bitmap: Vec<u32>,
    /// Values of those that are flags.
    pub values: XvattrFlags,
    /// Creation time: seconds and nanoseconds.
    pub creation_time: [u64; 2],
    /// Scan stamp, or the project id.
    pub scan_stamp: [u8; 32],
}

const STRUCTURE: &str = "log record attributes";

impl Xvattr {
    /// The number of bitmap words that OpenZFS writes (`XVA_MAPSIZE`).
    pub const BITMAP_WORDS: usize = 3;
    const BITMAP_WORDS_MAX: u32 = 64;

    /// Reads attributes from the head of `bytes`; also says how many bytes they take.
    pub(crate) fn parse(bytes: &[u8], endian: Endian) -> Result<(Self, usize), FormatError> {
        let head = Fields::new(STRUCTURE, bytes, 4, endian)?;
        let word_count = head.u32(0)?;
        if word_count == 0 || word_count > Self::BITMAP_WORDS_MAX {
            return Err(FormatError::invalid(STRUCTURE, 0, "bitmap words", u64::from(word_count), "1 to 64"));
        }
        let bitmap = (0..word_count as usize).map(|i| head.u32(4 + 4 * i)).collect::<Result<Vec<_>, _>>()?;
        let end = 4 + 4 * bitmap.len();
        let value = Self {
            bitmap,
            values: XvattrFlags::from_bits_retain(head.u64(end)?),
            creation_time: [head.u64(end + 8)?, head.u64(end + 16)?],
            scan_stamp: head.array(end + 24)?,
        };
        let size = value.size();
        Ok((value, size))
    }

    /// Bytes taken.
    #[must_use]
    pub(crate) fn size(&self) -> usize {
        4 + 4 * self.bitmap.len() + 56
    }

    /// Appends the bytes.
    pub(crate) fn emit(&self, out: &mut Vec<u8>, endian: Endian) {
        // Bitmaps are a few words; parse refuses more than 64.
        out.extend(endian.bytes32(u32::try_from(self.bitmap.len()).unwrap_or(u32::MAX)));
        for word in &self.bitmap {
            out.extend(endian.bytes32(*word));
        }
        out.extend(endian.bytes64(self.values.bits()));
        out.extend(endian.bytes64(self.creation_time[0]));
        out.extend(endian.bytes64(self.creation_time[1]));
        out.extend(self.scan_stamp);
    }

    /// The attributes that the operation sets.
    #[must_use]
    pub fn requested(&self) -> XvattrFlags {
        XvattrFlags::from_bits_retain(self.bitmap.first().copied().unwrap_or(0).into())
    }

    /// The project id, if it is being set. It is not swapped on replay, so it is in the writer's order.
    #[must_use]
    pub fn project_id(&self, endian: Endian) -> Option<u64> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.scan_stamp[..8]);
        self.requested().contains(XvattrFlags::PROJID).then(|| endian.u64(bytes))
    }
}
