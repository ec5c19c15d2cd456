//! The objects of an open objset that are in memory, by number: in shards, each with a lock of its own.
//!
//! ```text
//!   block of dnodes   0  1  2 … 31 │ 32 33 …       a block's objects are in one shard, neighbouring blocks in different ones
//!   shard             0  1  2 … 31 │  0  1 …
//! ```
//! So tasks that open objects seldom contend for a lock, and what is looked at for each object when a txg is on disk is looked at on all
//! cores.

use std::collections::BTreeMap;

use cenote_format::ids::{ObjectId, Txg};
use cenote_taskq::sync::{Mutex, MutexGuard};

use crate::geometry::{SLOTS, is_special};
use crate::object::Object;

/// Shards of a table.
pub(super) const SHARDS: usize = 32;
/// Objects of a shard at which unused ones are first let go.
const OBJECTS_MIN: usize = (1 << 10) / SHARDS;

pub(super) struct Table {
    shards: Box<[Mutex<Shard>]>,
}

pub(super) struct Shard {
    pub(super) objects: BTreeMap<ObjectId, Object>,
    /// Number of objects at which unused ones are let go, though no txg ends.
    full_at: usize,
    /// How often objects have been forgotten: what was read from disk before may be out of date after.
    pub(super) forgotten: u64,
}

impl Table {
    pub(super) fn new() -> Self {
        let shard = || Mutex::new(Shard { objects: BTreeMap::new(), full_at: OBJECTS_MIN, forgotten: 0 });
        Self { shards: (0..SHARDS).map(|_| shard()).collect() }
    }

    /// The shard of an object.
    pub(super) fn of(&self, id: ObjectId) -> MutexGuard<'_, Shard> {
        self.shard((id.0 / SLOTS % SHARDS as u64) as usize)
    }

    pub(super) fn shard(&self, at: usize) -> MutexGuard<'_, Shard> {
        self.shards[at].lock()
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().objects.len()).sum()
    }

    /// Those of these objects that are here, in their order.
    pub(super) fn all(&self, ids: &[ObjectId]) -> Vec<Object> {
        let mut found = Vec::with_capacity(ids.len());
        for block in ids.chunk_by(|one, other| one.0 / SLOTS == other.0 / SLOTS) {
            let Some(first) = block.first() else { continue };
            let shard = self.of(*first);
            found.extend(block.iter().filter_map(|id| shard.objects.get(id).cloned()));
        }
        found
    }
}

impl Shard {
    /// Lets go of unused objects before they are more than the used ones: where everything is only read no txg ends.
    pub(super) fn make_room(&mut self) {
        if self.objects.len() < self.full_at {
            return;
        }
        // An object that is freed on disk is let go at the end of a txg, which gives its number to others.
        let is_kept =
            |id: &ObjectId, object: &Object| id.0 == 0 || is_special(*id) || !object.is_idle() || object.is_gone();
        self.objects.retain(|id, object| is_kept(id, object));
        self.forgotten += 1;
        self.full_at = (self.objects.len() * 2).max(OBJECTS_MIN);
    }

    /// A txg is on disk: lets go of unused objects and of those that are freed on disk, which are told.
    pub(super) fn sweep(&mut self, txg: Txg, mut gone: impl FnMut(ObjectId, &Object)) {
        self.objects.retain(|id, object| {
            if id.0 == 0 || is_special(*id) {
                return true;
            }
            // An object that is freed on disk no longer exists, though someone may still hold it.
            let is_gone = object.is_gone();
            debug_assert!(!object.is_changed_in(txg), "what a txg has changed is on disk with its root");
            if is_gone {
                gone(*id, object);
            }
            !is_gone && !object.is_idle()
        });
        self.forgotten += 1;
    }
}
