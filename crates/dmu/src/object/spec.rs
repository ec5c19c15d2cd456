//! The initial state of a new object.

use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::dnode::{DnodeFlags, DnodePhys, MAX_BLKPTRS, bonus_capacity_bytes};
use cenote_zio::ORDER;

use crate::DmuErrorKind;
use crate::geometry::{BLOCK_MAX_BYTES, INDIRECT_SHIFT};

/// The properties of a new object.
#[derive(Clone, Debug)]
pub struct ObjectSpec {
    /// Its type.
    pub kind: DmuType,
    /// Bytes of a data block: a multiple of 512.
    pub block_bytes: u32,
    /// Indirect blocks, as a power of two.
    pub indirect_shift: u8,
    /// The type of its bonus.
    pub bonus_kind: DmuType,
    /// The bonus.
    pub bonus: Vec<u8>,
    /// Slots of 512 bytes for the dnode.
    pub slots: u8,
    /// Its blocks are never compressed, whatever the objset says.
    pub uncompressed: bool,
    /// Its dnode leaves room for a spill block's pointer. One with system attributes does anyway.
    pub has_spill: bool,
}

impl ObjectSpec {
    /// An object of this kind with blocks of this size, without a bonus.
    #[must_use]
    pub const fn new(kind: DmuType, block_bytes: u32) -> Self {
        Self {
            kind,
            block_bytes,
            indirect_shift: INDIRECT_SHIFT,
            bonus_kind: DmuType::NONE,
            bonus: Vec::new(),
            slots: 1,
            uncompressed: false,
            has_spill: false,
        }
    }

    /// The same with a bonus.
    #[must_use]
    pub fn with_bonus(self, bonus_kind: DmuType, bonus: Vec<u8>) -> Self {
        Self { bonus_kind, bonus, ..self }
    }

    /// The dnode that it begins as.
    pub(crate) fn dnode(&self) -> Result<DnodePhys, DmuErrorKind> {
        let bad = |what: &str| DmuErrorKind::WrongType(format!("a new object: {what}"));
        if self.block_bytes == 0 || !self.block_bytes.is_multiple_of(512) || self.block_bytes > BLOCK_MAX_BYTES {
            return Err(bad("blocks are multiples of 512 bytes, 16 MiB at most"));
        }
        let room = bonus_capacity_bytes(usize::from(self.slots.max(1)));
        let left = room.checked_sub(self.bonus.len()).ok_or_else(|| bad("the bonus does not fit"))?;
        let left = if self.has_spill {
            left.checked_sub(Blkptr::SIZE).ok_or_else(|| bad("no room for a spill block"))?
        } else {
            left
        };
        // System attributes change their size, so they get all the room there is.
        let count = if self.bonus_kind == DmuType::SA { 1 } else { (1 + left / Blkptr::SIZE).min(MAX_BLKPTRS) };
        Ok(DnodePhys {
            object_type: self.kind,
            indirect_block_shift: self.indirect_shift,
            levels: 1,
            blkptr_count: count as u8,
            bonus_type: self.bonus_kind,
            checksum: 0,
            compress: if self.uncompressed { 2 } else { 0 },
            flags: DnodeFlags::USED_BYTES,
            data_block_sectors: (self.block_bytes >> 9) as u16,
            extra_slots: self.slots.max(1) - 1,
            max_block_id: 0,
            used: 0,
            blkptrs: [Blkptr::HOLE; MAX_BLKPTRS],
            bonus: self.bonus.clone().into(),
            spill: None,
            endian: ORDER,
        })
    }
}
