//! Objsets of encrypted datasets that are written without the key: as raw streams bring them.
//!
//! # Theory
//!
//! **Need.** A raw stream has blocks as they lie on the sender's disk, and all that their MACs cover. What is written must be the same
//! in all of that, so that whoever has the key finds it right; nobody here can tell.
//!
//! **What is covered, and whence it comes.**
//! ```text
//!   block                                  bytes                              salt, IV, MAC
//!   data, spill blocks                     the stream's, as they are          the stream's (WRITE, SPILL)
//!   blocks of dnodes: fields, pointers     made here                          the stream's, of the block (OBJECT_RANGE)
//!     the area of the bonus, to its end    the stream's (OBJECT)
//!   indirect blocks                        made here                          the sum of the MACs below
//!   the root                               made here, uncompressed            the portable MAC is the stream's (BEGIN), the local one zero
//! ```
//! Fields of dnodes that are covered: levels, the size of indirect blocks, the number of pointers and of the last block. So a tree is as high
//! as the sender's, though it could be lower, and freeing does not lower the last block's number.
//!
//! **Life of a block of dnodes.** The seal of a block is told with the first of its objects, in the txg that has the object. The sync puts
//! dnodes into the block as ever, keeps what stands behind each bonus, and writes the block with the seal of its txg, or else with the one
//! that its pointer on disk has. While only some of its objects have come the MAC is wrong: the dataset is marked as half received, and nobody
//! reads it with a key.
//!
//! **Accounts** of owners are not kept: nobody here can read whose a file is. Their flag is off, and the local MAC, which covers them, is zero;
//! OpenZFS makes them anew when the dataset is mounted with its key.
//!
//! **Invariant.** A block of dnodes that is not empty has a seal: every object comes in a txg that has one for its block.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::dnode::{BLOCK_BYTES, DnodePhys, MAX_BLKPTRS, MAX_LEVELS};
use cenote_format::enums::ObjsetType;
use cenote_format::ids::{ObjectId, ObjsetId, Txg};
use cenote_format::objset::{MAC_BYTES, ObjsetFlags};
use cenote_taskq::sync::Mutex;
use cenote_zio::Seal;

use super::{Objset, ObjsetPolicy};
use crate::geometry::{OBJECT_MAX, SLOTS, levels_for};
use crate::object::ObjectSpec;
use crate::reader::{KeyAccess, Reader};
use crate::{Dmu, DmuError};

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
        is_sized && is_shaped && self.max_block_id < OBJECT_MAX / SLOTS && {
            let head = self.meta();
            levels_for(&head, self.max_block_id + 1) == self.levels
        }
    }

    fn meta(&self) -> DnodePhys {
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

    /// A txg is on disk.
    pub(super) fn written(&self, txg: Txg) {
        let mut parts = self.parts.lock();
        parts.seals = parts.seals.split_off(&(Txg(txg.0 + 1), 0));
        parts.areas = parts.areas.split_off(&(Txg(txg.0 + 1), ObjectId(0)));
    }
}

impl Objset {
    /// A new objset without objects, to be written raw.
    #[must_use]
    pub fn create_raw(dmu: Dmu, id: ObjsetId, kind: ObjsetType, policy: ObjsetPolicy, root: &RawRoot) -> Self {
        assert!(root.is_possible(), "checked: a meta-dnode can be like that");
        let (meta, reader) = (root.meta(), Reader::new(dmu, id, KeyAccess::Without));
        let phys = Self::empty_phys(kind, &meta);
        let this = Self::owned(reader, Blkptr::HOLE, phys, policy, 1, Some(Raw::default()));
        this.add(ObjectId(0), meta, None);
        this
    }

    /// Opens the objset of an encrypted dataset, to be written raw.
    ///
    /// # Errors
    /// As [`Objset::own`].
    pub async fn own_raw(dmu: Dmu, id: ObjsetId, root: Blkptr, policy: ObjsetPolicy) -> Result<Self, DmuError> {
        Self::own_with(Reader::new(dmu, id, KeyAccess::Without), root, policy, Some(Raw::default())).await
    }

    /// Begins to write it raw: the root and the meta-dnode become those of the stream. Whether they can.
    #[must_use]
    pub fn begin_raw(&self, txg: Txg, root: &RawRoot) -> bool {
        assert!(self.is_raw(), "what is written raw was opened for that");
        let meta = self.meta_dnode();
        if !root.is_possible() || !root.fits(&meta.phys()) {
            return false;
        }
        {
            let mut state = self.open_state().state.lock();
            let phys = Arc::make_mut(&mut state.phys);
            phys.portable_mac = root.portable_mac;
            phys.local_mac = [0; MAC_BYTES];
            phys.flags.remove(ObjsetFlags::USERACCOUNTING_COMPLETE);
        }
        self.open_state().changes.mark(txg, ObjectId(0));
        meta.set_transforms(txg, root.checksum, root.compress);
        meta.set_shape(txg, root.levels, root.max_block_id);
        true
    }

    /// True if it is written raw.
    #[must_use]
    pub fn is_raw(&self) -> bool {
        self.raw().is_some()
    }

    pub(crate) fn raw(&self) -> Option<&Raw> {
        match &self.shared.content {
            super::Content::Open(open) => open.raw.as_ref(),
            super::Content::Frozen { .. } => None,
        }
    }

    /// The seal of the block of dnodes that an object stands in. The txg changes the object too.
    pub fn seal_dnodes(&self, txg: Txg, object: ObjectId, seal: Seal) {
        let raw = self.raw().expect("what is written raw was opened for that");
        raw.parts.lock().seals.insert((txg, object.0 / SLOTS), seal);
    }

    /// Everything that the dnode of an object has behind its pointers, up to that to a spill block. The txg changes the object too.
    pub fn set_bonus_area(&self, txg: Txg, object: ObjectId, area: Box<[u8]>) {
        let raw = self.raw().expect("what is written raw was opened for that");
        raw.parts.lock().areas.insert((txg, object), area);
    }
}
