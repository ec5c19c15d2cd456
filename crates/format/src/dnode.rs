//! Dnodes: what an object is and where its blocks are.
//!
//! ```text
//!   0      1           2        3        4          5         6         7
//! +------+-----------+--------+--------+----------+---------+---------+-------+
//! | type | indblkshf | nlevels| nblkptr| bonustype| checksum| compress| flags |
//! +------+-----------+--------+--------+----------+---------+---------+-------+
//! 8              10            12            13                              16
//! | datablkszsec | bonuslen    | extra_slots | zero                           |
//! +--------------+-------------+-------------+--------------------------------+
//! | 16: maxblkid      | 24: used               | 32: zero, 32 bytes           |
//! +-------------------+------------------------+------------------------------+
//!
//!   64         192        320        448   512        a slot is 512 bytes; a dnode has 1 + extra_slots of them
//! +----------+----------+----------+-----+
//! | blkptr 0 | blkptr 1 | blkptr 2 |     |   nblkptr = 3
//! | blkptr 0 | bonus                     |   nblkptr = 1, bonuslen up to 320 + 512 * extra_slots
//! | blkptr 0 | bonus     | spill blkptr  |   flag SPILL_BLKPTR: the last 128 bytes are a block pointer
//! +----------+----------+----------+-----+
//! ```
//!
//! The bonus buffer is a structure of its own, of type `bonustype`, in the byte order of the dnode's block; it is kept as
//! raw bytes together with that order.
//!
//! [`DnodeView`] borrows the bytes and checks on creation everything that later access needs, so its accessors cannot
//! fail. [`DnodePhys`] is the value.

use bitflags::bitflags;

use crate::blkptr::{Blkptr, MIN_BLOCK_SHIFT};
use crate::dmu_type::DmuType;
use crate::endian::{Endian, put_u16, put_u64};
use crate::error::{FormatError, FormatErrorKind};

const NAME: &str = "dnode";

const TYPE: usize = 0;
const INDIRECT_SHIFT: usize = 1;
const LEVELS: usize = 2;
const BLKPTR_COUNT: usize = 3;
const BONUS_TYPE: usize = 4;
const CHECKSUM: usize = 5;
const COMPRESS: usize = 6;
const FLAGS: usize = 7;
const DATA_BLOCK_SECTORS: usize = 8;
const BONUS_LEN: usize = 10;
const EXTRA_SLOTS: usize = 12;
const MAX_BLOCK_ID: usize = 16;
const USED: usize = 24;

/// Bytes in front of the block pointers.
pub const CORE_BYTES: usize = 64;
/// Binary logarithm of a slot's size.
pub const SLOT_SHIFT: u32 = 9;
/// Bytes of a slot, and of the smallest dnode.
pub const SLOT_BYTES: usize = 1 << SLOT_SHIFT;
/// Bytes of the largest dnode, and of the block of dnodes that OpenZFS writes.
pub const BLOCK_BYTES: usize = 1 << 14;
/// Slots of the largest dnode.
pub const MAX_SLOTS: usize = BLOCK_BYTES / SLOT_BYTES;
/// Most block pointers of a dnode.
pub const MAX_BLKPTRS: usize = 3;
/// Most levels: with indirect blocks of 4 KiB, 11 levels of them span 2^64 bytes.
pub const MAX_LEVELS: u8 = 12;
/// Smallest indirect block: 4 KiB.
pub const MIN_INDIRECT_SHIFT: u8 = 12;
/// Largest indirect block that OpenZFS makes: 128 KiB. Readers accept any block size.
pub const MAX_INDIRECT_SHIFT: u8 = 17;
/// Object numbers are below 2^48.
pub const MAX_OBJECT_SHIFT: u32 = 48;
const MAX_BLOCK_SHIFT: u8 = 24;
const MAX_BLOCK_SECTORS: u16 = 1 << (MAX_BLOCK_SHIFT - 9);

const _: () = assert!(CORE_BYTES + MAX_BLKPTRS * Blkptr::SIZE <= SLOT_BYTES);
const _: () = assert!(MAX_SLOTS == 32);

bitflags! {
    /// Flags of a dnode.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct DnodeFlags: u8 {
        /// `used` counts bytes (else sectors of 512).
        const USED_BYTES = 1 << 0;
        /// The space is accounted to the owner.
        const USERUSED_ACCOUNTED = 1 << 1;
        /// The last 128 bytes are the spill block pointer.
        const SPILL_BLKPTR = 1 << 2;
        /// The object itself is accounted to the owner.
        const USEROBJUSED_ACCOUNTED = 1 << 3;
        /// Bits of a later version.
        const _ = !0;
    }
}

/// Bytes for bonus buffer and spill pointer behind the first block pointer of a dnode with `slots` slots.
#[must_use]
pub const fn bonus_capacity_bytes(slots: usize) -> usize {
    slots * SLOT_BYTES - CORE_BYTES - Blkptr::SIZE
}

/// A checked dnode that borrows its bytes.
#[derive(Clone, Copy, Debug)]
pub struct DnodeView<'a> {
    /// Exactly the dnode's slots.
    bytes: &'a [u8],
    endian: Endian,
}

impl<'a> DnodeView<'a> {
    /// The dnode at the start of `bytes`, which extend to the end of the dnode block. `None` if the slot is free.
    pub(crate) fn parse(bytes: &'a [u8], endian: Endian) -> Result<Option<Self>, FormatError> {
        if bytes.len() < SLOT_BYTES {
            return Err(FormatError::truncated(NAME, SLOT_BYTES, bytes.len()));
        }
        if bytes[TYPE] == DmuType::NONE.0 {
            return Ok(None);
        }
        let invalid = |offset, field, value: u64, rule| Err(FormatError::invalid(NAME, offset, field, value, rule));
        if !DmuType(bytes[TYPE]).is_valid() {
            return invalid(TYPE, "dn_type", bytes[TYPE].into(), "a known object type");
        }
        let slots = usize::from(bytes[EXTRA_SLOTS]) + 1;
        if slots > MAX_SLOTS || slots * SLOT_BYTES > bytes.len() {
            return invalid(EXTRA_SLOTS, "dn_extra_slots", bytes[EXTRA_SLOTS].into(), "slots within the dnode block");
        }
        let this = Self { bytes: &bytes[..slots * SLOT_BYTES], endian };
        let blkptrs = bytes[BLKPTR_COUNT];
        if blkptrs == 0 || usize::from(blkptrs) > MAX_BLKPTRS {
            return invalid(BLKPTR_COUNT, "dn_nblkptr", blkptrs.into(), "1 to 3");
        }
        let levels = bytes[LEVELS];
        if levels == 0 || levels > MAX_LEVELS {
            return invalid(LEVELS, "dn_nlevels", levels.into(), "1 to 12");
        }
        let shift = bytes[INDIRECT_SHIFT];
        // At least 1 KiB, so that every level narrows the tree.
        if (levels > 1 && shift < 10) || shift > MAX_BLOCK_SHIFT {
            return invalid(INDIRECT_SHIFT, "dn_indblkshift", shift.into(), "10 to 24 where there are indirect blocks");
        }
        let sectors = this.data_block_sectors();
        if sectors == 0 || sectors > MAX_BLOCK_SECTORS {
            return invalid(DATA_BLOCK_SECTORS, "dn_datablkszsec", sectors.into(), "512 bytes to 16 MiB");
        }
        let spill_bytes = if this.flags().contains(DnodeFlags::SPILL_BLKPTR) { Blkptr::SIZE } else { 0 };
        let extra_blkptr_bytes = (usize::from(blkptrs) - 1) * Blkptr::SIZE;
        if extra_blkptr_bytes + usize::from(this.bonus_len()) + spill_bytes > bonus_capacity_bytes(slots) {
            return invalid(BONUS_LEN, "dn_bonuslen", this.bonus_len().into(), "within the dnode, before the spill");
        }
        if this.bonus_len() != 0 && !this.bonus_type().is_valid() {
            return invalid(BONUS_TYPE, "dn_bonustype", bytes[BONUS_TYPE].into(), "a known object type");
        }
        Ok(Some(this))
    }

    /// The dnode in slot `slot` of a block of dnodes. `None` if the slot is free. A slot in the middle of a large dnode
    /// holds part of that dnode's bonus: ask only for slots that are the first of an object, or use [`dnodes_in_block`].
    pub fn in_block(block: &'a [u8], slot: usize, endian: Endian) -> Result<Option<Self>, FormatError> {
        Self::parse(block.get(slot.saturating_mul(SLOT_BYTES)..).unwrap_or(&[]), endian)
    }

    /// The dnode's bytes, all slots.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    fn u16(&self, offset: usize) -> u16 {
        self.endian.u16([self.bytes[offset], self.bytes[offset + 1]])
    }

    fn u64(&self, offset: usize) -> u64 {
        self.endian.u64(std::array::from_fn(|index| self.bytes[offset + index]))
    }

    /// The object's type.
    #[must_use]
    pub fn object_type(&self) -> DmuType {
        DmuType(self.bytes[TYPE])
    }

    /// Binary logarithm of the size of indirect blocks.
    #[must_use]
    pub(crate) fn indirect_block_shift(&self) -> u8 {
        self.bytes[INDIRECT_SHIFT]
    }

    /// Levels of blocks; 1 if the dnode's own block pointers point to data.
    #[must_use]
    pub fn levels(&self) -> u8 {
        self.bytes[LEVELS]
    }

    /// How many block pointers the dnode has, 1 to 3.
    #[must_use]
    pub fn blkptr_count(&self) -> usize {
        usize::from(self.bytes[BLKPTR_COUNT])
    }

    /// The type of the bonus buffer.
    #[must_use]
    pub fn bonus_type(&self) -> DmuType {
        DmuType(self.bytes[BONUS_TYPE])
    }

    /// The flags.
    #[must_use]
    pub(crate) fn flags(&self) -> DnodeFlags {
        DnodeFlags::from_bits_retain(self.bytes[FLAGS])
    }

    fn data_block_sectors(&self) -> u16 {
        self.u16(DATA_BLOCK_SECTORS)
    }

    /// Bytes of a data block.
    #[must_use]
    pub fn data_block_bytes(&self) -> u32 {
        u32::from(self.data_block_sectors()) << MIN_BLOCK_SHIFT
    }

    fn bonus_len(&self) -> u16 {
        self.u16(BONUS_LEN)
    }

    /// Slots that the dnode takes.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.bytes.len() / SLOT_BYTES
    }

    /// The number of the last data block that was ever allocated.
    #[must_use]
    pub fn max_block_id(&self) -> u64 {
        self.u64(MAX_BLOCK_ID)
    }

    /// Bytes of disk space that the object takes.
    #[must_use]
    pub(crate) fn used_bytes(&self) -> u64 {
        used_bytes(self.u64(USED), self.flags())
    }

    /// The block pointer at `index`, if the dnode has that many.
    #[must_use]
    pub fn blkptr(&self, index: usize) -> Option<Blkptr> {
        if index >= self.blkptr_count() {
            return None;
        }
        Blkptr::nth(&self.bytes[CORE_BYTES..], index, self.endian).ok()
    }

    /// The bonus buffer.
    #[must_use]
    pub fn bonus(&self) -> &'a [u8] {
        let start = CORE_BYTES + self.blkptr_count() * Blkptr::SIZE;
        &self.bytes[start..start + usize::from(self.bonus_len())]
    }

    /// The block pointer of the spill block, if there is one.
    #[must_use]
    pub fn spill(&self) -> Option<Blkptr> {
        if !self.flags().contains(DnodeFlags::SPILL_BLKPTR) {
            return None;
        }
        Blkptr::parse(&self.bytes[self.bytes.len() - Blkptr::SIZE..], self.endian).ok()
    }

    /// The value.
    #[must_use]
    pub fn to_value(&self) -> DnodePhys {
        DnodePhys {
            object_type: self.object_type(),
            indirect_block_shift: self.indirect_block_shift(),
            levels: self.levels(),
            blkptr_count: self.bytes[BLKPTR_COUNT],
            bonus_type: self.bonus_type(),
            checksum: self.bytes[CHECKSUM],
            compress: self.bytes[COMPRESS],
            flags: self.flags(),
            data_block_sectors: self.data_block_sectors(),
            extra_slots: self.bytes[EXTRA_SLOTS],
            max_block_id: self.max_block_id(),
            used: self.u64(USED),
            blkptrs: std::array::from_fn(|index| self.blkptr(index).unwrap_or(Blkptr::HOLE)),
            bonus: self.bonus().into(),
            spill: self.spill(),
            endian: self.endian,
        }
    }
}

fn used_bytes(used: u64, flags: DnodeFlags) -> u64 {
    if flags.contains(DnodeFlags::USED_BYTES) { used } else { used.saturating_mul(1 << MIN_BLOCK_SHIFT) }
}

/// One item of [`dnodes_in_block`]: the first slot and what it holds.
pub type SlotDnode<'a> = (usize, Result<DnodeView<'a>, FormatError>);

/// The allocated dnodes of a block of dnodes with their first slots, skipping free slots and the inner slots of large
/// dnodes. A damaged slot is reported and the walk goes on with the next slot.
pub fn dnodes_in_block(block: &[u8], endian: Endian) -> impl Iterator<Item = SlotDnode<'_>> {
    let mut slot = 0;
    std::iter::from_fn(move || {
        while (slot + 1) * SLOT_BYTES <= block.len() {
            let this = slot;
            slot += 1;
            match DnodeView::in_block(block, this, endian) {
                Ok(Some(dnode)) => {
                    slot = this + dnode.slots();
                    return Some((this, Ok(dnode)));
                }
                Ok(None) => {}
                Err(error) => return Some((this, Err(error))),
            }
        }
        None
    })
}

/// A dnode as a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnodePhys {
    /// The object's type.
    pub object_type: DmuType,
    /// Binary logarithm of the size of indirect blocks.
    pub indirect_block_shift: u8,
    /// Levels of blocks; 1 if the dnode's own block pointers point to data.
    pub levels: u8,
    /// How many block pointers the dnode has, 1 to 3.
    pub blkptr_count: u8,
    /// The type of the bonus buffer.
    pub bonus_type: DmuType,
    /// Checksum for new blocks ([`crate::enums::Checksum`]'s number; 0 inherits from the dataset).
    pub checksum: u8,
    /// Compression for new blocks ([`crate::enums::Compress`]'s number; 0 inherits).
    pub compress: u8,
    /// The flags.
    pub flags: DnodeFlags,
    /// Sectors of 512 bytes of a data block.
    pub data_block_sectors: u16,
    /// Slots beyond the first.
    pub extra_slots: u8,
    /// The number of the last data block that was ever allocated.
    pub max_block_id: u64,
    /// Disk space, in bytes or sectors as the flags say.
    pub used: u64,
    /// The block pointers; those beyond `blkptr_count` are holes.
    pub blkptrs: [Blkptr; MAX_BLKPTRS],
    /// The bonus buffer, in the byte order `endian`.
    pub bonus: Box<[u8]>,
    /// The spill block's pointer.
    pub spill: Option<Blkptr>,
    /// The byte order of the bonus buffer.
    pub endian: Endian,
}

impl DnodePhys {
    /// Parses like [`DnodeView::parse`], but a free slot is an error.
    pub(crate) fn parse(bytes: &[u8], endian: Endian) -> Result<Self, FormatError> {
        match DnodeView::parse(bytes, endian)? {
            Some(view) => Ok(view.to_value()),
            None => Err(FormatError { structure: NAME, offset: TYPE, kind: FormatErrorKind::Malformed("free slot") }),
        }
    }

    /// Parses like [`DnodeView::parse`]; `None` if the slot is free.
    pub(crate) fn parse_slot(bytes: &[u8], endian: Endian) -> Result<Option<Self>, FormatError> {
        Ok(DnodeView::parse(bytes, endian)?.map(|view| view.to_value()))
    }

    /// The bytes, in the byte order of the bonus buffer.
    ///
    /// # Panics
    /// If the parts do not fit the slots.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let endian = self.endian;
        let mut out = vec![0; self.slots() * SLOT_BYTES];
        out[TYPE] = self.object_type.0;
        out[INDIRECT_SHIFT] = self.indirect_block_shift;
        out[LEVELS] = self.levels;
        out[BLKPTR_COUNT] = self.blkptr_count;
        out[BONUS_TYPE] = self.bonus_type.0;
        out[CHECKSUM] = self.checksum;
        out[COMPRESS] = self.compress;
        out[FLAGS] = self.flags.bits();
        put_u16(&mut out, DATA_BLOCK_SECTORS, self.data_block_sectors, endian);
        put_u16(&mut out, BONUS_LEN, self.bonus.len() as u16, endian);
        out[EXTRA_SLOTS] = self.extra_slots;
        put_u64(&mut out, MAX_BLOCK_ID, self.max_block_id, endian);
        put_u64(&mut out, USED, self.used, endian);
        let mut offset = CORE_BYTES;
        for blkptr in &self.blkptrs[..usize::from(self.blkptr_count)] {
            out[offset..offset + Blkptr::SIZE].copy_from_slice(&blkptr.emit(endian));
            offset += Blkptr::SIZE;
        }
        assert!(offset + self.bonus.len() + self.spill.map_or(0, |_| Blkptr::SIZE) <= out.len(), "bonus too large");
        assert_eq!(self.spill.is_some(), self.flags.contains(DnodeFlags::SPILL_BLKPTR), "spill flag and pointer");
        out[offset..offset + self.bonus.len()].copy_from_slice(&self.bonus);
        if let Some(spill) = &self.spill {
            let start = out.len() - Blkptr::SIZE;
            out[start..].copy_from_slice(&spill.emit(endian));
        }
        out
    }

    /// Slots that the dnode takes.
    #[must_use]
    pub fn slots(&self) -> usize {
        usize::from(self.extra_slots) + 1
    }

    /// Bytes of a data block.
    #[must_use]
    pub fn data_block_bytes(&self) -> u32 {
        u32::from(self.data_block_sectors) << MIN_BLOCK_SHIFT
    }

    /// Binary logarithm of the number of block pointers in an indirect block.
    #[must_use]
    pub fn blkptrs_per_indirect_shift(&self) -> u32 {
        u32::from(self.indirect_block_shift).saturating_sub(Blkptr::SHIFT)
    }

    /// Bytes of disk space that the object takes.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        used_bytes(self.used, self.flags)
    }

    /// The block pointers that the dnode has.
    #[must_use]
    pub fn blkptrs(&self) -> &[Blkptr] {
        &self.blkptrs[..usize::from(self.blkptr_count).min(MAX_BLKPTRS)]
    }
}

#[cfg(test)]
pub(crate) mod tests;
