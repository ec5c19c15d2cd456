//! The objects of an objset, one after the other, around what cannot be read.

use cenote_dmu::{DmuError, Object, Objset};
use cenote_format::dnode::SLOT_BYTES;
use cenote_format::ids::ObjectId;
use serde_json::{Map, Value};

/// Unreadable blocks of dnodes in a row after which the rest is given up.
const BAD_BLOCKS_MAX: u32 = 4096;

/// A walk over the objects. After an unreadable block of dnodes it goes on with the next.
pub(crate) struct Objects {
    objset: Objset,
    next: ObjectId,
    pending: std::vec::IntoIter<(ObjectId, Result<Object, DmuError>)>,
    bad_blocks: u32,
    is_done: bool,
}

impl Objects {
    /// The objects from `from` on.
    pub(crate) fn new(objset: &Objset, from: ObjectId) -> Self {
        Self { objset: objset.clone(), next: from, pending: Vec::new().into_iter(), bad_blocks: 0, is_done: false }
    }

    /// The next object, or what is unreadable before it.
    pub(crate) async fn next(&mut self) -> Option<Result<Object, DmuError>> {
        loop {
            if let Some((_, dnode)) = self.pending.next() {
                return Some(dnode);
            }
            if self.is_done {
                return None;
            }
            match self.objset.next_objects(self.next).await {
                Ok(Some(batch)) => {
                    self.bad_blocks = 0;
                    self.next = batch.next;
                    self.pending = batch.objects.into_iter();
                }
                Ok(None) => return None,
                Err(error) => {
                    // The number of the failed block is not known: go on behind the one where the search began.
                    let meta = self.objset.meta_dnode();
                    let slots = (meta.block_bytes() / SLOT_BYTES as u64).max(1);
                    let block = self.next.0 / slots;
                    self.bad_blocks += 1;
                    self.next = ObjectId(block.saturating_add(1).saturating_mul(slots));
                    self.is_done = block >= meta.last_block().0 || self.bad_blocks >= BAD_BLOCKS_MAX;
                    return Some(Err(error));
                }
            }
        }
    }
}

/// The sizes of an object, as `zdb -d` has them in a line.
pub(crate) fn summary(dnode: &Object) -> Map<String, Value> {
    let phys = dnode.phys();
    let data_block = dnode.block_bytes();
    let lsize = dnode.last_block().0.saturating_add(1).saturating_mul(data_block);
    let fill: u64 = phys.blkptrs().iter().fold(0, |sum, bp| sum.saturating_add(bp.fill()));
    // The array of dnodes counts objects, the others blocks.
    let unit = if dnode.id().0 == 0 { SLOT_BYTES as u64 } else { data_block };
    let full = if lsize == 0 { 0.0 } else { 100.0 * fill as f64 * unit as f64 / lsize as f64 };
    let mut map = Map::new();
    map.insert("object".into(), number(dnode.id()));
    map.insert("levels".into(), phys.levels.into());
    map.insert("indirect_block_bytes".into(), 1_u64.checked_shl(u32::from(phys.indirect_block_shift)).into());
    map.insert("data_block_bytes".into(), data_block.into());
    map.insert("used_bytes".into(), phys.used_bytes().into());
    map.insert("dnode_bytes".into(), dnode_bytes(phys.slots()).into());
    map.insert("lsize_bytes".into(), lsize.into());
    map.insert("full_percent".into(), ((full * 100.0).round() / 100.0).into());
    map.insert("bonus_size_bytes".into(), phys.bonus.len().into());
    map.insert("type".into(), phys.object_type.to_string().into());
    map
}

/// An object's number: the accounts of users, groups and projects are below zero.
fn number(id: ObjectId) -> Value {
    if id.0 > u64::MAX - 3 { id.0.cast_signed().into() } else { id.0.into() }
}

/// The bytes that go with a number of slots.
fn dnode_bytes(slots: usize) -> u64 {
    (slots * SLOT_BYTES) as u64
}
