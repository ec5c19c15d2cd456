//! Uberblocks: the roots of the pool's tree, one for each txg that was synced, in a ring on every label.
//!
//! ```text
//!   0        8         16      24         32          40                  168
//! +--------+---------+-------+----------+-----------+-------------------+------------------+
//! | magic  | version | txg   | guid sum | timestamp | root blkptr, 128  | software version |
//! +--------+---------+-------+----------+-----------+-------------------+------------------+
//!   176        184         192          200              208               216
//! +----------+-----------+------------+----------------+-----------------+
//! | MMP magic| MMP delay | MMP config | checkpoint txg | raidz reflow    |  zeros to the slot's end less 40,
//! +----------+-----------+------------+----------------+-----------------+  then the embedded checksum
//!
//! MMP config     63      48 47       32 31                8 7      0
//!               | fail int | sequence  | write interval ms | valid  |   valid: 1 interval, 2 sequence, 4 fail
//! raidz reflow   63        55 54                                  0
//!               | state     | offset in units of 512 bytes         |
//! ```
//!
//! The magic number shows the byte order. Old writers left the words behind the software version zero.

use std::cmp::Ordering;

use crate::blkptr::{Blkptr, MIN_BLOCK_SHIFT};
use crate::endian::{Endian, Fields};
use crate::error::{FormatError, FormatErrorKind};
use crate::ids::Txg;
use crate::words::DiskField;

const NAME: &str = "uberblock";

const OFFSET_ROOTBP: usize = 40;
const OFFSET_WORDS: usize = OFFSET_ROOTBP + Blkptr::SIZE;

/// The magic number ("oo-ba-bloc").
pub const MAGIC: u64 = 0x00ba_b10c;
/// The magic number of the multihost fields ("all-see-all").
pub const MMP_MAGIC: u64 = 0xa11c_ea11;
/// The pool version from which feature flags count instead of versions.
pub const VERSION_FEATURES: u64 = 5000;
/// The last pool version before feature flags.
pub const VERSION_BEFORE_FEATURES: u64 = 28;

const MMP_INTERVAL_VALID: u64 = 1;
const MMP_SEQUENCE_VALID: u64 = 2;
const MMP_FAIL_INTERVALS_VALID: u64 = 4;

/// Multihost (MMP) state, there if the writer knows multihost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mmp {
    /// Nanoseconds since the last multihost write; 0: multihost is off.
    pub delay_ns: u64,
    /// The packed configuration word.
    pub config: u64,
}

impl Mmp {
    /// Packs a configuration; parts that are `None` are marked as not valid.
    ///
    /// # Panics
    /// If the interval exceeds 24 bits.
    #[must_use]
    pub fn new(delay_ns: u64, interval_ms: Option<u32>, sequence: Option<u16>, fail_intervals: Option<u16>) -> Self {
        let mut config = 0;
        if let Some(interval) = interval_ms {
            assert!(interval < 1 << 24);
            config |= u64::from(interval) << 8 | MMP_INTERVAL_VALID;
        }
        if let Some(sequence) = sequence {
            config |= u64::from(sequence) << 32 | MMP_SEQUENCE_VALID;
        }
        if let Some(fail) = fail_intervals {
            config |= u64::from(fail) << 48 | MMP_FAIL_INTERVALS_VALID;
        }
        Self { delay_ns, config }
    }

    /// Milliseconds between a host's multihost writes.
    #[must_use]
    pub const fn interval_ms(&self) -> Option<u32> {
        if self.config & MMP_INTERVAL_VALID == 0 { None } else { Some((self.config >> 8) as u32 & 0xff_ffff) }
    }

    /// A number that grows with each multihost write within a second.
    #[must_use]
    pub const fn sequence(&self) -> Option<u16> {
        if self.config & MMP_SEQUENCE_VALID == 0 { None } else { Some((self.config >> 32) as u16) }
    }

    /// After how many intervals without a successful write the host suspends the pool.
    #[must_use]
    pub const fn fail_intervals(&self) -> Option<u16> {
        if self.config & MMP_FAIL_INTERVALS_VALID == 0 { None } else { Some((self.config >> 48) as u16) }
    }
}

/// The state of the scratch area of a raidz expansion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReflowScratch {
    /// Nothing.
    NotInUse,
    /// The only good copy of the first part of the vdev.
    Valid,
    /// It was copied back to its place.
    InvalidSynced,
    /// It was copied back during import.
    InvalidSyncedOnImport,
    /// It was copied back and the reflow went on.
    InvalidSyncedReflow,
    /// A state of a later version.
    Unknown(u16),
}

/// An uberblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uberblock {
    /// The byte order of the writer.
    pub endian: Endian,
    /// The pool's version: 1 to 28, or 5000 with feature flags.
    pub version: u64,
    /// The txg whose state this is.
    pub txg: Txg,
    /// The sum of the guids of all vdevs, modulo 2^64.
    pub guid_sum: u64,
    /// When it was written, in seconds since 1970.
    pub timestamp_s: u64,
    /// The block pointer of the meta objset.
    pub rootbp: Blkptr,
    /// The highest version that the writing software knew.
    pub software_version: u64,
    /// Multihost state.
    pub mmp: Option<Mmp>,
    /// If not 0, this is the uberblock of a checkpoint, taken from that txg.
    pub checkpoint_txg: Txg,
    /// Progress of a raidz expansion, packed: see [`Self::reflow_offset_bytes`], [`Self::reflow_scratch`].
    pub raidz_reflow: u64,
}

impl Uberblock {
    /// Bytes of the structure; a slot is larger.
    pub const SIZE: usize = OFFSET_WORDS + 48;

    /// From the start of a slot; the magic number tells the byte order. Does not check the slot's checksum.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let little = Fields::new(NAME, bytes, Self::SIZE, Endian::Little)?;
        let endian = match little.u64(0)? {
            MAGIC => Endian::Little,
            found if found == MAGIC.swap_bytes() => Endian::Big,
            found => return Err(little.error(0, FormatErrorKind::BadMagic { found, expected: MAGIC })),
        };
        let fields = Fields::new(NAME, bytes, Self::SIZE, endian)?;
        let [_, version, txg, guid_sum, timestamp_s]: [u64; 5] = DiskField::read(&fields, 0)?;
        let [software_version, mmp_magic, delay_ns, config, checkpoint_txg, raidz_reflow]: [u64; 6] =
            DiskField::read(&fields, OFFSET_WORDS)?;
        Ok(Self {
            endian,
            version,
            txg: Txg(txg),
            guid_sum,
            timestamp_s,
            rootbp: DiskField::read(&fields, OFFSET_ROOTBP)?,
            software_version,
            mmp: (mmp_magic == MMP_MAGIC).then_some(Mmp { delay_ns, config }),
            checkpoint_txg: Txg(checkpoint_txg),
            raidz_reflow,
        })
    }

    /// The bytes, in the byte order of the value.
    #[must_use]
    pub fn emit(&self) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        [MAGIC, self.version, self.txg.0, self.guid_sum, self.timestamp_s].write(&mut out, 0, self.endian);
        self.rootbp.write(&mut out, OFFSET_ROOTBP, self.endian);
        let mmp = self.mmp.map_or([0; 3], |mmp| [MMP_MAGIC, mmp.delay_ns, mmp.config]);
        let (checkpoint_txg, raidz_reflow) = (self.checkpoint_txg.0, self.raidz_reflow);
        let [magic, delay_ns, config] = mmp;
        [self.software_version, magic, delay_ns, config, checkpoint_txg, raidz_reflow].write(
            &mut out,
            OFFSET_WORDS,
            self.endian,
        );
        out
    }

    /// Whether the version is one that this format covers.
    #[must_use]
    pub const fn is_version_supported(&self) -> bool {
        matches!(self.version, 1..=VERSION_BEFORE_FEATURES | VERSION_FEATURES)
    }

    /// Orders by age: the greater is the one to import. Txg first, then time, then the multihost sequence, where an
    /// uberblock without one counts as 0.
    #[must_use]
    pub fn cmp_age(&self, other: &Self) -> Ordering {
        let key = |ub: &Self| (ub.txg, ub.timestamp_s, ub.mmp.and_then(|mmp| mmp.sequence()).unwrap_or(0));
        key(self).cmp(&key(other))
    }

    /// How far a raidz expansion got, in bytes of the vdev.
    #[must_use]
    pub const fn reflow_offset_bytes(&self) -> u64 {
        (self.raidz_reflow & ((1 << 55) - 1)) << MIN_BLOCK_SHIFT
    }

    /// The state of the scratch area of a raidz expansion.
    #[must_use]
    pub const fn reflow_scratch(&self) -> ReflowScratch {
        match self.raidz_reflow >> 55 {
            0 => ReflowScratch::NotInUse,
            1 => ReflowScratch::Valid,
            2 => ReflowScratch::InvalidSynced,
            3 => ReflowScratch::InvalidSyncedOnImport,
            4 => ReflowScratch::InvalidSyncedReflow,
            other => ReflowScratch::Unknown(other as u16),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_uberblock() -> impl Strategy<Value = Uberblock> {
        (any::<[u64; 8]>(), any::<[u64; 16]>(), proptest::option::of(any::<[u64; 2]>()), any::<bool>()).prop_map(
            |(numbers, words, mmp, big)| Uberblock {
                endian: if big { Endian::Big } else { Endian::Little },
                version: numbers[0],
                txg: Txg(numbers[1]),
                guid_sum: numbers[2],
                timestamp_s: numbers[3],
                rootbp: Blkptr::from_words(words),
                software_version: numbers[4],
                mmp: mmp.map(|[delay_ns, config]| Mmp { delay_ns, config }),
                checkpoint_txg: Txg(numbers[5]),
                raidz_reflow: numbers[6],
            },
        )
    }

    fn plain(txg: u64, timestamp_s: u64, mmp: Option<Mmp>) -> Uberblock {
        Uberblock {
            endian: Endian::Little,
            version: VERSION_FEATURES,
            txg: Txg(txg),
            guid_sum: 1,
            timestamp_s,
            rootbp: Blkptr::HOLE,
            software_version: VERSION_FEATURES,
            mmp,
            checkpoint_txg: Txg(0),
            raidz_reflow: 0,
        }
    }

    #[test]
    fn the_best_has_the_latest_txg_then_time_then_multihost_sequence() {
        let sequence = |n| Some(Mmp::new(1, Some(1000), Some(n), Some(10)));
        let ordered = [plain(4, 9, None), plain(5, 1, None), plain(5, 2, None), plain(5, 2, sequence(3))];
        for pair in ordered.windows(2) {
            assert_eq!(pair[0].cmp_age(&pair[1]), Ordering::Less);
        }
        assert_eq!(plain(5, 2, sequence(0)).cmp_age(&plain(5, 2, None)), Ordering::Equal);
        assert_eq!(plain(5, 2, sequence(9)).cmp_age(&plain(5, 2, sequence(8))), Ordering::Greater);
    }

    #[test]
    fn multihost_fields_pack_and_unpack() {
        let mmp = Mmp::new(77, Some(0xabcdef), Some(0x1234), None);
        assert_eq!(mmp.config, 0x0000_1234_abcd_ef03);
        assert_eq!((mmp.interval_ms(), mmp.sequence(), mmp.fail_intervals()), (Some(0xabcdef), Some(0x1234), None));
    }

    #[test]
    fn reflow_splits_into_state_and_offset() {
        let uberblock = Uberblock { raidz_reflow: 1 << 55 | 0x123, ..plain(1, 1, None) };
        assert_eq!(uberblock.reflow_scratch(), ReflowScratch::Valid);
        assert_eq!(uberblock.reflow_offset_bytes(), 0x123 << 9);
    }

    #[test]
    fn without_the_magic_number_it_is_none() {
        assert!(Uberblock::parse(&[0; 1024]).is_err());
        assert!(Uberblock::parse(&plain(1, 1, None).emit()[..215]).is_err());
        assert_eq!(plain(1, 1, None).emit()[..4], [0x0c, 0xb1, 0xba, 0x00]);
    }

    proptest! {
        #[test]
        fn uberblocks_round_trip_in_both_orders(uberblock in any_uberblock()) {
            prop_assert_eq!(Uberblock::parse(&uberblock.emit()).unwrap(), uberblock);
        }
    }
}
