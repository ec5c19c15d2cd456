//! The features of a dataset that its bytes need: a fact of the format, told from block pointers, dnodes and objset flags alone.
//!
//! OpenZFS counts each of these features once for each dataset, snapshots included, that has or had such bytes (`ds_feature`): a
//! program that does not know the feature must not open the pool while the count is not zero. Writing asks here which features to
//! activate, and verifying asks which must be active.

use crate::blkptr::Blkptr;
use crate::dmu_type::DmuType;
use crate::enums::{Checksum, Compress};
use crate::objset::ObjsetFlags;

/// Blocks and micro ZAPs up to this size need no feature (`SPA_OLD_MAXBLOCKSIZE`).
pub const OLD_BLOCK_MAX_BYTES: u64 = 128 << 10;
/// Names of files up to this length need no feature (`ZAP_MAXNAMELEN`, less the byte that ends them).
pub const OLD_NAME_MAX_BYTES: usize = 255;

bitflags::bitflags! {
    /// Features that are counted by dataset, as far as bytes tell that they are needed.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Needs: u16 {
        /// A block of more than 128 KiB.
        const LARGE_BLOCKS = 1 << 0;
        /// A dnode of more than 512 bytes.
        const LARGE_DNODE = 1 << 1;
        /// A block with this checksum.
        const SHA512 = 1 << 2;
        /// Likewise.
        const SKEIN = 1 << 3;
        /// Likewise.
        const EDONR = 1 << 4;
        /// Likewise.
        const BLAKE3 = 1 << 5;
        /// A block compressed with it.
        const ZSTD_COMPRESS = 1 << 6;
        /// Objects are counted by owner.
        const USEROBJ_ACCOUNTING = 1 << 7;
        /// Space is counted by project.
        const PROJECT_QUOTA = 1 << 8;
        /// A name of more than 255 bytes.
        const LONGNAME = 1 << 9;
        /// A micro ZAP of more than 128 KiB.
        const LARGE_MICROZAP = 1 << 10;
    }
}

/// Short names of the features, bit by bit.
const NAMES: [(Needs, &str); 11] = [
    (Needs::LARGE_BLOCKS, "large_blocks"),
    (Needs::LARGE_DNODE, "large_dnode"),
    (Needs::SHA512, "sha512"),
    (Needs::SKEIN, "skein"),
    (Needs::EDONR, "edonr"),
    (Needs::BLAKE3, "blake3"),
    (Needs::ZSTD_COMPRESS, "zstd_compress"),
    (Needs::USEROBJ_ACCOUNTING, "userobj_accounting"),
    (Needs::PROJECT_QUOTA, "project_quota"),
    (Needs::LONGNAME, "longname"),
    (Needs::LARGE_MICROZAP, "large_microzap"),
];

impl Needs {
    /// Those of a checksum that blocks may have.
    #[must_use]
    pub const fn of_checksum(checksum: Checksum) -> Self {
        match checksum {
            Checksum::Sha512 => Self::SHA512,
            Checksum::Skein => Self::SKEIN,
            Checksum::Edonr => Self::EDONR,
            Checksum::Blake3 => Self::BLAKE3,
            _ => Self::empty(),
        }
    }

    /// Those of a compression that blocks may have.
    #[must_use]
    pub const fn of_compress(compress: Compress) -> Self {
        match compress {
            Compress::Zstd => Self::ZSTD_COMPRESS,
            _ => Self::empty(),
        }
    }

    /// Those of a block of this logical size.
    #[must_use]
    pub const fn of_block_size(bytes: u64) -> Self {
        if bytes > OLD_BLOCK_MAX_BYTES { Self::LARGE_BLOCKS } else { Self::empty() }
    }

    /// Those of a block, also one that stands in its pointer. A hole needs nothing.
    #[must_use]
    pub fn of_pointer(bp: &Blkptr) -> Self {
        if bp.is_hole() || bp.is_redacted() {
            return Self::empty();
        }
        // Where an embedded block's checksum would stand is the kind of its payload.
        let checksum = bp.checksum().filter(|_| !bp.is_embedded()).map_or(Self::empty(), Self::of_checksum);
        let compress = bp.compress().map_or(Self::empty(), Self::of_compress);
        Self::of_block_size(bp.lsize_bytes()) | checksum | compress
    }

    /// Those of a dnode of so many slots.
    #[must_use]
    pub const fn of_slots(slots: usize) -> Self {
        if slots > 1 { Self::LARGE_DNODE } else { Self::empty() }
    }

    /// Those of an objset with these flags.
    #[must_use]
    pub fn of_objset(flags: ObjsetFlags) -> Self {
        let mut needs = Self::empty();
        needs.set(Self::USEROBJ_ACCOUNTING, flags.contains(ObjsetFlags::USEROBJACCOUNTING_COMPLETE));
        needs.set(Self::PROJECT_QUOTA, flags.contains(ObjsetFlags::PROJECTQUOTA_COMPLETE));
        needs
    }

    /// Those of a file's name of so many bytes.
    #[must_use]
    pub const fn of_name(bytes: usize) -> Self {
        if bytes > OLD_NAME_MAX_BYTES { Self::LONGNAME } else { Self::empty() }
    }

    /// Those of a micro ZAP's block of so many bytes, beside what a block of that size needs.
    #[must_use]
    pub const fn of_micro_zap(bytes: u64) -> Self {
        if bytes > OLD_BLOCK_MAX_BYTES { Self::LARGE_MICROZAP } else { Self::empty() }
    }

    /// The contents of blocks of this kind, and not only their pointers, may need features.
    #[must_use]
    pub fn are_in_contents(kind: DmuType, level: u8, lsize_bytes: u64) -> bool {
        level == 0 && (kind == DmuType::DIRECTORY_CONTENTS || (kind.is_zap() && lsize_bytes > OLD_BLOCK_MAX_BYTES))
    }

    /// The features' short names.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        NAMES.into_iter().filter(move |(need, _)| self.contains(*need)).map(|(_, name)| name)
    }

    /// The need that a feature of this short name is for, if bytes tell of it.
    #[must_use]
    #[cfg(test)]
    pub(crate) fn by_name(name: &str) -> Option<Self> {
        NAMES.into_iter().find(|(_, of)| *of == name).map(|(need, _)| need)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Txg;

    #[test]
    fn every_need_has_a_name_that_leads_back() {
        assert_eq!(Needs::all().names().count(), NAMES.len());
        assert_eq!(Needs::all().bits().count_ones() as usize, NAMES.len());
        for (need, name) in NAMES {
            assert_eq!(Needs::by_name(name), Some(need));
            assert_eq!(need.names().collect::<Vec<_>>(), [name]);
        }
    }

    #[test]
    fn a_hole_needs_nothing_and_sizes_count_from_one_byte_more() {
        let hole = Blkptr::hole_with_birth(DmuType::PLAIN_FILE_CONTENTS, 0, 1 << 20, Txg(5));
        assert_eq!(Needs::of_pointer(&hole), Needs::empty());
        assert_eq!(Needs::of_block_size(128 << 10), Needs::empty());
        assert_eq!(Needs::of_block_size((128 << 10) + 512), Needs::LARGE_BLOCKS);
        assert_eq!((Needs::of_slots(1), Needs::of_slots(2)), (Needs::empty(), Needs::LARGE_DNODE));
        assert_eq!((Needs::of_name(255), Needs::of_name(256)), (Needs::empty(), Needs::LONGNAME));
    }
}
