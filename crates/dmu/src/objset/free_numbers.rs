//! Numbers of objects that were freed before the objset was opened.

use cenote_format::dnode::dnodes_in_block;
use cenote_format::ids::{BlockId, ObjectId};
use cenote_taskq::boxed;

use super::Objset;
use super::object_alloc::bits;
use super::open::MOS;
use crate::DmuError;
use crate::geometry::{OBJECT_MAX, SLOTS};

/// Pointers of the meta-dnode that are looked at for free numbers at a time.
const LOOKS_MAX: usize = 1 << 10;
/// A block of the meta-dnode is looked into where it has no more objects than this.
const CROWD_MAX: u64 = SLOTS / 4 * 3;

impl Objset {
    /// Looks for numbers of objects that were freed before this objset was opened, where none are known: a bounded piece of the
    /// meta-dnode, so to be called whenever a new object is to be made.
    ///
    /// # Errors
    /// The meta-dnode cannot be read.
    #[boxed]
    pub async fn look_for_numbers(&self) -> Result<(), DmuError> {
        for _ in 0..LOOKS_MAX {
            let open = self.open_state();
            let block = {
                let mut state = open.state.lock();
                if self.id() == MOS || !state.numbers.wants_more() {
                    return Ok(());
                }
                let Some(block) = state.numbers.unseen.next() else { return Ok(()) };
                block
            };
            let forgotten = open.table.of(ObjectId(block * SLOTS)).forgotten;
            let meta = self.meta_dnode();
            let Some(on_disk) = meta.on_disk() else { return Ok(()) };
            let pointer = on_disk.pointer(0, BlockId(block)).await?;
            if !pointer.is_hole() && pointer.fill() > CROWD_MAX {
                continue;
            }
            let mut free = u32::MAX;
            if let Some((bytes, order)) = meta.block(BlockId(block)).await? {
                for (slot, dnode) in dnodes_in_block(&bytes, order) {
                    // A damaged dnode is left alone, and so is its block.
                    let Ok(dnode) = dnode else {
                        free = 0;
                        break;
                    };
                    free &= !bits(ObjectId(slot as u64), dnode.slots() as u64);
                }
            }
            let shard = open.table.of(ObjectId(block * SLOTS));
            // An object written and forgotten meanwhile is neither in the block that was read nor in memory.
            if shard.forgotten != forgotten {
                continue;
            }
            let numbers = ObjectId(block * SLOTS)..ObjectId((block + 1) * SLOTS);
            for (id, object) in shard.objects.range(numbers) {
                free &= !bits(*id, object.phys().slots() as u64);
            }
            if block == 0 {
                free &= !1;
            }
            open.state.lock().numbers.add(block, free);
        }
        Ok(())
    }

    /// Whether a number is free for an object of so many slots: no object in memory or on disk has any of them.
    ///
    /// # Errors
    /// The meta-dnode cannot be read.
    #[boxed]
    pub async fn is_free(&self, id: ObjectId, slots: u8) -> Result<bool, DmuError> {
        let slots = u64::from(slots.max(1));
        if id.0 == 0 || id.0 >= OBJECT_MAX || id.0 % SLOTS + slots > SLOTS {
            return Ok(false);
        }
        let (open, wanted, block) = (self.open_state(), bits(id, slots), id.0 / SLOTS);
        loop {
            let forgotten = open.table.of(id).forgotten;
            let mut used = 0;
            if let Some((bytes, order)) = self.meta_dnode().block(BlockId(block)).await? {
                for (slot, dnode) in dnodes_in_block(&bytes, order) {
                    // A damaged dnode may reach to the end of its block.
                    let slots = dnode.map_or(SLOTS - slot as u64, |dnode| dnode.slots() as u64);
                    used |= bits(ObjectId(slot as u64), slots);
                }
            }
            let shard = open.table.of(ObjectId(block * SLOTS));
            if shard.forgotten != forgotten {
                continue;
            }
            for (id, object) in shard.objects.range(ObjectId(block * SLOTS)..ObjectId((block + 1) * SLOTS)) {
                used |= bits(*id, object.phys().slots() as u64);
            }
            return Ok(used & wanted == 0);
        }
    }
}
