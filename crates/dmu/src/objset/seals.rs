//! The parts of an objset that is written raw ([`super::raw`]): the form of its root, and seals and areas that the next txgs take.

use std::collections::BTreeMap;

use cenote_format::dmu_type::DmuType;
use cenote_format::dnode::{BLOCK_BYTES, DnodePhys, MAX_BLKPTRS, MAX_LEVELS};
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::objset::MAC_BYTES;
use cenote_taskq::sync::Mutex;
use cenote_zio::Seal;

use crate::geometry::{OBJECT_MAX, SLOTS, levels_for};
use crate::object::ObjectSpec;

/// The facts of a raw stream's objset.
#[derive(Clone, Debug)]
pub struct RawRoot {
    /// The MAC of the root.
    pub portable_mac: [u8; MAC_BYTES],
    /// Of the meta-dnode, the number of its checksum.
    pub checksum: u8,
    /// Of its compression.
    pub compress: u8,
    /// Its levels.
    pub levels: u8,
    /// Bytes of a block of dnodes.
    pub block_bytes: u64,
    /// The size of its indirect blocks, as a power of two.
    pub indirect_shift: u8,
    /// Its pointers.
    pub pointers: u8,
    /// The number of its last block.
    pub max_block_id: u64,
}

impl RawRoot {
    /// Whether a meta-dnode can be like that.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        let is_sized = self.block_bytes == BLOCK_BYTES as u64 && (12..=17).contains(&self.indirect_shift);
        let is_shaped = usize::from(self.pointers) == MAX_BLKPTRS && (1..=MAX_LEVELS).contains(&self.levels);
        let is_low = || u32::from(self.indirect_shift - 7) * u32::from(self.levels - 1) < u64::BITS;
        is_sized && is_shaped && is_low() && self.max_block_id < OBJECT_MAX / SLOTS && {
            let head = self.meta();
            levels_for(&head, self.max_block_id + 1) == self.levels
        }
    }

    pub(super) fn meta(&self) -> DnodePhys {
        let mut meta = ObjectSpec::new(DmuType::DNODE, BLOCK_BYTES as u32);
        meta.indirect_shift = self.indirect_shift;
        let meta = meta.dnode().expect("a meta-dnode is a dnode");
        DnodePhys { levels: self.levels, ..meta }
    }

    /// Whether the meta-dnode that is there has the form that does not change.
    #[must_use]
    pub fn fits(&self, meta: &DnodePhys) -> bool {
        meta.levels == self.levels
            && u64::from(meta.data_block_bytes()) == self.block_bytes
            && meta.indirect_block_shift == self.indirect_shift
            && meta.blkptr_count == self.pointers
            // It never has fewer blocks.
            && meta.max_block_id <= self.max_block_id
    }
}

/// The part of an open objset that is written raw.
#[derive(Default)]
pub(crate) struct Raw {
    parts: Mutex<Parts>,
}

#[derive(Default)]
struct Parts {
    /// Seals of blocks of dnodes, by the txg that brings them.
    seals: BTreeMap<(Txg, u64), Seal>,
    /// Areas of bonuses, all that a dnode has for one.
    areas: BTreeMap<(Txg, ObjectId), Box<[u8]>>,
}

impl Raw {
    pub(crate) fn seal(&self, txg: Txg, block: u64) -> Option<Seal> {
        self.parts.lock().seals.get(&(txg, block)).copied()
    }

    pub(crate) fn area(&self, txg: Txg, object: ObjectId) -> Option<Box<[u8]>> {
        self.parts.lock().areas.get(&(txg, object)).cloned()
    }

    pub(super) fn put_seal(&self, txg: Txg, block: u64, seal: Seal) {
        self.parts.lock().seals.insert((txg, block), seal);
    }

    pub(super) fn put_area(&self, txg: Txg, object: ObjectId, area: Box<[u8]>) {
        self.parts.lock().areas.insert((txg, object), area);
    }

    /// A txg is on disk.
    pub(super) fn written(&self, txg: Txg) {
        let mut parts = self.parts.lock();
        parts.seals = parts.seals.split_off(&(Txg(txg.0 + 1), 0));
        parts.areas = parts.areas.split_off(&(Txg(txg.0 + 1), ObjectId(0)));
        debug_assert!(parts.seals.keys().all(|(later, _)| *later > txg), "a seal goes with its txg");
        debug_assert!(parts.areas.keys().all(|(later, _)| *later > txg), "an area goes with its txg");
    }
}
