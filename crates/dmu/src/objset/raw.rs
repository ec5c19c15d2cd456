//! Objsets of encrypted datasets that are written without the key: as raw streams bring them.
//!
//! # Theory
//!
//! **Need.** A raw stream has blocks as they lie on the sender's disk, and all that their MACs cover. The blocks written from it must have
//! the same bytes wherever a MAC covers them, so that a reader with the key can authenticate them. Without the key this cannot be checked
//! here.
//!
//! **The bytes that the MACs cover, and the source of each part.**
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
//! **Life of a block of dnodes.** The seal (salt, IV, MAC) of a block comes with the first of its objects, in the object's txg. The sync
//! puts dnodes into the block as always, keeps what stands behind each bonus, and writes the block with the seal of its txg, or else with
//! the one that its pointer on disk has. While only some of its objects have come the MAC is wrong: the dataset is marked as inconsistent,
//! and is not read with a key.
//!
//! **Accounts** of owners (`userused@`) are not kept: without the key the owner of a file is unknown. Their flag is off, and the local MAC,
//! which covers them, is zero; OpenZFS makes them anew when the dataset is mounted with its key.
//!
//! **Invariant.** A block of dnodes that is not empty has a seal: every object comes in a txg that has one for its block.

use std::sync::Arc;

use cenote_format::blkptr::Blkptr;
use cenote_format::enums::ObjsetType;
use cenote_format::ids::{ObjectId, ObjsetId, Txg};
use cenote_format::objset::{MAC_BYTES, ObjsetFlags};
use cenote_taskq::boxed;
use cenote_zio::Seal;

use super::seals::{Raw, RawRoot};
use super::{Objset, ObjsetPolicy};
use crate::geometry::SLOTS;
use crate::reader::{KeyAccess, Reader};
use crate::{Dmu, DmuError};

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
    #[boxed]
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
    pub(crate) fn is_raw(&self) -> bool {
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
        raw.put_seal(txg, object.0 / SLOTS, seal);
    }

    /// Everything that the dnode of an object has behind its pointers, up to that to a spill block. The txg changes the object too.
    pub fn set_bonus_area(&self, txg: Txg, object: ObjectId, area: Box<[u8]>) {
        let raw = self.raw().expect("what is written raw was opened for that");
        raw.put_area(txg, object, area);
    }
}
