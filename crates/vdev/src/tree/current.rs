//! The topology that is current: taken by each I/O, swapped by a change.
//!
//! Taking it is a shared lock held for as long as a counted reference is copied. Both would be hot if all I/O met there. So each of
//! [`SHARDS`] has a lock and a reference of its own, and a top-level vdev always goes to the same one: two I/Os that meet there meet
//! in front of the same devices too, at whose queue they take a lock anyway.
//!
//! A change sets the shards one after the other. Meanwhile I/O of different top-level vdevs may have different topologies, which they
//! may at any time ([`super::topology`], invariants 2 and 4); no write is under way then.

use std::sync::{Arc, Weak};

use cenote_format::ids::VdevId;
use cenote_taskq::sync::RwLock;
use crossbeam_utils::CachePadded;

use super::topology::Topology;

/// As many top-level vdevs have a shard each. A pool has more of them rarely.
const SHARDS: usize = 16;

/// See the module comment.
#[derive(Debug)]
pub(super) struct Current(Box<[CachePadded<RwLock<Arc<Topology>>>]>);

impl Current {
    pub(super) fn new(topology: &Topology) -> Self {
        // A reference count of its own each: the topology itself is cheap to clone.
        Self((0..SHARDS).map(|_| CachePadded::new(RwLock::new(Arc::new(topology.clone())))).collect())
    }

    /// For I/O of a top-level vdev.
    pub(super) fn of(&self, vdev: VdevId) -> Arc<Topology> {
        self.0[vdev.0 as usize % SHARDS].read().clone()
    }

    /// For everything else.
    pub(super) fn any(&self) -> Arc<Topology> {
        self.of(VdevId(0))
    }

    /// Looks at it for a moment: `look` does not wait for anything, and takes no topology itself.
    pub(super) fn look<T>(&self, vdev: VdevId, look: impl FnOnce(&Topology) -> T) -> T {
        look(&self.0[vdev.0 as usize % SHARDS].read())
    }

    /// Makes another one current.
    pub(super) fn swap(&self, topology: &Topology) -> Retired {
        let mut retired = Vec::with_capacity(SHARDS);
        for shard in &self.0 {
            let before = std::mem::replace(&mut *shard.write(), Arc::new(topology.clone()));
            assert!(
                Arc::ptr_eq(&before.common, &topology.common),
                "all topologies are of one pool (topology, invariant 2)"
            );
            retired.push(Arc::downgrade(&before));
            // Not under the lock: devices may be closed with it.
            drop(before);
        }
        Retired(retired)
    }
}

/// A topology that is not current any more, which lasts as long as I/O that has begun in it.
#[derive(Debug)]
pub struct Retired(Vec<Weak<Topology>>);

impl Retired {
    /// True if no I/O is under way in it.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.iter().all(|topology| topology.strong_count() == 0)
    }
}
