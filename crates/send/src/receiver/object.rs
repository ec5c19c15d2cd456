//! Applies an OBJECT record: it creates an object, or changes an existing one.
//!
//! ```text
//! the object                               action
//!   does not exist                         it is created; objects in its slots are freed first
//!   exists with as many slots, and fits    bonus, kind and block size are changed in place
//!   exists with other slots, or needs      it is freed, and created anew when that is on disk: see [`super::deferred`]
//!     more room for its bonus
//! ```
//! Another block size means another file, or one whose single block has grown: the old contents are freed, and the stream brings all of the new.
//! The one exception is a file, or the data of a volume, of several smaller blocks which the stream sends in large ones, because earlier streams
//! were not allowed to: it keeps its blocks, since the stream brings only those that changed. A file's generation tells the two apart; a volume
//! has one object of data all its life. (OpenZFS up to 2.4 makes the exception for files only, and such volumes lose data.)

use cenote_dmu::tx::Cost;
use cenote_dmu::{INDIRECT_SHIFT, Object, ObjectSpec};
use cenote_format::dmu_type::DmuType;
use cenote_format::dnode::{DnodeFlags, DnodePhys, MAX_BLKPTRS, bonus_capacity_bytes};
use cenote_format::enums::{Checksum, Compress};
use cenote_format::ids::{BlockId, ObjectId};
use cenote_format::sa::SaOwner;
use cenote_format::stream::{BLOCK_PAYLOAD_BYTES_MAX, Features, Object as Record, RecordFlags};
use cenote_taskq::mutant::{self, Mutant};

use super::ReceiverError;
use super::apply::{Applier, OBJECTS_END, PLAIN_BLOCK_MAX_BYTES};

/// Slots in a block of dnodes.
const SLOTS: u64 = 32;
/// Bytes of a pointer.
const POINTER_BYTES: usize = 128;

/// A valid OBJECT record.
pub(super) struct Wanted {
    pub(super) kind: DmuType,
    pub(super) bonus_kind: DmuType,
    pub(super) block_bytes: u32,
    pub(super) slots: u8,
    pub(super) has_spill: bool,
}

impl Wanted {
    /// Pointers of a new object with this bonus.
    pub(super) fn pointers(&self, bonus_bytes: usize) -> usize {
        if self.bonus_kind == DmuType::SA {
            return 1;
        }
        let left = bonus_capacity_bytes(usize::from(self.slots)).saturating_sub(bonus_bytes);
        let count = (1 + left / POINTER_BYTES).min(MAX_BLKPTRS);
        assert!((1..=MAX_BLKPTRS).contains(&count), "a dnode has some pointers, and no more than fit");
        count
    }
}

/// The generation of a file, from its attributes.
fn generation(kind: DmuType, bonus: &[u8]) -> Option<u64> {
    match kind {
        DmuType::SA => SaOwner::parse(bonus).ok().map(|owner| owner.generation),
        DmuType::ZNODE => SaOwner::parse_znode(bonus, cenote_zio::ORDER).ok().map(|owner| owner.generation),
        _ => None,
    }
}

impl Applier {
    pub(super) fn wanted(&self, record: &Record) -> Result<Wanted, ReceiverError> {
        let kind_of = |number: u32| u8::try_from(number).ok().map(DmuType).filter(|kind| kind.is_valid());
        let (Some(kind), Some(bonus_kind)) = (kind_of(record.object_type), kind_of(record.bonus_type)) else {
            return Err(self.invalid("a kind of object that there is not"));
        };
        if kind == DmuType::NONE || kind == DmuType::DNODE {
            return Err(self.invalid("an object of no kind"));
        }
        let id = record.object.0;
        let slots = record.dnode_slots.max(1);
        let is_placed = (1..OBJECTS_END).contains(&id) && id % SLOTS + u64::from(slots) <= SLOTS;
        if !is_placed || (slots > 1 && !self.features.contains(Features::LARGE_DNODE)) {
            return Err(self.invalid(format!("object {id} of {slots} slots, where there is no room for them")));
        }
        let large = self.features.contains(Features::LARGE_BLOCKS);
        let limit = if large { BLOCK_PAYLOAD_BYTES_MAX } else { PLAIN_BLOCK_MAX_BYTES };
        let size = u64::from(record.block_bytes);
        if size < 512 || !size.is_multiple_of(512) || size > limit {
            return Err(self.invalid(format!("blocks of {size} bytes")));
        }
        let has_spill = record.flags.contains(RecordFlags::SPILL);
        let room = bonus_capacity_bytes(usize::from(slots));
        let needed = record.bonus_bytes as usize + if has_spill && self.tells_spill { POINTER_BYTES } else { 0 };
        if needed > room {
            return Err(self.invalid(format!("a bonus of {} bytes, where {room} have room", record.bonus_bytes)));
        }
        let is_known =
            Checksum::from_number(record.checksum_type).is_some() && Compress::from_number(record.compress).is_some();
        if !is_known {
            return Err(self.invalid("a checksum or a compression that there is not"));
        }
        Ok(Wanted { kind, bonus_kind, block_bytes: record.block_bytes, slots, has_spill })
    }

    /// Refuses attributes without a valid owner, since the sync accounts for each owner's space.
    fn check_owner(&self, kind: DmuType, bonus: &[u8]) -> Result<(), ReceiverError> {
        let owner = match kind {
            DmuType::SA => SaOwner::parse(bonus),
            DmuType::ZNODE => SaOwner::parse_znode(bonus, cenote_zio::ORDER),
            _ => return Ok(()),
        };
        owner.map(drop).map_err(|error| self.invalid(error.to_string()))
    }

    /// Creates or changes the object of a record. False if it has no room yet.
    pub(super) async fn put_object(&mut self, record: &Record, payload: &[u8]) -> Result<bool, ReceiverError> {
        let wanted = self.wanted(record)?;
        let bonus = payload.get(..record.bonus_bytes as usize);
        let bonus = bonus.ok_or_else(|| self.invalid("a bonus that is not as long as it says"))?;
        let turned = self.turned(wanted.bonus_kind, bonus)?;
        let bonus = turned.as_deref().unwrap_or(bonus);
        assert_eq!(bonus.len(), record.bonus_bytes as usize, "a bonus is as long as its record says (invariant 3)");
        if self.counts_owners {
            self.check_owner(wanted.bonus_kind, bonus)?;
        }
        let found = self.find(record.object).await?;
        let object = match found {
            Some(object) if Self::fits(&object.phys(), &wanted, bonus) => {
                self.change_object(&object, &wanted, bonus).await?;
                object
            }
            found => {
                if let Some(object) = found {
                    self.free_object(&object).await?;
                }
                if !self.clear_slots(record.object, wanted.slots).await? {
                    return Ok(false);
                }
                self.make_object(record.object, &wanted, bonus).await?
            }
        };
        let phys = object.phys();
        if (phys.checksum, phys.compress) != (record.checksum_type, record.compress) {
            let tx = self.begin(Cost::objects(1)).await?;
            object.set_transforms(tx.txg(), record.checksum_type, record.compress);
        }
        self.keep_open(object);
        Ok(true)
    }

    /// True if an object can be changed in place.
    fn fits(phys: &DnodePhys, wanted: &Wanted, bonus: &[u8]) -> bool {
        let pointers = usize::from(phys.blkptr_count);
        phys.slots() == usize::from(wanted.slots) && wanted.pointers(bonus.len()) >= pointers
    }

    async fn make_object(&mut self, id: ObjectId, wanted: &Wanted, bonus: &[u8]) -> Result<Object, ReceiverError> {
        let spec = ObjectSpec {
            kind: wanted.kind,
            block_bytes: wanted.block_bytes,
            indirect_shift: INDIRECT_SHIFT,
            bonus_kind: wanted.bonus_kind,
            bonus: bonus.to_vec(),
            slots: wanted.slots,
            uncompressed: false,
            has_spill: false,
        };
        assert!((1..OBJECTS_END).contains(&id.0), "an object that is made has a number of a dataset's (invariant 1)");
        let tx = self.begin(Cost::objects(1)).await?;
        Ok(self.objset().create_at(tx.txg(), id, &spec)?)
    }

    /// Frees the objects in the slots of a new object. True if the slots are free now, false if only when a txg is on disk.
    pub(super) async fn clear_slots(&mut self, id: ObjectId, slots: u8) -> Result<bool, ReceiverError> {
        if self.objset().is_free(id, slots).await? {
            return Ok(true);
        }
        for slot in 0..u64::from(slots) {
            if let Some(object) = self.find(ObjectId(id.0 + slot)).await? {
                self.free_object(&object).await?;
            }
        }
        Ok(false)
    }

    async fn change_object(&self, object: &Object, wanted: &Wanted, bonus: &[u8]) -> Result<(), ReceiverError> {
        let phys = object.phys();
        let mut block_bytes = wanted.block_bytes;
        let size = phys.data_block_bytes();
        if block_bytes != size {
            // Objects that may have large blocks, and so may have arrived in smaller ones before: files, and a volume's data, which is never
            // another's.
            let is_of = |kind| wanted.kind == kind && phys.object_type == kind;
            let has_several = !self.is_whole && phys.max_block_id > 0;
            let generations = || {
                let both = generation(phys.bonus_type, &phys.bonus).zip(generation(wanted.bonus_kind, bonus));
                both.ok_or_else(|| self.invalid("blocks of another size for a file without a generation"))
            };
            let is_same = match has_several {
                true if is_of(DmuType::ZVOL) || mutant::is(Mutant::ReceiveBlocksKept) => true,
                true if is_of(DmuType::PLAIN_FILE_CONTENTS) => generations().map(|(old, new)| old == new)?,
                _ => false,
            };
            if is_same {
                if block_bytes < size {
                    return Err(self.invalid("blocks of a file or volume that became smaller"));
                }
                block_bytes = size;
            } else {
                self.shrink(object, 0).await?;
            }
        }
        let drops_spill = match self.tells_spill {
            true => !wanted.has_spill,
            // Old senders send the spill block with each object whose dnode changed.
            false => {
                (phys.object_type, phys.bonus_type, phys.bonus.len()) != (wanted.kind, wanted.bonus_kind, bonus.len())
                    || block_bytes != size
            }
        };
        let cost = Cost::objects(1).with_bytes(u64::from(block_bytes));
        let tx = self.begin(cost).await?;
        let txg = tx.txg();
        if drops_spill && phys.flags.contains(DnodeFlags::SPILL_BLKPTR) {
            object.set_spill(txg, None);
        }
        if phys.object_type != wanted.kind {
            object.set_kind(txg, wanted.kind);
        }
        object.replace_bonus(txg, wanted.bonus_kind, bonus)?;
        if block_bytes != size {
            debug_assert_eq!(object.last_block(), BlockId(0), "what has blocks of another size has none of its own");
            object.set_block_bytes(txg, block_bytes).await?;
        }
        Ok(())
    }
}
