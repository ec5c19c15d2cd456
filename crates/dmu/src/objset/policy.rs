//! How blocks are written: the dataset's properties, and what the kind of object and the level in its tree make of them.

use cenote_codec::compress::CompressLevel;
use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::enums::{Checksum, Compress};
use cenote_format::ids::Txg;
use cenote_zio::{Bookmark, WritePolicy};

use crate::caching::{Caching, Kinds};

/// From this pass on a block that this txg wrote is written in its own place again (`zfs_sync_pass_rewrite`).
pub(crate) const PASS_REWRITE: u32 = 2;
/// From this pass on nothing is compressed, so that sizes stay what they are (`zfs_sync_pass_dont_compress`).
const PASS_DONT_COMPRESS: u32 = 8;
/// The most copies of a block.
const COPIES_MAX: u8 = 3;

/// The metadata of an objset that is kept in one copy more than its data (`redundant_metadata`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RedundantMetadata {
    /// All of it.
    #[default]
    All,
    /// Metadata that many blocks depend on: dnodes' indirect blocks and those high up in trees, directories.
    Most,
    /// Metadata that a whole dataset depends on, not that of single files and directories.
    Some,
    /// Nothing.
    None,
}

/// How an objset's blocks are written: properties, resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjsetPolicy {
    /// Data's compression.
    pub compress: Compress,
    /// Its level.
    pub compress_level: CompressLevel,
    /// Data's checksum.
    pub checksum: Checksum,
    /// Copies of data.
    pub copies: u8,
    /// Metadata's compression: lz4, or lzjb in a pool without the feature `lz4_compress`.
    pub metadata_compress: Compress,
    /// Copies of metadata.
    pub redundant_metadata: RedundantMetadata,
    /// Files' data that is stored in no more bytes than this goes where metadata goes, if that is a class of its own
    /// (`special_small_blocks`).
    pub small_block_bytes: u32,
    /// Feature `embedded_data`.
    pub may_embed: bool,
    /// Feature `hole_birth`.
    pub holes_have_births: bool,
    /// The kinds of its blocks that are cached and read ahead (`primarycache`, `prefetch`, `secondarycache`).
    pub caching: Caching,
}

impl ObjsetPolicy {
    /// The policy of a dataset without properties of its own, and, with three copies, of the pool's own objects.
    #[must_use]
    pub const fn new(copies: u8) -> Self {
        Self {
            compress: Compress::Lz4,
            compress_level: CompressLevel::INHERIT,
            checksum: Checksum::Fletcher4,
            copies,
            metadata_compress: Compress::Lz4,
            redundant_metadata: RedundantMetadata::All,
            small_block_bytes: 0,
            may_embed: true,
            holes_have_births: true,
            caching: Caching { primary: Kinds::All, prefetch: Kinds::All, secondary: Kinds::All },
        }
    }

    /// Up to how many bytes data of a kind of object is small ([`Self::small_block_bytes`]).
    #[must_use]
    pub fn small_bytes_of(&self, kind: DmuType) -> u32 {
        if kind == DmuType::PLAIN_FILE_CONTENTS { self.small_block_bytes } else { 0 }
    }

    /// How a block of this objset is written.
    pub(crate) fn of_block(&self, block: BlockKind, at: Bookmark, previous: Blkptr, now: Now) -> WritePolicy {
        assert!(now.pass > 0 && now.txg > Txg(0), "blocks are written in a pass of a txg");
        assert!(
            at.level < 0 || at.level.cast_unsigned() == block.level,
            "a block is written at the level where it stands"
        );
        let is_metadata = block.level > 0 || block.kind.is_metadata();
        let extra = match self.redundant_metadata {
            RedundantMetadata::All => is_metadata,
            RedundantMetadata::Most => block.level >= 2 || block.kind.is_metadata(),
            RedundantMetadata::Some => is_critical(block.kind, block.level),
            RedundantMetadata::None => false,
        };
        let (mut compress, mut compress_level) = (self.compress, self.compress_level);
        let mut checksum = self.checksum;
        if is_metadata {
            (compress, compress_level) = (self.metadata_compress, CompressLevel::INHERIT);
            if !protects_metadata(checksum) {
                checksum = Checksum::Fletcher4;
            }
        }
        let mut copies = (self.copies + u8::from(extra)).min(COPIES_MAX);
        if block.protects && block.kind.is_encrypted() {
            // The IV takes the place of the third.
            copies = copies.min(COPIES_MAX - 1);
        }
        if block.uncompressed || now.pass >= PASS_DONT_COMPRESS {
            compress = Compress::Off;
        }
        WritePolicy {
            bookmark: at,
            object_type: block.kind,
            level: block.level,
            txg: now.txg,
            compress,
            compress_level,
            checksum,
            copies,
            fill: block.fill,
            small_block_bytes: self.small_bytes_of(block.kind),
            may_embed: self.may_embed,
            holes_have_births: self.holes_have_births,
            previous,
            nopwrite: !is_metadata && !block.protects && now.pass < PASS_REWRITE,
            may_rewrite: now.pass >= PASS_REWRITE,
            protects: block.protects,
            force_gang_above_bytes: None,
        }
    }
}

/// The properties of a block that decide how it is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockKind {
    pub(crate) kind: DmuType,
    pub(crate) level: u8,
    pub(crate) fill: u64,
    pub(crate) uncompressed: bool,
    /// The objset is encrypted, and written without the key.
    pub(crate) protects: bool,
}

/// The txg that syncs, and its pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    pub(crate) txg: Txg,
    pub(crate) pass: u32,
}

/// True for metadata that more than a few files or directories depend on (`DMU_OT_IS_CRITICAL`).
fn is_critical(kind: DmuType, level: u8) -> bool {
    let is_of_files =
        matches!(kind, DmuType::DIRECTORY_CONTENTS | DmuType::SA) || (kind == DmuType::DNODE && level == 0);
    kind.is_metadata() && !is_of_files
}

/// Whether a checksum of data is good enough for metadata (`ZCHECKSUM_FLAG_METADATA`).
const fn protects_metadata(checksum: Checksum) -> bool {
    !matches!(
        checksum,
        Checksum::Inherit | Checksum::On | Checksum::Off | Checksum::Zilog | Checksum::Fletcher2 | Checksum::NoParity
    )
}

#[cfg(test)]
mod tests {
    use cenote_format::ids::{BlockId, ObjectId, ObjsetId};

    use super::*;

    #[test]
    fn redundant_metadata_doubles_what_openzfs_doubles() {
        use RedundantMetadata as Redundant;
        let copies = |redundant_metadata, kind, level: u8| {
            let policy = ObjsetPolicy { redundant_metadata, ..ObjsetPolicy::new(1) };
            let at = Bookmark { objset: ObjsetId(1), object: ObjectId(1), level: level as i8, block: BlockId(0) };
            let block = BlockKind { kind, level, fill: 1, uncompressed: false, protects: false };
            policy.of_block(block, at, Blkptr::HOLE, Now { txg: Txg(9), pass: 1 }).copies
        };
        let (file, directory) = (DmuType::PLAIN_FILE_CONTENTS, DmuType::DIRECTORY_CONTENTS);
        // Kind and level; copies with all, most, some, none.
        for (kind, level, expected) in [
            (file, 0, [1, 1, 1, 1]),
            (file, 1, [2, 1, 1, 1]),
            (file, 2, [2, 2, 1, 1]),
            (directory, 0, [2, 2, 1, 1]),
            (directory, 1, [2, 2, 1, 1]),
            (DmuType::SA, 0, [2, 2, 1, 1]),
            (DmuType::DNODE, 0, [2, 2, 1, 1]),
            (DmuType::DNODE, 1, [2, 2, 2, 1]),
            (DmuType::OBJSET, 0, [2, 2, 2, 1]),
            (DmuType::MASTER_NODE, 0, [2, 2, 2, 1]),
            (DmuType::USERGROUP_USED, 0, [2, 2, 2, 1]),
        ] {
            let all = [Redundant::All, Redundant::Most, Redundant::Some, Redundant::None];
            assert_eq!(all.map(|redundant| copies(redundant, kind, level)), expected, "{kind:?} level {level}");
        }
    }
}
